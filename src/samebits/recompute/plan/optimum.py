"""The values to drop: the cheapest plan whose peak fits a budget, and the smallest peak.

Method: dynamic programming (Bellman 1957) from the middle of the step outwards. The step is folded
at its loss, so that sub-layer by sub-layer, from the last to the first, the forward and the
backward pass of one sub-layer are met together:

    forward 1   forward 2   forward 3   loss   backward 3   backward 2   backward 1
                            |<------- met first ------->|
                |<-------------------- met next -------------------->|

Why this works. When the search has come to sub-layer i, everything that it has met runs between the
forward and the backward pass of i. A value before i that is stored is in memory during all of that.
So to store it raises every level met so far by its size, whatever these levels are: of all of them
only the largest, `top`, has to be known. A partial plan is then three things: what is decided of
each value it has met (its key), its `top`, and its cost. Two partial plans of one key have the same
future: any completion of one completes the other, adds the same cost to both, raises both tops by
the same bytes and meets the same levels. One that is beaten in both numbers can be forgotten. What
remains for a key is a front of plans that trade cost for memory; and since every choice was made in
some plan, the cheapest complete plan within the budget is the cheapest of all subsets of values.

A value is decided when the search first meets a sub-layer that reads it (or a view of it) in its
forward or backward pass, or when something that has to be computed again follows from it. Decided
means one of: stored; dropped and still missing; dropped and computed again.

Example: the tape of `schedule`, with times 6, 3, 1, 2 for values 1 to 4, within 37 bytes. `top` is
in bytes and does not count the values that are undecided.

    met          partial plans, with cost and top
    loss         4 dropped (nothing reads it again)                              0    8
    linear       a: 3 stored                                                     0   22
                 b: 3 dropped, computed again from 2, which is stored for it     1   30
                 (3 again from 2, and 2 from 1: 38 bytes, over the budget: cut)
    gelu         a: 2 stored                                                     0   30
                 b: 2 is stored already: the key of a, beaten by its cost        1   30
                 (2 dropped, computed again from 1: 38 bytes, cut)
    norm         a: 1 dropped, computed again from the input                     6   30
                 (1 stored: 38 bytes, cut)

The result drops value 1 at a cost of 6 and has a peak of 30. A greedy choice would have dropped
value 3 first, whose time is the smallest, and value 2 next, and would never have come below 38.

Where a network has too many partial plans, those of the best lower bound are kept. The smallest
bound of what was left out is a lower bound of every plan that the search did not see, and the
result says so (`Choice.bound`). The time of a search is limited by counting its steps, so that
every machine finds the same plan; a clock ends it only where a limit of time was asked for.

A step is a way to decide a value, to follow a chain of values to compute again, or to free a value
early: all three may be exponentially many where one sub-layer reads dozens of values, as the
concatenations of a DenseNet do, so all three are counted, and none is followed without a share.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from samebits.recompute.network.sublayer import PassNetwork
from samebits.recompute.plan.bound import IMPOSSIBLE, Knapsack, bits
from samebits.recompute.plan.greedy import by_worth, cost_of, regular, restore
from samebits.recompute.plan.schedule import Simulation, compile_schedule, peak

WORK = 200_000  # steps of one search: what bounds its time, the same on every machine


@dataclass(frozen=True)
class Choice:
    """A choice of values to drop.

    cost:  time of what is computed again
    peak:  in bytes
    bound: no choice within the same budget costs less (for `smallest`: needs fewer bytes)
    """

    dropped: tuple[int, ...]
    cost: int
    peak: int
    bound: int


def never() -> bool:
    """No limit of time."""
    return False


def cheapest(
    network: PassNetwork,
    costs: Sequence[int],
    budget: int,
    expired: Callable[[], bool] = never,
    part: int = 1,
) -> Choice | None:
    """The cheapest choice of at most `budget` bytes, of those the one of the smallest peak.

    costs:   of computing each sub-layer once, integers >= 0
    expired: says when to end with the best choice so far; steps are limited without it
    part:    takes one part in so many of a search's steps

    None if no choice is found. A quick search comes first; if its choice is not proven to be the
    cheapest, choices without a search (`greedy`) and that one let the thorough search leave out
    what cannot be better.
    """
    search, work = _Search(network, costs, budget, expired), WORK // part
    found, bound = search.run(work // 8, IMPOSSIBLE)
    if found is not None and bound == found.cost:
        return found
    candidates = [] if found is None else [found.dropped]
    worth = by_worth(network, costs, budget)
    candidates += [] if worth is None else [worth]
    choices = [
        _choice(network, costs, restore(network, costs, dropped, budget, expired))
        for dropped in candidates
    ]
    most = min((choice.cost for choice in choices), default=IMPOSSIBLE)
    better, higher = search.run(work, most)
    choices += [] if better is None else [better]
    if not choices:
        return None
    best = min(choices, key=lambda choice: (choice.cost, choice.peak))
    return replace(best, bound=min(max(bound, higher), best.cost))


def smallest(
    network: PassNetwork, costs: Sequence[int], expired: Callable[[], bool] = never
) -> Choice:
    """The choice of the smallest peak: that of the search, where no regular one needs as little."""
    found, bound = _Search(network, costs, None, expired).run(WORK, IMPOSSIBLE)
    best = least_regular(network, costs)
    if found is not None and (found.peak, found.cost) < (best.peak, best.cost):
        best = found
    return replace(best, bound=min(bound, best.peak))


def least_regular(network: PassNetwork, costs: Sequence[int]) -> Choice:
    """The choice of the smallest peak among the regular ones, of which nothing is proven."""
    choices = (_choice(network, costs, dropped) for dropped in (*regular(network), ()))
    return min(choices, key=lambda choice: (choice.peak, choice.cost))


def _choice(network: PassNetwork, costs: Sequence[int], dropped: tuple[int, ...]) -> Choice:
    """A choice of which nothing is proven."""
    level = peak(network, compile_schedule(network, dropped))
    return Choice(dropped, cost_of(network, costs, dropped), level, 0)


_LEAST = 16  # steps that every partial plan may take at a sub-layer


class _Key(NamedTuple):
    """The decisions about values before the present sub-layer, as bit masks.

    stored:  in memory from the forward pass on, until the last backward pass that reads it (or its
             sub-layer keeps what is needed besides values: see `_Search._enter`)
    missing: dropped, and not yet computed again
    again:   dropped, and computed again
    present: in memory now, in the backward pass

    A value in none of the first three is undecided. Values at and after the present sub-layer have
    left the key: nothing that is still to come depends on them.
    """

    stored: int
    missing: int
    again: int
    present: int


class _Plan(NamedTuple):
    """A partial plan.

    cost, top: of what is met so far; the largest level in bytes, undecided values left out
    live:  bytes of decided values, and of what is kept with them, at the present place of the
           backward pass
    ahead: the same for the forward pass, values on their way to a later reader left out
    dropped: values dropped so far, as a bit mask

    live and ahead follow from the key.
    """

    cost: int
    top: int
    live: int
    ahead: int
    dropped: int


class _Search:
    """The search of one network within one budget; without a budget, for the smallest peak."""

    def __init__(
        self,
        network: PassNetwork,
        costs: Sequence[int],
        budget: int | None,
        expired: Callable[[], bool],
    ) -> None:
        """Prepare everything that no decision changes, as tables and bit masks by sub-layer.

        heavy, light: what a sub-layer saves besides values, kept with the value only or always; the
                      latter added up from the first sub-layer on
        reads, needs, readers: values that the forward pass, and the backward pass, of a sub-layer
                      reads; sub-layers that read a value
        need_below:   values that the backward pass of any sub-layer before i reads
        entries:      values to decide when the search meets a sub-layer, which is the last to touch
                      them in the forward pass or the last whose backward pass reads them
        leaving:      values whose last reader of the forward pass is a sub-layer
        passing:      bytes of values that are on their way to a reader at or after a sub-layer
        """
        self.network, self.costs, self.budget, self.expired = network, costs, budget, expired
        layers = network.layers
        self.count = count = len(layers)
        self.size = [layer.size for layer in layers]
        self.heavy = [0 if x.light or not x.differentiable else x.extra for x in layers]
        light = [x.extra if x.light and x.differentiable else 0 for x in layers]
        self.light = list(itertools.accumulate(light))
        self.may = sum(1 << v for v in network.choices())
        self.reads = [self._mask(layer.inputs) & ~(1 << i) for i, layer in enumerate(layers)]
        self.reads.append(0)
        self.needs = [self._mask(layer.needs) if layer.differentiable else 0 for layer in layers]
        self.readers = [0] * count
        self.need_below = [0] * (count + 1)  # values that a backward pass before i reads
        touched = list(range(count))  # last sub-layer of the forward pass that does
        for i in range(1, count):
            self.need_below[i + 1] = self.need_below[i] | self.needs[i]
            for v in (*bits(self.reads[i]), network.root(i)):
                touched[v] = i
            for v in bits(self.reads[i]):
                self.readers[v] |= 1 << i
        touched[network.root(network.output)] = count
        self.entries: list[list[int]] = [[] for _ in range(count + 1)]
        self.leaving: list[int] = [0] * (count + 1)
        self.passing = [0] * (count + 2)  # bytes of values on their way to a later reader
        for v in bits(self.may):
            last_need = max((i for i in range(count) if self.needs[i] >> v & 1), default=0)
            self.entries[max(touched[v], last_need)].append(v)
            self.leaving[touched[v]] |= 1 << v
            for i in range(v + 1, touched[v] + 1):
                self.passing[i] += self.size[v]
        self.never = self._never_stored()
        self._gradients()
        worth = [(c << 64) // max(size, 1) for c, size in zip(costs, self.size, strict=True)]
        order = sorted(bits(self.may & self.need_below[count]), key=lambda v: (worth[v], v))
        self._sacks = [
            Knapsack([v for v in order if v < i], self.size, costs) for i in range(count + 1)
        ]
        self._to_come = [] if budget is None else self._levels_to_come()

    def _mask(self, values: Sequence[int]) -> int:
        mask = 0
        for v in self.network.roots(values):
            mask |= 1 << v
        return mask & self.may

    def _never_stored(self) -> int:
        """Values that only one forward pass w reads, no backward pass, and not smaller than w's.

        To store the result of w instead is never worse: it is no larger, no backward pass misses
        the value, and w need not be computed again.
        """
        mask = 0
        for v in bits(self.may & ~self.need_below[self.count]):
            readers = self.readers[v]
            w = readers.bit_length() - 1
            if readers and readers == 1 << w and self.may >> w & 1:
                light = not self.heavy[v] and not self.heavy[w]
                if light and self.size[w] <= self.size[v]:
                    mask |= 1 << v
        return mask

    def _gradients(self) -> None:
        """Levels of everything that no plan changes: gradients and scratch memory.

        Simulated once on the network without values: before[i] is the level before the backward
        pass of i, during[i] and after[i] how far it rises in it and behind it.
        """
        layers = tuple(replace(layer, size=0, extra=0) for layer in self.network.layers)
        bare = replace(self.network, layers=layers)
        base = self.network.layers[0].size
        self.base, self.loss_peak = base, 0
        self.before, self.during, self.after = ([0] * self.count for _ in range(3))
        state = Simulation(bare, set())
        for action in compile_schedule(bare, ()):
            level, top = state.level, state.step(action)
            if action.kind == "loss":
                self.loss_peak = max(top, state.level)
            elif action.kind == "backward":
                i = action.value
                self.before[i] = level + base
                self.during[i], self.after[i] = top - level, state.level - level

    # --- the search -----------------------------------------------------------------------

    def run(self, work: int, most: int) -> tuple[Choice | None, int]:
        """The best complete plan of a cost of at most `most`, None if the search finds none; and a
        cost (without a budget: a peak) below which there is no plan.

        `work` steps are shared out evenly over the sub-layers that remain, and over the partial
        plans at each; what one does not use goes to the next. A plan that runs out of its share is
        cut off, and its lower bound joins the bound of the result. When time is over all are.
        """
        plans = [(_Key(0, 0, 0, 0), _Plan(0, 0, 0, 0, 0))]
        cut, self.loose = most, 0
        for i in range(self.count, 0, -1):
            width = max(work // (i * _LEAST), 1)
            plans, lost, taken = self._enter(i, plans, width, most)
            cut, work = min(cut, lost), work - taken
            grown: dict[_Key, list[_Plan]] = {}
            quota = work // i
            for at, (key, plan) in enumerate(plans):
                if self.expired():
                    least = (self._least(min(i + 1, self.count), *rest) for rest in plans[at:])
                    return None, min(cut, *least, *self._leasts(i, grown))
                self.left = share = max(quota // (len(plans) - at), _LEAST)
                for new_key, new in self._step(i, key, plan):
                    if self.budget is None or new.top <= self.budget:
                        grown.setdefault(new_key, []).append(new)
                if self.left < 0:
                    cut = min(cut, self._least(i + 1, key, plan))
                quota, work = quota - share + self.left, work - share + self.left
            plans, lost = self._select(i, grown, max(work // (i * _LEAST), 1), most)
            cut = min(cut, lost)
        found = [plan for _, plan in plans]
        if not found:
            return None, cut
        if self.budget is None:
            best = min(found, key=lambda plan: (plan.top, plan.cost))
            bound = min(cut, best.top)
        else:
            best = min(found, key=lambda plan: (plan.cost, plan.top))
            bound = min(cut, best.cost)
        dropped = tuple(bits(best.dropped))
        return replace(_choice(self.network, self.costs, dropped), bound=bound), bound

    def _leasts(self, i: int, grown: dict[_Key, list[_Plan]]) -> Iterator[int]:
        """The lower bounds of the partial plans at sub-layer i."""
        for key, plans in grown.items():
            for plan in plans:
                yield self._least(i, key, plan)

    def _least(self, i: int, key: _Key, plan: _Plan) -> int:
        """A lower bound of all completions of a partial plan, in cost, or without budget in top."""
        if self.budget is None:
            return plan.top
        return plan.cost + self._bound(i, key, plan.top)

    def _select(
        self, i: int, grown: dict[_Key, list[_Plan]], width: int, most: int
    ) -> tuple[list[tuple[_Key, _Plan]], int]:
        """The plans that none of their key beats, at most `width`, and the best bound left out.

        Sorted by cost, a plan is on the front of its key if its top is below that of all before it.
        If there are too many, half of those kept are the best by bound and half by top.
        """
        ranked: list[tuple[int, int, int, _Key, _Plan]] = []
        for key, front in grown.items():
            if self.budget is None:
                plan = min(front, key=lambda plan: (plan.top, plan.cost))
                ranked.append((plan.top, plan.cost, len(ranked), key, plan))
                continue
            least = IMPOSSIBLE
            for plan in sorted(front):
                if plan.top < least:
                    least = plan.top
                    bound = self._least(i, key, plan)
                    if bound <= most:
                        ranked.append((bound, plan.top, len(ranked), key, plan))
        ranked.sort(key=lambda entry: entry[:3])
        lost = IMPOSSIBLE
        if len(ranked) > width:
            # Half of them by cost, half by level: the cheapest may come to nothing later.
            rest = sorted(ranked[width // 2 :], key=lambda entry: (entry[1], entry[0], entry[2]))
            half = max(width - width // 2, 1)
            lost = min(entry[0] for entry in rest[half:])
            ranked = sorted(ranked[: width // 2] + rest[:half], key=lambda entry: entry[2])
        return [entry[3:] for entry in ranked], lost

    def _bound(self, i: int, key: _Key, top: int) -> int:
        """A cost that every completion adds to a partial plan, whose values up to i are met.

        Two kinds of levels would exceed the budget if all undecided values were stored: the top,
        and those that are still to come (`_to_come`), where no value before them is decided.
        """
        assert self.budget is not None
        decided = key.stored | key.missing | key.again
        low = (decided & -decided).bit_length() - 1 if decided else i
        return max(self._sacks[i].least(self.budget - top, decided), self._to_come[low])

    def _levels_to_come(self) -> list[int]:
        """Per sub-layer i, a cost that the levels up to i's backward pass ask for.

        In the backward pass of j all stored values before it that it or an earlier one needs are in
        memory, beside gradients and what is kept always.
        """
        assert self.budget is not None
        found = [0] * (self.count + 1)
        for j in range(1, self.count):
            found[j + 1] = found[j]
            if self.network.layers[j].differentiable:
                during, after = self.light[j] + self.during[j], self.light[j - 1] + self.after[j]
                rest = self.before[j] + max(during, after)
                unneeded = ~self.need_below[j + 1]
                least = self._sacks[j].least(self.budget - rest, unneeded)
                found[j + 1] = max(found[j], least)
        return found

    # --- one sub-layer --------------------------------------------------------------------

    def _step(self, i: int, key: _Key, plan: _Plan) -> Iterator[tuple[_Key, _Plan]]:
        """All partial plans that follow from one at sub-layer i, or at the loss after the last.

        Its values are decided (`_enter`). The forward pass is met, then the backward pass; at last
        value i itself leaves the key. A plan in which it is still in memory then is left out, as
        it was kept for nothing, unless it was kept for want of steps to follow both ways.
        """
        plan = self._ahead(i, key, plan)
        outcomes: Iterator[tuple[_Key, _Plan]] = iter([(key, plan)])
        if i == self.count:
            outcomes = self._loss(key, plan)
        elif self.network.layers[i].differentiable:
            outcomes = self._backward(i, key, plan)
        for after, grown in outcomes:
            if i < self.count:
                bit = 1 << i
                if after.present & bit:
                    if not self.loose & bit:
                        continue  # kept for a use that never came
                    grown = grown._replace(live=grown.live - self.size[i])
                if (after.stored | after.again) & bit and self.heavy[i]:
                    ahead = grown.ahead - (self.heavy[i] if after.stored & bit else 0)
                    grown = grown._replace(live=grown.live - self.heavy[i], ahead=ahead)
                if after.again & bit:
                    grown = grown._replace(ahead=grown.ahead - self.network.layers[i].state)
                after = _Key(*(mask & ~bit for mask in after))
            yield after, grown

    def _enter(
        self, i: int, plans: list[tuple[_Key, _Plan]], width: int, most: int
    ) -> tuple[list[tuple[_Key, _Plan]], int, int]:
        """The plans with all values decided that sub-layer i is the last to meet in the forward
        pass; the best bound left out; the steps it took.

        One value after the other, so that there are never more than a few times `width` plans.
        """
        lost, taken = IMPOSSIBLE, 0
        for v in self.entries[i]:
            decided = [after for key, plan in plans for after in self._decide(i, v, key, plan)]
            taken += len(decided) - len(plans)
            if len(decided) > width:
                grown: dict[_Key, list[_Plan]] = {}
                for key, plan in decided:
                    grown.setdefault(key, []).append(plan)
                decided, left_out = self._select(i, grown, width, most)
                lost = min(lost, left_out)
            plans = decided
        # On its way from here on: counted with `passing`, stored or not.
        for at, (key, plan) in enumerate(plans):
            if leaving := self.leaving[i] & key.stored:
                size = sum(self.size[v] for v in bits(leaving))
                plans[at] = key, plan._replace(ahead=plan.ahead - size)
        return plans, lost, taken

    def _decide(self, i: int, v: int, key: _Key, plan: _Plan) -> Iterator[tuple[_Key, _Plan]]:
        """A partial plan with value v decided, for every way to do so.

        Three ways: store; drop; and free, for a heavy sub-layer whose value no backward pass
        reads: the value goes, but what its backward pass needs besides values stays, so that it is
        not computed again for that.
        """
        bit = 1 << v
        if (key.stored | key.missing | key.again) & bit:
            yield key, plan
            return
        needed = self.need_below[min(i + 1, self.count)] & bit
        if needed or (self._read_again(v, i + 1, key) and not self.never & bit):
            stored = self._store(v, key, plan)
            if self.budget is None or stored[1].top <= self.budget:
                yield stored
        if self.heavy[v] and not needed:
            heavy, ahead = self.heavy[v], plan.ahead + self.heavy[v] + self.size[v]
            yield (
                key._replace(stored=key.stored | bit),
                plan._replace(top=plan.top + heavy, live=plan.live + heavy, ahead=ahead),
            )
        yield self._drop(v, key, plan)

    def _store(self, v: int, key: _Key, plan: _Plan) -> tuple[_Key, _Plan]:
        """Store an undecided value: every level met so far rises by its size."""
        bit, size = 1 << v, self.size[v] + self.heavy[v]
        return (
            key._replace(stored=key.stored | bit, present=key.present | bit),
            plan._replace(top=plan.top + size, live=plan.live + size, ahead=plan.ahead + size),
        )

    def _drop(self, v: int, key: _Key, plan: _Plan) -> tuple[_Key, _Plan]:
        """Drop an undecided value."""
        bit = 1 << v
        dropped = plan.dropped | bit
        return key._replace(missing=key.missing | bit), plan._replace(dropped=dropped)

    def _read_again(self, v: int, limit: int, key: _Key) -> bool:
        """Whether a sub-layer before `limit` that may yet be computed again reads v."""
        return bool(self.readers[v] & ((1 << limit) - 1) & self.may & ~(key.stored | key.again))

    def _ahead(self, i: int, key: _Key, plan: _Plan) -> _Plan:
        """The level of sub-layer i's forward pass, or of the loss."""
        level = self.base + self.passing[i] + self.light[i - 1] + plan.ahead
        if i == self.count:
            return plan._replace(top=max(plan.top, level + self.loss_peak))
        layer, bit = self.network.layers[i], 1 << i
        heavy = self.heavy[i] if key.stored & bit else 0
        during = level - heavy + layer.forward_peak
        after = level + layer.size + self.light[i] - self.light[i - 1]
        return plan._replace(top=max(plan.top, during, after))

    def _backward(self, i: int, key: _Key, plan: _Plan) -> Iterator[tuple[_Key, _Plan]]:
        """The backward pass of sub-layer i, after what is computed again for it."""
        need = self.needs[i]
        if self.heavy[i]:
            need |= key.missing & 1 << i
        if need & ~(key.present | key.missing):
            return  # freed too early
        for closure, decided, start in self._closures(need & key.missing, key, plan):
            yield from self._run(i, need, closure, decided, start)

    def _closures(self, wanted: int, key: _Key, plan: _Plan) -> Iterator[tuple[int, _Key, _Plan]]:
        """The values to compute again for `wanted`, for every way to decide what is undecided.

        A missing value comes from the values that its sub-layer reads: those present are there,
        those missing are computed again too, and those undecided are either stored from now on, or
        dropped and computed again. Values are taken from the last to the first, so that all readers
        of one have been seen when it is its turn.
        """
        stack, end = [(wanted, 0, key, plan)], -self.count  # the first way may take more steps
        while stack:
            todo, closure, now, start = stack.pop()
            if self.budget is not None and start.top > self.budget:
                continue
            if not todo:
                yield closure, now, start
                end = 0
            if self.left < end:
                return
            if not todo:
                continue
            self.left -= 1
            w = todo.bit_length() - 1
            reads = self.reads[w] & ~now.present & ~closure & ~(1 << w)
            if reads & (now.stored | now.again):
                continue  # freed too early
            if undecided := reads & ~now.missing:
                v = undecided.bit_length() - 1
                stack.append((todo, closure, *self._drop(v, now, start)))
                if not self.never >> v & 1:
                    stack.append((todo, closure, *self._store(v, now, start)))
            else:
                stack.append((todo ^ 1 << w | reads, closure | 1 << w, now, start))

    def _run(
        self, i: int, need: int, closure: int, key: _Key, plan: _Plan
    ) -> Iterator[tuple[_Key, _Plan]]:
        """The actions of the backward pass at sub-layer i in their order, with their levels.

        `closure` is computed again, in ascending order, then the backward pass runs, which reads
        `need`. Every value is freed at its last use. One that no backward pass before i reads may
        have a last use still to come, if something that reads it is computed again: both ways are
        followed, and the one that guessed wrong is left out later (`_step`). Where that is more
        ways than steps, the first ones are, from all such values kept to all freed.
        """
        layers, members = self.network.layers, list(bits(closure))
        key = key._replace(missing=key.missing & ~closure, again=key.again | closure)
        last: dict[int, int] = {}
        for at, w in enumerate(members):
            last[w] = at
            for v in bits(self.reads[w]):
                last[v] = at
        for v in bits(need):
            last[v] = len(members)
        over = [v for v in last if not self.need_below[i] >> v & 1]
        perhaps = [v for v in over if self._read_again(v, i, key)]
        state = sum(layers[w].state for w in members)
        cost = plan.cost + sum(self.costs[w] for w in members)
        around = self.light[i] + self.before[i]
        if perhaps and self.left < 1 << len(perhaps):
            self.loose |= sum(1 << v for v in perhaps)
        ways = itertools.product((True, False), repeat=len(perhaps))
        for number, keep in enumerate(ways):
            if number and self.left < 0:
                return
            self.left -= 1 + len(members)
            kept = {v for v, k in zip(perhaps, keep, strict=True) if k}
            frees: list[list[int]] = [[] for _ in range(len(members) + 1)]
            for v in over:
                if v not in kept:
                    frees[last[v]].append(v)
            top, level = plan.top + state, plan.live + around + state
            present = key.present
            for at, w in enumerate(members):
                after = level + self.size[w] + self.heavy[w] - layers[w].state
                top = max(top, level + layers[w].forward_peak, after)
                level = after
                present |= 1 << w
                for v in frees[at]:
                    level -= self.size[v]
                    present ^= 1 << v
            extra = self.heavy[i] + self.light[i] - self.light[i - 1]
            top = max(top, level + self.during[i], level + self.after[i] - extra)
            for v in frees[-1]:
                level -= self.size[v]
                present ^= 1 << v
            yield (
                key._replace(present=present),
                _Plan(cost, top, level - around, plan.ahead + state, plan.dropped),
            )

    def _loss(self, key: _Key, plan: _Plan) -> Iterator[tuple[_Key, _Plan]]:
        """After the loss: the output is freed if nothing reads it again."""
        over = [v for v in bits(key.present) if not self.need_below[self.count] >> v & 1]
        for v in over:
            if self._read_again(v, self.count, key):
                yield key, plan
            size = self.size[v]
            yield (
                key._replace(present=key.present ^ 1 << v),
                plan._replace(live=plan.live - size),
            )
        if not over:
            yield key, plan
