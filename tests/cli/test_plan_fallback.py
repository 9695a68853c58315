"""Networks that no plan can follow: an error that names the guard, or training without the plan."""

from __future__ import annotations

import json

import pytest

NETS = """
import numpy as np
import torch
from torch import nn

CALLS = [0]


class Net(nn.Module):
    def __init__(self, input_shape, classes, scale):
        super().__init__()
        count = input_shape[0] * input_shape[1] * input_shape[2]
        self.first, self.second = nn.Linear(count, 8), nn.Linear(8, classes)
        self.scale, self.count, self.seen = scale, 0, {"calls": [0]}

    def forward(self, x):
        return self.second(torch.relu(self.first(x.flatten(1))) * self.scale(self))


def counts(net):
    net.count += 1
    return 1 / net.count


def remembers(net):
    net.seen["calls"][0] += 1
    return 1 / net.seen["calls"][0]


def draws(net):
    return float(np.random.rand())


def counts_globally(net):
    CALLS[0] += 1
    return 1 / CALLS[0]


def net_of(scale):
    def build(input_shape, classes):
        np.random.seed(7)
        return Net(input_shape, classes, scale)
    return build


counter, memory, random = net_of(counts), net_of(remembers), net_of(draws)
hidden = net_of(counts_globally)
"""


@pytest.fixture
def nets(tmp_path):
    path = tmp_path / "stateful_nets.py"
    path.write_text(NETS)
    return path


def train(npz, nets, name, out, *more):
    return (
        *("train", "--data", npz, "--arch", f"{nets}:{name}", "--numerics", "float32"),
        *("--epochs", 2, "--batch", 16, "--lr", 0.05, "--out", out, "--json", *more),
    )


STATE = "Net: its forward code changes attribute {} of the model in every step, so no plan serves"


@pytest.mark.parametrize(
    ("name", "guard"),
    [
        ("counter", STATE.format("'count'")),
        ("memory", STATE.format("'seen'")),
        ("random", "Net cannot be captured: "),
    ],
)
def test_eager_fallback_has_the_bits_of_no_plan(samebits, npz, nets, tmp_path, name, guard):
    plain = json.loads(samebits(*train(npz, nets, name, tmp_path / "none")).out)
    auto = ("--plan", "auto")
    done = samebits(*train(npz, nets, name, tmp_path / "error", *auto))
    assert done.code == 2
    assert guard in done.err
    assert "--plan-fallback eager" in done.err
    eager = samebits(*train(npz, nets, name, tmp_path / "eager", *auto, "--plan-fallback", "eager"))
    assert eager.code == 0
    assert guard in eager.err
    record = json.loads(eager.out)
    assert record["sha256"] == plain["sha256"]
    assert (record["plan"] is None) == (name == "random")  # the others have one for a step


def test_a_state_that_cannot_be_put_back_is_an_error_even_so(samebits, npz, nets, tmp_path):
    """A global variable has moved on while planning: training on would give other bits."""
    done = samebits(
        *train(npz, nets, "hidden", tmp_path / "out", "--plan", "auto"),
        *("--plan-fallback", "eager"),
    )
    assert done.code == 2
    assert "of a planned step differs from that of eager PyTorch" in done.err
    assert "give --plan none" in done.err


def test_a_plan_that_can_be_used_is_used(samebits, npz, nets, tmp_path):
    more = ("--plan", "auto", "--plan-fallback", "eager")
    done = samebits(
        *("train", "--data", npz, "--arch", "mlp", "--epochs", 1, "--batch", 16),
        *("--out", tmp_path / "mlp", "--json", *more),
    )
    assert done.code == 0
    assert "note" not in done.err
    assert json.loads(done.out)["plan"]["sublayers"] > 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--plan-fallback", "eager"), "--plan-fallback eager needs a plan, found --plan none"),
        (
            ("--plan", "auto", "--plan-fallback", "maybe"),
            "--plan-fallback: expected one of error, eager, found 'maybe'",
        ),
    ],
)
def test_options_that_do_not_apply(samebits, npz, nets, tmp_path, options, words):
    done = samebits(*train(npz, nets, "counter", tmp_path / "out", *options))
    assert done.code == 2
    assert words in done.err
    assert words in json.loads(done.out)["error"]
