"""Elementary functions: enclosed at any precision, and in binary64 over whole tables.

The value at a point comes from mpmath's libmp, which states errors near one unit in the last place
(ulp) without proof; 2**GUARD = 256 ulp are taken. Against Arb (python-flint 0.9), whose bounds are
proved, the largest error at 9,200 points of each function, from 96 to 1,024 bits, was 1.003 ulp.

A monotone function over an enclosure lies between the values at its two ends, and what is known of
its image keeps the strict bounds that no computed end can show: tanh(x) < 1 and exp(x) > 0, however
large or small x is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mpmath import libmp

from samebits.tables.interval import (
    DOWN,
    PRECISIONS,
    UP,
    Enclosure,
    End,
    Float,
    extreme,
    hull,
    intersect,
    is_finite,
    is_narrow,
    magnitude,
)

GUARD = 8  # bits of a value given to the error of libmp
LIMIT = 1024  # the largest arguments of exp and its kin have this many bits before the point

Core = Callable[[Float, int], Float]  # (value, precision) -> function value, error below GUARD
Library = Callable[[Any], Any]  # the same of arrays of binary64
_INFINITE = Enclosure(End(libmp.fninf, True), End(libmp.finf, True))
_UNIT = hull(-1, 1)
_OPEN_UNIT = Enclosure(End(libmp.fnone, True), End(libmp.fone, True))
_POSITIVE = Enclosure(End(libmp.fzero, True), End(libmp.finf, True))
_NOT_NEGATIVE = Enclosure(End(libmp.fzero, False), End(libmp.finf, True))
_FROM_ONE = Enclosure(End(libmp.fone, False), End(libmp.finf, True))


@dataclass(frozen=True)
class Monotone:
    """A strictly monotone function on an interval.

    library: its binary64 realisation, which `Screen` trusts to 2**-40
    exact: the rational points with rational values
    limit: beyond |x| = 2**limit the value lies between those at 2**limit and at infinity; without
           one, huge arguments need huge exponents, and libmp squares that of erfc as a float
    """

    core: Core
    library: Library
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
        """The bound of f at one end of its argument, from below (`down`) or from above."""
        x = end.value
        for point, value in self.exact.items():
            if x == libmp.from_int(point):
                return End(libmp.from_int(value), end.open)
        if self.limit and x[1] and magnitude(x) > self.limit:
            near = libmp.from_man_exp(-1 if x[0] else 1, self.limit)
            far = libmp.fninf if x[0] else libmp.finf
            first, second = (widened(self.core(y, precision), precision, down) for y in (near, far))
            return extreme(first, second, -1 if down else 1, True)
        return widened(self.core(x, precision), precision, down)


def widened(value: Float, precision: int, down: bool) -> End:
    """The open end of a computed value, 2**GUARD ulp below or above it; 0 and infinities stay."""
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


def _vectorized(f: Callable[[float], float]) -> Library:
    return np.vectorize(f, otypes=[np.float64])


MONOTONE = {
    "exp": Monotone(libmp.mpf_exp, np.exp, image=_POSITIVE, exact={0: 1}, limit=LIMIT),
    "log": Monotone(libmp.mpf_log, np.log, domain=_POSITIVE, exact={1: 0}),
    "sqrt": Monotone(libmp.mpf_sqrt, np.sqrt, _NOT_NEGATIVE, _NOT_NEGATIVE, {0: 0, 1: 1}),
    "tanh": Monotone(libmp.mpf_tanh, np.tanh, image=_OPEN_UNIT, limit=LIMIT),
    "erf": Monotone(libmp.mpf_erf, _vectorized(math.erf), image=_OPEN_UNIT, limit=LIMIT),
    "erfc": Monotone(
        libmp.mpf_erfc,
        _vectorized(math.erfc),
        image=Enclosure(End(libmp.fzero, True), End(libmp.ftwo, True)),
        exact={0: 1},
        increasing=False,
        limit=500,
    ),
    "sinh": Monotone(_sinh, np.sinh, limit=LIMIT),
    "cosh": Monotone(_cosh, np.cosh, _NOT_NEGATIVE, _FROM_ONE, {0: 1}, limit=LIMIT),  # of |x|
    "asin": Monotone(libmp.mpf_asin, np.arcsin, domain=_UNIT),
    "acos": Monotone(libmp.mpf_acos, np.arccos, domain=_UNIT, exact={1: 0}, increasing=False),
    "atan": Monotone(libmp.mpf_atan, np.arctan),
    "asinh": Monotone(_asinh, np.arcsinh),
    "acosh": Monotone(_acosh, np.arccosh, _FROM_ONE, _NOT_NEGATIVE, {1: 0}),
    "atanh": Monotone(libmp.mpf_atanh, np.arctanh, domain=_OPEN_UNIT),
}


@dataclass(frozen=True)
class Periodic:
    """sin or cos."""

    core: Core
    library: Library

    def __call__(self, a: Enclosure, precision: int) -> Enclosure:
        """The value at the low end, give or take the width of `a`: the slope is at most 1.

        Nothing is known (-1 to 1) of a wide enclosure, nor of an argument so large that the last
        precision would have no bit left after subtracting the multiples of pi.
        """
        low, high = a.low.value, a.high.value
        far = low[1] and magnitude(low) > PRECISIONS[-1]
        if far or not is_narrow(a, 1):
            return _UNIT
        value = self.core(low, precision)
        width = libmp.mpf_sub(high, low, precision, UP)
        low = libmp.mpf_sub(widened(value, precision, True).value, width, precision, DOWN)
        high = libmp.mpf_add(widened(value, precision, False).value, width, precision, UP)
        return intersect(Enclosure(End(low, True), End(high, True)), _UNIT)


PERIODIC = {"sin": Periodic(libmp.mpf_sin, np.sin), "cos": Periodic(libmp.mpf_cos, np.cos)}
