"""Lower bounds of what is still to be computed again, by which the search ranks partial plans.

If all undecided values that some backward pass needs were stored, a level would exceed the budget
by `excess` bytes. So values of that many bytes have to be dropped and computed again. It costs the
least to take those of the least cost per byte first, and the last one in part: Dantzig's bound of
the knapsack problem (1957).

Example: undecided are values of 10, 20 and 10 bytes that cost 1, 4 and 5. With 55 bytes beside them
and a budget of 80 the excess is 15: the first value whole (1) and 5 of 20 bytes of the second (1)
make 2, and no plan does with less.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Sequence

IMPOSSIBLE = 1 << 256  # above all bytes and costs


def bits(mask: int) -> Iterator[int]:
    """The values in a bit mask, in ascending order."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


class Knapsack:
    """Values that may be dropped, the cheapest per byte first.

    values: in that order; sizes, costs: per value, integers, sizes at least 1
    """

    def __init__(self, values: Sequence[int], sizes: Sequence[int], costs: Sequence[int]) -> None:
        self.place = {v: at for at, v in enumerate(values)}
        self.mask = sum(1 << v for v in values)
        self.sizes = list(itertools.accumulate((sizes[v] for v in values), initial=0))
        self.costs = list(itertools.accumulate((costs[v] for v in values), initial=0))

    def least(self, room: int, decided: int = 0) -> int:
        """The least cost of dropping so much that the rest fits into `room` bytes.

        decided: values that are none of them any more, as a bit mask. IMPOSSIBLE where dropping
        everything is not enough.
        """
        sizes, costs = self.sizes, self.costs
        out = sorted(self.place[v] for v in bits(decided & self.mask))
        total = sizes[-1] - sum(sizes[at + 1] - sizes[at] for at in out)
        excess = total - room
        if excess <= 0:
            return 0
        if excess > total:
            return IMPOSSIBLE
        size = cost = 0  # of those left out up to the place where the excess is reached
        for at in out:
            if sizes[at] - size >= excess:
                break
            size += sizes[at + 1] - sizes[at]
            cost += costs[at + 1] - costs[at]
        end = bisect.bisect_left(sizes, excess + size)
        part, whole = excess + size - sizes[end - 1], sizes[end] - sizes[end - 1]
        return costs[end - 1] - cost + (costs[end] - costs[end - 1]) * part // whole
