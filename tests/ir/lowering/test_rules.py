"""One small graph for a rule of lowering each: the integer graph is the real one, exactly."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest

import recurrent_nets
from ir.lowering.test_lower import Net, assert_same_function, lower_graph, unsupported
from samebits.errors import RangeError, UnsupportedError
from samebits.ir import GraphBuilder
from samebits.ir.interpreter import run
from samebits.ir.lowering import lower
from samebits.ir.lowering.check import check_lowerable


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


@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_constant_places_beyond_the_end_wrap_in_a_ring_alone(mode):
    for start in (2, 3, -1):
        net = Net((1, 4, 2), 0.5, "int8", 7)
        update = net.weight(codes(1, 2, 2), 0.5)
        starts = net.b.constant("starts", np.array([start]))
        y = net.b.add("TensorScatter", [net.x, update, starts], {"axis": 1, "mode": mode})
        if start == 2 or mode == "circular":
            assert_same_function(net.b.build([y]))
        else:
            assert f"write indices from 0 to 2, found {start}" in unsupported(net, y)


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
    above = b.add("Greater", [sums, x], name="above")
    both = b.build([b.add("Where", [above, x, sums])])
    with pytest.raises(UnsupportedError) as found:
        check_lowerable(both)
    first, *lines = str(found.value).splitlines()
    assert first == "expected operators with an integer form, found 2 without one:"
    assert "node 'running' (CumSum)" in lines[0]
    assert "triangular matrix" in lines[0]
    assert "node 'above' (Greater)" in lines[1]
    assert "integer input of zeros and ones" in lines[1]


def test_inputs_that_nothing_reads():
    b = GraphBuilder("float")
    b.input("u", "float32", (1, 3))
    y = b.add("Relu", [b.input("x", "float32", (1, 3))])
    with pytest.raises(UnsupportedError, match=r"input 'u': .* export the model without it"):
        check_lowerable(b.build([y]))


def test_recurrent_layers_pass_the_check_before_quantization():
    net = recurrent_nets.Net(0, 2, 3)
    y, *_ = net.layer("GRU", net.x, 4)
    check_lowerable(net.graph(net.sequence(y)))


# --- scores and interpolation -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "sizes", "attributes"),
    [
        ((1, 3, 4, 5), (1, 3, 8, 7), {}),
        ((2, 1, 4, 5), (2, 1, 9, 5), {"coordinate_transformation_mode": "align_corners"}),
        ((1, 2, 5, 4), (1, 2, 3, 8), {"coordinate_transformation_mode": "asymmetric"}),
        ((1, 2, 4, 4), (1, 2, 1, 9), {"coordinate_transformation_mode": "pytorch_half_pixel"}),
        ((1, 2, 6, 6), (1, 2, 4, 9), {"mode": "cubic"}),
        ((1, 2, 6, 6), (1, 2, 4, 4), {"antialias": 1}),
        ((2, 3, 6), (2, 3, 11), {}),
    ],
)
def test_interpolation_rounds_once(shape, sizes, attributes):
    for dtype in ("int8", "uint16"):
        net = Net(shape, 0.25, dtype, 7)
        y = net.b.add("Interpolate", [net.x], {"sizes": sizes, **attributes})
        graph = assert_same_function(net.b.build([net.q(y, 0.125, "int8", 3)]))
        assert [n.op for n in graph.nodes].count("resample") == 1


def test_interpolation_whose_weights_have_no_common_denominator_in_64_bits():
    net = Net((1, 1, 57, 57))
    taps = {"sizes": (1, 1, 41, 41), "antialias": 1}
    y = net.q(net.b.add("Interpolate", [net.x], taps, name="shrink"), 0.5)
    message = r"'shrink'.*below 2\*\*63, found.*interpolation weights .* common denominator"
    with pytest.raises(RangeError, match=message):
        lower_graph(net.b.build([y]))


def test_interpolation_that_no_image_has():
    net = Net((1, 2, 4, 4), 0.25, "int8", 0)
    wide = net.b.add("Interpolate", [net.x], {"sizes": (1, 4, 4, 4)})
    assert "whose axes from 2 on alone change, found [1, 2, 4, 4] with changes along [1]" in (
        unsupported(net, net.q(wide, 0.25))
    )


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
@pytest.mark.parametrize(("axis", "largest"), [(1, 1), (2, 0), (-1, 1)])
def test_top_k_and_argmin(dtype, axis, largest):
    x = np.random.default_rng(5).integers(60, 66, (2, 5, 4)).astype(dtype)  # many equal ones
    reals = (x.astype(np.float64) - 7) / 4
    net = Net(x.shape, 0.25, dtype, 7)
    y, index = net.b.add_all("TopK", [net.x], {"k": 3, "axis": axis, "largest": largest})
    real = net.b.build([y, index])
    graph = lower_graph(real)
    assert {n.op for n in graph.nodes} == {"top_k", "top_k_index"}
    assert graph.values[graph.outputs[0]].quantization.zero_point == 7
    wanted, places = run(real, [reals])
    codes, found = run(graph, [x])
    assert np.array_equal((codes - 7.0) / 4, wanted)
    assert np.array_equal(found, places)
    for keepdims in (0, 1):
        net = Net(x.shape, 0.25, dtype, 7)
        least = net.b.build([net.b.add("ArgMin", [net.x], {"axis": axis, "keepdims": keepdims})])
        assert np.array_equal(run(lower_graph(least), [x])[0], run(least, [reals])[0])
    net = Net((2, 5, 4), 0.25, dtype, 7)
    last = net.b.add("ArgMin", [net.x], {"axis": axis, "select_last_index": 1})
    assert "expected select_last_index = 0" in unsupported(net, last)


@pytest.mark.parametrize(("shape", "axis"), [((2, 7), 1), ((2, 5, 3), 1), ((3, 2, 2, 4), 2)])
def test_log_softmax_is_the_rounded_logarithm(shape, axis):
    """Of the real logarithm within half a code and a little: the level is off by 2**-22."""
    for dtype, unit, scale in (("int8", 2.0**-4, 2.0**-4), ("int16", 2.0**-10, 2.0**-9)):
        net = Net(shape, unit, dtype, 3)
        y = net.q(net.b.add("LogSoftmax", [net.x], {"axis": axis}), scale, "int16", 900)
        graph = lower_graph(net.b.build([y]))
        assert "log_softmax" in {n.op for n in graph.nodes}
        x = np.random.default_rng(2).integers(-100, 101, shape).astype(dtype)
        (found,) = run(graph, [x])
        real = (x.astype(np.float64) - 3) * unit
        below = real - real.max(axis, keepdims=True)
        expected = below - np.log(np.exp(below).sum(axis, keepdims=True))
        assert np.abs(found - 900 - expected / scale).max() <= 0.5 + 2**-8


def test_log_softmax_needs_codes_behind_it():
    net = Net((2, 7), 0.25, "int8", 3)
    y = net.b.add("LogSoftmax", [net.x], {"axis": 1})
    assert "add a QuantizeLinear at the output" in unsupported(net, y)
    fine = net.q(y, 2.0**-60, "int8", 3)
    assert "quantize the output with a larger scale" in unsupported(net, fine)


@pytest.mark.parametrize(
    ("op", "attributes", "factors"),
    [
        ("LayerNormalization", {"axis": -1}, 3),
        ("InstanceNormalization", {}, 4),
        ("Softmax", {"axis": 1}, 0),
        ("LogSoftmax", {"axis": 1}, 0),
    ],
)
def test_a_clip_behind_becomes_the_ends_of_the_codes(op, attributes, factors):
    """-0.5 to 0.25 in steps of 2**-6 from 3 on: the codes -29 to 19, of the same rounding."""
    found = []
    x = codes(2, 4, 3)
    for clipped in (False, True):
        net = Net(x.shape, 0.25)
        more = [constant(net, [1, -2, 0.5, 3][:factors]) for _ in range(2)] if factors else []
        y = net.b.add(op, [net.x, *more], attributes)
        if clipped:
            y = net.b.add("Clip", [y], {"min": -0.5, "max": 0.25})
        found.append(run(lower_graph(net.b.build([net.q(y, 2.0**-6, "int8", 3)])), [x])[0])
    free, held = found
    assert (held == free.clip(-29, 19)).all()
    assert (held != free).any()


# --- choices ----------------------------------------------------------------------------------

KEPT = np.random.default_rng(6).integers(0, 2, (3, 4)).astype(bool)


@pytest.mark.parametrize("kept", [KEPT, KEPT[:2, :1, None], np.array(True)])
def test_a_choice_by_constants_rounds_once(kept):
    """Of tensors of different scales, of a tensor and a number, and of zero."""
    net = Net((2, 3, 4), 0.25, "int8", 3)
    other = net.q(net.b.input("y", "float32", (3, 4)), 0.125, "uint8", 9)
    number, zero = (net.b.constant("k", np.float32(v)) for v in (-1.5, 0))
    condition = net.b.constant("kept", kept)
    for sides, ops in (
        ((net.x, other), ["multiply", "multiply", "add", "requantize"]),
        ((net.x, number), ["multiply", "add", "requantize"]),
        ((zero, net.x), ["multiply", "requantize"]),
    ):
        y = net.q(net.b.add("Where", [condition, *sides]), 0.2, "int8", -5)
        graph = assert_same_function(net.b.build([y]))
        assert [node.op for node in graph.nodes] == ops


@pytest.mark.parametrize("taken", [0, 1])
def test_a_choice_by_an_integer_input(taken):
    net = Net((2, 3, 4), 0.25, "int8", 3)
    other = net.q(net.b.input("y", "float32", (2, 3, 4)), 0.125, "uint8", 9)
    flag = net.b.input("flag", "int64", (2, 1, 4))
    condition = net.b.add("Equal", [flag, net.b.constant("taken", np.array(taken))])
    y = net.q(net.b.add("Where", [condition, net.x, other]), 0.25, "int16", -5)
    real = net.b.build([y])
    graph = lower_graph(real)
    rng = np.random.default_rng(1)
    arrays = {
        "x": codes(2, 3, 4),
        "y": rng.integers(0, 256, (2, 3, 4)).astype(np.uint8),
        "flag": rng.integers(0, 2, (2, 1, 4)),
    }
    reals = {"x": (arrays["x"] - 3.0) / 4, "y": (arrays["y"] - 9.0) / 8, "flag": arrays["flag"]}
    (found,) = run(graph, [arrays[name] for name in graph.inputs])
    (wanted,) = run(real, [reals[name] for name in real.inputs])
    assert np.array_equal((found + 5.0) / 4, wanted)


def test_a_choice_by_numbers_is_refused():
    net = Net((2, 3), 0.25, "int8", 3)
    condition = net.b.add("Greater", [net.x, net.b.constant("zero", np.float32(0))])
    assert "found Greater" in unsupported(net, net.b.add("Where", [condition, net.x, net.x]))


# --- masks by an integer input -----------------------------------------------------------------


def masked(kind, inverted, constant):
    """A Softmax of scores without the places where a flag, or its inverse, and one more place after
    these have the number 1."""
    net = Net((2, 3, 4), 0.25)
    b = net.b
    m = b.add("Cast", [b.input("m", "int64", (2, 1, 3))], {"to": kind})
    m = b.add("Sub", [b.constant("one", np.array(1, kind)), m]) if inverted else m
    m = b.add("Concat", [m, b.constant("c", np.full((2, 1, 1), constant, kind))], {"axis": 2})
    real = b.add("Cast", [m], {"to": "float32"})
    lost = b.add("Mul", [real, b.constant("lost", np.array(-1e9, np.float32))])
    y = b.add("Softmax", [b.add("Add", [net.x, lost])], {"axis": 2})
    return b.build([net.q(y, 1 / 256, "uint8")])


@pytest.mark.parametrize("kind", ["int32", "int64", "float32"])
@pytest.mark.parametrize("inverted", [False, True])
@pytest.mark.parametrize("constant", [0, 1])
def test_a_constant_beside_a_flag_says_what_the_flag_says(kind, inverted, constant):
    real = masked(kind, inverted, constant)
    codes = np.arange(-12, 12).reshape(2, 3, 4).astype(np.int8)
    m = np.array([[[1, 0, 1]], [[0, 0, 1]]])
    (wanted,) = run(real, [codes / 4, m])
    (found,) = run(lower_graph(real), [codes, m])
    np.testing.assert_array_equal(found, wanted * 256)
