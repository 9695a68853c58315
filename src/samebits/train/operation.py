"""Records of training operations, and the one autograd function that computes any of them.

An operation is told once: its forward pass, its gradient, and what the gradient reads. Everything
else asks the record: autograd (here), graphs, and deployment.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from samebits.train.eager import require_eager
from samebits.train.tensor import BFPTensor
from samebits.train.value import BFPValue, Weight

Reads = Literal["x", "8", "w", "y"] | int


@dataclass(frozen=True, eq=False)
class TrainingOperation:
    """One operation of training over values.

    name:     in messages, frozen exponents and exported graphs: "MaxPool"
    forward:  (*arguments) -> the output: a value, a real tensor, or a tuple of values; with
              `saves`, a pair of it and a tuple of what else the gradient needs. Arguments that are
              BFP tensors are given as values, parameters as weights.
    gradient: (call, gradient of the output, ...) -> the gradients of the arguments in their order,
              a tuple that may end early, or that of the first alone. Gradients of values have one
              part; of an output that nobody used it is None. None: there is none.
    reads:    what the gradient reads of the call: "x" the codes of values among the arguments (or
              of those at some places, by number), "8" those of values of up to 8 bits, "w" those of
              weights (by number: with their delayed updates), "y" those of the output. All else of
              values that it may ask for is their shape.
    saves:    whether `forward` gives more to keep
    apart:    whether the gradient takes contributions apart, and hands them on so
    """

    name: str
    forward: Callable[..., Any]
    gradient: Callable[..., Any] | None = None
    reads: tuple[Reads, ...] = ()
    saves: bool = False
    apart: bool = False

    def __call__(self, *arguments: Any) -> Any:
        """Compute, or let the interpreter or the listener of this context do it."""
        require_eager()
        interpreter = _INTERPRETER.get()
        if interpreter is not None:
            return given_out(interpreter(self, *(taken_in(a) for a in arguments)))
        hear = _LISTENER.get()
        if hear is not None:
            return hear(self, arguments)
        return self.compute(*arguments)

    def compute(self, *arguments: Any) -> Any:
        """Compute in the training arithmetic; autograd hears of it where a gradient is wanted."""
        if torch.is_grad_enabled() and _any_wanted(arguments):
            return Recorded.apply(self, *arguments)  # type: ignore[no-untyped-call]
        return given_out(self.output(*(taken_in(a) for a in arguments)))

    def is_read(self, place: int, argument: BFPValue) -> bool:
        """Whether the gradient reads the codes of the argument at a place."""
        kind: Reads = "w" if isinstance(argument, Weight) else "x"
        narrow = "8" in self.reads and argument.bits <= 8
        return narrow or kind in self.reads or place in self.reads

    def output(self, *arguments: Any) -> Any:
        """The output of values and weights, in the training arithmetic."""
        return self.run(arguments)[0]

    def run(self, arguments: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:
        """The output of values and weights, and what else the gradient needs."""
        found = self.forward(*arguments)
        return found if self.saves else (found, ())

    def gradients(self, call: OperationCall, given: Sequence[Any]) -> tuple[Any, ...]:
        """The gradients of all arguments, from those of the outputs (values, real, or None)."""
        count = len(call.arguments)
        if self.gradient is None or all(g is None for g in given):
            return (None,) * count
        with torch._C._EnableTorchFunction():  # of numbers on a device, whoever calls autograd
            found = self.gradient(call, *given)
        several = found if isinstance(found, tuple) else (found,)
        return (*several, *[None] * (count - len(several)))

    def __repr__(self) -> str:
        return f"TrainingOperation({self.name})"


@dataclass(slots=True)
class OperationCall:
    """A call as its gradient sees it: arguments, output, what was saved, and what is wanted.

    Values whose codes the operation's gradient does not read have none; plain tensors are None.
    """

    arguments: tuple[Any, ...]
    output: Any
    saved: tuple[Any, ...]
    wanted: Sequence[bool] = ()


class Recorded(torch.autograd.Function):
    """The autograd function of every operation."""

    @staticmethod
    def forward(ctx: Any, operation: TrainingOperation, *arguments: Any) -> Any:
        """Compute, and keep what the gradient reads."""
        ctx.set_materialize_grads(False)
        given = tuple(taken_in(a) for a in arguments)
        output, saved = operation.run(given)
        held = _Held()
        kept = tuple(held.argument(*a, operation) for a in enumerate(given))
        own = held.output(output) if "y" in operation.reads else None
        ctx.call = OperationCall(kept, own, tuple(held.tensor(t) for t in saved))
        ctx.operation, ctx.real = operation, isinstance(output, Tensor)
        ctx.save_for_backward(*held.tensors)
        return given_out(output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        """The gradients that the operation's record says."""
        operation, call, tensors = ctx.operation, ctx.call, iter(ctx.saved_tensors)
        again = OperationCall(
            tuple(_whole(a, tensors) for a in call.arguments),
            _whole(call.output, tensors),
            tuple(_whole(t, tensors) for t in call.saved),
            ctx.needs_input_grad[1:],
        )
        given = [g if ctx.real else _arriving(g, operation.apart) for g in grads]
        return None, *(given_out(g) for g in operation.gradients(again, given))


def _any_wanted(arguments: Sequence[Any]) -> bool:
    """Whether autograd asks for the gradient of an argument."""
    with torch._C.DisableTorchFunctionSubclass():
        return any(isinstance(a, Tensor) and a.requires_grad for a in arguments)


def taken_in(argument: Any) -> Any:
    """An argument as operations take it: the value of a BFP tensor, all else as it is."""
    return argument.value if isinstance(argument, BFPTensor) else argument


def given_out(found: Any) -> Any:
    """The results of an operation as autograd sees them: BFP tensors for values."""
    if isinstance(found, tuple):
        return tuple(given_out(each) for each in found)
    return BFPTensor.of(found) if isinstance(found, BFPValue) else found


def _arriving(grad: Tensor | None, apart: bool) -> BFPValue | None:
    """The gradient of a value as an operation takes it: its parts summed, or apart.

    The sum takes the place of the parts, whose memory is free then: nothing is added to it any
    more. Raises TypeError for a float.
    """
    if grad is None:
        return None
    if not isinstance(grad, BFPTensor):
        raise TypeError(
            "expected a BFP gradient, found a float tensor: use samebits.train losses and layers"
        )
    if not apart:
        grad.value = grad.value.summed()
    return grad.value


# --- what autograd keeps between the passes ---------------------------------------------------


class _Held:
    """Tensors that autograd keeps, and watches for changes in place, out of a call.

    A marker, or a value without codes, stands for each in the call.
    """

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []

    def tensor(self, found: Any) -> Any:
        """Take a tensor out, and leave a marker; all else stays."""
        if not isinstance(found, Tensor):
            return found
        self.tensors.append(found)
        return _TENSOR

    def argument(self, place: int, argument: Any, operation: TrainingOperation) -> Any:
        """Take the codes of an argument out, or drop those that no gradient reads."""
        if isinstance(argument, Tensor):
            return None  # what a gradient needs of it, the operation saves
        if not isinstance(argument, BFPValue):
            return argument
        if not operation.is_read(place, argument):
            return argument.used_up()
        return self.output(argument, place in operation.reads)

    def output(self, value: Any, joint: bool = True) -> Any:
        """Take the codes of a value out, of a weight with `joint` the delayed updates too."""
        if isinstance(value, tuple):
            return tuple(self.output(each) for each in value)
        frame, tensors = value.without_tensors(joint)
        self.tensors.extend(tensors)
        return frame


_TENSOR = object()


def _whole(kept: Any, tensors: Iterator[Tensor]) -> Any:
    """Put back what `_Held` took out, in the same order."""
    if kept is _TENSOR:
        return next(tensors)
    if isinstance(kept, BFPValue) and kept.is_frame:
        return kept.with_tensors(tensors)
    if isinstance(kept, tuple) and any(isinstance(each, BFPValue) for each in kept):
        return tuple(_whole(each, tensors) for each in kept)
    return kept


# --- who computes -----------------------------------------------------------------------------


@contextlib.contextmanager
def setting(variable: ContextVar[Any], value: object) -> Iterator[None]:
    """A context variable has a value inside a with block."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


Interpreter = Callable[..., Any]  # (operation, *its arguments as values) -> values
_INTERPRETER: ContextVar[Interpreter | None] = ContextVar("interpreter", default=None)


def interpreting(interpreter: Interpreter) -> AbstractContextManager[Any]:
    """Give every operation inside a with block to `interpreter` (deployment does)."""
    return setting(_INTERPRETER, interpreter)


Listener = Callable[[TrainingOperation, tuple[Any, ...]], Any]  # computes, and notes what it likes
_LISTENER: ContextVar[Listener | None] = ContextVar("listener", default=None)


def listening(listener: Listener) -> AbstractContextManager[Any]:
    """Let a listener compute every operation inside a with block, by its `compute`."""
    return setting(_LISTENER, listener)


def is_interpreted() -> bool:
    """Whether operations compute something else than the training arithmetic (deployment does)."""
    return _INTERPRETER.get() is not None
