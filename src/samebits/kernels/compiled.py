"""The eager realisation with its point-wise functions fused by torch.compile, on any device.

They are operations on integers alone, in C++ on the CPU and Triton on a GPU. Products stay matrix
products of torch. The first steps of a process are slow: torch compiles, or reads its cache on
disk. What is fused shifts tensors only: torch 2.13 computes `1 << n` of an integer n in 32 bits.
"""

from __future__ import annotations

import functools
import importlib.util
from types import ModuleType
from typing import Any

import torch
from torch._dynamo import config as dynamo

from samebits.kernels import eager

FUSED = (
    *("scale", "scale_to", "divide", "relu", "relu_grad", "add_scaled", "carried", "split"),
    *("joint", "channel_affine", "channel_sum_of_products"),
)
VARIANTS = 256
"""Of one function: types, ranks and memory orders of its operands. torch's own limit is 8."""


def realisation() -> ModuleType:
    """A copy of the eager module whose functions call the fused ones."""
    specification = eager.__spec__
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    for name in FUSED:
        setattr(module, name, _fused(getattr(eager, name)))
    return module


def _fused(function: Any) -> Any:
    compiled: Any = torch.compile(function, dynamic=True, fullgraph=True)

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        if dynamo.recompile_limit < VARIANTS:  # every thread has its own setting
            dynamo.recompile_limit = VARIANTS
            dynamo.accumulated_recompile_limit = max(dynamo.accumulated_recompile_limit, VARIANTS)
        return compiled(*args)

    return call
