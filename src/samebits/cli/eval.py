"""`samebits eval`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from samebits.cli.output import log_console, print_json, set_threads
from samebits.errors import InputError


def eval_command(
    model: Annotated[
        Path,
        typer.Argument(help="A training folder, a checkpoint, .onnx, .nnp or compiled folder."),
    ],
    data: Annotated[
        str, typer.Option(help="digits, a folder of images or WAV audio, .npz or .txt.")
    ],
    arch: Annotated[
        str | None,
        typer.Option(help="Needed to run a model of a module:callable of your own: its name."),
    ] = None,
    device: Annotated[
        str, typer.Option(help="Where a trained model computes: cpu or cuda.")
    ] = "cpu",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Test accuracy of a trained model."""
    from samebits.model import is_firmware, is_graph

    if is_firmware(model) or is_graph(model):
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
    correct = count_correct(classifier, dataset)
    total = len(dataset.test_labels)
    sha256 = parameter_sha256(checkpoint.model)
    if as_json:
        print_json(
            {
                "model": str(path),
                "data": data,
                "step": checkpoint.step,
                "accuracy": correct / total,
                "arithmetic": arithmetic,
                "correct": correct,
                "test_count": total,
                "sha256": sha256,
            }
        )
        return
    print(f"accuracy {100 * correct / total:.2f} % ({correct} of {total})")
    print(f"arithmetic: {arithmetic}")
    print(f"sha256 {sha256}")


def _evaluate_exported(path: Path, name: str, as_json: bool) -> None:
    """A quantized graph in its integers, a float one in binary64, firmware in its translation."""
    from samebits.data import load
    from samebits.model import (
        graph_rate,
        is_firmware,
        is_quantized,
        load_firmware,
        load_graph,
        model_of,
    )
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

    if is_firmware(path):
        data = load(name)
        firmware = load_firmware(path)
        outputs = Concordant("torch").run(firmware, firmware_images(firmware, data))
        program = firmware.program
        arithmetic = f"npu (native dimension {program.native}, mantissa {program.mantissa})"
    else:
        graph = load_graph(path)
        shapes = [graph.values[key].shape[1:] for key in graph.inputs]
        whole = bool(shapes) and not graph.states  # a step graph takes sequences of any length
        data = load(name, input_shape=shapes[0] if whole else None)
        rate = graph_rate(path)
        if rate is not None:
            data.check_rate(rate)
        if is_quantized(graph):
            model, backend, arithmetic = model_of(graph, str(path)), PyTorch(), "integer"
            if graph.states:
                steps = step_codes(model, data)
                _, outputs = streamed(model.integer, steps, lambda codes: backend.run(model, codes))
            else:
                outputs = backend.run(model, image_codes(model, data))
        else:
            outputs, arithmetic = float_outputs(graph, data), "float"
    right, total = correct(outputs, data), len(data.test_labels)
    if as_json:
        print_json(
            {
                "model": str(path),
                "data": name,
                "accuracy": right / total,
                "arithmetic": arithmetic,
                "correct": right,
                "test_count": total,
            }
        )
        return
    print(f"accuracy {100 * right / total:.2f} % ({right} of {total})")
    print(f"arithmetic: {arithmetic}")
