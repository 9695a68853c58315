"""An integer graph as a TensorFlow Lite file: operator by operator. docs/spec/tflite.md."""

from __future__ import annotations

from pathlib import Path

from samebits.contract import Contract
from samebits.errors import UnsupportedError, listed
from samebits.files import write_atomically
from samebits.ir import Graph, Node
from samebits.tflite.entry import Lite
from samebits.tflite.export import products, rules  # noqa: F401  they enter their rules
from samebits.tflite.export.builder import RULES, FileBuilder, Rounded
from samebits.tflite.export.sums import rounded_sums
from samebits.tflite.file import File
from samebits.tflite.meaning import STATED, Meaning
from samebits.tflite.same.versions import NEWEST, RUNTIMES


def to_lite(graph: Graph, source: str) -> File:
    """The file of an integer graph; it states the meaning `tflite`, in which its codes are those of
    the newest runtime, single ones other than the graph's.

    source: what messages call the network.

    Raises UnsupportedError with every operator that has no counterpart there.
    """
    if graph.states:
        raise UnsupportedError(f"{source}: expected a network without states, found a step graph")
    graph = rounded_sums(graph)
    builder = FileBuilder(graph)
    for name in graph.inputs:
        value = graph.values[name]
        number = builder.tensor(name, value.dtype, value.shape, builder.scaling(name))
        builder.numbers[name] = number
    readers = graph.consumers()
    done, failed, problems = set[str](), set[str](), list[str]()
    for node in graph.nodes:
        if node.name in done:
            continue
        last = _rounds(readers[node.output], graph, node)
        done.update([node.name, *([last.name] if last else [])])
        if not failed.isdisjoint(node.inputs):
            failed.add((last or node).output)
            continue
        try:
            if node.op not in RULES:
                raise UnsupportedError(f"expected one of {', '.join(sorted(RULES))}")
            RULES[node.op](Rounded(builder, node, last))
        except UnsupportedError as error:
            problems.append(f"node {node.name!r} ({node.op}): {error}")
            failed.add((last or node).output)
    if problems:
        raise UnsupportedError(
            f"{source}: expected operators that TensorFlow Lite has, found {len(problems)} without "
            f"a counterpart:\n{listed(problems)}"
        )
    meaning = Meaning(RUNTIMES[NEWEST])
    return File((builder.file(),), "", {STATED: meaning.name})


def save(lite: Lite | None, graph: Graph, contract: Contract, path: Path) -> None:
    """Write the file of an integer graph, or that which it was read from, with its meaning and
    contract. Errors as `to_lite`, and as `files.write_atomically`."""
    if lite is None or lite.meaning is None:
        lite = Lite(graph, Meaning(RUNTIMES[NEWEST]), to_lite(graph, str(path)))
    write_atomically(path, lite.to_bytes(contract))


def _rounds(readers: list[Node], graph: Graph, node: Node) -> Node | None:
    """The `requantize` that alone reads what a node computes."""
    alone = len(readers) == 1 and node.output not in graph.outputs
    return readers[0] if alone and readers[0].op == "requantize" else None
