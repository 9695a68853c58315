"""Binary16 arithmetic against numpy's, against the list of all numbers, and at its edges."""

from __future__ import annotations

import bisect
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compare import assert_same
from samebits.spec.npu_binary16 import (
    binary16_add,
    binary16_bits,
    binary16_max,
    binary16_mul,
    binary16_relu,
    binary16_sub,
    binary16_value,
    to_binary16,
)

INF, NAN = math.inf, math.nan
FINITE = [binary16_value(bits) for bits in range(0x7C00)]  # 0 to 65504, ascending
NUMBERS = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
EDGES = [
    *(0.0, 2.0**-24, 2.0**-23, 3 * 2.0**-24, 1023 * 2.0**-24, 2.0**-14, 1025 * 2.0**-24),
    *(2.0**-12, 0.333251953125, 0.5, 0.99951171875, 1.0, 1.0009765625, 1.5, 2.0, 3.0, 255.875),
    *(2048.0, 2047.0, 2050.0, 32752.0, 32768.0, 65472.0, 65504.0, INF),
]
ALL_EDGES = [*EDGES, *(-x for x in EDGES), NAN]


def same_number(values):
    """Bits, with one NaN."""
    return [binary16_bits(float(value)) for value in values]


def numpy_result(operation, pairs):
    a, b = (np.array(side, np.float16) for side in zip(*pairs, strict=True))
    with np.errstate(all="ignore"):
        return operation(a, b)


def binary32_result(operation, pairs):
    """In binary32, rounded once more: innocuous (docs/spec/npu.md 1)."""
    a, b = (np.array(side, np.float32) for side in zip(*pairs, strict=True))
    with np.errstate(all="ignore"):
        return operation(a, b).astype(np.float16)


# --- to_binary16 ------------------------------------------------------------------------------


def test_every_number_is_itself():
    for bits, value in enumerate(FINITE):
        assert binary16_bits(to_binary16(Fraction(value))) == bits
        if value:
            assert binary16_bits(to_binary16(-Fraction(value))) == bits | 0x8000


def test_midpoints_go_to_even_and_their_neighbours_to_the_nearest():
    tiny = Fraction(1, 1 << 200)
    uppers = [*(Fraction(x) for x in FINITE[1:]), Fraction(65536)]
    for bits, (low, high) in enumerate(zip(FINITE, uppers, strict=True)):
        middle = (Fraction(low) + high) / 2
        assert binary16_bits(to_binary16(middle)) == bits + (bits & 1)
        assert binary16_bits(to_binary16(middle - tiny)) == bits
        assert binary16_bits(to_binary16(middle + tiny)) == bits + 1
        assert binary16_bits(to_binary16(-middle)) == 0x8000 | bits + (bits & 1)


@pytest.mark.parametrize(
    ("q", "bits"),
    [
        (Fraction(65520), 0x7C00),
        (Fraction(65520) - Fraction(1, 10**30), 0x7BFF),
        (Fraction(10) ** 400, 0x7C00),
        (-(Fraction(10) ** 400), 0xFC00),
        (Fraction(0), 0x0000),
        (Fraction(1, 1 << 25), 0x0000),
        (Fraction(-1, 1 << 25), 0x8000),
        (Fraction(1, (1 << 25) - 1), 0x0001),
        (Fraction(1, 10**400), 0x0000),
        (Fraction(-1, 10**400), 0x8000),
        (Fraction(2047, 1 << 25), 0x0400),  # the largest subnormal and a half: up, to a normal one
        (Fraction(1, 3), 0x3555),
    ],
)
def test_known_conversions(q, bits):
    assert binary16_bits(to_binary16(q)) == bits


def test_zero_has_the_sign_that_is_asked_for():
    assert binary16_bits(to_binary16(Fraction(0), negative_zero=True)) == 0x8000
    assert binary16_bits(to_binary16(Fraction(1), negative_zero=True)) == 0x3C00


@given(st.integers(-(1 << 60), 1 << 60), st.integers(1, 1 << 45), st.integers(-20, 20))
def test_nearest_in_the_list_of_all_numbers(numerator, denominator, power):
    q = Fraction(numerator, denominator) * Fraction(2) ** power
    size = abs(q)
    at = bisect.bisect_left(FINITE, size)
    candidates = [Fraction(FINITE[i]) for i in (at - 1, at) if 0 <= i < len(FINITE)]
    if size < 65520:
        distance = min(abs(size - c) for c in candidates)
        nearest = [c for c in candidates if abs(size - c) == distance]
        # of two, the one whose last bit is 0
        wanted = min(nearest, key=lambda c: binary16_bits(float(c)) & 1)
    else:
        wanted = INF
    assert abs(to_binary16(q)) == wanted


def test_as_numpy_converts_binary64():
    rng = np.random.default_rng(11)
    bits = rng.integers(0, 1 << 52, 20000, dtype=np.uint64)
    exponents = rng.integers(1023 - 27, 1023 + 18, 20000).astype(np.uint64)
    values = (exponents << np.uint64(52) | bits).view(np.float64)
    with np.errstate(over="ignore"):
        wanted = values.astype(np.float16)
    found = [to_binary16(Fraction(v)) for v in values.tolist()]
    assert_same(same_number(found), same_number(wanted), values.tolist())


# --- bits -------------------------------------------------------------------------------------


def test_bits_and_values_are_inverse():
    for bits, number in enumerate(NUMBERS.tolist()):
        value = binary16_value(bits)
        assert binary16_bits(value) == (0x7E00 if math.isnan(number) else bits)
        assert value == number or math.isnan(number)


# --- arithmetic -------------------------------------------------------------------------------

OPERATIONS = {
    "add": (binary16_add, np.add),
    "sub": (binary16_sub, np.subtract),
    "mul": (binary16_mul, np.multiply),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_edges_as_numpy(name):
    exact, operation = OPERATIONS[name]
    pairs = list(itertools.product(ALL_EDGES, repeat=2))
    found = same_number(exact(a, b) for a, b in pairs)
    assert_same(found, same_number(numpy_result(operation, pairs)), pairs)
    assert_same(found, same_number(binary32_result(operation, pairs)), pairs)


@pytest.mark.parametrize("name", OPERATIONS)
def test_random_bits_as_numpy(name):
    exact, operation = OPERATIONS[name]
    rng = np.random.default_rng(12)
    sides = NUMBERS[rng.integers(0, 1 << 16, (2, 20000))].astype(np.float64)
    near = NUMBERS[rng.integers(0x3000, 0x4000, (2, 10000))].astype(np.float64)
    pairs = list(zip(*np.concatenate([sides, near], axis=1).tolist(), strict=True))
    found = same_number(exact(a, b) for a, b in pairs)
    assert_same(found, same_number(numpy_result(operation, pairs)), pairs)
    assert_same(found, same_number(binary32_result(operation, pairs)), pairs)


@given(st.integers(0, 0xFFFF), st.integers(0, 0xFFFF))
def test_products_and_sums_by_integers(first, second):
    """In units of 2**-48, by integers: another way to the same rounding."""
    a, b = binary16_value(first), binary16_value(second)
    if not (math.isfinite(a) and math.isfinite(b)):
        return
    m, n = int(a * 2**24), int(b * 2**24)
    for found, units in ((binary16_mul(a, b), m * n), (binary16_add(a, b), (m + n) << 24)):
        shift = max(abs(units).bit_length() - 11, 24)
        kept, lost = divmod(abs(units), 1 << shift)
        half = 1 << (shift - 1)
        kept += lost > half or (lost == half and kept & 1)
        wanted = kept << shift
        assert abs(found) == (INF if wanted >= 65536 << 48 else Fraction(wanted, 1 << 48))
        assert found == 0 or (found > 0) == (units > 0)


@pytest.mark.parametrize(
    ("found", "bits"),
    [
        (binary16_add(0.0, -0.0), 0x0000),
        (binary16_add(-0.0, -0.0), 0x8000),
        (binary16_add(1.0, -1.0), 0x0000),
        (binary16_add(65504.0, 16.0), 0x7C00),
        (binary16_add(65504.0, 15.9921875), 0x7BFF),
        (binary16_add(INF, -INF), 0x7E00),
        (binary16_sub(-0.0, 0.0), 0x8000),
        (binary16_sub(INF, INF), 0x7E00),
        (binary16_mul(0.0, -1.0), 0x8000),
        (binary16_mul(0.0, INF), 0x7E00),
        (binary16_mul(-(2.0**-24), 0.5), 0x8000),
        (binary16_mul(2.0**-24, 1.5), 0x0002),
        (binary16_mul(256.0, 256.0), 0x7C00),
    ],
)
def test_special_results(found, bits):
    assert binary16_bits(found) == bits


def test_max_and_relu():
    for a, b in itertools.product(ALL_EDGES, repeat=2):
        assert same_number([binary16_max(a, b)]) == same_number([np.where(a > b, a, b)])
    assert binary16_bits(binary16_max(-0.0, 0.0)) == 0x0000
    assert binary16_bits(binary16_max(0.0, -0.0)) == 0x8000
    assert binary16_max(NAN, 1.0) == 1.0
    assert math.isnan(binary16_max(1.0, NAN))
    assert same_number(map(binary16_relu, [-1.0, -0.0, NAN, -INF])) == [0, 0, 0, 0]
    assert [binary16_relu(x) for x in (2.0**-24, 3.0, INF)] == [2.0**-24, 3.0, INF]
