"""Runtimes whose bits are named, and where their kernels differ.

A kernel forms the real ratio of its scales once, when it is prepared, and makes a multiplier and a
shift of it. Some form it in binary32 in one version and in binary64 in another; a few codes follow.
What a file becomes holds the integers alone, so that the version matters nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from samebits.tflite.file import Scaling

PACKAGE = "tflite-micro"


@dataclass(frozen=True)
class Runtime:
    """A runtime: the packages that have it, and the operators whose ratios it forms in binary32.

    first, last: versions of the first package and of the last one that was compared
    """

    name: str
    first: str
    last: str
    short: frozenset[str]

    @property
    def package(self) -> str:
        """The packages, as their registry names them."""
        return f"{PACKAGE} {self.first} to {self.last}"

    def holds(self, version: str) -> bool:
        """Whether a package of this version has the runtime: they are dated, year first."""
        return self.first <= version <= self.last

    def kind(self, op: str) -> type[np.float32] | type[np.float64]:
        """The type in which an operator forms its ratio."""
        return np.float32 if op in self.short else np.float64

    def ratio(self, op: str, above: tuple[float, float], below: float) -> float:
        """The product of two binary32 scales in the operator's width, over a third in binary64."""
        kind = self.kind(op)
        return float(kind(above[0]) * kind(above[1])) / below

    def product(self, op: str, *scalings: Scaling) -> float:
        """The product of binary32 scales in the operator's width."""
        kind: Any = self.kind(op)
        found = kind(1)
        for scaling in scalings:
            found = found * kind(scaling.scales[0])
        return float(found)

    def quotient(self, op: str, *parts: float) -> float:
        """The first of binary32 numbers over the others in turn, in the operator's width."""
        kind: Any = self.kind(op)
        found = kind(parts[0])
        for part in parts[1:]:
            found = found / kind(part)
        return float(found)


_SHORT = frozenset(
    (
        *("ABS", "BATCH_MATMUL", "DIV", "FULLY_CONNECTED", "HARD_SWISH", "LEAKY_RELU", "RELU"),
        *("SUB", "SVDF", "UNIDIRECTIONAL_SEQUENCE_LSTM"),
    )
)
RUNTIMES: Mapping[str, Runtime] = {
    runtime.name: runtime
    for runtime in (
        Runtime("tflm-2026-09", "0.dev20260925222358", "0.dev20261012203412", _SHORT),
        Runtime("tflm-2026-10", "0.dev20261013214400", "0.dev20261023182759", frozenset()),
    )
}
NEWEST = "tflm-2026-10"
