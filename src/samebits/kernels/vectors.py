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
from samebits.kernels.geometry import not_finite
from samebits.kernels.products import Products
from samebits.kernels.protocol import Part, State, VectorNorm
from samebits.kernels.roundings import largest
from samebits.kernels.rows import Exponent
from samebits.spec import formats

Scalars = np.ndarray[Any, np.dtype[np.float64]]
Integers = np.ndarray[Any, np.dtype[np.int64]]


class Vectors(Products):
    """The part of `Eager` that computes by vectors.

    They are rows [..., d]; what belongs to one is [..., 1].
    """

    def vector_stats(self, z: Tensor) -> Tensor:
        """int64 [4, ..., 1]: sum, sum of squares, smallest and largest of every row of integers."""
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
        """Every row of 8-bit codes z normalised, times gamma plus beta, as codes of `bits`.

        Rows have at most MAX_GROUP codes; not centred, their sum counts as 0. gamma, beta: of the
        places of a row [d], or of as many rows in turn [1, rows, d]. Exponents by rows may be those
        of several vectors each; the result has such, the other two have one a vector. Raises
        RangeError where an exponent would be above 127.

        The output is rounded once, from the exact affine sums.
        """
        wide, narrow, factor = self._normalized(z, exponent, eps, centred)
        acc, own = affine(self, wide, self._joint(gamma), self._joint(beta))
        if isinstance(exponent, Tensor):
            y = self.requantize_blocks(acc, own, 0, exponent.shape, bits)
        else:
            y = self.requantize(acc, largest(self, acc, own), own, bits)
        return VectorNorm(y, narrow, factor)

    def _normalized(
        self, z: Tensor, exponent: Exponent, eps: float, centred: bool
    ) -> tuple[Part, Part, Part]:
        """`normalized`, of which a realisation may have a form of its own."""
        return normalized(self, z, exponent, eps, centred)

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
        """The gradient of z as bfp32, from g of 16 or 32 bits and what `vector_norm` found.

        g * gamma, and the difference of the sums over rows, are rounded to 16 bits. size: the shape
        of the exponents of the result; None: one, where all are numbers.
        """
        acc, own = norm_gradient(self, (g, e_g), xhat, factor, self._joint(gamma), centred)
        if size is not None:
            return self.shorten_blocks(acc, own, 0, size)
        return self.shorten(acc, largest(self, acc, own), own)

    def _joint(self, state: State | None) -> Part | None:
        """The joint values of a parameter and their exponent."""
        return None if state is None else (self.joint(*state[:2]), state[2])


# --- normalisation ----------------------------------------------------------------------------


def normalized(
    k: Vectors, z: Tensor, exponent: Exponent, eps: float, centred: bool
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


def affine(k: Vectors, xhat: Part, gamma: Part | None, beta: Part | None) -> Part:
    """xhat * gamma + beta of xhat with 16 bits and joint values, exact at one exponent: int64."""
    x, e = xhat
    terms = [(x, e, 16)] if gamma is None else [(x.long() * gamma[0], e + gamma[1], 38)]
    if beta is not None:
        terms.append((*beta, 23))
    return rows.combined(k, *terms)


def norm_gradient(
    k: Vectors, g: Part, xhat: Part, factor: Part, gamma: Part | None, centred: bool
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
