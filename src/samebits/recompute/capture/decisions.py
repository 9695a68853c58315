"""A captured step's plan as `samebits plan` shows it: a decision for every operator's result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from samebits.recompute.capture.step import BudgetStep
from samebits.recompute.plan.cost import Device, find_device, load
from samebits.recompute.plan.facts import StepNode
from samebits.recompute.plan.plan import UNREAD, Decision, Plan
from samebits.recompute.plan.storages import StoragePlan


def plan_captured(
    module: nn.Module, example: Any, loss: Callable[..., Any], device: str, budget: int | str | None
) -> Plan:
    """The plan of a step that no tape holds; without a budget everything is kept.

    Raises UnsupportedError, naming the reason, for a step that is not captured, and InputError for
    a budget below the smallest.
    """
    step = BudgetStep(module, loss, "100%" if budget is None else budget, device, "error")
    step.prepare(example)
    made, found = step.plans[-1], find_device(device)
    outcome = made.outcome
    work = sum(node.cost for node in made.facts.backward) + outcome.cost
    return Plan(
        arch=type(module).__name__,
        numerics="float32",
        samples=len(example),
        device=found.name,
        budget=None if budget is None else made.budget,
        peak=outcome.peak,
        store_all=made.everything,
        smallest=made.smallest,
        recompute_ps=outcome.cost,
        bound_ps=min(made.bound, outcome.cost),
        search="none" if budget is None else "complete" if made.bound == outcome.cost else "steps",
        backward="sequential",
        work_ps=work,
        span_ps=work,
        layers=tuple(_decision(made, found, node) for node in made.facts.forward if node.makes),
    )


def _decision(made: StoragePlan, device: Device, node: StepNode) -> Decision:
    """The decision about what an operator makes."""
    size = sum(made.facts.sizes[s] for s in node.makes)
    stored = not made.outcome.kept.isdisjoint(node.makes)
    read = stored or not made.facts.saved.isdisjoint(node.makes)
    tier = device.tier(size)
    return Decision(
        name=node.name,
        kind=node.kind,
        shape=(),
        bytes=size,
        stored=stored,
        tier=tier.name,
        fetch_ps=0,
        recompute_ps=node.cost,
        load_ps=load(tier, size),
        reason=(
            UNREAD
            if not read
            else "within the budget"
            if stored
            else "computed again for the budget"
        ),
    )
