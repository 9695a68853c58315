"""Rigorous enclosures of real numbers, with ends of arbitrary precision that may be open.

An operation on enclosures gives an enclosure of every result that it may have: its ends are the
extreme results, rounded outward to the precision (R. Moore, R. Kearfott, M. Cloud, "Introduction to
Interval Analysis", SIAM 2009). The ends are mpmath's floats, whose exponents have no limit.

Open ends keep what a rounded end would lose: that tanh(x) < 1, and x + exp(-x) > x, however large
x is. With them a value beside a tie rounds to its own side at any precision. So x * sigmoid(x) at
x = 2**20 differs from x by less than 2**-1500000, which no precision in use resolves; but all that
lies in its enclosure (x - 2**-70, x), open above, rounds down where x is a tie. Ends at infinity,
always open, hold the values beside a pole. Balls (midpoint and radius, as in Arb) express neither.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

from mpmath import libmp

from samebits.spec.formats import floor_log2, round_real

PRECISIONS = (96, 192, 384, 1024, 4096)  # bits of the ends, tried one after the other

Float = tuple[int, int, int, int]  # libmp's (sign, mantissa, exponent, bit count)
DOWN, UP = libmp.round_floor, libmp.round_ceiling


class CodeRange(NamedTuple):
    """The codes of a tensor: value = scale * (code - zero_point), low <= code <= high."""

    scale: Fraction
    zero_point: int
    low: int
    high: int

    def code(self, value: Fraction) -> int:
        """saturate(rne(value / scale) + zero_point)."""
        return self.saturate(round_real(value / self.scale) + self.zero_point)

    def saturate(self, code: int) -> int:
        """The nearest code within [low, high]."""
        return min(max(code, self.low), self.high)

    def value(self, code: int) -> Fraction:
        """The number that a code stands for."""
        return self.scale * (code - self.zero_point)


class End(NamedTuple):
    """One end of an enclosure; the value never equals an open end."""

    value: Float
    open: bool


class Enclosure(NamedTuple):
    """A finite value somewhere in low <= value <= high, strictly at open ends.

    Infinite ends are open: values are finite.
    """

    low: End
    high: End


def enclose(value: Fraction, precision: int) -> Enclosure:
    """The narrowest enclosure of a rational; a point when its denominator is a power of two."""
    numerator, denominator = value.numerator, value.denominator
    if denominator & (denominator - 1) == 0:
        end = End(libmp.from_man_exp(numerator, 1 - denominator.bit_length()), False)
        return Enclosure(end, end)
    return Enclosure(
        End(libmp.from_rational(numerator, denominator, precision, DOWN), True),
        End(libmp.from_rational(numerator, denominator, precision, UP), True),
    )


def hull(low: int, high: int) -> Enclosure:
    """[low, high] between two integers."""
    return Enclosure(End(libmp.from_int(low), False), End(libmp.from_int(high), False))


def beside(point: Fraction, side: int, distance: int, precision: int) -> Enclosure:
    """The open interval between `point` and point + side * 2**distance (side 1 or -1)."""
    here = enclose(point, precision)
    width = libmp.from_man_exp(side, distance)
    if side > 0:
        end = libmp.mpf_add(here.high.value, width, precision, UP)
        return Enclosure(End(here.low.value, True), End(end, True))
    end = libmp.mpf_add(here.low.value, width, precision, DOWN)
    return Enclosure(End(end, True), End(here.high.value, True))


# --- where a value lies -----------------------------------------------------------------------


def is_finite(value: Float) -> bool:
    """Whether an end is a number."""
    return bool(value[1]) or value == libmp.fzero


def magnitude(value: Float) -> int:
    """m with 2**(m - 1) <= |value| < 2**m, of a nonzero number."""
    return value[2] + value[3]


def to_fraction(value: Float) -> Fraction:
    """A finite end exactly; its exponent must be moderate."""
    sign, mantissa, exponent, _ = value
    number = Fraction(int(mantissa)) * Fraction(2) ** exponent
    return -number if sign else number


def is_above(a: Enclosure, point: Float) -> bool:
    """Every value is > point."""
    order = libmp.mpf_cmp(a.low.value, point)
    return order > 0 or (order == 0 and a.low.open)


def is_below(a: Enclosure, point: Float) -> bool:
    """Every value is < point."""
    order = libmp.mpf_cmp(a.high.value, point)
    return order < 0 or (order == 0 and a.high.open)


def is_narrow(a: Enclosure, distance: int = -64) -> bool:
    """Narrower than 2**distance: at the last precision taken for the special point inside."""
    if not (is_finite(a.low.value) and is_finite(a.high.value)):
        return False
    width = libmp.mpf_sub(a.high.value, a.low.value, 53, UP)
    return width == libmp.fzero or magnitude(width) <= distance


def codes(a: Enclosure, target: CodeRange) -> tuple[int, int]:
    """Least and greatest code of the values in an enclosure.

    The code is a monotone function of the value, so the codes of the two ends bound all others.
    Values beside an open end that is a tie have the code on their own side of it. An end far
    outside the codes, or far below one step of them, is never written out as a rational: its
    exponent may be astronomic.
    """
    scale, zero, low, high = target
    unit = floor_log2(scale)
    far = unit + max(abs(low - zero), abs(high - zero)).bit_length() + 3

    def code(end: End, tie: Callable[[Fraction], int]) -> int:
        value = end.value
        if not is_finite(value) or (value[1] and magnitude(value) > far):
            return high if libmp.mpf_sign(value) > 0 else low
        if not value[1] or magnitude(value) < unit - 1:  # |value| < scale / 4
            return target.saturate(zero)
        ratio = to_fraction(value) / scale
        number = tie(ratio) if end.open and ratio.denominator == 2 else round_real(ratio)
        return target.saturate(number + zero)

    return code(a.low, math.ceil), code(a.high, math.floor)


# --- arithmetic -------------------------------------------------------------------------------


def extreme(a: End, b: End, side: int, prefer_open: bool) -> End:
    """The larger end (side 1) or the smaller one (-1). Of two ends at one value the open one when
    both bound the value (`prefer_open`), the closed one when either may be reached."""
    order = side * libmp.mpf_cmp(a.value, b.value)
    if order:
        return a if order > 0 else b
    return End(a.value, a.open or b.open if prefer_open else a.open and b.open)


def maximum(a: Enclosure, b: Enclosure) -> Enclosure:
    """max(a, b)."""
    return Enclosure(extreme(a.low, b.low, 1, True), extreme(a.high, b.high, 1, False))


def minimum(a: Enclosure, b: Enclosure) -> Enclosure:
    """min(a, b)."""
    return Enclosure(extreme(a.low, b.low, -1, False), extreme(a.high, b.high, -1, True))


def intersect(a: Enclosure, b: Enclosure) -> Enclosure:
    """The common part of two enclosures of one value."""
    return Enclosure(extreme(a.low, b.low, 1, True), extreme(a.high, b.high, -1, True))


def negate(a: Enclosure) -> Enclosure:
    """-a."""
    low, high = a
    return Enclosure(
        End(libmp.mpf_neg(high.value), high.open), End(libmp.mpf_neg(low.value), low.open)
    )


def absolute(a: Enclosure) -> Enclosure:
    """|a|."""
    opposite = negate(a)
    if not libmp.mpf_sign(a.low.value) < 0:
        return a
    if not libmp.mpf_sign(a.high.value) > 0:
        return opposite
    return Enclosure(End(libmp.fzero, False), extreme(a.high, opposite.high, 1, False))


def _sum(a: End, b: End, precision: int, down: bool) -> End:
    """One end of a sum. Rounding makes it open: the exact sum lies strictly inside."""
    if not (is_finite(a.value) and is_finite(b.value)):
        return a if not is_finite(a.value) else b
    floor = libmp.mpf_add(a.value, b.value, precision, DOWN)
    ceiling = libmp.mpf_add(a.value, b.value, precision, UP)
    return End(floor if down else ceiling, a.open or b.open or floor != ceiling)


def add(a: Enclosure, b: Enclosure, precision: int) -> Enclosure:
    """a + b."""
    low = _sum(a.low, b.low, precision, down=True)
    return Enclosure(low, _sum(a.high, b.high, precision, down=False))


def _product(a: End, b: End) -> End:
    # An end at 0 times an end at infinity bounds nothing by itself: the other products do.
    zeros = [end.open for end in (a, b) if end.value == libmp.fzero]
    if zeros:
        return End(libmp.fzero, all(zeros))
    return End(libmp.mpf_mul(a.value, b.value), a.open or b.open)  # exact


def multiply(a: Enclosure, b: Enclosure, precision: int) -> Enclosure:
    """a * b: between the least and the greatest product of two ends, as it is linear in each."""
    low = high = _product(a.low, b.low)
    for x, y in ((a.low, b.high), (a.high, b.low), (a.high, b.high)):
        product = _product(x, y)
        low, high = extreme(low, product, -1, False), extreme(high, product, 1, False)
    ends = []
    for end, direction in ((low, DOWN), (high, UP)):
        rounded = libmp.mpf_pos(end.value, precision, direction)
        ends.append(End(rounded, end.open or rounded != end.value))
    return Enclosure(*ends)


def _quotient(end: End, sign: int, precision: int, down: bool) -> End:
    """1 / end, where the values at this end have that sign."""
    if end.value == libmp.fzero:
        return End(libmp.finf if sign > 0 else libmp.fninf, True)
    if not is_finite(end.value):
        return End(libmp.fzero, True)
    floor = libmp.mpf_div(libmp.fone, end.value, precision, DOWN)
    ceiling = libmp.mpf_div(libmp.fone, end.value, precision, UP)
    return End(floor if down else ceiling, end.open or floor != ceiling)


def invert(a: Enclosure, precision: int) -> Enclosure:
    """1 / a, for an enclosure without 0 in it; an open end at 0 becomes one at infinity."""
    sign = 1 if libmp.mpf_sign(a.high.value) > 0 else -1
    low = _quotient(a.high, sign, precision, down=True)
    return Enclosure(low, _quotient(a.low, sign, precision, down=False))
