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
result says so (`Choice.bound`). The time of a search is limited by counting its steps, never by a
clock, so that every machine finds the same plan.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from samebits.recompute.network.sublayer import PassNetwork
from samebits.recompute.plan.schedule import Simulation, compile_schedule, peak

WORK = 45_000  # steps of one search: what bounds its time, the same on every machine
LARGE = 500  # sub-layers; networks of fewer, whose steps are shorter, get up to 4 times as many
NO_BUDGET = 1 << 256  # above all bytes and costs


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


def cost_of(network: PassNetwork, costs: Sequence[int], dropped: Sequence[int]) -> int:
    """Cost of a choice: that of what is computed again, as not all that is dropped is needed."""
    schedule = compile_schedule(network, dropped)
    return sum(costs[i] for kind, i in schedule if kind == "recompute")


def cheapest(network: PassNetwork, costs: Sequence[int], budget: int) -> Choice | None:
    """The cheapest choice of at most `budget` bytes, of those the one of the smallest peak.

    costs: of computing each sub-layer once, integers >= 0

    None if the search finds no choice. A quick search comes first, whose cost, if it is not proven
    to be the least, lets the thorough one leave out what cannot be better.
    """
    search, work = _Search(network, costs, budget), _work(network)
    found = search.run(work // 8, NO_BUDGET)
    if found is not None and found.bound == found.cost:
        return found
    better = search.run(work, NO_BUDGET if found is None else found.cost)
    if better is None or (found is not None and found.cost < better.cost):
        return found
    return better


def smallest(network: PassNetwork, costs: Sequence[int]) -> Choice:
    """The choice of the smallest peak: that of the search, or a regular one that needs less."""
    found = _Search(network, costs, None).run(_work(network), NO_BUDGET)
    candidates = [] if found is None else [found]
    for dropped in (network.choices(), *_every(network)):
        level = peak(network, compile_schedule(network, dropped))
        bound = 0 if found is None else found.bound
        candidates.append(Choice(dropped, cost_of(network, costs, dropped), level, bound))
    return min(candidates, key=lambda choice: (choice.peak, choice.cost))


def _work(network: PassNetwork) -> int:
    """Number of steps of a thorough search."""
    return WORK * min(max(LARGE // len(network.layers), 1), 4)


def _every(network: PassNetwork) -> Iterator[tuple[int, ...]]:
    """Regular choices, which keep every second value, every third and so on.

    On a chain of n equal sub-layers one kept value in sqrt(n) is nearly the best (Chen et al.
    2016); a network that is too large for the search falls back on such a choice.
    """
    choices = network.choices()
    for distance in (2, 3, 4, 6, 8, 12, 16, 24, 32):
        if distance < len(choices):
            yield tuple(v for at, v in enumerate(choices) if at % distance)


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


def _bits(mask: int) -> Iterator[int]:
    """The values in a bit mask, in ascending order."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


class _Search:
    """The search of one network within one budget; without a budget, for the smallest peak."""

    def __init__(self, network: PassNetwork, costs: Sequence[int], budget: int | None) -> None:
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
        self.network, self.costs, self.budget = network, costs, budget
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
            for v in (*_bits(self.reads[i]), network.root(i)):
                touched[v] = i
            for v in _bits(self.reads[i]):
                self.readers[v] |= 1 << i
        touched[network.root(network.output)] = count
        self.entries: list[list[int]] = [[] for _ in range(count + 1)]
        self.leaving: list[int] = [0] * (count + 1)
        self.passing = [0] * (count + 2)  # bytes of values on their way to a later reader
        for v in _bits(self.may):
            last_need = max((i for i in range(count) if self.needs[i] >> v & 1), default=0)
            self.entries[max(touched[v], last_need)].append(v)
            self.leaving[touched[v]] |= 1 << v
            for i in range(v + 1, touched[v] + 1):
                self.passing[i] += self.size[v]
        self.never = self._never_stored()
        self._gradients()
        self._bounds: dict[int, tuple[int, list[int], list[int]]] = {}

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
        for v in _bits(self.may & ~self.need_below[self.count]):
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

    def run(self, work: int, most: int) -> Choice | None:
        """The best complete plan of a cost of at most `most`, None if the search finds none.

        `work` steps are shared out evenly over the sub-layers that remain, and over the partial
        plans at each; what one does not use goes to the next. A plan that runs out of its share is
        cut off, and its lower bound joins the bound of the result.
        """
        plans = [(_Key(0, 0, 0, 0), _Plan(0, 0, 0, 0, 0))]
        cut = NO_BUDGET
        for i in range(self.count, 0, -1):
            grown: dict[_Key, list[_Plan]] = {}
            quota = work // i
            for at, (key, plan) in enumerate(plans):
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
            return None
        if self.budget is None:
            best = min(found, key=lambda plan: (plan.top, plan.cost))
            bound = min(cut, best.top)
        else:
            best = min(found, key=lambda plan: (plan.cost, plan.top))
            bound = min(cut, best.cost)
        dropped = tuple(_bits(best.dropped))
        exact = peak(self.network, compile_schedule(self.network, dropped))
        return Choice(dropped, cost_of(self.network, self.costs, dropped), exact, bound)

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
            least = NO_BUDGET
            for plan in sorted(front):
                if plan.top < least:
                    least = plan.top
                    bound = self._least(i, key, plan)
                    if bound <= most:
                        ranked.append((bound, plan.top, len(ranked), key, plan))
        ranked.sort(key=lambda entry: entry[:3])
        lost = NO_BUDGET
        if len(ranked) > width:
            # Half of them by cost, half by level: the cheapest may come to nothing later.
            rest = sorted(ranked[width // 2 :], key=lambda entry: (entry[1], entry[0], entry[2]))
            half = max(width - width // 2, 1)
            lost = min(entry[0] for entry in rest[half:])
            ranked = sorted(ranked[: width // 2] + rest[:half], key=lambda entry: entry[2])
        return [entry[3:] for entry in ranked], lost

    def _bound(self, i: int, key: _Key, top: int) -> int:
        """A cost that every completion adds to a partial plan.

        If all undecided values that some backward pass needs were stored, the top would exceed the
        budget by `excess` bytes. So values of that many bytes have to be dropped and computed
        again. It costs the least to take those of the least cost per byte first, and the last one
        in part: Dantzig's bound of the knapsack problem (1957).
        """
        decided = key.stored | key.missing | key.again
        low = (decided & -decided).bit_length() - 1 if decided else i
        if low not in self._bounds:
            values = [v for v in _bits(self.may & self.need_below[self.count]) if v < low]
            values.sort(key=lambda v: ((self.costs[v] << 64) // self.size[v], v))
            sizes = list(itertools.accumulate((self.size[v] for v in values), initial=0))
            costs = list(itertools.accumulate((self.costs[v] for v in values), initial=0))
            self._bounds[low] = (sizes[-1], sizes, costs)
        total, sizes, costs = self._bounds[low]
        assert self.budget is not None
        excess = total - (self.budget - top)
        if excess <= 0:
            return 0
        if excess > total:
            return NO_BUDGET
        at = bisect.bisect_left(sizes, excess)
        part, whole = excess - sizes[at - 1], sizes[at] - sizes[at - 1]
        return costs[at - 1] + (costs[at] - costs[at - 1]) * part // whole

    # --- one sub-layer --------------------------------------------------------------------

    def _step(self, i: int, key: _Key, plan: _Plan) -> Iterator[tuple[_Key, _Plan]]:
        """All partial plans that follow from one at sub-layer i, or at the loss after the last.

        First the values that enter are decided, then the forward pass is met, then the backward
        pass; at last value i itself leaves the key. A plan in which it is still in memory then is
        left out, as it was kept for nothing.
        """
        for entered, start in self._enter(i, key, plan):
            start = self._ahead(i, entered, start)
            if i == self.count or not self.network.layers[i].differentiable:
                outcomes: Iterator[tuple[_Key, _Plan]] = iter([(entered, start)])
                if i == self.count:
                    outcomes = self._loss(entered, start)
            else:
                outcomes = self._backward(i, entered, start)
            for after, grown in outcomes:
                if i < self.count:
                    bit = 1 << i
                    if after.present & bit:
                        continue  # kept for a use that never came
                    if (after.stored | after.again) & bit and self.heavy[i]:
                        ahead = grown.ahead - (self.heavy[i] if after.stored & bit else 0)
                        grown = grown._replace(live=grown.live - self.heavy[i], ahead=ahead)
                    if after.again & bit:
                        grown = grown._replace(ahead=grown.ahead - self.network.layers[i].state)
                    after = _Key(*(mask & ~bit for mask in after))
                yield after, grown

    def _enter(self, i: int, key: _Key, plan: _Plan) -> Iterator[tuple[_Key, _Plan]]:
        """Decide the values that sub-layer i is the last to meet in the forward pass.

        Three ways: store; drop; and "free", for a heavy sub-layer whose value no backward pass
        reads: the value goes, but what its backward pass needs besides values stays, so that it is
        not computed again for that.
        """
        fresh = [v for v in self.entries[i] if not (key.stored | key.missing | key.again) >> v & 1]
        ways: list[tuple[str, ...]] = []
        for v in fresh:
            needed = self.need_below[min(i + 1, self.count)] >> v & 1
            read = needed or (self._read_again(v, i + 1, key) and not self.never >> v & 1)
            used = ("store",) if read else ()
            free = ("free",) if self.heavy[v] and not needed else ()
            ways.append((*used, *free, "drop"))
        for way in itertools.product(*ways):
            new, grown = key, plan
            for v, choice in zip(fresh, way, strict=True):
                bit = 1 << v
                if choice == "store":
                    new, grown = self._store(v, new, grown)
                elif choice == "free":  # only what its backward pass needs besides values is kept
                    heavy, ahead = self.heavy[v], grown.ahead + self.heavy[v] + self.size[v]
                    new = new._replace(stored=new.stored | bit)
                    grown = grown._replace(
                        top=grown.top + heavy, live=grown.live + heavy, ahead=ahead
                    )
                else:
                    new = new._replace(missing=new.missing | bit)
                    grown = grown._replace(dropped=grown.dropped | bit)
            # On its way from here on: counted with `passing`, stored or not.
            for v in _bits(self.leaving[i] & new.stored):
                grown = grown._replace(ahead=grown.ahead - self.size[v])
            yield new, grown

    def _store(self, v: int, key: _Key, plan: _Plan) -> tuple[_Key, _Plan]:
        """Store an undecided value: every level met so far rises by its size."""
        bit, size = 1 << v, self.size[v] + self.heavy[v]
        return (
            key._replace(stored=key.stored | bit, present=key.present | bit),
            plan._replace(top=plan.top + size, live=plan.live + size, ahead=plan.ahead + size),
        )

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
        stack = [(wanted, 0, key, plan)]
        while stack:
            todo, closure, now, start = stack.pop()
            if self.budget is not None and start.top > self.budget:
                continue
            if not todo:
                if self.left < 0:
                    return
                yield closure, now, start
                continue
            w = todo.bit_length() - 1
            todo ^= 1 << w
            closure |= 1 << w
            reads = self.reads[w] & ~now.present & ~closure
            if reads & (now.stored | now.again):
                continue  # freed too early
            undecided = list(_bits(reads & ~now.missing))
            ways = [(0,) if self.never >> v & 1 else (0, 1) for v in undecided]
            for way in itertools.product(*ways):
                new, grown, more = now, start, reads & now.missing
                for v, store in zip(undecided, way, strict=True):
                    if store:
                        new, grown = self._store(v, new, grown)
                    else:
                        new = new._replace(missing=new.missing | 1 << v)
                        grown = grown._replace(dropped=grown.dropped | 1 << v)
                        more |= 1 << v
                stack.append((todo | more, closure, new, grown))

    def _run(
        self, i: int, need: int, closure: int, key: _Key, plan: _Plan
    ) -> Iterator[tuple[_Key, _Plan]]:
        """The actions of the backward pass at sub-layer i in their order, with their levels.

        `closure` is computed again, in ascending order, then the backward pass runs, which reads
        `need`. Every value is freed at its last use. One that no backward pass before i reads may
        have a last use still to come, if something that reads it is computed again: both ways are
        followed, and the one that guessed wrong is left out later (`_step`).
        """
        layers, members = self.network.layers, list(_bits(closure))
        self.left -= 1 + len(members)
        key = key._replace(missing=key.missing & ~closure, again=key.again | closure)
        last: dict[int, int] = {}
        for at, w in enumerate(members):
            last[w] = at
            for v in _bits(self.reads[w]):
                last[v] = at
        for v in _bits(need):
            last[v] = len(members)
        over = [v for v in last if not self.need_below[i] >> v & 1]
        perhaps = [v for v in over if self._read_again(v, i, key)]
        state = sum(layers[w].state for w in members)
        cost = plan.cost + sum(self.costs[w] for w in members)
        around = self.light[i] + self.before[i]
        for keep in itertools.product((False, True), repeat=len(perhaps)):
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
        over = [v for v in _bits(key.present) if not self.need_below[self.count] >> v & 1]
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
