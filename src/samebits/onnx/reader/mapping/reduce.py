"""Reductions, softmax and their relatives."""

from __future__ import annotations

import math

import numpy as np

from samebits.errors import InputError
from samebits.ir import Trait, ops_with
from samebits.onnx.reader.mapping.data import axes_of
from samebits.onnx.reader.step import Result, Step, onnx_op


@onnx_op(*ops_with(Trait.REDUCES))
def reduce(step: Step) -> Result:
    """Axes from an attribute or, later, an input. None or empty: all, or with
    noop_with_empty_axes none."""
    axes = axes_of(step)
    if not axes:
        noop = step.flag("noop_with_empty_axes", False)
        axes = () if noop else tuple(range(step.rank()))
    step.ignore("noop_with_empty_axes")
    return step.out(
        step.node.op_type,
        [step.input(0)],
        axes=tuple(sorted(step.axes(axes, step.rank()))),
        keepdims=int(step.flag("keepdims", True)),
    )


@onnx_op("ArgMax", "ArgMin")
def arg(step: Step) -> Result:
    """Index of the extreme, the first or the last."""
    return step.out(
        step.node.op_type,
        [step.input(0)],
        axis=step.axis(step.int_("axis", 0), step.rank()),
        keepdims=int(step.flag("keepdims", True)),
        select_last_index=int(step.flag("select_last_index", False)),
    )


@onnx_op("Softmax", "LogSoftmax", "Hardmax")
def softmax(step: Step) -> Result:
    """Along one axis; before opset 13 over all axes from `axis` on, as if flattened to a matrix."""
    op, rank = step.node.op_type, step.rank()
    if step.opset >= 13:
        return step.out(op, [step.input(0)], axis=step.axis(step.int_("axis", -1), rank))
    axis = step.int_("axis", 1)
    axis = axis if axis == rank else step.axis(axis, rank)
    if axis == rank - 1:
        return step.out(op, [step.input(0)], axis=axis)
    shape = step.shape()
    matrix = (math.prod(shape[:axis]), math.prod(shape[axis:]))
    x = step.emit("Reshape", [step.input(0)], shape=matrix)
    x = step.emit(op, [x], axis=1)
    return step.out("Reshape", [x], shape=shape)


@onnx_op("LpNormalization")
def lp_normalization(step: Step) -> Result:
    """x over its norm of order 1 or 2 along an axis; zeros where the norm is 0."""
    p = step.int_("p", 2)
    if p not in (1, 2):
        raise InputError(f"expected p 1 or 2, found {p}")
    axis = step.axis(step.int_("axis", -1), step.rank())
    norm = step.emit(f"ReduceL{p}", [step.input(0)], axes=(axis,), keepdims=1)
    zero, one = (step.array(np.array(v, step.value(0).dtype)) for v in (0, 1))
    divisor = step.emit("Where", [step.emit("Equal", [norm, zero]), one, norm])
    return step.out("Div", [step.input(0), divisor])


@onnx_op("GlobalLpPool")
def global_lp_pool(step: Step) -> Result:
    """The norm of order 1 or 2 over the image."""
    p = step.int_("p", 2)
    if p not in (1, 2):
        raise InputError(f"expected p 1 or 2, found {p}")
    axes = tuple(range(2, step.rank()))
    return step.out(f"ReduceL{p}", [step.input(0)], axes=axes, keepdims=1)
