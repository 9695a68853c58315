"""What has no integer form becomes operators that have one, and computes the same."""

from __future__ import annotations

import numpy as np
import pytest

from samebits.ir import GraphBuilder
from samebits.ir.canonical import canonicalize, without_guards
from samebits.ir.interpreter import run
from samebits.ir.lowering.check import check_lowerable
from samebits.ir.lowering.lower import lower_graph
from samebits.pytorch.executor import TorchExecutor
from samebits.quantization import quantize_graph
from samebits.verification.inputs import dequantize, quantize_samples

X = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)


def alone(op, attributes, *shapes, constants=()):
    """A graph of one operator of float inputs, then of constants."""
    g = GraphBuilder("one")
    names = [g.input(f"x{i}", "float32", shape) for i, shape in enumerate(shapes)]
    names += [g.constant("c", np.asarray(array)) for array in constants]
    return g.build([g.add(op, names, attributes)])


def assert_same(graph, *arrays, ops=None):
    """The canonical graph has integer forms alone, and the same numbers but for float rounding."""
    found = canonicalize(graph)
    check_lowerable(found)
    assert found.values[found.outputs[0]].shape == graph.values[graph.outputs[0]].shape
    expected, given = run(graph, arrays)[0], run(found, arrays)[0]
    np.testing.assert_allclose(given, expected, rtol=2e-6, atol=1e-6)
    if ops is not None:
        assert [node.op for node in found.nodes] == ops
    return found


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axes", [(1,), (-1, 0)])
@pytest.mark.parametrize(
    ("op", "ops"),
    [
        ("ReduceL1", ["Abs", "ReduceSum"]),
        ("ReduceL2", ["Mul", "ReduceSum", "Sqrt"]),
        ("ReduceSumSquare", ["Mul", "ReduceSum"]),
        ("ReduceLogSumExp", ["ReduceMax", "Sub", "Exp", "ReduceSum", "Log", "Add", "Reshape"]),
    ],
)
def test_reductions(op, ops, axes, keepdims):
    assert_same(alone(op, {"axes": axes, "keepdims": keepdims}, X.shape), X, ops=ops)


def test_the_logarithm_of_a_sum():
    graph = alone("ReduceLogSum", {"axes": (2,), "keepdims": 0}, X.shape)
    assert_same(graph, np.abs(X) + 1, ops=["ReduceSum", "Log"])


@pytest.mark.parametrize("op", ["ReduceL2", "ReduceLogSumExp"])
def test_reductions_of_integers_stay(op):
    """Their results are cut to integers, once."""
    g = GraphBuilder("integers")
    graph = g.build([g.add(op, [g.input("x", "int32", (2, 3))], {"axes": (1,), "keepdims": 0})])
    assert canonicalize(graph) is graph


def test_powers_of_large_numbers_do_not_overflow():
    graph = alone("ReduceLogSumExp", {"axes": (2,), "keepdims": 0}, X.shape)
    (found,) = run(canonicalize(graph), [X + 200])
    np.testing.assert_allclose(found, run(graph, [X])[0] + 200, rtol=1e-6)


EQUATIONS = [
    ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)),
    ("bij,bkj->bki", (2, 3, 4), (2, 5, 4)),
    ("bij,bjk", (2, 3, 4), (2, 4, 5)),
    ("...ij,...kj->...ik", (2, 3, 4), (2, 5, 4)),
    ("b i, b j -> b i j", (2, 3), (2, 4)),
    ("bi,bi->b", (2, 3), (2, 3)),
    ("bij,bij->bij", (2, 3, 4), (2, 3, 4)),
    ("ij,j->i", (3, 4), (4,)),
    ("bhqd,bhkd->bqkh", (2, 2, 3, 4), (2, 2, 5, 4)),
    ("bij,bk->bk", (2, 3, 4), (2, 5)),
    ("bij->bji", (2, 3, 4)),
    ("bij->j", (2, 3, 4)),
    ("zab", (2, 3, 4)),
    ("abz", (2, 3, 4)),
]


@pytest.mark.parametrize(("equation", "shapes"), [(e, s) for e, *s in EQUATIONS])
def test_sums_of_products(equation, shapes):
    rng = np.random.default_rng(1)
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    assert_same(alone("Einsum", {"equation": equation}, *shapes), *arrays)


def test_a_constant_matrix_stays_one():
    """The weights of a layer are moved once, here; the product is one with a matrix [K, R]."""
    weights = np.random.default_rng(2).normal(size=(5, 4)).astype(np.float32)
    graph = alone("Einsum", {"equation": "bij,kj->bik"}, X.shape, constants=[weights])
    found = assert_same(graph, X)
    (product,) = [node for node in found.nodes if node.op == "MatMul"]
    assert (found.constants[product.inputs[1]] == weights.T).all()


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [("bii->b", [(2, 3, 3)]), ("bi,bi,bi->b", [(2, 3)] * 3), ("bi,bi->b", [(1, 3), (2, 3)])],
)
def test_what_is_no_matrix_product_stays(equation, shapes):
    graph = alone("Einsum", {"equation": equation}, *shapes)
    assert canonicalize(graph) is graph


def test_a_quotient():
    rng = np.random.default_rng(3)
    a, b = (rng.uniform(1, 2, (2, 3)).astype(np.float32) for _ in range(2))
    assert_same(alone("Div", {}, a.shape, b.shape), a, b, ops=["Reciprocal", "Mul"])
    by_constant = alone("Div", {}, a.shape, constants=[b])
    assert canonicalize(by_constant) is by_constant


@pytest.mark.parametrize("least", ["", "Clip", "Max", "Add", "Expand"])
@pytest.mark.parametrize("axes", [(2,), (1, 2)])
def test_vectors_of_unit_length(axes, least):
    g = GraphBuilder("unit")
    x = g.input("x", "float32", X.shape)
    norm = g.add("ReduceL2", [x], {"axes": axes, "keepdims": 1})
    if least == "Clip":
        norm = g.add("Clip", [norm], {"min": 1e-12, "max": None})
    elif least in ("Max", "Add"):
        norm = g.add(least, [norm, g.constant("tiny", np.float32(1e-12))])
    elif least:
        norm = g.add("Expand", [norm], {"shape": X.shape})
    assert_same(g.build([g.add("Div", [x, norm])]), X, ops=["RMSNormalization"])


@pytest.mark.parametrize("case", ["axis", "Clip", "Max", "other"])
def test_other_quotients_by_norms_stay_quotients(case):
    """Of another axis, of at least 0.5, of another tensor."""
    g = GraphBuilder("unit")
    x = g.input("x", "float32", X.shape)
    source = g.add("Neg", [x]) if case == "other" else x
    norm = g.add("ReduceL2", [source], {"axes": (1 if case == "axis" else 2,), "keepdims": 1})
    if case == "Clip":
        norm = g.add("Clip", [norm], {"min": 0.5, "max": None})
    elif case == "Max":
        norm = g.add("Max", [norm, g.constant("least", np.float32(0.5))])
    found = assert_same(g.build([g.add("Div", [x, norm])]), X)
    assert "RMSNormalization" not in {node.op for node in found.nodes}


@pytest.mark.parametrize("negative", [False, True])
def test_places_in_several_axes(negative):
    places = np.array([[[0, 2], [1, 1]], [[1, 0], [0, 0]]], np.int64)
    if negative:
        places -= np.array([2, 3])
    graph = alone("GatherND", {"batch_dims": 0}, X.shape, constants=[places])
    assert_same(graph, X, ops=["Reshape", "Gather"])


@pytest.mark.parametrize(
    ("sizes", "ops"),
    [((4, 0), ["Identity", "Neg", "Identity"]), ((1, 0, 3), ["Split", "Neg", "Concat"])],
)
def test_parts_without_elements(sizes, ops):
    g = GraphBuilder("parts")
    cut = {"axis": 2, "sizes": sizes}
    parts = g.add_all("Split", [g.input("x", "float32", X.shape)], cut, outputs="abc"[: len(sizes)])
    parts = [g.add("Neg", parts[:1]), *parts[1:]]
    assert_same(g.build([g.add("Concat", parts, {"axis": 2})]), X, ops=ops)


def guarded(op, other="share"):
    """Where(IsNaN(y), 0, z), y the result of an operator, z the same or the input."""
    g = GraphBuilder("guarded")
    x = g.input("x", "float32", (2, 4))
    y = g.add(op, [x], {"axis": 1} if op == "Softmax" else {})
    zero = g.constant("zero", np.float32(0))
    chosen = y if other == "share" else x
    return g.build([g.add("Where", [g.add("IsNaN", [y]), zero, chosen])])


def test_shares_are_never_nan():
    graph = guarded("Softmax")
    found = without_guards(graph)
    assert [node.op for node in found.nodes] == ["Softmax", "Identity"]
    x = X[0, :2]
    assert (run(found, [x])[0] == run(graph, [x])[0]).all()


@pytest.mark.parametrize("graph", [guarded("Sqrt"), guarded("Softmax", "input")])
def test_other_choices_stay(graph):
    assert without_guards(graph) is graph


@pytest.mark.parametrize(("limit", "kept"), [(20.0, False), (5.0, True)])
def test_a_softplus_with_its_line(limit, kept):
    g = GraphBuilder("softplus")
    x = g.input("x", "float32", (8,))
    above = g.add("Greater", [x, g.constant("limit", np.float32(limit))])
    graph = g.build([g.add("Where", [above, x, g.add("Softplus", [x])])])
    assert (canonicalize(graph) is graph) == kept
    if not kept:
        assert_same(graph, np.linspace(-30, 40, 8).astype(np.float32))


@pytest.mark.parametrize(
    ("op", "attributes", "shapes"),
    [
        ("ReduceL2", {"axes": (2,), "keepdims": 0}, [(1, 3, 4)]),
        ("ReduceLogSumExp", {"axes": (1,), "keepdims": 1}, [(1, 3, 4)]),
        ("Einsum", {"equation": "bij,bkj->bik"}, [(1, 3, 4), (1, 5, 4)]),
        ("Div", {}, [(1, 3), (1, 3)]),
    ],
)
def test_quantized_they_are_near(op, attributes, shapes):
    """Within 4 % of the largest number, by the integers, of inputs from 1 to 2."""
    rng = np.random.default_rng(4)
    graph = alone(op, attributes, *shapes)
    samples = [
        {
            name: rng.uniform(1, 2, shape).astype(np.float32)
            for name, shape in zip(graph.inputs, shapes, strict=True)
        }
        for _ in range(16)
    ]
    quantized, _ = quantize_graph(canonicalize(graph), samples)
    integer = lower_graph(quantized)
    for sample in samples[:4]:
        arrays = list(sample.values())
        types = [integer.values[name] for name in integer.inputs]
        codes = [quantize_samples(a, v) for a, v in zip(arrays, types, strict=True)]
        found = run(integer, codes)[0]
        assert (found == TorchExecutor(integer).run(codes)[0]).all()
        real = dequantize(found, integer.values[integer.outputs[0]])
        expected = run(graph, arrays)[0]
        assert np.abs(real - expected).max() <= 0.04 * np.abs(expected).max()
