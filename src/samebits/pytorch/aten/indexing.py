"""Constants that a call makes, and elements chosen by indices."""

from __future__ import annotations

import math

import numpy as np

from samebits.ir.foreign import Result
from samebits.pytorch.call import AtenCall, aten

# --- constants --------------------------------------------------------------------------------


@aten("full", "full_like", "zeros", "zeros_like", "ones", "ones_like", "scalar_tensor")
def _full(call: AtenCall) -> Result:
    name = call.op
    value = {"z": 0, "o": 1}.get(name[0])
    if value is None:
        value = call["s" if name == "scalar_tensor" else "fill_value"]
    call.charge(math.prod(call.out_shape))
    return call.constant(np.full(call.out_shape, value, call.out_dtype))


@aten("arange")
def _arange(call: AtenCall) -> Result:
    """start, start + step, ...: as many as torch says that there are."""
    start, step = call.get("start", 0), call.get("step", 1)
    if not isinstance(start, int | float) or not isinstance(step, int | float):
        raise call.unsupported("numbers", f"{start} and {step}")
    (count,) = call.out_shape
    call.charge(count)
    return call.constant((start + np.arange(count) * step).astype(call.out_dtype))


@aten("tril", "triu")
def _triangle(call: AtenCall) -> Result:
    """Zeros behind a diagonal, or before one: a choice by a constant mask."""
    x = call.tensor("self")
    shape = call.shape_of(x)
    call.charge(math.prod(shape))
    keep = getattr(np, call.op)(np.ones(shape, bool), call["diagonal"])
    zero = call.constant(np.zeros((), call.dtype_of(x)))
    return call.emit("Where", call.constant(keep), x, zero)


# --- choices ----------------------------------------------------------------------------------


@aten("embedding")
def _embedding(call: AtenCall) -> Result:
    return call.emit("Gather", call.tensor("weight"), call.tensor("indices"), axis=0)


@aten("index_select")
def _index_select(call: AtenCall) -> Result:
    x = call.tensor("self")
    axis = call.axis("dim", call.rank_of(x))
    return call.emit("Gather", x, call.tensor("index"), axis=axis)


@aten("gather")
def _gather(call: AtenCall) -> Result:
    x = call.tensor("self")
    axis = call.axis("dim", call.rank_of(x))
    return call.emit("GatherElements", x, call.tensor("index"), axis=axis)


@aten("cumsum")
def _cumsum(call: AtenCall) -> Result:
    x = call.cast(call.tensor("self"), call.out_dtype)
    return call.emit("CumSum", x, axis=call.axis("dim", call.rank_of(x)))


@aten("index")
def _index(call: AtenCall) -> Result:
    """x[i, j, ...] by tensors of whole numbers for axes side by side: these as one axis, and their
    place along it."""
    x, given = call.tensor("self"), call.tensors("indices")
    axes = [axis for axis, index in enumerate(given) if index]
    indices = [given[axis] for axis in axes]
    if any(call.dtype_of(index) not in ("int32", "int64") for index in indices):
        raise call.unsupported("whole numbers as indices", "a mask of bool")
    first, last = axes[0], axes[-1]
    if len(axes) != last - first + 1:
        raise call.unsupported("indices of axes side by side", f"axes {axes}")
    shape = call.shape_of(x)
    sizes = shape[first : last + 1]
    place = indices[0]
    if len(axes) > 1:
        place = ""
        for index, size in zip(indices, sizes, strict=True):
            kind = call.dtype_of(index)
            inside = call.emit("Mod", index, call.number(size, kind))
            inside = call.cast(inside, "int64")
            if place:
                wide = call.emit("Mul", place, call.number(size, "int64"))
                inside = call.emit("Add", wide, inside)
            place = inside
        x = call.reshape(x, (*shape[:first], math.prod(sizes), *shape[last + 1 :]))
    return call.emit("Gather", x, place, axis=first)
