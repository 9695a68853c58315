"""A tensor of a graph: its type, its shape, and the numbers that its codes stand for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Quantization:
    """value = scale * (code - zero_point), exactly.

    factors: with them, scale * factors[c] * (code - zero_point), c along the last axis
    """

    scale: Fraction
    zero_point: int = 0
    factors: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.scale <= 0:
            raise ValueError(f"expected a positive scale, found {self.scale}")
        if any(factor <= 0 for factor in self.factors):
            raise ValueError(f"expected positive factors, found {self.factors}")

    @property
    def scales(self) -> tuple[Fraction, ...]:
        """One for each index of the last axis, or one for all."""
        return tuple(self.scale * factor for factor in self.factors or (1,))

    def __str__(self) -> str:
        return f"{' '.join(map(str, self.scales))} {self.zero_point}"


@dataclass(frozen=True)
class Value:
    """A tensor of a graph: its type and shape, and what its integers stand for (if known)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    quantization: Quantization | None = None

    def __post_init__(self) -> None:
        count = len(self.quantization.factors) if self.quantization else 0
        if count and self.shape[-1:] != (count,):
            raise ValueError(f"expected {count} factors along the last axis of {self}")

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"
