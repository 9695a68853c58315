"""What `quantize` writes, as onnxruntime with its default options loads and runs it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

from compare import assert_same
from random_graphs import random_graph
from recurrent_nets import quantize_recurrent, random_network
from samebits.errors import UnsupportedError
from samebits.ir import Graph, GraphBuilder
from samebits.ir.interpreter import run
from samebits.ir.lowering.lower import lower_graph
from samebits.ir.rewrite import simplify
from samebits.onnx import binary32_exact, exact_form, from_model, to_qdq
from samebits.onnx.writer.loadable import loadable_form
from samebits.verification.backends.onnxruntime import not_taken, pairs_saturate

RECURRENT, SLOW_RECURRENT = range(20), range(20, 200)
RANDOM, SLOW_RANDOM = range(120), range(120, 2000)
POOL = {"kernel_shape": (2, 2), "strides": (2, 2), "pads": (0, 0, 0, 0), "dilations": (1, 1)}


def session_of(model: onnx.ModelProto, plain: bool = False) -> Any:
    """With the options that a user gets who sets none. plain: without optimizations."""
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    options = onnxruntime.SessionOptions()
    if plain:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


class Net:
    """int8 codes of the scale 2**-5 that move, beside 16-bit ones, which need opset 21."""

    def __init__(self, shape: tuple[int, ...], dtype: str = "int8") -> None:
        self.builder = GraphBuilder("net")
        self.x = self.builder.input("x", "float32", shape)
        self.y = self.quantized(self.x, -5, dtype)

    def quantized(self, x: str, exponent: int, dtype: str = "int8", zero: int = 3) -> str:
        scale = self.builder.constant("scale", np.float32(2.0**exponent))
        zeros = self.builder.constant("zero", np.array(zero, dtype))
        codes = self.builder.add("QuantizeLinear", [x, scale, zeros])
        return self.builder.add("DequantizeLinear", [codes, scale, zeros])

    def weights(self, *shape: int) -> str:
        codes = np.random.default_rng(1).integers(-128, 128, shape).astype(np.int8)
        inputs = [
            self.builder.constant("w", codes),
            self.builder.constant("scale", np.float32(2.0**-9)),
            self.builder.constant("zero", np.int8(0)),
        ]
        return self.builder.add("DequantizeLinear", inputs)

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        return self.builder.add(op, inputs, attributes)

    def graph(self, *outputs: str) -> Graph:
        wide = self.quantized(self.builder.input("w", "float32", (1, 3)), -9, "int16")
        return self.builder.build([*outputs, wide])


def moved(op: str) -> Graph:
    """A move of int8 codes before a product, and once more before an output."""
    net = Net((1, 4, 4, 4))
    y = {
        "Transpose": lambda: net.add("Transpose", net.y, perm=(0, 2, 3, 1)),
        "Reshape": lambda: net.add("Reshape", net.y, shape=(1, 2, 8, 4)),
        "Slice": lambda: net.add("Slice", net.y, starts=(1,), ends=(3,), axes=(1,), steps=(1,)),
        "Squeeze": lambda: net.add("Squeeze", net.y, axes=(0,)),
        "Unsqueeze": lambda: net.add("Unsqueeze", net.y, axes=(0,)),
        "MaxPool": lambda: net.add("MaxPool", net.y, **POOL),
        "Flatten": lambda: net.add("Flatten", net.y, axis=1),
    }[op]()
    columns = net.builder.values[y].shape[-1]
    product = net.quantized(net.add("MatMul", y, net.weights(columns, 5)), -4)
    backwards = tuple(reversed(range(len(net.builder.values[y].shape))))
    return net.graph(product, net.add("Transpose", y, perm=backwards))


MOVES = ("Transpose", "Reshape", "Slice", "Squeeze", "Unsqueeze", "MaxPool", "Flatten")


def normal(graph: Graph, seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.normal(0, 2, graph.values[n].shape).astype(np.float32) for n in graph.inputs]


def same_in_onnxruntime(graph: Graph, seed: int = 0) -> None:
    """Default onnxruntime gives the interpreter's numbers, provably where pairs do not saturate."""
    inputs = normal(graph, seed)
    assert binary32_exact(exact_form(graph)) == []
    session = session_of(to_qdq(graph))
    if pairs_saturate():
        pytest.skip("onnxruntime's 8-bit kernels saturate pairs of products on this processor")
    found = session.run(None, dict(zip(graph.inputs, inputs, strict=True)))
    for a, b in zip(found, run(graph, inputs), strict=True):
        assert_same(a, b, list(np.ndindex(b.shape)))


@pytest.mark.parametrize("op", MOVES)
def test_moved_codes_load_and_keep_their_bits(op):
    graph = moved(op)
    model = to_qdq(graph, "float")
    onnx.checker.check_model(model, full_check=True)
    session_of(model)
    same_in_onnxruntime(graph)
    written = [node.op_type for node in model.graph.node]
    assert written.count("QuantizeLinear") == 3 + 2  # one behind each move
    assert lowered(from_model(model)) == lowered(graph)


def test_the_form_is_needed(monkeypatch):
    """Where onnxruntime loads the plain form too, on this processor, `loadable_form` may go."""
    pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    graph = moved("Transpose")
    assert not_taken(graph) == ""
    monkeypatch.setattr("samebits.onnx.writer.qdq.loadable_form", lambda graph: graph)
    found = not_taken(graph)
    if not found:
        pytest.skip("this onnxruntime, on this processor, loads the plain form as well")
    assert "output_dtype INT8 does not match y_zero_point type UINT8" in found
    assert found.startswith("onnxruntime ")
    assert found.endswith("there, set graph_optimization_level to ORT_ENABLE_BASIC or less")


def test_other_numbers_are_told(monkeypatch):
    """Of the default options and of fewer, on one sample: roundings are no difference."""
    runtime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    numbers: dict[str, list[float]] = {}

    class Session:
        def __init__(self, model: bytes, options: Any, providers: list[str]) -> None:
            self.numbers = numbers[options.graph_optimization_level.name]

        def get_inputs(self) -> list[Any]:
            return [SimpleNamespace(name="x")]

        def run(self, names: None, inputs: dict[str, Any]) -> list[Any]:
            assert list(inputs) == ["x"]
            return [np.array(self.numbers, np.float32), np.array([3])]

    monkeypatch.setattr(runtime, "InferenceSession", Session)
    graph, sample = moved("Transpose"), [np.zeros(3, np.float32)]
    numbers.update(ORT_ENABLE_ALL=[1.0, -2.0, 3.01], ORT_ENABLE_BASIC=[1.0, -2.0, 3.0])
    assert not_taken(graph, sample) == ""
    numbers["ORT_ENABLE_ALL"] = [1.0, -2.0, 2.0]
    found = not_taken(graph, sample)
    assert "computes other numbers with its default options" in found
    assert found.endswith("there, set graph_optimization_level to ORT_ENABLE_BASIC or less")


def lowered(graph: Graph) -> list[tuple[object, ...]]:
    nodes = lower_graph(simplify(graph)).nodes
    return [(node.op, node.name, node.outputs, node.attributes) for node in nodes]


@pytest.mark.parametrize("form", ["constant", "codes", "codes per channel"])
def test_a_bias_becomes_no_gemm_between_reshapes(form):
    net = Net((2, 3, 4))
    product = net.add("MatMul", net.y, net.weights(4, 6))
    bias = net.builder.constant("bias", np.arange(6, dtype=np.float32) / 64)
    if form != "constant":
        codes = net.builder.constant("codes", np.arange(6, dtype=np.int32))
        scales = np.float32(2.0**-14) if form == "codes" else np.full(6, 2.0**-14, np.float32)
        scale = net.builder.constant("scale", scales)
        bias = net.builder.add("DequantizeLinear", [codes, scale], {"axis": 0})
    graph = net.graph(net.quantized(net.add("Add", bias, product), -4))
    session_of(to_qdq(graph, "float"))
    same_in_onnxruntime(graph)
    assert lowered(from_model(to_qdq(graph, "float"))) == lowered(graph)


def test_what_needs_no_pair_is_left_alone():
    net = Net((1, 4, 4, 4))
    y = net.add("Transpose", net.y, perm=(0, 2, 3, 1))
    graph = net.graph(net.quantized(y, -5))  # another quantization follows already
    assert loadable_form(graph) is graph
    unsigned = Net((1, 4), "uint8")
    graph = unsigned.graph(unsigned.add("Reshape", unsigned.y, shape=(4,)))
    assert loadable_form(graph) is graph
    narrow = Net((1, 4))
    y = narrow.add("Reshape", narrow.y, shape=(4,))
    model = to_qdq(narrow.builder.build([y]), "float")  # opset 18: onnxruntime adds no attribute
    assert [node.op_type for node in model.graph.node] == [
        "QuantizeLinear",
        "DequantizeLinear",
        "Reshape",
    ]


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_a_window_that_would_start_in_the_end_pad(op):
    """Below opset 22 ONNX counts such windows, PyTorch and the graph do not."""
    net = Net((1, 2, 5, 5))
    attributes = {"kernel_shape": (2, 2), "strides": (3, 2), "pads": (0, 0, 1, 0)}
    y = net.add(op, net.y, **attributes, dilations=(1, 1), ceil_mode=1)
    assert net.builder.values[y].shape == (1, 2, 2, 3)
    z = net.quantized(y, -5)
    graph = net.graph(z)
    model = to_qdq(graph, "float")
    (pool,) = (node for node in model.graph.node if node.op_type == op)
    found = {a.name: onnx.helper.get_attribute_value(a) for a in pool.attribute}
    assert found["ceil_mode"] == 0
    assert tuple(found["pads"]) == (0, 0, 1, 1)
    inputs = normal(graph, 0)
    wanted = run(graph, inputs)
    assert not_taken(graph) == ""
    session = session_of(model, plain=True)  # its QLinearAveragePool rounds ties otherwise
    for made in (
        session.run(None, dict(zip(graph.inputs, inputs, strict=True))),
        run(from_model(model), inputs),
    ):
        for a, b in zip(made, wanted, strict=True):
            np.testing.assert_array_equal(a, b)


def recurrent(seed: int) -> Graph:
    """A step graph, from zeros: an ONNX file has no other first values of states."""
    net, graph, settings = random_network(seed)
    made = simplify(quantize_recurrent(graph, net.samples(1), settings)[0])
    return replace(made, states=tuple(replace(state, initial="") for state in made.states))


def load_all(graphs: dict[str, Graph]) -> int:
    """The number of graphs that ONNX can say, all of which load."""
    pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    loaded = 0
    for name, graph in graphs.items():
        try:
            to_qdq(graph, "float")
        except UnsupportedError:
            continue
        assert not_taken(graph) == "", name
        loaded += 1
    return loaded


def test_recurrent_networks_load():
    assert load_all({f"recurrent {seed}": recurrent(seed) for seed in RECURRENT}) == 20


def test_random_graphs_load():
    graphs = {f"random {s}": random_graph(s, 1 + s % 12) for s in RANDOM}
    assert load_all(graphs) >= 100


@pytest.mark.slow
def test_more_networks_load():
    graphs = {f"recurrent {seed}": recurrent(seed) for seed in SLOW_RECURRENT}
    graphs |= {f"random {s}": random_graph(s, 1 + s % 12) for s in SLOW_RANDOM}
    assert load_all(graphs) >= 1500
