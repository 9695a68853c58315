"""Functions of one tensor with a bend, and those of 16 bits that are straight between places."""

from __future__ import annotations

import numpy as np

from samebits.errors import UnsupportedError
from samebits.ir.integer.define import limits
from samebits.ir.integer.pointwise import doubled as rounded
from samebits.spec.rounding import Doubled
from samebits.spec.tflite import ENTRIES, sigmoid_table
from samebits.tflite.file import Array
from samebits.tflite.same.multiplier import away, doubled, split
from samebits.tflite.same.node import SameNode, same_op, scale_of

LARGEST = 2.0**20  # of a slope
UNIT = 2.0**-15  # of the result of a sigmoid or tanh of 16 bits


@same_op("RELU")
def _relu(node: SameNode) -> str:
    """Codes less the zero point on the scale of the result, which nothing below 0 reaches."""
    x, y = node.scale(0), scale_of(node.result)
    total = node.less(node.input(0), x.zero_points[0])
    by = doubled(*split(node.runtime.quotient("RELU", x.scales[0], y.scales[0])))
    return node.requantized(total, by, low=y.zero_points[0])


@same_op("LEAKY_RELU")
def _leaky(node: SameNode) -> str:
    """Codes less the zero point on the scale of the result, those below 0 by a ratio of their own,
    or 0."""
    x, y, of = node.scale(0), scale_of(node.result), node.runtime
    alpha = float(np.float32(node.option("alpha")))
    if not 0 <= alpha <= LARGEST:
        raise UnsupportedError(f"expected a slope from 0 to {LARGEST}, found {alpha}")
    by, below = doubled(*split(of.quotient("LEAKY_RELU", x.scales[0], y.scales[0]))), None
    if alpha:
        kind = of.kind("LEAKY_RELU")
        above = float(kind(x.scales[0]) * kind(alpha))
        below = doubled(*split(of.quotient("LEAKY_RELU", above, y.scales[0])))
    if node.kind != "int8":
        return _bent(node, node.input(0), by, node.input(0), below)

    def code(c: int) -> int:
        v = c - x.zero_points[0]
        nearest = by.code(v) if v >= 0 else below.code(v) if below else 0
        return min(max(nearest + y.zero_points[0], -128), 127)

    return node.tabulated(np.array([code(c) for c in range(-128, 128)], np.int8))


def _bent(
    node: SameNode, x: str, by: Doubled, below: str, other: Doubled | None, slopes: str = ""
) -> str:
    """Codes above the zero point by one ratio, those below by another or to 0. slopes: by which the
    latter are multiplied first."""
    zero, (low, high) = node.scale(0).zero_points[0], limits(node.kind)
    upper = node.emit("clip", [x], low=zero, high=high)
    parts = [node.rounded(node.less(upper, zero), by)]
    if other is not None:
        lower = node.emit("clip", [below], low=low, high=zero)
        if slopes:
            zeros = {"a_zero": zero, "b_zero": node.scale(1).zero_points[0]}
            total = node.emit("multiply", [lower, slopes], dtype="int64", **zeros)
        else:
            total = node.less(lower, zero)
        parts.append(node.rounded(total, other))
    total = node.emit("add", parts, factors=(1,) * len(parts), offset=0, dtype="int64")
    return node.settled(total)


@same_op("PRELU")
def _prelu(node: SameNode) -> str:
    """The same with a tensor of slopes."""
    x, alpha, y = (s.scales[0] for s in (node.scale(0), node.scale(1), scale_of(node.result)))
    by, other = doubled(*split(x / y)), doubled(*split(x * alpha / y))
    return _bent(node, node.input(0), by, node.input(0), other, node.input(1))


@same_op("ABS")
def _abs(node: SameNode) -> str:
    """The distance from the zero point on the scale of the result."""
    x, y = node.scale(0), scale_of(node.result)
    ratio = node.runtime.quotient("ABS", x.scales[0], y.scales[0])
    by = None if x.scales == y.scales else doubled(*split(ratio))
    low, high = limits(node.kind)

    apart = np.abs(np.arange(low, high + 1, dtype=np.int64) - x.zero_points[0])
    codes = (apart if by is None else rounded(apart, by)) + y.zero_points[0]
    return node.tabulated(np.clip(codes, low, high).astype(node.kind))


def straight(node: SameNode, tanh: bool) -> str:
    """A sigmoid or tanh of int16 codes."""
    if node.result.dtype != "int16" or scale_of(node.result).scales != (UNIT,):
        raise UnsupportedError("expected a result of int16 with the scale 2**-15, found another")
    scale = node.scale(0).scales[0]
    power, place = nearest_power(scale)
    m, left = 0, 12 + place
    if not (power and left in ((0, 1) if tanh else (0,))):
        left, real = 0, scale * 4096 * 3
        while real <= 32767 / 2 and left <= 30:
            left, real = left + 1, real * 2
        m = int(real)
        if not 0 < m < 1 << 15:
            raise UnsupportedError(f"expected a scale from 2**-43 to 2.6, found {scale}")
    return node.tabulated(entries_of(m, left, tanh))


def nearest_power(scale: float) -> tuple[bool, int]:
    """Whether a scale is nearly a power of 2, and the exponent of the nearest: in binary32."""
    value = np.log(np.float32(scale)) * (np.float32(1) / np.log(np.float32(2)))
    place = away(float(value))
    return abs(float(value) - place) < 1e-3, place


def entries_of(m: int, left: int, tanh: bool) -> Array:
    """`sigmoid_steps` of all codes of 16 bits."""
    table = np.array(sigmoid_table(), np.int64)
    m, left = (m, left) if m else (3 << left, 0)
    v = (np.arange(-32768, 32768, dtype=np.int64) * m + (1 << left >> 1)) >> left
    bits = 8 if tanh else 9
    at, rest = np.abs(v) >> bits, np.abs(v) & ((1 << bits) - 1)
    a, b = (table[np.minimum(at + more, ENTRIES - 1)] for more in (0, 1))
    limit = 0xFFFF << 8 if tanh else 0x7FFF << 10
    y = np.where(at >= ENTRIES - 1, limit, (a << bits) + rest * (b - a))
    if tanh:
        found = np.where(v >= 0, y - (1 << 23) + 128, (1 << 23) - y + 127) >> 8
    else:
        found = np.where(v >= 0, y + 512, (1 << 25) - y + 511) >> 10
    return found.astype(np.int16)
