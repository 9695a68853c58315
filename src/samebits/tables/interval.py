"""Rigorous enclosures of real numbers, with ends of arbitrary precision that may be open.

A value is enclosed, the precision grows until the enclosure rounds to one code: A. Ziv, "Fast
evaluation of elementary mathematical functions with correctly rounded last bit", ACM TOMS 17(3),
1991. Sums, products and quotients are rounded outward. Elementary functions come from mpmath's
libmp, which states errors near one unit in the last place (ulp); 2**GUARD ulp are taken.

Open ends keep what a rounded end would lose: that tanh(x) < 1, and x + exp(-x) > x, however large
x is. With them a value beside a tie rounds to its own side at any precision.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

from mpmath import libmp

from samebits.spec.formats import floor_log2, round_real

PRECISIONS = (96, 192, 384, 1024, 4096)  # bits, one after the other
GUARD = 8  # bits given to the errors of an evaluation: fewer than 20 operations of 1-2 ulp each
LIMIT = 1024  # the largest arguments of exp and its kin have this many bits before the point

Float = tuple[int, int, int, int]  # libmp's (sign, mantissa, exponent, bit count)
DOWN, UP = libmp.round_floor, libmp.round_ceiling


class End(NamedTuple):
    """One end of an enclosure; the value never equals an open end."""

    value: Float
    open: bool


class Enclosure(NamedTuple):
    """All that is known of a value: low <= value <= high, strictly at open ends.

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


def codes(a: Enclosure, scale: Fraction, zero: int, low: int, high: int) -> tuple[int, int]:
    """Least and greatest code of saturate(rne(value / scale) + zero) over an enclosure."""
    unit = floor_log2(scale)
    far = unit + max(abs(low - zero), abs(high - zero)).bit_length() + 3

    def code(end: End, tie: Callable[[Fraction], int]) -> int:
        value = end.value
        if not is_finite(value) or (value[1] and magnitude(value) > far):
            return high if libmp.mpf_sign(value) > 0 else low
        if not value[1] or magnitude(value) < unit - 1:  # |value| < scale / 4
            return min(max(zero, low), high)
        ratio = to_fraction(value) / scale
        number = tie(ratio) if end.open and ratio.denominator == 2 else round_real(ratio)
        return min(max(number + zero, low), high)

    return code(a.low, lambda tie: tie.__ceil__()), code(a.high, lambda tie: tie.__floor__())


# --- arithmetic -------------------------------------------------------------------------------


def _larger(a: End, b: End, prefer_open: bool) -> End:
    order = libmp.mpf_cmp(a.value, b.value)
    if order:
        return a if order > 0 else b
    return End(a.value, a.open or b.open if prefer_open else a.open and b.open)


def _smaller(a: End, b: End, prefer_open: bool) -> End:
    order = libmp.mpf_cmp(a.value, b.value)
    if order:
        return a if order < 0 else b
    return End(a.value, a.open or b.open if prefer_open else a.open and b.open)


def maximum(a: Enclosure, b: Enclosure) -> Enclosure:
    """max(a, b)."""
    return Enclosure(_larger(a.low, b.low, True), _larger(a.high, b.high, False))


def minimum(a: Enclosure, b: Enclosure) -> Enclosure:
    """min(a, b)."""
    return Enclosure(_smaller(a.low, b.low, False), _smaller(a.high, b.high, True))


def intersect(a: Enclosure, b: Enclosure) -> Enclosure:
    """What both say of one value."""
    return Enclosure(_larger(a.low, b.low, True), _smaller(a.high, b.high, True))


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
    return Enclosure(End(libmp.fzero, False), _larger(a.high, opposite.high, False))


def _sum(a: End, b: End, precision: int, down: bool) -> End:
    if not (is_finite(a.value) and is_finite(b.value)):
        return a if not is_finite(a.value) else b
    floor = libmp.mpf_add(a.value, b.value, precision, DOWN)
    ceiling = libmp.mpf_add(a.value, b.value, precision, UP)
    return End(floor if down else ceiling, a.open or b.open or floor != ceiling)


def add(a: Enclosure, b: Enclosure, precision: int) -> Enclosure:
    """a + b."""
    low = _sum(a.low, b.low, precision, down=True)
    return Enclosure(low, _sum(a.high, b.high, precision, down=False))


def _product(a: End, b: End, precision: int, down: bool) -> End:
    # An end at 0 times an end at infinity bounds nothing by itself: the other products do.
    zeros = [end.open for end in (a, b) if end.value == libmp.fzero]
    if zeros:
        return End(libmp.fzero, all(zeros))
    product = libmp.mpf_mul(a.value, b.value)  # exact
    rounded = libmp.mpf_pos(product, precision, DOWN if down else UP)
    return End(rounded, a.open or b.open or rounded != product)


def multiply(a: Enclosure, b: Enclosure, precision: int) -> Enclosure:
    """a * b."""
    pairs = [(x, y) for x in a for y in b]
    low = _product(*pairs[0], precision, down=True)
    high = _product(*pairs[0], precision, down=False)
    for x, y in pairs[1:]:
        low = _smaller(low, _product(x, y, precision, down=True), False)
        high = _larger(high, _product(x, y, precision, down=False), False)
    return Enclosure(low, high)


def _quotient(end: End, sign: int, precision: int, down: bool) -> End:
    if end.value == libmp.fzero:
        return End(libmp.finf if sign > 0 else libmp.fninf, True)
    if not is_finite(end.value):
        return End(libmp.fzero, True)
    floor = libmp.mpf_div(libmp.fone, end.value, precision, DOWN)
    ceiling = libmp.mpf_div(libmp.fone, end.value, precision, UP)
    return End(floor if down else ceiling, end.open or floor != ceiling)


def invert(a: Enclosure, precision: int) -> Enclosure:
    """1 / a, for an enclosure without 0 in it."""
    sign = 1 if libmp.mpf_sign(a.high.value) > 0 else -1
    low = _quotient(a.high, sign, precision, down=True)
    return Enclosure(low, _quotient(a.low, sign, precision, down=False))


# --- elementary functions ---------------------------------------------------------------------

Core = Callable[[Float, int], Float]  # (value, precision) -> function value, error below GUARD
_INFINITE = Enclosure(End(libmp.fninf, True), End(libmp.finf, True))
_UNIT = hull(-1, 1)
_OPEN_UNIT = Enclosure(End(libmp.fnone, True), End(libmp.fone, True))
_POSITIVE = Enclosure(End(libmp.fzero, True), End(libmp.finf, True))
_NOT_NEGATIVE = Enclosure(End(libmp.fzero, False), End(libmp.finf, True))
_FROM_ONE = Enclosure(End(libmp.fone, False), End(libmp.finf, True))


@dataclass(frozen=True)
class Monotone:
    """A strictly monotone function on an interval.

    exact: the rational points with rational values
    limit: beyond |x| = 2**limit the value lies between those at 2**limit and at infinity; without
           one, huge arguments need huge exponents, and libmp squares that of erfc as a float
    """

    core: Core
    domain: Enclosure = _INFINITE
    image: Enclosure = _INFINITE
    exact: dict[int, int] = field(default_factory=lambda: {0: 0})
    increasing: bool = True
    limit: int | None = None

    def __call__(self, a: Enclosure, precision: int) -> Enclosure:
        """The enclosure of f over `a`, which lies in the domain."""
        low, high = a if self.increasing else (a.high, a.low)
        found = Enclosure(self._at(low, precision, True), self._at(high, precision, False))
        return intersect(found, self.image)

    def _at(self, end: End, precision: int, down: bool) -> End:
        x = end.value
        for point, value in self.exact.items():
            if x == libmp.from_int(point):
                return End(libmp.from_int(value), end.open)
        if self.limit and x[1] and magnitude(x) > self.limit:
            near = libmp.from_man_exp(-1 if x[0] else 1, self.limit)
            far = libmp.fninf if x[0] else libmp.finf
            first, second = (widened(self.core(y, precision), precision, down) for y in (near, far))
            return (_smaller if down else _larger)(first, second, True)
        return widened(self.core(x, precision), precision, down)


def widened(value: Float, precision: int, down: bool) -> End:
    """The open end of a computed value, 2**GUARD ulp away from it."""
    if not value[1]:
        return End(value, True)
    error = libmp.mpf_shift(libmp.mpf_abs(value), GUARD - precision)
    if down:
        return End(libmp.mpf_sub(value, error, precision, DOWN), True)
    return End(libmp.mpf_add(value, error, precision, UP), True)


def _sinh(value: Float, precision: int) -> Float:
    return libmp.mpf_cosh_sinh(value, precision)[1]


def _cosh(value: Float, precision: int) -> Float:
    return libmp.mpf_cosh_sinh(value, precision)[0]


def _asinh(value: Float, precision: int) -> Float:
    return libmp.mpf_asinh(value, precision) if is_finite(value) else value


def _acosh(value: Float, precision: int) -> Float:
    if not is_finite(value):
        return value
    # libmp loses half of the leading zeros of x - 1, which is not 0: acosh(1) is exact.
    excess = libmp.mpf_sub(value, libmp.fone)
    return libmp.mpf_acosh(value, precision + max(0, -magnitude(excess)))


MONOTONE = {
    "exp": Monotone(libmp.mpf_exp, image=_POSITIVE, exact={0: 1}, limit=LIMIT),
    "log": Monotone(libmp.mpf_log, domain=_POSITIVE, exact={1: 0}),
    "sqrt": Monotone(libmp.mpf_sqrt, _NOT_NEGATIVE, _NOT_NEGATIVE, {0: 0, 1: 1}),
    "tanh": Monotone(libmp.mpf_tanh, image=_OPEN_UNIT, limit=LIMIT),
    "erf": Monotone(libmp.mpf_erf, image=_OPEN_UNIT, limit=LIMIT),
    "erfc": Monotone(
        libmp.mpf_erfc,
        image=Enclosure(End(libmp.fzero, True), End(libmp.ftwo, True)),
        exact={0: 1},
        increasing=False,
        limit=500,
    ),
    "sinh": Monotone(_sinh, limit=LIMIT),
    "cosh": Monotone(_cosh, _NOT_NEGATIVE, _FROM_ONE, {0: 1}, limit=LIMIT),  # of |x|
    "asin": Monotone(libmp.mpf_asin, domain=_UNIT),
    "acos": Monotone(libmp.mpf_acos, domain=_UNIT, exact={1: 0}, increasing=False),
    "atan": Monotone(libmp.mpf_atan),
    "asinh": Monotone(_asinh),
    "acosh": Monotone(_acosh, _FROM_ONE, _NOT_NEGATIVE, {1: 0}),
    "atanh": Monotone(libmp.mpf_atanh, domain=_OPEN_UNIT),
}
PERIODIC: dict[str, Core] = {"sin": libmp.mpf_sin, "cos": libmp.mpf_cos}


def periodic(core: Core, a: Enclosure, precision: int) -> Enclosure:
    """sin or cos: the value at the low end, give or take the width (the slope is at most 1)."""
    low, high = a.low.value, a.high.value
    far = not (is_finite(low) and is_finite(high)) or (low[1] and magnitude(low) > PRECISIONS[-1])
    if far or not is_narrow(a, 1):
        return _UNIT
    value = core(low, precision)
    width = libmp.mpf_sub(high, low, precision, UP)
    found = Enclosure(
        End(libmp.mpf_sub(widened(value, precision, True).value, width, precision, DOWN), True),
        End(libmp.mpf_add(widened(value, precision, False).value, width, precision, UP), True),
    )
    return intersect(found, _UNIT)
