"""Equalization: the same function, even ranges, and which layers it joins."""

from __future__ import annotations

import numpy as np
import pytest

from samebits.ir.interpreter import run, trace
from samebits.ir.rewrite import replace_nodes
from samebits.quantization.equalize import equalize

GEMM = {"transB": 1}
WIDE = np.array([0.02, 0.1, 1.0, 5.0], np.float32)  # of channels


def uneven(graph, name, axis=0):
    """The weights of a layer times WIDE along an axis."""
    shape = [1] * graph.constants[name].ndim
    shape[axis] = -1
    constants = {**graph.constants, name: graph.constants[name] * WIDE.reshape(shape)}
    return replace_nodes(graph, graph.nodes, constants, graph.values)


def samples(n, *shape, count=6):
    return [{"x": n.normal(*shape)} for _ in range(count)]


def same_function(before, after, given):
    for sample in given:
        for x, y in zip(run(before, [sample["x"]]), run(after, [sample["x"]]), strict=True):
            assert np.abs(x - y).max() <= 1e-5 * np.abs(x).max()


def spread(weights, axis):
    """The largest of the largest magnitudes of each channel over the smallest."""
    found = np.abs(np.moveaxis(weights, axis, 0)).reshape(len(WIDE), -1).max(1)
    return found.max() / found.min()


def test_two_convolutions(net):
    n = net()
    x = n.input("x", 1, 3, 6, 6)
    r = n.add("MaxPool", "m", n.add("Relu", "r", n.conv("c", x, 4, 3, 3, 3)),
              kernel_shape=(2, 2), strides=(2, 2), pads=(0,) * 4, dilations=(1, 1))  # fmt: skip
    graph = uneven(n.build(n.conv("d", r, 5, 4, 3, 3)), "c_w")
    given = samples(n, 1, 3, 6, 6)
    after, changes = equalize(graph, given, "weights")
    same_function(graph, after, given)
    assert spread(graph.constants["c_w"], 0) > 100
    # A channel may not grow beyond the largest of its tensor: its bias keeps one of them small.
    assert spread(after.constants["c_w"], 0) < 30
    assert [(c.step, c.layer, c.op) for c in changes] == [("equalization", "c_node", "Conv")]
    assert changes[0].what.startswith("4 channels read by d_node divided by ")


@pytest.mark.parametrize("kind", ["weights", "activations"])
def test_ranges_become_even(net, kind):
    """No bias: what a channel reaches follows its weights."""
    n = net()
    x = n.input("x", 1, 3, 6, 6)
    r = n.add("Relu", "r", n.conv("c", x, 4, 3, 1, 1, bias=False, pads=(0,) * 4))
    graph = uneven(n.build(n.conv("d", r, 5, 4, 3, 3)), "c_w")
    given = samples(n, 1, 3, 6, 6)
    after, _ = equalize(graph, given, kind)
    same_function(graph, after, given)
    assert spread(after.constants["c_w"], 0) < spread(graph.constants["c_w"], 0) / 5
    both = [np.abs(after.constants[name]).max(axes) for name, axes in
            (("c_w", (1, 2, 3)), ("d_w", (0, 2, 3)))]  # fmt: skip
    if kind == "weights":
        assert np.allclose(both[0] / both[1], (both[0] / both[1])[0], rtol=1e-3)
    reach = [
        np.max([np.abs(trace(g, [s["x"]])["r"]).max((0, 2, 3)) for s in given], 0)
        for g in (graph, after)
    ]
    assert reach[1].max() / reach[1].min() < reach[0].max() / reach[0].min()


def test_relu6_clips_what_it_clipped(net):
    n = net(1)
    x = n.input("x", 1, 3, 6, 6)
    c = n.add("Clip", "r", n.conv("c", x, 4, 3, 3, 3), min=0.0, max=6.0)
    d = n.add("Clip", "s", n.conv("d", c, 4, 1, 3, 3, group=4), min=0.0, max=6.0)
    graph = uneven(n.build(n.conv("e", d, 5, 4, 1, 1, pads=(0,) * 4)), "c_w")
    given = samples(n, 1, 3, 6, 6, count=12)
    after, changes = equalize(graph, given, "weights")
    same_function(graph, after, given)
    assert [c.layer for c in changes] == ["c_node", "d_node"]
    clipped = np.max([trace(graph, [s["x"]])["c"].max((0, 2, 3)) for s in given], 0) > 6
    assert 0 < clipped.sum() < 4
    scaled = (after.constants["c_b"] != graph.constants["c_b"]).reshape(-1)
    assert not scaled[clipped].any()
    assert scaled[~clipped].any()


def test_columns_of_a_matrix_after_flatten(net):
    n = net()
    x = n.input("x", 1, 3, 4, 4)
    r = n.add("LeakyRelu", "r", n.conv("c", x, 4, 3, 3, 3), alpha=0.25)
    f = n.add("Flatten", "f", r, axis=1)
    graph = uneven(n.build(n.gemm("g", f, 3, 64)), "c_w")
    given = samples(n, 1, 3, 4, 4)
    after, changes = equalize(graph, given, "weights")
    same_function(graph, after, given)
    assert len(changes) == 1


def test_matrices_and_their_bias(net):
    n = net()
    x = n.input("x", 1, 5, 3)
    m = n.add("Add", "a", n.add("MatMul", "m", x, n.weight("v", 3, 4)), n.weight("b", 4))
    graph = n.build(n.add("MatMul", "y", n.add("Relu", "r", m), n.weight("w", 4, 6)))
    graph = uneven(graph, "v", 1)
    given = samples(n, 1, 5, 3)
    after, changes = equalize(graph, given, "weights")
    same_function(graph, after, given)
    assert (after.constants["b"] != graph.constants["b"]).any()
    assert len(changes) == 1


def test_a_transposed_convolution_and_groups(net):
    n = net()
    x = n.input("x", 1, 3, 5, 5)
    window = {"strides": (2, 2), "pads": (0,) * 4, "dilations": (1, 1), "output_padding": (0, 0)}
    t = n.add("ConvTranspose", "t", x, n.weight("t_w", 3, 4, 2, 2), n.weight("t_b", 4),
              group=1, **window)  # fmt: skip
    d = n.add("Relu", "s", n.conv("d", n.add("Relu", "r", t), 4, 2, 3, 3, group=2))
    graph = uneven(
        n.build(n.add("ConvTranspose", "y", d, n.weight("y_w", 4, 1, 2, 2), group=2, **window)),
        "t_w", 1,
    )  # fmt: skip
    given = samples(n, 1, 3, 5, 5)
    after, changes = equalize(graph, given, "weights")
    same_function(graph, after, given)
    assert [c.layer for c in changes] == ["t_node", "d_node"]


def test_a_normalisation_before_two_matrices(net):
    n = net()
    x = n.input("x", 1, 5, 4)
    scale = n.constant("g", [9.0, 0.1, 1.0, 0.5])
    norm = n.add("LayerNormalization", "l", x, scale, n.weight("b", 4))
    graph = n.build(
        n.add("MatMul", "q", norm, n.weight("qw", 4, 6)),
        n.add("MatMul", "k", norm, n.weight("kw", 4, 6)),
    )
    given = samples(n, 1, 5, 4)
    assert equalize(graph, given, "weights") == (graph, ())
    after, changes = equalize(graph, given, "activations")
    same_function(graph, after, given)
    assert changes[0].what.startswith("4 channels read by q_node, k_node divided by ")


def test_equal_vectors_and_a_transposition(net):
    """Fresh normalisations have equal factors, which a graph stores once."""
    n = net()
    x = n.input("x", 1, 5, 4)
    ones, zeros = n.constant("g", np.ones(4)), n.constant("b", np.zeros(4))
    first = n.add("LayerNormalization", "l", x, ones, zeros)
    turned = n.add("Transpose", "t", first, perm=(1, 0, 2))
    back = n.add(
        "Transpose", "u", n.add("MatMul", "m", turned, n.weight("v", 4, 4)), perm=(1, 0, 2)
    )
    second = n.add("LayerNormalization", "k", back, ones, zeros)
    graph = uneven(n.build(n.add("MatMul", "y", second, n.weight("w", 4, 6))), "w")
    given = samples(n, 1, 5, 4)
    after, changes = equalize(graph, given, "activations")
    same_function(graph, after, given)
    assert [c.layer for c in changes] == ["l_node", "k_node"]


def refused(n, shape=(1, 3, 4, 4)):
    """Graphs of which no pair can be scaled, by what stands in the way."""
    x = n.input("x", *shape)
    c = n.conv("c", x, 4, 3, 3, 3)
    yield "an output", lambda: n.build(c, n.conv("d", c, 2, 4, 1, 1, pads=(0,) * 4))
    yield "a function", lambda: n.build(n.conv("e", n.add("Tanh", "t", c), 2, 4, 3, 3))
    yield "a sum", lambda: n.build(n.conv("f", n.add("Add", "a", c, c), 2, 4, 3, 3))
    low = {"min": -1.0, "max": 1.0}
    yield "a clip below 0", lambda: n.build(n.conv("h", n.add("Clip", "i", c, **low), 2, 4, 3, 3))


@pytest.mark.parametrize("case", range(4))
def test_what_is_left_alone(net, case):
    n = net()
    build = list(refused(n))[case][1]
    graph = build()
    after, changes = equalize(graph, samples(n, 1, 3, 4, 4), "weights")
    assert (after, changes) == (graph, ())


def test_shared_weights_are_left_alone(net):
    n = net()
    x = n.input("x", 1, 4)
    w = n.weight("w", 4, 4)
    h = n.add("MatMul", "h", n.add("Relu", "r", n.add("MatMul", "m", x, w)), w)
    graph = n.build(h)
    assert equalize(graph, samples(n, 1, 4), "weights") == (graph, ())


def test_a_dead_channel(net):
    """Its weights are zeros, or what reads it: no scale is taken of it."""
    n = net()
    x = n.input("x", 1, 3, 4, 4)
    graph = n.build(n.conv("d", n.add("Relu", "r", n.conv("c", x, 4, 3, 3, 3)), 2, 4, 3, 3))
    constants = {name: array.copy() for name, array in graph.constants.items()}
    constants["c_w"][0] = 0
    constants["d_w"][:, 1] = 0
    graph = replace_nodes(graph, graph.nodes, constants, graph.values)
    given = samples(n, 1, 3, 4, 4)
    for kind in ("weights", "activations"):
        after, _ = equalize(graph, given, kind)
        same_function(graph, after, given)
        assert all(np.isfinite(array).all() for array in after.constants.values())


@pytest.mark.parametrize("shape", [(4, 1), (2, 1, 4)])
def test_a_constant_that_is_no_row_is_no_bias(net, shape):
    """As many numbers as channels, along another axis or with more results."""
    n = net()
    m = n.add("MatMul", "m", n.input("x", 1, 4, 6), n.weight("a_w", 6, 4))
    b = n.constant("b", np.ones(shape))
    h = n.add("Relu", "h", n.add("Add", "s", m, b))
    graph = uneven(n.build(n.add("MatMul", "y", h, n.weight("b_w", 4, 3))), "a_w", 1)
    given = samples(n, 1, 4, 6)
    after, changes = equalize(graph, given, "weights")
    same_function(graph, after, given)
    assert not changes


def test_a_column_of_a_gemm_is_no_bias(net):
    n = net()
    h = n.add("Gemm", "h", n.input("x", 4, 6), n.weight("a_w", 6, 4), n.weight("a_b", 4, 1))
    y = n.add("Gemm", "y", n.add("Relu", "r", h), n.weight("b_w", 4, 3), n.weight("b_b", 3))
    graph = uneven(n.build(y), "a_w", 1)
    given = samples(n, 4, 6)
    after, _ = equalize(graph, given, "weights")
    same_function(graph, after, given)


@pytest.mark.parametrize("shape", [(4, 1), (1,)])
def test_factors_of_a_normalisation_that_are_no_row(net, shape):
    n = net()
    x = n.input("x", 1, 4, 4)
    h = n.add("LayerNormalization", "h", x, n.weight("f", *shape), axis=-1, epsilon=1e-5)
    graph = n.build(n.add("MatMul", "y", h, n.weight("b_w", 4, 3)))
    given = samples(n, 1, 4, 4)
    after, changes = equalize(graph, given, "activations")
    same_function(graph, after, given)
    assert not changes
