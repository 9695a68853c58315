"""Normalisation of vectors in C: rows of codes with one exponent for all (training.md 5 and 7)."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.kernels.geometry import MAX_PRODUCTS, requantize_shift, shorten_shift
from samebits.kernels.library import in_two_passes
from samebits.kernels.memory import GRADIENT, I8, I16, I32, I64, integers, pointer
from samebits.kernels.native_update import NativeUpdate
from samebits.kernels.protocol import BITS, CODE_TYPE, Part, Shifts
from samebits.kernels.rows import Exponent
from samebits.spec import formats

MAX_SHIFT_32 = 24  # right shifts that 32-bit rounding of magnitudes up to Q32 can hold
_threads = torch.get_num_threads


class NativeVectors(NativeUpdate):
    """The part of `Native` that normalises vectors."""

    def vector_stats(self, z: Tensor) -> Tensor:
        if z.dtype != torch.int8 or z.shape[-1] > MAX_PRODUCTS:
            return super().vector_stats(z)
        z = z.contiguous()
        out = z.new_empty((4, *z.shape[:-1], 1), dtype=I64)
        n, d = _sizes(z)
        places = (pointer(z, n * d, I8), n, d, pointer(out, 4 * n, I64))
        self._c.samebits_vector_stats(*places, _threads())
        return out

    def vector_normalized(
        self, z: Tensor, stats: Tensor, multiplier: Tensor, exponent: Exponent
    ) -> tuple[Part, Part]:
        """All shifts follow from the ends of the rows, which tell what each of them reaches."""
        if z.dtype != torch.int8 or isinstance(exponent, Tensor) or not z.numel():
            return super().vector_normalized(z, stats, multiplier, exponent)
        size = z.shape[-1]
        total, _, low, high = stats
        reach = torch.maximum(size * high - total, total - size * low) * multiplier
        largest = int(reach.max())
        by = shorten_shift(largest)
        top, own = formats.scaled(largest, -by), exponent + by
        shifts = [requantize_shift(top, own, bits) for bits in (16, 8)] if top else [32, 32]
        if max(shifts) > MAX_SHIFT_32:
            return super().vector_normalized(z, stats, multiplier, exponent)
        z = z.contiguous()
        wide, narrow = (torch.empty_like(z, dtype=CODE_TYPE[bits]) for bits in (16, 8))
        rows = [integers(v, I32).contiguous() for v in (total, multiplier)]
        n, d = _sizes(z)
        operands = (pointer(z, n * d, I8), n, d, *(pointer(v, n, I32) for v in rows))
        places = (pointer(wide, n * d, I16), pointer(narrow, n * d, I8))
        steps = (-by, *(-shift for shift in shifts))
        self._c.samebits_vector_normalized(*operands, *steps, *places, _threads())
        return (wide, own + shifts[0]), (narrow, own + shifts[1])

    def column_affine(
        self, x: Tensor, m: Tensor, b: Tensor | None, by: Exponent, exponent: Exponent, bits: int
    ) -> Part:
        """In C where m and b are vectors [d] and there is one exponent."""
        b = m.new_zeros(m.shape) if b is None else b
        if isinstance(exponent, Tensor) or not m.shape == b.shape == x.shape[-1:]:
            return super().column_affine(x, m, b, by, exponent, bits)
        x, m, b = x.contiguous(), integers(m, I32).contiguous(), b.contiguous()
        out = torch.empty_like(x, dtype=CODE_TYPE[bits])
        n, d = _sizes(x)
        of_x = pointer(x, n * d, *GRADIENT)
        operands = (of_x, BITS[x.dtype], n, d, pointer(m, d, I32), pointer(b, d, I64), by)

        def call(shift: int, to: int | None) -> int:
            places = (to, BITS[out.dtype], _threads())
            return int(self._c.samebits_column_affine(*operands, shift, *places))

        return in_two_passes(call, out, exponent, lambda n: requantize_shift(n, exponent, bits))

    def vector_grad(
        self, h: Tensor, x: Tensor, centred: bool, by: Shifts, exponent: Exponent
    ) -> Part:
        """In C where there is one exponent: the sums, the largest magnitude, the codes."""
        if isinstance(exponent, Tensor):
            return super().vector_grad(h, x, centred, by, exponent)
        h, x = h.contiguous(), x.contiguous()
        sums = h.new_empty((2, *h.shape[:-1]), dtype=I64)
        n, d = _sizes(h)
        of_h, of_x = pointer(h, n * d, I16), pointer(x, n * d, I8)
        rows = (of_h, of_x, n, d, pointer(sums, 2 * n, I64))
        self._c.samebits_vector_dots(*rows, _threads())
        if not centred:
            sums[0] = 0

        def call(shift: int, to: int | None) -> int:
            return int(self._c.samebits_vector_grad(*rows, *by, shift, to, _threads()))

        out = torch.empty_like(h)
        return in_two_passes(call, out, exponent, lambda n: requantize_shift(n, exponent, 16))

    def vector_times(self, x: Tensor, multiplier: Tensor, exponent: int) -> Part:
        x, multiplier = x.contiguous(), integers(multiplier, I32).contiguous()
        n, d = _sizes(x)
        rows = (pointer(x, n * d, I16), n, d, pointer(multiplier, n, I32))
        out = torch.empty_like(x, dtype=torch.int32)

        def call(shift: int, to: int | None) -> int:
            return int(self._c.samebits_vector_times(*rows, shift, to, _threads()))

        return in_two_passes(call, out, exponent, shorten_shift)


def _sizes(v: Tensor) -> tuple[int, int]:
    """The number of vectors and their length."""
    return v.numel() // v.shape[-1], v.shape[-1]
