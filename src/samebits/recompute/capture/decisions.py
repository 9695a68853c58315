"""A captured step as plans see it: its operators stand where a pass in BFP has sub-layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, fx

from samebits.recompute.capture.graphs import Captured
from samebits.recompute.network.sublayer import PassNetwork, SubLayer
from samebits.recompute.plan.cost import Device
from samebits.recompute.plan.plan import Plan
from samebits.recompute.plan.rule import Sides, local_rule
from samebits.recompute.plan.simulation import Outcome, simulate

MODEL = "L['self'].model"  # how Dynamo names it


class CapturedStep:
    """The facts of a captured step, and its operators by name.

    Operator `at` of the forward graph is sub-layer `at + 1`; sub-layer 0 stands for the batch,
    which counts nothing.

    calls: the forward graph's operators
    """

    everything: int | None = None
    largest = 600

    def __init__(self, captured: Captured, batch: Tensor | None) -> None:
        facts = self.facts = captured.facts
        self.calls = captured.forward
        names: Counter[str] = Counter()
        layers = [SubLayer("input", "input", shape=() if batch is None else tuple(batch.shape))]
        for node, own in zip(captured.forward, facts.forward, strict=True):
            name = _path(node) or own.kind
            names[name] += 1
            fixed = not own.makes or facts.once.issuperset(own.makes)
            size = sum(facts.sizes[s] for s in own.makes)
            unique = name if names[name] == 1 else f"{name}#{names[name]}"
            layers.append(SubLayer(unique, own.kind, shape=_shape(node), size=size, fixed=fixed))
        self.network = PassNetwork(tuple(layers), len(layers) - 1)

    def rule(self, device: Device) -> Mapping[int, Sides]:
        """The local rule's decisions, by sub-layer."""
        return {at + 1: sides for at, sides in local_rule(self.facts, device).items()}

    def kept(self, dropped: Iterable[int]) -> frozenset[int]:
        """The storages of all sub-layers but these."""
        gone = {s for i in dropped for s in self.facts.forward[i - 1].makes}
        return frozenset(self.facts.maker.keys() - gone)

    def dropped(self, outcome: Outcome) -> tuple[int, ...]:
        """The sub-layers of which an outcome keeps nothing that could be computed again."""
        makes = [(), *(node.makes for node in self.facts.again)]
        return tuple(i for i in self.network.choices() if outcome.kept.isdisjoint(makes[i]))

    def outcome(self, plan: Plan) -> Outcome:
        """The step by a plan. Raises InputError at the first difference to what it is for."""
        return simulate(self.facts, self.kept(plan.dropped(self.network)))


def _path(node: fx.Node) -> str:
    """The module whose code runs an operator, by its path in the model; "" for the loss."""
    stack = node.meta.get("nn_module_stack") or {}
    path = next(reversed([str(path) for path, _ in stack.values()]), "")
    return path.removeprefix(MODEL).lstrip(".") if path.startswith(MODEL) else ""


def _shape(node: fx.Node) -> tuple[int, ...]:
    """The shape of the first tensor that an operator gives."""
    value: Any = node.meta.get("val")
    first = value[0] if isinstance(value, list | tuple) and value else value
    return tuple(first.shape) if isinstance(first, Tensor) else ()
