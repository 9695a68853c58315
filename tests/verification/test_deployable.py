"""What `quantize` gives, `verify`, `compile` and onnxruntime take; what they refuse, it refuses."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import samebits as sb
from given_options import called
from random_graphs import random_graph
from samebits.codegen.lowering.lower import lower_to_calls
from samebits.errors import InputError, SamebitsError, UnsupportedError
from samebits.ir import Graph, GraphBuilder, Trait, has
from samebits.ir.ops import known_ops
from samebits.ir.real.cell import LAYERS
from samebits.ir.rewrite import simplify
from samebits.model import Model
from samebits.quantization import ACTIVATIONS, WEIGHTS, quantize_graph
from samebits.recipes.quantization import METHODS

Array = np.ndarray[Any, Any]
SEEDS, SLOW_SEEDS = range(16), range(16, 300)
WINDOW = {"kernel_shape": (2, 2), "strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1)}
# What operators of x [1, 4, 4, 4] need to be built, beside their defaults.
ATTRIBUTES: dict[str, dict[str, Any]] = {
    "ArgMax": {"axis": 1},
    "ArgMin": {"axis": 1},
    "AveragePool": WINDOW,
    "BitCast": {"source": "float32", "to": "int32"},
    "Cast": {"to": "float32"},
    "Concat": {"axis": 1},
    "CumProd": {"axis": 1},
    "CumSum": {"axis": 1},
    "DepthToSpace": {"blocksize": 2},
    "Einsum": {"equation": "abcd->abcd"},
    "Expand": {"shape": (2, 4, 4, 4)},
    "Hardmax": {"axis": 1},
    "Interpolate": {"sizes": (1, 4, 8, 6)},
    "LogSoftmax": {"axis": 1},
    "MaxPool": WINDOW,
    "Pad": {"pads": (0, 0, 1, 1, 0, 0, 1, 1), "value": 0.5},
    "Reshape": {"shape": (4, 16)},
    "Resize": {"sizes": (1, 4, 8, 8)},
    "Slice": {"starts": (1,), "ends": (3,), "axes": (1,), "steps": (1,)},
    "Softmax": {"axis": 1},
    "SpaceToDepth": {"blocksize": 2},
    "Split": {"axis": 1, "sizes": (2, 2)},
    "Squeeze": {"axes": (0,)},
    "Tile": {"repeats": (1, 1, 2, 1)},
    "TopK": {"k": 2},
    "Transpose": {"perm": (0, 2, 3, 1)},
    "Unsqueeze": {"axes": (0,)},
}
# Of other operands than real images: LAYERS, codes, booleans, indices, matrices, weights.
ELSEWHERE = {
    *LAYERS,
    *("And", "Or", "Xor", "Not", "Where", "BitShift", "BitwiseNot", "BitwiseAnd", "BitwiseOr"),
    *("BitwiseXor", "Conv", "ConvTranspose", "ConvInteger", "MatMulInteger", "Gather", "Gemm"),
    *("GatherElements", "GatherND", "ScatterElements", "ScatterND", "QuantizeLinear", "PRelu"),
    *("DequantizeLinear", "DynamicQuantizeLinear", "BatchNormalization", "InstanceNormalization"),
    *("LayerNormalization", "RMSNormalization", "GroupNormalization", "TreeEnsemble"),
    "TensorScatter",
}


def one_node(op: str, count: int) -> Graph:
    """An operator of real tensors [1, 4, 4, 4]."""
    builder = GraphBuilder(op)
    inputs = [builder.input(f"x{i}", "float32", (1, 4, 4, 4)) for i in range(count)]
    attributes = ATTRIBUTES.get(op, {"axes": (2,)} if has(op, Trait.REDUCES) else {})
    return simplify(builder.build(builder.add_all(op, inputs, attributes, "the node")))


def samples(graph: Graph, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    shapes = {name: graph.values[name].shape for name in graph.inputs}
    return {n: rng.uniform(0.1, 0.9, (3, *s)).astype(np.float32) for n, s in shapes.items()}


def taken(net: sb.Network, folder: Any) -> None:
    """The file of a network is the network, to everything that reads it."""
    read = sb.load(net.save(folder / "q.onnx"))
    for model in (net.model, read.model):
        lower_to_calls(model.integer)
    found, expected = (
        [(node.op, node.outputs, node.attributes) for node in model.integer.nodes]
        for model in (read.model, net.model)
    )
    assert found == expected
    assert read.verify("random:2", ["torch", "onnxruntime-integer"])
    # onnxruntime's optimizer breaks dilated average pools and Softmax along other axes.
    assert not net.notes or "AveragePool" in net.notes[0] or softmax_inside(net.model.real)


def softmax_inside(graph: Graph) -> bool:
    """Whether a Softmax is along another axis than the last."""
    nodes = [node for node in graph.nodes if node.op == "Softmax"]
    ranks = [len(graph.values[node.output].shape) for node in nodes]
    return any(n.attributes["axis"] % r != r - 1 for n, r in zip(nodes, ranks, strict=True))


def test_every_operator_is_taken_or_refused(tmp_path):
    pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    names = {op.name: op.inputs for op in known_ops() if not op.integer}
    outcome: dict[str, str] = {}
    for op, (least, _) in names.items():
        if op in ELSEWHERE:
            continue
        graph = one_node(op, max(least, 1))
        try:
            net = sb.quantize(graph, samples(graph))
        except SamebitsError as error:
            outcome[op] = str(error)
        else:
            taken(net, tmp_path)
            outcome[op] = ""
    assert len(outcome) > 80
    refused = {op for op, text in outcome.items() if text}
    assert {"CumSum", "Det", "Hardmax", "ReduceProd"} <= refused
    assert not {"ArgMin", "Div", "Einsum", "ReduceL1", "ReduceL2", "ReduceLogSumExp"} & refused
    assert not {"Interpolate", "LogSoftmax", "TopK"} & refused
    assert not {"Add", "Gelu", "MaxPool", "MatMul", "ReduceMean", "Resize", "Softmax"} & refused
    assert [text for text in outcome.values() if text and "expected" not in text] == []


# --- random networks --------------------------------------------------------------------------


def float_graph(graph: Graph) -> Graph:
    """A random quantized graph without its quantization: weights are the numbers of their codes."""
    builder = GraphBuilder(graph.name)
    names: dict[str, str] = {}
    for name in graph.inputs:
        names[name] = builder.input(name, "float32", graph.values[name].shape)
    for node in graph.nodes:
        source = node.inputs[0]
        if has(node.op, Trait.QUANTIZES) and source not in graph.constants:
            names[node.output] = names[source]
        elif node.op == "DequantizeLinear":
            codes = graph.constants[source].astype(np.float64)
            shape = [1] * codes.ndim
            shape[node.attributes["axis"]] = -1
            scale, zero = (graph.constants[name].astype(np.float64) for name in node.inputs[1:])
            if scale.size > 1:
                scale = scale.reshape(shape)
            zero = zero.reshape(shape if zero.size > 1 else ())
            values = (codes - zero) * scale
            names[node.output] = builder.constant(node.output, values.astype(np.float32))
        else:
            for name in node.inputs:
                if name and name not in names:
                    names[name] = builder.constant(name, graph.constants[name])
            attributes = {
                key: float(np.float32(value)) if isinstance(value, float) else value
                for key, value in node.attributes.items()
            }
            inputs = [names[name] if name else "" for name in node.inputs]
            outputs = builder.add_all(node.op, inputs, attributes, node.name)
            names.update(zip(node.outputs, outputs, strict=True))
    return simplify(builder.build(dict.fromkeys(names[name] for name in graph.outputs)))


def quantized(seed: int) -> sb.Network:
    """A random float network quantized with random settings; tables of 16 bits take seconds."""
    graph = float_graph(random_graph(seed, 1 + seed % 10))
    rng = np.random.default_rng(seed)
    options: dict[str, Any] = {
        "scheme": str(rng.choice([n for n in ACTIVATIONS if "8" in n or seed not in SEEDS])),
        "weights": str(rng.choice(list(WEIGHTS))),
        "calibrate": str(rng.choice(METHODS)),
        "per_tensor": bool(rng.random() < 0.3),
        "output_bits": 8 if rng.random() < 0.3 else None,
    }
    return called(sb.quantize, source=graph, calibration=samples(graph, seed), **options)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_networks_are_taken(seed, tmp_path):
    pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    taken(quantized(seed), tmp_path)


@pytest.mark.slow
def test_more_random_networks_are_taken(tmp_path):
    pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    refused = 0
    for seed in SLOW_SEEDS:
        try:
            net = quantized(seed)
        except UnsupportedError:
            refused += 1
            continue
        taken(net, tmp_path)
    assert refused < len(SLOW_SEEDS) // 10


# --- refusals ---------------------------------------------------------------------------------


class Counted(nn.Module):
    """A linear layer of whole numbers, which are read as real ones."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x.float())


class Begun(nn.Module):
    """An LSTM whose first states are parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 6, batch_first=True)
        self.h, self.c = (nn.Parameter(torch.ones(1, 1, 6)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(x, (self.h, self.c))[0]


class Running(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(x, -1)


SCORED = nn.Sequential(nn.Linear(4, 8), Running())
NO_FORM = (
    "node '1.cumsum' (CumSum): expected an operator with an integer form (docs/spec/graph.md "
    "section 4), found CumSum; multiply by a constant triangular matrix (MatMul)"
)
NO_INPUT = (
    "input 'x': expected real numbers, codes of 8 or 16 bits, or whole numbers that select rows "
    "(Gather) or say the places of a softmax, found int64 that 'linear.linear' (Gemm) reads; "
    "compute outside the network what it counts, and give it that"
)
NO_STATES = (
    "graph 'Begun': expected states that begin with zeros, found other values; make them inputs "
    "of the model, tied to the outputs that follow them (--state INPUT=OUTPUT)"
)


@pytest.mark.parametrize(
    ("module", "calibration", "message"),
    [
        # NaN: these are refused before calibration would refuse it.
        (SCORED, np.full((2, 4), np.nan, np.float32), NO_FORM),
        (Counted(), np.zeros((2, 3), np.int64), NO_INPUT),
        (Begun(), np.random.default_rng(0).random((2, 5, 4)).astype(np.float32), NO_STATES),
    ],
    ids=["CumSum", "counts", "given states"],
)
def test_what_compile_refuses_quantize_refuses(module, calibration, message):
    with pytest.raises(UnsupportedError) as caught:
        sb.quantize(module.eval(), calibration)
    assert str(caught.value) == message


def test_the_sentence_is_that_of_compile(tmp_path):
    graph = sb.load(SCORED.eval(), example=torch.zeros(1, 4)).model.real
    forced = sb.load(quantize_graph(graph, [[np.ones((1, 4), np.float32)]])[0])
    for use in (lambda: forced.compile(tmp_path / "c"), lambda: forced.verify("random:1")):
        with pytest.raises(UnsupportedError) as caught:
            use()
        assert str(caught.value) == NO_FORM
    assert list(tmp_path.iterdir()) == []


def test_a_network_without_real_numbers():
    builder = GraphBuilder("and")
    inputs = [builder.input(name, "int8", (2,)) for name in "ab"]
    graph = builder.build([builder.add("Max", inputs)])
    with pytest.raises(InputError) as caught:
        sb.quantize(graph, {name: np.zeros((1, 2), np.int8) for name in "ab"})
    assert str(caught.value) == (
        "graph 'and': expected a network that computes on float32 numbers, found none to quantize"
    )


def test_without_onnxruntime_a_note_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    net = sb.quantize(nn.Linear(4, 2).eval(), np.ones((2, 4), np.float32))
    note = (
        "not checked: whether onnxruntime loads the network, since it is not installed; pip "
        "install onnxruntime"
    )
    assert net.notes == (note,)
    assert f"\nnote: {note}" in str(net)


def test_what_onnxruntime_does_not_load_is_said():
    """Its QLinearAveragePool has no dilations, and its optimizer makes one of such a pool."""
    pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    builder = GraphBuilder("dilated")
    x = builder.input("x", "float32", (1, 2, 5, 5))
    pool = {**WINDOW, "dilations": (2, 2)}
    graph = builder.build([builder.add("AveragePool", [x], pool)])
    (note,) = sb.quantize(graph, {"x": np.ones((2, 1, 2, 5, 5), np.float32)}).notes
    assert "does not load the network with its default options" in note
    assert isinstance(Model("q", graph).real, Graph)
