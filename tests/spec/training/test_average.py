"""The definition of averaged weights."""

from __future__ import annotations

from samebits.spec import formats
from samebits.spec.training import average


def test_an_average_that_has_just_begun_stands_for_its_weight():
    for weight in (formats.initial_weight([1.0, -0.3, 1e-5]), ([100, -3], [5, -7], 3)):
        assert average.averaged(average.start(weight)) == weight
    narrow = formats.initial_weight([0.7, -0.1], bits=6)
    assert average.averaged(average.start(narrow), bits=6) == narrow
