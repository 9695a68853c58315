"""Number formats as validated data. No torch here: `exact` and every realisation read these."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Rounding(Enum):
    """How a real number becomes an integer code. `HALF_EVEN` unless a format says otherwise."""

    HALF_EVEN = "half-even"
    HALF_UP = "half-up"  # ties toward plus infinity
    HALF_AWAY = "half-away"  # ties away from zero
    FLOOR = "floor"
    STOCHASTIC = "stochastic"  # up with probability = fraction; 32 random bits per element


class ScaleRule(Enum):
    """How the scale of a block follows from its values."""

    ASYMMETRIC = "asymmetric"  # scale = (rmax - rmin) / (2**n - 1), range widened to hold 0
    SYMMETRIC = "symmetric"  # scale = max|r| / code_max
    FIXED = "fixed"  # scale = 2**-fraction_bits (Qm.n)
    BFP = "bfp"  # smallest exponent that does not saturate the largest element
    MX = "mx"  # OCP MX: floor(log2 max|r|) - emax, saturating


@dataclass(frozen=True)
class Format:
    """A set of integer codes and the rule that gives them a scale.

    value = scale * (code - zero_point), or code * 2**exponent for `FIXED`, `BFP` and `MX`.

    `block` is the number of consecutive elements along the last axis that share one scale;
    None shares it over the whole tensor. The last block of a row may be shorter.
    """

    name: str
    bits: int
    code_min: int
    code_max: int
    rule: ScaleRule
    rounding: Rounding = Rounding.HALF_EVEN
    fraction_bits: int = 0  # FIXED only
    block: int | None = None
    exponent_min: int = -128
    exponent_max: int = 127

    def __post_init__(self) -> None:
        if not 2 <= self.bits <= 32:
            raise ValueError(f"format {self.name!r}: expected 2 to 32 bits, found {self.bits}")
        if not self.code_min <= 0 < self.code_max:
            raise ValueError(
                f"format {self.name!r}: expected code_min <= 0 < code_max, "
                f"found [{self.code_min}, {self.code_max}]"
            )
        span = self.code_max - self.code_min
        low, high = -(1 << (self.bits - 1)), (1 << self.bits) - 1
        if span >= 1 << self.bits or self.code_min < low or self.code_max > high:
            raise ValueError(
                f"format {self.name!r}: codes [{self.code_min}, {self.code_max}] "
                f"do not fit in {self.bits} bits"
            )
        if self.block is not None and self.block < 1:
            raise ValueError(f"format {self.name!r}: expected block >= 1, found {self.block}")
        if self.exponent_min > self.exponent_max:
            raise ValueError(f"format {self.name!r}: exponent_min is above exponent_max")

    @property
    def power_of_two(self) -> bool:
        """True when the scale is 2**exponent and the zero point is 0."""
        return self.rule in (ScaleRule.FIXED, ScaleRule.BFP, ScaleRule.MX)
