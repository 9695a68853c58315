"""Products of constant weights, and of two tensors."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from samebits.errors import UnsupportedError
from samebits.tflite.export.builder import Rounded, binary32, export_op
from samebits.tflite.file import Array, Scaling
from samebits.tflite.schema import SAME, VALID
from samebits.tflite.window import pads as pads_of


def _weights(node: Rounded, axis: int = 0, shape: tuple[int, ...] = ()) -> tuple[int, Array]:
    """The tensor of the weights, with a scale for each output from the ratio of its sum; codes."""
    builder, name = node.builder, node.node.inputs[1]
    array = builder.graph.constants.get(name)
    if array is None or array.dtype != np.int8:
        raise UnsupportedError("expected constant weights of int8, found others")
    unit = node.unit / node.exact(0)
    scales = tuple(binary32(ratio * unit) for ratio in node.ratios)
    scaling = Scaling(scales, (0,) * len(scales), axis if len(scales) > 1 else 0)
    stored = array if axis == 0 else np.ascontiguousarray(array.transpose(3, 1, 2, 0))
    stored = stored.reshape(shape) if shape else stored
    return builder.tensor(name, "int8", stored.shape, scaling, stored), array


def _bias(node: Rounded, rows: Array, scales: tuple[float, ...], zero: int) -> int:
    """The tensor of the bias: what is added to sums of codes less the zero point."""
    builder = node.builder
    added = builder.graph.constants.get(node.node.inputs[2])
    if added is None:
        raise UnsupportedError("expected a constant bias, found another")
    total = added.astype(np.int64) + zero * rows.reshape(len(rows), -1).astype(np.int64).sum(1)
    wide = builder.graph.values[node.node.inputs[0]].dtype == "int16"
    if not wide and total.size and np.abs(total).max() >= 1 << 31:
        raise UnsupportedError("expected a bias below 2**31, found a larger one")
    kind = "int64" if wide else "int32"
    of = builder.scaling(node.node.inputs[0]).scales[0]
    units = tuple(float(np.float32(of) * np.float32(scale)) for scale in scales)
    scaling = Scaling(units, (0,) * len(units))
    return builder.tensor(
        f"{node.node.inputs[2]}.bias", kind, total.shape, scaling, total.astype(kind)
    )


def padded(node: Rounded, kernel: tuple[int, int], code: int) -> tuple[int, dict[str, Any]]:
    """(input, options) of a window: its pads by a padding that the format has, or by an operator in
    front."""
    builder, name, a = node.builder, node.node.inputs[0], node.node.attributes
    value, x = builder.graph.values[name], builder.operand(name)
    strides, dilations, pads = a["strides"], a.get("dilations", (1, 1)), tuple(a["pads"])
    _, high, wide, _ = value.shape
    options = {"stride_h": strides[0], "stride_w": strides[1]}
    for padding in (VALID, SAME):
        if pads == pads_of(padding, (high, wide), kernel, strides, dilations):
            return x, {**options, "padding": padding}
    top, left, bottom, right = pads
    sizes = [[0, 0], [top, bottom], [left, right], [0, 0]]
    shape = [n + sum(pair) for n, pair in zip(value.shape, sizes, strict=True)]
    of = builder.tensors[x]
    wide = builder.tensor(f"{node.name}.padded", of.dtype, shape, of.quantization)
    inputs, op = [x, builder.integers(sizes)], "PAD"
    assert of.quantization is not None
    if code != of.quantization.zero_points[0]:
        array = np.array([code], of.dtype)
        inputs.append(builder.tensor(f"{node.name}.code", of.dtype, (1,), of.quantization, array))
        op = "PADV2"
    builder.add(op, inputs, [wide])
    return wide, {**options, "padding": VALID}


@export_op("conv")
def _conv(node: Rounded) -> None:
    """CONV_2D, or DEPTHWISE_CONV_2D where every channel has its own weights."""
    a, values = node.node.attributes, node.builder.graph.values
    channels, shape = values[node.node.inputs[0]].shape[3], values[node.node.inputs[1]].shape
    groups, (outputs, high, wide, _) = a["groups"], shape
    zero = node.builder.scaling(node.node.inputs[0]).zero_points[0]
    if a["pad_code"] != zero and any(a["pads"]):
        raise UnsupportedError("expected pads with the code of 0, found another")
    depthwise = groups == channels and groups > 1
    x, options = padded(node, (high, wide), zero)
    w, rows = _weights(node, 3 if depthwise else 0)
    scaling = node.builder.tensors[w].quantization
    assert scaling is not None
    inputs = [x, w, _bias(node, rows, scaling.scales, zero)]
    dilations = a["dilations"]
    options |= {"dilation_h": dilations[0], "dilation_w": dilations[1]}
    if depthwise:
        node.write("DEPTHWISE_CONV_2D", inputs, multiplier=outputs // groups, **options)
    else:
        node.write("CONV_2D", inputs, **options)


@export_op("linear")
def _linear(node: Rounded) -> None:
    """FULLY_CONNECTED of rows."""
    zero = node.builder.scaling(node.node.inputs[0]).zero_points[0]
    x = node.builder.operand(node.node.inputs[0])
    w, rows = _weights(node)
    scaling = node.builder.tensors[w].quantization
    assert scaling is not None
    inputs = [x, w, _bias(node, rows, scaling.scales, zero)]
    node.write("FULLY_CONNECTED", inputs, keep_num_dims=True)


@export_op("matmul")
def _matmul(node: Rounded) -> None:
    """BATCH_MATMUL of two tensors."""
    node.ratio(node.exact(0) * node.exact(1) / node.unit, "a product")
    pair = [node.builder.operand(name) for name in node.node.inputs]
    node.write("BATCH_MATMUL", pair, adj_x=False, adj_y=False)


@export_op("multiply")
def _multiply(node: Rounded) -> None:
    """MUL."""
    node.ratio(node.exact(0) * node.exact(1) / node.unit, "a product")
    node.write("MUL", [node.builder.operand(name) for name in node.node.inputs])


@export_op("add")
def _add(node: Rounded) -> None:
    """ADD or SUB of two tensors, QUANTIZE of one."""
    builder, factors = node.builder, node.node.attributes["factors"]
    ratio = node.ratios[0]
    for index, factor in enumerate(factors):
        wanted = node.exact(index) / node.unit
        if len(node.ratios) != 1 or abs(abs(factor) * ratio - wanted) > wanted * Fraction(1, 1000):
            raise UnsupportedError("expected a sum in the scales of its tensors, found another")
    zero = sum(
        -factor * builder.scaling(name).zero_points[0]
        for name, factor in zip(node.node.inputs, factors, strict=True)
    )
    if abs((node.node.attributes["offset"] - zero) * ratio) > Fraction(1, 100):
        raise UnsupportedError("expected a sum without a constant, found one")
    op = {(1,): "QUANTIZE", (1, 1): "ADD", (1, -1): "SUB"}.get(
        tuple(1 if factor > 0 else -1 for factor in factors)
    )
    if op is None:
        raise UnsupportedError(f"expected a sum or difference of two, found factors {factors}")
    node.write(op, [builder.operand(name) for name in node.node.inputs])
