"""Test accuracy of whatever has one: trained models, networks, firmware."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from samebits import progress
from samebits.data import Dataset
from samebits.data.dataset import SCALED
from samebits.data.digits import NAME as DIGITS
from samebits.data.frames import frames_given
from samebits.data.load import given_data
from samebits.data.tally import Metrics, Tally
from samebits.errors import InputError
from samebits.model import Model, is_quantized
from samebits.recipes.reading import PLAIN, Reading, reading_of
from samebits.train.run.checkpoint import parameter_sha256
from samebits.train.run.device import run_device
from samebits.train.run.evaluate import final_classifier, measured
from samebits.train.run.record import CONFIG, RESULT, read_json
from samebits.train.run.restore import (
    earlier_reading,
    open_checkpoint,
    restore_engine,
    trained_shape,
)
from samebits.verification.accuracy import (
    Array,
    correct,
    firmware_images,
    float_outputs,
    image_codes,
    step_codes,
    streamed,
)
from samebits.verification.backends.concordant import Concordant
from samebits.verification.backends.pytorch import PyTorch
from samebits.verification.inputs import dequantize, is_random
from samebits.verification.quality import Quality
from samebits.verification.score import Score, figures_text


def evaluate_trained(
    path: Path,
    data: str | Path | Dataset,
    arch: str | nn.Module | None,
    on: str,
    options: Reading = PLAIN,
    whole: bool = False,
) -> Score:
    """A training folder or checkpoint, in the arithmetic that its run ended in.

    arch:    as `restore_engine` takes it
    on:      cpu or cuda
    options: of reading the data, by default those of the run; columns of a table become the codes
             that they had there
    whole:   all samples are counted, not the test samples alone

    Raises InputError for data that does not fit, CheckpointError.
    """
    path, checkpoint = open_checkpoint(path, progress.note)
    shape, earlier = trained_shape(path, checkpoint), earlier_reading(path, checkpoint)
    given = given_data(data, input_shape=shape, options=options, earlier=earlier, whole=whole)
    engine = restore_engine(path, checkpoint, given, arch, run_device(on))
    classifier, arithmetic = final_classifier(engine, checkpoint.exponents)
    sha256 = parameter_sha256(checkpoint.model)
    names = str(path), given.source, arithmetic
    found = measured(classifier, given)
    if not whole:
        _say_part(data, given)
        _say_other(checkpoint.config, given)
    return _score(*names, found, sha256, checkpoint.step)


def evaluate_model(
    model: Model,
    data: str | Path | Dataset,
    options: Reading = PLAIN,
    whole: bool = False,
) -> Score:
    """A quantized graph in its integers, a float one in binary64, firmware in its translation.

    whole: as in `evaluate_trained`. Raises InputError for data that does not fit.
    """
    found = answered(model, data, options, whole)
    if not whole:
        _say_part(data, found.data)
    return _score(model.source, found.data.source, found.arithmetic, found.metrics)


def answered(
    model: Model,
    data: str | Path | Dataset,
    options: Reading = PLAIN,
    whole: bool = False,
) -> Quality:
    """The answers of `evaluate_model` sample by sample."""
    graph = model.graph
    if graph is None:
        given = given_data(data, options=options, earlier=model.known, whole=whole)
        outputs = Concordant("torch").run(model, firmware_images(model, given))
        program = model.program
        arithmetic = f"npu (native dimension {program.native}, mantissa {program.mantissa})"
    else:
        shapes = [graph.values[key].shape[1:] for key in graph.inputs]
        fixed = bool(shapes) and not graph.states  # a step graph takes sequences of any length
        shape = shapes[0] if fixed else None
        given = given_data(
            data, input_shape=shape, options=options, earlier=model.known, whole=whole
        )
        if model.rate is not None:
            given.check_rate(model.rate)
        if not is_quantized(graph) and not (graph.integer and graph.nodes):
            outputs, arithmetic = float_outputs(graph, given), "float"
        elif graph.states:
            steps, torch = step_codes(model, given), PyTorch()
            _, outputs = streamed(model.integer, steps, lambda codes: torch.run(model, codes))
            arithmetic = "integer"
        else:
            outputs, arithmetic = PyTorch().run(model, image_codes(model, given)), "integer"
    scaled = given.preparation is not None and not isinstance(data, Dataset)
    if scaled and (model.known is None or model.known.preparation is None):
        progress.note(f"{given.source}: {SCALED}")
    if given.task == "classification":
        _say_classes(outputs[0], given)
        found = Metrics(correct(outputs, given), given.test_labels.numel(), {})
    else:
        found = _measured(model, outputs[0], given, arithmetic == "integer")
    ranked = scores = outputs[0][: len(given.test_labels)]
    if arithmetic == "integer":
        scores = dequantize(ranked, model.integer.values[model.integer.outputs[0]])
    return Quality(given, found, ranked, scores.astype(np.float64), arithmetic)


def quality_for_page(
    model: Model, samples: Any, run: str | Path | None
) -> tuple[Quality | None, tuple[str, str]]:
    """The answers to samples with labels, or without such to those of the run; why there are none,
    and what the run has recorded.

    samples: what a user gives, or a Quality; run: the folder of the network's training, if any
    """
    if isinstance(samples, Quality):
        return samples, ("", "")
    if model.graph is None or (not is_quantized(model.graph) and not model.graph.integer):
        return None, ("", "")
    found: Quality | str = ""
    recorded = ""
    if samples is not None and (run is None or not is_random(samples)):
        found = judged(model, samples)
    elif run is not None:
        found, recorded = judged_by_run(model, Path(run))
    return (None, (found, recorded)) if isinstance(found, str) else (found, ("", ""))


def judged(model: Model, given: Any) -> Quality | str:
    """The answers to the test samples of what a user gives; or why nothing can be said of them."""
    given, options = reading_of(given)
    if is_random(given):
        return "Samples drawn at random have no labels."
    if not isinstance(given, str | Path | Dataset) and not frames_given(given):
        return "Samples in memory have no labels: a file, a folder, a frame or a Dataset has them."
    try:
        return answered(model, given, options)
    except InputError as error:
        return f"The samples have no labels that count here: {error}"


def judged_by_run(model: Model, folder: Path) -> tuple[Quality | str, str]:
    """The answers of a run's network to the test samples of the run, where its data still lies
    where it was and is the same; else why not. And what the run has recorded of them."""
    recorded = _recorded(folder)
    config = read_json(folder / CONFIG)
    data = config.get("data")
    if not isinstance(data, str) or not (data == DIGITS or Path(data).exists()):
        return "The data of the run is not here: give --data DATA.", recorded
    if config.get("limit") is not None:
        return "The run took a part of its data: give --data DATA.", recorded
    found = judged(model, data)
    if isinstance(found, Quality) and found.data.sha256() != config.get("data_sha256"):
        return "The data of the run has changed since: give --data DATA.", recorded
    return found, recorded


def _recorded(folder: Path) -> str:
    """The figures that a run found on its test samples, as a sentence; the file is not trusted."""
    result = read_json(folder / RESULT)
    metrics, accuracy = result.get("metrics"), result.get("accuracy")
    if isinstance(metrics, dict):
        known = {k: v for k, v in metrics.items() if isinstance(v, float)}
        figures = figures_text(known)
    else:
        figures = figures_text({"accuracy": accuracy} if isinstance(accuracy, float) else {})
    return f"The run has recorded {', '.join(figures)} on its test samples." if figures else ""


def _measured(model: Model, outputs: Array, data: Dataset, codes: bool) -> Metrics:
    """The figures of outputs, the last of which may repeat that of the last sample."""
    if codes:
        outputs = dequantize(outputs, model.integer.values[model.integer.outputs[0]])
    tally, labels = Tally(data), data.test_labels.numpy()
    tally.add(outputs[: len(labels)].astype(np.float64), labels)
    return tally.metrics()


def _score(
    source: str,
    data: str,
    arithmetic: str,
    found: Metrics,
    sha256: str | None = None,
    step: int | None = None,
) -> Score:
    figures = dict(found.figures) or None
    return Score(source, data, arithmetic, found.correct, found.total, sha256, step, figures)


def _say_other(config: Mapping[str, Any], given: Dataset) -> None:
    """Note that data is not that of the run: which samples are for testing is then said by the data
    itself, and its split need not be the one by which the run was trained."""
    if config.get("limit") is None and config.get("data_sha256") != given.sha256():
        progress.note(
            f"{given.source}: not the data of the run, by its hash: some of the {given.noun}s that "
            "are counted may be among those that the run was trained on; of new data --whole "
            "counts all"
        )


def _say_classes(outputs: Array, given: Dataset) -> None:
    """Note which logits stand for classes that have names, where there are more of them."""
    numbered = given.class_names == tuple(map(str, range(given.classes)))
    if given.classes < outputs.shape[-1] and not numbered and not given.language:
        progress.note(
            f"{given.source}: {given.classes} classes, {', '.join(given.class_names)!s:.60}, for "
            f"{outputs.shape[-1]} outputs, of which the first ones are taken for them in this "
            "order; give data with all classes, or the training folder, which knows their names"
        )


def _say_part(data: str | Path | Dataset, given: Dataset) -> None:
    """Note which part of a file or folder was counted, which need not be what its user expects."""
    if not isinstance(data, Dataset) and given.source != DIGITS:
        test = len(given.test_labels)
        progress.note(
            f"{given.source}: {test:,} of {test + len(given.train_labels):,} {given.noun}s are for "
            "testing, and counted; --whole counts all"
        )
