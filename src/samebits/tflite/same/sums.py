"""Operators of two tensors, element by element."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from samebits.errors import UnsupportedError
from samebits.ir.integer.define import limits
from samebits.ir.integer.pointwise import doubled as rounded
from samebits.ir.lowering.states import integers
from samebits.spec.fixed import half_away, high_product, reciprocal
from samebits.spec.rounding import Away, Doubled, Rounding
from samebits.tflite.file import Array, Scaling
from samebits.tflite.same.multiplier import doubled, ends, split
from samebits.tflite.same.node import SameNode, same_op, scale_of

LEFT = {"int8": 20, "int16": 15}  # bits by which operands are shifted before they are rounded
FINE = {"int8": 7, "int16": 0}  # the same before a difference is squared
Operand = tuple[list[str], list[int], int]  # values, their factors, and what is added


def _codes(dtype: str) -> Array:
    low, high = limits(dtype)
    return np.arange(low, high + 1, dtype=np.int64)


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


@same_op("DIV")
def _divide(node: SameNode) -> str:
    """By constants, one or one for each index of the last axis: a table of each."""
    a, b, c = node.scale(0), node.scale(1), scale_of(node.result)
    array, shape = node.array(1, "a divisor").astype(np.int64), node.result.shape
    columns = array.size if array.shape[-1:] == shape[-1:] else 1
    if node.kind != "int8" or array.size != columns:
        raise UnsupportedError("expected int8 codes and one divisor, or one for each channel")
    divisors = array.reshape(-1) - b.zero_points[0]
    if not divisors.all():
        raise UnsupportedError("expected divisors that are not 0, of which the kernel has no bits")
    ratio = node.runtime.quotient("DIV", a.scales[0], node.runtime.product("DIV", b, c))
    m, shift = split(ratio)
    low, high = ends(node.option("activation"), c, "int8")
    rows = [
        [_quotient(int(v) - a.zero_points[0], int(d), m, shift) for v in _codes("int8")]
        for d in divisors
    ]
    entries = np.clip(np.array(rows) + c.zero_points[0], low, high).astype(np.int8)
    return node.tabulated(entries if len(rows) > 1 else entries[0])


def _quotient(a: int, b: int, m: int, shift: int) -> int:
    """a / b times a ratio: by a reciprocal, with a as far to the left as it goes."""
    a, b = (a, b) if b > 0 else (-a, -b)
    if not a:
        return 0
    inverse, bits = reciprocal(b)
    room = 31 - (a if a > 0 else -a - 1).bit_length()
    right = bits + room - shift
    if not 0 <= right <= 31:
        raise UnsupportedError(f"expected shifts of 0 to 31 bits behind a quotient, found {right}")
    return half_away(high_product(high_product(a << room, inverse), m), right)


@same_op("MAXIMUM", "MINIMUM")
def _extreme(node: SameNode) -> str:
    """The greater or the lesser of two codes of one scale."""
    node.alike(1)
    return node.moved(node.operator.op.lower(), [node.input(0), node.input(1)])


# --- sums, each operand rounded -------------------------------------------------------------------


@same_op("ADD", "SUB")
def _add(node: SameNode) -> str:
    """Three roundings: of each operand, which is a line of its codes and a table of what rounding
    moves them by, and of their sum. Where all pairs of codes prove that one rounding does the same,
    that one."""
    scales = node.scale(0), node.scale(1), scale_of(node.result)
    sign = -1 if node.operator.op == "SUB" else 1
    by, left = _roundings(node), LEFT[node.kind]
    single = None
    if sign == 1 and node.kind == "int8":
        low, high = ends(node.option("activation"), scales[2], node.kind)
        single = _single(*scales, (low, high), by)
    if single is not None:
        factors, offset, last = single
        names = [node.input(0), node.input(1)]
        total = node.emit("add", names, factors=factors, offset=offset, dtype="int64")
        return node.requantized(total, last)
    total = _difference(
        node, (_operand(node, 0, by[0], left), _operand(node, 1, by[1], left)), sign
    )
    return node.requantized(total, by[2])


@same_op("ADD_N")
def _add_all(node: SameNode) -> str:
    """The sum of tensors of one scale, rounded once: halves of operands, as those of ADD, need no
    rounding. The kernel begins with an operand of code 0, whatever number that stands for."""
    count, x, y = len(node.operator.inputs), node.scale(0), scale_of(node.result)
    like = (node.kind, node.tensor(0).shape, x)
    found = {(t.dtype, t.shape, t.quantization) for t in map(node.tensor, range(count))}
    if node.kind != "int8" or count < 2 or found != {like}:
        raise UnsupportedError("expected several tensors of int8 codes, of one shape and scale")
    half = 1 << LEFT["int8"] - 1
    offset = -x.zero_points[0] * (count + 1) * half
    names = [node.input(i) for i in range(count)]
    total = node.emit("add", names, factors=(half,) * count, offset=offset, dtype="int64")
    return node.requantized(total, doubled(*split(2.0 * x.scales[0] / (2 * half * y.scales[0]))))


@same_op("SQUARED_DIFFERENCE")
def _squared(node: SameNode) -> str:
    """The square of the difference of two rounded operands."""
    a, b, y = (s.scales[0] for s in (node.scale(0), node.scale(1), scale_of(node.result)))
    twice, left = 2.0 * max(a, b), FINE[node.kind]
    operands = [_operand(node, i, doubled(*split(s / twice)), left) for i, s in enumerate((a, b))]
    difference = _difference(node, operands, -1)
    square = node.emit("multiply", [difference, difference], dtype="int64")
    return node.requantized(square, doubled(*split(twice * twice / ((1 << 2 * left) * y))))


def _difference(node: SameNode, operands: Sequence[Operand], sign: int) -> str:
    """The sum of the first operand and sign times the second."""
    names, factors, offset = list[str](), list[int](), 0
    for (values, own, more), k in zip(operands, (1, sign), strict=True):
        names, factors, offset = (
            [*names, *values],
            [*factors, *(k * f for f in own)],
            offset + k * more,
        )
    return node.emit("add", names, factors=tuple(factors), offset=offset, dtype="int64")


def _operand(node: SameNode, index: int, by: Doubled, left: int) -> Operand:
    """An operand less its zero point, shifted and rounded."""
    tensor, zero = node.tensor(index), node.scale(index).zero_points[0]
    if tensor.dtype != node.kind or node.result.dtype != node.kind:
        raise UnsupportedError("expected three tensors of one type, found others")
    if tensor.array is not None:
        numbers = rounded((tensor.array.astype(np.int64) - zero) << left, by)
        return [node.builder.constant(f"{node.hint}.rounded", integers(numbers))], [1], 0
    entries = rounded((_codes(node.kind) - zero) << left, by)
    factor, offset, rest = _line(entries, limits(node.kind)[0])
    x = node.input(index)
    names, factors = ([x], [factor]) if factor else ([], [])
    if rest.any():
        narrow = "int8" if np.abs(rest).max() < 128 else "int16"
        table = node.table("table", rest.astype(narrow))
        names, factors = [*names, node.emit("table", [x, table])], [*factors, 1]
    return names, factors, offset


def _line(entries: Array, least: int) -> tuple[int, int, Array]:
    """(factor, offset, rest) by which entries of all codes are factor * code + offset + rest: the
    rest is what rounding moves them by, and at most half a code's number of units, so of as many
    bits as a code."""
    rise = Fraction(int(entries[-1] - entries[0]), len(entries) - 1)
    factor = math.ceil(rise - Fraction(1, 2) - Fraction(2, len(entries)))
    rest = entries - factor * (least + np.arange(len(entries)))
    offset = int(rest.max() + rest.min()) // 2
    return factor, offset, rest - offset


def _roundings(node: SameNode) -> tuple[Doubled, Doubled, Doubled]:
    """The roundings of both operands, in units of twice the larger scale, and of their sum."""
    kind = node.runtime.kind(node.operator.op)
    a, b = (kind(node.scale(index).scales[0]) for index in (0, 1))
    twice = kind(2) * max(a, b)
    unit = kind(1 << LEFT[node.kind]) * kind(scale_of(node.result).scales[0])
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
    codes, left = _codes("int8"), LEFT["int8"]
    first, second = (codes[:, None] - a.zero_points[0], codes[None, :] - b.zero_points[0])
    zero = c.zero_points[0]
    parts = [rounded(v << left, r) for v, r in zip((first, second), roundings, strict=False)]
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
