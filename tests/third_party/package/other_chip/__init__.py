"""A backend from outside: it runs the interpreter, once as it is and once with a wrong bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from samebits.errors import UnsupportedError
from samebits.ir import interpreter
from samebits.model import Model
from samebits.verification.inputs import chunks, joined


class OtherChip:
    """Computes what the reference computes."""

    name = "other-chip"
    needs = "graph"

    def __init__(self, work: Path | None = None) -> None:
        self.work = work

    def unavailable(self) -> str | None:
        return None

    def run(self, model: Model, inputs: list[np.ndarray]) -> list[np.ndarray]:
        parts = chunks(model.integer, inputs)
        return joined([interpreter.run(model.integer, part) for part in parts])

    def trace(self, model: Model, inputs: list[np.ndarray]) -> list[list[object]]:
        raise UnsupportedError(f"{self.name} keeps no trace; trace the reference instead")


class FaultyChip(OtherChip):
    """The same with the lowest bit of the first code flipped."""

    name = "faulty-chip"

    def run(self, model: Model, inputs: list[np.ndarray]) -> list[np.ndarray]:
        outputs = super().run(model, inputs)
        outputs[0].flat[0] ^= 1
        return outputs
