"""Means, sums, choices and products by other names, against those they are made of."""

from __future__ import annotations

import math

import pytest
import torch

from bfp_arrays import array, same, tensor
from samebits.errors import UnsupportedError
from samebits.spec.training import attention, pointwise, pooling
from samebits.train import BFPTensor
from samebits.train.operations.attention import scaled_dot_product_attention
from samebits.train.operations.matmul import product
from samebits.train.operations.softmax import mask, softmax

SHAPE = (2, 3, 4, 5)


@pytest.mark.parametrize("kind", ["tensor", "row"])
@pytest.mark.parametrize("name", ["mean", "sum"])
@pytest.mark.parametrize("dim", [1, -1, (0, 2), (1, 3), [2, 3], (0, 1, 2)])
def test_axes_are_one_window(dim, name, kind, realisation):
    x = tensor(SHAPE, kind).requires_grad_()
    function = getattr(torch, name)
    axes = [dim] if isinstance(dim, int) else list(dim)
    kept = [axis for axis in range(4) if axis not in {a % 4 for a in axes}]
    image = x.permute(*kept, *(a % 4 for a in axes))
    sizes = [SHAPE[axis] for axis in kept]
    count = x.numel() // math.prod(sizes)
    image = image.reshape(sizes[0], math.prod(sizes[1:]), count, 1)
    window = ((count, 1), (count, 1), (0, 0), False)
    by = [1 if name == "sum" else count] * (image.shape[0] * image.shape[1])
    wanted = pooling.averages(array(image), *pooling.windows(tuple(image.shape), *window), by)
    out, kept_axes = function(x, dim), function(x, dim, keepdim=True)
    for found in (out, kept_axes):
        same(found, pointwise.reshaped(wanted, tuple(found.shape)))
    assert kept_axes.shape == torch.empty(SHAPE).sum(dim, keepdim=True).shape
    assert getattr(x, name)(dim).shape == out.shape
    out.backward(tensor(tuple(out.shape), kind, 32, 3))
    assert x.grad.shape == SHAPE


def test_a_choice_by_a_mask(realisation):
    a, b = (tensor((2, 3), seed=seed).requires_grad_() for seed in (1, 2))
    chosen = torch.tensor([[True, False, True], [False, True, True]])
    out = torch.where(chosen, a, b)
    real = torch.where(chosen, a.dequantize(), b.dequantize())
    step = 2.0 ** int(out.exponent)
    assert float((out.dequantize() - real).abs().max()) <= step / 2
    out.backward(BFPTensor(torch.full((2, 3), 5, dtype=torch.int16), -3))
    assert torch.equal(a.grad.dequantize(), torch.where(chosen, 0.625, 0.0).double())
    assert torch.equal(b.grad.dequantize(), torch.where(chosen, 0.0, 0.625).double())
    filled = a.masked_fill(chosen, 0.0).dequantize()
    assert torch.equal(filled, torch.where(chosen, 0.0, a.dequantize()))


@pytest.mark.parametrize("kind", ["tensor", "row"])
def test_every_way_to_mask_gives_the_same_bits(kind, realisation):
    x = tensor((2, 3, 4), kind, 32)
    allowed = torch.rand(2, 3, 4, generator=torch.Generator().manual_seed(3)) < 0.6
    wanted = softmax(mask(x, allowed), -1)
    ways = [
        x.masked_fill(~allowed, float("-inf")),
        x.masked_fill(~allowed, -1e9),
        torch.where(allowed, x, torch.tensor(torch.finfo(torch.float32).min)),
        x + torch.where(allowed, 0.0, float("-inf")),
        torch.where(allowed, 0.0, -1e30) + x,
    ]
    for masked in ways:
        out = torch.softmax(masked, -1)
        assert torch.equal(out.codes, wanted.codes)
        with pytest.raises(UnsupportedError, match="masked by -inf, which only softmax takes"):
            torch.relu(masked)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("bhid,bhjd->bhij", ((2, 2, 3, 4), (2, 2, 5, 4))),
        ("bhij,bhjd->bhid", ((2, 2, 3, 4), (2, 2, 4, 5))),
        ("nd, de -> ne", ((3, 4), (4, 5))),
        ("bij,bkij->bk", ((2, 3, 4), (2, 5, 3, 4))),
        ("ij,kj->ki", ((3, 4), (5, 4))),
    ],
)
def test_einsum_is_one_product(equation, shapes, realisation):
    a, b = (tensor(shape, seed=seed) for seed, shape in enumerate(shapes))
    out = torch.einsum(equation, a, b)
    assert torch.equal(out.dequantize(), torch.einsum(equation, a.dequantize(), b.dequantize()))


def test_products_by_other_names(realisation):
    a, b = tensor((2, 3, 4)), tensor((2, 4, 5), seed=1)
    wanted = product(a, b)
    for out in (a @ b, torch.matmul(a, b), torch.bmm(a, b), a.matmul(b), a.bmm(b)):
        assert torch.equal(out.codes, wanted.codes)
    flat = torch.mm(a[0], b[0])
    assert torch.equal((a @ b[0]).codes[0], flat.codes)
    assert torch.equal(torch.addmm(b[1][0], a[0], b[0]).codes, (flat + b[1][0]).codes)
    q, k = tensor((2, 2, 3, 4)), tensor((2, 2, 5, 4), seed=1)
    same(product(q, k, True), attention.matmul(attention.operands(array(q), array(k), True)))
    weights = torch.softmax(product(q, k, True) * 0.5, -1)
    out = scaled_dot_product_attention(q, k, k)
    assert torch.equal(out.codes, (weights @ k).codes)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: x.mean(), "mean: expected some of the axes"),
        (lambda x: x.sum(), "sum: expected some of the axes"),
        (lambda x: x.mean(3), r"mean: .* shape \(2, 3\)"),
        (lambda x: x.mean((0, 1)), "mean: expected some of the axes"),
        (lambda x: x @ torch.ones(3), "matmul: expected matrices"),
        (lambda x: x @ x, r"matmul: .* found \(2, 3\) and \(2, 3\)"),
        (lambda x: torch.bmm(x, x), "bmm: expected"),
        (lambda x: torch.einsum("ij,ij->ij", x, x), "einsum: expected two operands"),
        (lambda x: torch.einsum("ii,ij->j", x, x), "einsum: expected two operands"),
        (lambda x: torch.einsum("ij->ji", x), "einsum: expected two operands"),
        (lambda x: torch.einsum("...j,kj->...k", x, x), "einsum: expected two operands"),
        (lambda x: torch.softmax(x, 5), "softmax"),
        (lambda x: torch.where(torch.ones(2, 3), x, x), "where: expected a bool tensor"),
        (lambda x: x.masked_fill(torch.ones(2, 3) > 0, float("nan")), "masked_fill: expected"),
        (lambda x: x / x, "divide: expected a number other than 0"),
        (lambda x: x / 0, "divide: expected a number other than 0"),
    ],
)
def test_what_has_no_rule_is_refused(call, message):
    with pytest.raises(UnsupportedError, match=message):
        call(BFPTensor.from_real(torch.ones(2, 3)))
