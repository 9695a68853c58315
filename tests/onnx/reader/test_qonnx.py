"""Quantizers of QONNX against what its documents say they compute, restated in numpy here."""

from __future__ import annotations

from fractions import Fraction
from typing import Any
from unittest.mock import Mock

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from samebits import progress
from samebits.errors import InputError, UnsupportedError
from samebits.ir import Graph, interpreter
from samebits.ir.lowering.lower import lower_graph
from samebits.onnx import from_model
from samebits.sources import load

Array = np.ndarray[Any, Any]
GENERAL = "qonnx.custom_op.general"
ROUNDINGS = {"ROUND": np.round, "HALF_EVEN": np.round, "FLOOR": np.floor, "CEIL": np.ceil}


def least(bits: int, signed: bool, narrow: bool) -> int:
    return -(2 ** (bits - 1)) + narrow if signed else 0


def greatest(bits: int, signed: bool, narrow: bool) -> int:
    return 2 ** (bits - 1) - 1 if signed else 2**bits - 1 - narrow


def quant(x: Array, scale: Any, zero: Any, bits: int, signed: bool, narrow: bool) -> Array:
    """Quant as the document says: scaled, offset, clamped, rounded, scaled back."""
    y = np.asarray(x, np.float64) / np.asarray(scale, np.float64) + zero
    y = np.clip(y, least(bits, signed, narrow), greatest(bits, signed, narrow))
    return ((np.round(y) - zero) * np.asarray(scale, np.float64)).astype(np.float32)


def trunc(x: Array, scale: float, bits: int, after: int, mode: str) -> Array:
    """Trunc, version 1, of the zero point 0."""
    y = np.round(np.asarray(x, np.float64) / scale) / 2.0 ** (bits - after)
    return (ROUNDINGS[mode](y) * scale).astype(np.float32)


def file(
    op: str, inputs: list[Any], x: Any, domain: str = GENERAL, version: int = 1, **attributes: Any
) -> onnx.ModelProto:
    """The operator on x: a shape, or the array of a constant."""
    constant = isinstance(x, np.ndarray)
    arrays = {f"c{i}": np.asarray(a, np.float32) for i, a in enumerate(inputs)}
    nodes = [helper.make_node(op, ["x", *arrays], ["y"], "it", domain=domain, **attributes)]
    if constant:
        arrays["x"] = x
        nodes.append(helper.make_node("Add", ["y", "offset"], ["z"]))
    shape = x.shape if constant else x
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("offset" if constant else "x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("z" if constant else "y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a, n) for n, a in arrays.items()],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(domain, version)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def computed(graph: Graph, x: Array) -> Array:
    return interpreter.run(graph, [x.astype(np.float32)])[0]


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


# --- Quant ------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", range(1, 17))
@pytest.mark.parametrize("narrow", [0, 1])
@pytest.mark.parametrize("signed", [0, 1])
def test_codes_ties_and_ends_of_every_width(bits: int, signed: int, narrow: int) -> None:
    if bits == 1 and (signed or narrow):
        return  # one bit with a sign is BipolarQuant, a narrow one has one code
    flags = {"signed": signed, "narrow": narrow, "rounding_mode": "ROUND"}
    ends = least(bits, bool(signed), bool(narrow)), greatest(bits, bool(signed), bool(narrow))
    near = np.concatenate([np.arange(-4, 5) / 2 + end for end in (*ends, 0)])
    x = (near * 0.75).reshape(1, -1).astype(np.float32)
    graph = from_model(file("Quant", [0.75, 0, bits], x.shape, **flags))
    assert ops(graph) == ["QuantizeLinear", "DequantizeLinear"]
    assert np.array_equal(computed(graph, x), quant(x, 0.75, 0, bits, bool(signed), bool(narrow)))


@given(
    st.lists(st.floats(-300, 300, width=32), min_size=1, max_size=20),
    st.floats(2.0**-6, 4.0, width=32),
    st.integers(2, 12),
    st.booleans(),
    st.booleans(),
    st.integers(-64, 63),
)
def test_any_numbers(
    values: list[float], scale: float, bits: int, signed: bool, narrow: bool, half: int
) -> None:
    zero = 2 * half if signed and bits > 8 else half // 32 * 2 if signed else abs(half) * 2
    x = np.float32([values])
    flags = {"signed": int(signed), "narrow": int(narrow)}
    graph = from_model(file("Quant", [scale, zero, bits], x.shape, **flags))
    assert np.array_equal(computed(graph, x), quant(x, scale, zero, bits, signed, narrow))


@pytest.mark.parametrize("domain", [GENERAL, "onnx.brevitas", "finn.custom_op.general"])
@pytest.mark.parametrize("op", ["Quant", "IntQuant"])
@pytest.mark.parametrize("shape", [(), (1,), (5, 1, 1, 1), (1, 3, 1, 1)])
def test_constants_with_scales_along_an_axis(domain: str, op: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(0, 1, (5, 3, 2, 2)).astype(np.float32)
    scale = rng.uniform(0.05, 0.2, shape).astype(np.float32)
    graph = from_model(file(op, [scale, 0, 4], x, domain, signed=1, narrow=1))
    assert ops(graph) == ["DequantizeLinear", "Add"]
    codes = interpreter.trace(graph, [np.zeros(x.shape, np.float32)])
    found = codes[graph.nodes[0].output].astype(np.float32)
    assert np.array_equal(found, quant(x, scale, 0, 4, True, True))


def test_biases_of_32_bits_are_exact() -> None:
    """Quotients near 2**30, of which binary64 would round some to another code."""
    rng = np.random.default_rng(5)
    x = rng.uniform(-1, 1, (1, 2000)).astype(np.float32)
    scale = np.float32(2.0**-30 * 1.1)
    graph = from_model(file("Quant", [scale, 0, 32], x, signed=1, narrow=0))
    codes = graph.constants[graph.nodes[0].inputs[0]]
    assert codes.dtype == np.int32
    exact = [round(a / b) for a, b in zip(_fractions(x), _fractions(scale) * x.size, strict=True)]
    assert codes.reshape(-1).tolist() == exact


def _fractions(values: Any) -> list[Any]:
    return [Fraction(float(v)) for v in np.asarray(values).reshape(-1)]


def test_an_odd_zero_point_is_told_of() -> None:
    """x / scale is rounded first, as in QuantizeLinear: ties differ from QONNX, nothing else."""
    listener = Mock()
    with progress.listening(listener):
        graph = from_model(file("Quant", [0.5, 3, 8], (1, 9), signed=0, narrow=0))
    assert "with an odd zero point QONNX rounds ties" in listener.note.call_args.args[0]
    x = np.array([[-0.7, -0.3, 0.1, 0.3, 0.6, 0.9, 1.1, 9.9, 200]], np.float32)
    assert np.array_equal(computed(graph, x), quant(x, 0.5, 3, 8, False, False))
    ties = np.float32([[0.25] * 9])
    assert (computed(graph, ties) == 0.0).all()
    assert (quant(ties, 0.5, 3, 8, False, False) == 0.5).all()


def test_the_whole_range_is_the_default() -> None:
    graph = from_model(file("Quant", [1, 0, 4], (1, 3)))
    assert computed(graph, np.float32([[-9, -7.9, 9]])).tolist() == [[-8, -8, 7]]


def test_zero_points_lie_where_the_scales_do() -> None:
    scale, zero = np.float32([[[0.5], [2]]]), np.float32([[[1, 3]]])
    with pytest.raises(UnsupportedError, match="one or one for each scale"):
        from_model(file("Quant", [scale, zero, 8], (1, 2, 2)))
    x = np.float32([[[0.9, 3], [5.5, -6.5]]])
    graph = from_model(file("Quant", [scale, zero.reshape(2, 1), 8], x.shape))
    expected = quant(x, scale, zero.reshape(1, 2, 1), 8, True, False)
    assert np.array_equal(computed(graph, x), expected)


# --- BipolarQuant -----------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["BipolarQuant", "Quant"])
def test_two_codes_of_a_tensor_of_codes(op: str) -> None:
    more = [0, 1] if op == "Quant" else []
    flags = {"signed": 1, "narrow": 0} if op == "Quant" else {}
    graph = from_model(file(op, [0.5, *more], (1, 7), **flags))
    x = np.float32([[-9, -1e-30, -0.0, 0, 1e-30, 0.5, 9]])
    assert computed(graph, x).tolist() == [[-0.5, -0.5, 0.5, 0.5, 0.5, 0.5, 0.5]]


def test_two_codes_of_weights_have_scales_of_their_own() -> None:
    x = np.float32([[-1, 0], [2, -3], [0.5, -0.0]])
    scale = np.float32([[1], [2], [4]])
    graph = from_model(file("BipolarQuant", [scale], x))
    found = interpreter.run(graph, [np.zeros(x.shape, np.float32)])[0]
    assert found.tolist() == [[-1, 1], [2, -2], [4, 4]]


# --- Trunc ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ROUNDINGS)
@pytest.mark.parametrize(("bits", "after"), [(8, 5), (8, 8), (6, 1), (12, 8)])
def test_the_last_bits_are_dropped(mode: str, bits: int, after: int) -> None:
    scale = float(np.float32(0.3))
    inside = np.arange(-(2 ** (bits - 1)), 2**bits)
    x = (inside[:: max(1, len(inside) // 500)] * scale).astype(np.float32).reshape(1, -1)
    graph = from_model(file("Trunc", [scale, 0, bits, after], x.shape, rounding_mode=mode))
    assert np.array_equal(computed(graph, x), trunc(x, scale, bits, after, mode))
    assert lower_graph(graph).integer


def test_the_second_version_states_scale_and_range() -> None:
    x = np.arange(0, 256, dtype=np.float32).reshape(1, -1)
    flags = {"signed": 0, "narrow": 0, "rounding_mode": "FLOOR"}
    graph = from_model(file("Trunc", [1, 0, 8, 8, 4], x.shape, version=2, **flags))
    assert np.array_equal(computed(graph, x), np.minimum(x // 8, 15) * 8)


@pytest.mark.parametrize("scale", [0.0, -1.0, np.nan, np.inf])
@pytest.mark.parametrize("version", [1, 2])
def test_scales_are_positive_numbers(scale: float, version: int) -> None:
    after = [8, 4] if version == 1 else [8, scale * 16, 4]
    with pytest.raises((InputError, UnsupportedError), match=r"positive finite|whose scale"):
        from_model(file("Trunc", [scale, 0, *after], (1, 2), version=version))


def test_the_scale_of_the_result_is_a_finite_number() -> None:
    """It is 16 times that of x here."""
    with pytest.raises(InputError, match="expected positive finite numbers as scale, found inf"):
        from_model(file("Trunc", [3e38, 0, 8, 4], (1, 2)))


# --- whole networks and refusals --------------------------------------------------------------


def test_a_network_is_the_same_everywhere() -> None:
    rng = np.random.default_rng(0)
    arrays = {
        "w": rng.normal(0, 1, (4, 6)).astype(np.float32),
        "ws": rng.uniform(0.1, 0.4, (4, 1)).astype(np.float32),
        "b": rng.normal(0, 1, 4).astype(np.float32),
        **{n: np.float32(v) for n, v in
           {"zero": 0, "xs": 0.1, "ys": 0.7, "three": 3, "five": 5, "ten": 10}.items()},
    }  # fmt: skip
    flags = {"domain": GENERAL, "signed": 1, "narrow": 1, "rounding_mode": "ROUND"}
    nodes = [
        helper.make_node("Quant", ["x", "xs", "zero", "ten"], ["xq"], **flags),
        helper.make_node("Quant", ["w", "ws", "zero", "three"], ["wq"], **flags),
        helper.make_node("Gemm", ["xq", "wq", "b"], ["g"], transB=1),
        helper.make_node("Relu", ["g"], ["r"]),
        helper.make_node("Quant", ["r", "ys", "zero", "five"], ["y"], **{**flags, "signed": 0}),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 6))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 4))],
        [numpy_helper.from_array(a, n) for n, a in arrays.items()],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(GENERAL, 1)]
    real = from_model(helper.make_model(graph, opset_imports=imports, ir_version=9))
    integer = lower_graph(real)
    assert ops(integer) == ["clip", "linear", "requantize"]
    assert integer.values[integer.inputs[0]].dtype == "int16"
    backends = ["torch", "c", "onnxruntime-integer"]
    verdicts = load(real).verify("random:20", backends).verdicts
    assert [(v.backend, v.differing) for v in verdicts] == [(name, 0) for name in backends]


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "message"),
    [
        ("Quant", [1, 0, 8], {"rounding_mode": "FLOOR"}, "expected rounding_mode ROUND or HALF_EV"),
        ("Quant", [1, 0, 3.5], {}, r"expected one whole bit width from 1 to 16, found \[3.5\]"),
        ("Quant", [1, 0, 17], {}, r"from 1 to 16, found \[17.0\]"),
        ("Quant", [1, 0.5, 8], {}, r"expected whole zero points from -128 to 127, .* \[0.5\]"),
        ("Quant", [np.ones((2, 3)), 0, 8], {}, r"one for each index of one axis, found \[2, 3\]"),
        ("Quant", [1, 1, 1], {"signed": 1}, "expected the zero point 0 of 1 bit"),
        ("Trunc", [1, 2, 8, 4], {}, "expected the zero point 0 and a result whose scale"),
        ("Trunc", [1, 0, 8, 3, 4], {}, r"times 2\*\*n, n <= 8, found scales 1.0 and 3.0"),
        ("Trunc", [1, 0, 8, 4], {"rounding_mode": "DOWN"}, "expected rounding_mode FLOOR or CEIL"),
        ("FloatQuant", [1], {}, "expected quantizers to integers"),
        ("MultiThreshold", [1], {}, "expected quantizers to integers"),
    ],
)
def test_what_has_no_codes_is_refused(
    op: str, inputs: list[Any], attributes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        from_model(file(op, inputs, (2, 3), **attributes))


def test_everything_refused_is_in_one_message() -> None:
    made = file("Quant", [1, 0, 3.5], (2, 3))
    made.graph.node.append(
        helper.make_node("Quant", ["y", "c0", "c1", "c2"], ["z"], "other", domain=GENERAL)
    )
    made.graph.node[1].attribute.append(helper.make_attribute("rounding_mode", "UP"))
    made.graph.output[0].name = "z"
    made.graph.node[1].input[0] = "x"
    made.graph.output.add(name="y").CopyFrom(helper.make_tensor_value_info("y", 1, None))
    with pytest.raises(UnsupportedError) as caught:
        from_model(made)
    assert "found 2 that are not" in str(caught.value)
    assert "node 'it'" in str(caught.value)
    assert "node 'other'" in str(caught.value)
