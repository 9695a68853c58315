"""Gathering, scattering, sorting, running sums."""

from __future__ import annotations

import numpy as np

from samebits.errors import InputError
from samebits.onnx.reader.step import Result, Step, onnx_op


@onnx_op("Gather", "GatherElements")
def gather(step: Step) -> Result:
    """Elements by index along an axis."""
    axis = step.axis(step.int_("axis", 0), step.rank())
    return step.out(step.node.op_type, step.given(), axis=axis)


@onnx_op("GatherND")
def gather_nd(step: Step) -> Result:
    """Slices by index tuples."""
    return step.out("GatherND", step.given(), batch_dims=step.int_("batch_dims", 0))


@onnx_op("Scatter", "ScatterElements")
def scatter_elements(step: Step) -> Result:
    """A copy with elements replaced, or combined, at indices along an axis."""
    axis = step.axis(step.int_("axis", 0), step.rank())
    reduction = step.string("reduction", "none", ("none", "add", "mul", "max", "min"))
    return step.out("ScatterElements", step.given(), axis=axis, reduction=reduction)


@onnx_op("ScatterND")
def scatter_nd(step: Step) -> Result:
    """A copy with slices replaced, or combined, at index tuples."""
    reduction = step.string("reduction", "none", ("none", "add", "mul", "max", "min"))
    return step.out("ScatterND", step.given(), reduction=reduction)


@onnx_op("OneHot")
def one_hot(step: Step) -> Result:
    """on at the class's index, else off; an index outside [-depth, depth) is off everywhere."""
    depth = int(step.scalar(1, "depth").item())
    if depth < 1:
        raise InputError(f"expected a depth of at least 1, found {depth}")
    step.charge(depth)
    rank = step.rank()
    axis = step.axis(step.int_("axis", -1), rank + 1)
    indices = step.input(0)
    if step.value(0).dtype != "int64":
        indices = step.emit("Cast", [indices], to="int64")
    classes = np.arange(depth, dtype=np.int64).reshape(
        *(depth if i == axis else 1 for i in range(rank + 1))
    )
    indices = step.emit("Unsqueeze", [indices], axes=(axis,))
    hit = step.emit(
        "Or",
        [
            step.emit("Equal", [indices, step.array(classes)]),
            step.emit("Equal", [indices, step.array(classes - depth)]),
        ],
    )
    values = step.input(2)
    off, on = (
        step.emit("Gather", [values, step.array(np.array(i, np.int64))], axis=0) for i in (0, 1)
    )
    return step.out("Where", [hit, on, off])


@onnx_op("TopK")
def top_k(step: Step) -> Result:
    """The k greatest or least along an axis, and where they lie; k is constant."""
    k = step.integers(1, "k")[0] if step.opset >= 10 else step.int_("k")
    axis = step.axis(step.int_("axis", -1), step.rank())
    largest = step.int_("largest", 1)
    step.ignore("sorted")  # sorted is one of the orders that sorted=0 allows
    return step.out("TopK", [step.input(0)], k=k, axis=axis, largest=largest)


@onnx_op("Compress")
def compress(step: Step) -> Result:
    """The positions where a constant condition holds."""
    condition = step.constant(1, "condition")
    if condition.dtype != np.bool_ or condition.ndim != 1:
        raise InputError(f"expected a vector of booleans, found shape {list(condition.shape)}")
    x, axis = step.input(0), 0
    if step.given_attribute("axis"):
        axis = step.axis(step.int_("axis"), step.rank())
    else:
        x = step.emit("Reshape", [x], shape=(int(np.prod(step.shape(), dtype=np.int64)),))
    return step.out("Gather", [x, step.array(np.flatnonzero(condition))], axis=axis)


@onnx_op("CumSum", "CumProd")
def cumulative(step: Step) -> Result:
    """Running sums or products along a constant axis."""
    axis = step.axis(int(step.scalar(1, "axis").item()), step.rank())
    return step.out(
        step.node.op_type,
        [step.input(0)],
        axis=axis,
        exclusive=step.int_("exclusive", 0),
        reverse=step.int_("reverse", 0),
    )


@onnx_op("ReverseSequence")
def reverse_sequence(step: Step) -> Result:
    """The first elements of each sequence in reverse; constant lengths."""
    time, batch = step.int_("time_axis", 0), step.int_("batch_axis", 1)
    if step.rank() < 2 or {time, batch} != {0, 1}:
        raise InputError(f"expected the axes 0 and 1, found {time} and {batch}")
    lengths = step.integers(1, "sequence_lens")
    steps, count = step.shape()[time], step.shape()[batch]
    if len(lengths) != count or not all(0 <= length <= steps for length in lengths):
        raise InputError(f"expected {count} lengths from 0 to {steps}, found {list(lengths)[:8]}")
    step.charge(steps * count)
    positions = np.arange(steps)[:, None] + np.zeros(count, np.int64)
    limits = np.array(lengths)
    order = np.where(positions < limits, limits - 1 - positions, positions)
    # As rows of [T * B, ...] the element (t, b) lies at t * B + b; batch first, at b * T + t.
    rows = order * count + np.arange(count) if time == 0 else order + np.arange(count) * steps
    rows = rows if time == 0 else rows.T
    x = step.emit("Reshape", [step.input(0)], shape=(steps * count, *step.shape()[2:]))
    x = step.emit("Gather", [x, step.array(rows.reshape(-1))], axis=0)
    return step.out("Reshape", [x], shape=step.shape())
