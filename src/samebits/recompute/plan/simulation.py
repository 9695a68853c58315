"""The order and the memory of a step that keeps some storages and computes others again.

Second computations stand right before the backward node that first reads them, each at most once,
and backward nodes keep autograd's order. A storage is freed after the last node that reads it; one
that is computed again has two lives.

Example: the step of `facts`, of which storage 1 (relu's) is not kept but storage 0 is. The backward
pass is: relu again, then the gradient of v, the gradient of relu's result, that of its input. Both
lives of storage 1 count, storage 0 lives until relu has run a second time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from samebits.recompute.plan.facts import StepFacts, StepNode, last_uses


@dataclass(frozen=True)
class Outcome:
    """The step that keeps a set of storages.

    peak:   bytes above those before the step
    at:     place of the peak: of a forward node, or of one of `order` behind all forward nodes
    cost:   picoseconds of second computations
    kept:   storages that the backward pass is given
    order:  the backward pass: nodes, and whether each is a forward node that runs again
    """

    peak: int
    at: int
    cost: int
    kept: frozenset[int]
    order: tuple[tuple[int, bool], ...]

    @property
    def again(self) -> list[int]:
        """Forward nodes that run a second time, in that order."""
        return [at for at, second in self.order if second]


class Moment(NamedTuple):
    """The memory of one node: the largest level while it runs, the level then, and what is freed
    right after it."""

    peak: int
    level: int
    freed: tuple[int, ...]


def simulate(facts: StepFacts, kept: Iterable[int], moments: list[Moment] | None = None) -> Outcome:
    """The step that keeps these storages, and whatever cannot be computed again.

    moments: takes the memory of every forward node, and of every one of the outcome's order
    """
    chosen = facts.once.union(kept)
    order = _order(facts, chosen)
    if facts.whole:
        anew = {s for at, second in order if second for s in facts.forward[at].makes} - facts.once
        if not anew.isdisjoint(chosen):
            chosen -= anew
            order = _order(facts, chosen)
    backward = tuple(facts.again[at] if again else facts.backward[at] for at, again in order)
    read = {s for node in backward for s in node.reads}
    remade = {s for node in backward for s in node.makes}
    needed = frozenset(s for s in read - remade if s in facts.maker) | (chosen & read)
    again = {at for at, second in order if second}
    levels = _Levels(facts, moments)
    for at, node in enumerate(facts.forward):
        levels.run(node, node.state if at in again else 0)
        levels.free(s for s in levels.ending(at) if s not in needed and s not in facts.given)
    last = last_uses(backward)
    ends: dict[int, list[int]] = {}
    for s, at in last.items():
        if s not in facts.gradients and s not in facts.given:
            ends.setdefault(at, []).append(s)
    for at, node in enumerate(backward):
        levels.run(node, back=node.state if order[at][1] else 0)
        levels.free(ends.get(at, ()))
    cost = sum(facts.forward[at].cost for at in again)
    return Outcome(levels.peak, levels.at, cost, needed, order)


def _order(facts: StepFacts, chosen: frozenset[int]) -> tuple[tuple[int, bool], ...]:
    """The backward pass, each second computation before its first reader."""
    there: set[int] = set()  # forward nodes that have run again
    order: list[tuple[int, bool]] = []
    for at, node in enumerate(facts.backward):
        stack = [(s, False) for s in reversed(node.reads)]
        while stack:
            s, ready = stack.pop()
            maker = facts.maker.get(s)
            if maker is None or s in chosen or maker in there:
                continue
            if ready:
                there.add(maker)
                order.append((maker, True))
                continue
            stack.append((s, True))
            stack += [(r, False) for r in reversed(facts.forward[maker].reads)]
        order.append((at, False))
    return tuple(order)


class _Levels:
    """Memory under way."""

    def __init__(self, facts: StepFacts, moments: list[Moment] | None) -> None:
        self.facts, self.live, self.moments = facts, set[int](), moments
        self.level, self.peak, self.at, self.count = facts.held, 0, -1, 0
        self.top = 0
        self.ends: dict[int, list[int]] = {}
        for s, at in facts.last.items():
            self.ends.setdefault(at, []).append(s)

    def run(self, node: StepNode, state: int = 0, back: int = 0) -> None:
        """A node runs: its results are there, and while it runs its temporaries.

        state: bytes that are kept from now on; back: bytes of them that are free after it
        """
        double = sum(self.facts.sizes[s] for s in node.makes if s in self.live)
        new = [s for s in node.makes if s not in self.live]
        self.live.update(new)
        self.level += state + sum(self.facts.sizes[s] for s in new)
        self.top = self.level + double + node.temporary
        if self.top > self.peak:
            self.peak, self.at = self.top, self.count
        self.level -= back
        self.count += 1

    def ending(self, at: int) -> list[int]:
        """The storages that no forward node after this one reads."""
        return self.ends.get(at, [])

    def free(self, storages: Iterable[int]) -> None:
        """Let go of storages, where they are there, after a node."""
        freed = tuple(s for s in storages if s in self.live)
        if self.moments is not None:
            self.moments.append(Moment(self.top, self.level, freed))
        for s in freed:
            self.live.discard(s)
            self.level -= self.facts.sizes[s]
