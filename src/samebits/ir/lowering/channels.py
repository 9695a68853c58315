"""Channels that hold one code whatever the inputs are: proved, folded and dropped.

The interval of a channel's sums (`ir.integer.bounds`) may requantize to one code. That is a proof,
and three steps follow from it; the codes of the outputs are the same, every one. Training kills
channels so: half of the channels of MLPerf Tiny's network for visual wake words have a bias that no
sum of products reaches.

1. The products of such a channel are left out: its weights become 0, its bias a small number that
   gives the code, by a ratio that another channel has. So it takes no form from its neighbours that
   only its own bias or scale rules out.
2. A product that reads the channel reads a number: the code times its weight is added to the bias,
   where the padding holds that code or there is none.
3. What nothing reads any more leaves the tensor. Layers that map each channel to itself (depthwise
   convolutions, pools, tables) leave it out too: values that such layers join have the same
   channels, so that one drops out of all of them or of none.

Example: a convolution of 1x1 from 32 channels to 64, of which 30 hold their zero point, a depthwise
one with padding of that code, and one of 1x1 to 16. The 30 channels hold one code behind the
depthwise one as well, and the last convolution reads 48: those that live, up to whole vectors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from samebits.ir.graph import Array, Graph, GraphBuilder, Node
from samebits.ir.integer.bounds import Interval, bounds
from samebits.ir.integer.shape import keeps_channels
from samebits.ir.lowering.lower import narrow_accumulators
from samebits.ir.lowering.states import integers
from samebits.ir.ops import has
from samebits.ir.traits import Trait
from samebits.ir.value import Value
from samebits.numerics.multiplier import requantized
from samebits.spec.formats import round_real

VECTOR = 16  # channels that remain are a multiple of it, so that runs of codes fill vectors
FEW = 4  # and, of less than a vector, a multiple of this
Kept = Mapping[str, Sequence[int]]


def fold_channels(graph: Graph) -> Graph:
    """The integer graph without the products and the channels that are proved constant; the very
    same graph where there are none. Inputs and outputs stay as they are.

    Again and again: what leaves may have been the last to read something else.
    """
    while (smaller := _folded(graph)) is not graph:
        graph = smaller
    return graph


def _folded(graph: Graph) -> Graph:
    """The three steps, once."""
    found = bounds(graph)
    parts = {node.name: part for node in graph.nodes if (part := _part(graph, node, found))}
    ratios = {part.requantize: part.ratios for part in parts.values()}
    kept = _kept(graph, parts, found)
    if not kept and not any(part.changed for part in parts.values()):
        return graph
    builder, renamed = GraphBuilder.like(graph)
    for node in graph.nodes:
        arrays: list[Array | None] = [graph.constants.get(name) for name in node.inputs]
        attributes = dict(node.attributes)
        if node.name in parts:
            arrays[1:] = parts[node.name].weights, parts[node.name].bias
        if node.name in ratios:
            attributes["ratios"] = ratios[node.name]
        if node.inputs and node.inputs[0] in kept and _mixing(graph, node):
            arrays = _absorbed(node, arrays, found, kept[node.inputs[0]])
        if node.output in kept:
            arrays, attributes = _narrowed(graph, node, arrays, attributes, kept[node.output])
        inputs = [
            renamed[name]
            if array is None or array is graph.constants.get(name)
            else builder.constant(name, array, graph.values[name].quantization)
            for name, array in zip(node.inputs, arrays, strict=True)
        ]
        out, quantization = node.output, graph.values[node.output].quantization
        renamed[out] = builder.add(node.op, inputs, attributes, node.name, [out], quantization)
    return narrow_accumulators(
        builder.build(renamed[name] for name in graph.outputs), graph.outputs
    )


# --- products -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Part:
    """A layer with constant channels: its weights, its bias, and the ratios of the requantization
    behind it, by the name of that node."""

    weights: Array
    bias: Array
    ratios: tuple[Fraction, ...]
    requantize: str
    changed: bool


def _part(graph: Graph, node: Node, found: Mapping[str, Interval]) -> _Part | None:
    """A convolution or `linear` whose sums one requantization reads, with the products of constant
    channels left out; None for other nodes, and without such channels."""
    if not has(node.op, Trait.WEIGHTED) or node.output in graph.outputs:
        return None
    weights, bias = (graph.constants.get(name) for name in node.inputs[1:])
    readers = [other for other in graph.nodes if node.output in other.inputs]
    if weights is None or bias is None or [other.op for other in readers] != ["requantize"]:
        return None
    (reader,), channels = readers, len(bias)
    settled = _settled(found[reader.output], channels)
    if not settled:
        return None
    own: tuple[Fraction, ...] = reader.attributes["ratios"]
    ratios = list(own)
    alive = [ratio for c, ratio in enumerate(own) if c not in settled]
    w, b = weights.copy(), bias.astype(object)
    least = found[node.output].over(channels)
    for channel, code in settled.items():
        given = ratios[channel % len(ratios)]
        for ratio in (max(alive, default=given) if len(own) > 1 else given, given):
            term = round_real(Fraction(code - reader.attributes["zero"]) / ratio)
            if _code(term, ratio, reader) == code:
                break
        else:
            term = least[channel][0]
        ratios[channel % len(ratios)] = ratio
        w[channel], b[channel] = 0, term
    changed = bool((w != weights).any() or (b != bias).any()) or tuple(ratios) != own
    return _Part(w, integers(b), tuple(ratios), reader.name, changed)


def _code(total: int, ratio: Fraction, requantize: Node) -> int:
    zero, low, high = (requantize.attributes[key] for key in ("zero", "low", "high"))
    return requantized(total, ratio, zero, low, high)


def _settled(interval: Interval, channels: int) -> dict[int, int]:
    """The code of every channel that has one only."""
    pairs = enumerate(interval.over(channels))
    return {channel: low for channel, (low, high) in pairs if low == high}


# --- which channels leave -------------------------------------------------------------------


def _mixing(graph: Graph, node: Node) -> bool:
    """Whether the node is a product of all channels with constant weights and bias."""
    whole = node.op == "linear" or (node.op == "conv" and node.attributes["groups"] == 1)
    return whole and _computed(graph, node)


def _computed(graph: Graph, node: Node) -> bool:
    """Whether the first input is computed and all others are constant."""
    constant = [name in graph.constants for name in node.inputs]
    return not constant[0] and all(constant[1:])


def _joined(graph: Graph, node: Node) -> bool:
    """Whether each channel of the output is made of that channel of the computed inputs, and
    `_narrowed` can leave one out."""
    x, out = graph.values[node.inputs[0]].shape, graph.values[node.output].shape
    if node.op == "add":
        return all(graph.values[name].shape[-1:] == out[-1:] for name in node.inputs)
    if not _computed(graph, node):
        return False
    if node.op == "conv":
        return bool(node.attributes["groups"] == x[-1] == out[-1] > 1)
    if has(node.op, Trait.REDUCES):
        return len(x) - 1 not in node.attributes["axes"]
    if node.op in ("reshape", "transpose"):
        return len(x) > 0 and keeps_channels(node.op, node.attributes, x, out)
    return has(node.op, Trait.CHANNELWISE)


def _absorbable(node: Node, weights: Array, x: Interval) -> frozenset[int]:
    """Channels of x that a product can do without: of one code, or times nothing but 0."""
    channels = weights.shape[-1]
    settled = _settled(x, channels)
    padded, code = any(node.attributes.get("pads", ())), node.attributes.get("pad_code", 0)
    silent = np.all(weights.reshape(-1, channels) == 0, axis=0)
    return frozenset(
        channel
        for channel in range(channels)
        if silent[channel] or (channel in settled and (not padded or settled[channel] == code))
    )


def _kept(
    graph: Graph, parts: Mapping[str, _Part], found: Mapping[str, Interval]
) -> dict[str, list[int]]:
    """The channels that remain of each value that loses some.

    Values are joined by the layers that map channels to themselves; a channel leaves all values
    that are joined where every product that reads one of them can do without it.
    """
    parents = {name: name for name in graph.values}

    def root(name: str) -> str:
        while parents[name] != name:
            parents[name] = name = parents[parents[name]]
        return name

    fixed = {*graph.inputs, *graph.outputs, *graph.constants}
    fixed |= {name for name, value in graph.values.items() if _factors(value)}
    free: list[tuple[str, frozenset[int]]] = []
    for node in graph.nodes:
        if _mixing(graph, node):
            x, w = node.inputs[:2]
            weights = parts[node.name].weights if node.name in parts else graph.constants[w]
            free.append((x, _absorbable(node, weights, found[x])))
        elif _joined(graph, node):
            for name in node.inputs if node.op == "add" else node.inputs[:1]:
                parents[root(name)] = root(node.output)
        else:
            fixed.update((*node.inputs, *node.outputs))
    left: dict[str, frozenset[int]] = {}
    for name, channels in free:
        left[root(name)] = left.get(root(name), channels) & channels
    for name in fixed & parents.keys():
        left[root(name)] = frozenset()
    kept = {}
    for name, value in graph.values.items():
        leaving = left.get(root(name), frozenset())
        if leaving and (remaining := _remaining(value.shape[-1], leaving)):
            kept[name] = remaining
    return kept


def _factors(value: Value) -> bool:
    """Whether codes of different channels stand for different numbers."""
    return value.quantization is not None and not value.quantization.plain


def _remaining(channels: int, leaving: frozenset[int]) -> list[int]:
    """Channels that stay, with some of those that could leave, up to whole vectors; [] for all."""
    step = VECTOR if channels >= VECTOR else FEW
    count = max(math.ceil((channels - len(leaving)) / step), 1) * step
    if count >= channels:
        return []
    spared = sorted(leaving)[: count - (channels - len(leaving))]
    return sorted({*range(channels)} - leaving | {*spared})


# --- without them ---------------------------------------------------------------------------


def _absorbed(
    node: Node, arrays: list[Array | None], found: Mapping[str, Interval], kept: Sequence[int]
) -> list[Array | None]:
    """Weights and bias of a product that reads the channels `kept` alone: what it read of the
    others is part of the bias."""
    x, weights, bias = arrays
    assert weights is not None
    assert bias is not None
    channels = weights.shape[-1]
    settled = _settled(found[node.inputs[0]], channels)
    codes = np.zeros(channels, np.int64)
    for channel in {*range(channels)} - {*kept}:
        codes[channel] = settled.get(channel, 0)
    term = (weights.astype(np.int64) * codes).sum(tuple(range(1, weights.ndim)))
    return [x, weights[..., kept], integers(bias.astype(object) + term.astype(object))]


def _rows(arrays: list[Array | None], kept: Sequence[int]) -> list[Array | None]:
    """Constants of single channels, all behind the first input."""
    return [None if array is None else array[kept] for array in arrays]


def _narrowed(
    graph: Graph,
    node: Node,
    arrays: list[Array | None],
    attributes: dict[str, Any],
    kept: Sequence[int],
) -> tuple[list[Array | None], dict[str, Any]]:
    """Constants and attributes of a node that writes the channels `kept` alone."""
    if _mixing(graph, node) or node.op in ("conv", "affine"):
        arrays = _rows(arrays, kept)
        if node.op == "conv" and not _mixing(graph, node):
            attributes["groups"] = len(kept)
    elif node.op == "table":
        table = arrays[1]
        arrays = [arrays[0], table if table is None or table.ndim == 1 else table[kept]]
    elif node.op == "requantize" and len(attributes["ratios"]) > 1:
        attributes["ratios"] = tuple(attributes["ratios"][channel] for channel in kept)
    elif node.op == "reshape":
        attributes["shape"] = (*attributes["shape"][:-1], len(kept))
    return arrays, attributes
