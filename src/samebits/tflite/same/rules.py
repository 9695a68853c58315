"""Products, pools and reductions with the runtime's bits: one rule for each operator."""

from __future__ import annotations

import math
from collections.abc import Callable
from math import prod

import numpy as np

from samebits.errors import InputError, UnsupportedError
from samebits.ir.integer.windows import window_counts
from samebits.spec.rounding import Away, Rounding
from samebits.tflite.file import Array
from samebits.tflite.same.multiplier import doubled, ends, half_up, split
from samebits.tflite.same.node import ENDS, SameNode, same_op, scale_of
from samebits.tflite.window import image, pads, pair

LARGEST_SIZE = 1 << 14  # of an image that is resized
FINE = 10  # bits of the weights by which it is
LARGEST_COUNT = 1 << 24  # of codes of which a mean is taken
INT32 = 2  # of the type of a bias that an operator's options name
By = Callable[[int, int], Rounding]  # of a multiplier and a shift


def _rounding(node: SameNode, x: int, bias: int | None) -> By:
    """How sums are rounded: those of int16 codes, kept in 64 bits, by 16 bits of the multiplier.
    Where an operator has a bias, its type is that of the sums. x: the input that is multiplied."""
    if node.tensor(x).dtype != "int16":
        return doubled
    if bias is not None:
        given = node.tensor(bias).dtype if node.has(bias) else ""
        if given == "int32" or (not given and node.option("bias_type") == INT32):
            return doubled
    return half_up


def _channels(node: SameNode, scales: tuple[float, ...], by: By, x: int = 0) -> list[Rounding]:
    """The rounding of every output channel; their ratios are formed in binary64."""
    of, y = node.scale(x).scales[0], scale_of(node.result).scales[0]
    return [by(*split(of * w / y)) for w in scales]


def _convolution(
    node: SameNode, rows: Array, scales: tuple[float, ...], groups: int, by: By
) -> str:
    """`conv` with weights [O, KH, KW, C / groups]."""
    _, height, width, _ = image(node.tensor(0).shape)
    kernel = (rows.shape[1], rows.shape[2])
    strides, dilations = (pair(node.operator.options, name) for name in ("stride", "dilation"))
    zero = node.scale(0).zero_points[0]
    weights = node.builder.constant(f"{node.hint}.weight", np.ascontiguousarray(rows, np.int8))
    total = node.emit(
        "conv",
        [node.input(0), weights, node.bias(2, rows, zero)],
        strides=strides,
        dilations=dilations,
        pads=pads(node.option("padding"), (height, width), kernel, strides, dilations),
        groups=groups,
        pad_code=zero,
        dtype="int64",
    )
    return node.requantized(total, *_channels(node, scales, by))


@same_op("CONV_2D")
def _conv(node: SameNode) -> str:
    """Weights [O, KH, KW, C / groups]."""
    channels, (rows, scales) = image(node.tensor(0).shape)[3], node.weights(1)
    each = image(rows.shape)[3]
    if not each or channels % each:
        raise InputError(f"expected weights of a part of {channels} channels, found {each}")
    return _convolution(node, rows, scales, channels // each, _rounding(node, 0, 2))


@same_op("DEPTHWISE_CONV_2D")
def _depthwise(node: SameNode) -> str:
    """Weights [1, KH, KW, O]."""
    channels, (rows, scales) = image(node.tensor(0).shape)[3], node.weights(1)
    if image(rows.shape)[0] != 1:
        raise InputError(f"expected weights [1, KH, KW, O], found {list(rows.shape)}")
    by = _rounding(node, 0, None)
    return _convolution(node, rows.transpose(3, 1, 2, 0), scales, channels, by)


@same_op("FULLY_CONNECTED")
def _fully_connected(node: SameNode) -> str:
    """Rows of the input times weights [O, K]; the ratio of one scale in the runtime's width."""
    rows, scales = node.weights(1)
    shape, x = node.tensor(0).shape, node.input(0)
    if rows.ndim != 2 or not rows.size or prod(shape) % rows.shape[1]:
        raise InputError(f"expected weights [O, K] of rows of K, found {list(rows.shape)}")
    if node.option("weights_format"):
        raise UnsupportedError("expected weights as rows, found shuffled ones")
    if len(shape) != 2 or shape[1] != rows.shape[1]:
        x = node.emit("reshape", [x], shape=(prod(shape) // rows.shape[1], rows.shape[1]))
    weights = node.builder.constant(f"{node.hint}.weight", np.ascontiguousarray(rows, np.int8))
    bias = node.bias(2, rows, node.scale(0).zero_points[0])
    total = node.emit("linear", [x, weights, bias], dtype="int64")
    wanted = node.result.shape
    if prod(wanted) != prod(node.builder.values[total].shape) or wanted[-1:] != rows.shape[:1]:
        raise InputError(f"expected results of {rows.shape[0]} numbers, found {list(wanted)}")
    if node.builder.values[total].shape != wanted:
        total = node.emit("reshape", [total], shape=wanted)
    by = _rounding(node, 0, 2)
    if len(scales) > 1:
        return node.requantized(total, *_channels(node, scales, by))
    return node.requantized(total, by(*split(_product(node, scales[0]))))


def _product(node: SameNode, other: float) -> float:
    """The ratio of a product with one scale, x * other in the runtime's width."""
    above, below = (node.scale(0).scales[0], other), scale_of(node.result).scales[0]
    return node.runtime.ratio(node.operator.op, above, below)


@same_op("BATCH_MATMUL")
def _batch_matmul(node: SameNode) -> str:
    """Matrices of two tensors, each as it is or turned."""
    names = []
    for index, turned in enumerate((node.option("adj_x"), node.option("adj_y"))):
        name, rank = node.input(index), len(node.tensor(index).shape)
        if turned:
            order = (*range(rank - 2), rank - 1, rank - 2)
            name = node.emit("transpose", [name], perm=order)
        names.append(name)
    a, b = (node.scale(index) for index in (0, 1))
    if node.tensor(1).dtype != node.kind:
        raise UnsupportedError("expected two tensors of one type, found others")
    zeros = {"a_zero": a.zero_points[0], "b_zero": b.zero_points[0]}
    total = node.emit("matmul", names, dtype="int64", **zeros)
    by = _rounding(node, 0, None)
    return node.requantized(total, by(*split(_product(node, b.scales[0]))))


@same_op("TRANSPOSE_CONV")
def _transpose_conv(node: SameNode) -> str:
    """Weights [O, KH, KW, C], of input 2 to the shape of the result."""
    rows, scales = node.weights(1)
    size = image(node.result.shape)
    kernel = (rows.shape[1], rows.shape[2]) if rows.ndim == 4 else (1, 1)
    strides = pair(node.operator.options, "stride")
    weights = node.builder.constant(f"{node.hint}.weight", np.ascontiguousarray(rows, np.int8))
    total = node.emit(
        "conv_transpose",
        [node.input(2), weights, node.bias(3, rows, 0)],
        strides=strides,
        dilations=(1, 1),
        pads=pads(node.option("padding"), size[1:3], kernel, strides),
        groups=1,
        zero=node.scale(2).zero_points[0],
        size=size[1:3],
        dtype="int64",
    )
    by = _rounding(node, 2, None)
    return node.requantized(total, *_channels(node, scales, by, 2))


@same_op("AVERAGE_POOL_2D", "MAX_POOL_2D")
def _pool(node: SameNode) -> str:
    """Sums of codes, over their number; the greatest code."""
    node.alike()
    _, height, width, _ = image(node.tensor(0).shape)
    kernel, strides = (pair(node.operator.options, name) for name in ("filter", "stride"))
    window = {
        "kernel": kernel,
        "strides": strides,
        "pads": pads(node.option("padding"), (height, width), kernel, strides),
        "dilations": (1, 1),
    }
    if node.operator.op == "MAX_POOL_2D":
        low, high = ends(node.option("activation"), scale_of(node.result), node.kind)
        most = node.emit("max_pool", [node.input(0)], **window)
        return node.moved("clip", [most], low=low, high=high)
    counts = window_counts((height, width), window)
    multiple = math.lcm(*map(int, np.unique(counts)))
    if multiple >= LARGEST_COUNT:
        raise UnsupportedError(
            f"expected numbers of codes in windows whose multiple is below {LARGEST_COUNT}, found "
            "others; take smaller windows"
        )
    many = bool(counts.min() != counts.max())  # then every sum is brought to their least multiple
    total = node.emit("sum_pool", [node.input(0)], zero=0, dtype="int64", balance=many, **window)
    return node.requantized(total, Away(multiple), zero=0)


def _axes(node: SameNode) -> tuple[int, ...]:
    """The axes of input 1 that are reduced."""
    rank = len(node.tensor(0).shape)
    given = node.array(1, "axes").reshape(-1)
    if given.dtype.kind not in "iu" or any(not -rank <= a < rank for a in given):
        raise InputError(f"expected axes of {rank} dimensions, found {given[:8]}")
    return tuple(sorted({int(a) % rank for a in given}))


@same_op("REDUCE_MAX", "REDUCE_MIN")
def _reduce(node: SameNode) -> str:
    """The greatest or the least code."""
    node.alike()
    kept = len(node.result.shape) == len(node.tensor(0).shape)
    op = node.operator.op.lower()
    return node.moved(op, [node.input(0)], axes=_axes(node), keepdims=kept)


@same_op("MEAN", "SUM")
def _mean(node: SameNode) -> str:
    """Sums of codes; for a mean the multiplier is divided by the number of codes, and truncated."""
    shape, axes = node.tensor(0).shape, _axes(node)
    count = prod(shape[axis] for axis in axes)
    m, shift = split(node.scale(0).scales[0] / scale_of(node.result).scales[0])
    if node.operator.op == "MEAN":
        more = min(count.bit_length() - 1, 32, 31 + shift)
        m, shift = (m << more) // max(count, 1), shift - more
    by = doubled(m, shift)
    kept = len(node.result.shape) == len(shape)
    total = node.emit(
        "reduce_sum",
        [node.input(0)],
        axes=axes,
        keepdims=kept,
        zero=node.scale(0).zero_points[0],
        dtype="int64",
    )
    return node.requantized(total, by)


@same_op("ARG_MAX", "ARG_MIN")
def _place(node: SameNode) -> str:
    """The place of the greatest or the least code, the first of several."""
    axis, shape = node.whole(1, "axis", 1)[0], node.tensor(0).shape
    node.scale(0)
    if node.kind != "int8" or node.result.dtype != "int32" or not -len(shape) <= axis < len(shape):
        raise UnsupportedError(f"expected int8 codes and int32 places, {node.result.dtype}")
    x = node.input(0)
    if node.operator.op == "ARG_MIN":
        turned = np.arange(127, -129, -1, dtype=np.int8)
        x = node.emit("table", [x, node.builder.constant(f"{node.hint}.turned", turned)])
    return node.moved("argmax", [x], axis=axis % len(shape), keepdims=False)


@same_op("RESIZE_BILINEAR")
def _resize(node: SameNode) -> str:
    """Weights of 10 bits a direction."""
    node.alike()
    if node.kind != "int8":
        raise UnsupportedError(f"expected codes of int8, found {node.kind}")
    sizes = zip(node.tensor(0).shape[1:3], node.whole(1, "sizes", 2), strict=True)
    tables = []
    for name, (size, out) in zip(("rows", "columns"), sizes, strict=True):
        for kind, array in zip(("places", "weights"), _steps(node, size, out), strict=True):
            tables.append(node.builder.constant(f"{node.hint}.{name}.{kind}", array))
    total = node.emit("resample", [node.input(0), *tables], zero=0, dtype="int64")
    return node.requantized(total, Away(1 << 2 * FINE), zero=0)


def _steps(node: SameNode, size: int, out: int) -> tuple[Array, Array]:
    """The two places of which each result is made, and their weights."""
    unit = 1 << FINE
    if not 1 <= out <= LARGEST_SIZE:
        raise InputError(f"expected a size from 1 to {LARGEST_SIZE}, found {out}")
    step = (unit * size + out // 2) // out
    if node.option("align_corners") and out > 1:
        step = (unit * (size - 1) + (out - 1) // 2) // (out - 1)
    first = step // 2 - unit // 2 if node.option("half_pixel_centers") else 0
    places = first + step * np.arange(out, dtype=np.int64)
    low = np.maximum(np.sign(places) * (np.abs(places) // unit), 0)
    above = places + unit - 1
    high = np.minimum(np.sign(above) * (np.abs(above) // unit), size - 1)
    rest = places - unit * low
    pairs = np.stack([low, high], -1), np.stack([unit - rest, rest], -1)
    return pairs[0].astype(np.int32), pairs[1].astype(np.int32)


@same_op("QUANTIZE")
def _quantize(node: SameNode) -> str:
    """Codes of one scale as codes of another; those of uint8 come from int8, or become them."""
    x, y = (scale_of(tensor, ENDS) for tensor in (node.tensor(0), node.result))
    kinds = node.kind, node.result.dtype
    if "uint8" in kinds and kinds not in (("int8", "uint8"), ("uint8", "int8")):
        raise UnsupportedError(f"expected codes of uint8 to go with int8, found {kinds}")
    total = node.less(node.input(0), x.zero_points[0])
    return node.requantized(total, doubled(*split(x.scales[0] / y.scales[0])))
