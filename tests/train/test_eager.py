"""Compilers and tracers of torch: one sentence instead of theirs."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo
from torch import nn

from samebits.errors import UnsupportedError
from samebits.train import BFPTensor, convert

x = BFPTensor.from_real(torch.linspace(-1, 1, 12).view(3, 4))
SENTENCE = (
    "BFP networks run eagerly, in kernels of their own: expected a call of the converted model "
    "itself, found one under torch.{}; leave that out"
)


class Net(nn.Module):
    """A residual layer: what is compiled first is a function on tensors, or a layer."""

    def __init__(self):
        super().__init__()
        self.layer, self.gain = nn.Linear(4, 4), nn.Parameter(torch.ones(4))

    def forward(self, y):
        return self.layer(y * self.gain) + y


def two_layers():
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU())


def compiled(model):
    return torch.compile(model)(x)


def itself_compiled(model):
    model.compile()
    return model(x)


def in_a_function(model):
    return torch.compile(lambda y: model(y))(x)


def whole(model):
    return torch.compile(model, fullgraph=True)(x)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "call"),
    [
        *((Net, call) for call in (compiled, itself_compiled, in_a_function)),
        (two_layers, compiled),
        *(
            pytest.param(two_layers, call, marks=pytest.mark.slow)
            for call in (itself_compiled, in_a_function)
        ),
    ],
)
def test_torch_compile(make, call):
    torch._dynamo.reset()
    model = convert(make())
    y = model(x)
    with pytest.raises(UnsupportedError, match=SENTENCE.format("compile or torch.export")):
        call(model)
    torch._dynamo.reset()
    assert torch.equal(convert(make())(x).codes * 0, y.codes * 0)  # nothing is left compiled


@pytest.mark.filterwarnings("ignore")
def test_torch_compile_of_one_graph():
    torch._dynamo.reset()
    with pytest.raises(
        torch._dynamo.exc.Unsupported, match=SENTENCE.format("compile or torch.export")
    ):
        whole(convert(nn.Sequential(nn.Linear(4, 4))))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [Net, lambda: nn.Sequential(nn.Linear(4, 4))])
def test_torch_jit(make):
    model = convert(make())
    with pytest.raises(UnsupportedError, match=SENTENCE.format("jit.script")):
        torch.jit.script(model)
    with pytest.raises(UnsupportedError, match=SENTENCE.format("jit.trace")):
        torch.jit.trace(model, (x,))
    assert model(x).shape == (3, 4)


def test_torch_export():
    with pytest.raises(UnsupportedError, match=SENTENCE.format("compile or torch.export")):
        torch.export.export(convert(nn.Sequential(nn.Linear(4, 4))), (torch.ones(1, 4),))
