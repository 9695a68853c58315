"""Operators of ATen by their names: the bits of the functions of PyTorch that they are."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from samebits.errors import UnsupportedError
from samebits.train import BFPTensor

ATEN = torch.ops.aten
CALLS = {
    "packet": (lambda x: ATEN.gelu(x), functional.gelu),
    "overload": (lambda x: ATEN.relu.default(x), torch.relu),
    "axes": (lambda x: ATEN.mean.dim(x, [1], True), lambda x: x.mean(1, keepdim=True)),
    "softmax": (lambda x: ATEN.softmax.int(x, 1), lambda x: torch.softmax(x, 1)),
    "norm": (lambda x: ATEN.layer_norm(x, [8]), lambda x: functional.layer_norm(x, (8,))),
    "product": (lambda x: ATEN.mul.Tensor(x, x), lambda x: x * x),
    "list": (lambda x: ATEN.cat([x, x], 1), lambda x: torch.cat((x, x), 1)),
    "method": (lambda x: ATEN.view(x, [2, 16]), lambda x: x.view(2, 16)),
    "movement": (lambda x: ATEN.transpose.int(x, 0, 1), lambda x: x.transpose(0, 1)),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_operator_of_aten_is_its_function(name):
    results = []
    for call in CALLS[name]:
        x = BFPTensor.from_real(torch.linspace(-2, 3, 32).reshape(4, 8)).requires_grad_()
        y = call(x)
        y.backward(BFPTensor.from_real(torch.linspace(1, 2, y.numel()).reshape(y.shape)))
        results.append((y.detach().codes, y.exponent, *x.grad.resolved()))
    found, expected = results
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[2], expected[2])
    assert (found[1], found[3]) == (expected[1], expected[3])


def test_an_operator_without_such_a_function_is_refused():
    x = BFPTensor.from_real(torch.ones(4, 8))
    with pytest.raises(UnsupportedError, match=r"have no aten.native_layer_norm"):
        ATEN.native_layer_norm(x, [8], None, None, 1e-5)
