"""Kernel calls with constant parameters, as plain data: the result of lowering.

A `CallList` knows neither C names nor addresses: inputs and outputs are names of values of the
graph, arrays are numpy's. The memory plan, the blocks of steps and the text are computed from it.
"""

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
class KernelCall:
    """A call samebits_run_<function>(&parameters, inputs..., output[, scratch]).

    inputs: names of values. listed: they go as one array of pointers. scratch: bytes of scratch
    memory, None where the kernel takes none.
    """

    function: str
    parameters: Struct
    inputs: tuple[str, ...]
    scratch: int | None = None
    listed: bool = False


@dataclass(frozen=True)
class ValueCalls:
    """The calls that write one stored value, or the value that it is another view of.

    No calls and no view: the value is a constant. in_place: inputs whose memory the output may take
    over when they are not read later; such kernels read an element before they write over it.
    rolling: an input in whose place the output is written may be larger. copies: calls that copy
    the value into others, each with the value that it is then a part of.
    """

    value: str
    calls: tuple[KernelCall, ...] = ()
    in_place: tuple[str, ...] = ()
    rolling: bool = False
    view_of: str | None = None
    copies: tuple[tuple[KernelCall, str], ...] = ()

    @property
    def reads(self) -> tuple[str, ...]:
        """The values that the calls, or the view, read: each once, in order."""
        views = (self.view_of,) if self.view_of else ()
        return tuple(dict.fromkeys((*views, *(n for call in self.calls for n in call.inputs))))


@dataclass(frozen=True)
class CallLoop:
    """Entries that do the same to other memory: `count` rounds of `period`, from `first` on."""

    first: int
    period: int
    count: int

    @property
    def end(self) -> int:
        """The entry behind the last round."""
        return self.first + self.period * self.count

    @property
    def starts(self) -> range:
        """The first entry of every round."""
        return range(self.first, self.end, self.period)


@dataclass(frozen=True, eq=False)
class CallList:
    """The calls of a graph: one entry per layer, in the order in which they run.

    folded: arrays of layers that depend on constants alone, computed when the graph is lowered.
    loops: runs of entries that repeat (codegen/loops.py), in order.
    """

    graph: Graph
    entries: tuple[ValueCalls, ...]
    folded: Mapping[str, Array] = field(default_factory=dict)
    loops: tuple[CallLoop, ...] = ()

    def constant(self, name: str) -> Array | None:
        """The array of a constant or folded value."""
        found = self.graph.constants.get(name)
        return self.folded.get(name) if found is None else found
