"""The protocol of a backend, and the registry: one file per backend, one line here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from samebits.errors import InputError
from samebits.verify.model import Model

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Layer:
    """One stored value of one run: its hash and, where the backend gives them, its codes."""

    name: str
    hash: int
    count: int
    codes: Array | None = None


class Backend(Protocol):
    """Something that computes an integer graph."""

    name: str

    def unavailable(self) -> str | None:
        """Why it cannot run here, and what to do; None if it can."""
        ...

    def run(self, model: Model, inputs: Sequence[Array]) -> list[Array]:
        """Outputs for samples along axis 0: integer codes, or binary32 reals where the backend
        gives those. `inputs` are codes."""
        ...

    def trace(self, model: Model, inputs: Sequence[Array]) -> list[list[Layer]]:
        """The layers of every run, in order (docs/spec/graph.md section 7). UnsupportedError if
        the backend keeps no intermediate values."""
        ...


Factory = Callable[[Path | None], Backend]


def known_backends() -> dict[str, Factory]:
    """Every backend by name. The argument is a folder for what is built, or None."""
    from samebits.verify.backends.onnxruntime import RUNTIMES, OnnxRuntime
    from samebits.verify.backends.program import PROGRAM_TARGETS, Program
    from samebits.verify.backends.pytorch import PyTorch
    from samebits.verify.backends.reference import Reference
    from samebits.verify.backends.training import Training

    def program(name: str) -> Factory:
        return lambda work: Program(name, work)

    def runtime(name: str) -> Factory:
        return lambda work: OnnxRuntime(name)

    return {
        "reference": lambda work: Reference(),
        "torch": lambda work: PyTorch(),
        "training": lambda work: Training(),
        **{name: program(name) for name in PROGRAM_TARGETS},
        **{name: runtime(name) for name in RUNTIMES},
    }


def backend_named(name: str, work: Path | None = None) -> Backend:
    """The backend of a name. InputError lists the known ones."""
    known = known_backends()
    if name not in known:
        raise InputError(f"unknown backend {name!r}; expected one of {', '.join(known)}")
    return known[name](work)
