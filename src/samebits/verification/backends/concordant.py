"""Firmware translated into software, which is written to a file and loaded from it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from samebits.model import Model
from samebits.npu.concord.translate import SUFFIXES, load_concordant, translate
from samebits.verification.backend import Array, Backend, Factory

PACKAGES = {"torch": "torch", "onnx": "onnxruntime", "tensorflow": "tensorflow"}
BATCH = 64


class Concordant(Backend):
    """One kind of concordant software (a key of `SUFFIXES`), which computes the firmware's bits.

    work: the folder in which it is written for the time of a run; None for the system's
    """

    needs = "firmware"

    def __init__(self, kind: str, work: Path | None = None) -> None:
        self.kind, self.work = kind, work
        self.name = f"concordant-{kind}"

    def unavailable(self) -> str | None:
        package = PACKAGES[self.kind]
        if find_spec(package) is None:
            return f"{self.name}: expected the package {package}; pip install {package}"
        return None

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


BACKENDS: dict[str, Factory] = {
    f"concordant-{kind}": partial(Concordant, kind) for kind in SUFFIXES
}
