"""16-bit transfer tables that are straight lines between a few heights, with the same 65,536 codes.

The runtimes of TensorFlow Lite compute functions of int16 codes so (docs/spec/tflite.md): a table
of all codes holds nothing that the heights do not. The arithmetic is

    u = code - least code; mirrored: u = |code|, w = (u * factor + half) >> left, u else
    i = w >> bits, r = w & (2**bits - 1); from the last height on the function stays there
    y = (heights[i] << bits) + r * (heights[i + 1] - heights[i])
    v = min(((y + 2**(shift - 1)) >> shift) - offset, top); mirrored and code < 0: mirror - v

half is 2**(left - 1), one less where the code is negative: halves are rounded up. All of it fits in
32 bits. What is proposed is evaluated at all 65,536 inputs, and taken when every code is equal.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from samebits.spec.tflite import sigmoid_table
from samebits.tables.cubic import ENTRIES, HALF, of_all_codes

FEWEST, MOST = 6, 11  # bits between two heights
FACTORS = 1 << 14  # of a mirrored function: from this on, below twice as much
LEFT_MOST = 30

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Lines:
    """A function as straight lines, evaluated as the module says.

    heights: uint16 [n + 1]. mirror: f(x) + f(-x); None: factor and left are not used
    """

    heights: npt.NDArray[np.uint16]
    bits: int
    shift: int
    offset: int
    top: int
    mirror: int | None = None
    factor: int = 1
    left: int = 0

    @property
    def bytes(self) -> int:
        """Memory of the heights."""
        return self.heights.nbytes

    def expand(self) -> Integers:
        """The 65,536 codes int64, from the least input code up, computed as the module says."""
        if self.mirror is None:
            return self._values(np.arange(ENTRIES, dtype=np.int64))
        u, half = np.arange(HALF + 1, dtype=np.int64) * self.factor, 1 << self.left >> 1
        above = self._values((u[:HALF] + half) >> self.left)
        below = self._values((u[:0:-1] + half - (half > 0)) >> self.left)
        return np.concatenate([self.mirror - below, above])

    def above(self) -> int:
        """The sum of the codes from 0 up: the greater, the steeper a mirrored function is."""
        w = (np.arange(HALF, dtype=np.int64) * self.factor + (1 << self.left >> 1)) >> self.left
        return int(self._values(w).sum())

    def _values(self, w: Integers) -> Integers:
        heights, last = self.heights.astype(np.int64), len(self.heights) - 1
        at = np.minimum(w >> self.bits, last)
        rest = np.where(at < last, w & ((1 << self.bits) - 1), 0)
        rise = heights[np.minimum(at + 1, last)] - heights[at]
        y = (heights[at] << self.bits) + rest * rise
        return np.minimum(((y + (1 << self.shift >> 1)) >> self.shift) - self.offset, self.top)


@of_all_codes
def fit_lines(codes: Integers) -> Lines | None:
    """The fewest lines that give these 65,536 codes; None where none of the known forms does."""
    for bits in range(MOST, FEWEST - 1, -1):
        if (found := _even(codes, bits)) is not None:
            return found
    middle = int(codes[HALF])
    if middle not in (0, 1 << 14) or codes.max() >= HALF:
        return None
    return _curve(codes, tanh=middle == 0)


def _even(codes: Integers, bits: int) -> Lines | None:
    """Lines between every 2**bits-th code; the last of them ends where its last code asks for."""
    starts, width = codes[:: 1 << bits], 1 << bits
    least, most = int(codes.min()), int(codes.max())
    slope = (codes[-1] - starts[-1]) / (width - 1)
    end = round(starts[-1] + slope * width)
    for last in (end, end - 1, end + 1):
        heights = np.append(starts, last) - least
        if heights.min() >= 0 and heights.max() < ENTRIES:
            found = Lines(heights.astype(np.uint16), bits, bits, -least, most)
            if (found.expand() == codes).all():
                return found
    return None


def _curve(codes: Integers, tanh: bool) -> Lines | None:
    """The runtimes' sigmoid or tanh; how steep it is by bisection, over all factors and shifts."""
    heights = np.array(sigmoid_table(), np.uint16)
    ends = (8, 8, HALF, HALF - 1, 0) if tanh else (9, 10, 0, HALF - 1, HALF)

    def steep(place: int) -> Lines:
        octave, factor = divmod(place, FACTORS)
        return Lines(heights, *ends, factor=FACTORS + factor, left=LEFT_MOST - octave)

    wanted, low, high = int(codes[HALF:].sum()), 0, (LEFT_MOST + 1) * FACTORS - 1
    while low < high:
        middle = (low + high) // 2
        if steep(middle).above() < wanted:
            low = middle + 1
        else:
            high = middle
    found = steep(low)
    return found if (found.expand() == codes).all() else None
