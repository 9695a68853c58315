"""Scales and codes of columns against docs/spec/tables.md in exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samebits.data.columns import ColumnScale
from samebits.spec import tables as spec

NUMBERS = st.floats(-(2.0**499), 2.0**499) | st.integers(-3, 3).map(float)
COLUMNS = st.lists(NUMBERS, min_size=1, max_size=12)


def exact(values) -> list[Fraction]:
    return [Fraction(float(v)) for v in values]


@given(COLUMNS)
def test_scales_are_those_of_the_specification(values):
    found = ColumnScale.of(np.array(values))
    assert (found.centre, found.spread) == (spec.centre(exact(values)), spec.spread(exact(values)))


@given(COLUMNS)
def test_codes_are_those_of_the_specification(values):
    scale, column = ColumnScale.of(np.array(values)), np.array(values)
    for codes, bits, largest in (
        (scale.features(column), spec.FEATURE_BITS, spec.FEATURE_MAX),
        (scale.targets(column), spec.TARGET_BITS, spec.TARGET_MAX),
    ):
        wanted = [spec.code(x, scale.centre, scale.spread, bits, largest) for x in exact(values)]
        assert codes.tolist() == wanted


def test_ties_and_their_neighbours_are_rounded_once():
    scale = ColumnScale(0.1, 3.0)
    ties = [0.1 + 3.0 * (k + 0.5) / 4096 for k in range(-300, 300)]
    column = np.array([math.nextafter(t, side) for t in ties for side in (-9, t, 9)])
    wanted = [spec.code(x, 0.1, 3.0, 12, 2**15 - 1) for x in exact(column)]
    assert scale.features(column).tolist() == wanted


def test_exact_ties_go_to_even():
    scale, half = ColumnScale(0.0, 1.0), 2.0**-13
    column = np.array([1, 3, 5, -1, -3]) * half
    assert scale.features(column).tolist() == [0, 2, 2, 0, -2]


def test_far_values_saturate():
    scale = ColumnScale(0.0, 1.0)
    assert scale.features(np.array([-1e30, 1e30])).tolist() == [-32767, 32767]
    assert scale.targets(np.array([-1e30, 1e30])).tolist() == [-(2**31) + 1, 2**31 - 1]


@pytest.mark.parametrize("value", [0.0, -7.25, 1e150])
def test_a_constant_column_has_spread_one(value):
    scale = ColumnScale.of(np.full(5, value))
    assert (scale.centre, scale.spread) == (value, 1.0)
    assert scale.features(np.full(2, value)).tolist() == [0, 0]


def test_the_order_of_rows_is_indifferent():
    values = np.random.default_rng(0).normal(size=1000) * 10.0 ** np.arange(-5, 5).repeat(100)
    assert ColumnScale.of(values) == ColumnScale.of(values[::-1].copy())


@pytest.mark.parametrize("square", [2, 3, Fraction(1, 3), Fraction(2) ** 801, Fraction(1, 7**90)])
def test_roots_are_the_nearest(square):
    found = spec.root(Fraction(square))
    below, above = (Fraction(math.nextafter(found, end)) for end in (0.0, math.inf))
    low, high = (Fraction(found) + below) / 2, (Fraction(found) + above) / 2
    assert low**2 <= square <= high**2
