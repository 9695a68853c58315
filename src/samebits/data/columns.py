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
NEAR = 2.0**-16  # to a tie: codes below 2**31 in binary64 are off by less than 2**-20


@dataclass(frozen=True)
class ColumnScale:
    """The zero and the unit of a column: its codes are of (x - centre) / spread."""

    centre: float
    spread: float

    @staticmethod
    def of(values: Reals) -> ColumnScale:
        """The mean and standard deviation of finite numbers [n], n >= 1, each rounded once."""
        integers, unit = _integers(values)
        n, total = len(integers), sum(integers)
        mean = Fraction(total, n) * unit
        squares = sum(v * v for v in integers)
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
        for index in near:
            x = Fraction(float(values[index]))
            codes[index] = spec.code(x, self.centre, self.spread, bits, largest)
        return np.clip(codes, -largest, largest)


def _integers(values: Reals) -> tuple[list[int], Fraction]:
    """Finite numbers as integers of one unit, a power of two."""
    fractions, exponents = np.frexp(values)
    significands = (fractions * 2.0**SIGNIFICAND).astype(np.int64).tolist()
    lowest = min((e for m, e in zip(significands, exponents.tolist(), strict=True) if m), default=0)
    integers = [
        m << (e - lowest) if m else 0 for m, e in zip(significands, exponents.tolist(), strict=True)
    ]
    unit = lowest - SIGNIFICAND
    return integers, Fraction(1 << unit) if unit >= 0 else Fraction(1, 1 << -unit)
