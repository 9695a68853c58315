"""Ziv's loop: the first precision that decides, ties that none proves, and what stays undecided."""

from __future__ import annotations

from fractions import Fraction

from samebits.tables import CodeRange, interval
from samebits.tables.interval import PRECISIONS
from samebits.tables.precise import MAX_BITS, Precise, ends, nearest_code, one_result, rounded

WHOLE = CodeRange(Fraction(1), 0, -100, 100)


def test_the_first_precision_that_decides_is_the_last_one_tried():
    tried = []

    def decide(value, final):
        tried.append((value, final))
        return value if value > 300 else None

    assert rounded(lambda a: a.precision, decide) == 384
    assert tried == [(96, False), (192, False), (384, False)]


def test_the_last_precision_is_told_so():
    tried = []
    assert (
        rounded(lambda a: (a.precision, a.final), lambda value, final: tried.append(value)) is None
    )
    assert tried == [(precision, precision == PRECISIONS[-1]) for precision in PRECISIONS]


def test_a_value_near_a_tie_takes_the_precision_that_it_needs():
    """2 + 1/2 -+ exp(-200): 96 bits do not tell it from the tie; 384 do."""
    used = []

    def near(a, side):
        used.append(a.precision)
        difference = a.multiply(side, a.function("exp", Fraction(-200)))
        # minus and plus sqrt(2): so that no open end knows the side by itself
        root = a.function("sqrt", Fraction(2))
        return a.subtract(a.add(a.add(Fraction(5, 2), difference), root), root)

    assert nearest_code(near, WHOLE, Fraction(-1)) == 2
    assert nearest_code(near, WHOLE, Fraction(1)) == 3
    assert used == [96, 192, 384] * 2


def test_long_rationals_are_enclosed_and_hold_their_value():
    """Also where the value is one that the ends can be: then it is an end, which is not open."""
    for value in (Fraction(1, 1 << (2 * MAX_BITS)), Fraction(1, 3 ** (2 * MAX_BITS))):
        found = Precise(96).add(value, Fraction(0))
        low, high = (end.value for end in found)
        assert interval.to_fraction(low) <= value <= interval.to_fraction(high)
        assert found.low.open == found.high.open == (value.denominator % 2 == 1)


def test_results_in_common():
    assert one_result(ends(Fraction(5, 2)), round) == 2
    third = interval.enclose(Fraction(1, 3), 96)
    assert one_result(ends(third), round) == 0
    assert one_result([Fraction(1, 3), Fraction(2, 3)], round) is None
