"""Arguments of PyTorch's functions, compared with those that their twins have."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from samebits.errors import UnsupportedError


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
