"""Integer pools, reductions, softmax, log_softmax and argmax. docs/spec/graph.md section 3."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from samebits.ir.integer.define import (
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
    narrowed,
    register_integer,
    saturate,
)
from samebits.ir.integer.normalize import FRACTION_BITS, LARGEST_SHIFT
from samebits.ir.integer.pointwise import round_product
from samebits.ir.integer.windows import (
    SPATIAL,
    balance_factors,
    image_shape,
    output_size,
    taps,
    window_counts,
)
from samebits.ir.ops import REQUIRED, Array, Attributes, Type, broadcast
from samebits.ir.traits import Trait
from samebits.spec.fixed import ONE, Shares

# Of log_softmax: a distance is below 2**16, a level below 2**30, so that products stay below 2**60.
LARGEST_STEP, LARGEST_LEVEL = 1 << 44, 1 << 30


def _infer_pool(values: Values, a: Attributes) -> list[Type]:
    (x,) = values
    n, h, w, c = image_shape(x)
    expect_codes(x)
    oh, ow = output_size((h, w), a["kernel"], a)
    expect(int(window_counts((h, w), a).min()) >= 1, "windows that touch the image", dict(a))
    return [(x.dtype, (n, oh, ow, c))]


def _max_pool(arrays: Arrays, a: Attributes) -> list[Array]:
    (x,) = arrays
    windows = taps(x, a["kernel"], a, limits(x.dtype.name)[0])
    return [windows.max((3, 4))]


def _infer_sum_pool(values: Values, a: Attributes) -> list[Type]:
    expect_zeros(a, "zero")
    (_, shape) = _infer_pool(values, a)[0]
    return [(accumulator(a), shape)]


def _sum_pool(arrays: Arrays, a: Attributes) -> list[Array]:
    (x,) = arrays
    centred = x.astype(np.int64) - a["zero"]
    total = taps(centred, a["kernel"], a, 0).sum((3, 4))
    if a["balance"]:
        total = total * balance_factors(x.shape[1:3], a)[0][:, :, None]
    return [narrowed(total, a["dtype"])]


def _reduced(shape: tuple[int, ...], a: Attributes) -> tuple[int, ...]:
    axes, rank = a["axes"], len(shape)
    expect(
        len(set(axes)) == len(axes) and all(0 <= axis < rank for axis in axes),
        f"distinct axes in [0, {rank})",
        axes,
    )
    if a["keepdims"]:
        return tuple(1 if i in axes else size for i, size in enumerate(shape))
    return tuple(size for i, size in enumerate(shape) if i not in axes)


def _infer_reduce_sum(values: Values, a: Attributes) -> list[Type]:
    expect_codes(values[0])
    expect_zeros(a, "zero")
    return [(accumulator(a), _reduced(values[0].shape, a))]


def _reduce_sum(arrays: Arrays, a: Attributes) -> list[Array]:
    centred = arrays[0].astype(np.int64) - a["zero"]
    total = centred.sum(a["axes"], keepdims=a["keepdims"])
    return [narrowed(np.asarray(total), a["dtype"])]


def _infer_reduce(values: Values, a: Attributes) -> list[Type]:
    (x,) = values
    expect_integers(x)
    shape = _reduced(x.shape, a)
    expect(x.size > 0, "elements to reduce", x)
    return [(x.dtype, shape)]


def _reduce(function: Callable[..., Any]) -> Callable[[Arrays, Attributes], list[Array]]:
    def meaning(arrays: Arrays, a: Attributes) -> list[Array]:
        return [np.asarray(function(arrays[0], axis=a["axes"], keepdims=a["keepdims"]))]

    return meaning


def _infer_softmax(values: Values, a: Attributes) -> list[Type]:
    """Check the mask, the table and the rounding."""
    x, t, *rest = values
    for mask in rest:
        expect_integers(mask, "the mask")
        fits = broadcast(mask.shape, x.shape) == x.shape
        expect(fits, f"a mask that broadcasts to {list(x.shape)}", mask)
    _check_powers(x, t)
    by = a["ratio"]
    if isinstance(by, Shares):
        expect(not rest, "no mask beside shares in fixed point", rest)
        expect(x.shape[-1] <= by.columns, f"rows of at most {by.columns} codes", x)
    else:
        expect(isinstance(by, Fraction) and by > 0, "a positive ratio", by)
    expect(a["dtype"] in CODES, "dtype of 8 or 16 bits", a["dtype"])
    expect_bounds(a)
    return [(a["dtype"], x.shape)]


def _check_powers(x: Any, t: Any) -> None:
    """Rows of codes, and a power for every distance between two of them."""
    expect_codes(x)
    low, high = limits(x.dtype)
    expect(t.shape == (high - low + 1,) and t.dtype == "int32", f"int32 [{high - low + 1}]", t)
    expect(len(x.shape) >= 1 and 1 <= x.shape[-1] < 1 << 31, "rows [..., C]", x)


def _softmax(arrays: Arrays, a: Attributes) -> list[Array]:
    x, t, *rest = arrays
    wide = x.astype(np.int64)
    kept = np.broadcast_to(rest[0] != 0, x.shape) if rest else np.ones(x.shape, bool)
    largest = np.where(kept, wide, wide.min(initial=0)).max(-1, keepdims=True)
    powers = np.where(kept, t.astype(np.int64)[np.where(kept, largest - wide, 0)], 0)
    if isinstance(a["ratio"], Shares):
        return [saturate(_fixed_shares(powers, t, a["ratio"]), a)]
    numerator, denominator = a["ratio"].as_integer_ratio()
    rows = powers.reshape(-1, powers.shape[-1])
    out = [round_product(row, numerator, denominator * max(int(row.sum()), 1)) for row in rows]
    codes = np.stack(out).reshape(x.shape) if out else rows.reshape(x.shape)
    return [saturate(codes, a)]


def _fixed_shares(powers: Array, t: Array, by: Shares) -> Array:
    """Codes of rows of powers by a reciprocal in fixed point. ValueError for a table that does not
    begin with the power of 0."""
    expect(int(t[0]) == ONE and int(t.min()) >= 0, f"powers from {ONE} down to 0", t[:1])
    return np.asarray(by.of_rows(powers), np.int64)


def _infer_log_softmax(values: Values, a: Attributes) -> list[Type]:
    x, t = values
    _check_powers(x, t)
    for key, most in (("m", LARGEST_STEP), ("b", LARGEST_LEVEL)):
        expect(0 <= a[key] <= most, f"{key} from 0 to {most}", a[key])
    expect(1 <= a["shift"] <= LARGEST_SHIFT, f"shift from 1 to {LARGEST_SHIFT}", a["shift"])
    expect_bounds(a)
    return [(a["dtype"], x.shape)]


def _log_softmax(arrays: Arrays, a: Attributes) -> list[Array]:
    x, t = (v.astype(np.int64) for v in arrays)
    below = x.max(-1, keepdims=True, initial=x.min(initial=0)) - x
    total = np.maximum(t[below].sum(-1, keepdims=True), 1)
    level = logarithms(total) - (FRACTION_BITS << FRACTION_BITS)
    return [saturate(round_product(-(below * a["m"] + level * a["b"]), 1, 1 << a["shift"]), a)]


def logarithms(v: Array) -> Array:
    """log2 in 24 fraction bits, as docs/spec/graph.md 3.2 says; v from 1 to 2**62."""
    whole = np.array([int(n).bit_length() - 1 for n in v.flat], np.int64).reshape(v.shape)
    mantissa = np.where(whole <= 30, v << np.maximum(30 - whole, 0), v >> np.maximum(whole - 30, 0))
    fraction = np.zeros_like(v)
    for _ in range(FRACTION_BITS):
        mantissa = mantissa * mantissa >> 30
        bit = mantissa >> 31
        mantissa >>= bit
        fraction = 2 * fraction + bit
    return (whole << FRACTION_BITS) + fraction


def _infer_argmax(values: Values, a: Attributes) -> list[Type]:
    (x,) = values
    expect_integers(x)
    shape = _reduced(x.shape, {"axes": (a["axis"],), "keepdims": a["keepdims"]})
    expect(x.size > 0, "elements to compare", x)
    return [("int64", shape)]


def _argmax(arrays: Arrays, a: Attributes) -> list[Array]:
    out = np.argmax(arrays[0], axis=a["axis"], keepdims=a["keepdims"])
    return [np.asarray(out, np.int64)]


_POOL = {"kernel": REQUIRED, **SPATIAL}
_AXES = {"axes": REQUIRED, "keepdims": True}
_IMAGE = (Trait.SPATIAL, Trait.CHANNELWISE)
register_integer("max_pool", (1, 1), _POOL, _infer_pool, _max_pool, *_IMAGE, Trait.SELECTION)
register_integer(
    "sum_pool",
    (1, 1),
    {**_POOL, "zero": 0, "balance": False, "dtype": "int32"},
    _infer_sum_pool,
    _sum_pool,
    *_IMAGE,
    Trait.ACCUMULATES,
)
_SUM = (Trait.REDUCES, Trait.ACCUMULATES)
_MOST = (Trait.REDUCES, Trait.SELECTION)
_LEAST = {**_AXES, "zero": 0, "dtype": "int32"}
register_integer("reduce_sum", (1, 1), _LEAST, _infer_reduce_sum, _reduce_sum, *_SUM)
register_integer("reduce_max", (1, 1), _AXES, _infer_reduce, _reduce(np.max), *_MOST)
register_integer("reduce_min", (1, 1), _AXES, _infer_reduce, _reduce(np.min), *_MOST)
register_integer("softmax", (2, 3), {"ratio": REQUIRED, **TO_CODES}, _infer_softmax, _softmax)
_LOGARITHM = {"m": REQUIRED, "b": REQUIRED, "shift": REQUIRED, **TO_CODES}
register_integer("log_softmax", (2, 2), _LOGARITHM, _infer_log_softmax, _log_softmax)
_AXIS = {"axis": REQUIRED, "keepdims": True}
register_integer("argmax", (1, 1), _AXIS, _infer_argmax, _argmax, Trait.DECISION)
