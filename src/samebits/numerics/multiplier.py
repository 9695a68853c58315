"""Requantization as multiply and shift, proved equal to the exact rational one.

docs/spec/graph.md section 6. acc -> min(max(rne(acc * ratio) + zero, low), high) is a monotone
step function, and so is the same formula with m / 2**shift for the ratio. Each is determined on an
interval by its value at the lower end and, for every code from there up to its value at the upper
end, by the least integer that reaches the code (`threshold`, in closed form). Two such functions
are equal exactly when these agree: that is what `find_multiplier` checks, in Python integers. It is
a proof for every accumulator, without a bound on the error of m / 2**shift, and it finds the cases
that no such bound would: where the nearest m fails, the other neighbour of ratio * 2**shift may be
right.

Up to 65,535 codes are compared by two sums (`same_thresholds`). A larger ratio reaches a positive
code no later, and a code of 0 or below no earlier. So of two ratios the thresholds of all positive
codes lie to the same side of each other, and are equal one by one exactly when their sums are; the
same holds for the other codes. Such a sum of quotients rounded down takes as many steps as the
Euclidean algorithm.

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
from samebits.spec.rounding import Rounding, code_of

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


def requantized(acc: int, rounding: Rounding, zero: int, low: int, high: int) -> int:
    """The definition: the sum rounded, the zero point added, saturated. A ratio stands for
    rne(acc * ratio): one exact product and one rounding."""
    return min(max(code_of(acc, rounding) + zero, low), high)


def threshold(code: int, numerator: int, denominator: int) -> int:
    """`least_of` a code by a positive ratio that need not be in lowest terms."""
    quotient, remainder = divmod((2 * code - 1) * denominator, 2 * numerator)
    return quotient + (remainder != 0 or code % 2 == 1)


def same_thresholds(codes: range, ratio: Fraction, other: Fraction) -> bool:
    """Whether every one of these consecutive codes has the same `threshold` by both ratios."""
    middle = min(max(1, codes.start), codes.stop)
    return all(
        _sum_of_thresholds(part, ratio) == _sum_of_thresholds(part, other)
        for part in (range(codes.start, middle), range(middle, codes.stop))
    )


def _sum_of_thresholds(codes: range, ratio: Fraction) -> int:
    """The thresholds of consecutive codes, added up.

    Each is a quotient rounded down, plus one but for a tie at an even code. With ratio = p / q in
    lowest terms (2 * code - 1) * q is a multiple of 2 * p only where p is odd, q is even and
    2 * code - 1 a multiple of p: one even code in every 2 * p.
    """
    if not codes:
        return 0
    p, q = ratio.as_integer_ratio()
    total = _sum_of_quotients(len(codes), 2 * q, (2 * codes.start - 1) * q, 2 * p) + len(codes)
    if p % 2 == 1 and q % 2 == 0:
        tie = (p + 1) // 2
        tie += p * (tie % 2)
        total -= (codes.stop - 1 - tie) // (2 * p) - (codes.start - 1 - tie) // (2 * p)
    return total


def _sum_of_quotients(count: int, step: int, start: int, divisor: int) -> int:
    """The sum of (start + i * step) // divisor over 0 <= i < count.

    Whole multiples of the divisor are taken out; the lattice points below the line that is left are
    counted along the other axis, with step and divisor exchanged, as in the Euclidean algorithm.
    (R. Graham, D. Knuth, O. Patashnik, "Concrete mathematics", section 3.5.)
    """
    total = 0
    while count:
        total += (step // divisor) * (count * (count - 1) // 2) + (start // divisor) * count
        step, start = step % divisor, start % divisor
        count, start = divmod(step * count + start, divisor)
        step, divisor = divisor, step
    return total


@lru_cache(maxsize=1 << 14)
def find_multiplier(
    ratio: Fraction, zero: int, low: int, high: int, acc_low: int, acc_high: int
) -> Multiplier | None:
    """The cheapest proved realisation of `requantized` over acc_low <= acc <= acc_high.

    Order: an exact m / 2**shift; a product that fits in 32 bits; m below 2**31; the widest m whose
    product fits in 64 bits. A constant function has m = 0. None where no multiplier is equal: the
    function is then one of its thresholds. Cached.
    """
    first = requantized(acc_low, ratio, zero, low, high)
    last = requantized(acc_high, ratio, zero, low, high)
    if first == last:
        if requantized(0, Fraction(1), zero, low, high) == first:
            return Multiplier(0, 0)
        return None
    reach = max(abs(acc_low), abs(acc_high)).bit_length()
    candidates = _candidates(ratio, reach)
    if candidates and Fraction(candidates[0].m, 1 << candidates[0].shift) == ratio:
        return candidates[0]  # the ratio itself, which needs no proof
    steps = range(first - zero + 1, last - zero + 1)
    for candidate in candidates:
        other = Fraction(candidate.m, 1 << candidate.shift)
        ends = all(
            requantized(acc, other, zero, low, high) == expected
            for acc, expected in ((acc_low, first), (acc_high, last))
        )
        if ends and same_thresholds(steps, ratio, other):
            return candidate
    return None


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
