"""Roundings of sums: codes as the kernels' own C writes them, and the least sum of every code."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from samebits.spec.rounding import Away, Doubled, HalfUp, Rounding, code_of, least_of

ROUNDINGS: list[Rounding] = [
    *(Fraction(1, 3), Fraction(1, 2), Fraction(5, 2), Fraction(3)),
    *(Doubled(m, 0, s) for m in (1 << 30, 1518500250, 0x7FFFFFFF) for s in (0, 1, 2, 9)),
    *(Doubled(m, s) for m in (1, 1 << 30, 1500000001) for s in (1, 4)),
    *(HalfUp(m, s) for m in (1, 5, 32767) for s in (0, 1, 12)),
    *map(Away, (1, 2, 3, 4, 9, 36)),
]


def quotient(a: int, b: int) -> int:
    """C's division, toward 0."""
    return abs(a) // abs(b) * (1 if (a >= 0) == (b > 0) else -1)


def doubled(acc: int, by: Doubled) -> int:
    """As the kernels write it: a nudge by the sign, C's division; then masks and a comparison."""
    product = (acc << by.left) * by.m
    high = quotient(product + (1 << 30 if product >= 0 else 1 - (1 << 30)), 1 << 31)
    mask = (1 << by.right) - 1
    above = (mask >> 1) + (1 if high < 0 else 0)
    return (high >> by.right) + (1 if (high & mask) > above else 0)


def test_two_roundings_are_those_of_the_kernels():
    rng = np.random.default_rng(1)
    for by in (r for r in ROUNDINGS if isinstance(r, Doubled)):
        sums = [*range(-70, 70), *map(int, rng.integers(-(2**27), 2**27, 300))]
        assert [by.code(acc) for acc in sums] == [doubled(acc, by) for acc in sums], by


@pytest.mark.parametrize("n", [1, 2, 3, 36])
def test_halves_away_from_zero(n):
    """As average pools write it."""
    for acc in range(-200, 200):
        expected = quotient(acc + n // 2, n) if acc > 0 else quotient(acc - n // 2, n)
        assert Away(n).code(acc) == expected
        exact = Fraction(acc, n)
        assert abs(Away(n).code(acc) - exact) <= Fraction(1, 2)


def test_one_rounding_half_up():
    for acc in range(-300, 300):
        assert HalfUp(5, 3).code(acc) == (Fraction(5 * acc, 8) + Fraction(1, 2)).__floor__()


@pytest.mark.parametrize("by", ROUNDINGS, ids=str)
def test_the_least_sum_of_every_code(by):
    codes = [code_of(acc, by) for acc in range(-400, 401)]
    assert codes == sorted(codes)
    reached = {code + step for code in codes for step in (0, 1)}  # and those above, in a gap or not
    for code in sorted(reached)[1:-1]:
        least = least_of(code, by)
        assert code_of(least, by) >= code > code_of(least - 1, by)


def test_what_a_rounding_stands_for():
    assert float(Doubled(1 << 30, 0, 1)) == 0.25
    assert float(Doubled(1 << 30, 2)) == 2.0
    assert float(HalfUp(3, 2)) == 0.75
    assert float(Away(4)) == 0.25


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Doubled(0), "expected 0 < m < 2"),
        (lambda: Doubled(1 << 31), "expected 0 < m < 2"),
        (lambda: Doubled(1, -1), "expected shifts of 0 to 31"),
        (lambda: Doubled(1, 1, 1), "expected one shift"),
        (lambda: HalfUp(1 << 15, 1), "expected 0 < m < 2"),
        (lambda: HalfUp(1, 63), "expected a shift of 0 to 62, found 63"),
        (lambda: Away(0), "expected 0 < n < 2"),
    ],
)
def test_parameters_out_of_range(make, message):
    with pytest.raises(ValueError, match=message):
        make()
