"""Requantization as multiply and shift, proved equal to the exact rational one.

docs/spec/graph.md section 6. acc -> min(max(rne(acc * ratio) + zero, low), high) is a monotone
step function, and so is the same formula with m / 2**shift for the ratio. Each is determined on an
interval by its value at the lower end and, for every code from there up to its value at the upper
end, by the least integer that reaches the code (`threshold`, in closed form). Two such functions
are equal exactly when these agree: that is what `find_multiplier` checks, at most one comparison
for each output code, in Python integers. It is a proof for every accumulator, without a bound on
the error of m / 2**shift, and it finds the cases that no such bound would: where the nearest m
fails, the other neighbour of ratio * 2**shift may be right.

Worked example: ratio 1/3, codes 0 to 3, |acc| <= 10. Code k is reached at 3 (k - 1/2) rounded up,
so at acc = 2, 5 and 8. With 11/32 it is reached at 32 (k - 1/2) / 11 rounded up: 2, 5 and 8 again,
so 11/32 does here what 1/3 does. With 5/16 code 3 comes at 9: refused. A larger interval tells
11/32 apart too: at acc = 16 it gives 5.5, so 6, and 16/3 rounds to 5. (Division by multiplication:
T. Granlund, P. Montgomery, "Division by invariant integers using multiplication", PLDI 1994.)
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
    """acc -> rne(acc * m / 2**shift), with 0 <= m and 0 <= shift <= 62."""

    m: int
    shift: int

    def __call__(self, acc: int) -> int:
        return round_ratio(acc * self.m, 1 << self.shift)


@dataclass(frozen=True)
class Thresholds:
    """acc -> low + the number of `values` (ascending) that are <= acc: any monotone function."""

    values: tuple[int, ...]


def requantized(acc: int, ratio: Fraction, zero: int, low: int, high: int) -> int:
    """The definition: saturate(rne(acc * ratio) + zero), one exact product and one rounding."""
    code = round_ratio(acc * ratio.numerator, ratio.denominator) + zero
    return min(max(code, low), high)


def threshold(code: int, numerator: int, denominator: int) -> int:
    """The least acc with rne(acc * numerator / denominator) >= code; the ratio is positive.

    That is the least acc >= (code - 1/2) * denominator / numerator, or > it where that is an
    integer and the tie there goes to code - 1: a tie rounds up exactly when `code` is even.
    """
    quotient, remainder = divmod((2 * code - 1) * denominator, 2 * numerator)
    return quotient + (remainder != 0 or code % 2 == 1)


@lru_cache(maxsize=1 << 14)
def find_multiplier(
    ratio: Fraction, zero: int, low: int, high: int, acc_low: int, acc_high: int
) -> Multiplier | Thresholds:
    """The cheapest proved realisation of `requantized` over acc_low <= acc <= acc_high.

    Order: an exact m / 2**shift; a product that fits in 32 bits; m below 2**31; the widest m whose
    product fits in 64 bits; thresholds, which always exist. A constant function has m = 0. Cached.
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
