"""A tensor of a graph: its type, its shape, and the numbers that its codes stand for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Quantization:
    """value = scale * (code - zero_point), exactly.

    factors: with them, scale * factors[c] * (code - zero_point) + offsets[c], c along `axis`
    offsets: one for each factor, or none: 0
    axis:    counted from the last, which is -1
    """

    scale: Fraction
    zero_point: int = 0
    factors: tuple[Fraction | int, ...] = ()
    offsets: tuple[Fraction, ...] = ()
    axis: int = -1

    def __post_init__(self) -> None:
        if self.scale <= 0:
            raise ValueError(f"expected a positive scale, found {self.scale}")
        if any(factor <= 0 for factor in self.factors):
            raise ValueError(f"expected positive factors, found {self.factors}")
        if self.offsets and len(self.offsets) != len(self.factors):
            raise ValueError(f"expected {len(self.factors)} offsets, found {len(self.offsets)}")
        if self.axis >= 0:
            raise ValueError(f"expected an axis counted from the last, found {self.axis}")

    @property
    def scales(self) -> tuple[Fraction, ...]:
        """One for each index of the axis, or one for all."""
        return tuple(self.scale * factor for factor in self.factors or (1,))

    @property
    def table(self) -> tuple[tuple[Fraction, Fraction], ...]:
        """(scale, offset) of each index of the axis, or of all."""
        return tuple(
            zip(self.scales, self.offsets or (Fraction(0),) * len(self.scales), strict=True)
        )

    @property
    def plain(self) -> bool:
        """Whether one scale and the zero point say everything."""
        return not self.factors

    def __str__(self) -> str:
        text = f"{' '.join(map(str, self.scales))} {self.zero_point}"
        return f"{text} + {' '.join(map(str, self.offsets))}" if self.offsets else text


@dataclass(frozen=True)
class Value:
    """A tensor of a graph: its type and shape, and what its integers stand for (if known)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    quantization: Quantization | None = None

    def __post_init__(self) -> None:
        found = self.quantization
        if found is None or found.plain:
            return
        count, axis = len(found.factors), found.axis
        if len(self.shape) < -axis or self.shape[axis] != count:
            raise ValueError(f"expected {count} factors along axis {axis} of {self}")

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"
