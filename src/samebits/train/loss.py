"""Losses: integer exponentials by table, integer row sums, exact gradients (training.md 6).

The value returned is a float64 scalar for reports and `backward()`; the gradient is integer.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import mpmath
import numpy as np
import torch
from torch import Tensor, nn

from samebits import kernels
from samebits.errors import RangeError, UnsupportedError
from samebits.kernels.eager import divide, largest_of, scale
from samebits.numerics import exact
from samebits.train.tensor import BFPTensor, Operation, quantize_real

LOG2_E = 1549082005  # rne(log2(e) * 2**30)
LN_2 = 0.6931471805599453
MAX_CLASSES = 1 << 14
CAP = 1 << 21


@functools.cache
def _power_tables() -> tuple[Tensor, Tensor]:
    """T1[i] = rne(2**(-i/256) * 2**30), T2[i] = rne(2**(-i/65536) * 2**30)."""
    with mpmath.workprec(120):
        tables = [
            torch.tensor(
                [int(mpmath.nint(mpmath.mpf(2) ** (30 - mpmath.mpf(i) / d))) for i in range(256)]
            )
            for d in (256, 65536)
        ]
    return tables[0], tables[1]


def _exponentials(d: Tensor, exponent: int) -> tuple[Tensor, Tensor]:
    """P = 2**24 * exp(-d * 2**exponent) and u = d * 2**exponent * log2(e) in units of 2**-16."""
    product = d * LOG2_E
    shift = exponent - 14
    if shift >= 0:
        left = min(shift, 22)
        u = torch.where(product > (CAP >> left), CAP, product.clamp(max=CAP) << left)
        u = u.clamp(max=CAP)
    else:
        u = (product >> min(-shift, 63)).clamp(max=CAP)
    t1, t2 = (t.to(d.device) for t in _power_tables())
    fraction = u & 65535
    p = (t1[fraction >> 8] * t2[fraction & 255]) >> 30
    whole = u >> 16
    return torch.where(whole > 24, 0, p >> (6 + whole.clamp(max=24))), u


def _log2(s: Tensor) -> int:
    """The sum of log2(s) in units of 2**-24 over an int64 tensor of values >= 1 (24 squarings)."""
    values = s.cpu().numpy().ravel()
    length = np.array([int(v).bit_length() - 1 for v in values], dtype=np.int64)
    v = np.where(
        length >= 30, values >> np.maximum(length - 30, 0), values << np.maximum(30 - length, 0)
    )
    bits = np.zeros_like(values)
    for _ in range(24):
        v = (v * v) >> 30
        high = v >> 31  # v < 2**32: the next bit of the logarithm
        bits = 2 * bits + high
        v = v >> high
    return int(((length << 24) + bits).sum())


class CrossEntropy(Operation):
    """Loss (reported) and integer gradient of softmax and cross-entropy together."""

    @staticmethod
    def forward(ctx: Any, logits: BFPTensor, target: Tensor) -> Tensor:
        z, e_z = logits.resolved()
        z = z.long()
        n = z.shape[0]
        p, u = _exponentials(z.amax(1, keepdim=True) - z, e_z)
        total = p.sum(1, keepdim=True)
        hit = torch.zeros_like(p).scatter_(1, target.view(-1, 1), 1)
        q = divide((p - total * hit) << 24, total * n)
        ctx.save_for_backward(q.to(torch.int32))
        u_target = u.gather(1, target.view(-1, 1))
        rows = _log2(total) - n * (24 << 24) + (int(u_target.sum()) << 8)
        value = LN_2 * math.ldexp(float(rows), -24) / float(n)
        return torch.tensor(value, dtype=torch.float64)  # on the CPU: its arithmetic is IEEE's

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (q,) = ctx.saved_tensors
        return _times_scalar(q.long(), -24, float(grad)), None


def _times_scalar(acc: Tensor, exponent: int, factor: float) -> BFPTensor:
    """acc * 2**exponent times the incoming scalar (as a 16-bit coefficient), bfp32."""
    if not math.isfinite(factor):
        raise RangeError(f"loss: expected a finite factor in backward(), found {factor}")
    if factor != 1.0:
        sign = -1 if factor < 0 else 1
        m, x = exact.coefficient(abs(factor)) if factor else (0, 0)
        acc, exponent = acc * (sign * m), exponent + x
    k = kernels.of(acc)
    return BFPTensor(*k.shorten(acc, k.largest_of(acc), exponent))


def cross_entropy(logits: BFPTensor, target: Tensor) -> Tensor:
    """Mean cross-entropy of logits [n, classes] against class indices [n]; a float64 scalar."""
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


class MeanSquare(Operation):
    """Loss (reported) and integer gradient of the mean squared error."""

    @staticmethod
    def forward(ctx: Any, y: BFPTensor, target: Tensor) -> Tensor:
        codes, e_y = y.resolved()
        t, e_t = quantize_real(target, 16, "target")
        exponent = max(e_y + 31, e_t + 15) - 60
        acc = scale(codes, e_y - exponent) + scale(-t.long(), e_t - exponent)
        d, e_d = kernels.of(acc).requantize(acc, largest_of(acc), exponent, 16)
        ctx.save_for_backward(d)
        ctx.exponent = e_d
        squares = int((d.long() * d.long()).sum())
        value = math.ldexp(float(squares) / float(d.numel()), 2 * e_d)
        return torch.tensor(value, dtype=torch.float64)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (d,) = ctx.saved_tensors
        m, x = exact.coefficient(2.0 / d.numel())
        return _times_scalar(d.long() * m, ctx.exponent + x, float(grad)), None


def mse_loss(y: BFPTensor, target: Tensor) -> Tensor:
    """Mean squared error against a real target of the same shape; a float64 scalar."""
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
