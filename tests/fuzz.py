"""Mutated files in a process of its own, which bounds memory: see the fuzz_run.py scripts."""

import subprocess
import sys
from pathlib import Path


def fuzz(script: Path, first: int, count: int) -> None:
    """Mutations first, first + 1, ...: the script prints how many of them ended in which way.

    The first number counts files that were accepted, the last ones that were refused.
    """
    done = subprocess.run(
        [sys.executable, str(script), str(first), str(count)],
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    ends = [int(word) for word in done.stdout.split()]
    assert sum(ends) == count
    # Mutations that all fail, or none, would test one side only.
    assert ends[0] > count // 10
    assert ends[-1] > count // 10
