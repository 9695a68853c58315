"""Names, versions and order of the parts of an ONNX model, from its protobuf messages alone."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

import onnx
from onnx import GraphProto, NodeProto

from samebits.errors import InputError

MAX_DEPTH = 32  # of functions and subgraphs inside each other
_STANDARD = ("", "ai.onnx")


def check_distinct(names: Iterable[str], what: str) -> None:
    """InputError where a name comes twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InputError(f"expected {what} to have different names, found two {name!r}")
        seen.add(name)


def domain_of(domain: str) -> str:
    """Name of an operator set, "" for both names of the standard's own."""
    return "" if domain in _STANDARD else domain


def opsets_of(imports: Iterable[onnx.OperatorSetIdProto], where: str) -> dict[str, int]:
    """Version of each operator set; InputError where one is imported with two."""
    found: dict[str, int] = {}
    for entry in imports:
        domain = domain_of(entry.domain)
        if found.setdefault(domain, entry.version) != entry.version:
            raise InputError(
                f"{where}: expected one version of the operators of {domain or 'ai.onnx'!r}, "
                f"found {found[domain]} and {entry.version}"
            )
    return found


def where_of(node: NodeProto) -> str:
    """A node as error messages name it; text from the file is escaped."""
    outputs = [name for name in node.output if name]
    name = node.name or (outputs[0] if outputs else "")
    operator = f"{node.domain}:{node.op_type}" if domain_of(node.domain) else node.op_type
    return f"node {name!r} ({operator if operator.isidentifier() else repr(operator)})"


def symbol_of(value: onnx.ValueInfoProto) -> str:
    """The symbol of the leading dimension, "" for none."""
    dims = value.type.tensor_type.shape.dim
    return dims[0].dim_param if dims else ""


def names_of(graph: GraphProto) -> set[str]:
    """All names that a graph gives to values."""
    names = {value.name for value in graph.input} | {value.name for value in graph.output}
    names |= {tensor.name for tensor in graph.initializer}
    return names | {name for node in graph.node for name in node.output if name}


def reads_of(node: NodeProto, depth: int = 0) -> set[str]:
    """The names a node reads, those that its subgraphs take from outside included."""
    names = {name for name in node.input if name}
    if depth > MAX_DEPTH:
        raise InputError(f"{where_of(node)}: expected at most {MAX_DEPTH} levels of subgraphs")
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            local = names_of(graph)
            inner = {output.name for output in graph.output} - local
            for child in graph.node:
                inner |= reads_of(child, depth + 1)
            names |= inner - local
    return names


def without_writers(nodes: Sequence[NodeProto], names: set[str]) -> Sequence[NodeProto]:
    """The nodes, none of which writes a value of these names."""
    return [_unwritten(node, names) if names.intersection(node.output) else node for node in nodes]


def _unwritten(node: NodeProto, names: set[str]) -> NodeProto:
    copy = NodeProto()
    copy.CopyFrom(node)
    copy.output[:] = ["" if name in names else name for name in node.output]
    return copy


def ordered(
    nodes: Sequence[NodeProto], available: set[str], wanted: Sequence[str], where: str
) -> tuple[list[NodeProto], set[str]]:
    """The nodes that `wanted` needs, in the given order as far as data allows, and the names that
    they or `wanted` read.

    ONNX asks for nodes in the order of data, but some exporters do not obey. Among the nodes whose
    inputs are all computed, the first in the file is taken next (Kahn's algorithm with a heap).

    Raises InputError for a value written twice, never written, or needed for itself.
    """
    writers: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in node.output:
            if name and (name in writers or name in available):
                raise InputError(
                    f"{where_of(node)}: expected each value to be written once, found {name!r} "
                    "again; check the model"
                )
            if name:
                writers[name] = index
    reads: dict[int, set[str]] = {}
    pending = list(wanted)
    read = set(wanted)
    while pending:
        index = writers.get(pending.pop(), -1)
        if index >= 0 and index not in reads:
            reads[index] = reads_of(nodes[index])
            read |= reads[index]
            pending.extend(reads[index])
    missing = {i: {writers[n] for n in names if n in writers} for i, names in reads.items()}
    followers: dict[int, list[int]] = {}
    for index, before in missing.items():
        for other in before:
            followers.setdefault(other, []).append(index)
    ready = [index for index, before in missing.items() if not before]
    heapq.heapify(ready)
    ordered = []
    while ready:
        index = heapq.heappop(ready)
        ordered.append(nodes[index])
        for follower in followers.get(index, ()):
            missing[follower].discard(index)
            if not missing[follower]:
                heapq.heappush(ready, follower)
    if len(ordered) < len(missing):
        stuck = sorted(index for index, before in missing.items() if before)
        names = ", ".join(where_of(nodes[index]) for index in stuck[:10])
        raise InputError(
            f"{where}: expected a graph without cycles, found one among {names}; check the model"
        )
    return ordered, read
