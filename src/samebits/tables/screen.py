"""Binary64 intervals over all entries of a table at once: most codes are decided here.

An entry is decided when both ends of its interval round to the same code; the rest, and all points
where a function is undefined or jumps, go to `Precise`. Which ends are rigorous, and why:

- IEEE 754 rounds + - * / correctly, so the exact result lies within half a unit in the last place
  (ulp) of the computed one; the next binary64 number outward bounds it, after underflow to 0 and
  overflow to infinity too.
- A library function (numpy's or the system's) is taken to err by less than TRUST = 2**-40 of its
  result (of 1 for sin and cos), or by TINY, where its result may have been flushed to zero. That is
  at least 4,096 ulp; for the functions used here the libraries in use err by a few (measured by
  B. Gladman, V. Innocente, J. Mather, P. Zimmermann, "Accuracy of mathematical functions in single,
  double, double extended, and quadruple precision", HAL hal-03141101).
- Functions are monotone, or move no faster than their argument (sin, cos).

So no last bit of a libm reaches a table: two libraries that keep the bound decide different entries
here, and the same codes. NaN stands for "unknown" and spreads through every operation; comparisons
with it are false, so an unknown entry is never decided.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from mpmath import libmp

from samebits.tables.elementary import MONOTONE, PERIODIC
from samebits.tables.expression import ONE, OPERATORS, Arithmetic, Expression, fold
from samebits.tables.interval import CodeRange, is_finite

Floats = npt.NDArray[np.float64]
TRUST = 2.0**-40  # of a library function
TINY = 1e-300  # results below it may have been flushed to zero
LARGEST = float(np.finfo(np.float64).max)
TURNS = 2.0**20  # sin and cos are trusted up to here
MAX_POWER = 64  # larger integer powers go to `Precise`


class Span(NamedTuple):
    """Binary64 intervals of any shape: low <= value <= high in every entry, NaN where nothing is
    known."""

    low: Floats
    high: Floats


def _outward(low: Floats, high: Floats) -> Span:
    """The interval with both ends moved to the next binary64 number, where both are known."""
    unknown = np.isnan(low) | np.isnan(high)
    low = np.where(unknown, np.nan, np.nextafter(low, -np.inf))
    return Span(low, np.where(unknown, np.nan, np.nextafter(high, np.inf)))


def _where(known: npt.NDArray[np.bool_], low: Any, high: Any) -> Span:
    """The interval, unknown elsewhere."""
    return Span(np.where(known, low, np.nan), np.where(known, high, np.nan))


def _binary64(value: Any) -> float | None:
    """A rational that is a binary64 number, as that."""
    if not isinstance(value, Fraction):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if Fraction(number) == value else None


def lift(value: Fraction) -> Span:
    """A rational, enclosed."""
    number = _binary64(value)
    if number is not None:
        return Span(np.asarray(number), np.asarray(number))
    try:
        near = np.asarray(float(value))
    except OverflowError:
        near = np.asarray(math.copysign(math.inf, value))
    return _outward(near, near)


def _spans(*values: Span | Fraction) -> list[Span]:
    return [value if isinstance(value, Span) else lift(value) for value in values]


def _trusted(low: Floats, high: Floats) -> Span:
    """A library's results, made wider by its error; one that overflowed is at least LARGEST."""
    low, high = np.minimum(low, LARGEST), np.maximum(high, -LARGEST)
    low = low - (np.abs(low) * TRUST + TINY)
    return _outward(low, high + (np.abs(high) * TRUST + TINY))


class Screen(Arithmetic):
    """The arithmetic of `Span`s; operands are spans and rationals.

    An entry is unknown (NaN) where an operation may have no value (a divisor may be 0, an interval
    leaves the domain), or where a step (floor, round, sign, above, quantize) may give two.
    """

    def add(self, x: Any, y: Any) -> Span:
        a, b = _spans(x, y)
        return _outward(a.low + b.low, a.high + b.high)

    def negate(self, x: Any) -> Span:
        (a,) = _spans(x)
        return Span(-a.high, -a.low)

    def multiply(self, x: Any, y: Any) -> Span:
        a, b = _spans(x, y)
        products = [p * q for p in a for q in b]
        low = np.minimum(np.minimum(*products[:2]), np.minimum(*products[2:]))
        return _outward(low, np.maximum(np.maximum(*products[:2]), np.maximum(*products[2:])))

    def divide(self, x: Any, y: Any) -> Span:
        (b,) = _spans(y)
        nonzero = (b.low > 0) | (b.high < 0)
        inverse = _outward(np.asarray(1 / b.high), np.asarray(1 / b.low))
        return self.multiply(x, _where(nonzero, *inverse))

    def absolute(self, x: Any) -> Span:
        (a,) = _spans(x)
        return Span(np.maximum(np.maximum(a.low, -a.high), 0), np.maximum(-a.low, a.high))

    def maximum(self, x: Any, y: Any) -> Span:
        a, b = _spans(x, y)
        return Span(np.maximum(a.low, b.low), np.maximum(a.high, b.high))

    def minimum(self, x: Any, y: Any) -> Span:
        a, b = _spans(x, y)
        return Span(np.minimum(a.low, b.low), np.minimum(a.high, b.high))

    def floor(self, x: Any) -> Span:
        (a,) = _spans(x)
        return self._step(np.floor(a.low), np.floor(a.high))

    def round(self, x: Any) -> Span:
        (a,) = _spans(x)
        return self._step(np.rint(a.low), np.rint(a.high))

    def sign(self, x: Any) -> Span:
        (a,) = _spans(x)
        return self._step(np.sign(a.low), np.sign(a.high))

    def above(self, x: Any, threshold: Fraction) -> Span:
        a, b = _spans(x, threshold)
        known = (a.low > b.high) | (a.high <= b.low)
        one = np.where(a.low > b.high, 1.0, 0.0)
        return _where(known, one, one)

    def _step(self, low: Any, high: Any) -> Span:
        """The value of a step function where it is the same at both ends."""
        return _where(low == high, low, high)

    def function(self, name: str, x: Any) -> Span:
        """An elementary function; unknown where the interval leaves its domain or touches a pole.

        sin and cos of an interval of width w lie within w of their value at its low end.
        """
        (a,) = _spans(x)
        if name in PERIODIC:
            near = np.maximum(np.abs(a.low), np.abs(a.high)) <= TURNS
            a = _where(near, *a)
            value, radius = PERIODIC[name].library(a.low), (a.high - a.low) + TRUST
            return _outward(np.maximum(value - radius, -1.0), np.minimum(value + radius, 1.0))
        f = MONOTONE[name]
        a = self.absolute(x) if name == "cosh" else a
        low, high = (libmp.to_float(end.value) for end in f.domain)
        first, last = (
            np.less if end.open and is_finite(end.value) else np.less_equal for end in f.domain
        )
        inside = first(low, a.low) & last(a.high, high)
        a = _where(inside, *a)
        ends = [np.asarray(f.library(end)) for end in (a if f.increasing else reversed(a))]
        return _trusted(*ends)

    def power(self, x: Any, y: Any) -> Span:
        if isinstance(y, Fraction) and y.denominator == 1 and abs(y.numerator) <= MAX_POWER:
            return self._integer_power(x, y.numerator)
        exponent, base = _binary64(y), _binary64(x)
        if exponent is not None:
            (a,) = _spans(x)
            a = _where(a.low > 0, *a)
            low, high = np.power(a.low, exponent), np.power(a.high, exponent)
        elif base is not None and base > 0:
            (a,) = _spans(y)
            low, high = np.power(base, a.low), np.power(base, a.high)
        else:
            a = _spans(x)[0]
            return Span(a.low * np.nan, a.high * np.nan)
        return _trusted(np.minimum(low, high), np.maximum(low, high))

    def _integer_power(self, x: Any, n: int) -> Span:
        found: Any = self._by_squaring(x, abs(n))
        return self.divide(ONE, found) if n < 0 else _spans(found)[0]

    def codes(self, x: Any, target: CodeRange) -> Span:
        """Least and greatest code of x."""
        a = self.divide(x, target.scale)
        ends = (np.clip(np.rint(end) + target.zero_point, target.low, target.high) for end in a)
        return Span(*ends)

    def quantize(self, x: Any, target: CodeRange) -> Span:
        code = self._step(*self.codes(x, target))
        zero = target.zero_point
        return self.multiply(Span(code.low - zero, code.high - zero), target.scale)


def screen(
    expression: Expression,
    numbers: npt.NDArray[np.int64],
    scale: Fraction,
    target: CodeRange,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Codes [n] of an expression at scale * numbers, and which of them are decided; 0 elsewhere."""
    arithmetic = Screen()
    with np.errstate(all="ignore"):
        exact = numbers.astype(np.float64)
        variable = arithmetic.multiply(Span(exact, exact), scale)
        value = fold(
            expression, variable, lambda t, x: OPERATORS[t.op].meaning(arithmetic, x, t.parameters)
        )
        found = arithmetic.codes(value, target)
        decided = np.broadcast_to(found.low == found.high, numbers.shape)
        codes = np.where(decided, found.low, 0.0).astype(np.int64)
    return codes, decided
