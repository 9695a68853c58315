"""`samebits eval`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from samebits.cli.options import Arch, AsJson, Data, Threads
from samebits.cli.output import log_console, print_json, set_threads
from samebits.errors import InputError


def eval_command(
    model: Annotated[
        Path,
        typer.Argument(help="A training folder, a checkpoint, .onnx, .nnp or compiled folder."),
    ],
    data: Data,
    arch: Arch = None,
    device: Annotated[
        str, typer.Option(help="Where a trained model computes: cpu or cuda.")
    ] = "cpu",
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Test accuracy of a trained model."""
    from samebits.model import kind_of

    if kind_of(model) in ("graph", "firmware"):
        if device != "cpu":
            raise InputError(
                f"{model}: expected --device cpu for an exported model, found {device}; give the "
                "training folder, or leave --device out"
            )
        _evaluate_exported(model, data, as_json)
        return
    from samebits.data import load
    from samebits.train.run.checkpoint import parameter_sha256
    from samebits.train.run.device import run_device
    from samebits.train.run.evaluate import count_correct, final_classifier
    from samebits.train.run.restore import open_checkpoint, restore_engine, trained_shape

    set_threads(threads)
    path, checkpoint = open_checkpoint(model, log_console().print)
    dataset = load(data, input_shape=trained_shape(path, checkpoint))
    engine = restore_engine(path, checkpoint, dataset, arch, run_device(device))
    classifier, arithmetic = final_classifier(engine, checkpoint.exponents)
    record = {"model": str(path), "data": data, "step": checkpoint.step, "arithmetic": arithmetic}
    record["sha256"] = parameter_sha256(checkpoint.model)
    _print_accuracy(record, count_correct(classifier, dataset), len(dataset.test_labels), as_json)


def _evaluate_exported(path: Path, name: str, as_json: bool) -> None:
    """A quantized graph in its integers, a float one in binary64, firmware in its translation."""
    from samebits.data import load as load_data
    from samebits.model import is_quantized, load
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

    model = load(path)
    graph = model.graph
    if graph is None:
        data = load_data(name)
        outputs = Concordant("torch").run(model, firmware_images(model, data))
        program = model.program
        arithmetic = f"npu (native dimension {program.native}, mantissa {program.mantissa})"
    else:
        shapes = [graph.values[key].shape[1:] for key in graph.inputs]
        whole = bool(shapes) and not graph.states  # a step graph takes sequences of any length
        data = load_data(name, input_shape=shapes[0] if whole else None)
        if model.rate is not None:
            data.check_rate(model.rate)
        if not is_quantized(graph):
            outputs, arithmetic = float_outputs(graph, data), "float"
        elif graph.states:
            steps, torch = step_codes(model, data), PyTorch()
            _, outputs = streamed(model.integer, steps, lambda codes: torch.run(model, codes))
            arithmetic = "integer"
        else:
            outputs, arithmetic = PyTorch().run(model, image_codes(model, data)), "integer"
    record = {"model": str(path), "data": name, "arithmetic": arithmetic}
    _print_accuracy(record, correct(outputs, data), len(data.test_labels), as_json)


def _print_accuracy(record: dict[str, Any], right: int, total: int, as_json: bool) -> None:
    """Print an evaluation: `right` answers for `total` samples, and what `record` says besides."""
    if as_json:
        print_json({**record, "accuracy": right / total, "correct": right, "test_count": total})
        return
    print(f"accuracy {100 * right / total:.2f} % ({right} of {total})")
    print(f"arithmetic: {record['arithmetic']}")
    if "sha256" in record:
        print(f"sha256 {record['sha256']}")
