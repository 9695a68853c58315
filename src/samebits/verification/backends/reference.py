"""The reference: the interpreter, plain numpy integers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from samebits.ir import interpreter
from samebits.ir.integer.layers import fnv1a, layers
from samebits.model import Model
from samebits.verification.backend import Layer
from samebits.verification.inputs import chunks, joined

Array = np.ndarray[Any, Any]


class Reference:
    """Defines what the others must compute."""

    name = "reference"
    subject = Model

    def unavailable(self) -> str | None:
        return None

    def run(self, model: Model, inputs: Sequence[Array]) -> list[Array]:
        graph = model.integer
        return joined([interpreter.run(graph, part) for part in chunks(graph, inputs)])

    def trace(self, model: Model, inputs: Sequence[Array]) -> list[list[Layer]]:
        graph = model.integer
        return [
            hashed(interpreter.trace(graph, part), layers(graph)) for part in chunks(graph, inputs)
        ]


def hashed(values: dict[str, Array], names: Sequence[str]) -> list[Layer]:
    """The named values of one run as layers."""
    return [Layer(n, fnv1a(values[n]), values[n].size, values[n]) for n in names]
