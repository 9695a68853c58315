"""Quantized real graphs in forms that binary32 computes exactly.

What rounds when a runtime computes in binary32 is written so that it does not: functions of codes
as tables, means as sums and one division, resizes as gathers. `onnx.writer.binary32` proves the
result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from samebits.ir import Graph, Node, Trait, Value, has
from samebits.ir.graph import Array
from samebits.ir.integer.define import CODES, limits
from samebits.ir.real.quantize import saturation
from samebits.ir.real.shape import nearest_indices
from samebits.ir.rewrite import Edit, rewrite
from samebits.tables.expression import OPERATORS, Apply, Constant, Expression, Variable, apply
from samebits.tables.interval import CodeRange
from samebits.tables.transfer import transfer_table


def exact_form(graph: Graph) -> Graph:
    """The same function with fewer operators that round in binary32.

    * A chain of point-wise operators with scalar constants from one DequantizeLinear of 8- or
      16-bit codes to a QuantizeLinear: Gather of the transfer table (docs/spec/graph.md 5).
    * AveragePool, GlobalAveragePool and ReduceMean over other than 2**k elements: the sum (Conv
      with ones, ReduceSum), then one Div.
    * Resize: Gather along each axis.
    """
    return rewrite(graph, _rule)


def _rule(edit: Edit, node: Node) -> list[Node] | None:
    rule = _RULES.get(node.op)
    return None if rule is None else rule(edit, node)


def is_power_of_two(value: Fraction) -> bool:
    """Whether value is 2**k for an integer k (negative ones too)."""
    return value > 0 and all(v & (v - 1) == 0 for v in value.as_integer_ratio())


# --- tables -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Point:
    """A function of the codes of one DequantizeLinear (None: a constant)."""

    source: Node | None
    expression: Expression


def _scalar(edit: Edit, name: str) -> Fraction | None:
    array = edit.constants.get(name)
    if array is None or array.size != 1:
        return None
    value = float(array.reshape(-1)[0])
    return Fraction(value) if math.isfinite(value) else None


def _quantization(edit: Edit, node: Node) -> tuple[Fraction, int] | None:
    """Scale and zero point where they are constant and single."""
    scale = _scalar(edit, node.inputs[1])
    zero = Fraction(0)
    if len(node.inputs) > 2 and node.inputs[2]:
        found = _scalar(edit, node.inputs[2])
        if found is None:
            return None
        zero = found
    return None if scale is None or scale <= 0 else (scale, int(zero))


def _point(edit: Edit, name: str, shape: tuple[int, ...], depth: int = 0) -> _Point | None:
    """The value as a function of codes of its own shape, if it is one of scalars otherwise."""
    constant = _scalar(edit, name)
    if constant is not None:
        return _Point(None, Constant(constant))
    node = edit.producers.get(name)
    if node is None or edit.values[name].shape != shape or depth > 100:
        return None
    if node.op == "DequantizeLinear":
        known = edit.values[node.inputs[0]].dtype in CODES and _quantization(edit, node)
        return _Point(node, Variable()) if known else None
    if node.op not in OPERATORS or node.op == "Requantize":
        return None
    arguments = [_point(edit, argument, shape, depth + 1) for argument in node.inputs]
    points = [argument for argument in arguments if argument is not None]
    sources = {point.source.output: point.source for point in points if point.source is not None}
    if len(points) < len(arguments) or len(sources) > 1:
        return None
    parameters = {key: _parameter(value) for key, value in node.attributes.items()}
    expression = apply(node.op, *(point.expression for point in points), **parameters)
    return _Point(next(iter(sources.values()), None), expression)


def _parameter(value: Any) -> Fraction | str | None:
    if value is None or isinstance(value, str):
        return value
    return None if math.isinf(value) else Fraction(value)  # only bounds of Clip are infinite


def _ops(expression: Expression) -> set[str]:
    if not isinstance(expression, Apply):
        return set()
    return {expression.op}.union(*(_ops(argument) for argument in expression.arguments))


def _table(edit: Edit, node: Node) -> list[Node] | None:
    """The functions between two quantizations as Cast, Add and Gather of a table of codes; None
    where they are no functions of one tensor of codes, or round nothing anyway."""
    target = _quantization(edit, node)
    out = edit.values[node.output]
    point = _point(edit, node.inputs[0], out.shape) if target and out.dtype in CODES else None
    if target is None or point is None or point.source is None:
        return None
    source = _quantization(edit, point.source)
    assert source is not None
    powers = is_power_of_two(source[0]) and is_power_of_two(target[0])
    if powers and all(has(op, Trait.UNROUNDED) for op in _ops(point.expression)):
        return None
    codes = point.source.inputs[0]
    dtype = edit.values[codes].dtype
    low, high = limits(dtype)
    ends = saturation(out.dtype, node.attributes)
    entries = transfer_table(
        point.expression, CodeRange(*source, low, high), CodeRange(*target, *ends)
    ).codes
    table = edit.constant(f"{node.output}.table", np.array(entries, out.dtype))
    index = edit.value(f"{node.output}.index", Value("", "int32", out.shape))
    nodes = [edit.node("Cast", [codes], index, to="int32")]
    if low:
        offset = edit.constant(f"{node.output}.offset", np.array(-low, np.int32))
        shifted = edit.value(f"{node.output}.index", Value("", "int32", out.shape))
        nodes.append(edit.node("Add", [index, offset], shifted))
        index = shifted
    return [*nodes, edit.node("Gather", [table, index], node.output, axis=0)]


# --- means ------------------------------------------------------------------------------------


def _divided(edit: Edit, node: Node, sums: str, counts: Array) -> Node:
    dtype = edit.values[node.output].dtype
    if len(set(counts.reshape(-1).tolist())) == 1:
        counts = counts.reshape(-1)[0]
    divisor = edit.constant(f"{node.output}.count", np.array(counts, dtype))
    return edit.node("Div", [sums, divisor], node.output)


def _mean(edit: Edit, node: Node) -> list[Node] | None:
    shape = edit.values[node.inputs[0]].shape
    axes = tuple(node.attributes.get("axes", range(2, len(shape))))
    count = math.prod(shape[axis] for axis in axes)
    if is_power_of_two(Fraction(count)):
        return None
    sums = edit.value(f"{node.output}.sum", edit.values[node.output])
    keepdims = node.attributes.get("keepdims", 1)
    total = edit.node("ReduceSum", node.inputs, sums, axes=axes, keepdims=keepdims)
    return [total, _divided(edit, node, sums, np.array(count))]


def _average_pool(edit: Edit, node: Node) -> list[Node] | None:
    """Conv with ones, then one Div by the number of elements of each window; None where all of
    those are powers of two, whose division is exact. Ceil mode becomes pads at the ends."""
    a = node.attributes
    shape, out = edit.values[node.inputs[0]].shape, edit.values[node.output].shape
    size, kernel, rank = shape[2:], a["kernel_shape"], len(shape) - 2
    begins, ends = a["pads"][:rank], a["pads"][rank:]
    counts = np.ones((), np.int64)
    for i in range(rank):
        taps = np.arange(out[2 + i])[:, None] * a["strides"][i] - begins[i]
        taps = taps + np.arange(kernel[i])[None, :] * a["dilations"][i]
        low, high = (-begins[i], size[i] + ends[i]) if a["count_include_pad"] else (0, size[i])
        counts = counts[..., None] * ((taps >= low) & (taps < high)).sum(1)
    if all(is_power_of_two(Fraction(int(count))) for count in counts.flat):
        return None
    reached = [
        max(
            ends[i],
            (out[2 + i] - 1) * a["strides"][i]
            + a["dilations"][i] * (kernel[i] - 1) + 1 - size[i] - begins[i],
        )
        for i in range(rank)
    ]  # fmt: skip
    sums = edit.value(f"{node.output}.sum", edit.values[node.output])
    ones = np.ones((shape[1], 1, *kernel), edit.values[node.output].dtype)
    conv = edit.node(
        "Conv",
        [node.inputs[0], edit.constant(f"{node.output}.ones", ones)],
        sums,
        strides=a["strides"],
        dilations=a["dilations"],
        pads=(*begins, *reached),
        group=shape[1],
    )
    return [conv, _divided(edit, node, sums, counts)]


# --- resizes ----------------------------------------------------------------------------------


def _resize(edit: Edit, node: Node) -> list[Node] | None:
    """A Gather along each axis that changes, with the positions that exact rationals give; a
    runtime would compute them in binary32."""
    a = node.attributes
    name, value = node.inputs[0], edit.values[node.inputs[0]]
    nodes = []
    shape = list(value.shape)
    for axis, (size, out) in enumerate(zip(value.shape, a["sizes"], strict=True)):
        scale = Fraction(out, size) if a["scales"] is None else Fraction(a["scales"][axis])
        coordinates, rounding = a["coordinate_transformation_mode"], a["nearest_mode"]
        taken = list(nearest_indices(size, out, scale, coordinates, rounding))
        if taken == list(range(size)):
            continue
        shape[axis] = out
        like = Value("", value.dtype, tuple(shape))
        indices = edit.constant(f"{node.output}.indices", np.array(taken, np.int64))
        moved = edit.value(f"{node.output}.resized", like)
        nodes.append(edit.node("Gather", [name, indices], moved, axis=axis))
        name = moved
    if not nodes:
        return [edit.node("Identity", [name], node.output)]
    last = nodes[-1]
    del edit.values[last.output]
    return [*nodes[:-1], Node(last.op, last.name, last.inputs, node.outputs, last.attributes)]


_RULES: dict[str, Callable[[Edit, Node], list[Node] | None]] = {
    "QuantizeLinear": _table,
    "GlobalAveragePool": _mean,
    "ReduceMean": _mean,
    "AveragePool": _average_pool,
    "Resize": _resize,
}
