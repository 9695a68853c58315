"""Runs tests of one copy of the project in children: what `mutants.py` starts, once per worker.

It has imported what tests need and mutants do not change (torch, numpy, pytest, ...), so that a
child begins at once. Jobs come as JSON lines on standard input, answers go to standard output:

    {"files": [...], "coverage": [folders]}           every test of some files, and the lines it ran
    {"files": [...], "tests": [...], "first": true,   some tests in this order, to the first failure
     "path": FILE, "source": TEXT}                    ... with a file changed

`cpu` and `wall` bound the seconds of a job, `memory` its bytes (MEMORY). After every job the
mutated file is what it was.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# Bytes of memory of a child. (No limit of the system's: a limit of its address space would hold for
# programs with sanitizers too, which map terabytes that they never touch.)
MEMORY = 6 << 30
GLANCE = 0.2  # seconds between looks at it
DISK = 1 << 30  # bytes of the largest file that a child may write
OUTPUT = 4000  # characters of a child's last output that are kept

Job = dict[str, Any]
Answer = dict[str, Any]


class Chosen:
    """Runs the tests of a job in its order; remembers what failed, in order."""

    def __init__(self, tests: list[str]) -> None:
        self.rank = {test: place for place, test in enumerate(tests)}
        self.failed: list[str] = []
        self.ran = 0

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the chosen tests, in the order of the job."""
        items[:] = sorted(
            (item for item in items if item.nodeid in self.rank),
            key=lambda item: self.rank[item.nodeid],
        )

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be imported."""
        if report.failed:
            self.failed.append(f"the import of {report.nodeid}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test that failed, in its set-up or its end too."""
        self.ran += report.when == "call"
        if report.failed:
            self.failed.append(report.nodeid)


class Mapper:
    """Runs all tests of a file; remembers what each took, its outcome, shares and lines.

    seconds: of processors, which depend little on what else the machine does
    """

    def __init__(self, folders: list[str]) -> None:
        coverage: Any = importlib.import_module("coverage")  # an extra of its own

        self.folders = [str(Path(folder).resolve()) for folder in folders]
        self.coverage = coverage.Coverage(data_file=None, source=self.folders, config_file=False)
        self.tests: dict[str, dict[str, Any]] = {}
        self.caches: list[Any] | None = None

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Note what every test shares with others of its file: fixtures that live longer."""
        for item in session.items:
            info = getattr(item, "_fixtureinfo", None)
            known = {} if info is None else info.name2fixturedefs
            wide = [
                f"{definitions[-1].baseid}::{name}"
                for name, definitions in known.items()
                if definitions[-1].scope != "function" and definitions[-1].baseid != "tests"
            ]
            self.tests[item.nodeid] = {"seconds": 0.0, "passed": False, "shares": wide}

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Lines that run now are this test's. Caches are emptied: it runs what it reads."""
        for function in self._caches():
            function.cache_clear()
        self.coverage.switch_context(item.nodeid)
        before = sum(os.times()[:4])  # of this process and of those that it has waited for
        yield
        self.tests[item.nodeid]["seconds"] = sum(os.times()[:4]) - before
        self.coverage.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test passes if no part of it fails and it is not skipped."""
        test = self.tests[report.nodeid]
        if report.when == "call":
            test["passed"] = report.passed
        elif report.failed:
            test["passed"] = False

    def _caches(self) -> list[Any]:
        """Functions with a cache, of the measured modules."""
        found = []
        for module in list(sys.modules.values()):
            file = getattr(module, "__file__", None) or ""
            if file.startswith(tuple(self.folders)):
                found += [f for f in vars(module).values() if hasattr(f, "cache_clear")]
        return found

    def lines(self) -> dict[str, dict[int, list[int]]]:
        """The tests, by their place in `tests`, that ran each line of each file; -1: an import."""
        data = self.coverage.get_data()
        root = Path.cwd().resolve()
        place = {"": -1, **{test: number for number, test in enumerate(self.tests)}}
        return {
            str(Path(file).relative_to(root)): {
                line: sorted(place[test] for test in tests)
                for line, tests in data.contexts_by_lineno(file).items()
            }
            for file in sorted(data.measured_files())
        }


def mapped(job: Job) -> Answer:
    """In a child: every test of some files."""
    plugin = Mapper(job["coverage"])
    plugin.coverage.start()
    code = pytest.main([*OPTIONS, "-m", "not slow and not device", *job["files"]], [plugin])
    plugin.coverage.stop()
    return {"code": int(code), "tests": plugin.tests, "lines": plugin.lines()}


def tested(job: Job) -> Answer:
    """In a child: chosen tests."""
    plugin = Chosen(job["tests"])
    options = [*OPTIONS, *(["-x"] if job.get("first", True) else [])]
    code = pytest.main([*options, *job["files"]], [plugin])
    return {"code": int(code), "failed": plugin.failed, "ran": plugin.ran}


OPTIONS = (
    *("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=line", "--basetemp=tmp/pytest"),
    # Plugins of what the server has imported, such as hypothesis, say so.
    *("-W", "ignore:Module already imported so cannot be rewritten"),
)


def child(job: Job, pipe: int) -> None:
    """Do a job, in a process of its own that ends here."""
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        output = os.open("tmp/output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (DISK, DISK))
        resource.setrlimit(resource.RLIMIT_CPU, (job["cpu"], job["cpu"] + 5))
        answer = mapped(job) if "coverage" in job else tested(job)
        with os.fdopen(pipe, "w") as file:
            json.dump(answer, file)
        code = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)  # no exit handlers of the parent's libraries


def run(job: Job) -> Answer:
    """Do a job in a child; its answer, or how it ended without one."""
    reading, writing = os.pipe()
    begun = time.monotonic()
    process = os.fork()
    if process == 0:
        os.close(reading)
        child(job, writing)
    signal.signal(signal.SIGTERM, lambda *_: _end(process))
    os.close(writing)
    text, late, most = b"", False, job.get("memory", MEMORY)
    while not late:
        if select.select([reading], [], [], GLANCE)[0]:
            if not (piece := os.read(reading, 1 << 20)):
                break
            text += piece
        late = time.monotonic() > begun + job["wall"] or _memory(process) > most
    os.close(reading)
    late |= not _ended(process, 5.0)
    _kill(process)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    status = os.waitpid(process, 0)[1]
    seconds = time.monotonic() - begun
    if not late and text:
        return {**json.loads(text), "seconds": seconds}
    stopped = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    output = Path("tmp/output").read_text(errors="replace")[-OUTPUT:]
    late |= stopped == signal.SIGXCPU
    return {"timeout": late, "signal": stopped, "output": output, "seconds": seconds}


def _memory(process: int) -> int:
    """Bytes of memory that a process has at present; 0 where the system does not tell."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * resource.getpagesize()


def _kill(process: int) -> None:
    """End a child and what its tests have started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)


def _end(process: int) -> None:
    """End a child and the server: the benchmark was interrupted."""
    _kill(process)
    os._exit(1)


def _ended(process: int, seconds: float) -> bool:
    """Whether a child ends within some seconds. Its status stays to be asked for."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return True
        time.sleep(0.002)
    return False


def main() -> None:
    """Answer jobs until the input ends."""
    del sys.path[0]  # the folder of this script: tests have modules of their own
    import hypothesis
    import numpy
    import onnx
    import safetensors.torch
    import scipy
    import torch

    torch.set_num_threads(1)
    del hypothesis, numpy, onnx, safetensors, scipy
    gc.collect()
    gc.freeze()  # children need not look at them again
    Path("tmp").mkdir(exist_ok=True)
    stamp = 0
    for line in sys.stdin:
        job = json.loads(line)
        path = Path(job["path"]) if "path" in job else None
        if path is not None:
            original, was = path.read_bytes(), path.stat().st_mtime
            path.write_bytes(job["source"].encode())
            # A second of its own, or Python would take the compiled file of another mutant.
            stamp = max(stamp + 1, int(time.time()))
            os.utime(path, (stamp, stamp))
        try:
            answer = run(job)
        finally:
            if path is not None:
                path.write_bytes(original)
                os.utime(path, (was, was))
        try:
            print(json.dumps(answer), flush=True)
        except BrokenPipeError:  # nobody waits for it any more
            os._exit(1)


if __name__ == "__main__":
    main()
