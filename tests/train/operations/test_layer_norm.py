"""Normalisation of groups and vectors: sizes, options and what is refused.

Bits are those of the plain integers in tests/train/test_rows_and_widths.py.
"""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn
from torch.nn import functional

from bfp_arrays import array, forms_agree, same, tensor
from samebits.errors import UnsupportedError
from samebits.spec.training import norm
from samebits.train import BFPTensor, convert


@pytest.mark.parametrize("kind", ["tensor", "row"])
@pytest.mark.parametrize(
    ("shape", "groups"),
    [((2, 6), 2), ((2, 4, 3, 2), 4), ((3, 4, 2, 2), 1), ((1, 2, 1, 1), 1), ((1, 1, 66, 65), 1)],
)
def test_groups_without_gamma(shape, groups, kind, realisation):
    x = tensor(shape, kind).requires_grad_()
    out = functional.group_norm(x, groups)
    wanted, saved, _ = norm.layer_norm(array(x), None, None, 1e-5, groups=groups)
    same(out, wanted)
    g = tensor(shape, kind, 32, 3)
    out.backward(g)
    same(x.grad, norm.layer_norm_backward(array(g), array(x), None, saved)[0])


def with_shifts(codes, up):
    """Codes [1, c, h, w] of one exponent whose channels have shifts [c]."""
    return BFPTensor(codes, up.view(1, -1, 1, 1) - 6, bits=8, shifts=up)


@functools.cache
def with_hot_channels(hot):
    """Channels of which some have shifts of 12, [1, 16, 64, 64], and their norm as one group."""
    up = torch.zeros(16, dtype=torch.int64)
    up[:hot] = 12
    x = with_shifts(tensor((1, 16, 64, 64)).codes, up)
    return x, norm.layer_norm(array(x), None, None, 1e-5, groups=1)[0]


@pytest.mark.parametrize("hot", [1, pytest.param(4, marks=pytest.mark.slow), 8])
def test_groups_whose_sums_of_squares_leave_64_bits(hot, realisation):
    """Squares of 2**19, summed over 2**16 elements, twice."""
    x, expected = with_hot_channels(hot)
    same(functional.group_norm(x, 1), expected)


def of_two_channels(height):
    """Codes of 8 bits and of 19, as large as they can be, [1, 2, height, 512]."""
    codes, up = torch.full((1, 2, height, 512), 127, dtype=torch.int8), torch.tensor([12, 0])
    codes[:, 1] = -127
    return with_shifts(codes, up)


@pytest.mark.slow
def test_the_largest_group_of_channels_with_shifts(realisation):
    x = of_two_channels(256)  # 2**18 elements
    same(functional.group_norm(x, 1), norm.layer_norm(array(x), None, None, 1e-5, groups=1)[0])


@pytest.mark.parametrize("affine", [True, False])
def test_a_single_vector_without_other_axes(affine, realisation):
    """The same as one row, with its gradients."""
    layer = convert(nn.LayerNorm(8, elementwise_affine=affine))
    found = []
    for shape in ((8,), (1, 8)):
        x = BFPTensor(tensor((8,)).codes.view(shape), -6).requires_grad_()
        out = layer(x)
        out.backward(BFPTensor(tensor((8,), bits=32, seed=3).codes.view(shape), -9))
        gradients = [x.grad, *(p.grad for p in layer.parameters())]
        found.append([v.detach().dequantize().flatten().tolist() for v in (out, *gradients)])
        for parameter in layer.parameters():
            parameter.grad = None
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.GroupNorm(3, 6), (4, 6, 5, 5)),
        (nn.GroupNorm(3, 6), (4, 6, 9)),
        (nn.GroupNorm(2, 32), (4, 32)),
        (nn.InstanceNorm2d(6), (4, 6, 5, 5)),
        (nn.InstanceNorm2d(6, affine=True), (4, 6, 5, 5)),
        (nn.InstanceNorm1d(6), (4, 6, 9)),
        (nn.LayerNorm(6, bias=False), (4, 5, 6)),
        (nn.LayerNorm(6, elementwise_affine=False), (4, 5, 6)),
        (nn.RMSNorm(6), (4, 5, 6)),
        (nn.RMSNorm(6, elementwise_affine=False), (4, 5, 6)),
    ],
)
@pytest.mark.parametrize("exponents", ["tensor", "row"])
def test_values_are_those_of_torch(layer, shape, exponents):
    torch.manual_seed(2)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, 1.0, 0.3)
    real = torch.randn(shape).double().requires_grad_()
    x = BFPTensor.from_real(real, by_rows=exponents == "row").requires_grad_()
    out = convert(layer, exponents)(x)
    wanted = layer.double()(real)
    difference = out.detach().dequantize() - wanted.detach()
    assert float(difference.abs().max()) < 0.04 * float(wanted.detach().abs().max())
    g = torch.randn(shape)
    out.backward(BFPTensor.from_real(g, by_rows=exponents == "row", bits=16))
    wanted.backward(g.double())
    difference = x.grad.dequantize() - real.grad
    assert float(difference.norm()) < 0.04 * float(real.grad.norm())


@pytest.mark.parametrize("exponents", ["tensor", "row"])
@pytest.mark.parametrize("shape", [(2, 3, 4, 2), (2, 3, 5)])
def test_instance_norm_as_a_function(shape, exponents, realisation):
    kind = nn.InstanceNorm2d if len(shape) == 4 else nn.InstanceNorm1d
    forms = (convert(kind(3)), functional.instance_norm, lambda x: functional.group_norm(x, 3))
    forms_agree(forms, shape, kind=exponents)
    model = convert(kind(3, affine=True, eps=0.5), exponents)
    own = {"weight": model.weight, "bias": model.bias, "eps": 0.5}
    forms = (model, lambda x: functional.instance_norm(x, **own))
    forms_agree(forms, shape, kind=exponents)


def test_norms_of_torch_itself(realisation):
    forms_agree(
        (
            lambda x: torch.layer_norm(x, (4,), None, None, 0.5, False),
            lambda x: functional.layer_norm(x, (4,), eps=0.5),
        ),
        (2, 3, 4),
    )
    forms_agree(
        (lambda x: torch.rms_norm(x, (4,), eps=0.5), convert(nn.RMSNorm(4, 0.5))), (2, 3, 4)
    )
    model = convert(nn.GroupNorm(2, 4))
    own = (model.weight, model.bias)
    forms_agree((model, lambda x: torch.group_norm(x, 2, *own)), (2, 4, 3))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda x: functional.instance_norm(x, torch.zeros(6), torch.ones(6)),
            "instance norm: expected use_input_stats=True .*; leave them out",
        ),
        (
            lambda x: functional.instance_norm(x, torch.zeros(6), None),
            "instance norm: expected use_input_stats=True",
        ),
        (
            lambda x: functional.instance_norm(x, use_input_stats=False),
            "instance norm: expected use_input_stats=True",
        ),
        (lambda x: functional.instance_norm(x[0, 0, 0]), "expected .n, c, ...., up to 4 axes"),
        (lambda x: functional.group_norm(x, 4), "whose channels 4 groups divide, found shape"),
        (lambda x: functional.group_norm(x, 0), "whose channels 0 groups divide"),
        (lambda x: functional.group_norm(x[0, 0, 0], 1), "expected .n, c, ...., up to 4 axes"),
        (lambda x: functional.layer_norm(x, (3, 2)), "expected one normalised axis"),
        (lambda x: functional.layer_norm(x, (3,)), r"expected rows of 3 elements, found shape"),
        (lambda x: functional.rms_norm(x, (2,), torch.ones(2)), "parameters of a module"),
        (lambda x: convert(nn.GroupNorm(3, 9))(x), "expected 9 channels, found shape"),
        (lambda x: convert(nn.InstanceNorm2d(3, track_running_stats=True))(x), "running_stats"),
        (
            lambda x: functional.group_norm(x[:1, :1, :1, :1].expand(1, 1, 1025, 1024), 1),
            "at most 1048576 elements of a group, found 1049600",
        ),
        (
            lambda _: functional.group_norm(of_two_channels(257), 1),
            "at most 262144 elements of a group, found 263168",
        ),
    ],
)
def test_what_has_no_rule_is_refused(call, message):
    with pytest.raises(UnsupportedError, match=message):
        call(BFPTensor.from_real(torch.ones(2, 6, 3, 2)))


@pytest.mark.parametrize("kind", ["tensor", "row"])
@pytest.mark.parametrize(("shape", "dim"), [((2, 3, 4), -1), ((2, 4, 3), 1), ((3, 5), -1)])
def test_normalize_is_a_norm_without_a_mean_and_a_product(shape, dim, kind):
    size = shape[dim]

    def composed(x):
        y = functional.rms_norm(x.transpose(dim, -1), (size,), None, 1e-24 / size)
        return (y * size**-0.5).transpose(dim, -1)

    forms_agree((lambda x: functional.normalize(x, dim=dim), composed), shape, kind=kind)
    x = tensor(shape)
    real = functional.normalize(x.dequantize(), dim=dim)
    found = functional.normalize(x, dim=dim).dequantize()
    assert float((found - real).abs().max()) < 2**-6
    zero = BFPTensor.from_real(torch.zeros(shape))
    assert not functional.normalize(zero, dim=dim).dequantize().any()


def test_other_norms_are_refused():
    with pytest.raises(
        UnsupportedError, match=r"normalize: expected p=2 .* \(2, 3\), found 1.0 and"
    ):
        functional.normalize(tensor((2, 3)), p=1.0)
