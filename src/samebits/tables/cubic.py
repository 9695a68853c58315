"""16-bit transfer tables as piecewise cubics with the same 65,536 codes in at most 32 KB.

Every entry of the table asks of the cubic of its segment that it rounds to that code: a linear
program in four unknowns, whose solution keeps the greatest distance from all the bounds. The
coefficients are rounded to integers and all entries are compared; the arithmetic is

    u = code - least code, i = u >> bits, r = u & (2**bits - 1)
    v = c3[i];  v = ((v * r) >> s3) + c2[i];  v = ((v * r) >> s2) + c1[i]
    v = ((v * r) >> s1) + c0[i];  v = (v + 2**(s0 - 1)) >> s0;  y = min(max(v, low), high)

with 32-bit coefficients and 64-bit products. Where f(x) + f(-x) is the same for all x but those
that saturate (`mirror`; sigmoid, tanh), half of the segments do: u is min(|code|, 2**15 - 1), with
code - 2**15 of unsigned ones, and v becomes mirror - v where the code is negative.

(Tables as linear programs over all inputs: J. P. Lim, S. Nagarakatte, "High performance correctly
rounded math libraries for 32-bit floating point representations", PLDI 2021.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog

ENTRIES = 1 << 16
HALF = ENTRIES // 2
SEGMENTS = tuple(1 << k for k in range(5, 12))
DEGREE = 3
SHIFT_MAX = 31
NARROW = 1 << 31
SHORT = 2  # of Cubic.narrow

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Cubic:
    """coefficients: int32 [segments, 4], c0 to c3. shifts: s0 to s3. low, high: of the codes.
    mirror: None where all segments are stored."""

    bits: int
    coefficients: npt.NDArray[np.int32]
    shifts: tuple[int, int, int, int]
    low: int
    high: int
    mirror: int | None = None

    @property
    def bytes(self) -> int:
        """Memory of the coefficients."""
        return self.coefficients.nbytes

    @property
    def narrow(self) -> int:
        """1: every sum, the last one with the half that rounds it, fits in 32 bits; 2: c3 * r and
        the product after it do too; else 0."""
        sums = self._sums()
        sums[-1] = sums[-1] + (1 << (self.shifts[0] - 1))
        if not all(v.min() >= -NARROW and v.max() < NARROW for v in sums):
            return 0
        factors = (self.coefficients[:, DEGREE].astype(np.int64), sums[0])
        return SHORT if all(int(np.abs(v).max()) << self.bits <= NARROW for v in factors) else 1

    def expand(self) -> Integers:
        """The 65,536 codes, computed as the module says."""
        v = (self._sums()[-1] + (1 << (self.shifts[0] - 1))) >> self.shifts[0]
        if self.mirror is not None:
            v = _whole(v, self.mirror)
        return np.clip(v, self.low, self.high)

    def _sums(self) -> list[Integers]:
        """v with c2, c1 and c0, for every u."""
        u = np.arange(ENTRIES if self.mirror is None else HALF, dtype=np.int64)
        rest = u & ((1 << self.bits) - 1)
        columns = self.coefficients.astype(np.int64)[u >> self.bits].T
        sums = [columns[DEGREE]]
        for degree in range(DEGREE, 0, -1):
            sums.append(((sums[-1] * rest) >> self.shifts[degree]) + columns[degree - 1])
        return sums[1:]


def fit_cubic(codes: npt.NDArray[Any]) -> Cubic | None:
    """The cubics of the fewest segments that give these 65,536 codes; None if 2,048 do not."""
    if codes.shape != (ENTRIES,):
        raise ValueError(f"expected {ENTRIES} codes, found shape {codes.shape}")
    return _fit(codes.astype(np.int64).tobytes())


@lru_cache(maxsize=64)
def _fit(data: bytes) -> Cubic | None:
    codes = np.frombuffer(data, np.int64)
    half, mirror = _mirrored(codes)
    if half is not None:
        return _fewest(codes, half, mirror) or _fewest(codes, codes, None)
    return _fewest(codes, codes, None)


def _mirrored(codes: Integers) -> tuple[Integers | None, int]:
    """What the segments of half the range have to give, and the mirror; None where the other half
    does not follow. Where one half is saturated, the other one may go on."""
    low, high = int(codes.min()), int(codes.max())
    mirror = int(codes[HALF - 1] + codes[HALF + 1])
    half = codes[HALF:].copy()
    other = np.concatenate([half[:1], mirror - codes[HALF - 1 : 0 : -1]])
    half = np.where(half == high, np.maximum(half, other), half)
    half = np.where(half == low, np.minimum(half, other), half)
    same = (np.clip(_whole(half, mirror), low, high) == codes).all()
    return (half if same else None), mirror


def _whole(half: Integers, mirror: int) -> Integers:
    """What all codes give, of those that are not negative: the least one as the one after it."""
    return np.concatenate([mirror - half[-1:], mirror - half[:0:-1], half])


def _fewest(codes: Integers, wanted: Integers, mirror: int | None) -> Cubic | None:
    """The cubics of the fewest segments that give `wanted`, and so the codes."""
    low, high = codes.min(), codes.max()
    above, below = wanted >= high, wanted <= low
    if mirror is not None:
        above, below = above & (mirror - wanted <= low), below & (mirror - wanted >= high)
    for segments in SEGMENTS:
        real = _polynomials(wanted, segments * len(wanted) // ENTRIES, above, below)
        if real is None:
            continue
        width = len(wanted) // len(real)
        found = None
        for most in _digits(width):
            cubic = _rounded(codes, real, width, mirror, most)
            if cubic is not None and (cubic.expand() == codes).all():
                found = cubic if found is None or cubic.narrow > found.narrow else found
                if found.narrow == SHORT:
                    break
        if found is not None:
            return found
    return None


def _digits(width: int) -> list[tuple[int, int, int, int]]:
    """Bits of the coefficients, beside the sign: such that c2 and c3 times r fit in 32, or not."""
    products = [30 - (width.bit_length() - 1) - less for less in range(3)]
    return [(30, 30, bits, bits) for bits in products] + [
        (bits, bits, bits, bits) for bits in (30, 29, 28)
    ]


def _polynomials(
    codes: Integers, segments: int, above: npt.NDArray[np.bool_], below: npt.NDArray[np.bool_]
) -> npt.NDArray[np.float64] | None:
    """Real coefficients [segments, 4] in r / width, or None where a segment has none. above, below:
    codes that may be overshot there, as that is saturated."""
    width = len(codes) // segments
    powers = np.vander(np.arange(width) / width, DEGREE + 1, increasing=True)
    objective = np.array([0.0] * (DEGREE + 1) + [-1.0])  # the distance, as large as can be
    bounds = [(None, None)] * (DEGREE + 1) + [(None, 0.5)]
    found = []
    for start in range(0, len(codes), width):
        part = codes[start : start + width]
        middle = float(part[width // 2])
        rows, limits = [], []
        for sign, free in ((1.0, above), (-1.0, below)):
            kept = ~free[start : start + width]
            rows.append(np.hstack([sign * powers[kept], np.ones((int(kept.sum()), 1))]))
            limits.append(sign * (part[kept] - middle) + 0.5)
        solved = linprog(objective, np.vstack(rows), np.concatenate(limits), bounds=bounds)
        if solved.status != 0 or solved.x[-1] <= 0:
            return None
        found.append([solved.x[0] + middle, *solved.x[1 : DEGREE + 1]])
    return np.array(found)


def _rounded(
    codes: Integers,
    real: npt.NDArray[np.float64],
    width: int,
    mirror: int | None,
    most: Sequence[int],
) -> Cubic | None:
    """Integer coefficients, as fine as `most` bits of each allow; None if even whole numbers are
    too large."""
    bits = width.bit_length() - 1
    units, shifts = 0, []
    columns = []
    for degree in range(DEGREE + 1):
        scaled = real[:, degree] * 2.0 ** (-bits * degree)  # a polynomial in r
        largest = int(np.frexp(np.abs(scaled).max())[1])  # below 2**largest
        shift = min(most[degree] - largest - units, SHIFT_MAX)
        if shift < (1 if degree == 0 else 0):
            return None
        units += shift
        shifts.append(shift)
        columns.append(np.rint(scaled * 2.0**units))
    coefficients = np.stack(columns, 1).astype(np.int32)
    s0, s1, s2, s3 = shifts
    low, high = int(codes.min()), int(codes.max())
    return Cubic(bits, coefficients, (s0, s1, s2, s3), low, high, mirror)
