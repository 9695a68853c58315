"""Operators whose results are known while importing: shapes, ranges and constants."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from samebits.errors import InputError, UnsupportedError
from samebits.ir.real.define import is_real
from samebits.onnx.reader.node import OnnxNode, Result, onnx_op
from samebits.onnx.reader.tensors import check_shape


@onnx_op("Constant")
def _constant(node: OnnxNode) -> Result:
    """A tensor, number or list of numbers in an attribute."""
    names = [name for name in node.attributes if name.startswith(("value", "sparse_value"))]
    if len(names) != 1:
        raise InputError(f"expected one value of Constant, found {len(names)}")
    name = names[0]
    if name == "value":
        array = node.tensor("value")
        assert array is not None
        return node.builder.stored(node.hint, array)
    if name in ("value_float", "value_floats"):  # unlike other attributes, infinite or NaN too
        node.ignore(name)
        found = node.attributes[name]
        return node.constant(np.array(found.f if name == "value_float" else found.floats, "f4"))
    if name == "value_int":
        return node.number(node.int_(name), np.int64)
    if name == "value_ints":
        return node.constant(np.array(node.ints(name), np.int64))
    raise UnsupportedError(f"expected numbers as Constant, found {name}")


@onnx_op("ConstantOfShape")
def _constant_of_shape(node: OnnxNode) -> Result:
    """One number everywhere, float32 zero by default."""
    shape = check_shape(node.integers(0, "shape"), "the result of ConstantOfShape")
    value = node.tensor("value")
    if value is None:
        value = np.zeros(1, np.float32)
    if value.size != 1:
        raise InputError(f"expected one value of ConstantOfShape, found {value.size}")
    return node.out("Expand", node.constant(value.reshape(())), shape=shape)


@onnx_op("Shape")
def _shape(node: OnnxNode) -> Result:
    """The sizes from axis `start` to before axis `end`, both clamped."""
    rank = node.rank()
    start = node.int_("start", 0)
    end = node.int_("end", rank)
    sizes = node.shape()[_clamped(start, rank) : _clamped(end, rank)]
    return node.constant(np.array(sizes, np.int64))


def _clamped(axis: int, rank: int) -> int:
    return min(max(axis + rank if axis < 0 else axis, 0), rank)


@onnx_op("Size")
def _size(node: OnnxNode) -> Result:
    """The number of elements."""
    return node.number(math.prod(node.shape()), np.int64)


@onnx_op("Range")
def _range(node: OnnxNode) -> Result:
    """start, start + delta, ... before limit; all constant."""
    start, limit, delta = (node.scalar(i, "bound of Range") for i in range(3))
    if not (start.dtype == limit.dtype == delta.dtype) or not (
        start.dtype.kind in "iu" or is_real(start.dtype)
    ):
        raise InputError("expected three numbers of one type in Range")
    first, last, by = (v.item() for v in (start, limit, delta))
    if by == 0 or not all(map(math.isfinite, (first, last, by))):
        raise InputError(f"expected a finite Range with a step, found {first}, {last}, {by}")
    integers = start.dtype.kind in "iu"
    exact = (Fraction(last) - Fraction(first)) / Fraction(by)
    count = max(math.ceil(exact), 0)
    node.builder.charge(count)
    if integers:
        # Modulo 2**64, as all values lie between start and limit.
        places = np.arange(count, dtype=np.uint64) * np.uint64(by % 2**64)
        return node.constant((places + np.uint64(first % 2**64)).astype(start.dtype))
    return node.constant((first + np.arange(count) * by).astype(start.dtype))


@onnx_op("EyeLike")
def _eye_like(node: OnnxNode) -> Result:
    """Ones on a diagonal."""
    if node.rank() != 2:
        raise InputError(f"expected a matrix, found shape {list(node.shape())}")
    dtype = node.dtype()
    if "dtype" in node.attributes:
        dtype = node.element_type("dtype")
    rows, columns = node.shape()
    node.builder.charge(rows * columns)
    k = min(max(node.int_("k", 0), -rows), columns)
    return node.constant(np.eye(rows, columns, k, dtype))


@onnx_op("NonZero")
def _non_zero(node: OnnxNode) -> Result:
    """Indices of the elements of a constant that are not 0; for other values their number would not
    be known while importing."""
    array = node.array(0, "input of NonZero")
    return node.constant(np.array(np.nonzero(np.atleast_1d(array)), np.int64))
