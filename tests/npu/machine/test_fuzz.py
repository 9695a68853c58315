"""Mutated firmware: the same bits from simulator and translation, or a SamebitsError."""

from pathlib import Path

import pytest

from fuzz import fuzz

RUN = Path(__file__).with_name("fuzz_run.py")


def test_a_few_hundred_mutations() -> None:
    fuzz(RUN, 0, 300)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(10_000, 40_000, 5000))
def test_thousands_of_mutations(first: int) -> None:
    fuzz(RUN, first, 5000)
