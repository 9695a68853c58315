"""Softmax of vectors (training.md 14.3) in every realisation, against the plain integers."""

from __future__ import annotations

import functools
import random

import pytest
import torch

import drawn
from bfp_arrays import codes
from compare import assert_same
from samebits.errors import RangeError
from samebits.spec.formats import Q32
from samebits.spec.training import attention as reference
from samebits.spec.training import rows
from samebits.spec.training.layers import Array

requantize = drawn.defined(rows.requantize)
TYPES = {8: torch.int8, 16: torch.int16, 32: torch.int32}


def flat(v):
    return v.flatten().tolist()


def of_reference(z, exponents, allowed=None):
    """rne(P * 2**30 / S) in plain integers; exponents: one, or one a vector."""
    n, c = z.shape
    own = exponents if isinstance(exponents, int) else tuple(e for e in exponents for _ in range(c))
    given = None if allowed is None else allowed.flatten().tolist()
    return reference.softmax(Array(z.flatten().tolist(), (n, c), own, 32), given)[0].codes


def compare(k, z, exponents, allowed=None, expected=None):
    """expected: None, or what of_reference said before."""
    n, c = z.shape
    own = exponents if isinstance(exponents, int) else torch.tensor(exponents).view(n, 1)
    found, (narrow, e_narrow) = k.softmax(z, own, allowed)
    wanted, of_rows = requantize(flat(found), -30, [i // c for i in range(n * c)], 8)
    assert flat(narrow) == wanted
    assert flat(e_narrow.expand(n, c)) == list(of_rows)
    assert (found.dtype, tuple(found.shape)) == (torch.int32, (n, c))
    kept = [True] * (n * c) if allowed is None else allowed.flatten().tolist()
    shown = exponents if isinstance(exponents, int) else "own"
    inputs = [
        f"vector {i // c}: code {v}, exponent {shown}, allowed {a}"
        for i, (v, a) in enumerate(zip(z.flatten().tolist(), kept, strict=True))
    ]
    if expected is None:
        expected = of_reference(z, exponents, allowed)
    assert_same(found, expected, inputs)


def drawn_mask(shape, seed):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.6


@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize("exponent", [-300, -128, -63, -49, -34, -16, -5, 0, 13, 14, 15, 36, 127])
def test_every_exponent(k, exponent, bits):
    for shape in ((1, 1), (3, 1), (1, 9), (5, 6), (2, 33)):
        z = codes(shape, bits, exponent, TYPES[bits])
        compare(k, z, exponent)
        compare(k, z, exponent, drawn_mask(shape, exponent + 300))


@pytest.mark.parametrize("shape", [(1, 1), (5, 6), (2, 33), (3, 2**14), (300, 64)])
def test_gradient(k, shape, threads):
    """y * (S * g - sum(g * y)), the largest codes of the longest vectors among them."""
    n, c = shape
    g, y = codes(shape, 16, 1, torch.int16), codes(shape, 8, 2, torch.int8).abs()
    g[0], y[0] = 32639, 127
    own, e_y = torch.arange(n).view(n, 1) % 40 - 30, torch.arange(n).view(n, 1) % 7 - 36
    t = []
    for row, weights in zip(g.tolist(), y.tolist(), strict=True):
        total, dot = sum(weights), sum(a * b for a, b in zip(row, weights, strict=True))
        t += [total * a - dot for a in row]
    for e_g in (-12, own):
        of = torch.as_tensor(e_g).expand(n, c).flatten().tolist()
        t16, e_t = requantize(t, tuple(of), [i // c for i in range(n * c)], 16)
        expected = [a * b for a, b in zip(t16, flat(y), strict=True)]
        for v in (g, g.t().contiguous().t()):
            found, exponent = k.softmax_grad(v, e_g, y, e_y)
            assert found.dtype == torch.int32
            assert_same(found, expected, list(zip(flat(g), flat(y), strict=True)))
            wanted = [a + 2 * b for a, b in zip(e_t, flat(e_y.expand(n, c)), strict=True)]
            assert flat(exponent.expand(n, c)) == wanted


def test_a_gradient_leaves_the_range_of_exponents(k):
    g = torch.tensor([[32639, -32639], [0, 0]], dtype=torch.int16)
    y, e_y = torch.full((2, 2), 127, dtype=torch.int8), torch.zeros(2, 1, dtype=torch.int64)
    with pytest.raises(RangeError, match="found 12"):
        k.softmax_grad(g, 120, y, e_y)
    found, exponent = k.softmax_grad(g[1:], 120, y[1:], e_y[1:])
    assert (found.any().item(), exponent.item()) == (False, -128)


@pytest.mark.parametrize("masked", [False, True])
def test_vectors_with_exponents_of_their_own(k, masked, threads):
    shape = (40, 12)
    rng = random.Random(4)
    exponents = [rng.choice((-200, -128, -40, -30, -20, -7, 0, 30, 127)) for _ in range(40)]
    compare(k, codes(shape, 32, 1), exponents, drawn_mask(shape, 1) if masked else None)


def test_vectors_without_a_place_that_is_allowed(k):
    z, allowed = codes((4, 5), 32, 2), drawn_mask((4, 5), 2)
    allowed[1], allowed[3] = False, False
    allowed[2] = torch.tensor([False, False, True, False, False])
    compare(k, z, -20, allowed)
    found = k.softmax(z, -20, allowed).codes
    assert not found[1].any()
    assert found[2].tolist() == [0, 0, 1 << 30, 0, 0]
    assert not k.softmax(z, -20, torch.zeros(4, 5, dtype=torch.bool)).codes.any()


@pytest.mark.parametrize("exponent", [-200, -62, -31, -28, -20, 0, 100])
def test_the_largest_and_smallest_codes(k, exponent):
    z = torch.tensor([[Q32, -Q32, 0, Q32], [-Q32, -Q32, -Q32, -Q32], [Q32 - 1, Q32, 1, -1]])
    z = z.to(torch.int32)
    compare(k, z, exponent)
    for column in range(4):  # the largest is excluded
        allowed = torch.ones(3, 4, dtype=torch.bool)
        allowed[:, column] = False
        compare(k, z, exponent, allowed)


def test_an_excluded_code_changes_nothing(k):
    """Neither the largest nor a sum sees it."""
    z, allowed = codes((6, 8), 32, 3), drawn_mask((6, 8), 3)
    other = torch.where(allowed, z, torch.tensor(Q32, dtype=torch.int32))
    assert_same(*(k.softmax(v, -24, allowed).codes for v in (z, other)), z)


@functools.cache
def many_places(exponent):
    """Cases of the most places with what the definition says: random codes, and equal ones."""
    z = codes((2, 1 << 14), 32, 5)
    equal, allowed = torch.full_like(z, 7), drawn_mask(z.shape, 5)
    return (
        (z, None, of_reference(z, exponent)),
        (equal, allowed, of_reference(equal, exponent, allowed)),
    )


@pytest.mark.parametrize("exponent", [-31, -22])
def test_as_many_places_as_there_may_be(k, exponent, threads):
    for z, allowed, expected in many_places(exponent):
        compare(k, z, exponent, allowed, expected)
    assert k.softmax(z, exponent, None).codes.unique().tolist() == [1 << 16]  # S = 2**38


def test_other_orders_in_memory(k):
    z, allowed = codes((7, 5), 32, 6), drawn_mask((5, 7), 6)
    compare(k, z.t(), -26, allowed)
    compare(k, z.t(), [-26, -28, 3, -30, -26], z.t() > 0)
    compare(k, codes((9, 10), 8, 6, torch.int8)[::2, 1::3], -3)
    compare(k, z[:1].expand(4, 5), -26, allowed[:1, :5].expand(4, 5))


def test_one_exponent_given_as_a_tensor(k):
    z = codes((3, 4), 32, 7)
    wanted = of_reference(z, -25)
    assert_same(k.softmax(z, torch.tensor([[-25]]), None).codes, wanted, z)
    assert_same(k.softmax(z, torch.full((3, 1), -25), None).codes, wanted, z)


def test_no_vectors(k):
    assert k.softmax(torch.zeros(0, 4, dtype=torch.int32), -3, None).codes.shape == (0, 4)
