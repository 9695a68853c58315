"""Normalisation of vectors: LayerNorm, RMSNorm, GroupNorm, InstanceNorm (training.md 5, 7, 14.6).

Exact integer sums, binary64 scalars of every vector, integer multiply-shift.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from samebits import kernels
from samebits.errors import UnsupportedError
from samebits.kernels import rows
from samebits.kernels.norm import fits_of, rounded_scalars
from samebits.kernels.protocol import Part
from samebits.kernels.rows import Exponent
from samebits.spec import formats
from samebits.train.operation import OperationCall, TrainingOperation
from samebits.train.operations.narrow import as_bfp8
from samebits.train.operations.pointwise import over_lines, reshape
from samebits.train.shifts import ChannelPeaks, rounded
from samebits.train.tensor import FUNCTIONS, BFPParameter, BFPTensor
from samebits.train.value import (
    BFPValue,
    Term,
    Weight,
    bfp32,
    combined,
    common_exponent,
    requantized,
)

MAX_ROW_ELEMENTS = 1 << 12
MAX_GROUP_ELEMENTS = 1 << 20
MAX_SHIFTED_ELEMENTS = 1 << 18  # of codes of 19 bits: d * z - S1 below 2**38, K 24 bits
DEFAULT_EPS = torch.finfo(torch.float32).eps  # of an RMSNorm without one, as torch has it


@dataclass(frozen=True)
class VectorLayout:
    """Which elements of a shape are normalised together: groups of channels, or the last axis."""

    shape: torch.Size
    groups: int | None = None

    def split(self, v: Tensor) -> Tensor:
        """[n, groups, d], or as it is: vectors along the last axis."""
        return v if self.groups is None else v.reshape(self.shape[0], self.groups, -1)

    def exponents(self, exponent: Exponent) -> Exponent:
        """Exponents of the tensor's rows, to meet vectors."""
        if self.groups is None or isinstance(exponent, int):
            return exponent
        return exponent.reshape(-1, 1, 1)

    def join(self, v: Tensor) -> Tensor:
        """The inverse of `split`."""
        return v.reshape(self.shape)

    def of_rows(self, exponent: Exponent) -> Exponent:
        """Exponents of vectors, to meet the tensor."""
        if self.groups is None or isinstance(exponent, int):
            return exponent
        count = self.shape[1] // self.groups
        own = exponent.expand(self.shape[0], self.groups, 1).repeat_interleave(count, 1)
        return own.reshape(*self.shape[:2], *[1] * (len(self.shape) - 2))

    def along(self, v: Tensor) -> Tensor:
        """A vector of the channels, to meet vectors of elements."""
        if self.groups is None:
            return v
        inner = math.prod(self.shape[2:])
        return v.view(-1, 1).expand(-1, inner).reshape(1, self.groups, -1)

    def channels_last(self, v: Tensor, exponent: Exponent) -> tuple[Tensor, Exponent]:
        """Values of vectors and their exponents with the channels last."""
        if self.groups is None:
            return v, exponent
        n, c = self.shape[:2]
        values = v.reshape(n, c, -1).transpose(1, 2)
        if isinstance(exponent, int):
            return values, exponent
        own = exponent.expand(n, self.groups, 1).repeat_interleave(c // self.groups, 1)
        return values, own.transpose(1, 2)


def _normalized(
    x: BFPValue,
    gamma: Weight | None,
    beta: Weight | None,
    eps: float,
    centred: bool,
    groups: int | None,
    peaks: ChannelPeaks | None,
) -> tuple[BFPValue, tuple[Any, ...]]:
    """xhat = (z - mean) / deviation of every row in integers, then xhat * gamma + beta.

    Rows lie along the last dimension, or are groups of channels; without gamma or beta they are
    left out. d * z - S1 is exact (below 2**28, 2**38 with shifts), and the factor inv / d of each
    row has 24 bits. xhat has 16 bits for the output; 8 bits of it, and the factors, are saved for
    the backward pass. Not centred, S1 counts as 0.
    """
    z, e_z, shifts = x.shifted()
    layout = VectorLayout(z.shape, groups)
    if shifts is not None:
        z = z.long() << (shifts if groups is None else rows.along_channels(shifts, z.dim()))
    vectors, e_z = layout.split(z), layout.exponents(e_z)
    d, k = vectors.shape[-1], kernels.of(z)
    stats = k.vector_stats(vectors)
    if not centred:
        stats[0] = 0
    s1, s2 = stats[:2]
    own = np.asarray(e_z if isinstance(e_z, int) else e_z.cpu().numpy())
    spread = _spread(d, s1, s2, shifts is not None)
    inv = 1.0 / np.sqrt(np.ldexp(spread / float(d * d), 2 * own) + eps)
    factor = np.ldexp(inv / float(d), own)
    e_k: Exponent = formats.fits(float(factor.max()), 24)
    fit = np.asarray(e_k) if isinstance(e_z, int) else fits_of(factor, 24)
    multiplier = torch.from_numpy(rounded_scalars(factor, fit)).to(z.device)
    if not isinstance(e_z, int):
        e_k = torch.from_numpy(fit).to(z.device)
    xhat, (saved, e_saved) = k.vector_normalized(vectors, stats, multiplier, e_k)
    bits = x.bits if gamma is None else gamma.widths.values
    y = _affine(xhat, gamma, beta, layout, bits, peaks)
    return y, (saved, multiplier.to(torch.int32), (e_saved, e_k - e_z))


def _normalized_gradient(call: OperationCall, grad: BFPValue) -> tuple[BFPValue | None, ...]:
    """With h = g * gamma, dx is (d * h - sum h - xhat * sum h * xhat) times the row's factor.

    h and that difference are rounded to 16 bits, so that every sum over a row fits int64.
    """
    x, gamma, beta, _, centred, groups, _ = call.arguments
    xhat, multiplier, (e_x, e_factor) = call.saved
    g, e_g = grad.resolved()
    layout, k = VectorLayout(x.shape, groups), kernels.of(g)
    g, e_g = layout.split(g), layout.exponents(e_g)
    d = g.shape[-1]
    dgamma, dbeta = _parameter_gradients(
        (g, e_g), (xhat, e_x), layout, gamma is not None, beta is not None
    )
    if gamma is None:
        h, e_h = requantized(g, e_g, 16)
    else:
        joint, e_gamma = gamma.joint()
        h, e_h = k.column_affine(g, layout.along(joint), None, 0, e_g + e_gamma, 16)
    more = max(12, (d - 1).bit_length())
    terms = (e_h, 16 + more), (e_h + 2 * e_x, 30 + more)
    common = common_exponent(*terms)
    by = (e_h - common, e_h + 2 * e_x - common)
    t, e_t = k.vector_grad(h, xhat, centred, by, common)
    exponent = e_t + e_factor
    if isinstance(exponent, int):
        codes, exponent = k.vector_times(t, multiplier, exponent)
        return BFPValue(layout.join(codes), exponent), dgamma, dbeta
    acc = t.long() * multiplier
    return bfp32(layout.join(acc), layout.of_rows(exponent)), dgamma, dbeta


LAYER_NORM = TrainingOperation(
    "LayerNorm", _normalized, _normalized_gradient, reads=(1,), saves=True
)


def _spread(d: int, s1: Tensor, s2: Tensor, wide: bool) -> Any:
    """d * s2 - s1 * s1, d * d times the variance of every row, rounded once to binary64.

    wide: of codes with shifts, where it has up to 76 bits
    """
    first, second = s1.cpu().numpy(), s2.cpu().numpy()
    if wide:
        first, second = first.astype(object), second.astype(object)
    return (d * second - first * first).astype(np.float64)


def _affine(
    normalized: Part,
    gamma: Weight | None,
    beta: Weight | None,
    layout: VectorLayout,
    bits: int,
    peaks: ChannelPeaks | None,
) -> BFPValue:
    """xhat * gamma + beta of xhat with 16 bits, exact at one exponent, as codes of `bits`."""
    xhat, e_x = normalized
    scale = None if gamma is None else layout.along(gamma.joint()[0])
    e_m, width = (e_x, 16) if gamma is None else (e_x + gamma.joint()[1], 38)
    terms: list[Term] = []
    if beta is not None:
        jb, e_beta = beta.joint()
        terms.append((layout.along(jb), e_beta, 23))
    if scale is not None and isinstance(e_m, int) and peaks is None:
        k = kernels.of(xhat)
        common = common_exponent((e_m, width), *((e, n) for _, e, n in terms))
        b = next((k.scale(v, e - common) for v, e, _ in terms), None)
        codes, exponent = k.column_affine(xhat, scale, b, e_m - common, common, bits)
        return BFPValue(layout.join(codes), exponent, bits)
    product = xhat if scale is None else xhat.long() * scale
    acc, exponent = combined((product, e_m, width), *terms)
    return rounded(layout.join(acc), layout.of_rows(exponent), bits, peaks)


def _parameter_gradients(
    g: Part, xhat: Part, layout: VectorLayout, gamma: bool, beta: bool
) -> tuple[BFPValue | None, BFPValue | None]:
    """The gradients of gamma and beta, where there are any: sums of g * xhat, and of g."""
    (codes, e_g), (saved, e_x) = g, xhat
    if gamma and layout.groups is None and isinstance(e_g, int) and isinstance(e_x, int):
        rows_of = (v.reshape(-1, v.shape[-1]) for v in (codes, saved))
        sums, dots = (v.to(codes.device) for v in kernels.of(codes).channel_grad_sums(*rows_of))
        return bfp32(dots, e_g + e_x), bfp32(sums, e_g) if beta else None
    v, last = codes.long(), layout.channels_last
    return (
        _over_vectors(last(v * saved, e_g + e_x), 62) if gamma else None,
        _over_vectors(last(v, e_g), 55) if beta else None,
    )


def _over_vectors(values: tuple[Tensor, Exponent], bits: int) -> BFPValue:
    """The sum over all but the last axis, the channels: a gradient of gamma or beta."""
    acc, exponent = values
    if isinstance(exponent, int):
        return bfp32(acc.reshape(-1, acc.shape[-1]).sum(0), exponent)
    own = exponent.expand(*acc.shape[:-1], exponent.shape[-1])
    return bfp32(*rows.gathered(acc.flatten(0, -2), own.flatten(0, -2), bits))


def layer_norm(
    x: BFPTensor,
    gamma: BFPParameter | None,
    beta: BFPParameter | None,
    size: int,
    eps: float = 1e-5,
    centred: bool = True,
    peaks: ChannelPeaks | None = None,
) -> BFPTensor:
    """Normalise the last dimension, of `size` (at most 4096), as bfp8; gamma, beta [size] or None.

    centred: subtract the mean; without it this is RMSNorm (Zhang and Sennrich 2019). peaks: of the
    output's channels, which have shifts by them (training.md 12.4). Four axes are no image here:
    every vector is a row (12.2). Raises UnsupportedError for other shapes.
    """
    if any(p is not None and tuple(p.shape) != (size,) for p in (gamma, beta)):
        raise UnsupportedError(f"layer norm: expected parameters of {size} elements, found others")
    if x.shape[-1:] != (size,) or x.numel() == 0:
        raise UnsupportedError(
            f"layer norm: expected rows of {size} elements, found shape {tuple(x.shape)}"
        )
    if size > MAX_ROW_ELEMENTS:
        raise UnsupportedError(
            f"layer norm: expected at most {MAX_ROW_ELEMENTS} elements, found {size}"
        )
    if x.dim() == 4:
        vectors = layer_norm(reshape(x, (-1, size)), gamma, beta, size, eps, centred, peaks)
        return reshape(vectors, tuple(x.shape))
    return LAYER_NORM(x, gamma, beta, eps, centred, None, peaks)


def group_norm(
    x: BFPTensor,
    groups: int,
    gamma: BFPParameter | None,
    beta: BFPParameter | None,
    eps: float = 1e-5,
    peaks: ChannelPeaks | None = None,
) -> BFPTensor:
    """Normalise groups of channels of [n, c, ...] sample by sample, as bfp8; gamma, beta [c].

    As many groups as channels are InstanceNorm. Wu and He 2018; peaks as of `layer_norm`. Raises
    UnsupportedError for groups that do not divide the channels, and above 2**20 elements, or 2**18
    where channels have shifts.
    """
    if x.dim() == 3:
        return over_lines(x, lambda image: group_norm(image, groups, gamma, beta, eps, peaks))
    if x.dim() not in (2, 4) or x.numel() == 0 or groups < 1 or x.shape[1] % groups:
        raise UnsupportedError(
            f"group norm: expected [n, c, ...], up to 4 axes, whose channels {groups} groups "
            f"divide, found shape {tuple(x.shape)}"
        )
    if gamma is not None and gamma.numel() != x.shape[1]:
        raise UnsupportedError(
            f"group norm: expected {gamma.numel()} channels, found shape {tuple(x.shape)}"
        )
    size = x.numel() // x.shape[0] // groups
    most = MAX_GROUP_ELEMENTS if x.shifts is None else MAX_SHIFTED_ELEMENTS
    if size > most:
        raise UnsupportedError(
            f"group norm: expected at most {most} elements of a group, found {size}"
        )
    return LAYER_NORM(x, gamma, beta, eps, True, groups, peaks)


def _layer_norm(
    x: BFPTensor,
    normalized_shape: Sequence[int],
    weight: BFPParameter | None = None,
    bias: BFPParameter | None = None,
    eps: float = 1e-5,
) -> BFPTensor:
    """torch.nn.functional.layer_norm over the last axis. Raises UnsupportedError for more."""
    return _functional(x, normalized_shape, weight, bias, eps, True)


def _rms_norm(
    x: BFPTensor,
    normalized_shape: Sequence[int],
    weight: BFPParameter | None = None,
    eps: float | None = None,
) -> BFPTensor:
    """torch.nn.functional.rms_norm over the last axis. Raises UnsupportedError for more."""
    own = DEFAULT_EPS if eps is None else eps
    return _functional(x, normalized_shape, weight, None, own, False)


def _functional(
    x: BFPTensor,
    shape: Sequence[int],
    weight: BFPParameter | None,
    bias: BFPParameter | None,
    eps: float,
    centred: bool,
) -> BFPTensor:
    """A norm over the last axis, by a module's parameters. Raises UnsupportedError for others."""
    if len(shape) != 1 or any(not isinstance(p, BFPParameter | None) for p in (weight, bias)):
        raise UnsupportedError(
            "layer norm: expected one normalised axis, and parameters of a module, found "
            f"{tuple(shape)}"
        )
    if not eps > 0:
        raise UnsupportedError(f"layer norm: expected eps > 0, found {eps}")
    return layer_norm(as_bfp8(x, "layer norm"), weight, bias, shape[0], eps, centred)


def _group_norm(
    x: BFPTensor,
    num_groups: int,
    weight: BFPParameter | None = None,
    bias: BFPParameter | None = None,
    eps: float = 1e-5,
) -> BFPTensor:
    """torch.nn.functional.group_norm."""
    return group_norm(as_bfp8(x, "group norm"), num_groups, weight, bias, eps)


def _instance_norm(
    x: BFPTensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: BFPParameter | None = None,
    bias: BFPParameter | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> BFPTensor:
    """torch.nn.functional.instance_norm. Raises UnsupportedError for running statistics."""
    if running_mean is not None or running_var is not None or not use_input_stats:
        raise UnsupportedError(
            "instance norm: expected use_input_stats=True and no running_mean or running_var, "
            "found running statistics; leave them out"
        )
    return _group_norm(x, x.shape[1] if x.dim() > 1 else 1, weight, bias, eps)


def _beside_cudnn(norm: Callable[..., BFPTensor]) -> Callable[..., BFPTensor]:
    """The function of torch itself, which has one option more, that changes no value."""

    def normed(
        x: BFPTensor,
        size: Any,
        weight: BFPParameter | None = None,
        bias: BFPParameter | None = None,
        eps: float = 1e-5,
        cudnn_enable: bool = True,
    ) -> BFPTensor:
        return norm(x, size, weight, bias, eps)

    return normed


FUNCTIONS.update(
    {
        functional.layer_norm: _layer_norm,
        functional.rms_norm: _rms_norm,
        functional.group_norm: _group_norm,
        functional.instance_norm: _instance_norm,
        torch.layer_norm: _beside_cudnn(_layer_norm),
        torch.rms_norm: _rms_norm,
        torch.group_norm: _beside_cudnn(_group_norm),
    }
)
