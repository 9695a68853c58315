"""A mixed-integer relaxation of planning: its solutions are candidates, its bound holds for all.

Whatever a plan is, these inequalities hold for it, so the least cost that they allow is a lower
bound of every plan's. Variables are, by storage, whether it is kept, and, by forward node, whether
it runs again:

- a storage that the backward pass reads is kept, or its maker runs again;
- so is one that a node reads which runs again;
- at a place, what is certainly in memory fits the budget.

Certain are, at a forward node, what is still read and all that was made and is kept; at a backward
node what was read up to there and will be read again, and what is kept and has yet to be read. A
storage whose first reader is still to come is in memory, too, if it was a link of a second
computation: then so is what that was computed from.

Places are added where a solution, simulated, exceeds the budget. What is left out are the levels
within second computations, so a candidate may still exceed it; the planner then asks for less.
The solver is HiGHS (Huangfu and Hall, Parallelizing the dual revised simplex method, 2018).

Example: storages of 8 bytes that cost 3 and 5 to compute again, from what is always there, and a
budget of 12 at the place where both are needed later. 8 x + 8 y <= 12 keeps one of them at most,
so the bound is 3.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from samebits.recompute.plan.facts import StepFacts, last_uses
from samebits.recompute.plan.simulation import Outcome


@dataclass(frozen=True)
class Relaxed:
    """A solution: storages to keep, and the bound of the cost of every plan (picoseconds)."""

    kept: frozenset[int]
    bound: int


@dataclass
class _Rows:
    """Inequalities: coefficients by variable, and what their sum is at least."""

    places: list[tuple[int, int]] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    least: list[float] = field(default_factory=list)

    def add(self, terms: Iterable[tuple[int, float]], least: float) -> int:
        for variable, value in terms:
            self.places.append((len(self.least), variable))
            self.values.append(value)
        self.least.append(least)
        return len(self.least) - 1


class Relaxation:
    """The inequalities of a step, for any budget.

    Variables are numbered: storages that may be kept, then nodes that may run again, then the peak,
    then links of second computations by place.

    whole:  whether storages are kept as a whole or not; else in parts too, which takes less time
    limits: of the solver, `time_limit` in seconds or `node_limit`, which is the same everywhere
    """

    def __init__(self, facts: StepFacts, whole: bool = True, **limits: float) -> None:
        self.facts, self.whole, self.limits = facts, whole, limits
        storages = _reachable(facts)
        self.keep = {s: at for at, s in enumerate(sorted(storages))}
        nodes = sorted({facts.maker[s] for s in storages - facts.once})
        self.run = {n: len(self.keep) + at for at, n in enumerate(nodes)}
        self.peak = self.count = len(self.keep) + len(self.run)
        self.count += 1
        self.rows = _Rows()
        self.sizes = {s: facts.sizes[s] / _unit(facts) for s in range(len(facts.sizes))}
        self.first: dict[int, int] = {}
        for at, node in enumerate(facts.backward):
            for s in node.reads:
                self.first.setdefault(s, at)
        self.last = last_uses(facts.backward)
        for s in sorted(facts.saved):
            self._there(s, [], 1)
        for n in nodes:
            for s in facts.forward[n].reads:
                self._there(s, [(self.run[n], -1)], 0)
        self.known: set[tuple[str, int]] = set()
        self.add(len(facts.forward) - 1)

    def _there(self, s: int, more: list[tuple[int, float]], least: float) -> None:
        """A storage is kept or its maker runs again."""
        terms = [(self.keep[s], 1.0), *more]
        if (maker := self.run.get(self.facts.maker[s])) is not None and s not in self.facts.once:
            terms.append((maker, 1.0))
        self.rows.add(terms, least)

    def add(self, place: int) -> bool:
        """Add the memory at a forward node, or at a backward node behind all of those; whether it
        is new."""
        half = len(self.facts.forward)
        key = ("forward", place) if place < half else ("backward", place - half)
        if key in self.known:
            return False
        self.known.add(key)
        (self._forward if place < half else self._backward)(key[1])
        return True

    def tighten(self, outcome: Outcome) -> bool:
        """Add the place where a step has its peak; whether it is new."""
        half = len(self.facts.forward)
        if outcome.at < half:
            return self.add(outcome.at)
        at = outcome.at - half
        while outcome.order[at][1]:  # a second computation: the backward node that it is for
            at += 1
        return self.add(half + outcome.order[at][0])

    def _limit(self, certain: float, terms: list[tuple[int, float]]) -> None:
        """held + certain + terms <= peak."""
        certain += self.facts.held / _unit(self.facts)
        self.rows.add([(self.peak, 1.0), *((v, -size) for v, size in terms)], certain)

    def _forward(self, place: int) -> None:
        facts, made = self.facts, [s for n in self.facts.forward[: place + 1] for s in n.makes]
        held = {s for s in made if facts.last[s] >= place or s in facts.given}
        certain = sum(self.sizes[s] for s in held)
        certain += facts.forward[place].temporary / _unit(facts)
        kept = [(self.keep[s], self.sizes[s]) for s in made if s in self.keep and s not in held]
        self._limit(certain, kept + self._states(place))

    def _states(self, place: int) -> list[tuple[int, float]]:
        forward = self.facts.forward
        nodes = [n for n in self.run if n <= place and forward[n].state]
        return [(self.run[n], forward[n].state / _unit(self.facts)) for n in nodes]

    def _backward(self, place: int) -> None:
        """Add the memory at a backward node, with a variable for every link of a second
        computation that may have run by then."""
        facts = self.facts
        node = facts.backward[place]
        held = set(facts.given)
        for earlier in facts.backward[: place + 1]:
            held.update(s for s in (*earlier.makes, *earlier.reads) if self.last[s] >= place)
            held.update(s for s in earlier.makes if s in facts.gradients)
        certain = sum(self.sizes[s] for s in held) + node.temporary / _unit(facts)
        later = {s for s in self.keep if self.first.get(s, -1) > place and s not in held}
        link: dict[int, int] = {}  # storages that may have been computed again by then

        def made(s: int) -> tuple[int, float] | None:
            """The variable that says so, and what to add to it; None if it cannot be."""
            if s in facts.once:
                return None
            if self.first.get(s, len(facts.backward)) <= place:
                return self.keep[s], -1.0
            return (link[s], 1.0) if s in link else None

        order = sorted(self.keep, key=lambda s: -facts.maker[s])
        readers: dict[int, list[int]] = {}
        for s in order:
            for r in facts.forward[facts.maker[s]].reads:
                readers.setdefault(r, []).append(s)
        open_ = [s for s in order if self.first.get(s, len(facts.backward)) > place]
        terms = [(self.keep[s], self.sizes[s]) for s in open_ if s in later]

        def implied(s: int, others: Iterable[int]) -> None:
            """Where one of the others was made again, this was kept, or made again too."""
            rows = [row for t in others if t != s and (row := made(t)) is not None]
            if rows and s not in facts.once and s not in link:
                link[s] = self.count
                self.count += 1
                terms.extend([(link[s], self.sizes[s])] if s in later else [])
            for variable, sign in rows if s in link else ():
                parts = [(link[s], 1.0), (self.keep[s], 1.0), (variable, -sign)]
                self.rows.add(parts, 0.0 if sign > 0 else 1.0)

        for s in open_:
            implied(s, readers.get(s, ()))
        for s in open_:  # what one node makes
            implied(s, [t for t in facts.forward[facts.maker[s]].makes if t in self.keep])
        for s in order:  # kept for a second computation that is still to come
            if s in held or s in later:
                continue
            for t in readers.get(s, ()):
                run = self.run.get(facts.maker[t])
                if run is None or self.first.get(t, len(facts.backward)) <= place:
                    continue
                row = [(self.count, 1.0), (self.keep[s], -1.0), (run, -1.0)]
                self.rows.add(row + ([(link[t], 1.0)] if t in link else []), -1.0)
                terms.append((self.count, self.sizes[s]))
                self.count += 1
                break
        self._limit(certain, terms)

    def solve(self, budget: int, whole: bool = True) -> Relaxed | None:
        """The cheapest solution within `budget` bytes; None if there is none, or none was found in
        time. Not `whole`: with storages kept in parts, whatever the relaxation is."""
        whole = whole and self.whole
        unit, facts = _unit(self.facts), self.facts
        objective = np.zeros(self.count)
        scale = max((node.cost for node in facts.forward), default=0) or 1
        for n, variable in self.run.items():
            objective[variable] = facts.forward[n].cost / scale
        upper = np.ones(self.count)
        upper[self.peak] = budget / unit
        integral = np.zeros(self.count)
        integral[: len(self.keep)] = whole
        places = np.array(self.rows.places).T
        shape = (len(self.rows.least), self.count)
        matrix = csr_array((np.array(self.rows.values), places), shape=shape)
        found = milp(
            objective,
            integrality=integral,
            bounds=Bounds(np.zeros(self.count), upper),
            constraints=LinearConstraint(matrix, np.array(self.rows.least), np.inf),
            options={"mip_rel_gap": 1e-3, **self.limits},
        )
        if found.x is None:
            return None
        kept = frozenset(s for s, at in self.keep.items() if found.x[at] > 0.5)
        dual = (found.mip_dual_bound if whole else found.fun) or 0
        least = dual * scale * (1 - 1e-6)
        return Relaxed(kept, max(0, math.ceil(least)))


def _reachable(facts: StepFacts) -> frozenset[int]:
    """Storages from which what the backward pass reads is computed."""
    found, stack = set[int](), list(facts.saved)
    while stack:
        s = stack.pop()
        if s not in found:
            found.add(s)
            if s not in facts.once:
                stack += facts.forward[facts.maker[s]].reads
    return frozenset(found)


def _unit(facts: StepFacts) -> float:
    """Bytes that count as one, so that the solver meets no large numbers."""
    return max(1, max(facts.sizes, default=1))
