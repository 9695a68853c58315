"""Normalisation of vectors in torch (training.md 5 and 7): int64, one rounding a pass."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.kernels.protocol import Kernels, Part, Shifts
from samebits.kernels.rows import Exponent


class Vectors(Kernels):
    """The part of `Eager` that normalises vectors."""

    def vector_stats(self, z: Tensor) -> Tensor:
        v = z.long()
        sums = (v.sum(-1, keepdim=True), (v * v).sum(-1, keepdim=True))
        return torch.stack([*sums, v.amin(-1, keepdim=True), v.amax(-1, keepdim=True)])

    def vector_normalized(
        self, z: Tensor, stats: Tensor, multiplier: Tensor, exponent: Exponent
    ) -> tuple[Part, Part]:
        acc = (z.shape[-1] * z.long() - stats[0]) * multiplier
        codes, own = self.shorten(acc, self._largest(acc, exponent), exponent)
        largest = self._largest(codes, own)
        wide, narrow = (self.requantize(codes, largest, own, bits) for bits in (16, 8))
        return wide, narrow

    def column_affine(
        self, x: Tensor, m: Tensor, b: Tensor | None, by: Exponent, exponent: Exponent, bits: int
    ) -> Part:
        acc = self.scale(x.long() * m, by)
        acc = acc if b is None else acc + b
        return self.requantize(acc, self._largest(acc, exponent), exponent, bits)

    def vector_grad(
        self, h: Tensor, x: Tensor, centred: bool, by: Shifts, exponent: Exponent
    ) -> Part:
        v, codes = h.long(), x.long()
        direct = v.shape[-1] * v
        direct = direct - v.sum(-1, keepdim=True) if centred else direct
        along = (v * codes).sum(-1, keepdim=True) * codes
        acc = self.scale(direct, by[0]) - self.scale(along, by[1])
        return self.requantize(acc, self._largest(acc, exponent), exponent, 16)

    def vector_times(self, x: Tensor, multiplier: Tensor, exponent: int) -> Part:
        acc = x.long() * multiplier
        return self.shorten(acc, self.largest_of(acc), exponent)

    def _largest(self, v: Tensor, exponent: Exponent) -> int:
        """max|v| where one exponent is to be found by it; else it is not read."""
        return self.largest_of(v) if isinstance(exponent, int) else 0
