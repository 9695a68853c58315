"""LSTMs on one thread: streaming generated C against torch and onnxruntime in the same run.

    python benchmarks/bench_lstm.py --out runs/bench_lstm.json

Batch 1. Contenders get whole sequences of 100 steps, which lets them compute the products of x of
several steps at once (ours: of 16, model_steps); or, as a device that listens must, one step a call
with the states handed on (ours: without blocks, called from C). Timed in turns, the least of the
rounds, after it has been checked that ours gives the bits of the reference; a ratio above 1 means
that ours is faster.
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

import samebits as sb
from bench_inference import FLAGS, timed
from machine import write_record
from samebits.codegen import write_package
from samebits.codegen.run.execute import build, instruction_count
from samebits.codegen.run.targets import TARGETS
from samebits.codegen.run.toolchain import host_compiler
from samebits.errors import InputError
from samebits.ir import Graph
from samebits.ir.interpreter import run_steps
from samebits.ir.lowering.lower import lower_graph
from samebits.ir.rewrite import simplify
from samebits.onnx import from_model
from samebits.quantization.lstm import RecurrentSettings, quantize_recurrent
from samebits.verification.inputs import dequantize, quantize_samples, random_codes

Array = np.ndarray[Any, Any]
Run = Callable[[], Any]
STEPS = 100
SHAPES = ((40, 64, 2), (64, 256, 1))  # features, cells, layers
TRAINED = "8 x 64 x 2"  # of digits by rows of pixels
SPAN = 1 / 16
BOARDS = ("cortex-m3", "cortex-m4", "cortex-m55")


def weights(features: int, hidden: int, layers: int) -> list[tuple[Array, Array, Array]]:
    """W, R and B of every layer, gates in ONNX's order i, o, f, c; uniform in [-SPAN, SPAN]."""
    rng = np.random.default_rng(0)
    return [
        (
            rng.uniform(-SPAN, SPAN, (1, 4 * hidden, hidden if layer else features)),
            rng.uniform(-SPAN, SPAN, (1, 4 * hidden, hidden)),
            rng.uniform(-SPAN, SPAN, (1, 8 * hidden)),
        )
        for layer in range(layers)
    ]


def onnx_model(parts: Sequence[tuple[Array, Array, Array]], steps: int) -> onnx.ModelProto:
    """The layers on sequences of so many steps; for one step with the states handed in and out."""
    features, hidden = parts[0][0].shape[2], parts[0][1].shape[2]
    nodes, constants = [], [numpy_helper.from_array(np.array([1]), "axis")]
    inputs, outputs = [_value("x", steps, 1, features)], []
    x = "x"
    for layer, arrays in enumerate(parts):
        names = [f"{name}{layer}" for name in "WRB"]
        constants += [
            numpy_helper.from_array(a.astype(np.float32), n)
            for a, n in zip(arrays, names, strict=True)
        ]
        states = [f"h{layer}", f"c{layer}"] if steps == 1 else []
        made = [f"y{layer}", *(f"{name}_next" for name in states)]
        given = ["", *states] if states else []
        nodes.append(helper.make_node("LSTM", [x, *names, *given], made, hidden_size=hidden))
        nodes.append(helper.make_node("Squeeze", [f"y{layer}", "axis"], [f"z{layer}"]))
        inputs += [_value(name, 1, 1, hidden) for name in states]
        outputs += [_value(f"{name}_next", 1, 1, hidden) for name in states]
        x = f"z{layer}"
    outputs.insert(0, _value(x, steps, 1, hidden))
    graph = helper.make_graph(nodes, "lstm", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _value(name: str, *shape: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def session(model: onnx.ModelProto, folder: Path, dynamic: bool) -> Any:
    """onnxruntime on one thread, quantized dynamically to 8 bits if asked."""
    import onnxruntime
    from onnxruntime.quantization import QuantType, quantize_dynamic

    path = folder / "model.onnx"
    onnx.save(model, str(path))
    if dynamic:
        quantize_dynamic(str(path), str(folder / "q.onnx"), weight_type=QuantType.QInt8)
        path = folder / "q.onnx"
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def by_steps(made: Any, x: Array) -> Run:
    """A session of one step, called for each, its states handed on."""
    names = [value.name for value in made.get_inputs()][1:]
    zeros = {v.name: np.zeros(v.shape, np.float32) for v in made.get_inputs()[1:]}

    def run() -> list[Array]:
        states, outputs = zeros, []
        for row in x:
            y, *following = made.run(None, {"x": row[None], **states})
            states = dict(zip(names, following, strict=True))
            outputs.append(y)
        return outputs

    return run


def torch_lstm(parts: Sequence[tuple[Array, Array, Array]]) -> torch.nn.LSTM:
    """The same network in torch, whose gates are i, f, g, o."""
    features, hidden = parts[0][0].shape[2], parts[0][1].shape[2]
    module = torch.nn.LSTM(features, hidden, len(parts))
    order = [0, 2, 3, 1]
    with torch.no_grad():
        for layer, (w, r, b) in enumerate(parts):
            both = b.reshape(2, 4, hidden)[:, order].reshape(2, -1)
            for name, array in (
                ("weight_ih", w.reshape(4, hidden, -1)[order].reshape(4 * hidden, -1)),
                ("weight_hh", r.reshape(4, hidden, -1)[order].reshape(4 * hidden, -1)),
                ("bias_ih", both[0]),
                ("bias_hh", both[1]),
            ):
                getattr(module, f"{name}_l{layer}").copy_(torch.from_numpy(array))
    return module.eval()


def torch_by_steps(module: torch.nn.LSTM, x: torch.Tensor) -> Run:
    """One step a call."""

    def run() -> list[torch.Tensor]:
        states, outputs = None, []
        for row in x:
            y, states = module(row[None], states)
            outputs.append(y)
        return outputs

    return run


def c_stream(graph: Graph, codes: Array, folder: Path, blocks: int = 1) -> tuple[Run, Array, int]:
    """model_reset and model_steps through ctypes, in blocks or step by step, where its outputs go,
    and bytes of constants."""
    report = write_package(graph, folder)
    library = folder / "model.so"
    sources = [str(path) for path in (*folder.glob("*.c"), *folder.glob("samebits/*.c"))]
    compiler = host_compiler().path
    assert compiler is not None
    flags = [*FLAGS, f"-DSAMEBITS_BLOCKS={blocks}"]
    command = [compiler, "-std=c99", *flags, "-shared", "-fPIC", *sources, "-o", str(library)]
    subprocess.run(command, check=True)
    value = graph.values[graph.outputs[0]]
    outputs = np.zeros((len(codes), *value.shape), value.dtype)
    state = np.zeros(report.state + 8, np.uint8)
    start = ctypes.c_void_p(state.ctypes.data + -state.ctypes.data % 8)
    loaded = ctypes.CDLL(str(library))
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (codes, outputs)]
    arena = np.zeros(max(report.arena, report.block) // 8 + 1, np.int64)
    net = (ctypes.c_void_p * 2)()
    loaded.model_init(net, ctypes.c_void_p(arena.ctypes.data))
    steps, kept = ctypes.c_int32(len(codes)), (codes, state, outputs, arena, net)  # stay alive

    def run() -> Any:
        loaded.model_reset(start)
        loaded.model_steps(net, start, steps, *pointers)
        return kept

    return run, outputs, report.constants


def on_boards(graph: Graph, folder: Path) -> dict[str, int]:
    """Instructions of one step, with the kernels of each processor; boards it does not fit have
    none."""
    found = {}
    for name in BOARDS:
        target = TARGETS[name]
        if target.unavailable():
            continue
        write_package(graph, folder / name, cpu=target.cpu)
        try:
            program = build(folder / name, target, folder / f"{name}-build")
        except InputError as error:
            print(error)
            continue
        found[name] = instruction_count(program, random_codes(graph, 2))[-1]
    return found


def trained_on_boards(folder: Path) -> dict[str, int]:
    """As on_boards, of a network that was trained in BFP, whose rescalings are shifts."""
    sb.fit("digits", "lstm", folder / "run", sb.Training(epochs=1), sb.Execution(threads=1))
    return on_boards(sb.load(folder / "run").model.integer, folder)


def sqnr(expected: Array, found: Array) -> float:
    """In dB."""
    error = expected.astype(np.float64) - found.reshape(expected.shape)
    return float(
        10 * np.log10(np.square(expected, dtype=np.float64).sum() / np.square(error).sum())
    )


def measure(shape: tuple[int, int, int], folder: Path) -> dict[str, Any]:
    """All contenders on one network."""
    parts = weights(*shape)
    whole, single = onnx_model(parts, STEPS), onnx_model(parts, 1)
    rng = np.random.default_rng(1)
    sequences = rng.standard_normal((17, STEPS, 1, shape[0])).astype(np.float32)
    x = sequences[-1]
    module, tensor = torch_lstm(parts), torch.from_numpy(x)
    expected = module.double()(tensor.double())[0].detach().numpy()
    module.float()
    ours: dict[str, Run] = {}
    quality, constants, boards = {}, {}, {}
    for bits in (8, 16):
        made, _ = quantize_recurrent(
            from_model(whole), [[s] for s in sequences[:16]], RecurrentSettings(bits=bits)
        )
        graph = lower_graph(simplify(made))
        codes = np.ascontiguousarray(quantize_samples(x[:, None], graph.values[graph.inputs[0]]))
        name, expected_codes = f"ours, {bits} bits", run_steps(graph, [codes])[0]
        for blocks, way in enumerate(("by steps", "whole")):
            run, outputs, constants[name] = c_stream(
                graph, codes, folder / f"c{bits}{blocks}", blocks
            )
            run()
            if not np.array_equal(outputs, expected_codes):
                raise SystemExit(f"{name}: expected the reference's codes, found others")
            ours[f"{name}, {way}"] = run
        if bits == 8:
            boards = on_boards(graph, folder)
        quality[name] = sqnr(expected, dequantize(outputs, graph.values[graph.outputs[0]]))
    sessions = {
        (kind, steps): session(model, folder, dynamic)
        for kind, dynamic in (("onnxruntime", False), ("onnxruntime dynamic int8", True))
        for steps, model in ((STEPS, whole), (1, single))
    }
    for kind in ("onnxruntime", "onnxruntime dynamic int8"):
        quality[kind] = sqnr(expected, sessions[kind, STEPS].run(None, {"x": x})[0])
    contenders: dict[str, Run] = {
        **ours,
        "torch, whole": lambda: module(tensor),
        "torch, by steps": torch_by_steps(module, tensor),
    }
    for (kind, steps), made in sessions.items():
        if steps == 1:
            contenders[f"{kind}, by steps"] = by_steps(made, x)
        else:
            contenders[f"{kind}, whole"] = partial(made.run, None, {"x": x})
    with torch.inference_mode():
        seconds = {name: value / STEPS for name, value in timed(contenders, min).items()}
    floats = 4 * sum(parameter.numel() for parameter in module.parameters())
    return {
        "shape": shape,
        "seconds_per_step": seconds,
        "sqnr_db": quality,
        "constants": constants,
        "float_bytes": floats,
        "instructions": boards,
    }


def main() -> None:
    """Print a line per network and contender; write everything as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = []
    for shape in SHAPES:
        with tempfile.TemporaryDirectory() as name:
            record = measure(shape, Path(name))
        results.append(record)
        label = f"{shape[0]} x {shape[1]} x {shape[2]}"
        times = record["seconds_per_step"]
        for contender, value in times.items():
            ratio = value / times[f"ours, 8 bits, {contender.rpartition(', ')[2]}"]
            print(f"{label} {contender:36} {1e6 * value:8.2f} us   ratio {ratio:6.2f}")
        for contender, value in record["sqnr_db"].items():
            print(f"{label} {contender:36} {value:8.2f} dB")
        for contender, value in record["constants"].items():
            share = value / record["float_bytes"]
            print(f"{label} {contender:36} {value:,} bytes, {share:.4f} of float32")
        for board, count in record["instructions"].items():
            print(f"{label} {board:36} {count:,} instructions a step")
    with tempfile.TemporaryDirectory() as name:
        trained = trained_on_boards(Path(name))
    for board, count in trained.items():
        print(f"{TRAINED}, trained in BFP {board:18} {count:,} instructions a step")
    if options.out is not None:
        write_record(options.out, results=results, trained={TRAINED: trained})


if __name__ == "__main__":
    main()
