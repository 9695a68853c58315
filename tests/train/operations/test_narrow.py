"""What operations take: float tensors that a model makes by itself, and none that it is given."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from compare import assert_same
from samebits.errors import UnsupportedError
from samebits.ir.interpreter import run
from samebits.ir.lowering.lower import lower_graph
from samebits.train import BFPTensor, convert, model_input
from samebits.train.deployed.deploy import calibrate, deployed, quantize_input
from samebits.train.deployed.export import to_graph
from samebits.train.value import same_parts


class Placed(nn.Module):
    """A projection of places, which are computed in floats, beside the input."""

    def __init__(self):
        super().__init__()
        self.places, self.head = nn.Linear(2, 4), nn.Linear(4, 3)

    def forward(self, x, scale=None):
        at = torch.arange(x.shape[1], dtype=torch.float32)
        places = torch.stack([at.sin(), at.cos()], -1) * (1 if scale is None else scale)
        return self.head(torch.relu(x + self.places(places)))


@pytest.mark.parametrize("kind", ["tensor", "row"])
def test_places_computed_in_floats(kind):
    torch.manual_seed(0)
    net = Placed()
    model, images = convert(net, exponents=kind), torch.randn(3, 5, 4)
    x = model_input(model, images)
    y = model(x)
    at = torch.arange(5.0)
    places = model.places(model_input(model, torch.stack([at.sin(), at.cos()], -1)))
    assert same_parts(model.head(torch.relu(x + places)).resolved(), y.resolved())
    y.mean().backward()
    assert model.places.weight.grad.dequantize().any()
    exponents = calibrate(model, [one[None] for one in images])
    codes, _ = deployed(model, exponents).codes(images[:2])
    graph = lower_graph(to_graph(model, exponents, (5, 4), batch=2))
    given = quantize_input(images[:2], exponents.sites[0].exponent).codes.numpy()
    assert_same(run(graph, [given])[0], codes, range(codes.numel()))
    with torch.no_grad():
        real = net(images).double()
        assert float((model(model_input(model, images)).dequantize() - real).abs().max()) < 0.05


def test_what_a_model_is_given_has_to_be_quantized():
    model, x = convert(Placed()), torch.randn(2, 5, 4)
    given = "expected a BFPTensor, found Tensor of torch.float32; quantize the input with"
    with pytest.raises(UnsupportedError, match=f"layer 'places' .*{given}"):
        model(BFPTensor.from_real(x), torch.tensor(2.0))  # it may be all that the layer takes
    with pytest.raises(UnsupportedError, match=given):
        model.head(x)
    with pytest.raises(UnsupportedError, match=given):
        convert(nn.Sequential(nn.Linear(4, 3)))(x)
