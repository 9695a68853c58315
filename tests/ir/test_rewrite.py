from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from compare import assert_same
from samebits.ir import Graph, GraphBuilder
from samebits.ir.interpreter import run
from samebits.ir.rewrite import (
    drop_identity,
    fold_batch_norm,
    fold_constants,
    merge_clips,
    remove_dead,
    simplify,
)

CONV = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}


def eighths(shape: tuple[int, ...], seed: int = 0) -> Any:
    numbers = np.random.default_rng(seed).integers(-40, 41, shape)
    return (numbers / 8).astype(np.float32)


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def same(before: Graph, after: Graph, exact: bool = True) -> None:
    """Equal results and interface; the results are Fractions unless an operator is irrational."""
    assert (after.inputs, after.outputs) == (before.inputs, before.outputs)
    assert set(after.values) == {
        *after.inputs,
        *after.constants,
        *(name for node in after.nodes for name in node.outputs),
    }
    inputs = [eighths(before.values[name].shape, seed) for seed, name in enumerate(before.inputs)]
    expected, found = run(before, inputs, exact), run(after, inputs, exact)
    for name, a, e in zip(before.outputs, found, expected, strict=True):
        assert before.values[name] == after.values[name]
        assert_same(a, e, range(e.size))


def test_dead_nodes_constants_and_values_go() -> None:
    build = GraphBuilder("g")
    x = build.input("x", "float32", (2, 3))
    unused = build.input("unused", "float32", (2,))
    build.add("Add", [build.add("Relu", [x]), build.constant("c", eighths((3,)))])
    y = build.add("Neg", [x])
    graph = build.build([y])
    after = remove_dead(graph)
    assert ops(after) == ["Neg"]
    assert not after.constants
    assert after.inputs == ("x", unused)
    same(graph, after)
    assert remove_dead(after) is after


def test_a_node_with_one_used_output_stays() -> None:
    build = GraphBuilder("g")
    x = build.input("x", "float32", (4, 2))
    _, second = build.add_all("Split", [x], {"axis": 0, "sizes": (1, 3)})
    graph = build.build([second])
    assert remove_dead(graph) is graph


def test_constants_fold_through_a_chain_and_dequantize_stays() -> None:
    build = GraphBuilder("g")
    x = build.input("x", "float32", (2, 3))
    c = build.constant("c", eighths((3, 2)))
    folded = build.add("Transpose", [build.add("Neg", [c])], {"perm": (1, 0)})
    codes = build.constant("codes", np.arange(3, dtype=np.int8))
    scale = build.constant("scale", np.float32(0.5))
    kept = build.add("DequantizeLinear", [codes, scale])
    y = build.add("Add", [build.add("Mul", [x, folded]), kept])
    graph = build.build([y])
    after = fold_constants(graph)
    assert ops(after) == ["DequantizeLinear", "Mul", "Add"]
    assert after.constants[folded].dtype == np.float32
    same(graph, after)
    assert fold_constants(after) is after


def test_a_folded_graph_output_keeps_its_name() -> None:
    build = GraphBuilder("g")
    y = build.add("Abs", [build.constant("c", eighths((3,)))], outputs=["y"])
    graph = build.build([y])
    after = fold_constants(graph)
    assert not after.nodes
    same(graph, after)


@pytest.mark.parametrize(
    ("op", "constants", "attributes"),
    [
        ("Expand", [np.zeros(1, np.float32)], {"shape": (2**21,)}),
        ("Gather", [np.zeros(3, np.float32), np.array([3])], {}),
        ("Log", [np.array([-1], np.float32)], {}),
        ("Mul", [np.array([1e30], np.float32), np.array([1e31], np.float32)], {}),
    ],
)
def test_what_is_not_folded(op: str, constants: list[Any], attributes: dict[str, Any]) -> None:
    build = GraphBuilder("g")
    names = [build.constant(f"c{i}", array) for i, array in enumerate(constants)]
    graph = build.build([build.add(op, names, attributes)])
    assert fold_constants(graph) is graph


def test_infinities_fold() -> None:
    build = GraphBuilder("g")
    condition = build.constant("m", np.array([True, False]))
    zero, low = build.constant("z", np.float32(0)), build.constant("i", np.float32(-math.inf))
    graph = build.build([build.add("Where", [condition, zero, low])])
    after = fold_constants(graph)
    assert after.constants[after.outputs[0]].tolist() == [0.0, -math.inf]


def normalised(build: GraphBuilder, x: str, channels: int) -> str:
    # var + epsilon are squares of powers of two, so that every folded number is exact.
    parameters = {
        "scale": eighths((channels,), 5),
        "b": eighths((channels,), 6),
        "mean": eighths((channels,), 7),
        "var": np.resize(np.array([4, 1, 0.25, 16], np.float32), channels) - np.float32(0.125),
    }
    names = [build.constant(key, array) for key, array in parameters.items()]
    return build.add("BatchNormalization", [x, *names], {"epsilon": 0.125}, outputs=["y"])


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_batch_norm_folds_into_convolutions(op: str, group: int, bias: bool) -> None:
    build = GraphBuilder("g")
    x = build.input("x", "float32", (2, 4, 5, 4))
    shape = (6, 4 // group, 3, 3) if op == "Conv" else (4, 6 // group, 3, 3)
    inputs = [x, build.constant("w", eighths(shape, 1))]
    if bias:
        inputs.append(build.constant("bias", eighths((6,), 2)))
    extra = {"output_padding": (0, 0)} if op == "ConvTranspose" else {}
    h = build.add(op, inputs, {**CONV, **extra, "group": group})
    graph = build.build([normalised(build, h, 6)])
    after = fold_batch_norm(graph)
    assert ops(after) == [op]
    assert all(array.dtype == np.float32 for array in after.constants.values())
    same(graph, after, exact=False)  # the numbers are exact in float64
    assert fold_batch_norm(after) is after


@pytest.mark.parametrize("c", [None, (), (6,), (1, 6), (1,), (3, 1), (3, 6)])
@pytest.mark.parametrize("transposed", [0, 1])
def test_batch_norm_folds_into_gemm(c: tuple[int, ...] | None, transposed: int) -> None:
    build = GraphBuilder("g")
    x = build.input("x", "float32", (3, 4))
    inputs = [x, build.constant("w", eighths((6, 4) if transposed else (4, 6), 1))]
    if c is not None:
        inputs.append(build.constant("c", eighths(c, 2)))
    h = build.add("Gemm", inputs, {"alpha": 0.5, "beta": 2.0, "transB": transposed})
    graph = build.build([normalised(build, h, 6)])
    after = fold_batch_norm(graph)
    by_rows = c in ((3, 1), (3, 6))
    assert ops(after) == (["Gemm", "Mul", "Add"] if by_rows else ["Gemm"])
    same(graph, after, exact=False)


def test_batch_norm_alone_or_after_a_shared_convolution_becomes_mul_and_add() -> None:
    build = GraphBuilder("g")
    x = build.input("x", "float32", (2, 4, 5, 4))
    h = build.add("Conv", [x, build.constant("w", eighths((6, 4, 3, 3), 1))], CONV)
    y = normalised(build, h, 6)
    graph = build.build([y, h])
    after = fold_batch_norm(graph)
    assert ops(after) == ["Conv", "Mul", "Add"]
    same(graph, after, exact=False)
    assert not any(node.op == "BatchNormalization" for node in simplify(after).nodes)


def test_two_batch_norms_fold_into_one_convolution() -> None:
    build = GraphBuilder("g")
    x = build.input("x", "float32", (2, 4, 5, 4))
    h = build.add("Conv", [x, build.constant("w", eighths((6, 4, 3, 3), 1))], CONV)
    graph = build.build([normalised(build, normalised(build, h, 6), 6)])
    after = simplify(graph)
    assert ops(after) == ["Conv"]
    same(graph, after, exact=False)


def test_batch_norm_with_parameters_that_vary_or_do_not_fit_stays() -> None:
    build = GraphBuilder("g")
    x = build.input("x", "float32", (2, 4))
    one = build.constant("one", np.ones(4, np.float32))
    negative = build.constant("negative", -np.ones(4, np.float32))
    varying = build.input("varying", "float32", (4,))
    y = build.add("BatchNormalization", [x, one, one, one, negative])
    z = build.add("BatchNormalization", [x, varying, one, one, one])
    graph = build.build([y, z])
    assert fold_batch_norm(graph) is graph


CLIPS: list[tuple[Any, Any]] = [
    (None, None), (0.0, None), (0.0, 6.0), (-1.0, 1.0), (None, 2.0), (3.0, 4.0), (2.0, 1.0),
    (-math.inf, math.inf), (-3.0, -2.0),
]  # fmt: skip


def test_every_pair_of_clips_merges_into_one() -> None:
    for first in CLIPS:
        for second in CLIPS:
            build = GraphBuilder("g")
            x = build.input("x", "float32", (64,))
            for low, high in (first, second):
                x = build.add("Clip", [x], {"min": low, "max": high})
            graph = build.build([x])
            after = simplify(graph)
            assert len(after.nodes) == 1
            assert after.nodes[0].op in ("Clip", "Relu", "Identity")
            same(graph, after, exact=False)
            finite = not {math.inf, -math.inf} & {*first, *second}
            if finite:
                same(graph, after)
            assert simplify(after) is after


def test_relu_chains_and_the_names_of_clip() -> None:
    build = GraphBuilder("g")
    x = build.input("x", "float32", (64,))
    for _ in range(4):
        x = build.add("Relu", [x])
    y = build.add("Clip", [x], {"max": 6.0})
    graph = build.build([y])
    after = simplify(graph)
    assert ops(after) == ["Clip"]
    assert (after.nodes[0].attributes["min"], after.nodes[0].attributes["max"]) == (0.0, 6.0)
    same(graph, after)


@pytest.mark.parametrize(
    ("op", "constants", "left"),
    [
        ("Min", [math.inf], []),
        ("Max", [-math.inf], []),
        ("Min", [np.full(3, math.inf)], []),
        ("Min", [math.inf, 0.5], ["Min"]),
        ("Max", [-math.inf, 0.5, -math.inf], ["Max"]),
        ("Min", [np.full((4, 2, 3), math.inf)], ["Expand"]),
        ("Min", [-math.inf], ["Min"]),
        ("Max", [math.inf], ["Max"]),
        ("Min", [[math.inf, 1, 2]], ["Min"]),
        ("Add", [math.inf], ["Add"]),
    ],
)
def test_ends_of_infinity_that_are_never_chosen_go(op: str, constants: Any, left: Any) -> None:
    build = GraphBuilder("g")
    x = build.add("Neg", [build.input("x", "float32", (2, 3))])
    arrays = [np.asarray(constant, np.float32) for constant in constants]
    names = [build.constant(f"c{i}", array) for i, array in enumerate(arrays)]
    for given in names:
        x = build.add(op, [given, x]) if op == "Add" else x
    graph = build.build([x if op == "Add" else build.add(op, [*names, x])])
    after = simplify(graph)
    assert ops(after) == ["Neg", *left]
    same(graph, after, exact=False)
    kept = [array for array in after.constants.values() if not np.isfinite(array).all()]
    assert len(kept) == (left == [op] and len(constants) == 1)


def test_a_clip_that_others_read_stays() -> None:
    build = GraphBuilder("g")
    x = build.input("x", "float32", (64,))
    a = build.add("Relu", [x])
    b = build.add("Clip", [a], {"max": 1.0})
    graph = build.build([a, b])
    after = merge_clips(graph)
    assert ops(after) == ["Relu", "Clip"]
    assert after.nodes[1].inputs == ("x",)
    same(graph, after)


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("Identity", {}),
        ("Cast", {"to": "float32"}),
        ("Reshape", {"shape": (2, 3)}),
        ("Flatten", {"axis": 1}),
        ("Squeeze", {"axes": ()}),
        ("Expand", {"shape": (1,)}),
        ("Tile", {"repeats": (1, 1)}),
        ("Transpose", {"perm": (0, 1)}),
        ("Slice", {"starts": (0,), "ends": (9,), "steps": (1,), "axes": (1,)}),
        ("Pad", {"pads": (0, 0, 0, 0)}),
        ("Split", {"sizes": (2,), "axis": 0}),
        ("Concat", {"axis": 0}),
        ("Sum", {}),
        ("Mean", {}),
        ("Min", {}),
        ("Max", {}),
    ],
)
def test_nodes_that_do_nothing_go(op: str, attributes: dict[str, Any]) -> None:
    build = GraphBuilder("g")
    x = build.input("x", "float32", (2, 3))
    # Between two nodes, before an output, and after an input.
    a = build.add("Neg", [build.add(op, [build.add("Abs", [x])], attributes)])
    b = build.add(op, [build.add(op, [a], attributes)], attributes, outputs=["b"])
    c = build.add(op, [x], attributes, outputs=["c"])
    graph = build.build([b, c])
    after = drop_identity(graph)
    assert ops(after) == ["Abs", "Neg", op]
    same(graph, after)
    assert drop_identity(after) is after


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("Cast", {"to": "float64"}),
        ("Transpose", {"perm": (1, 0)}),
        ("Slice", {"starts": (-1,), "ends": (-9,), "steps": (-1,), "axes": (1,)}),
        ("Pad", {"pads": (0, 1, 0, -1)}),
        ("Split", {"sizes": (3, 0), "axis": 0}),
    ],
)
def test_nodes_that_do_something_stay(op: str, attributes: dict[str, Any]) -> None:
    build = GraphBuilder("g")
    x = build.input("x", "float32", (3, 3))
    graph = build.build([build.add(op, [build.add("Neg", [x])], attributes)])
    assert drop_identity(graph) is graph


@pytest.mark.parametrize("op", ["DepthToSpace", "SpaceToDepth"])
def test_blocks_of_one_pixel_do_nothing(op: str) -> None:
    build = GraphBuilder("g")
    x = build.input("x", "float32", (1, 4, 2, 2))
    one = build.add(op, [build.add("Abs", [x])], {"blocksize": 1})
    graph = build.build([build.add("Neg", [one])])
    after = drop_identity(graph)
    assert ops(after) == ["Abs", "Neg"]
    array = np.random.default_rng(0).standard_normal((1, 4, 2, 2)).astype(np.float32)
    np.testing.assert_array_equal(run(after, [array])[0], run(graph, [array])[0])


def test_identities_between_two_outputs() -> None:
    build = GraphBuilder("g")
    x = build.input("x", "float32", (2, 3))
    a = build.add("Neg", [x])
    b = build.add("Identity", [a], outputs=["b"])
    c = build.add("Identity", [b], outputs=["c"])
    d = build.add("Abs", [build.add("Identity", [c])], outputs=["d"])
    graph = build.build([c, b, d])
    after = simplify(graph)
    assert sorted(ops(after)) == ["Abs", "Identity", "Neg"]
    same(graph, after)


def test_simplify_reaches_a_fixed_point_on_a_small_network() -> None:
    build = GraphBuilder("g")
    x = build.input("x", "float32", (1, 2, 4, 4))
    w = build.add("Neg", [build.constant("w", eighths((4, 2, 3, 3), 1))])
    h = build.add("Conv", [build.add("Identity", [x]), w], CONV)
    h = build.add("Relu", [build.add("Identity", [normalised(build, h, 4)])])
    h = build.add("Clip", [h], {"min": -1.0, "max": 6.0})
    h = build.add("Reshape", [build.add("Cast", [h], {"to": "float32"})], {"shape": (1, 64)})
    graph = build.build([build.add("Identity", [h], outputs=["out"])])
    after = simplify(graph)
    assert ops(after) == ["Conv", "Clip", "Reshape"]
    same(graph, after, exact=False)
    assert simplify(after) is after
