"""The meaning `tflite` against codes that tflite-micro 0.dev20260930204519 and 0.dev20261023182759
(from PyPI) computed, both the same: of single operators, and of networks of the shapes of MLPerf
Tiny's five in every tensor."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import pytest

from samebits.errors import UnsupportedError
from samebits.ir import Graph
from samebits.ir.interpreter import run
from samebits.model import Model
from samebits.spec.graph import softmax as specified
from samebits.spec.tflite import sigmoid_steps
from samebits.tflite.file import Scaling
from samebits.tflite.same.curves import entries_of
from samebits.tflite.same.importer import import_same
from samebits.tflite.same.versions import NEWEST, RUNTIMES
from samebits.tflite.schema import SAME
from samebits.verification.registry import backend_named
from tflite_files import Array, Net
from tflite_networks import NETWORKS

SEEDS = 3


def spread(net: Net, low: float, high: float) -> Scaling:
    """A scale in this range, and any zero point."""
    scale = float(np.float32(net.rng.uniform(low, high)))
    return Scaling((scale,), (int(net.rng.integers(-128, 128)),))


def entry(net: Net, shape: tuple[int, ...], low: float, high: float) -> int:
    net.inputs.append(net.tensor(shape, quantization=spread(net, low, high)))
    return net.inputs[-1]


def unit(net: Net, shape: tuple[int, ...], steps: int, zero: int, dtype: str = "int8") -> int:
    return net.tensor(shape, dtype, quantization=Scaling((1 / steps,), (zero,)))


def curve(op: str, net: Net) -> int:
    x = entry(net, (1, 256), 0.005, 0.2)
    steps, zero = (128, 0) if op == "TANH" else (256, -128)
    return net.add(op, [x], unit(net, (1, 256), steps, zero))


def ramp(op: str, net: Net) -> int:
    x = entry(net, (1, 300), 0.01, 0.1)
    more = {"alpha": float(np.float32(net.rng.uniform(0, 0.6)))} if op == "LEAKY_RELU" else {}
    y = net.activation((1, 300), x) if op == "RELU6" else net.activation((1, 300))
    return net.add(op, [x], y, **more)


def softmax(op: str, net: Net) -> int:
    shape = (2, int(net.rng.integers(1, 60)))
    x = entry(net, shape, 0.005, 0.4)
    wide = op == "SOFTMAX to int16"
    y = unit(net, shape, 1 << 16, -(1 << 15), "int16") if wide else unit(net, shape, 256, -128)
    return net.add("SOFTMAX", [x], y, beta=float(np.float32(net.rng.uniform(0.5, 2))))


def reduced(op: str, net: Net) -> int:
    x = net.input(2, 5, 6, 3)
    own = spread(net, 0.1, 0.5) if op in ("MEAN", "SUM") else net.tensors[x].quantization
    return net.add(op, [x, net.integers((1, 2))], net.tensor((2, 3), quantization=own))


def pooled(op: str, net: Net) -> int:
    return net.pool(op, net.input(1, 7, 6, 3), (3, 3), SAME, stride=2)


def paired(op: str, net: Net) -> int:
    x = net.input(2, 3)
    z = net.activation((2, 3), x)
    net.inputs.append(z)
    if op == "PACK":
        return net.add(op, [x, z], net.activation((2, 2, 3), x), axis=1, values_count=2)
    return net.add(op, [x, z], net.activation((2, 3), x))


def moved(op: str, net: Net) -> int:
    """An operator that moves codes."""
    if op == "TRANSPOSE":
        x = net.input(2, 3, 4)
        return net.add(op, [x, net.integers((2, 0, 1))], net.activation((4, 2, 3), x))
    if op == "SPACE_TO_DEPTH":
        x = net.input(1, 4, 6, 3)
        return net.add(op, [x], net.activation((1, 2, 3, 12), x), block_size=2)
    if op == "DEPTH_TO_SPACE":
        x = net.input(1, 2, 3, 12)
        return net.add(op, [x], net.activation((1, 4, 6, 3), x), block_size=2)
    x = net.input(4, 6)
    if op == "SLICE":
        places = [net.integers((1, 2)), net.integers((-1, 3))]
        return net.add(op, [x, *places], net.activation((3, 3), x))
    same = net.tensors[x].quantization
    five = net.tensor((1,), array=np.array([5], np.int8), quantization=same)
    return net.add(op, [x, net.integers([[1, 0], [2, 1]]), five], net.activation((5, 9), x))


MODELS: dict[str, Callable[[str, Net], int]] = {
    **dict.fromkeys(("LOGISTIC", "TANH"), curve),
    **dict.fromkeys(("RELU", "RELU6", "LEAKY_RELU", "HARD_SWISH"), ramp),
    **dict.fromkeys(("SOFTMAX", "SOFTMAX to int16"), softmax),
    **dict.fromkeys(("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN"), reduced),
    **dict.fromkeys(("AVERAGE_POOL_2D", "MAX_POOL_2D"), pooled),
    **dict.fromkeys(("MAXIMUM", "MINIMUM", "PACK"), paired),
    **dict.fromkeys(("TRANSPOSE", "SLICE", "PADV2", "SPACE_TO_DEPTH", "DEPTH_TO_SPACE"), moved),
}

RECORDED = {
    "LOGISTIC": "b6bd0bfa8554f8b5",
    "TANH": "42eba7fb3f5594a7",
    "RELU": "aa2d9b321c8087cf",
    "RELU6": "7631f79f9d3716b7",
    "LEAKY_RELU": "950a0ddd5d842eb0",
    "HARD_SWISH": "8849adb7523ea76e",
    "SOFTMAX": "d32f8075daac5e31",
    "SOFTMAX to int16": "b0ff958fb4fda4ad",
    "MEAN": "e80a3d9ca928b5fd",
    "SUM": "7bee0db5f9e7c375",
    "REDUCE_MAX": "7fa2061e60c10b28",
    "REDUCE_MIN": "807b2eb020977890",
    "AVERAGE_POOL_2D": "750b1c88952dfb86",
    "MAX_POOL_2D": "ace8e04098673ae8",
    "MAXIMUM": "353c2169b49374b7",
    "MINIMUM": "d301084f4a60ef20",
    "PACK": "670aba50758fba35",
    "TRANSPOSE": "1ca9bed5f386b133",
    "SLICE": "e2fd1feb343ac508",
    "PADV2": "6087a9ff48934baa",
    "SPACE_TO_DEPTH": "e67dc1007ddb78d1",
    "DEPTH_TO_SPACE": "0a512b91f3b37926",
}
RECORDED_NETWORKS = {
    "AD": "6b8d8bdd8c6879ef",
    "IC": "3aa416325e79291b",
    "KWS": "f3c14ca9bdd19519",
    "SWW": "d02ba1937addd3a6",
    "VWW": "40d145964edbaa18",
}


def codes(net: Net, count: int) -> list[Array]:
    """Samples of every input [count, ...]; the least and the greatest code everywhere first."""
    rng = np.random.default_rng(count)
    found = []
    for number in net.inputs:
        shape = net.tensors[number].shape
        drawn = rng.integers(-128, 128, (count, *shape)).astype(np.int8)
        drawn[0], drawn[1] = -128, 127
        found.append(drawn)
    return found


def imported(net: Net, *outputs: int, runtime: str = NEWEST) -> Graph:
    return import_same(net.file(*outputs), "f.tflite", RUNTIMES[runtime])


def digest(arrays: list[Array]) -> str:
    return hashlib.sha256(b"".join(a.tobytes() for a in arrays)).hexdigest()[:16]


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("op", MODELS)
def test_an_operator(op, runtime):
    found = []
    for seed in range(SEEDS):
        net = Net(seed)
        graph = imported(net, MODELS[op](op, net), runtime=runtime)
        samples = codes(net, 4)
        found += [run(graph, [x[i] for x in samples])[0] for i in range(4)]
    assert digest(found) == RECORDED[op]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("AD", "SWW") else pytest.mark.slow)
        for name in NETWORKS
    ],
)
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_every_tensor_of_a_network(name, runtime):
    net, _ = NETWORKS[name]()
    written = [y for operator in net.operators for y in operator.outputs]
    graph = imported(net, *written, runtime=runtime)
    (samples,) = codes(net, 3)
    given = [samples.reshape(3, *samples.shape[2:])]
    found = backend_named("torch").run(Model("f.tflite", graph), given)
    assert digest(found) == RECORDED_NETWORKS[name]


@pytest.mark.parametrize("op", ["SOFTMAX", "SOFTMAX to int16"])
@pytest.mark.parametrize("backend", ["torch", "c", "onnxruntime-integer"])
def test_a_softmax_is_the_same_everywhere(op, backend):
    found = backend_named(backend)
    if found.unavailable():
        pytest.skip(str(found.unavailable()))
    net = Net(4)
    graph = imported(net, MODELS[op](op, net))
    samples = codes(net, 4)
    (node,) = graph.nodes
    given = samples[0].reshape(-1, samples[0].shape[-1])
    wanted = specified([given, graph.constants[node.inputs[1]]], node.attributes)
    np.testing.assert_array_equal(found.run(Model("f.tflite", graph), [given])[0], wanted)
    computed = [run(graph, [x])[0] for x in samples[0]]
    np.testing.assert_array_equal(np.concatenate(computed), wanted)


def test_borders_of_float_numbers():
    """QUANTIZE of a float input and DEQUANTIZE to a float output are left to the user."""
    net = Net(1)
    net.inputs.append(net.tensor((1, 4), "float32"))
    x = net.add("QUANTIZE", [net.inputs[0]], net.activation((1, 4)))
    y = net.dense(x, 3)
    out = net.add("DEQUANTIZE", [y], net.tensor((1, 3), "float32"))
    graph = imported(net, out)
    assert (graph.inputs, graph.outputs) == (("t1",), (net.tensors[y].name,))


def refused(net: Net, *outputs: int) -> str:
    with pytest.raises(UnsupportedError) as caught:
        imported(net, *outputs)
    return str(caught.value)


def test_forms_that_the_kernels_ignore_or_leave():
    net = Net(1)
    x = net.input(1, 4)
    other = net.activation((1, 4))
    assert "expected a result with the scale 1 / 256 and zero point -128" in refused(
        net, net.add("LOGISTIC", [x], other)
    )
    assert "expected a result of int8 or int16 with the scale 2**-8" in refused(
        net, net.add("SOFTMAX", [x], net.activation((1, 4)), beta=1.0)
    )
    net = Net(1)
    wide = net.softmax(net.input(1, 512))
    assert "expected rows of 1 to 511 codes" in refused(net, wide)


@pytest.mark.parametrize("alpha", [-0.5, float("inf"), float("nan")])
def test_slopes_that_are_none(alpha):
    net = Net(1)
    y = net.add("LEAKY_RELU", [net.input(1, 4)], net.activation((1, 4)), alpha=alpha)
    assert "expected a slope from 0 to 1048576.0, found" in refused(net, y)


def test_windows_whose_numbers_have_no_small_multiple():
    net = Net(1)
    y = net.pool("AVERAGE_POOL_2D", net.input(1, 40, 40, 1), (25, 25), SAME, stride=1)
    assert "expected numbers of codes in windows whose multiple is below" in refused(net, y)


@pytest.mark.parametrize("tanh", [False, True])
@pytest.mark.parametrize(("m", "left"), [(0, 0), (0, 1), (3, 4), (32767, 14), (17001, 9)])
def test_straight_lines_between_places(m, left, tanh):
    """As they are defined."""
    wanted = [sigmoid_steps(code, m, left, tanh) for code in range(-32768, 32768)]
    np.testing.assert_array_equal(entries_of(m, left, tanh), wanted)
