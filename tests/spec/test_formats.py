"""The definition itself: checked against independent statements of the same rules."""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compare import assert_same
from samebits.errors import NonFiniteError, RangeError
from samebits.numerics import FORMATS, Rounding
from samebits.spec import formats
from samebits.spec.formats import Q8, Q16, Q32, power

ratios = st.tuples(st.integers(-(10**6), 10**6), st.integers(1, 64))
integers = st.integers(-(1 << 40), 1 << 40)

# --- rounding -------------------------------------------------------------------------------

TIES = {  # of -2.5, -1.5, -0.5, 0.5, 1.5, 2.5
    Rounding.HALF_EVEN: [-2, -2, 0, 0, 2, 2],
    Rounding.HALF_UP: [-2, -1, 0, 1, 2, 3],
    Rounding.HALF_AWAY: [-3, -2, -1, 1, 2, 3],
    Rounding.FLOOR: [-3, -2, -1, 0, 1, 2],
}


@pytest.mark.parametrize("rounding", TIES)
def test_ties(rounding):
    halves = [-5, -3, -1, 1, 3, 5]
    assert_same([formats.round_ratio(h, 2, rounding) for h in halves], TIES[rounding], halves)


@given(ratios)
def test_rounding_modes(ratio):
    numerator, denominator = ratio
    value = Fraction(numerator, denominator)
    assert formats.round_ratio(numerator, denominator) == round(value)
    assert formats.round_ratio(numerator, denominator, Rounding.FLOOR) == math.floor(value)
    assert formats.round_ratio(numerator, denominator, Rounding.HALF_UP) == math.floor(
        value + Fraction(1, 2)
    )
    if denominator & (denominator - 1) == 0:  # a finite decimal
        decimal = Decimal(numerator) / Decimal(denominator)
        away = int(decimal.quantize(Decimal(1), ROUND_HALF_UP))  # decimal's "half up" is away
        assert formats.round_ratio(numerator, denominator, Rounding.HALF_AWAY) == away


@given(ratios, st.integers(0, 2**32 - 1))
def test_stochastic_rounding(ratio, random):
    numerator, denominator = ratio
    value = Fraction(numerator, denominator)
    fraction = value - math.floor(value)
    expected = math.floor(value) + (Fraction(random, 2**32) < fraction)
    assert formats.round_ratio(numerator, denominator, Rounding.STOCHASTIC, random) == expected


def test_stochastic_rounding_needs_its_bits():
    with pytest.raises(ValueError, match="stochastic rounding needs 32 random bits"):
        formats.round_ratio(1, 2, Rounding.STOCHASTIC)


@given(integers, st.integers(-50, 50))
def test_scaled(code, exponent):
    assert formats.scaled(code, exponent) == round(code * power(exponent))


# --- exponents and scales -------------------------------------------------------------------


@given(st.integers(-200, 200), st.sampled_from([-1, 0, 1]), st.sampled_from([24, 53]))
def test_floor_log2_near_powers_of_two(exponent, ulp, digits):
    value = power(exponent) + ulp * power(exponent - digits)
    assert formats.floor_log2(value) == (exponent - 1 if ulp < 0 else exponent)


@pytest.mark.parametrize("code_max", [1, 7, 15, 31, 63, Q8, Q16, Q32, 255])
def test_smallest_exponent_at_powers_of_two(code_max):
    """Every float32 exponent, the power of two and its neighbours: e fits, e - 1 does not."""
    cases = [
        Fraction(2) ** e + ulp * Fraction(2) ** max(e - 24, -149)
        for e in range(-149, 128)
        for ulp in (-1, 0, 1)
    ]
    for value in cases:
        found = formats.smallest_exponent(value, code_max, low=-400, high=None)
        if value == 0:
            assert found == -400
            continue
        assert round(value / power(found)) <= code_max, value
        assert round(value / power(found - 1)) > code_max, value
        assert formats.smallest_exponent(value, code_max, high=None) == max(found, -128)


@given(st.fractions(min_value=0, max_value=2**100), st.integers(1, Q32))
def test_smallest_exponent_is_the_smallest(value, code_max):
    found = formats.smallest_exponent(value, code_max)
    assert found >= -128
    assert round(value / power(found)) <= code_max
    assert found == -128 or round(value / power(found - 1)) > code_max


def test_exponent_overflow():
    assert formats.smallest_exponent(127 * power(127), Q8) == 127
    with pytest.raises(RangeError) as error:
        formats.smallest_exponent(128 * power(127), Q8)
    assert str(error.value) == (
        "expected an exponent of at most 127, found 128 (largest magnitude about 2**134); the "
        "values have outgrown their format: lower the learning rate or scale the input"
    )


def test_mx_exponent_is_floor_log2():
    mxint8 = FORMATS["mxint8"]
    for e in range(-149, 128):
        for ulp in (-1, 0, 1):
            value = power(e) + ulp * power(max(e - 24, -149))
            if value == 0:
                continue
            expected = e - (ulp < 0 and e > -149) - 6
            if e <= -127:
                expected = formats.floor_log2(value) - 6
            expected = min(max(expected, -133), 121)
            assert formats.block_exponent([value, -value / 2], mxint8) == expected, value
    assert formats.block_exponent([Fraction(0)], mxint8) == -133


@given(st.fractions(min_value=0, max_value=2**127))
def test_round_binary32(value):
    import numpy as np

    found = formats.round_binary32(value)
    assert Fraction(float(np.float32(float(found)))) == found  # it is one
    up, down = (
        float(np.nextafter(np.float32(float(found)), np.float32(s))) for s in ("inf", "-inf")
    )
    assert abs(found - value) <= min(abs(Fraction(up) - value), abs(Fraction(down) - value))


def test_affine_ranges_hold_zero():
    fmt = FORMATS["asymmetric-u8"]
    assert formats.affine_parameters([Fraction(255), Fraction(510)], fmt) == (2, 0)
    assert formats.affine_parameters([Fraction(-255)], fmt) == (1, 255)
    assert formats.affine_parameters([Fraction(0)], fmt) == (1, 0)
    assert formats.affine_parameters([], fmt) == (1, 0)
    assert formats.affine_parameters([Fraction(-127)], FORMATS["symmetric-s8"]) == (1, 0)


def test_the_zero_point_is_added_after_rounding():
    """As ONNX's QuantizeLinear does: the parity or sign of a tie is the quotient's."""
    fmt, scale = FORMATS["asymmetric-u8"], Fraction(3, 4)
    ties = [Fraction(k, 2) for k in (-5, -3, -1, 1, 3, 5)]
    for zero_point in (6, 7):
        for rounding, rounded in TIES.items():
            found = [
                formats.encode(tie * scale, scale, zero_point, replace(fmt, rounding=rounding))
                for tie in ties
            ]
            assert_same(found, [r + zero_point for r in rounded], ties)
    assert formats.encode(Fraction(300), Fraction(1), 7, fmt) == 255
    assert formats.encode(Fraction(-8), Fraction(1), 7, fmt) == 0


def test_a_block_of_nothing_has_the_smallest_exponent():
    assert formats.block_exponent([], FORMATS["bfp8"]) == -128
    assert formats.block_exponent([], FORMATS["mxint8"]) == -133


@pytest.mark.parametrize(
    ("code_min", "code_max"), [(-129, 126), (-1, 256), (-128, 128), (0, 256), (-127, 200)]
)
def test_codes_have_to_fit_in_their_bits(code_min, code_max):
    fmt = formats.Format("mine", 8, -128, 127, formats.ScaleRule.SYMMETRIC)
    assert replace(fmt, code_min=0, code_max=255).code_max == 255
    with pytest.raises(ValueError, match=rf"'mine': codes \[{code_min}, {code_max}\] do not fit"):
        replace(fmt, code_min=code_min, code_max=code_max)


def test_non_finite_values():
    with pytest.raises(NonFiniteError) as error:
        formats.reals([0.0, math.inf, math.nan], "weight")
    assert str(error.value) == (
        "tensor 'weight': expected finite values, found inf at flat index 1; "
        "remove or replace non-finite values before quantizing"
    )


def test_an_exponent_format_has_no_scale_and_the_reverse():
    with pytest.raises(ValueError, match="format 'bfp8' has a shared exponent, not a scale"):
        formats.affine_parameters([Fraction(1)], FORMATS["bfp8"])
    with pytest.raises(ValueError, match="format 'symmetric-s8' has a scale, not a shared"):
        formats.block_exponent([Fraction(1)], FORMATS["symmetric-s8"])


# --- integer tensors ------------------------------------------------------------------------

accumulators = st.lists(st.integers(-(1 << 62), 1 << 62), min_size=1, max_size=6)


@given(accumulators, st.integers(-60, 60), st.sampled_from([8, 16]), st.integers(1, 50))
def test_requantize(acc, exponent, bits, divisor):
    codes, out = formats.requantize(acc, exponent, bits, divisor)
    limit = formats.CODE_MAX[bits]
    values = [Fraction(a, divisor) * power(exponent) for a in acc]
    assert codes == [round(v / power(out)) for v in values]
    assert max(map(abs, codes)) <= limit
    assert out >= -128
    finer = max(abs(round(v / power(out - 1))) for v in values)
    assert out == -128 or finer > limit


def test_requantize_edges():
    assert formats.requantize([0, 0], 5, 8) == ([0, 0], -128)
    assert formats.requantize([], 5, 8) == ([], -128)
    assert formats.requantize([1], 0, 8) == ([64], -6)  # s < 0: an exact left shift
    assert formats.requantize([127], 127, 8) == ([127], 127)
    assert formats.requantize([255], 0, 8) == ([64], 2)  # 255 / 2 = 127.5 would round to 128
    assert formats.requantize([254], 0, 8) == ([127], 1)
    assert formats.requantize([1], -300, 8) == ([0], -128)
    with pytest.raises(RangeError, match="found 128"):
        formats.requantize([128], 127, 8)


@given(accumulators, st.integers(-60, 60))
def test_shorten(acc, exponent):
    codes, out = formats.shorten(acc, exponent)
    if not any(acc):
        assert (codes, out) == (acc, -128)
        return
    shift = out - exponent
    assert shift >= 0
    assert codes == [round(a * power(-shift)) for a in acc]
    assert max(map(abs, codes)) <= Q32
    assert shift == 0 or max(abs(round(a * power(1 - shift))) for a in acc) > Q32


def test_shorten_edges():
    assert formats.shorten([Q32, -Q32], 3) == ([Q32, -Q32], 3)
    assert formats.shorten([Q32 + 1], 3) == ([(Q32 + 1) // 2], 4)
    assert formats.shorten([0, 0], 3) == ([0, 0], -128)
    assert formats.shorten([], 3) == ([], -128)


part = st.tuples(st.lists(st.integers(-Q32, Q32), min_size=3, max_size=3), st.integers(-90, 90))


@given(st.lists(part, min_size=2, max_size=5), st.randoms(use_true_random=False))
def test_resolve_does_not_depend_on_the_order(parts, random):
    found = formats.resolve(parts)
    live = [p for p in parts if any(p[0])]
    if live:
        shuffled = [*live, ([0, 0, 0], 90)]
        random.shuffle(shuffled)
        if len(live) > 1:
            assert formats.resolve(shuffled) == found
        top = max(e for _, e in live)
        total = [sum(round(c[i] * power(e - top)) for c, e in live) for i in range(3)]
        assert found == formats.shorten(total, top)
    else:
        assert found == ([0, 0, 0], -128)


def test_resolve_one_part_is_itself():
    assert formats.resolve([([0, 1 << 40], 7)]) == ([0, 1 << 40], 7)


@given(st.floats(min_value=5e-324, max_value=1e308), st.integers(1, 62))
def test_fits(value, bits):
    found = formats.fits(value, bits)
    assert Fraction(value) <= power(bits + found)
    assert Fraction(value) > power(bits + found - 1)


@given(st.floats(min_value=5e-324, max_value=1.7e308))
def test_coefficient(value):
    mantissa, exponent = formats.coefficient(value)
    assert 1 << 15 <= mantissa < 1 << 16
    unit = power(formats.floor_log2(Fraction(value)) - 15)
    assert mantissa * power(exponent) == round(Fraction(value) / unit) * unit


def test_coefficient_edges():
    assert formats.coefficient(1.0) == (32768, -15)
    assert formats.coefficient(1.0 - 2**-53) == (32768, -15)  # the rounding gives 2**16
    assert formats.coefficient(5e-324) == (32768, -1089)
    for bad in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="expected a positive finite coefficient"):
            formats.coefficient(bad)


term = st.tuples(
    st.lists(st.integers(1 - (1 << 31), (1 << 31) - 1), min_size=2, max_size=2),
    st.integers(-80, 80),
    st.just(31),
)


@given(st.lists(term, min_size=1, max_size=4))
def test_combine(terms):
    codes, exponent = formats.combine(terms)
    assert exponent == max(e + b for _, e, b in terms) - 60
    for i in range(2):
        assert abs(codes[i]) < 1 << 62
        true = sum(c[i] * power(e) for c, e, _ in terms)
        assert abs(codes[i] * power(exponent) - true) <= len(terms) * power(exponent - 1)


# --- the lazy update ------------------------------------------------------------------------

joints = st.lists(st.integers(-127 << 15, 127 << 15), min_size=1, max_size=5)


@given(st.integers(-(1 << 23), 1 << 23))
def test_split(joint):
    (code,), (delayed,) = formats.split([joint])
    assert (code << 15) - delayed == joint
    assert abs(delayed) <= 1 << 14
    assert code == round(Fraction(joint, 1 << 15))


def weight_of(joint: list[int], exponent: int) -> formats.Weight:
    return (*formats.split(joint), exponent)


@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=5))
def test_initial_weight(values):
    codes, delayed, exponent = formats.initial_weight(values)
    if not any(values):
        assert (codes, delayed, exponent) == ([0] * len(values), [0] * len(values), -7)
        return
    joint, unit = formats.join((codes, delayed, exponent))
    assert joint == [round(Fraction(v) / power(unit)) for v in values]
    assert max(map(abs, codes)) <= Q8
    finer = [round(Fraction(v) / power(unit - 1)) for v in values]
    assert exponent == -128 or max(abs(round(Fraction(j, 1 << 15))) for j in finer) > Q8


@pytest.mark.parametrize("value", [127.49999999, 127.5, 127.5 - 2**-16, 128.0, 2.0**-149, 2.0**127])
def test_initial_weight_edges(value):
    codes, _, exponent = formats.initial_weight([value, -value])
    assert abs(codes[0]) <= Q8
    assert codes[0] == -codes[1]
    assert exponent == -128 or codes[0] >= 64
