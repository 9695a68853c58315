"""One target in this process: memory bounded, time bounded, guided by the lines that cases reach.

A case is kept, to be mutated further, where it reaches a line of samebits that none before it
reached, or is refused with a message of a kind that none before it had. Nothing but SamebitsError
may come out of a reader, with a message that names the file and does not speak of memory, and
nothing is printed; every other end is a defect, saved with the command that replays it.
"""

from __future__ import annotations

import gc
import hashlib
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

import samebits
from fuzzing import hostile  # noqa: F401 - whose targets are among the others
from fuzzing.bounds import BEYOND, MEMORY_WORDS
from fuzzing.targets import SECONDS, TARGETS, Target, seeds_of
from samebits.errors import SamebitsError

CORPUS = Path(__file__).parent / "corpus"
ACCEPTED, REFUSED, DEFECT = "ok", "no", "defect"
POPULATION = 4000  # cases kept at most
FEW = 6  # accepted cases below which each further one is kept
SOURCES = str(Path(samebits.__file__).parent)
IDLE, SAMPLED = (
    200,
    16,
)  # calls of a function that show no new line; then one of so many is followed


class TooSlowError(BaseException):
    """A case took longer than SECONDS."""


class Lines:
    """The lines of samebits that ran, as a trace function.

    Following lines takes twice the time of what runs, so a function that has shown nothing new for
    a while is followed in one of some calls alone.
    """

    def __init__(self) -> None:
        self.seen: set[tuple[str, int]] = set()
        self.idle: dict[CodeType, int] = {}

    def call(self, frame: FrameType, event: str, argument: Any) -> Any:
        """For sys.settrace: follows the functions of samebits alone."""
        code = frame.f_code
        if not code.co_filename.startswith(SOURCES):
            return None
        idle = self.idle[code] = self.idle.get(code, 0) + 1
        return None if idle > IDLE and idle % SAMPLED else self.line

    def line(self, frame: FrameType, event: str, argument: Any) -> Any:
        """One line of such a function."""
        place = (frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and place not in self.seen:
            self.seen.add(place)
            self.idle[frame.f_code] = 0
        return self.line

    @contextmanager
    def traced(self) -> Iterator[None]:
        """Follow what is called inside."""
        sys.settrace(self.call)
        try:
            yield
        finally:
            sys.settrace(None)


@dataclass
class Tally:
    """What became of the cases of one target. defects: by kind, the first case of each."""

    name: str
    accepted: int = 0
    refused: int = 0
    defects: dict[str, str] = field(default_factory=dict)
    kept: int = 0
    lines: int = 0
    seconds: float = 0.0

    @property
    def cases(self) -> int:
        """All of them but defects."""
        return self.accepted + self.refused

    def text(self) -> str:
        """One line for a terminal."""
        return (
            f"{self.name:15} {self.cases:8,} cases in {self.seconds:5.0f} s: {self.accepted:,} "
            f"accepted, {self.refused:,} refused, {self.kept:,} kept, "
            f"{self.lines:,} lines and messages reached, {len(self.defects)} defects"
        )


def corpus_of(name: str) -> list[Path]:
    """The saved cases of a target, in the order of their names."""
    return sorted((CORPUS / name.replace("_", "-")).iterdir())


def bound_memory() -> None:
    """No more than BEYOND from here on."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + BEYOND
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def prepare(target: Target) -> None:
    """Imports, caches and the seeds of a target, before memory is bounded."""
    torch.set_num_threads(1)
    for data in seeds_of(target.read.__name__):
        with tempfile.TemporaryDirectory() as folder:
            target.read(Path(folder), data)
    warnings.simplefilter("error")


def _alarm(number: int, frame: FrameType | None) -> None:
    raise TooSlowError(f"longer than {SECONDS} seconds")


def read(target: Target, data: bytes) -> tuple[str, str]:
    """(ok, no or defect; message or traceback) of a case."""
    folder = Path(tempfile.mkdtemp())
    signal.signal(signal.SIGALRM, _alarm)
    signal.alarm(SECONDS)
    try:
        with quiet() as printed:
            target.read(folder, data)
        return (DEFECT, f"printed: {printed[0]}") if printed else (ACCEPTED, "")
    except SamebitsError as error:
        message = str(error)
        if "case" not in message[: len(str(folder)) + 20]:
            return DEFECT, f"a message that does not begin with the file: {message}"
        if any(word in message for word in MEMORY_WORDS):
            return DEFECT, f"memory: {message}"
        if printed:
            return DEFECT, f"printed beside the error: {printed[0]}"
        return REFUSED, message
    except KeyboardInterrupt:
        raise
    except BaseException:
        return DEFECT, traceback.format_exc()
    finally:
        signal.alarm(0)
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def quiet() -> Iterator[list[str]]:
    """A list that afterwards holds what was written to the standard error meanwhile, by libraries
    in C too: an error is told once, and a traceback not at all."""
    found: list[str] = []
    sys.stderr.flush()
    with tempfile.TemporaryFile() as file:
        kept = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield found
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            text = file.read(10_000).decode("utf-8", "replace")
            if text:
                found.append(text)


def kind_of(problem: str) -> str:
    """What defects of one cause have in common: the last line of samebits, and the error."""
    lines = problem.strip().splitlines()
    places = [line.strip() for line in lines if SOURCES in line]
    return f"{places[-1] if places else ''} {lines[-1].split(':')[0]}".replace(SOURCES, "samebits")


def template(message: str) -> str:
    """A message without what it quotes and counts, and without the path at its beginning."""
    return re.sub(r"'[^']*'|\"[^\"]*\"|[0-9]+|/\S*", "", message)[:200]


def command(target: Target, path: Path) -> str:
    """What replays a case."""
    return f"PYTHONPATH=tests {sys.executable} -m fuzzing --replay {target.name} {path}"


@dataclass(frozen=True)
class Case:
    """A case worth mutating."""

    data: bytes
    accepted: bool


def fuzz(
    target: Target,
    *,
    out: Path,
    seed: int = 0,
    seconds: float | None = None,
    cases: int | None = None,
    start: list[bytes] | None = None,
) -> tuple[Tally, list[Case]]:
    """Mutate from the saved corpus (or `start`) for some seconds or cases; defects are saved in
    `out`. Gives the cases that were kept too, those of the start first.

    `out/current` holds the case that is being read, for whoever finds this process killed.
    """
    out.mkdir(parents=True, exist_ok=True)
    tally, lines = Tally(target.name), Lines()
    began = time.monotonic()
    population: list[Case] = []
    if start is None:
        start = [path.read_bytes() for path in corpus_of(target.name)]
    for data in start:
        with lines.traced():
            end, problem = read(target, data)
        population.append(Case(data, end == ACCEPTED))
        if end == DEFECT:
            _save(target, out, tally, data, problem)
    done = 0
    while (cases is None or done < cases) and (
        seconds is None or time.monotonic() - began < seconds
    ):
        rng = random.Random(f"{seed} {done}")
        done += 1
        if done % 200 == 0:
            gc.collect()
        good = [case for case in population if case.accepted]
        pool = good if good and rng.random() < 0.75 else population
        data = target.mutate(rng.choice(pool).data, rng)
        (out / "current").write_bytes(data)
        before = len(lines.seen)
        with lines.traced():
            end, problem = read(target, data)
        if end == DEFECT:
            _save(target, out, tally, data, problem)
            continue
        tally.accepted += end == ACCEPTED
        tally.refused += end == REFUSED
        if end == REFUSED:
            lines.seen.add((template(problem), 0))
        few = end == ACCEPTED and sum(case.accepted for case in population) < FEW
        if (few or len(lines.seen) > before) and len(population) < POPULATION:
            tally.kept += 1
            population.append(Case(data, end == ACCEPTED))
    (out / "current").unlink(missing_ok=True)
    tally.lines, tally.seconds = len(lines.seen), time.monotonic() - began
    return tally, population


def _save(target: Target, out: Path, tally: Tally, data: bytes, problem: str) -> None:
    """Keep the first case of a kind of defect, and tell of it."""
    kind = kind_of(problem)
    if kind in tally.defects:
        return
    path = out / f"defect-{hashlib.sha256(data).hexdigest()[:12]}"
    path.write_bytes(data)
    tally.defects[kind] = str(path)
    print(f"{target.name}: {kind}\n{problem}\nreplay: {command(target, path)}", file=sys.stderr)


# --- the corpus -----------------------------------------------------------------------------------

CASES = 1200  # tried for a corpus; fewer of what is slow
SLOW = {"pt2": 150, "firmware": 400, "strange_folder": 100, "strange_data": 150, "bomb": 150}
KEPT = 18  # of a target
BYTES = 19_000


def make_corpus(name: str) -> Tally:
    """Write the corpus of a target anew, but for what once was a defect (`*.defect`): its seeds,
    and mutations that were kept, half of them accepted as far as there are so many."""
    target, folder = TARGETS[name], CORPUS / TARGETS[name].name
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if path.suffix != ".defect":
            path.unlink()
    start = list(seeds_of(name))
    with tempfile.TemporaryDirectory() as out:
        tally, population = fuzz(
            target, out=Path(out), cases=SLOW.get(name, CASES), seed=1, start=start
        )
        if tally.defects:
            raise SystemExit(f"{name}: defects; mend them first")
    small = [case for case in population if len(case.data) <= target.size]
    queues = [[case for case in small if case.accepted == end] for end in (True, False)]
    chosen: list[Case] = []
    for turn in range(2 * KEPT):  # in turns: one that is accepted, one that is refused
        queue = queues[turn % 2]
        if queue and len(chosen) < KEPT and _size(chosen) + len(queue[0].data) <= BYTES:
            chosen.append(queue.pop(0))
    for case in chosen:
        digest = hashlib.sha256(case.data).hexdigest()[:12]
        (folder / f"{ACCEPTED if case.accepted else REFUSED}-{digest}").write_bytes(case.data)
    return tally


def _size(cases: list[Case]) -> int:
    return sum(len(case.data) for case in cases)


def replay(name: str) -> Tally:
    """The saved cases of a target: each must end as it did."""
    target, tally = TARGETS[name], Tally(TARGETS[name].name)
    began = time.monotonic()
    for path in corpus_of(name):
        expected = path.name.split("-")[0]
        end, problem = read(target, path.read_bytes())
        tally.accepted += end == ACCEPTED
        tally.refused += end == REFUSED
        if end != expected:
            told = f"expected {expected}, found {end}\n{problem}"
            tally.defects[str(path)] = told
            print(f"{told}\nreplay: {command(target, path)}", file=sys.stderr)
    tally.seconds = time.monotonic() - began
    return tally
