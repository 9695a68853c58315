from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samebits.numerics.multiplier import (
    PRODUCT_BITS,
    Multiplier,
    find_multiplier,
    requantized,
    same_thresholds,
    threshold,
)
from samebits.spec.formats import round_ratio


def realised(found, acc, zero, low, high):
    return min(max(found(acc) + zero, low), high)


def mismatches(ratio, zero, low, high, acc_low, acc_high):
    found = find_multiplier(ratio, zero, low, high, acc_low, acc_high)
    wrong = []
    if found is None:
        return found, wrong
    for acc in range(acc_low, acc_high + 1):
        expected = requantized(acc, ratio, zero, low, high)
        actual = realised(found, acc, zero, low, high)
        if actual != expected:
            wrong.append((acc, expected, actual))
    return found, wrong


@pytest.mark.parametrize("shift", [0, 1, 2, 7, 20])
@pytest.mark.parametrize("zero", [0, 3, -128])
def test_powers_of_two_are_a_shift_over_every_accumulator(shift, zero):
    found, wrong = mismatches(Fraction(1, 1 << shift), zero, -128, 127, -5000, 5000)
    assert wrong == []
    if shift < 12:
        assert found == Multiplier(1, shift)


RATIOS = [
    Fraction(3, 256),  # ties at odd multiples of 128
    Fraction(1, 3),
    Fraction(1, 6),  # ties at odd multiples of 3
    Fraction(5, 6),
    Fraction(7, 2),
    Fraction(123),
    Fraction(16777213, 1 << 30),
    Fraction(np.float32(0.003).item())
    * Fraction(np.float32(0.02).item())
    / Fraction(np.float32(0.0031).item()),
]


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("limits", [(0, -128, 127), (-3, -128, 127), (128, 0, 255), (0, 0, 6)])
def test_every_accumulator(ratio, limits):
    zero, low, high = limits
    reach = 4 * int(max(high - low, 300) / ratio) + 2000
    reach = min(reach, 40_000)
    assert mismatches(ratio, zero, low, high, -reach, reach)[1] == []


@given(
    numerator=st.integers(1, 1 << 48),
    denominator=st.integers(1, 1 << 60),
    zero=st.integers(-128, 127),
    acc_low=st.integers(-(1 << 30), 1 << 30),
    span=st.integers(0, 1 << 30),
)
def test_random_ratios_around_every_step(numerator, denominator, zero, acc_low, span):
    ratio = Fraction(numerator, denominator)
    acc_high = acc_low + span
    found = find_multiplier(ratio, zero, -128, 127, acc_low, acc_high)
    if found is None:
        return
    accs = {acc_low, acc_high, (acc_low + acc_high) // 2, min(max(0, acc_low), acc_high)}
    for code in range(-128, 128, 5):
        at = threshold(code - zero, *ratio.as_integer_ratio())
        accs |= {at - 1, at, at + 1}
    for acc in sorted(acc for acc in accs if acc_low <= acc <= acc_high):
        expected = requantized(acc, ratio, zero, -128, 127)
        assert realised(found, acc, zero, -128, 127) == expected, (acc, found)
    assert found.m * max(abs(acc_low), abs(acc_high), 1) < 1 << PRODUCT_BITS
    assert found.shift <= 62


@given(st.integers(-300, 300), st.integers(1, 500), st.integers(1, 500))
def test_threshold_is_the_first_accumulator_that_reaches_a_code(code, p, q):
    at = threshold(code, p, q)
    assert round_ratio(at * p, q) >= code > round_ratio((at - 1) * p, q)


def test_ties_that_no_multiplier_reproduces():
    # ties at odd multiples of 3, to even: 1/6 is not dyadic, so no m / 2**s meets them all
    assert find_multiplier(Fraction(1, 6), 0, -128, 127, -600, 600) is None


@pytest.mark.parametrize(("acc_low", "acc_high"), [(9, 16), (8, 15), (-16, -9), (-15, -8)])
def test_a_tie_at_an_end_that_no_multiplier_reproduces(acc_low, acc_high):
    """9/6 and 15/6 round to 2. A multiplier a little below 1/6 reaches code 3 at 16 as 1/6 does,
    one a little above reaches code 2 at 9 as 1/6 does: it is the other end that refuses them."""
    assert mismatches(Fraction(1, 6), 0, -128, 127, acc_low, acc_high) == (None, [])


def same_one_by_one(codes, ratio, other):
    return all(
        threshold(code, *ratio.as_integer_ratio()) == threshold(code, *other.as_integer_ratio())
        for code in codes
    )


def test_sums_of_thresholds_tell_every_difference():
    """All ratios p / q up to 12 / 12 against each other, over all short ranges of codes."""
    ratios = sorted({Fraction(p, q) for p in range(1, 13) for q in range(1, 13)})
    ranges = [range(first, first + count) for first in (-7, -2, 0, 1, 4) for count in (0, 1, 2, 9)]
    outcomes = set()
    for ratio in ratios:
        for other in ratios:
            for codes in ranges:
                same = same_one_by_one(codes, ratio, other)
                assert same_thresholds(codes, ratio, other) == same, (codes, ratio, other)
                outcomes.add(same)
    assert outcomes == {True, False}


@given(
    numerator=st.integers(1, 1 << 48),
    denominator=st.integers(1, 1 << 62),
    shift=st.integers(20, 62),
    away=st.integers(-1, 1),
    first=st.integers(-(1 << 15), 1 << 15),
    count=st.integers(0, 300),
)
def test_sums_of_thresholds_of_close_ratios(numerator, denominator, shift, away, first, count):
    ratio = Fraction(numerator, denominator)
    other = Fraction((numerator << shift) // denominator + away, 1 << shift)
    codes = range(first, first + count)
    if other > 0:
        assert same_thresholds(codes, ratio, other) == same_one_by_one(codes, ratio, other)


def test_the_ratio_itself_where_no_other_multiplier_fits():
    """With |acc| < 2**61 a multiplier has one bit."""
    limit = (1 << 61) - 1
    assert find_multiplier(Fraction(1, 4), 0, -128, 127, -limit, limit) == Multiplier(1, 2)
    assert find_multiplier(Fraction(3, 4), 0, -128, 127, -limit, limit) is None


def test_a_large_ratio_needs_no_shift():
    """2**25 + 1/3 is beyond every code at once: the 26 bits that fit beside |acc| < 2**4 do."""
    ratio = (1 << 25) + Fraction(1, 3)
    assert mismatches(ratio, 0, -128, 127, -15, 15) == (Multiplier(1 << 25, 0), [])


def test_a_constant_needs_no_product():
    assert find_multiplier(Fraction(1, 1 << 40), 0, -128, 127, -100, 100) == Multiplier(0, 0)
    assert find_multiplier(Fraction(1), 0, -128, 127, 500, 600) is None  # 127 for all


@pytest.mark.parametrize(
    ("reach", "expected"),
    [
        (19, Multiplier(683, 11)),  # of 11 bits at most: 683 * 2**19 < 2**30
        (25, Multiplier(11, 5)),  # of 5
        (28, Multiplier(2, 2)),  # of 2, after 1/4, which takes acc 2 to code 0
        (29, Multiplier(715827883, 31)),  # 1 bit would be left: the next width is 31
    ],
)
def test_the_widest_multiplier_whose_product_fits_in_32_bits(reach, expected):
    """1/3 for codes in [-1, 1]: few bits of it are enough, for acc 2 is the first of code 1."""
    limit = (1 << reach) - 1
    found = find_multiplier(Fraction(1, 3), 0, -1, 1, -limit, limit)
    assert found == expected
    assert all(
        realised(found, acc, 0, -1, 1) == requantized(acc, Fraction(1, 3), 0, -1, 1)
        for acc in (-limit, *range(-9, 10), limit)
    )
