"""The files of a run folder besides checkpoints: config.json, metrics.jsonl, result.json.

config.json and result.json state the format of all three; checkpoints have one of their own.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from samebits.entrance import append, opened, read, sha256
from samebits.errors import InputError, SamebitsError
from samebits.files import make_folder, write_atomically
from samebits.train.run.checkpoint import RESUME, list_checkpoints

try:
    import fcntl
except ImportError:  # not a POSIX system: run folders are not locked there
    fcntl = None  # type: ignore[assignment]

FORMAT = "samebits-run-1"
CONFIG, METRICS, RESULT = "config.json", "metrics.jsonl", "result.json"
LOCK = ".samebits.lock"
ONE_OUTPUT = (  # what a true `one_output` of a line of metrics means
    "the first test samples all have the same output: none of their values reaches it, as after "
    "steps that were too large; lower the learning rate (--lr), add a warm-up (--warmup), or clip "
    "gradients (--clip-norm 1)"
)
# Where data lies, and what resized it: its hash is compared. Code, which may change where a run is
# overwritten, but not where one is resumed (`structure`).
UNCOMPARED = ("format", "data", "pillow", "network_sha256", "recipes")
LARGEST_FILE = 1 << 26  # bytes of a file that is read
# What `write_atomically` leaves behind when it is killed.
_TEMPORARY = re.compile(
    r"\.(checkpoint-\d+\.safetensors|config\.json|metrics\.jsonl|result\.json)\.\d+\.tmp"
)

Record = dict[str, Any]


@contextmanager
def run_folder(
    out: Path, identity: Mapping[str, Any], *, resume: bool, overwrite: bool
) -> Iterator[None]:
    """The run folder, created if need be and locked against other processes meanwhile.

    A folder that already holds a run needs `resume` or `overwrite`. `overwrite` removes the files
    of an earlier run of the same `identity`, and nothing else. Raises InputError.
    """
    try:
        make_folder(out)
        out.mkdir(exist_ok=True)  # an error where a file has that name
    except OSError as error:
        raise InputError(
            f"{out}: cannot be created ({error.strerror or error}); give another --out"
        ) from error
    with _locked(out) as interrupted:
        _prepare(out, identity, resume, overwrite, interrupted)
        yield


@contextmanager
def _locked(out: Path) -> Iterator[bool]:
    """Hold the folder's lock, which ends with the process; true if a killed run left its file."""
    if fcntl is None:
        yield False
        return
    path = out / LOCK
    interrupted = os.path.lexists(path)
    with _lock(path):
        try:
            yield interrupted
        finally:
            with suppress(OSError):
                path.unlink()


def _lock(path: Path) -> BinaryIO:
    """The file that holds the lock; InputError if another process does."""
    while True:
        try:
            file = opened(path, os.O_RDWR | os.O_CREAT, within=path.parent)
        except OSError as error:
            raise InputError(
                f"{path}: cannot be written ({error.strerror or error}); check the folder and its "
                "permissions, or give another --out"
            ) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.close()
            raise InputError(
                f"{path.parent}: another run is writing there; wait until it ends, or give "
                "another --out"
            ) from error
        except OSError:  # a file system without locks
            return file
        with suppress(FileNotFoundError):
            if os.path.samestat(path.stat(), os.fstat(file.fileno())):
                return file
        file.close()  # its owner ended and removed it between the two calls


def _prepare(
    out: Path, identity: Mapping[str, Any], resume: bool, overwrite: bool, interrupted: bool
) -> None:
    """Make a locked folder ready for a run: its own files, those of an earlier run, or none.

    Refuses files that no run wrote, a run of another format, an earlier run unless `resume` or
    `overwrite`, and to overwrite a run of another `identity`. Removes what killed runs have left
    behind. Raises InputError.
    """
    checkpoints = list_checkpoints(out)
    present = [out / name for name in (CONFIG, METRICS, RESULT) if os.path.lexists(out / name)]
    present += checkpoints
    stored = read_json(out / CONFIG)
    ours = "data_sha256" in stored if os.path.lexists(out / CONFIG) else bool(checkpoints)
    if present and not ours:
        raise InputError(
            f"{out}: holds a {present[0].name} that no training run wrote; give another --out"
        )
    if stored and stored.get("format") != FORMAT:
        raise InputError(
            f"{out / CONFIG}: expected format {FORMAT!r} of samebits, found "
            f"{stored.get('format')!r:.60}; use the release of samebits that wrote it, or give "
            "another --out"
        )
    if present and not (resume or overwrite):
        raise InputError(
            f"{out}: already holds a training run ({present[0].name}); give --resume to continue "
            "it, or another --out"
        )
    if present and overwrite:
        difference = first_difference(identity, stored)
        if difference is not None:
            raise InputError(
                f"{out}: holds another training run ({difference}); move it away, or give "
                "another --out"
            )
        for path in present:
            path.unlink()
    if present or interrupted:
        for path in out.iterdir():
            if _TEMPORARY.fullmatch(path.name):
                path.unlink(missing_ok=True)  # left by a killed run


def first_difference(want: Mapping[str, Any], have: Mapping[str, Any]) -> str | None:
    """The first option in which two runs differ, as text; those of UNCOMPARED do not count."""
    for key in {**want, **have}:  # in this order; an option left out is an option too
        if key not in UNCOMPARED and have.get(key) != want.get(key):
            return f"{key}: expected {want.get(key)!r}, found {have.get(key)!r}"
    return None


def read_json(path: Path) -> Record:
    """The object in a JSON file of a run folder; empty if there is none. Raises InputError for a
    link, a pipe and all that is no file, and for one that is too large; OSError where one cannot be
    read."""
    try:
        record = json.loads(read(path, LARGEST_FILE, within=path.parent))
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def write_json(path: Path, record: Record) -> None:
    """Replace `path` atomically by an indented JSON object that states the format."""
    text = json.dumps({"format": FORMAT, **record}, indent=2)
    write_atomically(path, f"{text}\n".encode(), advice=RESUME)


def run_files(out: Path) -> list[Path]:
    """The files of a run of which result.json states the SHA-256, as they lie there."""
    known = (out / name for name in (CONFIG, METRICS) if os.path.lexists(out / name))
    return [*known, *list_checkpoints(out)]


def write_result(out: Path, record: Record) -> None:
    """Write result.json, the last file of a run: `record`, and the SHA-256 of every other one.

    Raises SamebitsError where one cannot be read, as `entrance.opened` where one is no file.
    """
    try:
        files = {path.name: sha256(path, within=out) for path in run_files(out)}
    except OSError as error:
        raise SamebitsError(
            f"{error.filename or out}: cannot be read ({error.strerror or error}); {RESUME}"
        ) from error
    write_json(out / RESULT, {**record, "files": files})


def append_metrics(out: Path, record: Record) -> None:
    """Add one line, flushed to disk; a kill leaves at most a truncated last line."""
    path = out / METRICS
    try:
        append(path, (json.dumps(record) + "\n").encode(), within=out)
    except OSError as error:
        raise SamebitsError(
            f"{path}: cannot be written ({error.strerror or error}); {RESUME}"
        ) from error


def read_metrics(out: Path) -> list[Record]:
    """The whole lines of metrics.jsonl, without a truncated last one. Raises as `read_json`."""
    try:
        text = read(out / METRICS, LARGEST_FILE, within=out)
    except FileNotFoundError:
        return []
    records: list[Record] = []
    for line in text.split(b"\n")[:-1]:  # what follows the last newline is partial
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict) and isinstance(record.get("step"), int):
            records.append(record)
    return records


def repair_metrics(out: Path, step: int) -> list[Record]:
    """Drop lines past `step` and partial lines, so that resuming writes each epoch once."""
    records = [record for record in read_metrics(out) if record["step"] <= step]
    if (out / METRICS).exists():
        text = "".join(json.dumps(record) + "\n" for record in records)
        write_atomically(out / METRICS, text.encode(), advice=RESUME)
    return records
