"""Weights and biases as deployed products take them (docs/spec/training.md section 11)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from samebits.errors import UnsupportedError
from samebits.kernels import rows
from samebits.kernels.vectors import Scalars
from samebits.spec import formats
from samebits.train.value import BFPValue, Weight

_SUM_LIMIT = 1 << 31
_LEAST = 2.0**-126  # of the normal numbers of binary32


class Factor(NamedTuple):
    """The binary32 number m * 2**exponent, m of 24 bits."""

    m: int
    exponent: int


UNIT = Factor(1 << 23, -23)


@dataclass(frozen=True)
class FrozenWeights:
    """The constants of exact sums x * codes + offset, those of a layer or of an LSTM's gates.

    codes:     of the weight, int8
    offsets:   the bias of every output channel (row of the gates) on the grid of its sums
    exponents: of the sums of every output channel
    factors:   of the sums of every output channel, where a batch norm is part of the layer
    """

    codes: Tensor
    offsets: list[int]
    exponents: list[int]
    factors: list[Factor] | None = None

    @property
    def finest(self) -> int:
        """The smallest exponent, which all sums have where they are no site."""
        return min(self.exponents)


def exponents_of(weight: Weight) -> list[int]:
    """e_W of every output channel, alike where the weight has one."""
    codes, exponent = weight.parts[0]
    if isinstance(exponent, Tensor):
        return [int(e) for e in exponent.flatten().tolist()]
    return [exponent] * codes.shape[0]


Outputs = tuple[Tensor, list[int]]
"""Codes [o, ...] of a weight, an output channel after the other, and the exponent of each."""


def transposed_outputs(weight: Weight, groups: int) -> Outputs:
    """The weight [i, o / groups, ...] of a transposed convolution as [o, i / groups, ...].

    Where rows have exponents, which are those of input channels there, every output channel is
    rounded to one of its own, and with groups all to one: ONNX has scales for its second axis.
    """
    codes, exponent = weight.parts[0]
    sizes = (groups, -1, *codes.shape[1:])
    swapped = codes.reshape(sizes).transpose(1, 2).flatten(0, 1)
    if isinstance(exponent, int):
        return swapped.contiguous(), [exponent] * len(swapped)
    own = exponent.expand(codes.shape).reshape(sizes).transpose(1, 2).flatten(0, 1)
    size = [1 if groups > 1 else len(swapped), *[1] * (swapped.dim() - 1)]
    found, chosen = rows.requantize(swapped.contiguous(), own, size, 8)
    return found.to(torch.int8), chosen.flatten().expand(len(swapped)).tolist()


def _inputs(codes: Tensor, groups: int) -> Tensor:
    """The inverse of `transposed_outputs`, of codes [o, i / groups, ...]."""
    return codes.reshape(groups, -1, *codes.shape[1:]).transpose(1, 2).flatten(0, 1).contiguous()


@dataclass(frozen=True)
class FrozenNorm:
    """A batch norm by running statistics: scale * z + shift of a channel, binary64 [channels]."""

    scale: Scalars
    shift: Scalars

    def factors(self) -> list[Factor | None]:
        """The binary32 number next to the magnitude of every scale; None of one that is 0 there.

        Raises UnsupportedError where a number is not finite.
        """
        with np.errstate(over="ignore"):
            near = np.abs(self.scale).astype(np.float32).astype(np.float64)
        if not (np.isfinite(near).all() and np.isfinite(self.shift).all()):
            raise UnsupportedError(
                "batch norm: expected scales and shifts of channels that binary32 holds, found "
                f"{np.abs(self.scale).max()} and {np.abs(self.shift).max()}"
            )
        parts = [math.frexp(v) if v >= _LEAST else None for v in near.tolist()]
        return [p and Factor(int(math.ldexp(p[0], 24)), p[1] - 24) for p in parts]


def frozen_weights(
    x: BFPValue,
    weight: Weight | Outputs,
    bias: Weight | None,
    norm: FrozenNorm | None = None,
) -> FrozenWeights:
    """The constants of sums x * weight + bias, every channel on a grid of its own.

    As `frozen_rows`, which says what becomes of sums that 32 bits do not hold. norm: what follows
    is part of the sums, (x * weight + bias) * scale + shift: its shift is a bias, the sign of its
    scale that of the weights, and the rest a factor.
    """
    made = _Grids.of(x, weight, bias)
    return made.fitting("sums") if norm is None else made.normed(norm).fitting("sums", False)


def frozen_rows(
    codes: Tensor, exponents: list[int], biases: list[Fraction], what: str
) -> FrozenWeights:
    """The constants of sums whose weights have these codes, and these exponents by channel.

    Channels whose sums 32 bits do not hold on their grid are raised: they have a coarser one, and
    weights that are rounded to it. Raises UnsupportedError, with `what`, where that is coarser than
    the coarsest of all.
    """
    return _Grids(codes, exponents, biases).fitting(what)


def frozen_sums(x: BFPValue, weight: Weight | Outputs, bias: Weight | None) -> FrozenWeights:
    """The constants of sums that are no site: 32 bits hold them all at the finest exponent.

    Channels with a grid that is too fine for that are raised. Raises UnsupportedError where the
    sums do not fit at the coarsest exponent of the weight.
    """
    made = _Grids.of(x, weight, bias)
    for common in range(min(made.own), max(made.own) + 1):
        found = made.raised([max(e, common) for e in made.own])
        reach = _reach(found)
        pairs = zip(reach, found.exponents, strict=True)
        if all(max(r, 1) << (e - common) < _SUM_LIMIT for r, e in pairs):
            return found
    raise _too_large("sums", max(reach))


def frozen_product(
    site: int | None,
    x: BFPValue,
    weight: Weight,
    bias: Weight | None,
    norm: FrozenNorm | None,
    groups: int | None,
) -> FrozenWeights:
    """The constants of a product with its batch norm, if it has one; site: whether it is one.

    groups: of a transposed convolution, whose codes stay [i, o / groups, ...]; None of others
    """
    given = weight if groups is None else transposed_outputs(weight, groups)
    found = frozen_sums(x, given, bias) if site is None else frozen_weights(x, given, bias, norm)
    return found if groups is None else replace(found, codes=_inputs(found.codes, groups))


def real_values(count: int, parameter: Weight | None, default: int = 0) -> list[Fraction]:
    """The joint values of a parameter, `count` times the default where there is none."""
    if parameter is None:
        return [Fraction(default)] * count
    unit = formats.power(parameter.whole()[1] - formats.DELAYED_BITS)
    return [j * unit for j in parameter.joint()[0].tolist()]


@dataclass(frozen=True)
class _Grids:
    """A weight, the exponents that the sums of x and it have by themselves, the biases, and the
    factors that follow."""

    codes: Tensor
    own: list[int]
    values: list[Fraction]
    factors: list[Factor] | None = None

    @staticmethod
    def of(x: BFPValue, weight: Weight | Outputs, bias: Weight | None) -> _Grids:
        """Those of a layer."""
        e_x = x.whole()[1]
        if isinstance(weight, Weight):
            weight = weight.parts[0][0], exponents_of(weight)
        own = [e_x + e for e in weight[1]]
        return _Grids(weight[0], own, real_values(len(own), bias))

    def normed(self, norm: FrozenNorm) -> _Grids:
        """With a batch norm behind the sums. A channel that it scales by 0 has no weights."""
        factors, signs, values = norm.factors(), [], []
        known = zip(self.values, norm.scale.tolist(), norm.shift.tolist(), factors, strict=True)
        for value, scale, shift, factor in known:
            sign = 0 if factor is None else -1 if scale < 0 else 1
            m, exponent = factor or UNIT
            signs.append(sign)
            values.append(sign * value + Fraction(shift) / (m * formats.power(exponent)))
        by = torch.tensor(signs, dtype=torch.int8, device=self.codes.device)
        codes = self.codes * by.view(-1, *[1] * (self.codes.dim() - 1))
        return _Grids(codes, self.own, values, [f or UNIT for f in factors])

    def fitting(self, what: str, bounded: bool = True) -> FrozenWeights:
        """Every channel on its own grid, or the finest above it on which its sums fit 32 bits.

        bounded: whether none may be coarser than the coarsest of all
        """
        to = list(self.own)
        while True:
            found = self.raised(to)
            reach = _reach(found)
            over = [r >= _SUM_LIMIT for r in reach]
            if not any(over):
                return found
            to = [e + o for e, o in zip(to, over, strict=True)]
            if bounded and max(to) > max(self.own):
                raise _too_large(what, max(reach))

    def raised(self, to: list[int]) -> FrozenWeights:
        """On grids that are their own or coarser."""
        codes = self.codes
        if to != self.own:
            shifts = [own - e for own, e in zip(self.own, to, strict=True)]
            by = torch.tensor(shifts, device=codes.device).view(-1, *[1] * (codes.dim() - 1))
            codes = rows.scale(codes, by).to(torch.int8)
        pairs = zip(self.values, to, strict=True)
        offsets = [formats.round_real(v / formats.power(e)) for v, e in pairs]
        return FrozenWeights(codes, offsets, to, self.factors)


def _reach(found: FrozenWeights) -> list[int]:
    """128 * sum |w| + |b| of every channel: 128 bounds a code that may be -128."""
    sums = (found.codes.long().abs().flatten(1).sum(1) * 128).tolist()
    return [s + abs(b) for s, b in zip(sums, found.offsets, strict=True)]


def _too_large(what: str, reach: int) -> UnsupportedError:
    return UnsupportedError(
        f"expected {what} that fit 32 bits (128 * sum of |weight| + |bias| < 2**31 in every "
        f"output channel), found {reach}: a bias is too large for the scale of its weights"
    )
