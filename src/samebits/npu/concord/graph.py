"""Data flow of a program: operations on whole tensors, as the translators write them.

A value is a tensor of native vectors in logical lanes: binary16 [batch, positions, width]. A
position holds `vectors` native vectors; lanes from `width` on hold `padding` in the machine and are
left out here. Constants and what is computed from them alone have a batch of 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from samebits.npu.machine.program import Hint

Array = np.ndarray[Any, Any]
Key = tuple[str, str]  # kind and name of an array in DataFlow.data


@dataclass(frozen=True)
class FlowValue:
    """A tensor. padding: bits of a binary16 number. constant: whether its numbers are data.

    Names are unique in a data flow.
    """

    name: str
    positions: int
    vectors: int
    width: int
    padding: int = 0
    constant: bool = False


@dataclass(frozen=True)
class FlowNode:
    """One operation on whole tensors. line: of its chain in the program, 0 of what has none.

    What `key` and `numbers` mean depends on `op`, which is an instruction of the multifunction
    units (neither means anything) or one of these:

    input, output  key: name of the hint
    constant       key: of the array in the data
    join           positions of the inputs, one after the other
    select         positions; key: of an index in the data, or numbers: start, stop, stride
    widen          lanes up to out.width are added; numbers: their bits
    split          a position becomes one native vector
    quantize       block floating point
    mv_mul         quantized vectors times constant tiles; key: of the data, numbers: requantize
    mv_mul_tiles   quantized vectors times quantized rows of tiles; numbers: tiles, requantize
    turn           tiles of N positions of a native vector each, transposed

    Instructions across lanes stand for themselves too; numbers: the lanes that belong together.
    """

    op: str
    out: FlowValue
    inputs: tuple[FlowValue, ...] = ()
    key: str = ""
    numbers: tuple[int, ...] = ()
    line: int = 0


@dataclass(frozen=True)
class Carried:
    """A tensor that goes from one turn of a loop to the next.

    state: in the body; initial: before the loop; next: of the body, the state in the next turn;
    final: the state after the loop, outside, if anything there reads it.
    """

    state: FlowValue
    initial: FlowValue
    next: FlowValue
    final: FlowValue | None


@dataclass(frozen=True)
class Turns:
    """A loop. All pairs are (in the body, outside).

    slices: a turn's positions of a tensor of all turns        carried: see there
    collected: what each turn adds to a tensor of all turns    escaped: of the last turn
    """

    count: int
    slices: tuple[tuple[FlowValue, FlowValue], ...]
    carried: tuple[Carried, ...]
    body: tuple[FlowNode | Turns, ...]
    collected: tuple[tuple[FlowValue, FlowValue], ...]
    escaped: tuple[tuple[FlowValue, FlowValue], ...]
    line: int = 0

    @property
    def outside(self) -> tuple[FlowValue, ...]:
        """Values that exist after the loop because of it."""
        outer = [out for _, out in (*self.collected, *self.escaped)]
        return (*(c.final for c in self.carried if c.final), *outer)


@dataclass
class DataFlow:
    """Nodes in order, and their arrays.

    data: (kind, name) -> array. "constant": uint16 bits [positions, width]. "index": int64
    [positions]. "tiles": binary32 [tiles, lanes, outputs], quantized values.
    """

    name: str
    native: int
    mantissa: int
    inputs: tuple[Hint, ...]
    outputs: tuple[Hint, ...]
    nodes: tuple[FlowNode | Turns, ...] = ()
    data: dict[Key, Array] = field(default_factory=dict)


def sweep(flow: DataFlow) -> None:
    """Drop the nodes and arrays that no output needs."""
    flow.nodes = _sweep(
        flow.nodes, {s.out.name for s in flow.nodes if isinstance(s, FlowNode) and s.op == "output"}
    )
    flow.data = {key: flow.data[key] for key in _keys(flow.nodes) if key in flow.data}


def _sweep(nodes: Sequence[FlowNode | Turns], live: set[str]) -> tuple[FlowNode | Turns, ...]:
    """The nodes that `live` needs; `live` grows by all that these need in turn."""
    kept: list[FlowNode | Turns] = []
    for node in reversed(nodes):
        if isinstance(node, FlowNode):
            if node.out.name in live:
                live.update(value.name for value in node.inputs)
                kept.append(node)
        elif any(value.name in live for value in node.outside):
            kept.append(_sweep_turns(node, live))
    return tuple(reversed(kept))


def _sweep_turns(turns: Turns, live: set[str]) -> Turns:
    """The part of a loop that `live` needs; `live` grows by what that part needs from outside.

    A state is needed if its value after the loop is, or if the body needs it; then its next value
    is needed too, which may need other states: repeated until nothing is added.
    """
    after = frozenset(live)
    collected = tuple(pair for pair in turns.collected if pair[1].name in live)
    escaped = tuple(pair for pair in turns.escaped if pair[1].name in live)
    carried = [c for c in turns.carried if c.final and c.final.name in live]
    while True:
        inner = {value.name for value, _ in (*collected, *escaped)}
        inner |= {c.next.name for c in carried}
        body = _sweep(turns.body, inner)
        more = [c for c in turns.carried if c.state.name in inner and c not in carried]
        if not more:
            break
        carried += more
    live |= inner
    live.update(c.initial.name for c in carried)
    slices = tuple(pair for pair in turns.slices if pair[0].name in inner)
    live.update(out.name for _, out in slices)
    in_order = tuple(
        c if c.final and c.final.name in after else replace(c, final=None)
        for c in turns.carried
        if c in carried
    )
    return replace(
        turns, slices=slices, carried=in_order, body=body, collected=collected, escaped=escaped
    )


def _keys(nodes: Iterable[FlowNode | Turns]) -> Iterable[Key]:
    for node in nodes:
        if isinstance(node, Turns):
            yield from _keys(node.body)
        elif node.op in ("constant", "select") and node.key:
            yield ("constant" if node.op == "constant" else "index"), node.key
        elif node.op == "mv_mul":
            yield "tiles", node.key
