"""Weighted sums of rows and columns of images, as interpolation has them. docs/spec/graph.md
section 3."""

from __future__ import annotations

import numpy as np

from samebits.ir.integer.define import (
    ACCUMULATORS,
    Arrays,
    Values,
    accumulator,
    expect,
    expect_codes,
    expect_zeros,
    magnitude,
    narrowed,
    register_integer,
    wide,
)
from samebits.ir.integer.windows import image_shape
from samebits.ir.ops import Array, Attributes, Type
from samebits.ir.traits import Trait


def _infer(values: Values, a: Attributes) -> list[Type]:
    x, *tables = values
    n, _, _, c = image_shape(x)
    expect_codes(x)
    expect_zeros(a, "zero")
    for places, weights in (tables[:2], tables[2:]):
        fits = len(places.shape) == 2 and min(places.shape) > 0 and places.dtype == "int32"
        expect(fits, "int32 places [size, taps]", places)
        same = weights.shape == places.shape and weights.dtype in ACCUMULATORS
        expect(same, f"integer weights {list(places.shape)}", weights)
    return [(accumulator(a), (n, tables[0].shape[0], tables[2].shape[0], c))]


def check_places(places: Array, size: int) -> None:
    """ValueError for a place outside an axis of this size."""
    low, high = int(places.min()), int(places.max())
    expect(low >= 0 and high < size, f"places from 0 to {size - 1}", (low, high))


def _resample(arrays: Arrays, a: Attributes) -> list[Array]:
    x, rows, w, columns, v = arrays
    check_places(rows, x.shape[1])
    check_places(columns, x.shape[2])
    centred = x.astype(np.int64) - a["zero"]
    largest = magnitude(centred) * rows.shape[1] * magnitude(w) * columns.shape[1] * magnitude(v)
    centred, w, v = (wide(array, largest) for array in (centred, w, v))
    high = (centred[:, rows] * w[:, :, None, None]).sum(2)
    total = (high[:, :, columns] * v[:, :, None]).sum(3)
    return [narrowed(np.asarray(total), a["dtype"])]


register_integer(
    "resample",
    (5, 5),
    {"zero": 0, "dtype": "int32"},
    _infer,
    _resample,
    Trait.SPATIAL,
    Trait.ACCUMULATES,
)
