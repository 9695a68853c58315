"""docs/spec/tables.md in exact fractions: how columns become codes, and which rows are for testing.

Slow and obvious; `data.columns` is tested against it for equality.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

from samebits.spec.formats import round_real

FEATURE_BITS, FEATURE_MAX = 12, 2**15 - 1  # of a feature: code * 2**-12
TARGET_BITS, TARGET_MAX = 20, 2**31 - 1  # of a target of regression: code * 2**-20
LARGEST = Fraction(2**500)  # magnitude of a number in a table
SMALLEST_SPREAD = Fraction(1, 2**500)
ROOT_BITS = 128  # of an integer root, before its one rounding
SHORT = 24  # significant bits of the numbers that decide a row's part


def for_testing(cells: Mapping[str, Fraction | str]) -> bool:
    """Whether a row, its cells by the names of their columns, is for testing. Section 1."""
    names = sorted(cells, key=lambda name: (name.strip(), name))
    digest = hashlib.sha256("\x1f".join(_text(cells[name]) for name in names).encode())
    return int(digest.hexdigest()[:8], 16) % 5 == 0


def _text(cell: Fraction | str) -> str:
    """A word as it is; a number, rounded to 24 significant bits, in hexadecimal."""
    if isinstance(cell, str):
        return cell
    size = abs(cell)
    exponent = 0
    while size >= 2:
        size, exponent = size / 2, exponent + 1
    while 0 < size < 1:
        size, exponent = size * 2, exponent - 1
    significand = Fraction(round_real(size * (1 << SHORT - 1)), 1 << SHORT - 1)
    return float(significand * Fraction(2) ** exponent * (-1 if cell < 0 else 1)).hex()


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
