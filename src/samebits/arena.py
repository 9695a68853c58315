"""The memory plan: where in one arena every buffer lies, decided at compile time.

A buffer lives from one entry of the call list to another; two share bytes only if they never live
at the same entry. Picture a rectangle for each, time to the right and addresses upwards: its extent
in time and its height are given, and it may be moved up or down; none may overlap, and the pile is
to be low. This is dynamic storage allocation, NP-hard (Garey & Johnson, "Computers and
Intractability", 1979, problem SR2).

What no plan can beat is the largest sum of sizes that are live at one entry, `bound`. So: greedy
plans in several orders (large buffers first, long lives first, ...), each buffer at the lowest
address where it fits; and only where the best of them is above the bound, and the buffers are few,
a branch-and-bound search that stops at the bound or after SEARCH_NODES placements. Its placements
are enough in principle: any plan can be pushed down until every buffer lies on another or at 0.

Example: a of 8 bytes lives at entries 0 and 1, b of 8 at 1 and 2, c of 16 at 2 and 3. The bound is
24, at entry 2. First c at 0, then a at 0 (it never meets c), then b, which meets both, at 16: the
peak is 24. In the order of time, a at 0, b at 8, c would go to 16 and the peak be 32.

Deterministic: ties are broken by the buffers' order, so the same graph gives the same C everywhere.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

ALIGNMENT = 8
SEARCH_BUFFERS, SEARCH_NODES = 40, 20_000


@dataclass(frozen=True)
class ArenaBuffer:
    """`size` bytes that are live from entry `first` to entry `last`, both included."""

    size: int
    first: int
    last: int


@dataclass(frozen=True)
class ArenaPlan:
    """offsets[i] of buffers[i]; `peak` bytes in all, at least `bound` in any plan."""

    buffers: tuple[ArenaBuffer, ...]
    offsets: tuple[int, ...]
    peak: int
    bound: int


def aligned(size: int, alignment: int = ALIGNMENT) -> int:
    """The next multiple of `alignment`."""
    return -(-size // alignment) * alignment


def live_bound(buffers: Sequence[ArenaBuffer]) -> int:
    """The largest sum of sizes that are live at one entry: no plan needs less.

    The sum grows only where a buffer begins, so it is computed at those entries alone.
    """
    starts = {b.first for b in buffers}
    return max((sum(b.size for b in buffers if b.first <= s <= b.last) for s in starts), default=0)


def plan(
    buffers: Sequence[ArenaBuffer], enough: int = 0, moves: int = 0, order: Sequence[int] = ()
) -> ArenaPlan:
    """A plan with a small peak. Where all sizes are multiples of a number, offsets are too.

    moves: how many other orders are tried where the peak is above the bound and `enough`
    order: one to begin with, as of a plan of nearly the same buffers by their offsets: what lies
        on others is pushed down, never up
    """
    bound = live_bound(buffers)
    orders = [list(order)] * bool(order) + _orders(buffers)
    plans = [(order, _greedy(buffers, order)) for order in orders]
    order, best = min(plans, key=lambda each: _peak_of(buffers)(each[1]))
    peak = _peak_of(buffers)(best)
    if peak > bound and len(buffers) <= SEARCH_BUFFERS:
        best = _search(buffers, best, bound)
        peak = _peak_of(buffers)(best)
    if peak > max(bound, enough) and moves:
        climbed = _climbed(buffers, order, max(bound, enough), moves)
        best = min(best, climbed, key=_peak_of(buffers))
        peak = _peak_of(buffers)(best)
    return ArenaPlan(tuple(buffers), tuple(best), peak, bound)


def _peak_of(buffers: Sequence[ArenaBuffer]) -> Callable[[Sequence[int]], int]:
    return lambda offsets: max(
        (o + b.size for o, b in zip(offsets, buffers, strict=True)), default=0
    )


def _orders(buffers: Sequence[ArenaBuffer]) -> list[list[int]]:
    indices = range(len(buffers))
    keys: list[Callable[[int], tuple[int, ...]]] = [
        lambda i: (-buffers[i].size, buffers[i].first, i),
        lambda i: (-buffers[i].size * (buffers[i].last - buffers[i].first + 1), i),
        lambda i: (buffers[i].first - buffers[i].last, -buffers[i].size, i),
        lambda i: (buffers[i].first, -buffers[i].size, i),
        lambda i: (-buffers[i].last, -buffers[i].size, i),
    ]
    return [sorted(indices, key=key) for key in keys]


# A placed buffer: start and end of its bytes, its first and its last entry.
_Placed = tuple[int, int, int, int]


def _fits(placed: list[_Placed], wanted: ArenaBuffer) -> list[int]:
    """Where a buffer fits: the lowest address of every gap, the end included.

    placed: by start. This is the inner loop of all plans.
    """
    size, first, last = wanted.size, wanted.first, wanted.last
    found, end = [], 0
    for start, stop, begins, ends in placed:
        if begins <= last and first <= ends:  # they live together
            if start - end >= size:
                found.append(end)
            if stop > end:
                end = stop
    return [*found, end]


def _at(buffer: ArenaBuffer, offset: int) -> _Placed:
    return (offset, offset + buffer.size, buffer.first, buffer.last)


def _greedy(buffers: Sequence[ArenaBuffer], order: Sequence[int]) -> list[int]:
    offsets = [-1] * len(buffers)
    placed: list[_Placed] = []
    for index in order:
        buffer = buffers[index]
        offsets[index] = _fits(placed, buffer)[0]
        if buffer.size:
            insort(placed, _at(buffer, offsets[index]))
    return offsets


def _search(buffers: Sequence[ArenaBuffer], start: list[int], bound: int) -> list[int]:
    """Branch and bound: depth first over which buffer comes next and in which gap it goes.

    A branch ends where a buffer would reach the best peak so far. Of buffers with the same size and
    life only one is tried at each depth, as swapping them changes nothing. After SEARCH_NODES
    placements the best plan so far is returned.
    """
    best, peak = list(start), _peak_of(buffers)(start)
    order = _orders(buffers)[0]
    offsets = [-1] * len(buffers)
    placed: list[_Placed] = []
    left = SEARCH_NODES

    def place(depth: int) -> bool:
        """True when nothing better can come."""
        nonlocal best, peak, left
        if depth == len(order):
            best, peak = list(offsets), _peak_of(buffers)(offsets)
            return peak == bound
        tried: set[tuple[int, int, int]] = set()
        for index in order:
            buffer = buffers[index]
            shape = (buffer.size, buffer.first, buffer.last)
            if offsets[index] >= 0 or shape in tried:
                continue
            tried.add(shape)
            for offset in _fits(placed, buffer):
                left -= 1
                if left < 0:
                    return True
                if offset + buffer.size >= peak:
                    break
                offsets[index] = offset
                if buffer.size:
                    insort(placed, _at(buffer, offset))
                if place(depth + 1):
                    return True
                offsets[index] = -1
                if buffer.size:
                    placed.remove(_at(buffer, offset))
        return False

    place(0)
    return best


def _climbed(
    buffers: Sequence[ArenaBuffer], order: list[int], enough: int, moves: int
) -> list[int]:
    """Greedy plans of orders that differ from the best so far by one buffer's place (hill climbing:
    orders that are as good are taken, too), until one is good enough. order: the first."""
    peak_of, draw = _peak_of(buffers), Random(0)
    best = _greedy(buffers, order)
    peak = peak_of(best)
    for _ in range(moves):
        if peak <= enough:
            break
        tried = list(order)
        tried.insert(draw.randrange(len(tried)), tried.pop(draw.randrange(len(tried))))
        found = _greedy(buffers, tried)
        if peak_of(found) <= peak:
            order, best, peak = tried, found, peak_of(found)
    return best
