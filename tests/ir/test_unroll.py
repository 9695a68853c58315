"""Recurrent layers as cells in one call: the same numbers as the layers give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from compare import assert_same
from recurrent_nets import GATES, Net
from samebits.errors import UnsupportedError
from samebits.ir import Graph
from samebits.ir.interpreter import run
from samebits.ir.rewrite import simplify
from samebits.ir.unroll import CELLS_MAX, cells_of, unrolled
from samebits.ir.verify import verify

FEATURES, HIDDEN = 3, 5


def network(op: str, steps: int, given: str, **attributes: Any) -> tuple[Graph, list[Any]]:
    """Two layers; all outputs of the second are outputs."""
    net = Net(3, steps, FEATURES)
    first = net.layer(op, net.x, HIDDEN, given, **attributes)[0]
    outputs = net.layer(op, net.sequence(first), HIDDEN, given)
    return net.builder.build(outputs), net.samples(1)[0]


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("given", ["", "B", "Bh"])
@pytest.mark.parametrize("op", GATES)
def test_the_same_numbers(op: str, given: str, steps: int) -> None:
    graph, sample = network(op, steps, given)
    made = unrolled(graph)
    verify(made.graph)
    verify(simplify(made.graph))
    assert not {"LSTM", "GRU", "RNN"} & {node.op for node in made.graph.nodes}
    assert (made.graph.inputs, made.graph.outputs) == (graph.inputs, graph.outputs)
    assert cells_of(graph) == 2 * steps
    for found, expected in zip(run(made.graph, sample), run(graph, sample), strict=True):
        assert found.dtype == expected.dtype
        assert_same(found, expected, expected)


def test_the_nodes_of_each_state() -> None:
    made = unrolled(network("LSTM", 3, "B")[0])
    outputs = {node.name: node for node in made.graph.nodes}
    assert [letter for letter, _ in made.carried] == ["h", "c", "h", "c"]
    for letter, names in made.carried:
        assert [outputs[name].op for name in names] == [{"h": "Mul", "c": "Add"}[letter]] * 3
        assert [name.split(".")[1] for name in names] == ["t0", "t1", "t2"]


@pytest.mark.parametrize("given", ["", "Bh"])
@pytest.mark.parametrize("direction", ["reverse", "bidirectional"])
@pytest.mark.parametrize("op", GATES)
def test_the_same_numbers_backwards(op: str, direction: str, given: str) -> None:
    sides, steps = 1 + (direction == "bidirectional"), 3
    net = Net(5, steps, FEATURES)
    rows = GATES[op] * HIDDEN
    inputs = [net.x, net.constant(net.numbers(sides, rows, FEATURES))]
    inputs.append(net.constant(net.numbers(sides, rows, HIDDEN)))
    if given:
        inputs += [net.constant(net.numbers(sides, 2 * rows)), ""]
        inputs.append(net.constant(net.numbers(sides, 1, HIDDEN)))
    attributes = {"hidden_size": HIDDEN, "direction": direction}
    graph = net.builder.build(net.builder.add_all(op, inputs, attributes, "both"))
    made, sample = unrolled(graph), net.samples(1)[0]
    assert cells_of(graph) == sides * steps
    for found, expected in zip(run(made.graph, sample), run(graph, sample), strict=True):
        assert_same(found, expected, expected)
    names = {node.name: node for node in made.graph.nodes}
    for same in made.repeated:
        assert len(same) == steps
        assert len({(names[name].op, *names[name].attributes.items()) for name in same}) == 1


def test_what_cannot_be_unrolled() -> None:
    long, _ = network("GRU", CELLS_MAX // 2 + 1, "B")
    with pytest.raises(
        UnsupportedError,
        match=f"expected at most {CELLS_MAX} steps of recurrent layers in one call, found "
        f"{CELLS_MAX + 2}; export the network for fewer time steps a call",
    ):
        unrolled(long)


def test_simplified_cells_have_constant_parameters() -> None:
    """Then the sum of both biases is a constant, which is rounded to binary32 once: the numbers are
    the same up to that."""
    graph, sample = network("LSTM", 2, "Bhc")
    made = simplify(unrolled(graph).graph)
    for node in made.nodes:
        if node.op == "Gemm":
            assert set(node.inputs[1:]) <= set(made.constants)
    for found, expected in zip(run(made, sample), run(graph, sample), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)
