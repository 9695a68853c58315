"""QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear.

Scales and zero points are for the whole tensor (a scalar, or one element), for each position along
`axis`, or for blocks of `block_size` positions along it. The codes of a QuantizeLinear saturate to
`low` and `high` where these are given, else to the ends of their type.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import numpy as np

from samebits.ir.graph import Node
from samebits.ir.ops import Array, Attributes, Type
from samebits.ir.real import define as real
from samebits.ir.real.define import Inputs, define, map_exact
from samebits.ir.traits import Trait

CODES = ("int8", "uint8", "int16", "uint16", *real.NARROW)


def is_stored(node: Node, constants: Container[str]) -> bool:
    """Whether a node makes numbers of stored codes: a DequantizeLinear of constants alone."""
    return node.op == "DequantizeLinear" and all(n in constants for n in node.inputs if n)


def _check_parameters(values: Inputs, attributes: Attributes) -> None:
    """ValueError unless scale and zero point have the shape that `axis` and `block_size` ask for:
    one number, one for each index of the axis, or one for each block along it."""
    x, scale, zero_point = values
    block = attributes["block_size"]
    if not real.is_integer(block) or block < 0:
        raise ValueError(f"expected block_size of at least 0, found {block!r}")
    one = ((), (1,))
    if (
        zero_point is not None
        and zero_point.shape != scale.shape
        and not (scale.shape in one and zero_point.shape in one)
    ):
        raise ValueError(
            f"expected a zero point of the scale's shape {list(scale.shape)}, "
            f"found {list(zero_point.shape)}"
        )
    if scale.shape in one and not block:
        return
    axis = real.check_axis(attributes["axis"], len(x.shape))
    if not block:
        expected = (x.shape[axis],)
    else:
        expected = tuple(-(-n // block) if i == axis else n for i, n in enumerate(x.shape))
    if scale.shape != expected:
        raise ValueError(f"expected a scale of shape {list(expected)}, found {list(scale.shape)}")


def _spread(parameter: Array, x: Array, attributes: Attributes) -> Array:
    """A scale or zero point in a shape that broadcasts to x."""
    block = attributes["block_size"]
    if block:
        axis = attributes["axis"] % x.ndim
        return np.take(parameter, np.arange(x.shape[axis]) // block, axis=axis)
    if parameter.size == 1 and parameter.ndim <= 1:
        return parameter.reshape(())
    shape = [1] * x.ndim
    shape[attributes["axis"]] = -1
    return parameter.reshape(shape)


def _infer_quantize(values: Inputs, attributes: Attributes) -> list[Type]:
    x, scale, zero_point = values
    real.check_type(x, (*real.FLOATS, "int32"))
    real.check_type(scale, real.FLOATS, "a scale")
    _check_parameters(values, attributes)
    kind = "uint8" if zero_point is None else real.check_type(zero_point, CODES, "a zero point")
    low, high = saturation(kind, attributes)
    least, most = real.code_range(kind)
    if not (real.is_integer(low) and real.is_integer(high) and least <= low <= high <= most):
        raise ValueError(f"expected low <= high among the codes of {kind}, found {low} and {high}")
    return [(kind, x.shape)]


def saturation(dtype: str, attributes: Attributes) -> tuple[int, int]:
    """The least and the greatest code of a QuantizeLinear to this type."""
    ends = zip(("low", "high"), real.code_range(dtype), strict=True)
    low, high = (end if attributes[key] is None else attributes[key] for key, end in ends)
    return low, high


def quantize_reals(
    x: Array,
    scale: Array,
    zero_point: Array | int,
    dtype: str,
    ends: tuple[int, int] | None = None,
) -> Array:
    """saturate(rne(x / scale) + zero_point), exactly in Fractions.

    ends: the least and the greatest code; None: those of the type

    Of floats the quotient is one division of their type. For binary32 numbers in float64 the codes
    are the exact ones: a quotient of two 24-bit significands is a tie, and then no division
    rounds it, or at least 2**-26 away from every tie, and codes reach 2**16. NaN is taken as 0.
    """
    low, high = ends or real.code_range(dtype)
    kind = real.array_type(dtype)
    offset = np.asarray(zero_point).astype(np.int64)
    if x.dtype == object or scale.dtype == object:
        codes = map_exact(
            lambda q, z: min(max(round(q) + z, low), high), x / scale, offset.astype(object)
        )
        return codes.astype(kind)
    rounded = np.nan_to_num(np.rint(x / scale), nan=0.0)
    return np.clip(rounded + offset, low, high).astype(kind)


def _quantize(arrays: Inputs, attributes: Attributes) -> list[Array]:
    x, scale, zero_point = arrays
    scale = _spread(scale, x, attributes)
    dtype = "uint8" if zero_point is None else zero_point.dtype.name
    offset = 0 if zero_point is None else _spread(zero_point, x, attributes)
    return [quantize_reals(x, scale, offset, dtype, saturation(dtype, attributes))]


def _infer_dequantize(values: Inputs, attributes: Attributes) -> list[Type]:
    x, scale, zero_point = values
    kind = real.check_type(x, (*CODES, "int32"))
    if zero_point is not None:
        real.check_type(zero_point, (kind,), "a zero point")
    _check_parameters(values, attributes)
    return [(real.check_type(scale, real.FLOATS, "a scale"), x.shape)]


def _dequantize(arrays: Inputs, attributes: Attributes) -> list[Array]:
    x, scale, zero_point = arrays
    codes = x.astype(np.int64)
    if zero_point is not None:
        codes = codes - _spread(zero_point.astype(np.int64), x, attributes)
    return [codes * _spread(scale, x, attributes)]


def _infer_dynamic(values: Inputs, attributes: Attributes) -> list[Type]:
    real.check_type(values[0], ("float32",))
    return [("uint8", values[0].shape), ("float32", ()), ("uint8", ())]


def _dynamic(arrays: Inputs, attributes: Attributes) -> list[Any]:
    """In binary32 throughout, as ONNX defines it; a tensor of zeros has the scale 1."""
    x = arrays[0].astype(np.float32)
    low = np.minimum(x.min(initial=0), np.float32(0))
    high = np.maximum(x.max(initial=0), np.float32(0))
    scale = np.float32((high - low) / np.float32(255))
    if scale == 0:
        scale = np.float32(1)
    zero_point = np.clip(np.rint(-low / scale), 0, 255).astype(np.uint8)
    codes = quantize_reals(x, np.asarray(scale), zero_point, "uint8")
    return [codes, np.asarray(scale, dtype=np.float64), np.asarray(zero_point)]


def _infer_round(values: Inputs, attributes: Attributes) -> list[Type]:
    return [(real.check_type(values[0], real.FLOATS), values[0].shape)]


def _round_dynamic(arrays: Inputs, attributes: Attributes) -> list[Array]:
    """DequantizeLinear of DynamicQuantizeLinear, but for the rounding of the scale: the codes
    rne(x / scale) + zero_point, at most 255, of scale = (max - min) / 255 with 0 in the range."""
    (x,) = arrays
    zero = real.number(0, x)
    low = np.minimum(x.min(initial=zero), zero)
    span = np.maximum(x.max(initial=zero), zero) - low
    if span == 0:
        return [x * zero]
    nearest = np.rint if x.dtype != object else lambda v: map_exact(round, v)
    most = 255 + nearest(np.asarray(low * 255 / span))
    return [np.minimum(nearest(x * 255 / span), most) * span / 255]


_ALONG = {"axis": 1, "block_size": 0}
_PAIR = (Trait.QUANTIZES, Trait.ALONG)
_CODED = {**_ALONG, "low": None, "high": None}
define("QuantizeLinear", (2, 3), _CODED, _infer_quantize, _quantize, *_PAIR)
define("DequantizeLinear", (2, 3), _ALONG, _infer_dequantize, _dequantize, *_PAIR)
define("DynamicQuantizeLinear", 1, {}, _infer_dynamic, _dynamic, Trait.QUANTIZES, rational=False)
define("RoundDynamic", 1, {}, _infer_round, _round_dynamic, Trait.RANGED)
