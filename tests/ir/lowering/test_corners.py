"""Corners of lowering: each was once wrong, or could be."""

from __future__ import annotations

import numpy as np
import pytest

from ir.lowering.test_lower import Net, assert_same_function, conv_net, lower_graph, unsupported
from samebits.errors import UnsupportedError
from samebits.ir import GraphBuilder
from samebits.ir.integer.layers import layers
from samebits.ir.lowering.check import check_lowerable
from samebits.ir.rewrite import simplify


def gemm(net, x, codes=None, extra=(), scale=0.25):
    k = net.b.values[x].shape[-1]
    codes = np.arange(-k, k).reshape(2, k).astype(np.int8) if codes is None else codes
    return net.b.add("Gemm", [x, net.weight(codes, scale), *extra], {"transB": 1})


@pytest.mark.parametrize(
    "bounds", [(100.0, 200.0), (-900.0, -800.0), (3.0, 1000.0), (-1000.0, 5.0)]
)
def test_clips_beyond_the_codes(bounds):
    net = Net((1, 4))
    clipped = net.b.add("Clip", [net.x], {"min": bounds[0], "max": bounds[1]}, name="c")
    graph = net.b.build([net.q(gemm(net, clipped), 20.0)])
    if bounds[0] > 64 or bounds[1] < -64:
        with pytest.raises(UnsupportedError, match="expected quantized codes"):
            lower_graph(graph)
    else:
        assert_same_function(graph)


def test_pads_of_both_signs():
    net = Net((2, 5), 0.5, "int8", 3)
    y = net.b.add("Pad", [net.x], {"pads": (0, -1, 0, 2), "mode": "constant", "value": 0.0})
    assert_same_function(net.b.build([net.q(y, 0.5, "int8", 3)]))


def test_quantize_moves_through_padding_with_a_value():
    net = Net((1, 4), 0.25)
    y = net.b.add("Mul", [net.x, net.x])
    y = net.b.add("Pad", [y], {"pads": (0, 2, 0, 1), "mode": "constant", "value": 1.25})
    graph = assert_same_function(net.b.build([net.q(y, 0.5, "uint8", 7)]))
    assert graph.nodes[-1].attributes["code"] == 9  # rne(2.5) + 7


def test_constants_along_two_axes_of_one_function():
    net = Net((1, 4, 4))
    c = net.b.constant("c", np.array([[1.0], [2], [3], [4]], np.float32))
    d = net.b.constant("d", np.array([1.0, 2, 3, 4], np.float32))
    y = net.b.add("Add", [net.b.add("Mul", [net.x, c]), net.b.add("Mul", [net.x, d])])
    assert "along one axis" in unsupported(net, net.q(y, 0.5))


def test_a_bias_per_row_is_refused():
    net = Net((4, 3))
    codes = np.arange(12).reshape(4, 3).astype(np.int8)
    c = net.b.constant("c", np.array([[1.0], [2], [3], [4]], np.float32))
    assert "one bias per column" in unsupported(net, net.q(gemm(net, net.x, codes, [c]), 1.0))


def test_blocks_are_refused():
    net = Net((1, 4))
    w = net.b.add(
        "DequantizeLinear",
        [
            net.b.constant("w", np.ones((4, 4), np.int8)),
            net.b.constant("s", np.ones((4, 1), np.float32)),
        ],
        {"axis": 1, "block_size": 4},
    )
    assert "found other blocks" in unsupported(net, net.q(net.b.add("MatMul", [net.x, w]), 1.0))


def test_outputs_that_are_one_value():
    b = GraphBuilder("twice")
    codes = b.input("q", "int8", (1, 3))
    zero = b.constant("z", np.array(0, np.int8))
    outs = []
    for scale in (0.5, 2.0):
        s = b.constant("s", np.array(scale, np.float32))
        outs.append(b.add("DequantizeLinear", [codes, s, zero], {"axis": 1}))
    graph = lower_graph(b.build([*outs, outs[0]]))
    assert len(set(graph.outputs)) == 3
    assert [float(graph.values[n].quantization.scale) for n in graph.outputs] == [0.5, 2.0, 0.5]


@pytest.mark.parametrize("constant", [0.3, -1000.25])
def test_constants_added_to_sums_are_exact(constant):
    net = Net((1, 4))
    other = net.q(net.b.add("Neg", [net.x]), 0.75)
    c = net.b.constant("c", np.array(constant, np.float32))
    y = net.b.add("Add", [net.b.add("Add", [net.x, c]), other])
    z = net.b.add("Add", [net.b.add("ReduceSum", [net.x], {"axes": (1,), "keepdims": 1}), c])
    p = net.b.add("Add", [net.b.add("Mul", [net.x, other]), c])
    graph = net.b.build([net.q(y, 0.01, "int16"), net.q(z, 0.1, "int16"), net.q(p, 0.1, "int16")])
    assert_same_function(graph)


def test_a_factor_near_the_scale_of_a_sum_stays_a_factor():
    net = Net((1, 4), 0.1)
    product = net.b.add("MatMul", [net.x, net.weight(np.ones((4, 2), np.int8), 0.3)])
    near = np.float32(np.float32(0.1) * np.float32(0.3))
    y = net.b.add("Mul", [product, net.weight(np.array([3], np.int8), near)])
    assert_same_function(net.b.build([net.q(y, 0.001, "int16")]))


def test_a_quantized_bias_of_any_shape():
    net, y = conv_net()
    bias = np.array([5, -7, 100000, 0], np.int32).reshape(4, 1, 1)
    scales = np.float32(0.25) * np.array([0.5, 0.25, 0.125, 1], np.float32)
    y = net.b.add("Add", [y, net.weight(bias, scales)])
    assert_same_function(net.b.build([net.q(y, 3.0)]))


def test_a_zero_factor_on_an_accumulator_is_refused():
    net = Net((1, 4))
    y = net.b.add("Mul", [gemm(net, net.x), net.b.constant("c", np.array([1, 0], np.float32))])
    assert "factors other than 0" in unsupported(net, net.q(y, 1.0))


def test_a_constant_joined_to_a_tensor():
    net = Net((1, 4))
    token = net.weight(np.array([[1, -2]], np.int8), 0.7)
    y = net.b.add("Concat", [net.x, token], {"axis": 1})
    assert_same_function(net.b.build([net.q(y, 0.25, "uint8", 90)]))


def test_a_bias_added_apart_costs_nothing():
    net = Net((1, 4))
    y = net.b.add("MatMul", [net.x, net.weight(np.ones((4, 3), np.int8), 0.5)])
    y = net.b.add("Add", [y, net.b.constant("b", np.array([1, 2, 3], np.float32))])
    graph = assert_same_function(net.b.build([net.q(y, 1.0)]))
    assert [n.op for n in graph.nodes] == ["linear", "requantize"]
    assert len(layers(graph)) == 1


def test_an_output_with_a_scale_per_channel():
    net = Net((3, 4))
    codes = np.arange(-6, 6).reshape(3, 4).astype(np.int8)
    weight = net.weight(codes, np.array([0.5, 0.125, 0.375], np.float32))
    y = net.b.add("Gemm", [net.x, weight], {"transB": 1})
    graph = assert_same_function(net.b.build([y]))
    assert [node.op for node in graph.nodes] == ["linear", "affine"]
    factors, offsets = (graph.constants[name] for name in graph.nodes[-1].inputs[1:])
    assert (factors.tolist(), offsets.tolist()) == ([4, 1, 3], [0, 0, 0])
    value = graph.values[graph.outputs[0]]
    unit = graph.values[graph.inputs[0]].quantization.scale / 8
    assert (value.dtype, value.quantization.scale) == ("int32", unit)
    clipped = net.b.add("Relu", [y])
    assert "an accumulator with one scale" in unsupported(net, clipped)


def test_long_chains_of_movement_take_linear_time():
    net, y = conv_net()
    for index in range(600):
        y = net.b.add("Reshape", [y], {"shape": (1, 100) if index % 2 else (10, 10)})
    graph = lower_graph(net.b.build([net.q(y, 3.0)]))
    assert sum(n.op == "requantize" for n in graph.nodes) == 1


def test_each_value_made_of_a_flag_is_looked_at_once():
    net = Net((1, 4))
    m = net.b.input("m", "int64", (1, 4))
    one = net.b.constant("one", np.array(1))
    for _ in range(60):  # two ways each
        m = net.b.add("Mul", [net.b.add("Mul", [m, one]), net.b.add("Div", [m, one])])
    lost = net.b.add("Cast", [m], {"to": "float32"})
    lost = net.b.add("Mul", [lost, net.b.constant("lost", np.array(-1e9, np.float32))])
    y = net.b.add("Softmax", [net.b.add("Add", [net.x, lost])], {"axis": 1})
    assert lower_graph(net.b.build([net.q(y, 1 / 256, "uint8")])).inputs == ("x", "m")


def test_inputs_that_are_no_codes():
    b = GraphBuilder("flags")
    x = b.input("x", "bool", (1, 3))
    with pytest.raises(UnsupportedError, match=r"input 'x': expected numbers, found bool; give"):
        lower_graph(b.build([b.add("Identity", [x])]))


def test_a_node_named_like_the_output():
    b = GraphBuilder("names")
    x = b.input("x", "float32", (1, 2))
    s, z = b.constant("s", np.array(0.5, np.float32)), b.constant("z", np.array(0, np.int8))
    q = b.add("QuantizeLinear", [x, s, z], {"axis": 1})
    d = b.add("DequantizeLinear", [q, s, z], {"axis": 1})
    y = b.add("Relu", [d], name="relu")
    y = b.add("QuantizeLinear", [y, s, z], {"axis": 1}, name="q2", outputs=["y"])
    assert lower_graph(b.build([y])).outputs == ("y",)


@pytest.mark.parametrize(
    ("op", "ends"),
    [
        ("Min", [-np.inf, np.nan, [np.inf, 0, 1, 2]]),
        ("Max", [np.inf, np.nan, [-np.inf, 0, 1, 2]]),
    ],
)
def test_an_infinity_that_would_be_chosen_is_refused_before_calibration(op, ends):
    for end in ends:
        build = GraphBuilder("net")
        x = build.add("Relu", [build.input("x", "float32", (1, 4))])
        c = build.constant("c", np.asarray(end, np.float32))
        with pytest.raises(UnsupportedError, match=rf"\({op}\): expected finite constants, found "):
            check_lowerable(simplify(build.build([build.add(op, [x, c])])))


@pytest.mark.parametrize(
    "bounds", [{"min": np.inf}, {"max": -np.inf}, {"min": 0.0, "max": -np.inf}]
)
def test_a_clip_at_an_infinity_is_refused_before_calibration(bounds):
    build = GraphBuilder("net")
    y = build.add("Clip", [build.input("x", "float32", (1, 4))], bounds)
    with pytest.raises(UnsupportedError, match=r"\(Clip\): expected finite constants, found "):
        check_lowerable(simplify(build.build([y])))
