"""The native realisation of the training kernels: C on the CPU, called through ctypes.

Same functions, same bits as `eager`; what is not here (or not on the CPU) is `eager`'s. Tensors go
to C as pointers to dense memory, images as NHWC ("channels last"), weights as OHWI.
"""

from __future__ import annotations

import ctypes
import functools
from ctypes import byref, c_int, c_int64, c_void_p
from typing import Any

import torch
from torch import Tensor

from samebits.kernels import build, eager, softmax
from samebits.kernels.eager import BITS, CODE_TYPE, Acc, Gradient, Term, combine_shifts
from samebits.kernels.geometry import ConvShape, requantize_shift, shorten_shift, window_count
from samebits.spec import formats

MAX_SHIFT_32 = 24  # right shifts that 32-bit rounding of magnitudes up to Q32 can hold
MAX_DEPTHWISE_TAPS = 518  # 32639 * 127 * 518 < 2**31


class _Conv(ctypes.Structure):
    _fields_ = [
        (name, c_int64)
        for name in (
            *("n", "h", "w", "ci", "oh", "ow", "co", "kh", "kw"),
            *("stride_h", "stride_w", "pad_h", "pad_w", "dil_h", "dil_w", "groups"),
        )
    ]


class _Pool(ctypes.Structure):
    _fields_ = [
        (name, c_int64)
        for name in (
            *("n", "h", "w", "c", "oh", "ow", "kh", "kw"),
            *("stride_h", "stride_w", "pad_h", "pad_w"),
        )
    ]


class _Terms(ctypes.Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("g", "second", "w", "a", "v")),
        *(
            (name, c_int64)
            for name in (
                *("decay", "momentum", "shift_first", "shift_second"),
                *("shift_g", "shift_decay", "shift_momentum"),
            )
        ),
    ]


_RETURNS_LARGEST = (
    *("conv", "product", "conv_input_grad", "conv_weight_grad", "reach"),
    *("depthwise", "depthwise_input_grad", "depthwise_weight_grad"),
    *("max_i8", "max_i16", "max_i32", "max_i64", "with_bias", "batch_norm_grad", "cross_entropy"),
    *("add_i8", "add_grad", "combine", "lazy_update", "joint_max"),
    *("lstm_state", "lstm_hidden_grad", "lstm_state_grad", "lstm_gate_grads"),
)
_RETURNS_NOTHING = (
    *(f"scale_{a}_{b}" for a in ("i32", "i64") for b in ("i8", "i16", "i32")),
    *("channel_sum", "channel_affine", "relu", "relu_grad", "max_pool", "max_pool_grad"),
    *("lazy_resplit", "lstm_gates", "lstm_hidden", "block_sums"),
)
_RETURNS_FAILED = ("channel_stats", "channel_grad_sums")
_TYPE = {torch.int8: "i8", torch.int16: "i16", torch.int32: "i32", torch.int64: "i64"}


class Native:
    """The loaded library. `arch` limits the instruction set (speed only)."""

    def __init__(self, arch: str | None = None) -> None:
        library = build.load(arch)
        for names, result in (
            (_RETURNS_LARGEST, c_int64),
            (_RETURNS_NOTHING, None),
            (_RETURNS_FAILED, c_int),
        ):
            for name in names:
                function = getattr(library, f"samebits_{name}")
                function.restype = result
                setattr(self, "_" + name, function)

    def __getattr__(self, name: str) -> Any:
        """Whatever has no native kernel is the eager function."""
        return getattr(eager, name)

    # --- scaling ----------------------------------------------------------------------------

    def largest_of(self, v: Tensor) -> int:
        v = _dense(v)
        return int(getattr(self, f"_max_{_TYPE[v.dtype]}")(_p(v), _n(v), _threads()))

    def scale_to(self, v: Tensor, exponent: int, bits: int) -> Tensor:
        v = _dense(v)
        if v.dtype not in (torch.int32, torch.int64):
            v = v.int()
        if exponent < -MAX_SHIFT_32 and v.dtype == torch.int32:
            v = v.long()
        out = torch.empty_like(v, dtype=CODE_TYPE[bits])
        name = f"_scale_{_TYPE[v.dtype]}_i{bits}"
        getattr(self, name)(_p(v), _n(v), c_int64(exponent), _p(out), _threads())
        return out

    def requantize(
        self, acc: Tensor, largest: int, exponent: int, bits: int, divisor: int = 1
    ) -> tuple[Tensor, int]:
        if divisor != 1 or largest == 0:
            return eager.requantize(acc, largest, exponent, bits, divisor)
        shift = requantize_shift(largest, exponent, bits)
        return self.scale_to(acc, -shift, bits), exponent + shift

    def shorten(self, acc: Tensor, largest: int, exponent: int) -> tuple[Tensor, int]:
        if largest == 0:
            return eager.shorten(acc, largest, exponent)
        shift = shorten_shift(largest)
        if shift == 0 and acc.dtype == torch.int32:
            return acc, exponent
        return self.scale_to(acc, -shift, 32), exponent + shift

    def align(self, codes: Tensor, exponent: int) -> Tensor:
        return self.scale_to(codes, exponent, 32)

    def resolve(self, parts: list[tuple[Tensor, int]]) -> tuple[Tensor, int]:
        if len(parts) != 2:
            return eager.resolve(parts)
        (a, ea), (b, eb) = parts
        a = _dense(a)
        b = _like(b, a)
        # The largest exponent among parts that are not all zero; of two all-zero parts, either.
        exponent = max(ea, eb)
        if ea != eb and not self.largest_of(a if ea > eb else b):
            exponent = min(ea, eb)
        # An all-zero part may have a larger exponent; its shift is irrelevant but must not be left.
        shifts = (min(ea - exponent, 0), min(eb - exponent, 0))
        sides = (_p(a), BITS[a.dtype], c_int64(shifts[0]), _p(b), BITS[b.dtype], c_int64(shifts[1]))
        largest = self._add_grad(*sides, _n(a), c_int64(0), c_void_p(0), _threads())
        if largest == 0:
            return eager.shorten(a, 0, 0)
        shift = shorten_shift(largest)
        out = torch.empty_like(a, dtype=torch.int32)
        self._add_grad(*sides, _n(a), c_int64(-shift), _p(out), _threads())
        return out, exponent + shift

    # --- convolution ------------------------------------------------------------------------

    def conv(self, x: Tensor, w: Tensor, s: ConvShape) -> Acc:
        x, w = _nhwc(x), _nhwc(w)
        out = torch.empty(s.n, s.oh, s.ow, s.co, dtype=torch.int32)
        plain = s.n == s.h == s.kh == s.kw == s.groups == 1 and s.padding == (0, 0)
        if plain and s.w == s.ow <= 2 * s.co:
            sizes = (c_int64(s.w), c_int64(s.co), c_int64(s.ci))
            largest = self._product(_p(x), _p(w), *sizes, _p(out), _threads())
            return out.permute(0, 3, 1, 2), _checked(largest)
        kernel = self._depthwise if s.depthwise else self._conv
        largest = _checked(kernel(byref(_shape(s)), _p(x), _p(w), _p(out), _threads()))
        return out.permute(0, 3, 1, 2), largest

    def conv_input_grad(self, g16: Tensor, w: Tensor, s: ConvShape) -> Acc:
        if s.depthwise and s.kh * s.kw > MAX_DEPTHWISE_TAPS:
            return eager.conv_input_grad(g16, w, s)
        g, w = _nhwc(g16), _nhwc(w)
        if s.depthwise:
            dx = torch.zeros(s.n, s.h, s.w, s.ci, dtype=torch.int32)
            largest = self._depthwise_input_grad(byref(_shape(s)), _p(g), _p(w), _p(dx), _threads())
        else:
            # Every sum is at most max|g| times the sum of |w| that meets one input channel.
            columns = s.ci // s.groups
            rows = w.numel() // (s.groups * columns)
            reach = _checked(self._reach(_p(w), c_int64(s.groups), c_int64(rows), c_int64(columns)))
            wide = self.largest_of(g) * reach > formats.Q32
            make = torch.empty if s.stride == (1, 1) else torch.zeros  # a stride leaves gaps
            dx = make(s.n, s.h, s.w, s.ci, dtype=torch.int64 if wide else torch.int32)
            largest = self._conv_input_grad(
                byref(_shape(s)), _p(g), _p(w), _p(dx), int(wide), _threads()
            )
        return dx.permute(0, 3, 1, 2), _checked(largest)

    def conv_weight_grad(self, g: Tensor, x: Tensor, s: ConvShape) -> Acc:
        g, x = _nhwc(g), _nhwc(x)
        shape = (s.co, s.kh, s.kw, s.ci // s.groups)
        bits = BITS[g.dtype]
        if s.depthwise:
            dw = torch.zeros(shape, dtype=torch.int64)
            largest = self._depthwise_weight_grad(
                byref(_shape(s)), _p(g), bits, _p(x), _p(dw), _threads()
            )
        else:
            wide = bits == 32 or s.n * s.oh * s.ow * formats.Q16 * formats.Q8 > formats.Q32
            dw = torch.empty(shape, dtype=torch.int64 if wide else torch.int32)
            largest = self._conv_weight_grad(
                byref(_shape(s)), _p(g), bits, _p(x), _p(dw), int(wide), _threads()
            )
        return dw.permute(0, 3, 1, 2), _checked(largest)

    def with_bias(
        self,
        acc: Tensor,
        largest: int,
        exponent: int,
        codes: Tensor,
        delayed: Tensor,
        e_b: int,
    ) -> tuple[Tensor, int, int]:
        if acc.dtype != torch.int32:
            return eager.with_bias(acc, largest, exponent, codes, delayed, e_b)
        rows = _rows(acc)
        channels = codes.numel()
        common = c_int64(exponent)
        values = torch.empty(channels, dtype=torch.int32)
        count = c_int64(rows.numel() // channels)
        sizes = (count, c_int64(channels), c_int64(e_b))
        state = (_p(codes), _p(delayed), _p(values))
        top = self._with_bias(_p(rows), *sizes, *state, byref(common), _threads())
        return (acc, largest, exponent) if top < 0 else (_unrows(rows), int(top), common.value)

    def channel_sum(self, g: Tensor) -> Tensor:
        rows = _rows(g)
        out = torch.empty(rows.shape[-1], dtype=torch.int64)
        count = c_int64(rows.numel() // out.numel())
        self._channel_sum(_p(rows), BITS[g.dtype], count, c_int64(out.numel()), _p(out))
        return out

    # --- batch normalisation ----------------------------------------------------------------

    def channel_stats(self, z: Tensor) -> Tensor:
        rows = _rows(z)
        channels = rows.shape[-1]
        out = torch.empty(4, channels, dtype=torch.int64)
        count = c_int64(rows.numel() // channels)
        _succeeded(self._channel_stats(_p(rows), count, c_int64(channels), _p(out), _threads()))
        return out

    def channel_affine(self, z: Tensor, m: Tensor, b: Tensor, exponent: int) -> Tensor:
        if exponent < -MAX_SHIFT_32:
            return eager.channel_affine(z, m, b, exponent)
        rows = _rows(z)
        out = torch.empty_like(rows)
        channels = rows.shape[-1]
        m, b = m.to(torch.int32).contiguous(), b.to(torch.int32).contiguous()
        self._channel_affine(
            _p(rows),
            c_int64(rows.numel() // channels),
            c_int64(channels),
            _p(m),
            _p(b),
            c_int64(exponent),
            _p(out),
            _threads(),
        )
        return _unrows(out)

    def channel_grad_sums(self, g: Tensor, z: Tensor) -> Tensor:
        g_rows, z_rows = _rows(g), _rows(z)
        channels = z_rows.shape[-1]
        out = torch.empty(2, channels, dtype=torch.int64)
        count = c_int64(z_rows.numel() // channels)
        _succeeded(
            self._channel_grad_sums(
                _p(g_rows),
                BITS[g.dtype],
                _p(z_rows),
                count,
                c_int64(channels),
                _p(out),
                _threads(),
            )
        )
        return out

    def batch_norm_grad(
        self, g: Tensor, z: Tensor, abc: Tensor, exponent: int
    ) -> tuple[Tensor, int]:
        g_rows, z_rows, abc = _rows(g), _rows(z), abc.contiguous()
        channels = z_rows.shape[-1]
        arguments = (
            _p(g_rows),
            BITS[g.dtype],
            _p(z_rows),
            c_int64(z_rows.numel() // channels),
            c_int64(channels),
            _p(abc),
        )
        largest = self._batch_norm_grad(*arguments, c_int64(0), c_void_p(0), _threads())
        if largest == 0:
            return torch.zeros_like(z, dtype=torch.int32), formats.EXPONENT_MIN
        shift = shorten_shift(largest)
        out = torch.empty_like(z_rows, dtype=torch.int32)
        self._batch_norm_grad(*arguments, c_int64(-shift), _p(out), _threads())
        return _unrows(out), exponent + shift

    # --- activations, addition, pooling -----------------------------------------------------

    def relu(self, x: Tensor, high: int = 127) -> Tensor:
        x = _dense(x)
        out = torch.empty_like(x)
        self._relu(_p(x), _n(x), high, _p(out), _threads())
        return out

    def relu_grad(self, g: Tensor, y: Tensor, high: int = 128) -> Tensor:
        y = _dense(y)
        g = _like(g, y)
        out = torch.empty_like(g)
        self._relu_grad(_p(g), BITS[g.dtype], _p(y), _n(y), high, _p(out), _threads())
        return out

    def add(self, a: Tensor, ea: int, b: Tensor, eb: int, exponent: int) -> tuple[Tensor, int]:
        if max(ea, eb) - exponent > 22:  # one operand is all zeros
            return eager.add(a, ea, b, eb, exponent)
        a = _dense(a)
        b = _like(b, a)
        sides = (_p(a), _p(b), _n(a), c_int64(ea - exponent), c_int64(eb - exponent))
        largest = self._add_i8(*sides, c_int64(0), c_void_p(0), _threads())
        if largest == 0:
            return torch.zeros_like(a), formats.EXPONENT_MIN
        shift = requantize_shift(largest, exponent, 8)
        out = torch.empty_like(a)
        self._add_i8(*sides, c_int64(-shift), _p(out), _threads())
        return out, exponent + shift

    def max_pool(
        self,
        x: Tensor,
        kernel: tuple[int, int],
        stride: tuple[int, int],
        padding: tuple[int, int],
    ) -> tuple[Tensor, Tensor]:
        pool = _pool(x.shape, kernel, stride, padding)
        x = _nhwc(x)
        y = torch.empty(pool.n, pool.oh, pool.ow, pool.c, dtype=torch.int8)
        where = torch.empty_like(y, dtype=torch.uint8)
        self._max_pool(byref(pool), _p(x), _p(y), _p(where), _threads())
        return y.permute(0, 3, 1, 2), where.permute(0, 3, 1, 2)

    def max_pool_grad(
        self,
        g: Tensor,
        where: Tensor,
        shape: torch.Size,
        kernel: tuple[int, int],
        stride: tuple[int, int],
        padding: tuple[int, int],
    ) -> Acc:
        pool = _pool(shape, kernel, stride, padding)
        g, where = _nhwc(g), _nhwc(where)
        dx = torch.zeros(pool.n, pool.h, pool.w, pool.c, dtype=torch.int64)
        self._max_pool_grad(byref(pool), _p(g), BITS[g.dtype], _p(where), _p(dx), _threads())
        return dx.permute(0, 3, 1, 2), self.largest_of(dx)

    def cross_entropy(self, z: Tensor, exponent: int, target: Tensor) -> tuple[Tensor, int]:
        z = z.to(torch.int32).contiguous()
        n, classes = z.shape
        target = target.contiguous()
        out = torch.empty_like(z)
        t1, t2 = softmax.power_tables()
        scratch = torch.empty(2 * classes, dtype=torch.int64)
        arguments = (_p(z), c_int64(n), c_int64(classes), c_int64(exponent), _p(target))
        return out, int(self._cross_entropy(*arguments, _p(t1), _p(t2), _p(scratch), _p(out)))

    # --- optimizer --------------------------------------------------------------------------

    def direction(
        self,
        gradient: Gradient,
        codes: Tensor,
        delayed: Tensor,
        e_a: int,
        decay: tuple[int, int] | None,
        momentum: Term | None,
        out: Tensor,
    ) -> int:
        sides = self._two_parts(gradient)
        if sides is not None:
            _, *shifts = combine_shifts(sides[2], decay, e_a, momentum)
            if min(shifts) < 0:  # parts that cancel to zero everywhere would matter: look
                sides = None
        if sides is None:
            g, e_g = self.resolve(list(gradient.parts))
            sides = ((g, 0), (None, 0), e_g)
        (g, by_first), (second, by_second), e_g = sides
        exponent, by_g, by_decay, by_momentum = combine_shifts(e_g, decay, e_a, momentum)
        g = _like(g, codes).to(torch.int32)
        if second is not None:
            second = _like(second, codes)
        terms = _Terms(
            _p(g),
            c_void_p(0) if second is None else _p(second),
            _p(codes),
            _p(delayed),
            c_void_p(0) if momentum is None else _p(momentum.v),
            0 if decay is None else decay[0],
            0 if momentum is None else momentum.coefficient[0],
            by_first,
            by_second,
            by_g,
            by_decay,
            by_momentum,
        )
        size = _n(codes)
        largest = int(self._combine(byref(terms), size, c_int64(0), c_void_p(0), _threads()))
        if largest == 0:
            out.zero_()
            return formats.EXPONENT_MIN
        shift = requantize_shift(largest, exponent, 16)
        self._combine(byref(terms), size, c_int64(-shift), _p(out), _threads())
        return exponent + shift

    def _two_parts(self, gradient: Gradient) -> Any:
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
        if (
            formats.scaled(bound_a, ea - exponent) + formats.scaled(bound_b, eb - exponent)
            > formats.Q32
        ):
            return None
        return (a, ea - exponent), (b, eb - exponent), exponent

    def lazy_carry(
        self, codes: Tensor, delayed: Tensor, p: Tensor, m: int, shift: int, commit: bool
    ) -> int:
        return int(
            self._lazy_update(
                _p(codes),
                _p(delayed),
                _p(p),
                c_int64(m),
                c_int64(shift),
                _n(codes),
                int(commit),
                _threads(),
            )
        )

    def joint_max(self, codes: Tensor, delayed: Tensor, p: Tensor, m: int, shift: int) -> int:
        sizes = (c_int64(m), c_int64(shift), _n(codes), _threads())
        return int(self._joint_max(_p(codes), _p(delayed), _p(p), *sizes))

    def lazy_resplit(
        self, codes: Tensor, delayed: Tensor, p: Tensor, m: int, shift: int, by: int
    ) -> None:
        sizes = (c_int64(m), c_int64(shift), c_int64(by), _n(codes), _threads())
        self._lazy_resplit(_p(codes), _p(delayed), _p(p), *sizes)

    # --- hashes -----------------------------------------------------------------------------

    def block_sums(self, data: Tensor, keys: Tensor) -> Tensor:
        out = torch.empty(-(-data.numel() // eager.HASH_BLOCK), dtype=torch.int64)
        self._block_sums(_p(data), _n(data), _p(keys), _p(out), _threads())
        return out


# --- pointers and memory order --------------------------------------------------------------


def _threads() -> c_int:
    return c_int(torch.get_num_threads())


def _p(v: Tensor) -> c_void_p:
    return c_void_p(v.data_ptr())


def _n(v: Tensor) -> c_int64:
    return c_int64(v.numel())


def _nhwc(v: Tensor) -> Tensor:
    return v.permute(0, 2, 3, 1).contiguous()


def _rows(v: Tensor) -> Tensor:
    """Channels last and dense: [n, h, w, c] or [n, c]."""
    return _nhwc(v) if v.dim() == 4 else v.contiguous()


def _unrows(v: Tensor) -> Tensor:
    return v.permute(0, 3, 1, 2) if v.dim() == 4 else v


def _dense(v: Tensor) -> Tensor:
    """A tensor whose elements fill its memory, in whatever order."""
    if v.is_contiguous() or (v.dim() == 4 and v.permute(0, 2, 3, 1).is_contiguous()):
        return v
    return v.contiguous()


def _like(v: Tensor, order: Tensor) -> Tensor:
    """v in the memory order of `order` (same shape, dense)."""
    if v.stride() == order.stride():
        return v
    return torch.empty_like(order, dtype=v.dtype).copy_(v)


@functools.lru_cache(maxsize=4096)
def _shape(s: ConvShape) -> _Conv:
    return _Conv(
        *(s.n, s.h, s.w, s.ci, s.oh, s.ow, s.co, s.kh, s.kw),
        *(*s.stride, *s.padding, *s.dilation, s.groups),
    )


def _pool(
    shape: torch.Size, kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int]
) -> _Pool:
    n, c, h, w = shape
    oh = window_count(h, kernel[0], stride[0], padding[0])
    ow = window_count(w, kernel[1], stride[1], padding[1])
    return _Pool(n, h, w, c, oh, ow, *kernel, *stride, *padding)


def _checked(largest: int) -> int:
    if largest < 0:
        raise MemoryError("no memory for the scratch space of a convolution")
    return int(largest)


def _succeeded(failed: int) -> None:
    if failed:
        raise MemoryError("no memory for the scratch space of a channel reduction")
