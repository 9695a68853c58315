"""Quantized operators of com.microsoft, as their dequantized, real and quantized parts.

ONNX Runtime's ContribOperators.md lists their inputs.
"""

from __future__ import annotations

import numpy as np

from samebits.errors import InputError, UnsupportedError
from samebits.onnx.reader.mapping.quantized import (
    dequantize_bias,
    dequantize_input,
    quantize_output,
)
from samebits.onnx.reader.mapping.window import average_attributes
from samebits.onnx.reader.node import MICROSOFT, Array, OnnxNode, Result, onnx_op


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
        # alpha joins the bias outside: Gemm multiplies only a * b with it.
        names.append(dequantize_bias(node, node.input(6), (node.input(1), node.input(4)), b))
    attributes = {"transA": int(node.flag("transA", False)), "transB": transposed}
    if not node.has(7):
        return node.out("Gemm", *names, alpha=alpha, beta=alpha, **attributes)
    y = node.emit("Gemm", *names, alpha=alpha, beta=alpha, **attributes)
    return _result(node, y, 7)


@onnx_op("MatMulNBits", domain=MICROSOFT)
def _matmul_of_bits(node: OnnxNode) -> Result:
    """x, codes of N rows in blocks [N, blocks, bytes], lowest bits first, scales of the blocks,
    zero points (packed like a row, or numbers; the middle code where there are none), g_idx, bias.
    """
    node.ignore("accuracy_level")  # how coarse x may be made; here it is never
    size, columns, rows = (node.int_(name) for name in ("block_size", "K", "N"))
    bits = node.int_("bits", 4)
    if bits not in (2, 4, 8) or min(size, columns, rows) < 1 or size % 8:
        raise InputError(
            f"expected 2, 4 or 8 bits, positive N and K and blocks of a multiple of 8, found {bits}"
            f", {rows}, {columns} and {size}"
        )
    if node.has(4):
        raise UnsupportedError("expected no g_idx, found one; export without an order of columns")
    count = -(-columns // size)
    codes = _packed(node, 1, "codes", bits, (rows, count * size))[:, :columns]
    scale = node.array(2, "scales")
    if scale.size != rows * count or scale.dtype.kind != "f":
        raise InputError(f"expected {rows * count} scales, found {scale.dtype}{list(scale.shape)}")
    zeros = np.full((rows, count), 1 << (bits - 1), np.uint8)
    if node.has(3):
        zeros = _zero_points(node, bits, (rows, count))
    names = (
        node.builder.stored(f"{node.hint}.codes", codes),
        node.constant(scale.reshape(rows, count).astype(node.dtype())),
        node.constant(zeros),
    )
    w = node.emit("DequantizeLinear", *names, axis=1, block_size=size)
    if node.rank() == 2:
        given = [node.input(5)] if node.has(5) else []
        return node.out("Gemm", node.input(0), w, *given, transB=1)
    product = [node.input(0), node.emit("Transpose", w, perm=(1, 0))]
    if not node.has(5):
        return node.out("MatMul", *product)
    return node.out("Add", node.emit("MatMul", *product), node.input(5))


@onnx_op("MatMulBnb4", "MatMulFpQ4", domain=MICROSOFT)
def _code_book(node: OnnxNode) -> Result:
    """Weights as places in a table of floating-point numbers."""
    raise UnsupportedError(
        "expected weights with integer codes, found a table of 4-bit floats; quantize them for "
        "MatMulNBits"
    )


def _zero_points(node: OnnxNode, bits: int, shape: tuple[int, int]) -> Array:
    """Zero points of blocks: codes packed row by row, or one whole number for each."""
    stored = node.array(3, "zero points")
    if stored.dtype.kind != "f":
        return _packed(node, 3, "zero points", bits, shape)
    if stored.size != shape[0] * shape[1]:
        raise InputError(f"expected {shape[0] * shape[1]} zero points, found {stored.size}")
    numbers = stored.astype(np.float64).reshape(shape)
    if not ((numbers == np.rint(numbers)) & (numbers >= 0) & (numbers <= 255)).all():
        raise UnsupportedError("expected whole zero points from 0 to 255, found others")
    return numbers.astype(np.uint8)


def _packed(node: OnnxNode, index: int, what: str, bits: int, shape: tuple[int, int]) -> Array:
    """Codes that lie in bytes, each row in whole ones."""
    stored = node.array(index, what)
    width = -(-shape[1] * bits // 8)
    if stored.dtype != np.uint8 or stored.size != shape[0] * width:
        raise InputError(
            f"expected {shape[0]} rows of {width} bytes as {what}, found {stored.dtype}"
            f"{list(stored.shape)}; export the model again"
        )
    node.builder.charge(shape[0] * width * 8 // bits)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = (stored.reshape(shape[0], width, 1) >> shifts) & np.uint8((1 << bits) - 1)
    return codes.reshape(shape[0], -1)[:, : shape[1]]
