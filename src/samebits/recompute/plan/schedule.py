"""Sub-layers as plain data, a plan's step as a list of instructions, and its memory, simulated."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

SEPARABLE = ("Conv1d", "Conv2d", "Linear")  # kinds whose two gradients are products apart
LIGHT = 8  # what a sub-layer saves besides values is always kept if below 1/8 of its output


@dataclass(frozen=True)
class SubLayer:
    """Sub-layer i of a step; its output is value i, and value 0 the input. Sizes in bytes.

    size: of the output's storage, 0 for a view. alias: the value of which the output is a view.
    needs: values that its backward pass reads. extra: what it saves besides values and weights.
    forward_peak, backward_peak: largest level while it runs, above the level before.
    gradients: per differentiable input, its storages: k >= 0 is the k-th of `fresh`, -1 - k the
    k-th storage of the gradient that arrived. weights: per trained parameter that it reads, which
    one of the model's it is and the size of its gradient. state: what computing it again needs
    besides its inputs. repeated: it reads one input or weight in several places. random: it draws
    from a generator. statistics: it follows from its input and what its backward pass keeps. apart:
    the largest levels while its activation gradient and then its weight gradient are computed, None
    where they come together only.
    """

    name: str
    kind: str
    inputs: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()
    size: int = 0
    alias: int | None = None
    needs: tuple[int, ...] = ()
    extra: int = 0
    forward_peak: int = 0
    backward_peak: int = 0
    gradients: tuple[tuple[int, tuple[int, ...]], ...] = ()
    fresh: tuple[int, ...] = ()
    weights: tuple[tuple[int, int], ...] = ()
    state: int = 0
    operations: int = 0
    differentiable: bool = True
    repeated: bool = False
    random: bool = False
    statistics: bool = False
    apart: tuple[int, int] | None = None

    @property
    def light(self) -> bool:
        """Whether what it saves besides values is kept even where its output is not."""
        return self.extra * LIGHT <= self.size or self.size == 0


@dataclass(frozen=True)
class Loss:
    """What the loss does to memory, in bytes: kept between its passes; largest levels of both."""

    kept: int = 0
    forward_peak: int = 0
    backward_peak: int = 0
    gradient: int = 0


@dataclass(frozen=True)
class Network:
    """Everything that planning knows: sub-layers in order of execution, the output, the loss.

    summed: gradients of several contributions are kept apart until they are read (BFP).
    """

    layers: tuple[SubLayer, ...]
    output: int
    loss: Loss = field(default_factory=Loss)
    summed: bool = False

    def root(self, value: int) -> int:
        """The value that owns the storage of `value`."""
        return self._roots[value]

    @functools.cached_property
    def _roots(self) -> list[int]:
        roots: list[int] = []
        for i, layer in enumerate(self.layers):  # a view comes after what it is a view of
            roots.append(i if layer.alias is None else roots[layer.alias])
        return roots

    @functools.cached_property
    def views(self) -> list[list[int]]:
        """Per value, itself and the views of it."""
        found: list[list[int]] = [[] for _ in self.layers]
        for i, root in enumerate(self._roots):
            found[root].append(i)
        return found

    def roots(self, values: Iterable[int]) -> list[int]:
        return list(dict.fromkeys(self.root(v) for v in values))

    def choices(self) -> tuple[int, ...]:
        """The values that a plan may drop: outputs with a storage of their own."""
        return tuple(
            i for i, layer in enumerate(self.layers) if i and layer.alias is None and layer.size
        )


Action = Literal[
    "forward",
    "loss",
    "recompute",
    "backward",
    "free",
    "activation gradient",
    "weight gradient",
    "join",
]


class Instruction(NamedTuple):
    """One step of an execution: what to do, with which sub-layer or value.

    "weight gradient" begins one that may go on beside what follows, until its "join".
    """

    action: Action
    value: int


def compile_schedule(
    network: Network, dropped: Iterable[int], paired: bool = False
) -> tuple[Instruction, ...]:
    """The instructions of one pass in which the `dropped` values are recomputed when needed.

    Backward passes run in the reverse order of the forward passes, as autograd runs them. A dropped
    value is computed again once, when it is first read, and every value is freed after its last
    use. paired: the weight gradient of a sub-layer is deferred: it is computed while the chain of
    activation gradients goes on to the next sub-layer that has one, that one's included.
    """
    layers, missing = network.layers, set(dropped)
    events: list[tuple[Instruction, list[int]]] = []  # with the storages it reads or makes
    for i in range(1, len(layers)):
        events.append((Instruction("forward", i), network.roots((*layers[i].inputs, i))))
    events.append((Instruction("loss", network.output), network.roots((network.output,))))
    half = len(events)
    deferred: tuple[Instruction, list[int]] | None = None
    for i in range(len(layers) - 1, 0, -1):
        if not layers[i].differentiable:
            continue
        needs = network.roots(layers[i].needs)
        if i in missing and not layers[i].light:
            needs.append(i)
        for w in _closure(network, needs, missing):
            missing.remove(w)
            events.append((Instruction("recompute", w), network.roots((*layers[w].inputs, w))))
        if not paired or layers[i].apart is None:
            events.append((Instruction("backward", i), needs))
            continue
        events.append((Instruction("activation gradient", i), needs))
        if deferred is not None:
            events.append(deferred)
        events.append((Instruction("weight gradient", i), needs))
        deferred = Instruction("join", i), needs
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
    out: list[Instruction] = []
    for at, (instruction, _) in enumerate(events):
        out.append(instruction)
        out += (Instruction("free", v) for v in sorted(ends.get(at, ())))
    return tuple(out)


def _closure(network: Network, needs: Iterable[int], missing: set[int]) -> list[int]:
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
    """Bytes while an instruction runs (peak) and after it."""

    instruction: Instruction
    peak: int
    after: int


def simulate(network: Network, schedule: Sequence[Instruction]) -> list[Level]:
    """The memory of a schedule, instruction by instruction, in bytes above that before the pass.

    The input counts from the beginning to the end.
    """
    state = Simulation(network, {i for action, i in schedule if action == "recompute"})
    levels = []
    for instruction in schedule:
        top = state.step(instruction)
        levels.append(Level(instruction, max(top, state.level), state.level))
    return levels


def peak(network: Network, schedule: Sequence[Instruction]) -> int:
    """The largest level of a schedule in bytes."""
    return max(level.peak for level in simulate(network, schedule))


class Simulation:
    """The memory of a step under way, when the values `dropped` are computed again."""

    def __init__(self, network: Network, dropped: set[int]) -> None:
        self.network, self.dropped = network, dropped
        self.level = network.layers[0].size
        self.extra: dict[int, int] = {}  # kept with the graph of a sub-layer
        self.sizes: dict[int, int] = {}  # storages of gradients: bytes
        self.counts: dict[int, int] = {}  # and how many gradients use each
        self.gradients: dict[int, list[int]] = {}
        self.weights: set[int] = set()  # that have a gradient

    def step(self, instruction: Instruction) -> int:
        """Go on by one instruction; the largest level while it runs."""
        action, index = instruction
        layer = self.network.layers[index]
        if action == "loss":
            return self._loss()
        if action == "backward":
            return self._backward(index)
        if action in ("activation gradient", "weight gradient", "join"):
            assert layer.apart is not None, "only such sub-layers are deferred"
            return self._apart(action, index, layer.apart)
        top = self.level
        if action == "forward":
            state = layer.state if index in self.dropped else 0
            top += layer.forward_peak + state
            self.level += state
            self._compute(index, index not in self.dropped)
        elif action == "recompute":
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

    def _apart(self, action: Action, index: int, peaks: tuple[int, int]) -> int:
        """A backward pass in three instructions; all of the second's until the third."""
        if index not in self.gradients:
            return self._backward(index) if action == "join" else self.level
        if action == "activation gradient":
            return self._hand_down(index, self.level + peaks[0])
        if action == "weight gradient":
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
