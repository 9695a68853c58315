"""Normalisation of vectors in torch and numpy (training.md 5 and 7): exact integer sums, binary64
scalars of every vector, int64 and one rounding a pass. And products of activations (14.1).

Exponents may be those of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samebits.kernels import rows
from samebits.kernels.clamps import Clamps
from samebits.kernels.geometry import ConvShape, conv_shape, not_finite
from samebits.kernels.protocol import CODE_TYPE, Kernels, Part, State, Sum, VectorNorm
from samebits.kernels.rows import Exponent
from samebits.spec import formats

Scalars = np.ndarray[Any, np.dtype[np.float64]]
Integers = np.ndarray[Any, np.dtype[np.int64]]


class Vectors(Clamps):
    """The part of `Eager` that computes by vectors."""

    def vector_stats(self, z: Tensor) -> Tensor:
        v = z.long()
        sums = (v.sum(-1, keepdim=True), (v * v).sum(-1, keepdim=True))
        return torch.stack([*sums, v.amin(-1, keepdim=True), v.amax(-1, keepdim=True)])

    def vector_norm(
        self,
        z: Tensor,
        exponent: Exponent,
        gamma: State | None,
        beta: State | None,
        eps: float,
        centred: bool,
        bits: int,
    ) -> VectorNorm:
        """The output is rounded once, from the exact affine sums."""
        wide, narrow, factor = normalized(self, z, exponent, eps, centred)
        acc, own = affine(self, wide, self._joint(gamma), self._joint(beta))
        if isinstance(exponent, Tensor):
            y = self.requantize_blocks(acc, own, 0, exponent.shape, bits)
        else:
            y = self.requantize(acc, largest(self, acc, own), own, bits)
        return VectorNorm(y, narrow, factor)

    def vector_norm_gradient(
        self,
        g: Tensor,
        e_g: Exponent,
        xhat: Part,
        factor: Part,
        gamma: State | None,
        centred: bool,
        size: Sequence[int] | None,
    ) -> Part:
        acc, own = norm_gradient(self, (g, e_g), xhat, factor, self._joint(gamma), centred)
        if size is not None:
            return self.shorten_blocks(acc, own, 0, size)
        return self.shorten(acc, largest(self, acc, own), own)

    def _joint(self, state: State | None) -> Part | None:
        """The joint values of a parameter and their exponent."""
        return None if state is None else (self.joint(*state[:2]), state[2])

    def requantize_blocks(
        self,
        v: Tensor,
        exponent: Exponent,
        beside: int,
        size: Sequence[int] | None,
        bits: int,
        limited: bool = True,
    ) -> Part:
        own, wanted = _of_blocks(v, exponent, beside, size)
        codes, chosen = rows.requantize(v, own, wanted, bits, limited=limited)
        return codes.to(CODE_TYPE[bits]), int(chosen) if size is None else chosen

    def shorten_blocks(
        self, v: Tensor, exponent: Exponent, beside: int, size: Sequence[int] | None
    ) -> Part:
        codes, chosen = rows.shorten(v, *_of_blocks(v, exponent, beside, size))
        return codes.to(torch.int32), int(chosen) if size is None else chosen

    def aligned(self, v: Tensor, exponent: Tensor, size: Sequence[int], keep: bool) -> Part:
        axes = [axis for axis in range(v.dim()) if size[axis] == 1]
        if keep:
            own = exponent.expand(v.shape)
            low, high = (
                torch.aminmax(own) if not axes else (own.amin(axes, True), own.amax(axes, True))
            )
            if torch.equal(low, high):
                return v, high.view(tuple(size))
        return rows.aligned(v, exponent, size)

    def products(self, a: Tensor, b: Tensor) -> Sum:
        """As many groups of a convolution, so below."""
        s = _shape(a, b)
        acc, top = self.conv(_image(a), _kernel(b), s)
        return _matrices(acc, s), top

    def products_a(self, g16: Tensor, b: Tensor) -> Sum:
        s = _shape(g16.new_empty((*g16.shape[:2], b.shape[2])), b)
        acc, top = self.conv_input_grad(_image(g16), _kernel(b), s)
        return _matrices(acc, s), top

    def products_b(self, g: Tensor, a: Tensor) -> Sum:
        s = _shape(a, g.transpose(1, 2))
        acc, top = self.conv_weight_grad(_image(g), _image(a), s)
        return acc.reshape(s.groups, -1, a.shape[2]), top


def largest(k: Kernels, v: Tensor, exponent: Exponent) -> int:
    """max|v| where one exponent is to be found by it; else it is not read."""
    return k.largest_of(v) if isinstance(exponent, int) else 0


# --- normalisation ----------------------------------------------------------------------------


def normalized(
    k: Kernels, z: Tensor, exponent: Exponent, eps: float, centred: bool
) -> tuple[Part, Part, Part]:
    """The normalised rows of z as codes of 16 and of 8 bits, and the factors of the rows.

    (d * z - sum) * factor is exact, below 2**62: factors, int32 [..., 1], have 24 bits. z: codes
    of 8 bits, or int64 with the shifts of its channels. Raises RangeError where a factor is not
    finite, or an exponent would be above 127.
    """
    d, stats = z.shape[-1], k.vector_stats(z)
    if not centred:
        stats[0] = 0
    own = np.asarray(exponent if isinstance(exponent, int) else exponent.cpu().numpy())
    spread = _spread(d, stats[0], stats[1], z.dtype == torch.int64)
    with np.errstate(divide="ignore"):  # what is not finite is an error below
        inv = 1.0 / np.sqrt(np.ldexp(spread / float(d * d), 2 * own) + eps)
    factor = np.ldexp(inv / float(d), own)
    if not np.isfinite(factor).all():
        raise not_finite(float(factor.max()))
    one = isinstance(exponent, int)
    fit = np.asarray(formats.fits(float(factor.max()), 24)) if one else fits_of(factor, 24)
    m = torch.from_numpy(rounded_scalars(factor, fit)).to(z.device)
    e_m: Exponent = int(fit) if one else torch.from_numpy(fit).to(z.device)
    acc = (d * z.long() - stats[0]) * m
    codes, e = k.shorten(acc, largest(k, acc, e_m), e_m)
    top = largest(k, codes, e)
    wide, narrow = (k.requantize(codes, top, e, bits) for bits in (16, 8))
    return wide, narrow, (m.to(torch.int32), e_m - exponent)


def fits_of(v: Scalars, bits: int) -> Integers:
    """`formats.fits` of every element; 0 for 0."""
    fraction, exponent = np.frexp(v)
    fit = np.where(fraction > 0.5, exponent - bits, exponent - 1 - bits)
    return np.where(v == 0, 0, fit).astype(np.int64)


def rounded_scalars(v: Scalars, exponent: Integers | int) -> Integers:
    """rne(v * 2**-exponent)."""
    return np.rint(np.ldexp(v, -exponent)).astype(np.int64)


def _spread(d: int, s1: Tensor, s2: Tensor, wide: bool) -> Any:
    """d * s2 - s1 * s1, d * d times the variance of every row, rounded once to binary64.

    wide: of codes with shifts, where it has up to 76 bits
    """
    first, second = s1.cpu().numpy(), s2.cpu().numpy()
    if wide:
        first, second = first.astype(object), second.astype(object)
    return (d * second - first * first).astype(np.float64)


def affine(k: Kernels, xhat: Part, gamma: Part | None, beta: Part | None) -> Part:
    """xhat * gamma + beta of xhat with 16 bits and joint values, exact at one exponent: int64."""
    x, e = xhat
    terms = [(x, e, 16)] if gamma is None else [(x.long() * gamma[0], e + gamma[1], 38)]
    if beta is not None:
        terms.append((*beta, 23))
    return rows.combined(k, *terms)


def norm_gradient(
    k: Kernels, g: Part, xhat: Part, factor: Part, gamma: Part | None, centred: bool
) -> Part:
    """With h = g * gamma, (d * h - sum h - xhat * sum h * xhat) times the row's factor, int64.

    h and that difference are rounded to 16 bits, so that every sum over a row fits int64.
    """
    (v, e), (x, e_x), (m, e_m) = g, xhat, factor
    if gamma is not None:
        v, e = v.long() * gamma[0], e + gamma[1]
    h, e_h = k.requantize(v, largest(k, v, e), e, 16)
    d, h, x = h.shape[-1], h.long(), x.long()
    direct = d * h - h.sum(-1, keepdim=True) if centred else d * h
    more = max(12, (d - 1).bit_length())
    along = (h * x).sum(-1, keepdim=True) * -x
    terms = (direct, e_h, 16 + more), (along, e_h + 2 * e_x, 30 + more)
    acc, own = rows.combined(k, *terms)
    t, e_t = k.requantize(acc, largest(k, acc, own), own, 16)
    return t.long() * m, e_t + e_m


# --- blocks and pairs of matrices -------------------------------------------------------------


def _of_blocks(
    v: Tensor, exponent: Exponent, beside: int, size: Sequence[int] | None
) -> tuple[Tensor, Sequence[int]]:
    """Exponents that broadcast against v, and the shape of those that are wanted."""
    own = exponent + beside
    if isinstance(own, int):
        own = torch.full([1] * v.dim(), own, device=v.device)
    return own, [1] * v.dim() if size is None else size


def pair_shape(a: Tensor, b: Tensor) -> ConvShape:
    """The geometry of one a [n, k] times b [m, k]: rows are pixels. Raises UnsupportedError."""
    return conv_shape((1, a.shape[2], 1, a.shape[1]), (*b.shape[1:], 1, 1))


def _shape(a: Tensor, b: Tensor) -> ConvShape:
    """The geometry of all of them: a group each."""
    count, n, k = a.shape
    return conv_shape((1, count * k, 1, n), (count * b.shape[1], k, 1, 1), groups=count)


def _image(v: Tensor) -> Tensor:
    """Rows [count, n, k] as the pixels of an image [1, count * k, 1, n]."""
    return v.permute(1, 0, 2).reshape(1, 1, v.shape[1], -1).permute(0, 3, 1, 2)


def _kernel(v: Tensor) -> Tensor:
    """Rows [count, m, k] as 1x1 kernels of groups."""
    return v.reshape(-1, v.shape[2], 1, 1)


def _matrices(image: Tensor, s: ConvShape) -> Tensor:
    """The inverse of `_image`, of sums."""
    return image.permute(0, 2, 3, 1).reshape(s.ow, s.groups, -1).permute(1, 0, 2)
