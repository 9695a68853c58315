"""Sums of signals are rounded as images, before they lose the row that images have."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from compare import assert_same
from samebits.ir import Graph, GraphBuilder, interpreter
from samebits.ir.integer.layers import layers
from samebits.ir.lowering.lower import lower_graph
from samebits.ir.lowering.sink import sink_requantize
from samebits.ir.rewrite import simplify
from samebits.ir.verify import verify
from samebits.pytorch import import_module
from samebits.quantization import quantize_graph

CODES: dict[str, Any] = {"zero": 3, "low": -100, "high": 127, "dtype": "int8"}


def signal(ratios: int = 4, shape: tuple[int, ...] = (2, 6, 4), again: bool = False) -> Graph:
    """A convolution of one row whose sums become a signal before they are rounded; again: the sums
    are an output too."""
    rng = np.random.default_rng(0)
    g = GraphBuilder("signal")
    x = g.input("x", "int8", (2, 1, 8, 3))
    w = g.constant("w", rng.integers(-127, 128, (4, 1, 3, 3)).astype(np.int8))
    b = g.constant("b", rng.integers(-999, 999, 4).astype(np.int32))
    acc = g.add("conv", [x, w, b])
    moved = g.add("reshape", [acc], {"shape": shape})
    same = g.add("add", [moved], {"factors": (1,), "offset": 0})
    steps = tuple(Fraction(1, 40 + channel) for channel in range(ratios))
    y = g.add("requantize", [same], {**CODES, "ratios": steps})
    return g.build([y, acc] if again else [y])


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def test_rounding_goes_before_the_reshape() -> None:
    graph = signal()
    found = sink_requantize(graph)
    verify(found)
    assert ops(found) == ["conv", "requantize", "reshape"]
    assert layers(found)[0] == found.nodes[1].output  # the sums are in no memory
    codes = np.random.default_rng(1).integers(-128, 128, (2, 1, 8, 3)).astype(np.int8)
    (a,), (b,) = (interpreter.run(g, [codes]) for g in (found, graph))
    assert_same(a, b, range(a.size))


def test_one_ratio_passes_every_reshape() -> None:
    assert ops(sink_requantize(signal(1, (48,)))) == ["conv", "requantize", "reshape"]


@pytest.mark.parametrize(
    "graph",
    [signal(1, (2, 6, 4), again=True), signal(6, (2, 4, 6))],
    ids=["sums that are read elsewhere", "channels that change"],
)
def test_others_stay(graph: Graph) -> None:
    assert sink_requantize(graph) is graph


def test_conv1d_is_conv2d_of_one_row() -> None:
    """The same layers and the same codes, but for the shapes of signals."""
    torch.manual_seed(0)
    one = nn.Sequential(
        nn.Conv1d(3, 8, 5, padding=2), nn.BatchNorm1d(8), nn.ReLU(), nn.Conv1d(8, 4, 3)
    ).eval()
    two = nn.Sequential(
        nn.Conv2d(3, 8, (1, 5), padding=(0, 2)), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 4, (1, 3)),
    ).eval()  # fmt: skip
    rows = {name: v.unsqueeze(2) if v.ndim == 3 else v for name, v in one.state_dict().items()}
    two.load_state_dict(rows)
    x = torch.randn(8, 3, 32)
    made = []
    for module, inputs in ((one, x), (two, x.unsqueeze(2))):
        graph = simplify(import_module(module, (inputs[:1],)))
        samples = [{graph.inputs[0]: sample[None].numpy()} for sample in inputs]
        made.append(lower_graph(quantize_graph(graph, samples)[0]))
    moves = ("reshape", "transpose")
    computed = [[op for op in ops(graph) if op not in moves] for graph in made]
    assert computed[0] == computed[1] == ["conv", "requantize"] * 2
    codes = np.random.default_rng(2).integers(-128, 128, (1, 3, 32)).astype(np.int8)
    (a,), (b,) = (
        interpreter.run(graph, [codes.reshape(graph.values[graph.inputs[0]].shape)])
        for graph in made
    )
    assert_same(a.reshape(-1), b.reshape(-1), range(a.size))
