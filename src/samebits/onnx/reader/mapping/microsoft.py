"""Quantized operators of com.microsoft, as their dequantized, real and quantized parts.

ONNX Runtime's ContribOperators.md lists their inputs.
"""

from __future__ import annotations

import numpy as np

from samebits.errors import InputError, UnsupportedError
from samebits.onnx.reader.mapping.quantized import (
    channel_axis,
    dequantize_input,
    parameters,
    quantize_output,
)
from samebits.onnx.reader.mapping.window import average_attributes
from samebits.onnx.reader.node import MICROSOFT, OnnxNode, Result, onnx_op


def _triple(node: OnnxNode, first: int) -> str:
    """The real numbers of three inputs from `first` on: codes, scale, zero point (may be left
    out)."""
    return dequantize_input(
        node, node.input(first), node.input(first + 1), node.optional(first + 2)
    )


def _result(node: OnnxNode, y: str, scale: int) -> tuple[str, ...]:
    """y as codes of the first input's type; `scale` is the index of the scale, before the zero
    point."""
    return quantize_output(node, y, node.input(scale), node.optional(scale + 1), node.dtype())


@onnx_op("QLinearAdd", "QLinearMul", domain=MICROSOFT)
def _binary(node: OnnxNode) -> Result:
    """Inputs: codes, scale and zero point of a and of b, then scale and zero point of y."""
    op = node.op.removeprefix("QLinear")
    return _result(node, node.emit(op, _triple(node, 0), _triple(node, 3)), 6)


@onnx_op("QLinearSigmoid", "QLinearLeakyRelu", domain=MICROSOFT)
def _unary(node: OnnxNode) -> Result:
    """Inputs: codes, scale and zero point of x, then scale and zero point of y."""
    op = node.op.removeprefix("QLinear")
    attributes = {"alpha": node.float_("alpha", 0.01)} if op == "LeakyRelu" else {}
    return _result(node, node.emit(op, _triple(node, 0), **attributes), 3)


@onnx_op("QLinearAveragePool", "QLinearGlobalAveragePool", domain=MICROSOFT)
def _average_pool(node: OnnxNode) -> Result:
    """Means over windows or over the image; channels come second."""
    if node.flag("channels_last", False):
        raise UnsupportedError("expected channels_last 0, found 1")
    op = node.op.removeprefix("QLinear")
    attributes = average_attributes(node) if op == "AveragePool" else {}
    return _result(node, node.emit(op, _triple(node, 0), **attributes), 3)


@onnx_op("QLinearSoftmax", domain=MICROSOFT)
def _softmax(node: OnnxNode) -> Result:
    """Softmax along one axis; with the meaning of an opset before 13, along the last axis only."""
    axis = node.axis(node.int_("axis", -1), node.rank())
    opset = node.int_("opset", 13)
    if opset < 13 and axis != node.rank() - 1:
        raise UnsupportedError(f"expected the last axis, found {axis} with opset {opset}")
    return _result(node, node.emit("Softmax", _triple(node, 0), axis=axis), 3)


@onnx_op("QLinearConcat", domain=MICROSOFT)
def _concat(node: OnnxNode) -> Result:
    """Inputs: scale and zero point of y, then codes, scale and zero point of each part."""
    count = len(node.inputs) - 2
    if count < 3 or count % 3:
        raise InputError(f"expected codes, scale and zero point each, found {count} inputs")
    parts = [_triple(node, index) for index in range(2, 2 + count, 3)]
    axis = node.axis(node.int_("axis"), node.rank(2))
    y = node.emit("Concat", *parts, axis=axis)
    return quantize_output(node, y, node.input(0), node.optional(1), node.dtype(2))


@onnx_op("QLinearWhere", domain=MICROSOFT)
def _where(node: OnnxNode) -> Result:
    """Inputs: the condition, then codes, scale and zero point of x and of y, then scale and zero
    point of z."""
    y = node.emit("Where", node.input(0), _triple(node, 1), _triple(node, 4))
    return quantize_output(node, y, node.input(7), node.optional(8), node.dtype(1))


@onnx_op("QLinearReduceMean", domain=MICROSOFT)
def _reduce_mean(node: OnnxNode) -> Result:
    """Means over axes, by default all."""
    axes = node.ints("axes") or tuple(range(node.rank()))
    y = node.emit(
        "ReduceMean",
        _triple(node, 0),
        axes=tuple(sorted(node.axes(axes, node.rank()))),
        keepdims=int(node.flag("keepdims", True)),
    )
    return _result(node, y, 3)


@onnx_op("QGemm", domain=MICROSOFT)
def _gemm(node: OnnxNode) -> Result:
    """Inputs: codes, scale and zero point of a and of b, then c, scale and zero point of y.

    c holds int32 codes with the scale alpha * scale_a * scale_b. Without a scale of y the result is
    real.
    """
    alpha = node.float_("alpha", 1.0)
    transposed = int(node.flag("transB", False))
    b = dequantize_input(
        node, node.input(3), node.input(4), node.optional(5), axis=0 if transposed else 1
    )
    names = [_triple(node, 0), b]
    if node.has(6):
        a_scale, b_scale = (node.builder.known(node.input(index)) for index in (1, 4))
        if a_scale is None or b_scale is None or a_scale.size != 1:
            raise UnsupportedError("expected constant scales with c, found computed ones")
        # alpha joins the bias outside: Gemm multiplies only a * b with it.
        product = b_scale.astype(np.float64) * a_scale.astype(np.float64).reshape(())
        c = dequantize_input(node, node.input(6), node.constant(product), "", axis=node.rank(6) - 1)
        names.append(node.emit("Cast", c, to=node.dtype_of(b)))
    attributes = {"transA": int(node.flag("transA", False)), "transB": transposed}
    if not node.has(7):
        return node.out("Gemm", *names, alpha=alpha, beta=alpha, **attributes)
    y = node.emit("Gemm", *names, alpha=alpha, beta=alpha, **attributes)
    return _result(node, y, 7)


@onnx_op("QuantizeLinear", "DequantizeLinear", domain=MICROSOFT)
def _linear(node: OnnxNode) -> Result:
    """The standard's operators, from the time when only this domain had 16-bit codes."""
    axis, scale, zero_point = channel_axis(node), node.input(1), node.optional(2)
    if node.op == "QuantizeLinear":
        return quantize_output(node, node.input(0), scale, zero_point, axis=axis)
    scales = parameters(node, scale, zero_point, node.dtype())
    return node.out("DequantizeLinear", node.input(0), *scales, axis=axis)
