"""Learning-rate schedules: pure functions of the step, without libm.

Each value is binary64 arithmetic in a stated order; the cosine is correctly rounded to binary64
by arbitrary precision, so every machine steps with the same bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import mpmath

from samebits.errors import InputError
from samebits.recipes.training import SCHEDULES

_COSINE_BITS = 256


@lru_cache(maxsize=4096)
def cosine_of_ratio(numerator: int, denominator: int) -> float:
    """cos(pi * numerator / denominator) correctly rounded to binary64."""
    divisor = math.gcd(numerator, denominator)
    with mpmath.workprec(_COSINE_BITS):
        ratio = mpmath.mpf(numerator // divisor) / mpmath.mpf(denominator // divisor)
        return float(mpmath.cospi(ratio))


@dataclass(frozen=True)
class Schedule:
    """Learning rate of step 0 .. `total` - 1, starting from `base`.

    constant: base. step: base, base / 10 from half and base / 100 from three quarters of the run.
    linear: base * ((n - t) / n). cosine: base * (0.5 * (1 + cos(pi * t / n))). Here t and n count
    the steps after `warmup`; during it the rate is base * ((step + 1) / warmup).
    """

    name: str
    base: float
    total: int
    warmup: int = 0

    def __post_init__(self) -> None:
        if self.name not in SCHEDULES:
            raise InputError(
                f"expected a schedule among {', '.join(SCHEDULES)}, found {self.name!r}"
            )
        if not math.isfinite(self.base) or self.base < 0:
            raise InputError(f"expected a finite learning rate >= 0, found {self.base}")
        if self.total < 1 or not 0 <= self.warmup < self.total:
            raise InputError(
                f"expected at least 1 step and a warm-up shorter than the run, found "
                f"{self.total} steps and a warm-up of {self.warmup}"
            )

    def at(self, step: int) -> float:
        """The learning rate of a step in 0 .. total - 1."""
        if not 0 <= step < self.total:
            raise ValueError(f"step {step} is outside 0..{self.total - 1}")
        if step < self.warmup:
            return self.base * ((step + 1) / self.warmup)
        t, n = step - self.warmup, self.total - self.warmup
        if self.name == "linear":
            return self.base * ((n - t) / n)
        if self.name == "cosine":
            return self.base * (0.5 * (1.0 + cosine_of_ratio(t, n)))
        if self.name == "step":
            return self.base / (100.0 if 4 * t >= 3 * n else 10.0 if 2 * t >= n else 1.0)
        return self.base
