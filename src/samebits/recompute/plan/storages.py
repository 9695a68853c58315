"""Which storages to keep: the cheapest choice found whose simulated peak fits a budget.

Candidates are solutions of the relaxation, which is given the places where a candidate exceeds the
budget, and a lower budget where it knows the place already. Each candidate that fits is improved:
what is dear per byte is kept again while there is room. Where no candidate fits, storages are kept
from the dearest per byte on. Where there are few storages every choice is tried.

Example: within 100 bytes a candidate has a simulated peak of 104, within a second computation,
whose levels the relaxation does not know. It is asked for 97, and what then fits keeps another
storage of 3 bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction

from samebits.errors import InputError
from samebits.recompute.plan.budget import Budget
from samebits.recompute.plan.facts import StepFacts
from samebits.recompute.plan.relaxation import Relaxation
from samebits.recompute.plan.simulation import Outcome, simulate

ROUNDS = 24  # candidates; half of them for many forward nodes
MANY = 120  # forward nodes
STEPS = 1_000_000  # nodes simulated before improving ends
EVERY = 10  # storages of which all choices are tried
FEW = 24  # forward nodes whose smallest peak is sought with storages kept as a whole


def never() -> bool:
    """No limit of time."""
    return False


@dataclass(frozen=True)
class StoragePlan:
    """A choice, the budget in bytes, the peak with everything kept, and the bound of its cost."""

    facts: StepFacts
    outcome: Outcome
    budget: int
    everything: int
    bound: int


class StoragePlanner:
    """Plans a step within any budget.

    steps:   nodes that may be simulated
    expired: says when to end with the best plan so far
    largest: number of forward nodes above which the relaxation is one of real numbers
    limits:  of the solver for each candidate, as `Relaxation` takes them
    """

    def __init__(
        self,
        facts: StepFacts,
        steps: int = STEPS,
        expired: Callable[[], bool] = never,
        largest: int = 1 << 30,
        **limits: float,
    ) -> None:
        self.facts, self.steps, self.left, self.expired = facts, steps, steps, expired
        self.relaxation = Relaxation(facts, len(facts.forward) <= largest, **limits)
        self.rounds = ROUNDS if len(facts.forward) <= MANY else ROUNDS // 2
        self.tried: dict[frozenset[int], Outcome] = {}
        self.everything = self.outcome(facts.saved)

    def __call__(self, budget: Budget) -> StoragePlan:
        """The cheapest plan found. Raises InputError where none fits."""
        full = self.everything.peak
        limit = int(budget * full) if isinstance(budget, Fraction) else budget
        found = self.find(limit)
        if found is None:
            raise InputError(
                f"budget: expected at least {self.least.peak} bytes for this model and batch, "
                f"found {limit}; raise the budget, or make the batch smaller"
            )
        return found

    def find(self, limit: int) -> StoragePlan | None:
        """The cheapest plan found within so many bytes; None if none fits."""
        if self.everything.peak <= limit:
            return self._plan(self.everything, limit, 0)
        best, bound = self._any(limit) if self.few else self._within(limit)
        best = best or self.smallest()
        return None if best.peak > limit else self._plan(best, limit, min(bound, best.cost))

    def _plan(self, outcome: Outcome, limit: int, bound: int) -> StoragePlan:
        return StoragePlan(self.facts, outcome, limit, self.everything.peak, bound)

    @property
    def least(self) -> Outcome:
        """The plan of the smallest peak that was tried."""
        return min(self.tried.values(), key=lambda tried: (tried.peak, tried.cost))

    def regular(self) -> Iterator[Outcome]:
        """Plans that keep nothing, and every second storage, every third and so on.

        On a chain of n equal nodes one kept storage in sqrt(n) is nearly the best (Chen et al.
        2016).
        """
        storages = sorted(self.facts.saved - self.facts.once)
        yield self.outcome(frozenset())
        for distance in (2, 3, 4, 6, 8, 12, 16, 24, 32):
            if distance < len(storages):
                yield self.outcome(frozenset(storages[::distance]))

    def smallest(self) -> Outcome:
        """The plan of the smallest peak that was found.

        The relaxation is asked for less and less, until it has no solution.
        """
        if self.few:
            self._any(0)
            return self.least
        self.left, whole = max(self.left, self.steps // 3), len(self.facts.forward) <= FEW
        asked = min(self.everything.peak, *(outcome.peak for outcome in self.regular()))
        for _ in range(self.rounds):
            found = None if self.expired() else self.relaxation.solve(asked, whole)
            if found is None:
                break
            if not self.relaxation.tighten(self.outcome(found.kept)):
                asked -= asked // 12
        best = self.least
        better = True
        while better:
            better = False
            for s in sorted(self.relaxation.keep, key=lambda s: -self.facts.sizes[s]):
                if self.over:
                    break
                together = self.facts.forward[self.facts.maker[s]].makes
                kept = best.kept - {s} if s in best.kept else best.kept.union(together)
                new = self.outcome(kept)
                if (new.peak, new.cost) < (best.peak, best.cost):
                    best, better = new, True
        return best

    @property
    def few(self) -> bool:
        """Whether all choices can be tried."""
        return len(self.relaxation.keep.keys() - self.facts.once) <= EVERY

    def _any(self, limit: int) -> tuple[Outcome | None, int]:
        """The best of all plans within so many bytes, which is its own bound."""
        storages = sorted(self.relaxation.keep.keys() - self.facts.once)
        for keep in itertools.product((True, False), repeat=len(storages)):
            if self.over:
                return self._within(limit)
            self.outcome(frozenset(itertools.compress(storages, keep)))
        fitting = (tried for tried in self.tried.values() if tried.peak <= limit)
        best = min(fitting, key=lambda outcome: (outcome.cost, outcome.peak), default=None)
        return best, 0 if best is None else best.cost

    def _within(self, limit: int) -> tuple[Outcome | None, int]:
        """The best plan within so many bytes, and the bound of all of them.

        What the relaxation is asked for: less where its candidate does not fit, then more again.
        """
        bound, asked, low, high = 0, limit, 0, limit
        found = [self._improve(seed, limit) for seed in self._seeds(limit)]
        for _ in range(self.rounds):
            if self.expired():
                break
            candidate = self.relaxation.solve(asked)
            if candidate is not None and asked == limit:
                bound = max(bound, candidate.bound)
            outcome = None if candidate is None else self.outcome(candidate.kept)
            if outcome is None:
                low = asked
            elif outcome.peak > limit:
                if self.relaxation.tighten(outcome):
                    continue
                high = asked
            else:
                found.append(self._improve(outcome, limit))
                low = asked
            if high - low <= limit // 128 or low >= limit:
                break
            asked = (low + high) // 2 if low else high - limit // 32
        found += (tried for tried in self.tried.values() if tried.peak <= limit)
        best = min(found, key=lambda outcome: (outcome.cost, outcome.peak), default=None)
        return best, bound

    @property
    def over(self) -> bool:
        """Whether no more plans are to be tried."""
        return self.left < 0 or self.expired()

    def outcome(self, kept: frozenset[int]) -> Outcome:
        """The step that keeps these storages, simulated once."""
        if kept not in self.tried:
            self.left -= len(self.facts.forward) + len(self.facts.backward)
            self.tried[kept] = simulate(self.facts, kept)
        return self.tried[kept]

    def _worth(self, s: int) -> float:
        """Picoseconds per byte of computing a storage again."""
        return self.facts.forward[self.facts.maker[s]].cost / max(1, self.facts.sizes[s])

    def _seeds(self, limit: int) -> list[Outcome]:
        """As much as fits, kept from the dearest per byte on."""
        storages = sorted(self.facts.saved, key=self._worth)
        low, high = 0, len(storages)
        while low < high:
            middle = (low + high) // 2
            if self.outcome(frozenset(storages[middle:])).peak <= limit:
                high = middle
            else:
                low = middle + 1
        outcome = self.outcome(frozenset(storages[low:]))
        return [outcome] if outcome.peak <= limit else []

    def _improve(self, outcome: Outcome, limit: int) -> Outcome:
        """Keep again what fits; then let go of one storage at a time to keep dearer ones."""
        outcome = self._restore(outcome, limit)
        better = True
        while better:
            better = False
            for s in sorted(outcome.kept - self.facts.once, key=self._worth):
                if self.over:
                    break
                without = self.outcome(outcome.kept - {s})
                if without.peak > limit:
                    continue
                new = self._restore(without, limit)
                if new.cost < outcome.cost:
                    outcome, better = new, True
                    break
        return outcome

    def _restore(self, outcome: Outcome, limit: int) -> Outcome:
        """Keep again what fits, the dearest per byte first."""
        forward = self.facts.forward

        def worth(at: int) -> float:
            return max(map(self._worth, forward[at].makes), default=0.0)

        for at in sorted(outcome.again, key=worth, reverse=True):
            if self.over:
                break
            new = self.outcome(outcome.kept.union(forward[at].makes))
            if new.peak <= limit and new.cost < outcome.cost:
                outcome = new
        return outcome
