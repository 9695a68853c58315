"""The native realisation of the training kernels: C on the CPU, called through ctypes.

The same bits as `Eager`, from which it inherits what has no C of its own, and to which it leaves
the few operands that C is not made for.
"""

from __future__ import annotations

from ctypes import byref
from typing import Any

import torch
from torch import Tensor

from samebits.kernels.eager import BIAS_BITS, DOT_BITS
from samebits.kernels.geometry import ConvShape
from samebits.kernels.library import (
    conv_struct,
    load,
    rows_struct,
    table_pointers,
)
from samebits.kernels.memory import (
    GRADIENT,
    I8,
    I16,
    I32,
    I64,
    SUMS,
    U8,
    dense,
    integers,
    is_last,
    like,
    nchw,
    nhwc,
    pointer,
    rows,
    unrows,
)
from samebits.kernels.native_parts import BITS_OF, in_order, sums
from samebits.kernels.native_pools import NativePools
from samebits.kernels.protocol import (
    BITS,
    CODE_TYPE,
    HASH_BLOCK,
    Entropy,
    Found,
    Part,
    State,
    Sum,
)
from samebits.kernels.rows import Exponent
from samebits.kernels.tables import CODES, TABLES, Tables
from samebits.spec import formats

MAX_DEPTHWISE_TAPS = 518  # 32639 * 127 * 518 < 2**31
_NAMES = {I8: "i8", I16: "i16", I32: "i32", I64: "i64"}
MAX_SHIFT_32 = 24  # right shifts that 32-bit rounding of magnitudes up to Q32 can hold
_threads = torch.get_num_threads


class Native(NativePools):
    """The kernels of the loaded library. `arch` limits the instruction set (speed only)."""

    def __init__(self, arch: str | None = None, library: Any = None) -> None:
        """library: its functions; None: those of the compiled one."""
        self._c = load(arch) if library is None else library
        self._scale = {
            (t, kind): getattr(self._c, f"samebits_scale_{_NAMES[t]}_{name}")
            for t in SUMS
            for kind, name in _NAMES.items()
        }

    # --- scaling and rounding ---------------------------------------------------------------

    def scale(self, v: Tensor, exponent: Exponent) -> Tensor:
        """One exponent, or those of rows, channels or elements; of other shapes in torch."""
        if not isinstance(exponent, Tensor):
            return self._scaled(v, exponent, I64)
        v = sums(v)
        shape, last = tuple(v.shape), is_last(v)
        s = rows_struct(shape, tuple(exponent.shape), (1,) * len(shape), last)
        if s is None:
            return super().scale(v, exponent)
        exponent, out = in_order(exponent, last), torch.empty_like(v, dtype=I64)
        of_v = (pointer(v, n := v.numel(), *SUMS), BITS_OF[v.dtype])
        places = (pointer(exponent, exponent.numel(), I64), pointer(out, n, I64), _threads())
        self._run(self._c.samebits_scale_rows, s, *of_v, *places)
        return out

    def scale_to(self, v: Tensor, exponent: Exponent, bits: int) -> Tensor:
        if isinstance(exponent, Tensor):
            return super().scale_to(v, exponent, bits)
        if exponent < -MAX_SHIFT_32:
            v = integers(v, I64)
        return self._scaled(v, exponent, CODE_TYPE[bits])

    def _scaled(self, v: Tensor, exponent: int, kind: torch.dtype) -> Tensor:
        v, n = sums(v), v.numel()
        out = torch.empty_like(v, dtype=kind)
        shift = min(exponent, 62)  # only zeros have a larger one
        operands = (pointer(v, n, *SUMS), n, shift, pointer(out, n, kind))
        self._scale[v.dtype, kind](*operands, _threads())
        return out

    # --- convolution and matrix product -----------------------------------------------------

    def conv(self, x: Tensor, w: Tensor, s: ConvShape) -> Sum:
        x, w = nhwc(x), nhwc(w)
        out, largest = x.new_empty((s.n, s.oh, s.ow, s.co), dtype=I32), self._out()
        of_x, of_w, of_y = s.counts
        operands = (conv_struct(s), pointer(x, of_x, I8), pointer(w, of_w, I8))
        place = (pointer(out, of_y, I32), largest, _threads())
        self._run(self._c.samebits_products, *operands, *place)
        return nchw(out), largest[0]

    def conv_input_grad(self, g16: Tensor, w: Tensor, s: ConvShape) -> Sum:
        """In 32-bit sums where no sum can leave them, which weights and gradient tell beforehand.

        A depthwise kernel is summed in 32 bits always, which holds for MAX_DEPTHWISE_TAPS taps.
        """
        if s.depthwise and s.kh * s.kw > MAX_DEPTHWISE_TAPS:
            return super().conv_input_grad(g16, w, s)
        g, w = nhwc(g16), nhwc(w)
        of_x, of_w, of_y = s.counts
        place = pointer(w, of_w, I8)
        operands = (byref(conv_struct(s)), pointer(g, of_y, I16), place)
        shape = (s.n, s.h, s.w, s.ci)
        if s.depthwise:
            dx = g.new_zeros(shape, dtype=I32)
            places = (pointer(dx, of_x, I32), _threads())
            largest = self._c.samebits_depthwise_input_grad(*operands, *places)
        else:
            # Every sum is at most max|g| times the sum of |w| that meets one input channel.
            columns = s.ci // s.groups
            count = of_w // (s.groups * columns)
            reach = _checked(self._c.samebits_reach(place, s.groups, count, columns))
            wide = self.largest_of(g) * reach > formats.Q32
            make = g.new_empty if s.stride == (1, 1) else g.new_zeros  # a stride leaves gaps
            dx = make(shape, dtype=I64 if wide else I32)
            place = pointer(dx, of_x, *SUMS)
            largest = self._c.samebits_conv_input_grad(*operands, place, wide, _threads())
        return nchw(dx), _checked(largest)

    def input_gradient(
        self, g16: Tensor, w: Tensor, s: ConvShape, exponent: Exponent, bits: int
    ) -> Part:
        """The sums stay in C, and with them the choice of their width."""
        if s.depthwise and s.kh * s.kw > MAX_DEPTHWISE_TAPS:
            return super().input_gradient(g16, w, s, exponent, bits)
        g, w = nhwc(g16), nhwc(w)
        of_x, of_w, of_y = s.counts
        shape, highest = (s.n, s.h, s.w, s.ci), self._out()
        sums, dx = g.new_empty(shape, dtype=I64), g.new_empty(shape)
        # Pixels of one image may be the rows.
        many = s.ow if isinstance(exponent, Tensor) and exponent.dim() < 4 else s.n
        given, count, held = self._of_rows(exponent, many)
        place, own = self._results(held)
        operands = (conv_struct(s), pointer(g, of_y, I16), pointer(w, of_w, I8), given, count)
        places = (pointer(sums, of_x, I64), pointer(dx, of_x, I16), place, highest, _threads())
        self._run(self._c.samebits_input_gradient, *operands, bits, *places, found=highest)
        return nchw(dx), own()

    def conv_weight_grad(self, g: Tensor, x: Tensor, s: ConvShape) -> Sum:
        """In 32-bit sums where the types and the number of positions keep them from leaving."""
        g, x = nhwc(g), nhwc(x)
        of_x, of_w, of_y = s.counts
        reach = s.n * s.oh * s.ow * formats.Q16 * formats.Q8
        wide = s.depthwise or g.dtype == I32 or reach > formats.Q32
        shape, largest = (s.co, s.kh, s.kw, s.ci // s.groups), self._out()
        dw = g.new_empty(shape, dtype=I64 if wide else I32)
        of_g = (pointer(g, of_y, *GRADIENT), BITS[g.dtype])
        places = (pointer(dw, of_w, *SUMS), wide, largest, _threads())
        operands = (conv_struct(s), *of_g, pointer(x, of_x, I8))
        self._run(self._c.samebits_weight_gradient, *operands, *places)
        return nchw(dw), largest[0]

    def with_bias(self, acc: Tensor, largest: int, exponent: Exponent, bias: State) -> Found:
        """32-bit sums in place; others in torch."""
        if acc.dtype != I32:
            return super().with_bias(acc, largest, exponent, bias)
        if isinstance(exponent, Tensor):
            return self._with_bias_rows(acc, exponent, bias)
        sums, channels = rows(acc), bias[0].numel()
        top, common = self._out(), self._out()
        values = sums.new_empty(channels)
        n = sums.numel() // channels
        of_sums = (pointer(sums, n * channels, I32), n, channels)
        codes, delayed, e_b = self._state(bias, channels)
        places = (self._at(largest), self._at(exponent), e_b, codes, delayed)
        found = (pointer(values, channels, I32), top, common, _threads())
        self._run(self._c.samebits_with_bias, *of_sums, *places, *found)
        return unrows(sums), top[0], common[0]

    def _with_bias_rows(self, acc: Tensor, exponent: Tensor, bias: State) -> Found:
        """Exponents [n, co, 1, 1], or of vectors [..., co]; channels may share them."""
        channels = bias[0].numel()
        sums, e = rows(acc), rows(exponent)
        n = sums.numel() // channels
        count = len(acc) if acc.dim() == 4 else n
        columns = 1 if e.shape[-1] == 1 else channels
        values, own = sums.new_empty(channels), torch.empty_like(e)
        codes, delayed, e_b = self._state(bias, channels)
        self._run(
            *(self._c.samebits_with_bias_rows, pointer(sums, n * channels, I32), n, channels),
            *(pointer(e, count * columns, I64), count, columns, e_b, codes, delayed),
            *(pointer(values, channels, I32), pointer(own, count * columns, I64), _threads()),
        )
        return unrows(sums), 0, unrows(own)

    def channel_sum(
        self, g: Tensor, exponent: Exponent, x: Tensor | None = None
    ) -> tuple[Tensor, int, int]:
        g, x = rows(g), None if x is None else rows(x)
        channels = g.shape[-1]
        out, own, largest = g.new_empty(channels, dtype=I64), self._out(), self._out()
        n = g.numel() // channels
        given, count, held = self._of_rows(exponent, g.shape[0])
        bits = 0 if held is None else BIAS_BITS if x is None else DOT_BITS
        of_g = (pointer(g, n * channels, *GRADIENT), BITS[g.dtype])
        operands = (*of_g, pointer(x, n * channels, I8), n, channels)
        places = (given, count, bits, pointer(out, channels, I64), own, largest)
        self._run(self._c.samebits_channel_sum, *operands, *places)
        return out, largest[0], own[0]

    # --- tables ------------------------------------------------------------------------------

    def table(self, x: Tensor, exponent: Exponent, tables: Tables, bits: int) -> Part:
        if (many := self._rows(x, exponent)) is None:
            return super().table(x, exponent, tables, bits)
        x, n = dense(x), x.numel()
        given, _, held = self._of_rows(exponent, many)
        y, found, (place, own) = torch.empty_like(x), self._out(), self._results(held)
        of_x = (pointer(x, n, I8), many, n // many, given, *self._tables(tables, exponent))
        places = (bits, pointer(y, n, I8), place, found, _threads())
        self._run(self._c.samebits_table, *of_x, *places)
        return y, own()

    def table_gradient(
        self, g: Tensor, e_g: Exponent, x: Tensor, exponent: Exponent, slopes: Tables
    ) -> Part:
        """All rows in one call, unless the gradient alone has exponents by rows."""
        many = self._rows(x, exponent, e_g)
        if many is None or isinstance(exponent, Tensor) < isinstance(e_g, Tensor):
            return super().table_gradient(g, e_g, x, exponent, slopes)
        x = dense(x)
        g, n = like(g if g.dtype == I16 else integers(g, I32), x), x.numel()
        (of_x, _, held), (of_g, _, own_g) = (self._of_rows(e, many) for e in (exponent, e_g))
        out, (place, own) = torch.empty_like(x, dtype=I32), self._results(held)
        self._run(
            *(self._c.samebits_table_gradient, pointer(g, n, *GRADIENT), BITS[g.dtype]),
            *(of_g, own_g is not None, pointer(x, n, I8), many, n // many, of_x),
            *(*self._tables(slopes, exponent), pointer(out, n, I32), place, _threads()),
        )
        return out, own()

    def _tables(self, tables: Tables, exponent: Exponent) -> tuple[int | None, int | None]:
        """Where C finds the tables of a function."""
        self._meet(tables, exponent)
        entries, own = tables.entries, tables.exponents
        return pointer(entries, TABLES * CODES, I32), pointer(own, TABLES, I64)

    def _meet(self, tables: Tables, exponent: Exponent) -> None:
        """Make the tables of exponents; in a routine C says which are not there."""
        tables.meet(exponent)

    # --- loss -------------------------------------------------------------------------------

    def cross_entropy(
        self, z: Tensor, exponent: int | Tensor, target: Tensor, divisor: int
    ) -> Entropy:
        return self._entropy(z, exponent, target, divisor, None)

    def hits(self, target: Tensor, classes: int, amount: int, beside: int = 0) -> Tensor:
        target, found = target.contiguous(), target.new_empty((len(target), classes))
        places = (pointer(target, n := len(target), I64), n, classes, amount, beside)
        self._run(self._c.samebits_hits, *places, pointer(found, n * classes, I64))
        return found

    def weighed_entropy(self, z: Tensor, exponent: int | Tensor, amounts: Tensor) -> Entropy:
        return self._entropy(z, exponent, None, 1, amounts)

    def _entropy(
        self,
        z: Tensor,
        exponent: Exponent,
        target: Tensor | None,
        divisor: int,
        amounts: Tensor | None,
    ) -> Entropy:
        """The cross-entropy of targets, or without them of amounts."""
        z = integers(z, I32).contiguous()
        n, classes = z.shape
        chosen, given = (None if v is None else v.contiguous() for v in (target, amounts))
        scratch, logs, distances = (z.new_empty(size, dtype=I64) for size in (classes, n, n))
        found = Entropy(z.new_empty(z.shape), logs, distances)
        own, count, _held = self._of_rows(exponent, n)
        of_z = (pointer(z, n * classes, I32), n, classes, own, count > 1)
        places = (
            pointer(given, n * classes, I64),
            *table_pointers(),
            pointer(scratch, classes, I64),
            pointer(found.codes, n * classes, I32),
            *(pointer(v, n, I64) for v in (logs, distances)),
        )
        self._run(self._c.samebits_entropy, *of_z, pointer(chosen, n, I64), divisor, *places)
        return found

    # --- hashes -----------------------------------------------------------------------------

    def block_sums(self, data: Tensor, keys: Tensor) -> Tensor:
        size = data.numel()
        out = data.new_empty(count := -(-size // HASH_BLOCK), dtype=I64)
        operands = (pointer(data, size, U8), size, pointer(keys, HASH_BLOCK // 4, I32))
        self._c.samebits_block_sums(*operands, pointer(out, count, I64), _threads())
        return out


def _checked(largest: int) -> int:
    """The largest magnitude that a convolution found; MemoryError where it says that it failed."""
    if largest < 0:
        raise MemoryError("no memory for the scratch space of a convolution")
    return largest
