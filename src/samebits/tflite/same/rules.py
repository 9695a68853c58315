"""The operators whose bits are those of the runtime: one rule for each."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from math import prod

import numpy as np

from samebits.errors import InputError, UnsupportedError
from samebits.ir.integer.pointwise import doubled as rounded
from samebits.ir.integer.windows import window_counts
from samebits.spec.rounding import Away, Doubled, Rounding
from samebits.tflite.file import Array, Scaling
from samebits.tflite.same.multiplier import doubled, ends, split
from samebits.tflite.same.node import CODES, SameNode, same_op, scale_of
from samebits.tflite.window import image, pads, pair

LARGEST_COUNT = 1 << 24  # of codes of which a mean is taken
LEFT = 20  # bits by which sums of two tensors shift their operands before they round
_CODES = np.arange(-128, 128, dtype=np.int64)


def _channels(node: SameNode, scales: tuple[float, ...]) -> list[Rounding]:
    """The rounding of every output channel; their ratios are formed in binary64."""
    x, y = node.scale(0).scales[0], scale_of(node.result).scales[0]
    return [doubled(*split(x * w / y)) for w in scales]


def _convolution(node: SameNode, rows: Array, scales: tuple[float, ...], groups: int) -> str:
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
    return node.requantized(total, *_channels(node, scales))


@same_op("CONV_2D")
def _conv(node: SameNode) -> str:
    """Weights [O, KH, KW, C / groups]."""
    channels, (rows, scales) = image(node.tensor(0).shape)[3], node.weights(1)
    each = image(rows.shape)[3]
    if not each or channels % each:
        raise InputError(f"expected weights of a part of {channels} channels, found {each}")
    return _convolution(node, rows, scales, channels // each)


@same_op("DEPTHWISE_CONV_2D")
def _depthwise(node: SameNode) -> str:
    """Weights [1, KH, KW, O]."""
    channels, (rows, scales) = image(node.tensor(0).shape)[3], node.weights(1)
    if image(rows.shape)[0] != 1:
        raise InputError(f"expected weights [1, KH, KW, O], found {list(rows.shape)}")
    return _convolution(node, rows.transpose(3, 1, 2, 0), scales, channels)


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
    if len(scales) > 1:
        return node.requantized(total, *_channels(node, scales))
    above, below = (node.scale(0).scales[0], scales[0]), scale_of(node.result).scales[0]
    by = doubled(*split(node.runtime.ratio(node.operator.op, above, below)))
    return node.requantized(total, by)


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
        low, high = ends(node.option("activation"), scale_of(node.result), CODES)
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


@same_op("MAXIMUM", "MINIMUM")
def _extreme(node: SameNode) -> str:
    """The greater or the lesser of two codes of one scale."""
    node.alike()
    if node.scale(1) != node.scale(0):
        raise UnsupportedError("expected tensors of one scale, found others")
    return node.moved(node.operator.op.lower(), [node.input(0), node.input(1)])


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


@same_op("MUL")
def _multiply(node: SameNode) -> str:
    """Products of codes less their zero points."""
    a, b, c = node.scale(0), node.scale(1), scale_of(node.result)
    total = node.emit(
        "multiply",
        [node.input(0), node.input(1)],
        a_zero=a.zero_points[0],
        b_zero=b.zero_points[0],
        dtype="int64",
    )
    return node.requantized(total, doubled(*split(a.scales[0] * b.scales[0] / c.scales[0])))


@same_op("QUANTIZE")
def _quantize(node: SameNode) -> str:
    """Codes of one scale as codes of another."""
    x, y = node.scale(0), scale_of(node.result)
    total = node.emit("add", [node.input(0)], factors=(1,), offset=-x.zero_points[0], dtype="int64")
    return node.requantized(total, doubled(*split(x.scales[0] / y.scales[0])))


# --- sums of two tensors --------------------------------------------------------------------------


@same_op("ADD", "SUB")
def _add(node: SameNode) -> str:
    """Three roundings: of each operand, which is a line of its codes and a table of what rounding
    moves them by, and of their sum. Where all pairs of codes prove that one rounding does the same,
    that one."""
    scales = node.scale(0), node.scale(1), scale_of(node.result)
    sign = -1 if node.operator.op == "SUB" else 1
    first, second, last = _roundings(node)
    names = [node.input(0), node.input(1)]
    single = None
    if sign == 1:
        bounds = ends(node.option("activation"), scales[2], CODES)
        single = _single(*scales, bounds, (first, second, last))
    if single is not None:
        factors, offset, by = single
        total = node.emit("add", names, factors=factors, offset=offset, dtype="int64")
        return node.requantized(total, by)
    sources, made, constant = [*names], [0, 0], 0
    for index, rounding in enumerate((first, second)):
        shifted = (_CODES - scales[index].zero_points[0]) << LEFT
        entries = np.array([rounding.code(int(v)) for v in shifted], np.int64)
        own = sign if index else 1
        factor, offset, rest = _line(entries)
        made[index], constant = own * factor, constant + own * offset
        if rest.any():
            table = node.builder.constant(f"{node.hint}.table", rest.astype(np.int8))
            sources.append(node.emit("table", [names[index], table]))
            made.append(own)
    total = node.emit("add", sources, factors=tuple(made), offset=constant, dtype="int64")
    return node.requantized(total, last)


def _line(entries: Array) -> tuple[int, int, Array]:
    """(factor, offset, rest) by which entries of all codes are factor * code + offset + rest: the
    rest is what rounding moves them by, and at most half a code's number of units, so of 8 bits."""
    factor = round(Fraction(int(entries[-1] - entries[0]), len(entries) - 1))
    rest = entries - factor * _CODES
    offset = int(rest.max() + rest.min()) // 2
    return factor, offset, rest - offset


def _roundings(node: SameNode) -> tuple[Doubled, Doubled, Doubled]:
    """The roundings of both operands, in units of twice the larger scale, and of their sum."""
    kind = node.runtime.kind(node.operator.op)
    a, b = (kind(node.scale(index).scales[0]) for index in (0, 1))
    twice = kind(2) * max(a, b)
    unit = kind(1 << LEFT) * kind(scale_of(node.result).scales[0])
    first, second, last = (doubled(*split(float(r))) for r in (a / twice, b / twice, twice / unit))
    return first, second, last


def _single(
    a: Scaling,
    b: Scaling,
    c: Scaling,
    bounds: tuple[int, int],
    roundings: tuple[Doubled, Doubled, Doubled],
) -> tuple[tuple[int, int], int, Rounding] | None:
    """(factors, offset, rounding) whose codes are those of the three for all pairs of codes."""
    first, second = (_CODES[:, None] - a.zero_points[0], _CODES[None, :] - b.zero_points[0])
    zero = c.zero_points[0]
    parts = [rounded(v << LEFT, r) for v, r in zip((first, second), roundings, strict=False)]
    wanted = np.clip(rounded(parts[0] + parts[1], roundings[2]) + zero, *bounds)
    ratios = [s.scales[0] / c.scales[0] for s in (a, b)]
    for shift in range(16, 23):
        if sum(ratios) * 255 * 2**shift > 2**30:
            break
        half = 1 << shift >> 1
        nearest = [round(ratio * 2**shift) for ratio in ratios]
        for nudge in itertools.product((0, -1, 1), repeat=2):
            p, q = (n + d for n, d in zip(nearest, nudge, strict=True))
            if p < 1 or q < 1:
                continue
            total = first * p + second * q
            base = -p * a.zero_points[0] - q * b.zero_points[0]
            for more in (0, -1, -2, 1):
                found = np.clip(((total + more + half) >> shift) + zero, *bounds)
                if np.array_equal(found, wanted):  # twice a sum and 1 is no tie of twice 2**shift
                    return (2 * p, 2 * q), 2 * (base + more) + 1, Fraction(1, 2 << shift)
            found = np.clip(((total + half - (total < 0)) >> shift) + zero, *bounds)
            if np.array_equal(found, wanted):
                return (p, q), base, Away(1 << shift)
    return None
