"""Kills, full disks and losses of power at every call of the file system that an operation makes.

A process of its own, into which `faults.c` is preloaded, runs an operation once to list its calls
below one folder. Then, from the same state, it forks a child for every call: the child is killed
before it (in the middle of a write), or after it, or the call fails, or the disk is full from then
on. A kill is followed by a loss of power: what was written and not synced is gone. Each time the
folder must hold what was there before or what the operation makes, and the operation, run again,
must succeed and leave no litter.

    LD_PRELOAD=faults.so python faults.py FOLDER STRIDE CASE ...

prints for every case the number of calls and of faults, or what was lost.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samebits.csrc import compiler
from samebits.errors import SamebitsError

MEMORY = Path("/dev/shm")
MODES = {"kill": 1, "kill after": 2, "error": 3, "full disk": 4}
WATCH = 0
DONE, TOLD, WRONG, KILLED = 0, 3, 4, 137  # exit codes of a child
OLD = 7200  # seconds

State = dict[str, bytes]


def state(folder: Path) -> State:
    """Every file below a folder by its path, without those that are hidden or in hidden folders."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not any(p.startswith(".") for p in path.relative_to(folder).parts)
    }


def names(folder: Path) -> list[str]:
    """All that lies in a folder, hidden or not."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@dataclass(frozen=True)
class Case:
    """An operation on a folder. `check` raises AssertionError unless the folder holds the state
    before it or that after it, which are given; by default all its files are those of the one or
    of the other. `told`: the error by which the operation says that it failed."""

    prepare: Callable[[Path], object]
    operate: Callable[[Path], object]
    check: Callable[[Path, State, State], None] | None = None
    told: type[Exception] = SamebitsError


# --- the calls --------------------------------------------------------------------------------


def lost_without_power(log: Sequence[str], killed_before: bool) -> dict[str, int]:
    """Files whose last write was not followed by a sync, by the paths that they have at the end:
    the bytes that the disk is sure to hold.

    killed_before: the last call was not made (a write was, in part)
    """
    held: dict[str, int] = {}
    dirty: set[str] = set()
    if killed_before and not log[-1].startswith("write "):
        log = log[:-1]
    for line in log:
        what, _, rest = line.partition(" ")
        path, _, other = rest.partition(" -> ")
        if what in ("open", "write", "truncate"):
            dirty.add(path)
            if what == "truncate":
                held[path] = 0
        elif what == "fsync":
            dirty.discard(path)
            held[path] = int(other)
        elif what == "unlink":
            dirty.discard(path)
        elif what in ("rename", "exchange"):
            moved = {name: moved_path(name, path, other, what == "exchange") for name in dirty}
            dirty = {name for name in moved.values() if name}
            held = {moved_path(n, path, other, what == "exchange"): b for n, b in held.items()}
    return {path: held.get(path, 0) for path in dirty}


def moved_path(name: str, a: str, b: str, exchanged: bool) -> str:
    """The path of a file after a rename of a to b; empty if it was replaced."""
    if name == a or name.startswith(f"{a}/"):
        return b + name[len(a) :]
    if name == b or name.startswith(f"{b}/"):
        return a + name[len(b) :] if exchanged else ""
    return name


def faults_of_order(log: Sequence[str]) -> list[str]:
    """Calls in an order that a loss of power may turn against the user.

    What is renamed is on the disk before, with the entries of its folders; the folder in which it
    then stands is synced after, and before any visible file is deleted.
    """
    wrong: list[str] = []
    moved, entries = set[str](), set[str]()  # folders with a new name, with a new entry
    for number, line in enumerate(log):
        what, _, rest = line.partition(" ")
        path, _, other = rest.partition(" -> ")
        if what in ("rename", "exchange"):
            unsynced = [*lost_without_power(log[:number], False), *entries]
            inside = [name for name in unsynced if name == path or name.startswith(f"{path}/")]
            wrong += [f"{line}: before a sync of {name}" for name in inside]
            moved.add(os.path.dirname(other))
        elif what in ("mkdir", "open"):
            entries.add(os.path.dirname(path))
        elif what == "fsync":
            moved.discard(path)
            entries.discard(path)
        elif what == "unlink":
            moved.discard(path)
            if moved and "/." not in path:
                wrong.append(f"{line}: before a sync of {', '.join(sorted(moved))}")
    return wrong + [f"{folder}: no sync after a rename" for folder in sorted(moved)]


# --- the children -----------------------------------------------------------------------------


def child(case: Case, folder: Path, mode: int = WATCH, number: int = 0) -> tuple[int, list[str]]:
    """Run the operation in a forked process with one fault: its exit code, and its calls."""
    with open(folder.with_suffix(".log"), "w+b", buffering=0) as log:
        process = os.fork()
        if process == 0:
            code = WRONG
            try:
                arm = ctypes.CDLL(os.environ["SAMEBITS_FAULTS"]).samebits_arm
                place = os.fsencode(folder)
                arm(place, mode, ctypes.c_long(number), errno.ENOSPC, log.fileno())
                case.operate(folder)
                code = DONE
            except case.told:
                code = TOLD
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(process, 0)
        log.seek(0)
        lines = log.read().decode().splitlines()
    return os.waitstatus_to_exitcode(status), lines


def check(case: Case, folder: Path, before: State, after: State) -> None:
    """AssertionError unless the folder holds the one state or the other."""
    if case.check is not None:
        case.check(folder, before, after)
        return
    found = state(folder)
    if found not in (before, after):
        raise AssertionError(
            f"found {sorted(found)}, neither as before {sorted(before)} nor after {sorted(after)}"
        )


def one_fault(
    case: Case, template: Path, folder: Path, mode: str, number: int, before: State, after: State
) -> None:
    """AssertionError where a fault at one call loses anything."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(template, folder, symlinks=True)
    code, log = child(case, folder, MODES[mode], number)
    killed = mode.startswith("kill")
    assert code in ((KILLED, DONE) if killed else (TOLD, DONE)), f"exit code {code}"
    if code == KILLED:
        for path, size in lost_without_power(log, mode == "kill").items():
            if os.path.exists(path):
                os.truncate(path, min(size, os.path.getsize(path)))
    check(case, folder, before, after)
    for path in folder.rglob(".*.tmp"):
        assert killed or code == DONE, f"litter of an operation that failed: {path.name}"
        os.utime(path, (path.stat().st_atime - OLD, path.stat().st_mtime - OLD))
    code, _ = child(case, folder)
    assert code == DONE, f"the next run: exit code {code}"
    if case.check is None:
        assert state(folder) == after, "the next run ended otherwise"
    else:
        case.check(folder, after, after)
    left = [name for name in names(folder) if name.endswith(".tmp")]
    assert left == [], f"litter after the next run: {left}"


def enumerate_faults(case: Case, work: Path, stride: int) -> dict[str, int]:
    """Every `stride`-th call of an operation with every fault: the numbers of calls and faults."""
    template, folder = work / "before", work / "folder"
    template.mkdir()
    case.prepare(template)
    shutil.copytree(template, folder, symlinks=True)
    before = state(folder)
    code, log = child(case, folder)
    assert code == DONE, f"without a fault: exit code {code}"
    after = state(folder)
    assert (wrong := faults_of_order(log)) == [], "\n".join(wrong)
    made = 0
    for mode in MODES:
        for number in range(1, len(log) + 1, stride):
            try:
                one_fault(case, template, folder, mode, number, before, after)
            except AssertionError as error:
                raise AssertionError(
                    f"{mode} at call {number}, {log[number - 1]}: {error}"
                ) from None
            made += 1
    return {"calls": len(log), "faults": made}


def main(folder: str, stride: str, *wanted: str) -> None:
    """Enumerate the faults of cases by name; what they gave as a line of JSON."""
    from fault_cases import CASES

    warnings.simplefilter("ignore")  # of native kernels that are off, and damaged caches
    for name in wanted:
        work = Path(folder, name)
        work.mkdir()
        try:
            found = dict[str, int | str](enumerate_faults(CASES[name], work, int(stride)))
        except AssertionError as error:
            found = {"lost": str(error).replace(f"{work}/folder", "FOLDER")}
        print(json.dumps({"case": name, **found}))


def run(folder: Path, stride: int, *cases: str) -> dict[str, dict[str, int | str]]:
    """`main` in a process with the library, which is made in `folder`: what it found, by case."""
    results = preloaded("faults.py", folder, str(stride), *cases)
    return {str(result.pop("case")): result for result in results}


def preloaded(script: str, folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """The lines of JSON of `script WORK ARGUMENTS`, with the library that is made in `folder`.

    The files lie in memory where there is such a file system: nothing has to wait for a disk.
    """
    here = Path(__file__).parent
    library = folder / "faults.so"
    command = [*compiler(), "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"]
    command.append("-U_FORTIFY_SOURCE")  # which some compilers set, and whose `open` is inline
    subprocess.run([*command, "-o", library, here / "faults.c", "-ldl"], check=True)
    memory = MEMORY if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) else folder
    environment = {
        **os.environ,
        "LD_PRELOAD": str(library),
        "SAMEBITS_FAULTS": str(library),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(here), os.environ.get("PYTHONPATH")))),
    }
    with tempfile.TemporaryDirectory(prefix="samebits-faults-", dir=memory) as work:
        done = subprocess.run(
            [sys.executable, str(here / script), work, *arguments],
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


if __name__ == "__main__":
    main(*sys.argv[1:])
