"""Base-and-slope tables: 16-bit transfer tables in less memory, certified against the full table.

The arithmetic is that of the integer operator `interpolate` (docs/spec/graph.md section 3):

    u = code - least code, i = u >> bits, r = u & (2**bits - 1)
    y = min(max(base[i] + ((slope[i] * r + 2**(shift - 1)) >> shift), low), high)

For a given base, each entry y +- max_error asks for a range of slopes; a segment can be had when
its ranges meet. Everything is computed in integers, and the error over all 65,536 entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from samebits.errors import InputError

ENTRIES = 1 << 16
FINE = 30  # the finest shift: slopes of any coarser one are among its slopes
REACH = 1 << 20  # how far from its table a base may lie when its segment starts saturated
INT32 = (1 << 31) - 1

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Segments:
    """A table as 2**(16 - bits) lines. slope * r + 2**(shift - 1) fits in 32 bits.

    max_error: exact greatest |error| over all entries, in codes
    bytes:     of base and slope, each in the narrowest of 16 and 32 bits that holds it
    """

    bits: int
    shift: int
    base: tuple[int, ...]
    slope: tuple[int, ...]
    low: int
    high: int
    max_error: int

    @property
    def bytes(self) -> int:
        """Memory for base and slope."""
        return len(self.base) * (_width(self.base) + _width(self.slope))

    def expand(self) -> tuple[int, ...]:
        """The 65,536 codes."""
        base, slope = (np.array(x, dtype=np.int64) for x in (self.base, self.slope))
        return tuple(_expand(base, slope, self.bits, self.shift, self.low, self.high).tolist())


def fit_segments(codes: Sequence[int], max_error: int = 0) -> Segments:
    """The widest segments found whose greatest error over all 65,536 entries is <= max_error.

    `codes` is a table over all 16-bit codes, in order; its least and greatest code become low and
    high. Segments of one entry always do, so a result is exact or within max_error by construction;
    compare `bytes` with those of the full table. Deterministic. Raises InputError for another
    number of codes, codes beyond 32 bits, or a negative max_error.
    """
    if len(codes) != ENTRIES or max_error < 0:
        raise InputError(
            f"expected {ENTRIES} codes and max_error >= 0, found {len(codes)} codes and {max_error}"
        )
    if min(codes) < -(1 << 31) or max(codes) > INT32:
        raise InputError("expected codes of at most 32 bits, found larger ones")
    table = np.array(codes, dtype=np.int64)
    for bits in range(16, 0, -1):
        found = _fit(table, bits, max_error)
        if found is not None:
            return found
    return _segments(table, table, np.zeros_like(table), 0, 1)


def _width(values: Sequence[int]) -> int:
    unsigned = min(values) >= 0 and max(values) < 1 << 16
    return 2 if unsigned or (min(values) >= -(1 << 15) and max(values) < 1 << 15) else 4


def _expand(
    base: Integers, slope: Integers, bits: int, shift: int, low: int, high: int
) -> Integers:
    r = np.arange(1 << bits, dtype=np.int64)
    lines = base[:, None] + ((slope[:, None] * r + (1 << (shift - 1))) >> shift)
    return np.clip(lines, low, high).ravel()


def _segments(table: Integers, base: Integers, slope: Integers, bits: int, shift: int) -> Segments:
    low, high = int(table.min()), int(table.max())
    error = int(np.abs(_expand(base, slope, bits, shift, low, high) - table).max())
    return Segments(bits, shift, tuple(base.tolist()), tuple(slope.tolist()), low, high, error)


def _fit(table: Integers, bits: int, max_error: int) -> Segments | None:
    rows = _Rows(table, bits, max_error)
    fine = rows.solve(FINE, 1 << 60)
    if fine is None:
        return None
    _, least, most = fine
    steepest = int(np.where((least <= 0) & (most >= 0), 0, np.minimum(abs(least), abs(most))).max())
    for limit in ((1 << 15) - 1, INT32):
        bounds = {
            shift: min(limit, (INT32 - (1 << (shift - 1))) // ((1 << bits) - 1))
            for shift in range(FINE, 0, -1)
        }
        fitting = [
            shift for shift, bound in bounds.items() if steepest >> (FINE - shift + 1) <= bound
        ]
        # Other bases have other slopes, and room for one or two bits more or fewer.
        for shift in fitting[:4]:
            solved = rows.solve(shift, bounds[shift])
            if solved is not None:
                base, least, most = solved
                found = _segments(table, base, (least + most) // 2, bits, shift)
                assert found.max_error <= max_error
                return found
    return None


class _Rows:
    """The segments of one width, and the codes that each entry may take."""

    def __init__(self, table: Integers, bits: int, max_error: int) -> None:
        rows = table.reshape(-1, 1 << bits)
        low, high = table.min(), table.max()
        self.r = np.arange(1, 1 << bits, dtype=np.int64)
        self.least, self.most = rows - max_error, rows + max_error
        self.free_below, self.free_above = self.least <= low, self.most >= high  # `clip` does it
        start = self.least[:, 0], self.most[:, 0]
        self.first = np.where(self.free_below[:, 0], start[1] - REACH, start[0])
        self.last = np.where(self.free_above[:, 0], start[0] + REACH, start[1])

    def slopes(self, which: Any, base: Integers, shift: int, bound: int) -> tuple[Integers, ...]:
        """Least and greatest slope of the rows `which` for a base each; least > greatest: none."""
        half, one, base = 1 << (shift - 1), 1 << shift, base[:, None]
        above = -((half - (self.least[which, 1:] - base) * one) // self.r)
        below = ((self.most[which, 1:] - base + 1) * one - 1 - half) // self.r
        above[self.free_below[which, 1:]] = -bound
        below[self.free_above[which, 1:]] = bound
        return np.maximum(above.max(axis=1), -bound), np.minimum(below.min(axis=1), bound)

    def solve(self, shift: int, bound: int) -> tuple[Integers, Integers, Integers] | None:
        """(base, least slope, greatest slope) of every row, or None when one has none found.

        The range of slopes is, but for rounding, a concave function of the base: ternary search.
        """
        rows = np.arange(len(self.first))
        first, last = self.first.copy(), self.last.copy()
        base = np.clip((self.least[:, 0] + self.most[:, 0]) // 2, first, last)
        least, most = self.slopes(rows, base, shift, bound)
        while True:
            waiting = rows[(least > most) & (first <= last)]
            if not len(waiting):
                break
            third = (last[waiting] - first[waiting]) // 3
            tries = first[waiting] + third, last[waiting] - third
            gaps = []
            for tried in tries:
                low, high = self.slopes(waiting, tried, shift, bound)
                gaps.append(high - low)
                better = waiting[gaps[-1] > most[waiting] - least[waiting]]
                chosen = gaps[-1] > most[waiting] - least[waiting]
                base[better], least[better], most[better] = tried[chosen], low[chosen], high[chosen]
            right = gaps[1] > gaps[0]
            first[waiting] = np.where(right, tries[0] + 1, first[waiting])
            last[waiting] = np.where(right, last[waiting], tries[1] - 1)
        return None if (least > most).any() else (base, least, most)
