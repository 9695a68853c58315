"""Firmware translated into software, written to files and loaded from them."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from samebits.errors import UnsupportedError
from samebits.model import Firmware
from samebits.npu.concord.translate import SUFFIXES, load_concordant, translate
from samebits.verification.backend import Layer

Array = np.ndarray[Any, Any]
KINDS = tuple(SUFFIXES)
PACKAGES = {"torch": "torch", "onnx": "onnxruntime", "tensorflow": "tensorflow"}
BATCH = 64


class Concordant:
    """One kind of concordant software. `work` is where it is written for the time of a run."""

    subject = Firmware

    def __init__(self, kind: str, work: Path | None = None) -> None:
        self.kind, self.work = kind, work
        self.name = f"concordant-{kind}"

    def unavailable(self) -> str | None:
        package = PACKAGES[self.kind]
        if find_spec(package) is None:
            return f"{self.name}: expected the package {package}; pip install {package}"
        return None

    def run(self, model: Firmware, inputs: Sequence[Array]) -> list[Array]:
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

    def trace(self, model: Firmware, inputs: Sequence[Array]) -> list[list[Layer]]:
        raise UnsupportedError(f"{self.name} keeps no trace; trace npu instead")
