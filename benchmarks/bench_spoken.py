"""Accuracy of integer LSTMs on recordings: quantized to 8 and 16 bits, and trained in BFP, against
float32 from the same initial values and data order, over several seeds.

    python benchmarks/bench_spoken.py fsdd --out runs/bench_spoken.json

The folder of WAV files is split as `samebits train --data` does. The float32 models are quantized
with whole training recordings; the generated C then classifies the whole test set, and the torch
executor some of it, with the same bits.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

import machine
from bench_lstm import c_stream
from samebits.api import fit
from samebits.data import load
from samebits.data.dataset import Dataset
from samebits.ir import Graph
from samebits.ir.interpreter import initial_state
from samebits.ir.lowering.lower import lower_graph
from samebits.ir.rewrite import simplify
from samebits.pytorch import TorchExecutor, import_module
from samebits.quantization import RecurrentReport, RecurrentSettings, quantize_recurrent
from samebits.recipes import by_options
from samebits.train.run.restore import open_checkpoint, restore_engine
from samebits.verification.accuracy import images
from samebits.verification.inputs import quantize_samples

Array = np.ndarray[Any, Any]
CHECKED = 8  # recordings that the torch executor computes too
BITS = (8, 16)


def calibration(data: Dataset, count: int) -> Array:
    """Training recordings evenly spread over the classes, [count, T, mels]."""
    found = images(data, "train")
    return found[np.linspace(0, len(found) - 1, count).astype(np.int64)]


def integer_correct(graph: Graph, recordings: Array, labels: Array, folder: Path) -> int:
    """Test recordings that the generated C classifies correctly by the logits of the last step.

    Raises SystemExit where a step of one of the first differs from the torch executor's.
    """
    integer = lower_graph(simplify(graph))
    value = integer.values[integer.inputs[0]]
    codes = quantize_samples(recordings, value).reshape(len(recordings), -1, *value.shape)
    sequence = codes[0].copy()
    step, outputs, _ = c_stream(integer, sequence, folder)
    found = []
    for recording in codes:
        sequence[...] = recording
        step()
        found.append(outputs.copy())
    executor = TorchExecutor(integer)
    for recording, logits in zip(codes[:CHECKED], found, strict=False):
        if not np.array_equal(_steps(executor, recording), logits):
            raise SystemExit("expected the bits of the torch executor from C, found others")
    last = np.stack(found)[:, -1].reshape(len(labels), -1)
    return int((last.argmax(1) == labels).sum())


def _steps(executor: TorchExecutor, recording: Array) -> Array:
    graph = executor.graph
    states = [initial_state(graph, state) for state in graph.states]
    found = []
    for x in recording:
        y, *states = executor.run([x, *states])
        found.append(y)
    return np.stack(found)


def quantized(folder: Path, data: Dataset, bits: int, count: int) -> tuple[Graph, RecurrentReport]:
    """The step graph of a float32 training folder."""
    path, checkpoint = open_checkpoint(folder, print)
    module = restore_engine(path, checkpoint, data).model.eval()
    graph = simplify(import_module(module, (torch.zeros(1, *data.input_shape),)))
    name = graph.inputs[0]
    samples = [{name: recording[None]} for recording in calibration(data, count)]
    return quantize_recurrent(graph, samples, RecurrentSettings(bits=bits))


def main() -> None:
    """Train, quantize, classify; print a table and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="folder of WAV files, <class>/*.wav")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--calibration", type=int, default=200, help="training recordings")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    given = parser.parse_args()
    data = load(given.data)
    recordings, labels = images(data, "test"), data.test_labels.numpy()
    options: dict[str, Any] = {
        "epochs": given.epochs,
        "optimizer": "adam",
        "lr": 0.003,
        "threads": 1,
    }
    rows: list[dict[str, Any]] = []
    for seed in range(given.seeds):
        with tempfile.TemporaryDirectory() as name:
            work = Path(name)
            for numerics in ("float32", "bfp"):
                folder = work / f"{numerics}-{seed}"
                run = fit(
                    data,
                    "lstm",
                    folder,
                    *by_options(fit, {**options, "numerics": numerics, "seed": seed}),
                )
                assert run is not None  # of one process
                result = run.result.to_dict()
                row = {key: result[key] for key in ("correct", "arithmetic", "sha256")}
                rows.append({"model": numerics, "seed": seed, **row})
            for bits in BITS:
                graph, report = quantized(work / f"float32-{seed}", data, bits, given.calibration)
                correct = integer_correct(graph, recordings, labels, work / f"c{bits}")
                row = {"correct": correct, "sqnr_db": report.sqnr_db, "causes": report.causes}
                rows.append({"model": f"{bits} bits", "seed": seed, **row})
        for row in rows[-4:]:
            print(row, flush=True)
    names = list(dict.fromkeys(row["model"] for row in rows))
    means = {
        name: statistics.mean(100 * r["correct"] / len(labels) for r in rows if r["model"] == name)
        for name in names
    }
    report_ = {
        "machine": machine.facts(),
        "options": options,
        "calibration": given.calibration,
        "train": len(data.train_labels),
        "test": len(labels),
        "steps": data.input_shape[0],
        "mean_accuracy": means,
        "runs": rows,
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(report_, indent=1))
    for name, mean in means.items():
        difference = mean - means["float32"]
        print(f"{name:8} {mean:.2f} % of {len(labels)}, {difference:+.2f} to float32")


if __name__ == "__main__":
    main()
