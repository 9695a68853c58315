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
        codes, fitted = rows.requantize(acc, e, SIZES[size], 8, divisor, k=k)
        expected = defined.requantize(numbers, own, members, 8, divisor)
        assert codes.flatten().tolist() == list(expected[0])
        assert fitted.expand(6, 5).flatten().tolist() == list(expected[1])
        if divisor == 1:
            codes, fitted = rows.shorten(acc, e, SIZES[size], k)
            expected = defined.shorten(numbers, own, members)
            assert codes.flatten().tolist() == list(expected[0])
            assert fitted.expand(6, 5).flatten().tolist() == list(expected[1])


@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
@pytest.mark.parametrize("shape", [(3, 4, 5), (1, 6, 70), (40, 21, 20), (2, 3, 4, 5)])
def test_ends_of_rows(k, kind, shape):
    """Every way to share exponents and places, also by axes that take turns."""
    draw = torch.Generator().manual_seed(len(shape))
    v = torch.randint(-(1 << 30), 1 << 30, shape, dtype=kind, generator=draw)
    v[0, 0] = 0
    v[:, -1] >>= 25
    for own in itertools.product((True, False), repeat=2 * len(shape)):
        e_shape, size = (
            [n if kept else 1 for n, kept in zip(shape, part, strict=True)]
            for part in (own[: len(shape)], own[len(shape) :])
        )
        if tuple(size) == shape:
            continue
        e = torch.randint(-30, 30, e_shape, generator=draw)
        axes = [axis for axis, n in enumerate(size) if n == 1]
        real = (v.double().abs() * 2.0 ** e.double()).amax(axes, keepdim=True)
        low = torch.where(v != 0, e, rows.ABOVE).amin(axes, keepdim=True)
        found = k.row_ends(v, e, size)
        assert torch.equal(found[0], real), (e_shape, size)
        assert torch.equal(found[1], low), (e_shape, size)


def test_no_ends_where_binary64_does_not_hold_them(k):
    v, e = torch.tensor([[3, -(1 << 53)]]), torch.tensor([[2, -900]])
    assert k.row_ends(v, e, (1, 1)) is not None
    for u, own in ((v - 1, e), (v, e - 1), (v, e + 899)):
        assert k.row_ends(u, own, (1, 1)) is None


def test_exponents_beyond_binary64_are_exact_too():
    acc = torch.tensor([[3, -5], [7, 0]])
    e = torch.tensor([[-1100, -1101], [1000, 1200]])
    codes, fitted = rows.requantize(acc, e, (2, 1), 8, limited=False, k=Eager())
    expected = defined.requantize(
        acc.flatten().tolist(), tuple(e.flatten().tolist()), [0, 0, 1, 1], 8, limited=False
    )
    assert (codes.flatten().tolist(), fitted.expand(2, 2).flatten().tolist()) == (
        list(expected[0]),
        list(expected[1]),
    )
