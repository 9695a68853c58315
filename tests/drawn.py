"""What many tests have alike: drawn or defined once, and handed to each test as its own copy."""

from __future__ import annotations

import functools
import hashlib
import pickle
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")


def once(draw: Callable[P, T]) -> Callable[P, T]:
    """A function of its arguments alone that draws tensors and lists, for every call a copy."""
    kept = functools.lru_cache(None, typed=True)(draw)

    @functools.wraps(draw)
    def copied(*args: P.args, **kwargs: P.kwargs) -> T:
        return _copy(kept(*args, **kwargs))

    return copied


def defined(definition: Callable[P, T]) -> Callable[P, T]:
    """A definition in plain integers, asked once for operands that several realisations share."""
    kept: dict[bytes, T] = {}

    @functools.wraps(definition)
    def known(*args: P.args, **kwargs: P.kwargs) -> T:
        operands = hashlib.sha256(pickle.dumps((args, kwargs))).digest()
        if operands not in kept:
            kept[operands] = definition(*args, **kwargs)
        return _copy(kept[operands])

    return known


def _copy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, tuple):
        return tuple(map(_copy, value))
    return list(value) if isinstance(value, list) else value
