"""Plans: the decisions of the local rule or of the search within a budget, with their figures.

Without a budget the local rule (`rule`) decides each value by itself. With one, the search
(`optimum`) decides all of them together; its result for the sequential order is proven to be the
cheapest, or within a known bound of it. What bounds the search is a number of steps, so that the
same call gives the same plan on every machine; a limit of time, which does not, is for those who
ask for one.

The paired order is not searched. A deferred weight gradient holds the values that it reads for
longer, so the same choice may have a higher peak there. The search is asked for less until the
paired peak of its result fits: within 37 bytes, if the choice it finds for 37 has a paired peak of
40, it is asked for 3 less than that choice needs, and for at least twice as much less from round to
round, so this ends soon: with a choice that fits, or where the search finds none.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from samebits.errors import InputError
from samebits.recompute.network.sublayer import PassNetwork
from samebits.recompute.plan.balance import predicted_balance
from samebits.recompute.plan.budget import Budget
from samebits.recompute.plan.cost import Device, times
from samebits.recompute.plan.greedy import cost_of
from samebits.recompute.plan.optimum import Choice, cheapest, least_regular, smallest
from samebits.recompute.plan.plan import UNREAD, Decision, Plan
from samebits.recompute.plan.relaxed import relaxed_bound
from samebits.recompute.plan.rule import local_rule
from samebits.recompute.plan.schedule import compile_schedule, peak

ROUNDS = 4  # searches that share the steps of one, as the paired order takes several


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


def make_plan(
    network: PassNetwork,
    device: Device,
    *,
    arch: str,
    numerics: str,
    budget: Budget | None = None,
    earlier: int = 0,
    backward: str = "sequential",
    time_limit: float | None = None,
) -> Plan:
    """The plan of the local rule, or the cheapest one within `budget`.

    numerics: bfp or float32, which decides the rate of the device
    earlier:  bytes that the step holds already when its last pass starts (gradients of the shards
              before)
    backward: order of the backward pass, sequential or paired
    time_limit: seconds after which the search within a budget ends with the best plan so far

    Raises InputError for a budget below the smallest peak, and for a plan whose peak the device
    does not hold.
    """
    expired = TimeLimit(time_limit)
    decisions = local_rule(network, device, numerics)
    costs = times(network, device, numerics)
    paired = backward == "paired"
    local = tuple(i for i, d in enumerate(decisions) if not d.stored)
    store_all = peak(network, compile_schedule(network, ())) + earlier
    if isinstance(budget, Fraction):
        budget = int(budget * store_all)
    if budget is None:
        least = least_regular(network, costs)
        dropped, bound, search = local, 0, "none"
    else:
        found = _within(network, costs, budget - earlier, paired, expired)
        least = _smallest(network, costs, local, paired, expired)
        choices = [x for x in (found, replace(least, bound=0)) if x and x.peak <= budget - earlier]
        if not choices:
            known = ", of the smallest paired plan found" if paired else ""
            raise InputError(
                f"--memory-budget: expected at least {least.peak + earlier} bytes for this model "
                f"and batch{known}, found {budget}; raise the budget, lower --batch or give more "
                "--shards"
            )
        choice = min(choices, key=lambda choice: (choice.cost, choice.peak))
        dropped, bound = choice.dropped, choice.bound
        if not paired and bound < choice.cost:
            bound = max(bound, relaxed_bound(network, costs, budget - earlier))
        proven = bound == choice.cost and not paired
        search = "complete" if proven else "time" if expired.passed else "steps"
        open_, gone = set(network.choices()), set(dropped)
        decisions = tuple(
            _budgeted(d, i not in gone) if i in open_ else d for i, d in enumerate(decisions)
        )
    schedule = compile_schedule(network, dropped, paired)
    level = peak(network, schedule)
    _check_memory(device, level + earlier)
    work, span = predicted_balance(network, schedule, device, numerics)
    return Plan(
        arch=arch,
        numerics=numerics,
        samples=network.layers[0].shape[0],
        device=device.name,
        budget=budget,
        peak=level + earlier,
        store_all=store_all,
        smallest=min(least.peak, level) + earlier,
        recompute_ps=cost_of(network, costs, dropped),
        bound_ps=bound,
        search=search,
        backward=backward,
        work_ps=work,
        span_ps=span,
        layers=decisions,
    )


def _check_memory(device: Device, level: int) -> None:
    """InputError unless the device has a memory that holds the peak of a pass."""
    largest = device.tiers[-1]
    if level > largest.bytes:
        raise InputError(
            f"{device.name}: expected a pass of at most {largest.bytes} bytes (its largest memory, "
            f"{largest.name}), found a peak of {level}; give --memory-budget {largest.bytes} or "
            "less, lower --batch or give more --shards"
        )


def _paired(network: PassNetwork, costs: list[int], dropped: tuple[int, ...]) -> Choice:
    """A choice in the paired order, of which nothing is proven."""
    level = peak(network, compile_schedule(network, dropped, paired=True))
    return Choice(dropped, cost_of(network, costs, dropped), level, 0)


def _smallest(
    network: PassNetwork,
    costs: list[int],
    local: tuple[int, ...],
    paired: bool,
    expired: Callable[[], bool],
) -> Choice:
    """The choice of the smallest peak.

    The search knows the sequential order alone: in the paired order the best of what it finds, the
    local rule's choice and dropping nothing.
    """
    found = smallest(network, costs, expired)
    if not paired:
        return found
    choices = (_paired(network, costs, dropped) for dropped in (found.dropped, local, ()))
    return min(choices, key=lambda choice: (choice.peak, choice.cost))


def _within(
    network: PassNetwork,
    costs: list[int],
    budget: int,
    paired: bool,
    expired: Callable[[], bool],
) -> Choice | None:
    """The cheapest choice found within a budget, None if there is none.

    The paired order holds more than the sequential one, which the search knows: it is asked for as
    much less as the paired peak was too high, by 1/64 of the budget at least and by twice as much
    from round to round, until that fits.
    """
    if not paired:
        return cheapest(network, costs, budget, expired)
    found, less = cheapest(network, costs, budget, expired, ROUNDS), budget // 64
    while found is not None:
        choice = _paired(network, costs, found.dropped)
        if choice.peak <= budget:
            return choice
        asked = min(budget, found.peak) - max(choice.peak - budget, less)
        found, less = cheapest(network, costs, asked, expired, ROUNDS), 2 * max(less, 1)
    return None


def _budgeted(decision: Decision, stored: bool) -> Decision:
    if decision.reason == UNREAD:
        return replace(decision, stored=stored)
    reason = "within the budget" if stored else "computed again for the budget"
    return replace(decision, stored=stored, reason=reason)
