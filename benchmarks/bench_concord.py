"""Concordant software of a CIFAR resnet8, batch 64, one thread: emitted PyTorch and ONNX against
the simulator and the float32 network (plain torch.nn in eval mode, batch-norm not folded).

    python benchmarks/bench_concord.py --out runs/bench_concord.json

The contenders run in turns; a figure is the least CPU time of all rounds, which is what the clock
of an idle machine shows. Exits with 1 if a bit of an output differs from the simulator's.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from bench_inference import samples
from machine import write_record
from samebits.ir import Graph
from samebits.ir.rewrite import simplify
from samebits.npu.compiler.lower import lower_real_graph
from samebits.npu.concord.source import load_module
from samebits.npu.concord.translate import translate
from samebits.npu.machine.program import Instruction
from samebits.npu.simulator.simulate import simulate
from samebits.pytorch import import_module
from samebits.train.architectures import build, initialise

Array = np.ndarray[Any, Any]
Run = Callable[[], Array]
SHAPE, BATCH, BURST = (3, 32, 32), 64, 4


def network() -> tuple[nn.Module, Graph]:
    """The float32 network and its graph; running statistics that keep activations alive."""
    module = build("resnet8", SHAPE, 10)
    initialise(module, 0)
    module.train()
    with torch.no_grad():
        for site in range(4):
            module(samples(SHAPE, 32, site))
    return module, simplify(import_module(module.eval(), (torch.zeros(1, *SHAPE),)))


def images() -> torch.Tensor:
    """Of the first four, one is dark, one half black and one black: they take other ways."""
    batch = samples(SHAPE, BATCH, 11)
    batch[1] *= 0.01
    batch[2, :, :16] = 0
    batch[3] = 0
    return batch


def float_run(module: nn.Module, batch: torch.Tensor) -> Run:
    """The float32 network."""

    def run() -> Array:
        with torch.inference_mode():
            return module(batch).numpy()

    return run


def torch_run(path: Path, batch: torch.Tensor) -> Run:
    """The emitted PyTorch module."""
    model = load_module(path).load()
    (name,) = model.inputs

    def run() -> Array:
        with torch.inference_mode():
            (output,) = model({name: batch}).values()
        return output.numpy()

    return run


def onnx_run(path: Path, batch: torch.Tensor) -> Run:
    """The emitted ONNX model in onnxruntime; inputs are rounded to binary16 by the caller."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    feed = {session.get_inputs()[0].name: batch.half().float().numpy()}
    return lambda: session.run(None, feed)[0]


def least_seconds(contenders: dict[str, Run], rounds: int) -> dict[str, float]:
    """CPU seconds per call, in turns of a few calls: the first meets another's memory and cache."""
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(rounds):
        for name, run in contenders.items():
            for _ in range(BURST):
                start = time.process_time()
                run()
                best[name] = min(best[name], time.process_time() - start)
    return best


def measure(
    module: nn.Module,
    graph: Graph,
    native: int,
    mantissa: int,
    requantize: int,
    rounds: int,
    count: int,
) -> dict[str, Any]:
    """One row: seconds, ratios, and outputs that differ from the simulator's."""
    program, image = lower_real_graph(graph, native, mantissa)
    if requantize:
        first = Instruction("s_wr", register="requantize", value=1)
        program = replace(program, instructions=(first, *program.instructions))
    batch = images()
    (name,) = (hint.name for hint in program.hints if hint.kind == "input")
    start = time.process_time()
    (expected,) = simulate(program, image, {name: batch[:count].numpy()}).outputs.values()
    simulator = (time.process_time() - start) / count
    with tempfile.TemporaryDirectory() as folder:
        paths = {
            kind: Path(folder) / f"model.{end}" for kind, end in (("torch", "py"), ("onnx", "onnx"))
        }
        for kind, path in paths.items():
            translate(program, image, kind, path)
        contenders = {
            "float32": float_run(module, batch),
            "torch": torch_run(paths["torch"], batch),
            "onnx": onnx_run(paths["onnx"], batch),
        }
        seconds = least_seconds(contenders, rounds)
        differing = {
            kind: int(
                (
                    contenders[kind]()[:count].astype(np.float16).view(np.uint16)
                    != expected.view(np.uint16)
                ).sum()
            )
            for kind in paths
        }
    return {
        "native": native,
        "mantissa": mantissa,
        "requantize": requantize,
        "samples_compared": count,
        "outputs_differing": differing,
        "simulator_seconds_per_sample": simulator,
        "seconds_per_batch": seconds,
        "torch_over_float32": seconds["torch"] / seconds["float32"],
        "onnx_over_float32": seconds["onnx"] / seconds["float32"],
        "simulator_over_torch": simulator * BATCH / seconds["torch"],
        "simulator_over_onnx": simulator * BATCH / seconds["onnx"],
    }


def main() -> None:
    """Print a line per configuration; write everything as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--natives", nargs="+", type=int, default=[8, 16, 64, 128])
    parser.add_argument("--mantissas", nargs="+", type=int, default=[3, 5, 8, 15])
    parser.add_argument("--requantize", nargs="+", type=int, default=[0], choices=[0, 1])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--samples", type=int, default=4, help="that the simulator computes")
    options = parser.parse_args()
    torch.set_num_threads(1)
    module, graph = network()
    results = []
    for requantize in options.requantize:
        for native in options.natives:
            for mantissa in options.mantissas:
                record = measure(
                    module, graph, native, mantissa, requantize, options.rounds, options.samples
                )
                results.append(record)
                ms = {name: 1e3 * value for name, value in record["seconds_per_batch"].items()}
                print(
                    f"N {native:3} M {mantissa:2} requantize {requantize}: "
                    f"float32 {ms['float32']:6.1f} ms, torch {ms['torch']:7.1f} "
                    f"(ratio {record['torch_over_float32']:5.2f}), onnx {ms['onnx']:7.1f} "
                    f"({record['onnx_over_float32']:5.2f}); simulator "
                    f"{record['simulator_seconds_per_sample']:6.2f} s an image (torch "
                    f"{record['simulator_over_torch']:6.0f} times as fast); outputs that differ: "
                    f"{record['outputs_differing']}",
                    flush=True,
                )
    if options.out is not None:
        write_record(options.out, results=results)
    if any(any(record["outputs_differing"].values()) for record in results):
        sys.exit("outputs differ from the simulator's")


if __name__ == "__main__":
    main()
