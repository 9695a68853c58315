"""Enclosures: they hold the value, their ends know whether they are reached."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import libmp

from samebits.tables import interval
from samebits.tables.interval import CodeRange, Enclosure, End

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
    assert interval.codes(a, CodeRange(scale, 3, -100, 100)) == expected


def test_codes_of_ties():
    tie = libmp.from_rational(5, 2, 53)
    for low_open, high_open, expected in (
        (False, False, (2, 2)),
        (True, False, (3, 2)),
        (False, True, (2, 2)),
    ):
        a = Enclosure(End(tie, low_open), End(tie, high_open))
        assert interval.codes(a, CodeRange(Fraction(1), 0, -9, 9)) == expected
