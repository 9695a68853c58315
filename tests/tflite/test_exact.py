"""The meaning `exact`: every result is the exact number, rounded once.

The expected codes are computed here from the file's own data, channels last, in rationals.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from samebits.errors import InputError, UnsupportedError
from samebits.ir.interpreter import run
from samebits.model import Model
from samebits.tflite import from_bytes
from samebits.tflite.exact.mapping import RULES
from samebits.tflite.file import Scaling, Tensor
from samebits.tflite.schema import SAME, VALID
from tflite_files import LIMITS, Net, codes_of, image_net, pads_of, windows

Array = np.ndarray[Any, Any]
BOUNDS: dict[str, tuple[float | None, float | None]] = {
    "NONE": (None, None),
    "RELU": (0, None),
    "RELU6": (0, 6),
    "RELU_N1_TO_1": (-1, 1),
}
KINDS = ("int8", "uint8", "int16")


def integers(net: Net, *outputs: int) -> Any:
    """The integer graph of the network."""
    return Model("f.tflite", from_bytes(net.bytes(*outputs), "f.tflite").graph).integer


def computed(net: Net, inputs: list[Array], *outputs: int) -> list[Array]:
    return run(integers(net, *outputs), inputs)


def real(tensor: Tensor, codes: Array, axis: int = 0) -> Array:
    """The exact numbers of codes."""
    found = tensor.quantization
    assert found is not None
    shape = [1] * codes.ndim
    shape[axis] = len(found.scales) if codes.ndim else 1
    scales = np.array([Fraction(s) for s in found.scales], object)
    return (codes.astype(object) - found.zero_points[0]) * scales.reshape(shape)


def coded(tensor: Tensor, values: Array, activation: str = "NONE") -> Array:
    """The nearest codes of exact numbers, halves to even."""
    found = tensor.quantization
    assert found is not None
    low, high = BOUNDS[activation]
    ends = LIMITS[tensor.dtype]

    def code(value: Fraction) -> int:
        value = value if low is None else max(value, Fraction(low))
        value = value if high is None else min(value, Fraction(high))
        number = round(Fraction(value) / Fraction(found.scales[0])) + found.zero_points[0]
        return min(max(number, ends[0]), ends[1])

    return np.vectorize(code, otypes=[np.int64])(values)


def bias_of(net: Net, operator: int, unit: Array) -> Array:
    """The bias in real numbers: codes in units of both scales."""
    codes = net.tensors[net.operators[operator].inputs[2]].array
    assert codes is not None
    return codes.astype(object) * unit


def unit_of(net: Net, operator: int) -> Array:
    x, w = (net.tensors[i].quantization for i in net.operators[operator].inputs[:2])
    assert x is not None
    assert w is not None
    return np.array([Fraction(s) * Fraction(x.scales[0]) for s in w.scales], object)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding", "activation", "groups"),
    [
        ((5, 6), (3, 3), 1, SAME, "NONE", 1),
        ((6, 5), (3, 2), 2, SAME, "RELU", 1),
        ((7, 7), (2, 3), 3, VALID, "RELU6", 1),
        ((4, 4), (1, 1), 1, VALID, "RELU_N1_TO_1", 2),
        ((2, 3), (4, 4), 2, SAME, "NONE", 1),
    ],
)
def test_a_convolution(kind, size, kernel, stride, padding, activation, groups):
    net = Net(7, kind)
    x = net.input(2, *size, 4)
    weights = net.weights((4, *kernel, 4 // groups), 0)
    rows, columns = (pads_of(n, k, stride, padding)[0] for n, k in zip(size, kernel, strict=True))
    y = net.activation((2, rows, columns, 4))
    net.add("CONV_2D", [x, weights, net.bias(x, weights, 4)], y,
            padding=padding, stride_w=stride, stride_h=stride, activation=activation)  # fmt: skip
    codes = codes_of(net, 1)
    image, w = (
        real(net.tensors[x], codes[0]),
        real(net.tensors[weights], net.tensors[weights].array),
    )
    expected = np.zeros(net.tensors[y].shape, object)
    bias = bias_of(net, 0, unit_of(net, 0))
    for row, column, inner, taps in windows(image, kernel, stride, padding):
        for o in range(4):
            part = slice(o // (4 // groups) * (4 // groups), None)
            part = slice(part.start, part.start + 4 // groups)
            expected[:, row, column, o] = (inner[..., part] * w[o][taps]).sum((1, 2, 3)) + bias[o]
    np.testing.assert_array_equal(
        computed(net, codes, y)[0], coded(net.tensors[y], expected, activation)
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("multiplier", [1, 2])
def test_a_filter_for_every_channel(kind, multiplier):
    net = Net(9, kind)
    x = net.input(1, 5, 4, 3)
    y = net.depthwise(x, multiplier, stride=2, activation="RELU")
    codes = codes_of(net, 2)
    weights = net.operators[0].inputs[1]
    image = real(net.tensors[x], codes[0])
    w = real(net.tensors[weights], net.tensors[weights].array, 3)[0]
    expected = np.zeros(net.tensors[y].shape, object)
    bias = bias_of(net, 0, unit_of(net, 0))
    for row, column, inner, taps in windows(image, (3, 3), 2, SAME):
        repeated = np.repeat(inner, multiplier, -1)
        expected[:, row, column] = (repeated * w[taps]).sum((1, 2)) + bias
    np.testing.assert_array_equal(
        computed(net, codes, y)[0], coded(net.tensors[y], expected, "RELU")
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("axis", "dtype"), [(None, "int8"), (0, "int8"), (None, "int4")])
def test_rows_times_weights(kind, axis, dtype):
    net = Net(5, kind)
    x = net.input(2, 3, 7)
    weights = net.weights((4, 7), axis, dtype)
    y = net.activation((2, 3, 4))
    net.add("FULLY_CONNECTED", [x, weights, net.bias(x, weights, 4)], y, activation="RELU")
    codes = codes_of(net, 3)
    unit = unit_of(net, 0)
    w = net.tensors[weights].array
    zero = net.tensors[x].quantization.zero_points[0]
    sums = (codes[0].astype(object) - zero) @ w.astype(object).T * unit
    expected = coded(net.tensors[y], sums + bias_of(net, 0, unit), "RELU")
    np.testing.assert_array_equal(computed(net, codes, y)[0], expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("activation", list(BOUNDS))
@pytest.mark.parametrize("op", ["ADD", "SUB", "MUL"])
def test_two_tensors(kind, activation, op):
    net = Net(4, kind)
    a, b = net.input(2, 3, 4), net.input(1, 3, 1)
    y = net.add(op, [a, b], net.activation((2, 3, 4)), activation=activation)
    codes = codes_of(net, 4)
    p, q = (real(net.tensors[i], c) for i, c in zip((a, b), codes, strict=True))
    values = {"ADD": p + q, "SUB": p - q, "MUL": p * q}[op]
    np.testing.assert_array_equal(
        computed(net, codes, y)[0], coded(net.tensors[y], values, activation)
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("padding", [SAME, VALID])
@pytest.mark.parametrize("op", ["AVERAGE_POOL_2D", "MAX_POOL_2D"])
def test_a_pool(kind, padding, op):
    net = Net(6, kind)
    x = net.input(2, 5, 7, 2)
    y = net.pool(op, x, (3, 2), padding, stride=2, activation="RELU6")
    codes = codes_of(net, 5)
    expected = np.zeros(net.tensors[y].shape, object)
    for row, column, inner, _ in windows(real(net.tensors[x], codes[0]), (3, 2), 2, padding):
        count = inner.shape[1] * inner.shape[2]
        found = inner.sum((1, 2)) / count if op == "AVERAGE_POOL_2D" else inner.max((1, 2))
        expected[:, row, column] = found
    np.testing.assert_array_equal(
        computed(net, codes, y)[0], coded(net.tensors[y], expected, "RELU6")
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("op", "kept"), [("MEAN", False), ("SUM", True), ("REDUCE_MAX", False)])
def test_a_reduction(kind, op, kept):
    net = Net(8, kind)
    x = net.input(2, 3, 5, 2)
    shape = (2, 1, 5, 1) if kept else (2, 5)
    y = net.activation(shape, like=x if op == "REDUCE_MAX" else None)
    net.add(op, [x, net.integers((1, -1))], y, keep_dims=kept)
    codes = codes_of(net, 6)
    values = real(net.tensors[x], codes[0])
    total = values.max((1, 3)) if op == "REDUCE_MAX" else values.sum((1, 3))
    total = total / 6 if op == "MEAN" else total
    np.testing.assert_array_equal(
        computed(net, codes, y)[0], coded(net.tensors[y], total.reshape(shape))
    )


@pytest.mark.parametrize("padding", [SAME, VALID])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_a_transposed_convolution(padding, stride):
    net = Net(3)
    x = net.input(1, 3, 2, 2)
    weights = net.weights((3, 2, 4, 2), 0)
    sizes = [n * stride if padding == SAME else (n - 1) * stride + k
             for n, k in ((3, 2), (2, 4))]  # fmt: skip
    out = (1, *sizes, 3)
    y = net.activation(out)
    net.add("TRANSPOSE_CONV", [net.integers(out), weights, x], y,
            padding=padding, stride_w=stride, stride_h=stride)  # fmt: skip
    codes = codes_of(net, 7)
    image, w = (
        real(net.tensors[x], codes[0]),
        real(net.tensors[weights], net.tensors[weights].array),
    )
    whole = np.full((1, 3 * stride + 9, 2 * stride + 9, 3), Fraction(0))
    for row in range(3):
        for column in range(2):
            for p in range(2):
                for q in range(4):
                    whole[0, row * stride + p, column * stride + q] += (
                        w[:, p, q] @ image[0, row, column]
                    )
    cut = [pads_of(n, k, stride, padding)[1] for n, k in zip(sizes, (2, 4), strict=True)]
    values = whole[:, cut[0] : cut[0] + sizes[0], cut[1] : cut[1] + sizes[1]]
    np.testing.assert_array_equal(computed(net, codes, y)[0], coded(net.tensors[y], values))


def _gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def _softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def _bilinear(x: Array) -> Array:
    """[1, 4, 6, 5] to [1, 8, 3, 5], with centers of half a position."""
    for axis, out in ((1, 8), (2, 3)):
        size = x.shape[axis]
        at = np.clip((np.arange(out) + 0.5) * size / out - 0.5, 0, size - 1)
        low = np.floor(at).astype(int)
        part = (at - low).reshape([-1 if i == axis else 1 for i in range(4)])
        high = np.minimum(low + 1, size - 1)
        x = np.take(x, low, axis) * (1 - part) + np.take(x, high, axis) * part
    return x


FUNCTIONS: list[tuple[str, dict[str, Any], int, Callable[..., Array]]] = [
    ("ABS", {}, 1, np.abs),
    ("ADD_N", {}, 3, lambda a, b, c: a + b + c),
    ("ARG_MIN", {}, 1, lambda x: x.argmin(2)),
    ("CAST", {}, 1, lambda x: x),
    ("CEIL", {}, 1, np.ceil),
    ("COS", {}, 1, np.cos),
    ("DEPTH_TO_SPACE", {"block_size": 1}, 1, lambda x: x),
    ("DIV", {"activation": "RELU"}, 2, lambda a, b: np.maximum(a / b, 0)),
    ("ELU", {}, 1, lambda x: np.where(x < 0, np.expm1(x), x)),
    ("EXP", {}, 1, np.exp),
    ("FLOOR", {}, 1, np.floor),
    ("GELU", {"approximate": True}, 1, _gelu),
    ("HARD_SWISH", {}, 1, lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
    ("LEAKY_RELU", {"alpha": 0.25}, 1, lambda x: np.where(x < 0, x / 4, x)),
    ("LOG", {}, 1, lambda x: np.log(np.abs(x))),
    ("LOGISTIC", {}, 1, lambda x: 1 / (1 + np.exp(-x))),
    ("LOG_SOFTMAX", {}, 1, lambda x: np.log(_softmax(x))),
    ("MAXIMUM", {}, 2, np.maximum),
    ("MINIMUM", {}, 2, np.minimum),
    ("NEG", {}, 1, np.negative),
    ("POW", {}, 2, lambda a, b: np.abs(a) ** b),
    ("PRELU", {}, 2, lambda a, b: np.where(a < 0, a * b, a)),
    ("REDUCE_MIN", {}, 1, lambda x: x.min((1, 2))),
    ("RELU", {}, 1, lambda x: np.maximum(x, 0)),
    ("RELU6", {}, 1, lambda x: np.clip(x, 0, 6)),
    ("RELU_N1_TO_1", {}, 1, lambda x: np.clip(x, -1, 1)),
    ("RESIZE_BILINEAR", {"half_pixel_centers": True}, 1, _bilinear),
    ("ROUND", {}, 1, np.rint),
    ("RSQRT", {}, 1, lambda x: 1 / np.sqrt(np.abs(x))),
    ("SIGN", {}, 1, np.sign),
    ("SIN", {}, 1, np.sin),
    ("SOFTMAX", {"beta": 0.5}, 1, lambda x: _softmax(x / 2)),
    ("SQRT", {}, 1, lambda x: np.sqrt(np.abs(x))),
    ("SQUARE", {}, 1, np.square),
    ("SQUARED_DIFFERENCE", {}, 2, lambda a, b: (a - b) ** 2),
    ("TANH", {}, 1, np.tanh),
]
POSITIVE = ("LOG", "POW", "RSQRT", "SQRT")
CONSTANTS = {"ARG_MIN": 2, "REDUCE_MIN": (2, 1), "RESIZE_BILINEAR": (8, 3)}


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function[0])
def test_functions_of_floats(function):
    op, options, count, expected = function
    net = Net(1, "float32")
    inputs = [net.input(1, 4, 6, 5) for _ in range(count)]
    rng = np.random.default_rng(4)
    values = [rng.normal(0, 3, (1, 4, 6, 5)).astype(np.float32) for _ in inputs]
    values[0] = np.abs(values[0]) if op in POSITIVE else values[0]
    wanted = expected(*(v.astype(np.float64) for v in values))
    more = [net.integers(CONSTANTS[op])] if op in CONSTANTS else []
    y = net.tensor(wanted.shape, "int32" if op == "ARG_MIN" else "float32")
    net.add(op, [*inputs, *more], y, **options)
    (found,) = run(from_bytes(net.bytes(y), "f.tflite").graph, values)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("swapped", [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("constant", [False, True])
def test_matrix_products(swapped, constant):
    net = Net(5)
    shapes = [(2, 4, 3) if swapped[0] else (2, 3, 4), (2, 5, 4) if swapped[1] else (2, 4, 5)]
    a = net.input(*shapes[0])
    b = net.weights(shapes[1], None) if constant else net.input(*shapes[1])
    y = net.activation((2, 3, 5))
    net.add("BATCH_MATMUL", [a, b], y, adj_x=swapped[0], adj_y=swapped[1])
    codes = codes_of(net, 2)
    factors = [codes[0], net.tensors[b].array if constant else codes[1]]
    p, q = (
        np.swapaxes(real(net.tensors[i], c), 1, 2) if turned else real(net.tensors[i], c)
        for i, c, turned in zip((a, b), factors, swapped, strict=True)
    )
    np.testing.assert_array_equal(computed(net, codes, y)[0], coded(net.tensors[y], p @ q))


# --- movements ------------------------------------------------------------------------------------

Move = tuple[str, Callable[[Net], list[int]], dict[str, Any], Callable[[Array], Array]]
MOVES: list[Move] = [
    ("RESHAPE", lambda n: [n.integers((4, 30))], {}, lambda x: x.reshape(4, 30)),
    ("SQUEEZE", lambda n: [], {}, lambda x: x.reshape(4, 6, 5)),
    ("EXPAND_DIMS", lambda n: [n.integers(0)], {}, lambda x: x[None]),
    ("TRANSPOSE", lambda n: [n.integers((3, 0, 2, 1))], {}, lambda x: x.transpose(3, 0, 2, 1)),
    ("SLICE", lambda n: [n.integers((0, 1, 2, 0)), n.integers((1, 2, -1, 5))], {},
     lambda x: x[:1, 1:3, 2:, :5]),
    ("STRIDED_SLICE", lambda n: [n.integers((0, 9, 1, 2)), n.integers((9, 0, 2, 9)),
                                 n.integers((1, -1, 2, 2))],
     {"begin_mask": 2, "end_mask": 2, "shrink_axis_mask": 4}, lambda x: x[:, ::-1, 1, 2::2]),
    ("PAD", lambda n: [n.integers([[0, 0], [1, 2], [0, 1], [3, 0]])], {},
     lambda x: np.pad(x, [(0, 0), (1, 2), (0, 1), (3, 0)], constant_values=ZERO)),
    ("MIRROR_PAD", lambda n: [n.integers([[0, 0], [3, 2], [0, 0], [4, 1]])], {"mode": 0},
     lambda x: np.pad(x, [(0, 0), (3, 2), (0, 0), (4, 1)], mode="reflect")),
    ("MIRROR_PAD", lambda n: [n.integers([[0, 1], [4, 2], [0, 0], [5, 1]])], {"mode": 1},
     lambda x: np.pad(x, [(0, 1), (4, 2), (0, 0), (5, 1)], mode="symmetric")),
    ("REVERSE_V2", lambda n: [n.integers((-1, 1))], {}, lambda x: x[:, ::-1, :, ::-1]),
    ("GATHER", lambda n: [n.integers((3, 0, 3))], {"axis": 1}, lambda x: x[:, [3, 0, 3]]),
    ("TILE", lambda n: [n.integers((2, 1, 1, 2))], {}, lambda x: np.tile(x, (2, 1, 1, 2))),
    ("BROADCAST_TO", lambda n: [n.integers((3, 4, 6, 5))], {}, lambda x: np.repeat(x, 3, 0)),
    ("SPACE_TO_DEPTH", lambda n: [], {"block_size": 2},
     lambda x: x.reshape(1, 2, 2, 3, 2, 5).transpose(0, 1, 3, 2, 4, 5).reshape(1, 2, 3, 20)),
    ("RESIZE_NEAREST_NEIGHBOR", lambda n: [n.integers((8, 3))], {},
     lambda x: x[:, [0, 0, 1, 1, 2, 2, 3, 3]][:, :, [0, 2, 4]]),
    ("RESIZE_NEAREST_NEIGHBOR", lambda n: [n.integers((3, 4))], {"half_pixel_centers": True},
     lambda x: x[:, [0, 2, 3]][:, :, [0, 2, 3, 5]]),
]  # fmt: skip
ZERO = 0  # of the tensors that are moved


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("move", MOVES, ids=lambda move: move[0])
def test_codes_that_are_moved(kind, move):
    op, more, options, expected = move
    net = Net(2, kind)
    x = net.tensor((1, 4, 6, 5), quantization=Scaling((0.1,), (ZERO,)))
    net.inputs.append(x)
    codes = codes_of(net, 8)
    wanted = expected(codes[0])
    y = net.activation(wanted.shape, like=x)
    net.add(op, [x, *more(net)], y, **options)
    np.testing.assert_array_equal(computed(net, codes, y)[0], wanted)
    assert not [node for node in integers(net, y).nodes if node.op == "requantize"]


def test_parts_and_wholes():
    net = Net(2)
    x = net.input(1, 4, 6)
    codes = codes_of(net, 9)
    parts = [net.activation((1, 4, 2), x) for _ in range(3)]
    net.add("SPLIT", [net.integers(-1), x], parts)
    packed = net.add("PACK", parts, net.activation((3, 1, 4, 2), x), axis=0)
    single = [net.activation((3, 1, 2), x) for _ in range(4)]
    net.add("UNPACK", [packed], single, num=4, axis=2)
    uneven = [net.activation((1, n, 6), x) for n in (1, 3)]
    net.add("SPLIT_V", [x, net.integers((1, -1)), net.integers(1)], uneven)
    found = computed(net, codes, packed, *single, *uneven)
    stacked = np.stack(np.split(codes[0], 3, -1))
    np.testing.assert_array_equal(found[0], stacked)
    for index in range(4):
        np.testing.assert_array_equal(found[1 + index], stacked[:, :, index])
    np.testing.assert_array_equal(found[5], codes[0][:, :1])
    np.testing.assert_array_equal(found[6], codes[0][:, 1:])


@pytest.mark.parametrize("activation", list(BOUNDS))
def test_tensors_of_other_scales_are_joined(activation):
    """Which the runtime for microcontrollers refuses."""
    net = Net(3)
    a, b = net.input(2, 3), net.input(2, 2)
    y = net.activation((2, 5), like=a)
    net.add("CONCATENATION", [a, b], y, axis=1, activation=activation)
    codes = codes_of(net, 1)
    values = np.concatenate(
        [real(net.tensors[i], c) for i, c in zip((a, b), codes, strict=True)], 1
    )
    np.testing.assert_array_equal(
        computed(net, codes, y)[0], coded(net.tensors[y], values, activation)
    )


def test_a_pad_of_another_number():
    net = Net(3)
    x = net.input(2, 3)
    value = net.tensor((1,), array=np.array([-77], np.int8),
                       quantization=net.tensors[x].quantization)  # fmt: skip
    y = net.activation((2, 5), like=x)
    net.add("PADV2", [x, net.integers([[0, 0], [2, 0]]), value], y)
    codes = codes_of(net, 1)
    np.testing.assert_array_equal(
        computed(net, codes, y)[0], np.pad(codes[0], [(0, 0), (2, 0)], constant_values=-77)
    )


# --- whole networks -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_no_movement_is_left_of_channels(kind):
    """Channels lie last in the file and in integers, in front in real graphs."""
    net, y = image_net(1, kind)
    found = integers(net, y)
    assert [node.op for node in found.nodes if node.op == "transpose"] == []
    assert [found.values[n].dtype for n in (*found.inputs, *found.outputs)] == [kind] * 2
    ends = [found.values[n].quantization for n in (*found.inputs, *found.outputs)]
    for number, own in zip((0, y), ends, strict=True):
        stated = net.tensors[number].quantization
        assert (own.scale, own.zero_point) == (Fraction(stated.scales[0]), stated.zero_points[0])


def test_a_float_network():
    """Numbers of a dense network, and convolutions next to each other without a movement."""
    net, y = image_net(1, "float32")
    graph = from_bytes(net.bytes(y), "f.tflite").graph
    moves = [node.op for node in graph.nodes if node.op == "Transpose"]
    assert len(moves) == 2
    dense = Net(4, "float32")
    x = dense.input(1, 6)
    out = dense.dense(x, 3, activation="RELU6")
    values = np.random.default_rng(1).normal(0, 2, (1, 6)).astype(np.float32)
    found = run(from_bytes(dense.bytes(out), "f.tflite").graph, [values])[0]
    w, b = (dense.tensors[i].array.astype(np.float64) for i in dense.operators[0].inputs[1:])
    np.testing.assert_allclose(found, np.clip(values @ w.T + b, 0, 6), rtol=1e-6)


def test_numbers_that_become_codes_and_codes_that_become_numbers():
    """A float network around a quantized one, weights of 16 bits of floats, scores in two codes."""
    net = Net(6)
    x = net.tensor((1, 4), "float32", name="x")
    net.inputs.append(x)
    coded_x = net.add("QUANTIZE", [x], net.activation((1, 4)))
    y = net.dense(coded_x, 3)
    other = net.add("QUANTIZE", [y], net.activation((1, 3)))
    z = net.add("DEQUANTIZE", [other], net.tensor((1, 3), "float32", name="z"))
    graph = integers(net, z)
    assert [graph.values[n].dtype for n in (*graph.inputs, *graph.outputs)] == ["int8", "int8"]
    assert (graph.inputs, graph.outputs) == (("x",), ("z",))
    half = Net(1, "float32")
    v = half.input(1, 2)
    w = half.tensor((3, 2), "float16", array=np.ones((3, 2), np.float16))
    wide = half.add("DEQUANTIZE", [w], half.tensor((3, 2), "float32"))
    out = half.add("FULLY_CONNECTED", [v, wide, -1], half.activation((1, 3)))
    found = run(from_bytes(half.bytes(out), "f.tflite").graph, [np.array([[1, 2]], np.float32)])[0]
    np.testing.assert_array_equal(found, [[3, 3, 3]])


def test_operators_that_no_output_needs_are_left_out():
    """A shape that is computed, as Keras writes it, and an operator without a real form."""
    net = Net(1)
    x = net.input(2, 6)
    shape = net.add("SHAPE", [x], net.tensor((2,), "int32"))
    net.add("UNIQUE", [x], [net.activation((12,)), net.tensor((12,), "int32")])
    parts = [net.integers(v) for v in ((0,), (1,), (1,))]
    rows = net.tensor((), "int32")
    net.add("STRIDED_SLICE", [shape, *parts], rows, shrink_axis_mask=1)
    wanted = net.add("PACK", [rows, net.integers(6)], net.tensor((2,), "int32"), axis=0)
    y = net.add("RESHAPE", [x, wanted], net.activation((12,), like=x))
    assert [node.op for node in integers(net, y).nodes] == ["reshape"]


def test_a_place():
    net = Net(1)
    x = net.input(2, 6)
    y = net.add("ARG_MAX", [x, net.integers(1)], net.tensor((2,), "int32"))
    codes = codes_of(net, 3)
    np.testing.assert_array_equal(computed(net, codes, y)[0], codes[0].argmax(1))


# --- refusals -------------------------------------------------------------------------------------


def test_every_operator_that_is_not_taken_is_listed():
    net = Net(1)
    x = net.input(1, 4)
    a = net.add("CUSTOM audio", [x], net.activation((1, 4)), version=3)
    b = net.add("L2_NORMALIZATION", [x], net.activation((1, 4)), version=2)
    y = net.add("ADD", [a, b], net.activation((1, 4)))
    with pytest.raises(UnsupportedError) as caught:
        from_bytes(net.bytes(y), "f.tflite")
    assert str(caught.value) == (
        "f.tflite: expected operators that have a real form, found 2 without; change the model "
        "there and convert it again:\n"
        "  operator 0 (CUSTOM audio): expected an operator that has a real form, found CUSTOM "
        "audio of version 3\n"
        "  operator 1 (L2_NORMALIZATION): expected an operator that has a real form, found "
        "L2_NORMALIZATION of version 2"
    )


def wrong(build: Callable[[Net, int], int], kind: type[Exception] = InputError) -> str:
    net = Net(1)
    y = build(net, net.input(1, 4, 4, 2))
    with pytest.raises(kind) as caught:
        from_bytes(net.bytes(y), "f.tflite")
    assert str(caught.value).startswith("f.tflite: ")
    return str(caught.value)


@pytest.mark.parametrize(
    ("build", "kind", "message"),
    [
        (lambda n, x: n.add("RESHAPE", [x], n.activation((5,), x)), InputError,
         "operator 0 (RESHAPE): expected a shape of 32 elements, found [5]"),
        (lambda n, x: n.add("LOGISTIC", [x], n.activation((1, 4))), InputError,
         "expected tensor 't1' of shape [1, 4, 4, 2], found [1, 4]"),
        (lambda n, x: n.add("SOFTMAX", [x, x], n.activation((1, 4, 4, 2))), InputError,
         "expected 1 input, found 2"),
        (lambda n, x: n.add("MAX_POOL_2D", [x], n.activation((1, 4, 4, 2)), stride_h=1,
                            filter_h=1, filter_w=1), InputError,
         "expected a stride from 1 to 65536, found 1 x 0"),
        (lambda n, x: n.add("CONV_2D", [x, n.weights((2, 1, 1, 3), None)],
                            n.activation((1, 4, 4, 2)), stride_h=1, stride_w=1), InputError,
         "expected weights of a part of 2 channels, found 3"),
        (lambda n, x: n.add("AVERAGE_POOL_2D", [x], n.activation((1, 4, 4, 2))), InputError,
         "expected a filter from 1 to 65536, found 0 x 0"),
        (lambda n, x: n.add("ADD", [x, n.tensor((1,), "int8")], n.activation((1, 4, 4, 2))),
         UnsupportedError, "found a tensor that nothing writes"),
        (lambda n, x: n.add("ADD", [x, n.tensor((1,), variable=True)], n.activation((1,))),
         UnsupportedError, "found a variable"),
        (lambda n, x: n.add("QUANTIZE", [x], n.tensor((1, 4, 4, 2), "int32",
                                                      quantization=Scaling((0.5,)))),
         UnsupportedError, "in codes of 8 or 16 bits with one scale, found int32 with 1"),
        (lambda n, x: n.add("QUANTIZE", [x], n.tensor((1, 4, 4, 2),
                                                      quantization=Scaling((0.5,), (200,)))),
         InputError, "expected zero points among the codes of int8, found (200,)"),
        (lambda n, x: n.add("MUL", [x, x], n.activation((1, 4, 4, 2)), activation="SIGN_BIT"),
         UnsupportedError, "expected a fused activation NONE, RELU, RELU_N1_TO_1, RELU6 or TANH, "
         "found SIGN_BIT"),
        (lambda n, x: n.add("TRANSPOSE", [x, x], n.activation((4, 4, 2, 1))), UnsupportedError,
         "expected a constant as the order of axes, found tensor 't0', computed"),
        (lambda n, x: n.tensor((1,)), InputError, "expected the output tensor 't1' to be computed"),
        (lambda n, x: n.add("MEAN", [x, n.integers((7,))], n.activation((1, 4))), InputError,
         "expected an axis from -4 to 3, found 7"),
        (lambda n, x: n.add("SPLIT", [n.integers(1), x], [n.activation((1, 4, 4, 2))] * 3),
         InputError, "expected 4 positions in 3 equal parts"),
    ],
)  # fmt: skip
def test_operators_that_contradict_themselves(build, kind, message):
    assert message in wrong(build, kind)


def test_outputs_that_a_graph_cannot_have():
    net = Net(1)
    x = net.input(1, 4)
    y = net.add("LOGISTIC", [x], net.activation((1, 4)))
    with pytest.raises(InputError, match="expected a network with outputs, found none"):
        from_bytes(net.bytes(), "f.tflite")
    with pytest.raises(InputError, match="expected outputs that differ, found one twice"):
        from_bytes(net.bytes(y, y), "f.tflite")
    net.add("TANH", [x], y)
    with pytest.raises(InputError, match="expected tensor 't1' to be written once"):
        from_bytes(net.bytes(y), "f.tflite")


def test_the_table_of_operators():
    """Each is computed above, and docs/spec/tflite.md lists it."""
    text = Path(__file__).parents[2].joinpath("docs", "spec", "tflite.md").read_text("utf-8")
    computed_above = {
        *(move[0] for move in MOVES),
        *(function[0] for function in FUNCTIONS),
        *("ADD", "SUB", "MUL", "AVERAGE_POOL_2D", "MAX_POOL_2D", "MEAN", "SUM", "REDUCE_MAX"),
        *("CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV", "FULLY_CONNECTED", "CONCATENATION"),
        *("SPLIT", "SPLIT_V", "PACK", "UNPACK", "PADV2", "QUANTIZE", "DEQUANTIZE", "SHAPE"),
        *("ARG_MAX", "BATCH_MATMUL"),
    }
    assert set(RULES) - computed_above == set()
    listed = set(re.findall(r"`([A-Z][A-Z0-9_]+)`", text.partition("## Operators")[2]))
    assert set(RULES) == listed
