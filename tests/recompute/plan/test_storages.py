"""The search within a budget, against every choice of small networks, and its bounds."""

import itertools
import random
from dataclasses import replace

import pytest
import torch
from torch import nn

import samebits as sb
from recompute_nets import make
from samebits.recompute.network.sublayer import Loss, PassNetwork, SubLayer
from samebits.recompute.plan import storages
from samebits.recompute.plan.facts import StepFacts, StepNode
from samebits.recompute.plan.planner import SOLVED, STEPS
from samebits.recompute.plan.schedule import PassStep, compile_schedule, peak
from samebits.recompute.plan.simulation import simulate
from samebits.recompute.plan.storages import MANY, StoragePlanner
from samebits.recompute.run.profile import survey


def random_network(seed, longest):
    """A graph of residuals, views, layers that save much, layers that nobody needs."""
    rng = random.Random(seed)
    residual = rng.random() < 0.8
    layers = [SubLayer("input", "input", size=rng.choice([0, 8, 16]), differentiable=False)]
    for i in range(1, rng.randrange(2, longest + 1)):
        inputs = [i - 1]
        if residual and rng.random() < 0.3:
            inputs.append(rng.randrange(i))
        if residual and rng.random() < 0.1:
            inputs = [rng.randrange(i)]
        inputs = list(dict.fromkeys(inputs))
        size = rng.choice([4, 8, 8, 16, 32])
        alias = inputs[0] if rng.random() < 0.1 else None
        differentiable = rng.random() < 0.93
        gradients, fresh = [], []
        for v in inputs:
            if layers[v].differentiable and differentiable:
                new = rng.random() < 0.8
                gradients.append((v, (len(fresh),) if new else (-1,)))
                if new:
                    fresh.append(rng.choice([4, 8, 16]))
        layers.append(
            SubLayer(
                f"layer {i}",
                "any",
                tuple(inputs),
                (size // 4,),
                0 if alias is not None else size,
                alias,
                tuple(v for v in (*inputs, i) if rng.random() < 0.5),
                rng.choice([0, 0, 0, 1, 8]) if differentiable else 0,
                size + rng.choice([0, 0, 8]),
                sum(fresh) + rng.choice([0, 4]),
                tuple(gradients),
                tuple(fresh),
                ((i, rng.choice([0, 2])),),
                rng.choice([0, 0, 2]),
                differentiable=differentiable,
            )
        )
    loss = Loss(2, 4, 6, rng.choice([4, 8]))
    network = PassNetwork(tuple(layers), len(layers) - 1, loss)
    rooted = [replace(x, needs=tuple(sorted(network.roots(x.needs)))) for x in layers]
    costs = [0] + [rng.randrange(9) for _ in layers[1:]]
    return replace(network, layers=tuple(rooted)), costs


def every_choice(step):
    """(cost, peak) of all subsets of what may be dropped."""
    choices = step.network.choices()
    for keep in itertools.product((False, True), repeat=len(choices)):
        dropped = [v for v, k in zip(choices, keep, strict=True) if k]
        outcome = simulate(step.facts, step.kept(dropped))
        yield outcome.cost, outcome.peak


def planner_of(step, **options):
    limits = {"largest": MANY, "node_limit": SOLVED}
    return StoragePlanner(step.facts, STEPS, **{**limits, **options})


def searched(step, outcomes, budgets=5, **options):
    """Plans within several budgets, each with the least cost of all choices."""
    levels = sorted({level for _, level in outcomes})
    for budget in levels[:: max(1, len(levels) // budgets)]:
        best = min(cost for cost, level in outcomes if level <= budget)
        found = planner_of(step, **options).find(budget)
        if found is not None:
            assert found.outcome.peak <= budget
            assert found.bound <= best <= found.outcome.cost
        yield found, best


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize(
    "first", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(100, 400, 50))]
)
def test_no_choice_beats_the_search_on_small_networks(first, paired):
    for seed in range(first, first + (12 if first == 0 else 50)):
        step = PassStep(*random_network(seed, 8), paired)
        outcomes = list(every_choice(step))
        for found, best in searched(step, outcomes):
            assert found is not None
            assert found.outcome.cost == found.bound == best
        planner = planner_of(step)
        planner.smallest()
        lowest = min(level for _, level in outcomes)
        assert planner.least.peak == lowest
        assert planner.find(lowest - 1) is None


@pytest.mark.parametrize("count", [12, pytest.param(150, marks=pytest.mark.slow)])
def test_what_is_found_without_trying_all_choices(monkeypatch, count):
    """The cheapest in nine of ten cases, and as often the bound says so."""
    monkeypatch.setattr(storages, "EVERY", 0)
    plans = cheapest = proven = 0
    for seed in range(count):
        step = PassStep(*random_network(seed, 8))
        for found, best in searched(step, list(every_choice(step))):
            cheapest += found is not None and found.outcome.cost == best
            proven += found is not None and found.bound == best
            plans += 1
    assert cheapest >= 0.9 * plans
    assert proven >= 0.9 * plans


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1040, 10))
def test_the_search_of_fourteen_operations(first):
    plans = cheapest = 0
    for seed in range(first, first + 10):
        step = PassStep(*random_network(seed, 14))
        for found, best in searched(step, list(every_choice(step))):
            plans += 1
            cheapest += found is not None and found.outcome.cost == best
    assert cheapest >= 0.9 * plans


@pytest.mark.parametrize("options", [{"largest": 0}, {"node_limit": 1}])
def test_bounds_hold_however_little_is_solved(monkeypatch, options):
    monkeypatch.setattr(storages, "EVERY", 0)
    for seed in range(8):
        step = PassStep(*random_network(seed, 9))
        assert all(found for found, _ in searched(step, list(every_choice(step)), 3, **options))


def test_time_that_is_over_leaves_the_cheapest_per_byte():
    for seed in range(8):
        step = PassStep(*random_network(seed, 9))
        outcomes = list(every_choice(step))
        for found, _ in searched(step, outcomes, 3, expired=lambda: True):
            assert found is None or found.bound == 0 or found.outcome.cost == 0


def test_what_a_node_makes_comes_and_goes_together():
    """A mask of 9 bytes beside a value of 8 that the loss reads; the mask alone is read later."""
    facts = StepFacts(
        (8, 9, 1, 4),
        (StepNode("a", "a", (), (0, 1), 5), StepNode("loss", "loss", (0,), (2,))),
        (StepNode("b", "b", (0,), (3,)), StepNode("c", "c", (1,), ())),
        frozenset({2}),
        frozenset({2}),
        frozenset({3}),
        held=100,
        whole=True,
    )
    for kept, peak_, again in (({0, 1}, 122, []), ({0}, 122, [0]), ({1}, 122, [0])):
        outcome = simulate(facts, kept)
        assert (outcome.peak, outcome.again) == (peak_, again), kept
    assert simulate(replace(facts, whole=False), {0}).kept == {0}
    assert simulate(facts, {0}).kept == frozenset()


@pytest.mark.parametrize("name", ["smooth", "words", "shared"])
@pytest.mark.parametrize("numerics", [pytest.param("float32", marks=pytest.mark.slow), "bfp"])
def test_the_search_of_real_networks(name, numerics):
    case = make(name, numerics, batch=8, size=8)
    _, network = survey(case.model, case.inputs, case.loss)
    network = network if len(network.choices()) <= 9 else shortened(network, 9)
    step = PassStep(network, [layer.operations for layer in network.layers])
    for found, best in searched(step, list(every_choice(step))):
        assert found is not None
        assert found.outcome.cost == best


def shortened(network, count):
    """The same network with only its `count` largest values open to choice: the others views."""
    largest = sorted(network.choices(), key=lambda v: (-network.layers[v].size, v))[:count]
    layers = [
        replace(x, size=0, extra=0) if i in network.choices() and i not in largest else x
        for i, x in enumerate(network.layers)
    ]
    return replace(network, layers=tuple(layers))


def chain(count):
    layers = [SubLayer("input", "input", size=100, differentiable=False)]
    for i in range(1, count + 1):
        gradients = ((i - 1, (0,)),) if i > 1 else ()
        layers.append(
            SubLayer(
                f"layer {i}",
                "any",
                (i - 1,),
                (16,),
                (64, 96, 128)[i * 7 % 3],
                needs=(i - 1,) if i % 2 else (i - 1, i),
                forward_peak=64,
                backward_peak=128,
                gradients=gradients,
                fresh=(64,) if gradients else (),
                operations=10 + i * 13 % 7,
            )
        )
    return PassNetwork(tuple(layers), count, Loss(4, 8, 8, 8))


@pytest.mark.parametrize(
    ("count", "gap"), [(80, 0.06), pytest.param(500, 0.06, marks=pytest.mark.slow)]
)
def test_long_chains(count, gap):
    """What is found fits, and costs little more than the proven bound."""
    network = chain(count)
    step = PassStep(network, [layer.operations for layer in network.layers])
    planner = planner_of(step)
    planner.smallest()
    least, most = planner.least.peak, planner.everything.peak
    assert least < most / 3
    for part in (2, 9):
        found = planner_of(step).find(least + (most - least) * part // 10)
        assert found is not None
        dropped = step.dropped(found.outcome)
        assert peak(network, compile_schedule(network, dropped)) == found.outcome.peak
        assert found.outcome.cost - found.bound <= gap * found.outcome.cost


def test_the_bound_of_a_u_net_is_near_its_plan():
    def twice(a, b):
        parts = [nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU()]
        return nn.Sequential(*parts, nn.Conv2d(b, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU())

    class UNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.down, self.bottom, self.pool = twice(3, 8), twice(8, 16), nn.MaxPool2d(2)
            self.up, self.last = nn.ConvTranspose2d(16, 8, 2, 2), twice(16, 8)

        def forward(self, x):
            a = self.down(x)
            return self.last(torch.cat([self.up(self.bottom(self.pool(a))), a], 1))

    torch.manual_seed(0)
    made = sb.plan(
        UNet().train(), torch.randn(2, 3, 32, 32), sb.Recomputation(memory_budget="75%")
    ).plan
    assert 0.9 * made.recompute_ps <= made.bound_ps <= made.recompute_ps
