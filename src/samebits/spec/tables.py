"""docs/spec/tables.md in exact fractions: how columns of a table become codes.

Slow and obvious; `data.columns` is tested against it for equality.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from samebits.spec.formats import round_real

FEATURE_BITS, FEATURE_MAX = 12, 2**15 - 1  # of a feature: code * 2**-12
TARGET_BITS, TARGET_MAX = 20, 2**31 - 1  # of a target of regression: code * 2**-20
LARGEST = Fraction(2**500)  # magnitude of a number in a table
SMALLEST_SPREAD = Fraction(1, 2**500)
ROOT_BITS = 128  # of an integer root, before its one rounding


def centre(values: Sequence[Fraction]) -> float:
    """The binary64 number nearest to the mean. Section 2."""
    return _binary64(sum(values, Fraction()) / len(values))


def spread(values: Sequence[Fraction]) -> float:
    """The binary64 number nearest to the standard deviation (of the whole, divided by n), or 1.0
    where it is below 2**-500. Section 2."""
    mean = sum(values, Fraction()) / len(values)
    return root(sum(((x - mean) ** 2 for x in values), Fraction()) / len(values))


def root(variance: Fraction) -> float:
    """The binary64 number nearest to the square root; 1.0 for one below 2**-500."""
    if variance < SMALLEST_SPREAD**2:
        return 1.0
    shift = max(0, ROOT_BITS - variance.numerator.bit_length() + variance.denominator.bit_length())
    whole, rest = divmod(variance.numerator << 2 * shift, variance.denominator)
    r = math.isqrt(whole)
    # An odd last bit stands for whatever lies below: the root is then no tie.
    sticky = int(r * r != whole or rest != 0)
    return _binary64(Fraction(2 * r + sticky, 1 << (shift + 1)))


def code(x: Fraction, centre: float, spread: float, bits: int, largest: int) -> int:
    """rne((x - centre) / spread * 2**bits), saturated to -largest..largest. Section 3."""
    rounded = round_real((x - Fraction(centre)) / Fraction(spread) * (1 << bits))
    return min(largest, max(-largest, rounded))


def _binary64(x: Fraction) -> float:
    """The nearest binary64 number, ties to even: division of integers is correctly rounded."""
    return x.numerator / x.denominator
