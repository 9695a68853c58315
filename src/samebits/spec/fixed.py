"""Exponentials, logistic functions and shares of a softmax in fixed point, in plain integers.

What the integer kernels of TensorFlow Lite compute; docs/spec/tflite.md. A number of k integer bits
is an integer over 2**(31 - k). The functions of a row take arrays of 64 bits too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

ONE = (1 << 31) - 1  # in 0 integer bits
LEAST = -(1 << 31)

THIRD = 715827883  # 1 / 3
EXP_EIGHTH = 1895147668  # exp(-1 / 8)
STEPS = (  # exp(-2**e) by e
    (-2, 1672461947),
    (-1, 1302514674),
    (0, 790015084),
    (1, 290630308),
    (2, 39332535),
    (3, 720401),
    (4, 242),
)
FIRST, SLOPE = 1515870810, -1010580540  # 48 / 17 and -32 / 17, in 2 integer bits

SUM_BITS = 12  # integer bits of the sum of a row
LEAST_TOTAL = 1 << 19  # of a row: its greatest code has the power ONE


def high_product(a: Any, b: Any) -> Any:
    """a * b / 2**31, halves up."""
    return (a * b + (1 << 30)) >> 31


def half_away(v: int, right: int) -> int:
    """v / 2**right, halves away from 0."""
    return (v + (1 << right >> 1) + (-1 if v < 0 and right else 0)) >> right


def raised(v: int, left: int) -> int:
    """v * 2**left, saturated to 32 bits."""
    return min(max(v << left, LEAST), ONE)


def exponential(a: int, integer_bits: int) -> int:
    """exp(a) for a <= 0 of `integer_bits`, in 0 integer bits."""
    if a == 0:
        return ONE
    fraction = 31 - integer_bits
    quarter = 1 << (fraction - 2)
    part = (a & (quarter - 1)) - quarter
    result = _of_a_quarter(raised(part, integer_bits))
    for exponent, factor in STEPS:
        if integer_bits > exponent and (part - a) >> (fraction + exponent) & 1:
            result = high_product(result, factor)
    return 0 if integer_bits > 5 and a < -(1 << (fraction + 5)) else int(result)


def _of_a_quarter(a: int) -> int:
    """exp(a) for a in [-1 / 4, 0) of 0 integer bits, by a series around -1 / 8."""
    x = a + (1 << 28)
    x2 = high_product(x, x)
    x3, x4 = high_product(x2, x), high_product(x2, x2)
    inner = half_away(high_product(half_away(x4, 2) + x3, THIRD) + x2, 1)
    return int(EXP_EIGHTH + high_product(EXP_EIGHTH, x + inner))


def inverse(a: Any) -> Any:
    """2 / (1 + a) for a in [0, 1) of 0 integer bits, in 2 integer bits: three steps of Newton."""
    half = (a + (1 << 31)) >> 1
    x = high_product(half, SLOPE) + FIRST
    for _ in range(3):
        x = x + (high_product(x, (1 << 29) - high_product(half, x)) << 2)
    return x


def reciprocal(x: int) -> tuple[int, int]:
    """(r, bits): 1 / x is r * 2**-(31 + bits) nearly, for 0 < x < 2**31."""
    left = 32 - x.bit_length()
    return raised(inverse((x << left) - (1 << 31)), 1), 31 - left


def logistic(a: int, integer_bits: int) -> int:
    """1 / (1 + exp(-a)), in 0 integer bits."""
    if a == 0:
        return 1 << 30
    positive = raised(inverse(exponential(-abs(a), integer_bits)), 1)
    return positive if a > 0 else ONE - positive


def tanh(a: int, integer_bits: int) -> int:
    """The hyperbolic tangent, in 0 integer bits."""
    if a == 0:
        return 0
    size = raised(inverse(exponential(-abs(a), integer_bits + 1)) - (1 << 29), 2)
    return size if a > 0 else -size


@dataclass(frozen=True)
class Shares:
    """The rounding of a softmax by a reciprocal in fixed point, in place of an exact quotient: to
    codes of 8 or 16 bits, of which 2**bits stand for 1."""

    bits: int

    def __post_init__(self) -> None:
        if self.bits not in (8, 16):
            raise ValueError(f"expected codes of 8 or 16 bits, found {self.bits}")

    def __float__(self) -> float:
        return 2.0**self.bits

    @property
    def columns(self) -> int:
        """The most codes of a row; of more the shift by which a code is rounded leaves 31 bits."""
        return 511 if self.bits == 8 else 4095

    def part(self, power: Any) -> Any:
        """The summand of a power."""
        return (power + (1 << SUM_BITS - 1)) >> SUM_BITS

    def of_rows(self, powers: Any) -> Any:
        """The codes of an array of rows of powers."""
        return self.codes(powers, self.part(powers).sum(-1, keepdims=True))

    def codes(self, powers: Any, total: Any) -> Any:
        """The codes of powers in a row whose parts add to a total, of LEAST_TOTAL up to 2**31."""
        length = 20
        for bit in range(20, 31):
            length = length + (total >= 1 << bit) * 1
        share = inverse(total * (1 << (32 - length)) - (1 << 31)) * 2
        share = share - (share > ONE) * (share - ONE)
        right = SUM_BITS - 1 + length - self.bits
        return (high_product(share, powers) + ((1 << right) >> 1)) >> right
