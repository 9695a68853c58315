"""Trained models back from their checkpoints, which are untrusted files."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from samebits import ledger
from samebits.callables import is_callable_name
from samebits.data import Dataset
from samebits.data.dataset import MOST_NAMED, shape_text
from samebits.data.earlier import NONE, Earlier
from samebits.data.preparation import Preparation
from samebits.errors import CheckpointError, InputError, UnsupportedError
from samebits.recipes.reading import TASKS, Reading
from samebits.train.architectures import ARCHITECTURES, Shape, build, initialise
from samebits.train.deployed.deploy import Exponents, calibrate
from samebits.train.layers import load_state
from samebits.train.run.checkpoint import (
    Checkpoint,
    check_same_tensors,
    checkpoint_path,
    newest_checkpoint,
    parameter_sha256,
    read_checkpoint,
)
from samebits.train.run.config import TrainConfig
from samebits.train.run.device import CPU
from samebits.train.run.engine import Batch, Engine
from samebits.train.run.loop import make_engine
from samebits.train.run.record import CONFIG, RESULT, first_difference, read_json
from samebits.train.run.structure import KEY, check_network, network_sha256


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """A trained model that can be deployed, without its data.

    exponents: those frozen for deployment; None of a float32 model
    """

    path: Path  # of its checkpoint
    model: nn.Module
    exponents: Exponents | None
    input_shape: Shape  # as Dataset.input_shape
    classes: int
    rate: int | None  # as Dataset.rate
    rows: bool = False  # as Dataset.rows
    earlier: Earlier = NONE  # how its data was read
    task: str = TASKS[0]
    names: tuple[str, ...] = ()  # of its classes, labels or targets, where they have any


@ledger.load()
def open_checkpoint(path: Path, say: Callable[[str], None]) -> tuple[Path, Checkpoint]:
    """The checkpoint a training folder (its newest intact one) or a checkpoint file holds.

    `say` hears of damaged ones, and of one that is not the one that the folder's other files are
    of. Raises InputError for anything else, CheckpointError for a damaged file.
    """
    if path.is_dir():
        checkpoint = newest_checkpoint(path, say)
        if checkpoint is None:
            raise InputError(
                f"{path}: expected a training output folder, found no checkpoint-*.safetensors in "
                "it; train first, or give a checkpoint file"
            )
        found = checkpoint_path(path, checkpoint.step)
        for line in _differences(found, checkpoint):
            say(f"warning: {line}")
        return found, checkpoint
    if not path.exists():
        raise InputError(
            f"{path}: no such file or folder; expected a training output folder or a checkpoint"
        )
    if path.suffix != ".safetensors":
        raise InputError(
            f"{path}: expected a training output folder or a .safetensors checkpoint, found a "
            f"file ending in {path.suffix or 'nothing'}"
        )
    return path, read_checkpoint(path)


def _differences(path: Path, checkpoint: Checkpoint) -> list[str]:
    """Where config.json and result.json are of another checkpoint than this one beside them."""
    lines = []
    config, result = (read_json(path.parent / name) for name in (CONFIG, RESULT))
    other = first_difference(checkpoint.config, config) if config else None
    if other is not None:
        lines.append(f"{path.parent / CONFIG}: not of the run that wrote {path.name} ({other})")
    recorded = result.get("sha256")
    if recorded is not None and recorded != (sha256 := parameter_sha256(checkpoint.model)):
        lines.append(
            f"{path.parent / RESULT}: records a run whose parameters have the sha256 "
            f"{recorded!s:.16}, and those of {path.name} have {sha256:.16}: another file took its "
            "place, or training went on since"
        )
    return lines


@ledger.load()
def open_trained(
    path: Path, arch: str | nn.Module | None = None, say: Callable[[str], None] = lambda text: None
) -> TrainedModel:
    """The model of a training folder or checkpoint of either numerics.

    `arch` is as `restore_engine` takes it. Raises InputError, CheckpointError, or UnsupportedError
    for a BFP model without frozen exponents.
    """
    found, checkpoint = open_checkpoint(path, say)
    config = _restored_config(found, checkpoint)[0]
    engine, input_shape, classes = _restored(found, checkpoint, arch)
    rate = checkpoint.config.get("rate")
    rows = checkpoint.config.get("rows") is True
    if config.numerics == "bfp" and checkpoint.exponents is None:
        raise _without_exponents(found, checkpoint, engine.model, input_shape, rows)
    earlier = earlier_reading(found, checkpoint)
    task = str(checkpoint.config.get("task", TASKS[0]))
    names = _names(checkpoint, earlier, task)
    tokens = len(input_shape) == 1 and not rows
    if not names and task in (TASKS[0], "segmentation") and not tokens and classes <= MOST_NAMED:
        names = tuple(map(str, range(classes)))  # of classes that are numbers, such as digits
    about = rate, rows, earlier, task, names if len(names) == classes else ()
    return TrainedModel(found, engine.model, checkpoint.exponents, input_shape, classes, *about)


def _names(checkpoint: Checkpoint, earlier: Earlier, task: str) -> tuple[str, ...]:
    """Names of the outputs of a run, as its record has them: those of a table's classes or targets,
    or of folders."""
    if task == "classification" and earlier.preparation is not None:
        return earlier.preparation.classes
    if task in ("regression", "multilabel"):
        return earlier.options.target
    found = checkpoint.config.get("class_names")
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        return ()
    return tuple(found)


def zero_input(shape: Shape, rows: bool) -> torch.Tensor:
    """One sample of zeros for a model of this input shape: integers where it takes tokens."""
    dtype = torch.int64 if len(shape) == 1 and not rows else torch.float32
    return torch.zeros(1, *shape, dtype=dtype, device="cpu")


def _without_exponents(
    path: Path, checkpoint: Checkpoint, model: nn.Module, shape: Shape, rows: bool
) -> UnsupportedError:
    """The error for a checkpoint without frozen exponents, which says why there are none.

    A pass on zeros tells which operations have no deployed form, result.json whether the run is
    finished.
    """
    try:
        calibrate(model, [zero_input(shape, rows)])
    except UnsupportedError as error:
        return UnsupportedError(f"{path}: {error}")
    expected = f"{path}: expected the frozen exponents that a finished run leaves, found none"
    if read_json(path.parent / RESULT).get("sha256") == parameter_sha256(checkpoint.model):
        return UnsupportedError(
            f"{expected}, though this run is finished: its values did not fit them when it ended, "
            "as it said then; scale the input or add normalisations, and train again"
        )
    return UnsupportedError(f"{expected}; finish the run with --resume")


@dataclass(frozen=True, eq=False)
class StoppedRun:
    """A run after a step, with all that it takes to train on.

    input_shape: as Dataset.input_shape
    """

    path: Path  # of its checkpoint
    engine: Engine
    config: TrainConfig
    checkpoint: Checkpoint
    input_shape: Shape
    classes: int
    task: str

    def random_batch(self) -> Batch:
        """As many random samples and classes as a step of the run takes."""
        draws = torch.Generator(device="cpu").manual_seed(self.config.seed)
        one = zero_input(self.input_shape, self.checkpoint.config.get("rows") is True)
        samples = one.expand(self.config.batch, *one.shape[1:]).clone()
        is_text = not samples.is_floating_point()
        classes = samples.clone() if is_text else samples.new_zeros(len(samples), dtype=torch.int64)
        if is_text:
            samples.random_(0, self.classes, generator=draws)
        else:
            samples.normal_(generator=draws)
        return samples, classes.random_(0, self.classes, generator=draws)


@ledger.load()
def open_run(
    path: Path,
    arch: str | nn.Module | None = None,
    say: Callable[[str], None] = lambda text: None,
    shards: int | None = 1,
) -> StoppedRun:
    """The run of a training folder or checkpoint, where its training stands.

    `arch` is as `restore_engine` takes it. shards: of a step; None: those of the run. Raises
    InputError or CheckpointError.
    """
    found, checkpoint = open_checkpoint(path, say)
    config, shape, classes = _restored_config(found, checkpoint)
    engine, _, _ = _restored(found, checkpoint, arch, shards=shards)
    try:
        engine.optimizer.load_state_dict(checkpoint.optimizer)
    except (LookupError, TypeError, ValueError) as error:
        raise _not_written(found, InputError(str(error))) from error
    task = _task(found, checkpoint)
    return StoppedRun(found, engine, config, checkpoint, shape, classes, task)


def trained_shape(path: Path, checkpoint: Checkpoint) -> Shape:
    """The input shape a checkpoint's model was trained on. Raises CheckpointError."""
    return _restored_config(path, checkpoint)[1]


def earlier_reading(path: Path, checkpoint: Checkpoint) -> Earlier:
    """How the run of a checkpoint read its data. Raises CheckpointError for a record that samebits
    does not write."""
    config = checkpoint.config
    try:
        made = config.get("preparation")
        return Earlier(
            Reading.from_dict(config.get("reading", {})),
            None if made is None else Preparation.from_dict(made),
            config.get("pixels") is True,
        )
    except InputError as error:
        raise _not_written(path, error) from error


def restore_engine(
    path: Path,
    checkpoint: Checkpoint,
    data: Dataset,
    arch: str | nn.Module | None = None,
    device: torch.device = CPU,
) -> Engine:
    """The trained model of a checkpoint, ready to evaluate on `data`, whose samples it takes to
    `device`.

    A checkpoint is an untrusted file, so the code that a `module:callable` architecture names
    runs only if the caller repeats that name as `arch`; a run of a torch.nn.Module needs such a
    module there, which stays as it is. Raises CheckpointError, or InputError if the data does not
    fit the model.
    """
    engine, input_shape, classes = _restored(path, checkpoint, arch, device)
    if data.input_shape != input_shape:
        raise InputError(
            f"{data.source}: expected {data.noun}s {shape_text(input_shape)} as in training, found "
            f"{shape_text(data.input_shape)}; give data of the shape the model was trained on"
        )
    data.check_rate(checkpoint.config.get("rate"))
    task = _task(path, checkpoint)
    if data.task != task:
        raise InputError(
            f"{data.source}: expected labels for {task} as in training, found {data.task}; give "
            "data of the same task"
        )
    exact = task in ("regression", "multilabel")
    if exact and data.classes != classes:
        raise InputError(
            f"{data.source}: expected {classes} targets as in training, found {data.classes}; give "
            "data of the same targets"
        )
    earlier_reading(path, checkpoint).check_dataset(data.preparation, data.source)
    names = checkpoint.config.get("class_names")
    if data.named and isinstance(names, list) and list(data.class_names) != names:
        first = sorted(set(map(str, names)) ^ set(data.class_names)) or ["another order"]
        raise InputError(
            f"{data.source}: expected the {len(names)} classes of training, found "
            f"{data.classes}: {first[0]!r:.60} is in one alone; name classes as in training, with "
            "an empty folder for one without samples"
        )
    if data.classes > classes:
        raise InputError(
            f"{data.source}: expected at most the {classes} classes the model was trained on, "
            f"found {data.classes}; give data of the same classes"
        )
    return engine


def _restored(
    path: Path,
    checkpoint: Checkpoint,
    arch: str | nn.Module | None,
    device: torch.device = CPU,
    shards: int | None = None,
) -> tuple[Engine, Shape, int]:
    """The engine of a checkpoint, its input shape and class count. Raises CheckpointError.

    shards: of a batch, by default those of the run
    """
    config, input_shape, classes = _restored_config(path, checkpoint)
    if shards is not None:
        config = replace(config, shards=shards)
    _check_arch(path, config.arch, arch)
    if config.arch in ARCHITECTURES:
        _check_sizes(path, checkpoint, config, input_shape, classes)
    if isinstance(arch, nn.Module):
        model = copy.deepcopy(arch)
    else:
        model = _built(path, config.arch, input_shape, classes)
    initialise(model, config.seed)
    engine = make_engine(config, model, device=device, task=_task(path, checkpoint))
    check_same_tensors(path, engine.model.state_dict(), checkpoint.model)
    rows = checkpoint.config.get("rows") is True
    found = network_sha256(config, engine, input_shape, rows)
    check_network(path, config, checkpoint.config.get(KEY), found)
    load_state(engine.model, checkpoint.model, path)
    return engine, input_shape, classes


def _task(path: Path, checkpoint: Checkpoint) -> str:
    """The task of a run, classification where none is recorded. Raises CheckpointError."""
    task = checkpoint.config.get("task", TASKS[0])
    if task not in TASKS:
        raise CheckpointError(
            f"{path}: expected a task among {', '.join(TASKS)} in its configuration, found "
            f"{task!r}; train again"
        )
    return str(task)


def _check_arch(path: Path, trained: str, given: str | nn.Module | None) -> None:
    """CheckpointError unless `given` is what a run of the architecture `trained` needs."""
    found = type(given).__name__ if isinstance(given, nn.Module) else given
    if found is not None and found != trained:
        raise CheckpointError(
            f"{path}: expected the architecture {found!r}, found {trained!r}; give --arch "
            "the one it was trained with, or another checkpoint"
        )
    if given is None and is_callable_name(trained):
        raise CheckpointError(
            f"{path}: its architecture {trained!r} is code outside samebits, which is not run "
            f"unasked; if you trust it, give --arch {trained}"
        )
    by_name = trained in ARCHITECTURES or is_callable_name(trained)
    if by_name == isinstance(given, nn.Module):
        raise CheckpointError(
            f"{path}: expected the name of its architecture {trained!r}, found a module; give "
            "the name, or leave it out"
            if by_name
            else f"{path}: it was trained from a torch.nn.Module of class {trained!r}, "
            "whose layers it does not hold; give such a module as arch= in Python"
        )


def _built(
    path: Path, arch: str, input_shape: Shape, classes: int, device: str = "cpu"
) -> nn.Module:
    """The architecture. CheckpointError where it does not take such an input."""
    try:
        return build(arch, input_shape, classes, device)
    except InputError as error:
        raise _not_written(path, error) from error


def _not_written(path: Path, error: InputError) -> CheckpointError:
    return CheckpointError(
        f"{path}: its configuration is not one that samebits writes: {error}; train again"
    )


def _check_sizes(
    path: Path, checkpoint: Checkpoint, config: TrainConfig, input_shape: Shape, classes: int
) -> None:
    """CheckpointError where the tensors are not those of the stored sizes.

    On torch's meta device, before memory is taken for such a model.
    """
    model = _built(path, config.arch, input_shape, classes, "meta")
    end, dtype = (".codes", torch.int8) if config.numerics == "bfp" else ("", torch.float32)
    expected = {
        name + end: torch.empty(parameter.shape, dtype=dtype, device="meta")
        for name, parameter in model.named_parameters()
    }
    found = {name: checkpoint.model[name] for name in expected if name in checkpoint.model}
    check_same_tensors(path, expected, found)


def _restored_config(path: Path, checkpoint: Checkpoint) -> tuple[TrainConfig, Shape, int]:
    """Options, input shape and class count of a checkpoint, checked one by one.

    Raises CheckpointError, with advice, for a configuration that samebits does not write.
    """
    stored = checkpoint.config
    fields = TrainConfig.__dataclass_fields__
    missing = [key for key in (*fields, "input_shape", "classes") if key not in stored]
    if missing:
        raise CheckpointError(
            f"{path}: expected the option {missing[0]!r} in its configuration, found none; use "
            "the samebits version that wrote it"
        )
    try:
        config = TrainConfig(**{key: stored[key] for key in fields})
    except InputError as error:
        raise _not_written(path, error) from error
    shape, classes = stored["input_shape"], stored["classes"]
    sizes = [*shape, classes] if isinstance(shape, list) and len(shape) in (1, 2, 3) else [None]
    if not all(type(size) is int and size > 0 for size in sizes):
        raise CheckpointError(
            f"{path}: expected an input shape [C, H, W], [T, F] or [T] and a number of classes in "
            f"its configuration, found {shape!r} and {classes!r}; train again"
        )
    rate = stored.get("rate")
    if rate is not None and type(rate) is not int:
        raise CheckpointError(
            f"{path}: expected a number of samples per second or none in its configuration, found "
            f"{rate!r}; train again"
        )
    return config, tuple(shape), classes
