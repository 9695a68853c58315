"""States of several parts in one tensor, as states of their own.

A network may hand on h and c in one tensor: it cuts them apart at its start and joins them at its
end. One tensor of codes has one scale, and h lies in [-1, 1] while c grows: apart, each has its
own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from samebits.ir.graph import Graph, Node, State
from samebits.ir.ops import Array, op_named
from samebits.ir.rewrite import Edit


@dataclass(frozen=True)
class StatePart:
    """A state that was a part of another: its elements from `start` to `stop` along `axis`."""

    name: str
    whole: str
    axis: int
    start: int
    stop: int

    def of(self, array: Array, leading: int = 0) -> Array:
        """The part of an array that holds the whole state behind `leading` axes."""
        return array.take(range(self.start, self.stop), self.axis + leading)


def apart(graph: Graph) -> tuple[Graph, tuple[StatePart, ...]]:
    """The graph with such states in parts, and every part; the graph itself where there is none.

    A state is parted where its next value joins tensors along an axis, and whatever reads it takes
    all of one of them, or part of one.
    """
    edit, states, parts = Edit(graph), [], []
    nodes = {node.name: node for node in graph.nodes}
    for state in graph.states:
        found = _parts(graph, state)
        if not found:
            states.append(state)
            continue
        join = graph.producers()[state.output]
        for part, output in zip(found, join.inputs, strict=True):
            shape = list(graph.values[state.input].shape)
            shape[part.axis] = part.stop - part.start
            value = replace(graph.values[state.input], name=part.name, shape=tuple(shape))
            edit.values[part.name] = value
            initial = graph.constants.get(state.initial)
            kept = (
                "" if initial is None else edit.constant(f"{part.name}.initial", part.of(initial))
            )
            states.append(State(part.name, output, kept))
            parts.append(part)
        for node in graph.consumers()[state.input]:
            nodes[node.name] = _reader(edit, node, found)
    if not parts:
        return graph, ()
    own = graph.own_inputs, graph.own_outputs
    made = Graph(
        graph.name,
        (*own[0], *(state.input for state in states)),
        (*own[1], *(state.output for state in states)),
        tuple(nodes[node.name] for node in graph.nodes),
        edit.constants,
        edit.values,
        tuple(states),
    )
    used = {name for node in made.nodes for name in node.inputs} | {*made.inputs, *made.outputs}
    live = tuple(n for n in made.nodes if used.intersection(n.outputs))
    return replace(made, nodes=live), tuple(parts)


def parted_arrays(arrays: Mapping[str, Array], parts: tuple[StatePart, ...]) -> dict[str, Array]:
    """Arrays of states, [sequences, *shape], by the names that they have in parts."""
    found = dict(arrays)
    for part in parts:
        if part.whole in arrays:
            found[part.name] = part.of(arrays[part.whole], 1)
    for part in parts:
        found.pop(part.whole, None)
    return found


def _parts(graph: Graph, state: State) -> list[StatePart]:
    """The parts of a state, in order; none where it stays whole."""
    join = graph.producers().get(state.output)
    outputs = graph.outputs
    if join is None or join.op != "Concat" or outputs.count(state.output) != 1:
        return []
    if len(set(join.inputs)) < len(join.inputs) or set(join.inputs) & {*outputs}:
        return []
    if any(name not in graph.producers() for name in join.inputs):
        return []
    rank = len(graph.values[state.input].shape)
    axis, names = join.attributes["axis"] % rank, set(graph.values)
    ends = np.cumsum([0, *(graph.values[name].shape[axis] for name in join.inputs)]).tolist()
    parts = [
        StatePart(_name(f"{state.input}.{i}", names), state.input, axis, start, stop)
        for i, (start, stop) in enumerate(pairwise(ends))
    ]
    readers = graph.consumers()[state.input]
    return parts if readers and all(_taken(graph, node, parts) for node in readers) else []


def _name(hint: str, taken: set[str]) -> str:
    return hint if hint not in taken else _name(f"{hint}_", taken)


def _indices(graph: Graph, node: Node, axis: int) -> list[int]:
    """The places along an axis that a reader takes of a state; none for another reader."""
    x, a = node.inputs[0], node.attributes
    shape = graph.values[x].shape
    if node.op == "Gather":
        indices = graph.constants.get(node.inputs[1])
        if indices is None or a["axis"] % len(shape) != axis or node.inputs[1] == x:
            return []
        return (indices.reshape(-1) % shape[axis]).tolist()
    if node.op == "Slice":
        places = [i for i, each in enumerate(a["axes"]) if each % len(shape) == axis]
        if len(a["axes"]) != 1 or not places:
            return []
        found = op_named("Slice").meaning([np.arange(shape[axis])], {**a, "axes": (0,)})[0]
        return np.asarray(found).tolist()
    return []


def _taken(graph: Graph, node: Node, parts: list[StatePart]) -> tuple[StatePart, list[int]] | None:
    """The part that holds all that a reader takes, and the places within it."""
    indices = _indices(graph, node, parts[0].axis)
    for part in parts:
        if indices and all(part.start <= index < part.stop for index in indices):
            return part, [index - part.start for index in indices]
    return None


def _reader(edit: Edit, node: Node, parts: list[StatePart]) -> Node:
    """A reader of the state as one of the part that it takes."""
    taken = _taken(edit.graph, node, parts)
    assert taken is not None
    part, indices = taken
    a = dict(node.attributes)
    if node.op == "Gather":
        given = edit.graph.constants[node.inputs[1]]
        shifted = np.array(indices, given.dtype).reshape(given.shape)
        return replace(node, inputs=(part.name, edit.constant(f"{part.name}.index", shifted)))
    step = a["steps"][0]
    end = indices[-1] + (1 if step > 0 else -1)
    size = part.stop - part.start
    a |= {"starts": (indices[0],), "ends": (end if end >= 0 else -size - 1,)}
    return replace(node, inputs=(part.name,), attributes=a)
