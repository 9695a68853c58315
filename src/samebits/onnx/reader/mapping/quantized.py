"""Quantized operators of the standard."""

from __future__ import annotations

import numpy as np

from samebits.errors import InputError, UnsupportedError
from samebits.ir.real.quantize import CODES
from samebits.onnx.reader.mapping.window import conv_attributes
from samebits.onnx.reader.step import Array, Result, Step, onnx_op

_DEFAULT_AXIS = 1
TARGETS = ("int8", "uint8", "int16", "uint16")


def check_scale(scale: Array, what: str = "scale") -> None:
    """InputError unless every scale is a positive number."""
    values = scale.astype(np.float64)
    wrong = ~(np.isfinite(values) & (values > 0))
    if wrong.any():
        index = int(np.argmax(wrong.reshape(-1)))
        raise InputError(
            f"expected positive finite numbers as {what}, found {values.reshape(-1)[index]} at "
            f"index {index}; quantize the model again"
        )


def parameters(step: Step, scale: str, zero_point: str, dtype: str) -> tuple[str, str]:
    """A scale and a zero point as the real operators take them.

    One number is a scalar, whatever shape the model gives it; a zero point that is left out is 0 of
    `dtype`. Raises InputError for a scale that is not positive.
    """
    known = step.emission.known(scale)
    if known is not None:
        check_scale(known)
        if known.size == 1 and known.ndim == 1:
            scale = step.array(known.reshape(()))
    shape = step.shape_of(scale)
    if not zero_point:
        return scale, step.emission.stored(f"{step.hint}.zero_point", np.zeros(shape, dtype))
    offset = step.emission.known(zero_point)
    if offset is not None and offset.shape != shape and offset.size == 1:
        spread = np.broadcast_to(offset.reshape(()), shape)
        zero_point = step.emission.stored(
            f"{step.hint}.zero_point", spread, step.dtype_of(zero_point)
        )
    return scale, zero_point


def dequantize(
    step: Step,
    x: str,
    scale: str,
    zero_point: str,
    axis: int = _DEFAULT_AXIS,
    last: bool = False,
) -> str:
    """DequantizeLinear, inside an operator or as its last part."""
    scale, zero_point = parameters(step, scale, zero_point, step.dtype_of(x))
    names = [x, scale, zero_point]
    if last:
        return step.out("DequantizeLinear", names, axis=axis)[0]
    return step.emit("DequantizeLinear", names, axis=axis)


def quantize(
    step: Step,
    x: str,
    scale: str,
    zero_point: str,
    dtype: str = "uint8",
    axis: int = _DEFAULT_AXIS,
) -> tuple[str, ...]:
    """QuantizeLinear as the last operator of a node."""
    scale, zero_point = parameters(step, scale, zero_point, dtype)
    return step.out("QuantizeLinear", [x, scale, zero_point], axis=axis)


def _axis(step: Step, scale: str) -> int:
    """The axis is of no account where there is one scale."""
    axis = step.int_("axis", _DEFAULT_AXIS)
    if step.shape_of(scale) in ((), (1,)):
        return _DEFAULT_AXIS
    return step.axis(axis, step.rank())


@onnx_op("QuantizeLinear")
def quantize_linear(step: Step) -> Result:
    """The type is that of the zero point, or output_dtype, or uint8."""
    step.ignore("saturate")  # of 8-bit floating point
    stated = step.int_("output_dtype", 0)
    dtype = step.dtype_of(step.input(2)) if step.has(2) else "uint8"
    if stated:
        named = step.element_type("output_dtype")
        if step.has(2) and named != dtype:
            raise InputError(f"expected output_dtype {dtype} as the zero point, found {named}")
        dtype = named
    if dtype not in TARGETS:
        raise UnsupportedError(f"expected codes of {', '.join(TARGETS)}, found {dtype}")
    _check_precision(step, step.dtype_of(step.input(1)))
    axis = _axis(step, step.input(1))
    block = step.int_("block_size", 0)
    scale, zero_point = parameters(step, step.input(1), step.input(2) if step.has(2) else "", dtype)
    return step.out(
        "QuantizeLinear", [step.input(0), scale, zero_point], axis=axis, block_size=block
    )


def _check_precision(step: Step, dtype: str) -> None:
    """The division is exact here: what asks for another precision than its own is refused."""
    precision = step.int_("precision", 0)
    if precision and step.element_type("precision") not in (dtype, "float32", "float64"):
        raise UnsupportedError(f"expected precision {dtype}, found {precision}")


@onnx_op("DequantizeLinear")
def dequantize_linear(step: Step) -> Result:
    """Constant codes of 2 or 4 bits are stored in 8."""
    if step.given_attribute("output_dtype"):
        stated = step.element_type("output_dtype", 0) if step.int_("output_dtype", 0) else None
        if stated not in (None, step.value(1).dtype):
            raise UnsupportedError(f"expected output_dtype of the scale, found {stated}")
    axis = _axis(step, step.input(1))
    block = step.int_("block_size", 0)
    names = [step.input(0), step.input(2) if step.has(2) else ""]
    if all(step.emission.known(name) is not None for name in names if name):
        names = [_widened(step, name) for name in names]
    if step.dtype_of(names[0]) not in (*CODES, "int32"):
        raise UnsupportedError(f"expected integer codes, found {step.dtype_of(names[0])}")
    scale, zero_point = parameters(step, step.input(1), names[1], step.dtype_of(names[0]))
    return step.out("DequantizeLinear", [names[0], scale, zero_point], axis=axis, block_size=block)


def _widened(step: Step, name: str) -> str:
    wide = {"int4": "int8", "int2": "int8", "uint4": "uint8", "uint2": "uint8"}
    if not name or step.dtype_of(name) not in wide:
        return name
    array = step.emission.known(name)
    assert array is not None
    return step.emission.stored(name, array, wide[step.dtype_of(name)])


@onnx_op("QLinearConv")
def qlinear_conv(step: Step) -> Result:
    """The bias has the scale scale_x * scale_w, exactly."""
    x = dequantize(step, step.input(0), step.input(1), step.input(2))
    w = dequantize(step, step.input(3), step.input(4), step.input(5), axis=0)
    names = [x, w]
    if step.has(8):
        names.append(_bias(step, step.input(8), (step.input(1), step.input(4)), x))
    y = step.emit("Conv", names, **conv_attributes(step, 3))
    return quantize(step, y, step.input(6), step.input(7))


def _bias(step: Step, bias: str, scales: tuple[str, str], like: str) -> str:
    """int32 codes with the product of two scales.

    The product of two binary32 numbers is a binary64 number; the cast changes the type alone.
    """
    x_scale, w_scale = (step.emission.known(name) for name in scales)
    if x_scale is None or w_scale is None:
        raise UnsupportedError("expected constant scales with a bias, found computed ones")
    if x_scale.size != 1:
        raise UnsupportedError(f"expected one scale of x, found {x_scale.size}")
    product = w_scale.astype(np.float64) * x_scale.astype(np.float64).reshape(())
    dtype = step.dtype_of(like)
    with np.errstate(over="ignore"):
        narrow = product.astype(dtype)
    exact = bool(np.all(narrow.astype(np.float64) == product))
    scale = step.array(narrow if exact else product)
    result = dequantize(step, bias, scale, "", axis=0)
    return result if exact else step.emit("Cast", [result], to=dtype)


@onnx_op("QLinearMatMul")
def qlinear_matmul(step: Step) -> Result:
    """Scales of a for each row, of b for each column."""
    a = dequantize(step, *_rows(step, (0, 1, 2), -2))
    b = dequantize(step, *_rows(step, (3, 4, 5), -1))
    y = step.emit("MatMul", [a, b])
    return quantize(step, y, step.input(6), step.input(7))


def _rows(step: Step, indices: tuple[int, int, int], axis: int) -> tuple[str, str, str, int]:
    rank = step.rank(indices[0])
    names = tuple(step.input(i) for i in indices)
    return names[0], names[1], names[2], axis % rank if rank > 1 else 0


@onnx_op("DynamicQuantizeLinear")
def dynamic(step: Step) -> Result:
    """Codes, scale and zero point of the data at hand."""
    return step.out("DynamicQuantizeLinear", [step.input(0)])


@onnx_op("ConvInteger")
def conv_integer(step: Step) -> Result:
    """Sums of codes less their zero points."""
    return step.out("ConvInteger", list(step.inputs), **conv_attributes(step, 1))


@onnx_op("MatMulInteger")
def matmul_integer(step: Step) -> Result:
    """Sums of codes less their zero points."""
    return step.out("MatMulInteger", list(step.inputs))
