"""A step of an engine against the plain-integer step, and logits that are those of evaluation."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from compare import assert_same
from samebits import kernels
from samebits.spec.training import step as reference
from samebits.spec.training.layers import initial_parameter, quantize_input
from samebits.spec.training.optimizer import SGD
from samebits.spec.training.step import Node
from samebits.train import Adam, BFPTensor, convert, cross_entropy
from samebits.train.deployed.deploy import Deployed, calibrate
from samebits.train.run.checkpoint import parameter_sha256
from samebits.train.run.distributed import ALONE
from samebits.train.run.engine import BfpEngine, Float32Engine, OptimizerSettings
from worker_threads import Hub

NODES = [
    Node("x", "input"),
    Node("0", "linear", ("x",)),
    Node("1", "relu", ("0",)),
    Node("2", "linear", ("1",)),
]
LR = 0.3
SETTINGS = OptimizerSettings("sgd", LR, 0.9, False, 0.0, seed=0, rounding="stochastic")


def network():
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4)
    return model


def batch_of(step, count=12):
    generator = torch.Generator().manual_seed(100 + step)
    return torch.randn(count, 6, generator=generator), torch.arange(count) % 3


@pytest.mark.parametrize("realisation", ["native", "eager"])
@pytest.mark.parametrize("shards", [1, 2, 3, 4, 6])
def test_a_step_is_that_of_the_specification(shards, realisation):
    """Gradients and the loss are means over the shards: neither sums, nor the last shard's."""
    if realisation == "native" and kernels.realisation() != "native":
        pytest.skip("no native kernels: no C compiler on this machine")
    model = network()
    parameters = {
        name: initial_parameter(p.detach().flatten().tolist(), tuple(p.shape))
        for name, p in model.named_parameters()
    }
    state = {}
    with kernels.use(realisation):
        engine = BfpEngine(model, SETTINGS, shards, seed=1)
        for step in range(3):
            images, labels = batch_of(step)
            size = len(labels) // shards
            parts = [
                (
                    {"x": quantize_input(part.flatten().tolist(), tuple(part.shape))},
                    labels[i * size : (i + 1) * size].tolist(),
                )
                for i, part in enumerate(images.split(size))
            ]
            wanted = reference.step(NODES, parameters, {}, state, parts, SGD(LR, momentum=0.9))
            parameters, state = wanted.parameters, wanted.state
            loss = engine.step((images, labels), LR, step)
            assert loss == list(itertools.accumulate(wanted.losses))[-1] / shards
            for name, parameter in engine.model.named_parameters():
                codes, delayed, exponent = parameters[name].weight
                cases = [f"{name} after step {step}"] * len(codes)
                assert_same(parameter.codes.flatten(), codes, cases)
                assert_same(parameter.delayed.flatten(), delayed, cases)
                assert int(parameter.exponent) == exponent


@pytest.mark.parametrize("numerics", ["float32", "bfp"])
@pytest.mark.parametrize(
    ("limits", "most"),
    [
        ({"clip_norm": 0.125}, 0.125),
        ({"clip_value": 0.001}, 0.001 * math.sqrt(53)),
        ({"clip_norm": 0.001, "clip_value": 0.0005}, 0.001),
    ],
)
def test_a_step_takes_the_clipped_gradient(numerics, limits, most):
    """Over both shards: the 53 weights move together by the learning rate times the limit."""
    settings = replace(SETTINGS, momentum=0.0, **limits)
    model = network()
    engine = (
        Float32Engine(model, settings)
        if numerics == "float32"
        else BfpEngine(model, settings, shards=2, seed=1)
    )

    def values():
        own = engine.model.parameters()
        return [p.detach().clone() if numerics == "float32" else p.dequantize() for p in own]

    before = values()
    engine.step(batch_of(0), 0.5, 0)
    moved = torch.cat([(b - a).flatten() for a, b in zip(before, values(), strict=True)])
    assert float(moved.norm()) <= 0.5 * most * 1.001
    assert float(moved.norm()) >= 0.5 * most * 0.8


class Watched(type(ALONE)):
    """One process that counts what it exchanges with others."""

    def __init__(self):
        self.jobs = 0

    def run(self, job):
        self.jobs += 1
        return super().run(job)


@pytest.mark.parametrize(("bits", "jobs"), [(32, 0), (16, 2)])
def test_one_worker_exchanges_nothing_but_short_gradients(bits, jobs):
    """Which the exchange shortens: those of one bucket, and then the losses."""
    worker = Watched()
    engine = BfpEngine(network(), SETTINGS, 2, 1, worker, bits)
    engine.step(batch_of(0), LR, 0)
    assert worker.jobs == jobs


def test_running_statistics_in_float32_are_those_of_the_first_worker():
    """After its own half of the batch: 0.9 * 0 + 0.1 * mean, and 0.9 * 1 + 0.1 * variance."""
    images, labels = batch_of(0)
    images[6:] += 3.0

    def body(worker):
        torch.manual_seed(0)
        model = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3))
        engine = Float32Engine(model, SETTINGS, worker)
        engine.step((worker.share(images), worker.share(labels)), LR, 0)
        return model[0].running_mean, model[0].running_var

    for mean, variance in Hub(2).run(body):
        torch.testing.assert_close(mean, 0.1 * images[:6].mean(0))
        torch.testing.assert_close(variance, 0.9 + 0.1 * images[:6].var(0))


def statistics_network():
    """What differs between training and evaluation: batch norm and dropout."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(),
        nn.Linear(4 * 4 * 4, 3),
    )  # fmt: skip


def images_of(count, seed=3):
    return torch.randn(count, 1, 6, 6, generator=torch.Generator().manual_seed(seed))


def trained_engine(numerics):
    torch.manual_seed(2)
    model = statistics_network()
    if numerics == "float32":
        engine = Float32Engine(model, SETTINGS)
    else:
        engine = BfpEngine(model, SETTINGS, shards=2, seed=1)
    engine.step((images_of(6, 4) + 1.0, torch.arange(6) % 3), 0.01, 0)
    return engine


def state_of(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("numerics", ["float32", "bfp"])
def test_logits_are_those_of_evaluation(numerics):
    """After a step the model is in training mode: `logits` changes that, not the caller."""
    engine = trained_engine(numerics)
    model = engine.model
    images = images_of(8)
    model.train()
    before = state_of(model)
    logits = engine.logits(images)
    after = state_of(model)
    assert not model.training
    assert all(not module.training for module in model.modules())
    assert before.keys() == after.keys()
    for name, tensor in before.items():  # running statistics took no part in it
        assert torch.equal(tensor, after[name]), name
    model.train()
    assert torch.equal(engine.logits(images), logits)  # nothing was drawn
    model.eval()
    with torch.no_grad():
        expected = model(engine.real_input(images))
    expected = expected if numerics == "float32" else expected.dequantize()
    assert not logits.requires_grad
    assert torch.equal(logits, expected)
    model.train()
    with torch.no_grad():
        other = model(engine.real_input(images))
    other = other if numerics == "float32" else other.dequantize()
    assert not torch.equal(other, logits)  # the net can tell the modes apart


def test_deployed_logits_and_calibration_are_those_of_evaluation():
    engine = trained_engine("bfp")
    model = engine.model
    images = images_of(8)
    model.eval()
    wanted = calibrate(model, [images])
    expected = Deployed(model, wanted).logits(images)
    before = state_of(model)
    model.train()
    assert calibrate(model, [images]) == wanted
    assert not model.training
    model.train()
    assert torch.equal(Deployed(model, wanted).logits(images), expected)
    assert not model.training
    for name, tensor in state_of(model).items():
        assert torch.equal(tensor, before[name]), name


def test_adamw_decays_weights_apart_from_the_moments():
    """In both numerics: as the optimizers of that name, and unlike adam."""
    after = {}
    for name in ("adam", "adamw"):
        settings = OptimizerSettings(name, 0.01, 0.0, False, 0.5, seed=3, rounding="stochastic")
        engines = {
            "bfp": BfpEngine(network(), settings, 1, seed=1),
            "float32": Float32Engine(network(), settings),
        }
        for numerics, engine in engines.items():
            for step in range(3):
                engine.step(batch_of(step), 0.01, step)
            after[numerics, name] = parameter_sha256(engine.model.state_dict())
    twin, real = convert(network()), network()
    ours = Adam(twin.parameters(), lr=0.01, weight_decay=0.5, decoupled=True, seed=3)
    torchs = torch.optim.AdamW(real.parameters(), lr=0.01, weight_decay=0.5)
    for step in range(3):
        images, labels = batch_of(step)
        cross_entropy(twin(BFPTensor.from_real(images)), labels).backward()
        nn.functional.cross_entropy(real(images), labels).backward()
        for optimizer in (ours, torchs):
            optimizer.step()
            optimizer.zero_grad()
    assert after["bfp", "adamw"] == parameter_sha256(twin.state_dict()) != after["bfp", "adam"]
    expected = parameter_sha256(real.state_dict())
    assert after["float32", "adamw"] == expected != after["float32", "adam"]
