"""Which addresses a chain touches, over all its iterations, without enumerating them.

An access covers sums of arithmetic progressions: tx * DX + ty * DY + window + run. A progression of
n steps is laid over a mask of addresses in log2(n) shifts, so the cost is that of the span of
addresses, whatever the number of iterations. Every partial sum is itself an address of the access,
so once the ends are in the memory nothing on the way leaves the mask.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from samebits.npu.machine.chain import Access, Chain

Mask = npt.NDArray[np.bool_]
Progression = tuple[int, int]  # (step, count)


class Cover(NamedTuple):
    """mask[i]: address low + i is touched."""

    low: int
    mask: Mask

    @property
    def places(self) -> slice:
        """Place of the mask in a mask of the whole memory."""
        return slice(self.low, self.low + len(self.mask))


def _parts(access: Access, chain: Chain) -> list[tuple[int, list[Progression]]]:
    """Full rows of iterations, and the rest of the last row: (address, progressions)."""
    rows, rest = divmod(chain.iterations, chain.iterations_x)
    parts = []
    if rows:
        full = [(access.dx, chain.iterations_x), (access.dy, rows)]
        parts.append((access.address, full))
    if rest:
        parts.append((access.address + rows * access.dy, [(access.dx, rest)]))
    return parts


def offsets(chain: Chain, access: Access) -> list[Progression]:
    """The vectors of one iteration."""
    if access is not chain.read:
        return [(1, chain.write_count)]
    if chain.windowed:
        return [(1, chain.window_run), (chain.window_pitch, chain.window)]
    return [(1, chain.read_count * chain.tile)]


def ends(chain: Chain, access: Access) -> tuple[int, int]:
    """The lowest and highest address of an access."""
    within = offsets(chain, access)
    lows, highs = [], []
    for address, progressions in _parts(access, chain):
        moves = [step * (count - 1) for step, count in progressions + within]
        lows.append(address + sum(min(move, 0) for move in moves))
        highs.append(address + sum(max(move, 0) for move in moves))
    return min(lows), max(highs)


def cover(chain: Chain, access: Access) -> Cover:
    """All addresses of an access, whose ends must lie in its memory."""
    low, high = ends(chain, access)
    mask = np.zeros(high + 1 - low, np.bool_)
    for address, progressions in _parts(access, chain):
        part = np.zeros_like(mask)
        part[address - low] = True
        for step, count in progressions + offsets(chain, access):
            _spread(part, step, count)
        mask |= part
    return Cover(low, mask)


def _spread(mask: Mask, step: int, count: int) -> None:
    """Or of the mask moved by 0, step, ... (count - 1) * step."""
    if step < 0:
        mask, step = mask[::-1], -step
    done = 1
    while step and done < count:
        by = min(done, count - done)
        mask[by * step :] |= mask[: -by * step].copy()
        done += by


def common(a: Cover, b: Cover) -> int | None:
    """The lowest address in both."""
    low = max(a.low, b.low)
    high = min(a.low + len(a.mask), b.low + len(b.mask))
    if low >= high:
        return None
    both = a.mask[low - a.low : high - a.low] & b.mask[low - b.low : high - b.low]
    found = np.flatnonzero(both)
    return low + int(found[0]) if len(found) else None
