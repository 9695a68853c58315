"""Mutants: does a test of its own room notice a small wrong change? (`mutation.py` lists changes.)

    python benchmarks/mutants.py --out runs/mutants [--count 1000] [--rooms spec,numerics]

Of each room an equal number of mutants is drawn by a fixed seed; --count 100 draws a part of what
--count 1000 draws. The tests of a room are those of its own folders (ROOMS), slow ones left out.
They run once unchanged, to learn which test runs which line (coverage.py); a mutant then meets the
tests that run its statement and those that share a fixture with one of them, fastest first, until
one fails. It is

    killed      a test failed, or the interpreter crashed
    timeout     a test ran several times as long as unchanged, or took 6 GiB of memory; counts as
                killed, but is listed apart
    survived    all passed, up to --budget seconds of tests as they take unchanged
    not run     no test of the room runs the statement; counts as survived

Tests that killed run once more, unchanged: verdicts of one that fails then too are withdrawn.
`mutants_known.json` holds survivors with reasons: those that change nothing that could be observed
("equivalent") leave the fraction and are counted beside it; those that a test could kill
("accepted") stay in it. Both run like all others: a known mutant that dies is reported.

The checkout is copied to OUT/tree at the start, as it is, and only copies of that are changed. What
is done stays in OUT: run the command again to go on after an interruption; --piece 2/4 does one of
four parts, --report only prints. After a change of sources or tests, --update takes a new copy:
mutants that were killed and are still there count as killed, all others run again.

Needs coverage.py (pip install 'samebits[test,mutants]'), git, and a system with fork. Mutants are
bounded in memory, time and the size of files, but are not jailed: they are this project's own code
gone wrong.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import importlib.util
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import machine
from mutation import Mutant, mutants

ROOT = Path(__file__).resolve().parents[1]
KNOWN = Path(__file__).with_name("mutants_known.json")
SERVER = Path(__file__).with_name("mutation_server.py")
GOAL = 0.9
FINAL = ("killed", "timeout")


@dataclass(frozen=True)
class Room:
    """Sources that are mutated, and the tests that should notice; folders and files."""

    name: str
    sources: tuple[str, ...]
    tests: tuple[str, ...]


SPEC_TESTS = (
    # Pages of the specification whose tests stand beside what realises them.
    *("tests/ir/integer", "tests/numerics/test_philox.py", "tests/data/test_audio.py"),
    *(
        "tests/data/test_augment.py",
        "tests/train/deployed",
        "tests/train/test_matches_reference.py",
        "tests/train/test_rows_and_widths.py",
    ),
)
TRAIN = (
    *("average.py", "clip.py", "layers", "lazy.py", "losses", "moments.py", "optim.py"),
    *("state.py", "sums.py", "tensor.py", "undo.py", "widths.py"),
)
RUN = ("checkpoint.py", "engine.py", "evaluate.py", "exchange.py", "record.py", "restore.py")
ROOMS = (
    Room("numerics", ("numerics",), ("tests/numerics",)),
    Room("specification", ("spec",), ("tests/spec", *SPEC_TESTS)),
    Room("training", ("train/operations", *(f"train/{f}" for f in TRAIN)), ("tests/train",)),
    Room("checkpoints", tuple(f"train/run/{f}" for f in RUN), ("tests/train/run",)),
    Room("simulator", ("npu/simulator",), ("tests/npu/simulator",)),
    Room("graph lowering", ("ir/lowering",), ("tests/ir", "tests/backends")),
    Room("C lowering", ("codegen/lowering",), ("tests/codegen", "tests/backends")),
    Room("quantization", ("quantization",), ("tests/quantization",)),
    Room("plans", ("recompute/plan",), ("tests/recompute/plan",)),
    Room("plan executor", ("recompute/run",), ("tests/recompute/run",)),
)


# --- the copy -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tree:
    """A copy of the checkout. digest: of all its files. commit: with a `+` where it had changes."""

    path: Path
    commit: str
    digest: str

    def files(self, places: Sequence[str], pattern: str) -> list[str]:
        """Files at some places, relative to the copy."""
        found: set[Path] = set()
        for place in places:
            path = self.path / place
            found.update(path.rglob(pattern) if path.is_dir() else [path])
        return sorted(str(path.relative_to(self.path)) for path in found)


def take_copy(out: Path, update: bool) -> Tree:
    """The copy in OUT/tree, made anew if asked for or if there is none."""
    path, facts = out / "tree", out / "tree.json"
    if update or not facts.exists():
        facts.unlink(missing_ok=True)
        shutil.rmtree(path, ignore_errors=True)
        listed = git("ls-files", "-co", "--exclude-standard", "-z").split("\0")
        digest = hashlib.sha256()
        for name in sorted(filter(None, listed)):
            source = ROOT / name
            if not source.is_file():  # deleted, but not committed yet
                continue
            target = path / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
            digest.update(f"{name}\0".encode() + hashlib.sha256(target.read_bytes()).digest())
        commit = git("rev-parse", "--short=12", "HEAD").strip()
        commit += "+" if git("status", "--porcelain").strip() else ""
        facts.write_text(json.dumps({"commit": commit, "digest": digest.hexdigest()[:24]}))
    return Tree(path, **json.loads(facts.read_text()))


def git(*words: str) -> str:
    """What a git command prints; the program ends where git cannot say."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"expected a git checkout at {ROOT}: {done.stderr.strip()}")
    return done.stdout


# --- workers ------------------------------------------------------------------------------------


class Server:
    """A copy of the copy, and the process that runs tests in it."""

    def __init__(self, tree: Tree, path: Path, cache: Path) -> None:
        self.path = path
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(tree.path, path)
        (path / "tmp").mkdir(exist_ok=True)
        cache.mkdir(exist_ok=True)
        self._environment = dict(os.environ)
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            self._environment[name] = "1"
        for name in ("TMPDIR", "HOME"):
            self._environment[name] = str(path / "tmp")
        self._environment["XDG_CACHE_HOME"] = str(cache)  # of all servers: kernels built once
        modules = [str(path / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._environment["PYTHONPATH"] = os.pathsep.join(modules)
        self._process: subprocess.Popen[str] | None = None

    def ask(self, job: dict[str, Any]) -> dict[str, Any] | None:
        """The answer to a job; None if the server itself came to an end."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, str(SERVER)],
                cwd=self.path,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,  # Ctrl-C is for this process, which then ends it
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self.stop()
            return None
        answer: dict[str, Any] = json.loads(line)
        return answer

    def stop(self) -> None:
        """End the process. The next job starts another."""
        process, self._process = self._process, None
        if process is not None:
            with process:  # waits, and closes its pipes
                process.terminate()


Done = Callable[[Any, "dict[str, Any] | None"], None]


class Crew:
    """Servers, one thread each, that share a list of jobs."""

    def __init__(self, tree: Tree, out: Path, workers: int) -> None:
        self._servers = [
            Server(tree, out / f"worker{number}", out / "cache") for number in range(workers)
        ]
        self._stopping = False

    def run(self, jobs: Sequence[tuple[Any, dict[str, Any]]], done: Done, bar: Bar) -> None:
        """Do (item, job) pairs; `done(item, answer)` hears of each, one at a time."""
        waiting: queue.SimpleQueue[tuple[Any, dict[str, Any]]] = queue.SimpleQueue()
        for pair in jobs:
            waiting.put(pair)
        lock = threading.Lock()
        failures: list[BaseException] = []

        def work(server: Server) -> None:
            try:
                while not (failures or self._stopping):
                    item, job = waiting.get_nowait()
                    answer = server.ask(job)
                    with lock:
                        if not self._stopping:
                            done(item, answer)
                        bar.advance()
            except queue.Empty:
                return
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(s,), daemon=True) for s in self._servers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]

    def stop(self) -> None:
        """End all processes, at once."""
        self._stopping = True
        for server in self._servers:
            server.stop()


class Bar:
    """One line of progress."""

    def __init__(self, progress: Progress, what: str, total: int) -> None:
        self._progress, self._task = progress, progress.add_task(what, total=total)

    def advance(self) -> None:
        """One more is done."""
        self._progress.advance(self._task)


# --- which test runs which line -----------------------------------------------------------------


@dataclass
class Lines:
    """Tests by the lines that they run; their seconds; what they share. Failing ones are not in."""

    seconds: dict[str, float] = field(default_factory=dict)
    shares: dict[str, list[str]] = field(default_factory=dict)
    of_line: dict[tuple[str, int], set[str]] = field(default_factory=lambda: defaultdict(set))
    of_file: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    sharing: dict[tuple[str, str], set[str]] = field(default_factory=lambda: defaultdict(set))
    imported: set[tuple[str, int]] = field(default_factory=set)  # lines run by an import

    def add(self, file: str, found: dict[str, Any]) -> None:
        """What one file of tests ran."""
        tests = list(found["tests"])
        passed = {test for test in tests if found["tests"][test]["passed"]}
        for test in passed:
            self.seconds[test] = found["tests"][test]["seconds"]
            self.shares[test] = found["tests"][test]["shares"]
            for fixture in self.shares[test]:
                self.sharing[file, fixture].add(test)
        for source, lines in found["lines"].items():
            for line, numbers in lines.items():
                if -1 in numbers:
                    self.imported.add((source, int(line)))
                here = {tests[number] for number in numbers if number >= 0} & passed
                self.of_line[source, int(line)] |= here
                self.of_file[source] |= here

    def tests(self, mutant: Mutant, room: set[str], budget: float) -> tuple[list[str], int]:
        """Tests for a mutant in their order, within the budget, and how many are left out.

        room: files of tests that count. Those of one file run together, fastest first.
        """
        first, last = mutant.lines
        places = [(mutant.file, line) for line in range(first, last + 1)]
        chosen = set[str]().union(*(self.of_line[place] for place in places))
        at_import = mutant.at_import or not self.imported.isdisjoint(places)
        if at_import:  # what it makes is there for all that use the module
            chosen |= self.of_file[mutant.file] or set(self.seconds)
        for test in list(chosen):
            for fixture in self.shares[test]:
                chosen |= self.sharing[file_of(test), fixture]
        ordered = sorted(
            (test for test in chosen if file_of(test) in room),
            key=lambda test: (self.seconds[test], test),
        )
        kept: list[str] = []
        total = 0.0
        for test in ordered:
            total += self.seconds[test]
            if kept and total > budget:
                break
            kept.append(test)
        files = list(dict.fromkeys(file_of(test) for test in kept))
        kept.sort(key=lambda test: files.index(file_of(test)))
        return kept, len(ordered) - len(kept)


def file_of(test: str) -> str:
    """The file of a test's name."""
    return test.partition("::")[0]


def learn_lines(tree: Tree, out: Path, crew: Crew, files: list[str], progress: Progress) -> Lines:
    """Run files of tests unchanged, those of which OUT/lines knows nothing yet."""
    folder = out / "lines"
    folder.mkdir(exist_ok=True)
    sources = sorted({str(Path("src/samebits") / s) for room in ROOMS for s in room.sources})
    folders = sorted({str(Path(s).parent) if s.endswith(".py") else s for s in sources})
    common = hashlib.sha256()
    for name in tree.files(["src", "tests"], "*"):
        if (tree.path / name).is_file() and not Path(name).name.startswith("test_"):
            common.update(name.encode() + (tree.path / name).read_bytes())

    def place(file: str) -> Path:
        text = common.digest() + file.encode() + (tree.path / file).read_bytes()
        return folder / f"{hashlib.sha256(text).hexdigest()[:24]}.json"

    def done(file: str, answer: dict[str, Any] | None) -> None:
        if answer is None or "tests" not in answer:
            progress.console.print(f"{file} left out: {answer}", markup=False, highlight=False)
            return
        wrong = [t for t, facts in answer["tests"].items() if not facts["passed"]]
        if wrong:
            text = f"{file}: {len(wrong)} tests fail or are skipped, and are left out"
            progress.console.print(text, markup=False, highlight=False)
        place(file).write_text(json.dumps(answer))

    limits = {"cpu": 1800, "wall": 3600}
    jobs = [(f, {"files": [f], "coverage": folders, **limits}) for f in files]
    jobs = [(file, job) for file, job in jobs if not place(file).exists()]
    jobs.sort(key=lambda pair: -(tree.path / pair[0]).stat().st_size)  # the long ones first
    crew.run(jobs, done, Bar(progress, "lines that tests run", len(jobs)))
    lines = Lines()
    for file in files:
        if place(file).exists():
            lines.add(file, json.loads(place(file).read_text()))
    return lines


# --- mutants ------------------------------------------------------------------------------------


def sample(
    tree: Tree, rooms: Sequence[Room], count: int, seed: int, only: str
) -> dict[str, list[Mutant]]:
    """Equally many mutants of each room, in random order; the first rooms take the rest.

    only: a part of the names of files.
    """
    drawn = {}
    for number, room in enumerate(rooms):
        share = count // len(rooms) + (number < count % len(rooms))
        texts = {
            file: (tree.path / file).read_bytes()
            for file in tree.files([f"src/samebits/{s}" for s in room.sources], "*.py")
            if only in file
        }
        every = [mutant for file, text in texts.items() for mutant in mutants(file, text)]
        every.sort(key=lambda mutant: mutant.order(seed))
        drawn[room.name] = list(first(every, texts, share))
    return drawn


def first(every: list[Mutant], texts: dict[str, bytes], count: int) -> Iterator[Mutant]:
    """The first mutants that differ from their file."""
    for mutant in every:
        if count == 0:
            return
        if mutant.differs(texts[mutant.file]):
            count -= 1
            yield mutant


def verdict(answer: dict[str, Any] | None) -> dict[str, Any]:
    """The record of an answer. `unknown` is tried again when the command is run again."""
    if answer is None:
        return {"verdict": "unknown", "why": "the server ended"}
    facts = {"seconds": round(answer["seconds"], 2)}
    if answer.get("timeout"):
        return {"verdict": "timeout", **facts}
    if "failed" not in answer:
        if answer["signal"] == 9:  # none of ours: the system was out of memory, most likely
            return {"verdict": "unknown", "why": "killed from outside", **facts}
        return {"verdict": "killed", "by": f"a crash (signal {answer['signal']})", **facts}
    facts["ran"] = answer["ran"]
    if answer["failed"]:
        return {"verdict": "killed", "by": answer["failed"][0], **facts}
    if answer["code"]:
        return {"verdict": "unknown", "why": f"pytest ended with {answer['code']}", **facts}
    return {"verdict": "survived", **facts}


class Results:
    """OUT/results.jsonl: the verdicts, and the tests that were found to fail unchanged."""

    def __init__(self, path: Path, digest: str) -> None:
        self._path, self._digest = path, digest
        self.records: dict[str, dict[str, Any]] = {}
        self.sound: dict[str, bool] = {}  # tests that killed, run again unchanged
        for line in path.read_text().splitlines() if path.exists() else []:
            try:
                self._take(json.loads(line))
            except ValueError:  # the line that an interruption cut off
                continue

    def _take(self, record: dict[str, Any]) -> None:
        current = record["tree"] == self._digest
        if "test" in record:
            if current:
                self.sound[record["test"]] = record["sound"]
        elif current or record["verdict"] in FINAL:
            self.records[record["key"]] = record

    def write(self, **record: Any) -> None:
        """Append a record."""
        record["tree"] = self._digest
        with self._path.open("a") as file:
            file.write(json.dumps(record) + "\n")
        self._take(record)

    def verdict(self, mutant: Mutant) -> dict[str, Any] | None:
        """The verdict of a mutant, if there is one that stands."""
        record = self.records.get(mutant.key)
        if record is None or record["verdict"] == "unknown":
            return None
        return None if self.sound.get(record.get("by", "")) is False else record


def run_mutants(
    todo: list[tuple[Room, Mutant]],
    tree: Tree,
    crew: Crew,
    lines: Lines,
    results: Results,
    budget: float,
    progress: Progress,
) -> None:
    """A verdict for each mutant, written as it is found."""
    files = {room.name: set(tree.files(room.tests, "test_*.py")) for room, _ in todo}
    unsound = {test for test, sound in results.sound.items() if not sound}
    jobs = []
    for room, mutant in todo:
        tests, left = lines.tests(mutant, files[room.name], budget)
        tests = [test for test in tests if test not in unsound]
        if not tests:
            results.write(key=mutant.key, verdict="not run")
            continue
        seconds = sum(lines.seconds[test] for test in tests)
        source = mutant.applied((tree.path / mutant.file).read_bytes()).decode()
        job = {"files": sorted({file_of(t) for t in tests}), "tests": tests, "path": mutant.file}
        # CPU seconds hold on a loaded machine too; the wall is for what waits.
        limits = {"cpu": int(4 * seconds) + 40, "wall": int(10 * seconds) + 180}
        jobs.append(((mutant, left), {**job, "source": source, **limits}))

    def done(item: tuple[Mutant, int], answer: dict[str, Any] | None) -> None:
        mutant, left = item
        record = verdict(answer)
        results.write(key=mutant.key, **record, left=left)
        if record["verdict"] not in FINAL:
            progress.console.print(described(mutant, record), markup=False, highlight=False)

    crew.run(jobs, done, Bar(progress, "mutants", len(jobs)))


def check_killers(
    drawn: list[Mutant], crew: Crew, lines: Lines, results: Results, progress: Progress
) -> bool:
    """Run the tests that killed once more, unchanged. False if a verdict was withdrawn."""
    by_file = defaultdict(set)
    for mutant in drawn:
        record = results.verdict(mutant)
        killer = "" if record is None else record.get("by", "")
        if killer in lines.seconds and killer not in results.sound:
            by_file[file_of(killer)].add(killer)
    jobs = []
    for file, tests in by_file.items():
        ordered = sorted(tests, key=lambda test: lines.seconds[test])
        job = {"files": [file], "tests": ordered, "first": False, "cpu": 1800, "wall": 3600}
        jobs.append((ordered, job))
    good = True

    def done(tests: list[str], answer: dict[str, Any] | None) -> None:
        nonlocal good
        if answer is None or "failed" not in answer:
            return  # asked again when the command is run again
        for test in tests:
            sound = test not in answer["failed"]
            good &= sound
            results.write(test=test, sound=sound)
            if not sound:
                text = f"{test} fails unchanged: its verdicts are withdrawn"
                progress.console.print(text, markup=False, highlight=False)

    crew.run(jobs, done, Bar(progress, "tests that killed, unchanged", len(jobs)))
    return good


# --- the report ---------------------------------------------------------------------------------


def described(mutant: Mutant, record: dict[str, Any]) -> str:
    """A mutant as a change of a line, with its verdict."""
    where = f"{mutant.file}:{mutant.line} {mutant.function} ({mutant.operator})"
    more = f", {record['left']} tests beyond the budget" if record.get("left") else ""
    more += f": {record['why']}" if "why" in record else ""
    return f"{record['verdict']}{more}: {where}\n    - {mutant.before}\n    + {mutant.after}"


def known() -> dict[tuple[str, str, str, str], tuple[str, str]]:
    """(kind, reason) of known survivors, by file, function, line before and line after."""
    found = {}
    for entry in json.loads(KNOWN.read_text()):
        if entry["kind"] not in ("equivalent", "accepted") or not entry["reason"]:
            sys.exit(f"{KNOWN}: expected kind equivalent or accepted, and a reason, in {entry}")
        place = (entry["file"], entry["function"], entry["before"], entry["after"])
        found[place] = entry["kind"], entry["reason"]
    return found


def report(drawn: dict[str, list[Mutant]], results: Results, tree: Tree) -> dict[str, Any]:
    """Print the table and the survivors with their reasons; the same as data."""
    reasons, rows, listed = known(), [], []
    for name, chosen in drawn.items():
        counts: Counter[str] = Counter()
        for mutant in chosen:
            record = results.verdict(mutant)
            place = (mutant.file, mutant.function, mutant.before, mutant.after)
            kind, reason = reasons.get(place, ("", ""))
            if record is None:
                counts["to do"] += 1
                continue
            survived = record["verdict"] not in FINAL
            counts["equivalent" if survived and kind == "equivalent" else record["verdict"]] += 1
            counts["earlier"] += record["tree"] != tree.digest
            if survived or kind or record["verdict"] == "timeout":
                if kind and not survived:
                    reason = f"listed as {kind}, but it died: {reason}"
                facts = {k: v for k, v in vars(mutant).items() if k in SHOWN_FACTS}
                verdict = kind if survived and kind == "equivalent" else record["verdict"]
                listed.append({**facts, "room": name, "verdict": verdict, "reason": reason})
                print(f"\n{name}: {described(mutant, {**record, 'verdict': verdict})}")
                print(f"    {reason or 'no reason given'}")
        rows.append({"room": name, "mutants": len(chosen), **fraction(counts), **counts})
    total: Counter[str] = Counter()
    for row in rows:
        total.update({k: v for k, v in row.items() if k not in ("room", "killed part")})
    rows.append({"room": "all", **total, **fraction(total)})
    columns = ("mutants", *VERDICTS)
    print(f"\nsamebits {tree.commit}, tree {tree.digest}")
    print("| room | " + " | ".join(columns) + " | killed of all but equivalent |")
    print("|---|" + "--:|" * (len(columns) + 1))
    for row in rows:
        cells = " | ".join(str(row.get(column, 0)) for column in columns)
        part = "" if row["killed part"] is None else f"{100 * row['killed part']:.1f} %"
        print(f"| {row['room']} | {cells} | {part} |")
    if total["earlier"]:
        print(f"{total['earlier']} were killed by the tests of an earlier copy.")
    return {"commit": tree.commit, "digest": tree.digest, "rows": rows, "listed": listed}


SHOWN_FACTS = ("file", "line", "function", "operator", "before", "after")
VERDICTS = ("killed", "timeout", "survived", "not run", "equivalent", "to do")


def fraction(counts: Counter[str]) -> dict[str, float | None]:
    """The killed part of all verdicts but equivalents; None where there is no verdict."""
    killed = sum(counts[word] for word in FINAL)
    whole = killed + counts["survived"] + counts["not run"]
    return {"killed part": killed / whole if whole else None}


# --- the command --------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    """The command's options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/mutants"))
    parser.add_argument("--count", type=int, default=1000, help="of all rooms together")
    parser.add_argument("--seed", type=int, default=16)
    parser.add_argument("--rooms", help="names with commas; default: all")
    parser.add_argument("--only", default="", help="a part of the names of files to mutate")
    parser.add_argument("--piece", default="1/1", help="I/N: only the I-th of N parts")
    parser.add_argument("--workers", type=int, default=machine.usable_cores() or 1)
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of tests for a mutant")
    parser.add_argument("--update", action="store_true", help="copy the checkout anew")
    parser.add_argument("--report", action="store_true", help="run nothing")
    return parser.parse_args()


def main() -> None:
    """Run what is to do; print the report; exit code 1 below the goal of 90 %."""
    given = arguments()
    names = [room.name for room in ROOMS]
    wanted = names if given.rooms is None else given.rooms.split(",")
    if unknown := [name for name in wanted if name not in names]:
        sys.exit(f"expected rooms among {', '.join(names)}, found {', '.join(unknown)}")
    try:
        piece, pieces = (int(word) for word in given.piece.split("/"))
    except ValueError:
        piece, pieces = 0, 0
    if not 1 <= piece <= pieces:
        sys.exit(f"--piece: expected I/N with 1 <= I <= N, such as 2/4, found {given.piece}")
    rooms = [room for room in ROOMS if room.name in wanted]
    out = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    lock = (out / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        if not given.report:
            sys.exit(f"{out}: another run is writing there; wait for it, or give another --out")
    tree = take_copy(out, given.update)
    drawn = sample(tree, rooms, given.count, given.seed, given.only)
    results = Results(out / "results.jsonl", tree.digest)
    mine = [(room, m) for room in rooms for m in drawn[room.name][piece - 1 :: pieces]]
    if not given.report:
        work(mine, tree, out, results, given)
    found = report(drawn, results, tree)
    machine.write_record(out / "mutants.json", seed=given.seed, budget=given.budget, **found)
    part = found["rows"][-1]["killed part"]
    sys.exit(part is None or part < GOAL)


def work(
    mine: list[tuple[Room, Mutant]],
    tree: Tree,
    out: Path,
    results: Results,
    given: argparse.Namespace,
) -> None:
    """Find the verdicts that are missing."""
    if importlib.util.find_spec("coverage") is None:
        sys.exit("expected coverage.py, found none: pip install 'samebits[test,mutants]'")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stop as at Ctrl-C
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    crew = Crew(tree, out, given.workers)
    rooms = {room.name: room for room, _ in mine}.values()
    files = tree.files([place for room in rooms for place in room.tests], "test_*.py")
    try:
        with Progress(*columns, TimeRemainingColumn()) as progress:
            lines = learn_lines(tree, out, crew, files, progress)
            for _ in range(3):  # again where a killer turned out to fail unchanged
                todo = [pair for pair in mine if results.verdict(pair[1]) is None]
                run_mutants(todo, tree, crew, lines, results, given.budget, progress)
                chosen = [mutant for _, mutant in mine]
                if check_killers(chosen, crew, lines, results, progress):
                    break
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here")
    finally:
        crew.stop()


if __name__ == "__main__":
    main()
