"""Quantized operators of the standard: those on codes become dequantized inputs, the real operator,
and a quantized output."""

from __future__ import annotations

from typing import Any

import numpy as np

from samebits.errors import InputError, UnsupportedError
from samebits.ir.real.minifloat import STORAGE
from samebits.ir.real.quantize import CODES
from samebits.onnx.reader.mapping.window import conv_attributes
from samebits.onnx.reader.node import MICROSOFT, Array, OnnxNode, Result, onnx_op

_DEFAULT_AXIS = 1
_TARGETS = ("int8", "uint8", "int16", "uint16")
WIDER = {"int4": "int8", "int2": "int8", "uint4": "uint8", "uint2": "uint8"}


def check_scale(scale: Array) -> None:
    """InputError unless every scale is a positive finite number."""
    values = scale.astype(np.float64)
    wrong = ~(np.isfinite(values) & (values > 0))
    if wrong.any():
        index = int(np.argmax(wrong.reshape(-1)))
        raise InputError(
            f"expected positive finite numbers as scale, found {values.reshape(-1)[index]} at "
            f"index {index}; quantize the model again"
        )


def parameters(node: OnnxNode, scale: str, zero_point: str, dtype: str) -> tuple[str, str]:
    """A scale and a zero point as the real operators take them.

    One number is a scalar, whatever shape the model gives it; a zero point that is left out is 0 of
    `dtype`. Raises InputError for a scale that is not positive.
    """
    known = node.builder.known(scale)
    if known is not None:
        check_scale(known)
        if known.size == 1 and known.ndim == 1:
            scale = node.constant(known.reshape(()))
    shape = node.shape_of(scale)
    if not zero_point:
        return scale, node.builder.stored(f"{node.hint}.zero_point", np.zeros(shape, dtype))
    offset = node.builder.known(zero_point)
    if offset is not None and offset.shape != shape and offset.size == 1:
        spread = np.broadcast_to(offset.reshape(()), shape)
        zero_point = node.builder.stored(
            f"{node.hint}.zero_point", spread, node.dtype_of(zero_point)
        )
    return scale, zero_point


def dequantize_input(
    node: OnnxNode, x: str, scale: str, zero_point: str, axis: int = _DEFAULT_AXIS
) -> str:
    """The real numbers that an operator on codes reads: a DequantizeLinear within the node."""
    scales = parameters(node, scale, zero_point, node.dtype_of(x))
    return node.emit("DequantizeLinear", x, *scales, axis=axis)


def quantize_output(
    node: OnnxNode,
    y: str,
    scale: str,
    zero_point: str,
    dtype: str = "uint8",
    axis: int = _DEFAULT_AXIS,
) -> tuple[str, ...]:
    """The node's output as codes: a QuantizeLinear as its last operator.

    dtype: type of the codes where there is no zero point, which would state it.
    """
    return node.out("QuantizeLinear", y, *parameters(node, scale, zero_point, dtype), axis=axis)


def channel_axis(node: OnnxNode) -> int:
    """The axis along which the scales of input 1 lie; the default where one scale serves all, so
    that the attribute has no effect."""
    axis = node.int_("axis", _DEFAULT_AXIS)
    if node.shape(1) in ((), (1,)):
        return _DEFAULT_AXIS
    return node.axis(axis, node.rank())


def _along(node: OnnxNode) -> dict[str, int]:
    """Where the scales of input 1 lie; one block that holds a whole vector is no block."""
    block = node.int_("block_size", 0)
    whole = node.rank() == 1 and node.shape(1) == (1,) and block >= node.shape()[0]
    if not block or whole:
        return {"axis": channel_axis(node)}
    return {
        "axis": node.axis(node.int_("axis", _DEFAULT_AXIS), node.rank()),
        "block_size": block,
    }


@onnx_op("QuantizeLinear")
@onnx_op("QuantizeLinear", domain=MICROSOFT)
def _quantize_linear(node: OnnxNode) -> Result:
    """Codes of real numbers; their type is that of the zero point, or output_dtype, or uint8.

    Of a type of narrow floating-point numbers they are the quotients, rounded to it.
    """
    saturate = node.flag("saturate", True)
    stated = node.int_("output_dtype", 0)
    dtype = node.dtype(2) if node.has(2) else "uint8"
    if stated:
        named = node.element_type("output_dtype")
        if node.has(2) and named != dtype:
            raise InputError(f"expected output_dtype {dtype} as the zero point, found {named}")
        dtype = named
    if dtype in STORAGE:
        scale = _storage_scale(node)
        _check_precision(node, node.dtype(1))
        quotients = node.emit("Div", node.input(0), scale)
        return node.out("Cast", quotients, to=dtype, saturate=int(saturate))
    stored = WIDER.get(dtype, dtype)
    if stored not in _TARGETS:
        found = ", ".join((*_TARGETS, *WIDER))
        raise UnsupportedError(f"expected codes of {found}, found {dtype}")
    _check_precision(node, node.dtype(1))
    along = _along(node)
    scales = parameters(node, node.input(1), _widened(node, node.optional(2)), stored)
    ends: dict[str, Any] = {}
    if stored != dtype:
        ends = dict(zip(("low", "high"), _range(dtype), strict=True))
    return node.out("QuantizeLinear", node.input(0), *scales, **along, **ends)


def _range(dtype: str) -> tuple[int, int]:
    """The least and the greatest code of a type of 2 or 4 bits."""
    bits = int(dtype[-1])
    return (0, 2**bits - 1) if dtype[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _storage_scale(node: OnnxNode) -> str:
    """The scale of narrow floating-point numbers, in a shape that broadcasts to the input; there
    are no blocks, and no zero point but 0."""
    node.ignore("axis")
    if node.int_("block_size", 0):
        raise UnsupportedError("expected no blocks of floating-point codes, found a block_size")
    if node.has(2) and node.array(2, "zero point").astype(np.float64).any():
        raise UnsupportedError("expected zero points 0 of floating-point codes, found others")
    scale, shape = node.input(1), node.shape(1)
    if shape in ((), (1,)):
        return node.emit("Reshape", scale, shape=())
    axis = channel_axis(node)
    if shape != (node.shape()[axis],):
        raise InputError(f"expected a scale for each index of axis {axis}, found {list(shape)}")
    spread = tuple(shape[0] if i == axis else 1 for i in range(node.rank()))
    return node.emit("Reshape", scale, shape=spread)


def _check_precision(node: OnnxNode, dtype: str) -> None:
    """UnsupportedError for a precision of the division that could round it: here it is exact."""
    precision = node.int_("precision", 0)
    if precision and node.element_type("precision") not in (dtype, "float32", "float64"):
        raise UnsupportedError(f"expected precision {dtype}, found {precision}")


@onnx_op("DequantizeLinear")
@onnx_op("DequantizeLinear", domain=MICROSOFT)
def _dequantize_linear(node: OnnxNode) -> Result:
    """Real numbers of codes; those of 2 or 4 bits are stored in 8. Of narrow floating-point numbers
    they are the products with the scale."""
    if "output_dtype" in node.attributes:
        stated = node.element_type("output_dtype", 0) if node.int_("output_dtype", 0) else None
        if stated not in (None, node.dtype(1)):
            raise UnsupportedError(f"expected output_dtype of the scale, found {stated}")
    if node.dtype() in STORAGE:
        wide = node.emit("Cast", node.input(0), to=node.dtype(1))
        return node.out("Mul", wide, _storage_scale(node))
    along = _along(node)
    names = [_widened(node, node.input(0)), _widened(node, node.optional(2))]
    if node.dtype_of(names[0]) not in (*CODES, "int32"):
        raise UnsupportedError(f"expected integer codes, found {node.dtype_of(names[0])}")
    scales = parameters(node, node.input(1), names[1], node.dtype_of(names[0]))
    return node.out("DequantizeLinear", names[0], *scales, **along)


def _widened(node: OnnxNode, name: str) -> str:
    """A constant of codes of 2 or 4 bits as one of 8; any other value as it is."""
    array = node.builder.known(name) if name else None
    if array is None or node.dtype_of(name) not in WIDER:
        return name
    return node.builder.stored(name, array, WIDER[node.dtype_of(name)])


@onnx_op("QLinearConv")
def _qlinear_conv(node: OnnxNode) -> Result:
    """Convolution of codes; those of the bias have the scale scale_x * scale_w, exactly."""
    x = dequantize_input(node, node.input(0), node.input(1), node.input(2))
    w = dequantize_input(node, node.input(3), node.input(4), node.input(5), axis=0)
    names = [x, w]
    if node.has(8):
        names.append(dequantize_bias(node, node.input(8), (node.input(1), node.input(4)), x))
    y = node.emit("Conv", *names, **conv_attributes(node, 3))
    return quantize_output(node, y, node.input(6), node.input(7))


def dequantize_bias(node: OnnxNode, bias: str, scales: tuple[str, str], like: str) -> str:
    """The real bias of int32 codes whose scale is the product of two scales, of the second one for
    each index of the last axis.

    The product of two binary32 numbers is a binary64 number; the cast changes the type alone.
    """
    x_scale, w_scale = (node.builder.known(name) for name in scales)
    if x_scale is None or w_scale is None:
        raise UnsupportedError("expected constant scales with a bias, found computed ones")
    if x_scale.size != 1:
        raise UnsupportedError(f"expected one scale of x, found {x_scale.size}")
    product = w_scale.astype(np.float64) * x_scale.astype(np.float64).reshape(())
    dtype = node.dtype_of(like)
    with np.errstate(over="ignore"):
        narrow = product.astype(dtype)
    exact = bool(np.all(narrow.astype(np.float64) == product))
    scale = node.constant(narrow if exact else product)
    return node.cast(
        dequantize_input(node, bias, scale, "", axis=len(node.shape_of(bias)) - 1), dtype
    )


@onnx_op("QLinearMatMul")
def _qlinear_matmul(node: OnnxNode) -> Result:
    """Matrix product of codes, with one scale for a or one for each row, one for b or one for each
    column."""
    a = dequantize_input(node, *_rows(node, (0, 1, 2), -2))
    b = dequantize_input(node, *_rows(node, (3, 4, 5), -1))
    y = node.emit("MatMul", a, b)
    return quantize_output(node, y, node.input(6), node.input(7))


def _rows(node: OnnxNode, indices: tuple[int, int, int], axis: int) -> tuple[str, str, str, int]:
    rank = node.rank(indices[0])
    names = tuple(node.input(i) for i in indices)
    return names[0], names[1], names[2], axis % rank if rank > 1 else 0


@onnx_op("DynamicQuantizeLinear")
def _dynamic_quantize_linear(node: OnnxNode) -> Result:
    """Codes, scale and zero point chosen from the range of the data when it runs."""
    return node.out("DynamicQuantizeLinear", node.input(0))


@onnx_op("ConvInteger")
def _conv_integer(node: OnnxNode) -> Result:
    """Convolution of codes less their zero points, in int32."""
    return node.out("ConvInteger", *node.inputs, **conv_attributes(node, 1))


@onnx_op("MatMulInteger")
def _matmul_integer(node: OnnxNode) -> Result:
    """Sums of products of codes less their zero points, in int32."""
    return node.out("MatMulInteger", *node.inputs)
