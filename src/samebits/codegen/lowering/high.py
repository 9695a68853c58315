"""Requantization by the upper word of a product: one multiplier a channel, one shift a layer.

A code is, with floors of exact quotients,

    clamp(floor((floor(acc * m / 2**upper) + 2**(shift - 1)) / 2**shift) + zero, low, high).

A floor before the one rounding changes nothing: floor((floor(v) + n) / k) = floor((v + n) / k) for
integers n and k. So this is acc * m / 2**(upper + shift) rounded half up: one instruction for the
product's upper word (VQDMULH, SMMUL), one for the shift that rounds.

`high_multipliers` proves each m over the channel's interval, in integers. Both functions of acc are
monotone, so they are equal exactly when each code begins at the same acc. That a code begins at t,
and not before, is two linear conditions on m:

    t * m >= (2 * (code - zero) - 1) * 2**(upper + shift - 1) > (t - 1) * m.

All codes together leave an interval of multipliers, or none. Then the sums may be moved, by a
number that joins the bias: with acc + e for acc, each code begins at its t exactly where

    e = ceil((2 * (code - zero) - 1) * 2**(upper + shift - 1) / m) - t,

the same number for all codes. So a large bias times a small ratio, of which m has few bits, costs
no precision: m must be right over the width of the interval alone, not from 0 to where it lies. If
that fails too, the layer takes another form (lowering/rescale.py). No code is tried, no error
bounded.

Codes of 16 bits need more than 31 bits of m: two words, m1 * 2**32 + m0 with both signed, of which
the upper word of acc * m is that of acc * m1 + floor(acc * m0 / 2**32) (`word_multipliers`).

Example: ratio 1/3 over [-10, 10], codes -3 to 3, zero 0, 2**(upper + shift) = 32. Code 1 begins at
2: 2 * m >= 16 > m. Code 2 at 5 and 3 at 8: 5 * m >= 48 > 4 * m, 8 * m >= 80 > 7 * m. So 10 <= m <=
11; the codes below zero, -2 at -7 among them (-7 * m >= -80 > -8 * m), and -3 at the lower end
(-10 * m >= -112) leave 11.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from samebits.numerics.multiplier import requantized, same_thresholds, threshold
from samebits.spec.formats import floor_log2, round_ratio
from samebits.spec.rounding import Rounding

BITS = 31  # of a multiplier
LARGEST_SHIFT = 24
WORD_BITS, WORD_SHIFT = 62, 12  # of a multiplier of two words, and the most that follows it


def high_multipliers(
    ratios: Sequence[Rounding],
    ends: Sequence[tuple[int, int]],
    zero: int,
    low: int,
    high: int,
    upper: int,
) -> tuple[int, list[int], list[int]] | None:
    """(shift, a multiplier for every channel, what is added to its sums), proved over the channels'
    intervals `ends`.

    None where a channel has no multiplier for the shift that the largest ratio allows, where that
    is less than 1, or where a sum would not fit in 32 bits; nor for roundings of another kind.
    """
    quotients = [ratio for ratio in ratios if isinstance(ratio, Fraction)]
    if len(quotients) != len(ratios):
        return None
    largest = max(quotients)
    shift = min(BITS - 1 - floor_log2(largest) - upper, LARGEST_SHIFT)
    if shift < 1:
        return None
    found: list[int] = []
    moved: list[int] = []
    known: dict[tuple[Fraction, int, int], tuple[int, int] | None] = {}
    for ratio, (least, most) in zip(quotients, ends, strict=True):
        key = (ratio, least, most)
        if key not in known:
            own = (ratio, zero, low, high, least, most, upper + shift)
            m = _multiplier(*own)
            known[key] = _moved(*own) if m is None else (m, 0)
        pair = known[key]
        if pair is None:
            return None
        m, offset = pair
        reach = max(abs(least), abs(most), abs(least + offset), abs(most + offset))
        if reach >= 1 << 31:
            return None
        term = (abs(zero) << shift) + (1 << (shift - 1))
        if (reach * m >> upper) + 1 + term >= 1 << 31:
            return None
        found.append(m)
        moved.append(offset)
    return shift, found, moved


def word_multipliers(
    ratios: Sequence[Rounding],
    ends: Sequence[tuple[int, int]],
    zero: int,
    low: int,
    high: int,
) -> tuple[int, list[int]] | None:
    """(shift, a multiplier for every channel) where 2**upper is 2**64 and multipliers have two
    words, for codes of more bits; None where a channel has none, or a step would overflow."""
    quotients = [ratio for ratio in ratios if isinstance(ratio, Fraction)]
    if len(quotients) != len(ratios):
        return None
    shift = min(WORD_BITS - 1 - floor_log2(max(quotients)) - 64, WORD_SHIFT)
    known: dict[tuple[Fraction, int, int], int | None] = {}
    found: list[int] = []
    for ratio, (least, most) in zip(quotients, ends, strict=True):
        key = (ratio, least, most)
        if key not in known:
            own = (ratio, zero, low, high, least, most, 64 + shift)
            known[key] = _odd(*own, WORD_BITS) if shift >= 1 else None
        m, term = known[key], (abs(zero) + 1) << max(shift, 0)
        if m is None or (max(abs(least), abs(most)) * m >> 64) + 1 + term >= 1 << 31:
            return None
        found.append(m)
    return shift, found


def _multiplier(
    ratio: Fraction, zero: int, low: int, high: int, least: int, most: int, bits: int
) -> int | None:
    """m below 2**31 with round-half-up(acc * m / 2**bits) the exact quotient's code over the
    interval, None if there is none."""
    quick = _odd(ratio, zero, low, high, least, most, bits, BITS)
    return _solved(ratio, zero, low, high, least, most, bits) if quick is None else quick


def _odd(
    ratio: Fraction, zero: int, low: int, high: int, least: int, most: int, bits: int, width: int
) -> int | None:
    """An odd m below 2**width, of the three around the ratio, that fulfils the conditions, if one
    does. Codes are compared by two sums, so they may be many."""
    first, last = (requantized(end, ratio, zero, low, high) for end in (least, most))
    p, q = ratio.as_integer_ratio()
    nearest = round_ratio(p << bits, q)
    quick = [m for m in (nearest, nearest - 1, nearest + 1) if m % 2 and 0 < m < 1 << width]
    if max(abs(least), abs(most)) < 1 << (bits - 1):
        # acc * m / 2**bits is never a tie then: m is odd, so acc would be a multiple of
        # 2**(bits - 1), and 0 is no tie. Half up and half to even are one.
        steps = range(first - zero + 1, last - zero + 1)
        for m in quick:
            other = Fraction(m, 1 << bits)
            if all(
                requantized(end, other, zero, low, high) == code
                for end, code in ((least, first), (most, last))
            ) and same_thresholds(steps, ratio, other):
                return m
    return None


def _solved(
    ratio: Fraction,
    zero: int,
    low: int,
    high: int,
    least: int,
    most: int,
    bits: int,
) -> int | None:
    """The multiplier that is nearest to the ratio of all that fulfil the conditions."""
    first, last = (requantized(end, ratio, zero, low, high) for end in (least, most))
    p, q = ratio.as_integer_ratio()
    nearest = round_ratio(p << bits, q)
    below, above = 0, (1 << BITS) - 1

    def need(code: int) -> int:
        return (2 * (code - zero) - 1) << (bits - 1)

    # (acc, bound, whether acc * m is at least the bound or else below it)
    conditions = []
    if first > low:
        conditions.append((least, need(first), True))
    if last < high:
        conditions.append((most, need(last + 1), False))
    for code in range(first + 1, last + 1):
        t = threshold(code - zero, p, q)
        conditions += [(t, need(code), True), (t - 1, need(code), False)]
    for acc, bound, reached in conditions:
        if acc == 0:
            if (bound <= 0) != reached:
                return None
        elif (acc > 0) == reached:  # m from a bound on
            least_m = -(-bound // acc) if reached else bound // acc + 1
            below = max(below, least_m)
        else:  # m up to a bound
            most_m = bound // acc if reached else -(-bound // acc) - 1
            above = min(above, most_m)
    return min(max(nearest, below), above) if below <= above else None


def _moved(
    ratio: Fraction, zero: int, low: int, high: int, least: int, most: int, bits: int
) -> tuple[int, int] | None:
    """(m, e): sums plus e have the codes that the definition gives to sums; None if no m next to
    the ratio has such an e."""
    first, last = (requantized(end, ratio, zero, low, high) for end in (least, most))
    p, q = ratio.as_integer_ratio()

    def need(code: int) -> int:
        return (2 * (code - zero) - 1) << (bits - 1)

    nearest = round_ratio(p << bits, q)
    for m in (nearest, nearest + 1, nearest - 1):
        if not 0 < m < 1 << BITS:
            continue
        begins = {-(-need(c) // m) - threshold(c - zero, p, q) for c in range(first + 1, last + 1)}
        if not begins:  # one code: in the middle of what gives it
            begins = {((2 * (first - zero)) << (bits - 1)) // m - least}
        if len(begins) > 1:
            continue
        (offset,) = begins
        reached = first == low or (least + offset) * m >= need(first)
        if reached and (last == high or (most + offset) * m < need(last + 1)):
            return m, offset
    return None
