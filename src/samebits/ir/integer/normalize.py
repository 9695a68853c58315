"""Normalisation of vectors of codes: layers, groups, instances, root mean squares.
docs/spec/graph.md section 3.1."""

from __future__ import annotations

import math

import numpy as np

from samebits.ir.integer.define import (
    ACCUMULATORS,
    CODES,
    TO_CODES,
    Arrays,
    Values,
    expect,
    expect_bounds,
    expect_codes,
    expect_zeros,
    limits,
    register_integer,
    saturate,
)
from samebits.ir.integer.pointwise import round_product
from samebits.ir.ops import REQUIRED, Array, Attributes, Type

FRACTION_BITS = 24  # of N, the normalised elements
LARGEST_FACTOR, LARGEST_TERM = 1 << 24, 1 << 61  # |m| is at most the first, |b| below the second
LARGEST_EPSILON = (1 << 61) - 1
LARGEST_SHIFT = 60
LARGEST_VECTOR = 1 << 22


def vector_length(shape: tuple[int, ...], a: Attributes) -> int:
    """n, the number of elements of a vector."""
    return math.prod(shape[a["batch"] :]) // int(a["groups"])


def _infer(values: Values, a: Attributes) -> list[Type]:
    """The codes' type and the shape of x; ValueError outside the bounds of graph.md 3.1."""
    x, m, b = values
    expect_codes(x)
    rank = len(x.shape)
    expect(rank >= 1 and x.size > 0, "elements [..., C]", x)
    expect(0 <= a["batch"] < rank, f"batch from 0 to {rank - 1}", a["batch"])
    channels, groups = x.shape[-1], a["groups"]
    expect(groups >= 1 and channels % groups == 0, f"groups that divide {channels}", groups)
    for v in (m, b):
        expect(
            v.shape == (channels,) and v.dtype in ACCUMULATORS, f"int32 or int64 [{channels}]", v
        )
    n = vector_length(x.shape, a)
    expect(n <= LARGEST_VECTOR, "vectors of at most 2**22 elements", n)
    expect_zeros(a, "x_zero")
    reach = max(abs(end - a["x_zero"]) for end in limits(x.dtype))
    expect(n * reach <= 1 << 30, f"vectors of at most {(1 << 30) // reach} such elements", n)
    expect(0 <= a["epsilon"] <= LARGEST_EPSILON, "epsilon from 0 to 2**61 - 1", a["epsilon"])
    expect(1 <= a["shift"] <= LARGEST_SHIFT, f"shift from 1 to {LARGEST_SHIFT}", a["shift"])
    expect(a["dtype"] in CODES, "dtype of 8 or 16 bits", a["dtype"])
    expect_bounds(a)
    return [(a["dtype"], x.shape)]


def _normalize(arrays: Arrays, a: Attributes) -> list[Array]:
    x, m, b = (v.astype(np.int64) for v in arrays)
    d = _vectors(x - a["x_zero"], a)
    n = d.shape[1] * d.shape[3]
    total = d.sum((1, 3), keepdims=True) * int(a["centered"])
    spread = n * (d * d).sum((1, 3), keepdims=True) - total * total + a["epsilon"]
    inverse, half = (v.reshape(spread.shape) for v in _inverse_roots(np.maximum(spread, 1)))
    normal = ((n * d - total) * inverse >> 37 - half).reshape(x.shape)
    return [saturate(round_product(normal * m + b, 1, 1 << a["shift"]), a)]


def _vectors(x: Array, a: Attributes) -> Array:
    """[samples, places, groups, channels of a group]: axes 1 and 3 are those of a vector."""
    samples, groups = math.prod(x.shape[: a["batch"]]), a["groups"]
    return x.reshape(samples, -1, groups, x.shape[-1] // groups)


def _inverse_roots(spread: Array) -> tuple[Array, Array]:
    """(R, s) of every V."""
    half = [(62 - int(v).bit_length()) // 2 for v in spread.flat]
    pairs = zip(spread.flat, half, strict=True)
    inverse = [(1 << 61) // math.isqrt(int(v) << 2 * s) for v, s in pairs]
    return np.array(inverse, np.int64), np.array(half, np.int64)


register_integer(
    "normalize",
    (3, 3),
    {
        "batch": REQUIRED,
        "groups": 1,
        "centered": True,
        "x_zero": 0,
        "epsilon": 0,
        "shift": REQUIRED,
        **TO_CODES,
    },
    _infer,
    _normalize,
)
