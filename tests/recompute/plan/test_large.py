"""Large networks are planned in a bounded number of steps, and the plan says what is proven."""

from __future__ import annotations

import json
import time
from fractions import Fraction

import pytest

from large_networks import dense_graph, graph, layer
from processor import slowness
from samebits.recompute.network.sublayer import Loss, PassNetwork, SubLayer
from samebits.recompute.plan.cost import find_device
from samebits.recompute.plan.planner import make_plan
from samebits.recompute.plan.schedule import peak
from samebits.reports.recompute import plan_summary

SECONDS = 5  # of processor time, as promised; about 2 are needed, more on a slow processor


def chain(count):
    layers = [SubLayer("input", "input", shape=(1, 25), size=100, differentiable=False)]
    sizes = [100] + [(64, 96, 128)[i * 7 % 3] for i in range(1, count + 1)]
    layers += (layer(i, [i - 1], sizes, [i - 1, i][: 1 + i % 2]) for i in range(1, count + 1))
    return PassNetwork(tuple(layers), count, Loss(4, 8, 8, 8))


@pytest.fixture
def assert_planned_soon(record_property):
    """`planned_soon`, which leaves the number of operations and the seconds in pytest's record."""

    def check(name, network, *more):
        plan, seconds = planned_soon(network, *more)
        record_property(name, json.dumps([len(network.layers) - 1, seconds]))
        return plan

    return check


def planned_soon(network, part=Fraction(1, 2), orders=("sequential",)):
    """By the rule alone, and within a part of the memory, in a few seconds of the processor."""
    device = find_device("laptop-cpu")
    options = {"arch": "large"}
    limit = SECONDS * slowness()
    started = time.process_time()
    assert make_plan(network, device, **options).search == "none"
    assert time.process_time() - started < max(limit, SECONDS * slowness())
    for backward in orders:
        started = time.process_time()
        plan = make_plan(network, device, **options, budget=part, backward=backward)
        seconds = time.process_time() - started
        assert seconds < max(limit, SECONDS * slowness())
        assert plan.peak <= plan.budget == int(part * plan.store_all)
        assert peak(network, plan.schedule(network)) == plan.peak
        assert plan.search == "steps"
    return plan, seconds


@pytest.mark.parametrize(
    ("make", "count"),
    [
        (graph, 200),
        pytest.param(graph, 1000, marks=pytest.mark.slow),
        pytest.param(chain, 1000, marks=pytest.mark.slow),
    ],
)
def test_many_operations(make, count, assert_planned_soon):
    plan = assert_planned_soon(f"{make.__name__} of {count:,}", make(count))
    assert 0 < plan.bound_ps < plan.recompute_ps
    gap = (plan.recompute_ps - plan.bound_ps) / 10**9
    assert plan_summary(plan)[2] == (
        f"no plan within {plan.budget:,} bytes can do with less than {plan.bound_ps / 10**9:.3f} "
        f"ms, so another one could save {gap:.3f} ms at most; the search ended at its limit of "
        "steps"
    )


def test_a_value_that_is_read_in_dozens_of_places(assert_planned_soon):
    """Concatenations of all results before: a plan is a choice among 2**24 at one place."""
    assert_planned_soon("concatenations", dense_graph())


def test_a_limit_of_time_ends_with_the_best_so_far():
    """The same plan every time, but where time runs out: that one fits, and costs no less."""
    network, device = graph(120), find_device("laptop-cpu")
    options = {"arch": "large", "budget": Fraction(3, 5)}
    whole = make_plan(network, device, **options)
    short = make_plan(network, device, **options, time_limit=1e-9)
    assert (whole.search, short.search) == ("steps", "time")
    assert short.peak <= short.budget == whole.budget
    assert short.bound_ps <= whole.recompute_ps <= short.recompute_ps
    assert plan_summary(short)[2].endswith("; the search ended at its limit of time")
    assert make_plan(network, device, **options, time_limit=1e9) == whole
