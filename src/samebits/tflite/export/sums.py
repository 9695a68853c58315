"""Networks that end in exact sums, as those that samebits trains do: the format has codes alone.

The kernels give int8 or int16 codes, of the input's type. So the last layer takes its codes as
int16, which moves none of them, and its sums become int16 codes of the least power of two that
holds every sum that can be: exact ones where 15 bits suffice.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from samebits.ir import Graph, GraphBuilder, Node, Quantization
from samebits.ir.integer.bounds import bounds
from samebits.ir.integer.define import limits
from samebits.ir.ops import Attribute

WIDE = "int16"
TAKEN = ("conv", "linear")  # operators whose sums these may be


def rounded_sums(graph: Graph) -> Graph:
    """The graph with int16 codes in place of sums among its outputs; itself if it has none."""
    ending = {node.output for node in graph.nodes if _ends(graph, node)}
    if not ending:
        return graph
    builder, known = GraphBuilder(graph.name), bounds(graph)
    for name in graph.inputs:
        value = graph.values[name]
        builder.input(name, value.dtype, value.shape, value.quantization)
    for name, array in graph.constants.items():
        builder.constant(name, array, graph.values[name].quantization)
    for node in graph.nodes:
        found = graph.values[node.output].quantization
        if node.output not in ending:
            outputs = list(node.outputs)
            builder.add(
                node.op, node.inputs, node.attributes, node.name, outputs, quantization=found
            )
            continue
        assert found is not None
        ends = known[node.output].hull
        most = max(-ends.low[0], ends.high[0])
        less = max(most.bit_length() - 15, 0)
        inputs = [_widened(builder, node.inputs[0]), *node.inputs[1:]]
        attributes = {**node.attributes, "dtype": "int64"}
        total = builder.add(node.op, inputs, attributes, f"{node.name}.sums")
        by = _codes(Fraction(1, 1 << less))
        unit = replace(found, scale=found.scale * (1 << less))
        builder.add("requantize", [total], by, f"{node.name}.codes", [node.output],
                    quantization=unit)  # fmt: skip
    return builder.build(graph.outputs)


def _ends(graph: Graph, node: Node) -> bool:
    """Whether a node's sums are an output, of codes that an int16 input may hold in their place."""
    value, of = graph.values[node.output], graph.values[node.inputs[0]].quantization
    return (
        node.op in TAKEN
        and node.output in graph.outputs
        and not graph.consumers()[node.output]
        and value.quantization is not None
        and value.quantization.plain
        and not value.quantization.zero_point
        and of is not None
        and of.plain
        and not of.zero_point
    )


def _codes(ratio: Fraction) -> dict[str, Attribute]:
    low, high = limits(WIDE)
    return {"ratios": (ratio,), "zero": 0, "low": low, "high": high, "dtype": WIDE}


def _widened(builder: GraphBuilder, name: str) -> str:
    """The same codes as int16."""
    value = builder.values[name]
    if value.dtype == WIDE:
        return name
    total = builder.add("add", [name], {"factors": (1,), "offset": 0}, f"{name}.sum")
    own: Quantization | None = value.quantization
    by = _codes(Fraction(1))
    return builder.add("requantize", [total], by, f"{name}.wide", quantization=own)
