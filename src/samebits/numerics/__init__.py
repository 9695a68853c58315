"""Number formats and their arithmetic.

`format`, `catalog` and `exact` never import torch; `QTensor` and `quantize` do, so they load when
they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from samebits.numerics.catalog import FORMATS, format_named
from samebits.spec.formats import Format, Rounding, ScaleRule

if TYPE_CHECKING:
    from samebits.numerics.qtensor import QTensor
    from samebits.numerics.realise import quantize

__all__ = [
    "FORMATS",
    "Format",
    "QTensor",
    "Rounding",
    "ScaleRule",
    "format_named",
    "quantize",
]


def __getattr__(name: str) -> Any:
    if name == "QTensor":
        from samebits.numerics.qtensor import QTensor

        return QTensor
    if name == "quantize":
        from samebits.numerics.realise import quantize

        return quantize
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
