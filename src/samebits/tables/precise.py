"""Real arithmetic for transfer tables: exact on rationals, enclosed where a result is irrational.

A real is a `Fraction` or an `Enclosure`. At the last precision (`final`) a narrow enclosure that
holds the point where a function jumps or its domain ends is taken for that point: so log(exp(x))
is x where a tie or a jump asks for it, though no precision can prove it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

from mpmath import libmp

from samebits.spec.formats import round_real
from samebits.tables import interval
from samebits.tables.interval import MONOTONE, PERIODIC, Enclosure, End

MAX_BITS = 1 << 14  # longer rationals are enclosed: nothing that is built from a model grows on

Real = Fraction | Enclosure
ZERO, ONE = Fraction(0), Fraction(1)


class UndefinedError(Exception):
    """The function has no value at the point."""


class UndecidedError(Exception):
    """The precision is too low to tell."""


class Precise:
    """The arithmetic of reals at one precision (bits)."""

    def __init__(self, precision: int, final: bool = False) -> None:
        self.precision = precision
        self.final = final

    def enclosed(self, x: Real) -> Enclosure:
        """x as an enclosure."""
        return x if isinstance(x, Enclosure) else interval.enclose(x, self.precision)

    def _short(self, x: Fraction) -> Real:
        if x.numerator.bit_length() + x.denominator.bit_length() <= MAX_BITS:
            return x
        return Enclosure(
            End(self._rounded(x, interval.DOWN), True), End(self._rounded(x, interval.UP), True)
        )

    def _rounded(self, x: Fraction, direction: str) -> interval.Float:
        return libmp.from_rational(x.numerator, x.denominator, self.precision, direction)

    def _is_taken_for(self, x: Enclosure, point: Fraction) -> bool:
        here = self.enclosed(point)
        apart = interval.is_above(x, here.high.value) or interval.is_below(x, here.low.value)
        return self.final and interval.is_narrow(x) and not apart

    # --- rational operations ------------------------------------------------------------------

    def add(self, x: Real, y: Real) -> Real:
        """x + y."""
        if isinstance(x, Fraction) and isinstance(y, Fraction):
            return self._short(x + y)
        return interval.add(self.enclosed(x), self.enclosed(y), self.precision)

    def negate(self, x: Real) -> Real:
        """-x."""
        return -x if isinstance(x, Fraction) else interval.negate(x)

    def subtract(self, x: Real, y: Real) -> Real:
        """x - y."""
        return self.add(x, self.negate(y))

    def multiply(self, x: Real, y: Real) -> Real:
        """x * y."""
        if isinstance(x, Fraction) and isinstance(y, Fraction):
            return self._short(x * y)
        if x == ZERO or y == ZERO:
            return ZERO
        return interval.multiply(self.enclosed(x), self.enclosed(y), self.precision)

    def divide(self, x: Real, y: Real) -> Real:
        """x / y. UndefinedError where y is 0."""
        if isinstance(y, Fraction):
            if y == 0:
                raise UndefinedError
            return self._short(x / y) if isinstance(x, Fraction) else self.multiply(x, 1 / y)
        if not (interval.is_above(y, libmp.fzero) or interval.is_below(y, libmp.fzero)):
            raise UndefinedError if self._is_taken_for(y, ZERO) else UndecidedError
        return self.multiply(x, interval.invert(y, self.precision))

    def absolute(self, x: Real) -> Real:
        """|x|."""
        return abs(x) if isinstance(x, Fraction) else interval.absolute(x)

    def maximum(self, x: Real, y: Real) -> Real:
        """max(x, y)."""
        if isinstance(x, Fraction) and isinstance(y, Fraction):
            return max(x, y)
        return interval.maximum(self.enclosed(x), self.enclosed(y))

    def minimum(self, x: Real, y: Real) -> Real:
        """min(x, y)."""
        if isinstance(x, Fraction) and isinstance(y, Fraction):
            return min(x, y)
        return interval.minimum(self.enclosed(x), self.enclosed(y))

    # --- steps --------------------------------------------------------------------------------

    def floor(self, x: Real) -> Real:
        """The largest integer <= x."""
        return self._step(x, math.floor, lambda n: Fraction(n + 1))

    def round(self, x: Real) -> Real:
        """The nearest integer, ties to even."""
        return self._step(x, round_real, lambda n: Fraction(2 * n + 1, 2))

    def _step(
        self, x: Real, step: Callable[[Fraction], int], jump: Callable[[int], Fraction]
    ) -> Real:
        """`step` jumps from n to n + 1 at jump(n)."""
        if isinstance(x, Fraction):
            return Fraction(step(x))
        for end in x:
            value = end.value
            finite = interval.is_finite(value)
            if not finite or (value[1] and interval.magnitude(value) > MAX_BITS):
                return self.add(x, interval.hull(-1, 1))
        low, high = (_moderate(end.value) for end in x)
        least, greatest = step(low), step(high)
        if x.low.open and low == jump(least):
            least += 1
        if x.high.open and high == jump(greatest - 1):
            greatest -= 1
        if least == greatest:
            return Fraction(least)
        if greatest == least + 1 and self._is_taken_for(x, jump(least)):
            return Fraction(step(jump(least)))
        return interval.hull(least, greatest)

    def sign(self, x: Real) -> Real:
        """-1, 0 or 1."""
        if isinstance(x, Fraction):
            return Fraction((x > 0) - (x < 0))
        if interval.is_above(x, libmp.fzero):
            return ONE
        if interval.is_below(x, libmp.fzero):
            return -ONE
        return ZERO if self._is_taken_for(x, ZERO) else interval.hull(-1, 1)

    def above(self, x: Real, threshold: Fraction) -> Real:
        """1 where x > threshold, else 0."""
        excess = self.subtract(x, threshold)
        if isinstance(excess, Fraction):
            return ONE if excess > 0 else ZERO
        if interval.is_above(excess, libmp.fzero):
            return ONE
        below = interval.is_below(excess, libmp.fzero) or excess.high.value == libmp.fzero
        if below or self._is_taken_for(excess, ZERO):
            return ZERO
        return interval.hull(0, 1)

    def quantize(self, x: Real, scale: Fraction, zero: int, low: int, high: int) -> Real:
        """The value of the code of x."""
        least, greatest = interval.codes(self.enclosed(x), scale, zero, low, high)
        ends = [scale * (code - zero) for code in (least, greatest)]
        if least == greatest:
            return ends[0]
        return Enclosure(self.enclosed(ends[0]).low, self.enclosed(ends[1]).high)

    # --- irrational functions -----------------------------------------------------------------

    def function(self, name: str, x: Real) -> Real:
        """An elementary function by its name. UndefinedError outside its domain."""
        if name in PERIODIC:
            if x == ZERO:
                return ONE if name == "cos" else ZERO
            return interval.periodic(PERIODIC[name], self.enclosed(x), self.precision)
        f = MONOTONE[name]
        if name == "cosh":
            x = self.absolute(x)
        if isinstance(x, Fraction):
            if x.denominator == 1 and x.numerator in f.exact:
                return Fraction(f.exact[x.numerator])
            root = _root(x) if name == "sqrt" else None
            if root is not None:
                return root
        a = self.enclosed(x)
        for end, b, edge in (
            (f.domain.low, a, f.domain.low.value),
            (f.domain.high, interval.negate(a), libmp.mpf_neg(f.domain.high.value)),
        ):
            if not interval.is_finite(edge):
                continue
            if interval.is_below(b, edge):
                raise UndefinedError
            order = libmp.mpf_cmp(b.low.value, edge)
            if order > 0 or (order == 0 and (b.low.open or not end.open)):
                continue
            point = interval.to_fraction(end.value)
            if b.low != b.high and not self._is_taken_for(a, point):
                raise UndecidedError
            if end.open:
                raise UndefinedError
            return self.function(name, point)
        return f(a, self.precision)

    def power(self, x: Real, y: Real) -> Real:
        """x ** y. UndefinedError for 0 to a negative and a negative to a broken power."""
        if isinstance(y, Fraction) and y.denominator == 1:
            return self._integer_power(x, y.numerator)
        if isinstance(x, Fraction):
            if x == 1:
                return ONE
            if x == 0 and self.sign(y) == ONE:
                return ZERO
            if x <= 0:
                raise UndefinedError
            exact = _broken_power(x, y) if isinstance(y, Fraction) else None
            if exact is not None:
                return exact
        elif interval.is_below(x, libmp.fzero):
            raise UndefinedError
        elif not interval.is_above(x, libmp.fzero):
            if self._is_taken_for(x, ZERO):
                return self.power(ZERO, y)
            raise UndecidedError
        return self.function("exp", self.multiply(y, self.function("log", x)))

    def _integer_power(self, x: Real, n: int) -> Real:
        if n < 0:
            return self.divide(ONE, self._integer_power(x, -n))
        if isinstance(x, Fraction):
            bits = max(abs(x.numerator), x.denominator).bit_length()
            if abs(x) in (0, 1) or n * bits <= MAX_BITS:
                return x ** (n if abs(x) != 1 else n % 2)
        a = self.enclosed(x)
        square, result = interval.absolute(a) if n % 2 == 0 else a, interval.hull(1, 1)
        while n:
            if n & 1:
                result = interval.multiply(result, square, self.precision)
            n >>= 1
            square = interval.multiply(square, square, self.precision) if n else square
        return result


def _moderate(value: interval.Float) -> Fraction:
    """An end as a rational; one too small to write out, by a small one of its sign."""
    if value[1] and interval.magnitude(value) < -MAX_BITS:
        return Fraction(-1 if value[0] else 1, 1 << MAX_BITS)
    return interval.to_fraction(value)


def _root(x: Fraction) -> Fraction | None:
    """The square root of a perfect square."""
    if x < 0:
        return None
    numerator, denominator = math.isqrt(x.numerator), math.isqrt(x.denominator)
    exact = numerator**2 == x.numerator and denominator**2 == x.denominator
    return Fraction(numerator, denominator) if exact else None


def _broken_power(x: Fraction, y: Fraction) -> Fraction | None:
    """x ** y where that is rational, for a binary y of a few bits (0.5, 1.25)."""
    if y.denominator & (y.denominator - 1) or abs(y.numerator) > 64:
        return None
    roots = y.denominator
    root: Fraction | None = x
    while roots > 1 and root is not None:
        root, roots = _root(root), roots // 2
    return None if root is None else root**y.numerator
