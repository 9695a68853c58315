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
from samebits.callables import FORM, named_callable
from samebits.errors import InputError, SamebitsError, UnsupportedError
from samebits.excerpt import Part, excerpt_of, part_and_rest
from samebits.network import Network
from samebits.results import (
    Audit,
    Evaluation,
    TrainingRun,
)
from samebits.settled import settled
from samebits.settled import threads as cpu_threads
from samebits.sources import called, load, refuse

if TYPE_CHECKING:
    from torch import nn

    from samebits.contract import Contract
    from samebits.data import LabelledReading
    from samebits.data.options import PartReading
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
def quantize(
    source: Any,
    calibration: Any,
    *,
    scheme: str | None = None,
    weights: str | None = None,
    calibrate: str | None = None,
    percentile: float | None = None,
    output_bits: int | None = None,
    per_tensor: bool | None = None,
    stop_early: int | None = None,
    equalize: str | None = None,
    rounding: str | None = None,
    bias_correction: bool | None = None,
    mixed: int | None = None,
    effort: str | None = None,
    finetune: Any = None,
    epochs: int | None = None,
    bits: int | None = None,
    symmetry: float | None = None,
    gates: str | None = None,
    float_bias: bool | None = None,
    floor: float | str | None = None,
    state: Mapping[str, str | int] | str | None = None,
    sequence: str | None = None,
    contract: Contract | Mapping[str, Any] | str | Path | None = None,
    example: Any = None,
    arch: str | None = None,
    **reading: Unpack[PartReading],
) -> Network:
    """A float network quantized after training: its report says what that costs, layer by layer.

    A network with recurrent layers becomes one time step, with its states as last inputs and
    outputs, or takes whole sequences of one length: see `sequence`. One whose states are inputs and
    outputs of its own becomes a step. None stands for the default of an option.

    source:      as `load` takes it, with its options; the example of a torch.nn.Module is by
                 default the first item of the calibration
    calibration: samples: an array, a tensor, a dict of them, a DataLoader or another iterable, an
                 .npz file, digits, a folder of images or recordings, a table, or a Dataset
    scheme:      format of activations, by default asymmetric-s8 (quantization.ACTIVATIONS)
    weights:     format of weights, by default symmetric-s8 (quantization.WEIGHTS)
    calibrate:   minmax, percentile, or mse. The default is minmax; of networks with attention,
                 given four samples or more, the better of minmax and mse, measured as with
                 effort="high"; of recurrent networks mse
    percentile:  per cent of the elements kept, by default 99.99; with calibrate="percentile"
    output_bits: 8 or 16 for the outputs, by default as activations
    per_tensor:  one scale per weight, not one per output channel
    stop_early:  calibration ends after so many samples in a row, counted from the first, that
                 changed no scale; by default all samples are read, and their order is indifferent
    equalize:    weights or activations: channels between layers are scaled so that one scale fits
                 them all
    rounding:    of weights: nearest (the default), or least-error of their layer's outputs
    bias_correction: the mean error of every output channel goes into its bias
    mixed:       the number of tensors that get twice the bits: those activations and weights whose
                 rounding costs the outputs most
    effort:      plain (the default); high: tries clipping, equalization, bias correction and
                 rounding in this order, and keeps what raises the outputs' signal-to-noise ratio on
                 every fourth sample, which it does not quantize on
    finetune:    data to train the quantized network on with, in its integers (`Network.finetune`)
    epochs:      of that, by default 1
    bits:        recurrent networks: 8 (the default) or 16 for x and h
    symmetry:    recurrent networks: a weight matrix is symmetric where the smaller end of its range
                 is at least this part of the larger one; by default 0, all symmetric
    gates:       recurrent networks: q0.15 (the default), symmetric or asymmetric
    float_bias:  recurrent networks: biases stay float32, without the promise of the same bits
    floor:       dB that every output has to keep of the float network, measured on every fourth
                 sample, or FidelityError says what lost it; by default none, but a network that
                 keeps less than 10 dB, or one decision of several, is a FidelityWarning
    state:       input -> the output (or its place among them) that is fed back to it, both then of
                 one format, and calibration is calls in order, [calls, ...] or [sequences, calls,
                 ...]; "none": no input is a state; by default those that names or layers show
    sequence:    recurrent networks: step, one time step a call; whole, a whole sequence of the
                 length that the network has, in any direction and with any layers around; by
                 default step where each time step stands alone, else whole, and a note says which
    contract:    the model's name and version, and what its inputs and outputs mean, beside what its
                 run and the calibration say (`Network.with_contract`)
    reading:     of files and folders, be they calibration, finetune or both: target, resize,
                 resample, colour, mean and std; of arrays: prepared (`data.Reading`); and shapes,
                 set, start_at and end_at of the source, as `load` takes them

    Where a network would be lost so, and no option of formats was given, the tensors that cost most
    get twice the bits; a line of the report says which.

    The result is what its file will say, read back: `verify` and `compile` take it, and so does
    onnxruntime with its default options, or a note of the network says why that was not shown.

    Raises InputError for an option that does not apply to the network, and for samples that do not
    fit; UnsupportedError for operators without an integer form, where possible before calibration.
    """
    from samebits.data import DataOptions, options_of
    from samebits.data.options import options_given
    from samebits.ir.canonical import canonicalize
    from samebits.ir.fidelity import floor_of, lost_tensors
    from samebits.ir.lowering.check import check_lowerable
    from samebits.model import described
    from samebits.quantization import Options, judged, quantize_network, tie_states
    from samebits.samples import example_of, gather, in_memory, is_module, kept, meaning_of
    from samebits.verification.backends.onnxruntime import not_taken
    from samebits.verification.deployable import deployable
    from samebits.verification.fidelity import measured

    wanted = floor_of(floor)
    part, reading = part_and_rest(reading)
    chosen = options_given(reading)
    where = str(calibration) if isinstance(calibration, str | Path) else "calibration"
    tuning = chosen
    if asked := chosen.chosen():  # each gets those that apply to it
        takes, tuned = options_of(calibration), options_of(finetune)
        for option in asked:
            if option not in (*takes, *tuned):
                other = "" if finetune is None else ", nor to the data to fine-tune on"
                raise InputError(f"{where}: --{option} does not apply to it{other}; leave it out")
        chosen, tuning = chosen.among(takes), chosen.among(tuned)
    calibration = kept(calibration)
    name, given, fed = str(source), called(source), (calibration, chosen)
    if example is None and is_module(given):  # both are of one reading
        calibration, chosen = in_memory(calibration, chosen), DataOptions()
        example = example_of(given, calibration, where)
    net = load(given, example=example, arch=arch, **part)
    if given is not source:
        net = Network(replace(net.model, source=name))
    if net.kind != "float network":
        raise InputError(f"{net.source}: expected a float network, found: {_found(net)}")
    known = described(net.model, contract).known  # not what the calibration says of itself
    net = Network(described(net.model, contract, meaning_of(net.model.real, *fed)))
    graph = tie_states(canonicalize(net.model.real), state, sequence)
    options = Options(
        plain={
            "scheme": scheme,
            "weights": weights,
            "output_bits": output_bits,
            "per_tensor": per_tensor,
            "stop_early": stop_early,
            "equalize": equalize,
            "rounding": rounding,
            "bias_correction": bias_correction,
            "mixed": mixed,
            "effort": effort,
            "finetune": finetune,
            "epochs": epochs,
        },
        gated={"bits": bits, "symmetry": symmetry, "gates": gates, "float_bias": float_bias},
        common={"calibration": calibrate, "percentile": percentile},
        sequence=sequence,
    )
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
        net = net.finetune(finetune, epochs=epochs or 1, **tuning.chosen())
    net.check_fidelity(wanted)
    return net


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
def fit(
    data: Any,
    arch: str | nn.Module,
    out: str | Path,
    *,
    numerics: str = "bfp",
    epochs: int = 10,
    batch: int = 64,
    shards: int | None = None,
    lr: float | None = None,
    optimizer: str = "sgd",
    momentum: float = 0.9,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    schedule: str = "cosine",
    warmup: int = 0,
    seed: int = 0,
    limit: int | None = None,
    gradient_bits: int = 32,
    augment: str = "none",
    exponents: str = "tensor",
    widths: str = "8,16,32",
    rounding: str = "stochastic",
    label_smoothing: float = 0.0,
    clip_norm: float | None = None,
    clip_value: float | None = None,
    ema: float | None = None,
    loss: str | Callable[..., Any] | None = None,
    keep_float: Sequence[str] = (),
    init: str | Path | Mapping[str, Any] | None = None,
    checkpoint_every: int = 0,
    plan: str | Path | None = None,
    memory_budget: int | str | None = None,
    plan_device: str | None = None,
    backward: str | None = None,
    plan_fallback: str | None = None,
    device: str = "cpu",
    resume: bool = False,
    overwrite: bool = False,
    trace: str | Path | None = None,
    tensorboard: str | Path | None = None,
    worker_timeout: float = 600.0,
    threads: int | None = None,
    reporter: Reporter | None = None,
    done: Callable[[TrainingRun], None] | None = None,
    **reading: Unpack[LabelledReading],
) -> TrainingRun | None:
    """Train a network, and leave checkpoints, metrics and the result in the folder `out`.

    The bits of a BFP run depend on the data and on the options up to `init` alone: not on
    threads, workers, devices, plans or interruptions. docs/guide/train.md.

    data:        digits, a folder of images, of images and masks or of recordings, a table (.csv,
                 .parquet), an .npz or .txt file, a data set that Hugging Face has saved,
                 module:callable or file.py:callable of map-style datasets, a pandas.DataFrame, two
                 of them (for training, for testing), or a Dataset
    reading:     of a file, folder or frame: target, task, resize, resample, colour, mean and std
                 (`data.LabelledReading`)
    arch:        an architecture's name, module:callable or file.py:callable, or a torch.nn.Module,
                 whose weights are set anew from the seed, or are those of `init`
    numerics:    bfp or float32
    lr:          by default 0.1 for sgd, 0.02 where it fits a regression; else 0.001
    exponents:   what shares one: tensor, row (a sample, a token, an output channel), or row-shift
                 (rows, with outlier channels of activations apart)
    widths:      bits of weights and activations (4 to 8), of gradients (up to 16), and 32
    rounding:    of moments and updates: stochastic, from the seed, or nearest, which loses small
                 ones (docs/spec/training.md, section 10)
    label_smoothing: the share of every target that goes to all classes alike, in [0, 1]
    clip_norm:   gradients are scaled down to this norm, of all of them together
    clip_value:  elements of gradients are brought to within +- this, before clip_norm
    ema:         decay, in (0, 1), of an average of the weights, which is then the model that the
                 run leaves; training goes on with its own weights
    loss:        a loss of your own instead of that of the task: module:callable or
                 file.py:callable, or the callable, which is given a network's outputs and the
                 labels, and gives a tensor of one number; a class is called first
    keep_float:  paths of modules without parameters that stay in float32, as of `convert`; a
                 float32 run has no need of them
    init:        what the weights start from instead of the seed: a state dict (of PyTorch's model,
                 as `module.state_dict()`, or of the converted one), a .safetensors file of one, a
                 training folder or a checkpoint
    plan:        what to compute again instead of keeping: none, auto or a plan's file
    memory_budget: bytes a pass may hold: a number, 3M, or 40% of what storing everything takes;
                 implies plan="auto"
    plan_fallback: where a plan cannot be used, since the network's forward code has a state of its
                 own: error (the default), or eager: train without the plan, a note says why
    resume:      continue from the newest intact checkpoint in `out`
    overwrite:   replace an earlier run of the same options
    trace:       file for a hash of every tensor of every step, for `audit`
    tensorboard: folder for event files of TensorBoard: loss, accuracy, learning rate; needs the
                 package tensorboard
    threads:     CPU threads, of this call alone
    reporter:    hears of steps and epochs (samebits.train.run.loop.Reporter)
    done:        is called with the result while all workers are still there

    Under torchrun every process calls this; the first one writes, and gets the result: the others
    get None. Raises SamebitsError; checkpoints written before it stay intact.
    """
    from torch import nn

    from samebits.data import Dataset
    from samebits.data import load as load_data
    from samebits.data.frames import frames_given
    from samebits.data.load import given_data, source_name
    from samebits.data.options import LabelledReading, options_given
    from samebits.recompute.training import Planner, plan_option
    from samebits.train.architectures import CONTEXT, LANGUAGE_MODELS
    from samebits.train.run.config import TrainConfig, usual_rate
    from samebits.train.run.device import run_device
    from samebits.train.run.distributed import join
    from samebits.train.run.initial import initial_weights
    from samebits.train.run.loop import Silent, train
    from samebits.train.run.tensorboard import written

    own_loss, name_of_loss = _loss(loss)
    plan = plan_option(plan, memory_budget, plan_device, backward, plan_fallback)
    if not isinstance(arch, str | nn.Module):
        raise InputError(
            "expected an architecture's name, module:callable, file.py:callable or a "
            f"torch.nn.Module, found {type(arch).__name__}"
        )
    model, name = (None, arch) if isinstance(arch, str) else (arch, type(arch).__name__)
    options = options_given(reading, LabelledReading)
    given = None
    if isinstance(data, Dataset) or frames_given(data):
        given = given_data(data, limit=limit, options=options)
    name_of_data = source_name(data) if given is None else given.source
    with cpu_threads(threads):
        try:
            place = run_device(device)
        except InputError:
            with join(worker_timeout):  # of several workers, one tells it
                raise
        with join(worker_timeout, place) as workers:
            config = TrainConfig(
                data=name_of_data,
                arch=name,
                numerics=numerics,
                epochs=epochs,
                batch=batch,
                shards=shards,
                lr=usual_rate(optimizer) if lr is None else lr,
                optimizer=optimizer,
                momentum=momentum,
                nesterov=nesterov,
                weight_decay=weight_decay,
                schedule=schedule,
                warmup=warmup,
                seed=seed,
                limit=limit,
                gradient_bits=gradient_bits,
                augment=augment,
                exponents=exponents,
                widths=widths,
                rounding=rounding,
                label_smoothing=label_smoothing,
                clip_norm=clip_norm,
                clip_value=clip_value,
                ema=ema,
                loss=name_of_loss,
                keep_float=",".join(keep_float) or None,
            )
            planner = None
            if plan is not None:
                planner = Planner.of_option(
                    config,
                    plan,
                    plan_device or "laptop-cpu",
                    memory_budget,
                    workers.size,
                    backward,
                    plan_fallback or "error",
                )
            weights = None if init is None else initial_weights(init, numerics, progress.note)
            shape = (CONTEXT,) if name in LANGUAGE_MODELS else None
            dataset = given or load_data(
                name_of_data, limit=limit, input_shape=shape, options=options
            )
            if lr is None:
                config = replace(config, lr=usual_rate(optimizer, dataset.task))
            rates = functools.partial(config.schedule_for, dataset)
            with written(tensorboard, rates, reporter or Silent()) as heard:
                result = train(
                    config,
                    dataset,
                    Path(out),
                    model=model,
                    init=weights,
                    resume=resume,
                    overwrite=overwrite,
                    checkpoint_every=checkpoint_every,
                    trace=None if trace is None else Path(trace),
                    reporter=heard,
                    workers=workers,
                    planner=planner,
                    device=place,
                    loss=own_loss,
                )
            if not workers.first:
                return None
            run = TrainingRun(Path(out), config, result)
            if done is not None:
                done(run)
            return run


def _loss(loss: object) -> tuple[Callable[..., Any] | None, str | None]:
    """A loss of a user's own and what a run calls it. InputError for what is none."""
    if loss is None:
        return None, None
    if isinstance(loss, str):
        return named_callable(loss, "--loss"), loss
    if not callable(loss):
        raise InputError(
            f"loss: expected a callable of outputs and labels, or its name ({FORM}), found "
            f"{type(loss).__name__}"
        )
    return loss, getattr(loss, "__qualname__", type(loss).__name__)


@settled
def evaluate(
    source: Any,
    data: Any,
    *,
    whole: bool = False,
    arch: str | nn.Module | None = None,
    device: str = "cpu",
    threads: int | None = None,
    meaning: str | None = None,
    **reading: Unpack[LabelledReading],
) -> Evaluation:
    """Test accuracy, or the figures of another task: of a trained model in its deployed arithmetic,
    of a quantized network in its integers, of a float network in binary64, of firmware in its
    translation.

    source: as `load` takes it, as are arch and meaning; a training folder or checkpoint is
            evaluated as it was trained, on data that is read as it was there
    reading: of the data, as in `fit`
    whole:  all samples are counted; by default those for testing, as of a file without such a part
            about every fifth: what a run that trained on the file has not seen. Of a table that a
            training folder reads, and of each class folder, one is enough; other data needs samples
            of both kinds still
    device: cpu, or cuda for a trained model

    Raises InputError for data that does not fit, or a device that does not apply.
    """
    from samebits.data.options import LabelledReading, options_given
    from samebits.model import kind_of
    from samebits.verification.evaluate import evaluate_model, evaluate_trained

    options = options_given(reading, LabelledReading)
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
def report(
    source: Any,
    samples: Any = None,
    *,
    against: Any = None,
    board: str | None = None,
    clock: str | None = None,
    arch: str | nn.Module | None = None,
    seed: int = 0,
    **reading: Unpack[PartReading],
) -> Report:
    """All about a network, a training run, firmware or a plan: `save("page.html")` writes its page.

    source:  as `load` takes it, with its options; or a plan's .json file
    samples, board, clock, seed, reading: as `Network.report` takes them
    against: the float network that a quantized one was made from, as `load` takes it

    Raises InputError for anything else and for options that do not apply.
    """
    from samebits.data.options import options_given
    from samebits.model import kind_of

    part, reading = part_and_rest(reading)
    options: dict[str, Any] = {"samples": samples, "against": against, "board": board}
    options |= {"clock": clock, "seed": seed or None, **options_given(reading).chosen()}
    path = Path(source) if isinstance(source, str | Path) else None
    if path is not None and path.suffix == ".json":
        refuse(arch=arch, **part, **options)
        from samebits.planning import plan

        return plan(path).report()
    options["against"] = None if against is None else load(against)
    run = path if path is not None and path.is_dir() and kind_of(path) == "training" else None
    try:
        net = load(source, arch=arch, **part)
    except UnsupportedError as error:  # a run that cannot be deployed has curves all the same
        if run is None or any(value is not None for value in options.values()):
            raise
        from samebits.reports.page.run import run_report

        return run_report(run, str(error))
    return net.report(**options | {"seed": seed}, run=run)


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
