"""Which transfer tables an integer graph holds, and how many pairs of layers share them."""

from __future__ import annotations

from dataclasses import dataclass

from samebits.ir.graph import Graph


@dataclass(frozen=True)
class TransferTables:
    """pairs: nodes that look something up (P); tables: different contents (T <= P), `bytes` in all;
    unshared: the bytes of a table per pair."""

    pairs: int
    tables: int
    bytes: int
    unshared: int


def transfer_tables(graph: Graph) -> TransferTables:
    """Of the `table` nodes of an integer graph."""
    used = [graph.constants[node.inputs[1]] for node in graph.nodes if node.op == "table"]
    contents = {(t.dtype.str, t.shape, t.tobytes()): t.nbytes for t in used}
    unshared = sum(t.nbytes for t in used)
    return TransferTables(len(used), len(contents), sum(contents.values()), unshared)
