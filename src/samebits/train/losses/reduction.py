"""The common part of all losses: checked arguments, factors of gradients (training.md 6)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from samebits import kernels
from samebits.errors import RangeError, UnsupportedError
from samebits.spec import formats
from samebits.train.tensor import BFPTensor
from samebits.train.value import BFPValue

REDUCTIONS = ("mean", "sum")


def is_mean(what: str, reduction: str) -> bool:
    """Whether a loss is a mean, or a sum. Raises UnsupportedError for another reduction."""
    if reduction not in REDUCTIONS:
        raise UnsupportedError(
            f"{what}: expected reduction among {', '.join(REDUCTIONS)}, found {reduction!r}"
        )
    return reduction == "mean"


def check_values(what: str, y: BFPTensor, along: int | None = None) -> None:
    """Refuse a tensor of which a mask excludes places, as a loss would count them.

    And log-probabilities, but along the axis `along`.
    """
    if y.along not in (None, along):
        only = "which only losses of classes take" if along is None else f"expected along {along}"
        raise UnsupportedError(
            f"{what}: found log-probabilities along axis {y.along}, {only}; give it the logits"
        )
    if y.allowed is not None:
        raise UnsupportedError(
            f"{what}: expected finite values, found a tensor masked by -inf or by numbers below "
            "-2**15, which only softmax takes; mask the loss instead, by ignore_index or weights"
        )


def real_target(what: str, target: Tensor, shape: torch.Size) -> Tensor:
    """A real target of the shape of what it is compared with; of a BFP tensor its values.

    Raises UnsupportedError for another shape, and for a target that asks for a gradient.
    """
    if target.shape != shape:
        raise UnsupportedError(
            f"{what}: expected a target of shape {tuple(shape)}, found {tuple(target.shape)}"
        )
    if isinstance(target, BFPTensor):
        check_values(f"{what}, target", target)
    if target.requires_grad:
        raise UnsupportedError(
            f"{what}: expected a target without a gradient, found one that requires it; detach it"
        )
    return target.dequantize() if isinstance(target, BFPTensor) else target


def gradient_of(acc: Tensor, exponent: int, factor: float, own: float | None = None) -> BFPValue:
    """acc * 2**exponent times a loss's own factor > 0 and the incoming one, bfp32.

    Both as 16-bit coefficients; an own one of None and an incoming one of 1 are left out. Raises
    RangeError for a factor that is not finite.
    """
    if not math.isfinite(factor):
        raise RangeError(f"loss: expected a finite factor in backward(), found {factor}")
    m, x = (int(factor), 0) if factor in (0.0, 1.0) else formats.coefficient(abs(factor))
    n, y = (1, 0) if own is None else formats.coefficient(own)
    signed = -m * n if factor < 0 else m * n
    return BFPValue(*kernels.of(acc).times(acc, signed, exponent + x + y, 32))


def reported(value: float) -> Tensor:
    """A loss as a scalar tensor, on the CPU: its arithmetic is IEEE's."""
    return torch.tensor(value, dtype=torch.float64, device="cpu")
