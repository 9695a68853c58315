"""Clamps of ReLU and its kin in torch, and the mask of where a gradient passes (training.md 5, 7).

A mask is one bit an element, uint8: bit i % 8 of byte i / 8, elements in the order of the axes, of
images with channels last. A clip value is a whole number; 0 stands for none.
"""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.kernels.memory import rows, unrows
from samebits.kernels.protocol import Part
from samebits.kernels.roundings import Roundings, largest
from samebits.kernels.rows import Exponent, scale
from samebits.spec.formats import power, round_real

FINEST = -48  # the finest exponent at which a sum, below 2**48, may reach a clip value
HIGHEST = (1 << 63) - 1


def limit_of(clip: int, exponent: int) -> int:
    """A clip value at an exponent; HIGHEST where there is none, or no sum reaches it."""
    return round_real(clip / power(exponent)) if clip and exponent > FINEST else HIGHEST


def limits(clip: int, exponent: Exponent) -> int | Tensor:
    """`limit_of` one exponent, or of each of a tensor's, int64."""
    if not clip:
        return HIGHEST
    if isinstance(exponent, int):
        return limit_of(clip, exponent)
    fine = scale(torch.full_like(exponent, clip), -exponent.clamp(min=FINEST))
    return torch.where(exponent > FINEST, fine, HIGHEST)


class Clamps(Roundings):
    """The part of `Eager` that clamps, and masks gradients.

    A clamp is min(max(v, 0), limit), the limit rne(clip / 2**exponent), none for a clip of 0. Its
    mask has a bit, on the device of v, for every element with 0 < v < limit.
    """

    def clamp(self, v: Tensor, exponent: Exponent, clip: int) -> tuple[Tensor, Tensor]:
        """Codes or sums, |v| < 2**48, clamped as they are, and the mask."""
        clamped, passing = self._clamped(v, limits(clip, exponent))
        return clamped, packed(passing)

    def _clamped(self, v: Tensor, limit: int | Tensor) -> tuple[Tensor, Tensor]:
        """min(max(v, 0), limit), and where 0 < v < limit."""
        wide = v.long()
        low = wide.clamp(min=0)
        low = low.clamp(max=limit) if isinstance(limit, int) else torch.minimum(low, limit)
        return low.to(v.dtype), (wide > 0) & (wide < limit)

    def clamped(self, acc: Tensor, exponent: Exponent, clip: int, bits: int) -> tuple[Part, Tensor]:
        """Sums, int32 or int64 below 2**48, clamped, and then requantized to `bits` (1.1)."""
        low, mask = self.clamp(acc, exponent, clip)
        return self.requantize(low, largest(self, low, exponent), exponent, bits), mask

    def behind_mask(self, g: Tensor, mask: Tensor) -> Tensor:
        """g (16 or 32 bits) where the mask of a tensor of its shape has a bit, else 0."""
        return self.where(self.unpacked(mask, g.shape), g)

    def unpacked(self, mask: Tensor, shape: torch.Size) -> Tensor:
        """The bits of a mask as a bool tensor of the shape that it was made for."""
        order = rows(torch.empty(shape, dtype=torch.bool, device="meta"))
        bits = mask.view(-1, 1) >> torch.arange(8, dtype=torch.uint8, device=mask.device)
        return unrows((bits & 1).bool().flatten()[: order.numel()].view(order.shape))


def packed(flags: Tensor) -> Tensor:
    """The mask of a bool tensor."""
    ordered = rows(flags).flatten()
    bits = ordered.new_zeros((-(-ordered.numel() // 8), 8), dtype=torch.uint8)
    bits.view(-1)[: ordered.numel()] = ordered
    return (bits << torch.arange(8, dtype=torch.uint8, device=bits.device)).sum(
        1, dtype=torch.uint8
    )
