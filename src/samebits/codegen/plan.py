"""The memory plan: where in one arena every stored value lies, decided at compile time.

Two values share bytes only if they are never live at the same step. The problem is dynamic storage
allocation (NP-hard): several greedy orders, then a bounded branch-and-bound search that stops
where the peak equals the largest sum of live sizes, which no plan can beat. Deterministic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

ALIGNMENT = 8
SEARCH_BUFFERS, SEARCH_NODES = 40, 20_000


@dataclass(frozen=True)
class Buffer:
    """Bytes that are live from step `first` to step `last`, both included."""

    size: int
    first: int
    last: int

    def meets(self, other: Buffer) -> bool:
        """Live at a common step."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True)
class Plan:
    """offsets[i] of buffers[i]; `peak` bytes in all, at least `bound` in any plan."""

    buffers: tuple[Buffer, ...]
    offsets: tuple[int, ...]
    peak: int
    bound: int


def aligned(size: int, alignment: int = ALIGNMENT) -> int:
    """The next multiple of `alignment`."""
    return -(-size // alignment) * alignment


def live_bound(buffers: Sequence[Buffer]) -> int:
    """The largest sum of sizes that are live at one step."""
    starts = {b.first for b in buffers}
    return max((sum(b.size for b in buffers if b.first <= s <= b.last) for s in starts), default=0)


def plan(buffers: Sequence[Buffer]) -> Plan:
    """Offsets with a small peak. Sizes are multiples of the wanted alignment."""
    bound = live_bound(buffers)
    best = min((_greedy(buffers, order) for order in _orders(buffers)), key=_peak_of(buffers))
    peak = _peak_of(buffers)(best)
    if peak > bound and len(buffers) <= SEARCH_BUFFERS:
        best = _search(buffers, best, bound)
        peak = _peak_of(buffers)(best)
    return Plan(tuple(buffers), tuple(best), peak, bound)


def _peak_of(buffers: Sequence[Buffer]) -> Callable[[Sequence[int]], int]:
    return lambda offsets: max(
        (o + b.size for o, b in zip(offsets, buffers, strict=True)), default=0
    )


def _orders(buffers: Sequence[Buffer]) -> list[list[int]]:
    indices = range(len(buffers))
    keys: list[Callable[[int], tuple[int, ...]]] = [
        lambda i: (-buffers[i].size, buffers[i].first, i),
        lambda i: (-buffers[i].size * (buffers[i].last - buffers[i].first + 1), i),
        lambda i: (buffers[i].first - buffers[i].last, -buffers[i].size, i),
        lambda i: (buffers[i].first, -buffers[i].size, i),
        lambda i: (-buffers[i].last, -buffers[i].size, i),
    ]
    return [sorted(indices, key=key) for key in keys]


def _gaps(buffers: Sequence[Buffer], offsets: Sequence[int], index: int) -> list[tuple[int, int]]:
    """[start, end) of the placed buffers that meet `index`, by start; offset -1: not placed."""
    wanted = buffers[index]
    return sorted(
        (o, o + b.size)
        for o, b in zip(offsets, buffers, strict=True)
        if o >= 0 and b.size and b.meets(wanted)
    )


def _fits(taken: list[tuple[int, int]], size: int) -> list[int]:
    """Where `size` bytes fit: the lowest address of every gap, the end included."""
    found, end = [], 0
    for start, stop in taken:
        if start - end >= size:
            found.append(end)
        end = max(end, stop)
    return [*found, end]


def _greedy(buffers: Sequence[Buffer], order: Sequence[int]) -> list[int]:
    offsets = [-1] * len(buffers)
    for index in order:
        offsets[index] = _fits(_gaps(buffers, offsets, index), buffers[index].size)[0]
    return offsets


def _search(buffers: Sequence[Buffer], start: list[int], bound: int) -> list[int]:
    """Depth first over which buffer next and in which gap; SEARCH_NODES placements at most."""
    best, peak = list(start), _peak_of(buffers)(start)
    order = _orders(buffers)[0]
    offsets = [-1] * len(buffers)
    left = SEARCH_NODES

    def place(depth: int) -> bool:
        """True when nothing better can come."""
        nonlocal best, peak, left
        if depth == len(order):
            best, peak = list(offsets), _peak_of(buffers)(offsets)
            return peak == bound
        tried: set[tuple[int, int, int]] = set()
        for index in order:
            shape = (buffers[index].size, buffers[index].first, buffers[index].last)
            if offsets[index] >= 0 or shape in tried:
                continue
            tried.add(shape)
            for offset in _fits(_gaps(buffers, offsets, index), buffers[index].size):
                left -= 1
                if left < 0:
                    return True
                if offset + buffers[index].size >= peak:
                    break
                offsets[index] = offset
                if place(depth + 1):
                    return True
                offsets[index] = -1
        return False

    place(0)
    return best
