"""Pools, reductions, functions of codes and movements."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from samebits.errors import UnsupportedError
from samebits.tflite.export.builder import FileBuilder, Rounded, close, export_op
from samebits.tflite.export.products import padded
from samebits.tflite.file import Array, Scaling

_SHARES = {"int8": Scaling((2.0**-8,), (-128,))}  # of a softmax and a sigmoid
_STEPS = {"int8": Scaling((2.0**-7,), (0,))}  # of a hyperbolic tangent
NEAREST = 1  # codes by which a table may differ from the function that it is taken for


def _through(node: Rounded, op: str, inputs: list[int], unit: Scaling, **options: object) -> None:
    """An operator whose result has a scale of its own, then the codes that are asked for."""
    builder, value = node.builder, node.builder.graph.values[node.name]
    if builder.scaling(node.name) == unit:
        node.write(op, inputs, **options)
        return
    between = builder.tensor(f"{node.name}.{op.lower()}", value.dtype, value.shape, unit)
    builder.add(op, inputs, [between], **options)
    node.write("QUANTIZE", [between])


# --- pools and reductions -------------------------------------------------------------------------


@export_op("max_pool")
def _max_pool(node: Rounded) -> None:
    """MAX_POOL_2D, which no pad wins."""
    a = node.node.attributes
    if tuple(a["dilations"]) != (1, 1):
        raise UnsupportedError("expected windows without dilation, found others")
    low = np.iinfo(node.builder.graph.values[node.name].dtype).min
    x, options = padded(node, a["kernel"], int(low))
    node.write("MAX_POOL_2D", [x], filter_h=a["kernel"][0], filter_w=a["kernel"][1], **options)


@export_op("sum_pool")
def _average(node: Rounded) -> None:
    """AVERAGE_POOL_2D of windows inside the image."""
    a = node.node.attributes
    high, wide = a["kernel"]
    if any(a["pads"]) or a["balance"] or tuple(a["dilations"]) != (1, 1):
        raise UnsupportedError("expected windows inside the image, found others")
    node.ratio(node.exact(0) / node.unit / (high * wide), "a mean")
    x, options = padded(node, (high, wide), 0)
    of = node.builder.scaling(node.node.inputs[0])
    sizes = {"filter_h": high, "filter_w": wide}
    _through(node, "AVERAGE_POOL_2D", [x], of, **sizes, **options)


@export_op("reduce_sum")
def _sum(node: Rounded) -> None:
    """MEAN or SUM, by the ratio."""
    shape, axes = node.builder.graph.values[node.node.inputs[0]].shape, node.node.attributes["axes"]
    count = math.prod(shape[axis] for axis in axes)
    whole = node.exact(0) / node.unit
    op = "SUM" if len(node.ratios) == 1 and close(node.ratios[0], whole) else "MEAN"
    node.ratio(whole if op == "SUM" else whole / count, "a mean or a sum")
    inputs = [node.builder.operand(node.node.inputs[0]), node.builder.integers(axes)]
    node.write(op, inputs, keep_dims=bool(node.node.attributes["keepdims"]))


@export_op("reduce_max", "reduce_min")
def _extreme(node: Rounded) -> None:
    """REDUCE_MAX or REDUCE_MIN."""
    a = node.node.attributes
    inputs = [node.builder.operand(node.node.inputs[0]), node.builder.integers(a["axes"])]
    node.write(node.node.op.upper(), inputs, keep_dims=bool(a["keepdims"]))


@export_op("maximum", "minimum")
def _pair(node: Rounded) -> None:
    """MAXIMUM or MINIMUM."""
    node.write(node.node.op.upper(), [node.builder.operand(n) for n in node.node.inputs])


# --- functions ------------------------------------------------------------------------------------


@export_op("clip")
def _clip(node: Rounded) -> None:
    """MAXIMUM and MINIMUM with constants."""
    a = node.node.attributes
    node.builder.bounded(node.name, node.builder.operand(node.node.inputs[0]), a["low"], a["high"])


@export_op("requantize")
def _codes(node: Rounded) -> None:
    """QUANTIZE of codes; sums have their own operators."""
    raise UnsupportedError("expected a sum of one operator in front, found several readers of it")


@export_op("softmax")
def _softmax(node: Rounded) -> None:
    """SOFTMAX to 2**-8."""
    builder, x = node.builder, node.node.inputs[0]
    if builder.graph.values[x].dtype != "int8" or len(node.node.inputs) > 2:
        raise UnsupportedError("expected a softmax of int8 codes without a mask, found another")
    _through(node, "SOFTMAX", [builder.operand(x)], _SHARES["int8"], beta=1.0)


def _logistic(v: Array) -> Array:
    return 1 / (1 + np.exp(-v))


_FUNCTIONS: tuple[tuple[str, Callable[[Array], Array], Scaling | None], ...] = (
    ("QUANTIZE", lambda v: v, None),
    ("RELU", lambda v: np.maximum(v, 0), None),
    ("LOGISTIC", _logistic, _SHARES["int8"]),
    ("TANH", np.tanh, _STEPS["int8"]),
    ("HARD_SWISH", lambda v: v * np.clip(v + 3, 0, 6) / 6, None),
    ("ELU", lambda v: np.where(v < 0, np.expm1(v), v), None),
    ("ABS", np.abs, None),
)


@export_op("table")
def _table(node: Rounded) -> None:
    """The operator whose function a table of int8 codes is, but for NEAREST codes."""
    builder, (x, name) = node.builder, node.node.inputs
    table = builder.graph.constants.get(name)
    if table is None or table.shape != (256,) or builder.graph.values[node.name].dtype != "int8":
        raise UnsupportedError("expected one constant table of 256 int8 codes, found another")
    of, to = builder.scaling(x), builder.scaling(node.name)
    reals = of.scales[0] * (np.arange(-128, 128) - of.zero_points[0])
    for op, function, unit in _FUNCTIONS:
        codes = np.clip(np.rint(function(reals) / to.scales[0]) + to.zero_points[0], -128, 127)
        if np.abs(codes - table).max() <= NEAREST:
            _through(node, op, [builder.operand(x)], unit or to)
            return
    slope = _slope(reals, (table - to.zero_points[0]) * to.scales[0])
    leaky = np.where(reals < 0, slope * reals, reals)
    codes = np.clip(np.rint(leaky / to.scales[0]) + to.zero_points[0], -128, 127)
    if slope > 0 and np.abs(codes - table).max() <= NEAREST:
        alpha = float(np.float32(slope))
        node.write("LEAKY_RELU", [builder.operand(x)], alpha=alpha)
        return
    named = ", ".join(op for op, _, _ in _FUNCTIONS)
    raise UnsupportedError(f"expected the function of {named} or LEAKY_RELU, found another")


def _slope(reals: Array, values: Array) -> float:
    """The slope below 0 that fits best."""
    below = reals < 0
    return float((reals[below] * values[below]).sum() / max((reals[below] ** 2).sum(), 1e-30))


@export_op("argmax")
def _place(node: Rounded) -> None:
    """ARG_MAX of int32 places."""
    builder, a = node.builder, node.node.attributes
    value = builder.graph.values[node.name]
    if a["keepdims"]:
        raise UnsupportedError("expected places without the axis, found them with it")
    number = builder.tensor(node.name, "int32", value.shape)
    inputs = [builder.operand(node.node.inputs[0]), builder.integers(a["axis"])]
    builder.add("ARG_MAX", inputs, [number])
    builder.numbers[node.name] = number


# --- movements ------------------------------------------------------------------------------------


def _moved(node: Rounded, op: str, *more: int, **options: object) -> None:
    """An operator that moves codes: the result has the scale of the input."""
    builder = node.builder
    x = builder.operand(node.node.inputs[0])
    of, value = builder.tensors[x], builder.graph.values[node.name]
    number = builder.tensor(node.name, of.dtype, value.shape, of.quantization)
    builder.add(op, [x, *more], [number], **options)
    builder.numbers[node.name] = number


@export_op("reshape")
def _reshape(node: Rounded) -> None:
    """RESHAPE."""
    _moved(node, "RESHAPE", node.builder.integers(node.node.attributes["shape"]))


@export_op("transpose")
def _transpose(node: Rounded) -> None:
    """TRANSPOSE."""
    _moved(node, "TRANSPOSE", node.builder.integers(node.node.attributes["perm"]))


@export_op("expand")
def _expand(node: Rounded) -> None:
    """BROADCAST_TO."""
    _moved(node, "BROADCAST_TO", node.builder.integers(node.node.attributes["shape"]))


@export_op("slice")
def _slice(node: Rounded) -> None:
    """STRIDED_SLICE."""
    ends = [node.builder.integers(node.node.attributes[k]) for k in ("starts", "stops", "steps")]
    _moved(node, "STRIDED_SLICE", *ends)


@export_op("pad")
def _pad(node: Rounded) -> None:
    """PADV2 with the code."""
    builder, a = node.builder, node.node.attributes
    of = builder.tensors[builder.operand(node.node.inputs[0])]
    array = np.array([a["code"]], of.dtype)
    code = builder.tensor(f"{node.name}.code", of.dtype, (1,), of.quantization, array)
    pads = builder.integers(list(zip(a["before"], a["after"], strict=True)))
    _moved(node, "PADV2", pads, code)


@export_op("gather")
def _gather(node: Rounded) -> None:
    """GATHER of constant places."""
    places = node.builder.graph.constants.get(node.node.inputs[1])
    if places is None:
        raise UnsupportedError("expected constant places, found others")
    n = node.builder.graph.values[node.node.inputs[0]].shape[node.node.attributes["axis"]]
    whole = np.clip(np.where(places < 0, places + n, places), 0, n - 1)
    _moved(node, "GATHER", node.builder.integers(whole), axis=node.node.attributes["axis"])


@export_op("concat")
def _concat(node: Rounded) -> None:
    """CONCATENATION of tensors of one scale."""
    builder: FileBuilder = node.builder
    others = [builder.operand(name) for name in node.node.inputs[1:]]
    _moved(node, "CONCATENATION", *others, axis=node.node.attributes["axis"], activation=0)
