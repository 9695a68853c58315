"""Training steps in C for devices, of the front door: written, and compared with PyTorch's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samebits import progress
from samebits.errors import InputError
from samebits.settled import settled

if TYPE_CHECKING:
    from torch import nn

    from samebits.building import CompiledTraining, TrainingVerification


@settled
def compile_training(
    run: str | Path,
    out: str | Path,
    *,
    batch: int | None = None,
    schedule: str | Sequence[float] | None = None,
    train_only: str | Sequence[str] | None = None,
    arena: int | None = None,
    prefix: str | None = None,
    arch: str | nn.Module | None = None,
) -> CompiledTraining:
    """C99 that trains the network of a run on: every step has the bits of `samebits.train`.

    run:    a training folder or a checkpoint, whose weights, optimizer and options the C takes
    out:    folder to write; an earlier package there is replaced
    batch:  the most samples of a step, by default 8; a step is one shard
    schedule: of the learning rate from here on: its name and steps ("cosine:1000"), from that of
            the run, or every rate; by default it stays that of the run
    train_only: names of the modules or parameters that steps train, with the wildcards of fnmatch:
            "head", ["6.*", "*.bias"]; the rest lies in flash as constant data, and batch norms of
            it go by their running statistics. By default all that requires a gradient
    arena:  bytes up to which the step's memory may grow beyond the least that it needs, where that
            spares time: sums are kept which are else computed twice. By default it never grows
    prefix: of every name, by default `model`
    arch:   as `load` takes it

    Raises InputError and CheckpointError for what is no run, UnsupportedError, which names the
    layer or the option, for a run that C cannot train on yet (docs/guide/on-device.md).
    """
    from samebits.building import training_of
    from samebits.train.run.restore import open_run

    opened = open_run(Path(run), arch, progress.note)
    count = 8 if batch is None else batch
    name = "model" if prefix is None else prefix
    most = 0 if arena is None else arena
    return training_of(opened, Path(out), count, name, arch, schedule, _parts(train_only), most)


def _parts(given: str | Sequence[str] | None) -> tuple[str, ...]:
    """Patterns of --train-only, of which there may be none. Raises InputError for empty ones."""
    if given is None:
        return ()
    parts = tuple(given.split(",") if isinstance(given, str) else given)
    if not parts or not all(parts):
        raise InputError(
            f"--train-only: expected names of modules or parameters, separated by commas, found "
            f"{given!r:.60}"
        )
    return tuple(part.strip() for part in parts)


def check_train(others: Mapping[str, Any]) -> None:
    """InputError for an option that does not apply to training steps."""
    for name, value in others.items():
        if value is not None:
            option = name.replace("_", "-")
            raise InputError(f"--{option} does not apply to --train, found {value}; leave it out")


@settled
def verify_training(
    run: str | Path,
    train: str,
    backends: Sequence[str] | None = None,
    arch: str | nn.Module | None = None,
    train_only: str | Sequence[str] | None = None,
    **others: Any,
) -> TrainingVerification:
    """Train on in PyTorch and in C, from where a run stands, and compare the state and the loss
    after every step; where they part, name the step, the instruction and the tensor.

    run:      a training folder or a checkpoint, whose data are read again
    train:    "steps:N", steps of 8 samples each
    backends: training, which is PyTorch and always there, c, this machine, and emulated processors
              and boards, such as cortex-m3; by default training and c
    arch:     as `load` takes it
    train_only: as `compile_training` takes it
    others:   options of `Network.verify` that do not apply: none may be given

    Errors as `compile_training`, and InputError for a backend that cannot run here.
    """
    from samebits.building import training_verified
    from samebits.ondevice.check import HOST, checked_names
    from samebits.train.run.restore import open_run

    check_train(others)
    kind, _, count = train.partition(":")
    if kind != "steps" or not (count.isascii() and count.isdigit()) or not 1 <= int(count) <= 10**6:
        raise InputError(
            f"--train: expected steps:N with at least 1 step, such as steps:20, found {train!r}"
        )
    names = checked_names([HOST] if backends is None else backends)
    opened = open_run(Path(run), arch, progress.note)
    return training_verified(opened, int(count), names, arch, _parts(train_only))
