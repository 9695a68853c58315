"""Runtimes whose bits are named, and where their kernels differ.

A kernel forms the real ratio of its scales once, when it is prepared, and makes a multiplier and a
shift of it. Some form it in binary32 in one version and in binary64 in another; a few codes follow.
What a file becomes holds the integers alone, so that the version matters nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Runtime:
    """A runtime: the package that it is, and the operators whose ratios it forms in binary32."""

    name: str
    package: str
    short: frozenset[str]

    def ratio(self, op: str, above: tuple[float, float], below: float) -> float:
        """The product of two binary32 scales in the operator's width, over a third in binary64."""
        kind = np.float32 if op in self.short else np.float64
        return float(kind(above[0]) * kind(above[1])) / below


_SHORT = frozenset({"FULLY_CONNECTED", "SUB"})
RUNTIMES: Mapping[str, Runtime] = {
    runtime.name: runtime
    for runtime in (
        Runtime("tflm-2026-09", "tflite-micro of 2026-09-30", _SHORT),
        Runtime("tflm-2026-10", "tflite-micro 0.dev20261023182759", frozenset()),
    )
}
NEWEST = "tflm-2026-10"
