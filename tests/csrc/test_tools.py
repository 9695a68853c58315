"""Tools are run with a limit of time, after which nothing of them is left."""

from __future__ import annotations

import os
import signal
import subprocess
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


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_tool_ends_with_the_process_that_runs_it(number, tmp_path):
    """A cancelled job or a closed terminal leaves no compiler behind."""
    tool = f"touch {tmp_path}/started; sleep 2; touch {tmp_path}/late"
    code = (  # where tests run in the background or under nohup, it would ignore some
        f"import signal; signal.signal({int(number)}, signal.SIG_DFL); "
        f"from samebits.csrc import run_tool; run_tool(['sh', '-c', {tool!r}], 60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    while not (tmp_path / "started").exists():
        time.sleep(0.01)
        assert process.poll() is None
    process.send_signal(number)
    assert process.wait(60) == -number
    time.sleep(2.2)
    assert [path.name for path in tmp_path.iterdir()] == ["started"]
