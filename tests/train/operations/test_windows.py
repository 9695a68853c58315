"""Convolutions by weights that forward() computes, such as standardised ones."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from bfp_arrays import tensor
from compare import assert_same
from samebits.errors import UnsupportedError
from samebits.ir.interpreter import run
from samebits.ir.lowering.lower import lower_graph
from samebits.train import BFPTensor, convert, model_input
from samebits.train.deployed.deploy import calibrate, deployed, quantize_input
from samebits.train.deployed.export import to_graph
from samebits.train.tensor import BFPParameter
from samebits.train.value import same_parts

GEOMETRIES = {
    "plain": {},
    "all": {"stride": (2, 1), "padding": (1, 2), "dilation": (1, 2), "groups": 2},
}


@pytest.mark.parametrize("name", GEOMETRIES)
def test_the_sums_are_those_of_a_parameter(name, realisation):
    options = GEOMETRIES[name]
    groups = options.get("groups", 1)
    generator = torch.Generator().manual_seed(0)
    w = torch.randint(-127, 128, (4, 4 // groups, 3, 2), generator=generator)
    own = BFPParameter.from_real(w.double())
    x = tensor((2, 4, 6, 5)).requires_grad_()
    weight = BFPTensor.from_real(w.double()).requires_grad_()
    found, wanted = (functional.conv2d(x, v, **options) for v in (weight, own))
    assert same_parts(found.resolved(), wanted.narrowed().resolved())
    real = [v.detach().dequantize().requires_grad_() for v in (x, weight)]
    g = tensor(tuple(found.shape), bits=16)
    functional.conv2d(*real, **options).backward(g.dequantize())
    found.backward(g)
    for one, other in zip((x, weight), real, strict=True):
        a, b = one.grad.dequantize().flatten(), other.grad.flatten()
        assert a @ b / (a.norm() * b.norm()) > 0.9999


def test_shapes_and_paddings_that_do_not_fit():
    x, w = tensor((2, 3, 4, 4)), tensor((2, 3, 3, 3))
    with pytest.raises(UnsupportedError, match="channels"):
        functional.conv2d(x[:, :2], w)
    with pytest.raises(UnsupportedError, match="padding as numbers"):
        functional.conv2d(x, w, padding="same")


class Standardised(nn.Conv2d):
    """As timm has it: a weight whose channels have mean 0 and deviation 1, times a gain."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.gain = nn.Parameter(torch.linspace(0.5, 1.5, self.out_channels))

    def forward(self, x):
        rows = self.weight.reshape(1, self.out_channels, -1)
        given = {"weight": self.gain * 0.3, "bias": None, "training": True}
        w = functional.batch_norm(rows, None, None, **given).reshape_as(self.weight)
        return functional.conv2d(x, w, self.bias, 2, 1)


@pytest.mark.parametrize("rows", ["tensor", "row"])
def test_a_convolution_by_a_standardised_weight(rows):
    torch.manual_seed(0)
    net = nn.Sequential(Standardised(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36, 2))
    model, images = convert(net, exponents=rows), torch.randn(2, 3, 6, 6)
    y = model(model_input(model, images))
    real = net(images)
    assert float((y.detach().dequantize() - real.detach()).abs().max()) < 0.05
    y.mean().backward()
    real.mean().backward()
    for one, other in zip(model.parameters(), net.parameters(), strict=True):
        a, b = one.grad.dequantize().flatten(), other.grad.double().flatten()
        assert a @ b / (a.norm() * b.norm()) > 0.98
    exponents = calibrate(model, [one[None] for one in images])
    codes, _ = deployed(model, exponents).codes(images)
    graph = lower_graph(to_graph(model, exponents, (3, 6, 6), batch=2))
    given = quantize_input(images, exponents.sites[0].exponent).codes.numpy()
    assert_same(run(graph, [given])[0], codes, range(codes.numel()))


@pytest.mark.parametrize("shape", [(1, 3, 8), (4, 3), (3, 2, 4, 4)])
def test_batch_norm_without_running_statistics(shape):
    x = tensor(shape)
    vectors = [torch.linspace(0.5, 2, shape[1]), torch.linspace(-1, 1, shape[1])]
    found = functional.batch_norm(x, None, None, *vectors, training=True).dequantize()
    real = functional.batch_norm(
        x.dequantize(), None, None, *map(torch.Tensor.double, vectors), True
    )
    assert float((found - real).abs().max()) < 0.02 * float(real.abs().max())
