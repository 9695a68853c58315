"""The meaning `tflite`: codes of the runtime's own kernels, restated here from their C."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
import pytest

from samebits.errors import InputError, UnsupportedError
from samebits.ir import Graph
from samebits.ir.figures import graph_sha256
from samebits.ir.interpreter import run
from samebits.model import Model
from samebits.tflite import parse
from samebits.tflite.file import Scaling
from samebits.tflite.same.importer import import_same
from samebits.tflite.same.node import RULES
from samebits.tflite.same.versions import NEWEST, RUNTIMES
from samebits.tflite.schema import SAME, VALID
from samebits.verification.registry import backend_named
from tflite_files import Net, codes_of, image_net, windows

Array = np.ndarray[Any, Any]
ACTIVATED = ["NONE", "RELU", "RELU6", "RELU_N1_TO_1"]


# --- the kernels ----------------------------------------------------------------------------------


def toward_zero(a: int, b: int) -> int:
    return abs(a) // b * (1 if a >= 0 else -1)


def multiplier(real: float) -> tuple[int, int]:
    """QuantizeMultiplier."""
    fraction, shift = math.frexp(real)
    m = math.floor(fraction * 2**31 + 0.5)
    return (m // 2, shift + 1) if m == 2**31 else (m, shift)


def rescale(x: int, m: int, shift: int) -> int:
    """MultiplyByQuantizedMultiplier: a doubling high product, then a shift that rounds."""
    product = (x << max(shift, 0)) * m
    assert abs(x << max(shift, 0)) < 2**31
    high = toward_zero(product + (2**30 if product >= 0 else 1 - 2**30), 2**31)
    right = max(-shift, 0)
    rest, above = high & ((1 << right) - 1), (((1 << right) - 1) >> 1) + (high < 0)
    return (high >> right) + (rest > above)


def scaled(totals: Array, real: float) -> Array:
    m, shift = multiplier(real)
    return np.vectorize(lambda x: rescale(int(x), m, shift), otypes=[np.int64])(totals)


def scale(net: Net, index: int) -> float:
    found = net.tensors[index].quantization
    assert found is not None
    return found.scales[0]


def zero(net: Net, index: int) -> int:
    found = net.tensors[index].quantization
    assert found is not None
    return found.zero_points[0]


def clamped(net: Net, y: int, codes: Array, activation: str = "NONE") -> Array:
    """The zero point added, then the activation's ends, in codes."""
    low, high = -128, 127

    def code(real: float) -> int:
        value = np.float32(real) / np.float32(scale(net, y))
        return zero(net, y) + int(math.copysign(math.floor(abs(value) + 0.5), value))

    if activation == "RELU_N1_TO_1":
        low, high = max(low, code(-1.0)), min(high, code(1.0))
    elif activation != "NONE":
        low = max(low, code(0.0))
        high = min(high, code(6.0)) if activation == "RELU6" else high
    return np.clip(codes + zero(net, y), low, high)


def imported(net: Net, *outputs: int, runtime: str = NEWEST) -> Graph:
    return import_same(net.file(*outputs), "f.tflite", RUNTIMES[runtime])


def computed(net: Net, inputs: list[Array], *outputs: int, runtime: str = NEWEST) -> Any:
    return run(imported(net, *outputs, runtime=runtime), inputs)


def sums(net: Net, operator: int, products: Array, last: int) -> tuple[Array, list[float]]:
    """Sums with the bias, and the ratio of every channel, in binary64."""
    _, w, b = net.operators[operator].inputs
    found = net.tensors[w].quantization
    bias = net.tensors[b].array
    assert found is not None
    assert bias is not None
    x, y = net.operators[operator].inputs[0], net.operators[operator].outputs[0]
    scales = found.scales if len(found.scales) > 1 else found.scales * last
    return products + bias, [scale(net, x) * s / scale(net, y) for s in scales]


def by_channel(totals: Array, ratios: list[float]) -> Array:
    return np.stack([scaled(totals[..., c], ratio) for c, ratio in enumerate(ratios)], -1)


# --- operators ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("activation", ACTIVATED)
@pytest.mark.parametrize("padding", [SAME, VALID])
def test_a_convolution(seed, activation, padding):
    net = Net(seed)
    x = net.input(1, 5, 6, 3)
    y = net.conv(x, 4, (3, 2), 2, padding, activation=activation)
    codes = codes_of(net, seed)
    w = net.tensors[net.operators[0].inputs[1]].array.astype(np.int64)
    products = np.zeros(net.tensors[y].shape, np.int64)
    real = codes[0].astype(np.int64) - zero(net, x)
    for row, column, inner, taps in windows(real, (3, 2), 2, padding):
        for o in range(4):
            products[:, row, column, o] = (inner * w[o][taps]).sum((1, 2, 3))
    expected = clamped(net, y, by_channel(*sums(net, 0, products, 4)), activation)
    np.testing.assert_array_equal(computed(net, codes, y)[0], expected)


@pytest.mark.parametrize("seed", range(4))
def test_a_filter_for_every_channel(seed):
    net = Net(seed)
    x = net.input(1, 5, 4, 3)
    y = net.depthwise(x, 2, activation="RELU6")
    codes = codes_of(net, seed)
    w = net.tensors[net.operators[0].inputs[1]].array[0].astype(np.int64)
    products = np.zeros(net.tensors[y].shape, np.int64)
    real = codes[0].astype(np.int64) - zero(net, x)
    for row, column, inner, taps in windows(real, (3, 3), 1, SAME):
        products[:, row, column] = (np.repeat(inner, 2, -1) * w[taps]).sum((1, 2))
    expected = clamped(net, y, by_channel(*sums(net, 0, products, 6)), "RELU6")
    np.testing.assert_array_equal(computed(net, codes, y)[0], expected)


@pytest.mark.parametrize("runtime", list(RUNTIMES))
@pytest.mark.parametrize("axis", [None, 0])
@pytest.mark.parametrize("seed", range(6))
def test_rows_times_weights(seed, axis, runtime):
    """One scale: the product of two in binary32 or in binary64, by the runtime's version."""
    net = Net(seed)
    x = net.input(2, 3, 7)
    y = net.dense(x, 5, axis, activation="RELU")
    codes = codes_of(net, seed)
    w = net.tensors[net.operators[0].inputs[1]].array.astype(np.int64)
    totals, ratios = sums(net, 0, (codes[0].astype(np.int64) - zero(net, x)) @ w.T, 5)
    if axis is None:
        kind = np.float32 if RUNTIMES[runtime].short else np.float64
        product = kind(scale(net, x)) * kind(scale(net, net.operators[0].inputs[1]))
        ratios = [float(product) / scale(net, y)] * 5
    expected = clamped(net, y, by_channel(totals, ratios), "RELU")
    np.testing.assert_array_equal(computed(net, codes, y, runtime=runtime)[0], expected)


def test_versions_differ():
    """A ratio whose product of scales binary32 rounds: other integers, another hash."""
    hashes = set()
    for runtime in RUNTIMES:
        net = Net(1)
        y = net.dense(net.input(1, 4), 3)
        hashes.add(graph_sha256(imported(net, y, runtime=runtime)))
    assert len(hashes) == 2


@pytest.mark.parametrize("activation", ACTIVATED)
@pytest.mark.parametrize("op", ["ADD", "SUB", "MUL"])
@pytest.mark.parametrize("seed", range(5))
def test_two_tensors(op, activation, seed):
    net = Net(seed)
    a, b = net.input(2, 7, 9), net.input(2, 7, 9)
    y = net.add(op, [a, b], net.activation((2, 7, 9)), activation=activation)
    codes = codes_of(net, seed)
    p, q = (c.astype(np.int64) - zero(net, i) for c, i in zip(codes, (a, b), strict=True))
    scales = [scale(net, i) for i in (a, b, y)]
    if op == "MUL":
        values = scaled(p * q, scales[0] * scales[1] / scales[2])
    else:
        twice = 2 * max(scales[:2])
        p, q = (scaled(v << 20, s / twice) for v, s in zip((p, q), scales, strict=False))
        values = scaled(p + q if op == "ADD" else p - q, twice / (2**20 * scales[2]))
    expected = clamped(net, y, values, activation)
    np.testing.assert_array_equal(computed(net, codes, y)[0], expected)


def test_sums_that_one_rounding_computes():
    """A whole sum in one node where all pairs of codes prove it; else a table of what rounding
    moves the operand of the smaller scale by."""
    ops = set()
    for seed in range(12):
        net = Net(seed)
        a, b = net.input(2, 3), net.input(2, 3)
        y = net.add("ADD", [a, b], net.activation((2, 3)))
        graph = imported(net, y)
        ops.add(tuple(node.op for node in graph.nodes))
    assert ops == {("add", "requantize"), ("table", "add", "requantize")}


@pytest.mark.parametrize("op", ["AVERAGE_POOL_2D", "MAX_POOL_2D"])
@pytest.mark.parametrize("size", [(2, 2), (3, 2), (5, 6)])
def test_a_pool(op, size):
    net = Net(3)
    x = net.input(1, 5, 6, 4)
    y = net.pool(op, x, size, VALID, activation="RELU6", stride=1)
    codes = codes_of(net, 3)
    expected = np.zeros(net.tensors[y].shape, np.int64)
    count = size[0] * size[1]
    for row, column, inner, _ in windows(codes[0].astype(np.int64), size, 1, VALID):
        total = inner.sum((1, 2))
        nearest = np.where(
            total > 0, (total + count // 2) // count, -((count // 2 - total) // count)
        )
        expected[:, row, column] = nearest if op == "AVERAGE_POOL_2D" else inner.max((1, 2))
    np.testing.assert_array_equal(
        computed(net, codes, y)[0], clamped(net, y, expected - zero(net, y), "RELU6")
    )


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kept", [False, True])
def test_a_mean(seed, kept):
    net = Net(seed)
    x = net.input(2, 5, 7, 3)
    y = net.activation((2, 1, 1, 3) if kept else (2, 3))
    net.add("MEAN", [x, net.integers((1, 2))], y, keep_dims=kept)
    codes = codes_of(net, seed)
    m, shift = multiplier(scale(net, x) / scale(net, y))
    more = min((35).bit_length() - 1, 32, 31 + shift)
    m, shift = (m << more) // 35, shift - more
    total = codes[0].astype(np.int64).sum((1, 2), keepdims=kept) - 35 * zero(net, x)
    values = np.vectorize(lambda v: rescale(int(v), m, shift), otypes=[np.int64])(total)
    np.testing.assert_array_equal(computed(net, codes, y)[0], clamped(net, y, values))


@pytest.mark.parametrize("seed", range(4))
def test_other_codes_and_movements(seed):
    """QUANTIZE of codes, a pad, a new shape, two tensors side by side."""
    net = Net(seed)
    x = net.input(1, 4, 6)
    y = net.add("QUANTIZE", [x], net.activation((1, 4, 6)))
    padded = net.add(
        "PAD", [y, net.integers([[0, 0], [1, 2], [0, 1]])], net.activation((1, 7, 7), y)
    )
    flat = net.reshape(padded, 1, 49)
    both = net.add("CONCATENATION", [flat, flat], net.activation((1, 98), y), axis=1)
    codes = codes_of(net, seed)
    other = scaled(codes[0].astype(np.int64) - zero(net, x), scale(net, x) / scale(net, y))
    other = clamped(net, y, other)
    wide = np.pad(other, [(0, 0), (1, 2), (0, 1)], constant_values=zero(net, y)).reshape(1, 49)
    found = computed(net, codes, y, both)
    np.testing.assert_array_equal(found[0], other)
    np.testing.assert_array_equal(found[1], np.concatenate([wide, wide], 1))


# --- networks -------------------------------------------------------------------------------------

# Of 64 random inputs of `image_net(seed)` without its softmax, what the interpreter of tflite-micro
# 0.dev20261023182759 (from PyPI) gave.
RECORDED = {
    0: "3162a7ff3a6f1eba",
    1: "3203bb1683d17d55",
    2: "5135b20a55947eac",
    3: "0e0689301d690db0",
}


def scores(net: Net, y: int) -> int:
    """The scores that a softmax reads."""
    return next(op.inputs[0] for op in net.operators if op.outputs == (y,))


@pytest.mark.parametrize("seed", range(4))
def test_a_network_is_that_of_the_runtime(seed):
    """The codes of 64 random inputs, as they were recorded."""
    net, y = image_net(seed)
    graph = imported(net, scores(net, y))
    rng = np.random.default_rng(seed)
    codes = rng.integers(-128, 128, (64, 8, 8, 3)).astype(np.int8)
    found = np.concatenate([run(graph, [x[None]])[0] for x in codes])
    assert found.dtype == np.int8
    assert hashlib.sha256(found.tobytes()).hexdigest()[:16] == RECORDED[seed]


@pytest.mark.parametrize("backend", ["torch", "c", "onnxruntime-integer"])
def test_a_network_is_the_same_everywhere(backend):
    found = backend_named(backend)
    if found.unavailable():
        pytest.skip(str(found.unavailable()))
    net, y = image_net(2)
    graph = imported(net, scores(net, y))
    codes = codes_of(net, 1)
    model = Model("f.tflite", graph)
    np.testing.assert_array_equal(found.run(model, codes)[0], run(graph, codes)[0])


# --- refusals -------------------------------------------------------------------------------------


def refused(net: Net, *outputs: int) -> str:
    with pytest.raises((InputError, UnsupportedError)) as caught:
        import_same(parse(net.bytes(*outputs), "f.tflite"), "f.tflite", RUNTIMES[NEWEST])
    assert str(caught.value).startswith("f.tflite: ")
    return str(caught.value)


def test_operators_whose_bits_are_not_known():
    net = Net(1)
    y = net.add("EXP", [net.input(1, 4)], net.activation((1, 4)))
    assert (
        "expected operators whose bits are those of tflm-2026-10, found 1 that are not; end before "
        "them (--end-at), or give --meaning exact:\n  operator 0 (EXP): expected one of "
        f"{len(RULES)} operators, found EXP of version 1"
    ) in refused(net, y)


def test_networks_of_other_codes():
    net, y = image_net(1, "float32")
    expected = "expected codes of int8 or int16 or uint8 with one scale, found tensor 't0', float32"
    assert expected in refused(net, y)
    net, y = image_net(1, "uint8")
    assert "expected codes of int8 or int16 with one scale, found tensor 't0', uint8" in refused(
        net, y
    )


def test_forms_that_are_refused():
    net = Net(1)
    a, b = net.input(2, 3), net.input(2, 3)
    y = net.add("CONCATENATION", [a, b], net.activation((2, 6)), axis=1)
    assert "expected tensors of one type and scale, found others" in refused(net, y)
    net = Net(1)
    x = net.input(1, 4)
    wide = net.tensor((1, 4), quantization=Scaling((2.0**-40,)))
    y = net.add("QUANTIZE", [x], wide)
    assert "expected a ratio from 2**-32 to 2**30" in refused(net, y)
    net = Net(1)
    x = net.input(1, 4)
    y = net.reshape(x, 2, 3)
    assert "operator 0 (RESHAPE): expected a shape of 4" in refused(net, y)


def test_sums_that_would_wrap():
    """Where the runtime's 32 bits do not hold a sum, nothing is called its bits."""
    net = Net(1)
    x = net.tensor((1, 4), quantization=Scaling((1.0,)))
    net.inputs.append(x)
    y = net.add("QUANTIZE", [x], net.tensor((1, 4), quantization=Scaling((2.0**-26,))))
    assert "expected sums below 2**31 before they are rounded" in refused(net, y)


def test_zero_points_that_are_no_codes():
    """As damaged files have them."""
    net = Net(1)
    x = net.tensor((1, 4), "int16", quantization=Scaling((0.1,), (1 << 40,)))
    net.inputs.append(x)
    y = net.reshape(x, 2, 2)
    assert "expected a zero point among the codes of int16, found tensor 't0'" in refused(net, y)


def test_tensors_without_axes_and_networks_without_inputs():
    """As damaged files have them: a sentence, whatever the operator looks at."""
    for op, count in (("SVDF", 5), ("UNIDIRECTIONAL_SEQUENCE_LSTM", 24)):
        net = Net(1)
        scale = Scaling((0.1,), (0,))
        x = net.tensor((), quantization=scale)
        net.inputs.append(x)
        others = [net.tensor((), quantization=scale, variable=True) for _ in range(count - 1)]
        y = net.add(op, [x, *others], net.activation((1, 4)))
        assert f"operator 0 ({op}): expected" in refused(net, y)
    net = Net(1)
    constant = net.weights((1, 4), None)
    y = net.add("ABS", [constant], net.activation((1, 4)))
    assert "expected a network with inputs" in refused(net, y)
