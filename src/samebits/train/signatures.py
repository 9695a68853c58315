"""PyTorch's functions by the names that ATen has for them, and arguments that their twins take."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from samebits.errors import UnsupportedError

GATHERING = ("add", "add_", "zero_", "clone", "detach", "alias")


@functools.lru_cache(maxsize=1024)
def of_aten(func: Callable[..., Any]) -> tuple[Callable[..., Any], ...]:
    """The functions and methods of PyTorch that an operator of ATen, torch.ops.aten.gelu or one of
    its overloads, is the body of: they have its name and its arguments.

    None of those by which autograd gathers gradients, which BFP tensors take as they are.
    """
    packet = getattr(func, "overloadpacket", func)
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return ()
    space, name = packet._qualified_op_name.split("::")
    homes = (torch, functional, torch.Tensor) if space == "aten" and name not in GATHERING else ()
    found = (getattr(home, name, None) for home in homes)
    return tuple(function for function in found if function is not None)


def check_arguments(
    func: Callable[..., Any], handler: Callable[..., Any], args: Any, kwargs: dict[str, Any]
) -> None:
    """Refuse options of a PyTorch function that its twin does not have. UnsupportedError."""
    if not kwargs:
        return
    try:
        _signature(handler).bind(*args, **kwargs)
    except TypeError as error:
        name = getattr(func, "__name__", str(func))
        raise UnsupportedError(
            f"{name} of BFP tensors: {error}; give the tensor itself without a name, and leave out "
            "what training in BFP does not have"
        ) from None


_signature = functools.lru_cache(maxsize=None)(inspect.signature)
