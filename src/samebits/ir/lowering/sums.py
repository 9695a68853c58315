"""Sums of two 8-bit tensors with small integer factors, proved equal over every pair of codes.

Exact factors of binary32 scales have up to 24 bits and a long common denominator, so the sum needs
64 bits and its requantization a search. There are only 65,536 pairs of codes: factors in units of
2**-s that give the same output for each of them are the same function.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import product
from types import MappingProxyType

import numpy as np

from samebits.ir.graph import Array, Graph, GraphBuilder, Node
from samebits.ir.integer.define import limits
from samebits.ir.integer.pointwise import round_product
from samebits.ir.ops import Attributes
from samebits.spec.formats import round_real

BYTES = ("int8", "uint8")
WIDE_SHIFT = 40  # errors below 2**-31 of a step; products still below 2**62
NUDGES = (0, -1, 1)
SUM_LIMIT = 1 << 30


def shorten_sums(graph: Graph) -> Graph:
    """The same graph with every `add` of two 8-bit tensors before a `requantize` in a dyadic unit,
    within 32 bits where such factors exist."""
    readers = graph.consumers()
    changed: dict[str, Attributes] = {}
    for node in graph.nodes:
        if _applies(graph, node) and node.output not in graph.outputs:
            following = readers[node.output]
            if [n.op for n in following] == ["requantize"]:
                shorter = _search(graph, node, following[0])
                if shorter is not None:
                    factors, offset, shift = shorter
                    changed[node.output] = {"factors": factors, "offset": offset}
                    changed[following[0].output] = {"ratios": (Fraction(1, 1 << shift),)}
    return rebuilt(graph, changed) if changed else graph


def _applies(graph: Graph, node: Node) -> bool:
    return (
        node.op == "add"
        and len(node.inputs) == 2
        and all(graph.values[name].dtype in BYTES for name in node.inputs)
    )


def _search(graph: Graph, add: Node, requantize: Node) -> tuple[tuple[int, int], int, int] | None:
    """(factors, offset, s) whose outputs are those of the exact pair of nodes, or None."""
    a = requantize.attributes
    ratio = a["ratios"][0]
    if len(a["ratios"]) != 1 or not isinstance(ratio, Fraction):
        return None
    grids = np.meshgrid(*(_codes(graph, name) for name in add.inputs), indexing="ij")
    factors, offset = add.attributes["factors"], add.attributes["offset"]
    exact = sum(g.astype(object) * k for g, k in zip(grids, factors, strict=True)) + offset
    wanted = _output(round_product(exact, *ratio.as_integer_ratio()), a)
    parts = [k * ratio for k in (*factors, offset)]
    for shift, numbers in _candidates(parts, [int(np.abs(g).max()) for g in grids]):
        p, q, constant = numbers
        total = grids[0] * p + grids[1] * q + constant
        if np.array_equal(_output(round_product(total, 1, 1 << shift), a), wanted):
            return (p, q), constant, shift
    return None


def _codes(graph: Graph, name: str) -> Array:
    low, high = limits(graph.values[name].dtype)
    return np.arange(low, high + 1, dtype=np.int64)


def _output(rounded: Array, a: Attributes) -> Array:
    return np.clip(rounded + a["zero"], a["low"], a["high"]).astype(np.int64)


def _candidates(
    parts: list[Fraction], reach: list[int]
) -> Iterator[tuple[int, tuple[int, int, int]]]:
    """Shifts and factors to try: within 32 bits with small changes, then wide."""
    largest = sum(abs(p) * r for p, r in zip(parts, [*reach, 1], strict=True))
    narrow = 0
    while largest * (1 << (narrow + 1)) + 512 < SUM_LIMIT and narrow < 30:
        narrow += 1
    if largest + 512 < SUM_LIMIT:
        for nudges in product(NUDGES, repeat=3):
            yield narrow, _numbers(parts, narrow, nudges)
    if largest * (1 << WIDE_SHIFT) < 1 << 61:
        yield WIDE_SHIFT, _numbers(parts, WIDE_SHIFT, (0, 0, 0))


def _numbers(parts: list[Fraction], shift: int, nudges: tuple[int, ...]) -> tuple[int, int, int]:
    p, q, c = (round_real(v * (1 << shift)) + n for v, n in zip(parts, nudges, strict=True))
    return p, q, c


def rebuilt(
    graph: Graph, changed: Mapping[str, Attributes], names: Mapping[str, str] = MappingProxyType({})
) -> Graph:
    """The graph with other attributes, by the output of a node, and other names of outputs."""
    builder, renamed = GraphBuilder.like(graph)
    for node in graph.nodes:
        out = node.output
        inputs = [renamed[name] for name in node.inputs]
        attributes = {**node.attributes, **changed.get(out, {})}
        wished, quantization = names.get(out, out), graph.values[out].quantization
        renamed[out] = builder.add(node.op, inputs, attributes, node.name, [wished], quantization)
    return builder.build(renamed[name] for name in graph.outputs)
