"""Batch and layer normalisation: exact integer sums, binary64 scalars, integer multiply-shift
(training.md 5 and 7). Per-channel scalars are numpy float64: one rounding per operation."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samebits import kernels
from samebits.errors import RangeError, UnsupportedError
from samebits.kernels.eager import BITS, joint, largest_of, scale
from samebits.kernels.geometry import requantize_shift, unlimited_exponent
from samebits.spec import formats
from samebits.train.operations.pointwise import bfp32
from samebits.train.tensor import BFPParameter, BFPTensor, Operation, gradient

MAX_BATCH_ELEMENTS = 1 << 24
MAX_ROW_ELEMENTS = 1 << 12
FROZEN_BITS = 23  # of a deployed affine sum, so that its rounded terms stay below 2**24
Scalars = np.ndarray[Any, np.dtype[np.float64]]
Integers = np.ndarray[Any, np.dtype[np.int64]]


def _integers(v: Scalars, exponent: int) -> Tensor:
    """rne(v * 2**-exponent) as int64."""
    return torch.from_numpy(np.rint(np.ldexp(v, -exponent)).astype(np.int64))


def _scalars(parameter: BFPParameter) -> Scalars:
    """The joint values of a vector parameter, exactly, in binary64."""
    joint, exponent = parameter.joint()
    return np.ldexp(joint.cpu().numpy().astype(np.float64), exponent)


def _bfp32_of_scalars(v: Scalars, device: torch.device) -> BFPTensor:
    """Real values as bfp32 with the smallest exponent (not limited)."""
    largest = float(np.abs(v).max())
    if largest == 0:
        return BFPTensor(
            torch.zeros(v.shape, dtype=torch.int32, device=device), formats.EXPONENT_MIN
        )
    exponent = unlimited_exponent(largest, 32)
    return BFPTensor(_integers(v, exponent).to(torch.int32).to(device), exponent)


@dataclass(frozen=True)
class RunningUpdate:
    """One shard's sums S1 and S2 [channels], of n codes, on their way into running statistics."""

    running_mean: Tensor
    running_var: Tensor
    momentum: float
    s1: Integers
    s2: Integers
    n: int
    exponent: int

    def apply(self) -> None:
        """Shards are applied in shard order (training.md 5)."""
        n, spread = self.n, self.n * self.s2 - self.s1 * self.s1
        mean = np.ldexp(self.s1.astype(np.float64) / float(n), self.exponent)
        var = np.ldexp(spread.astype(np.float64) / float(n * (n - 1)), 2 * self.exponent)
        for buffer, value in ((self.running_mean, mean), (self.running_var, var)):
            old = buffer.cpu().numpy()
            new = (1.0 - self.momentum) * old + self.momentum * value
            buffer.copy_(torch.from_numpy(new))

    def to_bytes(self) -> bytes:
        """Exponent, S1 and S2 as little-endian integers of 32 bits, S2 of 64 where n asks for it:
        |S1| <= 127 * n < 2**31, S2 <= 127**2 * n."""
        exponent = self.exponent.to_bytes(4, "little", signed=True)
        return exponent + self.s1.astype("<i4").tobytes() + self.s2.astype(self._wide).tobytes()

    def from_bytes(self, data: bytes) -> tuple[RunningUpdate, bytes]:
        """The same layer's update in another shard, and the bytes after it."""
        middle = 4 + self.s1.size * 4
        end = middle + self.s2.size * np.dtype(self._wide).itemsize
        update = replace(
            self,
            exponent=int.from_bytes(data[:4], "little", signed=True),
            s1=np.frombuffer(data[4:middle], "<i4").astype(np.int64),
            s2=np.frombuffer(data[middle:end], self._wide).astype(np.int64),
        )
        return update, data[end:]

    @property
    def _wide(self) -> str:
        return "<i4" if self.n * formats.Q8**2 < 1 << 31 else "<i8"


_DEFERRED: ContextVar[list[RunningUpdate] | None] = ContextVar("deferred", default=None)


@contextlib.contextmanager
def deferred_updates() -> Iterator[list[RunningUpdate]]:
    """Inside a with block running statistics stay as they are; the updates are listed instead."""
    updates: list[RunningUpdate] = []
    token = _DEFERRED.set(updates)
    try:
        yield updates
    finally:
        _DEFERRED.reset(token)


class BatchNorm(Operation):
    """z (bfp8) -> bfp8 by an integer multiply-add per channel; saves z, one byte an element."""

    @staticmethod
    def forward(
        ctx: Any,
        x: BFPTensor,
        gamma: BFPParameter,
        beta: BFPParameter,
        running_mean: Tensor,
        running_var: Tensor,
        training: bool,
        momentum: float,
        eps: float,
    ) -> BFPTensor:
        z, e_z = x.resolved()
        k = kernels.of(z)
        n = z.numel() // z.shape[1]
        s1, s2, low, high = k.channel_stats(z).numpy()
        if training:
            spread = n * s2 - s1 * s1
            mean = s1.astype(np.float64) / float(n)
            var = spread.astype(np.float64) / float(n * n)
            inv = 1.0 / np.sqrt(np.ldexp(var, 2 * e_z) + eps)
            update = RunningUpdate(running_mean, running_var, momentum, s1, s2, n, e_z)
            deferred = _DEFERRED.get()
            if deferred is None:
                update.apply()
            else:
                deferred.append(update)
        else:
            centre = running_mean.cpu().numpy()
            mean = np.ldexp(centre, -e_z)
            inv = _running_inverse(running_var, eps)
        a = _scalars(gamma) * inv
        alpha = np.ldexp(a, e_z)
        offset = mean * alpha if training else centre * a
        shift = _scalars(beta) - offset
        bound = float((127.0 * np.abs(alpha) + np.abs(shift)).max())
        ctx.save_for_backward(z)
        ctx.scalars = (mean, inv, a, e_z, n, training)
        _check_finite(bound)
        if bound == 0:
            return BFPTensor(torch.zeros_like(z), formats.EXPONENT_MIN)
        exponent = formats.fits(bound, 30)
        m, b = _integers(alpha, exponent), _integers(shift, exponent)
        ends = np.stack([low, high]) * m.numpy() + b.numpy()  # affine: largest at an end
        largest = int(np.abs(ends).max())
        if largest == 0:
            return BFPTensor(torch.zeros_like(z), formats.EXPONENT_MIN)
        by = requantize_shift(largest, exponent, 8)
        return BFPTensor(k.channel_affine(z, m, b, -by), exponent + by)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        g, e_g = gradient(grad)
        (z,) = ctx.saved_tensors
        mean, inv, a, e_z, n, training = ctx.scalars
        k = kernels.of(g)
        sg, sgz = k.channel_grad_sums(g, z).numpy().astype(np.float64)
        gg = np.ldexp(sgz - mean * sg, e_z) * inv
        dgamma = _bfp32_of_scalars(np.ldexp(gg, e_g), g.device)
        dbeta = _bfp32_of_scalars(np.ldexp(sg, e_g), g.device)
        dx = None
        if ctx.needs_input_grad[0]:
            dx = _input_grad(k, g, e_g, z, e_z, mean, inv, a, gg, sg, n, training)
        return dx, dgamma, dbeta, None, None, None, None, None


def _input_grad(
    k: Any,
    g: Tensor,
    e_g: int,
    z: Tensor,
    e_z: int,
    mean: Scalars,
    inv: Scalars,
    a: Scalars,
    gg: Scalars,
    sg: Scalars,
    n: int,
    training: bool,
) -> BFPTensor:
    """(a * g + beta_z * z + gamma0) * 2**e_g as one integer multiply-add and one rounding."""
    top = float(np.abs(a).max())
    if top == 0:
        return BFPTensor(torch.zeros_like(g, dtype=torch.int32), formats.EXPONENT_MIN)
    beta_z, gamma0 = np.zeros_like(a), np.zeros_like(a)
    if training:
        b0 = (gg / float(n)) * inv
        beta_z = np.ldexp(-(a * b0), e_z)
        gamma0 = -(a * (sg / float(n))) - mean * beta_z
    limit = float(formats.CODE_MAX[BITS[g.dtype]])
    reach = float((np.abs(a) * limit + 127.0 * np.abs(beta_z) + np.abs(gamma0)).max())
    exponent = max(formats.fits(top, 24), formats.fits(reach, 61))
    abc = torch.stack([_integers(v, exponent) for v in (a, beta_z, gamma0)])
    return BFPTensor(*k.batch_norm_grad(g, z, abc, e_g + exponent))


def _running_inverse(running_var: Tensor, eps: float) -> Scalars:
    with np.errstate(invalid="ignore", divide="ignore"):  # `_check_finite` tells
        return 1.0 / np.sqrt(running_var.cpu().numpy() + eps)


def _check_finite(bound: float) -> None:
    if not math.isfinite(bound):
        raise RangeError(
            "batch norm: the scale of a channel is not finite: expected running statistics, "
            f"gamma and beta that give finite values, found {bound}"
        )


def frozen_affine(
    gamma: BFPParameter,
    beta: BFPParameter,
    running_mean: Tensor,
    running_var: Tensor,
    eps: float,
    e_z: int,
) -> tuple[Tensor, Tensor, int]:
    """(M, B, e) of deployed batch norm, (z * M + B) * 2**e (training.md 11); int64 [channels].

    |z * M + B| < 2**24 for every 8-bit code z. Not finite: RangeError.
    """
    a = _scalars(gamma) * _running_inverse(running_var, eps)
    alpha = np.ldexp(a, e_z)
    shift = _scalars(beta) - running_mean.cpu().numpy() * a
    bound = float((128.0 * np.abs(alpha) + np.abs(shift)).max())
    _check_finite(bound)
    exponent = formats.fits(bound, FROZEN_BITS) if bound else 0
    return _integers(alpha, exponent), _integers(shift, exponent), exponent


def batch_norm(
    x: BFPTensor,
    gamma: BFPParameter,
    beta: BFPParameter,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> BFPTensor:
    """[n, c, h, w] or [n, c] per channel. The float64 running buffers are updated in training."""
    if x.dim() not in (2, 4) or x.shape[1] != gamma.numel():
        raise UnsupportedError(
            f"batch norm: expected [n, {gamma.numel()}] or [n, {gamma.numel()}, h, w], "
            f"found shape {tuple(x.shape)}"
        )
    n = x.numel() // x.shape[1]
    if training and not 2 <= n <= MAX_BATCH_ELEMENTS:
        raise UnsupportedError(
            f"batch norm: expected 2 to {MAX_BATCH_ELEMENTS} values per channel, found {n}"
        )
    return BatchNorm.apply(x, gamma, beta, running_mean, running_var, training, momentum, eps)


class LayerNorm(Operation):
    """Over the last dimension; z as rows [rows, d]."""

    @staticmethod
    def forward(
        ctx: Any, x: BFPTensor, gamma: BFPParameter, beta: BFPParameter, eps: float
    ) -> BFPTensor:
        z, e_z = x.resolved()
        d = z.shape[-1]
        rows = z.reshape(-1, d).long()
        s1, s2 = rows.sum(1), (rows * rows).sum(1)
        spread = (d * s2 - s1 * s1).cpu().numpy().astype(np.float64)
        inv = 1.0 / np.sqrt(np.ldexp(spread / float(d * d), 2 * e_z) + eps)
        factor = np.ldexp(inv / float(d), e_z)
        e_k = formats.fits(float(factor.max()), 24)
        row_factor = _integers(factor, e_k).to(z.device).view(-1, 1)
        wide = (d * rows - s1.view(-1, 1)) * row_factor
        xhat32 = bfp32(wide, e_k)
        (codes, e_32), (jg, e_gamma), (jb, e_beta) = (
            xhat32.resolved(),
            gamma.joint(),
            beta.joint(),
        )
        largest = largest_of(codes)
        k = kernels.of(codes)
        xhat, e_x = k.requantize(codes, largest, e_32, 16)
        saved, e_saved = k.requantize(codes, largest, e_32, 8)
        ctx.save_for_backward(saved, row_factor.to(torch.int32), gamma.codes, gamma.delayed)
        ctx.exponents = (e_saved, e_k, e_z, e_gamma)
        ctx.shape = z.shape
        exponent = max(e_x + e_gamma + 38, e_beta + 23) - 60
        acc = scale(xhat.long() * jg, e_x + e_gamma - exponent) + scale(jb, e_beta - exponent)
        y, e_y = k.requantize(acc, largest_of(acc), exponent, 8)
        return BFPTensor(y.view(z.shape), e_y)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        g, e_g = gradient(grad)
        xhat, row_factor, *state = ctx.saved_tensors
        jg = joint(*state)
        e_x, e_k, e_z, e_gamma = ctx.exponents
        d = g.shape[-1]
        g = g.reshape(-1, d).long()
        k = kernels.of(g)
        dgamma = bfp32((g * xhat).sum(0), e_g + e_x)
        dbeta = bfp32(g.sum(0), e_g)
        acc = g * jg
        h16, e_h = k.requantize(acc, largest_of(acc), e_g + e_gamma, 16)
        h = h16.long()
        sh, shx = h.sum(1, keepdim=True), (h * xhat).sum(1, keepdim=True)
        exponent = max(e_h + 28, e_h + 2 * e_x + 42) - 60
        t = scale(d * h - sh, e_h - exponent) + scale(-(shx * xhat), e_h + 2 * e_x - exponent)
        t16, e_t = k.requantize(t, largest_of(t), exponent, 16)
        dx = bfp32(t16.long() * row_factor, e_t + e_k - e_z)
        codes, exponent = dx.resolved()
        return BFPTensor(codes.view(ctx.shape), exponent), dgamma, dbeta, None


def layer_norm(
    x: BFPTensor, gamma: BFPParameter, beta: BFPParameter, eps: float = 1e-5
) -> BFPTensor:
    """Normalise the last dimension (at most 4096 elements)."""
    if x.shape[-1] != gamma.numel() or x.numel() == 0:
        raise UnsupportedError(
            f"layer norm: expected rows of {gamma.numel()} elements, found shape {tuple(x.shape)}"
        )
    if x.shape[-1] > MAX_ROW_ELEMENTS:
        raise UnsupportedError(
            f"layer norm: expected at most {MAX_ROW_ELEMENTS} elements, found {x.shape[-1]}"
        )
    return LayerNorm.apply(x, gamma, beta, eps)
