"""Batch normalisation in torch and numpy: exact integer sums, binary64 scalars, multiply-adds.

Scalars of channels are numpy float64, one rounding per operation, in the order of training.md 5
and 7. `BatchNorms` is for tensors with one exponent; the functions serve exponents by rows too.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from samebits.errors import RangeError
from samebits.kernels.geometry import not_finite, unlimited_exponent
from samebits.kernels.protocol import BITS, MultiplyAdds, Part, State, WholePart
from samebits.kernels.rows import Exponent
from samebits.kernels.vectors import Integers, Scalars, Vectors, fits_of, rounded_scalars
from samebits.spec import formats


def guard_of(bits: int) -> int:
    """Bits below the largest exponent at which statistics of samples of codes are added (12.2)."""
    return 8 if bits <= 8 else 0


def mean_of(s1: Integers, n: int, exponent: Integers | int) -> Scalars:
    """The mean of every channel, a real number, of its sum of n codes."""
    return np.ldexp(s1.astype(np.float64) / float(n), exponent)


def variance_of(spread: Scalars, divisor: int, exponent: Integers | int) -> Scalars:
    """spread / divisor of every channel, a real number; spread: n * S2 - S1 * S1, rounded once."""
    return np.ldexp(spread / float(divisor), 2 * exponent)


def moved_statistics(old: Tensor, new: Scalars, by: float) -> Scalars:
    """(1 - by) * old + by * new."""
    moved: Scalars = (1.0 - by) * old.cpu().numpy() + by * new
    return moved


def spread_of(s1: Integers, s2: Integers, n: int) -> Scalars:
    """n * S2 - S1 * S1 of every channel, exact, and then rounded once to binary64.

    Roundings of samples (12.2) may leave less than 0, which counts as 0.
    """
    pairs = zip(s1.tolist(), s2.tolist(), strict=True)
    return np.array([float(max(n * second - first * first, 0)) for first, second in pairs])


def inverse(variance: Scalars, eps: float) -> Scalars:
    """1 / standard deviation; not finite where a variance is none, which `multiply_add` tells."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return 1.0 / np.sqrt(variance.astype(np.float64) + eps)


def multiply_add(
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
        raise unfit_scale(float(bound.max()))
    exponent = fits_of(bound, bits)
    return rounded_scalars(alpha, exponent), rounded_scalars(shift, exponent), exponent


def unfit_scale(bound: float) -> RangeError:
    """The error of a coefficient that is not finite."""
    return RangeError(
        "batch norm: the scale of a channel is not finite: expected running statistics, "
        f"gamma and beta that give finite values, found {bound}"
    )


def gradient_coefficients(
    a: Scalars, slope: Scalars, offset: Scalars, largest_g: int
) -> tuple[list[Integers], Integers]:
    """The integers of a * g + slope * z + offset, and their exponents [samples, 1].

    a and slope [samples or 1, channels] are of codes. The common exponent gives the largest `a` 24
    bits, unless the sum would leave 61 bits. Raises RangeError where the sum is not finite.
    """
    limit = float(largest_g)
    reach = (np.abs(a) * limit + 127.0 * np.abs(slope) + np.abs(offset)).max(1, keepdims=True)
    if not np.isfinite(reach).all():
        raise not_finite(float(reach.max()))
    exponent = np.maximum(fits_of(np.abs(a).max(1, keepdims=True), 24), fits_of(reach, 61))
    return [rounded_scalars(v, exponent) for v in (a, slope, offset)], exponent


def input_slopes(
    scalars: Scalars, gg: Scalars, sg: Scalars, n: int, training: bool
) -> tuple[Scalars, Scalars]:
    """(slope, offset) of the input gradient a * g + slope * z + offset, real numbers.

    scalars [3, channels]: centre, inv and a. gg, sg: the sums of g * xhat and of g. Running
    statistics, unlike those of the shard, have no gradient: 0.
    """
    centre, inv, a = scalars
    if not training:
        return np.zeros_like(a), np.zeros_like(a)
    slope = -(a * ((gg / float(n)) * inv))
    return slope, -(a * (sg / float(n))) - centre * slope


def scalar_codes(v: Scalars, device: torch.device) -> WholePart:
    """Real values as bfp32 with the smallest exponent (not limited)."""
    largest = float(np.abs(v).max())
    if largest == 0:
        zeros = torch.zeros(v.shape, dtype=torch.int32, device=device)
        return zeros, formats.EXPONENT_MIN
    exponent = unlimited_exponent(largest, 32)
    codes = torch.from_numpy(rounded_scalars(v, exponent))
    return codes.to(torch.int32).to(device), exponent


def joint_scalars(joint: Tensor, exponent: int) -> Scalars:
    """The joint values of a vector parameter, exactly, in binary64."""
    return np.ldexp(joint.cpu().numpy().astype(np.float64), int(exponent))


class BatchNorms(Vectors):
    """The part of `Eager` that normalises batches (5 and 7).

    For each channel over n codes z float64 [3, channels] on the CPU: the centre (a real number),
    the inverse of the standard deviation, and `a`, which is gamma times it. By rows both kernels
    give None where the realisation has no such pass.
    """

    def batch_norm(
        self,
        z: Tensor,
        exponent: Exponent,
        gamma: State,
        beta: State,
        running: tuple[Tensor, Tensor] | None,
        eps: float,
    ) -> tuple[MultiplyAdds, Tensor, Tensor, int] | None:
        """The multiply-adds that normalise z, of 8 or 16 bits, by channels, scalars, and sums of z.

        running: mean and variance, float64 [channels], of which the centre is made; None: those of
        z, at most 2**24 codes a channel. Sums are int64 [2, channels] on the CPU, of z and of
        z * z, and have an exponent: that of z, or by rows one with `guard_of` bits (12.2). Raises
        RangeError where the scale of a channel is not finite.

        An affine function of a code is largest at the smallest or the largest code, so that the
        output's exponent follows from the statistics, without a pass over the output.
        """
        if isinstance(exponent, Tensor):
            return None
        n, stats = z.numel() // z.shape[1], self._channel_stats(z)
        (s1, s2, *ends), sums = stats.numpy(), stats[:2]
        if running is None:
            centre = mean_of(s1, n, exponent)
            variance = variance_of(spread_of(s1, s2, n), n * n, exponent)
        else:
            centre, variance = (v.cpu().numpy() for v in running)
        inv = inverse(variance, eps)
        factor, term = (joint_scalars(self.joint(*codes), e) for *codes, e in (gamma, beta))
        with np.errstate(invalid="ignore", over="ignore"):  # `multiply_add` tells
            a = factor * inv
            shift, alpha = term - centre * a, np.ldexp(a, exponent)
        m, b, own = multiply_add(alpha[None], shift, float(formats.CODE_MAX[BITS[z.dtype]]), 30)
        scalars = torch.from_numpy(np.stack([centre, inv, a]))
        most = np.stack(ends) * m + b
        top = int(np.abs(most).max())
        of_sample = torch.tensor([[top, max(int(most.max()), 0)]], device="cpu")
        first, second = (torch.from_numpy(v.astype(np.int32)) for v in (m, b))
        return MultiplyAdds(first, second, int(own[0, 0]), of_sample, top), scalars, sums, exponent

    def affine(self, z: Tensor, by: MultiplyAdds, bits: int) -> Part:
        """The multiply-adds of z, requantized to `bits` (1.1)."""
        return self.requantize(self.affine_sums(z, by), by.largest, by.exponent, bits)

    def affine_clamped(
        self, z: Tensor, by: MultiplyAdds, clip: int, bits: int
    ) -> tuple[Part, Tensor]:
        """The multiply-adds of z, `clamped`."""
        return self.clamped(self.affine_sums(z, by), by.exponent, clip, bits)

    def affine_sums(self, z: Tensor, by: MultiplyAdds) -> Tensor:
        """The multiply-adds of z themselves."""
        return self._channel_affine(z, by.m, by.b)

    def batch_norm_gradient(
        self,
        g: Tensor,
        e_g: Exponent,
        z: Tensor,
        e_z: Exponent,
        scalars: Tensor,
        training: bool,
        wants_input: bool,
    ) -> tuple[Part | None, WholePart, WholePart] | None:
        """The gradients of z, where it is wanted, of gamma and of beta, as bfp32; z has 8 bits.

        scalars: those of the forward pass; training: whether they are statistics of z. Both
        parameters' gradients are computed in binary64, that of the input as one multiply-add.
        Raises RangeError where a number is not finite.
        """
        if isinstance(e_g, Tensor) or isinstance(e_z, Tensor):
            return None
        known = scalars.numpy()
        centre, inv, a = known
        sums = self.channel_grad_sums(g, z).numpy().astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):  # what is not finite is an error below
            sg, sgz = np.ldexp(sums[0], e_g), np.ldexp(sums[1], e_g + e_z)
            gg = (sgz - centre * sg) * inv
            slope, offset = input_slopes(known, gg, sg, z.numel() // z.shape[1], training)
            of_codes = (np.ldexp(a, e_g)[None], np.ldexp(slope, e_z)[None], offset)
        dgamma, dbeta = (scalar_codes(v, g.device) for v in (gg, sg))
        if not wants_input:
            return None, dgamma, dbeta
        if not a.any():
            zeros = torch.zeros_like(g, dtype=torch.int32)
            return (zeros, formats.EXPONENT_MIN), dgamma, dbeta
        abc, exponent = gradient_coefficients(*of_codes, formats.CODE_MAX[BITS[g.dtype]])
        acc = self._channel_products(g, z, torch.from_numpy(np.concatenate(abc)))
        codes, own = self.shorten(acc, self.largest_of(acc), int(exponent[0, 0]))
        return (codes, int(own)), dgamma, dbeta

    def running_statistics(
        self,
        running: tuple[Tensor, Tensor],
        sums: tuple[Tensor, Tensor],
        n: int,
        e_z: int,
        by: float,
    ) -> None:
        """(1 - by) * old + by * new of mean and variance, float64 [channels], in place.

        New ones are those of n codes, of which `sums` are the sum and that of squares, int64.
        """
        s1, s2 = (v.numpy() for v in sums)
        new = mean_of(s1, n, e_z), variance_of(spread_of(s1, s2, n), n * (n - 1), e_z)
        for buffer, value in zip(running, new, strict=True):
            buffer.copy_(torch.from_numpy(moved_statistics(buffer, value, by)))

    def channel_grad_sums(self, g: Tensor, z: Tensor) -> Tensor:
        """int64 [2, channels] on the CPU: the sum of g, and of g * z; below 2**62."""
        return torch.stack([channel_sums(g), channel_sums(g.long() * z.long())]).cpu()

    def _channel_stats(self, z: Tensor) -> Tensor:
        """int64 [4, channels] on the CPU: sum, sum of squares, smallest and largest code of z."""
        rows = z.long().transpose(0, 1).flatten(1)
        return torch.stack([rows.sum(1), (rows * rows).sum(1), rows.amin(1), rows.amax(1)]).cpu()

    def _channel_affine(self, z: Tensor, m: Tensor, b: Tensor) -> Tensor:
        """z * m + b in int64; m, b [samples or 1, channels]."""
        return z.long() * of_samples(m, z) + of_samples(b, z)

    def _channel_products(self, g: Tensor, z: Tensor, abc: Tensor) -> Tensor:
        """a * g + b * z + c in int64; abc int64 [3, channels]."""
        a, b, c = (per_channel(v, g) for v in abc)
        return a * g.long() + b * z.long() + c


def channel_sums(v: Tensor) -> Tensor:
    """The sums over all axes but the second, int64."""
    return v.long().sum(dim=[axis for axis in range(v.dim()) if axis != 1])


def of_samples(v: Tensor, like: Tensor) -> Tensor:
    """v [samples or 1, channels] so that it meets the first axes of `like`, on its device."""
    return v.to(like.device).view(*v.shape, *([1] * (like.dim() - 2)))


def per_channel(v: Tensor, like: Tensor) -> Tensor:
    """v [channels] so that it meets the second axis of `like`, on its device."""
    return v.to(like.device).view(1, -1, *([1] * (like.dim() - 2)))
