"""Guards of a plan: all that it takes for granted about a model.

A plan calls the sub-layers that were traced, with the numbers that the forward code gave then; the
forward code itself runs no more. So nothing may change between passes that this code could read,
and the code may change nothing itself. What Python lets us see of that is written down as facts:
attributes of modules, identities of parameters, buffers and sub-modules, what is trained, hooks,
and the generators of random numbers. What it does not let us see (a global variable, a file)
is left to the comparison of a first planned step with a plain one (`recompute.run.proof`).
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from samebits.errors import UnsupportedError
from samebits.train.layers import Dropout, dropouts
from samebits.train.recording import HOOKS
from samebits.train.run import trace as recorder

Facts = dict[tuple[str, str, str], Any]
"""(module, kind of fact, name) -> something that compares equal while nothing has changed."""

_OWN = frozenset({"_parameters", "_buffers", "_modules", "training", "inplace"})
FROZEN = "frozen"
_TORCH = ("_forward_", "_backward_", "_state_dict_", "_load_state_dict_", "_is_", "_non_")
"""Beginnings of nn.Module's own attributes: hooks and what belongs to them."""
_DEPTH = 4  # of containers inside an attribute


def facts(model: nn.Module) -> Facts:
    """The facts about every module of a model."""
    return {key: value for path, m in model.named_modules() for key, value in _of(path, m)}


def _of(path: str, module: nn.Module) -> Iterator[tuple[tuple[str, str, str], Any]]:
    """The facts about one module."""
    yield (path, "type", ""), type(module)
    for name, parameter in module._parameters.items():
        yield (path, "parameter", name), id(parameter)
        yield (path, FROZEN, name), parameter is None or not parameter.requires_grad
    for name, buffer in module._buffers.items():
        yield (path, "buffer", name), id(buffer)
    for name, child in module._modules.items():
        yield (path, "module", name), id(child)
    for name in HOOKS:
        hooks = getattr(module, name)
        yield (path, "hooks", name), [key for key, hook in hooks.items() if not _recorded(hook)]
    # What mask comes next is set before each step, and counted by the pass itself.
    own = _OWN.union(Dropout.POSITION) if isinstance(module, Dropout) else _OWN
    for name, value in vars(module).items():
        if name not in own and not name.startswith(_TORCH):
            yield (path, "attribute", name), _fingerprint(value)


@contextlib.contextmanager
def watched(model: nn.Module) -> Iterator[None]:
    """A with block that runs a model's forward code, which is to have no state of its own.

    Raises UnsupportedError for hooks, and where attributes, buffers or generators have changed;
    attributes are then as they were.
    """
    _check_hooks(model)
    before = _state(model)
    known, attributes = facts(model), [(m, dict(vars(m))) for m in model.modules()]
    yield
    changed = first_difference(known, facts(model))
    if changed is not None:
        for module, own in attributes:
            vars(module).clear()
            vars(module).update(own)
        raise UnsupportedError(
            f"{type(model).__name__}: its forward code changes {changed}, which a plan would do "
            "once and for all: expected a forward pass without state of its own; train without a "
            "plan"
        )
    if _state(model) != before:
        raise UnsupportedError(
            f"{type(model).__name__}: its forward code draws random numbers or changes buffers "
            "itself, which a plan would do once and for all: expected layers such as Dropout and "
            "BatchNorm2d to do it; train without a plan"
        )


def _state(model: nn.Module) -> tuple[Any, ...]:
    """The state that a forward pass may change: generators and buffers (their versions)."""
    buffers = tuple((id(b), b._version) for b in model.buffers())
    return torch.get_rng_state().numpy().tobytes(), *other_generators(), buffers


def _check_hooks(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if any(getattr(module, hooks) for hooks in HOOKS):
            raise UnsupportedError(
                f"module {name or 'model'!r} has hooks, which a plan would call again or not at "
                "all: remove them or train without a plan"
            )
    for name, parameter in model.named_parameters():
        if parameter._backward_hooks:
            raise UnsupportedError(
                f"parameter {name!r} has gradient hooks: remove them or train without a plan"
            )


def keep(model: nn.Module) -> Callable[[], None]:
    """A function that brings the attributes of all modules, and the generators of Python and
    numpy, back to what they are now.

    Lists, dictionaries, sets, arrays and tensors in attributes get their contents back; what
    Python does not show (a global variable, the inside of another object) stays as it is.
    """
    states = random.getstate(), np.random.get_state(legacy=True)  # noqa: NPY002
    attributes = [
        (module, {k: v for k, v in vars(module).items() if not _torchs(k)})
        for module in dict.fromkeys((*model.modules(), *dropouts(model)))
    ]
    contents = [back for _, own in attributes for value in own.values() for back in _inside(value)]

    def restore() -> None:
        for module, own in attributes:
            for name in [name for name in vars(module) if not _torchs(name)]:
                if name not in own:
                    del vars(module)[name]
            vars(module).update(own)
        for back in contents:
            back()
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002

    return restore


def _torchs(name: str) -> bool:
    """Whether an attribute is torch's own, or a plan's."""
    return name in _OWN or name.startswith(_TORCH)


def _inside(value: Any, depth: int = _DEPTH) -> Iterator[Callable[[], None]]:
    """Functions that give a container the contents back that it has now."""
    if isinstance(value, np.ndarray) and value.flags.writeable:
        yield partial(np.copyto, value, value.copy())
    if type(value) is Tensor:
        yield partial(_unless_unchanged, value, value._version, value.detach().clone())
    if not depth or not isinstance(value, list | tuple | dict | set):
        return
    if isinstance(value, list):
        yield partial(value.__setitem__, slice(None), list(value))
    elif isinstance(value, dict | set):
        kept = value.copy()
        yield value.clear
        yield partial(value.update, kept)
    for item in value.values() if isinstance(value, dict) else value:
        yield from _inside(item, depth - 1)


def _unless_unchanged(tensor: Tensor, version: int, kept: Tensor) -> None:
    if tensor._version != version:
        with torch.no_grad():
            tensor.copy_(kept)


def _recorded(hook: Any) -> bool:
    """Whether a hook is that of a recorder of traces, whom a pass tells what it hears."""
    return getattr(hook, "__module__", None) == recorder.__name__


def _fingerprint(value: Any, depth: int = _DEPTH) -> Any:
    """Plain values by value, tensors by identity and version, other objects by identity."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return type(value), repr(value)  # NaN is equal to itself here
    if isinstance(value, Tensor):
        return id(value), value._version
    if isinstance(value, np.ndarray):
        return id(value), value.shape, value.tobytes() if value.dtype != object else b""
    if depth and isinstance(value, list | tuple | set | frozenset):
        return type(value), [_fingerprint(item, depth - 1) for item in value]
    if depth and isinstance(value, dict):
        return [(repr(key), _fingerprint(item, depth - 1)) for key, item in value.items()]
    return id(value)


def first_difference(before: Facts, after: Facts) -> str | None:
    """The first fact that is another, in words; None if there is none.

    A parameter may be frozen after planning, as what is trained is asked in every backward pass.
    """
    if before == after:
        return None
    for key in dict.fromkeys((*before, *after)):
        was, now = before.get(key), after.get(key)
        if (key in before) != (key in after) or (was != now and (key[1] != FROZEN or was)):
            return _words(*key)
    return None


def _words(path: str, kind: str, name: str) -> str:
    where = f"module {path!r}" if path else "the model"
    return {
        "type": f"the type of {where}",
        "parameter": f"parameter {name!r} of {where} (another one)",
        FROZEN: f"parameter {name!r} of {where} (it is trained now)",
        "buffer": f"buffer {name!r} of {where} (another one)",
        "module": f"layer {name!r} of {where} (another one)",
        "hooks": f"the hooks of {where}",
    }.get(kind, f"attribute {name!r} of {where}")


def other_generators() -> tuple[Any, ...]:
    """The states of Python's and numpy's generators; that of torch is restored by passes."""
    name, keys, *rest = np.random.get_state(legacy=True)  # noqa: NPY002
    return random.getstate(), name, np.asarray(keys).tobytes(), tuple(rest)
