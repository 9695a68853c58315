"""The worked examples of the planner's docstrings: the numbers there are the numbers computed."""

from __future__ import annotations

from itertools import chain, combinations

from samebits.recompute.network.sublayer import Loss, PassNetwork, SubLayer
from samebits.recompute.plan.balance import balance
from samebits.recompute.plan.cost import Device, Tier, times
from samebits.recompute.plan.rule import UNREAD
from samebits.recompute.plan.schedule import Action, PassStep, compile_schedule, peak, simulate
from samebits.recompute.plan.simulation import simulate as simulate_step
from samebits.recompute.plan.storages import StoragePlanner


def layer(name: str, kind: str, index: int, size: int, operations: int) -> SubLayer:
    """Sub-layer `index` of a chain, whose backward pass reads its input."""
    down = {"gradients": ((index - 1, (0,)),), "fresh": (8,)} if index > 1 else {}
    before = (index - 1,)
    return SubLayer(name, kind, before, (size,), size, needs=before, operations=operations, **down)


TAPE = PassNetwork(
    (
        SubLayer("input", "input", shape=(4,), size=4, differentiable=False),
        layer("conv", "Conv2d", 1, 8, 48),
        layer("norm", "BatchNorm2d", 2, 8, 16),
        layer("gelu", "GELU", 3, 8, 8),
        layer("linear", "Linear", 4, 2, 32),
    ),
    4,
    Loss(gradient=2),
)
TIMES = (0, 6, 3, 1, 2)
DEVICE = Device(
    "example",
    10**12,
    10**12,
    10**12,
    0,
    0,
    (Tier("near", 12, 10**12, 0), Tier("far", 1000, 10**12 // 4, 0)),
)


def levels(dropped: tuple[int, ...]) -> dict[str, int]:
    found = simulate(TAPE, compile_schedule(TAPE, dropped))
    return {f"{kind} {value}": top for (kind, value), top, _ in found if kind != "free"}


def test_schedule():
    stored = levels(())
    assert (stored["loss 4"], stored["backward 4"], max(stored.values())) == (32, 38, 38)
    again = levels((1,))
    assert list(again)[4:] == [
        *("loss 4", "backward 4", "backward 3", "recompute 1", "backward 2", "backward 1")
    ]
    assert max(again.values()) == 30
    assert max(levels((3,)).values()) == 38


def test_search():
    """Within 37 bytes value 1 is dropped; neither is 3, whose time is the least, nor 3 and 2."""
    step = PassStep(TAPE, TIMES)
    found = StoragePlanner(step.facts).find(37)
    assert found is not None
    outcome = found.outcome
    assert (step.dropped(outcome), outcome.cost, outcome.peak) == ((1, 4), 6, 30)
    assert found.bound == 6
    for dropped in ((3,), (2, 3), (1, 2, 3)):  # in the order of their times
        assert peak(TAPE, compile_schedule(TAPE, dropped)) == 38
    subsets = chain.from_iterable(combinations(range(1, 5), count) for count in range(5))
    outcomes = [simulate_step(step.facts, step.kept(dropped)) for dropped in subsets]
    assert min(o.cost for o in outcomes if o.peak <= 37) == 6


def test_cost():
    assert times(TAPE, DEVICE)[1:3] == [48, 96]


def test_rule():
    found = PassStep(TAPE, times(TAPE, DEVICE)).rule(DEVICE)
    assert [(found[v].compute, found[v].load, found[v].stored) for v in (1, 2, 3)] == [
        *((48, 32, True), (96, 32, True), (64, 8, True))
    ]
    assert (found[4].stored, found[4].reason) == (False, UNREAD)


def test_balance():
    def linear(index: int) -> SubLayer:
        down = {"gradients": ((index - 1, (0,)),), "fresh": (8,)} if index > 1 else {}
        return SubLayer(
            f"linear {index}", "Linear", (index - 1,), (8,), 8, apart=(0, 8),
            weights=((index, 8),), needs=(index - 1,), **down,
        )  # fmt: skip

    start = SubLayer("input", "input", shape=(8,), size=8, differentiable=False)
    network = PassNetwork((start, linear(1), linear(2), linear(3)), 3, Loss(gradient=8))
    schedule = compile_schedule(network, (), paired=True)
    assert [f"{kind[0]}{value}" for kind, value in schedule if kind != "free"][4:] == [
        *("a3", "w3", "a2", "j3", "w2", "a1", "j2", "w1", "j1")
    ]

    def cost(action: Action) -> int:
        if action == ("activation gradient", 1):  # the input has no gradient
            return 0
        return {"weight gradient": 3, "activation gradient": 4}.get(action.kind, 0)

    found = balance(schedule, cost)
    assert (found.work, found.span, round(found.load, 2)) == (17, 14, 0.61)
