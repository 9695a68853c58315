"""Classifiers of torchvision, as they are: converted, trained for a step, deployed."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from compare import assert_same
from samebits.ir.interpreter import run
from samebits.ir.lowering.lower import lower_graph
from samebits.train import SGD, BFPParameter, convert, cross_entropy, layers, model_input, set_step
from samebits.train.deployed.deploy import calibrate, deployed, quantize_input
from samebits.train.deployed.export import to_graph
from torchvision_models import NETS, build, marked, models

QUICK = ("squeezenet1_1", "mobilenet_v3_small")


@pytest.mark.parametrize("name", marked(NETS, QUICK))
def test_a_step(name):
    net, images = build(name)
    twin = convert(net.train())
    assert all(isinstance(p, BFPParameter) for p in twin.parameters())
    assert dict(twin.named_parameters()).keys() == dict(net.named_parameters()).keys()
    optimizer = SGD(twin.parameters(), lr=0.1)
    set_step(twin, 1, 0, 0)
    loss = cross_entropy(twin(model_input(twin, images)), torch.tensor([3, 7]))
    assert math.isfinite(float(loss.detach()))
    assert float(loss.detach()) > 0
    loss.backward()
    assert all(p.grad is not None for p in twin.parameters())
    before = {name: p.dequantize() for name, p in twin.named_parameters()}
    optimizer.step()
    assert any(not torch.equal(p.dequantize(), before[n]) for n, p in twin.named_parameters())


@pytest.mark.parametrize("name", marked(["squeezenet1_1", "resnet18", "densenet121"], QUICK))
def test_the_twin_computes_what_the_net_does(name):
    """Noise of 8 bits apart, which batch norms of few values magnify: a wrong window shows."""
    net, images = build(name, side=96, batch=4)
    for module in net.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    twin = convert(net.train())
    with torch.no_grad():
        real = net(images).double().flatten()
        ours = twin(model_input(twin, images)).detach().dequantize().flatten()
    assert real @ ours / (real.norm() * ours.norm()) > 0.95


@pytest.mark.slow
@pytest.mark.parametrize("name", ["squeezenet1_1", "mobilenet_v3_small", "googlenet"])
def test_deployed(name):
    """Pools in ceil mode, squeeze-and-excitation: the integer graph gives the same codes."""
    net, images = build(name)
    twin = convert(net.eval())
    exponents = calibrate(twin, [images])
    graph = lower_graph(to_graph(twin, exponents, tuple(images.shape[1:]), batch=2))
    codes, _ = deployed(twin, exponents).codes(images)
    quantized = quantize_input(images, exponents.sites[0].exponent).codes.numpy()
    assert_same(run(graph, [quantized])[0], codes, range(codes.numel()))


def test_residual_branches_are_dropped():
    net = convert(models().efficientnet_b0(weights=None))
    depths = [m for m in net.modules() if isinstance(m, layers.StochasticDepth)]
    assert {m.mode for m in depths} == {"row"}
    assert [m.site for m in depths] == list(range(16))
    (dropout,) = (m for m in net.modules() if type(m) is layers.Dropout)
    assert dropout.site == 16  # of the head, after them
