"""The stored values of an integer graph (layers), and the hash of one. docs/spec/graph.md 7."""

from __future__ import annotations

from samebits.ir.graph import Array, Graph
from samebits.ir.ops import has
from samebits.ir.traits import Trait

FNV_OFFSET, FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3


def fused(graph: Graph) -> frozenset[str]:
    """The accumulators that exist only inside the requantize that reads them."""
    readers = graph.consumers()
    return frozenset(
        node.output
        for node in graph.nodes
        if has(node.op, Trait.ACCUMULATES)
        and node.output not in graph.outputs
        and [reader.op for reader in readers[node.output]] == ["requantize"]
    )


def layers(graph: Graph) -> tuple[str, ...]:
    """The values that are stored, in order of computation."""
    hidden = fused(graph)
    return tuple(out for node in graph.nodes for out in node.outputs if out not in hidden)


def fnv1a(array: Array) -> int:
    """64-bit FNV-1a (Fowler, Noll, Vo) of the codes, row-major, little-endian."""
    value = FNV_OFFSET
    for byte in array.astype(array.dtype.newbyteorder("<")).tobytes():
        value = (value ^ byte) * FNV_PRIME & 0xFFFFFFFFFFFFFFFF
    return value
