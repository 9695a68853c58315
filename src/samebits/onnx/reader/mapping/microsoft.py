"""Quantized operators of com.microsoft, as their dequantized, real and quantized parts.

ONNX Runtime's ContribOperators.md lists their inputs.
"""

from __future__ import annotations

import numpy as np

from samebits.errors import InputError, UnsupportedError
from samebits.onnx.reader.mapping.quantized import dequantize, quantize
from samebits.onnx.reader.mapping.window import pool_attributes
from samebits.onnx.reader.step import MICROSOFT, Result, Step, onnx_op


def _optional(step: Step, index: int) -> str:
    return step.inputs[index] if step.has(index) else ""


def _triple(step: Step, first: int) -> str:
    """x, scale, zero point (which may be left out) from input `first` on, dequantized."""
    return dequantize(step, step.input(first), step.input(first + 1), _optional(step, first + 2))


def _result(step: Step, y: str, scale: int) -> tuple[str, ...]:
    """Quantized with the scale and zero point at these inputs, in the type of the first input."""
    dtype = step.value(0).dtype
    return quantize(step, y, step.input(scale), _optional(step, scale + 1), dtype)


@onnx_op("QLinearAdd", "QLinearMul", domain=MICROSOFT)
def binary(step: Step) -> Result:
    """a, b, y: each codes (or none), scale, zero point."""
    op = step.node.op_type.removeprefix("QLinear")
    return _result(step, step.emit(op, [_triple(step, 0), _triple(step, 3)]), 6)


@onnx_op("QLinearSigmoid", "QLinearLeakyRelu", domain=MICROSOFT)
def unary(step: Step) -> Result:
    """x, then y's scale and zero point."""
    op = step.node.op_type.removeprefix("QLinear")
    attributes = {"alpha": step.float_("alpha", 0.01)} if op == "LeakyRelu" else {}
    return _result(step, step.emit(op, [_triple(step, 0)], **attributes), 3)


@onnx_op("QLinearGlobalAveragePool", domain=MICROSOFT)
def global_average_pool(step: Step) -> Result:
    """Means over the image; channels come second."""
    if step.flag("channels_last", False):
        raise UnsupportedError("expected channels_last 0, found 1")
    return _result(step, step.emit("GlobalAveragePool", [_triple(step, 0)]), 3)


@onnx_op("QLinearAveragePool", domain=MICROSOFT)
def average_pool(step: Step) -> Result:
    """Means over windows; channels come second."""
    if step.flag("channels_last", False):
        raise UnsupportedError("expected channels_last 0, found 1")
    attributes = pool_attributes(step)
    include = int(step.flag("count_include_pad", False))
    x = _triple(step, 0)
    y = step.emit("AveragePool", [x], count_include_pad=include, **attributes)
    return _result(step, y, 3)


@onnx_op("QLinearSoftmax", domain=MICROSOFT)
def softmax(step: Step) -> Result:
    """Along one axis; with the meaning of an opset before 13 along the last only."""
    axis = step.axis(step.int_("axis", -1), step.rank())
    opset = step.int_("opset", 13)
    if opset < 13 and axis != step.rank() - 1:
        raise UnsupportedError(f"expected the last axis, found {axis} with opset {opset}")
    return _result(step, step.emit("Softmax", [_triple(step, 0)], axis=axis), 3)


@onnx_op("QLinearConcat", domain=MICROSOFT)
def concat(step: Step) -> Result:
    """y's scale and zero point come first, then triples."""
    count = len(step.inputs) - 2
    if count < 3 or count % 3:
        raise InputError(f"expected codes, scale and zero point each, found {count} inputs")
    parts = [_triple(step, index) for index in range(2, 2 + count, 3)]
    axis = step.axis(step.int_("axis"), step.rank(2))
    y = step.emit("Concat", parts, axis=axis)
    return quantize(step, y, step.input(0), _optional(step, 1), step.value(2).dtype)


@onnx_op("QLinearWhere", domain=MICROSOFT)
def where(step: Step) -> Result:
    """condition, then x, y and z as triples."""
    y = step.emit("Where", [step.input(0), _triple(step, 1), _triple(step, 4)])
    return quantize(step, y, step.input(7), _optional(step, 8), step.value(1).dtype)


@onnx_op("QLinearReduceMean", domain=MICROSOFT)
def reduce_mean(step: Step) -> Result:
    """Means over axes, by default all."""
    axes = step.ints("axes") or tuple(range(step.rank()))
    y = step.emit(
        "ReduceMean",
        [_triple(step, 0)],
        axes=tuple(sorted(step.axes(axes, step.rank()))),
        keepdims=int(step.flag("keepdims", True)),
    )
    return _result(step, y, 3)


@onnx_op("QGemm", domain=MICROSOFT)
def gemm(step: Step) -> Result:
    """a, b as triples, int32 c with the scale alpha * scale_a * scale_b; real without y's scale."""
    alpha = step.float_("alpha", 1.0)
    transposed = int(step.flag("transB", False))
    b = dequantize(
        step, step.input(3), step.input(4), _optional(step, 5), axis=0 if transposed else 1
    )
    names = [_triple(step, 0), b]
    if step.has(6):
        a_scale, b_scale = (step.emission.known(step.input(index)) for index in (1, 4))
        if a_scale is None or b_scale is None or a_scale.size != 1:
            raise UnsupportedError("expected constant scales with c, found computed ones")
        # alpha joins the bias outside: Gemm multiplies only a * b with it.
        product = b_scale.astype(np.float64) * a_scale.astype(np.float64).reshape(())
        c = dequantize(step, step.input(6), step.array(product), "", axis=step.rank(6) - 1)
        names.append(step.emit("Cast", [c], to=step.dtype_of(b)))
    attributes = {"transA": int(step.flag("transA", False)), "transB": transposed}
    if not step.has(7):
        return step.out("Gemm", names, alpha=alpha, beta=alpha, **attributes)
    y = step.emit("Gemm", names, alpha=alpha, beta=alpha, **attributes)
    return _result(step, y, 7)


@onnx_op("QuantizeLinear", "DequantizeLinear", domain=MICROSOFT)
def linear(step: Step) -> Result:
    """As in the standard, with more types."""
    axis = step.int_("axis", 1)
    scale = step.input(1)
    axis = step.axis(axis, step.rank()) if step.shape_of(scale) not in ((), (1,)) else 1
    if step.node.op_type == "QuantizeLinear":
        dtype = step.dtype_of(step.input(2)) if step.has(2) else "uint8"
        return quantize(step, step.input(0), scale, _optional(step, 2), dtype, axis)
    return dequantize(step, step.input(0), scale, _optional(step, 2), axis, last=True)


@onnx_op("Gelu", "QuickGelu", "FastGelu", domain=MICROSOFT)
def gelu(step: Step) -> Result:
    """Gelu, x * sigmoid(alpha * x), or Gelu by tanh with an optional bias."""
    op = step.node.op_type
    if op == "Gelu":
        return step.out("Gelu", [step.input(0)])
    if op == "QuickGelu":
        return step.out("Swish", [step.input(0)], alpha=step.float_("alpha", 1.702))
    x = step.emit("Add", [step.input(0), step.input(1)]) if step.has(1) else step.input(0)
    return step.out("Gelu", [x], approximate="tanh")
