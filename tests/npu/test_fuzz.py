"""Mutated firmware: the same bits from simulator and translation, or a SamebitsError."""

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
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    ran, long, errors = map(int, done.stdout.split())
    assert ran + long + errors == count
    # Mutations that all fail, or none, would test one side only.
    assert ran > count // 10
    assert errors > count // 10


def test_a_few_hundred_mutations() -> None:
    fuzz(0, 300)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(10_000, 40_000, 5000))
def test_thousands_of_mutations(first: int) -> None:
    fuzz(first, 5000)
