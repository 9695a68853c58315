"""Losses: integer exponentials by table, integer row sums, exact gradients (training.md 6).

The value returned is a float64 scalar for reports and `backward()`; the gradient is integer.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from samebits import kernels
from samebits.errors import RangeError, UnsupportedError
from samebits.spec import formats
from samebits.train.tensor import (
    BFPTensor,
    TensorOperation,
    bfp32,
    combined,
    quantize_real,
    requantized,
)

LN_2 = 0.6931471805599453
MAX_CLASSES = 1 << 14


class CrossEntropy(TensorOperation):
    """Loss (reported) and integer gradient of softmax and cross-entropy together."""

    @staticmethod
    def forward(ctx: Any, logits: BFPTensor, target: Tensor) -> Tensor:
        z, e_z = logits.resolved()
        n = z.shape[0]
        q, rows = kernels.of(z).cross_entropy(z, e_z, target)
        ctx.save_for_backward(q)
        value = LN_2 * math.ldexp(float(rows), -24) / float(n)
        return torch.tensor(value, dtype=torch.float64)  # on the CPU: its arithmetic is IEEE's

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (q,) = ctx.saved_tensors
        return _times_scalar(q.long(), -24, float(grad)), None


def _times_scalar(acc: Tensor, exponent: int, factor: float) -> BFPTensor:
    """acc * 2**exponent times the incoming scalar (as a 16-bit coefficient), bfp32.

    1 is left out. Raises RangeError for a scalar that is not finite.
    """
    if not math.isfinite(factor):
        raise RangeError(f"loss: expected a finite factor in backward(), found {factor}")
    if factor != 1.0:
        sign = -1 if factor < 0 else 1
        m, x = formats.coefficient(abs(factor)) if factor else (0, 0)
        acc, exponent = acc * (sign * m), exponent + x
    return bfp32(acc, exponent)


def cross_entropy(logits: BFPTensor, target: Tensor) -> Tensor:
    """Mean cross-entropy of logits [n, classes] against class indices [n]; a float64 scalar.

    Raises UnsupportedError for logits or targets of other types, shapes or values.
    """
    if not isinstance(logits, BFPTensor) or logits.dim() != 2:
        raise UnsupportedError(
            f"cross-entropy: expected BFP logits [n, classes], found {type(logits).__name__} "
            f"of shape {tuple(logits.shape)}"
        )
    n, classes = logits.shape
    if n < 1:
        raise UnsupportedError("cross-entropy: expected at least one row, found an empty batch")
    if classes > MAX_CLASSES:
        raise UnsupportedError(f"cross-entropy: expected at most {MAX_CLASSES} classes")
    if target.shape != (n,) or target.dtype not in (torch.int64, torch.int32):
        raise UnsupportedError(
            f"cross-entropy: expected {n} integer targets, found {tuple(target.shape)} "
            f"of {target.dtype}"
        )
    if n and not 0 <= int(target.min()) <= int(target.max()) < classes:
        raise UnsupportedError(
            f"cross-entropy: expected targets in [0, {classes - 1}], "
            f"found {int(target.min())} to {int(target.max())}"
        )
    return CrossEntropy.apply(logits, target.long())


class MeanSquare(TensorOperation):
    """Loss (reported) and integer gradient of the mean squared error."""

    @staticmethod
    def forward(ctx: Any, y: BFPTensor, target: Tensor) -> Tensor:
        codes, e_y = y.resolved()
        t, e_t = quantize_real(target, 16, "target")
        d, e_d = requantized(*combined((codes, e_y, 31), (-t.long(), e_t, 15)), 16)
        ctx.save_for_backward(d)
        ctx.exponent = e_d
        squares = int((d.long() * d.long()).sum())
        value = math.ldexp(float(squares) / float(d.numel()), 2 * e_d)
        return torch.tensor(value, dtype=torch.float64)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (d,) = ctx.saved_tensors
        m, x = formats.coefficient(2.0 / d.numel())
        return _times_scalar(d.long() * m, ctx.exponent + x, float(grad)), None


def mse_loss(y: BFPTensor, target: Tensor) -> Tensor:
    """Mean squared error against a real target of the same shape; a float64 scalar.

    Raises UnsupportedError where the shapes differ, NonFiniteError for a target that is not finite.
    """
    if not isinstance(y, BFPTensor) or y.numel() == 0:
        raise UnsupportedError(
            f"mse: expected a non-empty BFP tensor, found {type(y).__name__} {tuple(y.shape)}"
        )
    if y.shape != target.shape:
        raise UnsupportedError(
            f"mse: expected a target of shape {tuple(y.shape)}, found {tuple(target.shape)}"
        )
    return MeanSquare.apply(y, target)


class CrossEntropyLoss(nn.Module):
    """`cross_entropy` as a module."""

    def forward(self, logits: BFPTensor, target: Tensor) -> Tensor:
        return cross_entropy(logits, target)


class MSELoss(nn.Module):
    """`mse_loss` as a module."""

    def forward(self, y: BFPTensor, target: Tensor) -> Tensor:
        return mse_loss(y, target)
