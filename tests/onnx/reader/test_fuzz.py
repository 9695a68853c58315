"""Mutated models: a graph or a SamebitsError, in bounded memory and time."""

from pathlib import Path

import pytest

from fuzz import fuzz

RUN = Path(__file__).with_name("fuzz_run.py")


def test_a_few_hundred_mutations() -> None:
    fuzz(RUN, 0, 400)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 21000, 5000))
def test_thousands_of_mutations(first: int) -> None:
    fuzz(RUN, first, 5000)
