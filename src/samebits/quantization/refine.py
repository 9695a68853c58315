"""Codes of weights and biases chosen by the error they leave in the output of their layer.

Layer after layer, in the order of the graph, each with the inputs that the quantized layers before
it give and the outputs of the float network as its target: it makes up for errors before it too.

* Rounding to least error: `descent`.
* Bias correction (M. Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias
  Correction", 2019, section 4.2, measured on samples): the mean error of each output channel goes
  into the int32 bias.

Sums are of integers and decisions are comparisons of integers: the same codes on every machine, as
docs/spec/graph.md 2.2 has it for the float network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from samebits import progress
from samebits.ir import Graph, Node
from samebits.ir.signal import ratio
from samebits.quantization.changes import LayerChange
from samebits.quantization.convert import Converted, QuantizedLayer
from samebits.quantization.descent import Layout, Moments, descend, excess
from samebits.quantization.lockstep import Lockstep
from samebits.quantization.placement import is_row
from samebits.quantization.settings import Settings
from samebits.quantization.weights import LARGEST_BIAS, WeightCodes, recoded

Array = np.ndarray[Any, Any]

HELD = 1 << 25  # numbers that one value holds for all samples
LARGEST_PRODUCTS = 1 << 26  # elements of the products of a layer's inputs with one another


def affordable(graph: Graph, wanted: int) -> int:
    """Samples to refine on: as many as wanted, as far as memory reaches."""
    largest = max((value.size for value in graph.values.values()), default=1)
    return max(1, min(wanted, HELD // max(largest, 1)))


def refine(
    graph: Graph, converted: Converted, samples: Sequence[Sequence[Array]], settings: Settings
) -> tuple[Converted, tuple[LayerChange, ...]]:
    """The quantized graph with the roundings and biases that the settings ask for.

    graph:   the float graph that `converted` was made of
    samples: arrays in order of the graph's inputs; what one node gives for all is held at once
    """
    return _Refinement(graph, converted, samples, settings).run()


@dataclass
class _Layer:
    """One layer at work. targets, made: its outputs in the float and in the quantized graph, for
    each sample; units: of its sums, for each channel or for all."""

    layer: QuantizedLayer
    node: Node
    layout: Layout
    units: Array
    targets: list[Array]
    made: list[Array]

    def sums(self, arrays: Array) -> Array:
        """An output in units of the sums, rounded, its channels as last axis."""
        return np.rint(np.moveaxis(arrays, self.layout.axis, -1) / self.units).astype(np.int64)


class _Refinement:
    def __init__(
        self,
        graph: Graph,
        converted: Converted,
        samples: Sequence[Sequence[Array]],
        settings: Settings,
    ) -> None:
        self.converted = converted
        self.settings = settings
        self.after = Lockstep(converted.graph, samples)
        self.targets = Lockstep(graph, samples).values({x.real for x in converted.layers})
        self.constants = {c.dequantized: c for c in converted.constants if c.dequantized}
        self.changed: dict[str, WeightCodes] = {}  # by the value that DequantizeLinear makes
        self.changes: list[LayerChange] = []

    def run(self) -> tuple[Converted, tuple[LayerChange, ...]]:
        """Every layer, then the graph with the new codes."""
        layers = {layer.output: layer for layer in self.converted.layers}
        listed = progress.track(self.after.nodes(), "refining codes", len(self.after.graph.nodes))
        for node in listed:
            if node.output in layers:
                self.layer(layers[node.output], node)
        return self.result(), tuple(self.changes)

    def layer(self, layer: QuantizedLayer, node: Node) -> None:
        """Choose the codes of one layer."""
        _, targets = next(self.targets)
        weights = self.codes(layer.weights)
        units = np.array([float(layer.scale) * float(s) for s in weights.scales])
        layout = Layout(node, weights.codes.shape)
        work = _Layer(layer, node, layout, units, targets, self.outputs(node))
        correct = self.settings.bias_correction and bool(layer.bias)
        if correct:  # one number for all channels, or for each row, stays
            channels = targets[0].shape[layout.axis]
            correct = is_row(self.codes(layer.bias).codes.shape, channels)
        if self.settings.rounding == "least-error":
            self.round(work, correct)
        if correct:
            self.correct(work)

    def outputs(self, node: Node) -> list[Array]:
        """The first output of a node for each sample."""
        return [made[0] for made in self.after.results(node)]

    def codes(self, name: str) -> WeightCodes:
        """The present codes behind a value that DequantizeLinear makes."""
        return self.changed[name] if name in self.changed else self.constants[name].codes

    def recode(self, name: str, codes: Array) -> None:
        """Give a constant other codes."""
        self.changed[name] = made = replace(self.codes(name), codes=codes)
        self.after.fixed[name] = made.reals()

    def round(self, work: _Layer, correct: bool) -> None:
        """Round the weights to the least error of the layer's sums, around their means where the
        bias is corrected after that."""
        layer, layout = work.layer, work.layout
        found = self.constants[layer.weights]
        codes = found.codes
        if not layout.known or _products(layout) > LARGEST_PRODUCTS:
            self.note("rounding", work, "nearest: too many products, or no rule for it", work.made)
            return
        if np.array_equal(codes.reals().astype(np.float32), found.values):
            self.note("rounding", work, "nearest: the weights are such codes", work.made)
            return
        bias = self.after.fixed[work.node.inputs[2]] if work.node.inputs[2:] else np.zeros(1)
        offset = np.rint(bias / work.units).astype(np.int64)
        codes_x = [np.rint(x / float(layer.scale)) for x in self.after.read(work.node.inputs[0])]
        wanted = [work.sums(target) - offset for target in work.targets]
        shift = excess(codes_x, wanted)
        moments = Moments(layout)
        for x, y in zip(codes_x, wanted, strict=True):
            moments.add(layout.rows(x.astype(np.int64)), layout.columns(y >> shift))
        products, targets = moments.centred() if correct else (moments.products, moments.targets)
        products = products >> shift
        zero = codes.spread(codes.zero_points)
        scale = codes.spread([float(s) for s in codes.scales])
        start = codes.codes.astype(np.int64) - zero
        exact = found.values.astype(np.float64) / scale
        ends = codes.format.code_min - zero, codes.format.code_max - zero
        exact = np.clip(exact, *ends)
        matrices = layout.matrix(start), layout.matrix(exact)
        chosen = descend(products, targets, moments.count, *matrices)
        rounded = layout.restored(chosen) + zero
        self.recode(layer.weights, rounded.astype(codes.codes.dtype))
        changed = int(np.count_nonzero(rounded != codes.codes))
        self.note("rounding", work, f"{changed} of {rounded.size} codes", self.outputs(work.node))

    def correct(self, work: _Layer) -> None:
        """The mean error of each channel, in units of its sums, joins the bias."""
        codes = self.codes(work.layer.bias)
        channels = work.targets[0].shape[work.layout.axis]
        total, count = np.zeros(channels, np.int64), 0
        for target, made in zip(work.targets, work.made, strict=True):
            error = work.sums(target - made).reshape(-1, channels)
            total += error.sum(0)
            count += len(error)
        more = (2 * total + count) // (2 * count)
        wanted = codes.codes.astype(np.int64) + more.reshape(codes.codes.shape)
        self.recode(work.layer.bias, np.clip(wanted, -LARGEST_BIAS, LARGEST_BIAS).astype(np.int32))
        values = more * work.units
        if work.node.inputs[2:]:
            after = self.outputs(work.node)
        else:  # the bias of a MatMul is added by the next node
            after = [made + values for made in work.made]
        largest = float(np.abs(values).max(initial=0))
        self.note("bias correction", work, f"by up to {largest:.3g}", after)

    def note(self, step: str, work: _Layer, what: str, after: list[Array]) -> None:
        """A line of the report; the outputs after a step are those before the next."""
        ratios = ratio(work.targets, work.made), ratio(work.targets, after)
        self.changes.append(LayerChange(step, work.layer.name, work.layer.op, what, *ratios))
        work.made = after

    def result(self) -> Converted:
        """The quantized graph and its constants with the new codes."""
        if not self.changed:
            return self.converted
        changed = {name: codes.codes for name, codes in self.changed.items()}
        graph = recoded(self.converted.graph, changed)
        constants = tuple(
            replace(c, codes=self.codes(c.dequantized)) if c.dequantized else c
            for c in self.converted.constants
        )
        return replace(self.converted, graph=graph, constants=constants)


def _products(layout: Layout) -> int:
    groups, terms, _ = layout.size
    return groups * terms * terms
