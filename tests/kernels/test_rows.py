"""Integers of several exponents, beside the definition in plain integers."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
import torch

from samebits.kernels import rows
from samebits.kernels.eager import Eager
from samebits.spec.formats import power, round_real
from samebits.spec.training import rows as defined

SIZES = {"rows": (6, 1), "channels": (1, 5), "elements": (6, 5), "one": (1, 1)}
# Largest magnitudes: of 8 and 32 bits, and to both sides of what binary64 holds.
TYPES = [(torch.int32, 7), (torch.int32, 31), (torch.int64, 53), (torch.int64, 62)]


def test_every_shift_of_numbers_at_its_ties():
    edges = [1 << 61, (1 << 61) + 1, 3 << 60, (1 << 62) - 1, 1 << 62]
    numbers = sorted({s * n for n in (*range(70), *edges) for s in (-1, 1)})
    for exponent in (*range(-70, 1), 5, 62):
        kept = [n for n in numbers if exponent <= 0 or abs(n) << exponent <= 1 << 62]
        found = rows.scale(torch.tensor(kept), torch.tensor([exponent]))
        expected = [round_real(Fraction(n) * power(exponent)) for n in kept]
        assert found.tolist() == expected, exponent


@pytest.mark.parametrize(("kind", "bits"), TYPES)
@pytest.mark.parametrize("exponents", SIZES)
@pytest.mark.parametrize("size", ["rows", "channels"])
def test_rows_fit_their_codes(k, kind, bits, exponents, size):
    """With exponents that differ inside rows too, and rows of zeros."""
    draw = torch.Generator().manual_seed(bits)
    divisors = (1, 3, 4096) if bits < 62 else (1,)  # of sums with room for them
    for divisor, spread, case in itertools.product(divisors, (2, 20), range(3)):
        most = (1 << bits) - 1
        acc = torch.randint(-most, most, (6, 5), dtype=kind, generator=draw)
        acc[case] = 0
        acc[:, case] >>= case * bits // 4
        acc[5, 4] = -most
        e = torch.randint(-spread, spread + 1, SIZES[exponents], generator=draw)
        own = tuple(e.expand(6, 5).flatten().tolist())
        numbers = acc.flatten().tolist()
        members = [i // 5 if size == "rows" else i % 5 for i in range(30)]
        if divisor == 1:
            codes, fitted = k.requantize_blocks(acc, e, 0, SIZES[size], 8)
        else:
            codes, fitted = rows.requantize(acc, e, SIZES[size], 8, divisor)
        expected = defined.requantize(numbers, own, members, 8, divisor)
        assert codes.flatten().tolist() == list(expected[0])
        assert fitted.expand(6, 5).flatten().tolist() == list(expected[1])
        if divisor == 1:
            codes, fitted = k.shorten_blocks(acc, e, 0, SIZES[size])
            expected = defined.shorten(numbers, own, members)
            assert codes.flatten().tolist() == list(expected[0])
            assert fitted.expand(6, 5).flatten().tolist() == list(expected[1])


@pytest.mark.parametrize("kind", [torch.int8, torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize("shape", [(3, 4, 5), (40, 21, 20), (2, 3, 4, 5)])
def test_rows_share_any_axes(k, kind, shape, threads):
    """Every way to share exponents and rows, also by axes that take turns, in both orders of
    memory."""
    draw = torch.Generator().manual_seed(len(shape))
    most = {torch.int8: 127, torch.int16: 32639}.get(kind, 1 << 30)
    v = torch.randint(-most, most, shape, dtype=kind, generator=draw)
    v[0, 0] = 0
    v[:, -1] >>= min(25, most.bit_length() - 1)
    if len(shape) == 4:
        v = v.contiguous(memory_format=torch.channels_last)
    ways = itertools.product((True, False), repeat=2 * len(shape))
    for bits, own in zip(itertools.cycle((8, 16, 32)), ways, strict=False):
        e_shape, size = (
            [n if kept else 1 for n, kept in zip(shape, part, strict=True)]
            for part in (own[: len(shape)], own[len(shape) :])
        )
        if tuple(size) == shape:
            continue
        e = torch.randint(-30, 30, e_shape, generator=draw)
        found = k.requantize_blocks(v, e, 3, size, bits, limited=False)
        wanted = rows.requantize(v, e + 3, size, bits, limited=False)
        assert all(map(torch.equal, map(torch.Tensor.long, found), wanted)), (e_shape, size)
        found, wanted = k.shorten_blocks(v, e, 0, size), rows.shorten(v, e, size)
        assert all(map(torch.equal, map(torch.Tensor.long, found), wanted)), (e_shape, size)
        if most > 32639:
            assert torch.equal(k.scale(v, e), rows.scale(v, e))


@pytest.mark.parametrize("kind", [torch.int8, torch.int32])
@pytest.mark.parametrize("keep", [False, True])
def test_rows_are_aligned(k, kind, keep):
    """Rows of one exponent or several, zeros, and where nothing is to be aligned."""
    draw = torch.Generator().manual_seed(1)
    for shape, size in (((6, 5), (6, 1)), ((2, 3, 4), (2, 3, 1)), ((2, 3, 2, 4), (2, 1, 1, 1))):
        v = torch.randint(-100, 100, shape, dtype=kind, generator=draw)
        v[0] = 0
        own = torch.randint(-9, 9, size, generator=draw)
        for e in (own, own.expand(shape), own + torch.randint(0, 9, shape, generator=draw)):
            found = k.aligned(v, e, size, keep)
            wanted = Eager().aligned(v, e, size, keep)
            assert found[0].dtype is kind
            assert all(map(torch.equal, found, wanted))


@pytest.mark.parametrize("kind", [torch.int16, torch.int32])
def test_sums_over_rows(k, kind):
    """Addends at one exponent, sums of products with codes, and sums of integers of 64 bits."""
    draw = torch.Generator().manual_seed(1)
    for spread in (0, 9, 80):
        g = torch.randint(-30000, 30000, (6, 5), dtype=kind, generator=draw)
        x = torch.randint(-127, 128, (6, 5), dtype=torch.int8, generator=draw)
        e = torch.randint(-spread, spread + 1, (6, 1), generator=draw)
        for zeros in (0, 1, 6):
            g[:zeros] = 0
            for found, wanted in (
                (k.at_one(g, e, 55), rows.at_one(g.long(), e, 55)),
                (k.at_one(g.long(), e, 60), rows.at_one(g.long(), e, 60)),
                (k.channel_sum(g, e, x), Eager().channel_sum(g, e, x)),
            ):
                assert torch.equal(found[0], wanted[0])
                assert found[1:] == wanted[1:]
            assert torch.equal(k.summed(g.long() << 30, (1, 5))[0], (g.long() << 30).sum(0, True))


def test_no_ends_where_binary64_does_not_hold_them():
    v, e = torch.tensor([[3, -(1 << 53)]]), torch.tensor([[2, -900]])
    assert rows.ends(v, e, (1, 1)) is not None
    for u, own in ((v - 1, e), (v, e - 1), (v, e + 899)):
        assert rows.ends(u, own, (1, 1)) is None


def test_exponents_beyond_binary64_are_exact_too(k):
    acc = torch.tensor([[3, -5], [7, 0]])
    e = torch.tensor([[-1100, -1101], [1000, 1200]])
    codes, fitted = k.requantize_blocks(acc, e, 0, (2, 1), 8, limited=False)
    expected = defined.requantize(
        acc.flatten().tolist(), tuple(e.flatten().tolist()), [0, 0, 1, 1], 8, limited=False
    )
    assert (codes.flatten().tolist(), fitted.expand(2, 2).flatten().tolist()) == (
        list(expected[0]),
        list(expected[1]),
    )
