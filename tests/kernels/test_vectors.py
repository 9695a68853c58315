"""Normalisation of vectors: every realisation against sums of plain integers, for equality."""

from __future__ import annotations

import math

import pytest
import torch

import drawn
from kernel_arrays import LARGE, assert_same, codes, flat, layouts, same_codes, spread, tensor
from samebits.errors import RangeError
from samebits.kernels.eager import Eager
from samebits.kernels.geometry import MAX_PRODUCTS
from samebits.spec import formats
from samebits.spec.formats import Q8, Q16
from samebits.spec.training import layers as reference
from samebits.spec.training import norm
from samebits.spec.training import rows as by_rows

layer_norm = drawn.defined(norm.layer_norm)
layer_norm_backward = drawn.defined(norm.layer_norm_backward)
requantize, shorten = drawn.defined(by_rows.requantize), drawn.defined(by_rows.shorten)

SHAPES = [(5, 7), (1, 1), (3, 4, 33), (2, 600), (4, 2, 3, 5)]
SIZES = [*((shape, 1) for shape in SHAPES), ((LARGE // 64 + 3, 64), 2)]  # with threads
parametrize = pytest.mark.parametrize
sizes = parametrize(("shape", "threads"), SIZES, indirect=["threads"])


def rows_of(v: torch.Tensor) -> list[list[int]]:
    return v.reshape(-1, v.shape[-1]).tolist()


@sizes
def test_stats(k, shape, threads):
    for z in (codes(shape, Q8, 8, 1), codes(shape, 2**20, 64, 2)):
        found = rows_of(z)
        expected = [f(r) for f in (sum, lambda r: sum(v * v for v in r), min, max) for r in found]
        for v in layouts(z):
            stats = k.vector_stats(v)
            assert stats.shape == (4, *shape[:-1], 1)
            assert_same(stats, expected, range(len(expected)))


def test_stats_of_the_longest_rows(k):
    for sign in (1, -1):
        z = torch.full((2, 1 << 17), sign * Q8, dtype=torch.int8)
        stats = k.vector_stats(z)[..., 0].t().tolist()
        assert stats == [[sign * Q8 << 17, Q8**2 << 17, sign * Q8, sign * Q8]] * 2


GROUPS = [((5, 6), 3), ((3, 4, 2, 5), 2), ((2, 6, 1, 1), 6)]  # shapes and groups of channels


def parameter(size: int, seed: int, exponent: int) -> reference.Parameter:
    w, a = codes((size,), Q8, 8, seed).tolist(), codes((size,), 1 << 14, 16, seed + 1).tolist()
    return reference.Parameter((w, a, exponent), (size,))


def state_of(parameter, groups, shape):
    """W, A and the exponent of J, as they meet vectors."""
    if parameter is None:
        return None
    w, a, exponent = parameter.weight
    found = tensor(w, 8), tensor(a, 16)
    if groups is not None:
        inner = math.prod(shape[2:])
        found = [v.view(-1, 1).expand(-1, inner).reshape(1, groups, -1) for v in found]
    return *found, exponent - 15


def same_norm(k, z, e_z, gamma, beta, centred=True, groups=None, eps=1e-5, g=None, e_g=0):
    """A norm and the gradient of its input against the plain integers."""
    shape = tuple(z.shape)
    given = reference.Array(flat(z), shape, e_z, 8)
    wanted, saved, _ = layer_norm(given, gamma, beta, eps, (), centred, groups)
    states = [state_of(p, groups, shape) for p in (gamma, beta)]
    down = None
    if g is not None:
        arriving = reference.Array(flat(g), shape, e_g, 8 * g.element_size())
        down, *_ = layer_norm_backward(arriving, given, gamma, saved)
    for v in layouts(z):
        rows = v if groups is None else v.reshape(shape[0], groups, -1)
        found = k.vector_norm(rows, e_z, *states, eps, centred, wanted.bits)
        same_codes(found.output, (wanted.codes, wanted.exponent), flat(z))
        same_codes(found.xhat, (saved.xhat.codes, saved.xhat.exponent), flat(z))
        m, e_m = found.factor
        assert e_m == saved.exponent - e_z
        assert m.expand(rows.shape).flatten().tolist() == saved.multiplier
        for h in () if down is None else layouts(g):
            arriving = h if groups is None else h.reshape(rows.shape)
            part = k.vector_norm_gradient(arriving, e_g, *found[1:], states[0], centred, None)
            same_codes(part, (down.codes, down.exponent), flat(g))


@sizes
@parametrize("centred", [True, False])
@parametrize("width", [16, 32])
def test_norm(k, shape, centred, width, threads):
    g = codes(shape, formats.CODE_MAX[width], width, 9)
    parameters = parameter(shape[-1], 4, -9), parameter(shape[-1], 6, -6)
    same_norm(k, codes(shape, Q8, 8, 3), -5, *parameters, centred, g=g, e_g=-20)


@parametrize(("shape", "groups"), GROUPS)
def test_norm_of_groups(k, shape, groups):
    g = codes(shape, Q16, 16, 9)
    parameters = parameter(shape[1], 4, -9), parameter(shape[1], 6, -6)
    same_norm(k, codes(shape, Q8, 8, 3), -5, *parameters, groups=groups, g=g, e_g=-20)


@parametrize("exponents", [(-5, -9, -6), (-128, -60, 20), (100, 40, -128), (-40, -128, -128)])
@parametrize("kinds", [(True, True), (True, False), (False, False)])
def test_norm_at_all_exponents(k, exponents, kinds):
    """Parameters that outweigh each other, and codes whose variance is lost beside eps."""
    e_z, *own = exponents
    given = [
        parameter(33, seed, e) if wanted else None
        for seed, e, wanted in zip((4, 6), own, kinds, strict=True)
    ]
    z, g = codes((4, 33), Q8, 8, 3), codes((4, 33), Q16, 16, 9)
    for e_g in (-128, -20, 40):
        same_norm(k, z, e_z, *given, g=g, e_g=e_g)


@parametrize("centred", [True, False])
def test_norm_of_equal_codes_and_zeros(k, centred):
    z, g = torch.zeros(3, 4, dtype=torch.int8), codes((3, 4), Q16, 16, 9)
    for given in (z, z + 5, z - 127):
        for down in (g, torch.zeros_like(g), torch.ones_like(g)):
            same_norm(k, given, -3, parameter(4, 4, -9), parameter(4, 6, -6), centred, g=down)
    same_norm(k, z, -3, parameter(4, 4, -9), None, centred, g=g)
    gone = reference.Parameter(([0] * 4, [0] * 4, -9), (4,))
    same_norm(k, codes((3, 4), Q8, 8, 3), -3, gone, gone, centred, g=g)


def test_norm_of_the_longest_rows(k):
    """All sums at their largest: 2**20 elements of a group, half of them at either end."""
    d = 1 << 20
    z = torch.full((1, d), Q8, dtype=torch.int8)
    z[:, ::2] = -Q8
    g = torch.full((1, d), Q16, dtype=torch.int16)
    parts = []
    for own in (k, Eager()):
        found = own.vector_norm(z, -3, None, None, 1e-5, True, 8)
        down = own.vector_norm_gradient(g, 0, *found[1:], None, False, None)
        parts.append((*found, down))
    for found, wanted in zip(*parts, strict=True):
        assert torch.equal(found[0].long(), wanted[0].long())
        assert found[1] == wanted[1]


def test_a_norm_leaves_the_range_of_exponents(k):
    z, g = codes((2, 8), Q8, 8, 3), codes((2, 8), Q16, 16, 9)
    gamma = state_of(parameter(8, 4, 150), None, z.shape)
    with pytest.raises(RangeError, match="found 1"):
        k.vector_norm(z, -3, gamma, None, 1e-9, True, 8)
    found = k.vector_norm(z, -3, None, None, 1e-5, True, 8)
    with pytest.raises(RangeError, match="found 1"):
        k.vector_norm_gradient(g, 128, *found[1:], None, True, None)
    with pytest.raises(RangeError, match="finite value, found inf"):
        k.vector_norm(torch.ones_like(z), 0, None, None, 0.0, True, 8)


def same_parts(found, wanted) -> None:
    for (v, e), (w, f) in zip(found, wanted, strict=True):
        assert v.dtype == w.dtype
        assert torch.equal(v, w)
        assert torch.equal(torch.as_tensor(e), torch.as_tensor(f))


@parametrize(("shape", "groups"), [((5, 7), None), ((2, 3, 33), None), *GROUPS])
@parametrize("kinds", [(True, True), (True, False), (False, False)])
def test_norm_by_rows(k, shape, groups, kinds):
    """As `Eager`, which tests/train compares with plain integers; rows of zeros, and those whose
    exponents differ by more than 16 bits."""
    channels = shape[-1] if groups is None else shape[1]
    given = [
        state_of(parameter(channels, seed, e), groups, shape) if wanted else None
        for seed, e, wanted in zip((4, 6), (-9, -30), kinds, strict=True)
    ]
    z, size = codes(shape, Q8, 8, 3), (*shape[:-1], 1)
    z[0] = 0
    if groups is not None:
        z, size = z.reshape(shape[0], groups, -1), (shape[0], 1, 1)
    e_z = codes(size, 30, 64, 5) - 9
    for centred, width in ((True, 16), (False, 32)):
        g = codes(tuple(z.shape), formats.CODE_MAX[width], width, 9)
        g[-1] = 0
        found, wanted = (own.vector_norm(z, e_z, *given, 1e-5, centred, 8) for own in (k, Eager()))
        same_parts(found, wanted)
        for e_g in (-20, codes(size, 40, 64, 6)):
            rest = g, e_g, *wanted[1:], given[0], centred, size
            same_parts([k.vector_norm_gradient(*rest)], [Eager().vector_norm_gradient(*rest)])


def test_a_norm_by_rows_leaves_the_range_of_exponents(k):
    z, e = codes((2, 8), Q8, 8, 3), torch.tensor([[0], [-3]])
    gamma = state_of(parameter(8, 4, 150), None, z.shape)
    with pytest.raises(RangeError, match="found 1"):
        k.vector_norm(z, e, gamma, None, 1e-9, True, 8)
    found, g = k.vector_norm(z, e, None, None, 1e-5, True, 8), codes((2, 8), Q16, 16, 9)
    with pytest.raises(RangeError, match="found 1"):
        k.vector_norm_gradient(g, 128, *found[1:], None, True, (2, 1))
    with pytest.raises(RangeError, match="finite value, found inf"):
        k.vector_norm(torch.ones_like(z), e, None, None, 0.0, True, 8)


# --- exponents of vectors ---------------------------------------------------------------------

BLOCKS = [
    # shape of the integers, of their exponents, and of those that are wanted
    *(
        ((3, 4, 5), None, (3, 4, 1)),
        ((3, 4, 5), (3, 4, 1), None),
        ((3, 4, 5), (3, 4, 1), (3, 1, 1)),
    ),
    *(((3, 4, 5), (3, 1, 1), None), ((2, 1), (2, 1), (2, 1)), ((1, 7, 3), (1, 7, 1), (1, 1, 1))),
    *(((600, 33), (600, 1), None), ((3, 4, 5), (3, 1, 5), None), ((3, 4, 5), (1, 4, 1), (3, 1, 1))),
]


@parametrize(("shape", "own", "size"), BLOCKS)
@parametrize("width", [16, 32, 64])
@parametrize("low", [-150, -20, 90])
def test_blocks(k, shape, own, size, width, low):
    v = codes(shape, 1 << 60 if width == 64 else formats.CODE_MAX[width], width, 3)
    v[0] = 0
    count = 1 if own is None else math.prod(own)
    exponents = [low + e for e in spread(max(count, 8), 17, 5)[:count]]
    given = exponents[0] if own is None else tensor(exponents, 64, own)
    of = torch.as_tensor(given).expand(shape).flatten().add(3).tolist()
    places = torch.arange(math.prod(size or (1,))).view(size or [1] * len(shape))
    blocks = places.expand(shape).flatten().tolist()
    for bits, limited in ((8, True), (16, True), (32, False)):
        try:
            expected = requantize(flat(v), tuple(of), blocks, bits, limited=limited)
        except RangeError:
            with pytest.raises(RangeError, match="at most 127"):
                k.requantize_blocks(v, given, 3, size, bits, limited)
            continue
        for w in layouts(v):
            found = k.requantize_blocks(w, given, 3, size, bits, limited)
            same_blocks(found, expected, blocks, size)
    expected = shorten(flat(v), tuple(of), blocks)
    same_blocks(k.shorten_blocks(v, given, 3, size), expected, blocks, size)


def same_blocks(found, expected, blocks, size):
    (codes, exponent), (wanted, wanted_exponents) = found, expected
    assert_same(codes, wanted, range(len(wanted)))
    assert size is None or tuple(exponent.shape) == size
    own = [exponent] if size is None else exponent.flatten().tolist()
    assert [own[block] for block in blocks] == list(wanted_exponents)


# --- products ---------------------------------------------------------------------------------

PAIRS = [(1, 1, 1, 1), (3, 5, 7, 9), (2, 33, 40, 17), (70, 17, 17, 64), (1, 130, 128, 70)]


@parametrize("shape", PAIRS)
def test_products_of_matrices(k, shape, threads):
    count, n, m, size = shape
    a, b = codes((count, n, size), Q8, 8, 1), codes((count, m, size), Q8, 8, 2)
    g16, g32 = codes((count, n, m), Q16, 16, 3), codes((count, n, m), 1 << 30, 32, 4)
    wide_a, wide_b = a.long(), b.long()
    cases = [
        (k.products(a, b), wide_a @ wide_b.mT),
        (k.products(a.mT.contiguous().mT, b), wide_a @ wide_b.mT),
        (k.products_a(g16, b), g16.long() @ wide_b),
        *((k.products_b(g, a), g.long().mT @ wide_a) for g in (g16, g32)),
    ]
    for (found, largest), expected in cases:
        assert torch.equal(found.long(), expected)
        assert largest == int(expected.abs().max())


def test_products_at_their_largest(k):
    """As many terms as 32 bits hold, and one more; and the longest forward sums."""
    for m in (516, 517):
        g = torch.full((2, 3, m), Q16, dtype=torch.int16)
        b = torch.full((2, m, 4), Q8, dtype=torch.int8)
        for found, largest in (k.products_a(g, b), k.products_b(g.mT, b)):
            assert found.unique().tolist() == [largest] == [m * Q16 * Q8]
    a = torch.full((1, 2, MAX_PRODUCTS), -Q8, dtype=torch.int8)
    assert k.products(a, a)[1] == MAX_PRODUCTS * Q8 * Q8
