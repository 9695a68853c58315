"""Kernels of pools: every realisation against the definition, for equality."""

from __future__ import annotations

import itertools

import pytest
import torch

from kernel_arrays import assert_same, codes, flat, layouts, same_codes, spread, tensor
from samebits.errors import RangeError
from samebits.kernels import Window
from samebits.kernels.averages import Averages, adaptive_averages, window_averages
from samebits.spec import formats
from samebits.spec.formats import Q8
from samebits.spec.training import pooling
from samebits.spec.training.layers import Array

POOLS = [
    ((2, 2), (2, 2), (0, 0)),
    ((3, 3), (2, 2), (1, 1)),
    ((3, 2), (1, 3), (1, 0)),
    ((2, 3), (3, 1), (0, 1)),
    ((5, 5), (1, 1), (2, 2)),
    ((1, 1), (2, 1), (0, 0)),
    ((3, 3), (2, 2), (0, 0), True),
    ((2, 3), (3, 4), (1, 1), True),
    ((7, 6), (3, 2), (0, 3), True),
]
IMAGES = [(2, 3, 6, 7), (1, 1, 5, 5), (3, 17, 5, 6)]
POOLINGS = [*itertools.product(IMAGES, POOLS, [1]), (IMAGES[2], POOLS[1], 2)]


@pytest.mark.parametrize(("shape", "pool", "threads"), POOLINGS, indirect=["threads"])
@pytest.mark.parametrize("limit", [1, Q8])
def test_max_pool(k, pool, shape, limit, threads):
    x = torch.randint(-limit, limit + 1, shape, generator=torch.Generator().manual_seed(1))
    x = (x - int(limit == 1)).clamp(-Q8).to(torch.int8)  # for limit 1 also windows below zero
    expected, position = pooling.max_pool(Array(flat(x), shape, 0, 8), *pool)
    for v in layouts(x):
        y, where = k.max_pool(v, Window(*pool))
        assert tuple(y.shape) == expected.shape
        assert where.dtype == torch.uint8
        assert_same(y, expected.codes, position)
        for bits in (16, 32):
            g = codes(expected.shape, formats.CODE_MAX[bits], bits, 2)
            back = [0] * x.numel()
            for code, i in zip(flat(g), position, strict=True):
                back[i] += code
            for u in layouts(g):
                acc, largest = k.max_pool_grad(u, where, x.shape, Window(*pool))
                assert_same(acc, back, range(len(back)))
                assert largest == max(map(abs, back))


def members_of(shape, means: Averages) -> list[list[int]]:
    """The places of every window in a flat image, window by window."""
    n, c, h, w = shape
    return [
        [(image * h + a) * w + b for a in range(*down) for b in range(*across)]
        for image in range(n * c)
        for down in means.rows
        for across in means.columns
    ]


def factors_of(shape, means: Averages) -> list[int]:
    """L / d of every window."""
    divisors = [d * e for d in means.heights for e in means.widths]
    return [means.common // d for d in divisors] * (shape[0] * shape[1])


def check_sums(k, shape, means: Averages):
    """Sums over windows, and of gradients over the windows that hold a position, both times L / d,
    in every memory order."""
    x, members, factors = codes(shape, Q8, 8, 1), members_of(shape, means), factors_of(shape, means)
    held = flat(x)
    expected = [f * sum(held[i] for i in m) for f, m in zip(factors, members, strict=True)]
    out = (*shape[:2], len(means.rows), len(means.columns))
    for v in layouts(x):
        acc, largest = k.window_sums(v, means)
        assert (tuple(acc.shape), acc.dtype) == (out, torch.int64)
        assert_same(acc, expected, members)
        assert largest == max(map(abs, expected))
    for bits in (16, 32):
        g = codes(out, formats.CODE_MAX[bits], bits, 2)
        back = [0] * x.numel()
        for code, factor, window in zip(flat(g), factors, members, strict=True):
            for i in window:
                back[i] += factor * code
        for u in layouts(g):
            acc, largest = k.window_sums_grad(u, x.shape, means)
            assert (acc.shape, acc.dtype) == (x.shape, torch.int64)
            assert_same(acc, back, range(len(back)))
            assert largest == max(map(abs, back))


@pytest.mark.parametrize(("shape", "pool", "threads"), POOLINGS, indirect=["threads"])
@pytest.mark.parametrize("include_pad", [True, False])
def test_window_sums(k, pool, shape, include_pad, threads):
    means = window_averages(Window(*pool), *shape[2:], include_pad)
    assert members_of(shape, means) == pooling.windows(shape, *pool)[1]
    check_sums(k, shape, means)


@pytest.mark.parametrize("size", [(1, 1), (4, 3), (5, 7), (13, 9)])
@pytest.mark.parametrize("shape", IMAGES)
def test_adaptive_window_sums(k, size, shape):
    means = adaptive_averages(*shape[2:], *size)
    assert members_of(shape, means) == pooling.adaptive_windows(shape, size)[1]
    check_sums(k, shape, means)
    check_sums(k, shape, means.undivided())


def test_window_sums_by_several_threads(k, threads):
    check_sums(k, (3, 8, 24, 30), adaptive_averages(24, 30, 7, 11))


def test_window_sums_of_nothing(k):
    means = adaptive_averages(4, 4, 3, 3)
    x = torch.zeros((2, 3, 4, 4), dtype=torch.int8)
    assert k.window_sums(x, means)[1] == 0
    g = torch.zeros((2, 3, 3, 3), dtype=torch.int16)
    acc, largest = k.window_sums_grad(g, x.shape, means)
    assert not acc.any()
    assert largest == 0


DIVISORS = (2, 3, 4, 9, 49, 56 * 56, 1 << 20, (1 << 46) - 21, 1 << 46)


@pytest.mark.parametrize("bits", [4, 7, 8, 16])
@pytest.mark.parametrize("divisor", DIVISORS)
def test_requantize_of_a_mean(k, divisor, bits):
    """Ties, codes that underflow, and shifts to either side."""
    for limit, exponent in itertools.product(
        (1, 3, 127 * divisor, 1 << 61), (0, -128, -130, -140, 100 - divisor.bit_length())
    ):
        if formats.power(exponent) * limit / divisor > formats.power(120):
            continue
        ties = [divisor * i + divisor // 2 for i in (-3, -2, 0, 1, 2)]
        values = [v for v in (*spread(200, limit, divisor), *ties) if abs(v) <= limit]
        acc, largest = tensor(values, 64), max(map(abs, values))
        expected = formats.requantize(values, exponent, bits, divisor)
        same_codes(k.requantize(acc, largest, exponent, bits, divisor), expected, values)
    zeros = torch.zeros(2, 3, dtype=torch.int64)
    same_codes(k.requantize(zeros, 0, 5, bits, divisor), ([0] * 6, -128), [0] * 6)


def test_a_mean_that_outgrows_its_exponent(k):
    acc = tensor([1 << 40, 3], 64)
    with pytest.raises(RangeError, match="expected an exponent of at most 127, found 132: the val"):
        k.requantize(acc, 1 << 40, 100, 8, 3)


@pytest.mark.parametrize("threads", [1, 2], indirect=True)
@pytest.mark.parametrize("divisor", [1, *DIVISORS])
def test_divided(k, divisor, threads):
    """Shifted to the left to `bits`, divided, and shortened: two roundings."""
    for limit, bits, exponent in itertools.product(
        (1, 3, 1 << 20, 1 << 45, 1 << 61), (0, 31, 48, 61), (0, -300, 90)
    ):
        values = spread(300, limit, divisor)
        largest = max(map(abs, values))
        up = max(0, bits - largest.bit_length())
        quotients = [formats.round_ratio(v << up, divisor) for v in values]
        expected = formats.shorten(quotients, exponent - up)
        for acc in layouts(tensor(values, 64, (5, 3, 4, 5))):
            found = k.divided(acc, largest, exponent, divisor, bits)
            assert found[0].dtype == torch.int32
            same_codes(found, expected, values, (limit, bits))
    zeros = torch.zeros(2, 3, dtype=torch.int64)
    same_codes(k.divided(zeros, 0, 5, divisor, 40), ([0] * 6, -128), [0] * 6)


@pytest.mark.parametrize("size", [50, 51, 52, 53, 61])
@pytest.mark.parametrize("divisor", [3 << 19, 1000003, (1 << 33) + 2, (1 << 46) - 21])
def test_quotients_about_the_room_of_binary64(k, divisor, size):
    """Ties and their neighbours, of sums on both sides of 2**51 and 2**53, as 32 bits of them."""
    top = 1 << size
    halves = [top // divisor - i for i in range(6)]
    values = [divisor * q + divisor // 2 + j for q in halves for j in (-1, 0, 1)]
    values = [sign * v for v in values if v <= top for sign in (1, -1)] + [top]
    quotients = [formats.round_ratio(v, divisor) for v in values]
    found = k.divided(tensor(values, 64), top, 0, divisor, 0)
    same_codes(found, formats.shorten(quotients, 0), values)
    found = k.requantize(tensor(values, 64), top, 0, 16, divisor)
    same_codes(found, formats.requantize(values, 0, 16, divisor), values)
