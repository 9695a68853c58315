"""The named number formats, and the arithmetic of `samebits.spec` realised in torch.

`QTensor` and `quantize_real` import torch, so they load when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from samebits.numerics.catalog import FORMATS, format_named
from samebits.spec.formats import Format, Rounding, ScaleRule

if TYPE_CHECKING:
    from samebits.numerics.qtensor import QTensor
    from samebits.numerics.realise import quantize_real

__all__ = [
    "FORMATS",
    "Format",
    "QTensor",
    "Rounding",
    "ScaleRule",
    "format_named",
    "quantize_real",
]

_TORCH = {"QTensor": "qtensor", "quantize_real": "realise"}  # name: module


def __getattr__(name: str) -> Any:
    if name not in _TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_TORCH[name]}"), name)
