"""Run folders as a stranger may have packed them: every file replaced by what is no file.

No command waits, says more than a sentence, or reads or writes what lies outside of the folder.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tiny_models import float_file

SECONDS = 60  # of a command, which takes one or two; a wait would not end
TRAINING = ("--arch", "mlp", "--epochs", "2", "--batch", "32")


def dangling(path: Path, outside: Path) -> None:
    path.symlink_to(outside / "none")


def device(path: Path, outside: Path) -> None:
    path.symlink_to("/dev/zero")


def pipe(path: Path, outside: Path) -> None:
    os.mkfifo(path)


def folder(path: Path, outside: Path) -> None:
    path.mkdir()


def elsewhere(path: Path, outside: Path) -> None:
    """A link to the file itself, outside."""
    path.symlink_to(outside / path.name)


KINDS = (dangling, device, pipe, folder, elsewhere)
COMMANDS: dict[str, Callable[[Path, Path, Path], tuple[object, ...]]] = {
    "inspect": lambda run, data, out: ("inspect", run),
    "report": lambda run, data, out: ("report", run, "--out", out / "page.html"),
    "eval": lambda run, data, out: ("eval", run, "--data", data),
    "verify": lambda run, data, out: ("verify", run, "--data", "random:2"),
    "compile": lambda run, data, out: ("compile", run, "--target", "c", "--out", out / "c"),
    "resume": lambda run, data, out: (
        *("train", "--data", data, *TRAINING, "--out", run, "--resume"),
    ),
}
FILES = ("config.json", "metrics.jsonl", "result.json", "newest", "earlier", ".samebits.lock")
CASES = [(kind, file, name) for kind in KINDS for file in FILES for name in COMMANDS]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, npz: Path) -> Path:
    """A run of two epochs, with two checkpoints."""
    from samebits.cli import main

    out = tmp_path_factory.mktemp("trained") / "run"
    with pytest.raises(SystemExit) as caught:
        main(["train", "--data", str(npz), *TRAINING, "--out", str(out), "--quiet"])
    assert not caught.value.code
    return out


@contextmanager
def ends() -> Iterator[None]:
    """Fail where what is inside waits."""

    def late(number: int, frame: object) -> None:
        raise AssertionError(f"expected an end within {SECONDS} seconds, found none")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def replaced(trained: Path, run: Path, outside: Path, kind: Callable, file: str) -> Path:
    """A copy of a run one of whose files is of a kind."""
    shutil.copytree(trained, run)
    checkpoints = sorted(run.glob("checkpoint-*"))
    name = {"newest": checkpoints[-1].name, "earlier": checkpoints[0].name}.get(file, file)
    outside.mkdir()
    if (run / name).exists():
        (run / name).rename(outside / name)
    elif kind is elsewhere:
        (outside / name).write_bytes(b"")
    kind(run / name, outside)
    return run / name


def unfinish(run: Path) -> None:
    """Take the last epoch away, so that --resume has something to do."""
    sorted(run.glob("checkpoint-*"))[-1].unlink()
    (run / "result.json").unlink()


def state(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def check(samebits, trained: Path, npz: Path, tmp_path: Path, kind, file: str, name: str) -> None:
    """A command on such a folder."""
    run, outside = tmp_path / "run", tmp_path / "outside"
    changed = replaced(trained, run, outside, kind, file)
    if name == "resume" and file not in ("newest", "result.json"):
        unfinish(run)
    before, was = state(outside), os.lstat(changed)
    with ends():
        done = samebits(*COMMANDS[name](run, npz, tmp_path / "made"), "--quiet")
    assert done.code in (0, 2), done.err
    assert "Traceback" not in done.err
    assert done.err.count("error: ") <= 1
    assert done.code == 0 or str(changed) in done.err, done.err
    assert state(outside) == before
    if done.code == 2:
        assert os.lstat(changed).st_ino == was.st_ino


QUICK = {("resume", "metrics.jsonl"), ("inspect", "newest"), ("inspect", "result.json")}
QUICK |= {("resume", ".samebits.lock"), ("resume", "config.json")}


@pytest.mark.parametrize(
    ("kind", "file", "name"),
    [pytest.param(*case, marks=() if case[:0:-1] in QUICK else pytest.mark.slow) for case in CASES],
)
def test_nothing_waits_and_nothing_leaves(samebits, trained, npz, tmp_path, kind, file, name):
    check(samebits, trained, npz, tmp_path, kind, file, name)


WRITING = "open,openat,creat,rename,renameat,renameat2,mkdir,mkdirat,link,linkat,symlink,symlinkat"
WRITES = re.compile(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC|^(creat|rename|mkdir|link|symlink)")
PLACE = re.compile(r'(?:(?:AT_FDCWD|\d+)(?:<([^>]*)>)?, )?"((?:[^"\\]|\\.)*)"')


def places_written(log: str, here: Path) -> set[str]:
    """The paths that calls of a log of `strace -y` made, changed or opened to be changed."""
    found = set()
    for line in log.splitlines():
        call = re.sub(r"^\d+ +", "", line)
        if WRITES.search(call) and " = -1 " not in call:
            for folder, path in PLACE.findall(call):
                found.add(os.path.normpath(os.path.join(folder or str(here), path)))
    return found


MADE = {
    "train": lambda run, data, out: ("train", "--data", data, *TRAINING, "--out", out / "run"),
    "quantize": lambda run, data, out: (
        *("quantize", run.parent / "float.onnx", "--data", data),
        *("--out", out / "q.onnx", "--report", out / "page.html"),
    ),
    "plan": lambda run, data, out: (
        *("plan", "--arch", "mlp", "--batch", "8", "--input", "1,8,8", "--memory-budget", "100%"),
        *("--threads", "1", "--out", out / "plan.json", "--report", out / "page.html"),
    ),
}
TRACED = COMMANDS | MADE


@pytest.mark.slow
@pytest.mark.parametrize("name", TRACED)
def test_nothing_is_written_elsewhere(name: str, trained: Path, npz: Path, tmp_path: Path) -> None:
    """Traced: a command writes below --out, the user's cache and the temporary folder alone; and
    of a folder with links, nothing that they lead to is opened."""
    if shutil.which("strace") is None:
        pytest.skip("needs strace, which is not installed")
    run, outside, made = tmp_path / "run", tmp_path / "outside", tmp_path / "made"
    places = {"XDG_CACHE_HOME": tmp_path / "cache", "TMPDIR": tmp_path / "temporary"}
    for place in (*places.values(), outside, made):
        place.mkdir()
    if name == "quantize":
        float_file(tmp_path / "float.onnx", ("N", 1, 6, 6))
    environment = {**os.environ, **{key: str(place) for key, place in places.items()}}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    for links in (False,) if name in MADE else (False, True):
        shutil.copytree(trained, run, dirs_exist_ok=True)
        if name == "resume":
            unfinish(run)
        if links:
            for file in ("metrics.jsonl", "result.json"):
                (run / file).unlink(missing_ok=True)
                (run / file).symlink_to(outside / file)
        log = tmp_path / "log"
        command = [sys.executable, "-m", "samebits", *map(str, TRACED[name](run, npz, made))]
        done = subprocess.run(
            ["strace", "-f", "-y", "-qq", "-e", f"trace={WRITING}", "-o", str(log), *command],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            timeout=600,
        )
        assert links or done.returncode == 0, done.stderr
        text = log.read_text(errors="replace")
        allowed = (run, made, *places.values(), Path("/dev"), Path("/proc"))
        written = places_written(text, tmp_path)
        strange = [
            path
            for path in sorted(written)
            if not any(Path(path).is_relative_to(place) for place in allowed)
        ]
        assert strange == []
        assert str(outside) not in text
        if name in MADE:
            assert any(Path(path).is_relative_to(made) for path in written)
