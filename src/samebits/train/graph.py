"""A model's forward pass as data: operations over numbered values, walked forward and backward.

A graph holds what a pass computes and nothing of the code that asked for it: no modules, no
autograd graph, no Python of the model's own. One walk of it gives the bits of the eager pass, since
the same operations run on the same values. `train.recording` makes graphs.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from samebits.errors import RangeError, UnsupportedError
from samebits.train.layers.base import named_by
from samebits.train.operation import OperationCall, TrainingOperation, given_out, taken_in
from samebits.train.tensor import BFPParameter, BFPTensor
from samebits.train.value import BFPValue, Weight


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
        """The model's output for an input; one node of autograd's, or none where none is wanted."""
        if torch.is_grad_enabled() and self.is_trained:
            found: BFPTensor = _Walked.apply(self, x, *self.parameters)  # type: ignore[no-untyped-call]
            return found
        output, _ = forward(self, taken_in(x), [p.value for p in self.parameters], False)
        return BFPTensor.of(output)

    @functools.cached_property
    def is_trained(self) -> bool:
        """Whether a gradient of anything is wanted."""
        return any(step.wanted for step in self.instructions)

    def __len__(self) -> int:
        return len(self.instructions)


@dataclass(slots=True)
class Kept:
    """The state between a forward walk and the backward one.

    calls:    of every instruction whose gradient may be asked for, in order
    versions: of the weights, as they were
    """

    calls: list[tuple[TrainingNode, OperationCall]] = field(default_factory=list)
    versions: list[tuple[int, int, int]] = field(default_factory=list)


def forward(
    graph: TrainingGraph, x: Any, weights: Sequence[Weight], keep: bool
) -> tuple[BFPValue, Kept]:
    """The output of a pass, and with `keep` what its backward pass reads.

    Raises RangeError and UnsupportedError, which name the layer.
    """
    values: dict[int, Any] = {0: x}
    kept = Kept()
    for step in graph.instructions:
        operation = step.operation
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
            kept.calls.append((step, OperationCall(read, own, saved, step.wanted)))
        for index in step.ended:
            del values[index]
    if keep:
        kept.versions = [w.versions() for w in weights]
    return values[graph.output], kept


def backward(graph: TrainingGraph, kept: Kept, grad: BFPValue) -> list[BFPValue | None]:
    """The gradients of the parameters from that of the output. `kept` is used up."""
    gradients: dict[int, BFPValue] = {graph.output: grad}
    found: list[BFPValue | None] = [None] * len(graph.parameters)
    while kept.calls:
        step, call = kept.calls.pop()
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


class _Walked(torch.autograd.Function):
    """A whole graph as one function of its parameters."""

    @staticmethod
    def forward(ctx: Any, graph: TrainingGraph, x: Tensor, *parameters: BFPParameter) -> BFPTensor:
        ctx.set_materialize_grads(False)
        weights = [p.value for p in parameters]
        output, ctx.kept = forward(graph, taken_in(x), weights, True)
        ctx.graph, ctx.weights = graph, weights
        return BFPTensor.of(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> Any:
        """Raises UnsupportedError for a second backward pass, and for weights that changed."""
        graph, kept, weights = ctx.graph, ctx.kept, ctx.weights
        if grad is None:
            return (None,) * (2 + len(graph.parameters))
        if kept is None or [w.versions() for w in weights] != kept.versions:
            raise UnsupportedError(
                "expected one backward pass for a forward pass, before the parameters change; "
                "compute the loss again"
            )
        ctx.kept = None
        assert isinstance(grad, BFPTensor)
        return None, None, *(given_out(g) for g in backward(graph, kept, grad.value))
