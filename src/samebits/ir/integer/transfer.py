"""The transfer tables of an integer graph, and the number of pairs of layers that share them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from samebits.ir.graph import Array, Graph


@dataclass(frozen=True)
class TransferTables:
    """pairs: nodes that look something up (P); tables: different contents (T <= P), `bytes` in all
    as they are stored; unshared: the bytes of a plain table per pair."""

    pairs: int
    tables: int
    bytes: int
    unshared: int


def transfer_tables(
    graph: Graph, stored: Callable[[Array], int] = lambda table: table.nbytes
) -> TransferTables:
    """Count the `table` nodes of an integer graph and their contents.

    stored: bytes that a target needs for a table; the default counts the array.
    """
    used = [graph.constants[node.inputs[1]] for node in graph.nodes if node.op == "table"]
    contents = {(t.dtype.str, t.shape, t.tobytes()): t for t in used}
    unshared = sum(t.nbytes for t in used)
    return TransferTables(len(used), len(contents), sum(map(stored, contents.values())), unshared)
