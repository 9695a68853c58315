"""The reference itself, in exact or analytic terms.

Where every intermediate is small enough that nothing rounds, the reference must equal real
arithmetic exactly. Elsewhere it is compared with float64 autograd under bounds that reflect the
quantization: that checks formulas and signs; it is no contract about bits.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from samebits.spec import formats
from samebits.spec.training import layers, moments, norm, pointwise
from samebits.spec.training.layers import (
    Array,
    Geometry,
    Parameter,
    initial_parameter,
    quantize,
    quantize_input,
)
from samebits.spec.training.loss import T1, T2, cross_entropy, log2_fixed, mse
from samebits.spec.training.optimizer import SGD, Adam
from samebits.spec.training.step import Node, backward, forward, step


def integers(seed, shape, limit, exponent=0, bits=8):
    rng = random.Random(seed)
    codes = [rng.randint(-limit, limit) for _ in range(math.prod(shape))]
    return Array(codes, shape, exponent, bits)


def normals(seed, shape, scale=1.0):
    rng = random.Random(seed)
    return [rng.gauss(0.0, scale) for _ in range(math.prod(shape))]


def matrix(array):
    """A parameter whose W are the codes and whose delayed update is zero."""
    return Parameter((array.codes, [0] * len(array.codes), array.exponent), array.shape)


def real(array, grad=False):
    """The values as a float64 tensor; of an Array or of a Parameter's joint value."""
    tensor = torch.tensor(array.values, dtype=torch.float64).reshape(array.shape)
    return tensor.requires_grad_(grad)


def cosine(a, b):
    a, b = a.flatten(), b.flatten()
    return float(a @ b / (a.norm() * b.norm()))


def relative(a, b):
    return float((a - b).norm() / b.norm())


# --- layers in which nothing rounds: equality -----------------------------------------------


@pytest.mark.parametrize(
    ("x_shape", "w_shape", "geometry"),
    [
        ((2, 3, 5, 4), (4, 3, 3, 2), Geometry()),
        ((1, 2, 6, 5), (3, 2, 3, 3), Geometry(stride=(2, 1), padding=(1, 2))),
        ((1, 4, 7, 7), (6, 2, 3, 3), Geometry((2, 2), (2, 2), (2, 2), groups=2)),
        ((2, 3, 5, 5), (6, 1, 3, 3), Geometry(padding=(1, 1), groups=3)),
    ],
)
@pytest.mark.parametrize("with_bias", [False, True])
def test_conv_equals_real_arithmetic_where_nothing_rounds(x_shape, w_shape, geometry, with_bias):
    x = integers(1, x_shape, 9, exponent=-2)
    w = matrix(integers(2, w_shape, 9, exponent=-5))
    # Of the products' exponent: a finer bias would be rounded to it.
    bias = matrix(integers(3, w_shape[:1], 100, exponent=-7)) if with_bias else None
    y = layers.affine(x, w, bias, geometry, out_width=32)
    g = integers(4, y.shape, 30, exponent=-9, bits=16)

    rx, rw = real(x, True), real(w, True)
    rb = real(bias, True) if bias else None
    ry = F.conv2d(rx, rw, rb, geometry.stride, geometry.padding, geometry.dilation, geometry.groups)
    ry.backward(real(g))
    assert torch.equal(real(y), ry.detach())
    assert torch.equal(real(layers.affine_input_gradient(g, x, w, geometry)), rx.grad)
    assert torch.equal(real(layers.affine_weight_gradient(g, x, w, geometry)), rw.grad)
    if rb is not None:
        assert torch.equal(real(layers.bias_gradient(g, geometry)), rb.grad)


def test_conv_against_the_sum_written_out():
    x, w = integers(1, (1, 2, 4, 4), 127, -3), matrix(integers(2, (2, 2, 2, 2), 127, -6))
    y = layers.affine(x, w, geometry=Geometry())
    acc = [
        sum(x.codes[c * 16 + (h + i) * 4 + v + j] * w.codes[o * 8 + c * 4 + i * 2 + j]
            for c in range(2) for i in range(2) for j in range(2))
        for o in range(2) for h in range(3) for v in range(3)
    ]  # fmt: skip
    assert (y.codes, y.exponent) == formats.requantize(acc, -9, 8)


def test_a_bias_is_summed_at_30_bits_of_its_largest_element():
    """J = 2**21 and 1 at 2**-15: e_c = -15 + 22 - 30, to which half a unit of x * w is rounded."""
    x, w = Array([1], (1, 1), -24, 8), Parameter(([1, 1], [0, 0], 0), (2, 1))
    bias = Parameter(([64, 0], [0, -1], 0), (2,))
    assert bias.joint == ([1 << 21, 1], -15)
    y = layers.affine(x, w, bias, out_width=32)
    assert (y.codes, y.exponent) == ([1 << 29, 1 << 8], -23)


def test_linear_equals_real_arithmetic_where_nothing_rounds():
    x, w = integers(1, (2, 3, 5), 9, -2), matrix(integers(2, (4, 5), 9, -5))
    bias = matrix(integers(3, (4,), 100, exponent=-7))
    y = layers.affine(x, w, bias, out_width=32)
    g = integers(4, y.shape, 30, -9, bits=16)
    rx, rw, rb = real(x, True), real(w, True), real(bias, True)
    ry = F.linear(rx, rw, rb)
    ry.backward(real(g))
    assert torch.equal(real(y), ry.detach())
    assert torch.equal(real(layers.affine_input_gradient(g, x, w)), rx.grad)
    assert torch.equal(real(layers.affine_weight_gradient(g, x, w)), rw.grad)
    assert torch.equal(real(layers.bias_gradient(g)), rb.grad)


def test_a_gradient_that_fits_its_width_is_taken_as_it_is():
    """Even where its exponent is below -128: it is not rounded before the product."""
    x, w = Array([1], (1, 1), 0, 8), Parameter(([1], [0], 20), (1, 1))
    g = Array([3], (1, 1), -140, 16)
    found = layers.affine_input_gradient(g, x, w)
    assert found == Array([3 << 8], (1, 1), -128, 16)
    few = Parameter(w.weight, w.shape, (8, 12))
    assert layers.affine_input_gradient(g, x, few) == Array([3 << 8], (1, 1), -128, 12)


def test_relu_and_relu6():
    x = Array([-127, -1, 0, 1, 95, 96, 97, 127], (8,), -4, 8)
    g = Array(list(range(1, 9)), (8,), -3, 16)
    y, mask = pointwise.clamp(x, 0)
    assert y.codes == [0, 0, 0, 1, 95, 96, 97, 127]
    assert pointwise.clamp_backward(g, mask) == Array([0, 0, 0, 4, 5, 6, 7, 8], (8,), -3, 16)
    y, mask = pointwise.clamp(x, 6)
    assert y.codes == [0, 0, 0, 1, 95, 96, 96, 96]
    assert pointwise.clamp_backward(g, mask).codes == [0, 0, 0, 4, 5, 0, 0, 0]
    far = pointwise.clamp(Array([127], (1,), -128, 8), 6)
    assert (far[0].codes, far[1].codes) == ([127], [1])  # the clip is far away
    none = pointwise.clamp(Array([127], (1,), 9, 8), 6)
    assert (none[0].codes, none[1].codes) == ([0], [0])  # the clip value is no whole code


def test_relu_of_exact_sums():
    """Negative sums do not count, and what is rounded to 0 has a gradient all the same."""
    sums = layers.ExactSums([-100_000, 0, 1, 200, 508], (5,), -8, 8)
    y, mask = pointwise.clamp(sums, 0)
    assert (y.codes, y.exponent, mask.codes) == ([0, 0, 0, 50, 127], -6, [0, 0, 1, 1, 1])
    assert sums.narrow().codes == [-98, 0, 0, 0, 0]
    y, mask = pointwise.clamp(replace(sums, exponent=-6), 6)
    assert (y.codes, y.exponent, mask.codes) == ([0, 0, 0, 50, 96], -4, [0, 0, 1, 1, 0])


def test_relu_of_moved_sums():
    """All sums are rounded, and then moved."""
    sums = layers.ExactSums([3, 1000, -5, 7], (4,), 0, 8)
    y, mask = pointwise.clamp(sums, 0, lambda x: pointwise.taken(x, [3, 0, 2], (3,)))
    assert (y.codes, y.exponent, mask.codes) == ([1, 0, 0], 3, [1, 1, 0])


def table_of(function, derivative):
    @functools.cache
    def at(exponent):
        values = [math.ldexp(j, exponent) for j in range(-127, 128)]
        return quantize([function(v) for v in values], 32), quantize(
            [derivative(v) for v in values], 16
        )

    return at


TANH = table_of(math.tanh, lambda v: 1 - math.tanh(v) ** 2)


def test_table_activation():
    x = integers(1, (40,), 127, -5)
    g = integers(2, (40,), 10**9, -30, 32)
    table, derivative = TANH(-5)
    y = pointwise.table_activation(x, lambda _: table, bounded=True)
    assert y.exponent == -6  # tanh comes too near to 1 for 127 * 2**-7
    assert (real(y) - real(x).tanh()).abs().max() <= 2.0**-7 * 1.001
    wanted = real(g) * (1 - real(x).tanh() ** 2)
    assert relative(real(pointwise.table_backward(g, x, lambda _: derivative)), wanted) < 2e-4


def added(a, b):
    return pointwise.added(a, b).narrow()


def test_add():
    a, b = integers(1, (60,), 127, -5), integers(2, (60,), 127, -3)
    y = added(a, b)
    assert (real(y) - (real(a) + real(b))).abs().max() <= 2.0 ** (y.exponent - 1)
    zero = Array([0] * 60, (60,), 100, 8)
    assert real(added(a, zero)).equal(real(a))  # a zero's exponent does not count
    assert added(zero, zero).exponent == -128
    far = added(integers(1, (2,), 127, 20), integers(2, (2,), 127, -100))
    assert far == layers.narrow(integers(1, (2,), 127).codes, (2,), 20, 8)


def test_a_sum_keeps_22_bits_below_its_larger_exponent():
    """257 * 2**-23 is 128 * 2**-22, a tie: 1 and it are 16384.5, a tie again. (2**-23 would break
    it.)"""
    wanted = ([16384], -14)
    for e_1, e_257 in ((0, -23), ((0,), (-23,))):
        one, small = Array([1], (1,), e_1, 16), Array([257], (1,), e_257, 16)
        for found in (added(one, small), added(small, one)):
            assert (found.codes, layers.each(found.exponent, 1)) == (wanted[0], (wanted[1],))


def test_concat():
    a, b = integers(1, (2, 1, 2), 127, -3), integers(2, (2, 2, 2), 127, -5)
    y = pointwise.concat([a, b])
    wanted = torch.cat([real(a), real(b)], 1)
    assert y.exponent == -3
    assert (real(y) - wanted).abs().max() <= 2.0**-4
    g = integers(3, y.shape, 100, -9, 32)
    pieces = pointwise.concat_backward(g, [a.shape, b.shape])
    assert torch.cat([real(p) for p in pieces], 1).equal(real(g))


def test_dropout():
    x = integers(1, (1000,), 127, -5)
    rng = random.Random(5)
    words = [rng.getrandbits(32) for _ in range(1000)]
    factors = pointwise.dropout_factors(0.25, words)
    kept = torch.tensor([w >= 2**30 for w in words])
    assert 700 < int(kept.sum()) < 800
    wanted = real(x) * kept / 0.75
    y = pointwise.dropout(x, factors)
    assert (real(y) - wanted).abs().max() <= 2.0 ** (y.exponent - 1) + 2.0**-16 * 8
    g = integers(2, (1000,), 10**9, -30, 32)
    assert relative(real(pointwise.dropout_backward(g, factors)), real(g) * kept / 0.75) < 2e-5


def test_embedding():
    w = matrix(integers(1, (5, 3), 127, -4))
    index = Array([4, 0, 4, 1], (2, 2), 0, 32)
    y = pointwise.embedding(index, w, by_rows=False)
    rows = pointwise.embedding(index, w, by_rows=True)
    assert (rows.codes, rows.exponent) == (y.codes, (y.exponent,) * len(y.codes))
    rw = real(w, True)
    ry = F.embedding(torch.tensor([[4, 0], [4, 1]]), rw)
    assert real(y).equal(ry.detach())
    g = integers(2, y.shape, 10**6, -9, 32)
    ry.backward(real(g))
    assert real(pointwise.embedding_weight_gradient(g, index, w)).equal(rw.grad)


# --- normalisations -------------------------------------------------------------------------


def affine_parameters(channels):
    gamma = initial_parameter([1.0 + v for v in normals(7, (channels,), 0.3)], (channels,))
    return gamma, initial_parameter(normals(8, (channels,), 0.5), (channels,))


@pytest.mark.parametrize("shape", [(4, 3, 3, 2), (6, 5)])
@pytest.mark.parametrize("bits", [16, 32])
def test_batch_norm_training(shape, bits):
    z = integers(1, shape, 127, -4)
    z = Array([c + 9 if i % 2 else c // 3 for i, c in enumerate(z.codes)], shape, -4, 8)
    g = integers(2, shape, formats.CODE_MAX[bits], -20, bits)
    gamma, beta = affine_parameters(shape[1])
    sums, saved, _ = norm.batch_norm(z, gamma, beta, 1e-3)
    y = sums.narrow()
    dz, dgamma, dbeta = norm.batch_norm_backward(g, saved)
    mean, var = norm.running_statistics(z, [0.5] * shape[1], [2.0] * shape[1], 0.1)

    rz, rg, rb = real(z, True), real(gamma, True), real(beta, True)
    rm = torch.full(shape[1:2], 0.5, dtype=torch.float64)
    rv = torch.full(shape[1:2], 2.0, dtype=torch.float64)
    ry = F.batch_norm(rz, rm, rv, rg, rb, training=True, momentum=0.1, eps=1e-3)
    ry.backward(real(g))
    assert (real(y) - ry).abs().max() <= 2.0 ** (y.exponent - 1) * 1.001
    # a is rounded to about 25 bits, or to 61 - 31 when g has 32.
    assert relative(real(dz), rz.grad) < 1e-6
    assert relative(real(dgamma), rg.grad) < 1e-8
    assert relative(real(dbeta), rb.grad) < 1e-8
    torch.testing.assert_close(torch.tensor(mean, dtype=torch.float64), rm)
    torch.testing.assert_close(torch.tensor(var, dtype=torch.float64), rv)


def test_batch_norm_evaluation():
    shape = (2, 3, 2, 2)
    z, g = integers(1, shape, 127, -4), integers(2, shape, 10**9, -40, 32)
    gamma, beta = affine_parameters(3)
    mean, var = normals(3, (3,)), [0.5, 1.0, 3.0]
    sums, saved, _ = norm.batch_norm(z, gamma, beta, 1e-5, (mean, var))
    y = sums.narrow()
    dz, dgamma, dbeta = norm.batch_norm_backward(g, saved)
    rz, rg, rb = real(z, True), real(gamma, True), real(beta, True)
    ry = F.batch_norm(
        rz, torch.tensor(mean, dtype=torch.float64), torch.tensor(var, dtype=torch.float64), rg, rb
    )
    ry.backward(real(g))
    assert (real(y) - ry).abs().max() <= 2.0 ** (y.exponent - 1) * 1.001
    for got, wanted in ((dz, rz.grad), (dgamma, rg.grad), (dbeta, rb.grad)):
        assert relative(real(got), wanted) < 1e-6


def test_batch_norm_with_zero_gamma():
    z, zero = integers(1, (4, 2), 127, -4), initial_parameter([0.0, 0.0], (2,))
    sums, saved, _ = norm.batch_norm(z, zero, zero, 1e-5)
    y = sums.narrow()
    assert (y.codes, y.exponent) == ([0] * 8, -128)
    dz, dgamma, _ = norm.batch_norm_backward(integers(2, (4, 2), 99, -9, 16), saved)
    assert (dz.codes, dz.exponent, dz.bits) == ([0] * 8, -128, 32)
    assert any(dgamma.codes)


@pytest.mark.parametrize("bits", [16, 32])
def test_layer_norm(bits):
    shape = (3, 4, 8)
    z = integers(1, shape, 127, -5)
    z = Array([c // (1 + i // 8 % 4) for i, c in enumerate(z.codes)], shape, -5, 8)
    g = integers(2, shape, formats.CODE_MAX[bits], -20, bits)
    gamma, beta = affine_parameters(8)
    y, saved, _ = norm.layer_norm(z, gamma, beta, 1e-5)
    dz, dgamma, dbeta = norm.layer_norm_backward(g, z, gamma, saved)
    rz, rg, rb = real(z, True), real(gamma, True), real(beta, True)
    ry = F.layer_norm(rz, (8,), rg, rb, 1e-5)
    ry.backward(real(g))
    assert (real(y) - ry).abs().max() <= 2.0 ** (y.exponent - 1) * 1.01
    assert relative(real(dz), rz.grad) < 2e-2  # xhat is saved with 8 bits
    assert relative(real(dgamma), rg.grad) < 3e-2
    assert relative(real(dbeta), rb.grad) < 1e-8


def test_layer_norm_sums_37_bits_below_its_beta():
    """A beta of 64.5 codes is a tie, which 3/4 of 2**-37 of J's unit decide: a whole unit there."""
    z = Array([1, -1], (1, 2), 0, 8)
    beta = Parameter(([64, 100], [-(1 << 14), 0], 0), (2,))
    assert beta.values == [64.5, 100.0]
    for factor, wanted in ((0.75, 65), (0.25, 64), (-0.75, 64)):
        gamma = initial_parameter([factor * 2.0 ** (-15 - 37)] * 2, (2,))
        y, _, _ = norm.layer_norm(z, gamma, beta, 1e-5)
        assert (y.codes, y.exponent) == ([wanted, 100], 0)


# --- losses ---------------------------------------------------------------------------------


def test_power_tables():
    assert T1[0] == T2[0] == 2**30
    for i in range(256):
        assert abs(T1[i] - 2.0 ** (30 - i / 256)) < 0.501
        assert abs(T2[i] - 2.0 ** (30 - i / 65536)) < 0.501


def test_log2_fixed():
    for value in (2**24, 2**24 + 1, 3 * 2**23, 2**31 - 1, 2**31, 2**38 - 1, 10**10):
        assert abs(log2_fixed(value) * 2.0**-24 - math.log2(value)) < 2.0**-20


@pytest.mark.parametrize(("bits", "exponent"), [(8, -5), (32, -28), (32, -60), (8, 3)])
def test_cross_entropy(bits, exponent):
    z = integers(1, (6, 7), formats.CODE_MAX[bits], exponent, bits)
    targets = [0, 6, 3, 3, 2, 1]
    loss, g = cross_entropy(z, targets)
    rz = real(z, True)
    wanted = F.cross_entropy(rz, torch.tensor(targets))
    wanted.backward()
    if exponent < 3:  # beyond: the loss is capped at 32 bits a row
        assert abs(loss - wanted.item()) < 3e-5
    assert (g.exponent, g.bits) == (-24, 32)
    assert (real(g) - rz.grad).abs().max() < 3e-5
    for n in range(6):
        assert abs(sum(g.codes[n * 7 : n * 7 + 7])) <= 4
    _, third = cross_entropy(z, targets, 1.0 / 3.0)
    assert relative(real(third) * 3, real(g)) < 2e-5


def test_mse():
    y, targets = integers(1, (4, 3), 10**9, -29, 32), normals(2, (12,))
    loss, g = mse(y, targets)
    ry = real(y, True)
    wanted = F.mse_loss(ry, torch.tensor(targets, dtype=torch.float64).reshape(4, 3))
    wanted.backward()
    assert loss == pytest.approx(wanted.item(), rel=1e-3)
    assert relative(real(g), ry.grad) < 1e-4
    _, half = mse(y, targets, 0.5)
    assert real(half).equal(real(g) / 2)


# --- optimizers -----------------------------------------------------------------------------

OPTIMIZERS = [
    (SGD(0.1), torch.optim.SGD, {"lr": 0.1}),
    (
        SGD(0.1, momentum=0.9, weight_decay=0.01),
        torch.optim.SGD,
        {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01},
    ),
    (
        SGD(0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
        torch.optim.SGD,
        {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True},
    ),
    (Adam(0.01, weight_decay=0.1), torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.1}),
    (
        Adam(0.01, weight_decay=0.1, decoupled=True),
        torch.optim.AdamW,
        {"lr": 0.01, "weight_decay": 0.1},
    ),
]


@pytest.mark.parametrize(("ours", "theirs", "settings"), OPTIMIZERS)
def test_optimizer_follows_the_real_formula(ours, theirs, settings):
    p, state = initial_parameter(normals(1, (20,)), (20,)), None
    rp = torch.nn.Parameter(real(p))
    start = real(p)
    optimizer = theirs([rp], **settings)
    for seed in range(4):
        g = integers(seed, (20,), 10**9, -30, 32)
        p, state = ours.update("p", 0, p, (g.codes, g.exponent), state)
        rp.grad = real(g)
        optimizer.step()
    assert relative(real(p) - start, rp.detach() - start) < 4e-3  # moments have ten bits
    assert max(map(abs, p.codes)) <= 127


def test_learning_rate_zero_updates_only_the_momentum():
    p = initial_parameter([1.0, -2.0], (2,))
    after, state = SGD(0.0, momentum=0.9).update("p", 0, p, ([3, 4], -2), None)
    assert after == p
    assert state.steps == 1
    assert [moments.value(c, state.momentum[1]) for c in state.momentum[0]] == [0.75, 1.0]


# --- nets -----------------------------------------------------------------------------------

IMAGES = (4, 2, 6, 6)
NET = [
    Node("x", "input"),
    Node("conv1", "conv2d", ("x",), {"padding": 1}),
    Node("bn1", "batch_norm", ("conv1",)),
    Node("relu1", "relu", ("bn1",)),
    Node("conv2", "conv2d", ("relu1",), {"padding": 1, "groups": 4}),
    Node("bn2", "batch_norm", ("conv2",)),
    Node("sum", "add", ("bn2", "relu1")),
    Node("relu2", "relu", ("sum",)),
    Node("pool", "avg_pool", ("relu2",), {"kernel": 2}),
    Node("flat", "flatten", ("pool",)),
    Node("fc", "linear", ("flat",)),
]


def net_state(seed=0):
    shapes = {
        "conv1.weight": ((4, 2, 3, 3), 0.3),
        "conv2.weight": ((4, 1, 3, 3), 0.4),
        "fc.weight": ((3, 36), 0.2),
        "fc.bias": ((3,), 0.1),
    }
    parameters = {
        name: initial_parameter(normals(f"{seed}{name}", shape, scale), shape)
        for name, (shape, scale) in shapes.items()
    }
    buffers = {}
    for name in ("bn1", "bn2"):
        parameters[f"{name}.weight"], parameters[f"{name}.bias"] = affine_parameters(4)
        buffers[f"{name}.running_mean"] = [0.0] * 4
        buffers[f"{name}.running_var"] = [1.0] * 4
    return parameters, buffers


class ReadTwice(torch.autograd.Function):
    """Batch norm by the statistics of `wide`, whose gradient reads z."""

    @staticmethod
    def forward(ctx, z, wide, gamma, beta):
        mean, var = wide.mean((0, 2, 3)), wide.var((0, 2, 3), correction=0)
        inv = (var + 1e-5).rsqrt()[:, None, None]
        xhat = (z - mean[:, None, None]) * inv
        ctx.save_for_backward(xhat, inv * gamma[:, None, None])
        return xhat * gamma[:, None, None] + beta[:, None, None]

    @staticmethod
    def backward(ctx, g):
        xhat, a = ctx.saved_tensors
        through, straight = ((v.sum((0, 2, 3), keepdim=True)) for v in (g * xhat, g))
        n = g.numel() // g.shape[1]
        return a * (g - straight / n - xhat * through / n), None, through.ravel(), straight.ravel()


def real_net(parameters, done, quantized):
    """The logits of NET in float64, on W of the matrices and J of the vectors.

    With `quantized`, every node's value is replaced by the reference's (its gradient is not), which
    a batch norm takes in 16 bits, and its gradient in 8.
    """
    outputs = done.outputs
    p = {
        name: real(v if len(v.shape) == 1 else Array(v.codes, v.shape, v.exponent, 8), True)
        for name, v in parameters.items()
    }

    def at(name, value):
        return value + (real(outputs[name]) - value).detach() if quantized else value

    def batch_norm(name, z, given):
        gamma, beta = p[f"{name}.weight"], p[f"{name}.bias"]
        if quantized:
            wide = real(done.sums[given][0].short())
            return at(name, ReadTwice.apply(z, wide, gamma, beta))
        return F.batch_norm(z, None, None, gamma, beta, training=True)

    h = at("conv1", F.conv2d(real(outputs["x"]), p["conv1.weight"], padding=1))
    h = at("relu1", batch_norm("bn1", h, "conv1").relu())
    k = at("conv2", F.conv2d(h, p["conv2.weight"], padding=1, groups=4))
    k = at("relu2", at("sum", batch_norm("bn2", k, "conv2") + h).relu())
    k = at("pool", F.avg_pool2d(k, 2)).flatten(1)
    return F.linear(k, p["fc.weight"], p["fc.bias"]), p


def images(seed, targets):
    """Noise around a pattern of the class."""
    values = np.random.default_rng(seed).normal(size=IMAGES)
    for n, target in enumerate(targets):
        values[n, :, 2 * target : 2 * target + 2] += 1.0
    return {"x": quantize_input(values.ravel().tolist(), IMAGES)}, targets


@pytest.mark.parametrize("seed", [0, 1])
def test_gradient_of_a_net_follows_autograd(seed):
    parameters, buffers = net_state(seed)
    inputs, targets = images(10 + seed, [0, 2, 1, 1])
    result = step(NET, parameters, buffers, {}, [(inputs, targets)], SGD(0.1))
    done = forward(NET, parameters, buffers, inputs)[0]
    assert set(result.gradients) == set(parameters)

    # At the quantized activations only the gradients' own 16 bits are left as a difference.
    logits, p = real_net(parameters, done, quantized=True)
    loss = F.cross_entropy(logits, torch.tensor(targets))
    loss.backward()
    assert result.losses[0] == pytest.approx(loss.item(), abs=1e-4)
    for name, g in result.gradients.items():
        assert relative(real(g), p[name].grad) < 1e-3, name

    # Against real activations also theirs: 8 bits, and ReLU masks that differ near zero.
    logits, p = real_net(parameters, done, quantized=False)
    F.cross_entropy(logits, torch.tensor(targets)).backward()
    for name, g in result.gradients.items():
        assert cosine(real(g), p[name].grad) > 0.97, name


def test_a_gradient_with_one_part_passes_untouched():
    parameters, buffers = net_state()
    inputs, targets = images(1, [0, 2, 1, 1])
    done, _ = forward(NET, parameters, buffers, inputs)
    _, g = cross_entropy(done.outputs["fc"], targets)
    _, at_node = backward(NET, parameters, done, g)
    assert [len(at_node[n]) for n in ("fc", "flat", "sum", "bn2", "relu1")] == [1, 1, 1, 1, 2]
    assert at_node["flat"][0].bits == 16
    assert at_node["sum"][0] is at_node["bn2"][0]
    assert "x" not in at_node


def test_the_order_of_parts_does_not_matter():
    parts = [integers(s, (30,), formats.CODE_MAX[b], e, b) for s, b, e in
             ((1, 32, -40), (2, 16, -22), (3, 32, -39))]  # fmt: skip
    wanted = layers.resolve(parts)
    assert wanted.bits == 32
    for order in itertools.permutations(parts):
        assert layers.resolve(order) == wanted


def test_the_order_of_shards_does_not_matter():
    parameters, buffers = net_state()
    shards = [images(s, [s % 3, 1, 2, 0]) for s in range(3)]
    optimizer = SGD(0.1, momentum=0.9, weight_decay=1e-3)
    wanted = step(NET, parameters, buffers, {}, shards, optimizer)
    other = step(NET, parameters, buffers, {}, shards[::-1], optimizer)
    assert other.parameters == wanted.parameters
    assert other.state == wanted.state
    assert other.losses == wanted.losses[::-1]
    assert other.buffers != wanted.buffers  # running statistics follow the order of the shards


def test_two_shards_make_the_mean_gradient():
    parameters, buffers = net_state()
    shards = [images(1, [0, 2, 1, 1]), images(2, [2, 2, 0, 1])]
    both = step(NET, parameters, buffers, {}, shards, SGD(0.1)).gradients
    alone = [step(NET, parameters, buffers, {}, [s], SGD(0.1)).gradients for s in shards]
    for name, g in both.items():
        assert relative(real(g), (real(alone[0][name]) + real(alone[1][name])) / 2) < 0.02, name


@pytest.mark.parametrize("optimizer", [SGD(0.1, momentum=0.9, nesterov=True), Adam(0.05)])
def test_the_loss_falls(optimizer):
    parameters, buffers = net_state()
    shards = [images(1, [0, 1, 2, 0]), images(2, [2, 0, 1, 1])]
    state, losses = {}, []
    for _ in range(6):
        result = step(NET, parameters, buffers, state, shards, optimizer)
        parameters, buffers, state = result.parameters, result.buffers, result.state
        losses.append(sum(result.losses) / 2)
    assert losses[-1] < 0.3 * losses[0]
    done, unchanged = forward(NET, parameters, buffers, shards[0][0], training=False)
    assert unchanged == buffers
    assert len(done.outputs["fc"].codes) == 12


def test_every_other_operator_in_a_net():
    net = [
        Node("tokens", "input"),
        Node("x", "input"),
        Node("embed", "embedding", ("tokens",)),
        Node("norm", "layer_norm", ("embed",)),
        Node("up", "linear", ("norm",)),
        Node("tanh", "table", ("up",), {"table": TANH}),
        Node("drop", "dropout", ("tanh",), {"p": 0.25}),
        Node("flat1", "flatten", ("drop",)),
        Node("conv", "conv2d", ("x",), {"stride": 2}),
        Node("clip", "relu6", ("conv",)),
        Node("max", "max_pool", ("clip",), {"kernel": 2, "stride": 1}),
        Node("mean", "global_avg_pool", ("max",)),
        Node("flat2", "flatten", ("mean",)),
        Node("both", "concat", ("flat1", "flat2")),
        Node("fc", "linear", ("both",)),
    ]
    shapes = {
        "embed.weight": (5, 4), "norm.weight": (4,), "norm.bias": (4,), "up.weight": (6, 4),
        "up.bias": (6,), "conv.weight": (3, 1, 3, 3), "conv.bias": (3,), "fc.weight": (1, 15),
        "fc.bias": (1,),
    }  # fmt: skip
    parameters = {n: initial_parameter(normals(n, s, 0.5), s) for n, s in shapes.items()}
    parameters["norm.weight"] = initial_parameter([1.0] * 4, (4,))
    inputs = {
        "tokens": Array([0, 1, 2, 3, 4, 4, 1, 0], (4, 2), 0, 32),
        "x": quantize_input(normals(1, (4, 1, 7, 7)), (4, 1, 7, 7)),
    }
    rng, state, losses = random.Random(3), {}, []
    for _ in range(25):
        words = [{"drop": [rng.getrandbits(32) for _ in range(48)]}]
        shards = [(inputs, [1.0, -1.0, 0.5, -2.0])]
        result = step(net, parameters, {}, state, shards, Adam(0.03), "mse", words)
        parameters, state = result.parameters, result.state
        losses.append(result.losses[0])
    assert set(result.gradients) == set(shapes)
    assert sum(losses[-5:]) < 0.3 * sum(losses[:5])


def test_a_shared_weight_collects_its_parts():
    net = [
        Node("x", "input"),
        Node("a", "linear", ("x",), {"weight": "w"}),
        Node("b", "linear", ("a",), {"weight": "w"}),
    ]
    w = initial_parameter(normals(1, (3, 3)), (3, 3))
    x = quantize_input(normals(2, (4, 3)), (4, 3))
    done, _ = forward(net, {"w": w}, {}, {"x": x})
    _, g = cross_entropy(done.outputs["b"], [0, 1, 2, 0])
    parts, _ = backward(net, {"w": w}, done, g)
    assert len(parts["w"]) == 2
    rw = real(Array(w.codes, w.shape, w.exponent, 8), True)
    logits = F.linear(F.linear(real(x), rw), rw)
    F.cross_entropy(logits, torch.tensor([0, 1, 2, 0])).backward()
    assert relative(real(layers.resolve(parts["w"])), rw.grad) < 0.02
