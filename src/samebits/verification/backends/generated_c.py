"""Generated C, built and run: on this machine, on other processors, and on Cortex-M boards."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from samebits.codegen.raw import Raw
from samebits.codegen.run.execute import build, execute, execute_trace
from samebits.codegen.run.interface import Interface
from samebits.codegen.run.targets import TARGETS, Target
from samebits.contract import UNKNOWN, Contract
from samebits.ir.integer.layers import layers
from samebits.model import Model
from samebits.verification.backend import Array, Backend, Factory, TracedValue
from samebits.verification.generation import Request
from samebits.verification.package import checked


class GeneratedC(Backend):
    """The C of a model on one target of `samebits.codegen.run.targets`: that of its package, where
    it is one that was checked, with the kernels that this has.

    work: the folder in which sources and program are kept for the time of a run; None for the
    system's. cpu: the processor whose kernels the C has, by default the target's
    """

    needs = "graph"

    def __init__(
        self, target: str | Target, work: Path | None = None, cpu: str | None = None
    ) -> None:
        self.target = TARGETS[target] if isinstance(target, str) else target
        self.cpu = self.target.cpu if cpu is None else cpu
        self.name = self.target.name
        if self.cpu != self.target.cpu:
            self.name += f" for {self.cpu}"
        self.work = work

    def unavailable(self) -> str | None:
        return self.target.unavailable()

    def run(self, model: Model, inputs: Sequence[Array]) -> list[Array]:
        with tempfile.TemporaryDirectory(dir=self.work) as folder:
            return execute(self._built(model, Path(folder), trace=False), inputs)

    def trace(self, model: Model, inputs: Sequence[Array]) -> list[list[TracedValue]]:
        names = layers(model.integer)
        with tempfile.TemporaryDirectory(dir=self.work) as folder:
            runs = execute_trace(self._built(model, Path(folder), trace=True), inputs)
        return [[TracedValue(names[e.layer], e.hash, e.count) for e in run] for run in runs]

    def generate(self, model: Model, request: Request) -> list[int]:
        """All tokens by one program: model_steps on the prompt, then model_step again and again."""
        from samebits.codegen.packaging.generator import write_generator

        sizes = len(request.prompt), request.count
        with tempfile.TemporaryDirectory(dir=self.work) as folder:
            sources = Path(folder) / "package"
            settings = request.sampling, request.seed
            interface = write_generator(model.integer, sources, *sizes, *settings)
            program = build(sources, self.target, Path(folder) / "build", interface)
            (tokens,) = execute(program, [np.array(request.prompt, np.int64)])
        return [int(token) for token in tokens]

    def answers(self, model: Model, raw: Raw, samples: Array) -> list[Array]:
        """Raw samples [n, size], numbers as their bits, through NAME_predict: 0 and the answers,
        codes of the output and of the input."""
        from samebits.codegen.packaging.package import replace_folder
        from samebits.codegen.packaging.predictor import predictor

        files, interface = predictor(raw, *self._sources(model, model.meaning, model.rate))
        with tempfile.TemporaryDirectory(dir=self.work) as folder:
            sources = Path(folder) / "package"
            replace_folder(sources, files)
            program = build(sources, self.target, Path(folder) / "build", interface)
            return execute(program, [samples])

    def _sources(
        self, model: Model, contract: Contract = UNKNOWN, rate: int | None = None
    ) -> tuple[str, Mapping[str, bytes]]:
        """The prefix and the files of the model's C; with a contract, and the rate of recordings,
        NAME_predict too."""
        from samebits.codegen.packaging.package import package

        if model.sources is None:
            model = checked(model)[0]
        made = model.sources
        if made is None:
            files = package(model.integer, cpu=self.cpu, contract=contract, rate=rate).sources
            made = "model", files
        return made

    def _built(self, model: Model, folder: Path, trace: bool) -> Any:
        from samebits.codegen.packaging.package import replace_folder

        prefix, files = self._sources(model)
        sources = folder / "package"
        replace_folder(sources, files)
        interface = Interface.of(model.integer, prefix)
        return build(sources, self.target, folder / "build", interface, trace)


BACKENDS: dict[str, Factory] = {name: partial(GeneratedC, name) for name in TARGETS}
