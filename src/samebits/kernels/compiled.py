"""The eager realisation with its point-wise functions fused by torch.compile, on any device.

They are operations on integers alone, in C++ on the CPU and Triton on a GPU. Products stay matrix
products of torch. The first steps of a process are slow: torch compiles, or reads its cache on
disk. What is fused shifts tensors only: torch 2.13 computes `1 << n` of an integer n in 32 bits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

import torch
from torch._dynamo import config as dynamo

from samebits.kernels.eager import Eager

P = ParamSpec("P")
T = TypeVar("T")
Method = Callable[Concatenate[Eager, P], T]
PLAIN = Eager()
VARIANTS = 256
"""Limit of compiled forms of one function, one for each combination of types, ranks and memory
orders of its operands. torch's own limit is 8."""


def _fused(method: Method[P, T]) -> Method[P, T]:
    """A method of `Eager` compiled together with those that it calls, which need no state."""
    compiled = torch.compile(method, dynamic=True, fullgraph=True)

    @functools.wraps(method)
    def call(_: Eager, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if dynamo.recompile_limit < VARIANTS:  # every thread has its own setting
            dynamo.recompile_limit = VARIANTS
            dynamo.accumulated_recompile_limit = max(dynamo.accumulated_recompile_limit, VARIANTS)
        return compiled(PLAIN, *args, **kwargs)

    return call


class Compiled(Eager):
    """The kernels in torch, what is point-wise fused."""

    scale = _fused(Eager.scale)
    divide = _fused(Eager.divide)
    _clamped = _fused(Eager._clamped)
    joint = _fused(Eager.joint)
    split = _fused(Eager.split)
    _channel_affine = _fused(Eager._channel_affine)
    _channel_products = _fused(Eager._channel_products)
    _add_scaled = _fused(Eager._add_scaled)
    _carried = _fused(Eager._carried)
