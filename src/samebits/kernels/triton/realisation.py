"""The realisation of the training kernels in Triton: CUDA devices, or Triton's interpreter.

What has no kernel here is computed by `Eager`, for which numbers are read first. The same bits as
all others; an exponent above 127 raises a flag, which `numbers.check` reads.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from samebits.kernels import rows as by_rows
from samebits.kernels.averages import Averages, Factors, Spans
from samebits.kernels.eager import BIAS_BITS, DOT_BITS, Eager
from samebits.kernels.geometry import Window
from samebits.kernels.memory import like, nchw, nhwc, rows, unrows
from samebits.kernels.norm import guard_of, of_samples
from samebits.kernels.optimize import Roster, StepGradients, StepOptions
from samebits.kernels.protocol import (
    BITS,
    Entropy,
    Found,
    MultiplyAdds,
    Part,
    Shares,
    State,
    Sum,
    VectorNorm,
    WholePart,
)
from samebits.kernels.roundings import largest
from samebits.kernels.rows import Exponent, bit_length
from samebits.kernels.softmax import power_tables
from samebits.kernels.tables import Tables
from samebits.kernels.triton import losses, norms, rounding, steps, updates, vectors
from samebits.kernels.triton.launch import (
    BLOCK,
    EXACT,
    bits_of,
    block_of,
    cell,
    check_device,
    found,
    ordered,
    over,
    room,
)
from samebits.kernels.triton.numbers import DeviceNumber, flag, place, plain, tensor_of
from samebits.kernels.triton.parts import TritonParts
from samebits.spec import formats
from samebits.spec.training.attention import SOFTMAX_EXPONENT

ROWS = 64  # of a block of channel sums


class Triton(TritonParts):
    """All kernels: clamps, pools, batch norm, losses beside those of `TritonParts`."""

    # --- clamps -----------------------------------------------------------------------------

    def clamp(self, v: Tensor, exponent: Exponent, clip: int) -> tuple[Tensor, Tensor]:
        out, mask, _ = self._clamped_sums(v, exponent, clip)
        return out, mask

    def clamped(self, acc: Tensor, exponent: Exponent, clip: int, bits: int) -> tuple[Part, Tensor]:
        out, mask, largest = self._clamped_sums(acc, exponent, clip)
        return self.requantize(out, largest, exponent, bits), mask

    def _clamped_sums(self, v: Tensor, exponent: Exponent, clip: int) -> tuple[Tensor, Tensor, int]:
        """Clamped integers, the mask, and their largest; by rows the latter is not read."""
        if isinstance(exponent, Tensor):
            return *super().clamp(v, exponent, clip), 0
        check_device(v)
        wide = rows(v)
        n, slot, out = wide.numel(), cell(v), torch.empty_like(wide)
        mask = v.new_empty(-(-n // 8), dtype=torch.uint8)
        places = (out, mask, slot, n, clip)
        over(rounding.clamped, len(mask), wide, *place(exponent, v.device), *places, BLOCK=MASKED)
        return unrows(out), mask, found(slot)

    def behind_mask(self, g: Tensor, mask: Tensor) -> Tensor:
        check_device(g)
        wide = rows(g)
        out = torch.empty_like(wide)
        over(rounding.behind, len(mask), wide, mask, out, wide.numel(), BLOCK=MASKED)
        return unrows(out)

    # --- pools ------------------------------------------------------------------------------

    def max_pool(self, x: Tensor, window: Window) -> tuple[Tensor, Tensor]:
        check_device(x)
        v, size = nhwc(x), window.counts(*x.shape[2:])
        out = v.new_empty((len(v), *size, v.shape[3]))
        where, n = torch.empty_like(out, dtype=torch.uint8), out.numel()
        over(rounding.max_pool, n, v, out, where, n, *v.shape[1:3], *size, **_window(v, window))
        return nchw(out), nchw(where)

    def max_pool_grad(self, g: Tensor, where: Tensor, shape: torch.Size, window: Window) -> Sum:
        check_device(g)
        g, where, slot = nhwc(g), nhwc(where), cell(g)
        n, c, h, w = shape
        out = g.new_empty((n, h, w, c), dtype=torch.int64)
        operands = (g, where, out, slot, out.numel(), h, w, *g.shape[1:3])
        over(rounding.max_pool_grad, out.numel(), *operands, **_window(g, window))
        return nchw(out), found(slot)

    def window_sums(self, x: Tensor, means: Averages) -> Sum:
        return self._span_sums(x, (means.rows, means.columns), None, means.factors)

    def window_sums_grad(self, g: Tensor, shape: torch.Size, means: Averages) -> Sum:
        return self._span_sums(g, means.holders(*shape[2:]), means.factors, None)

    def _span_sums(
        self, v: Tensor, spans: tuple[Spans, Spans], before: _Pair | None, after: _Pair | None
    ) -> Sum:
        """Sums of elements times factors over spans, times factors."""
        check_device(v)
        v, slot, size = nhwc(v), cell(v), tuple(map(len, spans))
        out = v.new_empty((len(v), *size, v.shape[3]), dtype=torch.int64)
        places = [_spans(s, v.device) for s in spans]
        factors = [_outer(before, v.shape[1:3], v.device), _outer(after, size, v.device)]
        most = [max((b - a for a, b in s), default=0) for s in spans]
        geometry = (out.numel(), *v.shape[1:3], *size, v.shape[3], *most)
        over(rounding.span_sums, out.numel(), v, *places, *factors, out, slot, *geometry)
        return nchw(out), found(slot)

    def divided(
        self, acc: Tensor, largest: int, exponent: Exponent, divisor: int, bits: int
    ) -> Part:
        if isinstance(exponent, Tensor):
            return super().divided(acc, 0, exponent, divisor, bits)
        own, by = place(largest, acc.device)
        up = DeviceNumber((bits - bit_length(own + by)).clamp(min=0))
        quotient, top = self._quotients(self.scale(acc, up), divisor)
        return self.shorten(quotient, top, exponent - up)

    # --- batch norm -------------------------------------------------------------------------

    def batch_norm(
        self,
        z: Tensor,
        exponent: Exponent,
        gamma: State,
        beta: State,
        running: tuple[Tensor, Tensor] | None,
        eps: float,
    ) -> tuple[MultiplyAdds, Tensor, Tensor, int] | None:
        """One launch for the sums, one for the scalars of all channels and samples."""
        samples, bits = _samples(z, exponent), BITS[z.dtype]
        parts, ends, n = self._channel_sums(z, z, samples)
        channels, device = parts.shape[2], z.device
        sums, e_sums = _statistics(parts, exponent, guard_of(bits))
        scalars = sums.new_empty((3, channels), dtype=torch.float64)
        m, b = (sums.new_empty((samples, channels), dtype=torch.int32) for _ in range(2))
        own, found_ends = room(sums, samples), sums.new_empty((samples, 2))
        states = [v for w, a, e in (gamma, beta) for v in (w, a, *place(e, device))]
        norms.batch_norm[(samples,)](
            *(sums, *place(e_sums, device), ends, *_of_samples(exponent, samples, z), *states),
            *(*(running or (scalars, scalars)), scalars, m, b, found_ends, own, flag(device)),
            *(n * samples, channels, bits_of(eps), formats.CODE_MAX[bits]),
            **{"RUNNING": running is not None, "BLOCK": block_of(channels), **EXACT},
        )
        if isinstance(exponent, Tensor):
            return (
                MultiplyAdds(m, b, own.view(exponent.shape), found_ends, 0),
                scalars,
                sums,
                e_sums,
            )
        by = MultiplyAdds(m, b, found(own[0]), found_ends, found(found_ends[0, 0]))
        return by, scalars, sums, e_sums

    def _channel_sums(self, g: Tensor, z: Tensor, samples: int) -> tuple[Tensor, Tensor, int]:
        """Sums of g and g * z of the channels of samples, [samples, 2, channels]; the largest -g
        and g; elements of a channel."""
        check_device(g)
        g, z = rows(g), rows(z)
        channels = g.shape[-1]
        n = g.numel() // channels // samples
        sums = g.new_zeros((samples, 2, channels), dtype=torch.int64)
        ends = torch.full_like(sums, -(1 << 40))
        block = min(block_of(channels), 64)
        grid = (-(-n // ROWS), -(-channels // block), samples)
        rounding.channel_sums[grid](g, z, sums, ends, n, channels, ROWS=ROWS, BLOCK=block)
        return sums, ends, n

    def channel_grad_sums(self, g: Tensor, z: Tensor) -> Tensor:
        return self._channel_sums(g, z, 1)[0][0]

    def affine(self, z: Tensor, by: MultiplyAdds, bits: int) -> Part:
        return self._affine(z, by, 0, bits, None)

    def affine_clamped(
        self, z: Tensor, by: MultiplyAdds, clip: int, bits: int
    ) -> tuple[Part, Tensor]:
        mask = z.new_empty(-(-z.numel() // 8), dtype=torch.uint8)
        return self._affine(z, by, clip, bits, mask), mask

    def _affine(
        self, z: Tensor, by: MultiplyAdds, clip: int, bits: int, mask: Tensor | None
    ) -> Part:
        """Codes of the sums, which are never in memory; clamped where there is a mask."""
        if isinstance(by.exponent, Tensor):
            if mask is None:
                return super().affine(z, by, bits)
            part, own = super().affine_clamped(z, by, clip, bits)
            mask.copy_(own)
            return part
        check_device(z)
        v, channels, new = rows(z), by.m.shape[1], room(z)
        n, out = v.numel(), torch.empty_like(v, dtype=torch.int8)
        places = (out, new, out if mask is None else mask, flag(z.device), n, channels, clip)
        q, kinds = formats.CODE_MAX[bits], {"CLAMP": mask is not None, "BLOCK": MASKED}
        terms = (by.m, by.b, by.ends, *place(by.exponent, z.device))
        over(rounding.affine, -(-n // 8), v, *terms, *places, q, **kinds)
        return unrows(out), found(new)

    def affine_sums(self, z: Tensor, by: MultiplyAdds) -> Tensor:
        if len(by.m) > 1:
            return super().affine_sums(z, by)
        return self._multiply_adds(z, z, (by.m, torch.zeros_like(by.m), by.b), torch.int32)[0]

    def _multiply_adds(
        self, g: Tensor, z: Tensor, abc: tuple[Tensor, Tensor, Tensor], kind: torch.dtype
    ) -> Sum:
        """a * g + b * z + c of channels, and the largest."""
        g, z, slot = rows(g), rows(z), cell(g)
        n, out = g.numel(), torch.empty_like(g, dtype=kind)
        over(rounding.multiply_adds, n, g, z, *abc, out, slot, n, abc[0].numel())
        return unrows(out), found(slot)

    def batch_norm_gradient(
        self,
        g: Tensor,
        e_g: Exponent,
        z: Tensor,
        e_z: Exponent,
        scalars: Tensor,
        training: bool,
        wants_input: bool,
    ) -> tuple[Part | None, WholePart, WholePart] | None:
        """The sums, the scalars, the multiply-adds, and one rounding."""
        many = isinstance(e_g, Tensor) or isinstance(e_z, Tensor)
        samples, device = len(z) if many else 1, g.device
        parts, _, n = self._channel_sums(g, z, samples)
        channels = parts.shape[2]
        sums, e_s, e_t = self._gathered(parts, e_g, e_z)
        a, b, c = (sums.new_empty((samples, channels)) for _ in range(3))
        dgamma, dbeta = (sums.new_empty(channels, dtype=torch.int32) for _ in range(2))
        own, both = room(sums, samples), room(sums, 2)
        norms.batch_norm_gradient[(samples,)](
            *(sums, *place(e_s, device), *place(e_t, device), scalars),
            *(*_of_samples(e_g, samples, g), *_of_samples(e_z, samples, z), a, b, c, own),
            *(dgamma, dbeta, both, flag(device), n * samples, channels),
            *(formats.CODE_MAX[BITS[g.dtype]],),
            **{"TRAINING": training, "WANTED": wants_input, "BLOCK": block_of(channels), **EXACT},
        )
        others = (dgamma, found(both[0])), (dbeta, found(both[1]))
        if not wants_input:
            return None, *others
        if many:
            slopes = of_samples(a, g) * g.long() + of_samples(b, g) * z.long()
            size = by_rows.row_size(z.shape)
            return self.shorten(slopes + of_samples(c, g), 0, own.view(size)), *others
        acc, top = self._multiply_adds(g, z, (a, b, c), torch.int64)
        return self.shorten(acc, top, found(own[0])), *others

    def _gathered(self, parts: Tensor, e_g: Exponent, e_z: Exponent) -> tuple[Tensor, int, int]:
        """The sums over samples of g and of g * z, int64 [2, channels], and their exponents."""
        if isinstance(e_g, int) and isinstance(e_z, int):
            return parts[0], e_g, e_g + e_z
        of_g, of_z = (tensor_of(e, parts.device).reshape(-1, 1) for e in (e_g, e_z))
        s, e_s = by_rows.gathered(self, parts[:, 0], of_g, BIAS_BITS)
        t, e_t = by_rows.gathered(self, parts[:, 1], of_g + of_z, DOT_BITS)
        return torch.stack([s, t]), e_s, e_t

    def running_statistics(
        self,
        running: tuple[Tensor, Tensor],
        sums: tuple[Tensor, Tensor],
        n: int,
        e_z: int,
        by: float,
    ) -> None:
        mean, variance = running
        pair, channels = torch.stack(sums), mean.numel()
        norms.running[(1,)](
            *(mean, variance, pair, *place(e_z, mean.device), n, channels, bits_of(by)),
            flag(mean.device),
            **{"BLOCK": block_of(channels), **EXACT},
        )

    # --- tables -----------------------------------------------------------------------------

    def table(self, x: Tensor, exponent: Exponent, tables: Tables, bits: int) -> Part:
        acc, top, own = self._looked_up(None, x, exponent, tables)
        return self.requantize(acc, top, own, bits)

    def table_gradient(
        self, g: Tensor, e_g: Exponent, x: Tensor, exponent: Exponent, slopes: Tables
    ) -> Part:
        acc, top, own = self._looked_up(g, x, exponent, slopes)
        return self.shorten(acc, top, own + e_g)

    def _looked_up(self, g: Tensor | None, x: Tensor, exponent: Exponent, tables: Tables) -> Found:
        """The entries of codes, times g where there is one."""
        x = ordered(x)
        many = isinstance(exponent, Tensor)
        size = by_rows.row_size(x.shape)
        if isinstance(exponent, Tensor):
            x = x.contiguous()
            rows, given = math.prod(size), exponent.expand(size).reshape(-1, 1)
            places = (*_of_rows(given, rows, x), max(x.numel() // max(rows, 1), 1))
        else:
            places = (*place(exponent, x.device), 0, max(x.numel(), 1))
        v = x if g is None else like(g, x)
        out = torch.empty_like(x, dtype=torch.int32 if g is None else torch.int64)
        own, slot = x.new_empty(size if many else (), dtype=torch.int64), cell(x)
        operands = (x, v, *places, *tables_of(tables, x.device), out, own, slot, x.numel())
        over(rounding.looked_up, x.numel(), *operands, TIMES=g is not None)
        return out, found(slot), own if many else found(own)

    # --- vectors ----------------------------------------------------------------------------

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
        """Codes with shifts of channels are left to `Eager`."""
        if z.dtype != torch.int8 or not z.numel():
            states = plain(gamma), plain(beta)
            return PLAIN.vector_norm(z, plain(exponent), *states, eps, centred, bits)
        return super().vector_norm(z, exponent, gamma, beta, eps, centred, bits)

    def _normalized(
        self, z: Tensor, exponent: Exponent, eps: float, centred: bool
    ) -> tuple[Part, Part, Part]:
        """`vectors.normalized`."""
        check_device(z)
        z, d, size = z.contiguous(), z.shape[-1], (*z.shape[:-1], 1)
        n, rows, many = z.numel(), z.numel() // d, isinstance(exponent, Tensor)
        spread = exponent.expand(size).reshape(-1, 1) if isinstance(exponent, Tensor) else exponent
        places = _of_rows(spread, rows, z)
        s1, top, slot = z.new_empty(rows, dtype=torch.int64), cell(z), cell(z)
        factor, up = z.new_empty(rows, dtype=torch.float64), flag(z.device)
        operands = (z, *places, s1, factor, top, up, d, bits_of(eps))
        block = min(block_of(d), 4 * BLOCK)
        vectors.factors[(rows,)](*operands, CENTRED=centred, BLOCK=block, **EXACT)
        acc, m = torch.empty_like(z, dtype=torch.int64), z.new_empty(size, dtype=torch.int32)
        own = z.new_empty(size if many else (), dtype=torch.int64)
        sums = (z, s1, factor, top, acc, m, own, slot, n, d)
        over(vectors.products, n, *sums, BY_ROWS=many, **EXACT)
        e_m: Exponent = own if many else found(own)
        codes, e = self.shorten(acc, found(slot), e_m)
        largest_code = largest(self, codes, e)
        wide, narrow = (self.requantize(codes, largest_code, e, own_bits) for own_bits in (16, 8))
        return wide, narrow, (m, e_m - exponent)

    def requantize_blocks(
        self,
        v: Tensor,
        exponent: Exponent,
        beside: int,
        size: Sequence[int] | None,
        bits: int,
        limited: bool = True,
    ) -> Part:
        """In torch, without a look at a number."""
        own, wanted = _of_blocks(v, exponent, beside, size)
        codes, e = self._by_rows(v, own, wanted, bits, limited=limited)
        return codes, found(e.view(())) if size is None else e

    def shorten_blocks(
        self, v: Tensor, exponent: Exponent, beside: int, size: Sequence[int] | None
    ) -> Part:
        own, wanted = _of_blocks(v, exponent, beside, size)
        e, lowest = by_rows.fitted(v, own, wanted, 32)
        some = torch.maximum(e, lowest)
        e = torch.where(e == by_rows._NONE, formats.EXPONENT_MIN, some)
        codes = by_rows.scale(v, own - e).to(torch.int32)
        return codes, found(e.view(())) if size is None else e

    # --- optimizers, dropout ----------------------------------------------------------------

    def kept(
        self, count: int, least: int, draw: Sequence[int], device: torch.device | str
    ) -> Tensor:
        """The number of the step may lie in a cell."""
        out = torch.empty(count, dtype=torch.uint8, device=device)
        k0, k1, step, shard, call = draw
        where = (k0, k1, *place(step, out.device), shard, call)
        over(updates.kept_by_dropout, count, out, count, least, *where)
        return out.view(torch.bool)

    def optimize(
        self, roster: Roster, options: tuple[StepOptions, ...], gradients: StepGradients
    ) -> bool | None:
        """Nothing changes from the step on in which an exponent leaves its range."""
        steps.optimize(self, roster, options, gradients)
        return True

    # --- loss and softmax -------------------------------------------------------------------

    def cross_entropy(
        self, z: Tensor, exponent: int | Tensor, target: Tensor, divisor: int
    ) -> Entropy:
        return self._entropy(z, exponent, target, divisor, False)

    def weighed_entropy(self, z: Tensor, exponent: int | Tensor, amounts: Tensor) -> Entropy:
        return self._entropy(z, exponent, amounts, 1, True)

    def _entropy(
        self, z: Tensor, exponent: Exponent, given: Tensor, divisor: int, weighed: bool
    ) -> Entropy:
        """The rows of a loss, whose logarithms and distances stay on the device."""
        check_device(z)
        z, given, (n, classes) = z.contiguous(), given.contiguous(), z.shape
        codes = torch.empty_like(z, dtype=torch.int32)
        logs, distances = (z.new_empty(n, dtype=torch.int64) for _ in range(2))
        operands = (z, *_of_rows(exponent, n, z), given, tables_on(z.device))
        kinds = {"WEIGHED": weighed, "BLOCK": block_of(classes)}
        losses.entropy[(n,)](*operands, codes, logs, distances, classes, divisor, **kinds)
        return Entropy(codes, logs, distances)

    def softmax(self, z: Tensor, exponent: Exponent, allowed: Tensor | None) -> Shares:
        check_device(z)
        z, (n, c) = z.contiguous(), z.shape
        y, kept = torch.empty_like(z, dtype=torch.int32), z
        if allowed is not None:
            kept = allowed.contiguous().view(torch.int8)
        if z.numel():
            operands = (z, *_of_rows(exponent, n, z), kept, tables_on(z.device), y, c)
            losses.softmax[(n,)](*operands, MASKED=allowed is not None, BLOCK=block_of(c))
        return Shares(y, self.requantize_blocks(y, SOFTMAX_EXPONENT, 0, (n, 1), 8))


def _of_blocks(
    v: Tensor, exponent: Exponent, beside: int, size: Sequence[int] | None
) -> tuple[Tensor, Sequence[int]]:
    """Exponents that broadcast against v, and the shape of those that are wanted."""
    own = exponent + beside
    if isinstance(own, int):
        own = tensor_of(own, v.device).view([1] * v.dim())
    return own, [1] * v.dim() if size is None else size


_Pair = tuple[Factors, Factors]
MASKED = BLOCK // 8  # bytes of a mask


def _window(v: Tensor, window: Window) -> dict[str, int]:
    """A window as kernels of pools take it, with the channels of an image."""
    (kh, kw), (sh, sw), (ph, pw), _ = window
    return {"C": v.shape[3], "KH": kh, "KW": kw, "SH": sh, "SW": sw, "PH": ph, "PW": pw}


def _samples(z: Tensor, exponent: Exponent) -> int:
    """The number of samples that have an exponent each, else 1."""
    return len(z) if isinstance(exponent, Tensor) else 1


def _of_samples(exponent: Exponent, n: int, like: Tensor) -> tuple[Tensor, int, int]:
    """`_of_rows` of the exponents of samples, of any rank."""
    own = exponent.reshape(-1, 1) if isinstance(exponent, Tensor) else exponent
    return _of_rows(own, n, like)


def _statistics(parts: Tensor, exponent: Exponent, guard: int) -> tuple[Tensor, int]:
    """The sums over samples [samples, 2, channels], by rows at the largest exponent less `guard`
    (12.2), and their exponent."""
    if isinstance(exponent, int):
        return parts[0], exponent
    own, (s1, s2) = exponent.reshape(-1, 1), parts.unbind(1)
    top = torch.where(s2.amax(1, keepdim=True) > 0, own, by_rows._NONE).amax()
    common = torch.where(top == by_rows._NONE, formats.EXPONENT_MIN, top)
    by = (own - common).clamp(max=0) + guard
    sums = [by_rows.scale(v, shift).sum(0) for v, shift in ((s1, by), (s2, 2 * by))]
    return torch.stack(sums), found(common) - guard


def _of_rows(exponent: Exponent, n: int, like: Tensor) -> tuple[Tensor, int, int]:
    """The place of the exponents of rows, or of one, and the step from row to row."""
    if isinstance(exponent, Tensor):
        return exponent.expand(n, 1).contiguous().view(-1), 0, 1
    return *place(exponent, like.device), 0


@functools.lru_cache(maxsize=64)
def _spans(spans: Spans, device: torch.device) -> Tensor:
    """Spans on a device, int64 [2, windows]."""
    return torch.tensor(spans, dtype=torch.int64, device=device).view(-1, 2).t().contiguous()


@functools.lru_cache(maxsize=64)
def _outer(factors: _Pair | None, size: tuple[int, ...], device: torch.device) -> Tensor:
    """The products of factors of rows and of columns on a device; ones for none."""
    if factors is None:
        return torch.ones(tuple(size), dtype=torch.int64, device=device)
    down, across = (torch.tensor(v, device=device) for v in factors)
    return down.view(-1, 1) * across


_TABLES: WeakKeyDictionary[Tables, dict[torch.device, tuple[Tensor, Tensor]]] = WeakKeyDictionary()


def tables_of(tables: Tables, device: torch.device) -> tuple[Tensor, Tensor]:
    """All tables of a function on a device, and their exponents: made once, for every exponent."""
    known = _TABLES.setdefault(tables, {})
    if device not in known:
        for exponent in range(formats.EXPONENT_MIN, formats.EXPONENT_MAX + 1):
            tables.meet(exponent)
        known[device] = tables.entries.to(device), tables.exponents.to(device)
    return known[device]


@functools.cache
def tables_on(device: torch.device) -> Tensor:
    """The powers of two of exponentials (6.1) on a device."""
    return torch.cat(power_tables()).to(device)


def reading(cls: type[Eager]) -> None:
    """A class whose operations that have no kernel read numbers, and leave the rest to `Eager`.

    What is composed of operations alone stays as it is (COMPOSED).
    """
    for name, method in inspect.getmembers(Eager, inspect.isfunction):
        if name[0] != "_" and getattr(cls, name) is method and name not in COMPOSED:
            setattr(cls, name, _read_first(method))


def _read_first(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(_: Eager, /, *arguments: Any, **options: Any) -> Any:
        known = {name: plain(v) for name, v in options.items()}
        return method(PLAIN, *(plain(v) for v in arguments), **known)

    return call


PLAIN = Eager()
COMPOSED = {
    *("input_gradient", "products", "products_a", "products_b", "channel_sum", "times", "summed"),
    *("add", "add_clamped", "where", "joint", "hits", "softmax_grad", "vector_norm_gradient"),
}
"""Operations of `Eager` that read no number of one tensor, but hand it on."""


reading(Triton)
