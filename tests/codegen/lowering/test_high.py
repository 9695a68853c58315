"""Multipliers of the upper word: equal to the definition for every sum, or refused."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from samebits.codegen.lowering.high import high_multipliers
from samebits.numerics.multiplier import requantized
from samebits.spec.formats import floor_log2

F = Fraction


def code(acc: int, m: int, shift: int, zero: int, low: int, high: int, upper: int) -> int:
    """What the kernels compute, floor by floor."""
    word = acc * m >> upper
    return min(max((word + (1 << (shift - 1)) >> shift) + zero, low), high)


def refused(
    ratio: Fraction, least: int, most: int, zero: int, low: int, high: int, bits: int
) -> bool:
    """No m below 2**31 serves every sum; by the bounds that each sum alone sets."""
    below, above = 0, (1 << 31) - 1
    for acc in range(least, most + 1):
        expected = requantized(acc, ratio, zero, low, high)
        needs = []
        if expected > low:
            needs.append((2 * (expected - zero) - 1 << bits - 1, True))
        if expected < high:
            needs.append((2 * (expected - zero) + 1 << bits - 1, False))
        for bound, reached in needs:
            if acc == 0:
                if (bound <= 0) != reached:
                    return True
            elif reached:
                limit = F(bound, acc)
                if acc > 0:
                    below = max(below, -(-limit.numerator // limit.denominator))
                else:
                    above = min(above, limit.numerator // limit.denominator)
            elif acc > 0:
                above = min(above, -(-bound // acc) - 1)
            else:
                below = max(below, bound // acc + 1)
    return below > above


@settings(max_examples=150, deadline=None)
@given(
    st.fractions(F(1, 1 << 12), F(7, 16), max_denominator=1 << 20),
    st.integers(-900, 900),
    st.integers(0, 900),
    st.integers(-140, 140),
    st.sampled_from([(-128, 127), (-128, -100), (0, 6), (-5, 90)]),
    st.sampled_from([31, 32]),
)
@example(F(1, 3), -10, 20, 0, (-128, 127), 31)
@example(F(3, 10), -30, 60, 1, (-128, 127), 32)  # ties on both sides
@example(F(1, 4), -9, 18, 0, (-128, 127), 31)  # ties alone
@example(F(1, 8), 5, 0, -128, (-128, 127), 31)  # one sum
@example(F(1, 8), -3, 6, 500, (-128, 127), 31)  # one code
@example(F(3, 8), 0, 0, 0, (-128, 127), 32)
def test_every_sum_or_none(
    ratio: Fraction, least: int, width: int, zero: int, ends: tuple[int, int], upper: int
) -> None:
    low, high = ends
    most = least + width
    found = high_multipliers([ratio], [(least, most)], zero, low, high, upper)
    if found is None:
        shift = min(30 - floor_log2(ratio) - upper, 24)
        assert shift < 1 or refused(ratio, least, most, zero, low, high, upper + shift)
        return
    shift, (m,), (offset,) = found
    assert 0 <= m < 1 << 31
    for acc in range(least, most + 1):
        expected = requantized(acc, ratio, zero, low, high)
        assert code(acc + offset, m, shift, zero, low, high, upper) == expected, acc


def test_a_ratio_beyond_the_shift_is_refused() -> None:
    assert high_multipliers([F(1, 3)], [(-9, 9)], 0, -128, 127, 32) is None
    assert high_multipliers([F(1)], [(-9, 9)], 0, -128, 127, 31) is None
    assert high_multipliers([F(9, 2)], [(-9, 9)], 0, -128, 127, 31) is None


def test_sums_beyond_32_bits_are_refused() -> None:
    assert high_multipliers([F(1, 1 << 20)], [(-(1 << 31), 5)], 0, -128, 127, 31) is None


def test_one_shift_for_all_channels() -> None:
    ratios = [F(1, 3), F(1, 1001), F(7, 50001)]  # odd denominators: no ties
    made = high_multipliers(ratios, [(-5000, 5000)] * 3, 3, -128, 127, 31)
    assert made is not None
    shift, found, moved = made
    assert moved == [0, 0, 0]
    assert shift == 1
    assert len(found) == 3
    for m, ratio in zip(found, ratios, strict=True):
        for acc in range(-5000, 5001, 7):
            assert code(acc, m, shift, 3, -128, 127, 31) == requantized(acc, ratio, 3, -128, 127)


@pytest.mark.parametrize("upper", [31, 32])
def test_a_small_ratio_far_from_zero_moves_its_sums(upper: int) -> None:
    """Beside a ratio 3,500 times as large, m has 19 bits; sums of 22 reach three codes."""
    ratio, far = F(7, 9 << 15), 4_213_029
    ends = [(-300, 300), (far - 59_000, far + 59_000)]
    found = high_multipliers([F(1, 13), ratio], ends, -3, -128, 127, upper)
    assert found is not None
    shift, multipliers, moved = found
    assert moved[0] == 0 != moved[1]
    for (least, most), r, m, by in zip(ends, (F(1, 13), ratio), multipliers, moved, strict=True):
        for acc in {*range(least, most, 97), *range(least, most, 1001), most}:
            expected = requantized(acc, r, -3, -128, 127)
            assert code(acc + by, m, shift, -3, -128, 127, upper) == expected, acc


@pytest.mark.parametrize("upper", [31, 32])
def test_ties_that_no_multiplier_serves(upper: int) -> None:
    """3/10 has ties at 5 (1.5, to 2) and 15 (4.5, to 4): above and below the exact ratio."""
    assert high_multipliers([F(3, 10)], [(0, 20)], 0, -128, 127, upper) is None
