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


@pytest.mark.parametrize(
    "first", [0, 50, *(pytest.param(n, marks=pytest.mark.slow) for n in range(100, 400, 50))]
)
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


def operation(index, inputs, size, needs=(), fresh=16, **options):
    """Sub-layer `index` of a network by hand; every gradient of an input takes `fresh` bytes."""
    trained = [v for v in inputs if v]
    options = {"forward_peak": size, "backward_peak": fresh * len(trained), **options}
    return SubLayer(
        f"layer {index}",
        "any",
        inputs,
        (size // 4,),
        size,
        needs=needs,
        gradients=tuple((v, (at,)) for at, v in enumerate(trained)),
        fresh=(fresh,) * len(trained),
        **options,
    )


def network_of(*layers, loss, size=16):
    start = SubLayer("input", "input", size=size, differentiable=False)
    return PassNetwork((start, *layers), len(layers), loss)


def test_choices_without_a_search_by_hand():
    """A chain of 10, 20 and 10 bytes, which cost 5, 4 and 1, and an output that nothing reads.

    The peak is at the loss: 4 bytes of input, the output's 4 and 100 of the loss beside what is
    stored. Per byte the last of the three costs the least, then the second, then the first.
    """
    chain = network_of(
        *(operation(i, (i - 1,), size, (i,), 4) for i, size in ((1, 10), (2, 20), (3, 10))),
        operation(4, (3,), 4, fresh=4),
        loss=Loss(forward_peak=100),
        size=4,
    )
    costs, rest = [0, 5, 4, 1, 90], 108
    for budget, dropped in ((40, ()), (39, (3,)), (30, (3,)), (29, (2, 3)), (10, (2, 3))):
        assert by_worth(chain, costs, rest + budget) == dropped, budget
    assert by_worth(chain, costs, rest + 9) == (1, 2, 3)
    # Of the second and the third, the second costs more per byte, but only the third fits again.
    assert restore(chain, costs, (2, 3), rest + 20, optimum.never) == (2,)
    assert restore(chain, costs, (2, 3), rest + 19, optimum.never) == (2, 3)
    assert restore(chain, costs, (2, 3), rest + 30, optimum.never) == (3,)
    # A search that has no time at all leaves the choice by worth.
    found = cheapest(chain, costs, rest + 20, lambda: True)
    assert (found.dropped, found.cost, found.peak) == ((2, 3), 5, rest + 10)


def test_of_choices_that_need_the_same_the_regular_one_is_taken():
    """To compute one value again at no cost, or to store it: both peaks are at the loss."""
    network = network_of(operation(1, (0,), 8, (1,)), loss=Loss(gradient=8))
    assert set(every_choice(network, [0, 0])) == {(0, 16 + 8 + 8)}
    assert smallest(network, [0, 0]).dropped == network.choices() == (1,)


# Of a chain's three values two are needed again, by their own backward passes.
THREE = network_of(
    operation(1, (0,), 8, (1,)),
    operation(2, (1,), 8, (2,)),
    operation(3, (2,), 8),
    loss=Loss(2, 4, 6, 8),
)


def test_what_few_steps_find_and_prove(monkeypatch):
    """The smallest peak of three operations and its proof need one plan of each key alone; the
    cheapest plan within it, one of a low level among those kept of a low cost."""
    costs = [0, 5, 7, 5]
    assert min(level for _, level in every_choice(THREE, costs)) == 64
    monkeypatch.setattr(optimum, "WORK", 150)
    found = smallest(THREE, costs)
    assert (found.peak, found.bound) == (64, 64)
    monkeypatch.setattr(optimum, "WORK", 100)
    found = cheapest(THREE, costs, 64)
    assert (found.dropped, found.cost, found.peak) == ((1, 3), 5, 64)


def test_values_kept_for_want_of_steps_are_no_longer_there_later(monkeypatch):
    """The last operation needs four values, which also the sum before it reads. Whether they are
    still wanted after it depends on whether the sum is computed again: more ways than steps, so
    all are kept at first. What is found is the cheapest of all choices nevertheless."""
    monkeypatch.setattr(optimum, "WORK", 8)
    options = {"fresh": 4, "forward_peak": 0}
    network = network_of(
        operation(1, (0,), 4, fresh=4, forward_peak=0, backward_peak=20),
        operation(2, (0,), 8, **options),
        operation(3, (2,), 4, **options),
        operation(4, (3,), 4, **options),
        operation(5, (1, 2, 3, 4), 2, **options),
        operation(6, (5,), 2, (1, 2, 3, 4), **options),
        loss=Loss(0, 30, 4, 4),
        size=4,
    )
    costs = [0, 1, 6, 3, 4, 2, 6]
    outcomes = set(every_choice(network, costs))
    for budget, cost in ((48, 4), (52, 1), (56, 0)):
        found = cheapest(network, costs, budget)
        assert (found.cost, found.peak) == (cost, budget)
        assert min(o for o in outcomes if o[1] <= budget) == (cost, budget)


def test_levels_before_a_sublayer_without_a_backward_pass_count_in_the_bound():
    """The backward pass of the second operation takes 100 bytes above the input, a gradient of 8
    and what is stored of the first one's result: no room for any of its 10 bytes."""
    network = network_of(
        operation(1, (0,), 10, (1,), 8),
        operation(2, (1,), 8, fresh=8, backward_peak=100),
        operation(3, (2,), 8, differentiable=False),
        operation(4, (2,), 8, fresh=8),
        loss=Loss(gradient=8),
        size=4,
    )
    costs = [0, 5, 3, 3, 3]
    budget = min(level for _, level in every_choice(network, costs))
    found = cheapest(network, costs, budget, lambda: True)
    assert (found.cost, found.peak, found.bound) == (5, budget, 5)


class After:
    """A clock whose time is over after so many looks at it."""

    def __init__(self, looks):
        self.looks = looks

    def __call__(self):
        self.looks -= 1
        return self.looks < 0


def test_the_bound_of_a_search_that_ends_early_counts_what_is_met_and_what_is_to_come():
    """The loss has no room for the third value (cost 7), nor the backward pass of the second, a
    view of the input, for the first (cost 5).

    Nothing met: 5 is proven, of what is still to come. With the third operation met, and its value
    to be computed again: 7 + 5. Once the second is met too, what is to come is behind, and the
    plan whose first value is dropped counts its 5 only when that is computed again.
    """
    network = network_of(
        operation(1, (0,), 10, (1,), 8),
        replace(operation(2, (0,), 0, backward_peak=100), alias=0),
        operation(3, (2,), 60, (3,), 8, forward_peak=0),
        operation(4, (3,), 8, fresh=8),
        loss=Loss(60, 0, 0, 8),
        size=4,
    )
    costs = [0, 5, 3, 7, 3]
    budget = min(level for _, level in every_choice(network, costs))
    found = [cheapest(network, costs, budget, After(looks)) for looks in range(6)]
    assert {(x.dropped, x.cost, x.peak) for x in found} == {((1, 3, 4), 12, budget)}
    assert [x.bound for x in found] == [5, 5, 5, 7 + 5, 7, 12]
    assert min(o for o in every_choice(network, costs) if o[1] <= budget) == (12, budget)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1060, 10))
def test_no_choice_beats_the_search_on_fourteen_operations(first):
    for seed in range(first, first + 10):
        assert_optimal(*random_network(seed, 14))


@pytest.mark.parametrize("name", [name for name in NETS if name in ("smooth", "words", "shared")])
@pytest.mark.parametrize("numerics", [pytest.param("float32", marks=pytest.mark.slow), "bfp"])
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


@pytest.mark.parametrize(
    ("count", "gap"), [(250, 0.02), pytest.param(500, 0.01, marks=pytest.mark.slow)]
)
def test_long_chains(count, gap):
    """What is found fits, and costs little more than the proven bound."""
    network = chain(count)
    costs = [layer.operations for layer in network.layers]
    least = smallest(network, costs).peak
    most = peak(network, compile_schedule(network, ()))
    assert least < most / 5
    for part in (2, 9):
        budget = least + (most - least) * part // 10
        found = cheapest(network, costs, budget)
        assert found is not None
        assert found.peak <= budget
        assert found.cost - found.bound <= gap * sum(costs)
