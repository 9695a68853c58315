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
VALUE_SHIFT = 31  # bits behind the last place of a value on a device
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


def device_parts(centre: float, spread: float) -> tuple[int, int, int]:
    """(b, C, H): centre = C * 2**b and spread * 2**-13 = H * 2**b, b the largest. Section 5."""
    exact = Fraction(centre), Fraction(spread) / (1 << FEATURE_BITS + 1)
    b = -max(each.denominator.bit_length() - 1 for each in exact)
    whole = [int(each / Fraction(2) ** b) for each in exact]
    zeros = min((n & -n).bit_length() - 1 for n in whole if n)
    return b + zeros, whole[0] >> zeros, whole[1] >> zeros


def device_code(x: Fraction, centre: float, spread: float) -> int:
    """The code of a feature as a device computes it, in integers. Section 5."""
    b, c, h = device_parts(centre, spread)
    whole = math.floor(x / Fraction(2) ** b)
    k, rest = divmod(whole - c + 65535 * h, 2 * h)
    tie = rest == 0 and whole * Fraction(2) ** b == x and (k - 32767) % 2 == 1
    return min(FEATURE_MAX, max(-FEATURE_MAX, k - 32767 - tie))


def device_scale(centre: float, scale: Fraction, largest: int) -> tuple[int, int, int] | None:
    """(M, B, K) of a target, for codes of a magnitude up to `largest`; None where its values are
    too large. Section 5.

    scale: that of the target, times that of the output
    """
    reach = abs(Fraction(centre)) + scale * largest
    for k in range(31, -32, -1):
        if reach < Fraction(2) ** (31 - k):
            unit = Fraction(2) ** (k + VALUE_SHIFT)
            return round_real(scale * unit), round_real(Fraction(centre) * unit), k
    return None


def _binary64(x: Fraction) -> float:
    """The nearest binary64 number, ties to even: division of integers is correctly rounded."""
    return x.numerator / x.denominator
