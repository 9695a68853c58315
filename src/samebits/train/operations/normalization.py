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
from samebits.kernels.geometry import requantize_shift, unlimited_exponent
from samebits.kernels.protocol import BITS
from samebits.spec import formats
from samebits.train.tensor import (
    BFPParameter,
    BFPTensor,
    TensorOperation,
    bfp32,
    combined,
    gradient,
    requantized,
)

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
    """One shard's sums S1 and S2 [channels] of n codes, on their way into running statistics.

    Shards are applied in shard order, whoever computed them, so that every worker holds the same
    statistics (training.md 5 and 8).
    """

    running_mean: Tensor
    running_var: Tensor
    momentum: float
    s1: Integers
    s2: Integers
    n: int
    exponent: int

    def apply(self) -> None:
        """Move the running mean and variance by this shard, in binary64 (training.md 5)."""
        n, spread = self.n, self.n * self.s2 - self.s1 * self.s1
        mean = np.ldexp(self.s1.astype(np.float64) / float(n), self.exponent)
        var = np.ldexp(spread.astype(np.float64) / float(n * (n - 1)), 2 * self.exponent)
        for buffer, value in ((self.running_mean, mean), (self.running_var, var)):
            old = buffer.cpu().numpy()
            new = (1.0 - self.momentum) * old + self.momentum * value
            buffer.copy_(torch.from_numpy(new))

    def to_bytes(self) -> bytes:
        """Exponent, S1 and S2 as little-endian integers of 32 bits, S2 of 64 where n asks for it.

        |S1| <= 127 * n < 2**31, S2 <= 127**2 * n.
        """
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
    """List the updates of running statistics inside a with block instead of applying them."""
    updates: list[RunningUpdate] = []
    token = _DEFERRED.set(updates)
    try:
        yield updates
    finally:
        _DEFERRED.reset(token)


@dataclass(frozen=True)
class _Channels:
    """Scalars of a batch norm that its backward pass needs beside z, a binary64 per channel."""

    mean: Scalars  # in units of the codes of z
    inv: Scalars  # 1 / standard deviation
    a: Scalars  # gamma * inv
    e_z: int
    n: int  # elements of a channel
    training: bool


class BatchNormFunction(TensorOperation):
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
        """Statistics of the shard from exact sums (in evaluation the running ones), one rounding.

        An affine function of a code is largest at the smallest or the largest code, so the output's
        exponent follows from the statistics, without a pass over the output.
        """
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
        ctx.save_for_backward(z)
        ctx.channels = _Channels(mean, inv, a, e_z, n, training)
        m, b, exponent = _multiply_add(alpha, _scalars(beta) - offset, 127.0, 30)
        ends = np.stack([low, high]) * m.numpy() + b.numpy()
        largest = int(np.abs(ends).max())
        if largest == 0:
            return BFPTensor(torch.zeros_like(z), formats.EXPONENT_MIN)
        by = requantize_shift(largest, exponent, 8)
        return BFPTensor(k.channel_affine(z, m, b, -by), exponent + by)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        """dgamma and dbeta from exact sums, and the input gradient as one multiply-add."""
        g, e_g = gradient(grad)
        (z,) = ctx.saved_tensors
        c: _Channels = ctx.channels
        sg, sgz = kernels.of(g).channel_grad_sums(g, z).numpy().astype(np.float64)
        gg = np.ldexp(sgz - c.mean * sg, c.e_z) * c.inv
        dgamma = _bfp32_of_scalars(np.ldexp(gg, e_g), g.device)
        dbeta = _bfp32_of_scalars(np.ldexp(sg, e_g), g.device)
        dx = _input_grad(g, e_g, z, c, gg, sg) if ctx.needs_input_grad[0] else None
        return dx, dgamma, dbeta, None, None, None, None, None


def _multiply_add(
    alpha: Scalars, shift: Scalars, code_max: float, bits: int
) -> tuple[Tensor, Tensor, int]:
    """(M, B, e): int64 per channel with alpha * z + shift about (z * M + B) * 2**e for codes z.

    Batch norm is an affine function of its input's codes, so a channel of it is one multiply-add of
    integers: both coefficients are rounded at one exponent e, the smallest at which
    |z * M + B| <= 2**bits for |z| <= code_max, but for the roundings of M and B (less than
    code_max together). What follows is one shift that rounds. With 30 bits the sum fits int32, and
    rounding the coefficients moves it by at most 2**6, where an output code is about 2**23. For
    example alpha = 0.75, shift = -10: the bound is 127 * 0.75 + 10 = 105.25 <= 2**7, so e = -23,
    M = 6291456 and B = -83886080; the code 100 gives 545259520, which is 65 at the exponent 0.
    Raises RangeError where a coefficient is not finite.
    """
    bound = float((code_max * np.abs(alpha) + np.abs(shift)).max())
    if not math.isfinite(bound):
        raise RangeError(
            "batch norm: the scale of a channel is not finite: expected running statistics, "
            f"gamma and beta that give finite values, found {bound}"
        )
    exponent = formats.fits(bound, bits) if bound else 0
    return _integers(alpha, exponent), _integers(shift, exponent), exponent


def _input_grad(
    g: Tensor, e_g: int, z: Tensor, c: _Channels, gg: Scalars, sg: Scalars
) -> BFPTensor:
    """(a * g + beta_z * z + gamma0) * 2**e_g as one integer multiply-add and one rounding.

    gg, sg: the sums of g * xhat and of g. The common exponent gives the largest `a` 24 bits, unless
    the sum would leave 61 bits (training.md 7).
    """
    top = float(np.abs(c.a).max())
    if top == 0:
        return BFPTensor(torch.zeros_like(g, dtype=torch.int32), formats.EXPONENT_MIN)
    beta_z, gamma0 = np.zeros_like(c.a), np.zeros_like(c.a)
    if c.training:
        b0 = (gg / float(c.n)) * c.inv
        beta_z = np.ldexp(-(c.a * b0), c.e_z)
        gamma0 = -(c.a * (sg / float(c.n))) - c.mean * beta_z
    limit = float(formats.CODE_MAX[BITS[g.dtype]])
    reach = float((np.abs(c.a) * limit + 127.0 * np.abs(beta_z) + np.abs(gamma0)).max())
    exponent = max(formats.fits(top, 24), formats.fits(reach, 61))
    abc = torch.stack([_integers(v, exponent) for v in (c.a, beta_z, gamma0)])
    return BFPTensor(*kernels.of(g).batch_norm_grad(g, z, abc, e_g + exponent))


def _running_inverse(running_var: Tensor, eps: float) -> Scalars:
    with np.errstate(invalid="ignore", divide="ignore"):  # `_multiply_add` tells
        return 1.0 / np.sqrt(running_var.cpu().numpy() + eps)


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
    shift = _scalars(beta) - running_mean.cpu().numpy() * a
    return _multiply_add(np.ldexp(a, e_z), shift, 128.0, FROZEN_BITS)


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
    """Normalise [n, c, h, w] or [n, c] per channel, as bfp8.

    gamma, beta [c]. The float64 running buffers [c] are updated in training, and used in
    evaluation. Raises UnsupportedError for other shapes, or fewer than two values a channel.
    """
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
    return BatchNormFunction.apply(
        x, gamma, beta, running_mean, running_var, training, momentum, eps
    )


class LayerNormFunction(TensorOperation):
    """Over the last dimension; z as rows [rows, d]."""

    @staticmethod
    def forward(
        ctx: Any, x: BFPTensor, gamma: BFPParameter, beta: BFPParameter, eps: float
    ) -> BFPTensor:
        """xhat = (z - mean) / deviation of every row in integers, then xhat * gamma + beta.

        d * z - S1 is exact (below 2**20), and the factor inv / d of each row has 24 bits. xhat has
        16 bits for the output; 8 bits of it, and the factors, are saved for the backward pass.
        """
        z, e_z = x.resolved()
        d = z.shape[-1]
        rows = z.reshape(-1, d).long()
        s1, s2 = rows.sum(1), (rows * rows).sum(1)
        spread = (d * s2 - s1 * s1).cpu().numpy().astype(np.float64)
        inv = 1.0 / np.sqrt(np.ldexp(spread / float(d * d), 2 * e_z) + eps)
        factor = np.ldexp(inv / float(d), e_z)
        e_k = formats.fits(float(factor.max()), 24)
        row_factor = _integers(factor, e_k).to(z.device).view(-1, 1)
        codes, e_32 = bfp32((d * rows - s1.view(-1, 1)) * row_factor, e_k).resolved()
        (jg, e_gamma), (jb, e_beta) = gamma.joint(), beta.joint()
        xhat, e_x = requantized(codes, e_32, 16)
        saved, e_saved = requantized(codes, e_32, 8)
        ctx.save_for_backward(saved, row_factor.to(torch.int32), gamma.codes, gamma.delayed)
        ctx.exponents = (e_saved, e_k, e_z, e_gamma)
        ctx.shape = z.shape
        acc = combined((xhat.long() * jg, e_x + e_gamma, 38), (jb, e_beta, 23))
        y, e_y = requantized(*acc, 8)
        return BFPTensor(y.view(z.shape), e_y)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        """With h = g * gamma, dx is (d * h - sum h - xhat * sum h * xhat) times the row's factor.

        h and that difference are rounded to 16 bits, so that every sum over a row fits int64.
        """
        g, e_g = gradient(grad)
        xhat, row_factor, *state = ctx.saved_tensors
        e_x, e_k, e_z, e_gamma = ctx.exponents
        d = g.shape[-1]
        g = g.reshape(-1, d).long()
        dgamma = bfp32((g * xhat).sum(0), e_g + e_x)
        dbeta = bfp32(g.sum(0), e_g)
        h16, e_h = requantized(g * kernels.of(g).joint(*state), e_g + e_gamma, 16)
        h = h16.long()
        sh, shx = h.sum(1, keepdim=True), (h * xhat).sum(1, keepdim=True)
        t = combined((d * h - sh, e_h, 28), (-(shx * xhat), e_h + 2 * e_x, 42))
        t16, e_t = requantized(*t, 16)
        codes, exponent = bfp32(t16.long() * row_factor, e_t + e_k - e_z).resolved()
        return BFPTensor(codes.view(ctx.shape), exponent), dgamma, dbeta, None


def layer_norm(
    x: BFPTensor, gamma: BFPParameter, beta: BFPParameter, eps: float = 1e-5
) -> BFPTensor:
    """Normalise the last dimension (at most 4096 elements), as bfp8; gamma, beta of its size.

    Raises UnsupportedError for other shapes.
    """
    if x.shape[-1] != gamma.numel() or x.numel() == 0:
        raise UnsupportedError(
            f"layer norm: expected rows of {gamma.numel()} elements, found shape {tuple(x.shape)}"
        )
    if x.shape[-1] > MAX_ROW_ELEMENTS:
        raise UnsupportedError(
            f"layer norm: expected at most {MAX_ROW_ELEMENTS} elements, found {x.shape[-1]}"
        )
    return LayerNormFunction.apply(x, gamma, beta, eps)
