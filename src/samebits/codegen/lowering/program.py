"""What lowering hands to emission: kernel calls with constant parameters, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from samebits.ir.graph import Graph

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Data:
    """A constant array; its dtype is that of the C array."""

    array: Array


@dataclass(frozen=True)
class Struct:
    """A C struct `samebits_<type>` by its fields."""

    type: str
    fields: Mapping[str, Field]


@dataclass(frozen=True)
class Structs:
    """A pointer to a constant array of structs of one type."""

    items: tuple[Struct, ...]


Field = int | tuple[int, ...] | Data | Struct | Structs | None


@dataclass(frozen=True)
class Call:
    """samebits_run_<function>(&parameters, inputs..., output[, scratch]).

    listed: the inputs go as one array of pointers. scratch: bytes, 0 for none.
    """

    function: str
    parameters: Struct
    inputs: tuple[str, ...]
    scratch: int | None = None
    listed: bool = False


@dataclass(frozen=True)
class Step:
    """What computes one stored value: calls that write it, or the value it is another view of.

    in_place: inputs whose memory the output may take over when they are not read later.
    """

    value: str
    calls: tuple[Call, ...] = ()
    in_place: tuple[str, ...] = ()
    view_of: str | None = None

    @property
    def reads(self) -> tuple[str, ...]:
        views = (self.view_of,) if self.view_of else ()
        return tuple(dict.fromkeys((*views, *(n for call in self.calls for n in call.inputs))))


@dataclass(frozen=True, eq=False)
class Program:
    """The steps of a graph, one per layer, in order; `folded` are layers that are constants."""

    graph: Graph
    steps: tuple[Step, ...]
    folded: Mapping[str, Array] = field(default_factory=dict)

    def constant(self, name: str) -> Array | None:
        """The array of a constant or folded value."""
        found = self.graph.constants.get(name)
        return self.folded.get(name) if found is None else found
