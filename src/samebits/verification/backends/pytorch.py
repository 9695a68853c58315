"""The integer graph in PyTorch, exactly."""

from __future__ import annotations

from collections.abc import Sequence

from samebits.ir.integer.layers import layers
from samebits.model import Model
from samebits.verification.backend import Array, Backend, Factory, TracedValue
from samebits.verification.backends.reference import hashed
from samebits.verification.generation import Request, generated
from samebits.verification.inputs import chunks, joined


class PyTorch(Backend):
    """`samebits.pytorch.executor`, on one device of torch."""

    needs = "graph"

    def __init__(self, device: str = "cpu") -> None:
        self.name = "torch"
        self.device = device

    def run(self, model: Model, inputs: Sequence[Array]) -> list[Array]:
        from samebits.pytorch.executor import TorchExecutor

        executor = TorchExecutor(model.integer, self.device)
        if all(model.integer.values[name].shape for name in model.integer.inputs):
            return executor.run(list(inputs))
        return joined([executor.run(part) for part in chunks(model.integer, inputs)])

    def trace(self, model: Model, inputs: Sequence[Array]) -> list[list[TracedValue]]:
        from samebits.pytorch.executor import TorchExecutor

        executor = TorchExecutor(model.integer, self.device)
        names = layers(model.integer)
        return [hashed(executor.trace(part), names) for part in chunks(model.integer, inputs)]

    def generate(self, model: Model, request: Request) -> list[int]:
        """Token after token."""
        from samebits.pytorch.executor import TorchExecutor

        return generated(model, request, TorchExecutor(model.integer, self.device).run)


BACKENDS: dict[str, Factory] = {"torch": lambda work: PyTorch()}
