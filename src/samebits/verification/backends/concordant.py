"""Firmware translated into software, which is written to a file and loaded from it."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from shutil import which

import numpy as np

from samebits.csrc import compiler, run_tool
from samebits.errors import InputError
from samebits.model import Model
from samebits.npu.concord.translate import SUFFIXES, load_concordant, translate
from samebits.verification.backend import Array, Backend, Factory

PACKAGES = {"torch": "torch", "onnx": "onnxruntime", "tensorflow": "tensorflow"}
BATCH = 64
IMPORT = 120.0  # seconds in which a package must be imported


class Concordant(Backend):
    """One kind of concordant software (a key of `SUFFIXES`), which computes the firmware's bits.

    work: the folder in which it is written for the time of a run; None for the system's
    """

    needs = "firmware"

    def __init__(self, kind: str, work: Path | None = None) -> None:
        self.kind, self.work = kind, work
        self.name = f"concordant-{kind}"

    def unavailable(self) -> str | None:
        if self.kind == "c":
            command = compiler()[0]
            wanted = "a C compiler ($CC, cc, gcc or clang); install one"
            return None if which(command) else f"{self.name}: expected {wanted}"
        package = PACKAGES[self.kind]
        if find_spec(package) is None:
            return f"{self.name}: expected the package {package}; pip install {package}"
        broken = _broken(package)
        return None if broken is None else f"{self.name}: {broken}"

    def run(self, model: Model, inputs: Sequence[Array]) -> list[Array]:
        ports = model.interface
        with tempfile.TemporaryDirectory(dir=self.work) as folder:
            path = Path(folder) / f"concordant{SUFFIXES[self.kind]}"
            translate(model.program, model.image, self.kind, path)
            compute = load_concordant(path)
            parts = []
            for start in range(0, len(inputs[0]), BATCH):
                some = [array[start : start + BATCH] for array in inputs]
                found = compute(dict(zip(ports.inputs, some, strict=True)))
                parts.append([found[name] for name in ports.outputs])
        return [np.concatenate(column) for column in zip(*parts, strict=True)]


@cache
def _broken(package: str) -> str | None:
    """Why an installed package cannot be imported; None if it can.

    Another process tries: TensorFlow takes seconds, prints, and ends its process where this
    processor lacks an instruction that it was compiled for.
    """
    if package in sys.modules:
        return None
    code = f"import sys; sys.path = {sys.path!r}; import {package}"
    try:
        run = run_tool([sys.executable, "-c", code], IMPORT)
    except InputError:
        return f"expected to import {package} within {IMPORT:g} seconds, found it still running"
    if run.returncode == 0:
        return None
    said = (run.stderr.strip().splitlines() or ["no message"])[-1]
    return (
        f"expected the package {package} to be importable, found exit code {run.returncode}: "
        f"{said}; install it again"
    )


BACKENDS: dict[str, Factory] = {
    f"concordant-{kind}": partial(Concordant, kind) for kind in SUFFIXES
}
