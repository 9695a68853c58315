"""Elementary functions: enclosures hold the value, and the binary64 ones keep their bound."""

from __future__ import annotations

import random

import numpy as np
import pytest
from mpmath import libmp

from samebits.tables import interval
from samebits.tables.elementary import GUARD, MONOTONE, PERIODIC
from samebits.tables.interval import Enclosure, End
from samebits.tables.screen import TINY, TRUST

FUNCTIONS = {**MONOTONE, **PERIODIC}


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
@pytest.mark.parametrize("name", FUNCTIONS)
def test_elementary_functions(name, precision):
    """The enclosure of a point holds that of ten times the precision, and is narrow."""
    for value in arguments(name):
        point = Enclosure(End(value, False), End(value, False))
        found, fine = FUNCTIONS[name](point, precision), FUNCTIONS[name](point, 10 * precision)
        assert libmp.mpf_le(found.low.value, fine.low.value), value
        assert libmp.mpf_le(fine.high.value, found.high.value), value
        width = libmp.mpf_sub(found.high.value, found.low.value)
        size = max(interval.magnitude(end.value) if end.value[1] else -(10**9) for end in found)
        assert interval.magnitude(width) <= size - precision + GUARD + 4


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_over_an_interval(name):
    """The enclosure over an interval holds the values at its points."""
    generator = random.Random(name)
    points = sorted(arguments(name), key=interval.to_fraction)
    for _ in range(50):
        start = generator.randrange(len(points) - 3)
        low, middle, high = points[start], points[start + 1], points[start + 3]
        a = Enclosure(End(low, False), End(high, False))
        inside = Enclosure(End(middle, False), End(middle, False))
        found, value = FUNCTIONS[name](a, 96), FUNCTIONS[name](inside, 400)
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
        for f in PERIODIC.values():
            f(point, 96)
    positive = libmp.from_man_exp(1, exponent)
    found = MONOTONE["tanh"](Enclosure(End(positive, False), End(positive, False)), 96)
    assert found.high == End(libmp.fone, True)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_library_keeps_the_bound_that_the_screen_trusts(name):
    """Within 2**-40 (of the result; of 1 for sin and cos) of the function of the same binary64."""
    for value in arguments(name):
        x = libmp.to_float(value, strict=False)
        with np.errstate(over="ignore"):
            found = float(FUNCTIONS[name].library(np.array([x]))[0])
        wanted = FUNCTIONS[name].core(libmp.from_float(x), 200)
        if abs(x) > 700 or not interval.is_finite(wanted):  # overflow, and what lies at its edge
            continue
        wanted = libmp.to_float(wanted)
        size = 1.0 if name in PERIODIC else abs(wanted)
        assert abs(found - wanted) <= size * TRUST + TINY
