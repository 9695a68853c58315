"""Sums with factors, from the other side, and in place, against sums and products."""

from __future__ import annotations

import pytest
import torch

from bfp_arrays import forms_agree, tensor
from samebits.errors import UnsupportedError

SHAPES = ((2, 3), (2, 3))
C = torch.tensor([[-1.0, -0.7, -0.2], [0.1, 0.3, 0.9]]) * 2**24  # in binary32, C * 3 is rounded


def changed(change):
    """A form that changes a tensor of its own."""
    return lambda x, *others: change(x * 1, *others)


def of_inplace_operators(x, *others):
    x += 2.0
    x -= 0.5
    x *= 0.25
    x /= 3
    return x


@pytest.mark.parametrize("kind", ["tensor", "row"])
def test_addcmul_is_a_sum_with_a_product(kind, realisation):
    forms = (
        lambda a, b: torch.addcmul(a, b, a, value=0.3),
        lambda a, b: a.addcmul(b, a, value=0.3),
        lambda a, b: a + b * a * 0.3,
    )
    forms_agree(forms, *SHAPES, kind=kind)


@pytest.mark.parametrize("kind", ["tensor", "row"])
@pytest.mark.parametrize("bits", [8, 32])
def test_alpha_is_a_product(kind, bits, realisation):
    scaled = (
        lambda a, b: torch.add(a, b, alpha=0.3),
        lambda a, b: a.add(b, alpha=0.3),
        lambda a, b: torch.sub(a, b, alpha=-0.3),
        lambda a, b: torch.rsub(b, a, alpha=-0.3),
        lambda a, b: a + b * 0.3,
    )
    forms_agree(scaled, *SHAPES, kind=kind, bits=bits)
    plain = (torch.subtract, lambda a, b: a.subtract(b), lambda a, b: a + b * -1.0)
    forms_agree(plain, *SHAPES, kind=kind, bits=bits)


@pytest.mark.parametrize("kind", ["tensor", "row"])
@pytest.mark.parametrize("bits", [8, 32])
def test_alpha_of_constants(bits, kind, realisation):
    constant = (
        lambda a: torch.add(a, C, alpha=3),
        lambda a: a - C.double() * -3,
        lambda a: torch.sub(a, C, alpha=-3),
    )
    forms_agree(constant, (2, 3), kind=kind, bits=bits)
    number = (lambda a: a.add(0.1, alpha=3), lambda a: a + 0.1 * 3)
    forms_agree(number, (2, 3), kind=kind, bits=bits)
    first = (lambda a: torch.add(C, a, alpha=0.3), lambda a: a * 0.3 + C)
    forms_agree(first, (2, 3), kind=kind, bits=bits)


@pytest.mark.parametrize("kind", ["tensor", "row"])
def test_from_a_number(kind, realisation):
    forms = (lambda a: torch.rsub(a, 1.0), lambda a: 1.0 - a, lambda a: a * -1.0 + 1.0)
    forms_agree(forms, (2, 3), kind=kind)


@pytest.mark.parametrize("kind", ["tensor", "row"])
def test_in_place(kind, realisation):
    numbers = (
        changed(of_inplace_operators),
        changed(lambda x: x.add_(2.0).sub_(0.5).mul_(0.25).div_(3)),
        changed(lambda x: (x + 2.0 - 0.5) * 0.25 / 3),
    )
    forms_agree(numbers, (2, 3), kind=kind)
    tensors = (
        changed(lambda x, y: x.sub_(y, alpha=2)),
        changed(lambda x, y: x.add_(y, alpha=-2)),
        changed(lambda x, y: x + y * -2),
    )
    forms_agree(tensors, *SHAPES, kind=kind)


def test_what_was_changed_in_place_is_used_up():
    for change in (
        lambda x: x.sub_(1.0),
        lambda x: x.div_(2.0),
        lambda x: x.__isub__(1.0),
        lambda x: x.__itruediv__(2.0),
    ):
        x = tensor((2, 3)) * 1
        y = change(x)
        with pytest.raises(UnsupportedError, match="changed in place: use the result of"):
            y + x
        with pytest.raises(UnsupportedError, match="changed in place: use the result of"):
            x + 1.0


@pytest.mark.parametrize("name", ["sub_", "add_", "div_", "mul_"])
def test_a_float_tensor_cannot_hold_a_result(name):
    with pytest.raises(UnsupportedError, match="in place: expected a BFP tensor to be changed"):
        getattr(torch.ones(2, 3), name)(tensor((2, 3)))
