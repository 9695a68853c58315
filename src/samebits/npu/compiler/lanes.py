"""Rules of operators that join the lanes of a pixel: softmax, normalizations, sums over features.

An instruction across lanes takes all lanes of what a chain carries, and gives every one of them the
result. What is to be joined stands in some lanes of a pixel; the others, padding and features of
another group, are made neutral before: 0 for a sum, the smallest number for a maximum.

For example softmax of 5 features with N = 8:

    v_rd ivrf, 0; vv_mul mvrf0, 0; vv_add asvrf1, 0; v_max; v_wr asvrf0, 0; end_chain
    v_rd ivrf, 0; vv_a_sub_b asvrf0, 0; vv_mul mvrf0, 0; v_exp; v_wr ivrf, 1; end_chain
    v_rd ivrf, 1; vv_mul mvrf0, 0; v_sum; v_recip 1; v_wr mvrf1, 0; end_chain
    v_rd ivrf, 1; vv_mul mvrf1, 0; v_wr netq; end_chain

`mvrf0 0` holds 1 in 5 lanes and 0 in 3, `asvrf1 0` 0 in 5 and -65504 in 3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from samebits.errors import UnsupportedError
from samebits.ir.graph import Node
from samebits.npu.compiler import rules
from samebits.npu.compiler.build import Builder
from samebits.npu.compiler.layout import (
    OUTSIDE,
    Array,
    Buffer,
    BufferAccess,
    ImageView,
    UnitOperation,
    View,
)
from samebits.npu.compiler.pointwise import combined, reciprocal
from samebits.npu.compiler.rules import Input, Rule, Shape, axis_reduced, constant_of, view_of
from samebits.npu.machine.isa import LANES_MAX
from samebits.spec.npu_binary16 import LARGEST

ACROSS: Mapping[str, str] = MappingProxyType({"vv_add": "v_sum", "vv_max": "v_max"})


@dataclass(frozen=True, eq=False)
class _Group:
    """Lanes of a pixel that are joined: those of `kept` (bool [vectors * N]), which lie in `count`
    native vectors from `first` on."""

    first: int
    count: int
    kept: Array

    @property
    def span(self) -> range:
        return range(self.first, self.first + self.count)


def reduced(b: Builder, name: str, op: str, x: View, axes: set[int]) -> View:
    """The sum or maximum (vv_add, vv_max) of a tensor over axes, in the tensor's own shape: every
    element of what was joined has the result. Raises UnsupportedError for others than features of a
    pixel, all pixels, or both."""
    if (x.places == OUTSIDE).any():
        raise UnsupportedError("expected an unpadded tensor, found an explicit Pad before it")
    buffer, native = x.buffer, b.native
    order = [a for a in range(x.places.ndim) if a not in axes] + sorted(axes)
    moved = x.places.transpose(order)
    sets = moved.reshape(-1, math.prod(x.places.shape[a] for a in axes))
    pixel, lane = np.divmod(sets, buffer.vectors * native)
    pixels, uniform = buffer.height * buffer.width, False
    if (pixel != pixel[:, :1]).any():
        lanes = [np.unique(row) for row in lane]
        whole = all(
            len(found) * pixels == len(row) == len(np.unique(row))
            for found, row in zip(lanes, sets, strict=True)
        )
        if not whole:
            raise UnsupportedError(
                "expected to join features of a pixel, all pixels or both, found parts of them"
            )
        image = ImageView(buffer, np.arange(0))
        fill = -math.inf if op == "vv_max" else 0.0
        for axis, size in ((1, buffer.width), (0, buffer.height)):
            image = axis_reduced(b, name, op, image, axis, range(size), 1, 1, fill)
        buffer, pixel = image.buffer, np.zeros_like(pixel)
    else:
        lanes = list(lane)
    if any(len(found) > 1 for found in lanes):
        buffer, uniform = _across(b, name, op, buffer, lanes)
    places = (pixel * (buffer.vectors * native) + lane).reshape(moved.shape)
    return View(buffer, places.transpose(np.argsort(order)), x.nonnegative, uniform)


def _across(
    b: Builder, name: str, op: str, buffer: Buffer, lanes: Sequence[Array]
) -> tuple[Buffer, bool]:
    """(a buffer like this one whose lanes hold the result of the group that they are in, whether
    all lanes of a pixel hold the same)."""
    native, width = b.native, buffer.vectors * b.native
    groups = []
    for found in sorted({tuple(np.unique(row).tolist()) for row in lanes}):
        kept = np.zeros(width, np.bool_)
        kept[list(found)] = True
        first = found[0] // native
        groups.append(_Group(first, found[-1] // native + 1 - first, kept))
    if max(group.count for group in groups) * native > LANES_MAX:
        raise UnsupportedError(f"expected at most {LANES_MAX} features to join, found more")
    covered = [vector for group in groups for vector in group.span]
    if len(set(covered)) == len(covered):
        target = Buffer(name, *buffer.geometry)
        for group in groups:
            _joined(b, name, op, buffer, group, target)
        for vector in sorted(set(range(buffer.vectors)) - set(covered)):
            read = BufferAccess(buffer, vector=vector)
            b.add(name, read, target, (*buffer.geometry[:2], 1), vector=vector)
        return target, groups[0].count == buffer.vectors
    total: Buffer | None = None
    for group in groups:  # some share native vectors: each leaves the lanes of others at 0
        made = Buffer(name, *buffer.geometry)
        _joined(b, name, op, buffer, replace(group, first=0, count=buffer.vectors), made, True)
        if total is not None:
            both = Buffer(name, *buffer.geometry)
            more = [UnitOperation("vv_add", BufferAccess(made))]
            b.add(name, BufferAccess(total), both, buffer.geometry, more)
            made = both
        total = made
    assert total is not None
    return total, False


def _joined(
    b: Builder, name: str, op: str, buffer: Buffer, group: _Group, target: Buffer, cut: bool = False
) -> None:
    """The draft of one group. cut: other lanes of the result are 0."""
    native = b.native
    span = group.kept[group.first * native : (group.first + group.count) * native]
    keep = UnitOperation("vv_mul", b.lanes(f"{name}_lanes", span))
    operations: list[UnitOperation] = []
    if not span.all():
        operations.append(keep)
        if op == "vv_max":
            least = np.where(span, 0.0, -LARGEST)
            operations.append(UnitOperation("vv_add", b.lanes(f"{name}_least", least)))
    operations.append(UnitOperation(ACROSS[op]))
    if cut:
        operations.append(keep)
    grid = (buffer.height, buffer.width, group.count)
    read = BufferAccess(buffer, vector=group.first)
    for operation in operations[:-1]:
        made = Buffer(name, *grid)
        b.add(name, read, made, grid, [operation])
        read = BufferAccess(made)
    b.add(name, read, target, grid, operations[-1:], vector=group.first)


# --- rules ------------------------------------------------------------------------------------


def softmax(b: Builder, node: Node, inputs: Sequence[Input], shape: Shape) -> View:
    """exp(x - m) / sum of exp(x - m), m the maximum; the logarithm of that is x - m - log(sum)."""
    x = view_of(inputs[0])
    axes = {node.attributes["axis"] % len(shape)}
    centred = combined(b, node.name, "vv_a_sub_b", x, reduced(b, node.name, "vv_max", x, axes))
    # Padding is made 0, as its exponential could overflow.
    centred = b.padded(node.name, centred, 0.0)
    powers = b.operate(node.name, centred, UnitOperation("v_exp"))
    powers = replace(powers, nonnegative=True)
    total = reduced(b, node.name, "vv_add", powers, axes)
    if node.op == "LogSoftmax":
        total = b.operate(node.name, b.padded(node.name, total, 1.0), UnitOperation("v_log"))
        return combined(b, node.name, "vv_a_sub_b", centred, total)
    total = reciprocal(b, node.name, total)
    return replace(combined(b, node.name, "vv_mul", powers, total), nonnegative=True)


def _normalized(
    b: Builder, node: Node, x: View, axes: set[int], scale: Input, bias: Input, centred: bool = True
) -> View:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias; scale, bias: for x, or None.

    Squares are taken of x times a power of two, so that their sum is neither near overflow nor near
    underflow for numbers of an ordinary size.
    """
    name, count = node.name, math.prod(x.places.shape[a] for a in axes)
    if centred:
        mean = reduced(b, name, "vv_add", x, axes)
        mean = b.with_constant(f"{name}_ratio", "vv_mul", mean, np.asarray(1.0 / count))
        x = combined(b, name, "vv_a_sub_b", x, mean)
    factor = 2.0 ** -round(math.log2(count) / 4)
    small = b.with_constant(f"{name}_factor", "vv_mul", x, np.asarray(factor))
    squares = b.operate(name, small, UnitOperation("vv_mul", BufferAccess(small.buffer)))
    power = reduced(b, name, "vv_add", squares, axes)
    ratio = np.asarray(1.0 / (count * factor * factor))
    power = b.with_constant(f"{name}_ratio", "vv_mul", power, ratio)
    epsilon = np.asarray(float(node.attributes["epsilon"]))
    power = b.with_constant(f"{name}_epsilon", "vv_add", power, epsilon)
    inverse = b.operate(name, b.padded(name, power, 1.0), UnitOperation("v_rsqrt"))
    x = combined(b, name, "vv_mul", x, inverse)
    for op, array in (("vv_mul", scale), ("vv_add", bias)):
        if array is not None:
            x = b.with_constant(f"{name}_scale", op, x, constant_of(array, "parameters"))
    return x


def layer_norm(b: Builder, node: Node, inputs: Sequence[Input], shape: Shape) -> View:
    """Over the last axes; RMSNormalization leaves the mean where it is."""
    axis = node.attributes["axis"] % len(shape)
    scale, bias = (*inputs[1:], None, None)[:2]
    axes = set(range(axis, len(shape)))
    centred = node.op == "LayerNormalization"
    return _normalized(b, node, view_of(inputs[0]), axes, scale, bias, centred)


def group_norm(b: Builder, node: Node, inputs: Sequence[Input], shape: Shape) -> View:
    """Over the channels of a group, and all pixels; a group of InstanceNormalization is one."""
    x = view_of(inputs[0])
    groups = int(node.attributes.get("num_groups", shape[1]))
    split = (shape[0], groups, shape[1] // groups, *shape[2:])
    scale, bias = (
        None
        if a is None
        else constant_of(a, "parameters").reshape(1, groups, -1, *[1] * (len(shape) - 2))
        for a in (*inputs[1:], None, None)[:2]
    )
    x = replace(x, places=x.places.reshape(split))
    view = _normalized(b, node, x, set(range(2, len(split))), scale, bias)
    return replace(view, places=view.places.reshape(shape))


def reduction(op: str, mean: bool = False) -> Rule:
    """Sum, mean or maximum over features, or over rows and columns as `rules.reduction` does it."""
    pooled = rules.reduction(op, mean)

    def rule(b: Builder, node: Node, inputs: Sequence[Input], shape: Shape) -> View:
        x = view_of(inputs[0])
        rank = x.places.ndim
        axes = {a % rank for a in node.attributes.get("axes", range(2, rank))}
        pixel = x.buffer.vectors * b.native
        first = x.places[tuple(slice(None) if a in axes else 0 for a in range(rank))]
        if 0 in axes or len(np.unique(first % pixel)) == 1:
            return pooled(b, node, inputs, shape)
        view = reduced(b, node.name, op, x, axes)
        if mean:
            ratio = np.asarray(1.0 / math.prod(x.places.shape[a] for a in axes))
            view = b.with_constant(f"{node.name}_ratio", "vv_mul", view, ratio)
        kept = tuple(slice(1) if a in axes else slice(None) for a in range(rank))
        return replace(view, places=view.places[kept].reshape(shape), nonnegative=x.nonnegative)

    return rule
