"""A quantized network as a torch.nn.Module whose forward pass is its integer graph.

Its codes are those of the deployed network, tensor by tensor: the forward pass is `TorchExecutor`
on the lowered graph, with weights and biases as inputs. Parameters are float weights in units of
the largest code; in every pass they are rounded to nearest codes. Scales and zero points, of
weights too, stay what quantization made them, so that no ratio and no table changes.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from samebits import progress
from samebits.errors import UnsupportedError
from samebits.finetuning.gradients import Call, check_trainable, least_code, smooth
from samebits.ir import Graph, GraphBuilder, Node, Trait, has
from samebits.ir.lowering.lower import lower_graph
from samebits.ir.real.quantize import is_stored
from samebits.pytorch.executor import TorchExecutor
from samebits.quantization.placement import row_added
from samebits.quantization.weights import LARGEST_BIAS, recoded

Array = np.ndarray[Any, Any]
Tensor = torch.Tensor

REAL = ""  # beside the names of values, none of which is empty

LEAST_BIAS_UNIT = 1 << 10  # of the parameter of a bias, in codes


@dataclass(frozen=True)
class TrainedLayer:
    """A layer of the integer graph whose weights are trained, and where its codes are stored.

    node:          of the integer graph, conv or linear
    weights, bias: outputs of DequantizeLinear in the quantized graph; "" where there is no bias
    zero:          zero point of its input, which its bias makes up for
    low, high:     ends of the codes of its weights, less their zero points [O, 1, ...]
    codes:         of the weights, less their zero points, as the integer graph has them
    start:         of the bias, [O]; rest: what else the bias of the integer graph holds
    """

    node: Node
    source: Node
    weights: str
    bias: str
    zero: int
    low: Array
    high: Array
    codes: Array
    start: Array
    rest: Array


class Trainable(nn.Module):
    """See the module.

    graph:  the quantized real graph
    layers: those that are trained; the others stay as they are

    A batch is any number of the graph's own: `torch.vmap` runs the graph for each, so that no
    operator has to know where samples lie. Raises UnsupportedError where a node has no rule for
    gradients or no layer can be trained.
    """

    def __init__(self, graph: Graph, device: str = "cpu") -> None:
        super().__init__()
        integer = lower_graph(graph)
        check_trainable(integer)
        self.source = graph
        self.layers = trained_layers(graph, integer)
        if not self.layers:
            raise UnsupportedError(
                f"graph {graph.name!r}: expected a Conv, Gemm or MatMul with constant weights to "
                "train, found none"
            )
        self.graph = opened(integer, [layer.node.name for layer in self.layers])
        self.executor = TorchExecutor(self.graph, device)
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        self.ends: list[tuple[Tensor, Tensor]] = []
        for layer in self.layers:
            low, high = (self.executor.tensor(end) for end in (layer.low, layer.high))
            self.ends.append((low, high))
            codes, start = map(self.executor.tensor, (layer.codes, layer.start))
            # binary64: the codes of a bias have up to 31 bits, which the first pass gives back.
            self.weights.append(nn.Parameter(codes.double() / self.weight_unit(layer)))
            self.biases.append(nn.Parameter(start.double() / self.bias_unit(layer)))
            self.biases[-1].requires_grad_(bool(layer.bias))
        self.rests = [self.executor.tensor(layer.rest) for layer in self.layers]

    @staticmethod
    def weight_unit(layer: TrainedLayer) -> float:
        """The codes that a weight's parameter of 1 stands for."""
        return float(layer.high.max())

    @staticmethod
    def bias_unit(layer: TrainedLayer) -> float:
        """The codes that a bias's parameter of 1 stands for."""
        return float(max(LEAST_BIAS_UNIT, np.abs(layer.start).max(initial=0)))

    def forward(self, codes: Tensor, values: dict[str, Tensor] | None = None) -> Tensor:
        """The first output as real numbers, binary32, with gradients: [samples, ...], each of them
        what the graph takes at once.

        codes:  of the input, int64, any number of them along axis 0
        values: gets the integers of what every node gives, [samples, ...]
        """
        given: dict[str, tuple[Tensor, Tensor]] = {}
        for index, name in enumerate(self.graph.inputs[1::2]):
            pair = self.graph.inputs[1 + 2 * index + 1]
            given[name], given[pair] = self.operands(index)
        kept = self.executor.unproved if values is None else {n.output for n in self.graph.nodes}
        samples = codes.reshape(-1, *self.graph.values[self.graph.inputs[0]].shape)
        found = self.executor.batched(partial(self._single, given, kept), samples)
        out = found.pop(REAL)
        self.executor.check(found)
        if values is not None:
            values.update(found)
        output = self.graph.values[self.graph.outputs[0]]
        assert output.quantization is not None
        scales = out.new_tensor([float(s) for s in output.quantization.scales])
        real = (out - output.quantization.zero_point) * (scales if len(scales) > 1 else scales[0])
        return real

    def _single(
        self, given: Mapping[str, tuple[Tensor, Tensor]], kept: Container[str], codes: Tensor
    ) -> dict[str, Tensor]:
        """The first output, REAL, of codes as the graph takes them, and the integers to keep.

        given: weights and biases, each as integers and as the same numbers with gradients
        """
        exact = {**self.executor.constants, **{name: pair[0] for name, pair in given.items()}}
        reals = {name: pair[1] for name, pair in given.items()}
        exact[self.graph.inputs[0]] = codes
        for node, function in self.executor.functions:
            operands = [exact[name] for name in node.inputs]
            for name in node.inputs:
                if name not in reals:
                    reals[name] = exact[name].float()
            exact[node.output] = function(*operands)
            least = least_code(self.graph, node)
            call = Call(node, function, operands, [reals[name] for name in node.inputs], least)
            reals[node.output] = _straight(smooth(call), exact[node.output])
        integers = {n.output: exact[n.output] for n in self.graph.nodes if n.output in kept}
        return {REAL: reals[self.graph.outputs[0]], **integers}

    def operands(self, index: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Weights and bias of a layer, each as integers and as the same numbers with gradients.

        The bias also subtracts the zero point of the layer's input times the weights.
        """
        layer, (low, high) = self.layers[index], self.ends[index]
        smooth_w = self.weights[index] * self.weight_unit(layer)
        smooth_w = smooth_w.clamp(low.double(), high.double())
        exact_w = self.weight_codes(index)
        smooth_b = self.biases[index] * self.bias_unit(layer)
        w = _straight(smooth_w.float(), exact_w)
        axes = tuple(range(1, exact_w.ndim))
        exact_b = self.bias_codes(index) + self.rests[index] - layer.zero * exact_w.sum(axes)
        b = _straight(smooth_b.float() - layer.zero * w.sum(axes), exact_b)
        return (exact_w, w), (exact_b, b)

    def weight_codes(self, index: int) -> Tensor:
        """The codes of a layer's weights, less their zero points: the nearest, of ties the even
        ones."""
        low, high = self.ends[index]
        real = self.weights[index].detach() * self.weight_unit(self.layers[index])
        return real.round().long().clamp(low, high)

    def bias_codes(self, index: int) -> Tensor:
        """The codes of a layer's bias; those it had where it is not trained."""
        layer = self.layers[index]
        if not layer.bias:
            return torch.zeros_like(self.rests[index])
        real = self.biases[index].detach() * self.bias_unit(layer)
        return real.round().long().clamp(-LARGEST_BIAS, LARGEST_BIAS)

    def quantized(self) -> Graph:
        """The quantized real graph with the present codes."""
        found: dict[str, Array] = {}
        for index, layer in enumerate(self.layers):
            codes = self.weight_codes(index).cpu().numpy()
            found[layer.weights] = _stored(self.source, layer, codes)
            if layer.bias:
                stored = _constant(self.source, layer.bias)
                bias = self.bias_codes(index).cpu().numpy()
                found[layer.bias] = bias.astype(np.int32).reshape(stored.shape)
        return recoded(self.source, found)

    def check(self, codes: Tensor) -> None:
        """UnsupportedError unless the quantized graph gives what `forward` gives for samples."""
        values: dict[str, Tensor] = {}
        with torch.no_grad():
            self(codes, values)
        deployed = lower_graph(self.quantized())
        kind = deployed.values[deployed.inputs[0]].dtype
        expected = TorchExecutor(deployed).run([codes.cpu().numpy().astype(kind)])[0]
        found = values[self.graph.outputs[0]].cpu().numpy()
        if not np.array_equal(found.reshape(expected.shape), expected):
            raise UnsupportedError(
                f"graph {self.source.name!r}: expected the codes that were trained, found others "
                "where the quantized graph computes them; fine-tune before quantizing"
            )


def _straight(through: Tensor, exact: Tensor) -> Tensor:
    """The exact numbers in binary32, with the gradient of what leads there without rounding."""
    return through + (exact.float() - through).detach()


# --- the graph --------------------------------------------------------------------------------


def opened(graph: Graph, layers: list[str]) -> Graph:
    """An integer graph with weights and bias of the layers, by name, as last inputs.

    Sums of the layers are int64: their range is not proved for weights that change.
    """
    if len(graph.inputs) != 1:
        raise UnsupportedError(
            f"graph {graph.name!r}: expected one input to fine-tune, found {len(graph.inputs)}"
        )
    builder = GraphBuilder(graph.name)
    source = graph.values[graph.inputs[0]]
    names = {
        source.name: builder.input(source.name, source.dtype, source.shape, source.quantization)
    }
    for name, array in graph.constants.items():
        names[name] = builder.constant(name, array, graph.values[name].quantization)
    given: dict[tuple[str, int], str] = {}
    for node in graph.nodes:
        for place in (1, 2) if node.name in layers else ():
            value = graph.values[node.inputs[place]]
            kind = "int32" if place == 2 else value.dtype
            given[node.name, place] = builder.input(value.name, kind, value.shape)
    for node in graph.nodes:
        attributes = dict(node.attributes)
        if node.name in layers:
            attributes["dtype"] = "int64"
        inputs = [given.get((node.name, i)) or names[name] for i, name in enumerate(node.inputs)]
        known = graph.values[node.output].quantization
        names[node.output] = builder.add(
            node.op, inputs, attributes, node.name, [node.output], known
        )
    return builder.build([names[name] for name in graph.outputs])


def trained_layers(graph: Graph, integer: Graph) -> list[TrainedLayer]:
    """Convolutions and products with one matrix whose weights are codes of their own, in both
    graphs."""
    sources = {node.name: node for node in graph.nodes}
    makers, readers = graph.producers(), graph.consumers()
    found = []
    for node in integer.nodes:
        source = sources.get(node.name)
        if node.op not in ("conv", "linear") or source is None or not has(source.op, Trait.PRODUCT):
            continue
        dequantize = makers.get(source.inputs[1])
        zero = _zero_point(graph, makers, source.inputs[0])
        if dequantize is None or not is_stored(dequantize, graph.constants) or zero is None:
            continue
        if len(readers[source.inputs[1]]) > 1:
            progress.note(
                f"node {node.name!r}: its weights, which others read too, are not trained"
            )
            continue
        found.append(
            _layer(graph, integer, node, source, _bias(graph, makers, readers, source), zero)
        )
    return found


def _layer(
    graph: Graph, integer: Graph, node: Node, source: Node, bias: str, zero: int
) -> TrainedLayer:
    """The layer `node` of the integer graph, `source` in the quantized one; bias: the value of its
    codes there, "" for none; zero: zero point of its input."""
    codes, total = (integer.constants[name].astype(np.int64) for name in node.inputs[1:3])
    outputs = len(codes)
    start = np.zeros(outputs, np.int64)
    if bias:
        start = np.broadcast_to(_constant(graph, bias).astype(np.int64).reshape(-1), outputs).copy()
    stored = _constant(graph, source.inputs[1])
    zeros = _zero_points(graph, source.inputs[1])
    info = np.iinfo(stored.dtype)
    low, high = info.min - zeros, info.max - zeros
    largest = int(np.abs(codes).max(initial=1))
    if info.min and not zeros.any() and largest <= info.max:
        # Codes of 4 bits stay such; where none is the least of the type, none becomes it.
        high = np.full_like(zeros, 7 if largest <= 7 else info.max)
        low = -high
    low, high = (
        np.broadcast_to(end, outputs).reshape(-1, *[1] * (codes.ndim - 1)) for end in (low, high)
    )
    folded = zero * codes.reshape(outputs, -1).sum(1)
    rest = total - (start - folded)
    weights = source.inputs[1]
    return TrainedLayer(node, source, weights, bias, zero, low, high, codes, start, rest)


def _constant(graph: Graph, dequantized: str) -> Array:
    """The codes behind a value that DequantizeLinear makes."""
    return graph.constants[graph.producers()[dequantized].inputs[0]]


def _zero_points(graph: Graph, dequantized: str) -> Array:
    """The zero points of such a value, one for each scale; zeros where none is stored."""
    inputs = graph.producers()[dequantized].inputs
    if len(inputs) < 3 or not inputs[2]:
        return np.zeros(1, np.int64)
    return graph.constants[inputs[2]].astype(np.int64).reshape(-1)


def _zero_point(graph: Graph, makers: Mapping[str, Node], name: str) -> int | None:
    """The zero point of the codes behind an input of a layer, through movements and clips."""
    while name in makers:
        node = makers[name]
        if node.op == "DequantizeLinear":
            zeros = set(_zero_points(graph, name).tolist())
            return int(zeros.pop()) if len(zeros) == 1 else None
        name = node.inputs[0]
    return None


def _bias(
    graph: Graph, makers: Mapping[str, Node], readers: Mapping[str, list[Node]], source: Node
) -> str:
    """The value that DequantizeLinear makes of a layer's int32 bias; "" for none, and for one that
    other nodes read."""
    name, following = next(iter(source.inputs[2:]), ""), readers[source.output]
    if not name and len(following) == 1 and source.output not in graph.outputs:
        name = row_added(graph, source, following[0])
    node = makers.get(name)
    codes = graph.constants.get(node.inputs[0]) if node is not None else None
    alone = codes is not None and codes.dtype == np.int32 and len(readers[name]) == 1
    return name if alone else ""


def _stored(graph: Graph, layer: TrainedLayer, codes: Array) -> Array:
    """Codes of the integer graph, [O, KH, KW, C] or [O, K], as the quantized graph stores them."""
    before = _constant(graph, layer.weights)
    if layer.node.op == "conv":
        codes = codes.transpose(0, 3, 1, 2).reshape(before.shape)
    elif not layer.source.attributes.get("transB"):
        codes = codes.T
    maker = graph.producers()[layer.weights]
    zeros = _zero_points(graph, layer.weights)
    shape = [1] * before.ndim
    if zeros.size > 1:
        shape[maker.attributes["axis"] % before.ndim] = -1
    return np.ascontiguousarray((codes + zeros.reshape(shape)).astype(before.dtype))
