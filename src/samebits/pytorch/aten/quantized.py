"""Quantized tensors of torch's PT2E and of torchao, in the form of ONNX.

Both round x / scale to the nearest integer, halves to even, add the zero point and saturate to
`quant_min` and `quant_max`; as numbers of the program, scales are taken in binary32 as torch does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import fx

from samebits.errors import UnsupportedError
from samebits.ir.foreign import Result
from samebits.ir.real.quantize import CODES
from samebits.pytorch.call import AtenCall, aten

STATIC = (
    "quantize with scales fixed by calibration instead (PT2E: is_dynamic=False; torchao: a "
    "weight-only configuration, and samebits quantize for the activations)"
)
ADVICE = {
    "quantized_decomposed.choose_qparams": STATIC,
    "quantized_decomposed.quantize_per_token": STATIC,
    "torchao.choose_qparams": STATIC,
    "aten._int_mm": STATIC,
}
"""Advice in the place of operators whose names begin so."""


def _constant(call: AtenCall, name: str) -> np.ndarray[Any, Any]:
    """A number, or a tensor that is a constant of the program; 0 where it is left out."""
    value = call.get(name)
    if not isinstance(value, fx.Node):
        value = 0 if value is None else value
        if not isinstance(value, int | float) or abs(value) >= 1 << 63:
            raise call.unsupported(f"a number as {name}", value)
        return np.array(value)
    array = call.builder.constants.get(call.tensor(name))
    if array is None:
        raise UnsupportedError(
            f"{call.where}: expected a constant {name}, found one computed from data; {STATIC}"
        )
    return array


def _parameters(call: AtenCall, scale: str, zero: str, dtype: str, blocks: bool) -> tuple[str, str]:
    """Scale and zero point as the operators of ONNX take them: of blocks in the rank of the codes,
    else a number or a vector."""
    with np.errstate(over="ignore", under="ignore"):
        scales = _constant(call, scale).astype(np.float32)
    zeros, info = _constant(call, zero), np.iinfo(dtype)
    if not (np.isfinite(scales) & (scales > 0)).all():
        raise call.unsupported("positive finite scales", scales.reshape(-1)[:4].tolist())
    if not ((zeros == np.rint(zeros)) & (zeros >= info.min) & (zeros <= info.max)).all():
        found = zeros.reshape(-1)[:4].tolist()
        raise call.unsupported(f"whole zero points from {info.min} to {info.max}", found)
    offsets = np.broadcast_to(zeros.astype(dtype), scales.shape)
    if not blocks:
        shape = () if scales.size == 1 else (scales.size,)
        scales, offsets = scales.reshape(shape), offsets.reshape(shape)
    return call.constant(scales), call.constant(offsets)


def _quantized(call: AtenCall, scale: str, zero: str, dtype: str, **along: int) -> Result:
    kind = str(call[dtype]).removeprefix("torch.")
    if kind not in CODES:
        raise call.unsupported("codes of 8 or 16 bits", kind)
    numbers = _parameters(call, scale, zero, kind, "block_size" in along)
    ends = {"low": call["quant_min"], "high": call["quant_max"]}
    return call.emit("QuantizeLinear", call.tensor("input"), *numbers, **along, **ends)


def _dequantized(call: AtenCall, scale: str, zero: str, **along: int) -> Result:
    x = call.tensor("input")
    numbers = _parameters(call, scale, zero, call.dtype_of(x), "block_size" in along)
    return call.cast(call.emit("DequantizeLinear", x, *numbers, **along), call.out_dtype)


@aten(*(f"quantized_decomposed.quantize_per_tensor.{form}" for form in ("default", "tensor")))
def _quantize(call: AtenCall) -> Result:
    return _quantized(call, "scale", "zero_point", "dtype")


@aten(*(f"quantized_decomposed.dequantize_per_tensor.{form}" for form in ("default", "tensor")))
def _dequantize(call: AtenCall) -> Result:
    return _dequantized(call, "scale", "zero_point")


@aten("quantized_decomposed.quantize_per_channel.default")
def _quantize_channels(call: AtenCall) -> Result:
    axis = call.axis("axis", call.rank_of(call.tensor("input")))
    return _quantized(call, "scales", "zero_points", "dtype", axis=axis)


@aten("quantized_decomposed.dequantize_per_channel.default")
def _dequantize_channels(call: AtenCall) -> Result:
    axis = call.axis("axis", call.rank_of(call.tensor("input")))
    return _dequantized(call, "scales", "zero_points", axis=axis)


@aten("quantized_decomposed.dequantize_per_channel_group.default")
def _dequantize_groups(call: AtenCall) -> Result:
    """Groups of columns of a matrix."""
    return _dequantized(call, "scales", "zero_points", axis=1, block_size=call["group_size"])


@aten("torchao.quantize_affine.default")
def _quantize_affine(call: AtenCall) -> Result:
    return _quantized(call, "scale", "zero_point", "output_dtype", **_blocks(call))


@aten("torchao.dequantize_affine.default")
def _dequantize_affine(call: AtenCall) -> Result:
    return _dequantized(call, "scale", "zero_point", **_blocks(call))


def _blocks(call: AtenCall) -> dict[str, int]:
    """Blocks that share a scale, as torchao counts them (a size for each axis), as ONNX does."""
    shape, block = call.shape_of(call.tensor("input")), tuple(call["block_size"])
    cut = [i for i, (n, b) in enumerate(zip(shape, block, strict=True)) if b != n]
    if not cut:
        return {}
    whole = [i for i in range(len(shape)) if i not in cut and shape[i] != 1]
    if len(cut) == 1 and block[cut[0]] == 1:
        return {"axis": cut[0]}
    grouped = [i for i in cut if block[i] != 1]
    if len(grouped) > 1 or whole:
        raise call.unsupported("blocks of one axis, or a scale for each index of one", block)
    axis = grouped[0] if grouped else cut[-1]
    return {"axis": axis, "block_size": block[axis]}
