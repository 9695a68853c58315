"""Pools, sums of tensors and clips in C (training.md 5 and 7)."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from samebits.kernels.averages import Averages
from samebits.kernels.clips import clip_table
from samebits.kernels.geometry import Window
from samebits.kernels.library import pool_struct, windows_struct
from samebits.kernels.memory import (
    GRADIENT,
    I8,
    I16,
    I32,
    I64,
    U8,
    dense,
    like,
    nchw,
    nhwc,
    pointer,
)
from samebits.kernels.native_norm import NativeNorm
from samebits.kernels.protocol import BITS, CODE_TYPE, Part, Sum
from samebits.kernels.rows import Exponent

_threads = torch.get_num_threads


class NativePools(NativeNorm):
    """The part of `Native` that adds tensors, clips and pools them."""

    def relu(self, x: Tensor, exponent: Exponent, clip: int | None) -> Tensor:
        if (clipped := self._clips(x, exponent, clip)) is None:
            return super().relu(x, exponent, clip)
        many, *clips = clipped
        x, n = dense(x), x.numel()
        out = torch.empty_like(x)
        operands = (pointer(x, n, I8), many, n // many, *clips[:2])
        self._run(self._c.samebits_relu, *operands, pointer(out, n, I8), _threads())
        return out

    def relu_grad(self, g: Tensor, y: Tensor, exponent: Exponent, clip: int | None) -> Tensor:
        if (clipped := self._clips(y, exponent, clip)) is None:
            return super().relu_grad(g, y, exponent, clip)
        many, *clips = clipped
        y = dense(y)
        g = like(g, y)
        out, n = torch.empty_like(g), y.numel()
        operands = (pointer(g, n, *GRADIENT), BITS[g.dtype], pointer(y, n, I8), many, n // many)
        place = pointer(out, n, *GRADIENT)
        self._run(self._c.samebits_relu_grad, *operands, *clips[:2], place, _threads())
        return out

    def _clips(self, v: Tensor, exponent: Exponent, clip: int | None) -> tuple[Any, ...] | None:
        """Rows, their exponents and the table of a clip value as C reads them, and what holds them;
        without a clip value all is one row, and the exponent does not count."""
        if clip is None:
            return 1, self._at(0), None, None
        if (many := self._rows(v, exponent)) is None:
            return None
        given, _, held = self._of_rows(exponent, many)
        return many, given, pointer(clip_table(clip), 256, U8), held

    def add(self, a: Tensor, ea: Exponent, b: Tensor, eb: Exponent, bits: int = 8) -> Part:
        if (many := self._rows(a, ea, eb)) is None:
            return super().add(a, ea, b, eb, bits)
        a = dense(a)
        b, n = like(b, a), a.numel()
        (given_a, _, held_a), (given_b, _, held_b) = (self._of_rows(e, many) for e in (ea, eb))
        y, found = torch.empty_like(a), self._out()
        place, own = self._results(held_b if held_a is None else held_a)
        self._run(
            *(self._c.samebits_add, pointer(a, n, I8), given_a, held_a is not None),
            *(pointer(b, n, I8), given_b, held_b is not None, many, n // many, bits),
            *(pointer(y, n, I8), place, found, _threads()),
        )
        return y, own()

    def max_pool(self, x: Tensor, window: Window) -> tuple[Tensor, Tensor]:
        pool = pool_struct(x.shape, window)
        x = nhwc(x)
        y = x.new_empty((pool.n, pool.oh, pool.ow, pool.c))
        where = torch.empty_like(y, dtype=U8)
        of_x = pool.n * pool.h * pool.w * pool.c
        places = (pointer(y, n := y.numel(), I8), pointer(where, n, U8))
        self._run(self._c.samebits_max_pool, pool, pointer(x, of_x, I8), *places, _threads())
        return nchw(y), nchw(where)

    def max_pool_grad(self, g: Tensor, where: Tensor, shape: torch.Size, window: Window) -> Sum:
        pool = pool_struct(shape, window)
        g, where = nhwc(g), nhwc(where)
        dx, largest = g.new_empty((pool.n, pool.h, pool.w, pool.c), dtype=I64), self._out()
        n = pool.n * pool.oh * pool.ow * pool.c
        of_g = pointer(g, n, *GRADIENT)
        operands = (pool, of_g, BITS[g.dtype], pointer(where, n, U8))
        places = (pointer(dx, dx.numel(), I64), largest)
        self._run(self._c.samebits_max_pool_grad, *operands, *places, _threads())
        return nchw(dx), largest[0]

    def window_sums(self, x: Tensor, means: Averages) -> Sum:
        n, c, h, w = x.shape
        if means.rows[-1][1] > h or means.columns[-1][1] > w:  # torch says so
            return super().window_sums(x, means)
        sizes = (n, h, w, c, len(means.rows), len(means.columns))
        return self._window_sums(x, sizes, _tables(means), I8)

    def window_sums_grad(self, g: Tensor, shape: torch.Size, means: Averages) -> Sum:
        n, c, h, w = shape
        sizes = (n, len(means.rows), len(means.columns), c, h, w)
        return self._window_sums(g, sizes, _tables_grad(means, h, w), *GRADIENT)

    def _window_sums(
        self, v: Tensor, sizes: tuple[int, ...], tables: Tables, *kinds: torch.dtype
    ) -> Sum:
        """The sums over windows of images; sizes: n, h, w, c, oh, ow."""
        n, h, w, c, oh, ow = sizes
        v = nhwc(v)
        out, largest = v.new_empty((n, oh, ow, c), dtype=I64), self._out()
        operands = (
            windows_struct(sizes, *tables),
            pointer(v, n * h * w * c, *kinds),
            BITS[v.dtype],
        )
        place = pointer(out, out.numel(), I64)
        self._run(self._c.samebits_window_sums, *operands, place, largest, _threads())
        return nchw(out), largest[0]

    def requantize(
        self, acc: Tensor, largest: int, exponent: Exponent, bits: int, divisor: int = 1
    ) -> Part:
        """Quotients; all else in `NativeParts`, or in torch."""
        many = self._rows(acc, exponent)
        if divisor == 1 or acc.dtype != I64 or many is None:
            return super().requantize(acc, largest, exponent, bits, divisor)
        acc, n = dense(acc), acc.numel()
        given, _, held = self._of_rows(exponent, many)
        codes, found = torch.empty_like(acc, dtype=CODE_TYPE[bits]), self._out()
        place, own = self._results(held)
        self._run(
            *(self._c.samebits_requantize_divided, pointer(acc, n, I64), many, n // many),
            *(self._at(largest) if held is None else None, given, divisor, bits),
            *(pointer(codes, n, I8, I16), BITS[codes.dtype], place, found, _threads()),
        )
        return codes, own()

    def divided(
        self, acc: Tensor, largest: int, exponent: Exponent, divisor: int, bits: int
    ) -> Part:
        if (many := self._rows(acc, exponent)) is None:
            return super().divided(acc, largest, exponent, divisor, bits)
        acc, n = dense(acc), acc.numel()
        given, _, held = self._of_rows(exponent, many)
        codes, (place, own) = torch.empty_like(acc, dtype=I32), self._results(held)
        self._run(
            *(self._c.samebits_divided, pointer(acc, n, I64), many, n // many),
            *(self._at(largest) if held is None else None, given, divisor, bits),
            *(pointer(codes, n, I32), place, _threads()),
        )
        return codes, own()


# Windows, and factors of what is added and of sums, as `Windows` of pool.c has them.
Tables = tuple[Tensor, Tensor | None, Tensor | None]


@functools.lru_cache(maxsize=1024)
def _tables(means: Averages) -> Tables:
    """The tables of sums over windows."""
    return _table((*means.rows, *means.columns)), None, _factors(means)


@functools.lru_cache(maxsize=1024)
def _tables_grad(means: Averages, h: int, w: int) -> Tables:
    """The tables of sums over the windows that hold a position of an image [h, w]."""
    rows, columns = means.holders(h, w)
    return _table((*rows, *columns)), _factors(means), None


def _factors(means: Averages) -> Tensor | None:
    return None if means.factors is None else _table([*itertools.chain(*means.factors)])


def _table(values: Sequence[object]) -> Tensor:
    return torch.tensor(values, dtype=I64, device="cpu")
