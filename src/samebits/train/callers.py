"""Who called an operation, as the stack shows it: a module of a network, or an optimizer.

Only errors, dropouts of functions and floats among activations ask: networks pay nothing for it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

CONVERTED = "functions_dropout"
"""The attribute of a model that `convert` gave: [the Dropout of functional.dropout in it]."""
_LAYERS = "samebits.train.layers."  # which put their names before errors themselves


class Caller(NamedTuple):
    """A module that computes: its path in the outermost one, None where that does not hold it."""

    module: nn.Module
    path: str | None

    @property
    def words(self) -> str:
        """The beginning of a message; nothing for a module alone, such as a loss."""
        kind = type(self.module).__name__
        if self.path is None:
            return f"module of type {kind}, which its model has not registered: "
        if self.path:
            return f"module {self.path!r} ({kind}): "
        return f"the model ({kind}): " if self.module._modules else ""


def calling_module() -> Caller | None:
    """The innermost module that computes, unless it is a BFP layer; None where there is none."""
    modules = [found for found in _callers() if isinstance(found, nn.Module)]
    if not modules or type(modules[0]).__module__.startswith(_LAYERS):
        return None
    paths = {id(module): path for path, module in modules[-1].named_modules()}
    return Caller(modules[0], paths.get(id(modules[0])))


class ModelCall(NamedTuple):
    """A call of a model that `convert` gave: the model, and what it was given."""

    model: nn.Module
    arguments: tuple[Any, ...]


def converted_call() -> ModelCall | None:
    """The innermost call of a model that `convert` gave; None where there is none."""
    frame, call = sys._getframe(1), nn.Module._call_impl.__code__
    while frame is not None:
        own = frame.f_locals
        if frame.f_code is call and CONVERTED in vars(own["self"]):
            return ModelCall(own["self"], (*own["args"], *own["kwargs"].values()))
        frame = frame.f_back  # type: ignore[assignment]
    return None


def calling_optimizer() -> torch.optim.Optimizer | None:
    """An optimizer that is not of samebits and computes itself; None where there is none."""
    for found in _callers():
        if isinstance(found, torch.optim.Optimizer):
            kinds = type(found).__mro__
            return None if any(k.__module__.startswith("samebits.") for k in kinds) else found
        if isinstance(found, nn.Module):
            break
    return None


def _callers() -> Iterator[Any]:
    """The `self` of every function that runs, the innermost first."""
    frame = sys._getframe(1)
    while frame is not None:
        yield frame.f_locals.get("self")
        frame = frame.f_back  # type: ignore[assignment]
