"""A model's forward pass as a list of sub-layers, in the order in which they run.

A sub-layer is a leaf module or a function between modules (a residual sum, a concatenation, a
reshape); containers are looked through. torch.fx follows the model's own code.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn

from samebits.errors import SamebitsError, UnsupportedError
from samebits.recompute.network import guards
from samebits.recompute.network.tape import Attribute, Heard, LayerCall, Ref, Tape, autocast, modes
from samebits.settled import tracing
from samebits.train.recording import HOOKS


class StateError(UnsupportedError):
    """A model whose forward code has a state of its own, or that somebody listens to."""


def _context() -> tuple[bool, bool]:
    return torch.is_grad_enabled(), autocast()


class _Tracer(fx.Tracer):
    """`ended`: modules without children, by the last node of the graph when they gave a result.

    fx puts it between all modules of the process and their calls: those of other threads go by.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ended: dict[fx.Node, list[tuple[str, fx.Node]]] = {}
        self.context = _context()
        self.thread = threading.get_ident()

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(*args, **kwargs)
        if _context() != self.context:
            raise UnsupportedError(
                f"{node.name}: computed under torch.no_grad, enable_grad or autocast of the "
                "model's own, which a plan does not follow: train without a plan"
            )
        return node

    def create_arg(self, a: Any) -> Any:
        """An argument of a node. fx would keep a tensor that the forward code makes as an attribute
        of the model; that is refused here."""
        if isinstance(a, Tensor) and a not in self.tensor_attrs:
            held = itertools.chain(self.root.parameters(), self.root.buffers())
            if not any(a is own for own in held):
                raise UnsupportedError(
                    f"{type(self.root).__name__}: expected a forward pass of layers and their "
                    f"results, found a tensor {list(a.shape)} that its forward code makes; train "
                    "without a plan"
                )
        return super().create_arg(a)

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        if threading.get_ident() != self.thread:
            return forward(*args, **kwargs)
        result = super().call_module(m, forward, args, kwargs)
        if isinstance(result, fx.Proxy) and not any(m.children()):
            last = next(iter(reversed(self.graph.nodes)))
            self.ended.setdefault(last, []).append((self.path_of_module(m), result.node))
        return result


_OUT_OF_PLACE = {
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.imul: operator.mul,
    operator.itruediv: operator.truediv,
}
# Non-tensor results that depend on a tensor's type and shape alone.
_SHAPES = ("size", "dim", "numel", "nelement", "ndimension", "element_size")
_SHAPE_ATTRIBUTES = ("shape", "ndim", "dtype", "device", "is_cuda")


@tracing()
def trace(model: nn.Module, example: Tensor) -> Tape:
    """The tape of `model` for inputs like `example`, in the model's present mode.

    Runs the model once, sub-layer by sub-layer, to know which results are tensors; the caller keeps
    the model's state. Raises UnsupportedError where the flow depends on values of tensors, where a
    sub-layer gives several tensors, or where a changed view is read again.
    """
    with watched(model):
        tracer = _Tracer()
        try:
            graph = tracer.trace(model)
        except SamebitsError:
            raise
        except Exception as error:  # the model's own code, run on stand-ins for tensors
            raise UnsupportedError(
                f"{type(model).__name__} cannot be followed ({type(error).__name__}: {error}): "
                "expected a forward pass of layers, sums and reshapes whose course does not depend "
                "on the values of tensors; train without a plan"
            ) from error
    with torch.no_grad():
        return _Reader(model, example).read(graph, tracer.ended)


@contextlib.contextmanager
def watched(model: nn.Module) -> Iterator[None]:
    """A with block that runs a model's forward code, which is to have no state of its own.

    Raises StateError for hooks, and where attributes, buffers or generators have changed;
    attributes are then as they were.
    """
    _check_hooks(model)
    before = _state(model)
    facts, attributes = guards.facts(model), [(m, dict(vars(m))) for m in model.modules()]
    yield
    changed = guards.first_difference(facts, guards.facts(model))
    if changed is not None:
        for module, own in attributes:
            vars(module).clear()
            vars(module).update(own)
        raise StateError(
            f"{type(model).__name__}: its forward code changes {changed}, which a plan would do "
            "once and for all: expected a forward pass without state of its own; train without a "
            "plan"
        )
    if _state(model) != before:
        raise StateError(
            f"{type(model).__name__}: its forward code draws random numbers or changes buffers "
            "itself, which a plan would do once and for all: expected layers such as Dropout and "
            "BatchNorm2d to do it; train without a plan"
        )


def _state(model: nn.Module) -> tuple[Any, ...]:
    """The state that a forward pass may change: generators and buffers (their versions)."""
    buffers = tuple((id(b), b._version) for b in model.buffers())
    return guards.generators(), buffers


def _check_hooks(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if any(getattr(module, hooks) for hooks in HOOKS):
            raise StateError(
                f"module {name or 'model'!r} has hooks, which a plan would call again or not at "
                "all: remove them or train without a plan"
            )
    for name, parameter in model.named_parameters():
        if parameter._backward_hooks:
            raise StateError(
                f"parameter {name!r} has gradient hooks: remove them or train without a plan"
            )


class _Reader:
    """Turns fx nodes into calls, evaluating as it goes."""

    def __init__(self, model: nn.Module, example: Tensor) -> None:
        self.model, self.example = model, example
        self.calls = [LayerCall("input", "input", _no_target)]
        self.results: dict[fx.Node, Any] = {}  # Ref, Attribute or constant
        self.values: list[Tensor] = [example]
        self.changed: dict[int, int] = {}  # value -> what stands for it after a change in place
        self.views: dict[int, int] = {}  # address of a storage -> its latest change in place
        self.names: dict[str, int] = {}
        self.heard: dict[int, list[Heard]] = {}

    def read(self, graph: fx.Graph, ended: Mapping[fx.Node, list[tuple[str, fx.Node]]]) -> Tape:
        """The tape of a traced graph; `ended` is the tracer's.

        Raises UnsupportedError for a second input and for a result that is not one tensor.
        """
        inputs = 0
        for node in graph.nodes:
            if node.op == "placeholder":
                inputs += 1
                if inputs > 1 and not node.args:
                    raise UnsupportedError(
                        f"{type(self.model).__name__}: expected a forward pass of one input, found "
                        f"a second, {node.name!r}; train without a plan"
                    )
                self.results[node] = Ref(0) if inputs == 1 else node.args[0]
            elif node.op == "get_attr":
                self.results[node] = Attribute(str(node.target))
            elif node.op == "output":
                result = self._filled(node.args[0])
                if not isinstance(result, Ref):
                    raise UnsupportedError(
                        f"{type(self.model).__name__}: expected one tensor as the result, found "
                        f"{type(node.args[0]).__name__}; train without a plan"
                    )
                known = (self.heard, modes(self.model))
                tape = Tape(self.model, tuple(self.calls), result.index, *known)
            else:
                self._node(node)
            for name, given in ended.get(node, ()):
                self._end(name, self._filled(given))
        return tape

    def _end(self, name: str, given: Any) -> None:
        """A module has given its result."""
        if isinstance(given, Ref):
            tensor = self.values[given.index]
            origin = next(v for v, value in enumerate(self.values) if value is tensor)
            heard = Heard(name, given.index, origin)
            self.heard.setdefault(len(self.calls) - 1, []).append(heard)

    def _filled(self, argument: Any) -> Any:
        def fill(node: fx.Node) -> Any:
            result = self.results[node]
            while isinstance(result, Ref) and result.index in self.changed:
                result = Ref(self.changed[result.index])
            return result

        return fx.node.map_arg(argument, fill)

    def _node(self, node: fx.Node) -> None:
        """Add a node's call, or keep its result as a constant if it is no tensor.

        Methods and functions in place become their twins out of place, and what they changed is
        read from their result from here on.
        """
        args, kwargs = self._filled(node.args), dict(self._filled(node.kwargs))
        module: nn.Module | None = None
        in_place = False
        if node.op == "call_module":
            module = self.model.get_submodule(str(node.target))
            target: Callable[..., Any] = module
            name, kind = str(node.target), type(module).__name__
            in_place = bool(getattr(module, "inplace", False))
        else:
            kind = str(getattr(node.target, "__name__", node.target)).strip("_")
            if node.op == "call_method":
                method = str(node.target)
                if method.endswith("_") and not method.endswith("__"):
                    in_place, method = True, method[:-1]
                target = _Method(method)
            else:
                function: Any = node.target
                if _changes_its_input(function):
                    raise UnsupportedError(
                        f"{kind}: expected a function that leaves its inputs alone, found "
                        f"{function.__name__}; use {kind}, or train without a plan"
                    )
                in_place = function in _OUT_OF_PLACE or kwargs.get("inplace") is True
                if "inplace" in kwargs:
                    kwargs["inplace"] = False
                target = _OUT_OF_PLACE.get(function, function)
            owner = self._owner(node)
            name = f"{owner}.{kind}".lstrip(".")
        refs = _refs((args, kwargs))
        call = LayerCall(
            self._unique(name),
            kind,
            target,
            tuple(args),
            tuple(kwargs.items()),
            tuple(dict.fromkeys(ref.index for ref in refs)),
            module,
            tuple(a.path for a in _attributes((args, kwargs))),
        )
        if in_place and not (args and isinstance(args[0], Ref)):
            raise UnsupportedError(
                f"{call.name}: changes a parameter, a buffer or a constant in place, which a plan "
                "would do again or not at all; train without a plan"
            )
        if not refs and not call.attributes:
            before = torch.get_rng_state()
            self.results[node] = target(*args, **kwargs)
            if not torch.equal(before, torch.get_rng_state()):
                raise StateError(
                    f"{call.name}: draws random numbers of its own, which a plan would draw once "
                    "and for all; use a layer such as Dropout, or train without a plan"
                )
            return
        self.calls.append(call)
        result = Tape(self.model, tuple(self.calls), 0).compute(len(self.calls) - 1, self._value)
        if isinstance(result, Tensor):
            self.values.append(result)
            self.results[node] = Ref(len(self.calls) - 1)
            if in_place and refs:
                self._change(refs[0].index, len(self.calls) - 1)
            return
        self.calls.pop()
        if not _is_shape(kind, args, result):
            raise UnsupportedError(
                f"{call.name}: expected one tensor as its result, found {type(result).__name__}; "
                "train without a plan"
            )
        self.results[node] = result

    def _value(self, index: int) -> Tensor:
        value = self.values[index]
        if self.views.get(_address(value), index) > index:
            raise UnsupportedError(
                f"{self.calls[index].name}: its result is read after a view of it was changed in "
                "place; use the out-of-place form, or train without a plan"
            )
        return value

    def _change(self, old: int, new: int) -> None:
        """From here on, `new` is read wherever the tape names the changed value."""
        address = _address(self.values[old])
        self.changed[old] = new
        if address:
            self.views[address] = new

    def _owner(self, node: fx.Node) -> str:
        """Path of the module whose code calls a function."""
        stack = node.meta.get("nn_module_stack") or {}
        return next(reversed([str(path) for path, _ in stack.values()]), "")

    def _unique(self, name: str) -> str:
        count = self.names[name] = self.names.get(name, 0) + 1
        return name if count == 1 else f"{name}#{count}"


def _changes_its_input(function: Any) -> bool:
    """Whether it is the in-place twin of a function, by the name (`operator.and_` is none)."""
    name = str(getattr(function, "__name__", ""))
    twin = name.endswith("_") and not name.endswith("__")
    return twin and getattr(function, "__module__", "") != "_operator"


class _Method:
    """A tensor method as a function."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(tensor, self.name)(*args, **kwargs)


def _no_target() -> None:
    raise AssertionError("the input is given, not computed")


def _address(value: Tensor) -> int:
    """Where a plain tensor's storage lies; 0 for one of another class."""
    return value.untyped_storage().data_ptr() if type(value) in (Tensor, nn.Parameter) else 0


def _is_shape(kind: str, args: Any, result: Any) -> bool:
    """Whether a result that is no tensor may be taken as a constant."""
    if kind == "getattr":
        return args[1] in _SHAPE_ATTRIBUTES
    return kind in _SHAPES and isinstance(result, int | tuple)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, slice):
        yield from _leaves((value.start, value.stop, value.step))
    else:
        yield value


def _refs(value: Any) -> list[Ref]:
    return [leaf for leaf in _leaves(value) if isinstance(leaf, Ref)]


def _attributes(value: Any) -> list[Attribute]:
    return [leaf for leaf in _leaves(value) if isinstance(leaf, Attribute)]
