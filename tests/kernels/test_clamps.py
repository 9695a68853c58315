"""Clamps and masks of every realisation against plain integers: training.md 5 and 7."""

from __future__ import annotations

import itertools

import pytest
import torch

import drawn
from kernel_arrays import assert_same, codes, flat, layouts, same_codes
from samebits.errors import RangeError
from samebits.kernels.clamps import packed
from samebits.spec import formats
from samebits.spec.formats import Q8, Q32
from samebits.spec.training.layers import ExactSums, clamped

SHAPES = [(2, 3, 4, 5), (1, 1, 1, 1), (3, 1, 5, 1), (2, 33, 3, 2), (5, 7), (1, 4)]
SIZES = [*((shape, 1) for shape in SHAPES), ((3, 60, 10, 10), 2)]  # with the number of threads
CLIPS = [(0, 0), (-4, 6), (-5, 6), (3, 6), (-7, 1), (-6, 2), (-60, 6), (-20, 6)]


@drawn.defined
def clamped_sums(numbers, shape, exponent, bits, clip):
    """(codes, exponent) of the sums behind the clamp, and which of them pass."""
    sums, passing = ExactSums(numbers, shape, exponent, bits).clamped(clip)
    narrow = sums.narrow()
    return (narrow.codes, narrow.exponent), passing.codes


def shown(k, mask, shape):
    """The bits of a mask, in the order of the axes."""
    return flat(k.unpacked(mask, shape).int())


@pytest.mark.parametrize(("shape", "threads"), SIZES, indirect=["threads"])
@pytest.mark.parametrize(("exponent", "clip"), CLIPS)
def test_clamp_of_codes(k, shape, exponent, clip, threads):
    """And the gradient behind the mask, in every memory order."""
    x = codes(shape, Q8, 8, 1)
    expected, passing = clamped(flat(x), [exponent] * x.numel(), clip)
    for bits, v in itertools.product((16, 32), layouts(x)):
        y, mask = k.clamp(v, exponent, clip)
        assert y.dtype == torch.int8
        assert_same(y, expected, flat(x))
        assert shown(k, mask, x.shape) == passing
        g = codes(shape, formats.CODE_MAX[bits], bits, 2)
        kept = [a * b for a, b in zip(flat(g), passing, strict=True)]
        for u in layouts(g):
            actual = k.behind_mask(u, mask)
            assert actual.dtype == g.dtype
            assert_same(actual, kept, flat(g))


@pytest.mark.parametrize(("shape", "threads"), SIZES, indirect=["threads"])
@pytest.mark.parametrize("limit", [3, 1000, 1 << 20, Q32])
def test_clamped_sums(k, shape, limit, threads):
    """32 and 64 bits, negative sums that are much larger, and clip values above and below all."""
    v = codes(shape, limit, 32, 3)
    v = torch.where(v < 0, v, v >> 9)
    for kind, (exponent, clip), bits in itertools.product(
        (torch.int32, torch.int64), ((-9, 0), (-9, 6), (-40, 6), (3, 6), (-140, 0), (60, 0)), (8, 5)
    ):
        wanted, passing = clamped_sums(flat(v), tuple(shape), exponent, bits, clip)
        for u in layouts(v.to(kind)):
            part, mask = k.clamped(u, exponent, clip, bits)
            assert part[0].dtype == torch.int8
            same_codes(part, wanted, flat(v), exponent)
            assert shown(k, mask, v.shape) == passing


def test_sums_beyond_32_bits(k):
    v = torch.tensor([1 << 45, -(1 << 47), 3, (1 << 45) - 1, 0])
    for exponent, clip in ((-44, 0), (-44, 6), (-43, 2)):
        wanted, passing = clamped_sums(v.tolist(), (5,), exponent, 8, clip)
        part, mask = k.clamped(v, exponent, clip, 8)
        same_codes(part, wanted, v.tolist())
        assert shown(k, mask, v.shape) == passing


def test_nothing_above_zero(k):
    """Zeros have the exponent -128, whatever that of the sums."""
    v = torch.tensor([-5, 0, -127, -(1 << 30)], dtype=torch.int32)
    (zeros, exponent), mask = k.clamped(v, 99, 0, 8)
    assert (zeros.tolist(), exponent, mask.tolist()) == ([0] * 4, -128, [0])


def test_an_exponent_that_is_too_large(k):
    v = torch.tensor([1 << 20, -(1 << 30)], dtype=torch.int32)
    assert k.clamped(v, 113, 0, 8)[0][1] == 127
    with pytest.raises(RangeError, match="expected an exponent of at most 127, found 128: the val"):
        k.clamped(v, 114, 0, 8)
    assert k.clamped(-v, 103, 0, 8)[0][1] == 127  # what is negative does not count


@pytest.mark.parametrize("clip", [0, 6])
@pytest.mark.parametrize("shape", [(5, 24), (3, 7), (4, 8, 3, 3), (3, 5, 2, 3)])
def test_exponents_by_rows(k, shape, clip):
    """Of rows, and of the channels of rows; rows may end inside a byte of the mask."""
    v = codes(shape, 1 << 20, 32, 3)
    for size in ((shape[0], *[1] * (len(shape) - 1)), (*shape[:2], *[1] * (len(shape) - 2))):
        exponent = (torch.arange(torch.Size(size).numel()) * 5 % 23 - 20).view(size)
        own = flat(exponent.expand(shape))
        expected, passing = clamped(flat(v), own, clip)
        for kind in (torch.int32, torch.int64):
            for u in layouts(v.to(kind)):
                low, mask = k.clamp(u, exponent, clip)
                assert low.dtype == kind
                assert_same(low, expected, flat(v))
                assert shown(k, mask, v.shape) == passing
    (_, e), mask = k.clamped(v, exponent, clip, 8)
    top = [max(row) for row in torch.tensor(expected).view(shape[0], -1).tolist()]
    assert all((e.flatten() == -128) == (torch.tensor(top) == 0))
    assert shown(k, mask, v.shape) == passing


@pytest.mark.parametrize("shape", [(1,), (8,), (17,), (3, 5), (2, 3, 2, 2), (0, 4)])
def test_bits_count_with_channels_last(k, shape):
    flags = codes(shape, 1, 8, 5) > 0
    ordered = flags.permute(0, 2, 3, 1) if len(shape) == 4 else flags
    bits = [int(b) for b in ordered.flatten().tolist()]
    found = packed(flags)
    assert found.tolist() == [
        sum(bit << i for i, bit in enumerate(bits[at : at + 8])) for at in range(0, len(bits), 8)
    ]
    assert torch.equal(k.unpacked(found, flags.shape), flags)
