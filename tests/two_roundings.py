"""Graphs whose sums become codes by one rounding, with two in its place."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from samebits.ir.graph import Graph
from samebits.spec.rounding import Doubled
from samebits.tflite.same.multiplier import split


def nearest(ratio: Fraction) -> Doubled:
    """The rounding by a ratio's multiplier of 31 bits and its shift."""
    m, shift = split(float(ratio))
    return Doubled(m, max(shift, 0), max(-shift, 0))


def doubled(graph: Graph) -> Graph:
    """The same graph with two roundings; every fifth channel's multiplier is a power of two, by
    which many sums are ties of one rounding or of both."""
    nodes = []
    for node in graph.nodes:
        if node.op == "requantize":
            made = [nearest(ratio) for ratio in node.attributes["ratios"]]
            for i in range(0, len(made) if len(made) > 1 else 0, 5):
                made[i] = replace(made[i], m=1 << 30)
            node = replace(node, attributes={**node.attributes, "ratios": tuple(made)})
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes))
