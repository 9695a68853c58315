"""Which storages to keep: the cheapest choice found whose simulated peak fits a budget.

Candidates are solutions of the relaxation, which is given the places where a candidate exceeds the
budget, and a lower budget where it knows the place already. Each candidate that fits is improved:
what is dear per byte is kept again while there is room. Where no candidate fits, storages are kept
from the dearest per byte on.

Example: within 100 bytes a candidate has a simulated peak of 104, within a second computation,
whose levels the relaxation does not know. It is asked for 97, and what then fits keeps another
storage of 3 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from samebits.errors import InputError
from samebits.recompute.capture.facts import StepFacts
from samebits.recompute.capture.relaxation import Relaxation
from samebits.recompute.capture.simulation import Outcome, simulate
from samebits.recompute.plan.budget import Budget

ROUNDS = 24  # candidates
SECONDS = 5.0  # of the solver, for each
STEPS = 1_000_000  # nodes simulated before improving ends


@dataclass(frozen=True)
class StoragePlan:
    """A choice, the budget in bytes, the peak with everything kept, and the bound of its cost.

    smallest: the smallest peak that is known
    """

    facts: StepFacts
    outcome: Outcome
    budget: int
    everything: int
    bound: int
    smallest: int

    def __str__(self) -> str:
        again, cost = len(self.outcome.again), self.outcome.cost / 1e6
        return (
            f"peak {self.outcome.peak:,} bytes of {self.everything:,} within {self.budget:,}: "
            f"{again} operators run again, {cost:,.1f} us, and at least {self.bound / 1e6:,.1f} us "
            "in any plan"
        )


class StoragePlanner:
    """Plans a step within any budget."""

    def __init__(self, facts: StepFacts) -> None:
        self.facts = facts
        self.relaxation = Relaxation(facts, time_limit=SECONDS)
        self.left = STEPS
        self.tried: dict[frozenset[int], Outcome] = {}
        self.everything = self._try(facts.saved)

    def __call__(self, budget: Budget) -> StoragePlan:
        """The cheapest plan found. Raises InputError where none fits."""
        full = self.everything.peak
        limit = int(budget * full) if isinstance(budget, Fraction) else budget
        if full <= limit:
            return self._plan(self.everything, limit, 0)
        best, bound = self._within(limit)
        if best is None:
            best = self.smallest()
        if best.peak > limit:
            raise InputError(
                f"budget: expected at least {best.peak} bytes for this model and batch, found "
                f"{limit}; raise the budget, or make the batch smaller"
            )
        return self._plan(best, limit, bound)

    def _plan(self, outcome: Outcome, limit: int, bound: int) -> StoragePlan:
        least = min(tried.peak for tried in self.tried.values())
        return StoragePlan(self.facts, outcome, limit, self.everything.peak, bound, least)

    def smallest(self) -> Outcome:
        """The plan of the smallest peak that was found."""
        outcomes = [self._try(frozenset()), self.everything]
        for _ in range(ROUNDS):
            found = self.relaxation.solve(None)
            if found is None:
                break
            outcomes.append(self._try(found.kept))
            if not self.relaxation.tighten(outcomes[-1]):
                break
        best = min(outcomes, key=lambda outcome: (outcome.peak, outcome.cost))
        better = True
        while better and self.left > 0:
            better = False
            for s in sorted(self.relaxation.keep, key=lambda s: -self.facts.sizes[s]):
                new = self._try(best.kept ^ {s})
                if (new.peak, new.cost) < (best.peak, best.cost):
                    best, better = new, True
        return best

    def _within(self, limit: int) -> tuple[Outcome | None, int]:
        """The best plan within so many bytes, and the bound of all of them.

        What the relaxation is asked for: less where its candidate does not fit, then more again.
        """
        bound, asked, low, high = 0, limit, 0, limit
        found = [self._improve(seed, limit) for seed in self._seeds(limit)]
        for _ in range(ROUNDS):
            candidate = self.relaxation.solve(asked)
            if candidate is not None and asked == limit:
                bound = max(bound, candidate.bound)
            outcome = None if candidate is None else self._try(candidate.kept)
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
        best = min(found, key=lambda outcome: (outcome.cost, outcome.peak), default=None)
        return best, bound

    def _try(self, kept: frozenset[int]) -> Outcome:
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
            if self._try(frozenset(storages[middle:])).peak <= limit:
                high = middle
            else:
                low = middle + 1
        outcome = self._try(frozenset(storages[low:]))
        return [outcome] if outcome.peak <= limit else []

    def _improve(self, outcome: Outcome, limit: int) -> Outcome:
        """Keep again what fits; then let go of one storage at a time to keep dearer ones."""
        outcome = self._restore(outcome, limit)
        better = True
        while better:
            better = False
            for s in sorted(outcome.kept - self.facts.once, key=self._worth):
                without = self._try(outcome.kept - {s})
                if without.peak > limit or self.left < 0:
                    continue
                new = self._restore(without, limit)
                if new.cost < outcome.cost:
                    outcome, better = new, True
                    break
        return outcome

    def _restore(self, outcome: Outcome, limit: int) -> Outcome:
        """Keep again what fits, the dearest per byte first."""
        again = [s for n in outcome.again for s in self.facts.forward[n].makes]
        for s in sorted(again, key=self._worth, reverse=True):
            if s in outcome.kept or s in self.facts.once:
                continue
            new = self._try(outcome.kept | {s})
            if new.peak <= limit and new.cost < outcome.cost:
                outcome = new
        return outcome
