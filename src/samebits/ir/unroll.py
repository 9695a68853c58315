"""Recurrent layers as the nodes of their cells: one, or one for every step of a sequence.

`ir.steps` takes one cell of each layer for a graph of one time step. A network that is itself
called step by step, with its states as inputs and outputs, and one over whole sequences keep their
own inputs: their layers become as many cells as one call has time steps (`unrolled`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from samebits.errors import UnsupportedError
from samebits.ir.graph import Graph, GraphBuilder, Node
from samebits.ir.real.cell import LAYERS, Cell, Sizes, activations, weights
from samebits.ir.real.recurrent import (
    CELL,
    INITIAL,
    LENGTHS,
    PEEPHOLE,
    PROJECTION,
    B,
    R,
    W,
    X,
    parameters,
    recurrent_sizes,
)

CELLS_MAX = 128  # cells of one call of a network with states
WHOLE_MAX = 1024  # of one over whole sequences, whose cells are loops in C
DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


class GraphOperators:
    """Operators as nodes of a graph in the making (see cell.Operators).

    dtype: of numbers. taken: names of the graph that the nodes come from.
    """

    def __init__(self, builder: GraphBuilder, dtype: str, taken: Collection[str]) -> None:
        self.builder, self.dtype, self.taken = builder, dtype, taken

    def __call__(self, op: str, *inputs: str, name: str = "", **attributes: Any) -> Sequence[str]:
        """The outputs of a new node."""
        return self.builder.add_all(op, inputs, attributes, self.fresh(name or op))

    def fresh(self, name: str) -> str:
        """A name for a node, and its output, that the graph it comes from does not have."""
        while name in self.taken or f"{name}.out" in self.taken:
            name += "_"
        return name

    def number(self, value: float) -> str:
        """A constant of the layer's type; UnsupportedError for a number that it does not hold."""
        array = np.array(value, self.dtype)
        if float(array) != value:
            raise UnsupportedError(f"expected a number of {self.dtype}, found {value}")
        return self.builder.constant(self.fresh("number"), array)


@dataclass(frozen=True)
class LayerNode:
    """A recurrent layer of a graph, as its cells need it.

    x: the sequence, of `steps` steps and `batch` rows. initial: the states before the first step
    (h and, of an LSTM, c), "" for zeros; widths: their sizes in one row.
    """

    graph: Graph
    node: Node
    x: str
    steps: int
    batch: int
    sizes: Sizes
    initial: tuple[str, ...]
    widths: tuple[int, ...]

    @staticmethod
    def of(graph: Graph, node: Node, computed: Collection[str]) -> LayerNode:
        """The layer of a node. UnsupportedError where it has lengths of its own or parameters among
        the values that are computed from inputs."""
        inputs = _all_inputs(node)
        for index in (W, R, B, PEEPHOLE, PROJECTION):
            if inputs[index] in computed:
                raise UnsupportedError("expected constant parameters, found computed ones")
        steps, batch = graph.values[inputs[X]].shape[:2]
        lengths = graph.constants.get(inputs[LENGTHS])
        if inputs[LENGTHS] and (lengths is None or (lengths != steps).any()):
            raise UnsupportedError("expected sequences of full length, found sequence_lens")
        given = [graph.values[name] if name else None for name in inputs]
        sizes = recurrent_sizes(node.op, given, node.attributes)
        count = LAYERS[node.op].states
        initial = (inputs[INITIAL], inputs[CELL])[:count]
        widths = (sizes.outputs, sizes.hidden)[:count]
        return LayerNode(graph, node, inputs[X], steps, batch, sizes, initial, widths)

    def operators(self, builder: GraphBuilder, taken: Collection[str]) -> GraphOperators:
        """Functions that append the layer's operators to a graph in the making."""
        return GraphOperators(builder, self.graph.values[self.x].dtype, taken)

    def cells(
        self,
        operators: GraphOperators,
        names: Mapping[str, str],
        called: Sequence[str],
        direction: int = 0,
    ) -> list[Cell[str]]:
        """A cell of each name, all with the parameters of one direction; names: of values in the
        new graph."""
        layer, a = LAYERS[self.node.op], self.node.attributes
        given = [names[name] if name else None for name in _all_inputs(self.node)]
        own = parameters(self.node.op, given)
        found = weights(operators, layer, own, self.sizes, direction, a)
        functions = activations(layer, a, self.sizes.directions)[direction]
        return [Cell(layer, operators, found, a, functions, name) for name in called]


def _key(layer: LayerNode, direction: int) -> Any:
    """The parameters and attributes by which cells compute the same function."""
    inputs = _all_inputs(layer.node)
    given = tuple(inputs[index] for index in (W, R, B, PEEPHOLE, PROJECTION))
    attributes = tuple(sorted(map(repr, layer.node.attributes.items())))
    return layer.node.op, layer.batch, given, attributes, direction


def _all_inputs(node: Node) -> list[str]:
    """All inputs that the operator may have, "" for those left out."""
    return [*node.inputs, *[""] * (PROJECTION + 1 - len(node.inputs))]


@dataclass(frozen=True)
class CellGraph:
    """A graph without recurrent layers.

    carried:  for every state of a layer its letter, h or c, and the names of the nodes that make
              its values, step by step
    repeated: names of nodes that do the same in every cell of one set of parameters
    """

    graph: Graph
    carried: tuple[tuple[str, tuple[str, ...]], ...]
    repeated: tuple[tuple[str, ...], ...] = ()


def cells_of(graph: Graph) -> int:
    """The number of cells that `unrolled` makes."""
    layers = [node for node in graph.nodes if node.op in LAYERS]
    return sum(
        graph.values[node.inputs[X]].shape[0] * len(DIRECTIONS[node.attributes["direction"]])
        for node in layers
    )


def unrolled(graph: Graph, most: int = CELLS_MAX) -> CellGraph:
    """A real graph with the recurrent layers as cells; it computes the same numbers.

    Raises UnsupportedError with the node for other layers, and above `most` cells.
    """
    cells = cells_of(graph)
    if cells > most:
        raise UnsupportedError(
            f"graph {graph.name!r}: expected at most {most} steps of recurrent layers in one "
            f"call, found {cells}; export the network for fewer time steps a call"
        )
    builder, names = GraphBuilder.like(graph)
    taken = {*graph.values, *(node.name for node in graph.nodes)}
    computed = set(graph.inputs)
    unrolling = _Unrolling(builder, names, taken)
    for node in graph.nodes:
        if computed.intersection(node.inputs):
            computed.update(node.outputs)
        if node.op in LAYERS:
            try:
                unrolling.layer(LayerNode.of(graph, node, computed))
            except (ValueError, UnsupportedError) as error:
                raise UnsupportedError(f"node {node.name!r} ({node.op}): {error}") from error
            continue
        inputs = [names[name] if name else "" for name in node.inputs]
        made = builder.add_all(node.op, inputs, node.attributes, node.name, node.outputs)
        names.update(zip(node.outputs, made, strict=False))
    repeated = tuple(
        same
        for cells_ in unrolling.nodes.values()
        if len({len(cell) for cell in cells_}) == 1
        for same in zip(*cells_, strict=True)
    )
    found = builder.build([names[name] for name in graph.outputs])
    return CellGraph(found, tuple(unrolling.carried), repeated)


@dataclass
class _Unrolling:
    """Replaces layers by their cells. nodes: the names of the nodes of each cell, by the parameters
    that the cells have in common."""

    builder: GraphBuilder
    names: dict[str, str]
    taken: Collection[str]
    carried: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    nodes: dict[Any, list[list[str]]] = field(default_factory=dict)

    def layer(self, layer: LayerNode) -> None:
        """The cells of one layer, and its outputs put together again from theirs."""
        node, builder, names = layer.node, self.builder, self.names
        operators = layer.operators(builder, self.taken)
        reverses = DIRECTIONS[node.attributes["direction"]]
        many, parts = len(reverses) > 1, len(reverses)
        frames: Sequence[str] = (names[layer.x],)
        if layer.steps > 1:
            frames = operators("Split", names[layer.x], axis=0, sizes=(1,) * layer.steps)
        initial = [
            operators("Split", names[name], axis=0, sizes=(1,) * parts)
            if name and many
            else [names[name] if name else ""] * parts
            for name in layer.initial
        ]
        found = []
        for direction, backward in enumerate(reverses):
            states = [each[direction] for each in initial]
            made = self.direction(layer, operators, frames, states, direction, backward)
            found.append((made[::-1] if backward else made, made[-1]))
        shape = (1, 1, layer.batch, layer.sizes.outputs)
        sides = []
        for rows, _ in found:
            own = [operators("Reshape", row[0], shape=shape)[0] for row in rows]
            sides.append(operators("Concat", *own, axis=0)[0] if layer.steps > 1 else own[0])
        results = [operators("Concat", *sides, axis=1)[0] if many else sides[0]]
        for index, width in enumerate(layer.widths):
            last = [
                operators("Reshape", ends[index], shape=(1, layer.batch, width))[0]
                for _, ends in found
            ]
            results.append(operators("Concat", *last, axis=0)[0] if many else last[0])
        for name, result in zip(node.outputs, results, strict=False):
            if name:
                names[name] = builder.add("Identity", [result], {}, "", [name])

    def direction(
        self,
        layer: LayerNode,
        operators: GraphOperators,
        frames: Sequence[str],
        initial: Sequence[str],
        direction: int,
        backward: bool,
    ) -> list[tuple[str, ...]]:
        """The states after every step of one direction, in the order in which it takes them."""
        node, builder, batch = layer.node, self.builder, layer.batch
        dtype = layer.graph.values[layer.x].dtype
        states = []
        for name, width in zip(initial, layer.widths, strict=True):
            if name:
                states.append(operators("Reshape", name, shape=(batch, width))[0])
            else:
                zeros = np.zeros((batch, width), dtype)
                states.append(builder.constant(operators.fresh("zeros"), zeros))
        name = f"{node.name}.reverse" if direction else node.name
        called = [f"{name}.t{t}" if layer.steps > 1 else name for t in range(layer.steps)]
        cells = layer.cells(operators, self.names, called, direction)
        same = self.nodes.setdefault(_key(layer, direction), [])
        made: list[tuple[str, ...]] = []
        for cell, frame in zip(cells, reversed(frames) if backward else frames, strict=True):
            x = operators("Reshape", frame, shape=(batch, layer.sizes.features))[0]
            first = len(builder.nodes)
            made.append(cell.step(x, made[-1] if made else tuple(states)))
            same.append([each.name for each in builder.nodes[first:]])
        writers = {output: each.name for each in builder.nodes for output in each.outputs}
        letters = zip("hc", zip(*made, strict=True), strict=False)
        self.carried += [
            (letter, tuple(writers[name] for name in values)) for letter, values in letters
        ]
        return made
