"""A float32 model's forward pass as a tape: its sub-layers in the order in which they run.

A tape is to a plan what autograd's graph is to a backward pass: enough to compute any value of the
pass again from values before it (the list of Wengert, 1964, with sub-layers as operations)."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn


@dataclass(frozen=True)
class Ref:
    """The value that sub-layer `index` computes; 0 is the model's input."""

    index: int


@dataclass(frozen=True)
class Attribute:
    """A parameter or buffer that a function reads, by its path in the model."""

    path: str


@dataclass(frozen=True)
class LayerCall:
    """The computation of one sub-layer: `target(*args, **kwargs)`, `Ref`s and `Attribute`s inside.

    name, kind: as messages show them; kind is the name of the module's class or of the function
    inputs:     distinct values that it reads, in order of first use
    module:     the leaf module, if it is one
    attributes: paths of the parameters and buffers that a function reads
    """

    name: str
    kind: str
    target: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: tuple[tuple[str, Any], ...] = ()
    inputs: tuple[int, ...] = ()
    module: nn.Module | None = None
    attributes: tuple[str, ...] = ()

    @functools.cached_property
    def plain(self) -> bool:
        """Whether it is `target(*inputs)`, as most are."""
        in_place = getattr(self.module, "inplace", False)
        return not (in_place or self.kwargs) and self.args == tuple(Ref(v) for v in self.inputs)


@dataclass(frozen=True)
class Heard:
    """A module without children, as a recorder hears it, and the value that it gave.

    origin: the first value with the same tensor, for modules that hand on their input
    """

    name: str
    value: int
    origin: int


@dataclass(frozen=True)
class Tape:
    """The sub-layers of a model, in the order of execution.

    calls:  the computation of value i at index i; calls[0] stands for the input
    output: the value that the model returns
    heard:  the modules without children that end when a sub-layer has been computed, in order
    modes:  the model's modules, and which of them were in training mode when it was traced
    """

    model: nn.Module
    calls: tuple[LayerCall, ...]
    output: int
    heard: Mapping[int, Sequence[Heard]] = field(default_factory=dict)
    modes: tuple[tuple[nn.Module, bool], ...] = ()

    def compute(self, index: int, read: Callable[[int], Tensor]) -> Any:
        """The output of one sub-layer, its inputs given by `read`.

        A module that works in place is called out of place: its input may be a value that is read
        again later.
        """
        call = self.calls[index]
        if call.plain:
            return call.target(*[read(v) for v in call.inputs])

        def fill(value: Any) -> Any:
            if isinstance(value, Ref):
                return read(value.index)
            if isinstance(value, Attribute):
                return operator.attrgetter(value.path)(self.model)
            return value

        args = fx.node.map_aggregate(call.args, fill)
        kwargs = {key: fx.node.map_aggregate(value, fill) for key, value in call.kwargs}
        if call.module is not None and getattr(call.module, "inplace", False):
            return _out_of_place(call.module, args, kwargs)
        return call.target(*args, **kwargs)

    @functools.cached_property
    def _parameters(self) -> list[list[nn.Parameter]]:
        found: list[list[nn.Parameter]] = []
        for call in self.calls:
            read = [] if call.module is None else list(call.module.parameters())
            values = (operator.attrgetter(path)(self.model) for path in call.attributes)
            read += (value for value in values if isinstance(value, nn.Parameter))
            found.append(list(dict.fromkeys(read)))
        return found

    def parameters(self, index: int) -> list[nn.Parameter]:
        """Distinct trained parameters that a sub-layer reads."""
        return [p for p in self._parameters[index] if p.requires_grad]


def _out_of_place(module: Any, args: Any, kwargs: Any) -> Any:
    """Writing over an input would destroy what another sub-layer keeps; the bits are the same."""
    module.inplace = False
    try:
        return module(*args, **kwargs)
    finally:
        module.inplace = True


def autocast() -> bool:
    """Whether torch.autocast is on in this thread."""
    return torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")


def modes(model: nn.Module) -> tuple[tuple[nn.Module, bool], ...]:
    """The modules of a model, and which of them are in training mode."""
    return tuple((module, module.training) for module in model.modules())
