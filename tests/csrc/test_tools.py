"""Tools are run with a limit of time, after which nothing of them is left."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

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


@pytest.fixture
def line(tmp_path) -> Iterator[tuple[Path, int]]:
    """A pipe by name, and its end for reading: it ends when nobody is left who might write.

    A tool holds it open, with all that it starts, so that no clock tells whether they are gone.
    """
    if os.name != "posix":
        pytest.skip("pipes of POSIX")
    path = tmp_path / "line"
    os.mkfifo(path)
    end = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    yield path, end
    os.close(end)


def held(line: Path) -> str:
    """A program of the shell that tells when it runs, and whether it was left to its end.

    As a compiler's driver, it waits for a program that it has started.
    """
    return f"exec 3>{line}; echo started >&3; (sleep 60; echo late >&3) & wait"


def rest(end: int) -> str:
    """What is written until nobody is left."""
    os.set_blocking(end, True)
    with open(end, encoding="ascii", closefd=False) as file:
        return file.read()


def test_a_tool_that_does_not_end(line):
    """It is killed, and the program that it has started; both may not even have begun."""
    path, end = line
    with pytest.raises(InputError) as error:
        run_tool(["sh", "-c", held(path)], 0.5)
    told = str(error.value)
    assert told.startswith("expected \"sh -c 'exec 3>")
    assert " to end within 0.5 seconds, found it still running; run it yourself" in told
    assert rest(end) in ("", "started\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_tool_ends_with_the_process_that_runs_it(number, line):
    """A cancelled job or a closed terminal leaves no compiler behind."""
    path, end = line
    code = (  # where tests run in the background or under nohup, it would ignore some
        f"import signal; signal.signal({int(number)}, signal.SIG_DFL); "
        f"from samebits.csrc import run_tool; run_tool(['sh', '-c', {held(path)!r}], 600)"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    while not select.select([end], [], [], 1)[0]:
        assert process.poll() is None
    process.send_signal(number)
    assert process.wait() == -number
    assert rest(end) == "started\n"


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize("starts", [True, False])
def test_a_signal_while_a_tool_is_started_is_kept_until_it_runs(starts, line):
    """The tool may run before this process knows its number, or there is no such tool."""
    path, end = line
    tool = ["sh", "-c", held(path)] if starts else ["no-such-tool"]
    code = f"""
import os, select, signal, subprocess
from samebits import csrc
signal.signal(signal.SIGTERM, signal.SIG_DFL)
class Slow(subprocess.Popen):
    def _execute_child(self, *args, **options):
        try:
            super()._execute_child(*args, **options)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
subprocess.Popen = Slow
csrc.run_tool({tool!r}, 600)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == -signal.SIGTERM
    assert rest(end) in ("", "started\n")
