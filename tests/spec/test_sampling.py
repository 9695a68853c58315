"""docs/spec/sampling.md: its constants, greedy choice, and frequencies."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from math import exp, isqrt

import pytest

from samebits.spec.sampling import HALVES, LOG2_E, ONE, Sampling, sample, weight

BITS = 300


def test_the_constants() -> None:
    root = 1 << BITS - 1
    for half in HALVES:
        root = isqrt(root << BITS)
        assert half == (root + (1 << BITS - 31)) >> BITS - 30
    ln2 = sum(Fraction(1, i * 2**i) for i in range(1, 200))
    assert round(Fraction(2**64) / ln2) == LOG2_E


@pytest.mark.parametrize("scale", [Fraction(1, 1 << 14), Fraction(1, 3), Fraction(1, 1 << 80)])
def test_weights_are_exponentials(scale: Fraction) -> None:
    how = Sampling.of(5, scale, Fraction(7, 10))
    assert weight(how, 0) == ONE
    for octaves in (0.001, 0.5, 1, 3, 7.77, 20):
        d = min(round(octaves / (float(scale) / 0.7)), 2**32 - 1)
        expected = exp(-d * float(scale) / 0.7)
        assert weight(how, d) / ONE == pytest.approx(expected, rel=1e-4, abs=2e-9)
    assert [weight(how, d) for d in range(9)] == sorted(
        (weight(how, d) for d in range(9)), reverse=True
    )


def test_greedy_is_the_first_of_the_largest() -> None:
    how = Sampling.of(1, Fraction(1, 8), Fraction(1))
    assert {sample(how, [3, 9, -4, 9], seed, step) for seed in range(9) for step in range(9)} == {1}


def test_the_lower_of_equal_logits_is_a_candidate() -> None:
    how = Sampling.of(2, Fraction(1, 8), Fraction(1))
    assert {sample(how, [5, 7, 5, 5], 1, step) for step in range(60)} == {0, 1}


def test_frequencies() -> None:
    how = Sampling.of(3, Fraction(1, 16), Fraction(1, 2))
    logits = [0, 8, 4, -100, 8]
    found = Counter(sample(how, logits, 123456789012, step) for step in range(4000))
    assert set(found) == {1, 2, 4}
    whole = 2 + exp(-0.5)
    for token, share in ((1, 1 / whole), (4, 1 / whole), (2, exp(-0.5) / whole)):
        assert found[token] / 4000 == pytest.approx(share, abs=0.03)


def test_draws_depend_on_seed_and_step_alone() -> None:
    how, logits = Sampling.of(99, Fraction(1, 64), Fraction(1)), list(range(50))
    drawn = [sample(how, logits, seed, 0) for seed in (0, 1, 1 << 32, (1 << 64) - 1)]
    assert drawn == [sample(how, logits, seed, 0) for seed in (0, 1, 1 << 32, (1 << 64) - 1)]
    assert len(set(drawn)) > 1
