"""Normalisations that a file spells out in small operators, as the one that they are.

Exporters before opset 17 write LayerNormalization as means, differences, squares and a root, and
many networks write an RMSNormalization so. Between those operators there is no place for codes of
8 bits: the range of a variance is that of the input squared.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from samebits.ir.graph import Array, Graph, Node
from samebits.ir.ops import has
from samebits.ir.rewrite import Edit, rewrite
from samebits.ir.traits import Trait


def fuse_normalisation(graph: Graph) -> Graph:
    """x over its root mean square as RMSNormalization; where x is a difference from its mean, as
    LayerNormalization. A factor and a term that follow become their parameters.

    With d = x - mean(x) or x: d / sqrt(mean(d * d) + epsilon) along the last axes, with Pow for the
    square and the root, and with the product of a reciprocal for the quotient.
    """
    found = rewrite(graph, _normalised)
    return graph if found is graph else rewrite(rewrite(found, _factor), _term)


def _normalised(edit: Edit, node: Node) -> list[Node] | None:
    """A quotient by a root of means of its own squares, as one node."""
    if node.op == "Div":
        pairs = [(node.inputs[0], _root(edit, node.inputs[1]))]
    elif node.op == "Mul":
        a, b = node.inputs
        pairs = [(a, _inverse_root(edit, b)), (b, _inverse_root(edit, a))]
    else:
        return None
    for source, squares in pairs:
        found = None if squares is None else _mean_square(edit, squares, source)
        shapes = {edit.values[name].shape for name in (source, node.output)}
        if found is not None and len(shapes) == 1:
            return [_as_one(edit, node, source, *found)]
    return None


def _as_one(edit: Edit, node: Node, d: str, axis: int, epsilon: float) -> Node:
    op, x = "RMSNormalization", d
    made = edit.producers.get(d)
    if made is not None and made.op == "Sub":
        mean = edit.producers.get(made.inputs[1])
        if mean is not None and _trailing(edit, mean, made.inputs[0]) == axis:
            op, x = "LayerNormalization", made.inputs[0]
    value = edit.values[d]
    ones = edit.constant("scale", np.ones(value.shape[axis:], value.dtype))
    return edit.node(op, [x, ones], node.output, axis=axis, epsilon=epsilon)


def _root(edit: Edit, name: str) -> str | None:
    """The value of which this is the square root, or None."""
    node = edit.producers.get(name)
    if node is None or not (node.op == "Sqrt" or _is_power(edit, node, 0.5)):
        return None
    return node.inputs[0]


def _inverse_root(edit: Edit, name: str) -> str | None:
    """The value of which this is one over the square root, or None."""
    node = edit.producers.get(name)
    if node is None:
        return None
    if _is_power(edit, node, -0.5):
        return node.inputs[0]
    if node.op == "Reciprocal":
        return _root(edit, node.inputs[0])
    return _root(edit, node.inputs[1]) if node.op == "Div" and _is(edit, node, 0, 1.0) else None


def _mean_square(edit: Edit, name: str, d: str) -> tuple[int, float] | None:
    """(axis, epsilon) where a value is mean(d * d) + epsilon along the axes from `axis` on."""
    node = edit.producers.get(name)
    if node is None or node.op != "Add":
        return None
    for position in (0, 1):
        epsilon = edit.number(node.inputs[position])
        mean = edit.producers.get(node.inputs[1 - position])
        if epsilon is None or epsilon.size != 1 or mean is None or not float(epsilon.flat[0]) >= 0:
            continue
        square = edit.producers.get(mean.inputs[0])
        if square is None or square.inputs[0] != d:
            continue
        if (square.op == "Mul" and square.inputs[1] == d) or _is_power(edit, square, 2):
            axis = _trailing(edit, mean, mean.inputs[0])
            return None if axis is None else (axis, float(epsilon.flat[0]))
    return None


def _trailing(edit: Edit, mean: Node, of: str) -> int | None:
    """The first axis of a mean of `of` over its last axes, which stay with size 1; else None."""
    if mean.op != "ReduceMean" or mean.inputs[0] != of or not mean.attributes["keepdims"]:
        return None
    rank = len(edit.values[of].shape)
    axes = sorted(axis % rank for axis in mean.attributes["axes"])
    return axes[0] if axes and axes == list(range(axes[0], rank)) else None


def _is_power(edit: Edit, node: Node, exponent: float) -> bool:
    return node.op == "Pow" and _is(edit, node, 1, exponent)


def _is(edit: Edit, node: Node, position: int, number: float) -> bool:
    found = edit.number(node.inputs[position])
    return found is not None and found.size == 1 and float(found.flat[0]) == number


# --- what follows -----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Follower:
    """A normalisation that one node alone reads, and that node's constant, in the shape of its
    parameters."""

    norm: Node
    constant: Array


def _follower(edit: Edit, node: Node, op: str) -> _Follower | None:
    """The normalisation before a node of this operator; None where another reads it too, or the
    node's constant differs between vectors."""
    if node.op != op:
        return None
    for position in (0, 1):
        norm = edit.producers.get(node.inputs[position])
        constant = edit.number(node.inputs[1 - position])
        if norm is None or constant is None or not has(norm.op, Trait.TRAILING):
            continue
        shape = edit.values[norm.output].shape
        own = shape[norm.attributes["axis"] % len(shape) :]
        lead = constant.shape[: max(constant.ndim - len(own), 0)]
        alone = edit.uses[norm.output] == 1 and set(lead) <= {1}
        if alone and edit.values[node.output].shape == shape:
            inner = constant.reshape(constant.shape[len(lead) :])
            return _Follower(norm, np.broadcast_to(inner, own))
    return None


def _factor(edit: Edit, node: Node) -> list[Node] | None:
    found = _follower(edit, node, "Mul")
    scale = None if found is None else edit.number(found.norm.inputs[1])
    if found is None or scale is None or len(found.norm.inputs) > 2:
        return None
    dtype = edit.values[found.norm.inputs[1]].dtype
    product = edit.constant("scale", (scale * found.constant).astype(dtype))
    inputs = [found.norm.inputs[0], product]
    return [edit.node(found.norm.op, inputs, node.output, **found.norm.attributes)]


def _term(edit: Edit, node: Node) -> list[Node] | None:
    found = _follower(edit, node, "Add")
    if found is None or found.norm.op != "LayerNormalization" or len(found.norm.inputs) > 2:
        return None
    dtype = edit.values[found.norm.inputs[1]].dtype
    term = edit.constant("bias", found.constant.astype(dtype))
    inputs = [*found.norm.inputs, term]
    return [edit.node(found.norm.op, inputs, node.output, **found.norm.attributes)]
