"""The torch realisation of integer graphs equals the operators' own meaning, code by code."""

import numpy as np
import pytest
import torch

from compare import assert_same
from integer_graphs import extreme_softmax, inputs_of, operator_graphs, random_network
from samebits.errors import InputError, RangeError, UnsupportedError
from samebits.ir import Graph, GraphBuilder
from samebits.ir.ops import known_ops, op_named
from samebits.pytorch.executor import TorchExecutor

GRAPHS = dict(operator_graphs())


def reference(graph: Graph, inputs):
    """Every value, by the operators' meaning."""
    values = dict(graph.constants) | dict(zip(graph.inputs, inputs, strict=True))
    for node in graph.nodes:
        arrays = [values[name] for name in node.inputs]
        outputs = op_named(node.op).meaning(arrays, node.attributes)
        values |= zip(node.outputs, outputs, strict=True)
    return {name: array for name, array in values.items() if name not in graph.constants}


def assert_equal(actual, expected):
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    assert_same(actual, expected, np.arange(expected.size))


def check(graph: Graph, seeds=range(2), device="cpu"):
    executor = TorchExecutor(graph, device)
    for seed in seeds:
        inputs = inputs_of(graph, seed)
        expected = reference(graph, inputs)
        found = executor.trace(inputs)
        assert found.keys() == expected.keys()
        for name in expected:
            assert_equal(found[name], expected[name])
        for name, array in zip(graph.outputs, executor.run(inputs), strict=True):
            assert_equal(array, expected[name])


@pytest.mark.parametrize("name", GRAPHS)
def test_operator(name):
    check(GRAPHS[name])


def test_every_integer_operator_is_among_the_graphs():
    tested = {node.op for graph in GRAPHS.values() for node in graph.nodes}
    assert tested == {op.name for op in known_ops() if op.integer}


@pytest.mark.parametrize("seed", range(40))
def test_random_network(seed):
    check(random_network(seed))


@pytest.mark.device
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_on_a_gpu():
    for graph in (*GRAPHS.values(), *map(random_network, range(40))):
        check(graph, device="cuda")


def test_softmax_beyond_64_bits():
    check(extreme_softmax())


def test_long_sums_are_cut_where_binary64_would_round():
    from samebits.pytorch import executor

    build = GraphBuilder("long")
    x = build.input("x", "uint16", (1, 300))
    w = build.constant("w", np.full((1, 300), -32767, np.int16))
    b = build.constant("b", np.zeros(1, np.int64))
    graph = build.build([build.add("linear", [x, w, b], {"dtype": "int64"})])
    before, executor.EXACT = executor.EXACT, 2**37  # 64 terms a piece instead of 4 million
    try:
        check(graph)
    finally:
        executor.EXACT = before


def test_samples_are_cut_into_the_batch_of_the_graph():
    graph = random_network(3)
    value = graph.values[graph.inputs[0]]
    many = np.concatenate([inputs_of(graph, seed)[0] for seed in range(5)])
    executor = TorchExecutor(graph)
    one_by_one = [executor.run([many[i : i + 1]]) for i in range(5)]
    for index, array in enumerate(executor.run([many])):
        assert_equal(array, np.concatenate([outputs[index] for outputs in one_by_one]))
    with pytest.raises(InputError, match="trace: expected one batch of the graph, found 5"):
        executor.trace([many])
    with pytest.raises(InputError) as caught:
        executor.run([many.astype(np.int32)])
    assert str(caught.value) == (
        f"input 'input' of graph 'network': expected {value.dtype} codes {list(value.shape)} or a "
        f"multiple along axis 0, found int32 {list(many.shape)}"
    )
    with pytest.raises(InputError, match="found float32"):
        executor.run([many.astype(np.float32)])
    with pytest.raises(InputError, match="expected 1 inputs, found 2"):
        executor.run([many, many])
    for wrong in (many[:0], many[:, :-1], many[0]):
        with pytest.raises(InputError, match="or a multiple along axis 0"):
            executor.run([wrong])


@pytest.mark.parametrize("start", [2**63 - 1, 2**63 - 3, -(2**63), 4])
def test_places_near_the_ends_of_64_bits(start):
    build = GraphBuilder("far")
    past, update = build.input("past", "int8", (1, 5)), build.input("update", "int8", (1, 3))
    starts = build.input("starts", "int64", (1,))
    graph = build.build([build.add("scatter", [past, update, starts], {"axis": 1})])
    inputs = [np.zeros((1, 5), np.int8), np.array([[1, 3, 5]], np.int8), np.array([start])]
    expected = reference(graph, inputs)[graph.outputs[0]]
    assert_equal(TorchExecutor(graph).run(inputs)[0], expected)


def test_inputs_of_different_counts_are_refused():
    build = GraphBuilder("pair")
    names = [build.input(name, "int8", (1, 2)) for name in "ab"]
    executor = TorchExecutor(build.build([build.add("maximum", names)]))
    with pytest.raises(InputError, match=r"found \[1, 2\] batches"):
        executor.run([np.zeros((1, 2), np.int8), np.zeros((2, 2), np.int8)])


def test_an_accumulator_that_overflows_is_an_error():
    build = GraphBuilder("narrow")
    x = build.input("x", "int8", (2,))
    graph = build.build([build.add("add", [x], {"factors": (2**25,)}, name="sum")])
    executor = TorchExecutor(graph)
    assert executor.run([np.array([63, -64], np.int8)])[0].tolist() == [63 * 2**25, -(2**31)]
    with pytest.raises(RangeError) as caught:
        executor.run([np.array([64, 0], np.int8)])
    assert str(caught.value) == (
        "node 'sum' (add): expected integers of int32, found 0 to 2147483648"
    )


def test_real_graphs_are_refused():
    build = GraphBuilder("real")
    graph = build.build([build.add("Relu", [build.input("x", "float32", (2,))])])
    with pytest.raises(UnsupportedError, match="graph 'real': expected an integer graph"):
        TorchExecutor(graph)
