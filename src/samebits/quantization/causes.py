"""The error of every quantized tensor by its causes, each measured on samples.

Where a tensor x is rounded to codes that stand for y, an element is clipped if its code is the
least or the greatest and |x - y| is more than half a step; the sums of (x - y)**2 over those
elements and over the others are the noise of clipping and of rounding of activations. The noise of
rounding of weights is that of x itself: the layer is computed once more on the same inputs with the
weights of the float network.

Measurements in binary64: nothing that is computed later depends on them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from samebits.ir import Graph, Node
from samebits.ir.interpreter import carry, evaluate
from samebits.ir.many import traces
from samebits.ir.real.quantize import is_stored, saturation
from samebits.ir.signal import sqnr

Array = np.ndarray[Any, Any]

BINS = 24
CODES = ".codes"  # so `samebits quantize` calls the codes of a tensor


@dataclass(frozen=True)
class TensorLoss:
    """The loss of one quantized tensor.

    signal:     sum of squares of its numbers before they were rounded
    rounding, clipping: sums of squared errors of elements within and beyond the codes
    weights:    of its numbers against those with float weights; None without the float network
    clip_rate:  share of the elements beyond the codes
    compared:   whether the reference (`causes`) has this tensor
    sqnr_db:    against the reference, errors of the layers before included; None if equal
    low, high, counts: the range of its numbers, and how many lie in each of equal parts of it
    """

    signal: float
    rounding: float
    clipping: float
    weights: float | None
    clip_rate: float
    compared: bool
    sqnr_db: float | None
    low: float
    high: float
    counts: tuple[int, ...]

    @property
    def words(self) -> str:
        """The causes with their shares of the noise, the largest first."""
        noise = {
            "activations rounded": self.rounding,
            "activations clipped": self.clipping,
            "weights rounded": self.weights or 0.0,
        }
        total = sum(noise.values())
        if total == 0:
            return "exact"
        ranked = sorted(noise.items(), key=lambda item: -item[1])
        shares = [(name, 100 * found / total) for name, found in ranked]
        return ", ".join(f"{name} {share:.0f} %" for name, share in shares if share >= 0.5)


@dataclass
class _Sums:
    """Sums over the samples."""

    signal: float = 0.0
    rounding: float = 0.0
    clipping: float = 0.0
    weights: float = 0.0
    count: int = 0
    clipped: int = 0
    compared: bool = False
    reference: float = 0.0
    away: float = 0.0
    seen: list[Array] = field(default_factory=list)


def causes(
    graph: Graph, samples: Sequence[Sequence[Array]], origin: Graph | None = None
) -> dict[str, TensorLoss]:
    """The loss of every quantized activation of a QDQ graph, by the name of its codes.

    samples: arrays for the inputs, each a list
    origin:  the float network that it was quantized from, with the same names; it is the reference.
             None: the reference is the graph itself without the rounding of activations
    """
    rounded = [
        node
        for node in graph.nodes
        if node.op == "QuantizeLinear" and node.inputs[0] not in graph.constants
    ]
    back = {
        node.inputs[0]: node.output
        for node in reversed(graph.nodes)
        if node.op == "DequantizeLinear"
    }
    rounded = [node for node in rounded if node.output in back]
    sums = {node.output: _Sums() for node in rounded}
    layers = {node.output: _layer(graph, node.inputs[0]) for node in rounded} if origin else {}
    wide = traces(origin, samples) if origin is not None else _unrounded(graph, samples)
    for values, wanted in zip(traces(graph, samples), wide, strict=True):
        for node in rounded:
            x = np.asarray(values[node.inputs[0]], np.float64)
            y = np.asarray(values[back[node.output]], np.float64)
            found = sums[node.output]
            codes = np.asarray(values[node.output])
            low, high = saturation(graph.values[node.output].dtype, node.attributes)
            ends = (codes <= low) | (codes >= high)
            _add(found, x, y, _half_steps(graph, node, x), ends)
            names = (node.inputs[0], node.output.removesuffix(CODES))
            name = next((name for name in names if name in wanted), "")
            if name and wanted[name].shape == y.shape:
                true = np.asarray(wanted[name], np.float64)
                found.compared = True
                found.reference += float(np.sum(true * true))
                found.away += float(np.sum((true - y) ** 2))
            if origin is not None:
                exact = _with_weights(graph, layers[node.output], values, origin.constants)
                if exact is not None:
                    found.weights += float(np.sum((x - exact) ** 2))
    return {name: _loss(found, origin is not None) for name, found in sums.items()}


def _add(found: _Sums, x: Array, y: Array, half: Array, ends: Array) -> None:
    error = x - y
    # x and y are rounded to 24 bits, which counts beside half a step of 16-bit codes.
    beyond = ends & (np.abs(error) > half * (1 + 2.0**-20) + np.abs(x) * 2.0**-23)
    found.signal += float(np.sum(x * x))
    found.clipping += float(np.sum(error[beyond] ** 2))
    found.rounding += float(np.sum(error[~beyond] ** 2))
    found.count += x.size
    found.clipped += int(np.count_nonzero(beyond))
    found.seen.append(x.reshape(-1))


def _half_steps(graph: Graph, node: Node, x: Array) -> Array:
    """Half a step at every element."""
    scale = graph.constants.get(node.inputs[1])
    if scale is None:  # a scale that is computed
        return np.full(x.shape, math.inf)
    scale = np.asarray(scale, np.float64)
    if scale.size > 1 and scale.ndim == 1:
        shape = [1] * x.ndim
        shape[node.attributes["axis"]] = -1
        scale = scale.reshape(shape)
    return np.asarray(np.broadcast_to(scale / 2, x.shape))


def _loss(found: _Sums, weighed: bool) -> TensorLoss:
    numbers = np.concatenate(found.seen) if found.seen else np.zeros(1)
    counts, edges = np.histogram(numbers, BINS)
    return TensorLoss(
        found.signal,
        found.rounding,
        found.clipping,
        found.weights if weighed else None,
        found.clipped / max(found.count, 1),
        found.compared,
        sqnr(found.reference, found.away),
        float(edges[0]),
        float(edges[-1]),
        tuple(int(count) for count in counts),
    )


def _unrounded(graph: Graph, samples: Sequence[Sequence[Array]]) -> Iterator[dict[str, Array]]:
    """Every value with activations not rounded: quantizing and dequantizing change nothing."""
    for sample in samples:
        live: dict[str, Array] = dict(zip(graph.inputs, map(np.asarray, sample), strict=True))
        for name, array in live.items():
            live[name] = carry(array, graph.values[name].dtype, False)
        for node in graph.nodes:
            passed = node.op == "QuantizeLinear" or (
                node.op == "DequantizeLinear" and not is_stored(node, graph.constants)
            )
            if passed and node.inputs[0] in live:
                live[node.output] = live[node.inputs[0]]
                continue
            made = evaluate(node, [_read(graph, live, name) for name in node.inputs], graph.values)
            live.update(zip(node.outputs, made, strict=False))
        yield live


def _read(graph: Graph, live: Mapping[str, Array], name: str) -> Array | None:
    if not name:
        return None
    if name in live:
        return live[name]
    return carry(graph.constants[name], graph.values[name].dtype, False)


def _layer(graph: Graph, name: str) -> list[Node]:
    """The nodes that compute a value from dequantized ones and from weights, in order."""
    producers = graph.producers()
    needed, waiting = set[str](), [name]
    while waiting:
        node = producers.get(waiting.pop())
        if node is None or node.name in needed:
            continue
        activation = node.op == "DequantizeLinear" and not is_stored(node, graph.constants)
        if not activation and node.op != "QuantizeLinear":
            needed.add(node.name)
            waiting += [each for each in node.inputs if each]
    return [node for node in graph.nodes if node.name in needed]


def _with_weights(
    graph: Graph, nodes: Sequence[Node], values: Mapping[str, Array], floats: Mapping[str, Array]
) -> Array | None:
    """The last node's result with the weights of the float network; None where it has none."""
    live: dict[str, Array] = {}
    for node in nodes:
        if is_stored(node, graph.constants):
            exact = floats.get(node.inputs[0].removesuffix(CODES))
            if exact is not None and exact.shape == graph.values[node.output].shape:
                live[node.output] = carry(exact, graph.values[node.output].dtype, False)
            continue
        if not live.keys() & set(node.inputs):
            continue
        arrays = [
            _read(graph, live if name in live else _wide(graph, values, name), name)
            for name in node.inputs
        ]
        live.update(zip(node.outputs, evaluate(node, arrays, graph.values), strict=False))
    return None if not nodes else live.get(nodes[-1].output)


def _wide(graph: Graph, values: Mapping[str, Array], name: str) -> dict[str, Array]:
    if name not in values:
        return {}
    return {name: carry(values[name], graph.values[name].dtype, False)}
