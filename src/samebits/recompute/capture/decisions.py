"""A captured step's plan as `samebits plan` shows it: a decision for every operator's result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import nn

from samebits.recompute.capture.step import BudgetStep
from samebits.recompute.plan.cost import find_device
from samebits.recompute.plan.plan import Decision, Plan
from samebits.recompute.plan.planner import decided
from samebits.recompute.plan.rule import local_rule
from samebits.recompute.plan.storages import StoragePlan


def plan_captured(
    module: nn.Module, example: Any, loss: Callable[..., Any], device: str, budget: int | str | None
) -> tuple[Plan, StoragePlan]:
    """The plan of a step that no tape holds, and what it was made from.

    Raises UnsupportedError, naming the reason, for a step that is not captured, and InputError for
    a budget below the smallest.
    """
    step = BudgetStep(module, loss, budget, device, "error")
    step.prepare(example)
    made, found = step.plans[-1], find_device(device)
    facts, outcome = made.facts, made.outcome
    work = sum(node.cost for node in facts.backward) + outcome.cost
    layers, rule = [], local_rule(facts, found)
    for at, node in enumerate(facts.forward):
        size = sum(facts.sizes[s] for s in node.makes)
        layer = Decision(node.name, node.kind, (), size, True, "", 0, 0, 0, "")
        if at in rule:
            stored = None if budget is None else not outcome.kept.isdisjoint(node.makes)
            layers.append(decided(layer, rule[at], stored))
        elif node.makes:
            layers.append(replace(layer, reason="cannot be computed again"))
    plan = Plan(
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
        layers=tuple(layers),
    )
    return plan, made
