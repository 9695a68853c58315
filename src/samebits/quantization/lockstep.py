"""All samples through a real graph side by side: for passes that change a layer before the next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from samebits.ir import Graph, Node
from samebits.ir.interpreter import carry, evaluate

Array = np.ndarray[Any, Any]


class Lockstep:
    """Computes each node for all samples before the next one.

    live:  of each sample the values that nodes to come read
    fixed: constants and what is computed from them alone. Who enters another array before the nodes
           that read it are computed, has it read instead, of the node that writes it too
    """

    def __init__(self, graph: Graph, samples: Sequence[Sequence[Array]]) -> None:
        self.graph = graph
        self.live = [
            {
                name: carry(np.asarray(array), graph.values[name].dtype, False)
                for name, array in zip(graph.inputs, sample, strict=True)
            }
            for sample in samples
        ]
        self.fixed = {
            name: carry(array, graph.values[name].dtype, False)
            for name, array in graph.constants.items()
        }
        self._last = {name: i for i, node in enumerate(graph.nodes) for name in node.inputs}

    def read(self, name: str) -> list[Array]:
        """The array of a value that the next node reads, for each sample."""
        return [self.fixed[name] if name in self.fixed else live[name] for live in self.live]

    def results(self, node: Node) -> list[list[Array]]:
        """The outputs of a node for each sample."""
        return [self._results(node, live) for live in self.live]

    def nodes(self) -> Iterator[Node]:
        """Each node, before it is computed: what it reads is live then."""
        for index, node in enumerate(self.graph.nodes):
            yield node
            if all(name in self.fixed for name in node.inputs if name):
                for name, array in zip(node.outputs, self._results(node, {}), strict=False):
                    self.fixed.setdefault(name, array)
                continue
            for live in self.live:
                live.update(zip(node.outputs, self._results(node, live), strict=False))
                for name in {*node.inputs, *node.outputs}:
                    if self._last.get(name, -1) <= index:
                        live.pop(name, None)

    def values(self, names: set[str]) -> Iterator[tuple[str, list[Array]]]:
        """Those of these values that nodes compute, in order, for all samples."""
        for node in self.nodes():
            for place, name in enumerate(node.outputs):
                if name in names:
                    yield name, [made[place] for made in self.results(node)]

    def _results(self, node: Node, live: Mapping[str, Array]) -> list[Array]:
        read = (
            self.fixed[name] if name in self.fixed else live[name] for name in node.inputs if name
        )
        return evaluate(
            node, [next(read) if name else None for name in node.inputs], self.graph.values
        )
