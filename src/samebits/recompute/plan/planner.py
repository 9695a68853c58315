"""Plans: the decisions of the local rule or of the search within a budget, with their figures.

Without a budget the local rule (`rule`) decides each value by itself. With one, the search
(`storages`) decides all of them together. Either way a step is storages and nodes: those of a pass
in BFP (`schedule.PassStep`), or of a captured step. A mixed-integer relaxation bounds what any plan
takes. Both are bounded by numbers of nodes, so that the same call gives the same plan on every
machine; a limit of time, which does not, is for those who ask for one.

The paired order is another order of nodes, planned in the same way: a deferred weight gradient
holds the values that it reads for longer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Protocol

from samebits.errors import InputError
from samebits.recompute.network.sublayer import PassNetwork
from samebits.recompute.plan.balance import predicted_balance
from samebits.recompute.plan.budget import Budget
from samebits.recompute.plan.cost import Device, times
from samebits.recompute.plan.facts import StepFacts
from samebits.recompute.plan.plan import Decision, Plan
from samebits.recompute.plan.rule import UNREAD, Sides
from samebits.recompute.plan.schedule import PassStep, compile_schedule
from samebits.recompute.plan.simulation import Outcome
from samebits.recompute.plan.storages import MANY, StoragePlanner, never

STEPS = 150_000  # nodes that a search simulates
SOLVED = 100  # nodes of the solver, for each candidate; a fifth of them for many forward nodes


class TimeLimit:
    """Says when `seconds` are over since it was made; None: never.

    passed: whether it has said so
    """

    def __init__(self, seconds: float | None) -> None:
        self.end = None if seconds is None else time.monotonic() + seconds
        self.passed = False

    def __call__(self) -> bool:
        """Whether the time is over."""
        self.passed = self.passed or (self.end is not None and time.monotonic() >= self.end)
        return self.passed


class PlannedStep(Protocol):
    """A step's facts, and the sub-layers (captured: operators) that its plans speak of.

    everything: bytes of storing everything, None for those of the facts
    largest:    number of forward nodes up to which the relaxation keeps storages as a whole
    """

    network: PassNetwork
    facts: StepFacts
    everything: int | None
    largest: int

    def rule(self, device: Device) -> Mapping[int, Sides]:
        """The local rule's decisions, by value."""

    def kept(self, dropped: Iterable[int]) -> frozenset[int]:
        """The storages of all values but these."""

    def dropped(self, outcome: Outcome) -> tuple[int, ...]:
        """The values of which an outcome keeps nothing."""


def make_plan(
    network: PassNetwork,
    device: Device,
    *,
    arch: str,
    budget: Budget | None = None,
    earlier: int = 0,
    backward: str = "sequential",
    time_limit: float | None = None,
) -> Plan:
    """The plan of a pass in BFP by the local rule, or the cheapest one within `budget`.

    earlier:  bytes that the step holds already when its last pass starts (gradients of the shards
              before)
    backward: order of the backward pass, sequential or paired
    time_limit: seconds after which the search within a budget ends with the best plan so far

    Raises InputError for a budget below the smallest peak, and for a plan whose peak the device
    does not hold.
    """
    paired = backward == "paired"
    step = PassStep(network, times(network, device), paired, earlier)
    plan = decide(step, device, arch=arch, numerics="bfp", budget=budget, time_limit=time_limit)
    schedule = compile_schedule(network, plan.dropped(network), paired)
    work, span = predicted_balance(network, schedule, device)
    return replace(plan, backward=backward, work_ps=work, span_ps=span)


def decide(
    step: PlannedStep,
    device: Device,
    *,
    arch: str,
    numerics: str,
    budget: Budget | None,
    time_limit: float | None = None,
) -> Plan:
    """The decisions of a step's plan, and their figures, in autograd's order on one unit."""
    expired = TimeLimit(time_limit)
    network, rule, planner = step.network, step.rule(device), _planner(step, expired)
    everything = step.everything or planner.everything.peak
    if isinstance(budget, Fraction):
        budget = int(budget * everything)
    if budget is None:
        list(planner.regular())
        outcome = planner.outcome(step.kept(i for i, sides in rule.items() if not sides.stored))
        bound, search = 0, "none"
    else:
        found = planner.find(budget)
        planner.smallest()
        if found is None:
            raise InputError(
                f"--memory-budget: expected at least {planner.least.peak} bytes for this model and "
                f"batch, found {budget}; raise the budget, lower --batch or give more --shards"
            )
        outcome, bound = found.outcome, found.bound
        proven = bound == outcome.cost
        search = "complete" if proven else "time" if expired.passed else "steps"
    _check_memory(device, outcome.peak)
    gone = frozenset(step.dropped(outcome))
    work = sum(node.cost for node in step.facts.backward) + outcome.cost
    return Plan(
        arch=arch,
        numerics=numerics,
        samples=network.layers[0].shape[0],
        device=device.name,
        budget=budget,
        peak=outcome.peak,
        store_all=everything,
        smallest=planner.least.peak,
        recompute_ps=outcome.cost,
        bound_ps=bound,
        search=search,
        backward="sequential",
        work_ps=work,
        span_ps=work,
        layers=tuple(
            _layer(network, i, rule[i], None if budget is None else i not in gone)
            if i in rule
            else _layer(network, i)
            for i in range(len(network.layers))
        ),
    )


def _planner(step: PlannedStep, expired: Callable[[], bool] = never) -> StoragePlanner:
    nodes = SOLVED if len(step.facts.forward) <= MANY else SOLVED // 5
    return StoragePlanner(step.facts, STEPS, expired, step.largest, node_limit=nodes)


def least_peak(step: PlannedStep, searched: bool) -> tuple[int, ...]:
    """The values to drop for the smallest peak: of the regular choices, or of those searched."""
    planner = _planner(step)
    list(planner.regular())
    if searched:
        planner.smallest()
    return step.dropped(planner.least)


def _check_memory(device: Device, level: int) -> None:
    """InputError unless the device has a memory that holds the peak of a pass."""
    largest = device.tiers[-1]
    if level > largest.bytes:
        raise InputError(
            f"{device.name}: expected a pass of at most {largest.bytes} bytes (its largest memory, "
            f"{largest.name}), found a peak of {level}; give --memory-budget {largest.bytes} or "
            "less, lower --batch or give more --shards"
        )


def _layer(
    network: PassNetwork, i: int, sides: Sides | None = None, stored: bool | None = None
) -> Decision:
    """The decision about a sub-layer by the local rule, or, `stored`, by the search within a
    budget; without sides there is nothing to decide."""
    layer = network.layers[i]
    made = Decision(layer.name, layer.kind, layer.shape, layer.size, True, "", 0, 0, 0, "")
    if sides is None:
        reason = "cannot be computed again" if layer.fixed else "a view of another result"
        return replace(made, reason=reason if i else "the input")
    reason = sides.reason
    if stored or (stored is not None and reason != UNREAD):
        reason = "within the budget" if stored else "computed again for the budget"
    return replace(
        made,
        stored=sides.stored if stored is None else stored,
        tier=sides.tier,
        fetch_ps=sides.fetch,
        recompute_ps=sides.compute,
        load_ps=sides.load,
        reason=reason,
    )
