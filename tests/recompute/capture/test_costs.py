"""Costs of captured operators beside their times here, and plans of hundreds of them."""

from __future__ import annotations

import json
import statistics
import time
from fractions import Fraction

import pytest
import torch

from large_networks import densenet121, transformer
from processor import slowness
from samebits.recompute.capture.costs import measured_times
from samebits.recompute.capture.step import BudgetStep
from samebits.recompute.plan.cost import find_device
from samebits.recompute.plan.measure import measure_device
from samebits.recompute.plan.planner import decide
from samebits.recompute.run.timing import factors
from samebits.train.architectures import build

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]
SECONDS = 20  # of processor time


def captured(model, x, device, look):
    """What `look` gives of the captured step of a model, whose plan is that of the local rule."""
    found = []

    def choose(step):
        found.append(look(step))
        return decide(step, device, arch="", numerics="float32", budget=None)

    BudgetStep(model.train(), torch.sum, device, choose).prepare(x)
    return found[0]


def test_the_model_of_this_machine_is_near_its_times():
    """The median factor over the operators of three networks, on one thread by its own clock."""
    torch.manual_seed(0)
    device, threads = measure_device(seconds=0.1), torch.get_num_threads()
    torch.set_num_threads(1)

    def look(step):
        modelled = [node.cost for node in step.facts.forward]
        return factors(modelled, measured_times(step.calls))

    found = []
    for model, x in (
        (build("resnet8", (3, 32, 32), 10), torch.randn(32, 3, 32, 32)),
        (build("mobilenetv2", (3, 32, 32), 10), torch.randn(8, 3, 32, 32)),
        (transformer(4, 128, 8), torch.randn(8, 64, 128)),
    ):
        found += captured(model, x, device, look)
    torch.set_num_threads(threads)
    assert statistics.median(found) < 2


@pytest.mark.parametrize(
    ("model", "shape"), [(densenet121, (2, 3, 64, 64)), (transformer, (8, 64, 64))]
)
def test_hundreds_of_operators_are_planned_soon(model, shape, record_property):
    torch.manual_seed(0)
    device = find_device("laptop-cpu")
    step = captured(model(), torch.randn(shape), device, lambda step: step)
    assert len(step.network.layers) > 400
    started = time.process_time()
    plan = decide(step, device, arch="", numerics="float32", budget=Fraction(9, 10))
    seconds = time.process_time() - started
    record_property(model.__name__, json.dumps([len(step.network.layers) - 1, seconds]))
    assert seconds < SECONDS * slowness()
    assert plan.peak <= plan.budget
    assert plan.bound_ps <= plan.recompute_ps
