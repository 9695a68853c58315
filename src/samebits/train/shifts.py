"""Shifts of channels: outliers that leave the grid of their row (training.md 12.4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from samebits import kernels
from samebits.kernels import rows
from samebits.kernels.protocol import Found
from samebits.kernels.rows import Exponent
from samebits.spec.training.rows import DECAY, SHIFTS
from samebits.train.deferred import defer
from samebits.train.sums import Sums, requantized
from samebits.train.value import BFPValue


@dataclass(frozen=True)
class ChannelPeaks:
    """The largest magnitudes that the channels of a layer's output have had, and their shifts.

    peaks:    float64 [channels], a buffer of the layer; 0 before the first training pass
    training: whether passes count; else they only use what is there
    """

    peaks: Tensor
    training: bool

    def shifts(self) -> Tensor | None:
        """int64 [channels], of SHIFTS; None if all are 0.

        A channel takes the smallest shift at which its largest magnitude is at most twice the
        median of all channels, so that most of them have none.
        """
        largest = self.peaks.cpu().numpy()
        live = np.sort(largest[largest > 0])
        if not live.size:
            return None
        limit = 2 * live[(live.size - 1) // 2]
        found = np.full(largest.shape, SHIFTS[-1])
        for shift in reversed(SHIFTS):
            found[largest <= limit * 2.0**shift] = shift
        return torch.from_numpy(found).to(self.peaks.device) if found.any() else None

    def see(self, acc: Tensor, exponent: Exponent) -> None:
        """Count acc * 2**exponent, what the layer computed, in training."""
        if self.training:
            size = rows.channel_size(acc.shape)
            top = rows.largest(acc, (acc.shape[0], *size[1:]) if acc.dim() == 4 else acc.shape)
            own = torch.as_tensor(exponent, device=acc.device).expand(top.shape)
            real = np.ldexp(top.cpu().numpy().astype(np.float64), own.cpu().numpy())
            axes = tuple(axis for axis in range(acc.dim()) if size[axis] == 1)
            defer(PeakUpdate(self.peaks, real.max(axes)))


@dataclass(frozen=True)
class PeakUpdate:
    """One shard's largest magnitudes, binary64 [channels], on their way into a layer's."""

    peaks: Tensor
    seen: np.ndarray[tuple[int, ...], np.dtype[np.float64]]

    @property
    def state(self) -> tuple[Tensor, ...]:
        """The layer's largest magnitudes."""
        return (self.peaks,)

    def apply(self) -> None:
        """The larger of what was seen and 31/32 of what was there."""
        old = self.peaks.cpu().numpy()
        self.peaks.copy_(torch.from_numpy(np.maximum(self.seen, DECAY * old)))

    def to_bytes(self) -> bytes:
        """Little-endian binary64."""
        return self.seen.astype("<f8").tobytes()

    def from_bytes(self, data: bytes) -> tuple[PeakUpdate, bytes]:
        """The same layer's update in another shard, and the bytes after it."""
        end = 8 * self.seen.size
        return replace(self, seen=np.frombuffer(data[:end], "<f8").astype(np.float64)), data[end:]


def narrowed(
    acc: Tensor,
    exponent: Exponent,
    bits: int,
    shifts: Tensor | None,
    divisor: int = 1,
    largest: int | None = None,
) -> BFPValue:
    """As `requantized`, which gives the codes."""
    part = requantized(acc, exponent, bits, divisor, largest, shifts)
    return BFPValue(*part, bits, shifts=shifts)


def times(x: BFPValue, codes: Tensor, m: int, exponent: Exponent) -> BFPValue:
    """codes * m * 2**exponent, codes of x or some of them, of the width of x; one rounding."""
    if x.shifts is not None:
        return narrowed(codes.long() * m, exponent, x.bits, x.shifts)
    part = kernels.of(codes).times(codes, m, exponent, 32 if x.is_wide else x.bits)
    return BFPValue(*part, layer_bits=x.layer_bits) if x.is_wide else BFPValue(*part, x.bits)


def exact(
    compute: Callable[[], Found],
    bits: int,
    by_rows: bool,
    device: torch.device,
    peaks: ChannelPeaks | None,
) -> Sums:
    """The exact output of a layer (`Sums`), with shifts by what was seen before, which it joins."""
    sums = Sums(compute, bits, by_rows, device, None if peaks is None else peaks.shifts())
    if peaks is not None:
        acc, _, exponent = sums.exact()
        peaks.see(acc, exponent)
    return sums


def rounded(acc: Tensor, exponent: Exponent, bits: int, peaks: ChannelPeaks | None) -> BFPValue:
    """The output of a layer as codes of `bits`: shifts by what was seen before, which it joins."""
    if peaks is None:
        return narrowed(acc, exponent, bits, None)
    shifts = peaks.shifts()
    peaks.see(acc, exponent)
    return narrowed(acc, exponent, bits, shifts)


def largest_shifts(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """The larger shift of every channel of two tensors."""
    if a is None or b is None:
        return a if b is None else b
    return torch.maximum(a, b)
