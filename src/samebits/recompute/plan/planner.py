"""Plans: the decisions of the local rule or of the search within a budget, with their figures.

Without a budget the local rule (`rule`) decides each value by itself. With one, the search
(`optimum`) decides all of them together; its result for the sequential order is proven to be the
cheapest, or within a known bound of it.

The paired order is not searched. A deferred weight gradient holds the values that it reads for
longer, so the same choice may have a higher peak there. The search is asked for less until the
paired peak of its result fits: within 37 bytes, if the choice it finds for 37 has a paired peak of
40, it is asked for 3 less than that choice needs. Each round asks for less than the last, so this
ends: with a choice that fits, or where the search finds none.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from samebits.errors import InputError
from samebits.recompute.network.sublayer import PassNetwork
from samebits.recompute.plan.balance import predicted_balance
from samebits.recompute.plan.budget import Budget
from samebits.recompute.plan.cost import Device, times
from samebits.recompute.plan.optimum import Choice, cheapest, cost_of, smallest
from samebits.recompute.plan.plan import Decision, Plan
from samebits.recompute.plan.rule import UNREAD, local_rule
from samebits.recompute.plan.schedule import compile_schedule, peak


def make_plan(
    network: PassNetwork,
    device: Device,
    *,
    arch: str,
    numerics: str,
    budget: Budget | None = None,
    earlier: int = 0,
    backward: str = "sequential",
) -> Plan:
    """The plan of the local rule, or the cheapest one within `budget`.

    numerics: bfp or float32, which decides the rate of the device
    earlier:  bytes that the step holds already when its last pass starts (gradients of the shards
              before)
    backward: order of the backward pass, sequential or paired

    Raises InputError for a budget below the smallest peak.
    """
    decisions = local_rule(network, device, numerics)
    costs = times(network, device, numerics)
    paired = backward == "paired"
    local = tuple(i for i, d in enumerate(decisions) if not d.stored)
    least = _smallest(network, costs, local, paired)
    store_all = peak(network, compile_schedule(network, ())) + earlier
    if isinstance(budget, Fraction):
        budget = int(budget * store_all)
    if budget is None:
        dropped, bound = local, 0
    else:
        choice = _within(network, costs, budget - earlier, least, paired)
        if choice is None:
            known = ", of the smallest paired plan found" if paired else ""
            raise InputError(
                f"--memory-budget: expected at least {least.peak + earlier} bytes for this model "
                f"and batch{known}, found {budget}; raise the budget, lower --batch or give more "
                "--shards"
            )
        dropped, bound = choice.dropped, choice.bound
        decisions = tuple(
            _budgeted(d, i not in dropped) if i in network.choices() else d
            for i, d in enumerate(decisions)
        )
    schedule = compile_schedule(network, dropped, paired)
    level = peak(network, schedule)
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
        backward=backward,
        work_ps=work,
        span_ps=span,
        layers=decisions,
    )


def _paired(network: PassNetwork, costs: list[int], dropped: tuple[int, ...]) -> Choice:
    """A choice in the paired order, of which nothing is proven."""
    level = peak(network, compile_schedule(network, dropped, paired=True))
    return Choice(dropped, cost_of(network, costs, dropped), level, 0)


def _smallest(
    network: PassNetwork, costs: list[int], local: tuple[int, ...], paired: bool
) -> Choice:
    """The choice of the smallest peak.

    The search knows the sequential order alone: in the paired order the best of what it finds, the
    local rule's choice and dropping nothing.
    """
    found = smallest(network, costs)
    if not paired:
        return found
    choices = (_paired(network, costs, dropped) for dropped in (found.dropped, local, ()))
    return min(choices, key=lambda choice: (choice.peak, choice.cost))


def _within(
    network: PassNetwork, costs: list[int], budget: int, least: Choice, paired: bool
) -> Choice | None:
    """The cheapest choice found within a budget, None if there is none.

    The paired order holds more than the sequential one, which the search knows: it is asked for as
    much less as the paired peak was too high, by 1/64 of the budget at least, until that fits.
    """
    found = cheapest(network, costs, budget)
    if not paired:
        fallback = replace(least, bound=0) if least.peak <= budget else None
        return found or fallback
    fitting = [least] if least.peak <= budget else []
    while found is not None:
        choice = _paired(network, costs, found.dropped)
        if choice.peak <= budget:
            fitting.append(choice)
            break
        asked = min(budget, found.peak) - max(choice.peak - budget, budget // 64)
        found = cheapest(network, costs, asked)
    return min(fitting, key=lambda choice: (choice.cost, choice.peak), default=None)


def _budgeted(decision: Decision, stored: bool) -> Decision:
    if decision.reason == UNREAD:
        return replace(decision, stored=stored)
    reason = "within the budget" if stored else "computed again for the budget"
    return replace(decision, stored=stored, reason=reason)
