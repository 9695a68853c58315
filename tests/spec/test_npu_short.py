"""BFP-short and BFP-long against integers, numpy and cases worked out by hand."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compare import assert_same
from samebits.spec.npu_binary16 import binary16_bits, binary16_value
from samebits.spec.npu_short import LONG_MAX, bfp_long, bfp_short, long_to_binary16

INF, NAN = math.inf, math.nan
TINY = 2.0**-24
BITS = st.integers(0, 0xFFFF)
MANTISSAS = st.integers(2, 15)


def by_integers(values, mantissa):
    """The definition over again in units of 2**-24, with shifts only."""
    units = []
    for value in values:
        infinite = math.isinf(value)
        size = 1 << 41 if infinite else 0 if math.isnan(value) else int(abs(value) * 2**24)
        units.append(-size if value < 0 else size)
    limit = (1 << mantissa) - 1

    def code(n, exponent):
        shift = exponent + 24 - mantissa  # code = n / 2**shift
        if shift <= 0:
            return n << -shift
        kept, lost = abs(n) >> shift, abs(n) & (1 << shift) - 1
        kept += 2 * lost > 1 << shift or (2 * lost == 1 << shift and kept & 1)
        return -kept if n < 0 else kept

    fitting = [e for e in range(-15, 17) if all(abs(code(n, e)) <= limit for n in units)]
    exponent = min(fitting, default=16)
    return [max(-limit, min(limit, code(n, exponent))) for n in units], exponent


@given(st.lists(BITS, min_size=1, max_size=8), MANTISSAS)
def test_random_bits_by_integers(bits, mantissa):
    values = [binary16_value(b) for b in bits]
    assert bfp_short(values, mantissa) == by_integers(values, mantissa)


@given(st.lists(st.integers(0, 0x3FF), min_size=1, max_size=8), st.integers(0, 30), MANTISSAS)
def test_blocks_near_one_exponent_by_integers(bits, exponent, mantissa):
    values = [binary16_value(exponent << 10 | b) for b in bits]
    assert bfp_short(values, mantissa) == by_integers(values, mantissa)


@pytest.mark.parametrize("mantissa", [2, 3, 7, 10, 11, 15])
def test_every_number_alone(mantissa):
    """A block of one; all numbers near powers of two, where maxima round over."""
    bits = [b for b in range(0x7C01) if b % 9 == 0 or (b + 12) % 1024 < 24 or b < 32]
    values = [binary16_value(b) for b in bits]
    found = [bfp_short([value], mantissa) for value in values]
    assert_same(found, [by_integers([value], mantissa) for value in values], values)


def test_value_is_kept_where_the_mantissa_holds_it():
    """M >= 11 holds every binary16 number from 2**-14 on exactly, alone in its block."""
    for bits in range(0x0400, 0x7C00, 7):
        (code,), exponent = bfp_short([binary16_value(bits)], 11)
        assert Fraction(code) * Fraction(2) ** (exponent - 11) == Fraction(binary16_value(bits))


@pytest.mark.parametrize(
    ("values", "mantissa", "codes", "exponent"),
    [
        ([0.0, -0.0], 15, [0, 0], -15),
        ([], 15, [], -15),
        ([NAN], 15, [0], -15),
        ([NAN, 1.0], 2, [0, 2], 1),
        # at a power of two: 1 = 2**14 * 2**(1-15), since 2**15 is no code
        ([1.0], 15, [1 << 14], 1),
        ([0.99951171875], 15, [0x7FF0], 0),
        # under a power of two, rounding lifts it over: 0.9375 * 2**3 = 7.5 -> 8 > 7
        ([0.9375], 3, [4], 1),
        ([0.875], 3, [7], 0),
        # ties to even: steps of 1/4 at E = 1, M = 3
        ([1.0, 0.125, 0.375, 0.625, -0.125, -0.375], 3, [4, 0, 2, 2, 0, -2], 1),
        # infinities: E = 16, codes saturate; what is beside them is small
        ([INF, -INF, 65504.0, 1.0], 15, [32767, -32767, 32752, 0], 16),
        ([INF, 3.0, 1.0], 15, [32767, 2, 0], 16),
        # no E holds 65504 in two bits: 3.998 -> 4 > 3
        ([65504.0, -65504.0, 32768.0], 2, [3, -3, 2], 16),
        # subnormal numbers: E stops at -15
        ([TINY], 15, [64], -15),
        ([TINY, 2.0**-15], 15, [32, 16384], -14),
        ([TINY, -3 * TINY], 2, [0, 0], -15),
        ([2.0**-16], 2, [2], -15),
        ([2.0**-18], 2, [0], -15),
        ([3 * 2.0**-18], 2, [2], -15),
    ],
)
def test_known_blocks(values, mantissa, codes, exponent):
    assert bfp_short(values, mantissa) == (codes, exponent)


def test_rationals_are_values_too():
    assert bfp_short([Fraction(1, 3), Fraction(-1)], 4) == ([3, -8], 1)


# --- BFP-long ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dots", "total"),
    [
        ([], 0),
        ([(5, -40)], 5),
        ([(5, -38)], 20),
        ([(1, -41)], 0),
        ([(3, -41)], 2),
        ([(5, -41)], 2),
        ([(-3, -41)], -2),
        # each product is rounded by itself, then summed
        ([(1, -41), (1, -41)], 0),
        ([(3, -41), (3, -41)], 4),
        ([(1 << 33, 0)], 1 << 73),
        ([((1 << 34) - 1, 0)], (1 << 74) - (1 << 40)),
        ([(1 << 34, 0)], (1 << 74) - 1),
        ([(-(1 << 34), 0)], -LONG_MAX),
        # the sum saturates, its parts do not
        ([(1 << 39, 0), (-(1 << 39), 0), (7, -40)], 7),
    ],
)
def test_known_sums(dots, total):
    assert bfp_long(dots) == total


@pytest.mark.parametrize(
    ("dots", "total"),
    [
        ([(1, 0)], 1 << 40),
        ([(2049, 0)], 2048 << 40),
        ([(2051, 0)], 2052 << 40),
        ([(2049, 0), (2049, 0)], 4096 << 40),
        ([(1, -25)], 0),
        ([(3, -26)], 1 << 16),
        ([(65519, 0)], 65504 << 40),
        ([(65520, 0)], LONG_MAX),
        ([(-65520, 0)], -LONG_MAX),
        ([(65520, 0), (-65520, 0)], 0),
        # from 2**-40, not from the exact product: the tie goes to even
        (([(2049 << 50) + 1, -50],), 2048 << 40),
    ],
)
def test_known_requantized_sums(dots, total):
    assert bfp_long([tuple(dot) for dot in dots], requantize=True) == total


@given(st.lists(st.tuples(st.integers(-(1 << 39), 1 << 39), st.integers(-60, 2)), max_size=6))
def test_sums_of_rounded_products(dots):
    wanted = sum(round(Fraction(s) * Fraction(2) ** (e + 40)) for s, e in dots)  # ties to even
    assert bfp_long(dots) == max(-LONG_MAX, min(LONG_MAX, wanted))


def test_requantized_as_numpy():
    rng = np.random.default_rng(3)
    sums = rng.integers(-(1 << 39), 1 << 39, 5000)
    exponents = rng.integers(-60, 2, 5000)
    products = np.rint(np.ldexp(sums.astype(np.float64), exponents + 40))
    with np.errstate(over="ignore"):
        halves = (products * 2.0**-40).astype(np.float16)
    small = np.abs(products) < 2.0**53  # what binary64 shifts exactly
    dots = list(zip(sums[small].tolist(), exponents[small].tolist(), strict=True))
    wanted = [
        int(math.copysign(1, half)) * LONG_MAX if math.isinf(half) else int(half * 2.0**40)
        for half in halves[small].tolist()
    ]
    assert_same([bfp_long([dot], requantize=True) for dot in dots], wanted, dots)


@pytest.mark.parametrize(
    ("total", "bits"),
    [
        (0, 0x0000),
        (1, 0x0000),
        (-1, 0x8000),
        (1 << 40, 0x3C00),
        (1 << 16, 0x0001),
        (1 << 15, 0x0000),
        (3 << 15, 0x0002),
        (65504 << 40, 0x7BFF),
        ((65520 << 40) - 1, 0x7BFF),
        (65520 << 40, 0x7C00),
        (LONG_MAX, 0x7C00),
        (-LONG_MAX, 0xFC00),
    ],
)
def test_output(total, bits):
    assert binary16_bits(long_to_binary16(total)) == bits


def test_dot_products_as_numpy():
    """Blocks, dot product and output against numpy in binary64, where that is exact."""
    rng = np.random.default_rng(4)
    for mantissa in (2, 5, 7, 11):
        for _ in range(50):
            a, b = rng.normal(0, 1, (2, 16)).astype(np.float16)
            (x, e), (y, f) = (bfp_short(side.tolist(), mantissa) for side in (a, b))
            dot = sum(p * q for p, q in zip(x, y, strict=True))
            total = bfp_long([(dot, e + f - 2 * mantissa)])
            left = np.array(x) * 2.0 ** (e - mantissa)
            right = np.array(y) * 2.0 ** (f - mantissa)
            exact = float((left * right).sum())
            assert total == round(Fraction(exact) * 2**40)
            assert long_to_binary16(total) == float(np.float16(exact))
