"""Roundings of least error, against the definition of the error in Python's integers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from samebits.ir import Node
from samebits.quantization.descent import HOLD, Layout, Moments, descend

CONV = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}


def matrix(terms, outputs, **attributes):
    return Layout(Node("MatMul", "m", ("x", "w"), ("y",), attributes), (terms, outputs))


def drawn(seed, terms, outputs, positions, high=127):
    """Moments of codes that depend on one another, and weights in units of their codes."""
    rng = np.random.default_rng(seed)
    mixed = rng.normal(size=(positions, terms)) @ rng.normal(size=(terms, terms))
    x = np.rint(mixed * high / np.abs(mixed).max()).astype(np.int64)
    exact = rng.uniform(-7, 7, size=(terms, outputs))
    y = np.rint(x @ exact).astype(np.int64)
    moments = Moments(matrix(terms, outputs))
    moments.add(x[None], y[None])
    return x, y, exact, moments


def found(moments, exact):
    start = np.rint(exact).astype(np.int64)[None]
    return descend(moments.products, moments.targets, moments.count, start, exact[None])[0]


def error(x, y, q):
    return int(((x @ q - y) ** 2).sum())


@pytest.mark.parametrize("seed", range(5))
def test_the_error_is_below_that_of_nearest_codes(seed):
    x, y, exact, moments = drawn(seed, 12, 3, 400)
    q = found(moments, exact)
    assert error(x, y, q) < error(x, y, np.rint(exact).astype(np.int64)) * 9 / 10
    assert (np.abs(q - exact) < 1).all()


def test_no_single_code_could_be_better():
    """By the error and what holds each weight near its value, computed in Python's integers."""
    x, y, exact, moments = drawn(9, 6, 2, 4000)
    q = found(moments, exact)
    diagonal = [int((x[:, i] ** 2).sum()) for i in range(6)]
    holds = [d // HOLD + d * 6 // (4 * 4000) + 1 for d in diagonal]

    def held(q):
        away = [
            holds[i] * (int(q[i, o]) ** 2 - 2 * exact[i, o] * int(q[i, o]))
            for i, o in itertools.product(range(6), range(2))
        ]
        return error(x, y, q) + sum(away)

    for i, o in itertools.product(range(6), range(2)):
        for other in (np.floor(exact[i, o]), np.ceil(exact[i, o])):
            changed = q.copy()
            changed[i, o] = other
            assert held(q) <= held(changed) + 20  # the pull to the exact weight is rounded


def test_an_exact_weight_stays():
    x, _, exact, moments = drawn(2, 5, 2, 100)
    assert (found(moments, np.rint(exact)) == np.rint(exact)).all()
    assert error(x, np.rint(x @ np.rint(exact)).astype(np.int64), np.rint(exact)) == 0


def test_an_input_that_is_always_zero_has_the_nearest_code():
    x, y, exact, _ = drawn(3, 5, 2, 100)
    x[:, 2] = 0
    moments = Moments(matrix(5, 2))
    moments.add(x[None], y[None])
    assert (found(moments, exact)[2] == np.rint(exact[2])).all()


def test_sums_beyond_64_bits_are_shortened():
    x, y, exact, moments = drawn(4, 40, 2, 3000, high=32767)
    for name in ("products", "targets"):
        setattr(moments, name, getattr(moments, name) << 16)
    q = found(moments, exact)
    assert error(x, y, q) < error(x, y, np.rint(exact).astype(np.int64)) * 9 / 10


def test_moments_around_the_means():
    x, y, _, moments = drawn(5, 4, 3, 64)
    products, targets = moments.centred()
    a, b = (np.floor(v.mean(0) + 0.5).astype(np.int64) for v in (x, y))
    assert (products[0] == (x - a).T @ (x - a)).all()
    assert (targets[0] == (x - a).T @ (y - b)).all()


@pytest.mark.parametrize(
    ("op", "shape", "attributes"),
    [
        ("Conv", (6, 2, 3, 3), {**CONV, "group": 2}),
        ("Conv", (4, 4, 1, 1), {**CONV, "group": 1, "pads": (0,) * 4, "strides": (2, 1)}),
        ("Conv", (4, 1, 3), {"strides": (1,), "pads": (1, 0), "dilations": (2,), "group": 4}),
        ("Gemm", (5, 4), {"transB": 1, "transA": 0}),
        ("Gemm", (4, 5), {"transB": 0, "transA": 0}),
        ("MatMul", (4, 5), {}),
    ],
)
def test_rows_times_matrix_are_the_sums_of_the_layer(op, shape, attributes):
    from samebits.ir.ops import op_named

    rng = np.random.default_rng(0)
    layout = Layout(Node(op, "n", ("x", "w"), ("y",), attributes), shape)
    assert layout.known
    w = rng.integers(-9, 9, shape)
    x = rng.integers(-9, 9, (2, 4, 6, 5)[: max(2, len(shape))])
    filled = op_named(op).complete(attributes, "n")
    arrays = [x.astype(float), w.astype(float)] + [None] * (op == "Conv" or op == "Gemm")
    y = np.moveaxis(op_named(op).meaning(arrays, filled)[0], layout.axis, -1)
    assert (layout.restored(layout.matrix(w)) == w).all()
    assert (layout.rows(x) @ layout.matrix(w) == layout.columns(y)).all()


def test_layers_without_rows():
    transposed = Node("ConvTranspose", "n", ("x", "w"), ("y",), {"group": 1})
    assert not Layout(transposed, (2, 3, 3, 3)).known
    assert not matrix(3, 4, transA=1).known
    assert not Layout(Node("MatMul", "m", ("x", "w"), ("y",)), (2, 3, 4)).known
