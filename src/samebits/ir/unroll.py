"""Recurrent layers as the nodes of their cells: one, or one for every step of a short sequence.

`ir.steps` takes one cell of each layer for a graph of one time step. A network that is itself
called step by step, with its states as inputs and outputs, keeps its own inputs: its layers become
as many cells as one call has time steps (`unrolled`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
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

CELLS_MAX = 128  # cells of one call: their calls and buffers are code and memory of a device


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
        """The layer of a node. UnsupportedError where it is not forward, has lengths of its own or
        parameters among the values that are computed from inputs."""
        direction = node.attributes["direction"]
        if direction != "forward":
            raise UnsupportedError(
                f"expected the direction forward, found {direction}: its steps wait for the end of "
                "the sequence"
            )
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
        self, operators: GraphOperators, names: Mapping[str, str], called: Sequence[str]
    ) -> list[Cell[str]]:
        """A cell of each name, all with the same parameters; names: of values in the new graph."""
        layer, a = LAYERS[self.node.op], self.node.attributes
        given = [names[name] if name else None for name in _all_inputs(self.node)]
        found = weights(operators, layer, parameters(self.node.op, given), self.sizes, 0, a)
        functions = activations(layer, a, 1)[0]
        return [Cell(layer, operators, found, a, functions, name) for name in called]


def _all_inputs(node: Node) -> list[str]:
    """All inputs that the operator may have, "" for those left out."""
    return [*node.inputs, *[""] * (PROJECTION + 1 - len(node.inputs))]


@dataclass(frozen=True)
class CellGraph:
    """A graph without recurrent layers. carried: for every state of a layer its letter, h or c, and
    the names of the nodes that make its values, step by step."""

    graph: Graph
    carried: tuple[tuple[str, tuple[str, ...]], ...]


def cells_of(graph: Graph) -> int:
    """The number of cells that `unrolled` makes."""
    layers = [node for node in graph.nodes if node.op in LAYERS]
    return sum(graph.values[node.inputs[X]].shape[0] for node in layers)


def unrolled(graph: Graph) -> CellGraph:
    """A real graph with the forward recurrent layers as cells; it computes the same numbers.

    Raises UnsupportedError with the node for other layers, and above CELLS_MAX cells.
    """
    cells = cells_of(graph)
    if cells > CELLS_MAX:
        raise UnsupportedError(
            f"graph {graph.name!r}: expected at most {CELLS_MAX} steps of recurrent layers in one "
            f"call, found {cells}; export the network for fewer time steps a call"
        )
    builder, names = GraphBuilder.like(graph)
    taken = {*graph.values, *(node.name for node in graph.nodes)}
    computed = set(graph.inputs)
    carried: list[tuple[str, tuple[str, ...]]] = []
    for node in graph.nodes:
        if computed.intersection(node.inputs):
            computed.update(node.outputs)
        if node.op in LAYERS:
            try:
                layer = LayerNode.of(graph, node, computed)
                carried += _unroll(layer, builder, names, taken)
            except (ValueError, UnsupportedError) as error:
                raise UnsupportedError(f"node {node.name!r} ({node.op}): {error}") from error
            continue
        inputs = [names[name] if name else "" for name in node.inputs]
        made = builder.add_all(node.op, inputs, node.attributes, node.name, node.outputs)
        names.update(zip(node.outputs, made, strict=False))
    return CellGraph(builder.build([names[name] for name in graph.outputs]), tuple(carried))


def _unroll(
    layer: LayerNode, builder: GraphBuilder, names: dict[str, str], taken: Collection[str]
) -> list[tuple[str, tuple[str, ...]]]:
    """The cells of one layer, and its outputs put together again from theirs."""
    node, batch = layer.node, layer.batch
    operators = layer.operators(builder, taken)
    dtype = layer.graph.values[layer.x].dtype
    states = []
    for name, width in zip(layer.initial, layer.widths, strict=True):
        if name:
            states.append(operators("Reshape", names[name], shape=(batch, width))[0])
        else:
            zeros = np.zeros((batch, width), dtype)
            states.append(builder.constant(operators.fresh("zeros"), zeros))
    many = layer.steps > 1
    called = [f"{node.name}.t{t}" if many else node.name for t in range(layer.steps)]
    frames: Sequence[str] = (names[layer.x],)
    if many:
        frames = operators("Split", names[layer.x], axis=0, sizes=(1,) * layer.steps)
    made: list[tuple[str, ...]] = []
    for cell, frame in zip(layer.cells(operators, names, called), frames, strict=True):
        x = operators("Reshape", frame, shape=(batch, layer.sizes.features))[0]
        made.append(cell.step(x, made[-1] if made else tuple(states)))
    shape = (1, 1, batch, layer.sizes.outputs)
    rows = [operators("Reshape", found[0], shape=shape)[0] for found in made]
    results = [operators("Concat", *rows, axis=0)[0] if many else rows[0]]
    for name, width in zip(made[-1], layer.widths, strict=True):
        results.append(operators("Reshape", name, shape=(1, batch, width))[0])
    for name, result in zip(node.outputs, results, strict=False):
        if name:
            names[name] = builder.add("Identity", [result], {}, "", [name])
    writers = {output: each.name for each in builder.nodes for output in each.outputs}
    letters = zip("hc", zip(*made, strict=True), strict=False)
    return [(letter, tuple(writers[name] for name in values)) for letter, values in letters]
