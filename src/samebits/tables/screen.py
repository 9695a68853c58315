"""Binary64 intervals over all entries of a table at once: most codes are decided here.

An entry is decided when both ends of its interval round to the same code; the rest, and all points
where a function is undefined or jumps, go to `Precise`. The ends are rigorous: + - * / and sqrt are
correctly rounded by IEEE 754, and their results move outward by one unit in the last place; a
library function is taken to err by less than 2**-40 (relative; absolute for sin and cos), which is
4096 times what any libm in use states. So no last bit of a libm reaches a table: two libraries that
keep the bound decide different entries here, and the same codes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from samebits.tables.expression import OPERATORS, Step

Floats = npt.NDArray[np.float64]
TRUST = 2.0**-40  # of a library function
TINY = 1e-300  # results below it may have been flushed to zero
TURNS = 2.0**20  # sin and cos are trusted up to here
MAX_POWER = 64  # larger integer powers go to `Precise`


class Span(NamedTuple):
    """low <= value <= high in every entry; NaN where nothing is known."""

    low: Floats
    high: Floats


def _outward(low: Floats, high: Floats) -> Span:
    unknown = np.isnan(low) | np.isnan(high)
    low = np.where(unknown, np.nan, np.nextafter(low, -np.inf))
    return Span(low, np.where(unknown, np.nan, np.nextafter(high, np.inf)))


def _where(known: npt.NDArray[np.bool_], low: Any, high: Any) -> Span:
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


def _each(f: Callable[[float], float]) -> Callable[[Floats], Floats]:
    def over(x: Floats) -> Floats:
        flat = np.asarray(x).ravel()
        out = np.fromiter((f(v) for v in flat.tolist()), np.float64, flat.size)
        return out.reshape(np.shape(x))

    return over


class _Library(NamedTuple):
    function: Callable[[Any], Any]
    low: float = -np.inf  # the domain, with its ends unless `open`
    high: float = np.inf
    open: bool = False
    increasing: bool = True


_LIBRARY = {
    "exp": _Library(np.exp),
    "log": _Library(np.log, 0.0, open=True),
    "sqrt": _Library(np.sqrt, 0.0),
    "tanh": _Library(np.tanh),
    "erf": _Library(_each(math.erf)),
    "erfc": _Library(_each(math.erfc), increasing=False),
    "sinh": _Library(np.sinh),
    "cosh": _Library(np.cosh, 0.0),  # of |x|
    "asin": _Library(np.arcsin, -1.0, 1.0),
    "acos": _Library(np.arccos, -1.0, 1.0, increasing=False),
    "atan": _Library(np.arctan),
    "asinh": _Library(np.arcsinh),
    "acosh": _Library(np.arccosh, 1.0),
    "atanh": _Library(np.arctanh, -1.0, 1.0, open=True),
}


def _trusted(low: Floats, high: Floats) -> Span:
    """A library's results, made wider by its error."""
    low = low - (np.abs(low) * TRUST + TINY)
    return _outward(low, high + (np.abs(high) * TRUST + TINY))


class Screen:
    """The arithmetic of `Span`s; operands are spans and rationals."""

    def add(self, x: Any, y: Any) -> Span:
        """x + y."""
        a, b = _spans(x, y)
        return _outward(a.low + b.low, a.high + b.high)

    def negate(self, x: Any) -> Span:
        """-x."""
        (a,) = _spans(x)
        return Span(-a.high, -a.low)

    def subtract(self, x: Any, y: Any) -> Span:
        """x - y."""
        return self.add(x, self.negate(y))

    def multiply(self, x: Any, y: Any) -> Span:
        """x * y."""
        a, b = _spans(x, y)
        products = [p * q for p in a for q in b]
        low = np.minimum(np.minimum(*products[:2]), np.minimum(*products[2:]))
        return _outward(low, np.maximum(np.maximum(*products[:2]), np.maximum(*products[2:])))

    def divide(self, x: Any, y: Any) -> Span:
        """x / y; unknown where y may be 0."""
        (b,) = _spans(y)
        nonzero = (b.low > 0) | (b.high < 0)
        inverse = _outward(np.asarray(1 / b.high), np.asarray(1 / b.low))
        return self.multiply(x, _where(nonzero, *inverse))

    def absolute(self, x: Any) -> Span:
        """|x|."""
        (a,) = _spans(x)
        return Span(np.maximum(np.maximum(a.low, -a.high), 0), np.maximum(-a.low, a.high))

    def maximum(self, x: Any, y: Any) -> Span:
        """max(x, y)."""
        a, b = _spans(x, y)
        return Span(np.maximum(a.low, b.low), np.maximum(a.high, b.high))

    def minimum(self, x: Any, y: Any) -> Span:
        """min(x, y)."""
        a, b = _spans(x, y)
        return Span(np.minimum(a.low, b.low), np.minimum(a.high, b.high))

    def floor(self, x: Any) -> Span:
        """The largest integer <= x; unknown where that may be two."""
        (a,) = _spans(x)
        return self._step(np.floor(a.low), np.floor(a.high))

    def round(self, x: Any) -> Span:
        """The nearest integer, ties to even; unknown where that may be two."""
        (a,) = _spans(x)
        return self._step(np.rint(a.low), np.rint(a.high))

    def sign(self, x: Any) -> Span:
        """-1, 0 or 1; unknown where that may be two."""
        (a,) = _spans(x)
        return self._step(np.sign(a.low), np.sign(a.high))

    def above(self, x: Any, threshold: Fraction) -> Span:
        """1 where x > threshold, else 0; unknown where that may be two."""
        a, b = _spans(x, threshold)
        known = (a.low > b.high) | (a.high < b.low)
        one = np.where(a.low > b.high, 1.0, 0.0)
        return _where(known, one, one)

    def _step(self, low: Any, high: Any) -> Span:
        return _where(low == high, low, high)

    def function(self, name: str, x: Any) -> Span:
        """An elementary function by its name; unknown where the interval leaves its domain."""
        if name in ("sin", "cos"):
            return self._periodic(np.sin if name == "sin" else np.cos, x)
        f = _LIBRARY[name]
        (a,) = _spans(self.absolute(x) if name == "cosh" else x)
        if f.open:
            inside = (a.low > f.low) & (a.high < f.high)
        else:
            inside = (a.low >= f.low) & (a.high <= f.high)
        a = _where(inside, *a)
        ends = [np.asarray(f.function(end)) for end in (a if f.increasing else reversed(a))]
        return _trusted(*ends)

    def _periodic(self, f: Callable[[Any], Any], x: Any) -> Span:
        (a,) = _spans(x)
        near = np.maximum(np.abs(a.low), np.abs(a.high)) <= TURNS
        a = _where(near, *a)
        value, radius = f(a.low), (a.high - a.low) + TRUST
        return _outward(np.maximum(value - radius, -1.0), np.minimum(value + radius, 1.0))

    def power(self, x: Any, y: Any) -> Span:
        """x ** y for one constant operand; else unknown."""
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
        if n < 0:
            return self.divide(Fraction(1), self._integer_power(x, -n))
        square = self.absolute(x) if n % 2 == 0 else _spans(x)[0]
        result = lift(Fraction(1))
        while n:
            if n & 1:
                result = self.multiply(result, square)
            n >>= 1
            square = self.multiply(square, square) if n else square
        return result

    def codes(self, x: Any, scale: Fraction, zero: int, low: int, high: int) -> Span:
        """Least and greatest code of saturate(rne(x / scale) + zero)."""
        a = self.divide(x, scale)
        ends = (np.clip(np.rint(end) + zero, low, high) for end in a)
        return Span(*ends)

    def quantize(self, x: Any, scale: Fraction, zero: int, low: int, high: int) -> Span:
        """The value of the code of x; unknown where that may be two."""
        code = self._step(*self.codes(x, scale, zero, low, high))
        return self.multiply(Span(code.low - zero, code.high - zero), scale)


def screen(
    steps: Sequence[Step],
    numbers: npt.NDArray[np.int64],
    scale: Fraction,
    target: tuple[Fraction, int, int, int],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Codes of an expression at scale * numbers, and which of them are decided."""
    arithmetic = Screen()
    last_use = {index: at for at, step in enumerate(steps) for index in step.arguments}
    values: dict[int, Any] = {}
    with np.errstate(all="ignore"):
        exact = numbers.astype(np.float64)
        variable = arithmetic.multiply(Span(exact, exact), scale)
        for at, step in enumerate(steps):
            if step.op is None:
                values[at] = variable if step.value is None else step.value
                continue
            operands = [values[index] for index in step.arguments]
            values[at] = OPERATORS[step.op].meaning(arithmetic, operands, step.parameters)
            for index in set(step.arguments):
                if last_use[index] == at:  # long chains hold few arrays
                    del values[index]
        found = arithmetic.codes(values[len(steps) - 1], *target)
        decided = np.broadcast_to(found.low == found.high, numbers.shape)
        codes = np.where(decided, found.low, 0.0).astype(np.int64)
    return codes, decided
