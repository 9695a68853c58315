"""Plans of modules that no tape holds, as `sb.plan` makes them."""

import functools

import pytest
import torch
from torch import nn

import samebits as sb
from samebits.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


class Chunked(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 16)

    def forward(self, x):
        a, b = self.first(x).tanh().chunk(2, -1)
        return {"y": a * b}


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


def test_parts_and_dictionaries_are_planned():
    made = sb.plan(Chunked().train(), torch.ones(4, 8), loss=lambda out: out["y"].sum())
    assert made.plan.budget is None
    assert made.plan.peak == made.plan.store_all
    assert {layer.kind for layer in made.plan.layers} >= {"addmm", "tanh", "mul"}
    assert made.forward is None
    with pytest.raises(InputError, match="expected a plan of sub-layers that was just made"):
        made.save_picture("plan.svg")
    assert "tanh" in str(made.report())


def test_a_wrapped_forward_with_options_is_planned():
    assert sb.plan(Wrapped().train(), torch.ones(4, 8)).plan.arch == "Wrapped"
