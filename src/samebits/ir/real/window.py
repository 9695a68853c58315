"""Convolutions and pools of real graphs, [N, C, spatial...], of any spatial rank.

Convolution is a matrix product over the unfolded windows (im2col), a block of windows at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from samebits.ir.ops import Array, Attributes, Type, window_count
from samebits.ir.real import define as real
from samebits.ir.real.define import SAMPLES, Inputs, define, integers, map_exact
from samebits.ir.real.functions import total
from samebits.ir.traits import Trait

UNFOLDED_MAX = 2**23  # elements of one block of unfolded windows
Ints = tuple[int, ...]


# --- windows --------------------------------------------------------------------------------


def _spatial(value: Any, what: str = "x") -> Ints:
    if len(value.shape) < 3:
        raise ValueError(f"expected {what} of [N, C, spatial...], found {list(value.shape)}")
    return tuple(value.shape[2:])


def _check_window(attributes: Attributes, size: Ints, kernel: Ints) -> tuple[Ints, Ints, Ints]:
    """strides, pads and dilations; every kernel, stride and dilation is at least 1."""
    rank = len(size)
    integers(kernel, "kernel_shape", rank, least=1)
    strides = integers(attributes["strides"], "strides", rank, least=1)
    pads = integers(attributes["pads"], "pads", 2 * rank, least=0)
    dilations = integers(attributes["dilations"], "dilations", rank, least=1)
    real.check_elements([n + pads[i] + pads[i + rank] for i, n in enumerate(size)])
    return strides, pads, dilations


def _pad(x: Array, pads: Sequence[int], fill: Any) -> Array:
    rank = len(pads) // 2
    if not any(pads):
        return x
    shape = list(x.shape)
    inside: list[slice] = [slice(None)] * x.ndim
    for i in range(rank):
        axis = x.ndim - rank + i
        inside[axis] = slice(pads[i], pads[i] + shape[axis])
        shape[axis] += pads[i] + pads[i + rank]
    padded = np.full(real.check_elements(shape), fill, dtype=x.dtype)
    padded[tuple(inside)] = x
    return padded


def _windows(x: Array, kernel: Ints, strides: Ints, dilations: Ints) -> Array:
    """A view [N, C, out..., kernel...] of the windows of a padded x."""
    rank = len(kernel)
    axes = tuple(range(x.ndim - rank, x.ndim))
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    view = np.lib.stride_tricks.sliding_window_view(x, spans, axis=axes)
    steps = (*(slice(None, None, s) for s in strides), *(slice(None, None, d) for d in dilations))
    return np.asarray(view[(slice(None), slice(None), *steps)])


# --- convolution ----------------------------------------------------------------------------


def _infer_conv(values: Inputs, attributes: Attributes) -> list[Type]:
    kind = real.check_same_type(values, real.FLOATS)
    x, w, b = values
    return [(kind, _conv_shape(x, w, b, attributes))]


def _conv_shape(x: Any, w: Any, b: Any, attributes: Attributes) -> Ints:
    """[N, O, out...] of a convolution of x [N, C, ...] with w [O, C / group, k...]; ValueError
    where weights, bias or windows do not fit."""
    size, kernel = _spatial(x), _spatial(w, "w")
    strides, pads, dilations = _check_window(attributes, size, kernel)
    group = _check_group(attributes)
    if x.shape[1] != w.shape[1] * group or w.shape[0] % group:
        raise ValueError(
            f"expected weights [multiple of {group}, {x.shape[1]} / {group}, ...], "
            f"found {list(w.shape)}"
        )
    _check_bias(b, w.shape[0])
    rank = len(size)
    out = (
        window_count(size[i], kernel[i], strides[i], pads[i] + pads[i + rank], dilations[i])
        for i in range(rank)
    )
    return (x.shape[0], w.shape[0], *out)


def _check_group(attributes: Attributes) -> int:
    group = attributes["group"]
    if not real.is_integer(group) or group < 1:
        raise ValueError(f"expected group of at least 1, found {group!r}")
    return int(group)


def _check_bias(b: Any, channels: int) -> None:
    if b is not None and b.shape != (channels,):
        raise ValueError(f"expected a bias of [{channels}], found {list(b.shape)}")


def correlate(x: Array, w: Array, attributes: Attributes) -> Array:
    """x [N, C, ...] with w [O, C/group, ...]; the pads read 0. Any type that numpy multiplies."""
    group, strides = attributes["group"], attributes["strides"]
    samples, channels = x.shape[:2]
    kernel, outputs, rank = w.shape[2:], w.shape[0], x.ndim - 2
    windows = _windows(_pad(x, attributes["pads"], 0), kernel, strides, attributes["dilations"])
    out = windows.shape[2 : 2 + rank]
    if outputs == channels == group and math.prod(kernel) <= math.prod(out):
        return _by_channel(windows, w)
    rows, each = out[0], math.prod(out[1:])
    length = w.shape[1] * math.prod(kernel)  # of one dot product
    matrix = w.reshape(group, outputs // group, length)
    result = np.empty((samples, outputs, *out), dtype=np.result_type(x, w))
    # Whole samples as far as they fit one block, else rows of one sample.
    row_size = max(1, channels * each * math.prod(kernel))
    row_step = min(max(1, UNFOLDED_MAX // row_size), rows)
    step = max(1, UNFOLDED_MAX // (row_size * rows)) if row_step == rows else 1
    # Taps before positions: a copy of a tap is one of whole rows, and of 1x1 kernels a view.
    order = (0, 1, 2, *range(3 + rank, 3 + 2 * rank), *range(3, 3 + rank))
    for first in range(0, samples, step):
        for row in range(0, rows, row_step):
            block = windows[first : first + step, :, row : row + row_step]
            shape = (block.shape[0], group, channels // group, *block.shape[2:])
            columns = block.reshape(shape).transpose(order).reshape(*shape[:2], length, -1)
            result[first : first + step, :, row : row + row_step] = (matrix @ columns).reshape(
                block.shape[0], outputs, *block.shape[2 : 2 + rank]
            )
    return result


def _by_channel(windows: Array, w: Array) -> Array:
    """Each channel with its own kernel, tap by tap: as matrices they would have one row each."""
    factors = w.reshape(len(w), *w.shape[2:], *[1] * (w.ndim - 2))
    result: Array = np.zeros(windows.shape[: w.ndim], dtype=np.result_type(windows, w))
    product = np.empty_like(result)
    for tap in np.ndindex(w.shape[2:]):
        np.multiply(windows[(..., *tap)], factors[(slice(None), *tap)], out=product)
        np.add(result, product, out=result)
    return result


def unfolded(x: Array, kernel: Ints, attributes: Attributes) -> Array:
    """[group, positions, C / group * taps]: what a convolution of x [N, C, ...] multiplies with the
    weights of a group [O / group, C / group, taps...], the positions of all samples in order."""
    group, rank = attributes["group"], len(kernel)
    windows = _windows(
        *(_pad(x, attributes["pads"], 0), kernel),
        *(attributes["strides"], attributes["dilations"]),
    )
    samples, channels, *rest = windows.shape
    parts = windows.reshape(samples, group, channels // group, *rest)
    order = (1, 0, *range(3, 3 + rank), 2, *range(3 + rank, 3 + 2 * rank))
    return parts.transpose(order).reshape(group, -1, channels // group * math.prod(kernel))


def _add_bias(y: Array, b: Array | None) -> Array:
    return y if b is None else y + b.reshape(-1, *[1] * (y.ndim - 2))


def _conv(arrays: Inputs, attributes: Attributes) -> list[Array]:
    x, w, b = arrays
    channel = (-1, *[1] * (x.ndim - 2))
    samples = attributes.get(SAMPLES, 1)
    y = real.bilinear(lambda p, q: correlate(p, q, attributes), x, w, 0, channel, samples=samples)
    return [_add_bias(y, b)]


def _infer_conv_integer(values: Inputs, attributes: Attributes) -> list[Type]:
    x, w, x_zero, w_zero = values
    for operand, zero, what in ((x, x_zero, "x_zero"), (w, w_zero, "w_zero")):
        kind = real.check_type(operand, ("int8", "uint8"))
        if zero is not None:
            real.check_type(zero, (kind,), what)
    shape = _conv_shape(x, w, None, attributes)
    if x_zero is not None and x_zero.shape not in ((), (1,)):
        raise ValueError(f"expected one zero point of x, found {list(x_zero.shape)}")
    if w_zero is not None and w_zero.shape not in ((), (1,), (w.shape[0],)):
        raise ValueError(
            f"expected one zero point of w or {w.shape[0]}, found {list(w_zero.shape)}"
        )
    return [("int32", shape)]


def _conv_integer(arrays: Inputs, attributes: Attributes) -> list[Array]:
    x, w, x_zero, w_zero = arrays
    x, w = x.astype(np.int64), w.astype(np.int64)
    if x_zero is not None:
        x = x - x_zero.astype(np.int64).reshape(())
    if w_zero is not None:
        w = w - w_zero.astype(np.int64).reshape(-1, *[1] * (w.ndim - 1))
    return [real.bilinear(lambda p, q: correlate(p, q, attributes), x, w)]


def _transposed_size(size: Ints, kernel: Ints, attributes: Attributes) -> Ints:
    """Before the pads are cut off: all that the taps of all positions reach."""
    return tuple(
        (n - 1) * s + (k - 1) * d + 1
        for n, k, s, d in zip(
            size, kernel, attributes["strides"], attributes["dilations"], strict=True
        )
    )


def _infer_conv_transpose(values: Inputs, attributes: Attributes) -> list[Type]:
    """[N, O, out...] from w [C, O / group, k...]; the result before its pads are cut off must stay
    within ELEMENTS_MAX too."""
    kind = real.check_same_type(values, real.FLOATS)
    x, w, b = values
    size, kernel = _spatial(x), _spatial(w, "w")
    rank = len(size)
    strides, pads, dilations = _check_window(attributes, size, kernel)
    extra = integers(attributes["output_padding"], "output_padding", rank, least=0)
    for more, stride, dilation in zip(extra, strides, dilations, strict=True):
        if more >= max(stride, dilation):
            raise ValueError(f"expected output_padding below {max(stride, dilation)}, found {more}")
    group = _check_group(attributes)
    if x.shape[1] != w.shape[0] or w.shape[0] % group:
        raise ValueError(f"expected weights [{x.shape[1]}, ...], found {list(w.shape)}")
    _check_bias(b, w.shape[1] * group)
    reached = _transposed_size(size, kernel, attributes)
    out = tuple(n + extra[i] - pads[i] - pads[i + rank] for i, n in enumerate(reached))
    if min(out) < 1:
        raise ValueError(f"expected pads that leave an output, found {list(pads)}")
    real.check_elements((x.shape[0], w.shape[1] * group, *reached))
    return [(kind, (x.shape[0], w.shape[1] * group, *out))]


def _scatter(x: Array, w: Array, attributes: Attributes) -> Array:
    """The transpose of `correlate`, pads not yet cut off; w is [O, C/group, kernel...]."""
    group, strides = attributes["group"], attributes["strides"]
    dilations = attributes["dilations"]
    samples, channels, *size = x.shape
    kernel, outputs = w.shape[2:], w.shape[0]
    reached = _transposed_size(tuple(size), kernel, attributes)
    result = np.zeros((samples, outputs, *reached), dtype=np.result_type(x, w))
    flat = x.reshape(samples, group, channels // group, -1)
    for tap in np.ndindex(*kernel):
        matrix = w[(slice(None), slice(None), *tap)].reshape(group, outputs // group, -1)
        places = tuple(
            slice(t * d, t * d + (n - 1) * s + 1, s)
            for t, d, n, s in zip(tap, dilations, size, strides, strict=True)
        )
        result[(slice(None), slice(None), *places)] += (matrix @ flat).reshape(
            samples, outputs, *size
        )
    return result


def _conv_transpose(arrays: Inputs, attributes: Attributes) -> list[Array]:
    x, w, b = arrays
    group, rank = attributes["group"], x.ndim - 2
    # [C, O/group, ...] as [O, C/group, ...]
    grouped = w.reshape(group, w.shape[0] // group, *w.shape[1:]).swapaxes(1, 2)
    by_output = grouped.reshape(-1, w.shape[0] // group, *w.shape[2:])
    y = real.bilinear(
        lambda p, q: _scatter(p, q, attributes),
        *(x, by_output, 0, (-1, *[1] * rank)),
        samples=attributes.get(SAMPLES, 1),
    )
    pads, extra = attributes["pads"], attributes["output_padding"]
    y = _pad(y, [*[0] * rank, *extra], 0 if y.dtype != object else Fraction(0))
    cut = tuple(slice(pads[i], y.shape[2 + i] - pads[i + rank]) for i in range(rank))
    return [_add_bias(y[(slice(None), slice(None), *cut)], b)]


_CONV = ("strides", "pads", "dilations")
_GROUPED = real.attributes_of(*_CONV, group=1)
_IMAGE = (Trait.SPATIAL, Trait.HEAVY)
_CODES = (Trait.PRODUCT, Trait.QUANTIZES, *_IMAGE)
define("Conv", (2, 3), _GROUPED, _infer_conv, _conv, Trait.WEIGHTED, *_IMAGE)
define("ConvInteger", (2, 4), _GROUPED, _infer_conv_integer, _conv_integer, *_CODES)
define(
    "ConvTranspose",
    (2, 3),
    real.attributes_of(*_CONV, "output_padding", group=1),
    _infer_conv_transpose,
    _conv_transpose,
    Trait.WEIGHTED,
    *_IMAGE,
)


# --- pools ----------------------------------------------------------------------------------


def _pool_shape(value: Any, attributes: Attributes) -> Ints:
    """[N, C, out...] of a pool. In ceil mode a last window that does not fit counts, unless it
    would start in the end pad."""
    size = _spatial(value)
    rank = len(size)
    kernel = integers(attributes["kernel_shape"], "kernel_shape", rank, least=1)
    strides, pads, dilations = _check_window(attributes, size, kernel)
    out = []
    for i, n in enumerate(size):
        begin, end = pads[i], pads[i + rank]
        if max(begin, end) >= kernel[i] * dilations[i]:
            raise ValueError(f"expected pads smaller than the kernel, found {list(pads)}")
        count = window_count(n, kernel[i], strides[i], begin + end, dilations[i])
        if attributes["ceil_mode"]:
            rest = (n + begin + end - dilations[i] * (kernel[i] - 1) - 1) % strides[i]
            # One window more, unless it would start in the end pad.
            count += rest > 0 and count * strides[i] < n + begin
        out.append(count)
    return (*value.shape[:2], *out)


def _infer_pool(allowed: Sequence[str]) -> Any:
    def infer(values: Inputs, attributes: Attributes) -> list[Type]:
        return [(real.check_type(values[0], allowed), _pool_shape(values[0], attributes))]

    return infer


def _pool_windows(x: Array, attributes: Attributes, fill: Any) -> Array:
    """Windows [N, C, out..., kernel...] with the end pads that ceil mode needs."""
    kernel, strides = attributes["kernel_shape"], attributes["strides"]
    dilations, pads = attributes["dilations"], attributes["pads"]
    rank = len(kernel)
    out = _pool_shape(x, attributes)[2:]
    ends = [
        max(
            pads[i + rank],
            (out[i] - 1) * strides[i]
            + dilations[i] * (kernel[i] - 1)
            + 1
            - x.shape[2 + i]
            - pads[i],
        )
        for i in range(rank)
    ]
    windows = _windows(_pad(x, [*pads[:rank], *ends], fill), kernel, strides, dilations)
    return windows[(slice(None), slice(None), *(slice(n) for n in out))]


def _counts(x: Array, out: Ints, attributes: Attributes, padding: bool) -> Array:
    """Positions of each window inside the image (with its stated pads if `padding`), [out...]."""
    counts = np.ones((), dtype=np.int64)
    rank = len(out)
    for i in range(rank):
        begin, end = attributes["pads"][i], attributes["pads"][i + rank]
        low, high = (-begin, x.shape[2 + i] + end) if padding else (0, x.shape[2 + i])
        starts = np.arange(out[i], dtype=np.int64) * attributes["strides"][i] - begin
        dilation, kernel = attributes["dilations"][i], attributes["kernel_shape"][i]
        first = np.maximum(-((starts - low) // dilation), 0)  # first tap at or after `low`
        stop = np.minimum(-((starts - high) // dilation), kernel)
        counts = counts[..., None] * np.maximum(stop - first, 0)
    return counts


def _check_counts(counts: Array) -> Array:
    if counts.size and counts.min() < 1:
        raise ValueError("expected every window to reach into the image, found one in the padding")
    return counts


def _max_pool(arrays: Inputs, attributes: Attributes) -> list[Array]:
    x = arrays[0]
    rank = x.ndim - 2
    if x.dtype == object:
        fill = min(x.reshape(-1), default=Fraction(0))
    else:
        fill = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    windows = _pool_windows(x, attributes, fill)
    _check_counts(_counts(x, windows.shape[2 : 2 + rank], attributes, padding=False))
    return [windows.max(axis=tuple(range(-rank, 0)))]


def _average_pool(arrays: Inputs, attributes: Attributes) -> list[Array]:
    x = arrays[0]
    rank = x.ndim - 2
    windows = _pool_windows(x, attributes, 0 if x.dtype != object else Fraction(0))
    out = windows.shape[2 : 2 + rank]
    counts = _check_counts(_counts(x, out, attributes, bool(attributes["count_include_pad"])))
    axes = tuple(range(-rank, 0))
    return [_ratio(total(windows, axes).reshape(windows.shape[:-rank]), counts)]


def _ratio(sums: Array, counts: Array) -> Array:
    if sums.dtype == object:
        return map_exact(lambda s, c: Fraction(s, c), sums, counts.astype(object))
    return sums / counts


def _infer_global(allowed: Sequence[str]) -> Any:
    def infer(values: Inputs, attributes: Attributes) -> list[Type]:
        size = _spatial(values[0])
        if 0 in size:
            raise ValueError(f"expected an image that is not empty, found {list(size)}")
        kind = real.check_type(values[0], allowed)
        return [(kind, (*values[0].shape[:2], *[1] * len(size)))]

    return infer


def _global_average(arrays: Inputs, attributes: Attributes) -> list[Array]:
    x = arrays[0]
    axes = tuple(range(2, x.ndim))
    return [total(x, axes) / math.prod(x.shape[2:])]


def _global_max(arrays: Inputs, attributes: Attributes) -> list[Array]:
    return [arrays[0].max(axis=tuple(range(2, arrays[0].ndim)), keepdims=True)]


_POOL = ("kernel_shape", *_CONV)
_MAXIMUM = (*real.FLOATS, "int8", "uint8", "int16", "uint16", "int32")
_MOST = (Trait.SELECTION, Trait.HOMOGENEOUS, *_IMAGE)
_MEAN = (Trait.AVERAGE, Trait.HOMOGENEOUS)
define(
    "MaxPool", 1, real.attributes_of(*_POOL, ceil_mode=0), _infer_pool(_MAXIMUM), _max_pool, *_MOST
)
define(
    "AveragePool",
    1,
    real.attributes_of(*_POOL, ceil_mode=0, count_include_pad=0),
    _infer_pool(real.FLOATS),
    _average_pool,
    *_MEAN,
    *_IMAGE,
)
define(
    "GlobalAveragePool",
    1,
    {},
    _infer_global(real.FLOATS),
    _global_average,
    *_MEAN,
    Trait.SPATIAL,
)
define(
    "GlobalMaxPool",
    1,
    {},
    _infer_global(_MAXIMUM),
    _global_max,
    Trait.SELECTION,
    Trait.HOMOGENEOUS,
    Trait.SPATIAL,
)
