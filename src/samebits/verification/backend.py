"""The protocol of a backend, and the registry: one file per backend, one line here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from samebits.errors import InputError
from samebits.model import Firmware, Model, Subject

Array = np.ndarray[Any, Any]
S = TypeVar("S", Model, Firmware)


@dataclass(frozen=True)
class Layer:
    """One stored value of one run: its hash and, where the backend gives them, its codes."""

    name: str
    hash: int
    count: int
    codes: Array | None = None


class Backend(Protocol[S]):
    """Something that computes integer graphs (a Model's), or Firmware.

    subject: the type of what it runs
    """

    name: str
    subject: type[S]

    def unavailable(self) -> str | None:
        """Why it cannot run here, and what to do; None if it can."""
        ...

    def run(self, model: S, inputs: Sequence[Array]) -> list[Array]:
        """Outputs for samples along axis 0, in the order of `model.interface`.

        Of a Model: integer codes, or binary32 reals where the backend gives those; `inputs` are
        codes. Of Firmware: binary16, as the inputs are.
        """
        ...

    def trace(self, model: S, inputs: Sequence[Array]) -> list[list[Layer]]:
        """The layers of every run, in order (docs/spec/graph.md section 7). UnsupportedError if
        the backend keeps no intermediate values."""
        ...


Factory = Callable[[Path | None], Backend[Any]]


def known_backends() -> dict[str, Factory]:
    """Every backend by name. The argument is a folder for what is built, or None."""
    from samebits.verification.backends.concordant import KINDS, Concordant
    from samebits.verification.backends.npu import Npu
    from samebits.verification.backends.onnxruntime import RUNTIMES, OnnxRuntime
    from samebits.verification.backends.program import PROGRAM_TARGETS, Program
    from samebits.verification.backends.pytorch import PyTorch
    from samebits.verification.backends.reference import Reference
    from samebits.verification.backends.training import Training

    def program(name: str) -> Factory:
        return lambda work: Program(name, work)

    def runtime(name: str) -> Factory:
        return lambda work: OnnxRuntime(name)

    def concordant(kind: str) -> Factory:
        return lambda work: Concordant(kind, work)

    return {
        "reference": lambda work: Reference(),
        "torch": lambda work: PyTorch(),
        "training": lambda work: Training(),
        **{name: program(name) for name in PROGRAM_TARGETS},
        **{name: runtime(name) for name in RUNTIMES},
        "npu": lambda work: Npu(),
        **{f"concordant-{kind}": concordant(kind) for kind in KINDS},
    }


def backend_named(name: str, work: Path | None = None) -> Backend[Any]:
    """The backend of a name. InputError lists the known ones."""
    known = known_backends()
    if name not in known:
        raise InputError(f"unknown backend {name!r}; expected one of {', '.join(known)}")
    return known[name](work)


def check_subject(backend: Backend[Any], model: Subject) -> None:
    """InputError if the backend runs the other kind of thing."""
    if isinstance(model, backend.subject):
        return
    fitting = [n for n, make in known_backends().items() if make(None).subject is type(model)]
    what, advice = "quantized models", "give the model it was compiled from, or choose"
    if backend.subject is Firmware:
        what, advice = "firmware", "compile it first (samebits compile --target npu), or choose"
    raise InputError(
        f"{model.source}: backend {backend.name} runs {what}, not this; {advice} among "
        f"{', '.join(fitting)}"
    )
