"""One small graph for a rule of lowering each: the integer graph is the real one, exactly."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest

import recurrent_nets
from ir.lowering.test_lower import Net, assert_same_function, lower_graph, unsupported
from samebits.errors import UnsupportedError
from samebits.ir import GraphBuilder
from samebits.ir.lowering import lower
from samebits.ir.lowering.lower import check_lowerable


def codes(*shape):
    """Some int8 codes."""
    return np.random.default_rng(len(shape)).integers(-100, 101, shape).astype(np.int8)


def constant(net, values):
    return net.b.constant("c", np.array(values, np.float32))


# --- movement and maxima ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "op", "attributes", "ops"),
    [
        (
            (2, 12, 2, 3),
            "DepthToSpace",
            {"blocksize": 2, "mode": "DCR"},
            ["reshape", "transpose", "reshape"],
        ),
        (
            (2, 12, 2, 3),
            "DepthToSpace",
            {"blocksize": 2, "mode": "CRD"},
            ["reshape", "transpose", "reshape"],
        ),
        ((2, 3, 4, 6), "SpaceToDepth", {"blocksize": 2}, ["reshape", "transpose", "reshape"]),
        ((3, 1), "Expand", {"shape": (2, 3, 4)}, ["reshape", "expand"]),
        ((3, 1), "Expand", {"shape": (1, 3, 1)}, ["reshape"]),
        (
            (2, 3, 9),
            "MaxPool",
            {"kernel_shape": (3,), "strides": (2,), "dilations": (1,), "pads": (1, 0)},
            ["transpose", "reshape", "max_pool", "reshape", "transpose"],
        ),
        (
            (2, 5),
            "Pad",
            {"mode": "constant", "pads": (0, 2, 1, 0), "value": 1.25},
            ["pad"],
        ),
    ],
)
def test_codes_that_move(shape, op, attributes, ops):
    net = Net(shape, 0.25, "int8", 3)
    y = net.b.add(op, [net.x], attributes)
    graph = assert_same_function(net.b.build([y]))
    assert [node.op for node in graph.nodes] == ops
    value = graph.values[graph.outputs[0]]
    assert (value.dtype, value.quantization.scale) == ("int8", Fraction(1, 4))
    assert value.quantization.zero_point == 3


def test_padding_with_a_number_is_padding_with_its_code():
    net = Net((2, 5), 0.25, "int8", 3)
    pads = {"mode": "constant", "pads": (0, 2, 1, 0)}
    y = net.b.add("Pad", [net.x], {**pads, "value": 1.25})
    assert lower_graph(net.b.build([y])).nodes[0].attributes["code"] == 8  # 1.25 / 0.25 + 3
    between = net.b.add("Pad", [net.x], {**pads, "value": 1.3})
    assert "a code of the input, found 1.3" in unsupported(net, between)


def test_a_constant_of_the_same_scale_is_stored_beside_a_tensor():
    net = Net((1, 4), 0.5, "int8", 7)
    y = net.b.add("Concat", [net.x, net.weight(np.array([[1, -2]], np.int8), 0.5)], {"axis": 1})
    graph = assert_same_function(net.b.build([y]))
    assert [node.op for node in graph.nodes] == ["concat"]
    stored = graph.constants[graph.nodes[0].inputs[1]]
    assert (stored.dtype, stored.tolist()) == (np.int8, [[8, 5]])
    other = net.b.add("Concat", [net.x, net.weight(np.ones((1, 2), np.int8), 0.75)], {"axis": 1})
    assert "expected quantized codes with one scale" in unsupported(net, other)


# --- convolution and pools of signals ---------------------------------------------------------


def test_a_convolution_of_signals():
    net = Net((2, 3, 7), 0.25, "uint8", 100)
    w = net.weight(codes(4, 3, 3), [0.5, 0.25, 0.125, 1])
    attributes = {"strides": (2,), "pads": (2, 1), "dilations": (1,), "group": 1}
    y = net.b.add("Conv", [net.x, w], attributes)
    assert_same_function(net.b.build([net.q(y, 20.0, "int16")]))


@pytest.mark.parametrize("group", [1, 2])
def test_a_transposed_convolution_of_signals(group):
    attributes = {"strides": (2,), "pads": (1, 0), "dilations": (1,), "output_padding": (1,)}
    attributes["group"] = group
    net = Net((2, 4, 5), 0.25, "uint8", 100)
    y = net.b.add("ConvTranspose", [net.x, net.weight(codes(4, 3, 3), 0.5)], attributes)
    assert_same_function(net.b.build([net.q(y, 20.0, "int16")]))
    rows = net.weight(codes(4, 3, 3), [0.5, 0.25, 0.125], axis=1)
    y = net.b.add("ConvTranspose", [net.x, rows], attributes)
    if group == 1:
        assert_same_function(net.b.build([net.q(y, 20.0, "int16")]))
    else:
        assert "one weight scale for a grouped" in unsupported(net, net.q(y, 20.0))


def test_pools_have_one_or_two_dimensions():
    for rank in (1, 2, 3):
        ones = (1,) * rank
        attributes = {"kernel_shape": (2,) * rank, "pads": ones * 2, "count_include_pad": 0}
        net = Net((1, 2, *range(3, 3 + rank)), 0.25)
        y = net.b.add("AveragePool", [net.x], {**attributes, "strides": ones, "dilations": ones})
        if rank < 3:
            assert_same_function(net.b.build([net.q(y, 0.1, "int16")]))
    assert "1- or 2-dimensional pool, found 3 dimensions" in unsupported(net, net.q(y, 0.1))


def test_a_constant_along_the_width_of_a_convolution_is_refused():
    net = Net((1, 1, 3, 3))
    y = net.b.add(
        "Conv",
        [net.x, net.weight(codes(2, 1, 1, 1), 0.5)],
        {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "group": 1},
    )
    y = net.b.add("Add", [y, constant(net, [1, 2, 3])])
    assert "along the channels of the accumulator, found one along axis 3" in unsupported(
        net, net.q(y, 1.0)
    )


# --- functions of codes, with constants -------------------------------------------------------


def test_constants_along_one_axis_of_a_function():
    """Of codes of which there is one function at first, then one a channel, then others."""
    net = Net((2, 3), 0.25)
    y = net.b.add("Abs", [net.x])
    for op, values in (("Mul", [1, 2, 3]), ("Sub", [0.5, 0, -1]), ("Max", 0.125)):
        y = net.b.add(op, [y, constant(net, values)])
    graph = assert_same_function(net.b.build([net.q(y, 0.125)]))
    assert [node.op for node in graph.nodes] == ["table"]
    assert graph.constants[graph.nodes[0].inputs[1]].shape == (3, 256)


def test_one_function_and_one_a_channel_of_the_same_codes():
    net = Net((2, 3), 0.25)
    one = net.b.add("Abs", [net.x])
    many = net.b.add("Mul", [net.x, constant(net, [1, -2, 3])])
    for pair in ((one, many), (many, one)):
        graph = assert_same_function(net.b.build([net.q(net.b.add("Sub", pair), 0.125)]))
        assert [node.op for node in graph.nodes] == ["table"]


def test_constants_along_the_first_axis():
    net = Net((2, 3), 0.25)
    y = net.b.add("Mul", [net.x, constant(net, [[3], [-5]])])
    graph = assert_same_function(net.b.build([net.q(y, 0.5)]))
    assert [node.op for node in graph.nodes] == ["transpose", "affine", "requantize", "transpose"]


def test_a_long_row_of_equal_numbers_is_one_number():
    size = (1 << 16) + 1
    net = Net((1, size), 0.25)
    y = net.b.add("Add", [net.x, net.b.constant("c", np.full(size, 0.5, np.float32))])
    graph = lower_graph(net.b.build([net.q(y, 0.5)]))
    assert [node.op for node in graph.nodes] == ["table"]
    assert graph.constants[graph.nodes[0].inputs[1]].shape == (256,)


def test_a_number_added_to_a_sum_joins_its_offset():
    net = Net((1, 4), 0.5, "int16")
    other = net.q(net.b.input("y", "float32", (1, 4)), 0.75, "int16", 2)
    y = net.b.add("Add", [net.b.add("Add", [net.x, other]), constant(net, 1.25)])
    graph = assert_same_function(net.b.build([net.q(y, 1.0, "int16")]))
    assert [node.op for node in graph.nodes] == ["add", "requantize"]
    assert graph.nodes[0].attributes["factors"] == (2, 3)  # in units of 1/4
    assert graph.nodes[0].attributes["offset"] == 5 - 3 * 2


# --- what leaves the graph, and what has no integer form --------------------------------------


def test_a_softmax_leaves_the_graph_in_units_of_two_to_the_minus_16():
    net = Net((2, 5), 0.25)
    graph = lower_graph(net.b.build([net.b.add("Softmax", [net.x], {"axis": 1})]))
    value = graph.values[graph.outputs[0]]
    assert (value.dtype, value.quantization.scale) == ("uint16", Fraction(1, 1 << 16))
    assert value.quantization.zero_point == 0


def test_tables_per_channel_have_up_to_two_to_the_24_entries(monkeypatch):
    """256 channels of 16-bit codes and no more. Their contents do not matter here."""
    table = SimpleNamespace(codes=np.zeros(1 << 16, np.int8))
    monkeypatch.setattr(lower, "transfer_table", lambda *_: table)
    for channels in (256, 257):
        net = Net((1, channels), 0.5, "int16")
        factors = constant(net, np.arange(1, channels + 1))
        y = net.q(net.b.add("Mul", [net.b.add("Abs", [net.x]), factors]), 0.5)
        if channels == 256:
            graph = lower_graph(net.b.build([y]))
            assert graph.constants[graph.nodes[0].inputs[1]].size == 1 << 24
        else:
            assert "at most 16777216 entries" in unsupported(net, y)


def test_operators_without_an_integer_form_are_found_before_quantization():
    b = GraphBuilder("float")
    x = b.input("x", "float32", (1, 3))
    sums = b.add("CumSum", [b.add("Relu", [x])], {"axis": 1}, name="running")
    with pytest.raises(UnsupportedError, match=r"node 'running' \(CumSum\): expected an operator"):
        check_lowerable(b.build([sums]))


def test_recurrent_layers_pass_the_check_before_quantization():
    net = recurrent_nets.Net(0, 2, 3)
    y, *_ = net.layer("GRU", net.x, 4)
    check_lowerable(net.graph(net.sequence(y)))
