"""Codes and their one exponent in C, and how kernels call C (training.md 1)."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from ctypes import c_int64
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from samebits.errors import RangeError
from samebits.kernels.eager import Eager
from samebits.kernels.geometry import not_finite
from samebits.kernels.library import fail
from samebits.kernels.memory import (
    BOOL,
    F32,
    GRADIENT,
    I8,
    I16,
    I32,
    I64,
    INTEGERS,
    SUMS,
    U8,
    dense,
    integers,
    is_last,
    like,
    nhwc,
    pointer,
)
from samebits.kernels.protocol import BITS, CODE_TYPE, Part, Sum, WholePart
from samebits.kernels.rows import Exponent, in_rows, row_size
from samebits.spec import formats

CELL = c_int64 * 1
BITS_OF = {I8: 8, I16: 16, I32: 32, I64: 64}
CODES = (I8, I16, I32)
_threads = torch.get_num_threads


class NativeParts(Eager):
    """The part of `Native` that finds exponents and largest magnitudes.

    These go to C and come from it in memory: `_at` is the place of a number that is known, `_out`
    of one that C will write. A kernel that calls C by `_run` alone, and does nothing else with
    numbers, can be recorded (`routine`).
    """

    _c: SimpleNamespace

    def _at(self, value: Exponent) -> Any:
        """Where C reads a number."""
        assert isinstance(value, int)
        return CELL(value)

    def _out(self) -> Any:
        """Where C writes a number, which is then its item 0."""
        return CELL()

    def _rows(self, v: Tensor, *exponents: Exponent) -> int | None:
        """The number of rows of v that have an exponent each: 1 where all exponents are numbers.

        None where they are not those of rows.
        """
        size = row_size(v.shape)
        given = [e for e in exponents if isinstance(e, Tensor)]
        if not all(e.shape == size for e in given) or not v.numel():
            return None if given else 1
        return math.prod(size) if given else 1

    def _of_rows(self, exponent: Exponent, n: int) -> tuple[Any, int, Tensor | None]:
        """Where C reads the exponents of n rows, or one; their number; and what holds them."""
        if not isinstance(exponent, Tensor):
            return self._at(exponent), 1, None
        held = integers(exponent, I64)
        if held.numel() == 1 < n:
            held = held.flatten().expand(n)
        held = held.contiguous()
        return pointer(held, n, I64), n, held

    def _results(self, like: Tensor | None) -> tuple[Any, Callable[[], Exponent]]:
        """Where C writes exponents of rows, as many as these, or one; and what gives them."""
        if like is None:
            one = self._out()
            return one, lambda: one[0]
        own = torch.empty_like(like)
        return pointer(own, own.numel(), I64), lambda: own

    def _address(self, address: int | None) -> Any:
        """An address, for `_words`."""
        return address or 0

    def _words(self, words: Sequence[Any]) -> Any:
        """A list of numbers, addresses and places as C reads it."""
        found = [ctypes.addressof(w) if isinstance(w, CELL) else w for w in words]
        made: Any = (c_int64 * len(words))(*found)
        made.places = words  # they live as long
        return made

    def _run(
        self,
        function: Any,
        *arguments: Any,
        found: Any = None,
        unfit: Callable[[float], RangeError] = not_finite,
    ) -> None:
        """Call a function of C. Raises RangeError and MemoryError where it says that it failed.

        found: where the number is that does not fit; None: the last that C writes. unfit: the error
        of one that is not finite
        """
        if status := function(*arguments):
            if found is None:
                found = next(a for a in reversed(arguments) if isinstance(a, CELL))
            fail(status, found[0], unfit)

    def _new_mask(self, v: Tensor) -> Tensor:
        """Room for the mask of a tensor, which C writes."""
        return v.new_empty(-(-v.numel() // 8), dtype=U8)

    def largest_of(self, v: Tensor) -> int:
        v, n, largest = dense(v), v.numel(), self._out()
        of_v = (pointer(v, n, *INTEGERS), BITS_OF[v.dtype], n)
        self._run(self._c.samebits_largest, *of_v, largest, _threads())
        return largest[0]

    def quantize(self, x: Tensor, bits: int, by_rows: bool = False) -> Part:
        """Numbers of 32 bits as codes of at most 8."""
        if x.dtype is not F32 or bits > 8 or (by_rows and not x.numel()):
            return super().quantize(x, bits, by_rows)
        x, found = dense(x), self._out()
        own: Any = self._out()
        count, n = 1, x.numel()
        if by_rows:
            exponent = x.new_empty(row_size(x.shape), dtype=I64)
            count = exponent.numel()
            own = pointer(exponent, count, I64)
        codes = torch.empty_like(x, dtype=I8)
        places = (pointer(x, n, F32), count, n // count, bits, pointer(codes, n, I8), own, found)
        self._run(self._c.samebits_quantize, *places)
        return codes, exponent if by_rows else own[0]

    def requantize(
        self, acc: Tensor, largest: int, exponent: Exponent, bits: int, divisor: int = 1
    ) -> Part:
        if isinstance(exponent, Tensor) or divisor != 1:
            return super().requantize(acc, largest, exponent, bits, divisor)
        acc, n = sums(acc), acc.numel()
        out, own = torch.empty_like(acc, dtype=CODE_TYPE[bits]), self._out()
        of_acc = (pointer(acc, n, *SUMS), BITS_OF[acc.dtype], n)
        codes = (pointer(out, n, *CODES), BITS_OF[out.dtype])
        places = (self._at(largest), self._at(exponent))
        self._run(self._c.samebits_requantize, *of_acc, *places, bits, *codes, own, _threads())
        return out, own[0]

    def shorten(self, acc: Tensor, largest: int, exponent: Exponent) -> Part:
        """Sums of 32 bits that fit are their own codes."""
        if isinstance(exponent, Tensor):
            return super().shorten(acc, largest, exponent)
        if acc.dtype is I32 and (type(largest) is not int or largest <= formats.Q32):
            own = self._out()
            self._run(self._c.samebits_short, self._at(largest), self._at(exponent), own)
            return acc, own[0]
        acc, n = sums(acc), acc.numel()
        out = torch.empty_like(acc, dtype=I32)
        of_acc, own = (pointer(acc, n, *SUMS), BITS_OF[acc.dtype], n), self._out()
        places = (self._at(largest), self._at(exponent), pointer(out, n, I32), own)
        self._run(self._c.samebits_shorten, *of_acc, *places, _threads())
        return out, own[0]

    def resolve(self, parts: list[Part]) -> Part:
        """Which parts are zeros alone, and do not count, is found in C."""
        exponents = [exponent for _, exponent in parts]
        many = self._rows(parts[0][0], *exponents)
        if len(parts) == 1 or many is None or any(codes.dtype is I8 for codes, _ in parts):
            return super().resolve(parts)
        order = dense(parts[0][0])
        n, words, sides = order.numel(), list[Any](), list[Any]()
        for codes, exponent in parts:
            codes = like(codes, order)
            given, _, held = self._of_rows(exponent, many)
            given = given if held is None else self._address(given)
            of_codes = (self._address(pointer(codes, n, *GRADIENT)), BITS[codes.dtype])
            words += (*of_codes, given, held is not None)
            sides += (codes, held)
        out = torch.empty_like(order, dtype=I32)
        place, own = self._results(next((held for held in sides[1::2] if held is not None), None))
        places = (self._words(words), len(parts), many, n // many, pointer(out, n, I32), place)
        self._run(self._c.samebits_resolve, *places, _threads())
        return out, own()

    def stacked(self, parts: Sequence[Part], bits: int, room: int) -> Part:
        """Which parts, or rows, are zeros alone, and do not count, is found in C."""
        first, exponents = parts[0][0], [e for _, e in parts]
        if (many := self._rows(first, *exponents)) is None:
            return super().stacked(parts, bits, room)
        count, n, rows = len(parts), first.numel(), any(isinstance(e, Tensor) for e in exponents)
        words, kept, found = list[Any](), list[Any](), None
        for codes, exponent in parts:
            codes = codes.contiguous()
            given, _, held = self._of_rows(in_rows(codes, exponent)[1] if rows else exponent, many)
            given = given if held is None else self._address(given)
            words += (self._address(pointer(codes, n, *CODES)), BITS[codes.dtype], given)
            kept += (codes, held)
        out = first.new_empty((count, *first.shape), dtype=CODE_TYPE[bits])
        if rows:
            found = first.new_empty((count, *first.shape[:-1], 1), dtype=I64)
        place, own = self._results(found)
        self._run(
            *(self._c.samebits_stacked, self._words(words), count, n, many if rows else 0, room),
            *(pointer(out, count * n, *CODES), BITS_OF[out.dtype], place, _threads()),
        )
        return out, own()

    def times(self, v: Tensor, m: int, exponent: Exponent, bits: int) -> Part:
        if (many := self._rows(v, exponent)) is None or v.dtype is I64:
            return super().times(v, m, exponent, bits)
        v, n = dense(v), v.numel()
        out, found = torch.empty_like(v, dtype=I8 if v.dtype is I8 else I32), self._out()
        given, _, held = self._of_rows(exponent, many)
        place, own = self._results(held)
        self._run(
            *(self._c.samebits_times, pointer(v, n, *CODES), BITS_OF[v.dtype], many, n // many, m),
            *(given, bits, pointer(out, n, I8, I32), place, found, _threads()),
        )
        return out, own()

    def kept(
        self, count: int, least: int, draw: Sequence[int], device: torch.device | str
    ) -> Tensor:
        out = torch.empty(count, dtype=BOOL, device=device)
        words = self._words([self._at(number) for number in draw])
        self._run(self._c.samebits_kept, count, least, words, pointer(out, count, BOOL), _threads())
        return out

    def where(self, mask: Tensor, v: Tensor) -> Tensor:
        v = dense(v)
        mask, out, n = like(mask, v), torch.empty_like(v), v.numel()
        of_v = (pointer(mask, n, BOOL), pointer(v, n, *CODES), BITS_OF[v.dtype], n)
        self._run(self._c.samebits_where, *of_v, pointer(out, n, *CODES), _threads())
        return out

    def summed(self, g: Tensor, size: Sequence[int]) -> Sum:
        g, largest = dense(g), self._out()
        out = g.new_empty(tuple(size), dtype=I64)
        layout = steps_of(g, out.expand(g.shape))
        of_g = (pointer(g, g.numel(), *GRADIENT, I64), BITS_OF[g.dtype])
        places = (pointer(out, out.numel(), I64), out.numel(), len(layout) // 3)
        words = self._words(layout)
        self._run(self._c.samebits_sums, *of_g, *places, words, largest, _threads())
        return out, largest[0]

    def side_by_side(self, parts: Sequence[WholePart], axis: int) -> WholePart:
        """All at the common exponent, and then copied beside each other."""
        own, found, words = self._out(), list[Tensor](), list[Any]()
        sides = [(dense(codes), exponent) for codes, exponent in parts]
        for codes, exponent in sides:
            found.append(out := torch.empty_like(codes))
            places = (self._address(pointer(v, codes.numel(), I8)) for v in (codes, out))
            first, last = places
            words += (first, codes.numel(), self._at(exponent), last)
        self._run(self._c.samebits_align, self._words(words), len(sides), own, _threads())
        size = list(found[0].shape)
        size[axis] = sum(codes.shape[axis] for codes in found)
        order = torch.channels_last if all(map(is_last, found)) else torch.contiguous_format
        y = torch.empty(size, dtype=I8, device="cpu", memory_format=order)
        for out, place in zip(found, y.split([v.shape[axis] for v in found], axis), strict=True):
            place.copy_(out)
        return y, own[0]


def steps_of(a: Tensor, b: Tensor) -> list[int]:
    """The axes of two tensors of a shape as C walks them: of each its size and its steps in both.

    Axes that lie behind each other in both are one.
    """
    found = list[list[int]]()
    for axis in zip(a.shape, a.stride(), b.stride(), strict=True):
        size, *steps = axis
        if size == 1:
            continue
        if found and found[-1][1:] == [size * step for step in steps]:
            found[-1] = [found[-1][0] * size, *steps]
        else:
            found.append([*axis])
    return [word for axis in found or [[1, 0, 0]] for word in axis]


def sums(v: Tensor) -> Tensor:
    """v as dense int32 or int64, in its order if it is dense."""
    return dense(v if v.dtype is I64 else integers(v, I32))


def in_order(exponent: Tensor, last: bool) -> Tensor:
    """Exponents of rows as C reads them, in the memory order of what they belong to."""
    exponent = integers(exponent, I64)
    return nhwc(exponent) if last else exponent.contiguous()
