"""Products of numbers that are quantized as the network runs, as files spell them out.

A DynamicQuantizeLinear, a MatMulInteger or ConvInteger on its codes, and products with both scales
are a product of numbers rounded by their own range (RoundDynamic) with the numbers of the weights.
"""

from __future__ import annotations

import numpy as np

from samebits.ir.graph import Graph, Node
from samebits.ir.rewrite import Edit, rewrite

_PRODUCTS = {"MatMulInteger": "MatMul", "ConvInteger": "Conv"}


def fuse_dynamic(graph: Graph) -> Graph:
    """The graph with RoundDynamic in place of the codes of such products; others stay."""
    return rewrite(graph, _fused)


def _fused(edit: Edit, node: Node) -> list[Node] | None:
    if node.op == "DequantizeLinear" and len(node.inputs) == 3:
        source = _source(edit, node.inputs[0])
        if source is None or source.outputs != node.inputs:
            return None
        return [Node("RoundDynamic", node.name, source.inputs, node.outputs)]
    if node.op != "Mul":
        return None
    for position in (0, 1):
        found = _product(edit, node, *node.inputs[position:], *node.inputs[:position])
        if found is not None:
            return found
    return None


def _source(edit: Edit, codes: str) -> Node | None:
    """The DynamicQuantizeLinear that makes these codes, or None."""
    node = edit.producers.get(codes)
    made = node is not None and node.op == "DynamicQuantizeLinear" and node.outputs[0] == codes
    return node if made else None


def _product(edit: Edit, node: Node, sums: str, scales: str) -> list[Node] | None:
    """A product of integer sums, cast to numbers, with the product of both scales."""
    cast, scale = edit.producers.get(sums), edit.producers.get(scales)
    if cast is None or scale is None or cast.op != "Cast" or scale.op != "Mul":
        return None
    product = edit.producers.get(cast.inputs[0])
    if product is None or product.op not in _PRODUCTS or len(product.inputs) < 3:
        return None
    source = _source(edit, product.inputs[0])
    if source is None or product.inputs[2] != source.outputs[2]:
        return None
    weight = [name for name in scale.inputs if name != source.outputs[1]]
    if len(weight) != 1 or weight[0] not in edit.constants:
        return None
    codes, own = product.inputs[1], edit.values[weight[0]].shape
    columns = product.op == "MatMulInteger" and own == edit.values[codes].shape[-1:]
    if codes not in edit.constants or not (own in ((), (1,)) or columns):
        return None
    return _spelled(edit, node, product, source, weight[0])


def _spelled(edit: Edit, node: Node, product: Node, source: Node, scale: str) -> list[Node] | None:
    """The product of rounded numbers with the numbers of the weights' codes; None where their zero
    point is computed."""
    codes, own, zero = (
        edit.number(name) if name else np.zeros(())
        for name in (product.inputs[1], scale, (*product.inputs, "")[3])
    )
    if codes is None or own is None or zero is None or zero.shape not in ((), (1,), own.shape):
        return None
    x = source.inputs[0]
    numbers = ((codes - zero) * own).astype(edit.values[x].dtype)
    rounded = edit.value(f"{x}.rounded", edit.values[x])
    inputs = [rounded, edit.constant(f"{product.inputs[1]}.numbers", numbers)]
    return [
        edit.node("RoundDynamic", [x], rounded),
        edit.node(_PRODUCTS[product.op], inputs, node.output, **product.attributes),
    ]
