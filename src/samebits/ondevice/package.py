"""A network of a training run as a folder of C that trains it on."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version

import torch

from samebits.codegen.names import checked_prefix
from samebits.csrc import flat
from samebits.errors import InputError, UnsupportedError
from samebits.ondevice.emit import first_state, header, source
from samebits.ondevice.frozen import FrozenParts, frozen_header, frozen_parts
from samebits.ondevice.optimizer import options_of, schedule_entries
from samebits.ondevice.places import Places, place
from samebits.ondevice.record import record as tape_of
from samebits.ondevice.state import TrainingState, from_bytes, to_bytes
from samebits.ondevice.tape import StepTape
from samebits.recipes.reading import TASKS
from samebits.train.convert import model_input
from samebits.train.graph import TrainingGraph
from samebits.train.recording import record
from samebits.train.run.checkpoint import Checkpoint
from samebits.train.run.config import TrainConfig
from samebits.train.run.engine import Engine
from samebits.train.run.restore import StoppedRun

KERNELS = (
    *("ondevice/samebits_train.h", "ondevice/train_exact.h", "ondevice/train_scalars.h"),
    *("ondevice/train_loss.c", "ondevice/train_norm.c", "ondevice/train_pool.c"),
    *("ondevice/train_products.c", "ondevice/train_root.h", "ondevice/train_state.c"),
    *(
        "ondevice/train_sums.c",
        "ondevice/train_gradient.c",
        "ondevice/train_halves.h",
        "ondevice/train_dots.h",
    ),
    *("ondevice/train_inputs.c", "ondevice/train_rounding.h", "ondevice/train_taps.h"),
    *("ondevice/train_rows.h", "ondevice/train_parts.c", "ondevice/samebits_train_sequences.h"),
    *("ondevice/train_update.c", "ondevice/train_update.h", "ondevice/train_weights.c"),
    *("training/exponent.h", "training/philox.h", "training/powers.h", "training/real.h"),
    *("training/shift.h", "samebits_bytes.h", "samebits_integer.h"),
)
OF_CELLS = ("ondevice/train_cells.c", "ondevice/train_cells.h", "ondevice/train_unrolled.c")
OF_VECTORS = ("ondevice/train_vectors.c",)
OF_MATRICES = ("ondevice/train_attention.c",)
LIBRARY = "samebits"  # the folder of the kernels
FORMAT = "samebits-training-1"


@dataclass(frozen=True, eq=False)
class TrainingCode:
    """A network's training step as C.

    frozen: what no step changes
    files:  by path, as a folder holds them
    """

    prefix: str
    tape: StepTape
    places: Places
    frozen: FrozenParts
    files: Mapping[str, bytes]


def code_of_run(
    run: StoppedRun, batch: int, prefix: str, rates: Sequence[float] = (), arena: int = 0
) -> TrainingCode:
    """The C that trains on where a run stands. Errors as `training_code`."""
    if run.task != TASKS[0]:
        raise UnsupportedError(
            f"{run.path}: training in C: expected a run of {TASKS[0]}, found one of {run.task}"
        )
    made = (run.engine, run.config, run.input_shape, _state_of(run.checkpoint))
    return training_code(*made, batch=batch, prefix=prefix, rates=rates, arena=arena)


def _state_of(checkpoint: Checkpoint) -> TrainingState:
    return TrainingState(checkpoint.model, checkpoint.optimizer["state"], checkpoint.step)


def state_bytes(checkpoint: Checkpoint, code: TrainingCode) -> bytes:
    """The bytes of a checkpoint's state. Raises InputError for one of another network."""
    tape = code.tape
    for parameter in (*tape.parameters, *tape.frozen):
        found = checkpoint.model.get(f"{parameter.name}.codes")
        shape = None if found is None else tuple(found.shape)
        if shape != parameter.shape:
            raise InputError(
                f"expected the parameter {parameter.name} of shape {parameter.shape} in the "
                f"checkpoint, found {shape}; give a run of the network that was compiled"
            )
    if (own := frozen_parts(tape, checkpoint.model).sha256) != code.frozen.sha256:
        raise InputError(
            f"expected a run whose parts that no step changes are those of the C (sha256 "
            f"{code.frozen.sha256:.16}), found others ({own:.16}); compile that run"
        )
    return to_bytes(_state_of(checkpoint), code.places)


def trained_on(checkpoint: Checkpoint, data: bytes, places: Places) -> Checkpoint:
    """A checkpoint of a run with the state that C has saved after it.

    It can be trained on and evaluated; exponents for deployment are frozen when training ends.
    Raises InputError for bytes that are no state of this network.
    """
    state = from_bytes(data, places)
    trained = {held.parameter.index for held in places.parameters}
    others = {i: own for i, own in checkpoint.optimizer["state"].items() if i not in trained}
    optimizer = {**checkpoint.optimizer, "state": {**others, **state.moments}}
    model = {**checkpoint.model, **state.model}
    return replace(checkpoint, step=state.step, model=model, optimizer=optimizer, exponents=None)


def training_code(
    engine: Engine,
    config: TrainConfig,
    shape: tuple[int, ...],
    state: TrainingState,
    *,
    batch: int,
    prefix: str = "model",
    rates: Sequence[float] = (),
    arena: int = 0,
) -> TrainingCode:
    """The C of an engine's model that trains on where a run is, as steps of the engine do.

    shape: of one sample; batch: the most samples of a step, which is one shard; rates: of the steps
    to come, none: that of the run; arena: bytes up to which it may grow where that spares time.
    Raises InputError for a batch that is none, a bad rate, arena and prefix, UnsupportedError for a
    network or options that C cannot train yet.
    """
    checked_prefix(prefix)
    if arena < 0:
        raise InputError(f"--train-arena: expected bytes, found {arena}; give 0 or more")
    if batch < 1:
        raise InputError(f"--train-batch: expected at least 1 sample, found {batch}")
    _check_options(config)
    tape = tape_of(engine.model, _graph(engine, (batch, *shape)), (batch, *shape))
    options = options_of(config)
    schedule = schedule_entries(rates, state.step)
    frozen = frozen_parts(tape, state.model)
    places = place(tape, options, frozen.sha256, arena)
    data = to_bytes(state, places)
    files = {
        f"{prefix}.h": header(tape, places, prefix),
        f"{prefix}.c": source(tape, places, options, config.lr, schedule, prefix),
        f"{prefix}_state.c": first_state(data, prefix),
        "report.json": _report(prefix, tape, places, config, len(rates), frozen),
    }
    if frozen.sha256:
        files[f"{prefix}_frozen.h"] = frozen_header(frozen, prefix)
    library = {
        f"{LIBRARY}/{name}": text
        for name, text in flat((*KERNELS, *kernels_of(tape), *options.kernels)).items()
    }
    texts = {**files, **library}
    data_files = {k: v.encode() for k, v in texts.items()}
    return TrainingCode(prefix, tape, places, frozen, data_files)


def kernels_of(tape: StepTape) -> tuple[str, ...]:
    """The files in csrc that only some networks need."""
    own = {OF_CELLS: tape.has_curves, OF_VECTORS: tape.has_vectors, OF_MATRICES: tape.has_matrices}
    return tuple(name for names, needed in own.items() if needed for name in names)


def _check_options(config: TrainConfig) -> None:
    """UnsupportedError for the first option of a run that steps in C do not follow."""
    usual = TrainConfig(data=config.data, arch=config.arch)
    for name in (
        *("numerics", "gradient_bits", "exponents", "widths", "rounding"),
        *("label_smoothing", "ema", "loss", "keep_float"),
    ):
        found, expected = getattr(config, name), getattr(usual, name)
        if found != expected:
            raise UnsupportedError(
                f"training in C: expected a run with {name.replace('_', ' ')} {expected}, found "
                f"{found}; train without that option, or on with samebits train"
            )


def _graph(engine: Engine, shape: tuple[int, ...]) -> TrainingGraph:
    """The graph of an engine's steps for inputs of a shape; the model stays as it is.

    Forward code of others is taken to ask for the same operations in every step, as C does.
    """
    model, training = engine.model, engine.model.training
    engine.set_training()
    try:
        ramp = torch.arange(math.prod(shape), dtype=torch.float32) % 17 / 16 - 0.5
        return record(model, model_input(model, ramp.reshape(shape)), trusted=True)
    finally:
        model.train(training)


def _report(
    prefix: str,
    tape: StepTape,
    places: Places,
    config: TrainConfig,
    rates: int,
    frozen: FrozenParts,
) -> str:
    """The report of a folder, as JSON."""
    own = {
        "generator": "samebits",
        "version": version("samebits"),
        "format": FORMAT,
        "prefix": prefix,
        "batch": tape.batch,
        "inputs": tape.inputs,
        "classes": tape.classes,
        "parameters": sum(p.size for p in tape.parameters),
        "network": f"{places.network:08x}",
        "optimizer": {
            "lr": config.lr,
            "scheduled_steps": rates,
            **asdict(options_of(config)),
        },
        "bytes": {
            "state": places.state,
            "saved_state": places.saved,
            "arena": places.arena,
            "arena_bound": places.bound,
            "frozen": frozen.size,
        },
    }
    return json.dumps(own, indent=2) + "\n"
