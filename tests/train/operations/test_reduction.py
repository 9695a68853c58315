"""Means, sums, choices and products by other names, against those they are made of."""

from __future__ import annotations

import math

import pytest
import torch

from bfp_arrays import array, forms_agree, same, tensor
from samebits.errors import UnsupportedError
from samebits.spec.training import attention, pointwise, pooling
from samebits.train import BFPTensor
from samebits.train.operations.attention import scaled_dot_product_attention
from samebits.train.operations.matmul import product
from samebits.train.operations.softmax import mask, softmax
from samebits.train.value import same_parts

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
    assert float((out.detach().dequantize() - real).abs().max()) <= step / 2
    out.backward(BFPTensor(torch.full((2, 3), 5, dtype=torch.int16), -3))
    assert torch.equal(a.grad.dequantize(), torch.where(chosen, 0.625, 0.0).double())
    assert torch.equal(b.grad.dequantize(), torch.where(chosen, 0.0, 0.625).double())
    filled = a.masked_fill(chosen, 0.0).detach().dequantize()
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


@pytest.mark.parametrize("kind", ["tensor", "row"])
@pytest.mark.parametrize("name", ["mean", "sum"])
@pytest.mark.parametrize("shape", [SHAPE, (3, 4), (5,)])
def test_all_axes_are_one_window(shape, name, kind, realisation):
    function = getattr(torch, name)
    count = math.prod(shape)
    forms = [
        lambda x: function(x.reshape(1, 1, count, 1), (2, 3)).reshape(()),
        function,
        lambda x: getattr(x, name)(),
        lambda x: function(x, ()),
        lambda x: function(x, tuple(range(len(shape)))),
        lambda x: function(x, list(range(len(shape))), keepdim=True).reshape(()),
    ]
    forms_agree(forms, shape, kind=kind)
    every = tuple(range(len(shape)))
    assert function(tensor(shape, kind), every, keepdim=True).shape == (1,) * len(shape)
    x = tensor(shape)
    assert torch.equal((x + function(x)).codes, (x + function(x).expand(shape)).codes)


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


@pytest.mark.parametrize("kind", ["tensor", "row"])
def test_vectors_are_matrices_of_one_row_or_column(kind, realisation):
    row = (lambda a, v: torch.mv(a, v), lambda a, v: a @ v, lambda a, v: (a @ v[:, None])[:, 0])
    forms_agree(row, (3, 4), (4,), kind=kind)
    column = (lambda v, b: v @ b, lambda v, b: v.matmul(b), lambda v, b: (v[None] @ b)[:, 0])
    forms_agree(column, (3,), (2, 3, 4), kind=kind)
    both = (torch.dot, lambda u, v: u @ v, lambda u, v: (u[None] @ v[:, None]).reshape(()))
    forms_agree(both, (4,), (4,), kind=kind)


def test_products_that_are_added(realisation):
    shapes = ((2, 3, 5), (2, 3, 4), (2, 4, 5))
    plain = (torch.baddbmm, lambda c, a, b: c.baddbmm(a, b), lambda c, a, b: a @ b + c)
    forms_agree(plain, *shapes)
    forms_agree(
        (
            lambda c, a, b: torch.baddbmm(c, a, b, beta=3, alpha=0.5),
            lambda c, a, b: (a @ b) * 0.5 + c * 3,
        ),
        *shapes,
    )
    flat = (
        lambda c, a, b: torch.addmm(c, a, b, beta=0.3, alpha=-2),
        lambda c, a, b: c.addmm(a, b, beta=0.3, alpha=-2),
        lambda c, a, b: (a @ b) * -2 + c * 0.3,
    )
    forms_agree(flat, (5,), (3, 4), (4, 5))
    a, b = tensor((3, 4)), tensor((4, 5), seed=1)
    none = torch.addmm(torch.full((5,), torch.nan), a, b, beta=0)
    assert torch.equal(none.codes, (a @ b).codes)
    constant = torch.linspace(0, 1, 5)
    wanted = a @ b + constant.double() * 0.3
    assert torch.equal(torch.addmm(constant, a, b, beta=0.3).codes, wanted.codes)


def test_a_constant_before_a_product():
    x, w = tensor((2, 3, 4)), torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal((w @ x).codes, (torch.matmul(w, x)).codes)
    assert (w @ x).shape == (2, 5, 4)


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
        (lambda x: x.sum().sum(), r"sum: expected some of the axes of shape \(\)"),
        (lambda x: x.mean(3), r"mean: .* shape \(2, 3\)"),
        (lambda x: x @ x[0, 0], r"matmul: expected matrices or vectors, found .* and \(\)"),
        (lambda x: x @ x, r"matmul: .* found \(2, 3\) and \(2, 3\)"),
        (lambda x: torch.bmm(x, x), "bmm: expected"),
        (lambda x: torch.softmax(x, 5), "softmax"),
        (lambda x: torch.where(torch.ones(2, 3), x, x), "where: expected a bool tensor"),
        (lambda x: x.masked_fill(torch.ones(2, 3) > 0, float("nan")), "masked_fill: expected"),
        (lambda x: x / x, "divide: .* nowhere 0 as divisor, found BFPTensor"),
        (lambda x: x / 0, "divide: .* a number or a constant that is nowhere 0 .* found 0"),
        (lambda x: x / torch.tensor([1.0, 0, 2]), "nowhere 0 as divisor, found Tensor"),
        (lambda x: x / torch.ones(3).requires_grad_(), "divide: .* requires a gradient"),
        (lambda x: torch.div(torch.ones(3), x), "divide: expected a BFP tensor, and"),
        (lambda x: x.requires_grad_().mean(1).backward(), r"expected a loss, .* shape \(2,\)"),
    ],
)
def test_what_has_no_rule_is_refused(call, message):
    with pytest.raises(UnsupportedError, match=message):
        call(BFPTensor.from_real(torch.ones(2, 3)))


@pytest.mark.parametrize("kind", ["tensor", "row"])
def test_a_number_is_a_loss_whose_gradient_is_one(kind):
    """A hinge and a penalty: as a gradient of 1 that the caller gives."""
    found = []
    for given in ((), (BFPTensor(torch.ones((), dtype=torch.int32), 0),)):
        x = BFPTensor.from_real(torch.linspace(-1, 2, 12).view(3, 4), "x", kind == "row")
        x.requires_grad_()
        loss = torch.relu(1 - x).mean() + (x * x).sum()
        loss.backward(*given)
        found.append(x.grad)
    assert same_parts(*(g.value.resolved() for g in found))
    real = torch.linspace(-1, 2, 12).view(3, 4).requires_grad_()
    (torch.relu(1 - real).mean() + (real * real).sum()).backward()
    assert torch.allclose(found[0].dequantize().float(), real.grad, atol=0.05)
