"""Products that are quantized as the network runs: how files spell them, and their integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ir.lowering.test_lower import Net, assert_same_function, lower_graph, unsupported
from samebits.ir import GraphBuilder
from samebits.ir.interpreter import run
from samebits.onnx import from_model

RNG = np.random.default_rng(3)
WINDOW = {"strides": (1, 1), "dilations": (1, 1), "group": 1, "pads": (1, 0, 1, 1)}


def spelled(op: str, weights: Any, zero: Any, shape: list[int], swap: bool) -> onnx.ModelProto:
    """A product as onnxruntime's quantize_dynamic writes it."""
    factors = ["x_scale", "w_scale"][:: -1 if swap else 1]
    last = ["wide", "scales"][:: -1 if swap else 1]
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["codes", "x_scale", "x_zero"]),
        helper.make_node("Mul", factors, ["scales"]),
        helper.make_node(op, ["codes", "w", "x_zero", "w_zero"], ["sums"]),
        helper.make_node("Cast", ["sums"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Mul", last, ["y"]),
    ]
    constants = {"w": weights, "w_scale": np.float32(0.25), "w_zero": np.asarray(zero)}
    graph = helper.make_graph(
        nodes,
        "dynamic",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize(
    ("op", "shape", "weights", "zero", "product"),
    [
        ("MatMulInteger", [2, 6], RNG.integers(-99, 100, (6, 3), np.int8), np.int8(0), "MatMul"),
        ("MatMulInteger", [6, 4], RNG.integers(0, 256, (4, 3), np.uint8), np.uint8(99), "MatMul"),
        (
            "ConvInteger",
            [1, 2, 5, 4],
            RNG.integers(-99, 100, (3, 2, 3, 3), np.int8),
            np.int8(7),
            "Conv",
        ),
    ],
)
def test_what_files_spell_out_is_one_product(
    op: str, shape: list[int], weights: Any, zero: Any, product: str, swap: bool
) -> None:
    """The same numbers, but for the rounding of the scale to binary32."""
    runtime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    model = spelled(op, weights, zero, shape, swap)
    graph = from_model(model)
    assert [node.op for node in graph.nodes] == ["RoundDynamic", product]
    session = runtime.InferenceSession(model.SerializeToString())
    x = RNG.normal(size=shape).astype(np.float32)
    (expected,) = session.run(None, {"x": x})
    np.testing.assert_allclose(run(graph, [x])[0], expected, rtol=1e-5, atol=1e-4)


def test_codes_that_something_else_reads_stay() -> None:
    model = spelled("MatMulInteger", np.ones((6, 3), np.int8), np.int8(0), [2, 6], False)
    model.graph.output.append(helper.make_tensor_value_info("sums", TensorProto.INT32, None))
    ops = [node.op for node in from_model(model).nodes]
    assert "MatMulInteger" in ops
    assert "RoundDynamic" in ops


@pytest.mark.parametrize("kind", ["normal", "positive", "negative", "zero", "tie"])
def test_rounding_is_that_of_the_codes(kind: str) -> None:
    """DequantizeLinear of DynamicQuantizeLinear, where the scale is a number of binary32."""
    x = RNG.integers(-100, 156, 40).astype(np.float32)
    x[:2] = -100, 155  # the span 255: a scale of 1
    x = {
        "normal": x,
        "positive": np.where(x < 0, 255, x),
        "negative": np.where(x > 0, -255, x),
        "zero": 0 * x,
        "tie": x + np.float32(0.5) * (np.arange(40) > 1),
    }[kind].astype(np.float32)
    build = GraphBuilder("g")
    name = build.input("x", "float32", x.shape)
    codes = build.add_all("DynamicQuantizeLinear", [name])
    graph = build.build([build.add("RoundDynamic", [name]), build.add("DequantizeLinear", codes)])
    found, expected = run(graph, [x])
    assert np.array_equal(found, expected)
    alone = GraphBuilder("alone")
    rounded = alone.add("RoundDynamic", [alone.input("x", "float32", x.shape)])
    (exact,) = run(alone.build([rounded]), [x], exact=True)
    assert np.array_equal(exact.astype(np.float64), expected)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_products_of_a_range_are_exact(dtype: str) -> None:
    net = Net((3, 6), 0.25, dtype, 3)
    rounded = net.b.add("RoundDynamic", [net.x])
    w = net.weight(RNG.integers(-99, 100, (6, 4)).astype(np.int8), 0.5)
    y = net.q(net.b.add("MatMul", [rounded, w]), 4.0, "int16", 5)
    assert_same_function(net.b.build([y]))
    image = Net((1, 2, 5, 4), 0.25, dtype, 3)
    rounded = image.b.add("RoundDynamic", [image.x])
    w = image.weight(RNG.integers(-9, 10, (3, 2, 3, 2)).astype(np.int8), 0.5)
    y = image.b.add("Conv", [rounded, w], WINDOW)
    graph = assert_same_function(image.b.build([image.q(y, 1.0, "int8", 5)]))
    assert {"divide", "conv", "multiply", "requantize"} <= {node.op for node in graph.nodes}


def test_a_range_that_no_product_reads() -> None:
    """It leaves the network as the sum that it is, or is rounded to codes."""
    net = Net((2, 5), 0.25, "int8", 3)
    rounded = net.b.add("RoundDynamic", [net.x])
    assert_same_function(net.b.build([rounded]))
    assert_same_function(net.b.build([net.q(rounded, 0.5, "int8", 0)]))


def test_a_constant_behind_the_product_joins_its_sum() -> None:
    net = Net((3, 6), 0.25, "int8", 3)
    w = net.weight(RNG.integers(-99, 100, (6, 4)).astype(np.int8), [0.5, 1.0, 0.25, 2.0], 1)
    y = net.b.add("MatMul", [net.b.add("RoundDynamic", [net.x]), w])
    y = net.b.add("Add", [y, net.b.constant("bias", np.float32([0.1, -3.0, 7.7, 0.0]))])
    real = net.b.build([net.q(y, 4.0, "int16", 5)])
    graph = lower_graph(real)
    x = RNG.integers(-128, 128, (3, 6)).astype(np.int8)
    found = run(graph, [x])[0]
    expected = run(real, [(x - 3.0) / 4])[0]
    assert np.array_equal((found - 5.0) * 4, expected)


@pytest.mark.parametrize(
    ("op", "attributes", "constant"),
    [
        ("Relu", {}, None),
        ("Clip", {"min": -3.0, "max": 5.0}, None),
        ("Add", {}, np.float32(1.5)),
        ("Sub", {}, np.float32([0.5, 1, -2, 4])),
        ("Mul", {}, np.float32([0.5, 1, -2, 4])),
        ("Transpose", {"perm": (1, 0)}, None),
        ("Slice", {"starts": (1,), "ends": (3,), "axes": (0,), "steps": (1,)}, None),
    ],
)
def test_a_product_reads_the_rounded_numbers_themselves(
    op: str, attributes: dict[str, Any], constant: Any
) -> None:
    net = Net((4, 4), 0.25, "int8", 3)
    between = [net.b.add("RoundDynamic", [net.x])]
    if constant is not None:
        between.append(net.b.constant("c", constant))
    changed = net.b.add(op, between, attributes)
    w = net.weight(RNG.integers(-99, 100, (4, 3)).astype(np.int8), 0.5)
    y = net.q(net.b.add("MatMul", [changed, w]), 4.0, "int16", 5)
    message = unsupported(net, y)
    assert "expected quantized codes" in message or "expected 8- or 16-bit codes" in message


def test_a_range_times_a_number_is_one() -> None:
    net = Net((3, 6), 0.25, "int8", 3)
    rounded = net.b.add("RoundDynamic", [net.x])
    scaled = net.b.add("Mul", [rounded, net.b.constant("c", np.float32(0.75))])
    w = net.weight(RNG.integers(-99, 100, (6, 4)).astype(np.int8), 0.5)
    y = net.q(net.b.add("MatMul", [scaled, w]), 4.0, "int16", 5)
    assert_same_function(net.b.build([y]))
