"""The protocol of a backend: something that computes a model's outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from samebits.errors import UnsupportedError
from samebits.model import Model

Array = np.ndarray[Any, Any]
Needs = Literal["graph", "firmware"]


@dataclass(frozen=True)
class TracedValue:
    """One stored value of one run: its hash (docs/spec/graph.md section 7), its number of elements
    and, where the backend gives them, its codes."""

    name: str
    hash: int
    count: int
    codes: Array | None = None


@runtime_checkable
class Backend(Protocol):
    """Something that computes integer graphs, or firmware.

    A backend may inherit from this class, and has then no trace and runs anywhere unless it says
    otherwise, or only have its attributes.

    needs: the field of a Model that it computes; a model without it is refused
    """

    name: str
    needs: Needs

    def unavailable(self) -> str | None:
        """Why it cannot run here, and what to do; None if it can."""
        return None

    def run(self, model: Model, inputs: Sequence[Array]) -> list[Array]:
        """Outputs for samples along axis 0, in the order of `model.interface`.

        For a graph: integer codes, or binary32 reals where the backend gives those; `inputs` are
        codes. For firmware: binary16, as the inputs are. UnsupportedError or InputError where this
        backend cannot compute this model.
        """
        ...

    def trace(self, model: Model, inputs: Sequence[Array]) -> list[list[TracedValue]]:
        """The stored values of every run, in order (docs/spec/graph.md section 7).

        Raises UnsupportedError if the backend keeps no intermediate values.
        """
        other = "npu" if self.needs == "firmware" else "the reference"
        raise UnsupportedError(f"{self.name} keeps no trace; trace {other} instead")


@runtime_checkable
class Between(Protocol):
    """A backend that gives tensors between the inputs and the outputs too, by names of values."""

    def results(
        self, model: Model, inputs: Sequence[Array], between: bool
    ) -> tuple[list[Array], dict[str, Array]]:
        """The outputs as `Backend.run` gives them, and tensors between [samples, ...], if asked."""
        ...

    def note(self, model: Model) -> str:
        """Why its codes may differ from the model's; "" where they are promised to be the same."""
        ...


Factory = Callable[[Path | None], Backend]
"""Makes a backend. The argument is a folder for what is built, or None for a temporary one."""
