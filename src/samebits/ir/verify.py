"""The rules of a graph, executable: run after every pass under test."""

from __future__ import annotations

from samebits.ir.graph import Graph
from samebits.ir.ops import op_named


class GraphError(ValueError):
    """A graph breaks a rule: a defect of the pass that made it."""


def verify(graph: Graph) -> None:
    """Raise GraphError at the first rule that does not hold. docs/spec/graph.md section 1."""

    def rule(holds: bool, text: str) -> None:
        if not holds:
            raise GraphError(f"graph {graph.name!r}: {text}")

    written = {*graph.inputs, *graph.constants}
    rule(len(written) == len(graph.inputs) + len(graph.constants), "an input is also a constant")
    for name in written:
        rule(name in graph.values, f"value {name!r} has no type")
    for name, array in graph.constants.items():
        value = graph.values[name]
        found = (array.dtype.name, array.shape)
        rule(found == (value.dtype, value.shape), f"constant {name!r} is {found}, typed {value}")
        rule(not array.flags.writeable, f"constant {name!r} can be written")
    names = set()
    for node in graph.nodes:
        where = f"node {node.name!r} ({node.op})"
        rule(node.name not in names, f"{where}: the name is taken")
        names.add(node.name)
        record = op_named(node.op)
        rule(set(node.attributes) == set(record.attributes), f"{where}: attributes differ")
        for name in node.inputs:
            rule(not name or name in written, f"{where}: reads {name!r} before it is written")
        for name in node.outputs:
            rule(name not in written, f"{where}: writes {name!r}, which is written already")
            rule(name in graph.values, f"{where}: output {name!r} has no type")
            written.add(name)
        try:
            types = record.infer(
                [graph.values[n] if n else None for n in node.inputs], node.attributes
            )
        except ValueError as error:
            raise GraphError(f"graph {graph.name!r}: {where}: {error}") from error
        rule(len(types) >= len(node.outputs), f"{where}: has {len(types)} outputs")
        for name, (dtype, shape) in zip(node.outputs, types, strict=False):
            value = graph.values[name]
            rule((value.dtype, value.shape) == (dtype, tuple(shape)), f"{where}: {value} is wrong")
    for name in graph.outputs:
        rule(name in written, f"output {name!r} is never written")
    count = len(graph.states)
    rule(count <= min(len(graph.inputs), len(graph.outputs)), "states are no inputs and outputs")
    for index, state in enumerate(graph.states, -count):
        ends = graph.inputs[index], graph.outputs[index]
        rule((state.input, state.output) == ends, f"state {state} is not its input and output")
        before = graph.values[state.input]
        for name in (state.output, *([state.initial] if state.initial else [])):
            value = graph.values.get(name, before)
            same = (value.dtype, value.shape) == (before.dtype, before.shape)
            rule(same, f"state {before} becomes {value}")
        rule(
            not state.initial or state.initial in graph.constants,
            f"{state} begins with no constant",
        )
