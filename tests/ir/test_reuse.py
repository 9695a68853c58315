"""Values that graphs have in common are found, and nothing else is; results do not change."""

from __future__ import annotations

import numpy as np
import pytest

from random_graphs import random_graph
from samebits.ir import Graph, GraphBuilder, many
from samebits.ir import reuse as reuse_module
from samebits.ir.many import ELEMENTS, block_size, run_many
from samebits.ir.reuse import Reuse, common_values

W = np.arange(12, dtype=np.float32).reshape(4, 3)
W.flags.writeable = False


def graph(last="Relu", weights=W, name="x", dtype_of_first="Relu", axis=None) -> Graph:
    """x -> MatMul -> first -> last."""
    g = GraphBuilder("net")
    x = g.input(name, "float32", (2, 4))
    made = g.add("MatMul", [x, g.constant("w", weights)], outputs=["m"])
    first = g.add(dtype_of_first, [made], outputs=["a"])
    attributes = {} if axis is None else {"axis": axis}
    return g.build([g.add(last, [first], attributes, outputs=["b"])])


def test_values_are_common_up_to_the_first_node_that_differs():
    one = graph()
    assert common_values(one, one) == {n: n for n in ("x", "w", "m", "a", "b")}
    assert set(common_values(graph("Tanh"), one)) == {"x", "w", "m", "a"}
    assert set(common_values(graph("Relu", dtype_of_first="Tanh"), one)) == {"x", "w", "m"}


def test_attributes_inputs_and_constants_count():
    one = graph("Softmax", axis=1)
    assert set(common_values(graph("Softmax", axis=0), one)) == {"x", "w", "m", "a"}
    assert "m" not in common_values(graph("Softmax", name="other", axis=1), one)
    equal = np.array(W)  # another array: it may be changed weights
    assert set(common_values(graph("Softmax", weights=equal, axis=1), one)) == {"x"}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("room", [0, 60, reuse_module.ROOM])
def test_results_do_not_change(seed, room, monkeypatch):
    monkeypatch.setattr(reuse_module, "ROOM", room)
    real, rng = random_graph(seed, 6), np.random.default_rng(seed)
    shapes = [real.values[name].shape for name in real.inputs]
    samples = [[rng.normal(size=s).astype(np.float32) for s in shapes] for _ in range(5)]
    monkeypatch.setattr("samebits.ir.many.ELEMENTS", ELEMENTS // block_size(real) * 2)
    other = Graph("other", real.inputs, real.outputs, real.nodes, dict(real.constants), real.values)
    reuse = Reuse(real)
    for each in (real, other, real):
        found, wanted = run_many(each, samples, reuse), run_many(each, samples)
        for array, expected in zip(found, wanted, strict=True):
            assert array.tobytes() == expected.tobytes()


def test_common_nodes_are_computed_once(monkeypatch):
    computed = []
    plain = many.evaluate_many

    def counted(node, *rest):
        computed.append(node.output)
        return plain(node, *rest)

    monkeypatch.setattr(many, "evaluate_many", counted)
    samples = [[np.ones((2, 4), np.float32)]] * 3
    one, reuse = graph(), Reuse(graph())
    run_many(reuse.graph, samples, reuse)
    assert computed == ["m", "a", "b"]
    run_many(graph("Tanh"), samples, reuse)
    assert computed[3:] == ["b"]
    run_many(one, samples, reuse)
    assert computed[4:] == []
