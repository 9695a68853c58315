"""Poolings and means in every form that PyTorch has, against the plain integers."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from bfp_arrays import forms_agree
from samebits.errors import UnsupportedError
from samebits.spec.formats import CODE_MAX, Q32
from samebits.spec.training import pooling as reference
from samebits.spec.training.layers import Array
from samebits.train import BFPTensor, convert

SHAPE = (2, 3, 4, 6)
EXPONENTS = {"tensor": -5, "row": torch.tensor([-3, -9]).view(2, 1, 1, 1)}
SHIFTS = torch.tensor([4, 0, 12])


def windows(*geometry, ceil=False, include_pad=True, divisor=None):
    """Shape, members and divisors of a pool of images of SHAPE."""
    own = (*geometry, ceil)
    return reference.averaged_windows(SHAPE, *own, include_pad, divisor)


WHOLE = windows((4, 6), (4, 6), (0, 0))
AVERAGES = {  # forms, and their windows
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
        windows((2, 2), (2, 2), (0, 0)),
    ),
    "rows": (
        (nn.AdaptiveAvgPool2d((None, 2)), lambda x: functional.avg_pool2d(x, (1, 3))),
        windows((1, 3), (1, 3), (0, 0)),
    ),
    "padded": (
        (nn.AvgPool2d(3, 1, 1), lambda x: functional.avg_pool2d(x, 3, stride=1, padding=1)),
        windows((3, 3), (1, 1), (1, 1)),
    ),
    "ceil": (
        (
            nn.AvgPool2d(3, 2, ceil_mode=True),
            lambda x: functional.avg_pool2d(x, 3, 2, ceil_mode=True),
        ),
        windows((3, 3), (2, 2), (0, 0), ceil=True),
    ),
    "ceil, padded": (
        (
            nn.AvgPool2d((4, 3), (3, 4), 1, ceil_mode=True),
            lambda x: functional.avg_pool2d(x, (4, 3), (3, 4), 1, True),
        ),
        windows((4, 3), (3, 4), (1, 1), ceil=True),
    ),
    "inside": (
        (
            nn.AvgPool2d(3, 1, 1, count_include_pad=False),
            lambda x: functional.avg_pool2d(x, 3, 1, 1, False, False),
        ),
        windows((3, 3), (1, 1), (1, 1), include_pad=False),
    ),
    "divided by 5": (
        (
            nn.AvgPool2d(3, 2, 1, ceil_mode=True, divisor_override=5),
            lambda x: functional.avg_pool2d(x, 3, 2, 1, True, divisor_override=5),
        ),
        windows((3, 3), (2, 2), (1, 1), ceil=True, divisor=5),
    ),
    "sum": (
        (lambda x: functional.avg_pool2d(x, 2, divisor_override=1),),
        windows((2, 2), (2, 2), (0, 0), divisor=1),
    ),
    "several steps": (
        (nn.AdaptiveAvgPool2d((3, 4)), lambda x: functional.adaptive_avg_pool2d(x, (3, 4))),
        reference.adaptive_windows(SHAPE, (3, 4)),
    ),
    "overlapping": (
        (nn.AdaptiveAvgPool2d((3, 5)), lambda x: functional.avg_pool2d(x, 2, 1)),
        reference.adaptive_windows(SHAPE, (3, 5)),
    ),
    "several sizes, larger": (
        (nn.AdaptiveAvgPool2d((8, 7)), lambda x: functional.adaptive_avg_pool2d(x, (8, 7))),
        reference.adaptive_windows(SHAPE, (8, 7)),
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
    forms, (shape, members, divisors) = AVERAGES[name]
    x = array(codes(), EXPONENTS[exponents])
    y = reference.averages(x, shape, members, divisors)
    g = torch.arange(len(y.codes), dtype=torch.int32).view(y.shape) * 70001
    back = reference.averages_backward(array(g, -40, 32), x.shape, members, divisors)
    for form in forms:
        form = convert(form) if isinstance(form, nn.Module) else form
        given = BFPTensor(codes(), EXPONENTS[exponents], bits=8).requires_grad_()
        out = form(given)
        same(out, y)
        torch.autograd.backward(out, BFPTensor(g, -40))
        same(given.grad, back)


@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.parametrize("name", AVERAGES)
def test_gradients_of_rows(name, bits, realisation):
    (form, *_), (shape, members, divisors) = AVERAGES[name]
    form = convert(form) if isinstance(form, nn.Module) else form
    most = CODE_MAX[bits]
    g = torch.arange(math.prod(shape)).view(shape) * (most // math.prod(shape)) - most // 3
    g = g.to(torch.int16 if bits == 16 else torch.int32)
    g[1] //= 1000
    own = torch.tensor([-30, -41]).view(2, 1, 1, 1)
    back = reference.averages_backward(array(g, own, bits), SHAPE, members, divisors)
    given = BFPTensor(codes(), EXPONENTS["row"], bits=8).requires_grad_()
    torch.autograd.backward(form(given), BFPTensor(g, own))
    same(given.grad, back)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_sums(sign, realisation):
    """Windows whose sizes leave the sums of gradients 61 bits."""
    geometry, size = ((11, 11), (1, 1), (5, 5)), (1, 1, 12, 12)
    counting = (False, False)
    x = torch.full(size, 127 * sign, dtype=torch.int8)
    given = BFPTensor(x, 0, bits=8).requires_grad_()
    out = functional.avg_pool2d(given, *geometry, *counting)
    means = reference.averaged_windows(size, *geometry, *counting)
    same(out, reference.averages(array(x, 0), *means))
    g = torch.full(size, Q32 * sign, dtype=torch.int32)
    torch.autograd.backward(out, BFPTensor(g, -40))
    same(given.grad, reference.averages_backward(array(g, -40, 32), size, *means[1:]))


@pytest.mark.parametrize("name", AVERAGES)
def test_shifts_of_channels_stay(name):
    (form, *_), (shape, members, divisors) = AVERAGES[name]
    form = convert(form) if isinstance(form, nn.Module) else form
    x = replace(array(codes(), EXPONENTS["row"]), shifts=tuple(SHIFTS.tolist()))
    own = EXPONENTS["row"] + SHIFTS.view(1, -1, 1, 1)
    y = form(BFPTensor(codes(), own, bits=8, shifts=SHIFTS))
    expected = reference.averages(x, shape, members, divisors)
    assert y.codes.flatten().tolist() == expected.codes
    assert tuple(y.exponent.expand(shape).flatten().tolist()) == expected.exponents
    assert torch.equal(y.shifts, SHIFTS)


@pytest.mark.parametrize("exponents", EXPONENTS)
def test_the_mean_of_channels_is_flat(exponents):
    x = BFPTensor(codes(), EXPONENTS[exponents], bits=8)
    flat = convert(nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()))(x)
    for y in (x.mean((2, 3)), x.mean(dim=(-2, -1)), torch.mean(x, [3, 2])):
        assert y.shape == (2, 3)
        assert torch.equal(y.codes, flat.codes)
        assert torch.equal(torch.as_tensor(y.exponent), torch.as_tensor(flat.exponent))


LINES = [
    (nn.MaxPool1d(3, 2, 1), lambda x: functional.max_pool1d(x, 3, 2, 1)),
    (nn.MaxPool1d(2), lambda x: torch.max_pool1d(x, (2,))),
    (nn.MaxPool1d(3, 2, ceil_mode=True), lambda x: functional.max_pool1d(x, 3, 2, ceil_mode=True)),
    (nn.AvgPool1d(2), lambda x: functional.avg_pool1d(x, 2)),
    (nn.AvgPool1d(3, 2, 1), lambda x: functional.avg_pool1d(x, (3,), (2,), (1,))),
    (
        nn.AvgPool1d(3, 2, 1, True, False),
        lambda x: functional.avg_pool1d(x, 3, 2, 1, True, False),
    ),
    (nn.AdaptiveAvgPool1d(3), lambda x: functional.adaptive_avg_pool1d(x, 3)),
    (nn.AdaptiveAvgPool1d(1), lambda x: functional.adaptive_avg_pool1d(x, (1,))),
]


@pytest.mark.parametrize("exponents", EXPONENTS)
@pytest.mark.parametrize("at", range(len(LINES)))
def test_pools_of_lines_as_functions(at, exponents, realisation):
    module, function = LINES[at]
    forms_agree((convert(module), function), (2, 3, 8), kind=exponents)
    x = torch.randn(2, 3, 8)
    assert torch.equal(module(x), function(x))


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


@pytest.mark.parametrize("exponents", EXPONENTS)
def test_maxima_whose_last_window_is_smaller(exponents, realisation):
    geometry = ((3, 2), (2, 4), (1, 1))
    x = array(codes(), EXPONENTS[exponents])
    y, position = reference.max_pool(x, *geometry, ceil=True)
    assert y.shape != reference.max_pool(x, *geometry)[0].shape
    g = torch.arange(len(y.codes), dtype=torch.int32).view(y.shape) * 70001
    back = reference.max_pool_backward(array(g, -40, 32), x.shape, position)
    for form in (
        convert(nn.MaxPool2d(*geometry, ceil_mode=True)),
        lambda x: functional.max_pool2d(x, *geometry, ceil_mode=True),
    ):
        given = BFPTensor(codes(), EXPONENTS[exponents], bits=8).requires_grad_()
        out = form(given)
        same(out, y)
        torch.autograd.backward(out, BFPTensor(g, -40))
        same(given.grad, back)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda x: functional.adaptive_avg_pool2d(x, (2, 0)),
            r"expected an output size of at least 1, found \(2, 0\)",
        ),
        (lambda x: functional.adaptive_avg_pool2d(x[0], 1), r"expected \[n, c, h, w\], found"),
        (lambda x: functional.max_pool1d(x[0], 2, dilation=2), "expected no dilation or return_i"),
        (lambda x: functional.max_pool1d(x, 2), r"expected \[n, c, l\], found"),
        (
            lambda x: functional.max_pool1d(x[0], 2, return_indices=True),
            "expected no dilation or return_indices",
        ),
        (lambda x: functional.max_pool2d(x, 2, dilation=2), "expected no dilation or return_ind"),
        (
            lambda x: functional.max_pool2d(x, 2, return_indices=True),
            "expected no dilation or return_indices",
        ),
        (
            lambda x: functional.avg_pool2d(x, 2, divisor_override=0),
            "expected a divisor of at least 1, found 0",
        ),
        (lambda x: functional.max_pool2d(x, 7, 2, ceil_mode=True), "window that fits"),
    ],
)
def test_what_has_no_rule_is_refused(call, message):
    with pytest.raises(UnsupportedError, match=message):
        call(BFPTensor(codes(), -5, bits=8))
