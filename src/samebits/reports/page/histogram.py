"""Histograms as data, drawn by a template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

Array = np.ndarray[Any, Any]
BINS = 48


@dataclass(frozen=True)
class Histogram:
    """The count of numbers in each of equal parts of [low, high]."""

    counts: Sequence[int]
    low: str
    high: str

    @property
    def outline(self) -> str:
        """The bars as one SVG path in an area of len(counts) x 100."""
        top = max(self.counts, default=0) or 1
        steps = "".join(f"V{100 - round(100 * n / top)}h1" for n in self.counts)
        return f"M0 100{steps}V100Z"

    @property
    def words(self) -> str:
        """The drawing in words, for those who do not see it."""
        return f"histogram of {sum(self.counts):,} numbers from {self.low} to {self.high}"


@dataclass(frozen=True)
class NamedHistogram:
    """A histogram under a title, with a line about it."""

    title: str
    below: str
    histogram: Histogram


@dataclass(frozen=True)
class Histograms:
    """A block: histograms side by side."""

    kind: ClassVar[str] = "histograms"
    items: Sequence[NamedHistogram]


def histogram_of(numbers: Array) -> Histogram:
    """The histogram of codes, each bar as many of them, or of reals, each bar an equal part of
    their range. What is not finite is in no bar."""
    flat = numbers.reshape(-1)
    flat = flat[np.isfinite(flat)]
    if not flat.size:
        return Histogram([0], "0", "0")
    if flat.dtype.kind in "iu":
        low, high = int(flat.min()), int(flat.max())
        width = max(1, -(-(high - low + 1) // BINS))
        counts = np.bincount((flat.astype(np.int64) - low) // width)
        return Histogram([int(n) for n in counts], f"{low:,}", f"{high:,}")
    counts, edges = np.histogram(flat.astype(np.float64), BINS)
    return Histogram([int(n) for n in counts], f"{edges[0]:.3g}", f"{edges[-1]:.3g}")
