"""Places that a Softmax leaves out, as networks write them: sums with -inf, choices of it.

A constant below -2**15 that is added to a score, or chosen in its place, says that its place gets
no share. Its number has no code beside those of scores, so the place is what is kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from samebits.ir.graph import Array, Graph, Node

LEAST_SCORE = -(2.0**15)  # what is below stands for "left out"


@dataclass(frozen=True, eq=False)
class Mask:
    """The value of the scores, and the places that stay: bool, broadcasts to them."""

    scores: str
    kept: Array


def masks_of(graph: Graph) -> dict[str, Mask]:
    """Value -> what it leaves out, for values that Softmax operators alone read."""
    readers = graph.consumers()
    found = {}
    for node in graph.nodes:
        rule = _RULES.get(node.op)
        if rule is None or node.output in graph.outputs:
            continue
        mask = rule(graph, node) if {n.op for n in readers[node.output]} == {"Softmax"} else None
        shape = graph.values[node.output].shape
        if mask is not None and graph.values[mask.scores].shape == shape:
            found[node.output] = mask
    return found


def _added(graph: Graph, node: Node) -> Mask | None:
    for position, name in enumerate(node.inputs):
        constant = graph.constants.get(name)
        if constant is not None:
            kept = constant >= LEAST_SCORE
            if kept.all() or constant[kept].any():
                return None
            return Mask(node.inputs[1 - position], np.asarray(kept))
    return None


def _chosen(graph: Graph, node: Node) -> Mask | None:
    choice = graph.constants.get(node.inputs[0])
    if choice is None:
        return None
    for position, name in enumerate(node.inputs[1:], 1):
        constant = graph.constants.get(name)
        if constant is not None and (constant < LEAST_SCORE).all():
            kept = choice if position == 2 else ~choice
            return Mask(node.inputs[3 - position], np.asarray(kept))
    return None


_RULES = {"Add": _added, "Where": _chosen}
