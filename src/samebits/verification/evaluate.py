"""Test accuracy of whatever has one: trained models, networks, firmware."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from samebits import progress
from samebits.data import Dataset
from samebits.data import load as load_data
from samebits.model import Model, is_quantized
from samebits.train.run.checkpoint import parameter_sha256
from samebits.train.run.device import run_device
from samebits.train.run.evaluate import count_correct, final_classifier
from samebits.train.run.restore import open_checkpoint, restore_engine, trained_shape
from samebits.verification.accuracy import (
    correct,
    firmware_images,
    float_outputs,
    image_codes,
    step_codes,
    streamed,
)
from samebits.verification.backends.concordant import Concordant
from samebits.verification.backends.pytorch import PyTorch
from samebits.verification.score import Score


def evaluate_trained(
    path: Path, data: str | Path | Dataset, arch: str | nn.Module | None, on: str
) -> Score:
    """A training folder or checkpoint, in the arithmetic that its run ended in.

    arch: as `restore_engine` takes it
    on:   cpu or cuda

    Raises InputError for data that does not fit, CheckpointError.
    """
    path, checkpoint = open_checkpoint(path, progress.note)
    given = _data(data, trained_shape(path, checkpoint))
    engine = restore_engine(path, checkpoint, given, arch, run_device(on))
    classifier, arithmetic = final_classifier(engine, checkpoint.exponents)
    right, total = count_correct(classifier, given), given.test_labels.numel()
    sha256 = parameter_sha256(checkpoint.model)
    return Score(str(path), given.source, arithmetic, right, total, sha256, checkpoint.step)


def evaluate_model(model: Model, data: str | Path | Dataset) -> Score:
    """A quantized graph in its integers, a float one in binary64, firmware in its translation.

    Raises InputError for data that does not fit.
    """
    graph = model.graph
    if graph is None:
        given = _data(data, None)
        outputs = Concordant("torch").run(model, firmware_images(model, given))
        program = model.program
        arithmetic = f"npu (native dimension {program.native}, mantissa {program.mantissa})"
    else:
        shapes = [graph.values[key].shape[1:] for key in graph.inputs]
        whole = bool(shapes) and not graph.states  # a step graph takes sequences of any length
        given = _data(data, shapes[0] if whole else None)
        if model.rate is not None:
            given.check_rate(model.rate)
        if not is_quantized(graph):
            outputs, arithmetic = float_outputs(graph, given), "float"
        elif graph.states:
            steps, torch = step_codes(model, given), PyTorch()
            _, outputs = streamed(model.integer, steps, lambda codes: torch.run(model, codes))
            arithmetic = "integer"
        else:
            outputs, arithmetic = PyTorch().run(model, image_codes(model, given)), "integer"
    right, total = correct(outputs, given), given.test_labels.numel()
    return Score(model.source, given.source, arithmetic, right, total)


def _data(data: str | Path | Dataset, shape: tuple[int, ...] | None) -> Dataset:
    return data if isinstance(data, Dataset) else load_data(str(data), input_shape=shape)
