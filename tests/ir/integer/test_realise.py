"""Windows as index maps and requantization in 64-bit integers, against the operators' meaning."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compare import assert_same
from samebits.ir.integer.bounds import Interval
from samebits.ir.integer.realise import (
    Floors,
    Quotient,
    Staircase,
    positions,
    requantization,
    thresholds,
    transposed_positions,
)
from samebits.ir.ops import op_named
from samebits.numerics.multiplier import requantized, threshold
from samebits.spec.rounding import Away, Doubled, HalfUp

SIZES = st.integers(1, 6)
PAIRS = st.tuples(st.integers(1, 3), st.integers(1, 3))


def attributes(strides, pads, dilations, **more):
    return {"strides": strides, "pads": pads, "dilations": dilations, **more}


@given(SIZES, SIZES, PAIRS, PAIRS, st.tuples(*[st.integers(0, 2)] * 4), PAIRS, st.integers(0, 99))
def test_positions_give_the_windows_of_conv(h, w, kernel, strides, pads, dilations, seed):
    rng = np.random.default_rng(seed)
    size = (h + 6, w + 6)
    x = rng.integers(-128, 128, (1, *size, 2)).astype(np.int8)
    weights = rng.integers(-128, 128, (3, *kernel, 2)).astype(np.int8)
    a = attributes(strides, pads, dilations, groups=1, pad_code=-5, dtype="int32")
    (expected,) = op_named("conv").meaning([x, weights, np.zeros(3, np.int32)], a)
    index = positions(size, kernel, a)
    rows = np.concatenate([x.reshape(-1, 2).astype(int), [[-5, -5]]])[index]
    found = np.einsum("ptc,otc->po", rows, weights.reshape(3, -1, 2).astype(int))
    assert_same(found, expected, np.arange(expected.size))


@given(SIZES, SIZES, PAIRS, PAIRS, PAIRS, PAIRS, PAIRS, st.integers(0, 99))
def test_positions_give_the_windows_of_conv_transpose(
    h, w, kernel, strides, pads, dilations, size, seed
):
    rng = np.random.default_rng(seed)
    x = rng.integers(-128, 128, (1, h, w, 2)).astype(np.int8)
    weights = rng.integers(-128, 128, (3, *kernel, 2)).astype(np.int8)
    a = attributes(strides, (*pads, 0, 0), dilations, groups=1, zero=3, dtype="int32")
    a["size"] = (h + size[0] * 3, w + size[1] * 3)
    (expected,) = op_named("conv_transpose").meaning([x, weights, np.zeros(3, np.int32)], a)
    index = transposed_positions((h, w), kernel, a)
    rows = np.concatenate([x.reshape(-1, 2).astype(int) - 3, [[0, 0]]])[index]
    found = np.einsum("ptc,otc->po", rows, weights.reshape(3, -1, 2).astype(int))
    assert_same(found, expected, np.arange(expected.size))


def realised(plan, acc, zero, low, high):
    """One channel of a plan in Python integers; asserts that 64 bits hold every step."""
    if isinstance(plan, Staircase):
        return low + int((plan.values[0] <= acc).sum())
    if isinstance(plan, Floors):
        return realised_floor(plan, acc, zero, low, high)
    numerator, denominator = int(plan.numerators[0]), int(plan.denominators[0])
    quotient, remainder = divmod(acc * numerator, denominator)
    assert abs(acc * numerator) < 2**62
    assert 2 * remainder + 1 < 2**63
    rounded = quotient + (2 * remainder + (quotient & 1) > denominator)
    return min(max(rounded + zero, low), high)


def realised_floor(plan, acc, zero, low, high):
    """By the truncated quotient of a sum that is not negative, and by the floor of the sum."""
    m, up, down, divisor, offset = (
        int(v[0]) for v in (plan.factors, plan.up, plan.down, plan.divisors, plan.offset)
    )
    least, most = map(int, np.ravel(plan.ends)) if plan.ends else (acc, acc)
    acc = min(max(acc, least), most)
    total = acc * m + up + (acc < 0) * down
    assert max(abs(acc * m), abs(total)) < 2**63
    assert 0 <= total + offset < 2**63
    assert offset % divisor == 0
    rounded = (total + offset) // divisor - offset // divisor
    assert rounded == total // divisor
    return min(max(rounded + zero, low), high)


ROUNDINGS = st.one_of(
    st.builds(Doubled, st.integers(1, 2**31 - 1), st.integers(0, 31), st.just(0)),
    st.builds(Doubled, st.integers(1, 2**31 - 1), st.just(0), st.integers(0, 31)),
    st.builds(HalfUp, st.integers(1, 2**15 - 1), st.integers(0, 62)),
    st.builds(Away, st.integers(1, 2**31 - 1)),
)
REACHES = st.one_of(st.integers(-(2**33), 2**33), st.integers(-(2**61), 2**61))


@settings(max_examples=2000)
@given(
    ROUNDINGS,
    st.lists(REACHES, min_size=2, max_size=2).map(sorted),
    st.integers(-128, 127),
    st.sampled_from([(-128, 127), (-32768, 32767), (0, 0)]),
    st.lists(st.integers(-40000, 40000), max_size=4),
)
def test_the_roundings_of_a_runtime_are_floors(by, ends, zero, limits, codes):
    low, high = limits
    plan = requantization(
        Interval((ends[0],), (ends[1],)), {"ratios": (by,), "zero": zero, "low": low, "high": high}
    )
    assert isinstance(plan, (Floors, Staircase))
    edges = [by.least(code) for code in (*codes, 0, 1, low - zero, high - zero)]
    for acc in (*ends, -1, 0, 1, *edges, *(edge - 1 for edge in edges)):
        if ends[0] <= acc <= ends[1]:
            assert realised(plan, acc, zero, low, high) == requantized(acc, by, zero, low, high)


@pytest.mark.parametrize(
    ("by", "reach"),
    [
        (Doubled(1 << 30, 0, 8), 2**31),
        (Doubled(2**31 - 1, 0, 12), 2**40),
        (HalfUp(2**15 - 1, 40), 2**60),
        (Away(1000), 2**61),
    ],
)
def test_a_rounding_to_16_bits_takes_no_thresholds(by, reach):
    a = {"ratios": (by,), "zero": 0, "low": -32768, "high": 32767}
    assert isinstance(requantization(Interval((-reach,), (reach,)), a), Floors)


RATIOS = st.one_of(
    st.builds(Fraction, st.integers(1, 2**24), st.integers(1, 2**24)),
    st.builds(Fraction, st.integers(1, 2**70), st.integers(1, 2**70)),
    st.builds(lambda m, s: Fraction(m, 2**s), st.integers(1, 2**24), st.integers(0, 80)),
)


@given(
    RATIOS,
    st.integers(-(2**61), 2**61),
    st.integers(0, 2**40),
    st.integers(-128, 127),
    st.lists(st.integers(0, 2**40), min_size=3, max_size=3),
)
def test_requantization_is_the_exact_one(ratio, start, width, zero, picks):
    least, greatest = start, start + width
    a = {"ratios": (ratio,), "zero": zero, "low": -128, "high": 127}
    plan = requantization(Interval((least,), (greatest,)), a)
    around = round(Fraction(-zero) / ratio)
    steps = [] if isinstance(plan, Quotient) else plan.values[0].tolist()
    cases = [least, greatest, around, *(least + p for p in picks), *steps, *(s - 1 for s in steps)]
    for acc in cases:
        if least <= acc <= greatest:
            assert realised(plan, acc, zero, -128, 127) == requantized(acc, ratio, zero, -128, 127)


def test_channels_are_planned_one_by_one():
    ratios = (Fraction(1, 2), Fraction(1, 3), Fraction(1, 2**70))
    a = {"ratios": ratios, "zero": 0, "low": -128, "high": 127}
    plan = requantization(Interval((-500,), (500,)), a)
    assert isinstance(plan, Quotient)
    assert plan.numerators.tolist() == [1, 1, 0]
    assert plan.denominators.tolist() == [2, 3, 1]
    wide = requantization(Interval((-500, 0, 0), (500, 2**61, 9)), {**a, "ratios": (ratios[1],)})
    assert isinstance(wide, Quotient)
    assert wide.numerators.tolist() == [1, 1, 1]
    odd = Fraction(2**60 + 1, 2**118 - 1)
    steps = requantization(Interval((0, 0), (2**61, 100)), {**a, "ratios": (odd, Fraction(1, 2))})
    assert isinstance(steps, (Quotient, Staircase))
    for acc in (0, 5, 100, 2**60 - 7, 2**61):
        column = steps.values[:1] if isinstance(steps, Staircase) else None
        one = Staircase(column) if column is not None else steps
        assert realised(one, acc, 0, -128, 127) == requantized(acc, odd, 0, -128, 127)


@pytest.mark.parametrize("low", [-128, -3, 127])
def test_one_code_is_a_plan_too(low):
    a = {"ratios": (Fraction(10**30, 3),), "zero": 0, "low": low, "high": low}
    plan = requantization(Interval((-(2**61),), (2**61,)), a)
    assert realised(plan, 2**61, 0, low, low) == low


@pytest.mark.parametrize(
    ("first", "count"), [(-32767, 65535), (1, 256), (-5, 257), (0, 1), (3, 0), (-300, 700)]
)
@pytest.mark.parametrize(
    "ratio",
    [
        Fraction(1, 3),
        Fraction(3, 256),
        Fraction(7, 2),
        Fraction(16777213 * 16777215, 16777211 << 31),
        Fraction((1 << 61) - 1, 1 << 90),
        Fraction((1 << 63) - 25, 1 << 80),
    ],
)
def test_thresholds_of_consecutive_codes(ratio, first, count):
    codes = range(first, first + count)
    found = thresholds(codes, ratio)
    assert found.dtype == np.int64
    expected = [threshold(code, *ratio.as_integer_ratio()) for code in codes]
    assert_same(found, np.array(expected, np.int64), codes)
