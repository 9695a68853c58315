"""Weights and biases as deployed products take them (docs/spec/training.md section 11)."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from samebits.errors import UnsupportedError
from samebits.kernels import rows
from samebits.spec import formats
from samebits.train.value import BFPValue, Weight

_SUM_LIMIT = 1 << 31


@dataclass(frozen=True)
class FrozenWeights:
    """The constants of exact sums x * codes + offset, those of a layer or of an LSTM's gates.

    codes:     of the weight, int8
    offsets:   the bias of every output channel (row of the gates) on the grid of its sums
    exponents: of the sums of every output channel
    """

    codes: Tensor
    offsets: list[int]
    exponents: list[int]

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


def transposed_inputs(codes: Tensor, groups: int) -> Tensor:
    """The inverse of `transposed_outputs`, of codes [o, i / groups, ...]."""
    return codes.reshape(groups, -1, *codes.shape[1:]).transpose(1, 2).flatten(0, 1).contiguous()


def frozen_weights(
    x: BFPValue,
    weight: Weight | Outputs,
    bias: Weight | None,
) -> FrozenWeights:
    """The constants of sums x * weight + bias, every channel on a grid of its own.

    As `frozen_rows`, which says what becomes of sums that 32 bits do not hold.
    """
    return _Grids.of(x, weight, bias).fitting("sums")


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


def real_values(count: int, bias: Weight | None) -> list[Fraction]:
    """The joint values of a bias, `count` zeros where there is none."""
    if bias is None:
        return [Fraction(0)] * count
    unit = formats.power(bias.whole()[1] - formats.DELAYED_BITS)
    return [j * unit for j in bias.joint()[0].tolist()]


@dataclass(frozen=True)
class _Grids:
    """A weight, the exponents that the sums of x and it have by themselves, and the biases."""

    codes: Tensor
    own: list[int]
    values: list[Fraction]

    @staticmethod
    def of(x: BFPValue, weight: Weight | Outputs, bias: Weight | None) -> _Grids:
        """Those of a layer."""
        e_x = x.whole()[1]
        if isinstance(weight, Weight):
            weight = weight.parts[0][0], exponents_of(weight)
        own = [e_x + e for e in weight[1]]
        return _Grids(weight[0], own, real_values(len(own), bias))

    def fitting(self, what: str) -> FrozenWeights:
        """Every channel on its own grid, or the finest above it on which its sums fit 32 bits."""
        to = list(self.own)
        while True:
            found = self.raised(to)
            reach = _reach(found)
            over = [r >= _SUM_LIMIT for r in reach]
            if not any(over):
                return found
            to = [e + o for e, o in zip(to, over, strict=True)]
            if max(to) > max(self.own):
                raise _too_large(what, max(reach))

    def raised(self, to: list[int]) -> FrozenWeights:
        """On grids that are their own or coarser."""
        codes = self.codes
        if to != self.own:
            shifts = [own - e for own, e in zip(self.own, to, strict=True)]
            by = torch.tensor(shifts, device=codes.device).view(-1, *[1] * (codes.dim() - 1))
            codes = rows.scale(codes, by).to(torch.int8)
        pairs = zip(self.values, to, strict=True)
        return FrozenWeights(
            codes, [formats.round_real(v / formats.power(e)) for v, e in pairs], to
        )


def _reach(found: FrozenWeights) -> list[int]:
    """128 * sum |w| + |b| of every channel: 128 bounds a code that may be -128."""
    sums = (found.codes.long().abs().flatten(1).sum(1) * 128).tolist()
    return [s + abs(b) for s, b in zip(sums, found.offsets, strict=True)]


def _too_large(what: str, reach: int) -> UnsupportedError:
    return UnsupportedError(
        f"expected {what} that fit 32 bits (128 * sum of |weight| + |bias| < 2**31 in every "
        f"output channel), found {reach}: a bias is too large for the scale of its weights"
    )
