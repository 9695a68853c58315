"""QDQ form: every code is the definition's, weights and biases included; names stay."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compare import assert_same
from samebits.errors import InputError, NonFiniteError
from samebits.ir import GraphBuilder
from samebits.ir.interpreter import run, trace
from samebits.ir.lowering.lower import lower_graph
from samebits.ir.verify import verify
from samebits.numerics import ScaleRule
from samebits.quantization import ACTIVATIONS, WEIGHTS, Settings, quantize_graph
from samebits.quantization.calibrate import from_range
from samebits.quantization.convert import softmax_numbers
from samebits.quantization.weights import CLIPS, LARGEST_BIAS, bias_codes, encode, weight_codes
from samebits.recipes.quantization import METHODS
from samebits.spec import formats as exact

WIDE = 40 * np.ones((1, 2, 6, 6), np.float32)  # far beyond the calibrated range


def by_name(graph, op):
    """name of the float value -> node, for the nodes that quantize activations."""
    return {n.inputs[0]: n for n in graph.nodes if n.op == op}


# --- activations ------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("scheme", ACTIVATIONS)
def test_every_code_is_the_definition_s(residual_net, scheme, method):
    """In Fractions: codes = exact.encode(value before QuantizeLinear); the integer graph has the
    same codes. Samples inside and beyond the calibrated range, of both signs."""
    graph, samples = residual_net
    settings = Settings(activations=scheme, calibration=method, percentile=97.0)
    quantized, report = quantize_graph(graph, samples, settings)
    verify(quantized)
    integer = lower_graph(quantized)
    formats = {t.name: ACTIVATIONS[t.format] for t in report.tensors}
    quantizers = [n for n in quantized.nodes if n.op == "QuantizeLinear"]
    assert len(quantizers) == len(report.tensors) == 7
    for x in (samples[0]["x"], samples[1]["x"], WIDE, -WIDE):
        values = trace(quantized, [x], exact=True)
        for node, tensor in zip(quantizers, report.tensors, strict=True):
            fmt = formats[tensor.name]
            scale = Fraction(tensor.scale)
            assert Fraction(float(quantized.constants[node.inputs[1]])) == scale
            assert int(quantized.constants[node.inputs[2]]) == tensor.zero_point
            before = values[node.inputs[0]].reshape(-1).tolist()
            codes = [exact.encode(v, scale, tensor.zero_point, fmt) for v in before]
            if tensor.name != "x":
                assert_same(values[node.output], codes, before)
        found = run(integer, [values["x.codes"]])[0]
        assert_same(found, values["y.codes"], values["y.codes"])


def test_the_restricted_range_leaves_out_one_code(residual_net):
    """Codes of activations stay in +-127; those of the graph's input saturate to the type."""
    graph, samples = residual_net
    for scheme, least in (("symmetric-s8", -127), ("symmetric-s8-full", -128)):
        quantized, _ = quantize_graph(graph, samples, Settings(activations=scheme))
        values = trace(quantized, [-WIDE])
        assert values["x.codes"].min() == -128
        codes = {name: int(a.min()) for name, a in values.items() if name.endswith(".codes")}
        assert min(codes["d.codes"], codes["y.codes"]) == least


@pytest.mark.parametrize("scheme", ACTIVATIONS)
def test_softmax_has_a_fixed_scale(net, scheme):
    n = net()
    logits = n.gemm("l", n.input("x", 1, 4), 3, 4)
    graph = n.build(n.add("Softmax", "y", logits, axis=1))
    quantized, report = quantize_graph(graph, [[n.normal(1, 4)]], Settings(activations=scheme))
    fmt = ACTIVATIONS[scheme]
    tensor = report.tensors[-1]
    numbers = softmax_numbers(fmt, whole=True)
    assert (numbers.scale, numbers.zero_point) == (Fraction(tensor.scale), tensor.zero_point)
    assert (tensor.low, tensor.high) == (0, 1)
    inner = softmax_numbers(fmt)
    if fmt.rule is ScaleRule.ASYMMETRIC:
        assert (inner.scale, inner.zero_point) == (Fraction(1, 2**fmt.bits), fmt.code_min)
    else:
        assert (inner.scale, inner.zero_point) == (Fraction(2, 2**fmt.bits), 0)
    sure = numbers.scale * (fmt.code_max - numbers.zero_point)
    assert (abs(sure - 1) < 2**-20) == (fmt.rule is not ScaleRule.FIXED)
    x = n.normal(1, 4)
    values = trace(quantized, [x])
    assert_same(
        run(lower_graph(quantized), [values["x.codes"]])[0], values["y.codes"], values["y.codes"]
    )


def test_outputs_of_16_bits(residual_net):
    graph, samples = residual_net
    quantized, report = quantize_graph(graph, samples, Settings(output_bits=16))
    formats = [t.format for t in report.tensors]
    assert formats == ["asymmetric-s8"] * 6 + ["asymmetric-s16"]
    assert quantized.values["y.codes"].dtype == "int16"
    eight, _ = quantize_graph(graph, samples, Settings(activations="symmetric-s16", output_bits=8))
    assert eight.values["y.codes"].dtype == "int8"


def test_an_output_that_is_read_inside_keeps_the_bits_of_activations(net):
    n = net()
    a = n.add("Tanh", "a", n.input("x", 1, 4))
    b = n.add("Reshape", "b", n.gemm("b0", a, 4, 4), shape=(4, 1))
    graph = n.build(a, b)
    _, report = quantize_graph(graph, [[n.normal(1, 4)]], Settings(output_bits=16))
    assert [t.format for t in report.tensors] == ["asymmetric-s8"] * 2 + ["asymmetric-s16"]


def test_names_of_the_interface_stay(net):
    """Also where a node has the name of a value, and an output the name that a helper wants."""
    n = net()
    x = n.input("x", 1, 4)
    a = n.builder.add("Relu", [x], {}, "y", ["a"])
    b = n.builder.add("Tanh", [a], {}, "b_node", ["a.codes"])
    graph = n.build(a, b, n.builder.add("Reshape", [b], {"shape": (4, 1)}, "r", ["x.quantize"]))
    quantized, _ = quantize_graph(graph, [[n.normal(1, 4)]])
    verify(quantized)
    assert quantized.inputs == ("x",)
    assert quantized.outputs == graph.outputs == ("a", "a.codes", "x.quantize")
    assert [quantized.values[o].dtype for o in quantized.outputs] == ["float32"] * 3


# --- nets of many operators -------------------------------------------------------------------

TRANSPOSE = {"strides": (2, 2), "pads": (0, 0, 0, 0), "dilations": (1, 1), "group": 1}


def transposed(n):
    x = n.input("x", 1, 4, 3, 3)
    a = n.add(
        "ConvTranspose", "a", x, n.weight("w", 4, 3, 2, 2), n.weight("b", 3),
        output_padding=(0, 0), **TRANSPOSE,
    )  # fmt: skip
    b = n.add(
        "ConvTranspose", "y", n.add("Relu", "r", a), n.weight("v", 3, 1, 2, 2),
        output_padding=(0, 0), **{**TRANSPOSE, "group": 3},
    )  # fmt: skip
    return b, (1, 4, 3, 3)


def attention(n):
    x = n.input("x", 2, 3, 4)
    q = n.add("Add", "q", n.add("MatMul", "q0", x, n.weight("wq", 4, 4)), n.weight("bq", 4))
    k = n.add("MatMul", "k", x, n.weight("wk", 4, 4))
    s = n.add("MatMul", "s", q, n.add("Transpose", "kt", k, perm=(0, 2, 1)))
    p = n.add("Softmax", "p", n.add("Mul", "h", s, n.constant("half", 0.5)), axis=2)
    y = n.add("Add", "y", n.add("MatMul", "v", p, x), n.weight("rows", 3, 4))
    return y, (2, 3, 4)


def inception(n):
    x = n.input("x", 1, 3, 6, 6)
    a = n.add("Relu", "a", n.conv("a0", x, 4, 3, 3, 3))
    b = n.add("Gelu", "b", n.conv("b0", x, 2, 3, 3, 3))
    p = n.add(
        "AveragePool", "p", x, kernel_shape=(3, 3), strides=(1, 1), pads=(1, 1, 1, 1),
        dilations=(1, 1), ceil_mode=0, count_include_pad=0,
    )  # fmt: skip
    c = n.add("Concat", "c", a, b, p, axis=1)
    d = n.conv("d", c, 9, 1, 3, 3, group=9)
    t = n.add("Max", "t", d, n.conv("e", c, 9, 9, 1, 1, pads=(0, 0, 0, 0)))
    s = n.add("Mul", "s", t, n.add("Sigmoid", "g", n.add("GlobalAveragePool", "m", t)))
    y = n.add("Sub", "y", n.add("Mul", "z", s, n.weight("channels", 9, 1, 1)), n.weight("o", 1))
    return y, (1, 3, 6, 6)


def products(n):
    x = n.input("x", 3, 4)
    a = n.gemm("a", x, 5, 4, alpha=0.5, beta=2.0)
    b = n.add(
        "Gemm", "b", n.add("LeakyRelu", "l", a, alpha=0.125), n.weight("w", 5, 4),
        n.constant("c", 0.75), transB=0,
    )  # fmt: skip
    y = n.add("Clip", "y", n.add("ReduceMean", "r", b, axes=(1,), keepdims=1), min=-1.0, max=1.0)
    return y, (3, 4)


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("build", [transposed, attention, inception, products])
def test_the_integer_graph_has_the_codes_of_the_quantized_graph(net, build, weights, per_channel):
    n = net(7)
    output, shape = build(n)
    graph = n.build(output)
    samples = [[n.normal(*shape)] for _ in range(3)]
    settings = Settings(weights=weights, per_channel=per_channel)
    quantized, report = quantize_graph(graph, samples, settings)
    verify(quantized)
    integer = lower_graph(quantized)
    for x in (*(sample[0] for sample in samples), 3 * n.normal(*shape)):
        values = trace(quantized, [x])
        codes = run(integer, [values["x.codes"]])[0]
        assert_same(codes, values["y.codes"], values["y.codes"])
    last = report.tensors[-1]
    assert last.sqnr_db is None or last.sqnr_db > 12


def test_a_transposed_convolution_has_a_scale_for_each_output_unless_it_has_groups(net):
    """Its weights are [in, out / group, ...]: groups share a position along the second axis."""
    n = net()
    y, shape = transposed(n)
    graph, samples = n.build(y), [[n.normal(*shape)]]
    settings = Settings(weights="symmetric-s8", per_channel=True)
    quantized, report = quantize_graph(graph, samples, settings)
    assert {c.name: c.scales for c in report.constants} == {"w": 3, "b": 3, "v": 1}
    weights = graph.constants["w"].astype(np.float64)
    found = next(node for node in quantized.nodes if node.inputs[0] == "w.codes")
    assert found.attributes["axis"] == 1
    scales = np.abs(weights).max((0, 2, 3)) / 127
    assert_same(quantized.constants[found.inputs[1]], scales.astype(np.float32), scales)


def test_a_constant_that_is_joined_has_the_scale_of_the_others(net):
    n = net()
    a = n.add("Tanh", "a", n.input("x", 1, 4))
    k = n.constant("k", [[5.0, -1.0]])
    graph = n.build(n.add("Concat", "y", a, k, axis=1))
    quantized, report = quantize_graph(graph, [[n.normal(1, 4)]])
    (constant,) = report.constants
    tensor = report.tensors[-1]
    assert (tensor.low, tensor.high) == (-1, 5)
    assert (constant.name, constant.format, constant.scales) == ("k", "asymmetric-s8", 1)
    assert constant.scale_min == tensor.scale
    fmt = ACTIVATIONS["asymmetric-s8"]
    codes = [
        exact.encode(Fraction(v), Fraction(tensor.scale), tensor.zero_point, fmt) for v in (5, -1)
    ]
    assert_same(quantized.constants["k.codes"], codes, [5, -1])


# --- weights ----------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", WEIGHTS.values(), ids=lambda f: f.name)
@pytest.mark.parametrize("axis", [None, 0, 1, 2])
def test_weights_by_definition(fmt, axis):
    values = np.random.default_rng(1).normal(size=(3, 4, 2)).astype(np.float32)
    values[0] *= 1e-6
    values[:, 1] = 0
    found = weight_codes(values, axis, fmt, "w", Fraction(1, 8))
    count = 1 if axis is None else values.shape[axis]
    assert len(found.scales) == len(found.zero_points) == count
    for index in range(count):
        part = values if axis is None else values.take([index], axis)
        codes = found.codes if axis is None else found.codes.take([index], axis)
        reals = [Fraction(v) for v in part.reshape(-1).tolist()]

        def away(numbers, reals=reals):
            scale, zero = numbers.scale, numbers.zero_point
            return sum((scale * (exact.encode(v, scale, zero, fmt) - zero) - v) ** 2 for v in reals)

        # Of fewer than 8 bits: the part of the range that leaves the least squared error.
        parts = CLIPS if fmt.bits < 8 else [1]
        numbers = min(
            (from_range(p * min(reals), p * max(reals), fmt, "w") for p in parts), key=away
        )
        assert (found.scales[index], found.zero_points[index]) == (
            numbers.scale,
            numbers.zero_point,
        )
        expected = [exact.encode(v, numbers.scale, numbers.zero_point, fmt) for v in reals]
        assert_same(codes, expected, part)


binary32 = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(
    st.lists(st.one_of(binary32, st.integers(-300, 300).map(lambda k: k / 2)), min_size=1),
    st.sampled_from([*ACTIVATIONS.values(), *WEIGHTS.values()]),
    st.floats(width=32, min_value=2.0**-149, max_value=2.0**127),
    st.integers(-(1 << 15), (1 << 16) - 1),
)
def test_encode_equals_the_definition(values, fmt, scale, zero_point):
    """Also for ties: half the values are multiples of half a step."""
    zero_point = min(max(zero_point, fmt.code_min), fmt.code_max)
    numbers = replace(
        from_range(Fraction(0), Fraction(1), fmt, "x"), scale=Fraction(scale), zero_point=zero_point
    )
    with np.errstate(over="ignore"):
        ties = np.array(values, np.float32) * np.float32(scale)
    x = np.concatenate([np.array(values, np.float32), ties[np.isfinite(ties)]])
    expected = [exact.encode(Fraction(v), numbers.scale, zero_point, fmt) for v in x.tolist()]
    assert_same(encode(x, [numbers], None).codes, expected, x)


def test_biases_by_definition():
    values = np.array([0.1, -3.0, 0.0, 7.25], np.float32)
    scales = [Fraction(float(np.float32(s))) for s in (0.1, 0.3, 1e-3, 5.0)]
    unit = Fraction(float(np.float32(0.7)))
    found = bias_codes(values, unit, scales)
    expected = [round(Fraction(float(v)) / (unit * s)) for v, s in zip(values, scales, strict=True)]
    assert_same(found.codes, expected, values)
    assert found.scales == tuple(exact.round_binary32(unit * s) for s in scales)
    assert found.axis == 0
    one = bias_codes(np.float32(0.5).reshape(()), unit, scales)
    assert one.codes.shape == (4,)
    rows = bias_codes(values.reshape(1, 4), unit, scales[:1])
    assert (rows.codes.shape, rows.axis) == ((1, 4), None)


@pytest.mark.parametrize("fmt", WEIGHTS.values(), ids=lambda f: f.name)
def test_scales_of_weights_suit_their_biases(fmt):
    """Tiny weights: the bias would leave int32. No weights: any scale does, a fine one is taken."""
    values = np.array([[1e-12, -2e-12], [0.0, 0.0], [0.0, 0.0], [1.0, 0.5]], np.float32)
    bias = np.array([3.0, 0.3, 0.0, 0.25], np.float32)
    scale_x = Fraction(float(np.float32(0.02)))
    found = weight_codes(values, 0, fmt, "w", scale_x, bias)
    codes = bias_codes(bias, scale_x, found.scales).codes.astype(np.int64)
    assert abs(codes).max() <= LARGEST_BIAS
    assert abs(codes[0]) > LARGEST_BIAS // 4
    back = [int(c) * scale_x * s for c, s in zip(codes, found.scales, strict=True)]
    for b, r in zip(bias.tolist(), back, strict=True):
        assert abs(Fraction(b) - r) <= abs(Fraction(b)) / 100
    assert found.scales[0] == Fraction(1, 1 << 22)  # the power of two above 150 / 2**30
    assert found.scales[2] == 1
    assert (abs(found.reals() - values) <= [[float(s)] for s in found.scales]).all()
    assert found.reals()[1].tolist() == [0.0, 0.0]


def test_products_of_scales_are_normal_binary32_numbers():
    values, bias = np.full((1, 1), 1e-30, np.float32), np.zeros(1, np.float32)
    fmt = WEIGHTS["symmetric-s8"]
    found = weight_codes(values, 0, fmt, "w", Fraction(2) ** -60, bias)
    assert found.scales[0] * Fraction(2) ** -60 == Fraction(2) ** -126
    with pytest.raises(InputError) as error:
        weight_codes(np.full((1, 1), 1e30, np.float32), 0, fmt, "w", Fraction(2) ** 60, bias)
    assert str(error.value) == (
        "weight 'w': expected products that binary32 holds, found weights up to 1e+30; scale the "
        "data or the weights down"
    )


def test_weights_that_are_not_finite(net):
    n = net()
    x = n.input("x", 1, 2)
    w = np.array([[1.0, np.nan]], np.float32)
    y = n.add("Gemm", "y", n.add("Relu", "r", x), n.constant("w", w), transB=1)
    with pytest.raises(NonFiniteError) as error:
        weight_codes(w, 0, WEIGHTS["symmetric-s8"], "w", Fraction(1))
    assert str(error.value) == (
        "constant 'w': expected finite values, found nan at flat index 1; repair the model before "
        "quantizing"
    )
    with pytest.raises(NonFiniteError, match="tensor 'y': expected finite values, found nan"):
        quantize_graph(n.build(y), [[n.normal(1, 2)]])


def test_biases_beyond_int32(net):
    """Weights that are activations: their scale is given."""
    n = net()
    x = n.input("x", 2, 4)
    weight = n.add("Transpose", "t", n.add("Mul", "m", x, n.constant("k", 1e-9)), perm=(1, 0))
    y = n.add("Gemm", "y", x, weight, n.constant("b", [3.0, 1.0]))
    graph = n.build(y)
    with pytest.raises(InputError, match=r"bias 'b': expected int32 codes in units of the product"):
        quantize_graph(graph, [[n.normal(2, 4)]])
    scales = [Fraction(2) ** -100]
    with pytest.raises(InputError, match=r"bias 'b': expected int32 codes"):
        bias_codes(np.zeros(1, np.float32), scales[0], scales, "b")
    one, fine = Fraction(1), [Fraction(2) ** -31]
    for bias in ([0.0, 2.0, 0.5], [-2.0, 0.25]):  # one code beyond is enough
        with pytest.raises(InputError, match=r"^bias 'b': expected int32 codes.*found 4294967296;"):
            bias_codes(np.array(bias, np.float32), one, fine, "b")
    most = np.array([1 - 2.0**-24, 0, 2.0**-24 - 1], np.float32)
    assert bias_codes(most, one, fine).codes.tolist() == [2**31 - 128, 0, 128 - 2**31]


def test_factors_of_a_gemm_are_those_of_its_constants(net):
    """alpha * w and beta * b get the codes: a row of 127 at most has the scale alpha * 127 / 127,
    biases those of the rows times the input's, 1 / 8."""
    n = net()
    w = n.constant("w", [[127, -64, 3], [2, 254, -18]])
    b = n.constant("b", [1.5, -12.0])
    y = n.add("Gemm", "y", n.input("x", 1, 3), w, b, transB=1, alpha=0.25, beta=0.75)
    settings = Settings(activations="power-of-two-s8", calibration="minmax")
    sample = np.array([[15, -8, 1]], np.float32)
    quantized, report = quantize_graph(n.build(y), [[sample]], settings)
    weights, biases = report.constants
    assert (weights.scales, weights.scale_min, weights.scale_max) == (2, 0.25, 0.5)
    assert quantized.constants["w.codes"].tolist() == [[127, -64, 3], [1, 127, -9]]
    assert report.tensors[0].scale == 1 / 8
    assert (biases.scale_min, biases.scale_max) == (1 / 32, 1 / 16)
    assert quantized.constants["b.codes"].tolist() == [36, -144]
    # codes of one byte and of four; a scale for each row, and a zero point beside it for weights
    assert (weights.bytes_after, biases.bytes_after) == (6 + 2 * (4 + 1), 2 * 4 + 2 * 4)


def test_a_negative_product_keeps_its_bias(net):
    n = net()
    x = n.input("x", 2, 4)
    y = n.add("Gemm", "y", x, n.input("w", 4, 2), n.constant("b", [3.0, 1.0]), alpha=-1.0)
    quantized, report = quantize_graph(n.build(y), [[n.normal(2, 4), n.normal(4, 2)]])
    assert "b" in quantized.constants
    assert not report.constants


def test_operands_that_are_not_finite(net):
    n = net()
    mask = n.constant("mask", np.array([[0, -np.inf], [0, 0]]))
    y = n.add("Max", "y", n.input("x", 2, 2), mask)
    with pytest.raises(NonFiniteError, match="constant 'mask': expected finite values, found -inf"):
        quantize_graph(n.build(y), [[n.normal(2, 2)]])


def test_empty_weights():
    with pytest.raises(InputError, match="weight 'w': expected at least one element, found none"):
        weight_codes(np.zeros((0, 2), np.float32), 0, WEIGHTS["symmetric-s8"], "w", Fraction(1))


def test_states_of_a_step_graph_stay():
    builder = GraphBuilder("steps")
    x = builder.input("x", "float32", (1, 4))
    start = builder.constant("start", np.full((1, 3), 0.5, np.float32))
    h = builder.state("h", "float32", (1, 3), start)
    w, r = (
        builder.constant(name, np.random.default_rng(n).uniform(-1, 1, (n, 3)).astype(np.float32))
        for name, n in (("w", 4), ("r", 3))
    )
    total = builder.add("Add", [builder.add("MatMul", [x, w]), builder.add("MatMul", [h, r])])
    following = builder.add("Tanh", [total], outputs=["next"])
    graph = builder.build([builder.add("Identity", [following], outputs=["y"]), following])
    random = np.random.default_rng(0)
    samples = [
        {"x": random.standard_normal((1, 4)).astype("f4"), "h": np.zeros((1, 3), "f4")}
        for _ in range(4)
    ]
    made, _ = quantize_graph(graph, samples)
    verify(made)
    (state,) = made.states
    assert (state.input, made.outputs[-1]) == ("h", state.output)
    assert (made.constants[state.initial] == 0.5).all()


def test_a_bias_without_elements_asks_for_no_coarser_scale():
    """That of a Gemm without rows; it has no largest element. A bias of 1 would need a coarser."""
    values = np.array([[1.0, -2.0], [0.5, 3.0]], np.float32) / 2**30
    one = np.ones(1, np.float32)
    for axis in (0, None):
        empty = np.zeros((0, 2), np.float32)
        given = (values, axis, WEIGHTS["symmetric-s8"], "w", Fraction(1, 8))
        scales = weight_codes(*given).scales
        assert weight_codes(*given, bias=empty).scales == scales
        assert weight_codes(*given, bias=one).scales != scales
