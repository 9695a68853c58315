"""Functions and sums of binary64 with the same bits on every machine.

numpy's exp differs between instruction sets, its sums between memory layouts and the library's
between versions. Here everything is made of operations that IEEE 754 rounds in one way only, each
a numpy operation of its own, so that nothing is contracted or reordered: + - * / and square root,
rounding to integers, scaling by powers of two. Errors stay below 2**-48 of the result (of 1 for erf
and the periodic functions); tests/ir/real/test_functions.py checks it.

Methods: reduction by multiples of ln 2 in two parts (W. J. Cody and W. Waite, "Software Manual for
the Elementary Functions", 1980), Taylor series, of erf the series of positive terms and the
continued fraction (M. Abramowitz and I. Stegun, "Handbook of Mathematical Functions", 1964, 7.1.6
and 7.1.14).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from samebits.ir.ops import Array

# 32 bits of ln 2, then 53 more.
LN2_HIGH, LN2_LOW = map(float.fromhex, ("0x1.62e42feep-1", "0x1.a39ef35793c76p-33"))
# pi / 2 in three parts of 33 bits, then the rest: k * part is exact for k below 2**20.
HALF_PI = tuple(
    map(
        float.fromhex,
        ("0x1.921fb544p0", "0x1.0b4611a6p-34", "0x1.3198a2ep-69", "0x1.b839a252049c1p-104"),
    )
)
TAYLOR = 15  # terms of exp, for |r| <= ln(2) / 2
NEAR_TERMS, FAR_TERMS = 44, 60  # of erf up to 2 and from there; it is 1 from 6 on


def total(x: Array, axes: Sequence[int]) -> Array:
    """The sum along axes, which stay with size 1. Binary64: of the halves of the elements in their
    order, added pair by pair until one is left; other types: numpy's sum, which is exact."""
    if x.dtype.kind != "f":
        return np.asarray(np.sum(x, axis=tuple(axes), keepdims=True))
    axes = [axis % x.ndim for axis in axes]
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    shape = [1 if axis in axes else size for axis, size in enumerate(x.shape)]
    count = math.prod(x.shape[axis] for axis in axes)
    if not count:
        return np.zeros(shape)
    rest = x.transpose(*axes, *kept).reshape(count, *(x.shape[axis] for axis in kept))
    while len(rest) > 1:
        half = len(rest) // 2
        added = rest[:half] + rest[half : 2 * half]
        rest = added if len(rest) == 2 * half else np.concatenate([added, rest[2 * half :]])
    return rest.reshape(shape)


def mean(x: Array, axes: Sequence[int]) -> Array:
    """The total along axes, which stay with size 1, divided by the number of elements."""
    return total(x, axes) / math.prod(x.shape[axis] for axis in axes)


def _series(x: Array, coefficients: Sequence[float]) -> Array:
    """A polynomial by Horner's rule, from the highest power."""
    result = np.full(x.shape, coefficients[0])
    for coefficient in coefficients[1:]:
        result = result * x + coefficient
    return result


_EXP = [1 / math.factorial(n) for n in range(TAYLOR, 0, -1)]  # of (e**r - 1) / r


def _reduced(x: Array) -> tuple[Array, Array]:
    """k and r with x = k ln 2 + r."""
    k = np.rint(np.clip(x, -800.0, 800.0) * (1 / (LN2_HIGH + LN2_LOW)))
    return k, (x - k * LN2_HIGH) - k * LN2_LOW


def exp(x: Array) -> Array:
    """e**x."""
    held = np.where(np.isnan(x), 0.0, np.clip(x, -800.0, 800.0))
    k, r = _reduced(held)
    found = np.ldexp(1.0 + r * _series(r, _EXP), k.astype(np.int32))
    return np.where(np.isnan(x), x, found)


def expm1(x: Array) -> Array:
    """e**x - 1."""
    near = np.where(np.abs(x) < 0.5, x, 0.0)
    return np.where(np.abs(x) < 0.5, near * _series(near, _EXP), exp(x) - 1.0)


_LOG = [2 / n for n in range(23, 0, -2)]  # of log((1 + f) / (1 - f)) / f in powers of f**2


def log(x: Array) -> Array:
    """The natural logarithm."""
    held = np.where((x > 0) & np.isfinite(x), x, 1.0)
    m, e = np.frexp(held)
    low = m < math.sqrt(0.5)
    m, e = np.where(low, 2 * m, m), (e - low).astype(np.float64)
    f = (m - 1.0) / (m + 1.0)
    found = e * LN2_HIGH + (f * _series(f * f, _LOG) + e * LN2_LOW)
    found = np.where(x == 0, -np.inf, found)
    found = np.where(x == np.inf, np.inf, found)
    return np.where((x < 0) | np.isnan(x), np.nan, found)


def log1p(x: Array) -> Array:
    """log(1 + x)."""
    u = 1.0 + x
    inside = np.isfinite(u) & (u > 0)
    safe = np.where(inside, u, 1.0)
    missing = np.where(inside, x, 0.0) - (safe - 1.0)  # what 1 + x lost
    return log(u) + missing / safe


def tanh(x: Array) -> Array:
    """The hyperbolic tangent."""
    t = expm1(2.0 * np.minimum(np.abs(x), 30.0))
    return np.where(np.isnan(x), x, np.copysign(t / (t + 2.0), x))


def softplus(x: Array) -> Array:
    """log(1 + e**x)."""
    return np.maximum(x, 0.0) + log1p(exp(-np.abs(x)))


def sigmoid(x: Array) -> Array:
    """1 / (1 + e**-x)."""
    small = exp(-np.abs(x))
    return np.where(x >= 0, 1.0, small) / (1.0 + small)


def erf(x: Array) -> Array:
    """The error function: its series up to 2, from there 1 less the continued fraction of erfc."""
    size = np.abs(x)
    near = size < 2.0
    found = np.empty(x.shape)
    y = size[near]
    twice = 2.0 * y * y
    sums = term = y
    for n in range(1, NEAR_TERMS):
        term = term * (twice / (2 * n + 1))
        sums = sums + term
    found[near] = exp(-y * y) * sums * (2 / math.sqrt(math.pi))
    y = np.minimum(size[~near], 6.0)
    below = y
    for n in range(FAR_TERMS, 0, -1):
        below = y + (n / 2) / below
    found[~near] = 1.0 - exp(-y * y) / (math.sqrt(math.pi) * below)
    return np.where(np.isnan(x), x, np.copysign(found, x))


_SIN = [(-1) ** n / math.factorial(2 * n + 1) for n in range(9, -1, -1)]
_COS = [(-1) ** n / math.factorial(2 * n) for n in range(9, -1, -1)]


def _turned(x: Array, quarters: int) -> Array:
    """sin(x + quarters * pi / 2)."""
    held = np.where(np.isfinite(x), x, 0.0)
    k = np.rint(held * (2 / math.pi))
    r = held
    for part in HALF_PI:
        r = r - k * part
    square = r * r
    sine, cosine = r * _series(square, _SIN), _series(square, _COS)
    turn = np.mod(k + quarters, 4.0)
    found = np.where(np.mod(turn, 2.0) == 0, sine, cosine)
    return np.where(np.isfinite(x), np.where(turn >= 2, -found, found), np.nan)


def sin(x: Array) -> Array:
    """The sine; of arguments beyond 2**20 with an error that grows with them."""
    return _turned(x, 0)


def cos(x: Array) -> Array:
    """The cosine; as `sin`."""
    return _turned(x, 1)


def tan(x: Array) -> Array:
    """The tangent; as `sin`."""
    return sin(x) / cos(x)


_ATAN = [(-1) ** n / (2 * n + 1) for n in range(11, -1, -1)]


def atan(x: Array) -> Array:
    """The arc tangent, by that of an eighth of the angle."""
    size = np.abs(x)
    large = size > 1.0
    y = np.where(large, 1.0 / np.where(large, size, 1.0), size)
    for _ in range(3):
        y = y / (1.0 + np.sqrt(1.0 + y * y))
    angle = 8.0 * (y * _series(y * y, _ATAN))
    return np.where(np.isnan(x), x, np.copysign(np.where(large, math.pi / 2 - angle, angle), x))


def asin(x: Array) -> Array:
    """The arc sine."""
    return atan(x / np.sqrt((1.0 - x) * (1.0 + x)))


def acos(x: Array) -> Array:
    """The arc cosine."""
    return 2.0 * atan(np.sqrt((1.0 - x) / (1.0 + x)))


def sinh(x: Array) -> Array:
    """The hyperbolic sine."""
    t = expm1(np.abs(x))
    found = np.where(t < 1e300, 0.5 * (t + t / (t + 1.0)), 0.5 * t)
    return np.copysign(found, x)


def cosh(x: Array) -> Array:
    """The hyperbolic cosine."""
    t = exp(np.abs(x))
    return 0.5 * t + 0.5 / t


def asinh(x: Array) -> Array:
    """The inverse of sinh."""
    size = np.abs(x)
    square = size * size
    found = log1p(size + square / (1.0 + np.sqrt(square + 1.0)))
    return np.copysign(np.where(size > 1e100, log(size) + (LN2_HIGH + LN2_LOW), found), x)


def acosh(x: Array) -> Array:
    """The inverse of cosh."""
    t = x - 1.0
    found = log1p(t + np.sqrt(2.0 * t + t * t))
    return np.where(x > 1e100, log(x) + (LN2_HIGH + LN2_LOW), found)


def atanh(x: Array) -> Array:
    """The inverse of tanh."""
    size = np.abs(x)
    return np.copysign(0.5 * log1p(2.0 * size / (1.0 - size)), x)


def power(a: Array, b: Array) -> Array:
    """a**b: by products for whole exponents up to 64, by the square root for 0.5, by exp and log
    elsewhere."""
    a, b = np.broadcast_arrays(a, b)
    size = np.abs(b)
    whole = (np.rint(b) == b) & (size <= 64)
    result = np.ones(a.shape)
    square = np.array(a, np.float64)
    count = np.where(whole, size, 0).astype(np.int64)
    while count.any():
        result = np.where(count & 1, result * square, result)
        count = count >> 1
        square = np.where(count > 0, square * square, square)
    result = np.where(b < 0, 1.0 / result, result)
    odd = np.mod(np.abs(np.where(np.isfinite(b), b, 0.0)), 2.0) == 1
    other = exp(b * log(np.abs(a)))
    other = np.where(a < 0, np.where(np.rint(b) != b, np.nan, np.where(odd, -other, other)), other)
    other = np.where(b == 0.5, np.sqrt(a), other)
    return np.where(whole, result, other)
