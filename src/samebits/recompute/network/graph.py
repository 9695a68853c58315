"""A BFP model's forward pass as a tape: the operations of its training graph.

The graph says what an operation reads, what its gradient reads, and what it keeps besides. So a
plan of it needs no hooks: a value that is dropped is an operation that runs again before its
reader.

Exact sums have no width until somebody takes them. Here they are rounded at once to the 8 bits that
layers take, or the 16 of a batch norm, unless somebody reads the sums themselves, as a loss does,
or they are taken at both widths; the operations that narrow them are then none. A ReLU that alone
takes the sums of an operation is one step with it.

Example: Linear, ReLU, Linear, MaxPool, Linear are recorded as Products, Relu, Products, Narrow,
MaxPool, Products. Their tape is Products with Relu, Products, MaxPool, Products.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from torch import Tensor, nn

from samebits.errors import UnsupportedError
from samebits.recompute.network.guards import watched
from samebits.train.graph import Parameter, Slot, TrainingGraph, TrainingNode
from samebits.train.layers.base import layer_in
from samebits.train.operation import OperationCall, TrainingOperation
from samebits.train.operations.activations import RELU
from samebits.train.operations.narrow import NARROW, SHORT
from samebits.train.recording import kind_of, traced
from samebits.train.sums import Sums
from samebits.train.tensor import BFPParameter
from samebits.train.value import BFPValue


@dataclass(frozen=True)
class StepOutput:
    """An output of a step; that of step 0 is the model's input."""

    step: int
    output: int


@dataclass(frozen=True, eq=False)
class ClampedOperation(TrainingOperation):
    """An operation that gives exact sums, and the ReLU of these: one operation."""

    first: TrainingOperation = RELU

    @staticmethod
    def of(first: TrainingOperation, clip: int) -> ClampedOperation:
        """An operation and the ReLU behind it; clip: its clip value, 0 for none."""

        def forward(*arguments: Any) -> tuple[Any, tuple[Any, ...]]:
            output, saved = first.run(arguments)
            y, mask = RELU.run((output, clip))
            return y, (saved, mask)

        def gradient(call: OperationCall, grad: BFPValue) -> tuple[Any, ...]:
            saved, mask = call.saved
            g, *_ = RELU.gradients(OperationCall((None, clip), None, mask), [grad])
            return first.gradients(OperationCall(call.arguments, None, saved, call.wanted), [g])

        return ClampedOperation(first.name, forward, gradient, first.reads, True, first=first)


@dataclass(frozen=True, eq=False)
class Step:
    """An operation of a tape.

    name, kind: as messages show them: of the layer that asks for it, else of the operation
    arguments:  places, parameters and constants
    """

    name: str
    kind: str
    node: TrainingNode | None = None
    arguments: tuple[Any, ...] = ()

    @property
    def operation(self) -> TrainingOperation:
        """The operation, without the ReLU that may follow in the same step."""
        assert self.node is not None
        found = self.node.operation
        return found.first if isinstance(found, ClampedOperation) else found

    @functools.cached_property
    def inputs(self) -> tuple[int, ...]:
        """The distinct steps whose outputs it reads."""
        return tuple(dict.fromkeys(a.step for a in self.arguments if type(a) is StepOutput))

    @functools.cached_property
    def targets(self) -> tuple[int, ...]:
        """The distinct steps whose outputs it has a gradient of."""
        wanted = zip(self.arguments, self.node.wanted if self.node else (), strict=False)
        return tuple(dict.fromkeys(a.step for a, w in wanted if w and type(a) is StepOutput))

    def needs(self, index: int) -> list[int]:
        """The steps whose outputs its gradient reads; `index` is its own."""
        if self.node is None or not self.node.wanted:
            return []
        given = zip(self.arguments, self.node.unread, strict=True)
        own = [index] if "y" in self.node.operation.reads else []
        return [a.step for a, unread in given if type(a) is StepOutput and unread is None] + own


@dataclass(frozen=True, eq=False)
class GraphTape:
    """The operations of a model, in the order of execution.

    calls:  the computation of value i at index i; calls[0] stands for the input
    result: the place that the model returns
    widths: of the steps whose sums are rounded at once, the bits of the codes
    input_kind: all of an input but its codes
    modes:  the model's modules, and which of them were in training mode when it was traced
    """

    model: nn.Module
    graph: TrainingGraph
    calls: tuple[Step, ...]
    result: StepOutput
    widths: dict[int, int]
    input_kind: tuple[Any, ...]
    modes: tuple[tuple[nn.Module, bool], ...]

    @property
    def output(self) -> int:
        """The step whose value the model returns."""
        return self.result.step

    def parameters(self, index: int) -> list[BFPParameter]:
        """Distinct trained parameters that a step reads."""
        return [p for p in self.read_parameters(index) if p.requires_grad]

    def read_parameters(self, index: int) -> list[BFPParameter]:
        """Distinct parameters that a step reads."""
        read = [a.index for a in self.calls[index].arguments if type(a) is Parameter]
        return [self.graph.parameters[i] for i in dict.fromkeys(read)]


def trace_graph(model: nn.Module, example: Tensor) -> GraphTape:
    """The tape of a BFP model for inputs like `example`, in the model's present mode.

    Runs the model once; the caller keeps its state. Raises UnsupportedError where there can be no
    graph, and where forward code has state of its own.
    """
    with watched(model):
        try:
            graph, values = traced(model, example)
        except UnsupportedError as error:
            words = f"{type(model).__name__}: {error}; train without a plan"
            raise UnsupportedError(words) from None
    return _tape(model, graph, values, kind_of(example))


def _tape(
    model: nn.Module, graph: TrainingGraph, values: Sequence[Any], kind: tuple[Any, ...]
) -> GraphTape:
    """The tape of a graph, without the operations that narrow what is narrow already."""
    sums = [value.sums if isinstance(value, BFPValue) else None for value in values]
    last = sums[graph.output]
    is_open = [
        s is not None
        and not (s.read or s is last or s.is_clamped or len(s.taken) > 1)
        and type(value) is BFPValue
        for s, value in zip(sums, values, strict=True)
    ]
    places = {0: StepOutput(0, 0)}
    calls, widths, joined = [Step("input", "input")], dict[int, int](), _joined(graph, sums)
    for node in graph.instructions:
        arguments = tuple(places[a.index] if type(a) is Slot else a for a in node.arguments)
        given = node.arguments[0]
        narrows = node.operation in (NARROW, SHORT) and type(given) is Slot and is_open[given.index]
        if narrows or node in joined.values():
            places[node.outputs[0]] = arguments[0]
            continue
        if node in joined:
            operation = ClampedOperation.of(node.operation, joined[node].arguments[1])
            node = replace(node, operation=operation)
        elif (s := sums[node.outputs[0]]) is not None and is_open[node.outputs[0]]:
            widths[len(calls)] = next(iter(s.taken), s.bits)
        places.update((slot, StepOutput(len(calls), at)) for at, slot in enumerate(node.outputs))
        calls.append(Step("", "", node, arguments))
    named = (calls[0], *_named(calls[1:]))
    modes = tuple((module, module.training) for module in model.modules())
    return GraphTape(model, graph, named, places[graph.output], widths, kind, modes)


def _joined(graph: TrainingGraph, sums: Sequence[Sums | None]) -> dict[TrainingNode, TrainingNode]:
    """The operations whose sums a ReLU alone takes, as they are, and that ReLU."""
    makers = {node.outputs[0]: node for node in graph.instructions if len(node.outputs) == 1}
    readers: dict[int, list[TrainingNode]] = {}
    for node in graph.instructions:
        for a in node.arguments:
            if type(a) is Slot:
                readers.setdefault(a.index, []).append(node)
    found = {}
    for index, own in readers.items():
        s, maker = sums[index], makers.get(index)
        if s is None or s.read or maker is None or index == graph.output:
            continue
        is_moved = any(type(a) is Slot and sums[a.index] is s for a in maker.arguments)
        if [node.operation for node in own] == [RELU] and not is_moved:
            found[maker] = own[0]
    return found


def _named(calls: Sequence[Step]) -> list[Step]:
    """Steps by the layers that ask for them.

    A step alone in its layer, and each that reads a parameter, is of the layer's kind.
    """
    found: list[Step] = []
    counts: Counter[str] = Counter()
    for where, group in groupby(calls, lambda step: step.node.where if step.node else ""):
        steps, (path, layer) = list(group), layer_in(where)
        for step in steps:
            assert step.node is not None
            own = len(steps) == 1 or any(type(a) is Parameter for a in step.arguments)
            kind = layer if layer and own else step.node.operation.name
            name = path or kind
            counts[name] += 1
            unique = name if counts[name] == 1 else f"{name}#{counts[name]}"
            found.append(replace(step, name=unique, kind=kind))
    return found
