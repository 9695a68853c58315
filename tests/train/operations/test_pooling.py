"""Poolings and means in every form that PyTorch has, against the plain integers."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from samebits.errors import UnsupportedError
from samebits.spec.training import pointwise as reference
from samebits.spec.training.layers import Array
from samebits.train import BFPTensor, convert

SHAPE = (2, 3, 4, 6)
EXPONENTS = {"tensor": -5, "row": torch.tensor([-3, -9]).view(2, 1, 1, 1)}
WHOLE = ((4, 6), (4, 6), (0, 0))
AVERAGES = {  # forms, and their window
    "global": (
        (
            nn.AdaptiveAvgPool2d(1),
            lambda x: functional.adaptive_avg_pool2d(x, (1, 1)),
            lambda x: x.mean((2, 3), keepdim=True),
            lambda x: torch.mean(x, (-1, -2), keepdim=True),
        ),
        WHOLE,
    ),
    "parts": (
        (
            nn.AdaptiveAvgPool2d((2, 3)),
            lambda x: functional.adaptive_avg_pool2d(x, (2, 3)),
            lambda x: functional.avg_pool2d(x, 2),
        ),
        ((2, 2), (2, 2), (0, 0)),
    ),
    "rows": (
        (nn.AdaptiveAvgPool2d((None, 2)), lambda x: functional.avg_pool2d(x, (1, 3))),
        ((1, 3), (1, 3), (0, 0)),
    ),
    "padded": (
        (nn.AvgPool2d(3, 1, 1), lambda x: functional.avg_pool2d(x, 3, stride=1, padding=1)),
        ((3, 3), (1, 1), (1, 1)),
    ),
}


def codes():
    generator = torch.Generator().manual_seed(3)
    return torch.randint(-127, 128, SHAPE, generator=generator).to(torch.int8)


def array(values, exponent, bits=8):
    own = exponent
    if isinstance(exponent, torch.Tensor):
        own = tuple(exponent.expand(values.shape).flatten().tolist())
    return Array(values.flatten().tolist(), tuple(values.shape), own, bits)


def same(tensor, expected):
    """Codes, and the exponent of every element."""
    values, exponent = tensor.resolved()
    found = array(values, exponent)
    assert (found.codes, found.exponents) == (expected.codes, expected.exponents)
    assert found.shape == expected.shape


@pytest.mark.parametrize("exponents", EXPONENTS)
@pytest.mark.parametrize("name", AVERAGES)
def test_averages(name, exponents, realisation):
    forms, window = AVERAGES[name]
    x = array(codes(), EXPONENTS[exponents])
    y = reference.avg_pool(x, *window)
    g = torch.arange(len(y.codes), dtype=torch.int32).view(y.shape) * 70001
    back = reference.avg_pool_backward(array(g, -40, 32), x.shape, *window)
    for form in forms:
        form = convert(form) if isinstance(form, nn.Module) else form
        given = BFPTensor(codes(), EXPONENTS[exponents], bits=8).requires_grad_()
        out = form(given)
        same(out, y)
        torch.autograd.backward(out, BFPTensor(g, -40))
        same(given.grad, back)


@pytest.mark.parametrize("exponents", EXPONENTS)
def test_the_mean_of_channels_is_flat(exponents):
    x = BFPTensor(codes(), EXPONENTS[exponents], bits=8)
    flat = convert(nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()))(x)
    for y in (x.mean((2, 3)), x.mean(dim=(-2, -1)), torch.mean(x, [3, 2])):
        assert y.shape == (2, 3)
        assert torch.equal(y.codes, flat.codes)
        assert torch.equal(torch.as_tensor(y.exponent), torch.as_tensor(flat.exponent))


def test_maxima_as_functions(realisation):
    x = array(codes(), -5)
    y, _ = reference.max_pool(x, (3, 3), (2, 2), (1, 1))
    for form in (
        convert(nn.MaxPool2d(3, 2, 1)),
        lambda x: functional.max_pool2d(x, 3, 2, 1),
        lambda x: torch.max_pool2d(x, (3, 3), stride=(2, 2), padding=(1, 1)),
    ):
        same(form(BFPTensor(codes(), -5, bits=8)), y)
    y, _ = reference.max_pool(x, (2, 2), (2, 2), (0, 0))
    same(functional.max_pool2d(BFPTensor(codes(), -5, bits=8), 2), y)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: x.mean(), r"mean: expected both axes of the images of \[n, c, h, w\], found"),
        (lambda x: x.mean(1), "found axes 1 of shape"),
        (lambda x: x[0].mean((1, 2)), r"found axes \(1, 2\) of shape \(3, 4, 6\)"),
        (
            lambda x: functional.adaptive_avg_pool2d(x, 3),
            r"expected an output size that divides \(4, 6\), found \(3, 3\)",
        ),
        (lambda x: functional.adaptive_avg_pool2d(x, 0), r"found \(0, 0\)"),
        (lambda x: functional.adaptive_avg_pool2d(x[0], 1), r"expected \[n, c, h, w\], found"),
        (lambda x: functional.max_pool2d(x, 2, dilation=2), "expected no dilation, ceil_mode"),
        (lambda x: functional.max_pool2d(x, 2, ceil_mode=True), "expected no dilation, ceil_mode"),
        (
            lambda x: functional.avg_pool2d(x, 3, padding=1, count_include_pad=False),
            "expected no ceil_mode or divisor_override, and padding that counts",
        ),
        (lambda x: functional.avg_pool2d(x, 2, divisor_override=3), "expected no ceil_mode"),
    ],
)
def test_what_has_no_rule_is_refused(call, message):
    with pytest.raises(UnsupportedError, match=message):
        call(BFPTensor(codes(), -5, bits=8))
