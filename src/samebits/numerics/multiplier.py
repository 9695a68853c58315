"""Requantization as multiply and shift, proved equal to the exact rational one.

docs/spec/graph.md section 6. acc -> min(max(rne(acc * ratio) + zero, low), high) is a monotone
step function, and so is the same formula with m / 2**shift for the ratio. Two such functions are
equal on an interval exactly when they agree at its lower end and every step lies at the same
integer, which is what `find_multiplier` checks, step by step, in Python integers.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from samebits.spec.formats import round_ratio

PRODUCT_BITS = 62  # |acc * m| < 2**62: the rounding constant still fits in 64 bits
NARROW_BITS = 30  # likewise for 32 bits
MAX_SHIFT = 62


@dataclass(frozen=True)
class Multiplier:
    """rne(acc * m / 2**shift), 0 <= m, 0 <= shift <= 62."""

    m: int
    shift: int

    def __call__(self, acc: int) -> int:
        return round_ratio(acc * self.m, 1 << self.shift)


@dataclass(frozen=True)
class Thresholds:
    """low + the number of `values` (ascending) that are <= acc."""

    values: tuple[int, ...]


def requantized(acc: int, ratio: Fraction, zero: int, low: int, high: int) -> int:
    """The definition: one exact product, one rounding, saturate."""
    code = round_ratio(acc * ratio.numerator, ratio.denominator) + zero
    return min(max(code, low), high)


def threshold(code: int, numerator: int, denominator: int) -> int:
    """The least acc with rne(acc * numerator / denominator) >= code; the ratio is positive.

    The tie at code - 1/2 rounds up exactly when `code` is even.
    """
    quotient, remainder = divmod((2 * code - 1) * denominator, 2 * numerator)
    return quotient + (remainder != 0 or code % 2 == 1)


@lru_cache(maxsize=1 << 14)
def find_multiplier(
    ratio: Fraction, zero: int, low: int, high: int, acc_low: int, acc_high: int
) -> Multiplier | Thresholds:
    """The cheapest proved realisation over acc_low <= acc <= acc_high.

    Order: an exact m / 2**shift; a product that fits in 32 bits; m below 2**31; the widest m whose
    product fits in 64 bits; thresholds. A constant function has m = 0.
    """
    first = requantized(acc_low, ratio, zero, low, high)
    last = requantized(acc_high, ratio, zero, low, high)
    if first == last:
        if requantized(0, Fraction(1), zero, low, high) == first:
            return Multiplier(0, 0)
        return Thresholds((acc_low,) * (first - low))
    reach = max(abs(acc_low), abs(acc_high)).bit_length()
    candidates = _candidates(ratio, reach)
    if candidates and Fraction(candidates[0].m, 1 << candidates[0].shift) == ratio:
        return candidates[0]  # the ratio itself, which needs no proof
    steps = range(first - zero + 1, last - zero + 1)
    numerator, denominator = ratio.as_integer_ratio()
    wanted = [threshold(code, numerator, denominator) for code in steps]
    for candidate in candidates:
        power = 1 << candidate.shift
        ends = all(
            requantized(acc, Fraction(candidate.m, power), zero, low, high) == expected
            for acc, expected in ((acc_low, first), (acc_high, last))
        )
        if ends and all(
            threshold(code, candidate.m, power) == expected
            for code, expected in zip(steps, wanted, strict=True)
        ):
            return candidate
    return Thresholds((acc_low,) * (first - low) + tuple(wanted))


def _candidates(ratio: Fraction, reach: int) -> list[Multiplier]:
    """Multipliers to try, cheapest first; `reach` is the bit length of the largest |acc|."""
    numerator, denominator = ratio.as_integer_ratio()
    found = []
    if denominator & (denominator - 1) == 0 and numerator.bit_length() + reach <= PRODUCT_BITS:
        found.append(Multiplier(numerator, denominator.bit_length() - 1))
    for width in (NARROW_BITS - reach, 31, PRODUCT_BITS - reach):
        if 2 <= width <= PRODUCT_BITS - reach:
            found += _of_width(ratio, width)
    return [c for c in found if c.m > 0 and c.shift <= MAX_SHIFT]


def _of_width(ratio: Fraction, width: int) -> list[Multiplier]:
    """The two m of at most `width` bits around ratio * 2**shift, the nearest first."""
    numerator, denominator = ratio.as_integer_ratio()
    shift = width - 1 - (numerator.bit_length() - denominator.bit_length())
    shift = min(shift, MAX_SHIFT)
    if shift < 0:
        return []
    if (numerator << shift) // denominator >= 1 << width:
        shift -= 1
    if shift < 0:
        return []
    nearest = round_ratio(numerator << shift, denominator)
    floor = (numerator << shift) // denominator
    other = floor if nearest != floor else floor + 1
    return [Multiplier(m, shift) for m in (nearest, other) if m < 1 << width]
