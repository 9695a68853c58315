"""Real arithmetic at a precision, exact on rationals, and Ziv's loop that rounds its results.

A real is a `Fraction` where it is known exactly, else an `Enclosure` of it. `rounded` evaluates at
growing precisions until all that the enclosure holds rounds to one code: A. Ziv, "Fast evaluation
of elementary mathematical functions with correctly rounded last bit", ACM TOMS 17(3), 1991. This
ends, for the enclosures shrink around the value and the points where a code changes (ties) lie
apart, unless the value itself is a tie. A tie that is rational all the way is a `Fraction`, and
decided at once; one like log(exp(x)) no precision can prove. At the last precision (`final`) a
narrow enclosure that holds the point where a function jumps, its domain ends or its code changes
is therefore taken for that point.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any, TypeVar

from mpmath import libmp

from samebits.spec.formats import floor_log2, round_real
from samebits.tables import interval
from samebits.tables.elementary import MONOTONE, PERIODIC
from samebits.tables.expression import ONE, ZERO, Arithmetic
from samebits.tables.interval import PRECISIONS, CodeRange, Enclosure

MAX_BITS = 1 << 14  # longer rationals are enclosed: nothing that is built from a model grows on

Real = Fraction | Enclosure
T = TypeVar("T")
Found = TypeVar("Found")


class UndefinedError(Exception):
    """The function has no value at the point."""


class UndecidedError(Exception):
    """The precision is too low to tell."""


class Precise(Arithmetic):
    """The arithmetic of reals at one precision (bits).

    Raises UndefinedError where an operation has no value, and UndecidedError where the precision
    is too low to tell whether it has one.
    """

    def __init__(self, precision: int, final: bool = False) -> None:
        self.precision = precision
        self.final = final

    def enclosed(self, x: Real) -> Enclosure:
        """x as an enclosure."""
        return x if isinstance(x, Enclosure) else interval.enclose(x, self.precision)

    def _short(self, x: Fraction) -> Real:
        short = x.numerator.bit_length() + x.denominator.bit_length() <= MAX_BITS
        return x if short else self.enclosed(x)

    def _is_taken_for(self, x: Enclosure, point: Fraction) -> bool:
        """Whether x may be the point, and nothing more will be known of it."""
        here = self.enclosed(point)
        apart = interval.is_above(x, here.high.value) or interval.is_below(x, here.low.value)
        return self.final and interval.is_narrow(x) and not apart

    # --- rational operations ------------------------------------------------------------------

    def add(self, x: Real, y: Real) -> Real:
        if isinstance(x, Fraction) and isinstance(y, Fraction):
            return self._short(x + y)
        return interval.add(self.enclosed(x), self.enclosed(y), self.precision)

    def negate(self, x: Real) -> Real:
        return -x if isinstance(x, Fraction) else interval.negate(x)

    def multiply(self, x: Real, y: Real) -> Real:
        if isinstance(x, Fraction) and isinstance(y, Fraction):
            return self._short(x * y)
        if x == ZERO or y == ZERO:
            return ZERO
        return interval.multiply(self.enclosed(x), self.enclosed(y), self.precision)

    def divide(self, x: Real, y: Real) -> Real:
        if isinstance(y, Fraction):
            if y == 0:
                raise UndefinedError
            return self._short(x / y) if isinstance(x, Fraction) else self.multiply(x, 1 / y)
        if not (interval.is_above(y, libmp.fzero) or interval.is_below(y, libmp.fzero)):
            raise UndefinedError if self._is_taken_for(y, ZERO) else UndecidedError
        return self.multiply(x, interval.invert(y, self.precision))

    def absolute(self, x: Real) -> Real:
        return abs(x) if isinstance(x, Fraction) else interval.absolute(x)

    def maximum(self, x: Real, y: Real) -> Real:
        if isinstance(x, Fraction) and isinstance(y, Fraction):
            return max(x, y)
        return interval.maximum(self.enclosed(x), self.enclosed(y))

    def minimum(self, x: Real, y: Real) -> Real:
        if isinstance(x, Fraction) and isinstance(y, Fraction):
            return min(x, y)
        return interval.minimum(self.enclosed(x), self.enclosed(y))

    # --- steps --------------------------------------------------------------------------------

    def floor(self, x: Real) -> Real:
        return self._step(x, math.floor, lambda n: Fraction(n + 1))

    def round(self, x: Real) -> Real:
        return self._step(x, round_real, lambda n: Fraction(2 * n + 1, 2))

    def _step(
        self, x: Real, step: Callable[[Fraction], int], jump: Callable[[int], Fraction]
    ) -> Real:
        """floor or round: `step` jumps from n to n + 1 at jump(n).

        An open end at a jump belongs to the integer on its inner side. A number too long to be
        written out is enclosed within 1 of itself, which is more than any code can tell.
        """
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
        if isinstance(x, Fraction):
            return Fraction((x > 0) - (x < 0))
        if interval.is_above(x, libmp.fzero):
            return ONE
        if interval.is_below(x, libmp.fzero):
            return -ONE
        return ZERO if self._is_taken_for(x, ZERO) else interval.hull(-1, 1)

    def above(self, x: Real, threshold: Fraction) -> Real:
        excess = self.subtract(x, threshold)
        if isinstance(excess, Fraction):
            return ONE if excess > 0 else ZERO
        if interval.is_above(excess, libmp.fzero):
            return ONE
        below = interval.is_below(excess, libmp.fzero) or excess.high.value == libmp.fzero
        if below or self._is_taken_for(excess, ZERO):
            return ZERO
        return interval.hull(0, 1)

    def quantize(self, x: Real, target: CodeRange) -> Real:
        low, high = map(target.value, interval.codes(self.enclosed(x), target))
        return low if low == high else Enclosure(self.enclosed(low).low, self.enclosed(high).high)

    # --- irrational functions -----------------------------------------------------------------

    def function(self, name: str, x: Real) -> Real:
        """An elementary function. Rational results of rational arguments stay exact.

        Raises UndefinedError where all of x lies outside the domain (log of a negative), and
        UndecidedError where a part does: a higher precision leaves x on one side, unless x is the
        end of the domain, for which it is taken at last. The upper end of the domain is treated
        as the lower one of -x.
        """
        if name in PERIODIC:
            if x == ZERO:
                return ONE if name == "cos" else ZERO
            return PERIODIC[name](self.enclosed(x), self.precision)
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
        """x ** y: by products for an integer y, exactly where the result is rational and short
        (8 ** 1.5 is not, 9 ** 1.5 is), else exp(y * log(x)), x > 0."""
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
        found: Real = self._by_squaring(self.enclosed(x), n)
        return found


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


# --- rounding ---------------------------------------------------------------------------------


def rounded(
    value: Callable[[Precise], T], decide: Callable[[T, bool], Found | None]
) -> Found | None:
    """Ziv's loop: the decision on a value at the first precision that allows one, else None.

    value: evaluates with the arithmetic of a precision
    decide: what all that the value may be rounds to, or None where that differs; its second
            argument is true at the last precision
    """
    for precision in PRECISIONS:
        arithmetic = Precise(precision, final=precision == PRECISIONS[-1])
        found = decide(value(arithmetic), arithmetic.final)
        if found is not None:
            return found
    return None


def one_code(value: Real, target: CodeRange, final: bool) -> int | None:
    """The code that all that a value may be has in common, or None.

    `final`: an enclosure narrower than 2**-64 of a step of the codes that still holds a tie is
    taken for that tie.
    """
    if isinstance(value, Fraction):
        return target.code(value)
    low, high = interval.codes(value, target)
    if low == high:
        return low
    if final and high == low + 1:
        tie = target.value(low) + target.scale / 2
        if interval.is_narrow(value, floor_log2(target.scale) - 64):
            return target.code(tie)
    return None


def nearest_code(value: Callable[..., Real], target: CodeRange, *arguments: Any) -> int:
    """The code of value(arithmetic, *arguments), correctly rounded.

    For a value that is defined and, unless it is a tie, no nearer to one than 4096 bits tell.
    """
    code = rounded(
        lambda a: value(a, *arguments), lambda real, final: one_code(real, target, final)
    )
    assert code is not None
    return code


def ends(value: Real) -> list[Fraction]:
    """Both ends of a value's enclosure, which are finite, or the value where it is exact."""
    if isinstance(value, Fraction):
        return [value]
    return [interval.to_fraction(end.value) for end in value]


def one_result(points: Iterable[Fraction], monotone: Callable[[Fraction], Found]) -> Found | None:
    """The result that a function has in common at all points, else None. Where it is monotone, as
    a rounding is, every number between the points has that result too."""
    found = set(map(monotone, points))
    return found.pop() if len(found) == 1 else None
