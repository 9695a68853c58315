"""Gathering, scattering, sorting, running sums."""

from __future__ import annotations

import numpy as np

from samebits.errors import InputError
from samebits.onnx.reader.node import OnnxNode, Result, onnx_op


@onnx_op("Gather", "GatherElements")
def _gather(node: OnnxNode) -> Result:
    """Elements by index along an axis."""
    axis = node.axis(node.int_("axis", 0), node.rank())
    return node.out(node.op, *node.given(), axis=axis)


@onnx_op("GatherND")
def _gather_nd(node: OnnxNode) -> Result:
    """Slices by index tuples."""
    return node.out("GatherND", *node.given(), batch_dims=node.int_("batch_dims", 0))


@onnx_op("Scatter", "ScatterElements")
def _scatter_elements(node: OnnxNode) -> Result:
    """A copy with elements replaced, or combined, at indices along an axis."""
    axis = node.axis(node.int_("axis", 0), node.rank())
    reduction = node.string("reduction", "none", ("none", "add", "mul", "max", "min"))
    return node.out("ScatterElements", *node.given(), axis=axis, reduction=reduction)


@onnx_op("ScatterND")
def _scatter_nd(node: OnnxNode) -> Result:
    """A copy with slices replaced, or combined, at index tuples."""
    reduction = node.string("reduction", "none", ("none", "add", "mul", "max", "min"))
    return node.out("ScatterND", *node.given(), reduction=reduction)


@onnx_op("TensorScatter")
def _tensor_scatter(node: OnnxNode) -> Result:
    """A cache with an update written along an axis, from the first place on where none is given."""
    axis = node.axis(node.int_("axis", -2), node.rank())
    mode = node.string("mode", "linear", ("linear", "circular"))
    starts = node.optional(2)
    if not starts:
        node.builder.charge(node.shape()[0])
        starts = node.constant(np.zeros(node.shape()[0], np.int64))
    return node.out("TensorScatter", node.input(0), node.input(1), starts, axis=axis, mode=mode)


@onnx_op("OneHot")
def _one_hot(node: OnnxNode) -> Result:
    """A new axis of size depth: `on` at the place that an index names, else `off`.

    A negative index counts from the end; one outside [-depth, depth) gives `off` everywhere.
    """
    depth = int(node.scalar(1, "depth").item())
    if depth < 1:
        raise InputError(f"expected a depth of at least 1, found {depth}")
    node.builder.charge(depth)
    rank = node.rank()
    axis = node.axis(node.int_("axis", -1), rank + 1)
    indices = node.input(0)
    if node.dtype() != "int64":
        indices = node.emit("Cast", indices, to="int64")
    classes = np.arange(depth, dtype=np.int64).reshape(
        *(depth if i == axis else 1 for i in range(rank + 1))
    )
    indices = node.emit("Unsqueeze", indices, axes=(axis,))
    hit = node.emit(
        "Or",
        node.emit("Equal", indices, node.constant(classes)),
        node.emit("Equal", indices, node.constant(classes - depth)),
    )
    values = node.input(2)
    off, on = (node.emit("Gather", values, node.number(i, np.int64), axis=0) for i in (0, 1))
    return node.out("Where", hit, on, off)


@onnx_op("TopK")
def _top_k(node: OnnxNode) -> Result:
    """The k greatest or least along an axis, and where they lie; k is constant."""
    k = node.integers(1, "k")[0] if node.opset >= 10 else node.int_("k")
    axis = node.axis(node.int_("axis", -1), node.rank())
    largest = node.int_("largest", 1)
    node.ignore("sorted")  # sorted is one of the orders that sorted=0 allows
    return node.out("TopK", node.input(0), k=k, axis=axis, largest=largest)


@onnx_op("Compress")
def _compress(node: OnnxNode) -> Result:
    """The elements or slices at the positions where a constant condition holds."""
    condition = node.array(1, "condition")
    if condition.dtype != np.bool_ or condition.ndim != 1:
        raise InputError(f"expected a vector of booleans, found shape {list(condition.shape)}")
    x, axis = node.input(0), 0
    if "axis" in node.attributes:
        axis = node.axis(node.int_("axis"), node.rank())
    else:
        x = node.emit("Reshape", x, shape=(int(np.prod(node.shape(), dtype=np.int64)),))
    return node.out("Gather", x, node.constant(np.flatnonzero(condition)), axis=axis)


@onnx_op("CumSum", "CumProd")
def _cumulative(node: OnnxNode) -> Result:
    """Running sums or products along a constant axis."""
    axis = node.axis(int(node.scalar(1, "axis").item()), node.rank())
    return node.out(
        node.op,
        node.input(0),
        axis=axis,
        exclusive=node.int_("exclusive", 0),
        reverse=node.int_("reverse", 0),
    )


@onnx_op("ReverseSequence")
def _reverse_sequence(node: OnnxNode) -> Result:
    """The first elements of each sequence in reverse order; the lengths are constant."""
    time, batch = node.int_("time_axis", 0), node.int_("batch_axis", 1)
    if node.rank() < 2 or {time, batch} != {0, 1}:
        raise InputError(f"expected the axes 0 and 1, found {time} and {batch}")
    lengths = node.integers(1, "sequence_lens")
    steps, count = node.shape()[time], node.shape()[batch]
    if len(lengths) != count or not all(0 <= length <= steps for length in lengths):
        raise InputError(f"expected {count} lengths from 0 to {steps}, found {list(lengths)[:8]}")
    node.builder.charge(steps * count)
    positions = np.arange(steps)[:, None] + np.zeros(count, np.int64)
    limits = np.array(lengths)
    order = np.where(positions < limits, limits - 1 - positions, positions)
    # As rows of [T * B, ...] the element (t, b) lies at t * B + b; batch first, at b * T + t.
    rows = order * count + np.arange(count) if time == 0 else order + np.arange(count) * steps
    rows = rows if time == 0 else rows.T
    x = node.emit("Reshape", node.input(0), shape=(steps * count, *node.shape()[2:]))
    x = node.emit("Gather", x, node.constant(rows.reshape(-1)), axis=0)
    return node.out("Reshape", x, shape=node.shape())
