"""Integer operators that work element by element: sums, products, requantization, tables.
docs/spec/graph.md section 3."""

from __future__ import annotations

import functools
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from samebits.ir.integer.define import (
    ACCUMULATORS,
    CODES,
    TO_CODES,
    Arrays,
    Values,
    accumulator,
    expect,
    expect_bounds,
    expect_codes,
    expect_integers,
    expect_zeros,
    limits,
    magnitude,
    narrowed,
    register_integer,
    saturate,
    wide,
)
from samebits.ir.ops import REQUIRED, Array, Attributes, Type, broadcast
from samebits.ir.traits import Trait
from samebits.spec.rounding import Away, Doubled, HalfUp


def _infer_affine(values: Values, a: Attributes) -> list[Type]:
    x, m, b = values
    expect_integers(x)
    expect(len(x.shape) >= 1, "channels along the last axis", x)
    for v in (m, b):
        expect(v.shape == x.shape[-1:] and v.dtype in ACCUMULATORS, f"int32 [{x.shape[-1]}]", v)
    return [(accumulator(a), x.shape)]


def _affine(arrays: Arrays, a: Attributes) -> list[Array]:
    x, m, b = arrays
    largest = magnitude(x) * magnitude(m) + magnitude(b)
    x, m, b = (wide(v, largest) for v in (x, m, b))
    return [narrowed(np.asarray(x * m + b), a["dtype"])]


def _infer_add(values: Values, a: Attributes) -> list[Type]:
    for value in values:
        expect_integers(value)
    expect(len(a["factors"]) == len(values), f"{len(values)} factors", len(a["factors"]))
    return [(accumulator(a), broadcast(*(v.shape for v in values)))]


def _add(arrays: Arrays, a: Attributes) -> list[Array]:
    pairs = list(zip(arrays, a["factors"], strict=True))
    largest = sum(max(magnitude(v), 1) * abs(k) for v, k in pairs) + abs(a["offset"])
    total = functools.reduce(np.add, (wide(v, largest) * k for v, k in pairs))
    return [narrowed(np.asarray(total + a["offset"]), a["dtype"])]


def _infer_multiply(values: Values, a: Attributes) -> list[Type]:
    expect_integers(values[0], "a")
    expect_integers(values[1], "b")
    expect_zeros(a, "a_zero", "b_zero")
    return [(accumulator(a), broadcast(values[0].shape, values[1].shape))]


def _multiply(arrays: Arrays, a: Attributes) -> list[Array]:
    x, y = (
        v.astype(np.int64) - a[zero] for v, zero in zip(arrays, ("a_zero", "b_zero"), strict=True)
    )
    largest = magnitude(x) * magnitude(y)
    return [narrowed(np.asarray(wide(x, largest) * wide(y, largest)), a["dtype"])]


def _infer_divide(values: Values, a: Attributes) -> list[Type]:
    expect_integers(values[0], "a")
    expect_integers(values[1], "b")
    expect(isinstance(a["ratio"], Fraction) and a["ratio"] > 0, "a positive ratio", a["ratio"])
    expect(a["dtype"] in CODES, "dtype of 8 or 16 bits", a["dtype"])
    expect_bounds(a)
    return [(a["dtype"], broadcast(values[0].shape, values[1].shape))]


def _divide(arrays: Arrays, a: Attributes) -> list[Array]:
    x, y = arrays
    numerator, denominator = a["ratio"].as_integer_ratio()
    largest = 2 * max(magnitude(x), 1) * numerator + max(magnitude(y), 1) * denominator
    product = wide(x, largest) * numerator
    divisor = np.maximum(wide(y, largest), 1) * denominator
    return [saturate(_nearest(product, divisor), a)]


def _nearest(product: Array, divisor: Array | int) -> Array:
    """rne(product / divisor); divisor > 0."""
    quotient = product // divisor
    twice = (product - quotient * divisor) * 2
    up = (twice > divisor) | ((twice == divisor) & (quotient % 2 == 1))
    return np.asarray(quotient + up)


def round_product(acc: Array, numerator: int, denominator: int) -> Array:
    """rne(acc * numerator / denominator), exactly; numerator >= 0, denominator > 0.

    Python integers where 64 bits might not hold the product.
    """
    largest = max(magnitude(acc), 1) * max(numerator, 1) + denominator
    return _nearest(wide(acc, 2 * largest) * numerator, denominator)


def doubled(acc: Array, by: Doubled) -> Array:
    """The codes of sums by two roundings."""
    x = (wide(acc, (max(magnitude(acc), 1) << by.left) * by.m + (1 << 30)) << by.left) * by.m
    x = (x + (1 << 30)) >> 31
    half = 1 << by.right >> 1
    return np.asarray((x + half - ((x < 0) & (by.right > 0))) >> by.right)


def _half_up(acc: Array, by: HalfUp) -> Array:
    half = 1 << by.shift >> 1
    product = wide(acc, max(magnitude(acc), 1) * by.m + half) * by.m
    return np.asarray((product + half) >> by.shift)


def _away(acc: Array, by: Away) -> Array:
    x = wide(acc, magnitude(acc) + by.n)
    return np.asarray(np.where(x > 0, (x + by.n // 2) // by.n, -((by.n // 2 - x) // by.n)))


ROUNDINGS: dict[type, Callable[[Array, Any], Array]] = {
    Fraction: lambda acc, by: round_product(acc, *by.as_integer_ratio()),
    Doubled: doubled,
    HalfUp: _half_up,
    Away: _away,
}


def _infer_requantize(values: Values, a: Attributes) -> list[Type]:
    (acc,) = values
    expect_integers(acc)
    ratios = a["ratios"]
    channels = acc.shape[-1] if acc.shape else 1
    expect(len(ratios) in (1, channels), f"1 or {channels} ratios", len(ratios))
    kinds = {type(ratio) for ratio in ratios}
    expect(len(kinds) == 1 and kinds <= ROUNDINGS.keys(), "roundings of one kind", ratios)
    exact = Fraction not in kinds or all(r > 0 for r in ratios)
    expect(exact, "positive Fractions", ratios)
    expect(a["dtype"] in CODES, "dtype of 8 or 16 bits", a["dtype"])
    expect_bounds(a)
    return [(a["dtype"], acc.shape)]


def _requantize(arrays: Arrays, a: Attributes) -> list[Array]:
    (acc,) = arrays
    ratios = a["ratios"]
    rounded = ROUNDINGS[type(ratios[0])]
    if len(ratios) == 1:
        return [saturate(rounded(acc, ratios[0]), a)]
    columns = [rounded(acc[..., c], ratio) for c, ratio in enumerate(ratios)]
    return [saturate(np.stack(columns, -1), a)]


def _infer_table(values: Values, a: Attributes) -> list[Type]:
    x, t = values
    expect_codes(x)
    low, high = limits(x.dtype)
    entries = high - low + 1
    shapes = [(entries,)] + ([(x.shape[-1], entries)] if x.shape else [])
    expect(t.shape in shapes and t.dtype in CODES, f"a table [{entries}] or [C, {entries}]", t)
    return [(t.dtype, x.shape)]


def _table(arrays: Arrays, a: Attributes) -> list[Array]:
    x, t = arrays
    index = x.astype(np.int64) - limits(x.dtype.name)[0]
    return [t[index] if t.ndim == 1 else t[np.arange(t.shape[0]), index]]


def _infer_clip(values: Values, a: Attributes) -> list[Type]:
    (x,) = values
    expect_integers(x)
    expect(a["low"] <= a["high"], "low <= high", (a["low"], a["high"]))
    return [(x.dtype, x.shape)]


def _clip(arrays: Arrays, a: Attributes) -> list[Array]:
    (x,) = arrays
    return [np.clip(x.astype(np.int64), a["low"], a["high"]).astype(x.dtype)]


def _infer_pair(values: Values, a: Attributes) -> list[Type]:
    x, y = values
    expect_integers(x, "a")
    expect(x.dtype == y.dtype, f"two tensors of {x.dtype}", y.dtype)
    return [(x.dtype, broadcast(x.shape, y.shape))]


def _extreme(best: Callable[..., Array]) -> Callable[[Arrays, Attributes], list[Array]]:
    return lambda arrays, a: [np.asarray(best(*arrays))]


_ZEROS = {"a_zero": 0, "b_zero": 0, "dtype": "int32"}
_SUM = (Trait.POINTWISE, Trait.ACCUMULATES)
_CHANNEL = (Trait.POINTWISE, Trait.CHANNELWISE)
_ADD = {"factors": REQUIRED, "offset": 0, "dtype": "int32"}
_RATIOS = {"ratios": REQUIRED, **TO_CODES}
_BOUNDS = {"low": REQUIRED, "high": REQUIRED}
register_integer(
    "affine", (3, 3), {"dtype": "int32"}, _infer_affine, _affine, *_SUM, Trait.CHANNELWISE
)
register_integer("add", (1, None), _ADD, _infer_add, _add, *_SUM)
register_integer("multiply", (2, 2), _ZEROS, _infer_multiply, _multiply, *_SUM)
register_integer("requantize", (1, 1), _RATIOS, _infer_requantize, _requantize, *_CHANNEL)
_RATIO = {"ratio": REQUIRED, **TO_CODES}
register_integer("divide", (2, 2), _RATIO, _infer_divide, _divide, Trait.POINTWISE)
register_integer("table", (2, 2), {}, _infer_table, _table, *_CHANNEL)
register_integer("clip", (1, 1), _BOUNDS, _infer_clip, _clip, *_CHANNEL)
for _name, _best in (("maximum", np.maximum), ("minimum", np.minimum)):
    register_integer(_name, (2, 2), {}, _infer_pair, _extreme(_best), Trait.POINTWISE)
