"""16-bit transfer tables as piecewise cubics with the same 65,536 codes in at most 32 KB.

Every entry of the table asks of the cubic of its segment that it rounds to that code: code - 1/2 <
p(r) < code + 1/2, two linear inequalities in the four unknown coefficients. A linear program finds
the coefficients that keep the greatest distance from all these bounds of a segment (at most 1/2),
which leaves the most room for rounding them to integers. Entries at the least or the greatest code
have one bound only: beyond them the result saturates. The arithmetic is

    u = code - least code, i = u >> bits, r = u & (2**bits - 1)
    v = c3[i];  v = ((v * r) >> s3) + c2[i];  v = ((v * r) >> s2) + c1[i]
    v = ((v * r) >> s1) + c0[i];  v = (v + 2**(s0 - 1)) >> s0;  y = min(max(v, low), high)

with 32-bit coefficients and 64-bit products: Horner's scheme in fixed point. No bound on its error
is needed. The linear program and its binary64 arithmetic only propose coefficients; the integers
are then evaluated at all 65,536 inputs, and a cubic is taken when every code is equal, which is the
proof. If no number of segments up to 2,048 gives that, the table stays a table.

Where f(x) + f(-x) is the same for all x but those that saturate (`mirror`; sigmoid, tanh), half of
the segments do: u is min(|code|, 2**15 - 1), with code - 2**15 of unsigned ones, and v becomes
mirror - v where the code is negative.

(Tables as linear programs over all inputs: J. P. Lim, S. Nagarakatte, "High performance correctly
rounded math libraries for 32-bit floating point representations", PLDI 2021.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, wraps
from typing import Any, TypeVar

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
Found = TypeVar("Found")


@dataclass(frozen=True, eq=False)
class Cubic:
    """A piecewise cubic in integers, evaluated as the module says.

    bits:         of r, the place within a segment
    coefficients: int32 [segments, 4], c0 to c3
    shifts:       s0 to s3
    low, high:    least and greatest code
    mirror:       f(x) + f(-x) in codes; None where the segments cover all inputs
    """

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
        """Widths that suffice on this cubic's inputs, for the C kernels.

        1: every sum, the last one with the half that rounds it, fits in 32 bits; 2: c3 * r and
        the product after it do too; 0: 64 bits throughout.
        """
        sums = self._sums()
        sums[-1] = sums[-1] + (1 << (self.shifts[0] - 1))
        if not all(v.min() >= -NARROW and v.max() < NARROW for v in sums):
            return 0
        factors = (self.coefficients[:, DEGREE].astype(np.int64), sums[0])
        return SHORT if all(int(np.abs(v).max()) << self.bits <= NARROW for v in factors) else 1

    def expand(self) -> Integers:
        """The 65,536 codes int64, from the least input code up, computed as the module says."""
        v = (self._sums()[-1] + (1 << (self.shifts[0] - 1))) >> self.shifts[0]
        if self.mirror is not None:
            v = _whole(v, self.mirror)
        return np.clip(v, self.low, self.high)

    def _sums(self) -> list[Integers]:
        """v after c2, c1 and c0 were added, for every u."""
        u = np.arange(ENTRIES if self.mirror is None else HALF, dtype=np.int64)
        rest = u & ((1 << self.bits) - 1)
        columns = self.coefficients.astype(np.int64)[u >> self.bits].T
        sums = [columns[DEGREE]]
        for degree in range(DEGREE, 0, -1):
            sums.append(((sums[-1] * rest) >> self.shifts[degree]) + columns[degree - 1])
        return sums[1:]


def of_all_codes(fit: Callable[[Integers], Found]) -> Callable[[npt.NDArray[Any]], Found]:
    """A search for a form of 65,536 codes, remembered by their content.

    Entry i is the code for the i-th input code from the least. Raises ValueError for another number
    of codes.
    """

    @lru_cache(maxsize=64)
    def found(data: bytes) -> Found:
        return fit(np.frombuffer(data, np.int64))

    @wraps(fit)
    def checked(codes: npt.NDArray[Any]) -> Found:
        if codes.shape != (ENTRIES,):
            raise ValueError(f"expected {ENTRIES} codes, found shape {codes.shape}")
        return found(codes.astype(np.int64).tobytes())

    return checked


@of_all_codes
def fit_cubic(codes: Integers) -> Cubic | None:
    """The cubics of the fewest segments that give these 65,536 codes; None if 2,048 do not."""
    half, mirror = _mirrored(codes)
    if half is not None:
        return _fewest(codes, half, mirror) or _fewest(codes, codes, None)
    return _fewest(codes, codes, None)


def _mirrored(codes: Integers) -> tuple[Integers | None, int]:
    """The codes [32768] that segments of half the range have to give, and the mirror; None where
    the other half does not follow from them. Where one half is saturated the codes wanted of the
    other may go on beyond the saturated one: they are clipped at the end."""
    low, high = int(codes.min()), int(codes.max())
    mirror = int(codes[HALF - 1] + codes[HALF + 1])
    half = codes[HALF:].copy()
    other = np.concatenate([half[:1], mirror - codes[HALF - 1 : 0 : -1]])
    half = np.where(half == high, np.maximum(half, other), half)
    half = np.where(half == low, np.minimum(half, other), half)
    same = (np.clip(_whole(half, mirror), low, high) == codes).all()
    return (half if same else None), mirror


def _whole(half: Integers, mirror: int) -> Integers:
    """The codes at all inputs from those at 0 and up. The least input has no positive twin: it
    gives the code of the next one."""
    return np.concatenate([mirror - half[-1:], mirror - half[:0:-1], half])


def _fewest(codes: Integers, wanted: Integers, mirror: int | None) -> Cubic | None:
    """The cubics of the fewest segments that give `wanted`, and so the codes.

    For one number of segments several widths of the coefficients are tried: a cubic that the C
    kernels evaluate in narrower arithmetic (`Cubic.narrow`) is preferred.
    """
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
    """Bits that c0 to c3 may have beside the sign: first such that c2 and c3 times r, below
    `width`, fit in 32 bits, then as many as 32-bit coefficients have."""
    products = [30 - (width.bit_length() - 1) - less for less in range(3)]
    return [(30, 30, bits, bits) for bits in products] + [
        (bits, bits, bits, bits) for bits in (30, 29, 28)
    ]


def _polynomials(
    codes: Integers, segments: int, above: npt.NDArray[np.bool_], below: npt.NDArray[np.bool_]
) -> npt.NDArray[np.float64] | None:
    """Real coefficients [segments, 4] in r / width, or None where a segment has none.

    above, below: entries whose code may be exceeded upward or downward, as the result saturates.
    The unknowns are c0 to c3 and the distance d: p(r) + d <= code + 1/2 and p(r) - d >= code - 1/2
    for every entry, d as large as can be. Codes are taken relative to the segment's middle one,
    and r relative to the width, so that all numbers are of moderate size.
    """
    width = len(codes) // segments
    powers = np.vander(np.arange(width) / width, DEGREE + 1, increasing=True)
    objective = np.array([0.0] * (DEGREE + 1) + [-1.0])  # the distance, as large as can be
    bounds = [(None, None)] * (DEGREE + 1) + [(None, 0.5)]
    found = np.empty((segments, DEGREE + 1))
    for segment in _hardest_first(codes.reshape(segments, width), powers):
        start = segment * width
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
        found[segment] = [solved.x[0] + middle, *solved.x[1 : DEGREE + 1]]
    return found


def _hardest_first(parts: Integers, powers: npt.NDArray[np.float64]) -> npt.NDArray[np.intp]:
    """The segments, those that cubics of least squares fit worst first: one that no cubic fits is
    then found by one of the first linear programs."""
    centred = (parts - parts[:, :1]).astype(np.float64)
    misses = centred - centred @ np.linalg.pinv(powers).T @ powers.T
    return np.argsort(-np.abs(misses).max(axis=1), kind="stable")


def _rounded(
    codes: Integers,
    real: npt.NDArray[np.float64],
    width: int,
    mirror: int | None,
    most: Sequence[int],
) -> Cubic | None:
    """Integer coefficients, as fine as `most` bits of each allow; None if even whole numbers are
    too large.

    c_k stands for a real coefficient in units of 2**-(s0 + .. + s_k): each shift is the largest
    with which the coefficients of that degree keep to their bits.
    """
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
