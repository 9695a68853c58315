"""Commands in which memory, a file or a worker fails: at every place in turn.

A process into which `faults.c` is preloaded imports what the commands need, and forks a child for
every point, which runs `samebits ...` as its command line does. In it fails one allocation, or all
from one on; or one call of the file system: no more open files, a full disk, a bad disk. Or one of
two workers of a run stops (SIGSTOP), dies, or loses a connection in place of its n-th message.

However a child ends, its exit code must be 0, 1 or 2, with one sentence and no traceback; every
file under its final name is whole, as it was before or as the command writes it; no checkpoint is
lost; and a run that is resumed ends with the bits of one that was left alone.

Where an allocation fails inside another library, that library may end the process, and nobody can
help it: numpy 2.4 reads a null pointer where a ufunc gets no memory for a result that is not
contiguous, Rust aborts, the C library aborts without memory for a thread. Such points are counted
("ended by a library"); their files and the resumed run are held to the same.

    LD_PRELOAD=faults.so python failing.py FOLDER POINTS [--slice K/N] CASE ...

prints a line of JSON for every case. POINTS is the number of points of each case; 0 is all. Of N
processes beside each other each takes its share (K from 0), and no point twice.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import errno
import faulthandler
import functools
import importlib
import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import faults
from fault_cases import outcome
from faults import State, state
from samebits.files import write_archive

LEAST = 1 << 14  # bytes of an allocation that may fail; smaller ones the C library has in store
LIBRARY = (-signal.SIGSEGV, -signal.SIGABRT, 127)  # exit codes of processes that libraries ended
MATPLOTLIB = (  # what it says, in exceptions of other names, where FreeType gets no memory
    "Exception ignored in: 'read_from_file_callback'",
    "RuntimeError: i exceeds the available number of char maps",
)
PATIENCE = 100  # seconds that a child may take
TIMEOUT = 1.5  # seconds after which a worker counts as lost
STOP, DIE, CUT = 1, 2, 3  # what a worker does in place of a message, in faults.c
SILENCES = {"stopped worker": STOP, "dead worker": DIE, "connection cut": CUT}
ERRORS = {
    "open": errno.EMFILE, "load": errno.EMFILE, "truncate": errno.EMFILE, "write": errno.ENOSPC,
    "fsync": errno.EIO, "rename": errno.EIO, "exchange": errno.EIO, "mkdir": errno.ENOSPC,
    "unlink": errno.EIO, "link": errno.EIO,
}  # fmt: skip


@dataclass(frozen=True)
class Failure:
    """What fails, and where: the number of the allocation, call or message.

    kind: "memory", "memory from there on", a verb of the log of faults.c, or one of SILENCES
    """

    kind: str
    number: int

    def arm(self, library: ctypes.CDLL) -> None:
        """Let it happen in this process."""
        if self.kind.startswith("memory"):
            failures = 1 if self.kind == "memory" else 1 << 62
            starve = library.samebits_starve
            starve(ctypes.c_long(self.number), ctypes.c_long(failures), ctypes.c_size_t(LEAST))
        elif self.kind in SILENCES:
            library.samebits_silence(SILENCES[self.kind], ctypes.c_long(self.number))


@dataclass(frozen=True)
class Ended:
    """A child that ended: its exit code, what it printed on stderr, its calls, how many
    allocations and messages there were, and the modules that it used."""

    code: int
    err: str
    calls: list[str] = field(default_factory=list)
    allocations: int = 0
    messages: int = 0
    modules: tuple[str, ...] = ()


# --- the children -----------------------------------------------------------------------------


def run(
    folder: Path, words: Sequence[str], failure: Failure | None = None, rank: int | None = None
) -> int:
    """Start `samebits WORDS` in a forked process, in `folder`: its process id.

    What it prints and counts goes to files beside the folder.
    """
    process = os.fork()
    if process:
        return process
    code = 1
    library = ctypes.CDLL(os.environ["SAMEBITS_FAULTS"])
    try:
        signal.alarm(PATIENCE)
        os.chdir(folder)
        beside = f"{folder}.{rank or 0}"
        kept = [os.open(f"{beside}.{n}", os.O_RDWR | os.O_CREAT | os.O_TRUNC) for n in range(1, 5)]
        os.dup2(kept[0], 1)
        os.dup2(kept[1], 2)
        faulthandler.enable()
        call = failure is not None and failure.kind in ERRORS
        how = faults.MODES["error"] if call else faults.WATCH
        number, error = (failure.number, ERRORS[failure.kind]) if call else (0, 0)
        library.samebits_note_reading()
        library.samebits_starve(0, 0, ctypes.c_size_t(LEAST))
        library.samebits_silence(9, 0)  # which only counts
        library.samebits_arm(b"", how, ctypes.c_long(number), error, kept[2])
        if failure is not None:
            failure.arm(library)
        code = command_line(words)
        library.samebits_arm(b"", faults.WATCH, ctypes.c_long(0), 0, -1)
        counts = library.samebits_allocations(), library.samebits_messages()
        library.samebits_starve(0, 0, ctypes.c_size_t(0))
        if failure is None:
            os.write(kept[3], json.dumps((*counts, [*sys.modules])).encode())
    finally:
        os._exit(code)


def command_line(words: Sequence[str]) -> int:
    """The exit code of a command in this process, which Python would give it."""
    from samebits.cli import main

    try:
        try:
            main(words)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
            code = 1
        try:
            sys.stdout.flush()
        except OSError:
            return 120
        sys.stderr.flush()
        return code
    except BaseException:
        return 99


def ended(folder: Path, process: int, rank: int | None = None) -> Ended:
    """What a child left, once it has ended."""
    _, status = os.waitpid(process, 0)
    _, err, log, counts = (
        Path(f"{folder}.{rank or 0}.{n}").read_text(errors="replace") for n in range(1, 5)
    )
    counted = json.loads(counts or "[]")
    return Ended(os.waitstatus_to_exitcode(status), err, log.splitlines(), *counted)


def alone(folder: Path, words: Sequence[str], failure: Failure | None = None) -> Ended:
    """A command in a child of its own, from beginning to end."""
    return ended(folder, run(folder, words, failure))


# --- the cases --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A command in a folder that `prepare` has made. `folders` appear as wholes; other files each.

    run: a run folder of the command, which --resume continues, or none
    """

    prepare: Callable[[Path], object]
    words: str
    folders: tuple[str, ...] = ()
    run: str = ""
    workers: int = 1


TRAIN = (
    "train --data data.npz --arch mlp --epochs 1 --batch 16 --shards 2 --seed 3 --threads 1 "
    f"--checkpoint-every 1 --out run --resume --worker-timeout {TIMEOUT}"
)


def data(folder: Path) -> None:
    """Forty-eight images of three classes: three steps of an epoch."""
    rng = np.random.default_rng(5)
    labels = np.arange(60) % 3
    images = (rng.integers(0, 120, (60, 24, 24)) + 60 * labels[:, None, None]).astype(np.uint8)
    arrays = {"x_train": images[:48], "y_train": labels[:48]}
    write_archive(folder / "data.npz", arrays | {"x_test": images[48:], "y_test": labels[48:]})


def begun(folder: Path) -> None:
    """A run of which two steps of three are done."""
    data(folder)
    assert alone(folder, TRAIN.split()).code == 0
    (folder / "run" / "checkpoint-00000003.safetensors").unlink()
    (folder / "run" / "result.json").unlink()


def networks(folder: Path) -> None:
    """A float network, samples for it, a quantized network, and outputs of an earlier day."""
    from tiny_models import float_file, quantized_file

    float_file(folder / "float.onnx", ("N", 600), 40)
    quantized_file(folder / "quantized.onnx")
    x = np.random.default_rng(2).normal(size=(16, 600)).astype(np.float32)
    write_archive(folder / "samples.npz", {"x": x})
    for name in ("q.onnx", "page.html", "plan.json", "plan.svg"):
        (folder / name).write_text("of an earlier day")


CASES = {
    "train": Case(data, f"{TRAIN} --trace trace", run="run"),
    "resume": Case(begun, TRAIN, run="run"),
    "quantize": Case(
        networks, "quantize float.onnx --data samples.npz --out q.onnx --report page.html"
    ),
    "compile": Case(networks, "compile quantized.onnx --out out --report page.html", ("out",)),
    "report": Case(networks, "report quantized.onnx --out page.html"),
    "report of a run": Case(begun, "report run --out page.html"),
    "plan": Case(
        networks,
        "plan --arch mlp --batch 16 --input 1,24,24 --classes 3 --memory-budget 100% --threads 1 "
        "--out plan.json --picture plan.svg --report page.html",
    ),
    "workers": Case(data, TRAIN, run="run", workers=2),
}


def plain(name: str, content: bytes) -> bytes:
    """A file without what differs from run to run: times."""
    if name.endswith((".jsonl", ".json", ".html")):
        return re.sub(rb'("[a-z_]*seconds[a-z_]*": )[0-9.e-]+', rb"\1", content)
    return content


def first_difference(found: bytes, expected: bytes) -> str:
    """The first lines that differ."""
    lines = zip(found.splitlines(), expected.splitlines(), strict=False)
    return next((f"{a!r:.300}, not {b!r:.300}" for a, b in lines if a != b), "its length")


# --- the points -------------------------------------------------------------------------------


@dataclass
class Bench:
    """A case with its states: where it starts, and what it leaves where nothing fails."""

    name: str
    case: Case
    template: Path
    before: State
    after: State
    watched: Ended
    by_libraries: int = 0

    def points(self) -> list[Failure]:
        """All of them."""
        if self.case.workers > 1:
            number = self.watched.messages
            return [Failure(kind, n) for n in range(1, number + 1) for kind in SILENCES]
        found = [
            Failure(kind, n)
            for kind in ("memory", "memory from there on")
            for n in range(1, self.watched.allocations + 1)
        ]
        for n, line in enumerate(self.watched.calls, 1):
            if not line.startswith(("load /proc/", "load /sys/")):  # other libraries read these
                found.append(Failure(line.partition(" ")[0], n))
        return found

    def at(self, failure: Failure, folder: Path) -> str | None:
        """What is wrong with a command in which this fails; None: nothing."""
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.template, folder, symlinks=True)
        try:
            if self.case.workers > 1:
                self._together(folder, failure)
            else:
                done = alone(folder, self.case.words.split(), failure)
                if ended_by_library(done, failure):
                    self.by_libraries += 1
                else:
                    check_end(done)
                self._check_files(folder, done)
            if self.case.run:
                self._check_resumed(folder)
        except AssertionError as error:
            where = ""
            if failure.kind in ERRORS:
                where = f" ({self.watched.calls[failure.number - 1]})"
            return f"{failure.kind} {failure.number}{where}: {error}"
        return None

    def _together(self, folder: Path, failure: Failure) -> None:
        """Two workers, of which the second fails, or in turn the first."""
        failing = failure.number % 2
        first, second = together(folder, self.case.words.split(), failure, failing)
        both = (first, second)
        others = [worker for rank, worker in enumerate(both) if rank != failing]
        if failure.kind == "connection cut":
            others = list(both)
        for worker in others:
            check_end(worker)
        told = [line for w in both for line in w.err.splitlines() if line.startswith("error: ")]
        assert len(told) <= 1 or failure.kind == "connection cut", f"told twice: {told}"
        if any(worker.code for worker in others):
            assert told, f"nothing is told: {[w.code for w in both]} {first.err} {second.err}"

    def _check_files(self, folder: Path, done: Ended) -> None:
        """Every file is that of before or of after, and where all is well of after."""
        if self.case.run:
            check_run(folder / self.case.run, self.before)
            return
        check_litter(folder)
        if "native kernels are off" in done.err:
            return  # a plan says what a pass holds, which is more without them
        found = state(folder)
        for name in {**found, **self.before, **self.after}:
            texts = [plain(name, s[name]) for s in (self.before, self.after) if name in s]
            if name not in found:
                lacks = name not in self.before or name not in self.after
                assert lacks, f"{name} is gone"
            else:
                assert plain(name, found[name]) in texts, (
                    f"{name} is neither old nor new: {first_difference(found[name], texts[-1])}"
                )
        for place in self.case.folders:
            names = {name for name in found if name.startswith(f"{place}/")}
            wholes = [
                {n for n in s if n.startswith(f"{place}/")} for s in (self.before, self.after)
            ]
            assert names in wholes, f"{place} is a part"
        if done.code == 0:
            assert set(found) == set(self.after), f"done, but found {sorted(found)}"

    def _check_resumed(self, folder: Path) -> None:
        """The run, continued with nothing that fails, ends with the undisturbed bits."""
        again = alone(folder, TRAIN.split())
        assert again.code == 0, f"resumed: exit code {again.code}: {again.err}"
        found = state(folder)
        own = [name for name in self.after if name.startswith(f"{self.case.run}/")]
        outcomes = [
            outcome({name: files.get(name, b"") for name in own}) for files in (found, self.after)
        ]
        assert outcomes[0] == outcomes[1], "resumed: other bits"
        check_litter(folder)


def ended_by_library(done: Ended, failure: Failure) -> bool:
    """Whether another library ended a process that got no memory, or swallowed the error."""
    if not failure.kind.startswith("memory"):
        return False
    return done.code in LIBRARY or any(words in done.err for words in MATPLOTLIB)


def check_end(done: Ended) -> None:
    """AssertionError unless a command has ended by itself, with one sentence if it failed."""
    assert "Traceback" not in done.err, f"a traceback: {done.err[-3000:]}"
    assert "Exception ignored" not in done.err, f"ignored: {done.err[-3000:]}"
    assert done.code in (0, 1, 2), f"exit code {done.code}: {done.err[-3000:]}"
    assert done.code == 0 or re.findall("^error: ", done.err, re.M) in ([], ["error: "]), done.err


def check_run(run: Path, before: State) -> None:
    """A run folder has no checkpoint that is damaged, and none older than before."""
    from samebits.errors import CheckpointError
    from samebits.train.run.checkpoint import list_checkpoints, read_checkpoint

    steps = [0]
    for path in list_checkpoints(run):
        try:
            steps.append(read_checkpoint(path).step)
        except CheckpointError as error:
            raise AssertionError(f"{path.name} is damaged: {error}") from None
    known = [int(name[-20:-12]) for name in before if name.endswith(".safetensors")]
    assert max(steps) >= max(known, default=0), f"steps {steps}, {known} before"
    for name in ("config.json", "result.json"):
        if (run / name).exists():
            assert json.loads((run / name).read_bytes())["format"], name


def check_litter(folder: Path) -> None:
    """AssertionError where a temporary file was left."""
    left = [name for name in faults.names(folder) if name.endswith((".tmp", ".lock"))]
    assert left == [], f"litter: {left}"


# --- workers ----------------------------------------------------------------------------------


def free_port() -> int:
    """A port that nobody uses, at the moment."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def together(
    folder: Path, words: Sequence[str], failure: Failure | None = None, failing: int = 0
) -> tuple[Ended, Ended]:
    """A run of two workers, of which number `failing` fails. As torchrun does, the one that is left
    when the other has ended is stopped."""
    port = str(free_port())
    processes = []
    for rank in (0, 1):
        os.environ.update(
            RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2",
            MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
        )  # fmt: skip
        processes.append(run(folder, words, failure if rank == failing else None, rank))
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR"):
        del os.environ[name]
    stopped = failure is not None and failure.kind == "stopped worker"
    live = set(processes)
    deadline = time.monotonic() + PATIENCE / 2
    while live and time.monotonic() < deadline:
        for process in list(live):
            if os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                live.discard(process)
        if stopped and live == {processes[failing]}:
            break
        time.sleep(0.005)
    for process in live:
        os.kill(process, signal.SIGKILL)
    first, second = (ended(folder, process, rank) for rank, process in enumerate(processes))
    return first, second


# --- all of it --------------------------------------------------------------------------------


def bench(name: str, work: Path) -> Bench:
    """A case, prepared and watched once."""
    case = CASES[name]
    template, folder = work / "before", work / "folder"
    template.mkdir(parents=True)
    case.prepare(template)
    for _ in range(2):  # the first imports modules, which the second finds here
        watched = undisturbed(case, template, folder)
        assert watched.code == 0, f"{name} without a failure: {watched.code}: {watched.err}"
        import_all(watched.modules)
    return Bench(name, case, template, state(template), state(folder), watched)


def undisturbed(case: Case, template: Path, folder: Path) -> Ended:
    """The command with nothing that fails; where workers did not meet in time, as on a busy
    machine, once more."""
    for _ in range(10):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(template, folder)
        if case.workers == 1:
            return alone(folder, case.words.split())
        watched = together(folder, case.words.split())[0]
        if watched.code == 0:
            break
    return watched


def import_all(names: Sequence[str]) -> None:
    """Import modules that a child has used, so that the next need not."""
    for name in names:
        if name not in sys.modules:
            with contextlib.suppress(Exception):
                importlib.import_module(name)


def chosen(points: Sequence[Failure], number: int, seed: str) -> list[Failure]:
    """All of the points, or so many of them, spread over all kinds."""
    if number == 0 or number >= len(points):
        return list(points)
    kinds: dict[str, list[Failure]] = {}
    for point in points:
        kinds.setdefault(point.kind, []).append(point)
    rng = random.Random(seed)
    for found in kinds.values():
        rng.shuffle(found)
    picked: list[Failure] = []
    while len(picked) < number:
        for found in kinds.values():
            if found and len(picked) < number:
                picked.append(found.pop())
    return picked


def share(points: Sequence[Failure], number: int, part: str) -> tuple[list[Failure], int]:
    """The points that slice "K/N" may take, whatever the other processes find, and its number."""
    own, of = (int(word) for word in part.split("/"))
    taken = number // of + (own < number % of)
    assert taken or not number, f"fewer points than slices: {number} and {of}"
    return [point for point in points if point.number % of == own], taken


def main(folder: str, number: str, *wanted: str) -> None:
    """Try points of cases by name; what was found as lines of JSON."""
    import torch
    import typer.main

    from samebits.cli import app

    torch.set_num_threads(1)
    # The command line is made from the functions of its commands once, not anew in every child.
    typer.main.get_command = functools.cache(typer.main.get_command)
    typer.main.get_command(app)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    part = "0/1"
    if wanted[:1] == ("--slice",):
        part, wanted = wanted[1], wanted[2:]
    for name in wanted or CASES:
        work = Path(folder, name.replace(" ", "-"))
        made = bench(name, work)
        points = chosen(*share(made.points(), int(number), part), name)
        wrong = [text for point in points if (text := made.at(point, work / "folder"))]
        kinds = dict(collections.Counter(point.kind for point in points))
        found = {"case": name, "points": kinds, "by libraries": made.by_libraries, "wrong": wrong}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
