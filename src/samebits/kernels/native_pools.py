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
        if isinstance(exponent, Tensor) and clip is not None:
            return super().relu(x, exponent, clip)
        x, n = dense(x), x.numel()
        out = torch.empty_like(x)
        operands = (pointer(x, n, I8), n, *self._clips(exponent, clip))
        self._run(self._c.samebits_relu, *operands, pointer(out, n, I8), _threads())
        return out

    def relu_grad(self, g: Tensor, y: Tensor, exponent: Exponent, clip: int | None) -> Tensor:
        if isinstance(exponent, Tensor) and clip is not None:
            return super().relu_grad(g, y, exponent, clip)
        y = dense(y)
        g = like(g, y)
        out, n = torch.empty_like(g), y.numel()
        operands = (pointer(g, n, *GRADIENT), BITS[g.dtype], pointer(y, n, I8), n)
        place = pointer(out, n, *GRADIENT)
        self._run(
            self._c.samebits_relu_grad, *operands, *self._clips(exponent, clip), place, _threads()
        )
        return out

    def _clips(self, exponent: Exponent, clip: int | None) -> tuple[Any, int | None]:
        """The exponent and the table of a clip value as C reads them; without it neither counts."""
        own = exponent if isinstance(exponent, int) else 0
        return self._at(own), None if clip is None else pointer(clip_table(clip), 256, U8)

    def add(self, a: Tensor, ea: Exponent, b: Tensor, eb: Exponent, bits: int = 8) -> Part:
        if isinstance(ea, Tensor) or isinstance(eb, Tensor):
            return super().add(a, ea, b, eb, bits)
        a = dense(a)
        b, n = like(b, a), a.numel()
        y, own = torch.empty_like(a), self._out()
        sides = (pointer(a, n, I8), self._at(ea), pointer(b, n, I8), self._at(eb))
        place = (pointer(y, n, I8), own, _threads())
        self._run(self._c.samebits_add, *sides, n, bits, *place)
        return y, own[0]

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
        """Quotients of one exponent; all else in torch."""
        if divisor == 1 or acc.dtype != I64 or isinstance(exponent, Tensor):
            return super().requantize(acc, largest, exponent, bits, divisor)
        acc, n = dense(acc), acc.numel()
        codes, own = torch.empty_like(acc, dtype=CODE_TYPE[bits]), self._out()
        operands = (pointer(acc, n, I64), n, self._at(largest), self._at(exponent))
        place = (pointer(codes, n, I8, I16), BITS[codes.dtype], own, _threads())
        self._run(self._c.samebits_requantize_divided, *operands, divisor, bits, *place)
        return codes, own[0]

    def divided(
        self, acc: Tensor, largest: int, exponent: Exponent, divisor: int, bits: int
    ) -> Part:
        if isinstance(exponent, Tensor):
            return super().divided(acc, largest, exponent, divisor, bits)
        acc, n = dense(acc), acc.numel()
        codes, own = torch.empty_like(acc, dtype=I32), self._out()
        operands = (pointer(acc, n, I64), n, self._at(largest), self._at(exponent))
        place = (pointer(codes, n, I32), own, _threads())
        self._run(self._c.samebits_divided, *operands, divisor, bits, *place)
        return codes, own[0]


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
