"""Firmware on the simulator, which defines what concordant software must compute."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from samebits.model import Model
from samebits.npu.simulator.simulate import Written, simulate
from samebits.verification.backend import Array, Backend, Factory, TracedValue


class Npu(Backend):
    """The neural processor, simulated instruction by instruction."""

    name = "npu"
    needs = "firmware"

    def run(self, model: Model, inputs: Sequence[Array]) -> list[Array]:
        named = dict(zip(model.interface.inputs, inputs, strict=True))
        found = simulate(model.program, model.image, named).outputs
        return [found[name] for name in model.interface.outputs]

    def trace(self, model: Model, inputs: Sequence[Array]) -> list[list[TracedValue]]:
        named = dict(zip(model.interface.inputs, inputs, strict=True))
        runs = simulate(model.program, model.image, named, keep_values=True).trace
        return [chain_values(run) for run in runs]


BACKENDS: dict[str, Factory] = {"npu": lambda work: Npu()}


def chain_values(run: Sequence[Written]) -> list[TracedValue]:
    """The trace of one sample, simulated with values kept: one value per execution of a chain.

    Codes are the 16 bits of the binary16 numbers that it wrote, as uint16.
    """
    executions: dict[int, int] = {}
    values = []
    for written in run:
        assert written.values is not None
        count = executions[written.line] = executions.get(written.line, 0) + 1
        codes = written.values.view(np.uint16)
        name = f"line {written.line}, execution {count}"
        values.append(TracedValue(name, written.hash, codes.size, codes))
    return values
