"""Tools are run with a limit of time, after which nothing of them is left."""

from __future__ import annotations

import os
import sys
import time

import pytest

from samebits.csrc import run_tool
from samebits.errors import InputError


def test_a_tool_that_ends():
    code = "import os; print(input() + os.environ['LC_ALL'] + os.getcwd()[:1]); exit(3)"
    done = run_tool([sys.executable, "-c", code], 60, "told ")
    assert (done.returncode, done.stdout, done.stderr) == (3, f"told C{os.sep}\n", "")


def test_a_tool_that_does_not_read():
    """A megabyte is more than a pipe holds."""
    assert run_tool([sys.executable, "-c", ""], 60, "x" * 2**20).returncode == 0


def test_a_tool_that_does_not_end(tmp_path):
    """As a compiler's driver, it waits for a program that it has started: both are killed."""
    with pytest.raises(InputError) as error:
        run_tool(["sh", "-c", f"(sleep 1; touch {tmp_path}/late) & wait"], 0.2)
    told = str(error.value)
    assert told.startswith("expected \"sh -c '(sleep 1; touch ")
    assert " to end within 0.2 seconds, found it still running; run it yourself" in told
    time.sleep(1.2)
    assert not list(tmp_path.iterdir())
