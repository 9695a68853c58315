"""Reductions, softmax and their relatives."""

from __future__ import annotations

import math

from samebits.errors import InputError
from samebits.ir import Trait, ops_with
from samebits.onnx.reader.mapping.data import axes_of
from samebits.onnx.reader.node import OnnxNode, Result, onnx_op


@onnx_op(*ops_with(Trait.REDUCES))
def _reduce(node: OnnxNode) -> Result:
    """Reduction over axes from an attribute or, in later opsets, a constant input.

    No axes, or an empty list, mean all of them, or none with noop_with_empty_axes.
    """
    axes = axes_of(node)
    if not axes:
        noop = node.flag("noop_with_empty_axes", False)
        axes = () if noop else tuple(range(node.rank()))
    node.ignore("noop_with_empty_axes")
    return node.out(
        node.op,
        node.input(0),
        axes=tuple(sorted(node.axes(axes, node.rank()))),
        keepdims=int(node.flag("keepdims", True)),
    )


@onnx_op("ArgMax", "ArgMin")
def _arg(node: OnnxNode) -> Result:
    """Index of the greatest or least element along an axis, the first or the last of equals."""
    return node.out(
        node.op,
        node.input(0),
        axis=node.axis(node.int_("axis", 0), node.rank()),
        keepdims=int(node.flag("keepdims", True)),
        select_last_index=int(node.flag("select_last_index", False)),
    )


@onnx_op("Softmax", "LogSoftmax", "Hardmax")
def _softmax(node: OnnxNode) -> Result:
    """Softmax or a relative along one axis; before opset 13 over all axes from `axis` on, as
    if they were one."""
    op, rank = node.op, node.rank()
    if node.opset >= 13:
        return node.out(op, node.input(0), axis=node.axis(node.int_("axis", -1), rank))
    axis = node.int_("axis", 1)
    axis = axis if axis == rank else node.axis(axis, rank)
    if axis == rank - 1:
        return node.out(op, node.input(0), axis=axis)
    shape = node.shape()
    matrix = (math.prod(shape[:axis]), math.prod(shape[axis:]))
    x = node.emit("Reshape", node.input(0), shape=matrix)
    x = node.emit(op, x, axis=1)
    return node.out("Reshape", x, shape=shape)


@onnx_op("LpNormalization")
def _lp_normalization(node: OnnxNode) -> Result:
    """x over its norm of order 1 or 2 along an axis; zeros where the norm is 0."""
    p = node.int_("p", 2)
    if p not in (1, 2):
        raise InputError(f"expected p 1 or 2, found {p}")
    axis = node.axis(node.int_("axis", -1), node.rank())
    norm = node.emit(f"ReduceL{p}", node.input(0), axes=(axis,), keepdims=1)
    zero, one = (node.number(v, node.dtype()) for v in (0, 1))
    divisor = node.emit("Where", node.emit("Equal", norm, zero), one, norm)
    return node.out("Div", node.input(0), divisor)


@onnx_op("GlobalLpPool")
def _global_lp_pool(node: OnnxNode) -> Result:
    """The norm of order 1 or 2 over the image."""
    p = node.int_("p", 2)
    if p not in (1, 2):
        raise InputError(f"expected p 1 or 2, found {p}")
    axes = tuple(range(2, node.rank()))
    return node.out(f"ReduceL{p}", node.input(0), axes=axes, keepdims=1)
