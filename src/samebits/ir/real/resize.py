"""Interpolation of images: linear and cubic Resize of ONNX, with weights that are rationals.

It is linear in the image and separable: along each axis an output is a sum of weighted samples.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np

from samebits.ir.ops import Array, Attributes, Type
from samebits.ir.real import define as real
from samebits.ir.real.define import Inputs, define
from samebits.ir.real.linear import product
from samebits.ir.real.shape import COORDINATES, ROUNDINGS, check_sizes, source
from samebits.ir.traits import Trait

MODES = ("nearest", "linear", "cubic")
CROP = "tf_crop_and_resize"
COLUMNS_MAX = 1 << 20  # weights of a matrix of some columns
Taps = Mapping[int, Fraction]  # position of a sample -> its weight


def _infer(values: Inputs, attributes: Attributes) -> list[Type]:
    """The sizes, which scales must agree with: an output reads about 1 / scale samples."""
    (x,) = values
    kind = real.check_type(x, real.FLOATS)
    sizes = check_sizes(x.shape, attributes)
    real.choice(attributes, "mode", MODES)
    crops = real.choice(attributes, "coordinate_transformation_mode", (*COORDINATES, CROP)) == CROP
    roi = attributes["roi"]
    if crops != (roi is not None) or (crops and len(roi) != 2 * len(sizes)):
        raise ValueError(f"expected {2 * len(sizes)} ends of a region with {CROP}, found {roi!r}")
    for axis, (size, out) in enumerate(zip(x.shape, sizes, strict=True)):
        scale = Fraction(out, size) if attributes["scales"] is None else attributes["scales"][axis]
        if not -1 <= 2 * (size * Fraction(scale) - out) < 2:  # rounded down, or to the nearest
            raise ValueError(
                f"expected sizes that scales give, of axis {axis} about {size} * {float(scale)}, "
                f"found {out}"
            )
    return [(kind, sizes)]


def _interpolate(arrays: Inputs, attributes: Attributes) -> list[Array]:
    """Weighted sums along each axis that changes."""
    (x,) = arrays
    for axis, taps in weights_of(x.shape, attributes).items():
        last = np.moveaxis(x, axis, -1)
        line = x.dtype != object and last.shape[:-1] in ((), (1,))
        x = np.moveaxis(_line(last, taps) if line else _weighted(last, taps), -1, axis)
    return [x]


def _weighted(x: Array, taps: Sequence[Taps]) -> Array:
    """Sums of weighted samples along the last axis, as `product` with a matrix of the weights."""
    places, weights = tables(taps)

    def sums(x: Array, weights: Array) -> Array:
        terms = zip(places.T, weights, strict=True)
        return functools.reduce(np.add, (np.take(x, at, -1) * w for at, w in terms))

    weights = weights.T if x.dtype == object else weights.T.astype(np.float64)
    return real.bilinear(sums, x, weights, 1, (-1,), x.shape[-1])


def _line(x: Array, taps: Sequence[Taps]) -> Array:
    """The same of one row of binary64, which `product` adds in another order: some columns of the
    matrix at a time."""
    step, parts = max(1, COLUMNS_MAX // x.shape[-1]), []
    for start in range(0, len(taps), step):
        rows = taps[start : start + step]
        matrix = np.zeros((x.shape[-1], len(rows)))
        for i, row in enumerate(rows):
            for place, weight in row.items():
                matrix[place, i] = weight
        parts.append(product(x, matrix))
    return np.concatenate(parts, -1)


def tables(taps: Sequence[Taps]) -> tuple[Array, Array]:
    """Places and weights [outputs, taps], rationals. Rows with fewer taps read position 0 with the
    weight 0."""
    count = max(1, *map(len, taps))
    places, weights = np.zeros((len(taps), count), np.int32), np.zeros((len(taps), count), object)
    for i, row in enumerate(taps):
        for k, (place, weight) in enumerate(sorted(row.items())):
            places[i, k], weights[i, k] = place, weight
    return places, weights


def weights_of(shape: tuple[int, ...], attributes: Attributes) -> dict[int, tuple[Taps, ...]]:
    """For each axis that changes the samples that each output position reads, and their weights.

    An output outside the region of tf_crop_and_resize reads none.
    """
    found = {}
    for axis, (size, out) in enumerate(zip(shape, attributes["sizes"], strict=True)):
        scales, roi = attributes["scales"], attributes["roi"]
        scale = Fraction(out, size) if scales is None else Fraction(scales[axis])
        ends = None if roi is None else (Fraction(roi[axis]), Fraction(roi[axis + len(shape)]))
        if size == out and scale == 1 and (ends is None or ends == (Fraction(0), Fraction(1))):
            continue
        found[axis] = _weights(
            *(size, out, scale, attributes["coordinate_transformation_mode"], ends),
            *(attributes["mode"], attributes["nearest_mode"]),
            Fraction(attributes["cubic_coeff_a"]),
            bool(attributes["exclude_outside"]),
            bool(attributes["antialias"]),
        )
    return found


@functools.lru_cache(maxsize=64)
def _weights(
    size: int,
    out: int,
    scale: Fraction,
    coordinates: str,
    ends: tuple[Fraction, Fraction] | None,
    mode: str,
    nearest: str,
    cubic: Fraction,
    exclude: bool,
    antialias: bool,
) -> tuple[Taps, ...]:
    """The samples near the position that each output stands for; a sample beyond an end is the one
    at that end, unless `exclude` drops it and rescales the rest."""
    shrink = min(scale, Fraction(1)) if antialias else Fraction(1)
    rows = []
    for i in range(out):
        if ends:
            x = _cropped(i, size, scale, ends)
        else:
            x = source(i, size, out, scale, coordinates, scale * size - 1)
        row: dict[int, Fraction] = {}
        if ends is None or 0 <= x <= size - 1:
            # The ratio lies in (0, 1]: at a sample it is that sample's right neighbour's place.
            left = math.ceil(x) - 1
            for offset, weight in _kernel(x - left, mode, nearest, cubic, shrink, antialias):
                place = left + offset
                if not exclude or 0 <= place < size:
                    place = min(max(place, 0), size - 1)
                    row[place] = row.get(place, Fraction(0)) + weight
        total = sum(row.values())
        if exclude and total:
            row = {place: weight / total for place, weight in row.items()}
        rows.append({place: weight for place, weight in row.items() if weight})
    return tuple(rows)


def _cropped(i: int, size: int, scale: Fraction, ends: tuple[Fraction, Fraction]) -> Fraction:
    """The position in the region from `ends[0]` to `ends[1]` of the axis."""
    (start, end), span = ends, scale * size - 1
    if not span:
        return (end - start) * (size - 1) / 2 + start * (size - 1)
    return i * (end - start) * (size - 1) / span + start * (size - 1)


def _kernel(
    ratio: Fraction, mode: str, nearest: str, cubic: Fraction, shrink: Fraction, antialias: bool
) -> list[tuple[int, Fraction]]:
    """Offsets of samples from the left neighbour, and their weights."""
    if mode == "nearest":
        return [(ROUNDINGS[nearest](ratio), Fraction(1))]
    first = math.floor(-(1 if mode == "linear" else 2) / shrink) + 1
    found = []
    for offset in range(first, 2 - first):
        x = abs(offset - ratio) * shrink
        weight = max(1 - x, Fraction(0)) if mode == "linear" else _cubic(x, cubic)
        found.append((offset, weight))
    total = sum(weight for _, weight in found)
    return [(offset, weight / total) for offset, weight in found] if antialias else found


def _cubic(x: Fraction, a: Fraction) -> Fraction:
    """Keys' cubic convolution kernel."""
    if x <= 1:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1
    if x < 2:
        return a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a
    return Fraction(0)


define(
    "Interpolate",
    1,
    real.attributes_of(
        "sizes",
        scales=None,
        mode="linear",
        coordinate_transformation_mode="half_pixel",
        nearest_mode="round_prefer_floor",
        cubic_coeff_a=-0.75,
        exclude_outside=0,
        antialias=0,
        roi=None,
    ),
    _infer,
    _interpolate,
    Trait.ACCUMULATES,
)
