"""Models given to `convert`: float ones, whose parameters have values."""

from __future__ import annotations

import itertools
from typing import Any

from torch import nn

from samebits.errors import InputError
from samebits.train.islands import Island
from samebits.train.layers import Holder


def check_model(model: Any) -> None:
    """Raises InputError for what is no module, or has no values, or is converted already."""
    if isinstance(model, type):
        name = model.__name__
        raise InputError(
            f"convert: expected a torch.nn.Module, found the class {name}; make one: {name}(...)"
        )
    if not isinstance(model, nn.Module):
        raise InputError(f"convert: expected a torch.nn.Module, found {type(model).__name__}")
    for path, module in model.named_modules():
        if isinstance(module, Holder | Island):
            where = f"{path!r} ({type(module).__name__})" if path else type(module).__name__
            raise InputError(
                f"convert: expected a float model, found {where}, which is converted; use the "
                "model as it is"
            )
        for name, tensor in itertools.chain(module._parameters.items(), module._buffers.items()):
            if tensor is not None and tensor.is_meta:
                where = f"{path}.{name}".lstrip(".")
                raise InputError(
                    f"convert: expected parameters with values, found {where!r} on the device "
                    "meta; load them, or initialise what model.to_empty(device='cpu') gives, first"
                )
