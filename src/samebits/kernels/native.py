"""The native realisation of the training kernels: C on the CPU, called through ctypes.

The same bits as `Eager`, from which it inherits what has no C of its own, and to which it leaves
the few operands that C is not made for.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref, c_int64

import torch
from torch import Tensor

from samebits.kernels.geometry import ConvShape, Window, requantize_shift, shorten_shift
from samebits.kernels.library import (
    addends,
    conv_struct,
    dense,
    entropy,
    grid_of,
    in_two_passes,
    like,
    load,
    nchw,
    nhwc,
    pointer,
    pool_struct,
    rows,
    unrows,
)
from samebits.kernels.native_vectors import MAX_SHIFT_32, NativeVectors
from samebits.kernels.protocol import (
    BITS,
    CODE_TYPE,
    HASH_BLOCK,
    Entropy,
    Part,
    Sum,
)
from samebits.kernels.rows import ABOVE, WHOLE, Exponent, are_powers
from samebits.kernels.softmax import power_tables
from samebits.spec import formats

MAX_DEPTHWISE_TAPS = 518  # 32639 * 127 * 518 < 2**31
_NAMES = {torch.int8: "i8", torch.int16: "i16", torch.int32: "i32", torch.int64: "i64"}
SUMS = (torch.int32, torch.int64)
TABLES = (torch.int8, torch.int32)  # of entries of tables
_threads = torch.get_num_threads


class Native(NativeVectors):
    """The kernels of the loaded library. `arch` limits the instruction set (speed only)."""

    def __init__(self, arch: str | None = None) -> None:
        self._c = load(arch)
        self._max = {t: getattr(self._c, f"samebits_max_{name}") for t, name in _NAMES.items()}
        self._scale = {
            (t, kind): getattr(self._c, f"samebits_scale_{_NAMES[t]}_{name}")
            for t in SUMS
            for kind, name in _NAMES.items()
        }
        self._lookup = {t: getattr(self._c, f"samebits_lookup_{_NAMES[t]}") for t in TABLES}
        self._scale_rows, self._max_rows, self._row_ends = (
            {t: getattr(self._c, f"samebits_{what}_{_NAMES[t]}") for t in SUMS}
            for what in ("scale_rows", "max_rows", "row_ends")
        )

    # --- scaling and rounding ---------------------------------------------------------------

    def largest_of(self, v: Tensor) -> int:
        v = dense(v)
        return int(self._max[v.dtype](pointer(v), v.numel(), _threads()))

    def scale(self, v: Tensor, exponent: Exponent) -> Tensor:
        """One exponent, or those of rows, channels or elements; of other shapes in torch."""
        if not isinstance(exponent, Tensor):
            return self._scaled(v, exponent, torch.int64)
        if v.dim() != exponent.dim():
            return super().scale(v, exponent)
        last = _is_last(v)
        grid = grid_of(v.shape, exponent.shape, last=last)
        if grid is None:
            return super().scale(v, exponent)
        v, exponent = _sums(v), exponent.long()
        exponent = nhwc(exponent) if last else exponent.contiguous()
        out = torch.empty_like(v, dtype=torch.int64)
        scale = self._scale_rows[v.dtype]
        scale(pointer(v), pointer(exponent), *grid, pointer(out), _threads())
        return out

    def largest_rows(self, v: Tensor, *sizes: Sequence[int]) -> Tensor:
        shared = [all(size[axis] == 1 for size in sizes) for axis in range(v.dim())]
        size = [1 if one else n for one, n in zip(shared, v.shape, strict=True)]
        last = _is_last(v)
        grid = grid_of(v.shape, size, last=last)
        if grid is None:
            return super().largest_rows(v, *sizes)
        v = _sums(v)
        top = _places(size, last, 0)
        self._max_rows[v.dtype](pointer(v), *grid, pointer(top), _threads())
        return top

    def row_ends(
        self, v: Tensor, exponent: Tensor, size: Sequence[int]
    ) -> tuple[Tensor, Tensor] | None:
        last = _is_last(v)
        grid = grid_of(v.shape, exponent.shape, size, last=last)
        if grid is None or not v.numel() or not are_powers(exponent):
            return super().row_ends(v, exponent, size)
        v, exponent = _sums(v), exponent.long()
        exponent = nhwc(exponent) if last else exponent.contiguous()
        reals, low = _places(size, last, 0, torch.float64), _places(size, last, ABOVE)
        operands = (pointer(v), pointer(exponent), *grid, pointer(reals), pointer(low))
        if self._row_ends[v.dtype](*operands, _threads()) > WHOLE:
            return None
        return reals, low

    def scale_to(self, v: Tensor, exponent: Exponent, bits: int) -> Tensor:
        if isinstance(exponent, Tensor):
            return super().scale_to(v, exponent, bits)
        if exponent < -MAX_SHIFT_32 and v.dtype != torch.int64:
            v = v.long()
        return self._scaled(v, exponent, CODE_TYPE[bits])

    def _scaled(self, v: Tensor, exponent: int, kind: torch.dtype) -> Tensor:
        v = _sums(v)
        out = torch.empty_like(v, dtype=kind)
        shift = min(exponent, 62)  # only zeros have a larger one
        self._scale[v.dtype, kind](pointer(v), v.numel(), shift, pointer(out), _threads())
        return out

    def resolve(self, parts: list[Part]) -> Part:
        """A pass for the largest magnitude of the sum, and one that writes it.

        The exponents decide alone, but for parts that are all zeros, which must not count.
        """
        usual = all(isinstance(e, int) and codes.dtype != torch.int8 for codes, e in parts)
        if len(parts) == 1 or not usual:
            return super().resolve(parts)
        order = dense(parts[0][0])
        pairs = sorted(((like(codes, order), int(e)) for codes, e in parts), key=lambda p: -p[1])
        # The largest exponent among parts that are not all zero; of all-zero parts, any.
        least = pairs[-1][1]
        live = next((e for codes, e in pairs if e == least or self.largest_of(codes)), least)
        # An all-zero part may have a larger exponent; its shift is irrelevant but must not be left.
        sides = addends(*((codes, min(e - live, 0)) for codes, e in pairs))
        sizes = (sides, len(pairs), order.numel())

        def call(shift: int, to: int | None) -> int:
            return int(self._c.samebits_add_grad(*sizes, shift, to, _threads()))

        out = torch.empty_like(order, dtype=torch.int32)
        return in_two_passes(call, out, live, shorten_shift)

    # --- convolution and matrix product -----------------------------------------------------

    def conv(self, x: Tensor, w: Tensor, s: ConvShape) -> Sum:
        x, w = nhwc(x), nhwc(w)
        out = torch.empty(s.n, s.oh, s.ow, s.co, dtype=torch.int32)
        operands = (pointer(x), pointer(w))
        plain = s.n == s.h == s.kh == s.kw == s.groups == 1 and s.padding == (0, 0)
        if plain and s.w == s.ow <= 2 * s.co:
            sizes = (s.w, s.co, s.ci)
            largest = self._c.samebits_product(*operands, *sizes, pointer(out), _threads())
        else:
            kernel = self._c.samebits_depthwise if s.depthwise else self._c.samebits_conv
            largest = kernel(byref(conv_struct(s)), *operands, pointer(out), _threads())
        return nchw(out), _checked(largest)

    def conv_input_grad(self, g16: Tensor, w: Tensor, s: ConvShape) -> Sum:
        """In 32-bit sums where no sum can leave them, which weights and gradient tell beforehand.

        A depthwise kernel is summed in 32 bits always, which holds for MAX_DEPTHWISE_TAPS taps.
        """
        if s.depthwise and s.kh * s.kw > MAX_DEPTHWISE_TAPS:
            return super().conv_input_grad(g16, w, s)
        g, w = nhwc(g16), nhwc(w)
        operands = (byref(conv_struct(s)), pointer(g), pointer(w))
        if s.depthwise:
            dx = torch.zeros(s.n, s.h, s.w, s.ci, dtype=torch.int32)
            largest = self._c.samebits_depthwise_input_grad(*operands, pointer(dx), _threads())
        else:
            # Every sum is at most max|g| times the sum of |w| that meets one input channel.
            columns = s.ci // s.groups
            count = w.numel() // (s.groups * columns)
            reach = _checked(self._c.samebits_reach(pointer(w), s.groups, count, columns))
            wide = self.largest_of(g) * reach > formats.Q32
            make = torch.empty if s.stride == (1, 1) else torch.zeros  # a stride leaves gaps
            dx = make(s.n, s.h, s.w, s.ci, dtype=torch.int64 if wide else torch.int32)
            largest = self._c.samebits_conv_input_grad(*operands, pointer(dx), wide, _threads())
        return nchw(dx), _checked(largest)

    def conv_weight_grad(self, g: Tensor, x: Tensor, s: ConvShape) -> Sum:
        g, x = nhwc(g), nhwc(x)
        shape = (s.co, s.kh, s.kw, s.ci // s.groups)
        bits = BITS[g.dtype]
        operands = (byref(conv_struct(s)), pointer(g), bits, pointer(x))
        if s.depthwise:
            dw = torch.zeros(shape, dtype=torch.int64)
            largest = self._c.samebits_depthwise_weight_grad(*operands, pointer(dw), _threads())
        else:
            wide = bits == 32 or s.n * s.oh * s.ow * formats.Q16 * formats.Q8 > formats.Q32
            dw = torch.empty(shape, dtype=torch.int64 if wide else torch.int32)
            largest = self._c.samebits_conv_weight_grad(*operands, pointer(dw), wide, _threads())
        return nchw(dw), _checked(largest)

    def with_bias(
        self,
        acc: Tensor,
        largest: int,
        exponent: Exponent,
        codes: Tensor,
        delayed: Tensor,
        e_b: int,
    ) -> tuple[Tensor, int, Exponent]:
        """32-bit sums of one exponent in place; others in torch."""
        if acc.dtype != torch.int32 or isinstance(exponent, Tensor):
            return super().with_bias(acc, largest, exponent, codes, delayed, e_b)
        sums = rows(acc)
        channels = codes.numel()
        common = c_int64(exponent)
        values = torch.empty(channels, dtype=torch.int32)
        sizes = (sums.numel() // channels, channels, e_b)
        state = (pointer(codes), pointer(delayed), pointer(values))
        places = (byref(common), _threads())
        top = self._c.samebits_with_bias(pointer(sums), *sizes, *state, *places)
        return (acc, largest, exponent) if top < 0 else (unrows(sums), top, common.value)

    def channel_sum(self, g: Tensor) -> Tensor:
        g = rows(g)
        channels = g.shape[-1]
        out = torch.empty(channels, dtype=torch.int64)
        sizes = (g.numel() // channels, channels)
        self._c.samebits_channel_sum(pointer(g), BITS[g.dtype], *sizes, pointer(out))
        return out

    # --- batch normalisation ----------------------------------------------------------------

    def channel_stats(self, z: Tensor) -> Tensor:
        z = rows(z)
        channels = z.shape[-1]
        out = torch.empty(4, channels, dtype=torch.int64)
        sizes = (z.numel() // channels, channels)
        _succeeded(self._c.samebits_channel_stats(pointer(z), *sizes, pointer(out), _threads()))
        return out

    def channel_affine(self, z: Tensor, m: Tensor, b: Tensor, exponent: int) -> Tensor:
        if exponent < -MAX_SHIFT_32:
            return super().channel_affine(z, m, b, exponent)
        z = rows(z)
        out = torch.empty_like(z)
        channels = z.shape[-1]
        m, b = m.to(torch.int32).contiguous(), b.to(torch.int32).contiguous()
        sizes = (z.numel() // channels, channels)
        operands = (pointer(z), *sizes, pointer(m), pointer(b), exponent)
        self._c.samebits_channel_affine(*operands, pointer(out), _threads())
        return unrows(out)

    def channel_grad_sums(self, g: Tensor, z: Tensor) -> Tensor:
        g, z = rows(g), rows(z)
        channels = z.shape[-1]
        out = torch.empty(2, channels, dtype=torch.int64)
        sizes = (z.numel() // channels, channels)
        operands = (pointer(g), BITS[g.dtype], pointer(z), *sizes)
        _succeeded(self._c.samebits_channel_grad_sums(*operands, pointer(out), _threads()))
        return out

    def batch_norm_grad(self, g: Tensor, z: Tensor, abc: Tensor, exponent: int) -> Part:
        g, z, abc = rows(g), rows(z), abc.contiguous()
        channels = z.shape[-1]
        sizes = (z.numel() // channels, channels)
        operands = (pointer(g), BITS[g.dtype], pointer(z), *sizes, pointer(abc))

        def call(shift: int, to: int | None) -> int:
            return int(self._c.samebits_batch_norm_grad(*operands, shift, to, _threads()))

        out = torch.empty_like(z, dtype=torch.int32)
        codes, own = in_two_passes(call, out, exponent, shorten_shift)
        return unrows(codes), own

    # --- activations, addition, pooling -----------------------------------------------------

    def relu(self, x: Tensor, high: int | Tensor = 127) -> Tensor:
        if isinstance(high, Tensor):
            return super().relu(x, high)
        x = dense(x)
        out = torch.empty_like(x)
        self._c.samebits_relu(pointer(x), x.numel(), high, pointer(out), _threads())
        return out

    def used(self, x: Tensor) -> Tensor:
        x = dense(x)
        found = torch.empty(256, dtype=torch.bool)
        self._c.samebits_used(pointer(x), x.numel(), pointer(found), _threads())
        return found[1:]

    def lookup(self, x: Tensor, entries: Tensor) -> Tensor:
        x = dense(x)
        every = _all_codes(entries)  # lives until C has read it
        out = torch.empty_like(x, dtype=entries.dtype)
        lookup = self._lookup[entries.dtype]
        lookup(pointer(x), x.numel(), pointer(every), pointer(out), _threads())
        return out

    def lookup_grad(self, g: Tensor, x: Tensor, entries: Tensor, exponent: int) -> Part:
        x = dense(x)
        g, every = like(g if g.dtype == torch.int16 else g.int(), x), _all_codes(entries)
        operands = (pointer(g), BITS[g.dtype], pointer(x), x.numel(), pointer(every))

        def call(shift: int, to: int | None) -> int:
            return int(self._c.samebits_lookup_grad(*operands, shift, to, _threads()))

        return in_two_passes(call, torch.empty_like(x, dtype=torch.int32), exponent, shorten_shift)

    def relu_grad(self, g: Tensor, y: Tensor, high: int | Tensor = 128) -> Tensor:
        if isinstance(high, Tensor):
            return super().relu_grad(g, y, high)
        y = dense(y)
        g = like(g, y)
        out = torch.empty_like(g)
        operands = (pointer(g), BITS[g.dtype], pointer(y), y.numel(), high)
        self._c.samebits_relu_grad(*operands, pointer(out), _threads())
        return out

    def add(
        self,
        a: Tensor,
        ea: Exponent,
        b: Tensor,
        eb: Exponent,
        exponent: Exponent,
        bits: int = 8,
    ) -> Part:
        """A pass for the largest magnitude of the sum, and one that writes it."""
        if not (isinstance(ea, int) and isinstance(eb, int) and isinstance(exponent, int)):
            return super().add(a, ea, b, eb, exponent, bits)
        if max(ea, eb) - exponent > 22:  # one operand is all zeros
            return super().add(a, ea, b, eb, exponent, bits)
        a = dense(a)
        b = like(b, a)
        sides = (pointer(a), pointer(b), a.numel(), ea - exponent, eb - exponent)

        def call(shift: int, to: int | None) -> int:
            return int(self._c.samebits_add_i8(*sides, shift, to, _threads()))

        return in_two_passes(
            call, torch.empty_like(a), exponent, lambda n: requantize_shift(n, exponent, bits)
        )

    def max_pool(self, x: Tensor, window: Window) -> tuple[Tensor, Tensor]:
        pool = pool_struct(x.shape, window)
        x = nhwc(x)
        y = torch.empty(pool.n, pool.oh, pool.ow, pool.c, dtype=torch.int8)
        where = torch.empty_like(y, dtype=torch.uint8)
        places = (pointer(y), pointer(where))
        self._c.samebits_max_pool(byref(pool), pointer(x), *places, _threads())
        return nchw(y), nchw(where)

    def max_pool_grad(self, g: Tensor, where: Tensor, shape: torch.Size, window: Window) -> Sum:
        pool = pool_struct(shape, window)
        g, where = nhwc(g), nhwc(where)
        dx = torch.zeros(pool.n, pool.h, pool.w, pool.c, dtype=torch.int64)
        operands = (byref(pool), pointer(g), BITS[g.dtype], pointer(where))
        self._c.samebits_max_pool_grad(*operands, pointer(dx), _threads())
        return nchw(dx), self.largest_of(dx)

    # --- loss -------------------------------------------------------------------------------

    def cross_entropy(
        self, z: Tensor, exponent: int | Tensor, target: Tensor, divisor: int
    ) -> Entropy:
        if isinstance(exponent, Tensor):
            return super().cross_entropy(z, exponent, target, divisor)
        return entropy(self._c, z, exponent, target, divisor, None)

    def weighed_entropy(self, z: Tensor, exponent: int | Tensor, amounts: Tensor) -> Entropy:
        if isinstance(exponent, Tensor):
            return super().weighed_entropy(z, exponent, amounts)
        return entropy(self._c, z, exponent, None, 1, amounts)

    def softmax(self, z: Tensor, exponent: Exponent, allowed: Tensor | None) -> Tensor:
        z = z.to(torch.int32).contiguous()
        n, c = z.shape
        own = exponent.expand(n, 1) if isinstance(exponent, Tensor) else torch.tensor([[exponent]])
        sizes = (n, c, pointer(own := own.contiguous()), int(own.numel() > 1))
        allowed = None if allowed is None else allowed.contiguous()
        out = torch.empty_like(z)
        places = (pointer(allowed), *map(pointer, power_tables()), pointer(out), _threads())
        self._c.samebits_softmax(pointer(z), *sizes, *places)
        return out

    def softmax_grad(self, g16: Tensor, y: Tensor) -> Tensor:
        g16, y = g16.contiguous(), y.contiguous()
        out = torch.empty(y.shape, dtype=torch.int64)
        self._c.samebits_softmax_grad(
            *(pointer(g16), pointer(y), *y.shape, pointer(out), _threads())
        )
        return out

    # --- hashes -----------------------------------------------------------------------------

    def block_sums(self, data: Tensor, keys: Tensor) -> Tensor:
        size = data.numel()
        out = torch.empty(-(-size // HASH_BLOCK), dtype=torch.int64)
        operands = (pointer(data), size, pointer(keys))
        self._c.samebits_block_sums(*operands, pointer(out), _threads())
        return out

    # --- the cell of an LSTM; tensors are dense rows ----------------------------------------

    def lstm_gates(
        self,
        acc_x: Tensor,
        acc_h: Tensor | None,
        bias: Tensor | None,
        shifts: tuple[Exponent, Exponent, Exponent],
        lookup: Tensor,
    ) -> Tensor:
        if _by_rows(*shifts):
            return super().lstm_gates(acc_x, acc_h, bias, shifts, lookup)
        out = torch.empty(acc_x.shape, dtype=torch.int16)
        sizes = (acc_x.shape[0], acc_x.shape[1] // 4, *shifts)
        places = (pointer(lookup), pointer(out), _threads())
        self._c.samebits_lstm_gates(*map(pointer, (acc_x, acc_h, bias)), *sizes, *places)
        return out

    def lstm_state_sum(
        self, gates: Tensor, before: Tensor | None, shifts: tuple[Exponent, Exponent]
    ) -> Sum:
        if _by_rows(*shifts):
            return super().lstm_state_sum(gates, before, shifts)
        sizes = (gates.shape[0], gates.shape[1] // 4)
        out = torch.empty(sizes, dtype=torch.int64)
        operands = (pointer(gates), pointer(before), *sizes, *shifts)
        return out, self._c.samebits_lstm_state(*operands, pointer(out))

    def lstm_hidden(self, gates: Tensor, c: Tensor, shift: Exponent, lookup: Tensor) -> Tensor:
        if _by_rows(shift):
            return super().lstm_hidden(gates, c, shift, lookup)
        out = torch.empty(c.shape, dtype=torch.int8)
        operands = (pointer(gates), pointer(c), *c.shape, shift, pointer(lookup))
        self._c.samebits_lstm_hidden(*operands, pointer(out))
        return out

    def lstm_hidden_grad_sum(
        self, g: Tensor, back: Tensor | None, shifts: tuple[Exponent, Exponent]
    ) -> Sum:
        if _by_rows(*shifts):
            return super().lstm_hidden_grad_sum(g, back, shifts)
        out = torch.empty(g.shape, dtype=torch.int64)
        width = 32 if back is None else 8 * back.element_size()
        sides = (pointer(g), 8 * g.element_size(), pointer(back), width, g.numel(), *shifts)
        return out, self._c.samebits_lstm_hidden_grad(*sides, pointer(out))

    def lstm_state_grad_sum(
        self,
        dh: Tensor,
        gates: Tensor,
        c: Tensor,
        shift: Exponent,
        lookup: Tensor,
        later: tuple[Tensor, Tensor] | None,
        shifts: tuple[Exponent, Exponent],
    ) -> Sum:
        """One pass over the step; with exponents by rows in torch."""
        if _by_rows(shift, *shifts):
            return super().lstm_state_grad_sum(dh, gates, c, shift, lookup, later, shifts)
        out = torch.empty(c.shape, dtype=torch.int64)
        own = (*map(pointer, (dh, gates, c)), *c.shape, shift)
        tables = map(pointer, (lookup, *(later or (None, None))))
        return out, self._c.samebits_lstm_state_grad(*own, *tables, *shifts, pointer(out))

    def lstm_gate_grads(
        self,
        dh: Tensor,
        dc: Tensor,
        gates: Tensor,
        c: Tensor,
        shift: Exponent,
        lookup: Tensor,
        before: Tensor | None,
        shifts: tuple[Exponent, Exponent, Exponent, Exponent],
    ) -> Sum:
        """One pass over the step; with exponents by rows in torch."""
        if _by_rows(shift, *shifts):
            return super().lstm_gate_grads(dh, dc, gates, c, shift, lookup, before, shifts)
        out = torch.empty(gates.shape, dtype=torch.int64)
        own = (*map(pointer, (dh, dc, gates, c)), *c.shape, shift)
        tables = (pointer(lookup), pointer(before))
        return out, self._c.samebits_lstm_gate_grads(*own, *tables, *shifts, pointer(out))


def _is_last(v: Tensor) -> bool:
    """Whether the memory of an image has its channels last."""
    return v.dim() == 4 and not v.is_contiguous() and v.permute(0, 2, 3, 1).is_contiguous()


def _sums(v: Tensor) -> Tensor:
    """v as dense int32 or int64, in its order if it is dense."""
    return dense(v if v.dtype in SUMS else v.int())


def _all_codes(entries: Tensor) -> Tensor:
    """A table of 255 entries with one for -128, which no code is, so that C reads within it."""
    return torch.cat([entries[:1], entries])


def _places(size: Sequence[int], last: bool, value: int, kind: torch.dtype = torch.int64) -> Tensor:
    """Numbers of rows, in the memory order of what they belong to: channels last, or as it is."""
    order = torch.channels_last if last else torch.contiguous_format
    return torch.empty(tuple(size), dtype=kind, memory_format=order).fill_(value)


def _by_rows(*exponents: Exponent) -> bool:
    """Whether one of them is a tensor: such operands are left to `Eager`."""
    return Tensor in map(type, exponents)


def _checked(largest: int) -> int:
    """The largest magnitude that a convolution found; MemoryError where it says that it failed."""
    if largest < 0:
        raise MemoryError("no memory for the scratch space of a convolution")
    return largest


def _succeeded(failed: int) -> None:
    if failed:
        raise MemoryError("no memory for the scratch space of a channel reduction")
