"""A plan's step as a list of actions, and the memory of such a list, simulated.

A plan is a set of values to drop. The set fixes the actions, for three reasons: backward passes run
in autograd's order, whatever is dropped; a dropped value is computed again as late as possible,
just before the first backward pass that reads it, and at most once; and every value is freed after
the last action that reads it, so that it is in memory only between its making and its last use.
Simulating the list action by action gives its peak without running anything.

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
therefore no question of their size alone, and is searched for (`optimum`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from samebits.recompute.network.sublayer import PassNetwork

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


class Action(NamedTuple):
    """One thing that an execution does, with a sub-layer or a value.

    A "weight gradient" may be computed beside the actions that follow, until its "join".
    """

    kind: ActionKind
    value: int


def compile_schedule(
    network: PassNetwork, dropped: Iterable[int], paired: bool = False
) -> tuple[Action, ...]:
    """The actions of one pass in which the `dropped` values are recomputed when needed.

    Backward passes run in the reverse order of the forward passes, as autograd runs them. A dropped
    value is computed again once, when it is first read, and every value is freed after its last
    use. A value that is computed again has two lives: it is freed after its last reader of the
    forward pass, and again after its last reader of the backward pass.

    paired: weight gradients are deferred, each until the activation gradient of the next sub-layer
    that has one is there:

        activation gradient 3, weight gradient 3, activation gradient 2, join 3, weight gradient 2
    """
    layers, missing = network.layers, set(dropped)
    events: list[tuple[Action, list[int]]] = []  # with the storages it reads or makes
    for i in range(1, len(layers)):
        events.append((Action("forward", i), network.roots((*layers[i].inputs, i))))
    events.append((Action("loss", network.output), network.roots((network.output,))))
    half = len(events)
    deferred: tuple[Action, list[int]] | None = None
    for i in range(len(layers) - 1, 0, -1):
        if not layers[i].differentiable:
            continue
        needs = network.roots(layers[i].needs)
        if i in missing and not layers[i].light:
            needs.append(i)
        for w in _closure(network, needs, missing):
            missing.remove(w)
            events.append((Action("recompute", w), network.roots((*layers[w].inputs, w))))
        if not paired or layers[i].apart is None:
            events.append((Action("backward", i), needs))
            continue
        events.append((Action("activation gradient", i), needs))
        if deferred is not None:
            events.append(deferred)
        events.append((Action("weight gradient", i), needs))
        deferred = Action("join", i), needs
    if deferred is not None:
        events.append(deferred)
    last: dict[int, int] = {}
    first_life: dict[int, int] = {}
    recomputed = set(dropped) - missing
    for at, (_, touched) in enumerate(events):
        for v in touched:
            last[v] = at
            if at < half:
                first_life[v] = at
    ends: dict[int, list[int]] = {}
    for v, at in last.items():
        ends.setdefault(at, []).append(v)
    for v in recomputed:
        ends.setdefault(first_life[v], []).append(v)
    out: list[Action] = []
    for at, (action, _) in enumerate(events):
        out.append(action)
        out += (Action("free", v) for v in sorted(ends.get(at, ())))
    return tuple(out)


def _closure(network: PassNetwork, needs: Iterable[int], missing: set[int]) -> list[int]:
    """The missing values from which `needs` follow, in the order of computation."""
    found: set[int] = set()
    stack = [v for v in needs if v in missing]
    while stack:
        v = stack.pop()
        if v not in found:
            found.add(v)
            stack += (r for r in network.roots(network.layers[v].inputs) if r in missing)
    return sorted(found)


class Level(NamedTuple):
    """The memory of one action in bytes: the largest level while it runs, and the level after."""

    action: Action
    peak: int
    after: int


def simulate(network: PassNetwork, schedule: Sequence[Action]) -> list[Level]:
    """The memory of a schedule, action by action, in bytes above that before the pass.

    The input counts from the beginning to the end.
    """
    state = Simulation(network, {i for kind, i in schedule if kind == "recompute"})
    levels = []
    for action in schedule:
        top = state.step(action)
        levels.append(Level(action, max(top, state.level), state.level))
    return levels


def peak(network: PassNetwork, schedule: Sequence[Action]) -> int:
    """The largest level of a schedule in bytes."""
    return max(level.peak for level in simulate(network, schedule))


class Simulation:
    """The memory of a step under way, when the values `dropped` are computed again.

    Gradients are counted by storage: a backward pass may hand on the storage of the gradient that
    arrived, as a residual sum does, so a storage is freed when the last gradient in it is used up.
    level: bytes at present, above those before the pass; the input counts throughout.
    """

    def __init__(self, network: PassNetwork, dropped: set[int]) -> None:
        self.network, self.dropped = network, dropped
        self.level = network.layers[0].size
        self.extra: dict[int, int] = {}  # kept with the graph of a sub-layer
        self.sizes: dict[int, int] = {}  # storages of gradients: bytes
        self.counts: dict[int, int] = {}  # and how many gradients use each
        self.gradients: dict[int, list[int]] = {}
        self.weights: set[int] = set()  # that have a gradient

    def step(self, action: Action) -> int:
        """Go on by one action; the largest level while it runs."""
        kind, index = action
        layer = self.network.layers[index]
        if kind == "loss":
            return self._loss()
        if kind == "backward":
            return self._backward(index)
        if kind in ("activation gradient", "weight gradient", "join"):
            assert layer.apart is not None, "only such sub-layers are deferred"
            return self._apart(kind, index, layer.apart)
        top = self.level
        if kind == "forward":
            state = layer.state if index in self.dropped else 0
            top += layer.forward_peak + state
            self.level += state
            self._compute(index, index not in self.dropped)
        elif kind == "recompute":
            top += layer.forward_peak
            self._compute(index, not layer.light)
            self.level -= layer.state
        elif index:
            self.level -= layer.size
        return top

    def _compute(self, index: int, keep: bool) -> None:
        layer = self.network.layers[index]
        self.level += layer.size
        keep = keep or (layer.light and index not in self.extra)
        if layer.differentiable and keep and index not in self.extra:
            self.extra[index] = layer.extra
            self.level += layer.extra

    def _loss(self) -> int:
        loss = self.network.loss
        top = self.level + loss.forward_peak
        top = max(top, self.level + loss.kept + loss.backward_peak)
        gradient = self._new(loss.gradient)
        self.counts[gradient] += 2  # autograd holds what it handed over until the pass is done
        self.gradients[self.network.output] = [gradient]
        return top

    def _backward(self, index: int) -> int:
        layer = self.network.layers[index]
        if index not in self.gradients:
            self.level -= self.extra.pop(index, 0)
            return self.level
        top = self._hand_down(index, self.level + layer.backward_peak)
        self._finish(index)
        return top

    def _apart(self, kind: ActionKind, index: int, peaks: tuple[int, int]) -> int:
        """A backward pass in three actions; all of the second's until the third."""
        if index not in self.gradients:
            return self._backward(index) if kind == "join" else self.level
        if kind == "activation gradient":
            return self._hand_down(index, self.level + peaks[0])
        if kind == "weight gradient":
            self.level += peaks[1]
            return self.level
        top = self.level
        self.level -= peaks[1]
        self._finish(index)
        return top

    def _hand_down(self, index: int, top: int) -> int:
        """Gradients of a sub-layer's inputs; the largest level, `top` at least."""
        layer, arrived = self.network.layers[index], self.gradients[index]
        fresh = [self._new(size) for size in layer.fresh]
        for v, storages in layer.gradients:
            own = [arrived[-1 - s] if s < 0 else fresh[s] for s in storages]
            top = max(top, self._accumulate(v, own, all(s >= 0 for s in storages)))
        return top

    def _finish(self, index: int) -> None:
        """The end of a backward pass: what it read is free, gradients of weights are there."""
        for storage in self.gradients.pop(index):
            self._release(storage)
        self.level -= self.extra.pop(index, 0)
        for weight, size in self.network.layers[index].weights:
            if weight not in self.weights or self.network.summed:
                self.weights.add(weight)
                self.level += size

    def _accumulate(self, value: int, storages: list[int], fresh: bool) -> int:
        """Give a value another gradient; the largest level meanwhile.

        The second contribution is added as `Pass` adds it: in BFP both are kept until the sum is
        read; in float32 it takes the first one in if it is new memory (`fresh`), else a third
        storage of 4 bytes an element holds the sum.
        """
        for storage in storages:
            self.counts[storage] += 1
        old = self.gradients.get(value)
        if old is None:
            self.gradients[value] = storages
        elif self.network.summed:
            self.gradients[value] = old + storages
        elif fresh:  # added into the newer one
            self.gradients[value] = storages
            for storage in old:
                self._release(storage)
        else:
            self.gradients[value] = [self._new(4 * math.prod(self.network.layers[value].shape))]
            self.counts[self.gradients[value][0]] += 1
            top = self.level
            for storage in (*old, *storages):
                self._release(storage)
            return top
        return self.level

    def _new(self, size: int) -> int:
        storage = len(self.sizes)
        self.sizes[storage], self.counts[storage] = size, 0
        self.level += size
        return storage

    def _release(self, storage: int) -> None:
        self.counts[storage] -= 1
        if self.counts[storage] == 0:
            self.level -= self.sizes[storage]
