"""Functions that only look at values: they give numbers and ordinary tensors.

Those that torch would hand a gradient through, such as max, do so where none is recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from samebits.errors import UnsupportedError
from samebits.train.tensor import BFPTensor, offer

DISCRETE = (
    *("argmax", "argmin", "argsort", "isnan", "isinf", "isfinite"),
    *("item", "tolist", "numpy", "__float__", "__int__", "__bool__"),
    *("gt", "ge", "lt", "le", "eq", "ne"),
    *("__gt__", "__ge__", "__lt__", "__le__", "__eq__", "__ne__"),
)
DIFFERENTIABLE = ("max", "min", "amax", "amin", "sort", "topk", "abs", "norm", "std", "var")


def _looked(name: str) -> Callable[..., Any]:
    """A method of torch.Tensor on the float64 values of BFP tensors."""
    method = getattr(torch.Tensor, name)

    def look(*args: Any, **options: Any) -> Any:
        bfp = [a for a in args if isinstance(a, BFPTensor)]
        recorded = torch.is_grad_enabled() and any(a.requires_grad for a in bfp)
        if recorded and name in DIFFERENTIABLE:
            raise UnsupportedError(
                f"{name} of BFP tensors has no gradient: expected torch.no_grad() around it, or a "
                "tensor that requires none; read values with .detach().dequantize()"
            )
        values = [a.detach().dequantize() if isinstance(a, BFPTensor) else a for a in args]
        return method(*values, **options)

    return look


for _name in (*DISCRETE, *DIFFERENTIABLE):
    offer(_looked(_name), f"Tensor.{_name}" if _name.startswith("__") else _name)
