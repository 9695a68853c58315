"""The reference: the interpreter, plain numpy integers."""

from __future__ import annotations

from collections.abc import Sequence

from samebits.ir import interpreter
from samebits.ir.integer.layers import fnv1a, layers
from samebits.model import Model
from samebits.verification.backend import Array, Backend, Factory, TracedValue
from samebits.verification.generation import Request, generated
from samebits.verification.inputs import chunks, joined


class Reference(Backend):
    """The interpreter, which defines what the backends of graphs must compute."""

    name = "reference"
    needs = "graph"

    def run(self, model: Model, inputs: Sequence[Array]) -> list[Array]:
        graph = model.integer
        return joined([interpreter.run(graph, part) for part in chunks(graph, inputs)])

    def trace(self, model: Model, inputs: Sequence[Array]) -> list[list[TracedValue]]:
        graph = model.integer
        return [
            hashed(interpreter.trace(graph, part), layers(graph)) for part in chunks(graph, inputs)
        ]

    def generate(self, model: Model, request: Request) -> list[int]:
        """Token after token."""
        return generated(model, request, lambda arrays: interpreter.run(model.integer, arrays))


def hashed(values: dict[str, Array], names: Sequence[str]) -> list[TracedValue]:
    """The named values of one run, with their hashes."""
    return [TracedValue(n, fnv1a(values[n]), values[n].size, values[n]) for n in names]


BACKENDS: dict[str, Factory] = {"reference": lambda work: Reference()}
