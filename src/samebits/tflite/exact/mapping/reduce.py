"""Reductions."""

from __future__ import annotations

from samebits.errors import InputError
from samebits.ir.foreign import Result
from samebits.tflite.exact.node import LiteNode, lite_op

REDUCTIONS = {
    "MEAN": "ReduceMean",
    "REDUCE_MAX": "ReduceMax",
    "REDUCE_MIN": "ReduceMin",
    "SUM": "ReduceSum",
}


@lite_op(*REDUCTIONS)
def _reduce(node: LiteNode) -> Result:
    """Over the axes of input 1."""
    axes, kept = node.axes(1, len(node.shape())), node.option("keep_dims")
    return node.emit(REDUCTIONS[node.op], node.input(0), axes=axes, keepdims=int(kept))


@lite_op("ARG_MAX", "ARG_MIN")
def _arg(node: LiteNode) -> Result:
    """The first place of the greatest or least number along one axis, an index of any width."""
    axes = node.integers(1, "axis")
    if len(axes) != 1:
        raise InputError(f"expected one axis, found {list(axes)}")
    axis = node.axis(axes[0], len(node.shape()))
    op = "ArgMax" if node.op == "ARG_MAX" else "ArgMin"
    return node.emit(op, node.input(0), axis=axis, keepdims=0)
