import itertools
import random
from dataclasses import replace

import pytest

from recompute_nets import NETS, make
from samebits.recompute.network.sublayer import Loss, PassNetwork, SubLayer
from samebits.recompute.plan import optimum
from samebits.recompute.plan.greedy import by_worth, cost_of, regular, restore
from samebits.recompute.plan.optimum import cheapest, smallest
from samebits.recompute.plan.schedule import compile_schedule, peak
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
    network = PassNetwork(tuple(layers), len(layers) - 1, loss, rng.random() < 0.3)
    rooted = [replace(x, needs=tuple(sorted(network.roots(x.needs)))) for x in layers]
    costs = [0] + [rng.randrange(9) for _ in layers[1:]]
    return replace(network, layers=tuple(rooted)), costs


def every_choice(network, costs):
    """(cost, peak) of all subsets of what may be dropped."""
    choices = network.choices()
    for keep in itertools.product((False, True), repeat=len(choices)):
        dropped = tuple(v for v, k in zip(choices, keep, strict=True) if k)
        yield cost_of(network, costs, dropped), peak(network, compile_schedule(network, dropped))


def assert_optimal(network, costs, budgets=5):
    outcomes = list(every_choice(network, costs))
    found = smallest(network, costs)
    assert found.peak == min(level for _, level in outcomes)
    levels = sorted({level for _, level in outcomes})
    for budget in levels[:: max(1, len(levels) // budgets)]:
        found = cheapest(network, costs, budget)
        assert found is not None, budget
        best = min(outcome for outcome in outcomes if outcome[1] <= budget)
        assert (found.cost, found.peak) == best, (budget, found)
        assert found.bound == found.cost
        assert peak(network, compile_schedule(network, found.dropped)) == found.peak
    assert cheapest(network, costs, levels[0] - 1) is None


@pytest.mark.parametrize("first", range(0, 400, 50))
def test_no_choice_beats_the_search_on_small_networks(first):
    for seed in range(first, first + 50):
        assert_optimal(*random_network(seed, 8))


@pytest.mark.parametrize("work", [8, 40, 200])
def test_a_search_of_few_steps_gives_bounds_that_hold(monkeypatch, work):
    """No choice costs less than the bound, and what is found fits, however early it ends."""
    monkeypatch.setattr(optimum, "WORK", work)
    unproven = 0
    for seed in range(60):
        network, costs = random_network(seed, 9)
        outcomes = list(every_choice(network, costs))
        least = smallest(network, costs)
        levels = sorted({level for _, level in outcomes})
        assert least.bound <= levels[0] <= least.peak
        for budget in levels[:: max(1, len(levels) // 4)]:
            best = min(cost for cost, level in outcomes if level <= budget)
            for expired in (optimum.never, lambda: True):
                found = cheapest(network, costs, budget, expired)
                if found is not None:
                    assert found.bound <= best <= found.cost
                    assert found.peak <= budget
                    unproven += found.bound < found.cost
    assert unproven > 20


def test_choices_without_a_search():
    """They fit; what is stored again saves cost."""
    for seed in range(60):
        network, costs = random_network(seed, 12)
        least = peak(network, compile_schedule(network, network.choices()))
        most = peak(network, compile_schedule(network, ()))
        budget = (least + most) // 2
        found = by_worth(network, costs, budget)
        assert (found is None) == (least > budget)
        if found is not None:
            again = restore(network, costs, found, budget, optimum.never)
            assert set(again) <= set(found)
            assert peak(network, compile_schedule(network, again)) <= budget
            assert cost_of(network, costs, again) <= cost_of(network, costs, found)
        assert network.choices() in list(regular(network))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1060, 10))
def test_no_choice_beats_the_search_on_fourteen_operations(first):
    for seed in range(first, first + 10):
        assert_optimal(*random_network(seed, 14))


@pytest.mark.parametrize("name", [name for name in NETS if name in ("smooth", "words", "shared")])
@pytest.mark.parametrize("numerics", ["float32", "bfp"])
@pytest.mark.parametrize("most", [11, pytest.param(14, marks=pytest.mark.slow)])
def test_no_choice_beats_the_search_on_real_networks(name, numerics, most):
    case = make(name, numerics, batch=8, size=8)
    _, network = survey(case.model, case.inputs, case.loss)
    network = network if len(network.choices()) <= most else shortened(network, most)
    assert_optimal(network, [layer.operations for layer in network.layers])


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


def test_a_chain_of_five_hundred():
    """What is found fits, costs little more than the proven bound, and is found again."""
    network = chain(500)
    costs = [layer.operations for layer in network.layers]
    least = smallest(network, costs).peak
    most = peak(network, compile_schedule(network, ()))
    assert least < most / 8
    for part in (2, 9):
        budget = least + (most - least) * part // 10
        found = cheapest(network, costs, budget)
        assert found is not None
        assert found.peak <= budget
        assert found.cost - found.bound <= 0.01 * sum(costs)
