"""The files of a run folder besides checkpoints: config.json, metrics.jsonl, result.json."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from samebits.errors import InputError, SamebitsError
from samebits.train.checkpoint import list_checkpoints, write_atomically

CONFIG, METRICS, RESULT = "config.json", "metrics.jsonl", "result.json"

Record = dict[str, Any]


def prepare_folder(out: Path, *, resume: bool, overwrite: bool) -> None:
    """Create the run folder, or refuse one that already holds a run.

    `overwrite` removes an earlier run's own files and nothing else. Raises InputError.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{out}: cannot be created ({error.strerror or error}); give another --out"
        ) from error
    for stale in out.glob(".*.tmp"):
        stale.unlink(missing_ok=True)  # left by a killed run
    present = [out / name for name in (CONFIG, METRICS, RESULT) if (out / name).exists()]
    present += list_checkpoints(out)
    if present and overwrite:
        for path in present:
            path.unlink()
    elif present and not resume:
        raise InputError(
            f"{out}: already holds a training run ({present[0].name}); give --resume to continue "
            "it, or another --out"
        )


def write_json(path: Path, record: Record) -> None:
    """Replace `path` atomically by an indented JSON object."""
    write_atomically(path, (json.dumps(record, indent=2) + "\n").encode())


def append_metrics(out: Path, record: Record) -> None:
    """Add one line, flushed to disk; a kill leaves at most a truncated last line."""
    path = out / METRICS
    try:
        with path.open("ab") as file:
            file.write((json.dumps(record) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise SamebitsError(
            f"{path}: cannot be written ({error.strerror or error}); earlier checkpoints are "
            "intact: free some space and run again with --resume"
        ) from error


def read_metrics(out: Path) -> list[Record]:
    """The whole lines of metrics.jsonl; a truncated last line is left out."""
    path = out / METRICS
    if not path.exists():
        return []
    records: list[Record] = []
    for line in path.read_bytes().split(b"\n")[:-1]:  # what follows the last newline is partial
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and isinstance(record.get("step"), int):
            records.append(record)
    return records


def repair_metrics(out: Path, step: int) -> list[Record]:
    """Drop lines past `step` and partial lines, so that resuming writes each epoch once."""
    records = [record for record in read_metrics(out) if record["step"] <= step]
    if (out / METRICS).exists():
        text = "".join(json.dumps(record) + "\n" for record in records)
        write_atomically(out / METRICS, text.encode())
    return records
