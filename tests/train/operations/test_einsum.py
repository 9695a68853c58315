"""torch.einsum, against the operations that it is made of."""

from __future__ import annotations

import pytest
import torch

from bfp_arrays import forms_agree, tensor
from samebits.errors import UnsupportedError
from samebits.train import BFPTensor
from samebits.train.operations.matmul import product

BATCH = ((2, 3, 4), (2, 5, 4))
OF_TWO = {
    "...ij,...kj->...ik": (BATCH, lambda a, b: product(a, b, True)),
    "bij,bjk->bik": (((2, 3, 4), (2, 4, 5)), lambda a, b: product(a, b.mT, True)),
    "bij,bkj": (  # what both have is summed over, unless it is in the result
        BATCH,
        lambda a, b: product(*(x.permute(1, 0, 2).reshape(-1, 8) for x in (a, b)), True),
    ),
    "...d,ed->...e": (
        ((2, 3, 4), (5, 4)),
        lambda a, b: product(a.reshape(6, 4), b, True).reshape(2, 3, 5),
    ),
    "...d,ed": (
        ((2, 3, 4), (5, 4)),
        lambda a, b: product(a.reshape(6, 4), b, True).reshape(2, 3, 5),
    ),
    "...a,ba->...b": (  # the letters of `...` are others
        ((2, 3, 4), (5, 4)),
        lambda a, b: product(a.reshape(6, 4), b, True).reshape(2, 3, 5),
    ),
    "...ij,kj->...ki": (
        ((2, 3, 4), (5, 4)),
        lambda a, b: product(a.reshape(6, 4), b, True).reshape(2, 3, 5).mT,
    ),
    "ij,j": (((3, 4), (4,)), lambda a, b: product(a, b[None], True).reshape(3)),
    "i,i->": (((3,), (3,)), lambda a, b: product(a[None], b[None], True).reshape(())),
    "bi,bj->bij": (((2, 3), (2, 4)), lambda a, b: a[:, :, None] * b[:, None]),
    "i,j": (((3,), (4,)), lambda a, b: a[:, None] * b[None]),
    "bij,bij->bij": (((2, 3, 4), (2, 3, 4)), lambda a, b: a * b),
    "bij,ji->jbi": (((2, 3, 4), (4, 3)), lambda a, b: a.permute(2, 0, 1) * b[:, None]),
    "...,...->...": (((2, 3, 4), (3, 4)), lambda a, b: a * b[None]),
    "bA , AB": (((2, 3), (3, 4)), lambda a, b: product(a, b.mT, True).mT),
}
OF_ONE = {
    "bij->jbi": lambda x: x.permute(2, 0, 1),
    "bij->b": lambda x: x.sum((1, 2)),
    "bij->jb": lambda x: x.sum(1).mT,
    "bij->": lambda x: x.sum((0, 1, 2)),
    "...i->i...": lambda x: x.permute(2, 0, 1),
    "...j->...": lambda x: x.sum(2),
    "jib": lambda x: x.permute(2, 1, 0),
}


@pytest.mark.parametrize("equation", OF_TWO)
def test_two_tensors(equation, realisation):
    shapes, made = OF_TWO[equation]
    forms_agree((lambda a, b: torch.einsum(equation, a, b), made), *shapes)
    a, b = (tensor(shape, seed=seed) for seed, shape in enumerate(shapes))
    real = torch.einsum(equation, a.dequantize(), b.dequantize())
    found = torch.einsum(equation, [a, b])
    assert found.shape == real.shape
    assert float((found.dequantize() - real).abs().max()) <= 2.0 ** int(found.exponent) / 2


@pytest.mark.parametrize("equation", OF_ONE)
def test_one_tensor(equation):
    forms_agree((lambda x: torch.einsum(equation, x), OF_ONE[equation]), (2, 3, 4))
    x = tensor((2, 3, 4))
    real = torch.einsum(equation, x.dequantize())
    found = torch.einsum(equation, x)
    assert found.shape == real.shape
    assert float((found.dequantize() - real).abs().max()) <= 2.0 ** int(found.exponent) / 2


def test_one_of_two_is_a_constant():
    x, w = tensor((2, 3, 4)), torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    found = torch.einsum("bij,kj->bik", x, w)
    wanted = product(x.reshape(6, 4), BFPTensor.from_real(w), True).reshape(2, 3, 5)
    assert torch.equal(found.codes, wanted.codes)
    assert found.exponent == wanted.exponent
    assert torch.equal(torch.einsum("ij,bij->bij", w[:3], x).codes, (x * w[:3]).codes)


@pytest.mark.parametrize(
    ("equation", "count", "message"),
    [
        ("ii->i", 1, "einsum: expected every axis once in each tensor"),
        ("ij->ijk", 1, "einsum: expected every axis once"),
        ("ij->ii", 1, "einsum: expected every axis once"),
        (
            "ij,jk->k",
            2,
            r"einsum: .* summed over that both have, found 'ij,jk->k' of shapes \(3, 3",
        ),
        ("ij,kj->ik", 3, "einsum: expected one or two tensors"),
        ("ij,jk,kl->il", 3, "einsum: expected one or two tensors"),
        ("ijk->i", 1, "einsum: expected one or two tensors with a letter for every axis"),
        ("i->i", 1, "einsum: expected one or two tensors with a letter for every axis"),
        ("......ij->ij", 1, "einsum: expected"),
        ("i.j->ij", 1, "einsum: expected one or two"),
    ],
)
def test_what_has_no_rule_is_refused(equation, count, message):
    with pytest.raises(UnsupportedError, match=message):
        torch.einsum(equation, *[tensor((3, 3))] * count)


def test_sizes_of_an_axis_agree():
    with pytest.raises(UnsupportedError, match="every axis once in each tensor and of one size"):
        torch.einsum("...i,...i->...", tensor((2, 3)), tensor((1, 3)))
