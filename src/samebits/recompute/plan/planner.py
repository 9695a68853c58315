"""Plans: the local rule, and the cheapest plan under a memory budget."""

from __future__ import annotations

from dataclasses import replace

from samebits.errors import InputError
from samebits.recompute.plan.balance import predicted_balance
from samebits.recompute.plan.cost import Device, load, times
from samebits.recompute.plan.optimum import Choice, cheapest, cost_of, smallest
from samebits.recompute.plan.plan import Decision, Plan
from samebits.recompute.plan.schedule import Network, compile_schedule, peak


def make_plan(
    network: Network,
    device: Device,
    *,
    arch: str,
    numerics: str,
    budget: int | None = None,
    earlier: int = 0,
    backward: str = "sequential",
) -> Plan:
    """The plan of the local rule, or the cheapest one within `budget` bytes.

    earlier: bytes that the step holds already when its last pass starts (gradients of the shards
    before). backward: the order of the backward pass, sequential or paired. Raises InputError for a
    budget below the smallest peak.
    """
    decisions = local_rule(network, device, numerics)
    costs = times(network, device, numerics)
    paired = backward == "paired"
    local = tuple(i for i, d in enumerate(decisions) if not d.stored)
    least = _smallest(network, costs, local, paired)
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
        store_all=peak(network, compile_schedule(network, ())) + earlier,
        smallest=min(least.peak, level) + earlier,
        recompute_ps=cost_of(network, costs, dropped),
        bound_ps=bound,
        backward=backward,
        work_ps=work,
        span_ps=span,
        layers=decisions,
    )


def _paired(network: Network, costs: list[int], dropped: tuple[int, ...]) -> Choice:
    """A choice in the paired order, of which nothing is proven."""
    level = peak(network, compile_schedule(network, dropped, paired=True))
    return Choice(dropped, cost_of(network, costs, dropped), level, 0)


def _smallest(network: Network, costs: list[int], local: tuple[int, ...], paired: bool) -> Choice:
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
    network: Network, costs: list[int], budget: int, least: Choice, paired: bool
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


UNREAD = "no backward pass reads it"


def local_rule(network: Network, device: Device, numerics: str) -> tuple[Decision, ...]:
    """Per sub-layer: not stored where load(input) + compute < load(output).

    Loads are marginal: an input that a backward pass close by (the sub-layer's own, or one that
    needs its output) loads anyway is free, one that is itself computed again costs what that costs.
    A stored output lives in the nearest tier that holds everything written between its forward and
    its backward pass.
    """
    layers = network.layers
    choices = set(network.choices())
    users: dict[int, list[int]] = {v: [] for v in range(len(layers))}
    for t, layer in enumerate(layers):
        for v in network.roots(layer.needs) if layer.differentiable else ():
            users[v].append(t)
    written, distance = 0, [0] * len(layers)
    for v in range(len(layers) - 1, -1, -1):
        written += layers[v].size if users[v] or v == 0 else 0
        distance[v] = max(written, layers[v].size)
    produce: dict[int, int] = {}  # picoseconds to have a dropped value again
    decisions = []
    for v, layer in enumerate(layers):
        base = Decision(layer.name, layer.kind, layer.shape, layer.size, True, "", 0, 0, "")
        if v not in choices:
            reason = "the input" if v == 0 else "a view of another result"
            decisions.append(replace(base, reason=reason))
            continue
        stored_in = device.tier(distance[v])
        near = {x for t in (v, *users[v]) for x in network.roots(layers[t].needs)}
        left = device.compute(layer.operations, numerics) + sum(
            _fetch(network, device, x, distance[x], produce, users)
            for x in network.roots(layer.inputs)
            if x not in near
        )
        right = load(stored_in, layer.size)
        sides = replace(base, recompute_ps=left, load_ps=right)
        if not users[v]:
            produce[v] = left
            tier = device.tier(layer.size).name
            decisions.append(replace(sides, stored=False, tier=tier, reason=UNREAD))
        elif left < right:
            produce[v] = left
            reason = "computing it again is cheaper than loading it"
            tier = device.tier(layer.size).name
            decisions.append(replace(sides, stored=False, tier=tier, reason=reason))
        else:
            reason = "loading it is cheaper than computing it again"
            decisions.append(replace(sides, tier=stored_in.name, reason=reason))
    return tuple(decisions)


def _fetch(
    network: Network,
    device: Device,
    value: int,
    distance: int,
    produce: dict[int, int],
    users: dict[int, list[int]],
) -> int:
    """What it costs to have an input: to load it, or to compute it again unless that is done."""
    if value in produce:
        return 0 if users[value] else produce[value]
    return load(device.tier(distance), network.layers[value].size)
