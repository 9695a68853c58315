"""The training framework itself, evaluating a BFP model in deployed arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from samebits.errors import UnsupportedError
from samebits.model import Model
from samebits.verification.backend import Array, Backend, Factory, TracedValue
from samebits.verification.inputs import dequantize

BATCH = 64


class TrainingBackend(Backend):
    """The layers of samebits.train with frozen exponents, for models that were trained in BFP."""

    name = "training"
    needs = "graph"

    def run(self, model: Model, inputs: Sequence[Array]) -> list[Array]:
        """As `Backend.run`; one step of a model with states. UnsupportedError for other models."""
        import torch

        if model.deployed is None:
            raise UnsupportedError(
                f"{model.source}: expected a training output folder for the training backend, "
                "found another kind of model"
            )
        graph = model.integer
        reals = torch.from_numpy(dequantize(inputs[0], graph.values[graph.inputs[0]]))
        if graph.states:
            states = [torch.from_numpy(array) for array in inputs[1:]]
            outputs, after = model.deployed.step(reals, states)
            return [array.numpy() for array in (outputs, *after)]
        parts = [model.deployed.codes(batch)[0].numpy() for batch in reals.split(BATCH)]
        return [np.concatenate(parts)]

    def trace(self, model: Model, inputs: Sequence[Array]) -> list[list[TracedValue]]:
        raise UnsupportedError("the training backend keeps no trace; trace the reference instead")


BACKENDS: dict[str, Factory] = {"training": lambda work: TrainingBackend()}
