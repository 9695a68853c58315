"""Enclosures: they hold the value, their ends know whether they are reached."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import libmp

from samebits.tables import interval
from samebits.tables.interval import MONOTONE, PERIODIC, Enclosure, End

rationals = st.fractions(max_denominator=1 << 30)
floats = st.builds(libmp.from_man_exp, st.integers(-(1 << 40), 1 << 40), st.integers(-60, 10))
ends = st.builds(End, floats, st.booleans())


@st.composite
def enclosures(draw):
    a, b = draw(ends), draw(ends)
    if a.value == b.value:
        return Enclosure(End(a.value, False), End(a.value, False))
    return Enclosure(a, b) if libmp.mpf_lt(a.value, b.value) else Enclosure(b, a)


def holds(a, value):
    low, high = interval.to_fraction(a.low.value), interval.to_fraction(a.high.value)
    return (low < value or (low == value and not a.low.open)) and (
        value < high or (high == value and not a.high.open)
    )


def members(a):
    low, high = interval.to_fraction(a.low.value), interval.to_fraction(a.high.value)
    points = [low + (high - low) * Fraction(k, 7) for k in range(8)]
    return [point for point in points if holds(a, point)]


@given(rationals, st.integers(8, 200))
def test_enclose(value, precision):
    a = interval.enclose(value, precision)
    assert holds(a, value)
    if value.denominator & (value.denominator - 1) == 0:
        assert a.low == a.high


@settings(max_examples=80)
@given(enclosures(), enclosures(), st.sampled_from([8, 53, 200]))
def test_arithmetic_holds_every_result(a, b, precision):
    cases = [
        (interval.add(a, b, precision), lambda x, y: x + y),
        (interval.multiply(a, b, precision), lambda x, y: x * y),
        (interval.maximum(a, b), max),
        (interval.minimum(a, b), min),
        (interval.negate(a), lambda x, y: -x),
        (interval.absolute(a), lambda x, y: abs(x)),
    ]
    for found, f in cases:
        assert all(holds(found, f(x, y)) for x in members(a) for y in members(b))
    if interval.is_above(a, libmp.fzero) or interval.is_below(a, libmp.fzero):
        inverse = interval.invert(a, precision)
        points = [x for x in members(a) if x]
        if interval.is_finite(inverse.low.value) and interval.is_finite(inverse.high.value):
            assert all(holds(inverse, 1 / x) for x in points)


def test_open_ends():
    """1 + tiny stays above 1 at any precision, (1 - tiny) * 7 below 7."""
    tiny = interval.beside(Fraction(0), 1, -(10**30), 53)
    one = interval.enclose(Fraction(1), 53)
    above = interval.add(one, tiny, 53)
    assert interval.is_above(above, libmp.fone)
    below = interval.add(one, interval.negate(tiny), 53)
    seven = libmp.from_int(7)
    assert interval.is_below(interval.multiply(below, interval.enclose(Fraction(7), 53), 53), seven)
    assert not interval.is_above(one, libmp.fone)


def test_infinite_ends():
    near = interval.beside(Fraction(0), 1, -10, 53)
    far = interval.invert(near, 53)
    assert far == Enclosure(End(libmp.from_int(1024), True), End(libmp.finf, True))
    assert interval.multiply(near, far, 53) == Enclosure(End(libmp.fzero, True), far.high)
    zero = interval.hull(0, 0)
    assert interval.multiply(zero, far, 53) == zero
    assert interval.add(far, interval.negate(far), 53).low.value == libmp.fninf


@given(enclosures(), st.fractions(Fraction(1, 1000), 1000, max_denominator=1000))
def test_codes(a, scale):
    """Least and greatest code, against the codes of the ends and of points beside open ones."""

    def code(value):
        return min(max(round(value / scale) + 3, -100), 100)

    tiny = Fraction(1, 1 << 200)
    low, high = interval.to_fraction(a.low.value), interval.to_fraction(a.high.value)
    expected = code(low + tiny * a.low.open), code(high - tiny * a.high.open)
    assert interval.codes(a, scale, 3, -100, 100) == expected


def test_codes_of_ties():
    tie = libmp.from_rational(5, 2, 53)
    for low_open, high_open, expected in (
        (False, False, (2, 2)),
        (True, False, (3, 2)),
        (False, True, (2, 2)),
    ):
        a = Enclosure(End(tie, low_open), End(tie, high_open))
        assert interval.codes(a, Fraction(1), 0, -9, 9) == expected


# --- elementary functions ---------------------------------------------------------------------


def arguments(name):
    """Points of every size in the domain, and near its ends."""
    generator = random.Random(name)
    for _ in range(100):
        mantissa = generator.getrandbits(40) | 1
        value = libmp.from_man_exp(mantissa, generator.randint(-300, 11) - 40)
        if name in ("asin", "acos", "atanh"):
            value = libmp.from_man_exp(mantissa, generator.randint(-200, 0) - 40)
            if generator.random() < 0.5:
                value = libmp.mpf_sub(libmp.fone, value)
        if name == "acosh" or (name == "log" and generator.random() < 0.5):
            value = libmp.mpf_add(libmp.fone, value)
        signed = name not in ("log", "sqrt", "acosh", "cosh") and generator.random() < 0.5
        yield libmp.mpf_neg(value) if signed else value


@pytest.mark.parametrize("precision", [96, 384])
@pytest.mark.parametrize("name", [*MONOTONE, *PERIODIC])
def test_elementary_functions(name, precision):
    """The enclosure of a point holds that of ten times the precision, and is narrow."""
    for value in arguments(name):
        point = Enclosure(End(value, False), End(value, False))
        if name in PERIODIC:
            found = interval.periodic(PERIODIC[name], point, precision)
            fine = interval.periodic(PERIODIC[name], point, 10 * precision)
        else:
            found = MONOTONE[name](point, precision)
            fine = MONOTONE[name](point, 10 * precision)
        assert libmp.mpf_le(found.low.value, fine.low.value), value
        assert libmp.mpf_le(fine.high.value, found.high.value), value
        width = libmp.mpf_sub(found.high.value, found.low.value)
        size = max(interval.magnitude(end.value) if end.value[1] else -(10**9) for end in found)
        assert interval.magnitude(width) <= size - precision + interval.GUARD + 4


@pytest.mark.parametrize("name", [*MONOTONE, *PERIODIC])
def test_functions_over_an_interval(name):
    """The enclosure over an interval holds the values at its points."""
    generator = random.Random(name)
    points = sorted(arguments(name), key=interval.to_fraction)
    for _ in range(50):
        start = generator.randrange(len(points) - 3)
        low, middle, high = points[start], points[start + 1], points[start + 3]
        a = Enclosure(End(low, False), End(high, False))
        inside = Enclosure(End(middle, False), End(middle, False))
        if name in PERIODIC:
            found = interval.periodic(PERIODIC[name], a, 96)
            value = interval.periodic(PERIODIC[name], inside, 400)
        else:
            found, value = MONOTONE[name](a, 96), MONOTONE[name](inside, 400)
        assert libmp.mpf_le(found.low.value, value.low.value)
        assert libmp.mpf_le(value.high.value, found.high.value)


@pytest.mark.parametrize("exponent", [100, 499, 501, 1023, 1025, 10**6, 1 << 200])
def test_huge_arguments(exponent):
    for sign in (1, -1):
        value = libmp.from_man_exp(sign, exponent)
        point = Enclosure(End(value, False), End(value, False))
        for name in ("exp", "tanh", "erf", "erfc", "sinh", "atan", "asinh"):
            for precision in interval.PRECISIONS[:3]:
                found = MONOTONE[name](point, precision)
                assert libmp.mpf_lt(found.low.value, found.high.value)
        for core in PERIODIC.values():
            interval.periodic(core, point, 96)
    positive = libmp.from_man_exp(1, exponent)
    found = MONOTONE["tanh"](Enclosure(End(positive, False), End(positive, False)), 96)
    assert found.high == End(libmp.fone, True)
