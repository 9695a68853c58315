"""Cross-layer equalization: channels scaled between two layers so that one scale fits them all.

Between a layer and those that read it, through operators for which f(s x) = s f(x) with s > 0
(Relu, LeakyRelu, pools), a channel can be divided by any s and the weights that read it multiplied
by s: the network computes the same function, up to the rounding of binary32 weights.

`weights` (M. Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias
Correction", 2019, section 4.1): s = sqrt(r1 / r2), r1 and r2 the largest magnitudes of the weights
that write and that read the channel, so that both become sqrt(r1 r2). For one scale per weight.

`activations` (G. Xiao et al., "SmoothQuant: Accurate and Efficient Post-Training Quantization for
Large Language Models", 2023, with alpha = 1/2): r1 is the largest magnitude of the channel itself
in calibration, and the layer before may be a normalisation with a factor for each channel.

Two limits. With `weights` no channel grows beyond the largest of its tensor, so that the range of
the activation stays. And where a Clip(0, m) such as ReLU6 follows, what it clips must stay: a
channel that reaches m in calibration is not scaled, another one by no less than its largest value
over m, so that it stays below m and m remains one number. Beyond what calibration saw, a scaled
channel is clipped at s m.

Square roots and quotients of binary64 element by element: the same weights on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from samebits.errors import InputError
from samebits.ir import Graph, Node, Trait, has
from samebits.ir.many import traces
from samebits.ir.rewrite import Edit, replace_nodes
from samebits.quantization.changes import LayerChange
from samebits.quantization.observe import Sample, checked
from samebits.quantization.placement import is_row, row_added

Array = np.ndarray[Any, Any]

SWEEPS = 8  # over the pairs: what a pair changes, its neighbours see


def equalize(
    graph: Graph, samples: Iterable[Sample], kind: str
) -> tuple[Graph, tuple[LayerChange, ...]]:
    """The same function with equalized channels, and a line for each pair of layers.

    kind: of EQUALIZATIONS. Raises InputError for samples that do not fit the graph's inputs.
    """
    given, graph = graph, _apart(graph)
    pairs = list(_pairs(graph, kind))
    if not pairs:
        return given, ()
    observed = sorted({name for pair in pairs for name in (pair.raw, pair.seen)})
    reach = _reach(graph, samples, observed, {n: p.axis for p in pairs for n in (p.raw, p.seen)})
    constants = {name: array.astype(np.float64) for name, array in graph.constants.items()}
    for _ in range(SWEEPS):
        for pair in pairs:
            pair.balance(constants, reach, kind)
    touched = {name for pair in pairs for name in pair.constants()}
    stored = {
        name: constants[name].astype(array.dtype) if name in touched else array
        for name, array in graph.constants.items()
    }
    changes = tuple(pair.change() for pair in pairs)
    return replace_nodes(graph, graph.nodes, stored, graph.values), changes


@dataclass
class _Reader:
    """Weights that read the channels: a view [groups, m, channels / groups, rest] of a constant."""

    node: Node
    weights: str
    view: tuple[int, int, int, int]


@dataclass
class _Pair:
    """A layer that writes channels and the layers that read them.

    shape: [before, channels, after] of its weights; bias: "" for none
    raw:   the value that the layer and its bias give; seen: what is quantized of it, after a Relu
           or Clip; axis: of the channels there
    limit: of a Clip that follows, else infinite
    """

    node: Node
    weights: str
    shape: tuple[int, int, int]
    bias: str
    raw: str
    seen: str
    axis: int
    limit: float
    readers: list[_Reader]
    scales: Array = field(default_factory=lambda: np.ones(1))

    def constants(self) -> Iterator[str]:
        """Every constant that the pair scales."""
        yield self.weights
        if self.bias:
            yield self.bias
        for reader in self.readers:
            yield reader.weights

    def balance(self, constants: dict[str, Array], reach: dict[str, Array], kind: str) -> None:
        """Scale the channels once; reach: the ends of each channel, kept up to date."""
        seen = np.abs(reach[self.seen]).max(0)
        written = np.abs(constants[self.weights].reshape(self.shape)).max((0, 2))
        read = np.zeros_like(written)
        for reader in self.readers:
            parts = np.abs(constants[reader.weights].reshape(reader.view))
            read = np.maximum(read, parts.max((1, 3)).reshape(-1))
        r1 = written if kind == "weights" else seen
        live = (r1 > 0) & (read > 0)
        s = np.ones_like(r1)
        s[live] = np.sqrt(r1[live] / read[live])
        if live.any():  # a factor that all share changes nothing but the limits below
            s /= math.sqrt(float(s[live].max()) * float(s[live].min()))
        most = seen.max(initial=0)
        if math.isfinite(self.limit):
            highest = reach[self.raw][1]
            s = np.where(highest < self.limit, np.maximum(s, highest / self.limit), 1.0)
        elif kind == "weights" and most > 0:
            s = np.maximum(s, seen / most)
        s[~live] = 1.0
        self.scale(constants, s)
        for name in {self.raw, self.seen}:
            reach[name] = reach[name] / s
        self.scales = self.scales * s

    def scale(self, constants: dict[str, Array], s: Array) -> None:
        """Divide what writes the channels by s, multiply what reads them."""
        written = constants[self.weights]
        constants[self.weights] = (written.reshape(self.shape) / s[:, None]).reshape(written.shape)
        if self.bias:
            bias = constants[self.bias]
            constants[self.bias] = (bias.reshape(-1) / s).reshape(bias.shape)
        for reader in self.readers:
            values = constants[reader.weights]
            groups, _, each, _ = reader.view
            factors = s.reshape(groups, 1, each, 1)
            constants[reader.weights] = (values.reshape(reader.view) * factors).reshape(
                values.shape
            )

    def change(self) -> LayerChange:
        """The line of the report."""
        names = ", ".join(reader.node.name for reader in self.readers)
        ends = f"{float(self.scales.min()):.3g} to {float(self.scales.max()):.3g}"
        what = f"{self.scales.size} channels read by {names} divided by {ends}"
        return LayerChange("equalization", self.node.name, self.node.op, what)


def _reach(
    graph: Graph, samples: Iterable[Sample], names: Sequence[str], axes: dict[str, int]
) -> dict[str, Array]:
    """The least and the greatest number of each channel of values: [2, channels]."""
    found: dict[str, Array] = {}
    for values in traces(graph, checked(graph, samples)):
        for name in names:
            x = np.moveaxis(np.asarray(values[name], np.float64), axes[name], -1)
            x = x.reshape(-1, x.shape[-1])
            ends = np.stack([x.min(0), x.max(0)])
            known = found.setdefault(name, ends)
            found[name] = np.stack([np.minimum(known[0], ends[0]), np.maximum(known[1], ends[1])])
    if not found:
        raise InputError("calibration: expected at least one sample, found none")
    return found


# --- pairs of layers --------------------------------------------------------------------------


def _apart(graph: Graph) -> Graph:
    """Each vector of constants once for each node that reads it: equal biases and factors, which a
    graph stores once, may get scales of their own. Matrices stay shared."""
    edit, seen, nodes = Edit(graph), set[str](), []
    for node in graph.nodes:
        names = list(node.inputs)
        for place, name in enumerate(names):
            if name in seen:
                names[place] = edit.constant(name, graph.constants[name])
            elif name in graph.constants and graph.constants[name].ndim == 1:
                seen.add(name)
        nodes.append(replace(node, inputs=tuple(names)))
    return edit.finish(nodes)


def _pairs(graph: Graph, kind: str) -> Iterator[_Pair]:
    """Layers that only layers read, through operators that keep factors of channels."""
    consumers = graph.consumers()
    for node in graph.nodes:
        written = _written(graph, node, kind)
        if written is None:
            continue
        weights, shape, bias = written
        raw = node.output
        readers = consumers[raw]
        if not bias and len(readers) == 1 and raw not in graph.outputs:
            row = row_added(graph, node, readers[0])
            if row in graph.constants:
                bias, raw = row, readers[0].output
        search = _Readers(graph, consumers, shape[1])
        axis = 1 if has(node.op, Trait.SPATIAL) else len(graph.values[raw].shape) - 1
        if not search.follow(raw, axis) or not search.found:
            continue
        names = [n for n in (weights, bias, *(r.weights for r in search.found)) if n]
        if len(set(names)) < len(names) or any(_uses(graph, name) > 1 for name in names):
            continue  # a constant that two places read cannot have two scales
        after = consumers[raw]
        merged = len(after) == 1 and after[0].op in ("Relu", "Clip")
        seen = after[0].output if merged else raw
        yield _Pair(node, weights, shape, bias, raw, seen, axis, search.limit, search.found)


def _uses(graph: Graph, name: str) -> int:
    return sum(node.inputs.count(name) for node in graph.nodes) + graph.outputs.count(name)


def _written(graph: Graph, node: Node, kind: str) -> tuple[str, tuple[int, int, int], str] | None:
    """The weights of a layer, [before, channels, after] of them, and its bias."""
    if len(node.inputs) < 2 or node.inputs[1] not in graph.constants:
        return None
    values = graph.constants[node.inputs[1]]
    bias = node.inputs[2] if len(node.inputs) > 2 else ""
    if values.dtype != np.float32 or (bias and bias not in graph.constants):
        return None
    if has(node.op, Trait.TRAILING):
        last = node.attributes["axis"] in (-1, len(graph.values[node.inputs[0]].shape) - 1)
        rows = is_row(values.shape, graph.values[node.output].shape[-1]) and (
            not bias or graph.constants[bias].shape == values.shape
        )
        if kind == "activations" and last and rows:
            return node.inputs[1], (1, values.size, 1), bias
        return None
    axis = _output_axis(node, values.ndim)
    if axis is None or (bias and not is_row(graph.constants[bias].shape, values.shape[axis])):
        return None
    before, after = math.prod(values.shape[:axis]), math.prod(values.shape[axis + 1 :])
    return node.inputs[1], (before, values.shape[axis], after), bias


def _output_axis(node: Node, rank: int) -> int | None:
    """The axis of output channels in the weights of a product; None for what has none."""
    if node.op == "Conv":
        return 0
    if node.op == "ConvTranspose":
        return 1 if node.attributes["group"] == 1 else None
    if not has(node.op, Trait.PRODUCT) or rank != 2 or has(node.op, Trait.QUANTIZES):
        return None
    return 0 if node.attributes.get("transB") else 1


@dataclass
class _Readers:
    """Follows channels to the layers that read them.

    limit: the upper end of a Clip on the way
    """

    graph: Graph
    consumers: dict[str, list[Node]]
    channels: int
    found: list[_Reader] = field(default_factory=list)
    limit: float = math.inf

    def follow(self, name: str, axis: int) -> bool:
        """Whether nothing but layers reads the channels, which lie along this axis."""
        if name in self.graph.outputs:
            return False
        return all(self.step(node, name, axis) for node in self.consumers[name])

    def step(self, node: Node, name: str, axis: int) -> bool:
        """Whether this reader of the value can be followed."""
        if node.inputs[0] != name or node.inputs.count(name) != 1:
            return False
        shape = self.graph.values[node.output].shape
        if has(node.op, Trait.PRODUCT):
            return self.product(node, axis)
        if has(node.op, Trait.HOMOGENEOUS):
            own = 1 if has(node.op, Trait.SPATIAL) else axis
            return own == axis and self.follow(node.output, axis)
        if node.op == "Transpose":
            return self.follow(node.output, node.attributes["perm"].index(axis))
        if node.op == "Clip" and node.attributes["min"] == 0:
            most = node.attributes["max"]
            self.limit = min(self.limit, math.inf if most is None else float(most))
            return self.follow(node.output, axis)
        if has(node.op, Trait.RESHAPES) and axis == 1 and len(shape) == 2:
            # [N, C, ...] -> [N, C * ...]: each channel becomes as many columns.
            before = self.graph.values[name].shape
            return before[0] == shape[0] and self.follow(node.output, 1)
        return False

    def product(self, node: Node, axis: int) -> bool:
        """Whether the weights of a product can take the factors."""
        values = self.graph.constants.get(node.inputs[1])
        if values is None or values.dtype != np.float32 or has(node.op, Trait.QUANTIZES):
            return False
        rank = len(self.graph.values[node.inputs[0]].shape)
        if has(node.op, Trait.SPATIAL):
            if axis != 1:
                return False
            groups = node.attributes["group"]
            view = (groups, values.shape[0] // groups, self.channels // groups, -1)
            if node.op == "ConvTranspose":
                view = (1, 1, self.channels, -1)
        elif axis != rank - 1 or values.ndim != 2 or node.attributes.get("transA"):
            return False
        elif node.attributes.get("transB"):
            view = (1, values.shape[0], self.channels, -1)
        else:
            view = (1, 1, self.channels, -1)
        self.found.append(_Reader(node, node.inputs[1], view))
        return True
