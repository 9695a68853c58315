"""Rewrites: functions Graph -> Graph that keep what the graph computes and its interface.

Each pass returns the very same graph where it changes nothing. Names and order of graph inputs and
outputs stay. Numbers computed at rewriting (folded constants, folded batch normalisation) are
computed in float64 and stored once in the declared type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from samebits.errors import SamebitsError
from samebits.ir.graph import Graph, Node
from samebits.ir.interpreter import carry, evaluate
from samebits.ir.ops import Array, has, op_named
from samebits.ir.real.define import FLOATS, REALS
from samebits.ir.real.minifloat import stored as stored_as
from samebits.ir.traits import Trait
from samebits.ir.value import Value

FOLDED_MAX = 2**20  # elements that folding may make where the operands hold fewer

Pass = Callable[[Graph], Graph]
Rule = Callable[["Edit", Node], list[Node] | None]


class Edit:
    """A graph under change: what a rule reads, and the new constants and values it makes."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.constants = dict(graph.constants)
        self.values = dict(graph.values)
        self.producers = graph.producers()
        self.uses = dict.fromkeys(graph.values, 0)
        for node in graph.nodes:
            for name in node.inputs:
                self.uses[name] = self.uses.get(name, 0) + 1
        for name in graph.outputs:
            self.uses[name] += 1
        self._node_names = {node.name for node in graph.nodes}

    def unique(self, hint: str) -> str:
        """A name that neither a value nor a node has."""
        name, count = hint, 1
        while name in self.values or name in self._node_names:
            count += 1
            name = f"{hint}.{count}"
        return name

    def constant(self, hint: str, array: Array) -> str:
        """A new constant."""
        name = self.unique(hint)
        # A copy of its own: a Graph makes its constants read-only.
        self.constants[name] = np.array(array, order="C")
        self.values[name] = Value(name, array.dtype.name, array.shape)
        return name

    def value(self, hint: str, like: Value) -> str:
        """A new value with the type and shape of `like`."""
        name = self.unique(hint)
        self.values[name] = replace(like, name=name, quantization=None)
        return name

    def node(self, op: str, inputs: Sequence[str], output: str, **attributes: Any) -> Node:
        """A node with defaults filled in, to write a value that exists."""
        name = self.unique(op)
        self._node_names.add(name)
        filled = op_named(op).complete(attributes, name)
        return Node(op, name, tuple(inputs), (output,), filled)

    def number(self, name: str) -> Array | None:
        """A constant in float64, or None where the value is not constant."""
        array = self.constants.get(name)
        return None if array is None else array.astype(np.float64)

    def finish(self, nodes: Sequence[Node]) -> Graph:
        """The graph with these nodes, without what no output needs."""
        graph = self.graph
        return remove_dead(replace_nodes(graph, nodes, self.constants, self.values))


def replace_nodes(
    graph: Graph,
    nodes: Sequence[Node],
    constants: Mapping[str, Array],
    values: Mapping[str, Value],
) -> Graph:
    """The graph with other nodes, constants and values."""
    ends = graph.inputs, graph.outputs
    return Graph(graph.name, *ends, tuple(nodes), constants, values, graph.states)


def rewrite(graph: Graph, rule: Rule) -> Graph:
    """Apply a rule to every node once: its new nodes in the node's place, or None to keep it.

    A rule reads the graph as it was; the nodes it returns write the outputs of the node they
    replace, and read no value that is written later.
    """
    edit = Edit(graph)
    nodes: list[Node] = []
    changed = False
    for node in graph.nodes:
        found = rule(edit, node)
        changed = changed or found is not None
        nodes += [node] if found is None else found
    return edit.finish(nodes) if changed else graph


def remove_dead(graph: Graph) -> Graph:
    """Without the nodes, constants and values that no graph output needs."""
    needed = {*graph.outputs, *(state.initial for state in graph.states)}
    kept = []
    for node in reversed(graph.nodes):
        if needed.intersection(name for name in node.outputs if name):
            kept.append(node)
            needed.update(name for name in node.inputs if name)
    kept.reverse()
    written = {name for node in kept for name in node.outputs if name}
    constants = {name: array for name, array in graph.constants.items() if name in needed}
    names = {*graph.inputs, *constants, *written}
    if len(kept) == len(graph.nodes) and names == set(graph.values):
        return graph
    values = {name: value for name, value in graph.values.items() if name in names}
    return replace_nodes(graph, kept, constants, values)


def simplify(graph: Graph) -> Graph:
    """Every pass of this module, until none changes the graph."""
    passes: tuple[Pass, ...] = (
        remove_dead,
        drop_identity,
        fold_constants,
        fold_batch_norm,
        drop_infinities,
        merge_clips,
    )
    while True:
        before = graph
        for apply in passes:
            graph = apply(graph)
        if graph is before:
            return graph


# --- constants ------------------------------------------------------------------------------


def fold_constants(graph: Graph) -> Graph:
    """Evaluate the nodes whose inputs are all constants; DequantizeLinear of constants stays.

    Nodes that would make more than FOLDED_MAX elements out of fewer stay, and so do nodes whose
    results are not numbers, leave their type, or cannot be computed.
    """

    def rule(edit: Edit, node: Node) -> list[Node] | None:
        given = [name for name in node.inputs if name]
        if node.op == "DequantizeLinear" or any(name not in edit.constants for name in given):
            return None
        made = sum(edit.values[name].size for name in node.outputs if name)
        if made > max(FOLDED_MAX, sum(edit.values[name].size for name in given)):
            return None
        results = _evaluated(edit, node)
        if results is None:
            return None
        edit.constants.update(results)
        return []

    return rewrite(graph, rule)


def _evaluated(edit: Edit, node: Node) -> dict[str, Array] | None:
    """The results of a node on constants by output name, or None where it cannot be computed or a
    result is not finite in its type."""
    arrays = [
        carry(edit.constants[name], edit.values[name].dtype, False) if name else None
        for name in node.inputs
    ]
    try:
        results = evaluate(node, arrays, edit.values)
    except SamebitsError:  # the node fails when it runs, and says so then
        return None
    stored = {}
    for name, array in zip(node.outputs, results, strict=False):
        if name:
            dtype = edit.values[name].dtype
            result = _stored(array, dtype) if dtype in REALS else np.array(array)
            if result is None:
                return None
            stored[name] = result
    return stored


def _stored(array: Array, dtype: str) -> Array | None:
    """Numbers in the declared type, or None where one overflows or is not a number."""
    result = np.array(stored_as(array, dtype), order="C")
    same = np.array_equal(np.isinf(result), np.isinf(array)) and not np.isnan(result).any()
    return result if same else None


# --- batch normalisation --------------------------------------------------------------------


@dataclass(frozen=True)
class _Affine:
    """y = x * factor + shift per channel, float64."""

    factor: Array
    shift: Array


def _affine(edit: Edit, node: Node) -> _Affine | None:
    parameters = [edit.number(name) for name in node.inputs[1:]]
    if any(parameter is None for parameter in parameters):
        return None
    scale, b, mean, var = (np.asarray(parameter) for parameter in parameters)
    spread = var + float(node.attributes["epsilon"])
    if not (spread > 0).all():
        return None
    factor = scale / np.sqrt(spread)
    return _Affine(factor, b - mean * factor)


def fold_batch_norm(graph: Graph) -> Graph:
    """BatchNormalization with constant parameters into the weights of the node before it.

    That is a Conv, ConvTranspose or Gemm with constant weights that nothing else reads; after
    anything else it becomes Mul and Add. Factors in float64, results stored in the type of x.
    """

    def rule(edit: Edit, node: Node) -> list[Node] | None:
        if node.op != "BatchNormalization":
            return None
        affine = _affine(edit, node)
        if affine is None:
            return None
        producer = edit.producers.get(node.inputs[0])
        if producer is not None and producer.op == node.op and _affine(edit, producer):
            return None  # the one before goes first, and may make way for this one
        if producer is not None and edit.uses[node.inputs[0]] == 1:
            folded = _folded(edit, producer, affine, node.output)
            if folded is not None:
                return [folded]
        return _multiplied(edit, node, affine)

    return rewrite(graph, rule)


def _multiplied(edit: Edit, node: Node, affine: _Affine) -> list[Node] | None:
    value = edit.values[node.inputs[0]]
    shape = (-1, *[1] * (len(value.shape) - 2))
    factor = _stored(affine.factor.reshape(shape), value.dtype)
    shift = _stored(affine.shift.reshape(shape), value.dtype)
    if factor is None or shift is None:
        return None
    product = edit.value(f"{node.name}.product", value)
    return [
        edit.node("Mul", (node.inputs[0], edit.constant(f"{node.name}.factor", factor)), product),
        edit.node("Add", (product, edit.constant(f"{node.name}.shift", shift)), node.output),
    ]


def _folded(edit: Edit, producer: Node, affine: _Affine, output: str) -> Node | None:
    """The producer with the normalisation in its weights and bias, or None where it has none."""
    if not has(producer.op, Trait.WEIGHTED):
        return None
    x, w, *rest = producer.inputs
    bias_name = rest[0] if rest else ""
    weight, bias = edit.number(w), edit.number(bias_name)
    if weight is None or (bias_name and bias is None):
        return None
    channels = affine.factor.size
    attributes = dict(producer.attributes)
    if producer.op == "Gemm":
        bias = _row(bias, channels, float(attributes["beta"]))
        if bias is None:
            return None
        attributes["beta"] = 1.0
        weight = weight * (
            affine.factor[:, None] if attributes["transB"] else affine.factor[None, :]
        )
    else:
        bias = np.zeros(channels) if bias is None else bias
        weight = _scaled_filters(weight, affine.factor, producer)
    dtype = edit.values[w].dtype
    stored = _stored(weight, dtype), _stored(bias * affine.factor + affine.shift, dtype)
    if stored[0] is None or stored[1] is None:
        return None
    inputs = (
        x,
        edit.constant(f"{w}.folded", stored[0]),
        edit.constant(f"{bias_name or w}.bias", stored[1]),
    )
    return replace(
        producer,
        name=edit.unique(producer.name),
        inputs=inputs,
        outputs=(output,),
        attributes=attributes,
    )


def _row(bias: Array | None, channels: int, beta: float) -> Array | None:
    """Gemm's c as one number for each column, or None where it differs between rows."""
    if bias is None:
        return np.zeros(channels)
    if math.prod(bias.shape[:-1]) != 1:
        return None
    return np.broadcast_to(bias.reshape(-1) * beta, (channels,))


def _scaled_filters(weight: Array, factor: Array, producer: Node) -> Array:
    if producer.op == "Conv":  # [O, C/group, ...]
        return weight * factor.reshape(-1, *[1] * (weight.ndim - 1))
    group: Any = producer.attributes["group"]  # [C, O/group, ...], the groups along C
    parts = weight.reshape(group, -1, *weight.shape[1:])
    return (parts * factor.reshape(group, 1, -1, *[1] * (weight.ndim - 2))).reshape(weight.shape)


# --- clips ----------------------------------------------------------------------------------

_Bounds = tuple[float, float]


def _bounds(node: Node) -> _Bounds | None:
    if node.op == "Relu":
        return 0.0, math.inf
    if node.op != "Clip":
        return None
    low, high = node.attributes["min"], node.attributes["max"]
    low = -math.inf if low is None else float(low)
    high = math.inf if high is None else float(high)
    return min(low, high), high  # ONNX: max counts where the two cross


def merge_clips(graph: Graph) -> Graph:
    """Chains of Relu and Clip as one; Clip(0, inf) is Relu and Clip without bounds is Identity."""

    def rule(edit: Edit, node: Node) -> list[Node] | None:
        """The node and the clip before it as one: the bounds of the inner one, clipped by the outer
        ones."""
        bounds = _bounds(node)
        if bounds is None or edit.values[node.output].dtype not in FLOATS:
            return None
        source = node.inputs[0]
        before = edit.producers.get(source)
        inner = None if before is None else _bounds(before)
        if before is not None and inner is not None:
            low, high = bounds
            bounds = (min(max(inner[0], low), high), min(max(inner[1], low), high))
            source = before.inputs[0]
        merged = _clip(edit, bounds, source, node.output)
        same = (merged.op, merged.inputs, merged.attributes) == (
            node.op,
            node.inputs,
            node.attributes,
        )
        return None if same else [merged]

    return rewrite(graph, rule)


def _clip(edit: Edit, bounds: _Bounds, source: str, output: str) -> Node:
    low, high = bounds
    if bounds == (-math.inf, math.inf):
        return edit.node("Identity", (source,), output)
    if bounds == (0.0, math.inf):
        return edit.node("Relu", (source,), output)
    return edit.node(
        "Clip",
        (source,),
        output,
        min=None if low == -math.inf else low,
        max=None if high == math.inf else high,
    )


# --- ends that are infinite -----------------------------------------------------------------

_NO_END = {"Min": math.inf, "Max": -math.inf}


def drop_infinities(graph: Graph) -> Graph:
    """Min without constants of infinity, Max without those of -infinity: they are never chosen."""

    def rule(edit: Edit, node: Node) -> list[Node] | None:
        """The node without them; an Expand where one alone is left that they made larger."""
        end = _NO_END.get(node.op)
        if end is None:
            return None
        kept = [
            name
            for name in node.inputs
            if name not in edit.constants or not (edit.constants[name] == end).all()
        ]
        if not kept or len(kept) == len(node.inputs):
            return None
        shape = edit.values[node.output].shape
        if np.broadcast_shapes(*(edit.values[name].shape for name in kept)) == shape:
            return [replace(node, inputs=tuple(kept))]
        if len(kept) > 1:
            return None
        return [edit.node("Expand", kept, node.output, shape=shape)]

    return rewrite(graph, rule)


# --- nodes that do nothing ------------------------------------------------------------------


def drop_identity(graph: Graph) -> Graph:
    """Without the nodes whose output is their input: the readers read the input instead.

    Where the output is a graph output, its name moves to the node that makes the input. A graph
    output that is an input, a constant or another output keeps its node.
    """
    alias: dict[str, str] = {}
    renamed: dict[str, str] = {}
    producers = graph.producers()
    for node in graph.nodes:
        source = node.inputs[0] if node.inputs else ""
        if not source or not _is_identity(graph, node):
            continue
        source = alias.get(source, source)
        if node.output not in graph.outputs:
            alias[node.output] = source
        elif source in producers and source not in graph.outputs and source not in renamed:
            renamed[source] = node.output
            alias[node.output] = source
    if not alias:
        return graph

    def final(name: str) -> str:
        name = alias.get(name, name)
        return renamed.get(name, name)

    nodes = [
        replace(
            node,
            inputs=tuple(final(name) for name in node.inputs),
            outputs=tuple(renamed.get(name, name) for name in node.outputs),
        )
        for node in graph.nodes
        if not (node.outputs[0] in alias and _is_identity(graph, node))
    ]
    return remove_dead(replace_nodes(graph, nodes, graph.constants, graph.values))


def _is_identity(graph: Graph, node: Node) -> bool:
    """Whether a node gives its only input back, element by element, in the same type and shape."""
    if len(node.inputs) != 1 or len(node.outputs) != 1:
        return False
    x, y = graph.values[node.inputs[0]], graph.values[node.output]
    if (x.dtype, x.shape) != (y.dtype, y.shape):
        return False
    if node.op == "Transpose":
        perm = node.attributes["perm"]
        return perm == tuple(range(len(x.shape)))
    if node.op == "Slice":  # the shape is the same, so only a reversal changes anything
        steps = node.attributes["steps"]
        return isinstance(steps, tuple) and all(step > 0 for step in steps)
    if node.op == "Pad":
        pads = node.attributes["pads"]
        return isinstance(pads, tuple) and not any(pads)
    return has(node.op, Trait.NEUTRAL)
