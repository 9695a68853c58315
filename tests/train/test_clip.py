"""Gradient clipping against the definition, for equality, and next to PyTorch's."""

from __future__ import annotations

import math
import random

import pytest
import torch

from compare import assert_same
from samebits import kernels
from samebits.errors import InputError, RangeError, UnsupportedError
from samebits.spec import formats
from samebits.spec.formats import Q32
from samebits.spec.training import clipping
from samebits.train import (
    SGD,
    BFPParameter,
    BFPTensor,
    clip_grad_norm_,
    clip_grad_value_,
)
from samebits.train.value import BFPValue


def gradients(seed: int):
    """Lists of parts (codes, exponent) of parameters of several sizes and scales."""
    rng = random.Random(seed)
    found = []
    for size, parts, exponent in ((1, 1, -10), (40, 2, -30), (300, 3, -37), (7, 1, -60)):
        of_one = []
        for _ in range(parts):
            largest = rng.choice((0, 1, 1000, Q32))
            codes = [rng.randint(-largest, largest) for _ in range(size)]
            of_one.append((codes, exponent + rng.randint(-3, 3)))
        found.append(of_one)
    return found


def parameters_of(parts):
    """BFP parameters with these gradients; one of four dimensions in channels-last order."""
    made = []
    for of_one in parts:
        size = len(of_one[0][0])
        shape = (5, 6, 2, 5) if size == 300 else (size,)
        parameter = BFPParameter.from_real(torch.ones(shape))
        tensors = tuple((torch.tensor(c, dtype=torch.int32).view(shape), e) for c, e in of_one)
        parameter.grad = BFPTensor.of(BFPValue.of_parts(tensors))
        made.append(parameter)
    return made


def assert_gradients(parameters, expected, inputs):
    for parameter, (codes, exponent), (given, _) in zip(parameters, expected, inputs, strict=True):
        found, e = parameter.grad.resolved()
        assert_same(found.flatten(), codes, given)
        assert e == exponent
        (bound,) = parameter.grad.bounds if len(parameter.grad.parts) == 1 else (None,)
        assert bound is None or max(map(abs, codes)) <= bound


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("limit", [1e-30, 0.001, 0.25, 3.0, 1e9])
def test_norm(realisation, seed, limit):
    parts = gradients(seed)
    sums = [formats.resolve(of_one) for of_one in parts]
    parameters = parameters_of(parts)
    assert clip_grad_norm_(parameters, limit) == clipping.norm(sums)
    expected = clipping.clip_norm(sums, limit)
    assert_gradients(parameters, expected, sums)
    assert clipping.norm(expected) <= limit * (1 + 2**-15)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("limit", [1e-30, 2.0**-31, 0.001, 0.1, 3.0])
def test_value(realisation, seed, limit):
    parts = gradients(seed)
    sums = [formats.resolve(of_one) for of_one in parts]
    parameters = parameters_of(parts)
    clip_grad_value_(parameters, limit)
    expected = [clipping.clip_value(g, limit) for g in sums]
    assert_gradients(parameters, expected, sums)
    assert all(float(p.grad.dequantize().abs().max()) <= limit for p in parameters)


def test_norm_of_known_gradients(realisation):
    """3, 4 and a tensor of zeros with a large exponent: 5, halved exactly."""
    parameters = parameters_of([[([3], 0)], [([1], 2)], [([0], 90)]])
    assert clip_grad_norm_(parameters, 5.0) == 5.0
    assert [p.grad.resolved()[1] for p in parameters] == [0, 2, 90]
    assert clip_grad_norm_(parameters, 2.5) == 5.0
    assert [float(p.grad.dequantize()) for p in parameters] == [1.5, 2.0, 0.0]
    assert clip_grad_norm_(parameters[0], 1.0) == 1.5
    assert clip_grad_norm_([], 1.0) == 0.0


def test_squares_of_any_codes(realisation):
    """Sums of squares beyond 64 bits, and of every width."""
    for dtype, top in ((torch.int8, 127), (torch.int16, 32639), (torch.int32, Q32)):
        codes = torch.tensor([top, -top, 1, 0, -2], dtype=dtype).repeat(500_000)
        k = kernels.of(codes)
        assert k.square_sum(codes) == 500_000 * (2 * top * top + 5)
    assert k.square_sum(torch.empty(0, dtype=torch.int32)) == 0


def test_norm_is_close_to_pytorch(realisation):
    """PyTorch divides by the norm plus 1e-6, in binary32."""
    torch.manual_seed(0)
    values = [torch.randn(30), torch.randn(4, 5)]
    ours = [BFPParameter.from_real(v) for v in values]
    theirs = [torch.nn.Parameter(v.clone()) for v in values]
    for a, b, g in zip(ours, theirs, (torch.randn(30), torch.randn(4, 5)), strict=True):
        a.grad = BFPTensor((g * 2**20).round().int(), -20)
        b.grad = a.grad.dequantize().float()
    norms = clip_grad_norm_(ours, 0.5), float(torch.nn.utils.clip_grad_norm_(theirs, 0.5))
    assert norms[0] == pytest.approx(norms[1], rel=1e-6)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.grad.dequantize().float(), b.grad, rtol=1e-4, atol=0)


@pytest.mark.parametrize("limit", [0, -1.0, math.inf, math.nan, "1", True])
@pytest.mark.parametrize("clip", [clip_grad_norm_, clip_grad_value_])
def test_bad_limits(clip, limit):
    name = {clip_grad_norm_: "max_norm", clip_grad_value_: "clip_value"}[clip]
    with pytest.raises(InputError) as caught:
        clip(parameters_of([[([1], 0)]]), limit)
    assert str(caught.value) == f"{name}: expected a finite number > 0, found {limit!r}"


@pytest.mark.parametrize("clip", [clip_grad_norm_, clip_grad_value_])
def test_float_gradients_are_refused(clip):
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    with pytest.raises(InputError) as caught:
        clip([*parameters_of([[([9], 0)]]), parameter], 1.0)
    assert str(caught.value) == (
        "parameter 1: expected a BFP gradient, found Tensor; clip float gradients with "
        "torch.nn.utils"
    )


@pytest.mark.parametrize("foreach", [None, False, True])
@pytest.mark.parametrize("name", ["clip_grad_norm_", "clip_grad_value_"])
def test_torch_names_ours(name, foreach):
    parameters = parameters_of([[([9], 0)]])
    with pytest.raises(UnsupportedError) as caught:
        getattr(torch.nn.utils, name)(parameters, 1.0, foreach=foreach)
    assert "use clip_grad_norm_ and clip_grad_value_ of samebits.train" in str(caught.value)
    assert parameters[0].grad.resolved()[0].tolist() == [9]


def test_a_norm_beyond_binary64(realisation):
    parameters = parameters_of([[([9], 1023)], [([5], 0)]])
    with pytest.raises(RangeError, match=r"norm of the gradients overflows .*9.0 \* 2\*\*1023"):
        clip_grad_norm_(parameters, 1.0)
    assert [p.grad.parts[0][1] for p in parameters] == [1023, 0]


def test_a_step_with_a_clipped_gradient(realisation):
    """What the optimizer sees is the clipped gradient, whatever it knew of the old one."""
    parameter = BFPParameter.from_real(torch.tensor([100.0]))
    optimizer = SGD([parameter], lr=0.5)
    parameter.grad = BFPTensor(torch.tensor([1 << 20], dtype=torch.int32), -10, 1 << 20)
    clip_grad_norm_([parameter], 1.0)
    optimizer.step()
    assert float(parameter.dequantize()) == 99.5
