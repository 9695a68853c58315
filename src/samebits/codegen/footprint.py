"""Layers and constants of the C of a graph, counted without its package.

The figures are those of the report.json that `codegen.packaging` writes: both come of one text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from samebits.codegen import emit
from samebits.codegen.blocks import step_blocks
from samebits.codegen.call_text import TABLES, Constants, byte_count
from samebits.codegen.header import About
from samebits.codegen.lowering.calls import Array, CallList, Data, Struct, Structs, ValueCalls
from samebits.codegen.lowering.cpu import PORTABLE, Cpu
from samebits.codegen.memory import layout
from samebits.codegen.rolling import calls_for
from samebits.ir import Graph
from samebits.tables.cubic import ENTRIES


@dataclass(frozen=True)
class Footprint:
    """Constants of the C in bytes: what was learned, and tables of functions, equal ones once.

    layers: the values that it stores, in order, and the bytes of the constants that each reads,
            which others may read too
    exact:  False of a draft in which tables stand whole that C has as cubics, in fewer bytes
    """

    layers: Mapping[str, int]
    weights: int
    tables: int
    exact: bool = True

    @property
    def constants(self) -> int:
        """Bytes of weights and tables."""
        return self.weights + self.tables


def footprint(graph: Graph, cpu: Cpu = PORTABLE, draft: bool = False) -> Footprint:
    """The footprint of an integer graph in the kernels of a processor. A draft takes no time for
    cubics (`lower_to_calls`).

    Raises UnsupportedError for a graph that has no C.
    """
    calls = calls_for(graph, cpu, draft)
    constants = Constants("model")
    emit.source(
        calls, layout(calls), step_blocks(calls), "model", About("", ""), constants, answer=0
    )
    whole = any(array.size == ENTRIES for _, array in constants.tables)
    return Footprint(
        {entry.value: _bytes(calls, entry) for entry in calls.entries},
        byte_count(constants.weights),
        byte_count(constants.tables),
        not (draft and whole),
    )


def _bytes(calls: CallList, entry: ValueCalls) -> int:
    """Bytes of the constants that one layer reads, equal ones once."""
    own = Constants("model")
    for call in entry.calls:
        for array, table in _arrays(call.parameters):
            own.name(array, table=table)
        for name in call.inputs:
            if (found := calls.constant(name)) is not None:
                own.name(found)
    return byte_count(own.weights) + byte_count(own.tables)


def _arrays(struct: Struct) -> Iterator[tuple[Array, bool]]:
    """The constant arrays of parameters, and whether each is a table of a function."""
    for key, field in struct.fields.items():
        if isinstance(field, Data):
            yield field.array, key in TABLES
        elif isinstance(field, Struct):
            yield from _arrays(field)
        elif isinstance(field, Structs):
            for item in field.items:
                yield from _arrays(item)
