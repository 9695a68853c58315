"""Norms by the root mean square that a package writes in functions: which are found."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from samebits.errors import UnsupportedError
from samebits.train import BFPTensor, convert, layers
from samebits.train.value import same_parts


class RootNorm(nn.Module):
    """As Hugging Face's have it."""

    def __init__(self, size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 2.0, size))
        self.variance_epsilon = eps

    def forward(self, x):
        variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + self.variance_epsilon))


class NormByRoot(RootNorm):
    def forward(self, x):
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + self.variance_epsilon) * self.weight


class OfOne(RootNorm):
    """Another norm: its weight stands for 1 + weight."""

    def forward(self, x):
        return super().forward(x) / self.weight * (1 + self.weight)


class OfNothing(RootNorm):
    def forward(self, x):
        raise RuntimeError("nothing to see here")


class Other(RootNorm):
    """A norm by its arithmetic, and none by its name: convert runs no code of such modules."""


Other.__name__ = "Other"


@pytest.mark.parametrize("eps", [1e-6, 0.25])
@pytest.mark.parametrize("kind", [RootNorm, NormByRoot])
def test_a_norm_by_what_it_computes(kind, eps):
    net = kind(8, eps)
    calls = []
    net.register_forward_hook(lambda *_: calls.append(1))
    known = nn.RMSNorm(8, eps)
    known.weight = net.weight
    model, wanted = convert(nn.Sequential(net)), convert(nn.Sequential(known))
    assert not calls
    assert isinstance(model[0], layers.LayerNorm)
    x = BFPTensor.from_real(torch.randn(3, 8, generator=torch.Generator().manual_seed(0)))
    assert same_parts(model(x).resolved(), wanted(x).resolved())
    assert len(calls) == 1
    model.load_state_dict(nn.Sequential(net).state_dict())


@pytest.mark.parametrize("kind", [OfOne, OfNothing, Other])
def test_others_stay_what_they_are(kind):
    model = convert(nn.Sequential(kind(8)))
    assert isinstance(model[0], kind)
    x = BFPTensor.from_real(torch.ones(3, 8))
    error = RuntimeError if kind is OfNothing else UnsupportedError
    with pytest.raises(error, match=r"nothing to see|rsqrt: write nn\.LayerNorm or nn\.RMSNorm"):
        model(x)
