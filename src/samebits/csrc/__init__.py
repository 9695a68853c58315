"""All C written by hand: what inference, training, audio features and boards are compiled from.

And the compiler of this machine, and how compilers and other tools are run.
"""

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import textwrap
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from samebits.errors import InputError

FOLDER = Path(__file__).parent
ANSWER = 20.0  # seconds in which a tool must tell its version, or compile a few lines
WORK = 600.0  # seconds for anything else


def source(path: str) -> str:
    """The text of one file, by its path in this folder ("inference/conv.c")."""
    return (FOLDER / path).read_text(encoding="utf-8")


def flat(paths: Sequence[str]) -> dict[str, str]:
    """Texts by file name alone: generated packages and builds are one folder."""
    return {path.rpartition("/")[2]: source(path) for path in paths}


def compiler() -> tuple[str, ...]:
    """The command of this machine's C compiler, in words: $CC as the shell splits it ("gcc -m64"),
    else the first of cc, gcc and clang that is there, else cc.

    Whether there is such a program is for the caller to see. Raises InputError where $CC cannot be
    split.
    """
    given = os.environ.get("CC", "")
    try:
        words = shlex.split(given)
    except ValueError as error:
        raise InputError(
            f"$CC: expected a compiler and its arguments, found {given!r} ({error}); correct or "
            "unset it"
        ) from error
    if words:
        return tuple(words)
    return (next(filter(shutil.which, ("cc", "gcc", "clang")), "cc"),)


@contextlib.contextmanager
def _ended_with_us() -> Iterator[Callable[[int], None]]:
    """A process group of its own does not hear of a closed terminal or a cancelled job: where those
    signals end this process, they end the group first. Signals are the main thread's.

    Gives a function that is told the group once it runs. A signal that comes while it is started is
    kept until then: the tool may run already when this process does not know its number yet.
    """
    groups: list[int] = []
    kept: list[int] = []

    def end(number: int, frame: object = None) -> None:
        if not groups:
            kept.append(number)
            return
        with contextlib.suppress(OSError):  # it has ended
            os.killpg(groups[0], signal.SIGKILL)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def started(group: int) -> None:
        groups.append(group)
        if kept:
            end(kept[0])

    main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    ending = [n for n in numbers if signal.getsignal(n) is signal.SIG_DFL]
    before = {number: signal.signal(number, end) for number in ending if main}
    try:
        yield started
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if kept and not groups:  # nothing was started
            os.kill(os.getpid(), kept[0])


def run_to_end(
    command: Sequence[str],
    limit: float,
    text: str | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """A process that has ended, with whatever code; its messages are in English.

    environment: by default that of this process. options: of subprocess.Popen. Raises
    TimeoutExpired where it runs longer than `limit` seconds (it is killed, with all that it
    started, as where a signal ends this process), OSError where it cannot be started.
    """
    given = {**(os.environ if environment is None else environment), "LC_ALL": "C"}
    with (
        _ended_with_us() as started,
        subprocess.Popen(
            command, env=given, text=True, errors="replace", start_new_session=True, **options
        ) as process,
    ):
        try:
            started(process.pid)
            out, err = process.communicate(text, limit)
        except BaseException:  # a driver's own death would leave its compiler running
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def run_tool(
    command: Sequence[str], limit: float, text: str = "", folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """A compiler, emulator or other tool that has ended, with what it said.

    It reads `text` and works in `folder`. Raises InputError where it runs longer than `limit`
    seconds, OSError where it cannot be started.
    """
    pipe = subprocess.PIPE
    try:
        return run_to_end(command, limit, text, cwd=folder, stdin=pipe, stdout=pipe, stderr=pipe)
    except subprocess.TimeoutExpired:
        told = textwrap.shorten(shlex.join(command), 200, placeholder=" ...")
        raise InputError(
            f"expected {told!r} to end within {limit:g} seconds, found it still running; run "
            "it yourself to see what it waits for, or put another in its place ($CC names the "
            "C compiler)"
        ) from None
