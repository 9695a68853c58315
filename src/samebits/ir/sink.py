"""QuantizeLinear moves through data movement: Q(move(x)) = move(Q(x)), exactly."""

from __future__ import annotations

from samebits.ir.graph import Graph, GraphBuilder, Node

MOVEMENT = {
    *("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Concat", "Slice", "Expand"),
    *("Tile", "Resize", "DepthToSpace", "SpaceToDepth", "MaxPool", "GlobalMaxPool"),
}
"""One output; every output element is an input element, or the largest of some of them."""


def sink_quantize(graph: Graph) -> Graph:
    """The same function with every QuantizeLinear right after the arithmetic that it rounds."""
    while (node := _candidate(graph)) is not None:
        graph = _swapped(graph, node)
    return graph


def _candidate(graph: Graph) -> Node | None:
    """A movement whose only readers are equal per-tensor QuantizeLinear nodes, and whose input is
    not quantized yet."""
    readers, producers = graph.consumers(), graph.producers()
    for node in graph.nodes:
        if node.op not in MOVEMENT or node.output in graph.outputs:
            continue
        following = readers[node.output]
        if not following or any(n.op != "QuantizeLinear" for n in following):
            continue
        if len({n.inputs[1:] for n in following}) != 1:
            continue
        scale = graph.constants.get(following[0].inputs[1])
        if scale is None or scale.size != 1 or following[0].inputs[0] != node.output:
            continue
        sources = [producers.get(name) for name in _moving(node)]
        if (
            all(s is not None and s.op == "DequantizeLinear" for s in sources)
            and node.op != "Concat"
        ):
            continue
        return node
    return None


def _moving(node: Node) -> tuple[str, ...]:
    return node.inputs if node.op == "Concat" else node.inputs[:1]


def _swapped(graph: Graph, moved: Node) -> Graph:
    builder = GraphBuilder(graph.name)
    renamed: dict[str, str] = {}
    for name in graph.inputs:
        value = graph.values[name]
        renamed[name] = builder.input(name, value.dtype, value.shape, value.quantization)
    for name, array in graph.constants.items():
        renamed[name] = builder.constant(name, array, graph.values[name].quantization)
    quantizers = [
        n for n in graph.nodes if n.op == "QuantizeLinear" and n.inputs[0] == moved.output
    ]
    for node in graph.nodes:
        if node in quantizers:
            continue
        inputs = tuple(renamed[name] if name else "" for name in node.inputs)
        if node is moved:
            first = quantizers[0]
            parameters = [renamed[name] if name else "" for name in first.inputs[1:]]
            codes = [
                builder.add(
                    "QuantizeLinear", [name, *parameters], first.attributes, f"{first.name}.{i}"
                )
                for i, name in enumerate(inputs[: len(_moving(node))])
            ]
            inputs = (*codes, *inputs[len(codes) :])
            wished = quantizers[0].outputs
            out = builder.add_all(node.op, inputs, node.attributes, node.name, wished)
            for quantizer in quantizers:
                renamed[quantizer.output] = out[0]
            continue
        out = builder.add_all(node.op, inputs, node.attributes, node.name, node.outputs)
        renamed.update(zip(node.outputs, out, strict=True))
    return builder.build(renamed[name] for name in graph.outputs)
