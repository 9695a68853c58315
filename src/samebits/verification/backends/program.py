"""Generated C, built and run: on this machine, other processors, and Cortex-M boards."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from samebits.codegen.run.execute import build, execute, execute_trace
from samebits.codegen.run.interface import Interface
from samebits.codegen.run.targets import TARGETS, Target
from samebits.ir.integer.layers import layers
from samebits.model import Model
from samebits.verification.backend import Layer

Array = np.ndarray[Any, Any]
PROGRAM_TARGETS = tuple(TARGETS)


class Program:
    """One target of `samebits.codegen.run.targets`. `work` keeps the sources and the program."""

    subject = Model

    def __init__(self, target: str | Target, work: Path | None = None) -> None:
        self.target = TARGETS[target] if isinstance(target, str) else target
        self.name = self.target.name
        self.work = work

    def unavailable(self) -> str | None:
        return self.target.unavailable()

    def run(self, model: Model, inputs: Sequence[Array]) -> list[Array]:
        with tempfile.TemporaryDirectory(dir=self.work) as folder:
            return execute(self._built(model, Path(folder), trace=False), inputs)

    def trace(self, model: Model, inputs: Sequence[Array]) -> list[list[Layer]]:
        names = layers(model.integer)
        with tempfile.TemporaryDirectory(dir=self.work) as folder:
            runs = execute_trace(self._built(model, Path(folder), trace=True), inputs)
        return [[Layer(names[e.layer], e.hash, e.count) for e in run] for run in runs]

    def _built(self, model: Model, folder: Path, trace: bool) -> Any:
        from samebits.codegen import write_package

        sources = folder / "package"
        write_package(model.integer, sources)
        return build(sources, self.target, folder / "build", Interface.of(model.integer), trace)
