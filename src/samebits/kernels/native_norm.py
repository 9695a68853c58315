"""Batch normalisation in C: tensors with one exponent (training.md 5 and 7)."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.kernels.memory import F64, GRADIENT, I8, I16, I32, I64, pointer, rows, unrows
from samebits.kernels.native_recurrence import NativeRecurrence
from samebits.kernels.norm import unfit_scale
from samebits.kernels.protocol import BITS, State, WholePart

_threads = torch.get_num_threads


class NativeNorm(NativeRecurrence):
    """The part of `Native` that normalises batches."""

    def batch_norm(
        self,
        z: Tensor,
        exponent: int,
        gamma: State,
        beta: State,
        running: tuple[Tensor, Tensor] | None,
        eps: float,
        bits: int,
    ) -> tuple[WholePart, Tensor, Tensor]:
        """The statistics, the scalars, and a pass that writes."""
        z = rows(z)
        channels = z.shape[-1]
        n = z.numel() // channels
        states = [
            (pointer(w, channels, I8), pointer(a, channels, I16), self._at(e))
            for w, a, e in (gamma, beta)
        ]
        known = (None, None) if running is None else tuple(map(_wide, running))
        statistics = [pointer(v, channels, F64) for v in known]
        sums, scalars = z.new_empty((4, channels), dtype=I64), z.new_empty((3, channels), dtype=F64)
        y, own = torch.empty_like(z), self._out()
        places = (pointer(sums, 4 * channels, I64), pointer(scalars, 3 * channels, F64))
        self._run(
            self._c.samebits_batch_norm,
            *(pointer(z, n * channels, I8), self._at(exponent), n, channels),
            *(*states[0], *states[1], *statistics, eps, bits),
            *(*places, pointer(y, n * channels, I8), own, _threads()),
            unfit=unfit_scale,
        )
        return (unrows(y), own[0]), scalars, sums

    def batch_norm_gradient(
        self,
        g: Tensor,
        e_g: int,
        z: Tensor,
        e_z: int,
        scalars: Tensor,
        training: bool,
        wants_input: bool,
    ) -> tuple[WholePart | None, WholePart, WholePart]:
        """The sums, the scalars, a pass for the largest magnitude, and one that writes."""
        g, z = rows(g), rows(z)
        channels = z.shape[-1]
        n = z.numel() // channels
        of_g, of_z = pointer(g, n * channels, *GRADIENT), pointer(z, n * channels, I8)
        dx = torch.empty_like(z, dtype=I32) if wants_input else None
        dgamma, dbeta = (z.new_empty(channels, dtype=I32) for _ in range(2))
        e_x, e_gamma, e_beta = self._out(), self._out(), self._out()
        self._run(
            self._c.samebits_batch_norm_gradient,
            *(of_g, BITS[g.dtype], self._at(e_g), of_z, self._at(e_z), n, channels),
            *(pointer(scalars, 3 * channels, F64), training),
            *(pointer(dx, n * channels, I32), e_x),
            *(pointer(dgamma, channels, I32), e_gamma),
            *(pointer(dbeta, channels, I32), e_beta, _threads()),
            found=e_gamma,
        )
        part = None if dx is None else (unrows(dx), e_x[0])
        return part, (dgamma, e_gamma[0]), (dbeta, e_beta[0])

    def running_statistics(
        self,
        running: tuple[Tensor, Tensor],
        sums: tuple[Tensor, Tensor],
        n: int,
        e_z: int,
        by: float,
    ) -> None:
        if any(v.dtype != F64 or not v.is_cpu for v in running):
            return super().running_statistics(running, sums, n, e_z, by)
        channels = running[0].numel()
        buffers = (pointer(v, channels, F64) for v in running)
        places = (*buffers, channels, *(pointer(v, channels, I64) for v in sums))
        self._run(self._c.samebits_running_statistics, *places, n, self._at(e_z), by)
        return None

    def channel_grad_sums(self, g: Tensor, z: Tensor) -> Tensor:
        g, z = rows(g), rows(z)
        channels = z.shape[-1]
        out = z.new_empty((2, channels), dtype=I64)
        n = z.numel() // channels
        of_g = pointer(g, n * channels, *GRADIENT)
        operands = (of_g, BITS[g.dtype], pointer(z, n * channels, I8), n, channels)
        place = pointer(out, 2 * channels, I64)
        self._run(self._c.samebits_channel_grad_sums, *operands, place, _threads())
        return out


def _wide(v: Tensor) -> Tensor:
    """A buffer that a caller may have made with 32 bits."""
    return v.double() if v.dtype is torch.float32 else v
