"""Values of 32 or 16 bits, or of no width yet, as the bfp8 that layers take (training.md 5)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from samebits.errors import UnsupportedError
from samebits.train.tensor import BFPTensor, TensorOperation


class Narrow(TensorOperation):
    """Sums, bfp16 or bfp32 -> bfp8; the gradient passes unchanged."""

    @staticmethod
    def forward(ctx: Any, x: BFPTensor) -> BFPTensor:
        return x.narrowed()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad.detach()  # its parts apart: those of all uses are one sum


def as_bfp(x: Tensor, where: str) -> BFPTensor:
    """x, which has to be a BFP tensor; `where` names the layer that takes it.

    Raises UnsupportedError, which says what to do, for a float tensor.
    """
    if not isinstance(x, BFPTensor):
        raise UnsupportedError(
            f"{where}: expected a BFPTensor, found {type(x).__name__} of {x.dtype}; "
            "quantize the input with BFPTensor.from_real(x)"
        )
    return x


def as_bfp8(x: Tensor, where: str) -> BFPTensor:
    """x as bfp8, which every layer takes; `where` names the layer. Raises as `as_bfp`."""
    x = as_bfp(x, where)
    return x if x.bits <= 8 else Narrow.apply(x)
