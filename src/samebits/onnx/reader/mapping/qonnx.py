"""Quantizers of QONNX files (Brevitas, FINN, hls4ml), as QuantizeLinear and DequantizeLinear.

The documents of qonnx.custom_op.general define them. Their results are real numbers: what the codes
`rounding(x / scale + zeropt)` stand for, between ends that a bit width, `signed` and `narrow` give.
"""

from __future__ import annotations

import numpy as np

from samebits import progress
from samebits.errors import UnsupportedError
from samebits.ir.interpreter import carry
from samebits.ir.real.quantize import quantize_reals
from samebits.onnx.reader.mapping.quantized import check_scale, parameters
from samebits.onnx.reader.node import OnnxNode, Result, onnx_op

GENERAL, BREVITAS, FINN = "qonnx.custom_op.general", "onnx.brevitas", "finn.custom_op.general"
TO_EVEN = ("ROUND", "HALF_EVEN")
MOST_BITS = 16
MOST_CONSTANT_BITS = 32  # of biases
LARGEST_WIDE = 1 << 16  # elements of a constant of more than 16 bits
MOST_TRUNCATED_BITS = 15  # signed or not, their codes are int16


def _bits(node: OnnxNode, index: int, most: int) -> int:
    """A bit width: a whole number from 1 to `most`."""
    widths = np.unique(node.array(index, "bit width").astype(np.float64))
    if len(widths) != 1 or not widths[0].is_integer() or not 1 <= widths[0] <= most:
        raise UnsupportedError(
            f"expected one whole bit width from 1 to {most}, found {widths.tolist()[:4]}; train "
            "with such a bit_width"
        )
    return int(widths[0])


def _mode(node: OnnxNode, default: str, allowed: tuple[str, ...] = TO_EVEN) -> str:
    found = node.string("rounding_mode", default)
    if found.upper() not in allowed:
        raise UnsupportedError(
            f"expected rounding_mode {' or '.join(allowed)}, found {found!r}; train and export "
            f"with {allowed[0]}"
        )
    return found.upper()


def _ends(bits: int, signed: bool, narrow: bool) -> tuple[int, int]:
    """The least and the greatest code; a narrow range lacks one: of signed codes the least."""
    if signed:
        return -(1 << (bits - 1)) + narrow, (1 << (bits - 1)) - 1
    return 0, (1 << bits) - 1 - narrow


def _type(bits: int, signed: bool) -> str:
    """The type of 8 or 16 bits that holds such codes."""
    return f"{'' if signed else 'u'}int{8 if bits <= 8 else 16}"


def _numbers(node: OnnxNode, dtype: str) -> tuple[str, str, int]:
    """Scale and zero point as QuantizeLinear takes them, and the axis along which they lie.

    Those of QONNX broadcast to x. UnsupportedError for scales along several axes, and zero points
    that are no codes of the type.
    """
    rank, scales = node.rank(), node.array(1, "scale")
    own = (1,) * (rank - scales.ndim) + scales.shape
    axes = [axis for axis, size in enumerate(own) if size != 1]
    if scales.ndim > rank or len(axes) > 1:
        raise UnsupportedError(
            f"expected one scale, or one for each index of one axis, found {list(scales.shape)} "
            f"for {list(node.shape())}"
        )
    zeros = node.array(2, "zero point") if node.has(2) else np.zeros(())
    like = zeros.size == 1 or (1,) * (rank - zeros.ndim) + zeros.shape == own
    zeros, info = zeros.astype(np.float64).reshape(-1), np.iinfo(dtype)
    whole = (zeros == np.rint(zeros)) & (zeros >= info.min) & (zeros <= info.max)
    if not whole.all() or not like:
        raise UnsupportedError(
            f"expected whole zero points from {info.min} to {info.max}, one or one for each scale, "
            f"found {zeros.tolist()[:4]}"
        )
    if (zeros % 2 == 1).any():
        progress.note(
            f"{node.where}: with an odd zero point QONNX rounds ties of x / scale to odd codes; "
            "here they are rounded to even before it is added, as in QuantizeLinear"
        )
    shape = (scales.size,) if axes else ()
    stored = node.constant(scales.reshape(shape))
    offsets = node.constant(np.broadcast_to(zeros, scales.size).reshape(shape).astype(dtype))
    return *parameters(node, stored, offsets, dtype), axes[0] if axes else 1


def _quantized(
    node: OnnxNode, x: str, numbers: tuple[str, str, int], ends: tuple[int, int] | None
) -> str:
    """Codes of x, between two ends or in their whole type."""
    scale, zero, axis = numbers
    low, high = ends or (None, None)
    return node.emit("QuantizeLinear", x, scale, zero, axis=axis, low=low, high=high)


def _dequantized(node: OnnxNode, codes: str, numbers: tuple[str, str, int]) -> Result:
    scale, zero, axis = numbers
    return node.out("DequantizeLinear", codes, scale, zero, axis=axis)


@onnx_op("Quant", "IntQuant", domain=GENERAL)
@onnx_op("Quant", "IntQuant", domain=BREVITAS)
@onnx_op("Quant", "IntQuant", domain=FINN)
def _quant(node: OnnxNode) -> Result:
    """x, scale, zeropt, bitwidth. Constants, such as biases, may have up to 32 bits."""
    signed, narrow = node.flag("signed", True), node.flag("narrow", False)
    _mode(node, "ROUND")
    bits = _bits(node, 3, MOST_CONSTANT_BITS if node.is_constant(0) else MOST_BITS)
    if bits == 1 and signed:
        return _bipolar(node)
    ends = _ends(bits, signed, narrow)
    if bits > MOST_BITS:
        return _wide_constant(node, ends)
    numbers = _numbers(node, _type(bits, signed))
    return _dequantized(node, _quantized(node, node.input(0), numbers, ends), numbers)


def _wide_constant(node: OnnxNode, ends: tuple[int, int]) -> Result:
    """A constant in codes of more than 16 bits: each is that of the exact quotient."""
    x, numbers = node.array(0, "input"), _numbers(node, "int32")
    if ends[0] == 0 or x.size > LARGEST_WIDE:
        raise UnsupportedError(
            f"expected signed codes of more than {MOST_BITS} bits, of at most {LARGEST_WIDE} "
            f"numbers, found {'signed' if ends[0] else 'unsigned'} ones of {x.size}"
        )
    reals, scales = (carry(a, a.dtype.name, True) for a in (x, node.array(1, "scale")))
    zeros = node.array(2, "zero point").astype(np.int64)
    codes = quantize_reals(reals, scales, zeros, "int32", ends)
    return _dequantized(node, node.constant(codes), numbers)


@onnx_op("BipolarQuant", domain=GENERAL)
@onnx_op("BipolarQuant", domain=BREVITAS)
@onnx_op("BipolarQuant", domain=FINN)
def _bipolar(node: OnnxNode) -> Result:
    """Plus the scale for numbers from 0 on, minus the scale below; 1-bit Quant is the same."""
    numbers = _numbers(node, "int8")
    if node.has(2) and node.array(2, "zero point").any():
        raise UnsupportedError("expected the zero point 0 of 1 bit, found another")
    dtype = node.dtype()
    signs = node.emit("Sign", node.input(0))
    signs = node.emit("Sign", node.emit("Add", signs, node.number(0.5, dtype)))  # 0 is positive
    one = (node.number(1.0, dtype), node.number(0, "int8"), 1)
    return _dequantized(node, _quantized(node, signs, one, (-1, 1)), numbers)


def _scale(node: OnnxNode, value: float) -> str:
    """A scale in the type of x; InputError where it is no positive finite number there."""
    with np.errstate(over="ignore"):
        name = node.number(value, node.dtype())
    check_scale(node.builder.constants[name])
    return name


@onnx_op("Trunc", domain=GENERAL)
@onnx_op("Trunc", domain=BREVITAS)
@onnx_op("Trunc", domain=FINN)
def _trunc(node: OnnxNode) -> Result:
    """x, scale, zeropt and bit width of its codes, whose last bits are dropped.

    Version 1 goes on with the bit width of the result, which keeps the scale; version 2 with its
    scale and its bit width. Multiples of the scale that are rounded down are nearest to the result
    when half of what can be lost is taken off first: there are no ties then.
    """
    mode = _mode(node, "FLOOR", ("FLOOR", "CEIL", *TO_EVEN))
    whole, scale, ends = _bits(node, 3, MOST_TRUNCATED_BITS), float(node.scalar(1, "scale")), None
    if len(node.inputs) > 5:
        bits, after = _bits(node, 5, MOST_BITS), float(node.scalar(4, "output scale"))
        signed = node.flag("signed", True)
        dtype, ends = _type(bits, signed), _ends(bits, signed, node.flag("narrow", False))
        dropped = next((n for n in range(whole + 1) if scale * 2.0**n == after), -1)
    else:
        bits, after = _bits(node, 4, whole), scale
        dtype, dropped = _type(bits + 2, True), whole - bits
    if dropped < 0 or node.array(2, "zero point").any():
        raise UnsupportedError(
            f"expected the zero point 0 and a result whose scale is that of x times 2**n, n <= "
            f"{whole}, found scales {scale} and {after}; export with such a scale"
        )
    kind = node.dtype()
    zero, coarse = node.number(0, dtype), _scale(node, scale * 2.0**dropped)
    fine = (_scale(node, scale), node.number(0, "int16"), 1)
    y = node.emit("DequantizeLinear", _quantized(node, node.input(0), fine, None), *fine[:2])
    lost = {"FLOOR": -0.5, "CEIL": 0.5}.get(mode, 0.0) * (2**dropped - 1) * scale
    if lost:
        y = node.emit("Add", y, node.number(lost, kind))
    codes = _quantized(node, y, (coarse, zero, 1), ends)
    return _dequantized(node, codes, (_scale(node, after), zero, 1))


@onnx_op("FloatQuant", "MultiThreshold", domain=GENERAL)
@onnx_op("MultiThreshold", domain=FINN)
def _refused(node: OnnxNode) -> Result:
    """Quantizers without integer codes of one scale."""
    raise UnsupportedError(
        "expected quantizers to integers (Quant, BipolarQuant, Trunc), found another; export "
        "integer bit widths, before FINN's streamlining"
    )
