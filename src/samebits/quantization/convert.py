"""A calibrated float graph in QDQ form: QuantizeLinear and DequantizeLinear where `placement` says.

The result is a real graph with the meaning of docs/spec/graph.md: inputs and outputs stay float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import numpy as np

from samebits.ir import Graph, GraphBuilder, Node, Trait, has
from samebits.ir.real.trees import THRESHOLDS, WEIGHTS
from samebits.numerics import Format, ScaleRule
from samebits.quantization.calibrate import Calibrated, calibrate, from_range
from samebits.quantization.magnitude import fitted
from samebits.quantization.observe import Statistics, merged, statistics
from samebits.quantization.placement import Placement, is_movement, ranks
from samebits.quantization.settings import Settings, code_type, ends_within
from samebits.quantization.trees import (
    FEATURE,
    rounded_thresholds,
    rounded_weights,
    thresholds_on,
)
from samebits.quantization.weights import (
    WeightCodes,
    bias_codes,
    check_constant,
    encode,
    fits,
    weight_codes,
)
from samebits.spec import formats

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class QuantizedTensor:
    """An activation with codes: its name in the float graph, and what became of it.

    real: the value before rounding; codes, dequantized: after QuantizeLinear, DequantizeLinear
    features: the numbers of each feature, () where `numbers` are those of all
    """

    name: str
    op: str
    real: str
    codes: str
    dequantized: str
    numbers: Calibrated
    features: tuple[Calibrated, ...] = ()


@dataclass(frozen=True, eq=False)
class QuantizedConstant:
    """A weight, bias or other constant that the node `node` reads as codes.

    dequantized: the value of the quantized graph that DequantizeLinear makes of them, if one does
    """

    name: str
    node: str
    op: str
    values: Array
    codes: WeightCodes
    dequantized: str = ""


@dataclass(frozen=True)
class QuantizedLayer:
    """A product of an activation and constant weights.

    name, op:      of its node in the float graph
    real:          its output in the float graph
    output:        the same in the quantized graph
    weights, bias: values that DequantizeLinear makes of its codes; "" for a bias that it lacks
    scale:         of its activation; the unit of its sums is scale * that of the weights
    """

    name: str
    op: str
    real: str
    output: str
    weights: str
    bias: str
    scale: Fraction


@dataclass(frozen=True, eq=False)
class Converted:
    """The quantized graph and where everything went."""

    graph: Graph
    tensors: tuple[QuantizedTensor, ...]
    constants: tuple[QuantizedConstant, ...]
    layers: tuple[QuantizedLayer, ...] = ()


def convert(
    graph: Graph,
    placement: Placement,
    seen: Mapping[str, Statistics],
    settings: Settings,
    fixed: Mapping[str, Calibrated] = MappingProxyType({}),
    finest: Fraction = Fraction(0),
    features: Mapping[str, tuple[Calibrated, ...]] = MappingProxyType({}),
    stored: Mapping[str, WeightCodes] = MappingProxyType({}),
) -> Converted:
    """Insert the quantization of `placement` with scales from the statistics `seen`.

    fixed:  group -> its numbers, where calibration does not choose them
    finest: the smallest scale of the products of linear operators; weights are no finer
    features: input -> the numbers of each of its features, of those that `placement` says
    stored: constant -> the codes that it has in the file, which weights keep

    Raises InputError for ranges that no binary32 scale holds and for weights that are not finite.
    """
    numbers = group_numbers(graph, placement, seen, settings, fixed)
    return _Conversion(graph, placement, settings, numbers, finest, features, stored).run()


# --- scales of groups -------------------------------------------------------------------------


def group_numbers(
    graph: Graph,
    placement: Placement,
    seen: Mapping[str, Statistics],
    settings: Settings,
    fixed: Mapping[str, Calibrated] = MappingProxyType({}),
) -> dict[str, Calibrated]:
    """The format and scale of every group; of those in `fixed` the numbers that stand there, but as
    far as `magnitude.fitted` changes them."""
    quantized = set(placement.quantized)
    outputs = output_groups(graph, placement)
    producers = graph.producers()
    numbers = {}
    for group, members in placement.members().items():
        if group in fixed:
            numbers[group] = fixed[group]
            continue
        fmt = settings.output_format if group in outputs else settings.activation_format
        fmt = settings.width_of(group, fmt)
        compared = [thresholds_on(graph, name)[1] for name in members]
        if any(map(len, compared)):
            fmt = FEATURE
        values = [name for name in members if name in quantized]
        constants = [name for name in members if name in graph.constants]
        if not constants and all(n in producers and producers[n].op == "Softmax" for n in values):
            numbers[group] = softmax_numbers(fmt, whole=group in outputs)
            continue
        parts = [seen[name] for name in values if name in seen]
        parts += [statistics(thresholds) for thresholds in compared if len(thresholds)]
        for name in constants:
            check_constant(graph.constants[name], name)
            if graph.constants[name].size:
                parts.append(statistics(graph.constants[name]))
        if not parts:
            numbers[group] = from_range(Fraction(0), Fraction(0), fmt, group)
        elif values and fmt is not FEATURE:
            numbers[group] = calibrate(merged(parts), fmt, settings, group)
        else:  # constants alone are known exactly: their whole range; so is what trees ask for
            whole = merged(parts)
            numbers[group] = from_range(Fraction(whole.low), Fraction(whole.high), fmt, group)
    return fitted(placement.magnitudes, placement.group, numbers)


def softmax_numbers(fmt: Format, whole: bool = False) -> Calibrated:
    """The fixed scale of probabilities: 2**-bits with a zero point, else 2**-(bits - 1).

    whole: up to 1, which those codes miss by one: an answer that is sure can be told
    """
    if whole and fmt.rule is not ScaleRule.FIXED:
        return from_range(Fraction(0), Fraction(1), fmt, "")
    if fmt.rule is ScaleRule.ASYMMETRIC:
        return Calibrated(fmt, formats.power(-fmt.bits), fmt.code_min, Fraction(0), Fraction(1))
    return Calibrated(fmt, formats.power(1 - fmt.bits), 0, Fraction(0), Fraction(1))


def output_groups(graph: Graph, placement: Placement) -> set[str]:
    """Groups that hold a graph output and that nothing but data movement reads."""
    groups = {placement.group[name] for name in graph.outputs if name in placement.group}
    consumers = graph.consumers()
    for name, group in placement.group.items():
        if any(not is_movement(node) for node in consumers[name]):
            groups.discard(group)
    return groups


# --- the graph --------------------------------------------------------------------------------


class _Conversion:
    """Writes the quantized graph node by node.

    finest: the smallest scale of the products of linear operators; weights are no finer
    """

    def __init__(
        self,
        graph: Graph,
        placement: Placement,
        settings: Settings,
        numbers: Mapping[str, Calibrated],
        finest: Fraction,
        features: Mapping[str, tuple[Calibrated, ...]],
        stored: Mapping[str, WeightCodes],
    ) -> None:
        """numbers: the calibrated scale of each group of `placement`."""
        self.features = features
        self.stored = stored
        self.real: dict[str, str] = {}  # value of the float graph -> what was rounded
        self.graph = graph
        self.placement = placement
        self.settings = settings
        self.numbers = numbers
        self.finest = finest
        self.quantized = set(placement.quantized)
        self.builder = GraphBuilder(graph.name)
        self.read: dict[str, str] = {}  # value of the float graph -> value that its readers take
        self.products: dict[str, tuple[Fraction, tuple[Fraction, ...]]] = {}
        self.tensors: list[QuantizedTensor] = []
        self.constants: list[QuantizedConstant] = []
        self.layers: dict[str, QuantizedLayer] = {}  # by output in the float graph

    def run(self) -> Converted:
        for name in self.graph.inputs:
            value = self.graph.values[name]
            real = self.builder.input(name, value.dtype, value.shape)
            self.read[name] = self.pair(name, real, "Input") if name in self.quantized else real
        for node in self.graph.nodes:
            self.node(node)
        self.builder.initial = [self.value(state.initial) for state in self.graph.states]
        outputs = [self.value(name) for name in self.graph.outputs]
        graph = self.builder.build(outputs)
        layers = tuple(self.layers.values())
        return Converted(graph, tuple(self.tensors), tuple(self.constants), layers)

    def node(self, node: Node) -> None:
        inputs, attributes = self.operands(node)
        wished = [
            self.fresh(f"{name}.real") if name in self.quantized and self.is_output(name) else name
            for name in node.outputs
        ]
        outputs = self.builder.add_all(
            node.op, inputs, attributes, name=self.node_name(node.name), outputs=wished
        )
        if node.output in self.layers:
            self.layers[node.output] = replace(self.layers[node.output], output=outputs[0])
        for name, real in zip(node.outputs, outputs, strict=False):
            self.read[name] = self.pair(name, real, node.op) if name in self.quantized else real

    def value(self, name: str) -> str:
        """The value of the quantized graph for a value or constant of the float graph."""
        if name in self.graph.constants:
            return self.builder.constant(name, self.graph.constants[name])
        return self.read[name] if name else ""

    def operands(self, node: Node) -> tuple[list[str], dict[str, Any]]:
        """Inputs and attributes of a node in the quantized graph."""
        attributes = dict(node.attributes)
        if has(node.op, Trait.PRODUCT) and self.placement.weighs(node):
            return self.linear(node, attributes), attributes
        if has(node.op, Trait.TALLIES):
            return self.trees(node), attributes
        if ranks(node) and has(self.producer(node.inputs[0]), Trait.TALLIES):
            return [self.real.get(node.inputs[0], self.value(node.inputs[0]))], attributes
        summed = next((name for name in node.inputs if name in self.placement.biases), "")
        inputs = []
        for position, name in enumerate(node.inputs):
            values = self.graph.constants.get(name)
            if values is None:
                inputs.append(self.value(name))
            elif summed and self.placement.biases[summed] == name:
                codes = bias_codes(values, *self.products[summed], name)
                inputs.append(self.dequantized(node, name, values, codes))
                if summed in self.layers:
                    self.layers[summed] = replace(self.layers[summed], bias=inputs[-1])
            elif (node.name, position) in self.placement.operands:
                codes = encode(values, [self.numbers[self.placement.group[name]]], None)
                inputs.append(self.dequantized(node, name, values, codes))
            else:
                inputs.append(self.value(name))
        return inputs, attributes

    def trees(self, node: Node) -> list[str]:
        """Inputs of decision trees: thresholds are rounded to codes, the weights of leaves to a
        common unit."""
        inputs = [self.value(name) for name in node.inputs]
        x = node.inputs[0]
        listed = self.features.get(x) or (self.numbers[self.placement.group[x]],)
        ends = rounded_thresholds(self.graph, node, [each.scale for each in listed])
        hint = self.fresh(f"{node.inputs[THRESHOLDS]}.rounded")
        inputs[THRESHOLDS] = self.builder.constant(hint, ends)
        weights, codes = rounded_weights(self.graph, node)
        name = node.inputs[WEIGHTS]
        self.constants.append(
            QuantizedConstant(name, node.name, node.op, self.graph.constants[name], codes)
        )
        inputs[WEIGHTS] = self.builder.constant(self.fresh(f"{name}.rounded"), weights)
        return inputs

    def producer(self, name: str) -> str:
        """The operator that gives a value, "" for none."""
        return next((node.op for node in self.graph.nodes if name in node.outputs), "")

    # --- activations ------------------------------------------------------------------------

    def pair(self, name: str, real: str, op: str) -> str:
        """QuantizeLinear and DequantizeLinear after a value; the name of the result."""
        numbers = self.numbers[self.placement.group[name]]
        source = real
        below, above = ends_within(numbers.format)
        below &= op not in ("Relu", "Softmax") or numbers.zero_point != 0
        if op != "Input" and (below or above):
            # ONNX saturates to the whole type; this keeps codes beyond those of the format out. A
            # bound is a binary32 number, as files want, at most 2**-10 of a step from such a code.
            low, high = (
                float(np.float32(float(numbers.scale * (code - numbers.zero_point))))
                for code in (numbers.format.code_min, numbers.format.code_max)
            )
            clip = {"min": low if below else None, "max": high if above else None}
            source = self.builder.add(
                "Clip",
                [real],
                clip,
                name=self.fresh(f"{name}.clip"),
                outputs=[self.fresh(f"{name}.clipped")],
            )
        listed = self.features.get(name, ())
        if listed:
            numbers = max(listed, key=lambda each: each.scale)
        scale, zero_point = self.parameters(
            [each.scale for each in listed or (numbers,)],
            [each.zero_point for each in listed or (numbers,)],
            code_type(numbers.format),
        )
        axis = {"axis": 1} if listed else {}
        codes = self.builder.add(
            "QuantizeLinear",
            [source, scale, zero_point],
            axis,
            name=self.fresh(f"{name}.quantize"),
            outputs=[self.fresh(f"{name}.codes")],
        )
        plain = self.is_output(name) and op != "Input"
        dequantized = self.builder.add(
            "DequantizeLinear",
            [codes, scale, zero_point],
            axis,
            name=self.fresh(f"{name}.dequantize"),
            outputs=[name if plain else self.fresh(f"{name}.dequantized")],
        )
        self.real[name] = real
        self.tensors.append(QuantizedTensor(name, op, real, codes, dequantized, numbers, listed))
        return dequantized

    def scale_of(self, name: str) -> Fraction:
        """The scale of a value that has codes."""
        return self.numbers[self.placement.group[name]].scale

    # --- constants --------------------------------------------------------------------------

    def linear(self, node: Node, attributes: dict[str, Any]) -> list[str]:
        """Inputs of Conv, ConvTranspose, Gemm and MatMul: weights and biases become codes."""
        first, second = node.inputs[:2]
        third = node.inputs[2] if len(node.inputs) > 2 else ""
        left, weights, bias = (
            self.graph.constants.get(name)
            for name in (first, second, third or self.placement.biases.get(node.output, ""))
        )
        unit = Fraction(1)
        if node.op == "Gemm":
            weights, bias = _folded(attributes, weights, bias)
            unit = Fraction(attributes["alpha"])
        if left is None:
            inputs, scale_x = [self.value(first)], self.scale_of(first)
        else:
            matrix = self.weights(left, None, first, Fraction(1), None)
            inputs, scale_x = [self.dequantized(node, first, left, matrix)], matrix.scales[0]
        scale_x *= unit
        if weights is None:
            inputs.append(self.value(second))
            scales: tuple[Fraction, ...] = (self.scale_of(second),)
        else:
            axis = self.weight_axis(node, weights.ndim)
            found = self.kept(second, weights, axis, scale_x, bias) or self.weights(
                weights, axis, second, scale_x, bias
            )
            inputs.append(self.dequantized(node, second, weights, found))
            scales = found.scales
        self.products[node.output] = (scale_x, scales)
        added = ""
        if third and bias is not None and scale_x > 0 and not self.settings.float_bias:
            codes = bias_codes(bias, scale_x, scales, third)
            added = self.dequantized(node, third, bias, codes)
            inputs.append(added)
        elif third:
            inputs.append(self.value(third))
        if left is None and weights is not None:
            self.layers[node.output] = QuantizedLayer(
                *(node.name, node.op, node.output, ""), inputs[1], added, scale_x
            )
        return inputs

    def weights(
        self, values: Array, axis: int | None, name: str, scale_x: Fraction, bias: Array | None
    ) -> WeightCodes:
        check_constant(values, name)
        fmt = self.settings.format_of(values.min(initial=0), values.max(initial=0))
        fmt = self.settings.width_of(name, fmt, weights=True)
        bits = self.settings.scale_bits
        return weight_codes(values, axis, fmt, name, scale_x, bias, bits, self.finest)

    def kept(
        self, name: str, values: Array, axis: int | None, scale_x: Fraction, bias: Array | None
    ) -> WeightCodes | None:
        """The codes that weights have in the file, where they can stay what they are."""
        found = self.stored.get(name)
        whole = values is self.graph.constants[name]  # no factor has joined them
        if found is None or not whole or found.axis not in (None, axis):
            return None
        wanted = self.settings.format_of(values.min(), values.max())
        if found.format.bits > wanted.bits or name in self.settings.widths:
            return None
        return found if fits(found, scale_x, bias, self.finest) else None

    def weight_axis(self, node: Node, rank: int) -> int | None:
        """The axis of output channels, where each is to have a scale of its own."""
        if not self.settings.per_channel:
            return None
        if node.op == "Conv":
            return 0
        if node.op == "ConvTranspose":
            # Groups share positions along axis 1, so one scale there is not one per channel.
            return 1 if node.attributes["group"] == 1 else None
        if node.op == "Gemm":
            return 0 if node.attributes["transB"] else 1
        return 1 if rank == 2 else None

    def dequantized(self, node: Node, name: str, values: Array, found: WeightCodes) -> str:
        """DequantizeLinear of the codes of a constant that `node` reads."""
        codes = self.builder.constant(self.fresh(f"{name}.codes"), found.codes)
        kind = "" if found.format.bits == 32 else code_type(found.format)
        scale, zero_point = self.parameters(found.scales, found.zero_points, kind)
        made = self.builder.add(
            "DequantizeLinear",
            [codes, scale, zero_point] if kind else [codes, scale],
            {"axis": found.axis} if found.axis is not None else {},
            name=self.fresh(f"{name}.dequantize"),
            outputs=[self.fresh(f"{name}.dequantized")],
        )
        self.constants.append(QuantizedConstant(name, node.name, node.op, values, found, made))
        return made

    def parameters(
        self, scales: Sequence[Fraction], zero_points: Sequence[int], kind: str
    ) -> tuple[str, str]:
        """Constants of a scale and zero point: scalars where there is one."""
        shape = () if len(scales) == 1 else (len(scales),)
        stored = np.array([float(s) for s in scales], np.float32).reshape(shape)
        scale = self.builder.constant(self.fresh("scale"), stored)
        if not kind:
            return scale, ""
        codes = np.array(zero_points, kind).reshape(shape)
        return scale, self.builder.constant(self.fresh("zero_point"), codes)

    # --- names ------------------------------------------------------------------------------

    def is_output(self, name: str) -> bool:
        return name in self.graph.outputs

    def fresh(self, hint: str) -> str:
        """A name that neither graph has."""
        name, count = hint, 1
        while name in self.graph.values:
            count += 1
            name = f"{hint}.{count}"
        return self.builder.unique(name)

    def node_name(self, name: str) -> str:
        """Node and value names share one space here; values keep theirs."""
        return self.fresh(f"{name}.node") if name in self.graph.values else name


def _folded(
    attributes: dict[str, Any], weights: Array | None, bias: Array | None
) -> tuple[Array | None, Array | None]:
    """alpha and beta of a Gemm go into constant operands, each rounded to binary32."""
    if weights is not None and attributes["alpha"] != 1:
        weights = (weights.astype(np.float64) * attributes["alpha"]).astype(np.float32)
        attributes["alpha"] = 1.0
    if bias is not None and attributes["beta"] != 1:
        bias = (bias.astype(np.float64) * attributes["beta"]).astype(np.float32)
        attributes["beta"] = 1.0
    return weights, bias
