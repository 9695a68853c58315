"""Vectors in C: their normalisation, softmax, and exponents of their own (training.md 5, 7, 14)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from samebits.kernels.geometry import MAX_GROUP
from samebits.kernels.library import conv_struct, rows_struct, table_pointers
from samebits.kernels.memory import (
    BOOL,
    GRADIENT,
    I8,
    I16,
    I32,
    I64,
    INTEGERS,
    SUMS,
    dense,
    integers,
    is_last,
    pointer,
)
from samebits.kernels.native_parts import BITS_OF, in_order
from samebits.kernels.native_update import NativeUpdate
from samebits.kernels.products import pair_shape
from samebits.kernels.protocol import (
    BITS,
    CODE_TYPE,
    Part,
    Shares,
    State,
    Sum,
    VectorNorm,
    WholePart,
)
from samebits.kernels.rows import Exponent
from samebits.spec import formats

LIMITED, UNLIMITED, SHORTENED, ALIGNED, MOVED = range(5)  # of rows.h
_threads = torch.get_num_threads


class NativeVectors(NativeUpdate):
    """The part of `Native` that computes by vectors."""

    # --- normalisation ----------------------------------------------------------------------

    def vector_stats(self, z: Tensor) -> Tensor:
        if z.dtype != torch.int8 or z.shape[-1] > MAX_GROUP:
            return super().vector_stats(z)
        z = z.contiguous()
        out = z.new_empty((4, *z.shape[:-1], 1), dtype=I64)
        n, d = _sizes(z)
        places = (pointer(z, n * d, I8), n, d, pointer(out, 4 * n, I64))
        self._run(self._c.samebits_vector_stats, *places, _threads())
        return out

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
        """The statistics, the scalars, a pass that normalises, and one that writes."""
        if not z.numel() or z.shape[-1] > MAX_GROUP:
            return super().vector_norm(z, exponent, gamma, beta, eps, centred, bits)
        z = z.contiguous()
        n, d = _sizes(z)
        gamma, beta = _dense(gamma), _dense(beta)
        period = _period(d, gamma, beta)
        states = [self._state(s, period * d) for s in (gamma, beta)]
        y, xhat = torch.empty_like(z), torch.empty_like(z)
        m = z.new_empty((*z.shape[:-1], 1), dtype=I32)
        norm, rows, of_vectors = self._c.samebits_vector_norm, n, None
        together, unfit = list[int](), list[Any]()
        if isinstance(exponent, Tensor):
            norm, rows = self._c.samebits_vector_norm_rows, max(exponent.numel(), 1)
            together, unfit = [n // rows], [self._out()]
            of_vectors = torch.empty_like(m, dtype=I64)
        given, _, held = self._of_rows(exponent, rows)
        (e_y, of_y), *others = (self._results(v) for v in (held, of_vectors, of_vectors))
        (e_xhat, of_xhat), (e_m, of_m) = others
        self._run(
            *(norm, pointer(z, n * d, I8), given, rows, *together, d, period),
            *(*states[0], *states[1], eps, centred, bits),
            *(pointer(xhat, n * d, I8), e_xhat, pointer(m, n, I32), e_m),
            *(pointer(y, n * d, I8), e_y, *unfit, _threads()),
        )
        return VectorNorm((y, of_y()), (xhat, of_xhat()), (m, of_m()))

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
        """The sums, and for both roundings a pass that finds the largest magnitude."""
        (x, e_x), (m, e_m) = xhat, factor
        if [isinstance(e, Tensor) for e in (e_g, e_x, e_m)] != [size is not None] * 3:
            return super().vector_norm_gradient(g, e_g, xhat, factor, gamma, centred, size)
        g, x, m = g.contiguous(), x.contiguous(), m.contiguous()
        n, d = _sizes(g)
        gamma = _dense(gamma)
        period, dx, found = _period(d, gamma), torch.empty_like(g, dtype=I32), None
        gradient, rows = self._c.samebits_vector_norm_gradient, n
        together, unfit = list[int](), list[Any]()
        if size is not None:
            gradient, rows = self._c.samebits_vector_norm_gradient_rows, math.prod(size)
            together, unfit = [n // rows], [self._out()]
            found = g.new_empty(tuple(size), dtype=I64)
        of_g, _, held = self._of_rows(e_g, rows)
        (of_x, _, held_x), (of_m, _, held_m) = (self._of_rows(e, n) for e in (e_x, e_m))
        place, own = self._results(found)
        self._run(
            *(gradient, pointer(g, n * d, *GRADIENT), BITS[g.dtype], of_g),
            *(pointer(x, n * d, I8), of_x, rows, *together, d, period),
            *(*self._state(gamma, period * d), pointer(m, n, I32), of_m, centred),
            *(pointer(dx, n * d, I32), place, *unfit, _threads()),
        )
        del held, held_x, held_m  # till C has read them
        return dx, own()

    def _state(self, state: State | None, n: int) -> tuple[Any, ...]:
        """W, A and the exponent of J of a parameter [n] as C reads them; without one nulls."""
        if state is None:
            return None, None, self._at(0)
        codes, delayed, exponent = state
        return pointer(codes, n, I8), pointer(delayed, n, I16), self._at(exponent)

    # --- softmax ----------------------------------------------------------------------------

    def softmax(self, z: Tensor, exponent: Exponent, allowed: Tensor | None) -> Shares:
        z = integers(z, I32).contiguous()
        n, c = z.shape
        own, _, _held = self._of_rows(exponent, n)
        allowed = None if allowed is None else allowed.contiguous()
        y, narrow = torch.empty_like(z), torch.empty_like(z, dtype=I8)
        e_narrow = z.new_empty((n, 1), dtype=I64)
        self._run(
            self._c.samebits_softmax,
            *(pointer(z, n * c, I32), n, c, own, isinstance(exponent, Tensor)),
            *(pointer(allowed, n * c, BOOL), *table_pointers()),
            *(pointer(y, n * c, I32), pointer(narrow, n * c, I8), pointer(e_narrow, n, I64)),
            _threads(),
        )
        return Shares(y, (narrow, e_narrow))

    def softmax_grad(self, g16: Tensor, e_g: Exponent, y: Tensor, e_y: Tensor) -> Part:
        g16, y, e_y = g16.contiguous(), y.contiguous(), e_y.contiguous()
        n, c = y.shape
        own, _, _held = self._of_rows(e_g, n)
        out, e_out = y.new_empty(y.shape, dtype=I32), y.new_empty((n, 1), dtype=I64)
        self._run(
            self._c.samebits_softmax_grad,
            *(pointer(g16, n * c, I16), own, isinstance(e_g, Tensor)),
            *(pointer(y, n * c, I8), pointer(e_y, n, I64), n, c),
            *(pointer(out, n * c, I32), pointer(e_out, n, I64), self._out(), _threads()),
        )
        return out, e_out

    # --- exponents of vectors ---------------------------------------------------------------

    def requantize_blocks(
        self,
        v: Tensor,
        exponent: Exponent,
        beside: int,
        size: Sequence[int] | None,
        bits: int,
        limited: bool = True,
    ) -> Part:
        kind = LIMITED if limited else UNLIMITED
        found = self._blocks(v, exponent, beside, size, bits, kind)
        return found or super().requantize_blocks(v, exponent, beside, size, bits, limited)

    def shorten_blocks(
        self, v: Tensor, exponent: Exponent, beside: int, size: Sequence[int] | None
    ) -> Part:
        found = self._blocks(v, exponent, beside, size, 32, SHORTENED)
        return found or super().shorten_blocks(v, exponent, beside, size)

    def aligned(self, v: Tensor, exponent: Tensor, size: Sequence[int], keep: bool) -> Part:
        kind = MOVED if keep else ALIGNED
        found = self._blocks(v, exponent, 0, size, BITS_OF.get(v.dtype, 8), kind)
        return found or super().aligned(v, exponent, size, keep)

    def at_one(self, v: Tensor, exponent: Tensor, bits: int) -> WholePart:
        if (many := self._rows(v, exponent)) is None:
            return super().at_one(v, exponent, bits)
        v, n, own = dense(v), v.numel(), self._out()
        given, _, _held = self._of_rows(exponent, many)
        out = torch.empty_like(v, dtype=I64)
        of_v = (pointer(v, n, *GRADIENT, I64), BITS_OF[v.dtype], many, n // many)
        places = (given, bits, pointer(out, n, I64), own, _threads())
        self._run(self._c.samebits_at_one, *of_v, *places)
        return out, own[0]

    def _blocks(
        self,
        v: Tensor,
        exponent: Exponent,
        beside: int,
        size: Sequence[int] | None,
        bits: int,
        kind: int,
    ) -> Part | None:
        """In C; None where exponents and rows take turns too often."""
        v = dense(integers(v, I32) if v.dtype is I8 is not CODE_TYPE[bits] else v)
        shape, last, one = tuple(v.shape), is_last(v), (1,) * v.dim()
        given = tuple(exponent.shape) if isinstance(exponent, Tensor) else one
        wanted = one if size is None else tuple(size)
        s = rows_struct(shape, given, wanted, last) if v.numel() else None
        if s is None:
            return None
        out, found, highest = torch.empty_like(v, dtype=CODE_TYPE[bits]), None, self._out()
        if isinstance(exponent, Tensor):
            held = in_order(exponent, last)
            own: Any = pointer(held, held.numel(), I64)
        else:
            own = self._at(exponent)
        place = single = self._out()
        if size is not None:
            order = torch.channels_last if last else torch.contiguous_format
            found = torch.empty(wanted, dtype=I64, memory_format=order, device=v.device)
            place = pointer(found, found.numel(), I64)
        self._run(
            *(self._c.samebits_requantize_rows, s, pointer(v, n := v.numel(), *INTEGERS)),
            *(BITS_OF[v.dtype], own, self._at(beside), bits, kind),
            *(pointer(out, n, I8, I16, I32), BITS[out.dtype], place, highest, _threads()),
            found=highest,
        )
        return out, single[0] if found is None else found

    # --- products of matrices ---------------------------------------------------------------

    def products(self, a: Tensor, b: Tensor) -> Sum:
        a, b = a.contiguous(), b.contiguous()
        s, (count, n, k), m = pair_shape(a, b), a.shape, b.shape[1]
        out, largest = a.new_empty((count, n, m), dtype=I32), self._out()
        operands = (pointer(a, count * n * k, I8), pointer(b, count * m * k, I8))
        places = (pointer(out, count * n * m, I32), largest, _threads())
        self._run(self._c.samebits_batch_products, conv_struct(s), count, *operands, *places)
        return out, largest[0]

    def products_a(self, g16: Tensor, b: Tensor) -> Sum:
        """In 32-bit sums where the number of terms keeps them from leaving; so below."""
        g16, b = g16.contiguous(), b.contiguous()
        (count, n, m), k = g16.shape, b.shape[2]
        wide = _leaves(m)
        out, largest = g16.new_empty((count, n, k), dtype=I64 if wide else I32), self._out()
        s = pair_shape(out, b)
        operands = (pointer(g16, count * n * m, I16), pointer(b, count * m * k, I8))
        places = (pointer(out, count * n * k, *SUMS), wide, largest, _threads())
        self._run(self._c.samebits_batch_products_a, conv_struct(s), count, *operands, *places)
        return out, largest[0]

    def products_b(self, g: Tensor, a: Tensor) -> Sum:
        g, a = g.contiguous(), a.contiguous()
        (count, n, m), k = g.shape, a.shape[2]
        wide = g.dtype is I32 or _leaves(n)
        out, largest = g.new_empty((count, m, k), dtype=I64 if wide else I32), self._out()
        s = pair_shape(a, out)
        of_g = (pointer(g, count * n * m, *GRADIENT), BITS[g.dtype])
        places = (pointer(out, count * m * k, *SUMS), wide, largest, _threads())
        operands = (count, *of_g, pointer(a, count * n * k, I8))
        self._run(self._c.samebits_batch_products_b, conv_struct(s), *operands, *places)
        return out, largest[0]


def _leaves(terms: int) -> bool:
    """Whether a sum of products of 16 and 8 bits may leave 32 bits."""
    return terms * formats.Q16 * formats.Q8 > formats.Q32


def _dense(state: State | None) -> State | None:
    """A parameter that fills its memory: one element for all places of a group is repeated."""
    if state is None:
        return None
    codes, delayed, exponent = state
    return codes.contiguous(), delayed.contiguous(), exponent


def _period(d: int, *states: State | None) -> int:
    """The rows whose places have parameters of their own."""
    return next((s[0].numel() // d for s in states if s is not None), 1)


def _sizes(v: Tensor) -> tuple[int, int]:
    """The number of vectors and their length."""
    return v.numel() // v.shape[-1], v.shape[-1]
