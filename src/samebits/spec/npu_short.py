"""The matrix-vector unit's numbers: plain Python, slow and obvious. docs/spec/npu.md section 1.

BFP-short: codes of M bits beside a sign, with one 5-bit exponent a block. BFP-long: q34.40, an
integer in units of 2**-40.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from samebits.spec.formats import power, round_real, scaled
from samebits.spec.npu_binary16 import to_binary16

EXPONENT_MIN, EXPONENT_MAX = -15, 16
INFINITY = Fraction(2) ** 17  # what an infinity counts as in a block
LONG_FRACTION = 40
LONG_MAX = (1 << 74) - 1


def bfp_short(values: Sequence[Fraction | float], mantissa: int) -> tuple[list[int], int]:
    """(codes, E) of one block of binary16 numbers; a value is code * 2**(E - mantissa).

    E is the smallest in -15 .. 16 that holds the rounded largest magnitude, else 16; codes are
    rounded to nearest, ties to even, and saturate at 2**mantissa - 1. NaN counts as 0.
    """
    numbers = [_number(value) for value in values]
    largest = max((abs(number) for number in numbers), default=Fraction(0))
    code_max = (1 << mantissa) - 1
    exponent = EXPONENT_MIN
    while exponent < EXPONENT_MAX and round_real(largest * power(mantissa - exponent)) > code_max:
        exponent += 1
    codes = [round_real(number * power(mantissa - exponent)) for number in numbers]
    return [min(max(code, -code_max), code_max) for code in codes], exponent


def _number(value: Fraction | float) -> Fraction:
    if isinstance(value, float) and not math.isfinite(value):
        return Fraction(0) if math.isnan(value) else INFINITY if value > 0 else -INFINITY
    return Fraction(value)


def bfp_long(dots: Sequence[tuple[int, int]], requantize: bool = False) -> int:
    """The sum of dot products, exact numbers code_sum * 2**exponent, in units of 2**-40.

    Each is rounded to a unit (nearest, ties to even); the sum is exact and saturates at 2**74 - 1.
    requantize: each rounded product goes through binary16 before it is added; an infinity counts
    as the largest q34.40 of its sign.
    """
    products = [scaled(code_sum, exponent + LONG_FRACTION) for code_sum, exponent in dots]
    if requantize:
        products = [_through_binary16(product) for product in products]
    return min(max(sum(products), -LONG_MAX), LONG_MAX)


def _through_binary16(product: int) -> int:
    value = long_to_binary16(product)
    if math.isinf(value):
        return LONG_MAX if value > 0 else -LONG_MAX
    return int(Fraction(value) * power(LONG_FRACTION))  # an integer: binary16 ends at 2**-24


def long_to_binary16(total: int) -> float:
    """The binary16 number nearest to total * 2**-40; +0 of a zero."""
    return to_binary16(total * power(-LONG_FRACTION))
