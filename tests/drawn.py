"""Inputs that many tests draw alike: drawn once, and handed to each test as its own copy."""

from __future__ import annotations

import functools
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


def _copy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, tuple):
        return tuple(map(_copy, value))
    return list(value) if isinstance(value, list) else value
