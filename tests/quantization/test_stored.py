"""Weights that a file stores as codes, in a network that is quantized here."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from samebits.errors import InputError
from samebits.ir import GraphBuilder, interpreter
from samebits.ir.lowering.lower import lower_graph
from samebits.model import is_quantized
from samebits.quantization.lstm import quantize_recurrent
from samebits.quantization.post_training import quantize_graph
from samebits.quantization.settings import Settings
from samebits.quantization.stored import float_network

RNG = np.random.default_rng(0)
X = RNG.normal(0, 1, (30, 1, 6)).astype(np.float32)
CODES = RNG.integers(-7, 8, (5, 6)).astype(np.int8)
SCALES = RNG.uniform(0.1, 0.3, 5).astype(np.float32)


def network(codes=CODES, scale=SCALES, zero=None, form="Gemm", bias=1.0, **attributes):
    """x [1, 6] times stored weights [5, 6], plus a bias."""
    b = GraphBuilder("net")
    x = b.input("x", "float32", (1, 6))
    names = [b.constant("w", codes), b.constant("s", np.asarray(scale, np.float32))]
    if zero is not None:
        names.append(b.constant("z", np.asarray(zero, codes.dtype)))
    w = b.add("DequantizeLinear", names, {"axis": 0, **attributes})
    c = b.constant("b", np.float32(bias) * np.arange(5, dtype=np.float32))
    if form == "Gemm":
        y = b.add("Gemm", [x, w, c], {"transB": 1})
    else:
        y = b.add("Add", [b.add("MatMul", [x, b.add("Transpose", [w], {"perm": (1, 0)})]), c])
    return b.build([y])


def weights_of(graph):
    """Codes and scales of the weights of the one product of a quantized graph."""
    (product,) = (n for n in graph.nodes if n.op in ("Gemm", "MatMul"))
    made = graph.producers()[product.inputs[1]]
    return graph.constants[made.inputs[0]], graph.constants[made.inputs[1]]


def quantized(graph, **settings):
    return quantize_graph(graph, [{"x": x} for x in X], Settings(**settings))[0]


@pytest.mark.parametrize("form", ["Gemm", "MatMul"])
@pytest.mark.parametrize("scale", [SCALES, 0.25])
@pytest.mark.parametrize("zero", [None, 3])
def test_codes_stay_what_they_are(form, scale, zero):
    zeros = None if zero is None else np.full(np.shape(scale), zero)
    real = network(scale=scale, zero=zeros, form=form)
    assert not is_quantized(real)
    graph = quantized(real)
    codes, scales = weights_of(graph)
    assert np.array_equal(codes, CODES if form == "Gemm" else CODES.T)
    assert np.array_equal(scales, np.float32(scale))
    assert lower_graph(graph).integer


def test_the_numbers_are_those_that_the_file_means():
    real = network()
    plain = float_network(real)
    assert not any(node.op == "DequantizeLinear" for node in plain.graph.nodes)
    expected = interpreter.run(real, [X[0]])[0]
    found = interpreter.run(plain.graph, [X[0]])[0]
    assert np.allclose(found, expected, rtol=1e-6)
    (kept,) = plain.codes.values()
    assert kept.scales == tuple(Fraction(float(s)) for s in SCALES)
    assert kept.axis == 0


@pytest.mark.parametrize(
    ("change", "settings"),
    [
        ({"scale": np.stack([SCALES, SCALES], 1), "axis": 1, "block_size": 3}, {}),  # blocks
        ({"scale": np.append(SCALES, 0.2), "axis": 1}, {}),  # a scale for each input
        ({}, {"per_channel": False}),
        ({"bias": 1e9}, {}),  # whose codes would leave 32 bits
    ],
)
def test_others_are_rounded_again(change, settings):
    graph = quantized(network(**change), **settings)
    assert not np.array_equal(weights_of(graph)[0], CODES)
    assert lower_graph(graph).integer


def test_a_float_network_is_the_graph_itself():
    b = GraphBuilder("net")
    graph = b.build([b.add("Relu", [b.input("x", "float32", (1, 6))])])
    assert float_network(graph).graph is graph


def test_codes_stay_where_others_are_rounded_to_least_error():
    """Real numbers of codes are a hair off them: no neighbour is nearer."""
    rng = np.random.default_rng(1)
    b = GraphBuilder("net")
    codes = b.constant("w", rng.integers(-127, 128, (32, 16)).astype(np.int8))
    scales = b.constant("s", rng.uniform(0.01, 0.03, 16).astype(np.float32))
    w = b.add("DequantizeLinear", [codes, scales], {"axis": 1})
    graph = b.build([b.add("MatMul", [b.input("x", "float32", (1, 32)), w])])
    samples = [{"x": rng.normal(0, 1, (1, 32)).astype(np.float32)} for _ in range(40)]
    made, _ = quantize_graph(graph, samples, Settings(rounding="least-error"))
    assert np.array_equal(weights_of(made)[0], graph.constants["w"])


@pytest.mark.parametrize("place", [1, 2])
def test_what_an_input_decides_is_no_stored_weight(place):
    b = GraphBuilder("net")
    x, given = b.input("x", "float32", (1, 6)), b.input("given", ["float32", "int8"][place - 1], ())
    names = [b.constant("w", CODES), b.constant("s", np.float32(0.5)), b.constant("z", np.int8(1))]
    names[place] = given
    w = b.add("DequantizeLinear", names)
    graph = b.build([b.add("Gemm", [x, w], {"transB": 1})])
    assert is_quantized(graph)
    assert float_network(graph).graph is graph
    with pytest.raises(InputError, match="expected a float model, found DequantizeLinear"):
        quantize_graph(graph, [{"x": x, "given": np.int8(1)} for x in X])


def test_a_recurrent_layer_whose_weights_are_codes():
    """Its matrices are taken as the numbers that they stand for."""
    rng = np.random.default_rng(0)
    b = GraphBuilder("net")
    scale = b.constant("s", np.float32(0.01))

    def coded(name, *shape):
        codes = b.constant(name, rng.integers(-99, 100, shape).astype(np.int8))
        return b.add("DequantizeLinear", [codes, scale])

    inputs = [b.input("x", "float32", (6, 1, 3)), coded("w", 1, 16, 3), coded("r", 1, 16, 4)]
    y = b.add_all("LSTM", inputs, {"hidden_size": 4})[0]
    samples = [{"x": rng.normal(0, 1, (6, 1, 3)).astype(np.float32)} for _ in range(3)]
    graph, _ = quantize_recurrent(b.build([y]), samples)
    assert lower_graph(graph).integer
