"""A scale for each feature or channel of an input, where one scale would lose some of them.

The first layer says how much a feature matters: noise that one scale leaves in feature c reaches
the next layer with the size of the weights that read it. Where the noise of one scale for all is
larger than that of scales of their own by more than a factor (RATIO), the features get such scales:
powers of two, so that the weights that read them take the factors without a rounding, and offsets
where a feature never comes near 0. An input that scalers or a batch norm normalise first gets its
codes behind those. No feature gets a finer scale than the layer needs: a value beyond what
calibration saw still has a code.

The network computes the same function; its file says with Sub and Mul in front of QuantizeLinear
what a device does in one step (`ir.levels`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from samebits import progress
from samebits.ir import Graph, Node, Trait, has
from samebits.ir.levels import InputEntry, column, entries_of
from samebits.ir.rewrite import Edit, simplify
from samebits.ir.steps import moved_axis
from samebits.quantization.changes import LayerChange

Array = np.ndarray[Any, Any]
Ranges = Mapping[str, tuple[Array, Array]]  # of an input: the least and greatest of every element

RATIO = 8.0  # between the widest and the narrowest scale that the features of an input need
TINY = 2.0**-126
NEAR = 2.0  # a range without 0 gets an offset where 0 makes it wider by more than this


@dataclass(frozen=True)
class Levelled:
    """entries: input -> the value behind it that gets the input's codes; changes: what was done."""

    graph: Graph
    entries: Mapping[str, str]
    changes: tuple[LayerChange, ...] = ()


def levelled(graph: Graph, ranges: Ranges) -> Levelled:
    """The graph with the inputs levelled that need it.

    ranges: of the inputs that are no states, elements apart
    """
    entries: dict[str, str] = {}
    changes: list[LayerChange] = []
    for name in graph.own_inputs:
        value = graph.values[name]
        finite = name in ranges and all(np.isfinite(end).all() for end in ranges[name])
        if value.dtype != "float32" or len(value.shape) < 2 or not finite:
            continue  # calibration says what is wrong with the samples
        for axis in range(1, len(value.shape)):
            found = _input(graph, name, axis - len(value.shape), ranges[name])
            if found is not None:
                graph, entries[name], change = found
                changes.append(change)
                progress.note(f"input {name}: {change.what}")
                break
    return Levelled(simplify(graph) if changes else graph, entries, tuple(changes))


def element_ranges(
    arrays: Mapping[str, Array], names: Sequence[str]
) -> dict[str, tuple[Array, Array]]:
    """The least and the greatest of every element over all samples: [samples, *shape] each."""
    return {name: (arrays[name].min(0), arrays[name].max(0)) for name in names if len(arrays[name])}


# --- one input ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Reader:
    """Weights that read the features: seen as [groups, m, features / groups, rest].

    exact: it may take offsets, as nothing but movement lies between, and nothing is padded
    """

    node: Node
    weights: str
    view: tuple[int, int, int, int]
    exact: bool


def _input(
    graph: Graph, name: str, axis: int, ranges: tuple[Array, Array]
) -> tuple[Graph, str, LayerChange] | None:
    """The graph with this input levelled along an axis, the value that gets its codes, and a line
    about it; None where one scale is enough, or nothing can take the factors."""
    ends, rank = _of_axis(ranges, axis), len(graph.values[name].shape)
    size = ends.shape[1]
    scaled = [e for e in entries_of(graph, name) if e.axis == axis or len(e.gains) == 1]
    entry = scaled[-1] if scaled else InputEntry(name)
    gains, moves = (
        np.broadcast_to(np.array([float(n) for n in numbers]), size)
        for numbers in (entry.gains, entry.offsets)
    )
    behind = ends * gains + moves
    readers = _readers(graph, entry.value, rank + axis)
    if readers is None and not entry.nodes:
        return None
    exact = readers is not None and all(reader.exact for reader in readers)
    importance = 1 / _spread(behind, False)
    if readers is not None:
        importance = _importance(graph, readers, size)
    if _ratio(ends, importance * gains, exact or bool(entry.nodes)) <= RATIO:
        return None
    if readers is not None and _ratio(behind, importance, exact) > RATIO:
        scales, offsets = _levels(behind, importance, exact)
        made = _folded(graph, entry.value, axis, readers, scales, offsets)
        if made is not None:
            text = f"scales of their own, from {scales.min():.3g} to {scales.max():.3g}"
            return *made, _line(name, size, text)
    if not entry.nodes:
        return None
    return graph, entry.value, _line(name, size, "codes behind what normalises them")


def _line(name: str, size: int, what: str) -> LayerChange:
    return LayerChange("input levels", name, "Input", f"{size} features or channels: {what}")


def _of_axis(ranges: tuple[Array, Array], axis: int) -> Array:
    """[2, size of the axis]: the ends of each of its indices."""
    low, high = (np.moveaxis(np.asarray(end, np.float64), axis, 0) for end in ranges)
    return np.stack([low.reshape(len(low), -1).min(1), high.reshape(len(high), -1).max(1)])


def _spread(ends: Array, offset: bool) -> Array:
    """The range that the scale of each feature has to reach; that of all, where one is constant."""
    low, high = ends
    whole = np.maximum(high, 0) - np.minimum(low, 0)
    alone = high - low
    found = np.where(_moved(ends), alone, whole) if offset else whole
    return np.asarray(np.where(found > 0, found, max(float(whole.max()), TINY)))


def _moved(ends: Array) -> Array:
    """Whether a feature is far enough from 0 to get an offset."""
    low, high = ends
    whole = np.maximum(high, 0) - np.minimum(low, 0)
    return np.asarray((whole > NEAR * (high - low)) & (high > low))


def _one(ends: Array) -> float:
    """The range that one scale for all features has to reach."""
    return float((np.maximum(ends[1], 0) - np.minimum(ends[0], 0)).max())


def _needed(ends: Array, importance: Array, offset: bool) -> Array:
    """The range that the codes of each feature should reach: its own, or as much more as makes no
    more noise in the next layer than that of the feature that makes most."""
    own, one = _spread(ends, offset), _one(ends)
    most = float((own * importance).max())
    wide = np.where(importance > 0, most / np.maximum(importance, 1e-300), np.inf)
    return np.clip(wide, own, max(one, float(own.max())))


def _ratio(ends: Array, importance: Array, offset: bool) -> float:
    """How much finer than one scale for all the finest scale is that a feature needs."""
    one = _one(ends)
    return one / float(_needed(ends, importance, offset).min()) if one > 0 else 1.0


def _levels(ends: Array, importance: Array, offset: bool) -> tuple[Array, Array]:
    """Powers of two, and offsets."""
    needed = _needed(ends, importance, offset)
    mantissa, exponent = np.frexp(needed)
    scales = np.ldexp(1.0, np.where(mantissa == 0.5, exponent - 1, exponent))
    middle = np.rint((ends[0] + ends[1]) / 2 / scales * 16) * scales / 16
    offsets = np.where(_moved(ends) & offset, middle, 0.0)
    return scales, offsets.astype(np.float32).astype(np.float64)


# --- the layers that read it --------------------------------------------------------------------


def _readers(graph: Graph, name: str, axis: int) -> list[_Reader] | None:
    """The products of constant weights that read the features, which lie along an axis; None where
    anything else does, or two places read the weights."""
    found: list[_Reader] = []
    waiting = [(name, axis, True)]
    consumers, uses = graph.consumers(), [n for node in graph.nodes for n in node.inputs]
    while waiting:
        value, axis, exact = waiting.pop()
        if value in graph.outputs:
            return None
        for node in consumers[value]:
            if node.inputs[0] != value or node.inputs.count(value) != 1:
                return None
            if has(node.op, Trait.PRODUCT):
                reader = _reader(graph, node, axis, exact)
                if reader is None or uses.count(reader.weights) != 1:
                    return None
                found.append(reader)
                continue
            place = _followed(graph, node, axis)
            if place is None:
                return None
            waiting.append((node.output, place, exact and not has(node.op, Trait.HOMOGENEOUS)))
    return found or None


def _followed(graph: Graph, node: Node, axis: int) -> int | None:
    """Where the features lie behind a node that hands them on; None where it mixes them."""
    before, after = graph.values[node.inputs[0]].shape, graph.values[node.output].shape
    if node.op == "Transpose":
        return int(node.attributes["perm"].index(axis))
    if has(node.op, Trait.RESHAPES):
        return moved_axis(before, after, axis)
    if has(node.op, Trait.HOMOGENEOUS) and len(node.inputs) == 1:
        return axis if not has(node.op, Trait.SPATIAL) or axis == 1 else None
    return None


def _reader(graph: Graph, node: Node, axis: int, exact: bool) -> _Reader | None:
    """A product whose weights can take factors of the features."""
    values = graph.constants.get(node.inputs[1]) if len(node.inputs) > 1 else None
    if values is None or values.dtype != np.float32 or has(node.op, Trait.QUANTIZES):
        return None
    shape = graph.values[node.inputs[0]].shape
    if has(node.op, Trait.SPATIAL):
        if axis != 1 or node.op != "Conv":
            return None
        groups = node.attributes["group"]
        view = (groups, values.shape[0] // groups, shape[1] // groups, -1)
        exact = exact and not any(node.attributes["pads"])
    elif axis != len(shape) - 1 or values.ndim != 2 or node.attributes.get("transA"):
        return None
    else:
        turned = bool(node.attributes.get("transB"))
        view = (1, values.shape[0], shape[-1], -1) if turned else (1, 1, shape[-1], -1)
        exact = exact and _row_bias(graph, node)
    return _Reader(node, node.inputs[1], view, exact)


def _row_bias(graph: Graph, node: Node) -> bool:
    """Whether a Gemm or MatMul has, or can get, one number for each column as its bias."""
    if node.op == "MatMul":
        return True
    bias = graph.constants.get(node.inputs[2]) if len(node.inputs) > 2 else np.zeros(1)
    plain = node.attributes["alpha"] == node.attributes["beta"] == 1
    return bias is not None and bias.ndim <= 1 and plain


def _importance(graph: Graph, readers: Sequence[_Reader], size: int) -> Array:
    """The largest norm, over the readers, of the weights that read each feature."""
    found = np.zeros(size)
    for reader in readers:
        weights = graph.constants[reader.weights].astype(np.float64).reshape(reader.view)
        norms = np.sqrt((weights * weights).sum((1, 3))).reshape(-1)
        found = np.maximum(found, norms)
    return found


def _folded(
    graph: Graph,
    name: str,
    axis: int,
    readers: Sequence[_Reader],
    scales: Array,
    offsets: Array,
) -> tuple[Graph, str] | None:
    """The graph with (x - offset) / scale behind a value, the weights that read it times the scale,
    and what the offsets add in the biases. None where a weight would leave binary32."""
    edit, value = Edit(graph), graph.values[name]
    rank, factors = len(value.shape), {}
    changed: dict[str, Node] = {}
    added: dict[str, list[Node]] = {}
    for reader in readers:
        weights = graph.constants[reader.weights].astype(np.float64)
        groups, _, each, _ = reader.view
        scaled = weights.reshape(reader.view) * scales.reshape(groups, 1, each, 1)
        stored = scaled.reshape(weights.shape).astype(np.float32)
        if not np.isfinite(stored).all():
            return None
        factors[reader.weights] = edit.constant(f"{reader.weights}.levelled", stored)
        node = reader.node
        inputs = [factors.get(n, n) for n in node.inputs]
        if offsets.any():
            each_offset = offsets.reshape(groups, 1, each, 1)
            moved = (weights.reshape(reader.view) * each_offset).sum((2, 3))
            if not node.attributes.get("transB") and not has(node.op, Trait.SPATIAL):
                moved = offsets @ weights
            moved = moved.reshape(-1)
            if node.op == "MatMul":
                row = edit.constant(f"{node.name}.offset", moved.astype(np.float32))
                product = edit.value(f"{node.output}.product", graph.values[node.output])
                added[node.name] = [edit.node("Add", [product, row], node.output)]
                node = replace(node, outputs=(product,))
            else:
                known = edit.number(inputs[2]) if len(inputs) > 2 else None
                bias = moved if known is None else known.reshape(-1) + moved
                inputs[2:] = [edit.constant(f"{node.name}.bias", bias.astype(np.float32))]
        changed[reader.node.name] = replace(node, inputs=tuple(inputs))
    output = edit.value(f"{name}.levelled", value)
    front, source = [], name
    if offsets.any():
        constant = edit.constant(f"{name}.offset", _stored(offsets, axis, rank))
        source = edit.value(f"{name}.centred", value)
        front.append(edit.node("Sub", [name, constant], source))
    constant = edit.constant(f"{name}.factor", _stored(1 / scales, axis, rank))
    front.append(edit.node("Mul", [source, constant], output))
    nodes: list[Node] = []
    producers = graph.producers()
    if name not in producers:
        nodes += front
    for node in graph.nodes:
        made = changed.get(node.name, node)
        nodes.append(replace(made, inputs=tuple(output if n == name else n for n in made.inputs)))
        nodes += added.get(node.name, [])
        if name in node.outputs:
            nodes += front
    return edit.finish(nodes), output


def _stored(numbers: Array, axis: int, rank: int) -> Array:
    return column(numbers, axis, rank).astype(np.float32)
