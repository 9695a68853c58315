"""Mutated models: a graph or a SamebitsError, in bounded memory and time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).with_name("fuzz_run.py")


def fuzz(first: int, count: int) -> None:
    done = subprocess.run(
        [sys.executable, str(RUN), str(first), str(count)],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    graphs, errors = map(int, done.stdout.split())
    assert graphs + errors == count
    # Mutations that all fail, or none, would test one side only.
    assert graphs > count // 10
    assert errors > count // 10


def test_a_few_hundred_mutations() -> None:
    fuzz(0, 400)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 21000, 5000))
def test_thousands_of_mutations(first: int) -> None:
    fuzz(first, 5000)
