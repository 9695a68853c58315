"""Clamps, sums of tensors and pools in C (training.md 5 and 7)."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from samebits.kernels.averages import Averages
from samebits.kernels.geometry import Window
from samebits.kernels.library import pool_struct, windows_struct
from samebits.kernels.memory import (
    BOOL,
    GRADIENT,
    I8,
    I16,
    I32,
    I64,
    SUMS,
    U8,
    dense,
    like,
    mask_pointer,
    nchw,
    nhwc,
    pointer,
    rows,
    unrows,
)
from samebits.kernels.native_norm import NativeNorm
from samebits.kernels.native_parts import BITS_OF, sums
from samebits.kernels.protocol import BITS, CODE_TYPE, Found, Part, Sum
from samebits.kernels.rows import Exponent

_threads = torch.get_num_threads


class NativePools(NativeNorm):
    """The part of `Native` that clamps tensors, adds and pools them."""

    def clamp(self, v: Tensor, exponent: Exponent, clip: int) -> tuple[Tensor, Tensor]:
        """Exponents of rows, or of these and of channels; others in torch, with a clip value."""
        if (layout := self._clamp_layout(v, exponent, clip)) is None:
            return super().clamp(v, exponent, clip)
        v = rows(v)
        out, n, mask = torch.empty_like(v), v.numel(), self._new_mask(v)
        places = (pointer(out, n, I8, *SUMS), mask_pointer(mask, n), _threads())
        kinds = pointer(v, n, I8, *SUMS), BITS_OF[v.dtype]
        self._run(self._c.samebits_clamp, *kinds, *layout[:-1], clip, *places)
        return unrows(out), mask

    def _clamp_layout(self, v: Tensor, exponent: Exponent, clip: int) -> tuple[Any, ...] | None:
        """Rows, places and channels of each, their exponents as C reads them, and what holds these;
        without a clip value no exponent counts."""
        if not clip or not isinstance(exponent, Tensor):
            return 1, v.numel(), 1, self._at(0 if isinstance(exponent, Tensor) else exponent), None
        channels = 1
        if (many := self._rows(v, exponent)) is None:
            channels, many = v.shape[1 if v.dim() == 4 else -1], len(v)
            if v.dim() not in (2, 4) or exponent.numel() != many * channels:
                return None
            exponent = rows(exponent)
        given, _, held = self._of_rows(exponent, many * channels)
        return many, v.numel() // (many * channels), channels, given, held

    def clamped(self, acc: Tensor, exponent: Exponent, clip: int, bits: int) -> tuple[Part, Tensor]:
        if isinstance(exponent, Tensor) or bits > 8:
            return super().clamped(acc, exponent, clip, bits)
        acc = rows(sums(acc))
        codes, n = torch.empty_like(acc, dtype=I8), acc.numel()
        own, mask = self._out(), self._new_mask(acc)
        self._run(
            *(self._c.samebits_clamped, pointer(acc, n, *SUMS), BITS_OF[acc.dtype], n),
            *(self._at(exponent), clip, bits, pointer(codes, n, I8), own),
            *(mask_pointer(mask, n), _threads()),
        )
        return (unrows(codes), own[0]), mask

    def behind_mask(self, g: Tensor, mask: Tensor) -> Tensor:
        g = rows(g)
        out, n = torch.empty_like(g), g.numel()
        operands = (pointer(g, n, *GRADIENT), BITS[g.dtype], n, mask_pointer(mask, n))
        self._run(self._c.samebits_behind_mask, *operands, pointer(out, n, *GRADIENT), _threads())
        return unrows(out)

    def unpacked(self, mask: Tensor, shape: torch.Size) -> Tensor:
        order = (shape[0], *shape[2:], shape[1]) if len(shape) == 4 else shape
        flags = torch.empty(order, dtype=BOOL, device="cpu")
        n = flags.numel()
        self._run(self._c.samebits_mask_bytes, mask_pointer(mask, n), n, pointer(flags, n, BOOL))
        return unrows(flags)

    def add(self, a: Tensor, ea: Exponent, b: Tensor, eb: Exponent, bits: int = 8) -> Part:
        if (operands := self._addends(dense(a), ea, b, eb)) is None:
            return super().add(a, ea, b, eb, bits)
        return self._add(*operands, 0, bits, None)

    def add_clamped(
        self, a: Tensor, ea: Exponent, b: Tensor, eb: Exponent, clip: int, bits: int
    ) -> tuple[Part, Tensor]:
        a = unrows(rows(a))
        if (operands := self._addends(a, ea, b, eb)) is None:
            return super().add_clamped(a, ea, b, eb, clip, bits)
        mask = self._new_mask(a)
        return self._add(*operands, clip, bits, mask), mask

    def add_sums(self, a: Tensor, ea: Exponent, b: Tensor, eb: Exponent) -> Found:
        if (operands := self._addends(dense(a), ea, b, eb)) is None:
            return super().add_sums(a, ea, b, eb)
        words, held, (addend, *_) = operands
        assert addend is not None
        acc, top = torch.empty_like(addend, dtype=I32), self._out()
        place, own = self._results(held)
        places = (pointer(acc, acc.numel(), I32), place, top, _threads())
        self._run(self._c.samebits_added, *words, *places)
        return acc, top[0], own()

    def _addends(
        self, a: Tensor, ea: Exponent, b: Tensor, eb: Exponent
    ) -> tuple[tuple[Any, ...], Tensor | None, tuple[Tensor | None, ...]] | None:
        """Both operands and the sizes of rows as C takes them, exponents of rows, and what C reads,
        `a` first. None for other exponents."""
        if (many := self._rows(a, ea, eb)) is None:
            return None
        b, n = like(b, a), a.numel()
        (given_a, _, held_a), (given_b, _, held_b) = (self._of_rows(e, many) for e in (ea, eb))
        first = (pointer(a, n, I8), given_a, held_a is not None)
        second = (pointer(b, n, I8), given_b, held_b is not None)
        words = (*first, *second, many, n // many)
        return words, held_b if held_a is None else held_a, (a, b, held_a, held_b)

    def _add(
        self,
        words: tuple[Any, ...],
        held: Tensor | None,
        read: tuple[Tensor | None, ...],
        clip: int,
        bits: int,
        mask: Tensor | None,
    ) -> Part:
        """Codes of the sums, which are clamped where there is a mask to be made."""
        assert read[0] is not None
        y, n, found = torch.empty_like(read[0]), read[0].numel(), self._out()
        place, own = self._results(held)
        places = (pointer(y, n, I8), place, mask_pointer(mask, n), found, _threads())
        self._run(self._c.samebits_add, *words, clip, bits, *places)
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
