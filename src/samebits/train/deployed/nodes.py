"""Functions that append to a real graph: nodes, constants, roundings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from samebits.errors import UnsupportedError

Array = np.ndarray[Any, Any]
NORMAL = (-126, 127)  # exponents of binary32 numbers that no runtime flushes to zero
CODE_BITS = 24  # of a binary32 significand


@dataclass(frozen=True)
class Nodes:
    """Functions that append to a graph.

    An operator, a state of [N, H] (by name), real constants, integer constants of the exponents of
    their rows, and a value rounded to codes of an exponent and a type.
    """

    add: Callable[..., str]
    state: Callable[[str, tuple[int, ...]], str]
    real: Callable[[str, Array], str]
    constant: Callable[[str, Any, Sequence[int]], str]
    rounded: Callable[[str, str, int, str], str]


@dataclass(frozen=True)
class StepOperators:
    """Appends the operators of one step of a run.

    path:   of the step, which names them
    inputs: float32 values of the activations that it reads
    """

    nodes: Nodes
    path: str
    inputs: Sequence[str]

    def add(
        self,
        operator: str,
        attributes: Mapping[str, Any] | None = None,
        inputs: Sequence[str] | None = None,
        part: str = "",
    ) -> str:
        """The value of an operator of the step's inputs, or of others; part: of the step, which
        one before its last has as a name."""
        path = f"{self.path}.{part}" if part else self.path
        given = self.inputs if inputs is None else inputs
        return self.nodes.add(operator, given, attributes or {}, path)

    def real(self, part: str, values: Array) -> str:
        """Constants of the step."""
        return self.nodes.real(f"{self.path}.{part}", values)


def binary32(path: str, codes: Sequence[int], exponent: int) -> Array:
    """codes * 2**exponent as float32, exactly.

    Raises UnsupportedError, which names `path`, where a value has more than 24 bits or is no normal
    number.
    """
    for code in codes:
        top = abs(code).bit_length() - 1 + exponent
        if code and not (NORMAL[0] <= top <= NORMAL[1] and top - exponent < CODE_BITS):
            raise UnsupportedError(
                f"{path}: expected constants that float32 holds, found {code} * 2**{exponent}; its "
                "values are too large or too small to be exported: add a normalisation"
            )
    return np.ldexp(np.array(codes, np.float64), exponent).astype(np.float32)
