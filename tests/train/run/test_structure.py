"""The hash of a user's network: other code under the same name is told, other text is not."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import samebits as sb
from given_options import called
from samebits.errors import CheckpointError
from samebits.train.architectures import build, initialise
from samebits.train.run.config import TrainConfig
from samebits.train.run.loop import make_engine
from samebits.train.run.structure import network_sha256

SHAPE = (1, 8, 8)


class Small(nn.Module):
    """One layer of each kind, and what is between them in its own code."""

    def __init__(self, between=F.relu, rate=0.5, stride=2, padding=0, scale=2.0):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 2, stride=stride, padding=padding)
        self.dropout = nn.Dropout(rate)
        self.linear = nn.Linear(4, 10)
        self.between, self.scale = between, scale

    def forward(self, x):
        x = self.between(self.conv(x))
        return self.linear(self.dropout(x).mean((2, 3)))


class SameAgain(Small):
    """The same operations, in other words."""

    def forward(self, x):
        y = self.between(self.conv(x))
        y = self.dropout(y)
        y = y.mean(dim=(2, 3))
        return self.linear(y)


SameAgain.__name__ = "Small"


def hashed(module: nn.Module, numerics: str = "bfp", arch: str = "nets.py:small") -> str | None:
    config = TrainConfig(data="digits", arch=arch, numerics=numerics)
    initialise(module, 0)
    return network_sha256(config, make_engine(config, module), SHAPE, False)


@pytest.mark.parametrize("numerics", ["bfp", "float32"])
def test_other_code_has_another_hash(numerics):
    made = {
        hashed(Small(), numerics),
        hashed(Small(between=torch.tanh), numerics),
        hashed(Small(stride=1), numerics),
        hashed(Small(padding=1), numerics),
    }
    assert len(made) == 4


def test_the_same_code_has_the_same_hash():
    """On every machine: this is the one of BFP, whose operations have names of their own."""
    assert hashed(Small()) == hashed(SameAgain()) == "cade1047671278a5"


def test_architectures_of_samebits_have_none():
    assert hashed(build("mlp", SHAPE, 10), arch="mlp") is None


class Drawing(Small):
    """Draws random numbers, counts its calls, and cannot be computed on fewer than 4 samples."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        random.random()
        torch.rand(3)
        assert len(x) >= 4
        return super().forward(x)


def test_the_network_stays_as_it_was():
    module = Drawing()
    states = random.getstate(), torch.get_rng_state()
    first = hashed(module)
    assert (random.getstate(), module.calls) == (states[0], 0)
    assert torch.equal(torch.get_rng_state(), states[1])
    assert first != hashed(Small())  # by its class: its operations could not be heard


def test_a_run_is_not_resumed_nor_evaluated_with_other_code(tmp_path):
    """Whose tensors fit; overwritten it may be."""

    def run(between, **how):
        return called(
            sb.fit, data="digits", arch=Small(between), out=tmp_path, **how, epochs=1, limit=20
        )

    def other(x):
        return F.relu(F.relu(x))

    first = run(F.relu).sha256
    assert run(F.relu, resume=True).sha256 == first
    told = "trained as another network than 'Small' is now: expected modules and operations of hash"
    with pytest.raises(CheckpointError, match=told):
        run(other, resume=True)
    with pytest.raises(CheckpointError, match=told):
        sb.evaluate(tmp_path, "digits", arch=Small(other))
    assert sb.evaluate(tmp_path, "digits", arch=Small()).sha256 == first
    run(other, overwrite=True)
    run(other, resume=True)
