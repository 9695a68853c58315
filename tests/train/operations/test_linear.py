"""Products with weights as functions: computed weights, constants, lines."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from bfp_arrays import forms_agree, tensor
from samebits.errors import UnsupportedError
from samebits.train import BFPTensor, convert
from samebits.train.operations.matmul import product
from samebits.train.value import same_parts

SHAPES = {"a vector": (4,), "rows": (3, 4), "sequences": (2, 3, 4), "images": (2, 1, 3, 4)}


@pytest.mark.parametrize("kind", ["tensor", "row"])
@pytest.mark.parametrize("name", SHAPES)
def test_a_computed_weight(name, kind, realisation):
    shape = SHAPES[name]
    forms = (
        lambda x, w, b: functional.linear(x, w, b),
        lambda x, w, b: (product(x.reshape(-1, 4), w, True) + b).reshape(*shape[:-1], 5),
    )
    forms_agree(forms, shape, (5, 4), (5,), kind=kind)
    forms = (
        lambda x, w: functional.linear(x, w),
        lambda x, w: product(x.reshape(-1, 4), w, True).reshape(*shape[:-1], 5),
    )
    forms_agree(forms, shape, (5, 4), kind=kind)


def test_a_pruned_layer(realisation):
    class Pruned(nn.Linear):
        def forward(self, x):
            return functional.linear(x, self.weight * torch.eye(3, 4), self.bias)

    model = convert(Pruned(4, 3))
    x = tensor((2, 5, 4))
    out = model(x)
    real = functional.linear(
        x.dequantize(), model.weight.dequantize() * torch.eye(3, 4), model.bias.dequantize()
    )
    assert out.shape == (2, 5, 3)
    assert float((out.detach().dequantize() - real).abs().max()) < 0.02 * float(real.abs().max())
    out.backward(tensor((2, 5, 3), bits=16))
    assert torch.equal(model.weight.grad.dequantize() != 0, torch.eye(3, 4) > 0)
    assert model.bias.grad.shape == (3,)


@pytest.mark.parametrize("kind", ["tensor", "row"])
def test_a_computed_bias_of_a_parameter(kind):
    """As attention has it whose keys have no bias."""

    class Halved(nn.Linear):
        def forward(self, x):
            return functional.linear(x, self.weight, torch.cat([self.bias[:2], torch.zeros(1)]))

    class Added(Halved):
        def forward(self, x):
            return functional.linear(x, self.weight) + torch.cat([self.bias[:2], torch.zeros(1)])

    found = []
    for module in (Halved, Added):
        torch.manual_seed(0)
        model = convert(module(4, 3), exponents=kind)
        out = model(tensor((2, 5, 4), kind))
        out.backward(tensor((2, 5, 3), kind, 16))
        found.append((out, model.weight.grad, model.bias.grad))
    for one, other in zip(*found, strict=True):
        assert same_parts(one.resolved(), other.resolved())


def test_a_constant_weight():
    x, w = tensor((2, 3, 4)), torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    found = functional.linear(x, w, torch.ones(5))
    wanted = functional.linear(x, BFPTensor.from_real(w)) + torch.ones(5)
    assert same_parts(found.resolved(), wanted.resolved())


LINES = {
    "one padding": ({"padding": 1}, {"padding": 1}),
    "all": (
        {"stride": 2, "padding": 2, "dilation": 2, "groups": 2},
        {"stride": (2,), "padding": (2,), "dilation": (2,), "groups": 2},
    ),
}


@pytest.mark.parametrize("function", [functional.conv1d, torch.conv1d])
@pytest.mark.parametrize("exponents", ["tensor", "row"])
@pytest.mark.parametrize("name", LINES)
def test_convolutions_of_lines(name, exponents, function, realisation):
    of_module, of_function = LINES[name]
    torch.manual_seed(0)
    model = convert(nn.Conv1d(4, 6, 3, **of_module), exponents)
    found = []
    for form in (model, lambda x: function(x, model.weight, model.bias, **of_function)):
        model.zero_grad()
        x = tensor((2, 4, 7), exponents).requires_grad_()
        out = form(x)
        out.backward(tensor(tuple(out.shape), exponents, 16, 3))
        found.append((out, x.grad, model.weight.grad, model.bias.grad))
    for a, b in zip(*found, strict=True):
        assert a.shape == b.shape
        assert same_parts(a.resolved(), b.resolved())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, m: functional.conv1d(x, tensor((6, 4, 3))), "conv1d: expected a parameter"),
        (lambda x, m: functional.conv1d(x, m.weight, None, 1, "same"), "found .* and 'same'"),
        (lambda x, m: functional.conv1d(x, m.bias), "conv1d: expected a weight of 3 axes"),
        (lambda x, m: functional.conv1d(x[0], m.weight), r"expected \[n, c, l\], found"),
        (lambda x, m: functional.linear(x, tensor((5, 6))), "matmul: expected matrices"),
        (
            lambda x, m: functional.linear(x, torch.ones(5, 7, requires_grad=True)),
            "linear: .* a float tensor that requires a gradient",
        ),
    ],
)
def test_what_has_no_rule_is_refused(call, message):
    with pytest.raises(UnsupportedError, match=message):
        call(tensor((2, 4, 7)), convert(nn.Conv1d(4, 6, 3)))
