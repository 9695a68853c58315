"""Plans of modules that no tape holds, as `sb.plan` makes them."""

import functools

import pytest
import torch
from torch import nn

import samebits as sb

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


class Chunked(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 16)

    def forward(self, x):
        a, b = self.first(x).tanh().chunk(2, -1)
        return {"y": a * b}


class Gated(nn.Module):
    """Point-wise operators between products, whose results are far away when they are read."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 128), nn.Linear(64, 64)

    def forward(self, x):
        a, b = self.first(x).chunk(2, -1)
        y = nn.functional.gelu(self.second(a * b))
        return (y @ y.T).relu() @ y


def wrapped(function):
    @functools.wraps(function)
    def run(self, *args, **options):
        return function(self, *args, **options)

    return run


class Wrapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)

    @wrapped
    def forward(self, given=None, mask=None, labels=None, **options):
        return self.first(given)


def test_parts_and_dictionaries_are_planned(tmp_path):
    made = sb.plan(Chunked().train(), torch.ones(4, 8), loss=lambda out: out["y"].sum())
    assert made.plan.budget is None
    assert made.plan.peak == made.plan.store_all
    assert {layer.kind for layer in made.plan.layers} >= {"addmm", "tanh", "mul"}
    assert made.forward is None
    made.save_picture(tmp_path / "plan.svg")
    assert (tmp_path / "plan.svg").read_bytes().count(b"<svg") == 1
    assert "tanh" in str(made.report())


def test_a_wrapped_forward_with_options_is_planned():
    assert sb.plan(Wrapped().train(), torch.ones(4, 8)).plan.arch == "Wrapped"


def test_operators_are_decided_by_the_local_rule():
    """On a device whose far memory is slow point-wise operators run again, products do not."""
    made = sb.plan(
        Gated().train(), torch.ones(256, 16), sb.Recomputation(plan_device="accelerator-core")
    ).plan
    assert made.budget is None
    assert made.peak < made.store_all
    assert 0 < made.recompute_ps < made.avoided_ps
    again = {x.kind: x for x in made.layers if not x.stored and x.load_ps}
    assert set(again) == {"mul", "gelu"}
    for layer in again.values():
        assert layer.gain_ps == layer.load_ps - layer.fetch_ps - layer.recompute_ps > 0
    kept = sb.plan(
        Gated().train(), torch.ones(256, 16), sb.Recomputation(plan_device="laptop-cpu")
    ).plan
    assert kept.recompute_ps == 0
