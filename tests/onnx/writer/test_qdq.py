"""Real graphs as ONNX: every operator goes out and comes back; exact forms are exact."""

from fractions import Fraction

import numpy as np
import onnx
import pytest

from compare import assert_same
from real_cases import CASES, I8, VARIANTS, F, X, number, one_node, samples
from samebits.errors import SamebitsError, UnsupportedError
from samebits.ir import GraphBuilder, interpreter
from samebits.ir.lowering.lower import lower_graph
from samebits.ir.ops import known_ops
from samebits.onnx import binary32_exact, exact_form, from_model, load, save_qdq, to_qdq
from samebits.onnx.writer.loadable import loadable_form
from samebits.verification.backends.onnxruntime import pairs_saturate


def meant(graph, node):
    """The attributes; scales of a resize that say what its sizes say are left out."""
    attributes = dict(node.attributes)
    if attributes.get("sizes") and attributes.get("scales") is not None:
        shape = graph.values[node.inputs[0]].shape
        sizes = zip(attributes["sizes"], shape, strict=True)
        if [Fraction(out, size) for out, size in sizes] == list(attributes["scales"]):
            attributes["scales"] = None
    return attributes


def assert_same_graph(found, expected):
    assert found.inputs == expected.inputs
    assert found.outputs == expected.outputs
    assert {n: found.values[n] for n in found.inputs} == {
        n: expected.values[n] for n in expected.inputs
    }
    assert len(found.nodes) == len(expected.nodes)
    for a, b in zip(found.nodes, expected.nodes, strict=True):
        assert (a.op, a.name, a.outputs) == (b.op, b.name, b.outputs)
        assert meant(found, a) == meant(expected, b)
        for x, y in zip(a.inputs, b.inputs, strict=True):
            if y in expected.constants:
                np.testing.assert_array_equal(found.constants[x], expected.constants[y])
                assert found.constants[x].dtype == expected.constants[y].dtype
            else:
                assert x == y


def test_every_real_operator_has_a_case():
    real = {op.name for op in known_ops() if not op.integer}
    assert real - set(CASES) <= {"Swish", "CumProd", "BitCast"}  # tested apart


@pytest.mark.parametrize(("op", "variant"), VARIANTS)
def test_operator_goes_out_and_comes_back(op, variant):
    graph = one_node(op, *CASES[op][variant])
    model = to_qdq(graph, "float")
    onnx.checker.check_model(model, full_check=True)
    found = from_model(model)
    if op != "Identity":  # loading drops it
        assert_same_graph(found, graph)
    inputs = samples(graph)
    for a, b in zip(interpreter.run(found, inputs), interpreter.run(graph, inputs), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("op", "variant"), VARIANTS)
def test_onnxruntime_reads_what_is_meant(op, variant):
    pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    graph = one_node(op, *CASES[op][variant])
    inputs = samples(graph)
    wanted = interpreter.run(graph, inputs)
    for a, b in zip(run(to_qdq(graph, "float"), inputs), wanted, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_allclose(a.astype(float), b.astype(float), rtol=1e-5, atol=1e-6)


def run(model, inputs, level="ORT_DISABLE_ALL"):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [value.name for value in session.get_inputs()]
    return session.run(None, dict(zip(names, inputs, strict=True)))


def test_swish_is_written_as_mul_and_sigmoid():
    for alpha in (1.0, 1.5):
        graph = one_node("Swish", [X], {"alpha": alpha})
        found = from_model(to_qdq(graph, "float"))
        assert {node.op for node in found.nodes} == {"Mul", "Sigmoid"}
        inputs = samples(graph)
        np.testing.assert_allclose(
            interpreter.run(found, inputs)[0], interpreter.run(graph, inputs)[0], rtol=1e-6
        )


def test_names_beside_those_of_the_graph():
    b = GraphBuilder("names")
    x = b.input("x", "float32", (3,))
    y = b.add("RoundDynamic", [x], outputs=["v"])
    others = [b.add("Relu", [x], outputs=[f"v.{n}"]) for n in ("codes", "scale", "zero_point")]
    onnx.checker.check_model(to_qdq(b.build([y, *others])), full_check=True)


def test_opsets_are_the_lowest_that_fit():
    def opset(op, variant):
        model = to_qdq(one_node(op, *CASES[op][variant]), "float")
        return model.opset_import[0].version, model.ir_version

    assert opset("Relu", 0) == (18, 8)
    assert opset("QuantizeLinear", 0) == (18, 8)
    assert opset("AveragePool", 0) == (19, 9)
    assert opset("AveragePool", 1) == (18, 8)
    assert opset("Gelu", 0) == (20, 9)
    assert opset("QuantizeLinear", 1) == (21, 10)
    assert opset("DequantizeLinear", 1) == (21, 10)


def test_binary64_scales_are_written_out():
    build = GraphBuilder("wide")
    x = build.input("x", "int32", (2, 3))
    scale = build.constant("s", np.array([0.1, 0.3, 2.0**-50]))
    zero = build.constant("z", np.array([1, 2, -7], np.int32))
    y = build.add("DequantizeLinear", [x, scale, zero], {"axis": 1})
    graph = build.build([y])
    inputs = [np.array([[2**31 - 1, -(2**31), 5], [1, 2, -7]], np.int32)]
    model = to_qdq(graph, "float")
    onnx.checker.check_model(model, full_check=True)
    np.testing.assert_array_equal(
        interpreter.run(from_model(model), inputs)[0], interpreter.run(graph, inputs)[0]
    )


def test_what_onnx_cannot_say_is_refused():
    def message(graph, **options):
        with pytest.raises(UnsupportedError) as caught:
            to_qdq(graph, **options)
        return str(caught.value)

    stored = float(np.float32(0.1))
    assert message(one_node("Elu", [X], {"alpha": 0.1})) == (
        "node 'the node' (Elu): expected alpha to be a binary32 number, found 0.1; "
        f"ONNX stores {stored}: use that"
    )
    assert message(one_node("CumProd", [X], {"axis": 0})) == (
        "node 'the node' (CumProd): expected an operator of opset 21 or older, found CumProd (26); "
        "compute it before"
    )
    assert message(one_node("BitCast", [X], {"source": "float32", "to": "int32"})) == (
        "node 'the node' (BitCast): expected an operator of opset 21 or older, found BitCast "
        "(26); compute it before"
    )
    assert message(one_node("Cast", [X], {"to": "float8_e5m2"})).startswith(
        "graph 'Cast': expected types of opset 21, found float8_e5m2 (value "
    )
    assert message(one_node("Clip", [X], {"min": 0.1})) == (
        "node 'the node' (Clip): expected min to be a number of float32, found 0.1; round it first"
    )
    wide = [("float64", (2,)), np.float64(0.5), np.int8(0)]
    assert message(one_node("QuantizeLinear", wide, {})) == (
        "node 'the node' (QuantizeLinear): expected binary32 numbers, found float64; "
        "ONNX quantizes no binary64 tensors"
    )
    build = GraphBuilder("projected")
    shapes = {"x": (5, 2, 3), "w": (1, 16, 3), "r": (1, 16, 2), "p": (1, 2, 4)}
    x, w, r, p = (build.input(name, F, shape) for name, shape in shapes.items())
    inputs = [x, w, r, "", "", "", "", "", p]
    made = build.add("LSTM", inputs, {"hidden_size": 4}, "the node")
    assert message(build.build([made])) == (
        "node 'the node' (LSTM): expected no projection, found 'p'; ONNX's LSTM has none"
    )
    build = GraphBuilder("codes")
    integer = build.build([build.add("maximum", [build.input(n, I8, (2,)) for n in "ab"])])
    assert message(integer).startswith("graph 'codes': expected a real graph, found integer")


# --- quantized networks -----------------------------------------------------------------------


class Network(GraphBuilder):
    """Quantized layers with random codes; `power` scales are powers of two."""

    def __init__(self, seed, power=True):
        super().__init__("network")
        self.rng = np.random.default_rng(seed)
        self.power = power

    def scale(self, exponent):
        factor = 1.0 if self.power else self.rng.uniform(1, 2)
        return self.constant("scale", np.float32(factor * 2.0**exponent))

    def quantized(self, x, exponent, dtype="int8", zero=0):
        scale = self.scale(exponent)
        parameters = [scale, self.constant("zero", np.array(zero, dtype))]
        codes = self.add("QuantizeLinear", [x, *parameters])
        return self.add("DequantizeLinear", [codes, *parameters])

    def weights(self, shape, exponent):
        codes = self.rng.integers(-127, 128, shape).astype(np.int8)
        scales = np.float32(2.0) ** self.rng.integers(exponent - 2, exponent + 1, shape[0])
        if not self.power:
            scales = scales * self.rng.uniform(1, 2, shape[0])
        names = [
            self.constant("w", codes),
            self.constant("ws", scales.astype(np.float32)),
            self.constant("wz", np.zeros(shape[0], np.int8)),
        ]
        return self.add("DequantizeLinear", names, {"axis": 0})

    def bias(self, count, exponent):
        array = self.rng.integers(-1000, 1000, count) * 2.0**exponent
        return self.constant("b", array.astype(np.float32))

    def conv(self, x, outputs, exponent=-5, **more):
        channels = self.values[x].shape[1] // more.get("group", 1)
        attributes = {"strides": (1, 1), "pads": (1,) * 4, "dilations": (1, 1), **more}
        w = self.weights((outputs, channels, 3, 3), -7)
        y = self.add("Conv", [x, w, self.bias(outputs, -14)], attributes)
        return self.quantized(y, exponent)


def network(seed, power=True):
    build = Network(seed, power)
    x = build.input("image", F, (1, 3, 7, 9))
    x = build.quantized(x, -6, "uint8", 128)
    x = build.conv(x, 4)
    x = build.quantized(build.add("LeakyRelu", [x], {"alpha": number(0.1)}), -5)
    y = build.conv(x, 4, group=4)
    y = build.quantized(build.add("Sigmoid", [y]), -8, "uint8")
    x = build.quantized(build.add("Add", [x, y]), -5)
    x = build.quantized(build.add("Relu", [x]), -5)
    pool = {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1,) * 4, "dilations": (1, 1)}
    x = build.quantized(build.add("AveragePool", [x], {**pool, "count_include_pad": seed % 2}), -6)
    x = build.add("Resize", [x], {"sizes": (1, 4, 7, 8)})
    x = build.conv(x, 6, -4, strides=(2, 3))
    x = build.quantized(build.add("HardSwish", [x]), -4, "int16")
    x = build.quantized(build.add("GlobalAveragePool", [x]), -6)
    x = build.add("Flatten", [x])
    w = build.weights((5, 6), -7)
    x = build.add("Gemm", [x, w, build.bias(5, -14)], {"transB": 1})
    return build.build([build.quantized(x, -6)])


def images(graph, seed):
    shape = graph.values[graph.inputs[0]].shape
    return [np.random.default_rng(seed).normal(0, 1, shape).astype(np.float32)]


@pytest.mark.parametrize("seed", range(4))
def test_a_quantized_network_goes_out_and_comes_back(tmp_path, seed):
    graph = network(seed, power=seed % 2 == 0)
    path = tmp_path / "network.onnx"
    save_qdq(graph, path)
    found = load(path)
    assert_same_graph(found, loadable_form(graph))
    inputs = images(graph, seed)
    np.testing.assert_array_equal(
        interpreter.run(found, inputs)[0], interpreter.run(graph, inputs)[0]
    )
    assert_same_graph(lower_graph(found), lower_graph(graph))
    first = path.read_bytes()
    save_qdq(graph, path)
    assert path.read_bytes() == first
    assert [file.name for file in tmp_path.iterdir()] == ["network.onnx"]
    with pytest.raises(SamebitsError, match="cannot be written"):
        save_qdq(graph, path / "within a file.onnx")


@pytest.mark.parametrize("seed", range(4))
def test_exact_forms_are_the_same_function(seed):
    graph = network(seed, power=seed % 2 == 0)
    exact = exact_form(graph)
    assert not {node.op for node in exact.nodes} & {"Sigmoid", "Resize", "GlobalAveragePool"}
    inputs = images(graph, seed)
    assert_same(interpreter.run(exact, inputs)[0], interpreter.run(graph, inputs)[0], np.arange(5))


@pytest.mark.parametrize("seed", range(4))
def test_power_of_two_networks_are_exact_in_onnxruntime(seed):
    """As written; and optimized to 8-bit kernels, where these do not saturate pairs of products."""
    pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    graph = network(seed)
    assert binary32_exact(exact_form(graph)) == []
    levels = ("ORT_DISABLE_ALL",) if pairs_saturate() else ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL")
    for case in range(3):
        inputs = images(graph, case)
        expected = interpreter.run(graph, inputs)[0]
        for level in levels:
            assert_same(run(to_qdq(graph), inputs, level)[0], expected, np.arange(5))


def test_what_rounds_is_named():
    found = binary32_exact(network(0))
    assert [line.split(":")[0] for line in found] == [
        "node 'LeakyRelu' (LeakyRelu)",
        "node 'Sigmoid' (Sigmoid)",
        "node 'AveragePool' (AveragePool)",
        "node 'Resize' (Resize)",
        "node 'HardSwish' (HardSwish)",
        "node 'GlobalAveragePool' (GlobalAveragePool)",
    ]
    found = binary32_exact(exact_form(network(0, power=False)))
    assert found
    assert all("is no power of two" in line for line in found)


def proof(build, outputs):
    return [line.split(": ", 1)[1] for line in binary32_exact(build.build(outputs))]


@pytest.mark.parametrize("terms", [1032, 1033])
def test_the_bound_of_sums_is_sharp(terms):
    build = Network(0)
    x = build.quantized(build.input("x", F, (1, terms)), -3, "int8")
    codes = build.constant("w", np.full((terms, 1), 127, np.int8))
    w = build.add("DequantizeLinear", [codes, build.scale(-9), build.constant("z", np.int8(0))])
    assert 128 * 127 * 1032 <= 2**24 < 128 * 127 * 1033
    expected = [] if terms == 1032 else ["its sums need up to 25 bits, float32 has 24"]
    assert proof(build, [build.quantized(build.add("MatMul", [x, w]), -3)]) == expected


def test_quotients_are_checked_against_the_next_code():
    def message(count, exponent):
        build = Network(0)
        x = build.quantized(build.input("x", F, (1, 1, 1, count)), -3)
        total = build.add("ReduceSum", [x], {"axes": (3,)})
        divisor = build.constant("n", np.float32(count))
        return proof(build, [build.quantized(build.add("Div", [total, divisor]), exponent)])

    assert message(49, -3) == []
    assert message(49, 0) == []
    assert message(3001, 0) == []
    assert message(3001, 3) == ["a rounded quotient by up to 3001 may reach the wrong code"]


def test_products_with_data_and_unquantized_inputs():
    def messages(op, *inputs):
        build = Network(0)
        values = {"x": build.input("x", F, (4, 4))}
        values["y"] = build.quantized(values["x"], -3)
        return proof(build, [build.quantized(build.add(op, [values[i] for i in inputs]), -3)])

    assert messages("Mul", "y", "y") == messages("MatMul", "y", "y") == []
    assert messages("Relu", "x") == []
    assert messages("Add", "x", "y") == ["it computes on a graph input that is not quantized"]
    assert messages("Div", "y", "y") == ["it divides by data"]
    assert messages("Exp", "y") == ["its result is rounded in binary32"]


def test_decisions_and_picked_elements_are_exact():
    build = Network(0)
    x = build.quantized(build.input("x", F, (4, 4)), -3)
    index = build.constant("i", np.array([[3, 0]], np.int64))
    zero = build.constant("zero", np.zeros((4, 4), F))
    finite = build.add("Where", [build.add("IsNaN", [x]), zero, x])
    outputs = [
        build.add("Where", [build.add("IsInf", [x]), zero, finite]),
        build.add("GatherElements", [x, index], {"axis": 1}),
        build.add("GatherND", [x, index]),
    ]
    graph = build.build([build.quantized(y, -3) for y in outputs])
    assert binary32_exact(graph) == []
    third = build.add("Div", [x, build.constant("n", np.float32(3))])
    assert proof(build, [build.add("IsNaN", [third])]) == [
        "it compares quotients that were rounded"
    ]


@pytest.mark.parametrize("op", ["Max", "Min"])
@pytest.mark.parametrize("bound", [0.3, -0.0625, 100.0])
def test_bounds_with_scales_of_powers_of_two_need_no_table(op, bound):
    """A Max with a constant rounds no more than a Clip does."""
    build = Network(0)
    x = build.quantized(build.input("x", F, (16, 16)), -5)
    y = build.add(op, [x, build.constant("bound", np.float32(bound))])
    graph = build.build([build.quantized(y, -3, "uint8", 17)])
    exact = exact_form(graph)
    assert op in {node.op for node in exact.nodes}
    assert binary32_exact(exact) == []
    inputs = [(np.arange(-128, 128).reshape(16, 16) / 32).astype(np.float32)]
    expected = interpreter.run(graph, inputs, exact=True)[0]
    found = interpreter.run(exact, inputs)[0]
    assert_same(found, expected.astype(found.dtype), np.arange(256))


def test_tables_in_every_pair_of_types():
    pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    for source in ("int8", "uint8", "int16", "uint16"):
        for target in ("int8", "uint8", "int16", "uint16"):
            build = Network(0)
            info = np.iinfo(source)
            x = build.input("x", F, (1 << (8 * info.dtype.itemsize),))
            zero = 5 if info.min else 100
            y = build.quantized(x, -5 if info.bits == 8 else -12, source, zero)
            y = build.add("Tanh", [build.add("Mul", [y, build.constant("k", np.float32(1.3))])])
            graph = build.build([build.quantized(y, -7, target, 17)])
            codes = np.arange(info.min, info.max + 1)
            step = 2.0 ** (-5 if info.bits == 8 else -12)
            inputs = [((codes - zero) * step).astype(np.float32)]
            exact = exact_form(graph)
            assert {node.op for node in exact.nodes} == {
                *("QuantizeLinear", "DequantizeLinear", "Cast", "Gather"),
                *(("Add",) if info.min else ()),
            }
            assert binary32_exact(exact) == []
            expected = interpreter.run(graph, inputs)[0]
            assert_same(run(to_qdq(graph), inputs)[0], expected, codes)


def test_scales_stay_fractions_of_binary32():
    graph = lower_graph(network(1, power=False))
    for name in (*graph.inputs, *graph.outputs):
        quantization = graph.values[name].quantization
        assert quantization is not None
        assert quantization.scale == Fraction(float(np.float32(float(quantization.scale))))
