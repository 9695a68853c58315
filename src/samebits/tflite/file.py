"""A TensorFlow Lite file as data: subgraphs of tensors and operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

LONGEST = 80  # characters of a name in messages


@dataclass(frozen=True)
class Scaling:
    """value = scale * (code - zero point): one pair for all codes, or one for each index of `axis`.

    scales are binary32 numbers; zero_points are as many, or one.
    """

    scales: tuple[float, ...]
    zero_points: tuple[int, ...] = (0,)
    axis: int = 0


@dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor: its array where it is constant, what its codes stand for where it is quantized.

    Codes of 4 bits lie in arrays of int8. variable: its values stay from one run to the next.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    array: Array | None = None
    quantization: Scaling | None = None
    variable: bool = False

    def __str__(self) -> str:
        name = self.name if len(self.name) <= LONGEST else f"{self.name[:LONGEST]}..."
        return f"tensor {name!r}"


@dataclass(frozen=True)
class LiteOperator:
    """An operator; `inputs` and `outputs` are numbers of tensors, -1 an optional input left out.

    op: its name, "CUSTOM" and a name of one that no runtime has by itself, or "operator" and a
    number that is unknown here. options: those of `schema.OPTIONS_OF`, with defaults filled in.
    place: where messages say that it stands in its file
    """

    op: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    version: int = 1
    place: str = field(default="operator", compare=False)

    def __str__(self) -> str:
        return f"{self.place} ({self.op})"


@dataclass(frozen=True, eq=False)
class Subgraph:
    """Operators in the order of their execution, and the tensors that they read and write."""

    tensors: tuple[Tensor, ...]
    operators: tuple[LiteOperator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    name: str = ""


@dataclass(frozen=True, eq=False)
class File:
    """A whole file; the first subgraph is the network, others are called by its operators.

    metadata: texts by names that begin with `schema.OWN`; what others left there is not read
    """

    subgraphs: tuple[Subgraph, ...]
    description: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
