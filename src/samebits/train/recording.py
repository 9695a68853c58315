"""Graphs of models: recorded when a model first runs on inputs of a shape, proved, and guarded.

A graph takes for granted that the forward code asks for the same operations again. It may, where
all of that code is known (torch's, and this package's), reads nothing of the values, and finds the
modules as they were. What is not so runs as before, with the same bits, and says why once.
"""

from __future__ import annotations

import contextlib
import copy
import operator
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, _pop_mode_temporarily
from torch.utils._pytree import tree_leaves

from samebits import progress
from samebits.errors import RangeError, UnsupportedError
from samebits.train.deferred import deferred_updates
from samebits.train.graph import Parameter, Slot, TrainingGraph, TrainingNode
from samebits.train.layers import Dropout, Layer, dropouts
from samebits.train.layers.base import WHERE
from samebits.train.operation import TrainingOperation, listening
from samebits.train.routines import RecordedGraph
from samebits.train.tensor import BFPParameter, BFPTensor
from samebits.train.value import BFPValue, same_parts

KNOWN = ("torch", "samebits", "torchvision")
"""Packages whose forward code reads nothing but its arguments and its module."""
ATTEMPTS = 3  # at a graph for inputs of a shape, before the model runs without one
MOST = 32  # shapes of inputs that have graphs
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class GraphedModel:
    """A model that is walked as a graph where it can be, and called where it cannot."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.reason = ""  # why it last ran without a graph
        self.slow: list[str] = []  # why graphs are walked
        self._graphs: dict[Any, tuple[RecordedGraph, Guard]] = {}
        self._attempts: Counter[Any] = Counter()

    def __call__(self, x: Tensor) -> Any:
        """The model's output, by a graph or not: a graph gives its input no gradient."""
        wanted = x.requires_grad and torch.is_grad_enabled()
        graph = None if wanted else self.graph(x)
        return self.model(x) if graph is None else graph(x)

    def _say_slow(self, reason: str) -> None:
        """Tell once why kernels are called one by one."""
        if reason not in self.slow:
            self.slow.append(reason)
            progress.note(f"kernels are called one by one, which is slower: {reason}")

    def known(self, x: Tensor) -> RecordedGraph | None:
        """The graph for an input, if there is one that is good for the model as it is."""
        found = self._graphs.get(self._key(x))
        return found[0] if found is not None and found[1].holds() else None

    def _key(self, x: Tensor) -> Any:
        return kind_of(x), self.model.training, torch.is_grad_enabled()

    def graph(self, x: Tensor) -> RecordedGraph | None:
        """The graph for an input, recorded when its shape comes the second time.

        None where there is none, and where there can be none.
        """
        key, known = self._key(x), self.known(x)
        if known is not None:
            return known
        self._attempts[key] += 1
        if not 1 < self._attempts[key] <= 1 + ATTEMPTS or len(self._graphs) >= MOST:
            return None
        try:
            found = RecordedGraph(record(self.model, x), self._say_slow)
        except UnsupportedError as error:
            self._attempts[key] = 1 + ATTEMPTS
            if str(error) != self.reason:
                self.reason = str(error)
                progress.note(f"steps run without a graph: {error}")
            return None
        self._graphs[key] = found, Guard(self.model)
        return found


def kind_of(x: Tensor) -> tuple[Any, ...]:
    """Shape, width and place of an input: all that a graph depends on beside its codes."""
    own = (tuple(x.shape), x.device)
    if not isinstance(x, BFPTensor):
        return (*own, x.dtype)
    return (*own, x.bits, x.by_rows, x.layer_bits, x.is_open, x.shifts is None)


# --- guards -----------------------------------------------------------------------------------


class Guard:
    """The facts about a model's modules that a graph takes for granted.

    Of each: its class, attributes, hooks, children, parameters and whether they are trained,
    buffers; of buffers of other people's modules also that nobody wrote to them. All are compared
    at once: a guard takes no time that Python would notice.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = list(model.modules())
        self._own = [vars(module) for module in self._modules]
        self._kinds = [type(module) for module in self._modules]
        self._attributes = [_copied(own) for own in self._own]
        self._moving = [
            (known, own, module.POSITION)
            for known, own, module in zip(self._attributes, self._own, self._modules, strict=True)
            if isinstance(module, Dropout)
        ]
        self._places = [
            (own[kind], name)
            for own in self._own
            for kind in ("_parameters", "_buffers")
            for name in own[kind]
        ]
        self._tensors = [held[name] for held, name in self._places]
        with torch._C.DisableTorchFunctionSubclass():
            self._trained = [t is not None and t.requires_grad for t in self._tensors]
        self._written = [
            buffer
            for module in self._modules
            if not isinstance(module, Layer)
            for buffer in module._buffers.values()
            if buffer is not None
        ]
        self._versions = self._own_versions()

    def _own_versions(self) -> list[int]:
        return [buffer._version for buffer in self._written]

    def holds(self) -> bool:
        """Whether all is as it was."""
        try:
            with torch._C.DisableTorchFunctionSubclass():  # of a parameter only flags are asked for
                tensors = [held[name] for held, name in self._places]
                for known, own, names in self._moving:  # positions of dropouts count on
                    for name in names:
                        known[name] = own[name]
                return (
                    all(map(operator.is_, tensors, self._tensors))
                    and self._kinds == [module.__class__ for module in self._modules]
                    and self._trained == [t is not None and t.requires_grad for t in tensors]
                    and (not self._written or self._versions == self._own_versions())
                    and self._attributes == self._own
                )
        except (KeyError, RuntimeError, TypeError, ValueError):  # others, which do not compare
            return False


def _copied(own: dict[str, Any]) -> dict[str, Any]:
    """Attributes of a module, with containers that stay as they are now."""
    return {n: copy.copy(v) if isinstance(v, dict | list | set) else v for n, v in own.items()}


def _check(model: nn.Module, trusted: bool) -> None:
    """UnsupportedError where a model's forward code may do what a graph does not repeat."""
    for path, module in model.named_modules():
        where = f"module {path!r}" if path else "the model"
        if any(vars(module)[hooks] for hooks in HOOKS):
            raise UnsupportedError(f"{where} has hooks, which a graph would not call")
        for kind in () if trusted else type(module).__mro__:
            if kind.__module__.partition(".")[0] not in (*KNOWN, "builtins") and _has_code(kind):
                raise UnsupportedError(
                    f"{where} has code of its own ({kind.__module__}.{kind.__qualname__}), which "
                    "may read what changes between steps"
                )


def _has_code(kind: type) -> bool:
    """Whether a class has functions that run in a forward pass, or may."""
    own = {name for name, value in vars(kind).items() if callable(value)}
    return bool(own - {"__init__", "__repr__", "extra_repr", "__reduce_ex__"})


# --- recording --------------------------------------------------------------------------------


def record(model: nn.Module, x: Tensor, trusted: bool = False) -> TrainingGraph:
    """The graph of a model for inputs like x, in its present mode, proved on x.

    trusted: forward code of others is taken to ask for the same operations in every step

    Leaves running state and positions of dropouts as they are. Raises UnsupportedError where there
    can be none.
    """
    _check(model, trusted)
    before = Guard(model)
    made, y = _recorded(model, x)
    if not before.holds():
        raise UnsupportedError("the forward code changes attributes of its modules")
    graph = made.graph(y)
    with _in_place(model):
        _prove(graph, x, y)
    return graph


def traced(model: nn.Module, x: Tensor) -> tuple[TrainingGraph, list[Any]]:
    """The graph of a model whose forward code is taken to ask for the same operations again, and
    the values of this pass by their numbers. Raises UnsupportedError where there can be none."""
    made, y = _recorded(model, x)
    return made.graph(y), made.values


def _recorded(model: nn.Module, x: Tensor) -> tuple[_Tracer, BFPTensor]:
    tracer = _Tracer(model, x)
    generator = torch.get_rng_state()
    with _in_place(model), deferred_updates(), listening(tracer), _Watched(tracer):
        y = model(x)
    if tracer.reason:
        raise UnsupportedError(tracer.reason)
    if not torch.equal(generator, torch.get_rng_state()):
        raise UnsupportedError("the forward code draws random numbers of its own")
    if not isinstance(y, BFPTensor) or id(y.value) not in tracer.numbers:
        raise UnsupportedError(f"the model returns a {type(y).__name__}: expected one BFP tensor")
    return tracer, y


@contextlib.contextmanager
def _in_place(model: nn.Module) -> Iterator[None]:
    """Dropouts are where they were after a with block."""
    own = list(dropouts(model))
    positions = [{name: getattr(m, name) for name in Dropout.POSITION} for m in own]
    try:
        yield
    finally:
        for module, position in zip(own, positions, strict=True):
            vars(module).update(position)


class _Tracer:
    """Notes the operations of a pass while it computes them."""

    def __init__(self, model: nn.Module, x: Tensor) -> None:
        self.reason = ""  # why there can be no graph
        self.x = x
        self.values: list[Any] = [x.value if isinstance(x, BFPTensor) else x]  # kept: ids stay
        self.numbers = {id(self.values[0]): 0}
        self.parameters: dict[int, tuple[int, BFPParameter]] = {}
        self.steps: list[TrainingNode] = []
        self.buffers = {id(b) for b in model.buffers()}
        self.constants: dict[int, Tensor] = {}  # that forward code made of no input

    def __call__(self, operation: TrainingOperation, arguments: tuple[Any, ...]) -> Any:
        """Compute an operation, and note it."""
        watched = torch._C._len_torch_function_stack() > 0  # not inside a function of torch
        with _pop_mode_temporarily() if watched else contextlib.nullcontext():
            output = operation.compute(*arguments)
        several = output if isinstance(output, tuple) else (output,)
        if not all(isinstance(y, BFPTensor) for y in several):
            self.refuse(f"{operation.name} gives real numbers")
            return output
        given = tuple(self._source(operation, a) for a in arguments)
        wanted = tuple(isinstance(a, Tensor) and a.requires_grad for a in arguments)
        outputs = tuple(self._number(y.value) for y in several)
        unread = _unread(operation, arguments)
        own = wanted if any(wanted) else ()
        self.steps.append(TrainingNode(operation, given, outputs, own, unread, WHERE.get()))
        return output

    def refuse(self, reason: str) -> None:
        """There can be no graph; the first reason counts."""
        self.reason = self.reason or reason

    def _number(self, value: BFPValue) -> int:
        self.values.append(value)
        self.numbers[id(value)] = len(self.values) - 1
        return len(self.values) - 1

    def _source(self, operation: TrainingOperation, argument: Any) -> Any:
        """Where an argument comes from."""
        if isinstance(argument, BFPParameter):
            known = self.parameters.setdefault(id(argument), (len(self.parameters), argument))
            return Parameter(known[0])
        if isinstance(argument, BFPTensor):
            number = self.numbers.get(id(argument.value))
            if argument.requires_grad and (number is None or argument.is_leaf):
                self.refuse(f"{operation.name} takes a tensor that the graph does not know")
            if number is not None:
                return Slot(number)
            if not isinstance(self.x, BFPTensor):
                self.refuse(f"{operation.name} takes a tensor that may follow from the input")
            return argument.value  # of numbers that forward code knows without the input
        if argument is self.x:
            return Slot(0)
        if isinstance(argument, Tensor):
            # Of a plain input plain tensors may follow: it has to be known that they do not.
            is_known = id(argument) in self.buffers or id(argument) in self.constants
            if not is_known and not isinstance(self.x, BFPTensor):
                self.refuse(f"{operation.name} takes a tensor that may follow from the input")
            if argument.requires_grad:
                self.refuse(f"{operation.name} takes a real tensor with a gradient")
        return argument

    def graph(self, y: BFPTensor) -> TrainingGraph:
        """The graph that gives y."""
        output = self.numbers[id(y.value)]
        last: dict[int, int] = {}
        for place, step in enumerate(self.steps):
            for index in (*_slots(step), *step.outputs):
                last[index] = place
        last.pop(output, None)
        ends: dict[int, list[int]] = {}
        for index, place in last.items():
            ends.setdefault(place, []).append(index)
        steps = tuple(
            replace(step, ended=tuple(ends.get(place, ()))) for place, step in enumerate(self.steps)
        )
        return TrainingGraph(steps, tuple(p for _, p in self.parameters.values()), output)


def _slots(step: TrainingNode) -> list[int]:
    return [a.index for a in step.arguments if type(a) is Slot]


def _unread(operation: TrainingOperation, arguments: Sequence[Any]) -> tuple[BFPValue | None, ...]:
    """Stand-ins without codes, for each argument that the gradient does not read."""
    return tuple(
        a.value.used_up()
        if isinstance(a, BFPTensor) and not operation.is_read(place, a.value)
        else None
        for place, a in enumerate(arguments)
    )


class _Watched(TorchFunctionMode):
    """Watches torch's functions in forward code: which tensors follow from no input, and whether
    somebody reads values, by which the course of the code may change."""

    def __init__(self, tracer: _Tracer) -> None:
        super().__init__()
        self.tracer = tracer

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call the function, and note what its result follows from."""
        result = func(*args, **(kwargs or {}))
        tracer, tensors = self.tracer, _tensors((args, kwargs or {}))
        of_input = [t for t in tensors if not (isinstance(t, BFPTensor) or self._is_constant(t))]
        if any(isinstance(t, BFPTensor) for t in tensors):
            if of_input and not isinstance(tracer.x, BFPTensor):
                tracer.refuse(f"{_name(func)} takes a tensor that may follow from the input")
            if not isinstance(result, BFPTensor) and _is_read(func, result):
                tracer.refuse(f"forward code reads values ({_name(func)})")
        elif not of_input:
            for t in _tensors(result):
                tracer.constants[id(t)] = t
        elif _is_read(func, result) and not isinstance(result, Tensor):
            tracer.refuse(f"forward code reads values ({_name(func)})")
        return result

    def _is_constant(self, t: Tensor) -> bool:
        return id(t) in self.tracer.constants or id(t) in self.tracer.buffers


def _name(func: Any) -> str:
    return str(getattr(func, "__name__", func))


_SHAPES = {
    *("size", "dim", "numel", "__len__", "ndimension", "element_size", "is_floating_point"),
    *("is_complex", "stride", "type", "is_contiguous", "__hash__", "get_device", "__get__"),
}


def _is_read(func: Any, result: Any) -> bool:
    """Whether a function told something about values; shapes, types and places are none."""
    if result is None or isinstance(result, BFPTensor | torch.Size | torch.dtype | torch.device):
        return False
    if isinstance(result, tuple | list) and all(isinstance(r, BFPTensor) for r in result):
        return False
    return _name(func) not in _SHAPES


def _tensors(value: Any) -> list[Tensor]:
    """The tensors in containers."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


# --- proof ------------------------------------------------------------------------------------


def _prove(graph: TrainingGraph, x: Tensor, y: BFPTensor) -> None:
    """Walk the graph on x, beside the pass that it was recorded from: output and gradients.

    Raises UnsupportedError where a bit differs.
    """
    try:
        _compare(graph, x, y)
    except RangeError as error:  # of a gradient that no loss gives
        raise UnsupportedError(f"a proof leaves the range of exponents: {error}") from None


def _compare(graph: TrainingGraph, x: Tensor, y: BFPTensor) -> None:
    """`_prove`, of which an exponent may leave its range."""
    with deferred_updates():
        z = graph(x)
    if not _same(y, z):
        raise UnsupportedError("the graph gives another output than the model")
    if not y.requires_grad:
        return
    parameters = [p for p in graph.parameters if p.requires_grad]
    found = [
        torch.autograd.grad(t, parameters, _some_gradient(t), allow_unused=True) for t in (y, z)
    ]
    for p, a, b in zip(parameters, *found, strict=True):
        if (a is None) != (b is None) or (a is not None and not _same(a, b)):
            raise UnsupportedError(
                f"the graph gives another gradient of a parameter of shape {tuple(p.shape)}"
            )


def _same(a: Any, b: Any) -> bool:
    return same_parts(a.resolved(), b.resolved())


def _some_gradient(like: BFPTensor) -> BFPTensor:
    """A gradient of 16 bits without meaning, of many magnitudes."""
    count = torch.arange(like.numel(), device=like.device)
    codes = ((count * 7919) % 65279 - 32639).to(torch.int16).view(like.shape)
    return BFPTensor(codes, -24)
