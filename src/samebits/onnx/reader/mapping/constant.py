"""Operators whose results are known while importing: shapes, ranges and constants."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from samebits.errors import InputError, UnsupportedError
from samebits.onnx.reader.step import Result, Step, onnx_op
from samebits.onnx.reader.tensors import check_shape


@onnx_op("Constant")
def constant(step: Step) -> Result:
    """A tensor, number or list of numbers in an attribute."""
    names = [name for name in step.attributes if name.startswith(("value", "sparse_value"))]
    if len(names) != 1:
        raise InputError(f"expected one value of Constant, found {len(names)}")
    name = names[0]
    if name == "value":
        array = step.tensor("value")
        assert array is not None
        return step.emission.stored(step.hint, array)
    if name == "value_float":
        return step.array(np.array(step.attributes[name].f, np.float32).reshape(_seen(step, name)))
    if name == "value_floats":
        return step.array(
            np.array(step.attributes[name].floats, np.float32).reshape(_seen(step, name))
        )
    if name == "value_int":
        return step.array(np.array(step.int_(name), np.int64))
    if name == "value_ints":
        return step.array(np.array(step.ints(name), np.int64))
    raise UnsupportedError(f"expected numbers as Constant, found {name}")


def _seen(step: Step, name: str) -> tuple[int, ...]:
    step.ignore(name)
    return () if name == "value_float" else (-1,)


@onnx_op("ConstantOfShape")
def constant_of_shape(step: Step) -> Result:
    """One number, everywhere; float32 zero by default."""
    shape = check_shape(step.integers(0, "shape"), "the result of ConstantOfShape")
    value = step.tensor("value")
    if value is None:
        value = np.zeros(1, np.float32)
    if value.size != 1:
        raise InputError(f"expected one value of ConstantOfShape, found {value.size}")
    return step.out("Expand", [step.array(value.reshape(()))], shape=shape)


@onnx_op("Shape")
def shape(step: Step) -> Result:
    """The sizes from axis `start` to before axis `end`, both clamped."""
    rank = step.rank()
    start = step.int_("start", 0)
    end = step.int_("end", rank)
    sizes = step.shape()[_clamped(start, rank) : _clamped(end, rank)]
    return step.array(np.array(sizes, np.int64))


def _clamped(axis: int, rank: int) -> int:
    return min(max(axis + rank if axis < 0 else axis, 0), rank)


@onnx_op("Size")
def size(step: Step) -> Result:
    """The number of elements."""
    return step.array(np.array(math.prod(step.shape()), np.int64))


@onnx_op("Range")
def range_(step: Step) -> Result:
    """start, start + delta, ... before limit; all constant."""
    start, limit, delta = (step.scalar(i, "bound of Range") for i in range(3))
    if not (start.dtype == limit.dtype == delta.dtype) or start.dtype.kind not in "iuf":
        raise InputError("expected three numbers of one type in Range")
    first, last, by = (v.item() for v in (start, limit, delta))
    if by == 0 or not all(map(math.isfinite, (first, last, by))):
        raise InputError(f"expected a finite Range with a step, found {first}, {last}, {by}")
    integers = start.dtype.kind in "iu"
    exact = (Fraction(last) - Fraction(first)) / Fraction(by)
    count = max(math.ceil(exact), 0)
    step.charge(count)
    if integers:
        # Modulo 2**64, as all values lie between start and limit.
        places = np.arange(count, dtype=np.uint64) * np.uint64(by % 2**64)
        return step.array((places + np.uint64(first % 2**64)).astype(start.dtype))
    return step.array((first + np.arange(count) * by).astype(start.dtype))


@onnx_op("EyeLike")
def eye_like(step: Step) -> Result:
    """Ones on a diagonal."""
    if step.rank() != 2:
        raise InputError(f"expected a matrix, found shape {list(step.shape())}")
    dtype = step.value(0).dtype
    if step.given_attribute("dtype"):
        dtype = step.element_type("dtype")
    rows, columns = step.shape()
    step.charge(rows * columns)
    k = min(max(step.int_("k", 0), -rows), columns)
    return step.array(np.eye(rows, columns, k, np.dtype(dtype)))


@onnx_op("NonZero")
def non_zero(step: Step) -> Result:
    """Indices of a constant; of other values their number is not known while importing."""
    array = step.constant(0, "input of NonZero")
    return step.array(np.array(np.nonzero(np.atleast_1d(array)), np.int64))
