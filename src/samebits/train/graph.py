"""A model's forward pass as data: operations over numbered values, walked forward and backward.

A graph holds what a pass computes and nothing of the code that asked for it: no modules, no
autograd graph, no Python of the model's own. One walk of it gives the bits of the eager pass, since
the same operations run on the same values. `train.recording` makes graphs.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from samebits import kernels
from samebits.errors import RangeError, UnsupportedError
from samebits.train.layers.base import named_by
from samebits.train.operation import OperationCall, TrainingOperation, given_out, taken_in
from samebits.train.tensor import BFPParameter, BFPTensor
from samebits.train.value import BFPValue, Weight

FORWARD, BACKWARD = "forward", "backward"
"""The passes of a graph."""


@dataclass(frozen=True)
class Slot:
    """The value of this number; 0 is the model's input."""

    index: int


@dataclass(frozen=True)
class Parameter:
    """The state of a graph's parameter of this number."""

    index: int


@dataclass(frozen=True, eq=False)
class TrainingNode:
    """One operation of a graph.

    arguments: slots, parameters, and constants
    outputs:   numbers of the values that it gives
    wanted:    of each argument, whether its gradient is
    unread:    of each argument: a value without codes in place of one that the gradient does not
               read, or None
    where:     the layer that asks for it, for messages; "" for none
    ended:     values that nothing after it reads
    """

    operation: TrainingOperation
    arguments: tuple[Any, ...]
    outputs: tuple[int, ...]
    wanted: tuple[bool, ...]
    unread: tuple[BFPValue | None, ...]
    where: str = ""
    ended: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class TrainingGraph:
    """The operations of a forward pass, in order, for inputs of one shape.

    parameters: those it reads, as they are when it is walked
    output:     number of the value that the model returns
    """

    instructions: tuple[TrainingNode, ...]
    parameters: tuple[BFPParameter, ...]
    output: int

    def __call__(self, x: Tensor) -> BFPTensor:
        """The model's output for an input, by walks."""
        return called(self, Walks(self), x)

    @functools.cached_property
    def is_trained(self) -> bool:
        """Whether a gradient of anything is wanted."""
        return any(step.wanted for step in self.instructions)

    def __len__(self) -> int:
        return len(self.instructions)


Kept = list[tuple[TrainingNode, OperationCall]]
"""Calls of every instruction whose gradient may be asked for, in order."""


def forward(
    graph: TrainingGraph, x: Any, weights: Sequence[Weight], keep: bool
) -> tuple[BFPValue, Kept]:
    """The output of a pass, and with `keep` what its backward pass reads.

    Raises RangeError and UnsupportedError, which name the layer.
    """
    values: dict[int, Any] = {0: x}
    kept: Kept = []
    for step in graph.instructions:
        operation = step.operation
        kernels.on_behalf_of(step.where, FORWARD)
        arguments = [
            values[a.index] if type(a) is Slot else weights[a.index] if type(a) is Parameter else a
            for a in step.arguments
        ]
        try:
            output, saved = operation.run(arguments)
        except (RangeError, UnsupportedError) as error:
            raise named_by(error, step.where) from None
        if len(step.outputs) == 1:
            values[step.outputs[0]] = output
            if output.sums is not None:
                output.sums.where = step.where
        else:
            values.update(zip(step.outputs, output, strict=True))
        if keep and step.wanted:
            read = tuple(
                a if own is None else own for a, own in zip(arguments, step.unread, strict=True)
            )
            own = output if "y" in operation.reads else None
            kept.append((step, OperationCall(read, own, saved, step.wanted)))
        for index in step.ended:
            del values[index]
    return values[graph.output], kept


def backward(graph: TrainingGraph, kept: Kept, grad: BFPValue) -> list[BFPValue | None]:
    """The gradients of the parameters from that of the output. `kept` is used up."""
    gradients: dict[int, BFPValue] = {graph.output: grad}
    found: list[BFPValue | None] = [None] * len(graph.parameters)
    while kept:
        step, call = kept.pop()
        kernels.on_behalf_of(step.where, BACKWARD)
        given = [gradients.pop(index, None) for index in step.outputs]
        if not step.operation.apart:
            given = [None if g is None else g.summed() for g in given]
        own = step.operation.gradients(call, given)
        for argument, wanted, g in zip(step.arguments, step.wanted, own, strict=True):
            if g is None or not wanted:
                continue
            if type(argument) is Slot:
                before = gradients.get(argument.index)
                gradients[argument.index] = g if before is None else before + g
            else:
                before = found[argument.index]
                found[argument.index] = g if before is None else before + g
    return found


class GraphPasses(Protocol):
    """Who computes the passes of a graph."""

    def forward(self, x: Any, weights: Sequence[Weight], keep: bool) -> tuple[BFPValue, Any]:
        """The output, and with `keep` what the backward pass takes."""

    def backward(self, kept: Any, grad: BFPValue) -> list[BFPValue | None]:
        """The gradients of the parameters from that of the output. `kept` is used up."""


@dataclass(frozen=True)
class Walks:
    """The passes of a graph as walks."""

    graph: TrainingGraph

    def forward(self, x: Any, weights: Sequence[Weight], keep: bool) -> tuple[BFPValue, Any]:
        """As `forward`."""
        return forward(self.graph, x, weights, keep)

    def backward(self, kept: Any, grad: BFPValue) -> list[BFPValue | None]:
        """As `backward`."""
        return backward(self.graph, kept, grad)


def called(graph: TrainingGraph, passes: GraphPasses, x: Tensor) -> BFPTensor:
    """The output of a graph for an input; one node of autograd's, or none where none is wanted."""
    if torch.is_grad_enabled() and graph.is_trained:
        found: BFPTensor = _Whole.apply(passes, x, *graph.parameters)  # type: ignore[no-untyped-call]
        return found
    output, _ = passes.forward(taken_in(x), [p.value for p in graph.parameters], False)
    return BFPTensor.of(output)


class _Whole(torch.autograd.Function):
    """A whole graph as one function of its parameters."""

    @staticmethod
    def forward(ctx: Any, passes: GraphPasses, x: Tensor, *parameters: BFPParameter) -> BFPTensor:
        ctx.set_materialize_grads(False)
        weights = [p.value for p in parameters]
        output, ctx.kept = passes.forward(taken_in(x), weights, True)
        ctx.passes, ctx.weights = passes, weights
        ctx.versions = [w.versions() for w in weights]
        return BFPTensor.of(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> Any:
        """Raises UnsupportedError for a second backward pass, and for weights that changed."""
        kept, weights = ctx.kept, ctx.weights
        if grad is None:
            return (None,) * (2 + len(weights))
        if kept is None or [w.versions() for w in weights] != ctx.versions:
            raise UnsupportedError(
                "expected one backward pass for a forward pass, before the parameters change; "
                "compute the loss again"
            )
        ctx.kept = None
        assert isinstance(grad, BFPTensor)
        return None, None, *(given_out(g) for g in ctx.passes.backward(kept, grad.value))
