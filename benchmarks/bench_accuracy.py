"""Accuracy where plain quantization loses it: a mobilenetv2 of CIFAR-10 with one scale a weight,
its 4-bit weights fine-tuned in integers, and the noise of transformers beside onnxruntime's.

    python benchmarks/bench_accuracy.py --data data/cifar10 --out runs/accuracy
    python benchmarks/bench_accuracy.py --only vit bert
    python benchmarks/bench_accuracy.py --report

The float network is trained by `samebits train --numerics float32` in OUT/float, and goes on where
it was stopped. Every line that is finished is kept as OUT/NAME.json; take another --out after a
change of bits. The transformers are small ones with random weights: samebits' own vit, and BERT
from configuration of the package `transformers`. onnxruntime's static quantization is that of its
documentation: QDQ, int8 activations and weights, minmax, calibrated on the same samples.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import machine
import samebits as sb
from samebits.data import Dataset
from samebits.data import load as load_data
from samebits.ir import interpreter
from samebits.ir.signal import ratio
from samebits.network import Network
from samebits.pytorch import TorchExecutor
from samebits.quantization import QuantizationReport
from samebits.recipes import by_options
from samebits.train.architectures import build as build_architecture
from samebits.verification.accuracy import correct, images
from samebits.verification.backends.onnxruntime import pairs_saturate
from samebits.verification.inputs import quantize_samples

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from torchvision_models import define_operators

Array = np.ndarray[Any, Any]
Record = dict[str, Any]
TOKENS, WIDTH = 1000, 128
BERT: Record = {"vocab_size": TOKENS, "max_position_embeddings": 64, "intermediate_size": 4 * WIDTH}
SIZES: Record = {"hidden_size": WIDTH, "num_hidden_layers": 4, "num_attention_heads": 4}


@dataclass(frozen=True)
class Work:
    """What the lines of mobilenetv2 share."""

    data: Path
    out: Path
    options: argparse.Namespace

    def dataset(self) -> Dataset:
        """The images, as many of each class as asked for."""
        return load_data(str(self.data), limit=self.options.limit)

    def trained(self) -> Path:
        """The folder of the float network, trained as far as asked for."""
        folder, options = self.out / "float", self.options
        if not (folder / "result.json").exists():
            sb.fit(
                str(self.data),
                "mobilenetv2",
                folder,
                sb.Numerics(numerics="float32"),
                sb.Training(
                    batch=128, augment=options.augment, limit=options.limit, epochs=options.epochs
                ),
                sb.Optimizer(weight_decay=5e-4),
                sb.Execution(
                    checkpoint_every=100,
                    resume=(folder / "config.json").exists(),
                    threads=options.threads,
                ),
            )
        return folder

    def calibration(self, data: Dataset) -> Array:
        """Training images, every so many, as the network sees them."""
        total, count = len(data.train_labels), self.options.calibration
        chosen = torch.arange(0, total, max(1, total // count))[:count]
        return data.batch("train", chosen).numpy()


# --- mobilenetv2 --------------------------------------------------------------------------------


def accuracy(net: Network, data: Dataset, count: int) -> float:
    """Of the first test images, of the integers."""
    integer = net.model.integer
    value = integer.values[integer.inputs[0]]
    given = images(data, "test", count)
    outputs = TorchExecutor(integer).run([quantize_samples(given, value)])
    return correct(outputs, data) / len(given)


def noise(float_net: Network, net: Network, data: Dataset, count: int) -> float | None:
    """The signal-to-noise ratio of the logits in dB, on the first test images."""
    given = images(data, "test", count)
    graphs = float_net.model.real, net.model.real
    targets, made = ([interpreter.run(g, [x[None]])[0] for x in given] for g in graphs)
    return ratio(targets, made)


def quantized(work: Work, **options: Any) -> Record:
    """One way to quantize the trained network: ratio and accuracy, and what was tried."""
    folder, data = work.trained(), work.dataset()
    float_net = sb.load(folder)
    tuning = options.pop("tuning", None)
    start = time.perf_counter()
    net = sb.quantize(folder, work.calibration(data), *by_options(sb.quantize, options))
    found: Record = {"options": options, "seconds": time.perf_counter() - start}
    if tuning is not None:
        found["accuracy_before"] = accuracy(net, data, work.options.test)
        start = time.perf_counter()
        net = net.finetune(data, sb.FineTuning(**tuning))
        found |= {"tuning": tuning, "tuning_seconds": time.perf_counter() - start}
    assert isinstance(net.quantization, QuantizationReport)
    report = net.quantization.to_dict()
    return found | {
        "accuracy": accuracy(net, data, work.options.test),
        "sqnr_db": noise(float_net, net, data, work.options.compared),
        "steps": report["steps"],
        "changes": report["changes"],
        "notes": net.notes,
    }


def of_float(work: Work) -> Record:
    """The float network's own accuracy, computed by torch."""
    folder, data = work.trained(), work.dataset()
    graph = sb.load(folder).model.real
    given = images(data, "test", min(work.options.test, 500))  # binary64 takes its time
    outputs = np.concatenate([interpreter.run(graph, [x[None]])[0] for x in given])
    return {
        "accuracy": correct([outputs], data) / len(given),
        "images": len(given),
        "trained": json.loads((folder / "result.json").read_text()),
    }


# --- transformers -------------------------------------------------------------------------------


class FirstResult(nn.Module):
    """The last hidden states of a model that has several results."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of one input."""
        states: torch.Tensor = self.model(x).last_hidden_state
        return states


def of_onnxruntime(path: Path, name: str, calibration: Array, per_channel: bool) -> bytes:
    """A float ONNX file after onnxruntime's static quantization."""
    from onnxruntime import quantization

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.samples = iter(calibration)

        def get_next(self) -> dict[str, Array] | None:
            sample = next(self.samples, None)
            return None if sample is None else {name: sample[None]}

    made = path.with_suffix(".int8.onnx")
    quantization.quantize_static(
        str(path), str(made), Reader(), quant_format=quantization.QuantFormat.QDQ,
        per_channel=per_channel, activation_type=quantization.QuantType.QInt8,
        weight_type=quantization.QuantType.QInt8,
    )  # fmt: skip
    return made.read_bytes()


def transformer(kind: str, options: argparse.Namespace) -> Record:
    """Ratios of ours and of onnxruntime's int8 on samples that neither was calibrated on."""
    import onnxruntime

    torch.manual_seed(0)
    module: nn.Module
    if kind == "vit":
        module = build_architecture("vit", (3, 32, 32), 10)
        given = torch.randn(options.calibration + 32, 3, 32, 32)
    else:
        os.environ["HF_HUB_OFFLINE"] = "1"  # from configuration: nothing is fetched
        define_operators()  # transformers imports torchvision where that is installed
        import transformers

        module = FirstResult(transformers.BertModel(transformers.BertConfig(**SIZES, **BERT)))
        given = torch.randint(0, TOKENS, (options.calibration + 32, 32))
    module.eval()
    calibration, held = given[:-32].numpy(), given[-32:]
    with torch.no_grad():
        targets = [module(x[None]).numpy() for x in held]
    found: Record = {}
    ways = {
        "samebits": sb.Calibration(),
        "samebits minmax": sb.Calibration(calibrate="minmax"),
        "samebits high": sb.Calibration(effort="high"),
    }
    for way, how_found in ways.items():
        start = time.perf_counter()
        net = sb.quantize(module, calibration, how_found)
        (made,) = net.run(held.numpy()).values()
        found[way] = ratio(targets, [x[None] for x in made])
        found[f"{way}, seconds"] = time.perf_counter() - start
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "float.onnx"
        float_net = sb.load(module, example=held[:1])
        float_net.save(path)
        name = float_net.inputs[0].name
        how = onnxruntime.SessionOptions()
        if pairs_saturate():  # its kernels would add errors that its quantization has not
            how.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        for way, per_channel in (("tensor", False), ("channel", True)):
            session = onnxruntime.InferenceSession(
                of_onnxruntime(path, name, calibration, per_channel),
                how,
                providers=["CPUExecutionProvider"],
            )
            outputs = [session.run(None, {name: x[None].numpy()})[0] for x in held]
            found[f"onnxruntime per {way}"] = ratio(targets, outputs)
    return found


# --- lines --------------------------------------------------------------------------------------

HIGH: Record = {"effort": "high"}
WAYS: dict[str, Record] = {
    "int8-tensor-plain": {"per_tensor": True},
    "int8-tensor-high": {"per_tensor": True, **HIGH},
    "int8-channel-plain": {},
    "int8-channel-high": HIGH,
    "int4-plain": {"weights": "symmetric-s4"},
    "int4-high": {"weights": "symmetric-s4", **HIGH},
    "int4-tuned": {"weights": "symmetric-s4", **HIGH, "tuning": {"epochs": 2}},
}


def lines(work: Work) -> dict[str, Callable[[], Record]]:
    """Every line by name, cheap ones first."""
    found: dict[str, Callable[[], Record]] = {
        kind: partial(transformer, kind, work.options) for kind in ("vit", "bert")
    }
    found["float32"] = partial(of_float, work)
    for name, options in WAYS.items():
        found[name] = partial(quantized, work, **options)
    return found


def main() -> None:
    """Compute what is not finished yet; print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("data/cifar10"))
    parser.add_argument("--out", type=Path, default=Path("runs/accuracy"))
    parser.add_argument("--only", nargs="+", default=[""], help="beginnings of names")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--augment", default="flip,crop:4")
    parser.add_argument("--limit", type=int, help="training images of each class")
    parser.add_argument("--calibration", type=int, default=256, help="samples")
    parser.add_argument("--compared", type=int, default=64, help="test images for ratios")
    parser.add_argument("--test", type=int, default=5000, help="test images for accuracies")
    parser.add_argument("--threads", type=int)
    parser.add_argument(
        "--report", action="store_true", help="print what is there, compute nothing"
    )
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    work = Work(options.data, options.out, options)
    for name, line in lines(work).items():
        file = options.out / f"{name}.json"
        if not name.startswith(tuple(options.only)):
            continue
        if not file.exists():
            if options.report:
                continue
            machine.write_record(file, name=name, found=line())
        found = json.loads(file.read_text())["found"]
        shown = {key: value for key, value in found.items() if isinstance(value, float)}
        print(f"{name:20}", ", ".join(f"{key} {value:.4g}" for key, value in shown.items()))


if __name__ == "__main__":
    main()
