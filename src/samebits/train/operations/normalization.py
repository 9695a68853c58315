"""Batch normalisation: exact integer sums, binary64 scalars, integer multiply-shift
(training.md 5 and 7). Per-channel scalars are numpy float64: one rounding per operation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samebits import kernels
from samebits.errors import UnsupportedError
from samebits.kernels import rows
from samebits.kernels.norm import (
    gradient_coefficients,
    guard_of,
    input_slopes,
    inverse,
    joint_scalars,
    mean_of,
    moved_statistics,
    multiply_add,
    scalar_codes,
    spread_of,
    variance_of,
)
from samebits.kernels.protocol import BITS, Found, MultiplyAdds, Part
from samebits.kernels.rows import Exponent
from samebits.kernels.vectors import Integers, Scalars
from samebits.spec import formats
from samebits.train.deferred import defer
from samebits.train.operation import OperationCall, TrainingOperation
from samebits.train.operations.addition import add
from samebits.train.operations.indexing import transpose
from samebits.train.operations.layer_norm import group_norm
from samebits.train.operations.multiplication import multiply
from samebits.train.operations.narrow import as_bfp8, as_short
from samebits.train.operations.pointwise import over_lines, reshape
from samebits.train.shifts import ChannelPeaks, exact
from samebits.train.sums import Rounded, Sums
from samebits.train.tensor import FUNCTIONS, BFPParameter, BFPTensor
from samebits.train.value import BFPValue, Weight, bfp32

MAX_BATCH_ELEMENTS = 1 << 24
DEFAULT_EPS = torch.finfo(torch.float32).eps  # of an RMSNorm without one, as torch has it
FROZEN_BITS = 23  # of a deployed affine sum, so that its rounded terms stay below 2**24


def _scalars(parameter: Weight) -> Scalars:
    """The joint values of a vector parameter, exactly, in binary64."""
    joint, exponent = parameter.joint()
    assert isinstance(exponent, int)
    return joint_scalars(joint, exponent)


@dataclass(frozen=True)
class RunningUpdate:
    """One shard's sums S1 and S2 [channels] of n codes, on their way into running statistics.

    s1, s2: tensors where they lie on a GPU. bits: of a code. guard: bits that the sums have below
    the codes. shifts: of channels, on top of the exponent.
    """

    running_mean: Tensor
    running_var: Tensor
    momentum: float
    s1: Integers | Tensor
    s2: Integers | Tensor
    n: int
    exponent: int
    bits: int
    guard: int = 0
    shifts: Integers | int = 0

    @property
    def state(self) -> tuple[Tensor, ...]:
        """Mean and variance."""
        return self.running_mean, self.running_var

    def apply(self) -> None:
        """Move the running mean and variance by this shard, in binary64 (training.md 5)."""
        running = (self.running_mean, self.running_var)
        if isinstance(self.shifts, int):
            sums = _on_device(self.s1), _on_device(self.s2)
            k = kernels.of(self.running_mean)
            k.running_statistics(running, sums, self.n, self.exponent, self.momentum)
            return
        for buffer, new in zip(running, (self.mean(), self.variance(self.n - 1)), strict=True):
            buffer.copy_(torch.from_numpy(moved_statistics(buffer, new, self.momentum)))

    def mean(self) -> Scalars:
        """The mean of every channel, a real number."""
        return mean_of(_on_host(self.s1), self.n, self.exponent + self.shifts)

    def variance(self, divisor: int) -> Scalars:
        """(n * S2 - S1 * S1) / (n * divisor) of every channel, a real number."""
        return variance_of(
            spread_of(_on_host(self.s1), _on_host(self.s2), self.n),
            *(self.n * divisor, self.exponent + self.shifts),
        )

    def to_bytes(self) -> bytes:
        """Exponent, S1 and S2 as little-endian integers of 32 bits, or 64 where n asks for it."""
        exponent = int(self.exponent).to_bytes(4, "little", signed=True)
        return (
            exponent
            + _on_host(self.s1).astype(self._types[0]).tobytes()
            + _on_host(self.s2).astype(self._types[1]).tobytes()
        )

    def from_bytes(self, data: bytes) -> tuple[RunningUpdate, bytes]:
        """The same layer's update in another shard, and the bytes after it."""
        first, second = (np.dtype(kind) for kind in self._types)
        middle = 4 + len(self.s1) * first.itemsize
        end = middle + len(self.s2) * second.itemsize
        update = replace(
            self,
            exponent=int.from_bytes(data[:4], "little", signed=True),
            s1=np.frombuffer(data[4:middle], first).astype(np.int64),
            s2=np.frombuffer(data[middle:end], second).astype(np.int64),
        )
        return update, data[end:]

    @property
    def _types(self) -> tuple[str, str]:
        """Types of S1 and S2: |S1| <= q * n and S2 <= q**2 * n, and their guard bits."""
        q = formats.CODE_MAX[self.bits]
        bounds = q * self.n << self.guard, q**2 * self.n << 2 * self.guard
        first, second = ("<i4" if bound < 1 << 31 else "<i8" for bound in bounds)
        return first, second


def _on_host(sums: Integers | Tensor) -> Integers:
    return sums.cpu().numpy() if isinstance(sums, Tensor) else sums


def _on_device(sums: Integers | Tensor) -> Tensor:
    return sums if isinstance(sums, Tensor) else torch.from_numpy(sums)


# What the gradient needs beside z: scalars, float64 [3, channels] (the mean, a real number,
# 1 / standard deviation, and gamma times that), whether they are statistics of z, and shifts of its
# channels, on top of its exponents; the codes of a bfp16 z in 8 bits and their exponent follow.
_Saved = tuple[Tensor, bool, Integers | int]


def _statistics(
    z: Tensor, e_z: Tensor, running: tuple[Tensor, Tensor], momentum: float, shifts: Integers
) -> RunningUpdate:
    """The sums of samples at their largest exponent (12.2)."""
    n, bits = z.numel() // z.shape[1], BITS[z.dtype]
    guard = guard_of(bits)
    s1, s2 = _sample_sums(z), _sample_sums(z.long() * z)
    own = e_z.view(-1, 1)
    live = own[s2.amax(1, keepdim=True) > 0]
    common = int(live.max()) if live.numel() else formats.EXPONENT_MIN
    by = (own - common).clamp(max=0) + guard
    s1, s2 = rows.scale(s1, by).sum(0), rows.scale(s2, 2 * by).sum(0)
    sums = (s1.cpu().numpy(), s2.cpu().numpy())
    return RunningUpdate(*running, momentum, *sums, n, common - guard, bits, guard, shifts)


def _samples(exponent: Exponent) -> Integers:
    """Exponents of samples as [samples, 1]; of a whole tensor as [1, 1]."""
    if isinstance(exponent, int):
        return np.array([[exponent]])
    return exponent.reshape(-1, 1).cpu().numpy()


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
) -> tuple[BFPValue, tuple[Any, ...]]:
    """z (bfp8 or bfp16) -> the exact sums of an integer multiply-add per channel.

    The gradient reads z as a bfp8. Statistics of the shard are exact sums (in evaluation the
    running ones).
    """
    z, e_z, shifts = x.shifted()
    read: tuple[Any, ...] = ()
    if x.bits > 8:
        read = x.narrowed().shifted()[:2]
    bits, running = gamma.widths.values, (running_mean, running_var)
    if peaks is None and shifts is None:
        states, given = (gamma.state(), beta.state()), None if training else running
        found = kernels.of(z).batch_norm(z, e_z, *states, given, eps)
        if found is not None:
            by, scalars, (s1, s2), e_sums = found
            if training:
                n, of_z = z.numel() // z.shape[1], BITS[z.dtype]
                guard = 0 if isinstance(e_z, int) else guard_of(of_z)
                late = kernels.realisation(z.device.type) == "triton"
                sums = (s1, s2) if late else (s1.numpy(), s2.numpy())
                defer(RunningUpdate(*running, momentum, *sums, n, e_sums, of_z, guard))
            return BFPValue.of_sums(_sums(z, by, bits), z.shape), (scalars, training, 0, *read)
    assert isinstance(e_z, Tensor)
    up = np.zeros(1, np.int64) if shifts is None else shifts.cpu().numpy()
    if training:
        update = _statistics(z, e_z, running, momentum, up)
        centre, inv = update.mean(), inverse(update.variance(update.n), eps)
        defer(update)
    else:
        centre = running_mean.cpu().numpy()
        inv = inverse(running_var.cpu().numpy(), eps)
    a = _scalars(gamma) * inv
    alpha = np.ldexp(a, _samples(e_z) + up)
    most = float(formats.CODE_MAX[BITS[z.dtype]])
    m, b, exponent = (
        _per_sample(v, z) for v in multiply_add(alpha, _scalars(beta) - centre * a, most, 30)
    )
    scalars = torch.from_numpy(np.stack([centre, inv, a]))
    acc = z.long() * m + b
    computed = exact(lambda: (acc, 0, exponent), bits, True, z.device, peaks)
    return BFPValue.of_sums(computed, z.shape), (scalars, training, up, *read)


def _sums(z: Tensor, by: MultiplyAdds, bits: int) -> Sums:
    """The multiply-adds of z, computed where they are used."""
    k = kernels.of(z)

    def rounding(clip: int | None) -> Rounded:
        return (
            (k.affine(z, by, bits), None) if clip is None else k.affine_clamped(z, by, clip, bits)
        )

    def compute() -> Found:
        return k.affine_sums(z, by), by.largest, by.exponent

    return Sums(compute, bits, isinstance(by.exponent, Tensor), z.device, None, rounding)


def _normalized_gradient(call: OperationCall, grad: BFPValue) -> tuple[BFPValue | None, ...]:
    """dgamma and dbeta from exact sums, and the input gradient as one multiply-add."""
    (g, e_g), wanted = grad.resolved(), call.wanted[0]
    scalars, training, shifts, *read = call.saved
    z, e_z = read or call.arguments[0].shifted()[:2]
    known = (scalars, training, wanted)
    if isinstance(shifts, int) and (
        found := kernels.of(g).batch_norm_gradient(g, e_g, z, e_z, *known)
    ):
        dx, *others = found
        return None if dx is None else BFPValue(*dx), *(BFPValue(*part) for part in others)
    centre, inv, _ = scalars.numpy()
    sg, sgz = _gradient_sums(g, e_g, z, e_z)
    gg = (np.ldexp(sgz, shifts) - centre * sg) * inv
    dgamma, dbeta = (BFPValue(*scalar_codes(v, g.device)) for v in (gg, sg))
    if not wanted:
        return None, dgamma, dbeta
    return _input_grad((g, e_g), (z, e_z), (scalars, training, shifts), gg, sg), dgamma, dbeta


BATCH_NORM = TrainingOperation(
    "BatchNorm", _normalized, _normalized_gradient, reads=("8",), saves=True
)


def _per_sample(v: Integers, like: Tensor) -> Tensor:
    """v [samples or 1, channels or 1], to meet a tensor of rank 2 or 4, on its device."""
    return torch.from_numpy(v).to(like.device).view(*v.shape, *([1] * (like.dim() - 2)))


def _gradient_sums(g: Tensor, e_g: Exponent, z: Tensor, e_z: Exponent) -> tuple[Scalars, Scalars]:
    """The sums of g and of g * z of every channel, real numbers in binary64."""
    own, other = (torch.from_numpy(_samples(e)).to(g.device) for e in (e_g, e_z))
    k = kernels.of(g)
    s, e_s = rows.gathered(k, _sample_sums(g), own, 55)
    t, e_t = rows.gathered(k, _sample_sums(g.long() * z), own + other, 62)
    return (
        np.ldexp(s.cpu().numpy().astype(np.float64), int(e_s)),
        np.ldexp(t.cpu().numpy().astype(np.float64), int(e_t)),
    )


def _input_grad(grad: Part, read: Part, saved: _Saved, gg: Scalars, sg: Scalars) -> BFPValue:
    """a * g + slope * z + offset as one integer multiply-add a sample and one rounding.

    gg, sg: the sums of g * xhat and of g
    """
    (g, e_g), (z, e_z), (real, training, shifts) = grad, read, saved
    scalars = real.numpy()
    if not scalars[2].any():
        lowest = torch.full(rows.row_size(z.shape), formats.EXPONENT_MIN, device=g.device)
        return BFPValue(torch.zeros_like(g, dtype=torch.int32), lowest)
    slope, offset = input_slopes(scalars, gg, sg, z.numel() // z.shape[1], training)
    a, b = np.ldexp(scalars[2], _samples(e_g)), np.ldexp(slope, _samples(e_z) + shifts)
    abc, exponent = gradient_coefficients(a, b, offset, formats.CODE_MAX[BITS[g.dtype]])
    aq, bq, cq = (_per_sample(v, g) for v in abc)
    return bfp32(aq * g.long() + bq * z.long() + cq, _per_sample(exponent, g))


def frozen_scalars(
    gamma: Weight, beta: Weight, running_mean: Tensor, running_var: Tensor, eps: float
) -> tuple[Scalars, Scalars]:
    """(scale, shift) of every channel by running statistics, real numbers in binary64."""
    a = _scalars(gamma) * inverse(running_var.cpu().numpy(), eps)
    return a, _scalars(beta) - running_mean.cpu().numpy() * a


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
    a, shift = frozen_scalars(gamma, beta, running_mean, running_var, eps)
    m, b, exponent = multiply_add(np.ldexp(a, [[int(e_z)]]), shift, 128.0, FROZEN_BITS)
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
    """Normalise [n, c, h, w] or [n, c] per channel, as exact sums, with shifts by the peaks (12.4).

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


def _batch_norm(
    input: BFPTensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: BFPParameter | None = None,
    bias: BFPParameter | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> BFPTensor:
    """torch.nn.functional.batch_norm in a subclass of BatchNorm, whose parameters and buffers
    `convert` has made those of training, or without running statistics. Raises UnsupportedError for
    others."""
    if training and running_mean is None and running_var is None:
        return _of_its_own(input, weight, bias, eps)
    own = [p for p in (weight, bias) if isinstance(p, BFPParameter)]
    running = [b for b in (running_mean, running_var) if b is not None and b.dtype == torch.float64]
    if len(own) < 2 or len(running) < 2 or not isinstance(momentum, int | float):
        raise UnsupportedError(
            "batch_norm: expected weight, bias and running statistics of a subclass of "
            "torch.nn.BatchNorm that convert has taken, and a momentum, found others; write the "
            "module as such a subclass, with affine=True and track_running_stats=True"
        )
    (gamma, beta), (mean, var) = own, running

    def compute(x: BFPTensor) -> BFPTensor:
        return batch_norm(x, gamma, beta, mean, var, training, momentum, eps)

    x = as_short(input, "batch_norm")
    return over_lines(x, compute) if x.dim() == 3 else compute(x)


def _of_its_own(x: BFPTensor, weight: Any, bias: Any, eps: float) -> BFPTensor:
    """Every channel of [n, c, ...] by its own mean and deviation, times weight plus bias [c].

    As group norm has it of one sample.
    """
    y = transpose(x, 0, 1)
    channels = (1, x.shape[1], -1)
    normal = group_norm(as_bfp8(reshape(y, channels), "batch_norm"), x.shape[1], None, None, eps)
    for operation, vector in ((multiply, weight), (add, bias)):
        normal = normal if vector is None else operation(normal, vector.reshape(channels))
    return transpose(reshape(normal, y.shape), 0, 1)


FUNCTIONS[torch.nn.functional.batch_norm] = _batch_norm
