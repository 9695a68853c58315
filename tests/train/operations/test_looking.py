"""Methods that only read a BFP tensor, and hooks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from samebits.errors import UnsupportedError
from samebits.train import BFPTensor, convert, cross_entropy, model_input
from samebits.train.operations.looking import DIFFERENTIABLE


@pytest.fixture
def logits():
    torch.manual_seed(1)
    model = convert(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)))
    return model(model_input(model, torch.randn(5, 4)))


def test_what_is_read_is_what_the_values_give(logits):
    values = logits.detach().dequantize()
    assert torch.equal(logits.argmax(1), values.argmax(1))
    assert torch.equal(torch.argmin(logits), values.argmin())
    assert torch.equal(logits > 0, values > 0)
    assert torch.equal(logits == logits, torch.ones(5, 3, dtype=torch.bool))
    assert logits.tolist() == values.tolist()
    assert (logits.numpy() == values.numpy()).all()
    assert logits[0, 1].item() == float(logits[0, 1]) == values[0, 1].item()
    assert not torch.isnan(logits).any()
    assert bool(logits[0, 0]) == bool(values[0, 0])
    assert (logits.argmax(1) == torch.zeros(5)).dtype == torch.bool
    assert logits.requires_grad


def test_what_torch_differentiates_is_read_where_no_gradient_is_recorded(logits):
    for name in DIFFERENTIABLE:
        with pytest.raises(UnsupportedError, match=f"^{name} of BFP tensors has no gradient"):
            getattr(logits, name)(*([1] if name == "topk" else []))
    values = logits.detach().dequantize()
    with torch.no_grad():
        assert float(logits.max()) == float(values.max())
        assert torch.equal(torch.topk(logits, 2, 1).indices, values.topk(2, 1).indices)
    assert float(logits.detach().abs().max()) == float(values.abs().max())


def test_looking_decides_no_width():
    torch.manual_seed(1)
    model = convert(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)))
    x = model_input(model, torch.randn(5, 4))
    losses = []
    for look in (False, True):
        model.zero_grad()
        y = model(x)
        if look:
            assert y.argmax(1).shape == (5,)
        loss = cross_entropy(y, torch.zeros(5, dtype=torch.long))
        loss.backward()
        losses.append((loss.item(), model[0].weight.grad.codes.clone()))
    assert losses[0][0] == losses[1][0]
    assert torch.equal(losses[0][1], losses[1][1])


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
def test_hooks_of_modules_and_tensors_see_bfp_gradients():
    torch.manual_seed(1)
    model = convert(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)))
    x = model_input(model, torch.randn(5, 4))

    def gradients():
        model.zero_grad()
        cross_entropy(model(x), torch.zeros(5, dtype=torch.long)).backward()
        return [p.grad.codes.clone() for p in model.parameters()]

    wanted, seen = gradients(), []
    model[2].register_full_backward_hook(lambda module, inner, outer: seen.append(outer[0]))

    def watch(module, given, y):
        y.register_hook(lambda g: seen.append(g))

    model[1].register_forward_hook(watch)
    found = gradients()
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    assert [type(g) for g in seen] == [BFPTensor, BFPTensor]
