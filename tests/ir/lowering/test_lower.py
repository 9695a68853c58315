"""The integer graph is the quantized real graph, exactly."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from random_graphs import awkward_inputs, random_graph
from samebits.errors import RangeError, UnsupportedError
from samebits.ir import GraphBuilder, interpreter
from samebits.ir.integer.bounds import bounds
from samebits.ir.lowering.lower import lower_graph
from samebits.ir.printer import text
from samebits.ir.verify import verify
from samebits.verification.inputs import dequantize, quantize_samples


def dequantized(codes, value):
    q = value.quantization
    return (codes.astype(object) - q.zero_point) * q.scale


def assert_same_function(real, seed=0, samples=2):
    """Exact rationals of the real graph against the codes of the integer graph."""
    verify(real)
    integer = lower_graph(real)
    verify(integer)
    assert integer.integer
    assert integer.inputs == real.inputs
    assert integer.outputs == real.outputs
    limits = bounds(integer)
    for run in range(samples):
        drawn = awkward_inputs(integer, seed + run, 1)
        types = [integer.values[name] for name in integer.inputs]
        reals = [dequantize(c, value) for c, value in zip(drawn, types, strict=True)]
        codes = [quantize_samples(r, value) for r, value in zip(reals, types, strict=True)]
        expected = interpreter.run(real, reals, exact=True)
        trace = interpreter.trace(integer, codes)
        for name, wanted in zip(integer.outputs, expected, strict=True):
            found = dequantized(trace[name], integer.values[name])
            wrong = np.argwhere(found != wanted)
            assert len(wrong) == 0, (
                f"{len(wrong)} of {found.size} differ in {name}, first at "
                f"{[(tuple(i), wanted[tuple(i)], found[tuple(i)]) for i in wrong[:5]]}\n"
                f"{text(integer)}"
            )
        for name, array in trace.items():
            if array.size == 0:
                continue
            channels = array.shape[-1] if array.ndim else 1
            for c, (low, high) in enumerate(limits[name].over(channels)):
                column = array[..., c] if array.ndim else array
                assert low <= column.min(), (name, c)
                assert column.max() <= high, (name, c)
    return integer


@pytest.mark.parametrize("seed", range(60))
def test_random_graphs(seed):
    assert_same_function(random_graph(seed, 1 + seed % 8, exact=True), seed)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_many_random_graphs(block):
    for seed in range(1000 + 50 * block, 1050 + 50 * block):
        assert_same_function(random_graph(seed, 1 + seed % 30, exact=True), seed, samples=1)


class Net:
    """A small QDQ graph by hand."""

    def __init__(self, shape, scale=0.5, dtype="int8", zero=0):
        self.b = GraphBuilder("net")
        self.x = self.q(self.b.input("x", "float32", shape), scale, dtype, zero)

    def parameters(self, scale, dtype, zero):
        return [
            self.b.constant("scale", np.array(scale, np.float32)),
            self.b.constant("zero", np.array(zero, dtype)),
        ]

    def q(self, x, scale, dtype="int8", zero=0):
        codes = self.b.add("QuantizeLinear", [x, *self.parameters(scale, dtype, zero)], {"axis": 1})
        return self.b.add(
            "DequantizeLinear", [codes, *self.parameters(scale, dtype, zero)], {"axis": 1}
        )

    def weight(self, codes, scale, axis=0):
        scale = np.asarray(scale, np.float32)
        zero = np.zeros(scale.shape, codes.dtype)
        return self.b.add(
            "DequantizeLinear",
            [
                self.b.constant("w", codes),
                self.b.constant("s", scale),
                self.b.constant("z", zero),
            ],
            {"axis": axis},
        )


CONV = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1}


def conv_net(bias=None, bias_scale=None, extra=()):
    rng = np.random.default_rng(0)
    net = Net((1, 3, 5, 5), 0.25, "uint8", 100)
    w = net.weight(rng.integers(-128, 128, (4, 3, 3, 3)).astype(np.int8), [0.5, 0.25, 0.125, 1])
    inputs = [net.x, w]
    if bias is not None:
        inputs.append(net.weight(bias, bias_scale))
    y = net.b.add("Conv", inputs, CONV)
    for op, attributes in extra:
        y = net.b.add(op, [y], attributes)
    return net, y


def test_integer_bias_is_used_as_it_is():
    bias = np.array([1000, -70000, 3, 0], np.int32)
    net, y = conv_net(bias, np.float32(0.25) * np.array([0.5, 0.25, 0.125, 1], np.float32))
    graph = assert_same_function(net.b.build([net.q(y, 3.0)]))
    assert [n.op for n in graph.nodes] == ["transpose", "conv", "requantize", "transpose"]


def test_relu_and_clip_join_the_requantization():
    net, y = conv_net(extra=[("Relu", {}), ("Clip", {"min": -1.0, "max": 50.0})])
    graph = assert_same_function(net.b.build([net.q(y, 1.0, "int8", -5)]))
    requantize = next(n for n in graph.nodes if n.op == "requantize")
    assert (requantize.attributes["low"], requantize.attributes["high"]) == (-5, 45)


def test_a_chain_becomes_one_table():
    net = Net((2, 7), 0.125, "int8", 3)
    y = net.b.add("Relu", [net.b.add("Neg", [net.x])])
    y = net.b.add("Mul", [y, net.x])
    graph = assert_same_function(net.b.build([net.q(y, 0.75, "uint8", 200)]))
    assert [n.op for n in graph.nodes] == ["table"]


def test_a_constant_per_channel_is_a_multiply_add_or_a_table_per_channel():
    for grid, ops in ((2.0**-8, ["affine", "requantize"]), (None, ["table"])):
        net = Net((2, 3), 0.125)
        gain = np.array([0.7, -1.3, 1e-7]) if grid is None else np.array([3, -5, 700]) * grid
        y = net.b.add("Mul", [net.x, net.b.constant("gain", gain.astype(np.float32))])
        y = net.b.add("Add", [y, net.b.constant("o", np.array([1, 0, -1], np.float32))])
        graph = assert_same_function(net.b.build([net.q(y, 0.1)]))
        assert [n.op for n in graph.nodes] == ops


def test_equal_quantization_moves_nothing():
    net = Net((1, 4), 0.25)
    graph = lower_graph(net.b.build([net.q(net.b.add("Relu", [net.x]), 0.25)]))
    assert [n.op for n in graph.nodes] == ["clip"]


def test_quantize_moves_through_reshapes_to_the_sum():
    net, y = conv_net(extra=[("Flatten", {"axis": 1})])
    y = net.b.add("Reshape", [y], {"shape": (10, 10)})
    graph = assert_same_function(net.b.build([net.q(y, 3.0)]))
    assert "requantize" in [n.op for n in graph.nodes]


def test_an_accumulator_may_leave_the_graph():
    net = Net((2, 6), 0.5)
    w = net.weight(np.arange(18, dtype=np.int8).reshape(3, 6), 0.25)
    y = net.b.add("Gemm", [net.x, w], {"transB": 1})
    graph = assert_same_function(net.b.build([y]))
    assert graph.values[y].dtype == "int32"
    assert graph.values[y].quantization.scale == Fraction(1, 8)


def test_a_bias_scale_rounded_to_binary32_stands_for_the_product():
    net = Net((1, 2), 0.1)
    w = net.weight(np.array([[3, 4]], np.int8), 0.3)
    product = np.float32(0.1) * np.float32(0.3)
    y = net.b.add("Gemm", [net.x, w, net.weight(np.array([17], np.int32), product)], {"transB": 1})
    graph = lower_graph(net.b.build([net.q(y, 0.01)]))
    linear = next(n for n in graph.nodes if n.op == "linear")
    assert graph.constants[linear.inputs[2]].tolist() == [17]


def sum_of_terms(seed, rows, zeros=False, sign="Add"):
    """x Wᵀ + h Rᵀ +- c . P: products with a scale per row where `rows`, a constant per channel."""
    rng = np.random.default_rng(seed)
    size = 6
    net = Net((1, 4), 2.0**-4, "int8", int(rng.integers(-9, 9)))
    h = net.q(net.b.input("h", "float32", (1, 3)), 2.0**-7, "int16")
    c = net.q(net.b.input("c", "float32", (1, size)), 2.0**-9, "int16")

    def scales(count):
        parts = rng.integers(128, 256, count or ()) / 2.0 ** rng.integers(12, 16, count or ())
        return parts.astype(np.float32)

    count = size if rows else 0
    x, y = (
        net.b.add(
            "Gemm",
            [of, net.weight(rng.integers(-127, 128, (size, width)).astype(np.int8), scales(count))],
            {"transB": 1},
        )
        for of, width in ((net.x, 4), (h, 3))
    )
    codes = rng.integers(-127, 128, (1, size)).astype(np.int8)
    if zeros:
        codes[0, ::2] = 0
    peephole = net.b.add("Mul", [c, net.weight(codes, scales(0))])
    total = net.b.add("Add", [x, y])
    total = net.b.add(sign, [total, peephole])
    return net.b.build([net.q(total, 2.0**-12, "int16")])


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("sign", ["Add", "Sub"])
def test_sums_of_terms_with_a_scale_per_channel(rows, zeros, sign):
    for seed in range(20):
        integer = assert_same_function(sum_of_terms(seed, rows, zeros, sign), seed)
        ops = [node.op for node in integer.nodes]
        assert ops.count("affine") == (3 if rows else 1)
        assert ops.count("requantize") == 1
        assert "table" not in ops


@pytest.mark.parametrize("count", [1, 4])
def test_products_with_zero(count):
    """A factor 0 for all channels or some, as a term of a sum and before a QuantizeLinear."""
    net = Net((1, 4), 0.5, "int8", 3)
    w = net.weight(np.arange(-8, 8, dtype=np.int8).reshape(4, 4), 0.25)
    codes = np.array([0, 5, 0, -7][:count], np.int8)
    nothing = net.b.add("Mul", [net.x, net.weight(codes, 0.125)])
    total = net.b.add("Add", [net.b.add("Gemm", [net.x, w], {"transB": 1}), nothing])
    assert_same_function(net.b.build([net.q(total, 0.25), net.q(nothing, 0.5)]))


def test_sums_beyond_64_bits_say_so():
    for scale in (2.0**-60, 2.0**-126):
        net = Net((1, 2), 1.0)
        w = [net.weight(np.full((2, 2), 100, np.int8), s) for s in ([1.0, scale], [scale, 1.0])]
        parts = [net.b.add("Gemm", [net.x, matrix], {"transB": 1}) for matrix in w]
        graph = net.b.build([net.q(net.b.add("Add", parts), 1.0)])
        with pytest.raises(RangeError, match=r"expected (sums|constants) below 2\*\*6[23]"):
            lower_graph(graph)


def test_wide_sums_are_int64():
    net = Net((1, 300), 0.5, "int16")
    w = net.weight(np.full((1, 300), 32767, np.int16), 0.25)
    graph = assert_same_function(
        net.b.build([net.q(net.b.add("Gemm", [net.x, w], {"transB": 1}), 1e4, "int16")])
    )
    assert graph.values[graph.nodes[0].output].dtype == "int64"


def unsupported(net, y):
    with pytest.raises(UnsupportedError) as caught:
        lower_graph(net.b.build([y]))
    return str(caught.value)


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("GlobalMaxPool", {}),
        ("ReduceMax", {"axes": (2, 3)}),
        ("ReduceMin", {"axes": (1,), "keepdims": 0}),
        ("Split", {"axis": 1, "sizes": (4,)}),
    ],
)
def test_rounding_moves_before_what_selects_of_an_accumulator(op, attributes):
    net, y = conv_net()
    assert_same_function(net.b.build([net.q(net.b.add(op, [y], attributes), 0.75, "int8", -5)]))


def test_errors_name_the_node_and_say_what_to_do():
    net, y = conv_net()
    tanh = net.b.add("Tanh", [y], name="act")
    message = unsupported(net, net.q(tanh, 0.1))
    assert "node 'act' (Tanh)" in message
    assert "QuantizeLinear between the accumulator" in message

    net = Net((1, 3))
    w = net.b.constant("w", np.ones((3, 2), np.float32))
    message = unsupported(net, net.b.add("MatMul", [net.x, w], name="fc"))
    assert "'fc'" in message

    net = Net((1, 3))
    message = unsupported(net, net.b.add("Tanh", [net.x], name="tail"))
    assert "add a QuantizeLinear at the output" in message

    b = GraphBuilder("float")
    x = b.input("x", "float32", (1, 3))
    with pytest.raises(UnsupportedError, match=r"input 'x'.*quantize the model first"):
        lower_graph(b.build([b.add("Relu", [x])]))
