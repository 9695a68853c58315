"""Networks of timm, as they are: converted, trained for ten steps, deployed with equal bits."""

from __future__ import annotations

import math

import pytest
import torch

from compare import assert_same
from samebits.errors import UnsupportedError
from samebits.ir.interpreter import run
from samebits.model import Model
from samebits.train import SGD, convert, cross_entropy, model_input, set_step
from samebits.train.deployed.deploy import calibrate, deployed, quantize_input
from samebits.train.deployed.export import to_graph
from samebits.verification.backends.reference import Reference
from samebits.verification.compare import compare
from samebits.verification.inputs import random_codes
from samebits.verification.registry import backend_named
from samebits.verification.run import cause
from timm_models import NETS, build

pytestmark = pytest.mark.slow
RATES = {"mobileone_s0": 0.001}  # at 0.01 its gradients leave the range of exponents
UNTRAINED = {
    "swinv2_cr_tiny_224": r"'stages.0.blocks.0.attn' \(WindowMultiHeadAttention\): .* torch.clamp: "
    r"write relu\(x\)",
}
"""Nets that are refused in a step, and in which words."""
UNDEPLOYED = {
    "sequencer2d_s": "expected a model that takes sequences of one step as well as of 8, found one "
    "that does not; it cannot be exported step by step: evaluate it with frozen exponents"
}
"""Nets that train, but have no exported form."""


def trained(name):
    """A converted net after ten steps, its images, and the losses."""
    net, images = build(name)
    model, losses = convert(net), []
    optimizer = SGD(model.parameters(), lr=RATES.get(name, 0.01), momentum=0.9)
    for step in range(10):
        set_step(model, 1, step, 0)
        loss = cross_entropy(model(model_input(model, images)), torch.tensor([3, 7, 1, 0]))
        losses.append(float(loss.detach()))
        loss.backward()
        assert all(p.grad is not None for p in model.parameters())
        optimizer.step()
        optimizer.zero_grad()
    return model, images, losses


@pytest.mark.parametrize("name", [n for n in NETS if n not in (*UNTRAINED, *UNDEPLOYED)])
def test_ten_steps_and_the_same_bits_deployed(name):
    model, images, losses = trained(name)
    assert all(map(math.isfinite, losses))
    assert losses[-1] < losses[0]
    exponents = calibrate(model, [one[None] for one in images])
    frozen = deployed(model, exponents)
    graph = to_graph(model, exponents, tuple(images.shape[1:]), batch=2)
    found = Model(name, graph, deployed=frozen)
    codes, _ = frozen.codes(images[:2])
    quantized = quantize_input(images[:2], exponents.sites[0].exponent).codes.numpy()
    assert_same(run(found.integer, [quantized])[0], codes, range(codes.numel()))
    inputs = random_codes(found.integer, 2)
    (expected,) = Reference().run(found, inputs)
    for other in ("training", "torch", "onnxruntime-integer"):
        backend = backend_named(other)
        if backend.unavailable() is None and not cause(found, other):
            verdict = compare(other, found.integer, [expected], backend.run(found, inputs))
            assert verdict.differing == 0, f"{other}: {verdict.differing}, {verdict.first}"


@pytest.mark.parametrize("name", UNTRAINED)
def test_what_does_not_train_is_refused_in_a_sentence(name):
    with pytest.raises(UnsupportedError, match=UNTRAINED[name]):
        trained(name)


@pytest.mark.parametrize("name", UNDEPLOYED)
def test_what_is_not_exported_is_refused_in_a_sentence(name):
    model, images, losses = trained(name)
    assert losses[-1] < losses[0]
    exponents = calibrate(model, [one[None] for one in images])
    assert deployed(model, exponents).codes(images)[0].shape == (4, 10)
    with pytest.raises(UnsupportedError, match=UNDEPLOYED[name]):
        to_graph(model, exponents, tuple(images.shape[1:]))
