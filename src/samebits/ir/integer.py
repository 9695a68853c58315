"""The integer operators: exact meaning on integer codes. docs/spec/graph.md section 3.

Channels are the last axis. Sums are taken in int64 where it holds them (always, for accumulators
that pass the bound analysis), else in Python integers; a result that leaves its declared type is an
error, never a wrap.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from samebits.errors import RangeError
from samebits.ir.ops import (
    REQUIRED,
    Array,
    Attributes,
    Op,
    Type,
    broadcast,
    register,
    window_count,
)

CODES = ("int8", "uint8", "int16", "uint16")
ACCUMULATORS = ("int32", "int64")
INTEGERS = (*CODES, *ACCUMULATORS)
Values = Sequence[Any]  # Value or None
Arrays = Sequence[Any]  # Array or None
Pads = tuple[int, int, int, int]


def limits(dtype: str) -> tuple[int, int]:
    """Least and greatest code of an integer type."""
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def narrowed(array: Array, dtype: str) -> Array:
    """The same integers as `dtype`; RangeError if one does not fit."""
    low, high = limits(dtype)
    if array.size and (array.min() < low or array.max() > high):
        raise RangeError(
            f"expected integers of {dtype}, found {int(array.min())} to {int(array.max())}"
        )
    return array.astype(dtype)


def magnitude(array: Array) -> int:
    """The largest absolute value, 0 of no elements."""
    return max(abs(int(array.min())), abs(int(array.max()))) if array.size else 0


def wide(array: Array, largest: int) -> Array:
    """As int64 if results of up to `largest` fit there, else as Python integers."""
    return array.astype(np.int64 if largest < 1 << 63 else object)


def plus(total: Array, bias: Array) -> Array:
    """total + bias without a wrap."""
    largest = magnitude(total) + magnitude(bias)
    return np.asarray(wide(total, largest) + wide(bias, largest))


# --- checks ---------------------------------------------------------------------------------


def _expect(condition: bool, expected: str, found: object) -> None:
    if not condition:
        raise ValueError(f"expected {expected}, found {found}")


def _codes(value: Any, what: str = "x") -> None:
    _expect(value.dtype in CODES, f"8- or 16-bit codes for {what}", value.dtype)


def _integers(value: Any, what: str = "x") -> None:
    _expect(value.dtype in INTEGERS, f"integers for {what}", value.dtype)


def _zeros(attributes: Attributes, *names: str) -> None:
    """Zero points are codes of some type of at most 16 bits."""
    for name in names:
        zero = attributes[name]
        _expect(-(1 << 15) <= zero < 1 << 16, f"{name} of at most 16 bits", zero)


def _image(value: Any) -> tuple[int, int, int, int]:
    _expect(len(value.shape) == 4, "an image [N, H, W, C]", list(value.shape))
    n, h, w, c = value.shape
    return n, h, w, c


def _accumulator(attributes: Attributes) -> str:
    dtype = attributes["dtype"]
    _expect(dtype in ACCUMULATORS, "dtype int32 or int64", dtype)
    return str(dtype)


def _window(
    attributes: Attributes, kernel: tuple[int, int]
) -> tuple[tuple[int, int], Pads, tuple[int, int]]:
    strides, pads, dilations = (attributes[k] for k in ("strides", "pads", "dilations"))
    lengths = (len(strides), len(pads), len(dilations), len(kernel))
    _expect(lengths == (2, 4, 2, 2), "2 strides, 4 pads, 2 dilations and a 2-d kernel", lengths)
    _expect(min(strides) >= 1 and min(dilations) >= 1, "strides and dilations >= 1", attributes)
    _expect(min(pads) >= 0 and min(kernel) >= 1, "pads >= 0 and a kernel >= 1", attributes)
    return strides, pads, dilations


def _windows(size: tuple[int, int], kernel: tuple[int, int], attributes: Attributes) -> list[int]:
    strides, pads, dilations = _window(attributes, kernel)
    return [
        window_count(size[i], kernel[i], strides[i], pads[i] + pads[i + 2], dilations[i])
        for i in (0, 1)
    ]


# --- windows --------------------------------------------------------------------------------


def taps(x: Array, kernel: tuple[int, int], attributes: Attributes, outside: int) -> Array:
    """Every window of an image [N, H, W, C] -> [N, OH, OW, KH, KW, C]; `outside` fills the pads."""
    strides, (top, left, bottom, right), dilations = _window(attributes, kernel)
    padded = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)), constant_values=outside)
    spans = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
    view = np.lib.stride_tricks.sliding_window_view(padded, spans, axis=(1, 2))
    view = view[:, :: strides[0], :: strides[1], :, :: dilations[0], :: dilations[1]]
    return view.transpose(0, 1, 2, 4, 5, 3)


def window_counts(size: tuple[int, int], attributes: Attributes) -> Array:
    """Positions inside the image per window, [OH, OW]; what `balance` needs."""
    ones = np.ones((1, *size, 1), np.int64)
    return taps(ones, attributes["kernel"], attributes, 0).sum((0, 3, 4, 5))


def balance_factors(size: tuple[int, int], attributes: Attributes) -> tuple[Array, int]:
    """(L / count per window [OH, OW], L): L is the least common multiple of the counts."""
    counts = window_counts(size, attributes)
    _expect(int(counts.min()) >= 1, "windows that touch the image", "a window in the padding")
    common = math.lcm(*{int(c) for c in counts.flat})
    _expect(common < 1 << 31, "window counts whose multiple is below 2**31", common)
    return common // counts, common


# --- convolution and products ----------------------------------------------------------------


def _kernel(w: Any, b: Any, c: int, a: Attributes) -> tuple[int, int, int]:
    """(O, KH, KW) of the weights and bias of a convolution over `c` channels."""
    _expect(len(w.shape) == 4 and w.dtype in CODES, "weights [O, KH, KW, C/groups]", w)
    o, kh, kw, per_group = w.shape
    groups = a["groups"]
    _expect(groups >= 1 and per_group * groups == c, f"{c} = C/groups * groups channels", w.shape)
    _expect(o % groups == 0, f"outputs in {groups} groups", o)
    _expect(b.shape == (o,) and b.dtype in ACCUMULATORS, f"a bias of {o} int32 or int64", b)
    return o, kh, kw


def _infer_conv(values: Values, a: Attributes) -> list[Type]:
    x, w, b = values
    n, h, width, c = _image(x)
    _codes(x)
    o, kh, kw = _kernel(w, b, c, a)
    low, high = limits(x.dtype)
    _expect(low <= a["pad_code"] <= high, f"a pad code of {x.dtype}", a["pad_code"])
    oh, ow = _windows((h, width), (kh, kw), a)
    return [(_accumulator(a), (n, oh, ow, o))]


def _conv(arrays: Arrays, a: Attributes) -> list[Array]:
    x, w, b = (v.astype(np.int64) for v in arrays)
    o, kh, kw, per_group = w.shape
    windows = taps(x, (kh, kw), a, a["pad_code"])
    parts = []
    for group in range(a["groups"]):
        channels = slice(group * per_group, (group + 1) * per_group)
        outputs = slice(group * o // a["groups"], (group + 1) * o // a["groups"])
        rows = windows[..., channels].reshape(*windows.shape[:3], -1)
        parts.append(rows @ w[outputs].reshape(-1, kh * kw * per_group).T)
    return [narrowed(plus(np.concatenate(parts, -1), b), a["dtype"])]


def _infer_conv_transpose(values: Values, a: Attributes) -> list[Type]:
    x, w, b = values
    n, _, _, c = _image(x)
    _codes(x)
    o, kh, kw = _kernel(w, b, c, a)
    _window(a, (kh, kw))
    _zeros(a, "zero")
    _expect(len(a["size"]) == 2 and min(a["size"]) >= 1, "size=(OH, OW) >= 1", a["size"])
    return [(_accumulator(a), (n, *a["size"], o))]


def _conv_transpose(arrays: Arrays, a: Attributes) -> list[Array]:
    x, w, b = (v.astype(np.int64) for v in arrays)
    x = x - a["zero"]
    n, h, width, _ = x.shape
    o, kh, kw, per_group = w.shape
    (sh, sw), (dh, dw), (top, left, _, _) = a["strides"], a["dilations"], a["pads"]
    oh, ow = a["size"]
    out = np.zeros((n, oh, ow, o), np.int64)
    by_group = o // a["groups"]
    for group in range(a["groups"]):
        rows = x[..., group * per_group : (group + 1) * per_group]
        outputs = slice(group * by_group, (group + 1) * by_group)
        for i, j, p, q in np.ndindex(h, width, kh, kw):
            y, z = i * sh + p * dh - top, j * sw + q * dw - left
            if 0 <= y < oh and 0 <= z < ow:
                out[:, y, z, outputs] += rows[:, i, j] @ w[outputs, p, q].T
    return [narrowed(plus(out, b), a["dtype"])]


def _infer_linear(values: Values, a: Attributes) -> list[Type]:
    x, w, b = values
    _codes(x)
    _expect(len(w.shape) == 2 and w.dtype in CODES, "weights [O, K]", w)
    _expect(len(x.shape) >= 1 and x.shape[-1] == w.shape[1], f"rows of {w.shape[1]}", x)
    _expect(b.shape == w.shape[:1] and b.dtype in ACCUMULATORS, "a bias [O] int32 or int64", b)
    return [(_accumulator(a), (*x.shape[:-1], w.shape[0]))]


def _linear(arrays: Arrays, a: Attributes) -> list[Array]:
    x, w, b = (v.astype(np.int64) for v in arrays)
    return [narrowed(plus(x @ w.T, b), a["dtype"])]


def _infer_matmul(values: Values, a: Attributes) -> list[Type]:
    x, y = values
    _codes(x, "a")
    _codes(y, "b")
    _expect(len(x.shape) >= 2 and len(y.shape) >= 2, "matrices", f"{x} and {y}")
    _expect(x.shape[-1] == y.shape[-2], f"{x.shape[-1]} rows", y)
    _zeros(a, "a_zero", "b_zero")
    leading = broadcast(x.shape[:-2], y.shape[:-2])
    return [(_accumulator(a), (*leading, x.shape[-2], y.shape[-1]))]


def _matmul(arrays: Arrays, a: Attributes) -> list[Array]:
    x, y = (v.astype(np.int64) for v in arrays)
    return [narrowed((x - a["a_zero"]) @ (y - a["b_zero"]), a["dtype"])]


def _infer_affine(values: Values, a: Attributes) -> list[Type]:
    x, m, b = values
    _integers(x)
    _expect(len(x.shape) >= 1, "channels along the last axis", x)
    for v in (m, b):
        _expect(v.shape == x.shape[-1:] and v.dtype in ACCUMULATORS, f"int32 [{x.shape[-1]}]", v)
    return [(_accumulator(a), x.shape)]


def _affine(arrays: Arrays, a: Attributes) -> list[Array]:
    x, m, b = arrays
    largest = magnitude(x) * magnitude(m) + magnitude(b)
    x, m, b = (wide(v, largest) for v in (x, m, b))
    return [narrowed(np.asarray(x * m + b), a["dtype"])]


def _infer_add(values: Values, a: Attributes) -> list[Type]:
    for value in values:
        _integers(value)
    _expect(len(a["factors"]) == len(values), f"{len(values)} factors", len(a["factors"]))
    return [(_accumulator(a), broadcast(*(v.shape for v in values)))]


def _add(arrays: Arrays, a: Attributes) -> list[Array]:
    pairs = list(zip(arrays, a["factors"], strict=True))
    largest = sum(max(magnitude(v), 1) * abs(k) for v, k in pairs) + abs(a["offset"])
    total = functools.reduce(np.add, (wide(v, largest) * k for v, k in pairs))
    return [narrowed(np.asarray(total + a["offset"]), a["dtype"])]


def _infer_multiply(values: Values, a: Attributes) -> list[Type]:
    _codes(values[0], "a")
    _codes(values[1], "b")
    _zeros(a, "a_zero", "b_zero")
    return [(_accumulator(a), broadcast(values[0].shape, values[1].shape))]


def _multiply(arrays: Arrays, a: Attributes) -> list[Array]:
    x, y = (v.astype(np.int64) for v in arrays)
    return [narrowed(np.asarray((x - a["a_zero"]) * (y - a["b_zero"])), a["dtype"])]


# --- requantization and tables ----------------------------------------------------------------


def round_product(acc: Array, numerator: int, denominator: int) -> Array:
    """rne(acc * numerator / denominator), exactly; numerator >= 0, denominator > 0.

    Python integers where 64 bits might not hold the product.
    """
    largest = max(magnitude(acc), 1) * max(numerator, 1) + denominator
    product = wide(acc, 2 * largest) * numerator
    quotient, remainder = product // denominator, product % denominator
    twice = remainder * 2
    up = (twice > denominator) | ((twice == denominator) & (quotient % 2 == 1))
    return np.asarray(quotient + up)


def _infer_requantize(values: Values, a: Attributes) -> list[Type]:
    (acc,) = values
    _integers(acc)
    ratios = a["ratios"]
    channels = acc.shape[-1] if acc.shape else 1
    _expect(len(ratios) in (1, channels), f"1 or {channels} ratios", len(ratios))
    _expect(all(isinstance(r, Fraction) and r > 0 for r in ratios), "positive Fractions", ratios)
    _expect(a["dtype"] in CODES, "dtype of 8 or 16 bits", a["dtype"])
    _bounded(a)
    return [(a["dtype"], acc.shape)]


def _bounded(a: Attributes) -> None:
    least, greatest = limits(a["dtype"])
    _expect(
        least <= a["low"] <= a["high"] <= greatest,
        f"low <= high in [{least}, {greatest}]",
        (a["low"], a["high"]),
    )


def _saturate(codes: Array, a: Attributes) -> Array:
    zero, low, high = a["zero"], a["low"], a["high"]
    largest = max(magnitude(codes), abs(low - zero), abs(high - zero))
    codes = wide(codes, largest)  # clipped first: no sum can wrap
    return (np.clip(codes, low - zero, high - zero) + zero).astype(a["dtype"])


def _requantize(arrays: Arrays, a: Attributes) -> list[Array]:
    (acc,) = arrays
    ratios = a["ratios"]
    if len(ratios) == 1:
        return [_saturate(round_product(acc, *ratios[0].as_integer_ratio()), a)]
    columns = [
        round_product(acc[..., c], *ratio.as_integer_ratio()) for c, ratio in enumerate(ratios)
    ]
    return [_saturate(np.stack(columns, -1), a)]


def _infer_table(values: Values, a: Attributes) -> list[Type]:
    x, t = values
    _codes(x)
    low, high = limits(x.dtype)
    entries = high - low + 1
    shapes = [(entries,)] + ([(x.shape[-1], entries)] if x.shape else [])
    _expect(t.shape in shapes and t.dtype in CODES, f"a table [{entries}] or [C, {entries}]", t)
    return [(t.dtype, x.shape)]


def _table(arrays: Arrays, a: Attributes) -> list[Array]:
    x, t = arrays
    index = x.astype(np.int64) - limits(x.dtype.name)[0]
    return [t[index] if t.ndim == 1 else t[np.arange(t.shape[0]), index]]


def _infer_clip(values: Values, a: Attributes) -> list[Type]:
    (x,) = values
    _integers(x)
    _expect(a["low"] <= a["high"], "low <= high", (a["low"], a["high"]))
    return [(x.dtype, x.shape)]


def _clip(arrays: Arrays, a: Attributes) -> list[Array]:
    (x,) = arrays
    return [np.clip(x.astype(np.int64), a["low"], a["high"]).astype(x.dtype)]


# --- pools and reductions ---------------------------------------------------------------------


def _infer_pool(values: Values, a: Attributes) -> list[Type]:
    (x,) = values
    n, h, w, c = _image(x)
    _codes(x)
    oh, ow = _windows((h, w), a["kernel"], a)
    _expect(int(window_counts((h, w), a).min()) >= 1, "windows that touch the image", dict(a))
    return [(x.dtype, (n, oh, ow, c))]


def _max_pool(arrays: Arrays, a: Attributes) -> list[Array]:
    (x,) = arrays
    windows = taps(x, a["kernel"], a, limits(x.dtype.name)[0])
    return [windows.max((3, 4))]


def _infer_sum_pool(values: Values, a: Attributes) -> list[Type]:
    _zeros(a, "zero")
    (_, shape) = _infer_pool(values, a)[0]
    return [(_accumulator(a), shape)]


def _sum_pool(arrays: Arrays, a: Attributes) -> list[Array]:
    (x,) = arrays
    centred = x.astype(np.int64) - a["zero"]
    total = taps(centred, a["kernel"], a, 0).sum((3, 4))
    if a["balance"]:
        total = total * balance_factors(x.shape[1:3], a)[0][:, :, None]
    return [narrowed(total, a["dtype"])]


def _reduced(shape: tuple[int, ...], a: Attributes) -> tuple[int, ...]:
    axes, rank = a["axes"], len(shape)
    _expect(
        len(set(axes)) == len(axes) and all(0 <= axis < rank for axis in axes),
        f"distinct axes in [0, {rank})",
        axes,
    )
    if a["keepdims"]:
        return tuple(1 if i in axes else size for i, size in enumerate(shape))
    return tuple(size for i, size in enumerate(shape) if i not in axes)


def _infer_reduce_sum(values: Values, a: Attributes) -> list[Type]:
    _codes(values[0])
    _zeros(a, "zero")
    return [(_accumulator(a), _reduced(values[0].shape, a))]


def _reduce_sum(arrays: Arrays, a: Attributes) -> list[Array]:
    centred = arrays[0].astype(np.int64) - a["zero"]
    total = centred.sum(a["axes"], keepdims=a["keepdims"])
    return [narrowed(np.asarray(total), a["dtype"])]


def _infer_reduce(values: Values, a: Attributes) -> list[Type]:
    (x,) = values
    _integers(x)
    shape = _reduced(x.shape, a)
    _expect(x.size > 0, "elements to reduce", x)
    return [(x.dtype, shape)]


def _reduce(function: Callable[..., Any]) -> Callable[[Arrays, Attributes], list[Array]]:
    def meaning(arrays: Arrays, a: Attributes) -> list[Array]:
        return [np.asarray(function(arrays[0], axis=a["axes"], keepdims=a["keepdims"]))]

    return meaning


def _infer_pair(values: Values, a: Attributes) -> list[Type]:
    x, y = values
    _integers(x, "a")
    _expect(x.dtype == y.dtype, f"two tensors of {x.dtype}", y.dtype)
    return [(x.dtype, broadcast(x.shape, y.shape))]


def _infer_softmax(values: Values, a: Attributes) -> list[Type]:
    x, t = values
    _codes(x)
    low, high = limits(x.dtype)
    _expect(t.shape == (high - low + 1,) and t.dtype == "int32", f"int32 [{high - low + 1}]", t)
    _expect(len(x.shape) >= 1 and 1 <= x.shape[-1] < 1 << 31, "rows [..., C]", x)
    _expect(isinstance(a["ratio"], Fraction) and a["ratio"] > 0, "a positive ratio", a["ratio"])
    _expect(a["dtype"] in CODES, "dtype of 8 or 16 bits", a["dtype"])
    _bounded(a)
    return [(a["dtype"], x.shape)]


def _softmax(arrays: Arrays, a: Attributes) -> list[Array]:
    x, t = arrays
    wide = x.astype(np.int64)
    powers = t.astype(np.int64)[wide.max(-1, keepdims=True) - wide]
    numerator, denominator = a["ratio"].as_integer_ratio()
    rows = powers.reshape(-1, powers.shape[-1])
    out = [round_product(row, numerator, denominator * int(row.sum())) for row in rows]
    codes = np.stack(out).reshape(x.shape) if out else rows.reshape(x.shape)
    return [_saturate(codes, a)]


def _infer_argmax(values: Values, a: Attributes) -> list[Type]:
    (x,) = values
    _integers(x)
    shape = _reduced(x.shape, {"axes": (a["axis"],), "keepdims": a["keepdims"]})
    _expect(x.size > 0, "elements to compare", x)
    return [("int64", shape)]


def _argmax(arrays: Arrays, a: Attributes) -> list[Array]:
    out = np.argmax(arrays[0], axis=a["axis"], keepdims=a["keepdims"])
    return [np.asarray(out, np.int64)]


# --- data movement ----------------------------------------------------------------------------


def _infer_reshape(values: Values, a: Attributes) -> list[Type]:
    (x,) = values
    fits = min(a["shape"], default=0) >= 0 and math.prod(a["shape"]) == x.size
    _expect(fits, f"a shape of {x.size} elements", a["shape"])
    return [(x.dtype, tuple(a["shape"]))]


def _infer_transpose(values: Values, a: Attributes) -> list[Type]:
    (x,) = values
    _expect(sorted(a["perm"]) == list(range(len(x.shape))), "a permutation of axes", a["perm"])
    return [(x.dtype, tuple(x.shape[axis] for axis in a["perm"]))]


def _infer_expand(values: Values, a: Attributes) -> list[Type]:
    (x,) = values
    shape = tuple(a["shape"])
    _expect(broadcast(x.shape, shape) == shape, f"a shape that {list(x.shape)} expands to", shape)
    return [(x.dtype, shape)]


def _infer_slice(values: Values, a: Attributes) -> list[Type]:
    (x,) = values
    lengths = [len(a[key]) for key in ("starts", "stops", "steps")]
    _expect(lengths == [len(x.shape)] * 3, f"{len(x.shape)} starts, stops and steps", lengths)
    parts = list(zip(a["starts"], a["stops"], a["steps"], x.shape, strict=True))
    _expect(
        all(0 <= start < stop <= size and step > 0 for start, stop, step, size in parts),
        "0 <= start < stop <= size and step > 0",
        parts,
    )
    return [(x.dtype, tuple(-(-(stop - start) // step) for start, stop, step, _ in parts))]


def _slice(arrays: Arrays, a: Attributes) -> list[Array]:
    return [arrays[0][tuple(map(slice, a["starts"], a["stops"], a["steps"]))]]


def _infer_concat(values: Values, a: Attributes) -> list[Type]:
    first, axis = values[0], a["axis"]
    _expect(0 <= axis < len(first.shape), f"an axis in [0, {len(first.shape)})", axis)
    for value in values[1:]:
        same = value.dtype == first.dtype and len(value.shape) == len(first.shape)
        rest = [s for i, s in enumerate(value.shape) if i != axis]
        _expect(
            same and rest == [s for i, s in enumerate(first.shape) if i != axis],
            f"tensors like {first} but for axis {axis}",
            value,
        )
    total = sum(value.shape[axis] for value in values)
    return [(first.dtype, (*first.shape[:axis], total, *first.shape[axis + 1 :]))]


def _infer_pad(values: Values, a: Attributes) -> list[Type]:
    (x,) = values
    lengths = [len(a["before"]), len(a["after"])]
    _expect(lengths == [len(x.shape)] * 2, f"{len(x.shape)} pads on either side", lengths)
    parts = list(zip(a["before"], x.shape, a["after"], strict=True))
    _expect(all(before >= 0 and after >= 0 for before, _, after in parts), "pads >= 0", parts)
    low, high = limits(x.dtype)
    _expect(low <= a["code"] <= high, f"a code of {x.dtype}", a["code"])
    return [(x.dtype, tuple(map(sum, parts)))]


def _pad(arrays: Arrays, a: Attributes) -> list[Array]:
    widths = list(zip(a["before"], a["after"], strict=True))
    return [np.pad(arrays[0], widths, constant_values=a["code"])]


def _infer_gather(values: Values, a: Attributes) -> list[Type]:
    x, indices = values
    axis = a["axis"]
    _expect(0 <= axis < len(x.shape), f"an axis in [0, {len(x.shape)})", axis)
    _expect(len(indices.shape) == 1 and indices.dtype == "int64", "int64 indices [K]", indices)
    return [(x.dtype, (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))]


def _gather(arrays: Arrays, a: Attributes) -> list[Array]:
    x, indices = arrays
    size = x.shape[a["axis"]]
    if indices.size and (indices.min() < 0 or indices.max() >= size):
        raise RangeError(f"expected indices in [0, {size}), found {indices.min()}..{indices.max()}")
    return [np.take(x, indices, a["axis"])]


# --- the records ------------------------------------------------------------------------------

_SPATIAL = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1)}
_TO_CODES = {"zero": 0, "low": REQUIRED, "high": REQUIRED, "dtype": REQUIRED}


def _integer(
    name: str,
    inputs: tuple[int, int | None],
    attributes: Attributes,
    infer: Callable[[Values, Attributes], list[Type]],
    meaning: Callable[[Arrays, Attributes], list[Array]],
) -> None:
    def checked(values: Values, a: Attributes) -> list[Type]:
        least, most = inputs
        present = [value for value in values if value is not None]
        _expect(
            len(present) == len(values) >= least and (most is None or len(values) <= most),
            f"{least} inputs" if most == least else f"at least {least} inputs",
            len(present),
        )
        return infer(values, a)

    register(Op(name, inputs, attributes, checked, meaning, integer=True))


_CONV = {**_SPATIAL, "groups": 1, "dtype": "int32"}
_integer("conv", (3, 3), {**_CONV, "pad_code": 0}, _infer_conv, _conv)
_integer(
    "conv_transpose",
    (3, 3),
    {**_CONV, "zero": 0, "size": REQUIRED},
    _infer_conv_transpose,
    _conv_transpose,
)
_integer("linear", (3, 3), {"dtype": "int32"}, _infer_linear, _linear)
_ZEROS = {"a_zero": 0, "b_zero": 0, "dtype": "int32"}
_integer("matmul", (2, 2), _ZEROS, _infer_matmul, _matmul)
_integer("affine", (3, 3), {"dtype": "int32"}, _infer_affine, _affine)
_integer("add", (1, None), {"factors": REQUIRED, "offset": 0, "dtype": "int32"}, _infer_add, _add)
_integer("multiply", (2, 2), _ZEROS, _infer_multiply, _multiply)
_integer("requantize", (1, 1), {"ratios": REQUIRED, **_TO_CODES}, _infer_requantize, _requantize)
_integer("table", (2, 2), {}, _infer_table, _table)
_integer("clip", (1, 1), {"low": REQUIRED, "high": REQUIRED}, _infer_clip, _clip)
_POOL = {"kernel": REQUIRED, **_SPATIAL}
_integer("max_pool", (1, 1), _POOL, _infer_pool, _max_pool)
_integer(
    "sum_pool",
    (1, 1),
    {**_POOL, "zero": 0, "balance": False, "dtype": "int32"},
    _infer_sum_pool,
    _sum_pool,
)
_AXES = {"axes": REQUIRED, "keepdims": True}
_integer(
    "reduce_sum", (1, 1), {**_AXES, "zero": 0, "dtype": "int32"}, _infer_reduce_sum, _reduce_sum
)
_integer("reduce_max", (1, 1), _AXES, _infer_reduce, _reduce(np.max))
_integer("reduce_min", (1, 1), _AXES, _infer_reduce, _reduce(np.min))
_integer("maximum", (2, 2), {}, _infer_pair, lambda v, a: [np.asarray(np.maximum(*v))])
_integer("minimum", (2, 2), {}, _infer_pair, lambda v, a: [np.asarray(np.minimum(*v))])
_integer("softmax", (2, 2), {"ratio": REQUIRED, **_TO_CODES}, _infer_softmax, _softmax)
_integer("argmax", (1, 1), {"axis": REQUIRED, "keepdims": True}, _infer_argmax, _argmax)
_integer(
    "reshape", (1, 1), {"shape": REQUIRED}, _infer_reshape, lambda v, a: [v[0].reshape(a["shape"])]
)
_integer(
    "transpose",
    (1, 1),
    {"perm": REQUIRED},
    _infer_transpose,
    lambda v, a: [np.ascontiguousarray(v[0].transpose(a["perm"]))],
)
_integer(
    "expand",
    (1, 1),
    {"shape": REQUIRED},
    _infer_expand,
    lambda v, a: [np.broadcast_to(v[0], a["shape"]).copy()],
)
_integer(
    "slice",
    (1, 1),
    {"starts": REQUIRED, "stops": REQUIRED, "steps": REQUIRED},
    _infer_slice,
    _slice,
)
_integer(
    "concat",
    (1, None),
    {"axis": REQUIRED},
    _infer_concat,
    lambda v, a: [np.concatenate(list(v), a["axis"])],
)
_integer("pad", (1, 1), {"before": REQUIRED, "after": REQUIRED, "code": 0}, _infer_pad, _pad)
_integer("gather", (2, 2), {"axis": 0}, _infer_gather, _gather)
