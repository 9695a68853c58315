"""Pools of the reference against float64 PyTorch: the windows, their divisors, one rounding."""

from __future__ import annotations

import math
import random

import pytest
import torch
import torch.nn.functional as F

from samebits.spec.training import pooling
from samebits.spec.training.layers import Array
from samebits.spec.training.step import Node, forward

SHAPE = (2, 2, 6, 5)
GEOMETRIES = [
    ((2, 2), (2, 2), (0, 0), False),
    ((3, 2), (2, 1), (1, 1), False),
    ((3, 3), (2, 2), (0, 0), True),  # rows of two positions at the end, columns that fit
    ((3, 2), (2, 3), (1, 1), True),
    ((2, 3), (3, 4), (1, 1), True),  # a last window that would begin in the padding
    ((7, 7), (3, 3), (0, 0), True),  # larger than the image
    ((4, 5), (5, 1), (2, 2), True),
]


def integers(seed, shape, limit, exponent, bits=8):
    rng = random.Random(seed)
    codes = [rng.randint(-limit, limit) for _ in range(math.prod(shape))]
    return Array(codes, shape, exponent, bits)


def real(array, grad=False):
    tensor = torch.tensor(array.values, dtype=torch.float64).reshape(array.shape)
    return tensor.requires_grad_(grad)


@pytest.mark.parametrize(("kernel", "stride", "padding", "ceil"), GEOMETRIES)
def test_maxima(kernel, stride, padding, ceil):
    x = integers(1, SHAPE, 3, -4)  # a small range: many ties
    y, position = pooling.max_pool(x, kernel, stride, padding, ceil)
    rx = real(x, True)
    ry = F.max_pool2d(rx, kernel, stride, padding, ceil_mode=ceil)
    assert torch.equal(real(y), ry.detach())
    for bits in (16, 32):
        g = integers(2, y.shape, 2000, -9, bits)
        (wanted,) = torch.autograd.grad(ry, rx, real(g), retain_graph=True)
        assert torch.equal(real(pooling.max_pool_backward(g, x.shape, position)), wanted)


def check_means(x, means, ry, rx):
    """Half a unit at most, and a gradient with all the bits that section 7 gives it."""
    _, members, divisors = means
    y = pooling.averages(x, *means)
    assert tuple(ry.shape) == y.shape
    assert (real(y) - ry).abs().max() <= 2.0 ** (y.exponent - 1) * (1 + 1e-9)
    for bits in (16, 32):
        g = integers(2, y.shape, 2000, -9, bits)
        (wanted,) = torch.autograd.grad(ry, rx, real(g), retain_graph=True)
        got = pooling.averages_backward(g, x.shape, members, divisors)
        assert (real(got) - wanted).abs().max() <= 2.0 ** (got.exponent - 1) * 1.001
        assert max(map(abs, got.codes)).bit_length() >= 29 - max(divisors).bit_length()
        if len(set(divisors)) == 1:
            largest = round(float(wanted.abs().max()) * divisors[0] * 2**9)
            assert got.exponent == -9 - max(0, 30 - largest.bit_length())


@pytest.mark.parametrize("counting", [(True, None), (False, None), (True, 3), (False, 1)])
@pytest.mark.parametrize(("kernel", "stride", "padding", "ceil"), GEOMETRIES)
def test_means(kernel, stride, padding, ceil, counting):
    x, own = integers(1, SHAPE, 127, -4), (kernel, stride, padding, ceil)
    rx = real(x, True)
    ry = F.avg_pool2d(rx, *own, *counting)
    check_means(x, pooling.averaged_windows(SHAPE, *own, *counting), ry, rx)


@pytest.mark.parametrize("size", [(1, 1), (3, 5), (4, 3), (6, 2), (5, 4), (9, 7), (12, 5)])
def test_adaptive_means(size):
    x = integers(1, SHAPE, 127, -4)
    rx = real(x, True)
    check_means(x, pooling.adaptive_windows(SHAPE, size), F.adaptive_avg_pool2d(rx, size), rx)


def test_windows_of_several_sizes_round_once():
    """Means of 2 and 3 positions: sixths, and 11 / 3 decides on the exponent."""
    image = Array([127, 126, 1], (1, 1, 1, 3), 0, 8)
    y = pooling.averages(image, *pooling.adaptive_windows(image.shape, (1, 2)))  # [0, 2) and [1, 3)
    assert (y.codes, y.exponent) == ([126, 64], 0)  # 126.5 and 63.5, ties to even
    image = Array([10, 1, 0, 0, 0], (1, 1, 1, 5), 0, 8)
    y = pooling.averages(image, *pooling.adaptive_windows(image.shape, (1, 2)))  # [0, 3) and [2, 5)
    assert (y.codes, y.exponent) == ([117, 0], -5)  # 11 / 3 = 117.33 / 32


def test_a_global_mean_is_that_of_the_whole_image():
    image = Array([8, 16, 24, 32, 40, 60], (1, 1, 2, 3), 0, 8)
    net = [Node("x", "input"), Node("mean", "global_avg_pool", ("x",))]
    done, _ = forward(net, {}, {}, {"x": image})
    assert done.outputs["mean"] == Array([120], (1, 1, 1, 1), -2, 8)
