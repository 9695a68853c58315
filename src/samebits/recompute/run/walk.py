"""One forward and backward pass of a BFP model's graph, operation by operation.

What the gradient of an operation reads is said by its record, so a value is an entry in a table:
dropping it frees its memory, and computing it again is running the same operation on the same
values. Two things must not happen twice: a change of running state, which is left out the second
time, and the drawing of a mask, whose place is kept from the first. What the first computation read
of state that changes (the magnitudes of channels) is kept, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from samebits.errors import InputError, RangeError, UnsupportedError
from samebits.recompute.network.graph import GraphTape, StepOutput
from samebits.recompute.network.sublayer import PassNetwork
from samebits.train.deferred import deferred_updates
from samebits.train.graph import Parameter
from samebits.train.layers.base import named_by
from samebits.train.operation import OperationCall, taken_in
from samebits.train.recording import kind_of
from samebits.train.shifts import ChannelPeaks
from samebits.train.tensor import BFPTensor
from samebits.train.value import BFPValue

Given = tuple[BFPValue | None, ...]  # gradients of a step's outputs
Gradients = tuple[Tensor | None, ...]  # of a sub-layer's weights


class GraphPass:
    """A pass of a tape, as far as it has come; its values are tuples of a step's outputs.

    recomputed: the values that will be computed again; what this takes is kept from the first time
    values, gradients: those that are there, by the number of the step
    parameter_gradients: parameter and gradient, by the id of the parameter, until it is handed over
    saved: what gradients need besides values, by step
    """

    def __init__(self, tape: GraphTape, network: PassNetwork, recomputed: frozenset[int]) -> None:
        self.tape, self.network, self.recomputed = tape, network, recomputed
        self.values: dict[int, Any] = {}
        self.gradients: dict[int, Any] = {}
        self.parameter_gradients: dict[int, tuple[Tensor, Tensor]] = {}  # of shared parameters
        self.replays: dict[int, Any] = {}
        self.weights = [p.value for p in tape.graph.parameters]
        self.versions = [w.versions() for w in self.weights]
        self.saved: dict[int, tuple[Any, ...]] = {}

    # --- values -----------------------------------------------------------------------------

    def start(self, x: Tensor, differentiable: bool) -> None:
        """Take the input. Raises UnsupportedError where its gradient is wanted, and InputError for
        one of another kind than the plan's."""
        if differentiable:
            raise UnsupportedError(
                "expected an input that requires no gradient, found one that does; train without "
                "a plan"
            )
        if kind_of(x) != self.tape.input_kind:
            raise InputError(
                "this plan is for inputs of one type, width and place, found one of another; plan "
                "again for such inputs"
            )
        self.values[0] = (taken_in(x),)

    def result(self) -> Tensor:
        """The model's output."""
        return BFPTensor.of(self._value(self.tape.result))

    def forward(self, index: int) -> None:
        """Compute a step for the first time.

        What its gradient needs besides values is kept if its value stays, or if that is little
        (`light`).
        """
        arguments = self.tape.calls[index].arguments
        again = index in self.recomputed
        if again:
            arguments = tuple(_drawn(a) for a in arguments)
            self.replays[index] = tuple(_unchanging(a) for a in arguments)
        self._compute(index, arguments, not again or self.network.layers[index].light)

    def recompute(self, index: int) -> None:
        """Compute a step again, with what it read the first time; running state stays."""
        with deferred_updates():
            self._compute(index, self.replays.pop(index), index not in self.saved)

    def read(self, index: int) -> Any:
        """A value that is there; a view is made again from what it is a view of."""
        value = self.values.get(index)
        if value is None:
            if self.network.layers[index].alias is None:
                raise AssertionError(f"value {index} is read after it was freed")
            with torch.no_grad():
                value, _ = self._run(index, self.tape.calls[index].arguments)
        return value

    def free(self, index: int) -> None:
        """Drop a value and the views of it."""
        for v in self.network.views[index]:
            self.values.pop(v, None)

    def _compute(self, index: int, arguments: Sequence[Any], keep: bool) -> None:
        self.values[index], saved = self._run(index, arguments)
        if keep and self._step(index).wanted:
            self.saved[index] = saved

    def _step(self, index: int) -> Any:
        return self.tape.calls[index].node

    def _run(self, index: int, arguments: Sequence[Any]) -> tuple[tuple[Any, ...], Any]:
        """The outputs of a step, and what its gradient needs besides."""
        node = self._step(index)
        try:
            output, saved = node.operation.run([self._argument(a) for a in arguments])
        except (RangeError, UnsupportedError) as error:
            raise named_by(error, node.where) from None
        outputs = output if isinstance(output, tuple) else (output,)
        if (sums := outputs[0].sums) is not None:
            sums.where = node.where
            if index in self.tape.widths:
                outputs = (outputs[0].narrowed(self.tape.widths[index]),)
            else:
                sums.keep()
        return outputs, saved

    def _argument(self, argument: Any) -> Any:
        if type(argument) is StepOutput:
            return self._value(argument)
        return self.weights[argument.index] if type(argument) is Parameter else argument

    def _value(self, place: StepOutput) -> Any:
        return self.read(place.step)[place.output]

    # --- gradients --------------------------------------------------------------------------

    def arrive(self, gradient: Tensor) -> None:
        """Take the gradient of the output. Raises UnsupportedError for weights that changed."""
        if [w.versions() for w in self.weights] != self.versions:
            raise UnsupportedError(
                "expected parameters as they were in the forward pass, found others; compute the "
                "loss again"
            )
        assert isinstance(gradient, BFPTensor)
        self._add(self.tape.result, gradient.value)

    def has_backward(self, index: int) -> bool:
        """Whether a step has a gradient to compute."""
        return index in self.saved and index in self.gradients

    def targets(self, index: int) -> list[int]:
        """The steps whose outputs a step has gradients of."""
        return list(self.tape.calls[index].targets)

    def backward(self, index: int) -> None:
        """Gradients of a step's inputs and weights from those of its outputs."""
        found: Given = ()
        if self.has_backward(index):
            found = self._gradients(index, StepOutput, Parameter)
            self._pass_on(index, found)
        self.join(index, self._of_parameters(index, found))

    def activation_gradient(self, index: int) -> None:
        """Gradients of a step's inputs alone."""
        if self.has_backward(index):
            self._pass_on(index, self._gradients(index, StepOutput))

    def weight_gradient(self, index: int) -> Gradients:
        """Gradients of a step's weights alone, after those of its inputs: in any thread."""
        found = self._gradients(index, Parameter) if self.has_backward(index) else ()
        return self._of_parameters(index, found)

    def join(self, index: int, found: Gradients) -> None:
        """Take the gradients of weights, and let go of what they were computed from."""
        for p, gradient in zip(self.tape.parameters(index), found, strict=False):
            if gradient is not None:
                _, before = self.parameter_gradients.get(id(p), (p, None))
                whole = gradient if before is None else _together(before, gradient)
                self.parameter_gradients[id(p)] = (p, whole)
        self.gradients.pop(index, None)
        self.saved.pop(index, None)

    def settle(self, parameters: Sequence[int]) -> None:
        """Hand the gradients of parameters (by id) over to `.grad`: no more contributions come."""
        for key in parameters:
            entry = self.parameter_gradients.pop(key, None)
            if entry is not None:
                _accumulate(*entry)

    def merged(self, a: Given, b: Given) -> Given:
        """Two gradients of a value, both of which count."""
        return tuple(
            x if y is None else y if x is None else x + y for x, y in zip(a, b, strict=True)
        )

    def _gradients(self, index: int, *kinds: type) -> Given:
        """The gradients of a step's arguments of these kinds.

        The sum of a gradient takes the place of its parts, whose memory is free then.
        """
        step, node = self.tape.calls[index], self._step(index)
        if not node.operation.apart:
            self.gradients[index] = tuple(
                None if g is None else g.summed() for g in self.gradients[index]
            )
        wanted = tuple(
            w and type(a) in kinds for a, w in zip(step.arguments, node.wanted, strict=True)
        )
        arguments = tuple(
            self._argument(a) if unread is None else unread
            for a, unread in zip(step.arguments, node.unread, strict=True)
        )
        output = self.read(index) if "y" in node.operation.reads else (None,)
        own = output if len(output) > 1 else output[0]
        call = OperationCall(arguments, own, self.saved[index], wanted)
        found = node.operation.gradients(call, self.gradients[index])
        return tuple(g if w else None for g, w in zip(found, wanted, strict=True))

    def _pass_on(self, index: int, found: Given) -> None:
        """Add gradients of arguments to those that other readers gave."""
        for place, gradient in zip(self.tape.calls[index].arguments, found, strict=True):
            if type(place) is StepOutput and gradient is not None:
                self._add(place, gradient)

    def _add(self, place: StepOutput, gradient: BFPValue) -> None:
        outputs = self._step(place.step).outputs
        new = tuple(gradient if at == place.output else None for at in range(len(outputs)))
        before = self.gradients.get(place.step)
        self.gradients[place.step] = new if before is None else self.merged(before, new)

    def _of_parameters(self, index: int, found: Given) -> Gradients:
        """The gradients of the parameters that are trained, in their order."""
        sums: dict[int, Tensor] = {}
        for a, gradient in zip(self.tape.calls[index].arguments, found, strict=False):
            if type(a) is Parameter and gradient is not None:
                key, own = id(self.tape.graph.parameters[a.index]), BFPTensor.of(gradient)
                sums[key] = own if key not in sums else _together(sums[key], own)
        return tuple(sums.get(id(p)) for p in self.tape.parameters(index))


def _together(a: Tensor, b: Tensor) -> Tensor:
    """Both contributions to the gradient of a parameter, apart."""
    assert isinstance(a, BFPTensor)
    assert isinstance(b, BFPTensor)
    return BFPTensor.of(a.value + b.value)


def _accumulate(parameter: Tensor, gradient: Tensor) -> None:
    """Add a gradient to a parameter's `.grad`, as autograd does at a leaf.

    The first gradient is taken over, not copied; hooks are called either way.
    """
    if parameter.grad is None:
        parameter.grad = gradient
        for hook in (parameter._post_accumulate_grad_hooks or {}).values():
            hook(parameter)
    else:
        torch.autograd.backward([parameter], [gradient])


def _drawn(argument: Any) -> Any:
    """An argument of which the place of a mask, drawn now, stays."""
    if not callable(argument):
        return argument
    place = argument()
    return lambda: place


def _unchanging(argument: Any) -> Any:
    """An argument as it is now, whatever changes running state."""
    if isinstance(argument, ChannelPeaks):
        return replace(argument, peaks=argument.peaks.clone())
    return argument


def state_size(arguments: Sequence[Any]) -> int:
    """Bytes that are kept to compute a step of these arguments again."""
    return sum(a.peaks.nbytes for a in arguments if isinstance(a, ChannelPeaks))
