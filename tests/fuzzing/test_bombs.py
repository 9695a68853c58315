"""Small files that become large: at most 512 MiB each, or one sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fuzzing.bombs import BOMBS, MEMORY, taken

TESTS = Path(__file__).resolve().parents[1]
QUICK = ("png palette", "saved by Hugging Face")


@pytest.mark.parametrize("name", QUICK)
def test_a_bomb_ends_in_one_sentence(name: str, tmp_path: Path) -> None:
    size, said = taken(BOMBS[name](tmp_path))
    assert size < MEMORY
    assert said.startswith(str(tmp_path))
    assert "in memory" in said


@pytest.mark.slow
def test_every_bomb() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fuzzing.bombs"],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]),
        },
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("MiB") == len(BOMBS)
