"""The native realisation of the training kernels: C on the CPU, called through ctypes.

The same bits as `Eager`, from which it inherits what has no C of its own, and to which it leaves
the few operands that C is not made for.
"""

from __future__ import annotations

import math
from ctypes import byref, c_int64
from typing import NamedTuple

import torch
from torch import Tensor

from samebits.kernels import softmax
from samebits.kernels.adam import AdamTerms
from samebits.kernels.eager import Eager, combine_shifts, direction_exponent
from samebits.kernels.geometry import ConvShape, Window, requantize_shift, shorten_shift
from samebits.kernels.library import (
    AdamStruct,
    TermsStruct,
    conv_struct,
    dense,
    draw_struct,
    in_word_order,
    like,
    load,
    nchw,
    nhwc,
    pointer,
    pool_struct,
    real_of,
    rows,
    unrows,
    update_struct,
)
from samebits.kernels.moments import BIAS, Draw, Update, exponent_for
from samebits.kernels.protocol import BITS, CODE_TYPE, HASH_BLOCK, Gradient, Part, Sum, Term
from samebits.spec import formats
from samebits.spec.training.moments import FRACTION, TOP_FIELD

MAX_SHIFT_32 = 24  # right shifts that 32-bit rounding of magnitudes up to Q32 can hold
MAX_DEPTHWISE_TAPS = 518  # 32639 * 127 * 518 < 2**31
_NAMES = {torch.int8: "i8", torch.int16: "i16", torch.int32: "i32", torch.int64: "i64"}
_threads = torch.get_num_threads


class _Operands(NamedTuple):
    """A structure of pointers, and the tensors that they point to."""

    struct: TermsStruct
    tensors: tuple[Tensor | None, ...]


class Native(Eager):
    """The kernels of the loaded library. `arch` limits the instruction set (speed only)."""

    def __init__(self, arch: str | None = None) -> None:
        self._c = load(arch)
        self._max = {t: getattr(self._c, f"samebits_max_{name}") for t, name in _NAMES.items()}
        self._scale = {
            (t, bits): getattr(self._c, f"samebits_scale_{_NAMES[t]}_i{bits}")
            for t in (torch.int32, torch.int64)
            for bits in CODE_TYPE
        }

    # --- scaling and rounding ---------------------------------------------------------------

    def largest_of(self, v: Tensor) -> int:
        v = dense(v)
        return int(self._max[v.dtype](pointer(v), v.numel(), _threads()))

    def scale_to(self, v: Tensor, exponent: int, bits: int) -> Tensor:
        v = dense(v)
        if v.dtype not in (torch.int32, torch.int64):
            v = v.int()
        if exponent < -MAX_SHIFT_32 and v.dtype == torch.int32:
            v = v.long()
        out = torch.empty_like(v, dtype=CODE_TYPE[bits])
        self._scale[v.dtype, bits](pointer(v), v.numel(), exponent, pointer(out), _threads())
        return out

    def resolve(self, parts: list[Part]) -> Part:
        """Two parts in C: a pass for the largest magnitude of their sum, and one that writes it.

        Their exponents decide alone, but for a part that is all zeros, which must not count. More
        parts are added one by one in torch.
        """
        if len(parts) != 2:
            return super().resolve(parts)
        (a, ea), (b, eb) = parts
        a = dense(a)
        b = like(b, a)
        # The largest exponent among parts that are not all zero; of two all-zero parts, either.
        exponent = max(ea, eb)
        if ea != eb and not self.largest_of(a if ea > eb else b):
            exponent = min(ea, eb)
        # An all-zero part may have a larger exponent; its shift is irrelevant but must not be left.
        by_a, by_b = min(ea - exponent, 0), min(eb - exponent, 0)
        sides = (pointer(a), BITS[a.dtype], by_a, pointer(b), BITS[b.dtype], by_b, a.numel())
        largest = self._c.samebits_add_grad(*sides, 0, None, _threads())
        if largest == 0:
            return self.shorten(a, 0, 0)
        shift = shorten_shift(largest)
        out = torch.empty_like(a, dtype=torch.int32)
        self._c.samebits_add_grad(*sides, -shift, pointer(out), _threads())
        return out, exponent + shift

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
        self, acc: Tensor, largest: int, exponent: int, codes: Tensor, delayed: Tensor, e_b: int
    ) -> tuple[Tensor, int, int]:
        if acc.dtype != torch.int32:
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
        largest = self._c.samebits_batch_norm_grad(*operands, 0, None, _threads())
        out = torch.empty_like(z, dtype=torch.int32)
        if largest == 0:
            return unrows(out.zero_()), formats.EXPONENT_MIN
        shift = shorten_shift(largest)
        self._c.samebits_batch_norm_grad(*operands, -shift, pointer(out), _threads())
        return unrows(out), exponent + shift

    # --- activations, addition, pooling -----------------------------------------------------

    def relu(self, x: Tensor, high: int = 127) -> Tensor:
        x = dense(x)
        out = torch.empty_like(x)
        self._c.samebits_relu(pointer(x), x.numel(), high, pointer(out), _threads())
        return out

    def relu_grad(self, g: Tensor, y: Tensor, high: int = 128) -> Tensor:
        y = dense(y)
        g = like(g, y)
        out = torch.empty_like(g)
        operands = (pointer(g), BITS[g.dtype], pointer(y), y.numel(), high)
        self._c.samebits_relu_grad(*operands, pointer(out), _threads())
        return out

    def add(self, a: Tensor, ea: int, b: Tensor, eb: int, exponent: int) -> Part:
        if max(ea, eb) - exponent > 22:  # one operand is all zeros
            return super().add(a, ea, b, eb, exponent)
        a = dense(a)
        b = like(b, a)
        sides = (pointer(a), pointer(b), a.numel(), ea - exponent, eb - exponent)
        largest = self._c.samebits_add_i8(*sides, 0, None, _threads())
        if largest == 0:
            return torch.zeros_like(a), formats.EXPONENT_MIN
        shift = requantize_shift(largest, exponent, 8)
        out = torch.empty_like(a)
        self._c.samebits_add_i8(*sides, -shift, pointer(out), _threads())
        return out, exponent + shift

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

    def cross_entropy(self, z: Tensor, exponent: int, target: Tensor) -> tuple[Tensor, int]:
        z, target = z.to(torch.int32).contiguous(), target.contiguous()
        n, classes = z.shape
        out, scratch = torch.empty_like(z), torch.empty(2 * classes, dtype=torch.int64)
        tensors = (target, *softmax.power_tables(), scratch, out)
        arguments = (pointer(z), n, classes, exponent, *map(pointer, tensors))
        return out, int(self._c.samebits_cross_entropy(*arguments))

    # --- weights and optimizers -------------------------------------------------------------

    def direction(
        self,
        gradient: Gradient,
        codes: Tensor,
        delayed: Tensor,
        e_a: int,
        decay: tuple[int, int] | None,
        momentum: Term | None,
        draw: Draw | None,
        out: Tensor,
    ) -> tuple[int, int]:
        """One pass: the exponent follows from the terms' own."""
        if not in_word_order(codes):
            return super().direction(gradient, codes, delayed, e_a, decay, momentum, draw, out)
        terms, exponent = self._terms(gradient, codes, delayed, e_a, decay, momentum)
        result, words = direction_exponent(exponent), draw_struct(draw)
        arguments = (byref(terms.struct), byref(words), codes.numel(), result - exponent + BIAS)
        largest = int(self._c.samebits_combine(*arguments, pointer(out), _threads()))
        return (result, largest) if largest else (formats.EXPONENT_MIN, 0)

    def _terms(
        self,
        gradient: Gradient,
        codes: Tensor,
        delayed: Tensor,
        e_a: int,
        decay: tuple[int, int] | None,
        momentum: Term | None,
    ) -> tuple[_Operands, int]:
        """The terms of a direction as C reads them, and their exponent.

        Two gradient parts whose sum surely fits 32 bits are added where they are used, without a
        tensor for their sum. Only one thing can then differ from `resolve`: parts that cancel
        everywhere would give an exponent of -128, and so a lower common exponent. It does not
        matter while every term is shifted left, as none is rounded then; otherwise they are summed
        first.
        """
        sides = _two_parts(gradient)
        if sides is not None:
            _, *shifts = combine_shifts(sides[2], decay, e_a, momentum)
            if min(shifts) < 0:  # parts that cancel to zero everywhere would matter: look
                sides = None
        if sides is None:
            g, e_g = self.resolve(list(gradient.parts))
            sides = ((g, 0), (None, 0), e_g)
        (g, by_first), (second, by_second), e_g = sides
        exponent, *shifts = combine_shifts(e_g, decay, e_a, momentum)
        g = like(g, codes).to(torch.int32)
        second = None if second is None else like(second, codes)
        tensors = (g, second, codes, delayed, None if momentum is None else momentum.v)
        struct = TermsStruct(
            *map(pointer, tensors),
            0 if decay is None else decay[0],
            0 if momentum is None else momentum.coefficient[0],
            # Beyond 900 binades down everything rounds to 0, as it does there.
            *(max(shift, -900) for shift in (by_first, by_second, *shifts)),
        )
        return _Operands(struct, tensors), exponent

    def sgd(
        self,
        gradient: Gradient,
        codes: Tensor,
        delayed: Tensor,
        e_a: int,
        decay: tuple[int, int] | None,
        momentum: Term | None,
        lr: tuple[int, int],
        draw: Draw,
        room: int,
        out: Tensor | None,
    ) -> tuple[int, int, int] | None:
        """Every |u| is bounded by what the gradient's kernels know of it, and the momentum's
        largest code: below 2**16 it takes 32-bit arithmetic."""
        if not in_word_order(codes):
            return None
        bound = sum(
            # A unit more than the largest code covers the rounding of the terms.
            math.ldexp(float(formats.Q32 if known is None else known + 1), e)
            for (_, e), known in zip(gradient.parts, gradient.bounds, strict=True)
        )
        if decay is not None:
            bound += math.ldexp(float(decay[0]), decay[1] + e_a + 23)
        if momentum is not None:
            m, x = momentum.coefficient
            top = (momentum.largest >> FRACTION) - TOP_FIELD + momentum.exponent + FRACTION + 1
            bound += math.ldexp(float(m), x + top)
        m, x = lr
        # Rounding the direction adds less than 2**-8 of it, rounding the update less than a unit.
        u = math.ldexp(bound * m, x - e_a) * (1 + 2**-8) + 1
        if u >= 1 << 15:
            return None
        carry = formats.scaled((1 << 14) + math.ceil(u), -formats.DELAYED_BITS) + 1
        if carry > room:
            return None
        terms, exponent = self._terms(gradient, codes, delayed, e_a, decay, momentum)
        result = direction_exponent(exponent)
        update = update_struct(Update(codes, m, result - TOP_FIELD + x - e_a, draw))
        operands = (byref(terms.struct), byref(update), pointer(codes), pointer(delayed))
        largest = c_int64(0)
        where = (codes.numel(), result - exponent + BIAS, byref(largest))
        top_code = self._c.samebits_sgd(*operands, pointer(out), *where, _threads())
        if largest.value == 0:
            return formats.EXPONENT_MIN, 0, int(top_code)
        return result, int(largest.value), int(top_code)

    def adam(self, terms: AdamTerms, out: Tensor) -> tuple[int, int, int]:
        """Three passes: for the exponents of the moments, that of the direction, and its codes."""
        t = terms
        if not in_word_order(t.codes) or max(map(abs, (t.e_g, t.e_a))) > 900:
            return super().adam(terms, out)
        g = like(t.g, t.codes).to(torch.int32)
        struct = AdamStruct(
            *map(pointer, (g, t.codes, t.delayed, t.first, t.root)),
            *(math.ldexp(1.0, e) for e in (t.e_g, t.e_a)),
            *(t.beta1, t.beta2, 1.0 - t.beta1, 1.0 - t.beta2),
            *(t.coupled, t.decoupled, t.c1, t.c2, t.eps),
            *(t.e_first - TOP_FIELD, t.e_root - TOP_FIELD),
            *(0, 0),
        )
        size, tops, words = t.codes.numel(), (c_int64 * 2)(), draw_struct(t.draw)
        self._c.samebits_adam_tops(byref(struct), size, tops, _threads())
        e_m, e_s = (exponent_for(real_of(top)) for top in tops)
        struct.bias_first, struct.bias_root = e_m + BIAS, e_s + BIAS
        self._c.samebits_adam_store(byref(struct), byref(words), size, _threads())
        struct.base_first, struct.base_root = e_m - TOP_FIELD, e_s - TOP_FIELD
        measure = (byref(struct), size)
        e_p = exponent_for(real_of(self._c.samebits_adam_direction(*measure, 0, None, _threads())))
        self._c.samebits_adam_direction(*measure, e_p + BIAS, pointer(out), _threads())
        return e_m, e_s, e_p

    def lazy_carry(self, codes: Tensor, delayed: Tensor, update: Update, commit: bool) -> int:
        if not in_word_order(codes):
            return super().lazy_carry(codes, delayed, update, commit)
        arguments = (pointer(codes), pointer(delayed), byref(update_struct(update)))
        return int(self._c.samebits_lazy_update(*arguments, codes.numel(), commit, _threads()))

    def joint_max(self, codes: Tensor, delayed: Tensor, update: Update) -> int:
        if not in_word_order(codes):
            return super().joint_max(codes, delayed, update)
        arguments = (pointer(codes), pointer(delayed), byref(update_struct(update)))
        return int(self._c.samebits_joint_max(*arguments, codes.numel(), _threads()))

    def lazy_resplit(self, codes: Tensor, delayed: Tensor, update: Update, by: int) -> None:
        if not in_word_order(codes):
            return super().lazy_resplit(codes, delayed, update, by)
        arguments = (pointer(codes), pointer(delayed), byref(update_struct(update)))
        self._c.samebits_lazy_resplit(*arguments, by, codes.numel(), _threads())

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
        shifts: tuple[int, int, int],
        lookup: Tensor,
    ) -> Tensor:
        out = torch.empty(acc_x.shape, dtype=torch.int16)
        sizes = (acc_x.shape[0], acc_x.shape[1] // 4, *shifts)
        places = (pointer(lookup), pointer(out), _threads())
        self._c.samebits_lstm_gates(*map(pointer, (acc_x, acc_h, bias)), *sizes, *places)
        return out

    def lstm_state_sum(self, gates: Tensor, before: Tensor | None, shifts: tuple[int, int]) -> Sum:
        sizes = (gates.shape[0], gates.shape[1] // 4)
        out = torch.empty(sizes, dtype=torch.int64)
        operands = (pointer(gates), pointer(before), *sizes, *shifts)
        return out, self._c.samebits_lstm_state(*operands, pointer(out))

    def lstm_hidden(self, gates: Tensor, c: Tensor, shift: int, lookup: Tensor) -> Tensor:
        out = torch.empty(c.shape, dtype=torch.int8)
        operands = (pointer(gates), pointer(c), *c.shape, shift, pointer(lookup))
        self._c.samebits_lstm_hidden(*operands, pointer(out))
        return out

    def lstm_hidden_grad_sum(self, g: Tensor, back: Tensor | None, shifts: tuple[int, int]) -> Sum:
        out = torch.empty(g.shape, dtype=torch.int64)
        width = 32 if back is None else 8 * back.element_size()
        sides = (pointer(g), 8 * g.element_size(), pointer(back), width, g.numel(), *shifts)
        return out, self._c.samebits_lstm_hidden_grad(*sides, pointer(out))

    def lstm_state_grad_sum(
        self,
        dh: Tensor,
        gates: Tensor,
        c: Tensor,
        shift: int,
        lookup: Tensor,
        later: tuple[Tensor, Tensor] | None,
        shifts: tuple[int, int],
    ) -> Sum:
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
        shift: int,
        lookup: Tensor,
        before: Tensor | None,
        shifts: tuple[int, int, int, int],
    ) -> Sum:
        out = torch.empty(gates.shape, dtype=torch.int64)
        own = (*map(pointer, (dh, dc, gates, c)), *c.shape, shift)
        tables = (pointer(lookup), pointer(before))
        return out, self._c.samebits_lstm_gate_grads(*own, *tables, *shifts, pointer(out))


def _two_parts(gradient: Gradient) -> tuple[Part, tuple[Tensor | None, int], int] | None:
    """Two 32-bit parts whose sum surely fits: ((a, shift), (b, shift), exponent), else None.

    Then `resolve` is a plain aligned sum, taken element by element where the sum is used.
    """
    if len(gradient.parts) != 2:
        return None
    (a, ea), (b, eb) = gradient.parts
    bound_a, bound_b = gradient.bounds
    if not (bound_a and bound_b and a.dtype == b.dtype == torch.int32):
        return None
    exponent = max(ea, eb)
    by_a, by_b = ea - exponent, eb - exponent
    if formats.scaled(bound_a, by_a) + formats.scaled(bound_b, by_b) > formats.Q32:
        return None
    return (a, by_a), (b, by_b), exponent


def _checked(largest: int) -> int:
    """The largest magnitude that a convolution found; MemoryError where it says that it failed."""
    if largest < 0:
        raise MemoryError("no memory for the scratch space of a convolution")
    return largest


def _succeeded(failed: int) -> None:
    if failed:
        raise MemoryError("no memory for the scratch space of a channel reduction")
