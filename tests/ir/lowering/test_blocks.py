"""Weights with scales of blocks: products of parts of x, added exactly."""

from __future__ import annotations

import numpy as np
import pytest

from ir.lowering.test_lower import Net, assert_same_function, lower_graph
from samebits.errors import UnsupportedError


def blocked(net, codes, size, axis, zero=True, power=True):
    """Codes with a scale and a zero point for each block of an axis."""
    rng = np.random.default_rng(1)
    shape = [-(-n // size) if i == axis else n for i, n in enumerate(codes.shape)]
    scale = 2.0 ** rng.integers(-4, 0, shape) if power else rng.uniform(0.1, 0.3, shape)
    names = [net.b.constant("w", codes), net.b.constant("s", scale.astype(np.float32))]
    if zero:
        names.append(net.b.constant("z", rng.integers(-3, 4, shape).astype(np.int8)))
    return net.b.add("DequantizeLinear", names, {"axis": axis, "block_size": size})


def codes(*shape):
    return np.random.default_rng(len(shape)).integers(-8, 8, shape).astype(np.int8)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8])
@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("power", [False, True])
def test_a_product_with_rows(size, zero, power):
    net = Net((2, 7), 0.5, "int8", 3)
    w = blocked(net, codes(7, 4), size, 0, zero, power)
    graph = assert_same_function(net.b.build([net.q(net.b.add("MatMul", [net.x, w]), 2.0)]))
    parts = -(-7 // size)
    assert [node.op for node in graph.nodes].count("linear") == parts
    assert [node.op for node in graph.nodes].count("add") == (parts > 1)


@pytest.mark.parametrize("form", ["Gemm", "transB", "Transpose", "MatMul of rank 3"])
def test_the_ways_a_matrix_lies(form):
    net = Net((2, 3, 8) if form[-1] == "3" else (2, 8), 0.5, "uint8", 30)
    flipped = form in ("transB", "Transpose")
    w = blocked(net, codes(*((4, 8) if flipped else (8, 4))), 4, int(flipped))
    if form == "Transpose":
        w = net.b.add("Transpose", [w], {"perm": (1, 0)})
    if form in ("Gemm", "transB"):
        y = net.b.add("Gemm", [net.x, w], {"transB": int(flipped), "alpha": 0.5})
    else:
        y = net.b.add("MatMul", [net.x, w])
    graph = assert_same_function(net.b.build([net.q(y, 2.0)]))
    assert [node.op for node in graph.nodes].count("linear") == 2


@pytest.mark.parametrize("form", ["Gemm", "MatMul", "left"])
def test_a_bias_joins_the_first_block(form):
    """Multiples of every unit: then rounding it to the units of one product loses nothing."""
    net = Net((2, 8), 0.5)
    w = blocked(net, codes(8, 4), 4, 0)
    bias = net.b.constant("bias", np.float32([1, -2, 3, 400]))
    if form == "Gemm":
        y = net.b.add("Gemm", [net.x, w, bias])
    else:
        terms = [net.b.add("MatMul", [net.x, w]), bias]
        y = net.b.add("Add", terms if form == "MatMul" else terms[::-1])
    y = net.b.add("Relu", [y])
    graph = assert_same_function(net.b.build([net.q(y, 2.0)]))
    assert sorted({node.op for node in graph.nodes}) == [
        "add", "affine", "linear", "requantize", "slice"
    ]  # fmt: skip


def test_a_product_that_is_read_twice_is_split_once_more():
    net = Net((2, 8), 0.5)
    y = net.b.add("MatMul", [net.x, blocked(net, codes(8, 4), 4, 0)])
    bias = net.b.constant("bias", np.float32([1, -2, 3, 4]))
    outputs = [net.q(y, 2.0), net.q(net.b.add("Add", [y, bias]), 2.0)]
    assert_same_function(net.b.build(outputs))


@pytest.mark.parametrize("form", ["columns", "kernel"])
def test_blocks_that_no_product_sums_are_refused(form):
    net = Net((1, 4, 8, 8) if form == "kernel" else (2, 8), 0.5)
    if form == "columns":
        y = net.b.add("MatMul", [net.x, blocked(net, codes(8, 4), 2, 1)])
    else:
        w = blocked(net, codes(4, 4, 1, 1), 2, 1)
        attributes = {"strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1)}
        y = net.b.add("Conv", [net.x, w], attributes)
    with pytest.raises(UnsupportedError, match="blocks along the summed axis of a constant matrix"):
        lower_graph(net.b.build([net.q(y, 2.0)]))
