"""Step graphs over whole sequences: all steps at once, but for what hands the states on.

A step graph has three parts: what depends on no state, what the next states are made of, and what
only reads states. The first and the last are computed for all steps of all sequences together
(`ir.many`), the second step by step for all sequences together. The bits are those of
`interpreter.run_steps`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from samebits.ir.graph import Graph, Node
from samebits.ir.interpreter import carry, initial_state, read_inputs
from samebits.ir.many import (
    NOTHING,
    Live,
    Stack,
    block_size,
    compute,
    declared,
    evaluate_many,
    read,
)
from samebits.ir.ops import Array
from samebits.ir.reuse import Reuse


@dataclass(frozen=True, eq=False)
class StepSequence:
    """The operands of a step graph.

    inputs: [T, *shape of one step] for each input that is no state
    states: of each state before the first step; None: as the graph says
    """

    inputs: Sequence[Array]
    states: Sequence[Array] | None = None

    def __len__(self) -> int:
        return len(self.inputs[0])


def run_sequences(
    graph: Graph,
    sequences: Sequence[StepSequence],
    names: Iterable[str] | None = None,
    reuse: Reuse[Live] | None = None,
) -> list[dict[str, Array]]:
    """Values of all steps of each sequence, by name: [T, *shape] of their declared types.

    names: by default the outputs of the graph, states among them
    reuse: of a graph that has run on the same sequences

    Raises InputError for operands that do not fit.
    """
    wanted = tuple(graph.outputs if names is None else names)
    order = sorted(range(len(sequences)), key=lambda i: -len(sequences[i]))
    runs = _Runs(graph, [sequences[i] for i in order], wanted, reuse)
    found: list[dict[str, list[Array]]] = [{name: [] for name in wanted} for _ in order]
    for part in runs.parts():
        for name in wanted:
            value = read(graph, part.live, name)
            assert value is not None
            array = declared(value, graph.values[name], part.rows)
            for place, rows in enumerate(part.of_sequences()):
                found[order[place]][name].append(array[rows])
    empty = {name: np.empty((0, *graph.values[name].shape)) for name in wanted}
    return [
        {name: np.concatenate(parts) if parts else empty[name] for name, parts in each.items()}
        for each in found
    ]


@dataclass
class _Part:
    """Some steps of all sequences, time first: `active[t]` sequences, the longest, have step t.

    live: values of all these steps
    """

    active: Sequence[int]
    live: dict[str, Live] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.starts = np.concatenate([[0], np.cumsum(self.active)]).astype(int)

    @property
    def rows(self) -> int:
        """Steps of all sequences together."""
        return int(self.starts[-1])

    def at(self, step: int) -> slice:
        """The rows of one step."""
        return slice(self.starts[step], self.starts[step + 1])

    def of_sequences(self) -> Iterator[Array]:
        """The rows of each sequence, in order of time."""
        for place in range(self.active[0]):
            yield np.array(
                [s + place for s, n in zip(self.starts, self.active, strict=False) if place < n],
                int,
            )


class _Runs:
    """Sequences, the longest first, through the three parts of a step graph."""

    def __init__(
        self,
        graph: Graph,
        sequences: Sequence[StepSequence],
        wanted: Iterable[str],
        reuse: Reuse[Live] | None,
    ) -> None:
        self.graph, self.sequences, self.reuse = graph, sequences, reuse
        self.before, self.within, self.after = _split(graph)
        made = {name for node in self.within for name in node.outputs}
        read_late = {name for node in self.after for name in node.inputs}
        states = {state.input for state in graph.states}
        self.kept = (made | states) & (read_late | set(wanted))
        self.fixed = {
            name: carry(graph.constants[name], graph.values[name].dtype, False, name)
            for node in self.within
            for name in node.inputs
            if name in graph.constants
        }
        self.states = self._initial()

    def _initial(self) -> dict[str, Stack]:
        graph, names = self.graph, [state.input for state in self.graph.states]
        own = {state.input: initial_state(graph, state) for state in graph.states}
        found = [
            own if each.states is None else read_inputs(graph, names, each.states)
            for each in self.sequences
        ]
        return {name: Stack(np.stack([each[name] for each in found])) for name in names if found}

    def parts(self) -> Iterator[_Part]:
        """All steps, as many at once as memory holds."""
        lengths = [len(sequence) for sequence in self.sequences]
        longest = max(lengths, default=0)
        graph = self.graph if self.reuse is None else self.reuse.graph
        size = max(1, block_size(graph) // max(1, len(lengths)))
        for first in range(0, longest, size):
            steps = range(first, min(first + size, longest))
            yield self._part(first, _Part([sum(n > t for n in lengths) for t in steps]))

    def _part(self, first: int, part: _Part) -> _Part:
        part.live.update(self._inputs(first, part))
        known = NOTHING if self.reuse is None else self.reuse.of(self.graph, first)
        self._compute(self.before, part, known)
        if self.reuse is not None:
            self.reuse.keep(self.graph, first, part.live, part.rows)
        collected: dict[str, list[Array]] = {name: [] for name in self.kept}
        for step, count in enumerate(part.active):
            live = self._step(part, step, count)
            for name, arrays in collected.items():
                found = live[name]
                arrays.append(found.arrays if isinstance(found, Stack) else np.stack([found]))
        part.live.update((name, Stack(np.concatenate(each))) for name, each in collected.items())
        self._compute(self.after, part)
        return part

    def _inputs(self, first: int, part: _Part) -> dict[str, Stack]:
        own = self.graph.own_inputs
        rows = [
            read_inputs(self.graph, own, [array[first + step] for array in sequence.inputs])
            for step, count in enumerate(part.active)
            for sequence in self.sequences[:count]
        ]
        return {name: Stack(np.stack([row[name] for row in rows])) for name in own}

    def _compute(
        self, nodes: Sequence[Node], part: _Part, known: Mapping[str, Live] = NOTHING
    ) -> None:
        for _ in compute(self.graph, nodes, part.live, part.rows, known):
            pass

    def _step(self, part: _Part, step: int, count: int) -> dict[str, Live]:
        """One step of all sequences that have it; the states of the next are kept."""
        graph, rows = self.graph, part.at(step)
        live: dict[str, Live] = {n: Stack(s.arrays[:count]) for n, s in self.states.items()}

        def operand(name: str) -> Live | None:
            if name in live or not name:
                return live.get(name)
            found = self.fixed[name] if name in self.fixed else part.live[name]
            return Stack(found.arrays[rows]) if isinstance(found, Stack) else found

        for node in self.within:
            operands = [operand(name) for name in node.inputs]
            made = evaluate_many(node, operands, graph.values, count)
            live.update(zip(node.outputs, made, strict=False))
        for state in graph.states:
            found = operand(state.output)
            assert found is not None
            if not isinstance(found, Stack):
                found = Stack(np.broadcast_to(found, (count, *found.shape)))
            self.states[state.input] = found
        return live


def _split(graph: Graph) -> tuple[list[Node], list[Node], list[Node]]:
    """Nodes that depend on no state; those that do, and that next states depend on; the others."""
    dependent = {state.input for state in graph.states}
    for node in graph.nodes:
        if dependent.intersection(node.inputs):
            dependent.update(node.outputs)
    needed = {state.output for state in graph.states}
    for node in reversed(graph.nodes):
        if needed.intersection(node.outputs):
            needed.update(node.inputs)
    parts: tuple[list[Node], list[Node], list[Node]] = ([], [], [])
    for node in graph.nodes:
        if not dependent.intersection(node.outputs):
            parts[0].append(node)
        else:
            parts[1 if needed.intersection(node.outputs) else 2].append(node)
    return parts
