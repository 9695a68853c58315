"""Batch normalisation: exact integer sums, binary64 scalars, integer multiply-shift
(training.md 5 and 7). Per-channel scalars are numpy float64: one rounding per operation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samebits import kernels
from samebits.errors import RangeError, UnsupportedError
from samebits.kernels import rows
from samebits.kernels.geometry import requantize_shift, unlimited_exponent
from samebits.kernels.protocol import BITS, Part
from samebits.kernels.rows import Exponent
from samebits.spec import formats
from samebits.train.deferred import defer
from samebits.train.operation import OperationCall, TrainingOperation
from samebits.train.shifts import ChannelPeaks, rounded
from samebits.train.tensor import BFPParameter, BFPTensor
from samebits.train.value import BFPValue, Weight, bfp32

MAX_BATCH_ELEMENTS = 1 << 24
DEFAULT_EPS = torch.finfo(torch.float32).eps  # of an RMSNorm without one, as torch has it
FROZEN_BITS = 23  # of a deployed affine sum, so that its rounded terms stay below 2**24
Scalars = np.ndarray[Any, np.dtype[np.float64]]
Integers = np.ndarray[Any, np.dtype[np.int64]]


def _integers(v: Scalars, exponent: int) -> Tensor:
    """rne(v * 2**-exponent) as int64."""
    return torch.from_numpy(np.rint(np.ldexp(v, -exponent)).astype(np.int64))


def _scalars(parameter: Weight) -> Scalars:
    """The joint values of a vector parameter, exactly, in binary64."""
    joint, exponent = parameter.joint()
    return np.ldexp(joint.cpu().numpy().astype(np.float64), exponent)


def _bfp32_of_scalars(v: Scalars, device: torch.device) -> BFPValue:
    """Real values as bfp32 with the smallest exponent (not limited)."""
    largest = float(np.abs(v).max())
    if largest == 0:
        zeros = torch.zeros(v.shape, dtype=torch.int32, device=device)
        return BFPValue(zeros, formats.EXPONENT_MIN)
    exponent = unlimited_exponent(largest, 32)
    return BFPValue(_integers(v, exponent).to(torch.int32).to(device), exponent)


GUARD = 8
"""Bits below the largest exponent at which the statistics of samples are added (12.2)."""


@dataclass(frozen=True)
class RunningUpdate:
    """One shard's sums S1 and S2 [channels] of n codes, on their way into running statistics.

    guard: bits that the sums have below the codes. shifts: of channels, on top of the exponent.
    """

    running_mean: Tensor
    running_var: Tensor
    momentum: float
    s1: Integers
    s2: Integers
    n: int
    exponent: int
    guard: int = 0
    shifts: Integers | int = 0

    def apply(self) -> None:
        """Move the running mean and variance by this shard, in binary64 (training.md 5)."""
        var = self.variance(self.n - 1)
        for buffer, value in ((self.running_mean, self.mean()), (self.running_var, var)):
            old = buffer.cpu().numpy()
            new = (1.0 - self.momentum) * old + self.momentum * value
            buffer.copy_(torch.from_numpy(new))

    def mean(self) -> Scalars:
        """The mean of every channel, a real number."""
        return np.ldexp(self.s1.astype(np.float64) / float(self.n), self.exponent + self.shifts)

    def variance(self, divisor: int) -> Scalars:
        """(n * S2 - S1 * S1) / (n * divisor) of every channel, a real number."""
        return np.ldexp(self.spread() / float(self.n * divisor), 2 * (self.exponent + self.shifts))

    def spread(self) -> Scalars:
        """n * S2 - S1 * S1 of every channel, exact, and then rounded once to binary64."""
        if self.guard == 0:  # below 2**24 * 2**38
            return (self.n * self.s2 - self.s1 * self.s1).astype(np.float64)
        pairs = zip(self.s1.tolist(), self.s2.tolist(), strict=True)
        return np.array([float(self.n * s2 - s1 * s1) for s1, s2 in pairs])

    def to_bytes(self) -> bytes:
        """Exponent, S1 and S2 as little-endian integers of 32 bits, or 64 where n asks for it."""
        exponent = self.exponent.to_bytes(4, "little", signed=True)
        return (
            exponent
            + self.s1.astype(self._types[0]).tobytes()
            + self.s2.astype(self._types[1]).tobytes()
        )

    def from_bytes(self, data: bytes) -> tuple[RunningUpdate, bytes]:
        """The same layer's update in another shard, and the bytes after it."""
        first, second = (np.dtype(kind) for kind in self._types)
        middle = 4 + self.s1.size * first.itemsize
        end = middle + self.s2.size * second.itemsize
        update = replace(
            self,
            exponent=int.from_bytes(data[:4], "little", signed=True),
            s1=np.frombuffer(data[4:middle], first).astype(np.int64),
            s2=np.frombuffer(data[middle:end], second).astype(np.int64),
        )
        return update, data[end:]

    @property
    def _types(self) -> tuple[str, str]:
        """Types of S1 and S2: |S1| <= 127 * n and S2 <= 127**2 * n, and their guard bits."""
        bounds = formats.Q8 * self.n << self.guard, formats.Q8**2 * self.n << 2 * self.guard
        first, second = ("<i4" if bound < 1 << 31 else "<i8" for bound in bounds)
        return first, second


@dataclass(frozen=True)
class _Channels:
    """Scalars of a batch norm that its backward pass needs beside z, a binary64 per channel."""

    centre: Scalars  # the mean, a real number
    inv: Scalars  # 1 / standard deviation
    a: Scalars  # gamma * inv
    shifts: Integers  # of z, on top of e_z
    n: int  # elements of a channel
    training: bool


def _samples(exponent: Exponent) -> Integers:
    """Exponents of samples as [samples, 1]; of a whole tensor as [1, 1]."""
    if isinstance(exponent, int):
        return np.array([[exponent]])
    return exponent.reshape(-1, 1).cpu().numpy()


def _statistics(
    z: Tensor,
    e_z: Exponent,
    whole: Integers | None,
    running: tuple[Tensor, Tensor],
    momentum: float,
    shifts: Integers,
) -> RunningUpdate:
    """The sums of a shard, exact, or of samples at their largest exponent (12.2).

    whole: `channel_stats` of z, where it has one exponent
    """
    n = z.numel() // z.shape[1]
    if isinstance(e_z, int):
        assert whole is not None
        return RunningUpdate(*running, momentum, whole[0], whole[1], n, e_z)
    s1, s2 = _sample_sums(z), _sample_sums(z.long() * z)
    own = e_z.view(-1, 1)
    live = own[s2.amax(1, keepdim=True) > 0]
    common = int(live.max()) if live.numel() else formats.EXPONENT_MIN
    by = (own - common).clamp(max=0) + GUARD
    s1, s2 = rows.scale(s1, by).sum(0), rows.scale(s2, 2 * by).sum(0)
    sums = (s1.cpu().numpy(), s2.cpu().numpy())
    return RunningUpdate(*running, momentum, *sums, n, common - GUARD, GUARD, shifts)


def _sample_sums(v: Tensor) -> Tensor:
    """The sum of every channel of every sample, int64 [n, channels]."""
    return v.long().sum((2, 3)) if v.dim() == 4 else v.long()


def _normalized(
    x: BFPValue,
    gamma: Weight,
    beta: Weight,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
    peaks: ChannelPeaks | None,
) -> tuple[BFPValue, tuple[_Channels]]:
    """z (bfp8) -> bfp8 by an integer multiply-add per channel, one rounding.

    Statistics of the shard are exact sums (in evaluation the running ones). An affine function of a
    code is largest at the smallest or the largest code, so the output's exponent follows from the
    statistics, without a pass over the output.
    """
    z, e_z, shifts = x.shifted()
    up = np.zeros(1, np.int64) if shifts is None else shifts.cpu().numpy()
    k = kernels.of(z)
    whole = k.channel_stats(z).numpy() if isinstance(e_z, int) else None
    if training:
        update = _statistics(z, e_z, whole, (running_mean, running_var), momentum, up)
        centre, n = update.mean(), update.n
        inv = 1.0 / np.sqrt(update.variance(n) + eps)
        defer(update)
    else:
        n = z.numel() // z.shape[1]
        centre = running_mean.cpu().numpy().copy()
        inv = _running_inverse(running_var, eps)
    a = _scalars(gamma) * inv
    channels = (_Channels(centre, inv, a, up, n, training),)
    alpha = np.ldexp(a, _samples(e_z) + up)
    m, b, exponent = _multiply_add(alpha, _scalars(beta) - centre * a, 127.0, 30)
    bits = gamma.widths.values
    if whole is None:
        acc, own = z.long() * _per_sample(m, z) + _per_sample(b, z), _per_sample(exponent, z)
        return rounded(acc, own, bits, peaks), channels
    common = int(exponent[0, 0])
    largest = int(np.abs(whole[2:] * m + b).max())
    if largest == 0:
        return BFPValue(torch.zeros_like(z), formats.EXPONENT_MIN, bits), channels
    by = requantize_shift(largest, common, bits)
    coefficients = (torch.from_numpy(m[0]), torch.from_numpy(b[0]))
    return BFPValue(k.channel_affine(z, *coefficients, -by), common + by, bits), channels


def _normalized_gradient(call: OperationCall, grad: BFPValue) -> tuple[BFPValue | None, ...]:
    """dgamma and dbeta from exact sums, and the input gradient as one multiply-add."""
    (g, e_g), (z, e_z, _) = grad.resolved(), call.arguments[0].shifted()
    (c,) = call.saved
    sg, sgz = _gradient_sums(g, e_g, z, e_z)
    sgz = np.ldexp(sgz, c.shifts)
    gg = (sgz - c.centre * sg) * c.inv
    dgamma = _bfp32_of_scalars(gg, g.device)
    dbeta = _bfp32_of_scalars(sg, g.device)
    dx = _input_grad((g, e_g), (z, e_z), c, gg, sg) if call.wanted[0] else None
    return dx, dgamma, dbeta


BATCH_NORM = TrainingOperation(
    "BatchNorm", _normalized, _normalized_gradient, reads=("x",), saves=True
)


def _per_sample(v: Integers, like: Tensor) -> Tensor:
    """v [samples or 1, channels or 1], to meet a tensor of rank 2 or 4, on its device."""
    return torch.from_numpy(v).to(like.device).view(*v.shape, *([1] * (like.dim() - 2)))


def _gradient_sums(g: Tensor, e_g: Exponent, z: Tensor, e_z: Exponent) -> tuple[Scalars, Scalars]:
    """The sums of g and of g * z of every channel, real numbers in binary64."""
    if isinstance(e_g, int) and isinstance(e_z, int):
        sums = kernels.of(g).channel_grad_sums(g, z).numpy().astype(np.float64)
        return np.ldexp(sums[0], e_g), np.ldexp(sums[1], e_g + e_z)
    own, other = (torch.from_numpy(_samples(e)).to(g.device) for e in (e_g, e_z))
    s, e_s = rows.gathered(_sample_sums(g), own, 55)
    t, e_t = rows.gathered(_sample_sums(g.long() * z), own + other, 62)
    return (
        np.ldexp(s.cpu().numpy().astype(np.float64), e_s),
        np.ldexp(t.cpu().numpy().astype(np.float64), e_t),
    )


def fits_of(v: Scalars, bits: int) -> Integers:
    """`formats.fits` of every element; 0 for 0."""
    fraction, exponent = np.frexp(v)
    fit = np.where(fraction > 0.5, exponent - bits, exponent - 1 - bits)
    return np.where(v == 0, 0, fit).astype(np.int64)


def rounded_scalars(v: Scalars, exponent: Integers) -> Integers:
    """rne(v * 2**-exponent)."""
    return np.rint(np.ldexp(v, -exponent)).astype(np.int64)


def _multiply_add(
    alpha: Scalars, shift: Scalars, code_max: float, bits: int
) -> tuple[Integers, Integers, Integers]:
    """(M, B, e) with alpha * z + shift about (z * M + B) * 2**e for codes z.

    alpha [samples, channels] (one sample where a tensor has one exponent), shift [channels]; M, B
    and e are int64, e [samples, 1]. Batch norm is an affine function of its input's codes, so a
    channel of it is one multiply-add of integers: both coefficients are rounded at one exponent e,
    the smallest at which |z * M + B| <= 2**bits for |z| <= code_max, but for the roundings of M and
    B (less than code_max together). What follows is one shift that rounds. With 30 bits the sum
    fits int32, and rounding the coefficients moves it by at most 2**6, where an output code is
    about 2**23. For example alpha = 0.75, shift = -10: the bound is 127 * 0.75 + 10 = 105.25 <=
    2**7, so e = -23, M = 6291456 and B = -83886080; the code 100 gives 545259520, which is 65 at
    the exponent 0. Raises RangeError where a coefficient is not finite.
    """
    bound = (code_max * np.abs(alpha) + np.abs(shift)).max(1, keepdims=True)
    if not np.isfinite(bound).all():
        raise RangeError(
            "batch norm: the scale of a channel is not finite: expected running statistics, "
            f"gamma and beta that give finite values, found {float(bound.max())}"
        )
    exponent = fits_of(bound, bits)
    return rounded_scalars(alpha, exponent), rounded_scalars(shift, exponent), exponent


def _input_grad(grad: Part, read: Part, c: _Channels, gg: Scalars, sg: Scalars) -> BFPValue:
    """a * g + beta_z * z + gamma0 as one integer multiply-add a sample and one rounding.

    gg, sg: the sums of g * xhat and of g. The common exponent gives the largest `a` 24 bits, unless
    the sum would leave 61 bits (training.md 7).
    """
    (g, e_g), (z, e_z) = grad, read
    if not c.a.any():
        return BFPValue(torch.zeros_like(g, dtype=torch.int32), formats.EXPONENT_MIN)
    beta_z, gamma0 = np.zeros_like(c.a), np.zeros_like(c.a)
    if c.training:
        beta_z = -(c.a * ((gg / float(c.n)) * c.inv))
        gamma0 = -(c.a * (sg / float(c.n))) - c.centre * beta_z
    a, b = np.ldexp(c.a, _samples(e_g)), np.ldexp(beta_z, _samples(e_z) + c.shifts)
    limit = float(formats.CODE_MAX[BITS[g.dtype]])
    reach = (np.abs(a) * limit + 127.0 * np.abs(b) + np.abs(gamma0)).max(1, keepdims=True)
    exponent = np.maximum(fits_of(np.abs(a).max(1, keepdims=True), 24), fits_of(reach, 61))
    abc = [rounded_scalars(v, exponent) for v in (a, b, gamma0)]
    if isinstance(e_g, int) and isinstance(e_z, int):
        stacked = torch.from_numpy(np.stack([v[0] for v in abc]))
        return BFPValue(*kernels.of(g).batch_norm_grad(g, z, stacked, int(exponent[0, 0])))
    aq, bq, cq = (_per_sample(v, g) for v in abc)
    return bfp32(aq * g.long() + bq * z.long() + cq, _per_sample(exponent, g))


def _running_inverse(running_var: Tensor, eps: float) -> Scalars:
    with np.errstate(invalid="ignore", divide="ignore"):  # `_multiply_add` tells
        return 1.0 / np.sqrt(running_var.cpu().numpy() + eps)


def frozen_affine(
    gamma: Weight,
    beta: Weight,
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
    m, b, exponent = _multiply_add(np.ldexp(a, [[e_z]]), shift, 128.0, FROZEN_BITS)
    return torch.from_numpy(m[0]), torch.from_numpy(b[0]), int(exponent[0, 0])


def batch_norm(
    x: BFPTensor,
    gamma: BFPParameter,
    beta: BFPParameter,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float = 0.1,
    eps: float = 1e-5,
    peaks: ChannelPeaks | None = None,
) -> BFPTensor:
    """Normalise [n, c, h, w] or [n, c] per channel, as bfp8, with shifts by the peaks (12.4).

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
    return BATCH_NORM(x, gamma, beta, running_mean, running_var, training, momentum, eps, peaks)
