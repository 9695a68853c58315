"""Products of activations, softmax, and what scores go through, against the plain integers."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from bfp_arrays import array, same, tensor
from samebits.numerics import philox
from samebits.spec.training import attention as reference
from samebits.spec.training import moves, pointwise
from samebits.train.operations.addition import add
from samebits.train.operations.matmul import product
from samebits.train.operations.multiplication import scale
from samebits.train.operations.pointwise import dropout
from samebits.train.operations.softmax import mask, softmax

KINDS = ["tensor", "row"]
PAIRS = list(itertools.product(KINDS, KINDS))
MATRICES = {  # shapes of a, of b and of b transposed
    "one": ((3, 5), (5, 4), (4, 5)),
    "batch": ((2, 3, 5), (2, 5, 4), (2, 4, 5)),
    "heads": ((2, 2, 3, 4), (2, 2, 4, 5), (2, 2, 5, 4)),
    "vectors": ((3, 1, 6), (3, 6, 1), (3, 1, 6)),
    "a term": ((2, 3, 1), (2, 1, 4), (2, 4, 1)),
}


@pytest.mark.parametrize("kinds", PAIRS, ids="-".join)
@pytest.mark.parametrize("bits", [(8, 8), (32, 8), (8, 32), (32, 16), (5, 8)], ids=str)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("name", MATRICES)
def test_products(name, transposed, bits, kinds, realisation):
    shapes = MATRICES[name][0], MATRICES[name][1 + transposed]
    a, b = (
        tensor(shape, kind, width, seed).requires_grad_()
        for seed, (shape, kind, width) in enumerate(zip(shapes, kinds, bits, strict=True))
    )
    of = reference.operands(array(a), array(b), transposed)
    wanted = reference.matmul(of)
    out = product(a, b, transposed)
    same(out, wanted)
    for width in (16, 32):
        a.grad = b.grad = None
        g = tensor(wanted.shape, "row" if "row" in kinds else "tensor", width, 7)
        torch.autograd.backward(out, g, retain_graph=True)
        down = reference.matmul_backward(array(g), of)
        same(a.grad, down[0])
        same(b.grad, down[1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bits", [8, 32])
@pytest.mark.parametrize("exponent", [-34, -26, -6, 0])
@pytest.mark.parametrize("shape", [(3, 7), (2, 2, 5), (2, 1, 3, 4), (2, 1)])
def test_softmax(shape, exponent, bits, kind, realisation):
    x = tensor(shape, kind, bits, 3, exponent).requires_grad_()
    rng = random.Random(1)
    count = x.numel()
    for allowed in (None, [rng.random() < 0.6 for _ in range(count)], [False] * count):
        x.grad = None
        given = x if allowed is None else mask(x, torch.tensor(allowed).view(shape))
        out = softmax(given, -1)
        wanted, saved = reference.softmax(array(x), allowed)
        same(out, wanted)
        for width in (16, 32):
            x.grad = None
            g = tensor(shape, kind, width, 7)
            torch.autograd.backward(out, g, retain_graph=True)
            down = reference.softmax_backward(array(g), saved)
            same(x.grad, down)


def far_apart(kinds, bits):
    """Two tensors [2, 3, 4] of these kinds and widths, 20 binades apart."""
    return (
        tensor((2, 3, 4), kind, width, seed, -6 - 20 * seed).requires_grad_()
        for seed, (kind, width) in enumerate(zip(kinds, bits, strict=True))
    )


@pytest.mark.parametrize("kinds", PAIRS, ids="-".join)
@pytest.mark.parametrize("bits", [(32, 32), (32, 8), (8, 16)], ids=str)
def test_wide_sums(bits, kinds, realisation):
    a, b = far_apart(kinds, bits)
    out = add(a, b)
    same(out, reference.add_wide(array(a), array(b)))
    g = tensor((2, 3, 4), kinds[0], 32, 5)
    out.backward(g)
    same(a.grad, array(g))
    same(b.grad, array(g))


@pytest.mark.parametrize("kinds", PAIRS, ids="-".join)
@pytest.mark.parametrize("bits", [(32, 32), (32, 8), (8, 32)], ids=str)
def test_wide_products(bits, kinds, realisation):
    a, b = far_apart(kinds, bits)
    out = a * b
    same(out, pointwise.multiply(array(a), array(b)))
    for width in (16, 32):
        a.grad = b.grad = None
        g = tensor((2, 3, 4), "row" if "row" in kinds else "tensor", width, 5)
        torch.autograd.backward(out, g, retain_graph=True)
        same(a.grad, pointwise.multiply_backward(array(g), array(a), array(b)))
        same(b.grad, pointwise.multiply_backward(array(g), array(b), array(a)))


def test_a_temperature_is_repeated_beside_scores(realisation):
    scores = tensor((2, 3, 4), "tensor", 32, 1).requires_grad_()
    temperature = tensor((2, 1, 1), "tensor", 8, 2).requires_grad_()
    out = scores * temperature
    assert out.is_wide
    g = tensor((2, 3, 4), "tensor", 32, 5)
    out.backward(g)
    own = moves.expand(array(temperature), (2, 3, 4))
    same(out, pointwise.multiply(array(scores), own))
    down = pointwise.multiply_backward(array(g), own, array(scores))
    same(temperature.grad, moves.expand_backward(down, (2, 1, 1)))


@pytest.mark.parametrize("kinds", PAIRS, ids="-".join)
@pytest.mark.parametrize("bits", [(32, 32), (32, 8), (8, 32)], ids=str)
def test_choices_of_wide_values(bits, kinds, realisation):
    a, b = far_apart(kinds, bits)
    chosen = torch.rand(2, 3, 4, generator=torch.Generator().manual_seed(5)) < 0.5
    out = torch.where(chosen, a, b)
    same(out, reference.where_wide(chosen.flatten().tolist(), array(a), array(b)))
    g = tensor((2, 3, 4), kinds[0], 32, 5)
    out.backward(g)
    assert torch.equal(a.grad.dequantize(), torch.where(chosen, g.dequantize(), 0))
    assert torch.equal(b.grad.dequantize(), torch.where(chosen, 0, g.dequantize()))


@pytest.mark.parametrize("value", [-1e4, -100.0, 0.0, 7.0])
def test_scores_keep_their_bits_where_they_are_filled(value):
    """A number that is no mask, and larger than the scores, leaves them what they are."""
    scores = tensor((3, 4), bits=32, exponent=-27)
    filled = torch.tensor([[True, False, False, True]]).expand(3, 4)
    for out in (scores.masked_fill(filled, value), torch.where(~filled[0], scores, value)):
        wanted = scores.dequantize().masked_fill(filled, value)
        assert out.bits == 32
        assert float((out.dequantize() - wanted).abs().max()) <= 2.0**-16


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("factor", [1.0, -0.3, 1e20, 0.0])
def test_wide_multiples(factor, kind, realisation):
    x = tensor((2, 3, 4), kind, 32, 2)
    same(scale(x, factor), pointwise.scale(array(x), factor))


@pytest.mark.parametrize("kind", KINDS)
def test_wide_dropout(kind, realisation):
    x = tensor((2, 3, 4), kind, 32, 2)
    words = philox.words(x.numel(), (3, 1), 5).tolist()
    wanted = pointwise.dropout(array(x), pointwise.dropout_factors(0.4, words))
    same(dropout(x, 0.4, lambda: ((3, 1), (5, 0, 0))), wanted)
