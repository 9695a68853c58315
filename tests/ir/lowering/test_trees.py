"""Lowering of decision trees, against the exact real graph; and of scalers by feature."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from ir.lowering.test_lower import Net, assert_same_function, lower_graph
from onnx_trees import model, random_lists
from samebits.errors import RangeError, UnsupportedError
from samebits.ir import GraphBuilder, Quantization, Value
from samebits.ir.interpreter import run
from samebits.onnx.reader.load import from_model
from samebits.verification.inputs import dequantize, random_codes


def tables(seed, features=3, targets=2, **options):
    """The constants of a random TreeEnsemble, in order."""
    lists = random_lists(np.random.default_rng(seed), features, targets, **options)
    graph = from_model(model("TreeEnsembleRegressor", 1, features, {**lists, "n_targets": targets}))
    (node,) = (node for node in graph.nodes if node.op == "TreeEnsemble")
    return [graph.constants[name] for name in node.inputs[1:]]


def trees(builder, x, seed=0, targets=2, arrays=None):
    names = [builder.constant("t", a) for a in arrays or tables(seed, 3, targets)]
    return builder.add("TreeEnsemble", [x, *names], {"targets": targets}, name="trees")


def by_feature(builder, scales, zero=0, dtype="int16", rows=4):
    """An input [rows, F] with a scale for each feature, dequantized."""
    x = builder.input("x", "float32", (rows, len(scales)))
    numbers = [
        builder.constant("s", np.array(scales, np.float32)),
        builder.constant("z", np.full(len(scales), zero, dtype)),
    ]
    codes = builder.add("QuantizeLinear", [x, *numbers], {"axis": 1})
    return builder.add("DequantizeLinear", [codes, *numbers], {"axis": 1})


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    ("dtype", "zero", "scale"),
    [("int8", 3, 0.1), ("uint8", 128, 0.03125), ("int16", -7, 0.25), ("uint16", 30000, 0.001)],
)
def test_one_scale(seed, dtype, zero, scale):
    net = Net((4, 3), scale, dtype, zero)
    y = trees(net.b, net.x, seed)
    assert_same_function(net.b.build([y]), seed)


@pytest.mark.parametrize("seed", range(6))
def test_a_scale_for_each_feature(seed):
    b = GraphBuilder("net")
    y = trees(b, by_feature(b, (2.0**-14, 2.0**-12, 0.0001)), seed)
    graph = assert_same_function(b.build([y]), seed)
    assert len(graph.values["x"].quantization.scales) == 3
    label = b.add("ArgMax", [y], {"axis": 1, "keepdims": 0, "select_last_index": 0})
    both = lower_graph(b.build([label, y]))
    assert [node.op for node in both.nodes] == ["tree_ensemble", "argmax"]
    index, sums = run(both, [random_codes(both, 1)[0]])
    assert index.tolist() == sums.argmax(1).tolist()


def test_comparisons_at_the_ends_of_the_codes():
    """Thresholds beyond the codes, and equal to them, in every mode."""
    for value in (-64.5, -64.0, -63.5, 0.0, 0.25, 63.0, 63.5, 64.0):
        for mode in range(3):
            net = Net((1, 1), 0.5, "int8")
            arrays = [
                np.array([0]), np.array([0]), np.float32([value]), np.array([mode]), np.array([1]),
                np.array([2]), np.array([0, 0]), np.float32([[1], [-3]]),
            ]  # fmt: skip
            graph = lower_graph(net.b.build([trees(net.b, net.x, arrays=arrays, targets=1)]))
            for code in (-128, -127, 0, 1, 126, 127):
                x = code * 0.5
                holds = (x <= value, x < value, x == value)[mode]
                found = run(graph, [np.array([[code]], np.int8)])[0]
                assert found.item() == (1 if holds else -3), (value, mode, code)


def test_an_affine_of_features():
    """A scaler before the trees without a QuantizeLinear between them: thresholds absorb it."""
    b = GraphBuilder("net")
    x = by_feature(b, (2.0**-13, 2.0**-12, 2.0**-12))
    x = b.add("Sub", [x, b.constant("m", np.float32([0.5, -0.25, 1.7]))])
    x = b.add("Mul", [x, b.constant("g", np.float32([0.1, 3.0, 0.75]))])
    graph = assert_same_function(b.build([trees(b, x, 3)]), 3)
    assert [node.op for node in graph.nodes] == ["tree_ensemble"]


@pytest.mark.parametrize("dtype", ["int16", "uint16"])
def test_scalers_of_16_bits_need_no_tables(dtype):
    """Sums in 64 bits, one rounding, whatever the factors are."""
    b = GraphBuilder("net")
    zero = 0 if dtype == "int16" else 1 << 15
    x = by_feature(b, (2.0**-13, 2.0**-3, 0.001, 2.0**-30), zero, dtype)
    x = b.add("Sub", [x, b.constant("m", np.float32([0.3, 1000.7, -7.0, 1e-6]))])
    x = b.add("Mul", [x, b.constant("g", np.float32([0.1, -0.003, 0.75, 70000.0]))])
    net = Net.__new__(Net)
    net.b = b
    x = net.q(x, 0.03)
    graph = assert_same_function(b.build([net.q(b.add("Relu", [x]), 0.03)]))
    assert [node.op for node in graph.nodes][:2] == ["affine", "requantize"]


def test_what_has_no_integer_form():
    net = Net((4, 3))
    relu = net.b.add("Clip", [net.x], {"min": 0.0, "max": 0.5})
    for x, message in (
        (net.b.add("Neg", [net.x]), "positive scales"),
        (relu, "features as quantized codes"),
    ):
        with pytest.raises(UnsupportedError, match=message):
            lower_graph(net.b.build([trees(net.b, x)]))


def test_sums_beyond_62_bits():
    arrays = tables(1)
    arrays[-1] = arrays[-1] * np.float32(2.0**60)
    arrays[-1][0] = 2.0**-10
    net = Net((4, 3))
    with pytest.raises(RangeError):
        lower_graph(net.b.build([trees(net.b, net.x, arrays=arrays)]))


@pytest.mark.parametrize(
    ("op", "attributes", "kept"),
    [
        ("Transpose", {"perm": (1, 0)}, False),
        ("Reshape", {"shape": (9,)}, False),
        ("Reshape", {"shape": (1, 3, 3)}, True),
        ("Slice", {"starts": (1,), "ends": (3,), "axes": (1,), "steps": (1,)}, False),
        ("Slice", {"starts": (1,), "ends": (2,), "axes": (0,), "steps": (1,)}, True),
        ("Slice", {"starts": (2,), "ends": (-4,), "axes": (1,), "steps": (-1,)}, False),
        ("Pad", {"pads": (1, 0, 0, 0), "mode": "constant", "value": 0.0}, True),
        ("Pad", {"pads": (0, 1, 0, 0), "mode": "constant", "value": 0.0}, False),
    ],
)
def test_codes_with_a_scale_for_each_feature_that_move(op, attributes, kept):
    """Scales stay with the last axis, or no value has them."""
    b = GraphBuilder("net")
    by_feature(b, (0.5, 0.25, 2.0), rows=3)
    (codes,) = (node.output for node in b.nodes if node.op == "QuantizeLinear")
    graph = lower_graph(b.build([b.add(op, [codes], attributes)]))
    value = graph.values[graph.outputs[0]]
    found = run(graph, random_codes(graph, 1))[0]
    scales = np.array([0.5, 0.25, 2.0]) if kept else 1
    assert (value.quantization is not None) == kept
    assert dequantize(found, value).tolist() == (found * scales).tolist()


@pytest.mark.parametrize(
    ("axis", "scale", "kept"), [(0, 0.25, True), (1, 0.25, False), (0, 1, False)]
)
def test_codes_by_feature_side_by_side(axis, scale, kept):
    b = GraphBuilder("net")
    for scales in ((0.5, 0.25), (0.5, scale)):
        by_feature(b, scales)
    names = [node.output for node in b.nodes if node.op == "QuantizeLinear"]
    graph = lower_graph(b.build([b.add("Concat", names, {"axis": axis})]))
    assert (graph.values[graph.outputs[0]].quantization is not None) == kept


def test_factors_of_another_axis():
    with pytest.raises(ValueError, match=r"expected 2 factors along axis -1 of x: int8\[2, 3\]"):
        Value("x", "int8", (2, 3), Quantization(Fraction(1), 0, (1, 2)))


def test_quantization_by_feature():
    numbers = Quantization(Fraction(1, 8), 0, (1, 4))
    assert numbers.scales == (Fraction(1, 8), Fraction(1, 2))
    assert str(numbers) == "1/8 1/2 0"
    with pytest.raises(ValueError, match="positive factors"):
        Quantization(Fraction(1), 0, (1, 0))
