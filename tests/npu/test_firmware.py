"""The example firmware against networks written out from their mathematics.

Each reference works on logical tensors with the plain definitions of samebits.numerics and, for
sigmoid and tanh, mpmath: equality. The float64 network beside it says that it is the right network.
"""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction
from functools import cache
from pathlib import Path

import mpmath
import numpy as np
import pytest
from safetensors.numpy import load_file

from compare import assert_same
from samebits.npu.machine.image import read_program
from samebits.npu.simulator.simulate import simulate
from samebits.spec.npu_binary16 import (
    binary16_add,
    binary16_max,
    binary16_mul,
    binary16_relu,
    binary16_sub,
    to_binary16,
)
from samebits.spec.npu_short import bfp_long, bfp_short, long_to_binary16

FIRMWARE = Path(__file__).resolve().parents[2] / "examples" / "firmware"
N, M = 16, 15
NAMES = sorted(path.stem for path in FIRMWARE.glob("*.nnp"))


def image(name):
    """Tensors of a memory image by their names without the memory."""
    return {
        key.split("/")[1]: array
        for key, array in load_file(FIRMWARE / f"{name}.safetensors").items()
    }


def machine(name, **inputs):
    """The only output of a program."""
    (output,) = simulate(*read_program(FIRMWARE / f"{name}.nnp"), inputs).outputs.values()
    return output


def numbers(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float16)


def same(found, expected, float_network, close):
    """Bits, not closeness; and about what a plain float network says."""
    assert found.dtype == np.float16
    expected = np.array(expected)
    assert found.shape == expected.shape == float_network.shape
    assert_same(found.astype(np.float64), expected, list(np.ndindex(expected.shape)))
    assert np.abs(expected - float_network).max() < close
    assert np.abs(float_network).max() > 10 * close


# --- the arithmetic, on lists of Python floats --------------------------------------------------


def blocks(values):
    """BFP-short blocks of a logical vector."""
    values = [float(v) for v in values]
    return [bfp_short(values[i : i + N], M) for i in range(0, len(values), N)]


def quantized(matrix):
    """Rows of a matrix [O, I]; of a convolution [O, C, kh, kw] as [O, ky, kx, C], pixelwise."""
    if matrix.ndim == 2:
        return [blocks(row) for row in matrix]
    pixels = matrix.transpose(0, 2, 3, 1).reshape(len(matrix), -1, matrix.shape[1])
    return [[block for pixel in row for block in blocks(pixel)] for row in pixels]


def product(rows, vector, requantize=False):
    """A quantized matrix times quantized blocks: a list of binary16 numbers."""
    result = []
    for row in rows:
        pairs = [
            (sum(a * b for a, b in zip(codes, others, strict=True)), e + f - 2 * M)
            for (codes, e), (others, f) in zip(row, vector, strict=True)
        ]
        result.append(long_to_binary16(bfp_long(pairs, requantize)))
    return result


def each(function, *lists):
    return [function(*(float(v) for v in items)) for items in zip(*lists, strict=True)]


def add(a, b):
    return each(binary16_add, a, b)


def subtract(a, b):
    return each(binary16_sub, a, b)


def times(a, b):
    return each(binary16_mul, a, b)


def relu(a):
    return each(binary16_relu, a)


@cache
def precise(function, x):
    with mpmath.workdps(60):
        value = mpmath.tanh(x) if function == "tanh" else 1 / (1 + mpmath.exp(-mpmath.mpf(x)))
        sign, mantissa, exponent, _ = value._mpf_
        return to_binary16(Fraction(-mantissa if sign else mantissa) * Fraction(2) ** exponent)


def sigmoid(a):
    return [precise("sigmoid", x) for x in a]


def tanh(a):
    return [precise("tanh", x) for x in a]


def convolution(image, rows, bias, stride=1):
    """3x3, padding 1: image {(y, x): channels}; missing pixels are zeros."""
    channels = len(image[0, 0])
    height, width = (max(place[axis] for place in image) + 1 for axis in (0, 1))
    quantized_pixels = {place: blocks(pixel) for place, pixel in image.items()}
    zeros = blocks([0.0] * channels)
    result = {}
    for y in range(0, height, stride):
        for x in range(0, width, stride):
            vector = [
                block
                for dy in (-1, 0, 1)
                for dx in (-1, 0, 1)
                for block in quantized_pixels.get((y + dy, x + dx), zeros)
            ]
            result[y // stride, x // stride] = add(product(rows, vector), bias)
    return result


def to_pixels(array):
    return {(y, x): array[:, y, x].tolist() for y, x in np.ndindex(array.shape[1:])}


def from_pixels(pixels):
    height, width = (max(place[axis] for place in pixels) + 1 for axis in (0, 1))
    return [
        [[pixels[y, x][c] for x in range(width)] for y in range(height)]
        for c in range(len(pixels[0, 0]))
    ]


def float_convolution(x, w, b, stride=1):
    padded = np.pad(x.astype(float), ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))
    windows = windows[:, ::stride, ::stride]
    return np.einsum("cyxkl,ockl->oyx", windows, w.astype(float)) + b.astype(float)[:, None, None]


# --- programs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_mlp(seed):
    t, x = image("mlp_softmax"), numbers(seed, 50)
    hidden = relu(add(product(quantized(t["w1"]), blocks(x), requantize=True), t["b1"]))
    hidden = relu(add(product(quantized(t["w2"]), blocks(hidden)), t["b2"]))
    expected = add(product(quantized(t["w3"]), blocks(hidden)), t["b3"])
    f = {name: array.astype(float) for name, array in t.items()}
    plain = np.maximum(f["w1"] @ x.astype(float) + f["b1"], 0)
    plain = np.maximum(f["w2"] @ plain + f["b2"], 0)
    same(machine("mlp_softmax", x=x), expected, f["w3"] @ plain + f["b3"], 0.01)


@pytest.mark.parametrize("seed", range(2))
def test_conv1x1(seed):
    t, x = image("conv1x1"), numbers(seed, 20, 5, 6)
    rows = quantized(t["w"])
    expected = {
        place: relu(add(product(rows, blocks(pixel)), t["b"]))
        for place, pixel in to_pixels(x).items()
    }
    plain = np.einsum("oc,cyx->oyx", t["w"].astype(float), x.astype(float))
    plain = np.maximum(plain + t["b"].astype(float)[:, None, None], 0)
    same(machine("conv1x1", x=x), from_pixels(expected), plain, 0.01)


def test_conv3x3_stride2():
    t, x = image("conv3x3_stride2"), numbers(3, 20, 7, 9)
    found = convolution(to_pixels(x), quantized(t["w"]), t["b"], stride=2)
    expected = from_pixels({place: relu(pixel) for place, pixel in found.items()})
    plain = np.maximum(float_convolution(x, t["w"], t["b"], 2), 0)
    same(machine("conv3x3_stride2", x=x), expected, plain, 0.01)


def test_residual_maxpool():
    t, x = image("residual_maxpool"), numbers(4, 16, 6, 6)
    pixels = to_pixels(x)
    hidden = convolution(pixels, quantized(t["w1"]), t["b1"])
    hidden = {place: relu(pixel) for place, pixel in hidden.items()}
    second = convolution(hidden, quantized(t["w2"]), t["b2"])
    y = {place: relu(add(pixel, pixels[place])) for place, pixel in second.items()}
    pooled = {}
    for i, j in np.ndindex(3, 3):
        largest = each(binary16_max, y[2 * i, 2 * j], y[2 * i, 2 * j + 1])
        largest = each(binary16_max, largest, y[2 * i + 1, 2 * j])
        pooled[i, j] = each(binary16_max, largest, y[2 * i + 1, 2 * j + 1])
    plain = np.maximum(float_convolution(x, t["w1"], t["b1"]), 0)
    plain = np.maximum(float_convolution(plain, t["w2"], t["b2"]) + x, 0)
    plain = plain.reshape(16, 3, 2, 3, 2).max((2, 4))
    same(machine("residual_maxpool", x=x), from_pixels(pooled), plain, 0.02)


def test_average_pool():
    x = numbers(5, 24, 4, 6)
    expected = {}
    for i, j in np.ndindex(2, 3):
        total = add(x[:, 2 * i, 2 * j], x[:, 2 * i, 2 * j + 1])
        total = add(add(total, x[:, 2 * i + 1, 2 * j]), x[:, 2 * i + 1, 2 * j + 1])
        expected[i, j] = times(total, [0.25] * 24)
    plain = x.astype(float).reshape(24, 2, 2, 3, 2).mean((2, 4))
    same(machine("average_pool", x=x), from_pixels(expected), plain, 0.01)


def test_lstm():
    t, x = image("lstm"), numbers(6, 12, 20)
    w = {name: quantized(array) for name, array in t.items() if name.startswith("w")}
    f = {name: array.astype(float) for name, array in t.items()}
    h = c = [0.0] * 40
    plain_h = plain_c = np.zeros(40)
    expected, plain = [], []
    for step in x:
        gates, plain_gates = {}, {}
        for gate in "ifog":
            part = add(product(w[f"w_x{gate}"], blocks(step)), t[f"b_{gate}"])
            gates[gate] = add(product(w[f"w_h{gate}"], blocks(h)), part)
            total = f[f"w_x{gate}"] @ step.astype(float) + f[f"w_h{gate}"] @ plain_h
            total += f[f"b_{gate}"]
            plain_gates[gate] = np.tanh(total) if gate == "g" else 1 / (1 + np.exp(-total))
        i, forget, o = (sigmoid(gates[gate]) for gate in "ifo")
        c = add(times(tanh(gates["g"]), i), times(forget, c))
        h = times(tanh(c), o)
        expected.append(h)
        plain_c = plain_gates["f"] * plain_c + plain_gates["i"] * plain_gates["g"]
        plain_h = plain_gates["o"] * np.tanh(plain_c)
        plain.append(plain_h)
    same(machine("lstm", x=x), expected, np.array(plain), 0.01)


def test_gru():
    t, x = image("gru"), numbers(7, 10, 16)
    w = {name: quantized(array) for name, array in t.items() if name.startswith("w")}
    f = {name: array.astype(float) for name, array in t.items()}
    h, plain_h = [0.0] * 20, np.zeros(20)
    expected, plain = [], []
    for step in x:
        both = blocks(step) + blocks(h)
        z, r = (sigmoid(add(product(w[f"w_{g}"], both), t[f"b_{g}"])) for g in "zr")
        part = add(product(w["w_xn"], blocks(step)), t["b_xn"])
        state = times(add(product(w["w_hn"], blocks(h)), t["b_hn"]), r)
        n = tanh(add(state, part))
        h = add(times(subtract(h, n), z), n)
        expected.append(h)

        xh = np.concatenate([step.astype(float), plain_h])
        fz, fr = (1 / (1 + np.exp(-f[f"w_{g}"] @ xh - f[f"b_{g}"])) for g in "zr")
        fn = f["w_xn"] @ step.astype(float) + f["b_xn"] + fr * (f["w_hn"] @ plain_h + f["b_hn"])
        plain_h = (1 - fz) * np.tanh(fn) + fz * plain_h
        plain.append(plain_h)
    same(machine("gru", x=x), expected, np.array(plain), 0.01)


# --- all of them --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_is_its_samples(name):
    program, memory = read_program(FIRMWARE / f"{name}.nnp")
    (hint,) = (h for h in program.hints if h.kind == "input")
    x = numbers(8, 2, *hint.shape)
    batch = simulate(program, memory, {hint.name: x}).outputs
    single = simulate(program, memory, {hint.name: x[1]}).outputs
    for output in batch:
        assert_same(batch[output][1], single[output], list(np.ndindex(single[output].shape)))
        assert not np.array_equal(batch[output][0], batch[output][1])


def test_images_are_reproduced(tmp_path):
    script = FIRMWARE / "make_images.py"
    subprocess.run([sys.executable, script, tmp_path], check=True)
    assert len(NAMES) == 7
    for name in NAMES:
        file = f"{name}.safetensors"
        assert (tmp_path / file).read_bytes() == (FIRMWARE / file).read_bytes(), file
