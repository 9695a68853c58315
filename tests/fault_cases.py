"""Operations that no kill, full disk or loss of power may harm, for `faults.py`."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np

from faults import Case, State, state
from samebits import files
from samebits.files import write_archive, write_atomically, write_folder
from samebits.kernels import build
from samebits.kernels.build import BuildError


def quiet(text: str) -> None:
    """Takes what is said."""


# --- one file, one folder ---------------------------------------------------------------------


def old_file(folder: Path) -> None:
    write_atomically(folder / "file", b"old " * 1000)


def new_file(folder: Path) -> None:
    write_atomically(folder / "file", b"new " * 2000)


def new_archive(folder: Path) -> None:
    write_archive(folder / "file", {"x": np.arange(100)})


def unsynced_file(folder: Path) -> None:
    """Wrong: the name may be on the disk before the bytes."""
    (folder / ".file.1.tmp").write_bytes(b"new " * 2000)
    os.replace(folder / ".file.1.tmp", folder / "file")


def file_in_place(folder: Path) -> None:
    """Wrong: a part of a file may stand where the earlier one was."""
    (folder / "file").write_bytes(b"new " * 2000)


def old_folder(folder: Path) -> None:
    write_folder(folder / "deep" / "out", {"a": b"old", "b": b"old", "more/c": b"old"})


def new_folder(folder: Path) -> None:
    write_folder(folder / "deep" / "out", {"a": b"new", "more/deep/d": b"new"})


def two_renames(folder: Path) -> None:
    """As on a file system that cannot exchange two names."""
    files._exchanged = lambda a, b: False
    new_folder(folder)


def check_two_renames(folder: Path, before: State, after: State) -> None:
    """Between the renames the earlier folder stands beside, whole; the next run brings it back."""
    found = state(folder)
    (left,) = (folder / "deep").glob(".out.*.tmp/old") if not found else (None,)
    if left is not None:
        found = {f"deep/out/{name}": data for name, data in state(left).items()}
    assert found in (before, after)


# --- checkpoints ------------------------------------------------------------------------------


def checkpoint(folder: Path, step: int) -> None:
    import torch

    from samebits.train.run.checkpoint import Checkpoint, write_checkpoint

    weights = torch.arange(500, dtype=torch.int32) + step
    write_checkpoint(folder, Checkpoint(step, {"w": weights}, {"state": {}}, {}, {"epoch": step}))


def old_checkpoints(folder: Path) -> None:
    checkpoint(folder, 1)
    checkpoint(folder, 2)


def new_checkpoint(folder: Path) -> None:
    checkpoint(folder, 3)


def check_checkpoints(folder: Path, before: State, after: State) -> None:
    """The newest is whole, and that before it; another may not have been dropped yet."""
    from samebits.train.run.checkpoint import list_checkpoints, newest_checkpoint, read_checkpoint

    for path in list_checkpoints(folder):
        step = read_checkpoint(path).step
        assert (before | after)[path.name] == path.read_bytes(), f"step {step} changed"
    newest = newest_checkpoint(folder, quiet)
    assert newest is not None
    assert newest.step in ({2, 3} if before != after else {3}), f"newest: step {newest.step}"
    assert len(list_checkpoints(folder)) >= 2


# --- the cache of compiled code ---------------------------------------------------------------

ANSWER = "int samebits_answer(void) { return 42; }\n"


def compiler_stub(folder: Path) -> None:
    """A compiler beside the folder that gives the same library, whatever it is to compile."""
    folder = folder.parent
    (folder / "answer.c").write_text(ANSWER)
    command = [shutil.which("gcc") or "cc", "-shared", "-fPIC", "answer.c", "-o", "answer.bin"]
    subprocess.run(command, cwd=folder, check=True)
    (folder / "stub").write_text(
        "#!/bin/sh\n"
        'while [ "$#" -gt 0 ]; do [ "$1" = -o ] && cp "${0%/*}/answer.bin" "$2"; shift; done\n'
    )


def load_kernels(folder: Path) -> None:
    os.environ.update(XDG_CACHE_HOME=str(folder / "cache"), CC=f"sh '{folder.parent}/stub'")
    library = build.load()
    assert library.samebits_answer() == 42


def damaged_cache(folder: Path) -> None:
    compiler_stub(folder)
    load_kernels(folder)
    (kept,) = (folder / "cache" / "samebits").iterdir()
    data = bytearray(kept.read_bytes())
    data[len(data) // 2] ^= 1
    kept.write_bytes(data[: len(data) // 2 + 1])


def check_cache(folder: Path, before: State, after: State) -> None:
    """No library, or one; whether it is whole the next run tells, which loads it or another."""
    kept = state(folder)
    assert list(kept) in ([], list(after)), list(kept)
    if before == after:
        ((name, data),) = kept.items()
        assert hashlib.sha256(data).hexdigest() in name


# --- compiled folders -------------------------------------------------------------------------


def compiled(folder: Path, prefix: str) -> None:
    import samebits as sb

    sb.load(folder / "model.onnx").compile(folder / "out", sb.Packaging(prefix=prefix))


def old_package(folder: Path) -> None:
    from samebits.onnx import FileFacts, save_qdq
    from tiny_models import quantized_graph

    save_qdq(quantized_graph(), folder / "model.onnx", facts=FileFacts(16000))
    compiled(folder, "first")


def new_package(folder: Path) -> None:
    compiled(folder, "second")


# --- a training run ---------------------------------------------------------------------------


def run_data(folder: Path) -> None:
    """Data beside the folder, and a first run of them, which loads and tests the kernels."""
    rng = np.random.default_rng(5)
    labels = np.arange(60) % 3
    images = (rng.integers(0, 120, (60, 6, 6)) + 60 * labels[:, None, None]).astype(np.uint8)
    arrays = {"x_train": images[:48], "y_train": labels[:48]}
    arrays |= {"x_test": images[48:], "y_test": labels[48:]}
    write_archive(folder.parent / "data.npz", arrays)
    train(folder.parent / "first")


def train(folder: Path) -> None:
    """Three steps of an epoch with a checkpoint after each, or what is left of them."""
    import samebits as sb

    sb.fit(
        folder.parent / "data.npz",
        "mlp",
        folder / "run",
        sb.Training(epochs=1, batch=16, seed=3),
        sb.Execution(checkpoint_every=1, resume=True, trace=folder / "run" / "trace", threads=1),
    )


def check_run(folder: Path, before: State, after: State) -> None:
    """A run that was cut may have left anything; resumed it ends with the same bits. A checkpoint
    that a killed run could not drop any more may still be there: the next one drops it."""
    if before == after:
        found = state(folder)
        more = set(found) - set(after)
        assert more <= {"run/checkpoint-00000001.safetensors"}, more
        assert outcome({name: found[name] for name in after}) == outcome(after)


def outcome(found: State) -> dict[str, object]:
    """What a run folder says of the bits, without what the clock decides."""
    metrics = [json.loads(line) for line in found["run/metrics.jsonl"].splitlines()]
    for record in metrics:
        del record["seconds"]
    whole = {name: data for name, data in found.items() if name.endswith((".safetensors", "trace"))}
    return {**whole, "metrics": metrics, "sha256": json.loads(found["run/result.json"])["sha256"]}


CASES = {
    "file": Case(old_file, new_file),
    "first file": Case(lambda folder: None, new_file),
    "archive": Case(old_file, new_archive),
    "folder": Case(old_folder, new_folder),
    "first folder": Case(lambda folder: None, new_folder),
    "two renames": Case(old_folder, two_renames, check_two_renames),
    "checkpoint": Case(old_checkpoints, new_checkpoint, check_checkpoints),
    "cache": Case(compiler_stub, load_kernels, check_cache, BuildError),
    "damaged cache": Case(damaged_cache, load_kernels, check_cache, BuildError),
    "package": Case(old_package, new_package),
    "run": Case(run_data, train, check_run),
    "unsynced file": Case(old_file, unsynced_file),
    "file in place": Case(old_file, file_in_place),
    "two renames, unchecked": Case(old_folder, two_renames),
}
