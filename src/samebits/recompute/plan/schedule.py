"""A pass of sub-layers as storages and nodes, and a plan's pass as a list of actions.

A plan is a set of values to drop. The set fixes the actions, for three reasons: backward passes run
in autograd's order, whatever is dropped; a dropped value is computed again as late as possible,
just before the first backward pass that reads it, and at most once; and every value is freed after
the last action that reads it, so that it is in memory only between its making and its last use.
All of that is what `simulation` does with storages and nodes, so a pass is written as such
(`PassStep`): a value is a storage, and so are what a sub-layer saves besides it and each gradient.
The peak is known without running anything.

Example (checked by tests/recompute/plan/test_example.py). Sizes in bytes; a gradient is as large as
its value, and the input has none:

    value        made by   size   its backward pass reads
    0            input        4
    1            conv         8   0
    2            norm         8   1
    3            gelu         8   2
    4            linear       2   3

Everything stored, the level rises to 32 at the loss, with 2 bytes of the loss's gradient, and to 38
in the backward pass of linear: values 0 to 3 (28), the gradient that arrived (2) and the new one
(8). If value 1 is dropped, it is freed when norm has read it, and conv runs again just before the
backward pass of norm, when values 2 and 3 are gone:

    forward 1..4, loss, backward 4, backward 3, recompute 1, backward 2, backward 1

The level is 30 at its highest. If value 3 is dropped instead, it is read by the very next backward
pass, so it is back where the level was highest: the peak is 38 as before. Which values to drop is
therefore no question of their size alone, and is searched for (`storages`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from samebits.recompute.network.sublayer import PassNetwork
from samebits.recompute.plan.cost import Device
from samebits.recompute.plan.facts import StepFacts, StepNode
from samebits.recompute.plan.rule import Sides, local_rule
from samebits.recompute.plan.simulation import Moment, Outcome
from samebits.recompute.plan.simulation import simulate as simulate_step
from samebits.recompute.plan.storages import MANY

ActionKind = Literal[
    "forward",
    "loss",
    "recompute",
    "backward",
    "free",
    "activation gradient",
    "weight gradient",
    "join",
]


PASSES = {"backward": 2, "activation gradient": 1}
"""What actions of a backward pass take in pictures, in forward passes of their sub-layers: two
products instead of one; what runs beside others nothing."""


class Action(NamedTuple):
    """One thing that an execution does, with a sub-layer or a value.

    A "weight gradient" may be computed beside the actions that follow, until its "join".
    """

    kind: ActionKind
    value: int


class Level(NamedTuple):
    """The memory of one action in bytes: the largest level while it runs, and the level after."""

    action: Action
    peak: int
    after: int


class PassStep:
    """A pass of a network as a step's facts.

    Storage `i` is value `i`, storage `count + i` what sub-layer `i` saves besides it; gradients
    follow. Forward node `i` is sub-layer `i` (0 makes the input, which counts throughout), the last
    one is the loss in both directions. What a sub-layer saves besides is always kept where it is
    little (`light`), else it comes and goes with the value.

    Gradients are counted by storage: a backward pass may hand on the storage of the gradient that
    arrived, as a residual sum does, so a storage is freed after the last node that reads one in it.

    costs:   picoseconds of computing each sub-layer
    paired:  weight gradients are deferred, each until the activation gradient of the next sub-layer
             that has one is there:
             activation gradient 3, weight gradient 3, activation gradient 2, join 3, ...
    earlier: bytes that the step holds when the pass starts
    actions: what each backward node is
    everything: bytes of storing everything in the sequential order, None where this is that order
    """

    def __init__(
        self,
        network: PassNetwork,
        costs: Sequence[int] | None = None,
        paired: bool = False,
        earlier: int = 0,
    ) -> None:
        self.network, self.paired = network, paired
        layers, self.count = network.layers, len(network.layers)
        self.costs = costs or [0] * self.count
        self.actions: list[Action] = []
        self.sizes = [0 if x.alias is not None or not i else x.size for i, x in enumerate(layers)]
        self.sizes += [x.extra if x.differentiable else 0 for x in layers]
        once = set(range(self.count)).difference(network.choices())
        once.update(self.count + i for i, layer in enumerate(layers) if layer.light)
        forward = [self._forward(i) for i in range(self.count)]
        loss, output = network.loss, network.output
        first = self._new(loss.gradient)
        above = max(loss.forward_peak, loss.kept + loss.backward_peak) - loss.gradient
        reads = tuple(network.roots((output,)))
        forward.append(StepNode("loss", "loss", reads, (first,), temporary=max(0, above)))
        # The gradient of the output is autograd's until the pass is done.
        self.gradients: dict[int, list[int]] = {output: [first]}
        self.weight_storages: set[int] = set()
        self.backward: list[StepNode] = []
        self._all_backward()
        left = self.weight_storages.union(*self.gradients.values())
        self.facts = StepFacts(
            tuple(self.sizes),
            tuple(forward),
            tuple(self.backward),
            frozenset(once | {first}),
            frozenset({first}),
            frozenset(left - {first}),
            network.layers[0].size + earlier,
            whole=True,
            beside={i: frozenset(network.roots(layer.needs)) for i, layer in enumerate(layers)},
        )
        self.largest = MANY
        self.everything: int | None = None
        if paired:
            self.everything = peak(network, compile_schedule(network, ())) + earlier

    def _new(self, size: int) -> int:
        self.sizes.append(size)
        return len(self.sizes) - 1

    def _forward(self, i: int) -> StepNode:
        layer, extra = self.network.layers[i], self.sizes[self.count + i]
        makes = (() if layer.alias is not None else (i,)) + ((self.count + i,) if extra else ())
        return StepNode(
            layer.name,
            layer.kind,
            tuple(self.network.roots(layer.inputs)) if i else (),
            makes,
            self.costs[i],
            max(0, layer.forward_peak - sum(self.sizes[s] for s in makes)),
            layer.state,
            extra if layer.light else 0,
        )

    def _all_backward(self) -> None:
        """Backward passes from the last to the first, as autograd runs them."""
        layers, joins = self.network.layers, list[tuple[int, list[int]]]()
        for i in range(self.count - 1, 0, -1):
            if not layers[i].differentiable:
                continue
            reads = self.network.roots(layers[i].needs)
            reads += [self.count + i] if self.sizes[self.count + i] else []
            arrived = self.gradients.pop(i, None)
            reads += arrived or []
            apart = layers[i].apart if self.paired else None
            if apart is None:
                weights = self._weights(i) if arrived else []
                self._hand_down("backward", i, reads, arrived, layers[i].backward_peak, weights)
                continue
            self._hand_down("activation gradient", i, reads, arrived, apart[0], [])
            self._joined(joins)
            weights = self._weights(i) if arrived else []
            rest = apart[1] - sum(self.sizes[s] for s in weights)
            scratch = [self._new(max(0, rest))] if arrived else []
            self._add("weight gradient", i, reads, [*weights, *scratch])
            joins.append((i, reads + scratch))
        self._joined(joins)

    def _joined(self, joins: list[tuple[int, list[int]]]) -> None:
        if joins:
            i, reads = joins.pop()
            self._add("join", i, reads, [])

    def _add(
        self, kind: ActionKind, i: int, reads: Sequence[int], makes: Sequence[int], rest: int = 0
    ) -> None:
        read, made = tuple(dict.fromkeys(reads)), tuple(makes)
        self.actions.append(Action(kind, i))
        cost = PASSES.get(kind, 0) * self.costs[i]
        self.backward.append(StepNode(self.network.layers[i].name, kind, read, made, cost, rest))

    def _weights(self, i: int) -> list[int]:
        """Storages of the gradients of weights: every contribution has its own."""
        made = [self._new(size) for _, size in self.network.layers[i].weights]
        self.weight_storages.update(made)
        return made

    def _hand_down(
        self,
        kind: ActionKind,
        i: int,
        reads: list[int],
        arrived: list[int] | None,
        peak: int,
        weights: list[int],
    ) -> None:
        """Gradients of a sub-layer's inputs; of weights too where they come with them.

        The second gradient of a value is added when the sum is read; until then both are kept.
        """
        if arrived is None:
            self._add(kind, i, reads, [])
            return
        layer = self.network.layers[i]
        fresh = [self._new(size) for size in layer.fresh]
        makes = [*fresh, *weights]
        for v, places in layer.gradients:
            own = [arrived[-1 - s] if s < 0 else fresh[s] for s in places]
            self.gradients[v] = self.gradients.get(v, []) + own
        self._add(kind, i, reads, makes, max(0, peak - sum(self.sizes[s] for s in makes)))

    def rule(self, device: Device) -> dict[int, Sides]:
        """The local rule's decisions, by value."""
        return local_rule(self.facts, device, [self.network.layers[0].size, *self.sizes[1:]])

    def kept(self, dropped: Iterable[int]) -> frozenset[int]:
        """The storages of all values but these, and of what is saved besides."""
        gone = set(dropped)
        both = ((v, self.count + v) for v in range(self.count) if v not in gone)
        return frozenset(s for s in itertools.chain(*both) if s in self.facts.maker)

    def dropped(self, outcome: Outcome) -> tuple[int, ...]:
        """The values that an outcome does not keep, nor what is saved besides."""
        kept = outcome.kept
        return tuple(
            v for v in self.network.choices() if v not in kept and self._besides(v).isdisjoint(kept)
        )

    def _besides(self, v: int) -> set[int]:
        return {self.count + v} - self.facts.once

    def levels(self, dropped: Iterable[int]) -> list[Level]:
        """The memory of a plan's pass, action by action."""
        moments: list[Moment] = []
        outcome = simulate_step(self.facts, self.kept(dropped), moments)
        last = Action("loss", self.network.output)
        actions: list[Action] = [Action("forward", i) for i in range(self.count)]
        actions += [last, *(self._action(*entry) for entry in outcome.order)]
        levels: list[Level] = []
        for action, moment in list(zip(actions, moments, strict=True))[1:]:
            values = sorted(s for s in moment.freed if s < self.count)
            level = moment.level - sum(self.sizes[s] for s in moment.freed if s >= self.count)
            levels.append(Level(action, max(moment.peak, level), level))
            for v in values:
                levels.append(Level(Action("free", v), level, level - self.sizes[v]))
                level -= self.sizes[v]
        return levels

    def _action(self, at: int, second: bool) -> Action:
        return Action("recompute", at) if second else self.actions[at]


def compile_schedule(
    network: PassNetwork, dropped: Iterable[int], paired: bool = False
) -> tuple[Action, ...]:
    """The actions of one pass in which the `dropped` values are recomputed when needed."""
    return tuple(level.action for level in PassStep(network, paired=paired).levels(dropped))


def simulate(network: PassNetwork, schedule: Sequence[Action]) -> list[Level]:
    """The memory of a schedule, action by action, in bytes above that before the pass."""
    again = [i for kind, i in schedule if kind == "recompute"]
    paired = any(kind == "join" for kind, _ in schedule)
    return PassStep(network, paired=paired).levels(again)


def peak(network: PassNetwork, schedule: Sequence[Action]) -> int:
    """The largest level of a schedule in bytes."""
    return max(level.peak for level in simulate(network, schedule))
