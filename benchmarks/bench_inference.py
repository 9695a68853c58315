"""Batch-1 inference on one thread: generated C against onnxruntime in the same run, and
instructions per inference on Cortex-M.

    python benchmarks/bench_inference.py --out runs/bench_inference.json

Every contender is timed in turns (one burst each, round after round), so that a busy machine slows
all alike; the figure is the median over the rounds. A ratio above 1 means that ours is faster.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import statistics
import subprocess
import tempfile
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from machine import write_record
from samebits.codegen import write_package
from samebits.codegen.run.execute import build, instruction_count
from samebits.codegen.run.interface import Interface
from samebits.codegen.run.requirements import requirements
from samebits.codegen.run.targets import TARGETS
from samebits.codegen.run.toolchain import host_compiler
from samebits.errors import SamebitsError
from samebits.ir import Graph
from samebits.ir.rewrite import simplify
from samebits.model import Model
from samebits.numerics import philox
from samebits.onnx import to_qdq
from samebits.pytorch import import_module
from samebits.quantization import quantize_graph
from samebits.train.architectures import build as build_architecture
from samebits.train.architectures import initialise
from samebits.verification.backends.onnxruntime import BACKENDS as RUNTIMES
from samebits.verification.inputs import dequantize, random_codes
from samebits.verification.run import verify_model

Run = Callable[[], Any]
ROUNDS, BURST_SECONDS = 15, 0.1
FLAGS = ("-O3", "-march=native", "-fno-semantic-interposition")
COMPARED = ("torch", "c", *RUNTIMES)
# What a call of generated C reads and writes, as long as the call itself is there.
MEMORY: weakref.WeakKeyDictionary[Run, Any] = weakref.WeakKeyDictionary()
BOARDS = ("cortex-m0-large", "cortex-m3", "cortex-m55")


def samples(shape: tuple[int, ...], count: int, site: int) -> torch.Tensor:
    """Reproducible images in [-1, 1]: speed does not depend on what they show."""
    words = philox.words(count * int(np.prod(shape)), (0, site)).to(torch.float64)
    return (words * 2.0**-31 - 1).to(torch.float32).reshape(count, *shape)


def quantized(arch: str, shape: tuple[int, int, int]) -> tuple[Graph, Model]:
    """A float network of the architecture and its 8-bit form (weights per channel, minmax)."""
    module = build_architecture(arch, shape, 10)
    initialise(module, 0)
    module.train()
    with torch.no_grad():
        for site in range(4):  # running statistics that keep activations alive
            module(samples(shape, 32, site))
    graph = simplify(import_module(module.eval(), (torch.zeros(1, *shape),)))
    calibration = [{graph.inputs[0]: x[None].numpy()} for x in samples(shape, 16, 9)]
    real, _ = quantize_graph(graph, calibration)
    return graph, Model(arch, real)


def c_library(model: Model, folder: Path, flags: Sequence[str] = FLAGS) -> Run:
    """The generated C as a shared library, called through ctypes with nothing of Python between."""
    report = write_package(model.integer, folder)
    library = folder / "model.so"
    sources = [str(path) for path in (*folder.glob("*.c"), *folder.glob("samebits/*.c"))]
    compiler = host_compiler().path
    assert compiler is not None
    command = [compiler, "-std=c99", *flags, "-shared", "-fPIC", *sources, "-o", str(library)]
    subprocess.run(command, check=True)
    graph = model.integer
    inputs = [np.ascontiguousarray(a) for a in random_codes(graph, 1)]
    outputs = [np.zeros(graph.values[n].shape, graph.values[n].dtype) for n in graph.outputs]
    pointers = [ctypes.c_void_p(a.ctypes.data) for a in (*inputs, *outputs)]
    loaded = ctypes.CDLL(str(library))
    arena = np.zeros(max(report.arena, report.block) // 8 + 1, np.int64)
    net = (ctypes.c_void_p * 2)()
    loaded.model_init(net, ctypes.c_void_p(arena.ctypes.data))
    run = functools.partial(loaded.model_run, net, *pointers)
    MEMORY[run] = (inputs, outputs, arena)
    return run


def onnx_session(graph: Graph, model: Model) -> Run:
    """onnxruntime with all its optimizations on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    exported = to_qdq(graph, tables="float")  # what any other tool would write
    session = onnxruntime.InferenceSession(
        exported.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    value = model.integer.values[model.integer.inputs[0]]
    image = dequantize(random_codes(model.integer, 1)[0], value)
    feed = {session.get_inputs()[0].name: image}
    return lambda: session.run(None, feed)


def timed(
    contenders: dict[str, Run],
    of_rounds: Callable[[list[float]], float] = statistics.median,
    clock: Callable[[], float] = time.perf_counter,
    bursts: tuple[int, float] = (ROUNDS, BURST_SECONDS),
) -> dict[str, float]:
    """Seconds per call, the median over the rounds if not something else.

    bursts: how many rounds, and the seconds of one contender in each
    """
    count, seconds = bursts
    calls = {}
    for name, run in contenders.items():
        run()
        start = clock()
        for _ in range(5):
            run()
        calls[name] = max(1, int(seconds / ((clock() - start) / 5)))
    rounds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(count):
        for name, run in contenders.items():
            start = clock()
            for _ in range(calls[name]):
                run()
            rounds[name].append((clock() - start) / calls[name])
    return {name: of_rounds(times) for name, times in rounds.items()}


def on_boards(model: Model, folder: Path) -> dict[str, Any]:
    """Instructions, flash, RAM and stack of one inference on each emulated board."""
    found: dict[str, Any] = {}
    write_package(model.integer, folder / "package")
    for name in BOARDS:
        reason = TARGETS[name].unavailable()
        if reason is not None:
            found[name] = {"skipped": reason}
            continue
        try:
            program = build(
                folder / "package", TARGETS[name], folder / name, Interface.of(model.integer)
            )
            count = instruction_count(program, random_codes(model.integer, 1))[0]
            needs = requirements(model.integer, name)
            found[name] = {
                "instructions": count,
                "flash": needs.flash,
                "ram": needs.ram,
                "stack": needs.stack,
            }
        except SamebitsError as error:
            found[name] = {"skipped": str(error)}
    return found


def differences(model: Model, count: int) -> list[dict[str, Any]]:
    """Outputs that differ from the reference, per backend, for random inputs."""
    verdicts = verify_model(model, random_codes(model.integer, count), COMPARED)[1]
    return [v.to_dict() for v in verdicts]


def main() -> None:
    """Print a line per model and contender; write everything as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--models", nargs="+", default=["resnet8", "cnn", "mobilenetv2"])
    parser.add_argument("--boards", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--samples", type=int, default=0, help="random inputs to compare on")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = []
    for arch in options.models:
        shape = (3, 32, 32)
        graph, model = quantized(arch, shape)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            report = write_package(model.integer, folder / "c")
            contenders: dict[str, Run] = {
                "ours int8": c_library(model, folder / "c"),
                "onnxruntime int8 QDQ": onnx_session(model.real, model),
                "onnxruntime float32": onnx_session(graph, model),
            }
            seconds = timed(contenders)
            boards = on_boards(model, folder) if options.boards else {}
        verdicts = differences(model, options.samples) if options.samples else []
        record = {
            "model": arch,
            "input": shape,
            "seconds": seconds,
            "arena": report.arena,
            "constants": report.constants,
            "boards": boards,
            "verdicts": verdicts,
        }
        results.append(record)
        own = seconds["ours int8"]
        for contender, value in seconds.items():
            print(f"{arch:12} {contender:22} {1e6 * value:9.1f} us   ratio {value / own:5.2f}")
        print(f"{arch:12} arena {report.arena:,} bytes, constants {report.constants:,}")
        for board, entry in boards.items():
            text = entry.get("skipped") or f"{entry['instructions']:,} instructions"
            print(f"{arch:12} {board:16} {text}")
        for v in verdicts:
            text = f"{v['differing']} of {v['total']} outputs, {v['samples']} inputs"
            print(f"{arch:12} {v['backend']:22} {v['skipped'] or text}, largest {v['largest']:.3g}")
    if options.out is not None:
        write_record(options.out, results=results)


if __name__ == "__main__":
    main()
