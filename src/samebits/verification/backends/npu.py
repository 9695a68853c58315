"""Firmware on the simulator: what concordant software must compute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from samebits.model import Firmware
from samebits.npu.simulator.simulate import Written, simulate
from samebits.verification.backend import Layer

Array = np.ndarray[Any, Any]


class Npu:
    """The neural processor, instruction by instruction."""

    name = "npu"
    subject = Firmware

    def unavailable(self) -> str | None:
        return None

    def run(self, model: Firmware, inputs: Sequence[Array]) -> list[Array]:
        named = dict(zip(model.interface.inputs, inputs, strict=True))
        found = simulate(model.program, model.image, named).outputs
        return [found[name] for name in model.interface.outputs]

    def trace(self, model: Firmware, inputs: Sequence[Array]) -> list[list[Layer]]:
        named = dict(zip(model.interface.inputs, inputs, strict=True))
        runs = simulate(model.program, model.image, named, keep_values=True).trace
        return [chain_layers(run) for run in runs]


def chain_layers(run: Sequence[Written]) -> list[Layer]:
    """One sample's trace, values kept: a layer is one execution of a chain.

    Its codes are the 16 bits of binary16 numbers.
    """
    executions: dict[int, int] = {}
    layers = []
    for written in run:
        assert written.values is not None
        count = executions[written.line] = executions.get(written.line, 0) + 1
        codes = written.values.view(np.uint16)
        name = f"line {written.line}, execution {count}"
        layers.append(Layer(name, written.hash, codes.size, codes))
    return layers
