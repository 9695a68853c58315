"""Batch normalisation in C (training.md 5, 7 and 12)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from samebits.kernels.memory import (
    F64,
    GRADIENT,
    I8,
    I16,
    I32,
    I64,
    mask_pointer,
    pointer,
    rows,
    unrows,
)
from samebits.kernels.native_recurrence import NativeRecurrence
from samebits.kernels.norm import guard_of, unfit_scale
from samebits.kernels.protocol import BITS, MultiplyAdds, Part, State, WholePart
from samebits.kernels.rows import Exponent

_threads = torch.get_num_threads


class NativeNorm(NativeRecurrence):
    """The part of `Native` that normalises batches."""

    def batch_norm(
        self,
        z: Tensor,
        exponent: Exponent,
        gamma: State,
        beta: State,
        running: tuple[Tensor, Tensor] | None,
        eps: float,
    ) -> tuple[MultiplyAdds, Tensor, Tensor, int] | None:
        """The statistics and the scalars."""
        samples = len(z) if isinstance(exponent, Tensor) else 1
        z = rows(z)
        channels = z.shape[-1]
        n = z.numel() // channels
        states = [
            (pointer(w, channels, I8), pointer(a, channels, I16), self._at(e))
            for w, a, e in (gamma, beta)
        ]
        known = (None, None) if running is None else tuple(map(_wide, running))
        statistics = [pointer(v, channels, F64) for v in known]
        sums, scalars = z.new_empty((2, channels), dtype=I64), z.new_empty((3, channels), dtype=F64)
        m, b = (z.new_empty((samples, channels), dtype=I32) for _ in range(2))
        ends = z.new_empty((samples, 2), dtype=I64)
        e_sums, top, found = self._out(), self._out(), self._out()
        given, _, held = self._of_rows(exponent, samples)
        common, own = self._results(held)
        of_z, bits, many = pointer(z, n * channels, I8, I16), BITS[z.dtype], samples * channels
        guard = 0 if held is None else guard_of(bits)
        self._run(
            *(self._c.samebits_batch_norm, of_z, bits),
            *(given, samples),
            *(n // samples, channels, guard, *states[0], *states[1], *statistics, eps),
            *(pointer(sums, 2 * channels, I64), e_sums, pointer(scalars, 3 * channels, F64)),
            *(pointer(m, many, I32), pointer(b, many, I32), common),
            *(pointer(ends, 2 * samples, I64), top, found, _threads()),
            unfit=unfit_scale,
        )
        return MultiplyAdds(m, b, own(), ends, top[0]), scalars, sums, e_sums[0]

    def affine(self, z: Tensor, by: MultiplyAdds, bits: int) -> Part:
        return self._affine(z, by, 0, bits, None)

    def affine_clamped(
        self, z: Tensor, by: MultiplyAdds, clip: int, bits: int
    ) -> tuple[Part, Tensor]:
        mask = self._new_mask(z)
        return self._affine(z, by, clip, bits, mask), mask

    def _affine(
        self, z: Tensor, by: MultiplyAdds, clip: int, bits: int, mask: Tensor | None
    ) -> Part:
        """Codes of the sums, which are clamped where there is a mask to be made."""
        operands, z = self._affine_operands(z, by)
        samples, n, y = len(by.m), z.numel(), torch.empty_like(z, dtype=I8)
        exponent, _, held = self._of_rows(by.exponent, samples)
        (own, result), found = self._results(held), self._out()
        self._run(
            *(self._c.samebits_affine, *operands, exponent, pointer(by.ends, 2 * samples, I64)),
            *(clip, bits, pointer(y, n, I8), own, mask_pointer(mask, n), found, _threads()),
        )
        return unrows(y), result()

    def affine_sums(self, z: Tensor, by: MultiplyAdds) -> Tensor:
        operands, z = self._affine_operands(z, by)
        acc, n = torch.empty_like(z, dtype=I32), z.numel()
        place = pointer(acc, n, I32)
        self._run(self._c.samebits_affine_sums, *operands, place, _threads())
        return unrows(acc)

    def _affine_operands(self, z: Tensor, by: MultiplyAdds) -> tuple[tuple[Any, ...], Tensor]:
        """Codes, their sizes and multiply-adds as C takes them, and the codes, channels last."""
        z, (samples, channels) = rows(z), by.m.shape
        terms = (pointer(v, samples * channels, I32) for v in (by.m, by.b))
        per_sample = z.numel() // (samples * channels)
        of_z = (pointer(z, z.numel(), I8, I16), BITS[z.dtype])
        return (*of_z, samples, per_sample, channels, *terms), z

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
        """The sums, the scalars, a pass for the largest magnitude, and one that writes."""
        samples = len(z) if isinstance(e_z, Tensor) else 1
        g, z = rows(g), rows(z)
        channels = z.shape[-1]
        n = z.numel() // channels
        of_g, of_z = pointer(g, n * channels, *GRADIENT), pointer(z, n * channels, I8)
        dx = torch.empty_like(z, dtype=I32) if wants_input else None
        dgamma, dbeta = (z.new_empty(channels, dtype=I32) for _ in range(2))
        e_gamma, e_beta = self._out(), self._out()
        given_g, _, held_g = self._of_rows(e_g, samples)
        given_z, _, held = self._of_rows(e_z, samples)
        e_x, own = self._results(held)
        self._run(
            *(self._c.samebits_batch_norm_gradient, of_g, BITS[g.dtype], given_g),
            *(held_g is not None, of_z, given_z, held is not None),
            *(samples, n // samples, channels, pointer(scalars, 3 * channels, F64), training),
            *(pointer(dx, n * channels, I32), e_x),
            *(pointer(dgamma, channels, I32), e_gamma),
            *(pointer(dbeta, channels, I32), e_beta, _threads()),
            found=e_gamma,
        )
        part = None if dx is None else (unrows(dx), own())
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
