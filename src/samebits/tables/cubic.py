"""16-bit transfer tables as piecewise cubics with the same 65,536 codes in 2 to 32 KB.

Every entry of the table asks of the cubic of its segment that it rounds to that code: a linear
program in four unknowns, whose solution keeps the greatest distance from all the bounds. The
coefficients are rounded to integers and all entries are compared; the arithmetic is

    u = code - least code, i = u >> bits, r = u & (2**bits - 1)
    v = c3[i];  v = ((v * r) >> s3) + c2[i];  v = ((v * r) >> s2) + c1[i]
    v = ((v * r) >> s1) + c0[i];  y = min(max((v + 2**(s0 - 1)) >> s0, low), high)

with 32-bit coefficients and 64-bit products. (Tables as linear programs over all inputs: J. P. Lim,
S. Nagarakatte, "High performance correctly rounded math libraries for 32-bit floating point
representations", PLDI 2021.)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog

ENTRIES = 1 << 16
SEGMENTS = tuple(1 << k for k in range(5, 12))
DEGREE = 3
COEFFICIENT_BITS = 31  # beside the sign
SHIFT_MAX = 31

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Cubic:
    """coefficients: int32 [segments, 4], c0 to c3. shifts: s0 to s3. low, high: of the codes."""

    bits: int
    coefficients: npt.NDArray[np.int32]
    shifts: tuple[int, int, int, int]
    low: int
    high: int

    @property
    def bytes(self) -> int:
        """Memory of the coefficients."""
        return self.coefficients.nbytes

    def expand(self) -> Integers:
        """The 65,536 codes, computed as the module says."""
        u = np.arange(ENTRIES, dtype=np.int64)
        rest = u & ((1 << self.bits) - 1)
        columns = self.coefficients.astype(np.int64)[u >> self.bits].T
        value = columns[DEGREE]
        for degree in range(DEGREE, 0, -1):
            value = ((value * rest) >> self.shifts[degree]) + columns[degree - 1]
        half = 1 << (self.shifts[0] - 1)
        return np.clip((value + half) >> self.shifts[0], self.low, self.high)


def fit_cubic(codes: npt.NDArray[Any]) -> Cubic | None:
    """The cubics of the fewest segments that give these 65,536 codes; None if 2,048 do not."""
    if codes.shape != (ENTRIES,):
        raise ValueError(f"expected {ENTRIES} codes, found shape {codes.shape}")
    return _fit(codes.astype(np.int64).tobytes())


@lru_cache(maxsize=64)
def _fit(data: bytes) -> Cubic | None:
    codes = np.frombuffer(data, np.int64)
    for segments in SEGMENTS:
        real = _polynomials(codes, segments)
        if real is not None:
            cubic = _rounded(codes, real)
            if cubic is not None and (cubic.expand() == codes).all():
                return cubic
    return None


def _polynomials(codes: Integers, segments: int) -> npt.NDArray[np.float64] | None:
    """Real coefficients [segments, 4] in r / width, or None where a segment has none."""
    low, high = codes.min(), codes.max()
    width = ENTRIES // segments
    powers = np.vander(np.arange(width) / width, DEGREE + 1, increasing=True)
    objective = np.array([0.0] * (DEGREE + 1) + [-1.0])  # the distance, as large as can be
    bounds = [(None, None)] * (DEGREE + 1) + [(None, 0.5)]
    found = []
    for part in codes.reshape(segments, width):
        middle = float(part[width // 2])
        rows, limits = [], []
        for sign, free in ((1.0, part == high), (-1.0, part == low)):
            # Codes at the ends of the range may be overshot: they are saturated.
            kept = ~free
            rows.append(np.hstack([sign * powers[kept], np.ones((int(kept.sum()), 1))]))
            limits.append(sign * (part[kept] - middle) + 0.5)
        solved = linprog(objective, np.vstack(rows), np.concatenate(limits), bounds=bounds)
        if solved.status != 0 or solved.x[-1] <= 0:
            return None
        found.append([solved.x[0] + middle, *solved.x[1 : DEGREE + 1]])
    return np.array(found)


def _rounded(codes: Integers, real: npt.NDArray[np.float64]) -> Cubic | None:
    """Integer coefficients, as fine as 32 bits allow; None if even whole numbers are too large."""
    segments = len(real)
    bits = (ENTRIES // segments).bit_length() - 1
    units, shifts = 0, []
    columns = []
    for degree in range(DEGREE + 1):
        scaled = real[:, degree] * 2.0 ** (-bits * degree)  # a polynomial in r
        largest = int(np.frexp(np.abs(scaled).max())[1])  # below 2**largest
        shift = min(COEFFICIENT_BITS - 1 - largest - units, SHIFT_MAX)
        if shift < (1 if degree == 0 else 0):
            return None
        units += shift
        shifts.append(shift)
        columns.append(np.rint(scaled * 2.0**units))
    coefficients = np.stack(columns, 1).astype(np.int32)
    s0, s1, s2, s3 = shifts
    return Cubic(bits, coefficients, (s0, s1, s2, s3), int(codes.min()), int(codes.max()))
