"""Values that graphs which begin alike have in common on the same samples are computed once.

Trials quantize a few tensors of one network and leave all before them as it is: those values are
the ones that the network itself has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

from samebits.ir.graph import Graph, Node

T = TypeVar("T")
ROOM = 1 << 25  # elements that are kept, about: of large networks the first layers alone


class Reuse(Generic[T]):
    """Values of a graph on samples, for other graphs on the same samples.

    The graph itself comes first, block by block of the samples; what it computes is kept.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._kept: dict[int, dict[str, T]] = {}
        self._room = ROOM

    def of(self, graph: Graph, block: int) -> Mapping[str, T]:
        """Values that a graph has in common with the first one, in a block of the samples."""
        kept = self._kept.get(block, {})
        if graph is self.graph:
            return kept
        same = common_values(graph, self.graph) if kept else {}
        return {name: kept[own] for name, own in same.items() if own in kept}

    def keep(self, graph: Graph, block: int, values: Mapping[str, T], count: int) -> None:
        """Keep what the first graph has computed for `count` samples, as far as there is room."""
        if graph is not self.graph:
            return
        kept = self._kept.setdefault(block, {})
        for name, value in values.items():
            size = graph.values[name].size * count
            if name not in kept and size <= self._room:
                kept[name] = value
                self._room -= size


def common_values(graph: Graph, other: Graph) -> dict[str, str]:
    """Values that two graphs compute by the same nodes from the same inputs and constants: the name
    in one -> that in the other. Inputs are the same where their names are, states left out, and
    constants where their arrays are one."""
    arrays = {id(array): name for name, array in other.constants.items()}
    same = {name: name for name in graph.own_inputs if name in other.own_inputs}
    for name, array in graph.constants.items():
        if id(array) in arrays:
            same[name] = arrays[id(array)]
    known: dict[tuple[str, tuple[str, ...]], list[Node]] = {}
    for node in other.nodes:
        known.setdefault((node.op, tuple(node.inputs)), []).append(node)
    for node in graph.nodes:
        if not all(name in same or not name for name in node.inputs):
            continue
        inputs = tuple(same[name] if name else "" for name in node.inputs)
        for candidate in known.get((node.op, inputs), ()):
            if _alike(graph, node, other, candidate):
                same.update(zip(node.outputs, candidate.outputs, strict=True))
                break
    return same


def _alike(graph: Graph, node: Node, other: Graph, candidate: Node) -> bool:
    """Whether two nodes with the same operands do the same, into the same types."""
    return (
        node.attributes == candidate.attributes
        and len(node.outputs) == len(candidate.outputs)
        and _types(graph, node.outputs) == _types(other, candidate.outputs)
    )


def _types(graph: Graph, names: Iterable[str]) -> list[tuple[str, tuple[int, ...]]]:
    values = (graph.values[name] for name in names if name)
    return [(value.dtype, value.shape) for value in values]
