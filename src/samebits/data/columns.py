"""Columns of numbers as standardised codes, exactly. docs/spec/tables.md.

Means and spreads are of integers, whatever their order; codes are rounded once: binary64 decides
where it must, and fractions where it is near a tie.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from samebits.spec import tables as spec

Reals = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
SIGNIFICAND = 53
CHUNK = 1 << 16
NEAR = 2.0**-16  # to a tie: codes below 2**31 in binary64 are off by less than 2**-20


@dataclass(frozen=True)
class ColumnScale:
    """The zero and the unit of a column: its codes are of (x - centre) / spread."""

    centre: float
    spread: float

    @staticmethod
    def of(values: Reals) -> ColumnScale:
        """The mean and standard deviation of finite numbers [n], n >= 1, each rounded once."""
        fractions, exponents = np.frexp(values)
        lowest = int(exponents.min())
        n, total, squares = len(values), 0, 0
        for start in range(0, n, CHUNK):  # integers of Python take more memory than numbers
            part = slice(start, start + CHUNK)
            integers = _integers(fractions[part], exponents[part] - lowest)
            total += sum(integers)
            squares += sum(v * v for v in integers)
        unit = Fraction(2) ** (lowest - SIGNIFICAND)
        mean = Fraction(total, n) * unit
        variance = Fraction(n * squares - total * total, n * n) * unit**2
        return ColumnScale(mean.numerator / mean.denominator, spec.root(variance))

    def features(self, values: Reals) -> npt.NDArray[np.int16]:
        """Codes of a feature."""
        return self._codes(values, spec.FEATURE_BITS, spec.FEATURE_MAX).astype(np.int16)

    def targets(self, values: Reals) -> npt.NDArray[np.int32]:
        """Codes of a target of regression."""
        return self._codes(values, spec.TARGET_BITS, spec.TARGET_MAX).astype(np.int32)

    def _codes(self, values: Reals, bits: int, largest: int) -> Integers:
        scaled = (values - self.centre) / self.spread * 2.0**bits
        scaled = np.clip(scaled, -largest - 1.0, largest + 1.0)
        near = np.flatnonzero(np.abs(np.abs(scaled - np.floor(scaled)) - 0.5) < NEAR)
        codes = np.rint(scaled).astype(np.int64)
        found, places = np.unique(values[near], return_inverse=True)
        exact = [
            spec.code(Fraction(x), self.centre, self.spread, bits, largest) for x in found.tolist()
        ]
        codes[near] = np.array(exact, np.int64)[places]
        return np.clip(codes, -largest, largest)


def _integers(fractions: Reals, shifts: npt.NDArray[np.int32]) -> list[int]:
    """Numbers as integers: fractions times 2**(53 + shift), shifts >= 0."""
    significands = (fractions * 2.0**SIGNIFICAND).astype(np.int64)
    return [m << s for m, s in zip(significands.tolist(), shifts.tolist(), strict=True)]
