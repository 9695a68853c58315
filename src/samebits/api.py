"""The front door: what the command line can do, from Python.

Each command is one call of these functions, or of a method of the `Network` that they return, and
printing. docs/guide/python.md shows every one at work.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from samebits import progress
from samebits.callables import named_callable
from samebits.errors import InputError, SamebitsError, UnsupportedError
from samebits.excerpt import Part, excerpt_of
from samebits.network import Network
from samebits.recipes import (
    PLAIN,
    Calibration,
    DataSource,
    Execution,
    FineTuning,
    Formats,
    Given,
    Numerics,
    Optimizer,
    Reading,
    Recipe,
    Recomputation,
    Recurrence,
    Training,
    reading_of,
    takes,
)
from samebits.results import (
    Audit,
    Evaluation,
    TrainingProfile,
    TrainingRun,
)
from samebits.settled import settled
from samebits.settled import threads as cpu_threads
from samebits.sources import called, load, refuse

if TYPE_CHECKING:
    from torch import nn

    from samebits.contract import Contract
    from samebits.reports.report import Report
    from samebits.train.run.loop import Reporter

__all__ = [
    "audit",
    "convert",
    "evaluate",
    "fit",
    "inspect",
    "inspect_record",
    "load",
    "quantize",
    "report",
]

Array = np.ndarray[Any, Any]


@settled
@takes(Formats, Calibration, Recurrence, FineTuning, data="calibration")
def quantize(
    source: Any,
    calibration: Any,
    *recipes: Recipe,
    finetune: Any = None,
    contract: Contract | Mapping[str, Any] | str | Path | None = None,
) -> Network:
    """A float network quantized after training: its report says what that costs, layer by layer.

    A network with recurrent layers becomes one time step, with its states as last inputs and
    outputs, or takes whole sequences of one length: see `Recurrence`. One whose states are inputs
    and outputs of its own becomes a step.

    source:      as `load` takes it; a torch.nn.Module is called on the first item of the
                 calibration, or is loaded on another example before (`load`)
    calibration: samples: an array, a tensor, a dict of them, a DataLoader or another iterable, an
                 .npz file, digits, a folder of images or recordings, a table, or a Dataset; or what
                 `read` gave. Without `Calibration(stop_early=...)` their order is indifferent
    recipes:     Formats, Calibration, Recurrence and, for `finetune`, FineTuning
    finetune:    data to train the quantized network on with, in its integers (`Network.finetune`)
    contract:    the model's name and version, and what its inputs and outputs mean, beside what its
                 run and the calibration say (`Network.with_contract`)

    Where a network would be lost so, and no option of formats was given, the tensors that cost most
    get twice the bits; a line of the report says which.

    The result is what its file will say, read back: `verify` and `compile` take it, and so does
    onnxruntime with its default options, or a note of the network says why that was not shown.

    Raises InputError for an option that does not apply to the network, and for samples that do not
    fit; UnsupportedError for operators without an integer form, where possible before calibration.
    """
    asked = Given("quantize", recipes, Formats, Calibration, Recurrence, FineTuning)
    return quantized(source, calibration, asked, finetune, contract)


def quantized(
    source: Any,
    calibration: Any,
    asked: Given,
    finetune: Any,
    contract: Contract | Mapping[str, Any] | str | Path | None,
    floor: float | None = None,
) -> Network:
    """A network quantized as `quantize` says. floor: in dB, where the recipes say none."""
    from samebits.contract import Contract
    from samebits.ir.canonical import canonicalize
    from samebits.ir.fidelity import floor_of, lost_tensors
    from samebits.ir.lowering.check import check_lowerable
    from samebits.model import described
    from samebits.quantization import Options, judged, quantize_network, tie_states
    from samebits.samples import example_of, gather, in_memory, is_module, kept, meaning_of
    from samebits.verification.backends.onnxruntime import not_taken
    from samebits.verification.deployable import deployable
    from samebits.verification.fidelity import measured

    how, recurrence = asked[Calibration], asked[Recurrence]
    wanted, tuning = floor if how.floor is None else floor_of(how.floor), asked[FineTuning]
    if finetune is None and FineTuning in asked:
        raise InputError(
            f"--{next(iter(tuning.chosen()), 'epochs')}: expected data to fine-tune on with it, "
            "found none; give --finetune DATA, or leave it out"
        )
    calibration, chosen = reading_of(calibration)
    where = str(calibration) if isinstance(calibration, str | Path) else "calibration"
    calibration = kept(calibration)
    name, given, fed = str(source), called(source), (calibration, chosen)
    example = None
    if is_module(given):  # both are of one reading
        calibration, chosen = in_memory(calibration, chosen), PLAIN
        example = example_of(given, calibration, where)
    net = load(given, example=example)
    if given is not source:
        net = Network(replace(net.model, source=name))
    if net.kind != "float network":
        raise InputError(f"{net.source}: expected a float network, found: {_found(net)}")
    known = described(net.model, contract).known  # not what the calibration says of itself
    made_by = Contract(recipes=asked.to_dict(Formats, Calibration, Recurrence, FineTuning))
    net = Network(described(net.model, contract, meaning_of(net.model.real, *fed)))
    net = Network(described(net.model, made_by))
    graph = tie_states(canonicalize(net.model.real), recurrence.state, recurrence.sequence)
    options = Options(asked[Formats], how, recurrence, reading_of(finetune)[0])
    options.check(graph)
    check_lowerable(graph)
    arrays = gather(calibration, graph, where, chosen, net.model.rate, known)
    quantized = quantize_network(graph, arrays, options, where)
    report, held = quantized.report, quantized.held
    made = deployable(replace(net.model, graph=quantized.graph))
    refused = not_taken(made.real, held.first[0] if held.first else [])
    verdict = judged(measured(made, held, lost_tensors(report)), quantized)
    notes = (refused,) if refused else ()
    net = Network(replace(made, fidelity=verdict), report, notes, held)
    if finetune is not None:
        net = net.finetune(finetune, tuning)
    net.check_fidelity(wanted)
    return net


def read_each(reading: Reading, *sources: Any) -> list[Any]:
    """Data for one call, read by the options of one command line: each source gets those that apply
    to it. InputError for one that applies to none; None, which is no data, stays None."""
    from samebits.data import options_of

    asked = reading.chosen()
    data = [source for source in sources if source is not None]
    if not asked:
        return list(sources)
    if len(sources) == 1 or len(data) == 1:  # what takes it says what is wrong, also of none
        only = len(sources) == 1
        return [DataSource(s, reading) if only or s is not None else None for s in sources]
    takes = {id(source): options_of(source) for source in data}
    for option in asked:
        if not any(option in each for each in takes.values()):
            raise InputError(
                f"{data[0]}: --{option} does not apply to it, nor to {data[1]}; leave it out"
            )
    return [DataSource(source, reading.among(takes[id(source)])) for source in sources]


def source_of(name: str, arch: str | None, part: Mapping[str, Any]) -> Any:
    """A source of the command line: a network where options of `load` are given with it."""
    chosen = {option: value for option, value in part.items() if value is not None}
    return load(name, arch=arch, **chosen) if chosen or arch is not None else name


def _found(net: Network) -> str:
    """The kind of a network that is not to be quantized; of one that is, but not wholly, where."""
    if net.kind == "quantized network":
        try:
            _ = net.model.integer
        except SamebitsError as error:
            return (
                f"{net.kind} in part: {error}; quantize the float network, or quantize the rest "
                "where this was done"
            )
    return net.kind


@settled
def convert(
    module: nn.Module,
    *,
    exponents: str = "tensor",
    widths: Sequence[int] | Mapping[str, Sequence[int]] = (8, 16, 32),
    keep_float: Sequence[str] = (),
) -> nn.Module:
    """A torch.nn model for training in block floating point: see `samebits.train`.

    exponents: "tensor", "row" for one a sample and output channel, or "row-shift" for outlier
    channels besides. widths: bits of weights and activations, of gradients and of intermediates, of
    all layers or by the paths of modules. keep_float: paths of modules that stay in float32, where
    bits depend on the machine. The model is left as it is. Raises UnsupportedError naming every
    layer that has no counterpart.
    """
    from torch import nn

    from samebits import train

    if not isinstance(module, nn.Module):
        raise InputError(f"expected a torch.nn.Module, found {type(module).__name__}")
    return train.convert(module, exponents, widths, keep_float)


@settled
@takes(Training, Optimizer, Numerics, Recomputation, Execution, data="data")
def fit(
    data: Any,
    arch: str | nn.Module,
    out: str | Path,
    *recipes: Recipe,
    init: str | Path | Mapping[str, Any] | None = None,
    reporter: Reporter | None = None,
    done: Callable[[TrainingRun], None] | None = None,
) -> TrainingRun | None:
    """Train a network, and leave checkpoints, metrics and the result in the folder `out`.

    The bits of a BFP run depend on the data, `init` and the recipes Training, Optimizer and
    Numerics alone: not on threads, workers, devices, plans or interruptions. docs/guide/train.md.

    data:     digits, a folder of images, of images and masks or of recordings, a table (.csv,
              .parquet), an .npz or .txt file, a data set that Hugging Face has saved,
              module:callable or file.py:callable of map-style datasets, a pandas.DataFrame, two
              of them (for training, for testing), or a Dataset; or what `read` gave
    arch:     an architecture's name, module:callable or file.py:callable, or a torch.nn.Module,
              whose weights are set anew from the seed, or are those of `init`
    recipes:  Training, Optimizer, Numerics, Recomputation, Execution (docs/guide/recipes.md)
    init:     what the weights start from instead of the seed: a state dict (of PyTorch's model,
              as `module.state_dict()`, or of the converted one), a .safetensors file of one, a
              training folder or a checkpoint
    reporter: hears of steps and epochs (samebits.train.run.loop.Reporter)
    done:     is called with the result while all workers are still there

    Under torchrun every process calls this; the first one writes, and gets the result: the others
    get None. Raises SamebitsError; checkpoints written before it stay intact.
    """
    from torch import nn

    from samebits.data import Dataset
    from samebits.data import load as load_data
    from samebits.data.frames import frames_given
    from samebits.data.load import given_data, source_name
    from samebits.recompute.training import planner_of
    from samebits.train.architectures import CONTEXT, LANGUAGE_MODELS
    from samebits.train.run.config import TrainConfig, usual_rate
    from samebits.train.run.device import run_device
    from samebits.train.run.distributed import join
    from samebits.train.run.initial import initial_weights
    from samebits.train.run.loop import Silent, train
    from samebits.train.run.tensorboard import written

    asked = Given("fit", recipes, Training, Optimizer, Numerics, Recomputation, Execution)
    training, optimizer, execution = asked[Training], asked[Optimizer], asked[Execution]
    asked[Numerics].check_bfp(asked[Numerics].chosen())
    own_loss, name_of_loss = _loss(training.loss)
    plan_for = planner_of(asked[Recomputation])
    if not isinstance(arch, str | nn.Module):
        raise InputError(
            "expected an architecture's name, module:callable, file.py:callable or a "
            f"torch.nn.Module, found {type(arch).__name__}"
        )
    model, name = (None, arch) if isinstance(arch, str) else (arch, type(arch).__name__)
    data, options = reading_of(data)
    given = None
    if isinstance(data, Dataset) or frames_given(data):
        given = given_data(data, limit=training.limit, options=options)
    name_of_data = source_name(data) if given is None else given.source
    with cpu_threads(execution.threads):
        try:
            place = run_device(execution.device)
        except InputError:
            with join(execution.worker_timeout):  # of several workers, one tells it
                raise
        with join(execution.worker_timeout, place) as workers:
            rate = usual_rate(optimizer.optimizer) if optimizer.lr is None else optimizer.lr
            chosen = training.values() | optimizer.values() | asked[Numerics].values()
            chosen |= {"loss": name_of_loss, "lr": rate}
            config = TrainConfig(data=name_of_data, arch=name, **chosen)
            planner = plan_for(config, workers.size)
            weights = None
            if init is not None:
                weights = initial_weights(init, config.numerics, progress.note)
            shape = (CONTEXT,) if name in LANGUAGE_MODELS else None
            dataset = given or load_data(
                name_of_data, limit=training.limit, input_shape=shape, options=options
            )
            if optimizer.lr is None:
                config = replace(config, lr=usual_rate(config.optimizer, dataset.task))
            rates = functools.partial(config.schedule_for, dataset)
            with written(execution.tensorboard, rates, reporter or Silent()) as heard:
                result = train(
                    config,
                    dataset,
                    Path(out),
                    model=model,
                    init=weights,
                    resume=execution.resume,
                    overwrite=execution.overwrite,
                    checkpoint_every=execution.checkpoint_every,
                    trace=execution.trace,
                    reporter=heard,
                    workers=workers,
                    planner=planner,
                    device=place,
                    loss=own_loss,
                    asked=asked.to_dict(Training, Optimizer, Numerics, Recomputation),
                )
            if not workers.first:
                return None
            run = TrainingRun(Path(out), config, result)
            if done is not None:
                done(run)
            return run


def _loss(loss: str | Callable[..., Any] | None) -> tuple[Callable[..., Any] | None, str | None]:
    """A loss of a user's own and what a run calls it."""
    if loss is None:
        return None, None
    if isinstance(loss, str):
        return named_callable(loss, "--loss"), loss
    return loss, getattr(loss, "__qualname__", type(loss).__name__)


@settled
@takes(data="data")
def evaluate(
    source: Any,
    data: Any,
    *,
    whole: bool = False,
    arch: str | nn.Module | None = None,
    device: str = "cpu",
    threads: int | None = None,
    meaning: str | None = None,
) -> Evaluation:
    """Test accuracy, or the figures of another task: of a trained model in its deployed arithmetic,
    of a quantized network in its integers, of a float network in binary64, of firmware in its
    translation.

    source: as `load` takes it, as are arch and meaning; a training folder or checkpoint is
            evaluated as it was trained, on data that is read as it was there
    data:   as `fit` takes it
    whole:  all samples are counted; by default those for testing, as of a file without such a part
            about every fifth: what a run that trained on the file has not seen. Of a table that a
            training folder reads, and of each class folder, one is enough; other data needs samples
            of both kinds still
    device: cpu, or cuda for a trained model

    Raises InputError for data that does not fit, or a device that does not apply.
    """
    from samebits.model import kind_of
    from samebits.verification.evaluate import evaluate_model, evaluate_trained

    data, options = reading_of(data)
    with cpu_threads(threads):
        if isinstance(source, str | Path) and kind_of(Path(source)) == "training":
            refuse(meaning=meaning)
            given = Path(source), data, arch, device, options, whole
            return Evaluation(**vars(evaluate_trained(*given)))
        if device != "cpu":
            raise InputError(
                f"{getattr(source, 'source', source)}: expected --device cpu for an exported "
                f"model, found {device}; give the training folder, or leave --device out"
            )
        net = load(source, arch=arch, meaning=meaning)
        return Evaluation(**vars(evaluate_model(net.model, data, options, whole)))


@settled
@takes(data="samples")
def report(
    source: Any,
    samples: Any = None,
    *,
    against: Any = None,
    board: str | None = None,
    clock: str | None = None,
    arch: str | nn.Module | None = None,
    seed: int | None = None,
) -> Report:
    """All about a network, a training run, firmware or a plan: `save("page.html")` writes its page.

    source:  as `load` takes it; or a plan's .json file
    samples, board, clock, seed: as `Network.report` takes them
    against: the float network that a quantized one was made from, as `load` takes it

    Raises InputError for anything else and for options that do not apply.
    """
    from samebits.model import kind_of

    options: dict[str, Any] = {"samples": samples, "against": against, "board": board}
    options |= {"clock": clock, "seed": seed}
    path = Path(source) if isinstance(source, str | Path) else None
    if path is not None and path.suffix == ".json":
        refuse(arch=arch, **options)
        from samebits.planning import plan

        return plan(path).report()
    options["against"] = None if against is None else load(against)
    run = path if path is not None and path.is_dir() and kind_of(path) == "training" else None
    try:
        net = load(source, arch=arch)
    except UnsupportedError as error:  # a run that cannot be deployed has curves all the same
        if run is None or any(value is not None for value in options.values()):
            raise
        from samebits.reports.page.run import run_report

        return run_report(run, str(error))
    return net.report(**options, run=run)


@settled
def profile_training(
    run: str | Path, *, arch: str | nn.Module | None = None, repetitions: int = 5
) -> TrainingProfile:
    """Where the time of a run's training step goes on this machine, call by call of its kernels.

    run:  a training folder or a checkpoint; its batches are random ones of its shape, and it stays
          as it is
    arch: as `load` takes it
    repetitions: times are the least of so many

    A memory plan of the run is left out, and said to be. Raises InputError for what is no such run,
    UnsupportedError for a step that calls kernels one by one (`train.run.profile`).
    """
    from samebits.train.run.engine import BfpEngine
    from samebits.train.run.profile import profile_step
    from samebits.train.run.record import RESULT, read_json
    from samebits.train.run.restore import open_run

    if repetitions < 1:
        raise InputError(f"repetitions: expected at least 1, found {repetitions}")
    opened = open_run(Path(run), arch, progress.note, shards=None)
    config, where = opened.config, opened.path
    if not isinstance(opened.engine, BfpEngine):
        raise InputError(
            f"{where}: expected a run in BFP, found one in float32, which PyTorch's own profiler "
            "measures"
        )
    if config.loss is not None or opened.task != "classification":
        loss = f"the loss {config.loss}" if config.loss else f"the task {opened.task}"
        raise UnsupportedError(
            f"{where}: expected the mean cross-entropy of classes, found {loss}; its steps call "
            "kernels one by one, and there is no list of them to measure"
        )
    if read_json(where.parent / RESULT).get("plan") is not None:
        progress.note(f"{where}: the step is measured without the run's memory plan")
    progress.stage("measuring a step")
    return TrainingProfile(
        str(run), profile_step(opened.engine, opened.random_batch(), repetitions)
    )


@settled
def audit(a: str | Path, b: str | Path) -> Audit:
    """The first layer, or training step, where two traces part; true where they are equal.

    Raises InputError for files that are no traces, or traces of different models, inputs or runs.
    """
    from samebits.verification.trace import first_parting, read_trace
    from samebits.verification.training_trace import audit as audit_training
    from samebits.verification.training_trace import is_training_trace

    paths = Path(a), Path(b)
    training = [is_training_trace(path) for path in paths]
    if training[0] != training[1]:
        raise InputError("expected two traces of one kind, found one of training and one not")
    sources = (str(a), str(b))
    if not training[0]:
        return Audit(sources, first_parting(*map(read_trace, paths)))
    found = audit_training(*paths)
    return Audit(sources, found.parting, found.steps)


@settled
def inspect(
    path: str | Path,
    *,
    nodes: bool = False,
    arch: str | None = None,
    **part: Unpack[Part],
) -> Report:
    """A summary of any file or folder that samebits writes, or of an ONNX file: a dozen lines.

    path:  an .onnx, .pt2 or .tflite file, .nnp program, compiled or training folder, checkpoint,
           plan, device file or trace
    nodes: every node, constant, tensor, sub-layer or instruction too
    arch, part: as `load` takes them

    Raises InputError for anything else.
    """
    from samebits.reports.summary import summarize

    return summarize(Path(path), nodes=nodes, arch=arch, part=excerpt_of(**part))


@settled
def inspect_record(
    path: str | Path, *, arch: str | None = None, **part: Unpack[Part]
) -> dict[str, Any]:
    """The facts of `inspect` as JSON data."""
    from samebits.reports.summary import summary_record

    return summary_record(Path(path), arch=arch, part=excerpt_of(**part))
