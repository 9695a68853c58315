"""Roundings of `requantize`, in plain integers. docs/spec/graph.md 3.4.

A rounding is a monotone step function of a sum: `code(acc)`, and `least(code)`, the least sum that
reaches a code. Bounds, proofs and thresholds need no more of it. A Fraction rounds once, the exact
product and halves to even. The others are those of the integer kernels of TensorFlow Lite.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from samebits.spec.formats import round_ratio

MULTIPLIER_BITS = 31  # of `Doubled`
SHORT_BITS = 15  # of `HalfUp`


@dataclass(frozen=True)
class Doubled:
    """Two roundings: x = acc * m / 2**(31 - left), halves up; x / 2**right, halves away from 0.

    0 < m < 2**31; one of left and right is 0.
    """

    m: int
    left: int = 0
    right: int = 0

    def __post_init__(self) -> None:
        _check(0 < self.m < 1 << MULTIPLIER_BITS, "0 < m < 2**31", self.m)
        _check(0 <= self.left <= 31 and 0 <= self.right <= 31, "shifts of 0 to 31", self)
        _check(not (self.left and self.right), "one shift", self)

    def __float__(self) -> float:
        return self.m * 2.0 ** (self.left - self.right - MULTIPLIER_BITS)

    def code(self, acc: int) -> int:
        """The code of a sum."""
        x = ((acc << self.left) * self.m + (1 << 30)) >> 31
        half = 1 << self.right >> 1
        return (x + half - (x < 0 and self.right > 0)) >> self.right

    def least(self, code: int) -> int:
        """The least sum whose code is `code` or more."""
        x = (code << self.right) - (1 << self.right >> 1) + (code <= 0 and self.right > 0)
        return -((-((x << 31) - (1 << 30))) // (self.m << self.left))


@dataclass(frozen=True)
class HalfUp:
    """acc * m / 2**shift, halves up; 0 < m < 2**15, 0 <= shift <= 62."""

    m: int
    shift: int

    def __post_init__(self) -> None:
        _check(0 < self.m < 1 << SHORT_BITS, "0 < m < 2**15", self.m)
        _check(0 <= self.shift <= 62, "a shift of 0 to 62", self.shift)

    def __float__(self) -> float:
        return self.m * 2.0**-self.shift

    def code(self, acc: int) -> int:
        """The code of a sum."""
        return (acc * self.m + (1 << self.shift >> 1)) >> self.shift

    def least(self, code: int) -> int:
        """The least sum whose code is `code` or more."""
        return -((-((code << self.shift) - (1 << self.shift >> 1))) // self.m)


@dataclass(frozen=True)
class Away:
    """acc / n, halves away from 0; 0 < n < 2**31."""

    n: int

    def __post_init__(self) -> None:
        _check(0 < self.n < 1 << 31, "0 < n < 2**31", self.n)

    def __float__(self) -> float:
        return 1 / self.n

    def code(self, acc: int) -> int:
        """The code of a sum."""
        magnitude = (abs(acc) + self.n // 2) // self.n
        return magnitude if acc > 0 else -magnitude

    def least(self, code: int) -> int:
        """The least sum whose code is `code` or more."""
        half = self.n // 2
        return code * self.n - half if code > 0 else half + 1 - (1 - code) * self.n


Rounding = Fraction | Doubled | HalfUp | Away


def code_of(acc: int, rounding: Rounding) -> int:
    """The code of a sum, before the zero point is added and the ends saturate."""
    if isinstance(rounding, Fraction):
        return round_ratio(acc * rounding.numerator, rounding.denominator)
    return rounding.code(acc)


def least_of(code: int, rounding: Rounding) -> int:
    """The least sum that reaches a code.

    By a ratio that is the least acc >= (code - 1/2) / ratio, or > it where that is an integer and
    the tie there goes to code - 1: a tie rounds up exactly when `code` is even.
    """
    if not isinstance(rounding, Fraction):
        return rounding.least(code)
    p, q = rounding.as_integer_ratio()
    quotient, remainder = divmod((2 * code - 1) * q, 2 * p)
    return quotient + (remainder != 0 or code % 2 == 1)


def _check(right: bool, expected: str, found: object) -> None:
    if not right:
        raise ValueError(f"expected {expected}, found {found}")
