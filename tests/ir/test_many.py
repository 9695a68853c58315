"""Many samples at once have the bits that each has alone, in every operator and in whole graphs."""

from __future__ import annotations

import numpy as np
import pytest

from integer_graphs import inputs_of, operator_graphs
from integer_graphs import random_network as random_integers
from random_graphs import random_graph
from real_cases import CASES, VARIANTS, one_node, samples
from samebits.ir import GraphBuilder
from samebits.ir.interpreter import run, trace
from samebits.ir.many import ELEMENTS, RULES, block_size, blocks, run_many, trace_many
from samebits.ir.ops import known_ops

OPERATORS = dict(operator_graphs())


def assert_same(graph, given):
    wanted = [trace(graph, sample) for sample in given]
    found = trace_many(graph, given)
    for name, array in found.items():
        expected = np.stack([values[name] for values in wanted])
        assert (array.dtype, array.shape) == (expected.dtype, expected.shape), name
        assert np.ascontiguousarray(array).tobytes() == expected.tobytes(), name
    outputs = run_many(graph, given)
    alone = zip(*(run(graph, sample) for sample in given), strict=True)
    for array, column in zip(outputs, alone, strict=True):
        assert np.ascontiguousarray(array).tobytes() == np.stack(column).tobytes()


@pytest.mark.parametrize("name", OPERATORS)
def test_every_integer_operator(name):
    graph = OPERATORS[name]
    assert_same(graph, [inputs_of(graph, seed) for seed in range(3)])


@pytest.mark.parametrize(("op", "variant"), VARIANTS)
def test_every_real_operator(op, variant):
    """Samples of different sizes: products keep the unit of each."""
    graph, rng = one_node(op, *CASES[op][variant]), np.random.default_rng(0)

    def varied(array):
        array = np.asarray(array)
        factor = rng.uniform(0.01, 100) if array.dtype.kind == "f" else 1
        return (array * factor).astype(array.dtype) if array.dtype.kind == "f" else array

    assert_same(graph, [[varied(a) for a in samples(graph, seed)] for seed in range(3)])


@pytest.mark.parametrize("seed", range(12))
def test_random_graphs(seed):
    graph = random_integers(seed)
    assert_same(graph, [inputs_of(graph, i) for i in range(4)])
    real, rng = random_graph(seed, 6), np.random.default_rng(seed)
    shapes = [real.values[name].shape for name in real.inputs]
    given = [[rng.normal(size=s).astype(np.float32) for s in shapes] for _ in range(3)]
    assert_same(real, given)


def test_numbers_that_are_not_finite():
    """One sample with an infinity does not change the bits of another."""
    g = GraphBuilder("infinite")
    w = g.constant("w", np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32))
    graph = g.build([g.add("MatMul", [g.input("x", "float32", (2, 4)), w])])
    x = np.random.default_rng(1).normal(size=(3, 2, 4)).astype(np.float32)
    x[1, 0, 0] = np.inf
    assert_same(graph, [[sample] for sample in x])


def test_constant_outputs_are_those_of_every_sample():
    g = GraphBuilder("constant")
    x = g.input("x", "float32", (2,))
    y = g.constant("y", np.ones(2, np.float32))
    graph = g.build([g.add("Add", [x, y]), y])
    assert_same(graph, [[np.zeros(2, np.float32)], [np.ones(2, np.float32)]])


def test_blocks_hold_what_fits():
    g = GraphBuilder("large")
    x = g.input("x", "float32", (1 << 20,))
    graph = g.build([g.add("Neg", [x])])
    assert block_size(graph) == ELEMENTS >> 21
    assert [len(block) for block in blocks(graph, range(5))] == [2, 2, 1]


def test_rules_are_of_operators():
    assert RULES.keys() <= {op.name for op in known_ops()}
