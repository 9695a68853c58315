"""The layers of a network: what each stores, its weights, its work, its format."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from samebits.codegen.footprint import Footprint, footprint
from samebits.codegen.lowering.cpu import find_cpu
from samebits.errors import SamebitsError
from samebits.ir import Graph, Node, Trait, Value, has
from samebits.ir.figures import node_multiply_adds
from samebits.ir.value import Quantization


@dataclass(frozen=True)
class NetworkLayer:
    """One stored value and the nodes that compute it.

    key:   name of the value; reads: those of the layers, inputs and states that it is made of
    name:  of the node that says most; op: its operator, and how many others are merged with it
    tone:  product, function, move, plain or port, for drawings
    """

    key: str
    name: str
    op: str
    tone: str
    reads: tuple[str, ...]
    weights: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    weight_bytes: int
    activation_bytes: int
    multiply_adds: int
    number: str

    @property
    def sizes(self) -> str:
        """The shape as text."""
        return " x ".join(map(str, self.shape)) or "scalar"


def layers_of(
    graph: Graph, formats: Mapping[str, str], found: Footprint | None = None
) -> list[NetworkLayer]:
    """The layers of a graph in the order of computation. The nodes of values that are not stored
    are merged with the next one that is.

    formats: of values, in words; found: what the C holds, if there is any
    """
    kept = set(stored_values(graph, found)) | set(graph.outputs)
    consumers = graph.consumers()
    owner: dict[str, str] = {}
    for node in reversed(graph.nodes):
        readers = consumers[node.output]
        key = node.output
        if key not in kept and len(readers) == 1 and readers[0].name in owner:
            owner[node.name] = owner[readers[0].name]
        else:
            owner[node.name] = next((name for name in node.outputs if name in kept), key)
    groups: dict[str, list[Node]] = {}
    for node in graph.nodes:
        groups.setdefault(owner[node.name], []).append(node)
    made = {output: owner[node.name] for node in graph.nodes for output in node.outputs}
    layers = [_layer(graph, key, nodes, made, formats) for key, nodes in groups.items()]
    if found is None:
        return layers
    return [replace(layer, weight_bytes=found.layers.get(layer.key, 0)) for layer in layers]


def inputs_of(graph: Graph, formats: Mapping[str, str]) -> list[NetworkLayer]:
    """The inputs of a graph, as layers that nothing computes."""
    found = []
    for name in graph.inputs:
        value = graph.values[name]
        text = formats.get(name, value.dtype)
        sizes = 0, byte_size(value), 0
        about = name, name, "input", "port", (), (), value.shape, value.dtype
        found.append(NetworkLayer(*about, *sizes, text))
    return found


def _layer(
    graph: Graph,
    key: str,
    nodes: Sequence[Node],
    made: Mapping[str, str],
    formats: Mapping[str, str],
) -> NetworkLayer:
    """One layer of nodes that are merged. made: of values, the key of their layer."""
    read = dict.fromkeys(name for node in nodes for name in node.inputs if name)
    weights = tuple(name for name in read if name in graph.constants)
    value = graph.values[key]
    main = max(nodes, key=_weight)
    sources = dict.fromkeys(made.get(name, name) for name in read if name not in graph.constants)
    return NetworkLayer(
        key,
        main.name or key,
        main.op,
        _tone(main),
        tuple(source for source in sources if source != key),
        weights,
        value.shape,
        value.dtype,
        sum(byte_size(graph.values[name]) for name in weights),
        byte_size(value),
        sum(node_multiply_adds(graph, node) for node in nodes),
        formats.get(key, value.dtype),
    )


def _weight(node: Node) -> int:
    """How much a node says about the layer that it is in; of equals the first counts."""
    if has(node.op, Trait.PRODUCT):
        return 3
    return 0 if node.op == "requantize" or has(node.op, Trait.MOVEMENT) else 2


def _tone(node: Node) -> str:
    if has(node.op, Trait.PRODUCT):
        return "product"
    if has(node.op, Trait.MOVEMENT):
        return "move"
    return "function" if has(node.op, Trait.POINTWISE) else "plain"


def byte_size(value: Value) -> int:
    """Bytes of a tensor as files and memories hold it."""
    bits = re.search(r"\d+", value.dtype)
    return -(-value.size * int(bits[0] if bits else 8) // 8)


def format_text(dtype: str, quantization: Quantization | None) -> str:
    """A type with scale and zero point."""
    if quantization is None:
        return dtype
    scales = [float(scale) for scale in quantization.scales]
    many = f"{min(scales):.4g} to {max(scales):.4g}" if len(scales) > 1 else f"{scales[0]:.4g}"
    return f"{dtype}, scale {many}, zero {quantization.zero_point}"


def footprint_of(graph: Graph, cpu: str, draft: bool = False) -> Footprint | None:
    """Layers and constants of the C of a graph for a processor; None where it has none."""
    try:
        return footprint(graph, find_cpu(cpu), draft)
    except SamebitsError:
        return None


def stored_values(graph: Graph, found: Footprint | None) -> list[str]:
    """The values that are stored: those of the C, or, without any, all but sums that are at once
    rounded."""
    if found is not None:
        return list(found.layers)
    apart = {node.inputs[0] for node in graph.nodes if node.op == "requantize"}
    return [name for n in graph.nodes for name in n.outputs if name not in apart]
