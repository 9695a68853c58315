"""Figures of graphs: multiply-adds against operators on ones, hashes that names do not change."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from samebits.ir import Graph, GraphBuilder, Quantization
from samebits.ir.figures import constant_bytes, graph_sha256, multiply_adds
from samebits.ir.interpreter import run
from tiny_models import quantized_graph


def one_node(op, shapes, codes="float32", biases=0, **attributes):
    """A graph of one node on inputs of the given shapes; the last `biases` are int32."""
    b = GraphBuilder("g")
    names = [
        b.input(f"x{i}", "int32" if i >= len(shapes) - biases else codes, shape)
        for i, shape in enumerate(shapes)
    ]
    return b.build([b.add(op, names, attributes)])


WINDOW = {"strides": (2, 1), "dilations": (1, 2), "pads": (0, 0, 0, 0)}
LINE = {"strides": (1,), "dilations": (1,), "pads": (0, 0)}
INTEGER = {**WINDOW, "dtype": "int32"}
SCATTERED = {**WINDOW, "output_padding": (0, 0)}


@pytest.mark.parametrize(
    ("graph", "biases"),
    [
        (one_node("MatMul", [(2, 1, 3, 4), (5, 4, 6)]), 0),
        (one_node("MatMul", [(4,), (4, 6)]), 0),
        (one_node("MatMul", [(3, 4), (4,)]), 0),
        (one_node("Gemm", [(3, 4), (4, 5)]), 0),
        (one_node("Gemm", [(4, 3), (5, 4)], transA=1, transB=1), 0),
        (one_node("MatMulInteger", [(3, 4), (4, 5)], "int8"), 0),
        (one_node("Conv", [(2, 4, 9), (6, 2, 3)], **{**LINE, "strides": (3,), "group": 2}), 0),
        (one_node("Conv", [(1, 3, 8, 9), (5, 3, 2, 3)], **WINDOW), 0),
        (one_node("ConvInteger", [(1, 3, 8, 9), (5, 3, 2, 3)], "uint8", **WINDOW), 0),
        (one_node("ConvTranspose", [(2, 4, 5, 3), (4, 3, 2, 3)], group=2, **SCATTERED), 0),
        (one_node("ConvTranspose", [(1, 4, 6), (4, 4, 3)], **LINE, output_padding=(0,)), 0),
        (one_node("conv", [(1, 8, 9, 4), (6, 2, 3, 2), (6,)], "int8", 1, groups=2, **INTEGER), 1),
        (
            one_node(
                "conv_transpose",
                *([(1, 5, 3, 4), (6, 2, 3, 2), (6,)], "int8", 1),
                **{**INTEGER, "groups": 2, "size": (10, 7)},
            ),
            1,
        ),
        (one_node("linear", [(2, 3, 4), (5, 4), (5,)], "int8", 1, dtype="int32"), 1),
        (one_node("matmul", [(2, 3, 4), (4, 5)], "int8", dtype="int32"), 0),
        (one_node("Einsum", [(2, 3, 4), (4, 5)], equation="b i k, k j -> b i j"), 0),
        (one_node("Einsum", [(5, 3, 4), (3, 4)], equation="...k,...k"), 0),
        (one_node("Einsum", [(6, 1, 3, 4), (5, 4, 2)], equation="...ik,...kj->...ij"), 0),
    ],
    ids=lambda value: value.nodes[0].op if isinstance(value, Graph) else "",
)
def test_products_are_the_sum_of_the_results_on_ones(graph, biases):
    """Without padding and bias every product of ones adds one to some element of the result."""
    values = [graph.values[name] for name in graph.inputs]
    arrays = [np.ones(v.shape, v.dtype) for v in values]
    for array in arrays[len(arrays) - biases :]:
        array[...] = 0
    assert multiply_adds(graph) == int(run(graph, arrays)[0].sum())


def test_padding_counts_and_pointwise_operators_do_not():
    window = {"strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1)}
    padded = one_node("Conv", [(1, 1, 4, 4), (2, 1, 3, 3)], **window)
    assert multiply_adds(padded) == 16 * 2 * 9
    assert multiply_adds(one_node("Mul", [(3, 4), (3, 4)])) == 0
    assert multiply_adds(one_node("Einsum", [(3, 4)], equation="ij->ji")) == 0
    assert multiply_adds(one_node("MatMul", [(0, 4), (4, 5)])) == 0


@pytest.mark.parametrize("directions", [1, 2])
def test_recurrent_layers_count_their_matrices_in_every_step(directions):
    steps, batch, features, hidden, projected = 7, 2, 3, 4, 2
    b = GraphBuilder("g")
    shapes = [
        (steps, batch, features),
        (directions, 4 * hidden, features),
        (directions, 4 * hidden, projected),
        (directions, projected, hidden),
    ]
    x, w, r, p = (b.input(f"i{i}", "float32", shape) for i, shape in enumerate(shapes))
    direction = "bidirectional" if directions == 2 else "forward"
    y = b.add(
        "LSTM", [x, w, r, "", "", "", "", "", p], {"hidden_size": hidden, "direction": direction}
    )
    in_a_step = 4 * hidden * features + 4 * hidden * projected + projected * hidden
    assert multiply_adds(b.build([y])) == steps * batch * directions * in_a_step


def test_bytes_of_constants():
    graph = quantized_graph()
    assert constant_bytes(graph) == sum(a.nbytes for a in graph.constants.values())


# --- hashes -------------------------------------------------------------------------------------


def net(bias=1, axis=0, scale=Fraction(1, 2), names=("x", "w", "y"), state="", twice=False):
    b = GraphBuilder(names[0])
    x = b.input(names[0], "int8", (2, 3), Quantization(scale, 1))
    w = b.constant(names[1], np.full((2, 3), bias, np.int8))
    y = b.add("concat", [x, w], {"axis": axis}, outputs=[names[2]])
    last = b.add("concat", [w if twice else x, y], {"axis": axis})
    return b.build([last])


def test_names_do_not_change_the_hash():
    assert graph_sha256(net()) == graph_sha256(net(names=("a", "b c", "d")))
    assert graph_sha256(replace(net(), name="other")) == graph_sha256(net())


def test_everything_else_changes_the_hash():
    graph = net()
    values = {**graph.values}
    more = [
        net(bias=2),
        net(scale=Fraction(1, 3)),
        net(twice=True),
        replace(graph, outputs=(graph.nodes[0].output,)),
        replace(graph, nodes=(graph.nodes[0], replace(graph.nodes[1], op="add"))),
        replace(graph, values={**values, "x": replace(values["x"], dtype="uint8")}),
        replace(graph, values={**values, "x": replace(values["x"], shape=(3, 2))}),
    ]
    attributes = {**graph.nodes[1].attributes, "axis": 1}
    more.append(
        replace(graph, nodes=(graph.nodes[0], replace(graph.nodes[1], attributes=attributes)))
    )
    hashes = [graph_sha256(g) for g in (graph, *more)]
    assert len(set(hashes)) == len(hashes)


def test_attributes_are_told_exactly():
    def clip(high):
        b = GraphBuilder("g")
        return b.build([b.add("Celu", [b.input("x", "float32", (2,))], {"alpha": high})])

    assert graph_sha256(clip(0.1)) != graph_sha256(clip(0.1 + 2e-17))


def test_states_and_constants_that_are_outputs():
    def step(initial):
        b = GraphBuilder("g")
        x = b.input("x", "float32", (2,))
        first = b.constant("h0", np.zeros(2, np.float32)) if initial else ""
        h = b.state("h", "float32", (2,), first)
        return b.build([b.constant("c", np.ones(1, np.float32)), b.add("Add", [x, h])])

    assert graph_sha256(step(True)) != graph_sha256(step(False))
