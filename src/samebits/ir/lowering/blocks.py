"""Products with weights whose scales are those of blocks along the summed axis.

Each block of the matrix has one scale for each output: the product is the sum of the products of
the blocks, each of a part of x, exactly. A bias joins the first of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from samebits.ir.graph import Array, Graph, Node
from samebits.ir.rewrite import Edit, rewrite

PRODUCTS = ("MatMul", "Gemm")


def split_blocks(graph: Graph) -> Graph:
    """The same function, products of matrices in blocks as sums of products."""
    return rewrite(graph, _split)


@dataclass(frozen=True)
class _Block:
    """Rows of a matrix [K, N] from `start` on, as codes with a scale for each column."""

    start: int
    codes: Array
    scale: Array
    zero: Array | None


def _split(edit: Edit, node: Node) -> list[Node] | None:
    """A product, or the addition of a bias to one."""
    product, bias = node, ""
    if node.op == "Add":
        for name, other in (node.inputs, node.inputs[::-1]):
            made = edit.producers.get(name)
            if made is not None and made.op == "MatMul" and _is_row(edit, other, made):
                product, bias = made, other
        if product is node or edit.uses[product.output] != 1:
            return None
    if product.op not in PRODUCTS or product.attributes.get("transA"):
        return None
    blocks = _blocks(edit, product)
    return _sum(edit, node, product, bias, blocks) if blocks else None


def _is_row(edit: Edit, name: str, product: Node) -> bool:
    """Whether it is a constant with one number for each column."""
    array, columns = edit.constants.get(name), edit.values[product.output].shape[-1:]
    return array is not None and array.shape[-1:] == columns and array.size == prod(columns)


def _blocks(edit: Edit, product: Node) -> list[_Block]:
    """The blocks of its second factor, whatever way that lies; none where it has no such scales."""
    made = edit.producers.get(product.inputs[1])
    flipped = bool(product.attributes.get("transB"))
    if made is not None and made.op == "Transpose" and len(made.attributes["perm"]) == 2:
        flipped ^= made.attributes["perm"] == (1, 0)
        made = edit.producers.get(made.inputs[0])
    if made is None or made.op != "DequantizeLinear" or not made.attributes["block_size"]:
        return []
    arrays = [edit.constants.get(name) if name else None for name in made.inputs]
    codes, scale, zero = (*arrays, None, None)[:3]
    axis = made.attributes["axis"] % 2 ^ flipped
    if codes is None or scale is None or codes.ndim != 2 or axis != 0:
        return []
    if flipped:
        codes, scale, zero = codes.T, scale.T, None if zero is None else zero.T
    size = made.attributes["block_size"]
    return [
        _Block(i * size, codes[i * size : (i + 1) * size], row, None if zero is None else zero[i])
        for i, row in enumerate(scale)
    ]


def _sum(edit: Edit, node: Node, product: Node, bias: str, blocks: Sequence[_Block]) -> list[Node]:
    """The products of the blocks, and their sum in the place of `node`."""
    x, *rest = product.inputs[:1] + product.inputs[2:]
    nodes: list[Node] = []
    terms: list[str] = []

    def add(op: str, inputs: Sequence[str], shape: tuple[int, ...], **attributes: Any) -> str:
        like = replace(edit.values[product.output], shape=shape)
        made = edit.value(f"{product.name}.{op}", like)
        nodes.append(edit.node(op, inputs, made, **attributes))
        return made

    shape, result = edit.values[x].shape, edit.values[product.output].shape
    for block in blocks:
        stop = block.start + len(block.codes)
        part = x
        if len(blocks) > 1:
            cut = {"starts": (block.start,), "ends": (stop,), "axes": (len(shape) - 1,)}
            part = add("Slice", [x], (*shape[:-1], len(block.codes)), steps=(1,), **cut)
        numbers = [block.codes, block.scale, block.zero]
        names = [edit.constant(f"{product.name}.w", a) for a in numbers if a is not None]
        w = add("DequantizeLinear", names, block.codes.shape, axis=1)
        attributes = dict(product.attributes)
        if product.op == "Gemm":
            attributes["transB"] = 0
        given = rest if block.start == 0 else []
        terms.append(add(product.op, [part, w, *given], result, **attributes))
        if bias and block.start == 0:
            terms[0] = add("Add", [terms[0], bias], result)
    total = "Sum" if len(terms) > 1 else "Identity"
    return [*nodes, replace(edit.node(total, terms, node.output), name=node.name)]
