"""The torch realisation of the training kernels: any device, no compiler.

Sums of products run as float64 matrix products of integers. Every partial sum is an integer below
2**53, so float64 holds it exactly in any order (bounds at each call); all else is int64.
Every method equals `samebits.spec.formats` and `samebits.spec.training` bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from samebits.kernels import moments, rows, softmax
from samebits.kernels.adam import AdamTerms, adam
from samebits.kernels.averages import Averages, Factors, Spans
from samebits.kernels.geometry import (
    ConvShape,
    Window,
    requantize_shift,
    shorten_shift,
    smallest_exponent,
)
from samebits.kernels.moments import Update
from samebits.kernels.norm import BatchNorms, channel_sums, per_channel
from samebits.kernels.optimize import Roster, StepGradients, StepOptions
from samebits.kernels.protocol import (
    CODE_TYPE,
    HASH_BLOCK,
    CellGradients,
    CellLayer,
    CellStates,
    Entropy,
    Found,
    Part,
    SGDTerms,
    Shares,
    State,
    Sum,
    WholePart,
)
from samebits.kernels.rows import Exponent
from samebits.kernels.tables import CODES, Tables
from samebits.kernels.update import combine_shifts, direction_exponent, update_rows
from samebits.kernels.vectors import largest
from samebits.numerics import philox
from samebits.numerics.realise import times_power
from samebits.spec import formats
from samebits.spec.training.attention import SOFTMAX_EXPONENT

SQUARES = 1 << 20  # elements whose squares are added at a time
BIAS_BITS = 55  # of the sums of a bias gradient (12.3)
DOT_BITS = 62  # of products of a gradient with codes


class Eager(BatchNorms):
    """The kernels in torch. It has no state, so that `compiled` can fuse its point-wise methods."""

    # --- scaling and rounding ---------------------------------------------------------------

    def largest_of(self, v: Tensor) -> int:
        if v.numel() == 0:
            return 0
        low, high = torch.aminmax(v)
        return max(-int(low), int(high))

    def are_below(self, index: Tensor, count: int) -> bool:
        if index.numel() == 0:
            return True
        low, high = torch.aminmax(index)
        return int(low) >= 0 and int(high) < count

    def scale(self, v: Tensor, exponent: Exponent) -> Tensor:
        if isinstance(exponent, Tensor):
            return rows.scale(v, exponent)
        v = v.long()
        if exponent >= 0:
            return v << exponent
        right = min(-exponent, 63)  # |v| <= 2**62: at 63 and beyond everything rounds to 0
        quotient, twice = v >> right, v >> (right - 1)
        inexact = (twice << (right - 1)) != v
        return quotient + (twice & (inexact | quotient) & 1)

    def scale_to(self, v: Tensor, exponent: Exponent, bits: int) -> Tensor:
        return self.scale(v, exponent).to(CODE_TYPE[bits])

    def saturated(self, v: Tensor, exponent: Exponent, limit: int) -> Tensor:
        # To the left: beyond the limit already, or small enough to be shifted.
        if isinstance(exponent, Tensor):
            v = torch.where(exponent > 0, v.clamp(-limit, limit).long(), v.long())
            exponent = exponent.clamp(max=15)
        elif exponent > 0:
            v, exponent = v.clamp(-limit, limit), min(exponent, 15)
        return self.scale(v, exponent).clamp(-limit, limit)

    def quantize(self, x: Tensor, bits: int, by_rows: bool = False) -> Part:
        if by_rows:
            return _quantize_rows(x, bits)
        low, high = torch.aminmax(x) if x.numel() else (0.0, 0.0)  # NaN comes through
        exponent = smallest_exponent(max(-float(low), float(high)), bits)
        # binary32 holds the scaled values exactly (or below 2**-126, which rounds to 0) where it
        # holds the factor and the codes.
        narrow = x.dtype == torch.float32 and bits <= 16 and -126 <= exponent <= 126
        codes = torch.round(times_power(x if narrow else x.double(), -exponent))
        return codes.to(CODE_TYPE[bits]), exponent

    def divide(self, v: Tensor, divisor: Tensor | int) -> Tensor:
        v = v.long()
        quotient = torch.div(v, divisor, rounding_mode="floor")
        rest = v - quotient * divisor
        twice = 2 * rest
        return quotient + ((twice > divisor) | ((twice == divisor) & ((quotient & 1) == 1)))

    def requantize(
        self, acc: Tensor, largest: int, exponent: Exponent, bits: int, divisor: int = 1
    ) -> Part:
        """By rows with the exponents of an activation's rows."""
        if isinstance(exponent, Tensor):
            size = rows.row_size(acc.shape)
            if divisor == 1:
                return self.requantize_blocks(acc, exponent, 0, size, bits)
            codes, own = rows.requantize(acc, exponent, size, bits, divisor)
            return codes.to(CODE_TYPE[bits]), own
        if largest == 0:
            return torch.zeros_like(acc, dtype=CODE_TYPE[bits]), formats.EXPONENT_MIN
        shift = requantize_shift(largest, exponent, bits, divisor)
        if divisor == 1:
            return self.scale_to(acc, -shift, bits), exponent + shift
        up, down = max(-shift, 0), max(shift, 0)
        codes = self.divide(acc.long() << up, divisor << down)
        return codes.to(CODE_TYPE[bits]), exponent + shift

    def shorten(self, acc: Tensor, largest: int, exponent: Exponent) -> Part:
        if isinstance(exponent, Tensor):
            return self.shorten_blocks(acc, exponent, 0, rows.row_size(acc.shape))
        if largest == 0:
            return torch.zeros_like(acc, dtype=torch.int32), formats.EXPONENT_MIN
        shift = shorten_shift(largest)
        if shift == 0:
            return acc.to(torch.int32), exponent
        return self.scale_to(acc, -shift, 32), exponent + shift

    def resolve(self, parts: list[Part]) -> Part:
        if len(parts) == 1:
            return parts[0]
        if any(isinstance(e, Tensor) for _, e in parts):
            codes, own = rows.resolve(parts)
            return codes.to(torch.int32), own
        pairs = [(codes, int(e)) for codes, e in parts]
        live = [part for part in pairs if self.largest_of(part[0])]
        if not live:
            return self.shorten(parts[0][0], 0, 0)
        exponent = max(e for _, e in live)
        total = self.scale(live[0][0], live[0][1] - exponent)
        for codes, e in live[1:]:
            total = total + self.scale(codes, e - exponent)
        return self.shorten(total, self.largest_of(total), exponent)

    def stacked(self, parts: Sequence[Part], bits: int, room: int) -> Part:
        if any(isinstance(e, Tensor) for _, e in parts):
            codes, exponent = map(torch.stack, zip(*(rows.in_rows(*p) for p in parts), strict=True))
            is_live = (codes != 0).any(-1, keepdim=True)
            by_rows = torch.where(is_live, exponent - room, formats.EXPONENT_MIN)
            return (codes.long() << room).to(CODE_TYPE[bits]), by_rows
        live = [int(e) for codes, e in parts if bool(codes.any())]
        own = max(live) - room if live else formats.EXPONENT_MIN
        scaled = (self.scale_to(codes, min(int(e) - own, room), bits) for codes, e in parts)
        return torch.stack(list(scaled)), own

    # --- convolution and matrix product -----------------------------------------------------

    def conv(self, x: Tensor, w: Tensor, s: ConvShape) -> Sum:
        acc = torch.matmul(_weight_rows(w, s), _columns(x, s)).long()
        return self._sum(acc.view(s.n, s.co, s.oh, s.ow))

    def conv_input_grad(self, g16: Tensor, w: Tensor, s: ConvShape) -> Sum:
        rows = g16.double().reshape(s.n, s.groups, s.co // s.groups, s.oh * s.ow)
        columns = torch.matmul(_weight_rows(w, s).transpose(1, 2), rows)
        columns = columns.reshape(s.n, s.ci * s.kh * s.kw, s.oh * s.ow)
        # Below 2**15 * 2**7 * 2**16 * 2**9 < 2**53: the sums of `fold` are exact as well.
        sizes = ((s.h, s.w), (s.kh, s.kw))
        return self._sum(F.fold(columns, *sizes, s.dilation, s.padding, s.stride).long())

    def input_gradient(
        self, g16: Tensor, w: Tensor, s: ConvShape, exponent: Exponent, bits: int
    ) -> Part:
        acc, largest = self.conv_input_grad(g16, w, s)
        if isinstance(exponent, Tensor) and exponent.dim() != 4:  # of pixels, which are rows
            pixels = exponent.view(1, 1, 1, -1)
            codes, own = self.requantize_blocks(acc, pixels, 0, pixels.shape, bits)
            assert isinstance(own, Tensor)
            own = own.view(exponent.shape)
        else:
            codes, own = self.requantize(acc, largest, exponent, bits)
        return codes.to(torch.int16), own

    def conv_weight_grad(self, g: Tensor, x: Tensor, s: ConvShape) -> Sum:
        # A 32-bit gradient is cut into 16-bit halves: each sum is below 2**16 * 2**7 * 2**24.
        narrow = g.dtype == torch.int16
        halves = [(g, 0)] if narrow else [(g >> 16, 16), (g & 65535, 0)]
        columns = _columns(x, s).transpose(2, 3)
        shape = (s.groups, s.co // s.groups, s.products)
        acc = torch.zeros(shape, dtype=torch.int64, device=g.device)
        for half, shift in halves:
            rows = half.double().reshape(s.n, s.groups, s.co // s.groups, s.oh * s.ow)
            acc += torch.matmul(rows, columns).sum(0).long() << shift
        return self._sum(acc.view(s.co, s.ci // s.groups, s.kh, s.kw))

    def add_bias(self, acc: Tensor, exponent: int, bias: Tensor) -> Sum:
        return self._sum(self.scale(acc, exponent) + per_channel(bias, acc))

    def with_bias(self, acc: Tensor, largest: int, exponent: Exponent, bias: State) -> Found:
        """Both scaled to the common exponent, the sum exact."""
        codes, delayed, e_b = bias
        value = self.joint(codes, delayed)
        length = self.largest_of(value).bit_length()
        if length == 0:
            return acc, largest, exponent
        least = e_b + length - 30
        if isinstance(exponent, Tensor):
            own = exponent.clamp(min=least)
            addend = rows.scale(per_channel(value, acc), e_b - own)
            return self.scale(acc, exponent - own) + addend, 0, own
        common = max(exponent, least)
        return *self.add_bias(acc, exponent - common, self.scale(value, e_b - common)), common

    def channel_sum(
        self, g: Tensor, exponent: Exponent, x: Tensor | None = None
    ) -> tuple[Tensor, int, int]:
        g = g if x is None else g.long() * x
        if isinstance(exponent, Tensor):
            of_samples = g.long().sum((2, 3)) if g.dim() == 4 else g
            bits = BIAS_BITS if x is None else DOT_BITS
            acc, exponent = rows.gathered(of_samples, exponent.flatten(1), bits)
        else:
            acc = channel_sums(g)
        return acc, self.largest_of(acc), exponent

    def times(self, v: Tensor, m: int, exponent: Exponent, bits: int) -> Part:
        acc = v.long() * m
        top = largest(self, acc, exponent)
        if bits == 32:
            return self.shorten(acc, top, exponent)
        return self.requantize(acc, top, exponent, bits)

    def kept(
        self, count: int, least: int, draw: Sequence[int], device: torch.device | str
    ) -> Tensor:
        k0, k1, step, shard, call = draw
        return philox.words(count, (k0, k1), step, shard, device, call) >= least

    def at_one(self, v: Tensor, exponent: Tensor, bits: int) -> WholePart:
        return rows.at_one(v.long(), exponent, bits)

    def where(self, mask: Tensor, v: Tensor) -> Tensor:
        return torch.where(mask, v, 0)

    def summed(self, g: Tensor, size: Sequence[int]) -> Sum:
        axes = [axis for axis, n in enumerate(size) if n < g.shape[axis]]
        return self._sum(g.long().sum(axes, keepdim=True) if axes else g.long())

    # --- activations, addition, pooling -----------------------------------------------------

    def table(self, x: Tensor, exponent: Exponent, tables: Tables, bits: int) -> Part:
        """With one exponent the table is rounded, and then looked up."""
        if isinstance(exponent, Tensor):
            values, of_values = tables.looked_up(x, exponent)
            return self.requantize(values, 0, of_values, bits)
        entries, e = tables.at(exponent)
        at = x.long() + 128
        used = torch.bincount(at.reshape(-1), minlength=CODES) > 0
        own = torch.where(used, entries.to(x.device), 0)
        codes, e_y = self.requantize(own, self.largest_of(own), e, bits)
        return codes[at], e_y

    def table_gradient(
        self, g: Tensor, e_g: Exponent, x: Tensor, exponent: Exponent, slopes: Tables
    ) -> Part:
        e: Exponent
        if isinstance(exponent, Tensor):
            found, e = slopes.looked_up(x, exponent)
        else:
            entries, e = slopes.at(exponent)
            found = entries.to(x.device)[x.long() + 128]
        acc, own = g.long() * found, e_g + e
        return self.shorten(acc, largest(self, acc, own), own)

    def side_by_side(self, parts: Sequence[WholePart], axis: int) -> WholePart:
        live = [e for codes, e in parts if self.largest_of(codes)]
        exponent = max(live, default=formats.EXPONENT_MIN)
        codes = [self.scale_to(c, min(e - exponent, 0), 8) for c, e in parts]
        return torch.cat(codes, axis), exponent

    def add(self, a: Tensor, ea: Exponent, b: Tensor, eb: Exponent, bits: int = 8) -> Part:
        return self.requantize(*self.add_sums(a, ea, b, eb), bits)

    def add_clamped(
        self, a: Tensor, ea: Exponent, b: Tensor, eb: Exponent, clip: int, bits: int
    ) -> tuple[Part, Tensor]:
        acc, _, exponent = self.add_sums(a, ea, b, eb)
        return self.clamped(acc, exponent, clip, bits)

    def add_sums(self, a: Tensor, ea: Exponent, b: Tensor, eb: Exponent) -> Found:
        exponent: Exponent
        if isinstance(ea, int) and isinstance(eb, int):
            live = [e for codes, e in ((a, ea), (b, eb)) if self.largest_of(codes)]
            exponent = max(min(live), max(live) - rows.ROOM) if live else min(ea, eb)
        else:
            exponent = rows.common(a, ea, b, eb)
        acc = self._add_scaled(a, ea - exponent, b, eb - exponent)
        return acc, self.largest_of(acc), exponent

    def _add_scaled(self, a: Tensor, by_a: Exponent, b: Tensor, by_b: Exponent) -> Tensor:
        """rne(a * 2**by_a) + rne(b * 2**by_b) in int64."""
        return self.scale(a, by_a) + self.scale(b, by_b)

    def max_pool(self, x: Tensor, window: Window) -> tuple[Tensor, Tensor]:
        oh, ow = window.counts(*x.shape[2:])
        windows = _windows(F.pad(x.int(), _border(window, x.shape), value=-128), window)
        windows = windows.reshape(*x.shape[:2], oh, ow, window.size)
        best = windows.amax(-1, keepdim=True)
        position = torch.arange(window.size, device=x.device)
        where = torch.where(windows == best, position, window.size).amin(-1)
        return best.squeeze(-1).to(torch.int8), where.to(torch.uint8)

    def max_pool_grad(self, g: Tensor, where: Tensor, shape: torch.Size, window: Window) -> Sum:
        n, c, h, w = shape
        (_, width), stride, padding, _ = window
        oh, ow = g.shape[2:]
        rows = torch.arange(oh, device=g.device).view(-1, 1) * stride[0] - padding[0]
        cols = torch.arange(ow, device=g.device).view(1, -1) * stride[1] - padding[1]
        position = where.long()
        index = (rows + position // width) * w + cols + position % width
        acc = torch.zeros(n, c, h * w, dtype=torch.int64, device=g.device)
        acc.scatter_add_(2, index.flatten(2), g.long().flatten(2))
        return self._sum(acc.view(n, c, h, w))

    def window_sums(self, x: Tensor, means: Averages) -> Sum:
        acc = _span_sums(x.long(), means.rows, means.columns)
        return self._sum(acc if means.factors is None else acc * _outer(means.factors, acc))

    def window_sums_grad(self, g: Tensor, shape: torch.Size, means: Averages) -> Sum:
        g = g.long() if means.factors is None else g.long() * _outer(means.factors, g)
        return self._sum(_span_sums(g, *means.holders(*shape[2:])))

    def divided(
        self, acc: Tensor, largest: int, exponent: Exponent, divisor: int, bits: int
    ) -> Part:
        if isinstance(exponent, Tensor):
            own = rows.bit_length(rows.largest(acc, exponent.shape))
            rows_up = (bits - own).clamp(min=0)
            return self.shorten(self.divide(acc << rows_up, divisor), 0, exponent - rows_up)
        up = max(0, bits - largest.bit_length())
        quotient = self.divide(acc << up, divisor)
        return self.shorten(quotient, self.largest_of(quotient), exponent - up)

    # --- loss -------------------------------------------------------------------------------

    def cross_entropy(
        self, z: Tensor, exponent: int | Tensor, target: Tensor, divisor: int
    ) -> Entropy:
        d = z.amax(1, keepdim=True).long() - z
        p = softmax.exponentials(d, exponent)
        total = p.sum(1, keepdim=True)
        codes = self.divide(*softmax.gradient_codes(p, total, target, divisor)).to(torch.int32)
        chosen = d.gather(1, target.clamp(min=0).view(-1, 1)).view(-1)
        counted = target >= 0
        logs = softmax.logs(total.view(-1)) * counted.cpu()
        return Entropy(codes, logs, (chosen * counted).cpu())

    def hits(self, target: Tensor, classes: int, amount: int) -> Tensor:
        rows, counted = target.view(-1, 1), (target >= 0).view(-1, 1)
        found = torch.zeros(len(target), classes, dtype=torch.int64, device=target.device)
        return found.scatter_(1, rows.clamp(min=0), counted.long() * amount)

    def weighed_entropy(self, z: Tensor, exponent: int | Tensor, amounts: Tensor) -> Entropy:
        d = z.amax(1, keepdim=True).long() - z
        p = softmax.exponentials(d, exponent)
        total, whole = p.sum(1, keepdim=True), amounts.sum(1, keepdim=True)
        codes = (self.divide(p * whole, total) - amounts).to(torch.int32)
        return Entropy(codes, softmax.logs(total.view(-1)), (amounts * d).sum(1).cpu())

    def softmax(self, z: Tensor, exponent: Exponent, allowed: Tensor | None) -> Shares:
        v = z.long()
        if allowed is None:
            p = softmax.exponentials(v.amax(1, keepdim=True) - v, exponent)
        else:
            top = torch.where(allowed, v, -formats.Q32).amax(1, keepdim=True)
            d = torch.where(allowed, top - v, 0)
            p = torch.where(allowed, softmax.exponentials(d, exponent), 0)
        y = self.divide(p << 30, p.sum(1, keepdim=True).clamp(min=1)).to(torch.int32)
        return Shares(y, self.requantize_blocks(y, SOFTMAX_EXPONENT, 0, (len(y), 1), 8))

    def softmax_grad(self, g16: Tensor, e_g: Exponent, y: Tensor, e_y: Tensor) -> Part:
        g, codes = g16.long(), y.long()
        t = codes.sum(1, keepdim=True) * g - (g * codes).sum(1, keepdim=True)
        t16, e_t = self.requantize_blocks(t, e_g, 0, (len(y), 1), 16)
        return (t16 * codes).to(torch.int32), e_t + 2 * e_y

    # --- weights and optimizers -------------------------------------------------------------

    def joint(self, codes: Tensor, delayed: Tensor) -> Tensor:
        return codes.long() * 32768 - delayed

    def split(self, value: Tensor) -> tuple[Tensor, Tensor]:
        codes = self.scale(value, -formats.DELAYED_BITS)
        return codes, (codes << formats.DELAYED_BITS) - value

    def square_sum(self, v: Tensor) -> int:
        """In halves of 16 bits, whose products' sums fit int64 by chunks."""
        total = 0
        for chunk in v.reshape(-1).split(SQUARES):
            low, high = chunk.long() & 0xFFFF, chunk.long() >> 16
            total += int((high * high).sum()) << 32
            total += (int((high * low).sum()) << 17) + int((low * low).sum())
        return total

    def direction(self, terms: SGDTerms, out: Tensor) -> tuple[int, int]:
        """Each term scaled to the common exponent in int64, their sum encoded."""
        t, (g, e_g) = terms, self.resolve(list(terms.gradient.parts))
        exponent, by_g, by_decay, by_momentum = combine_shifts(int(e_g), t)
        acc = self.scale(g, by_g)
        if t.decay is not None:
            acc += self.scale(self.joint(t.codes, t.delayed) * t.decay[0], by_decay)
        if t.momentum is not None:
            term = moments.scaled(t.momentum.v, t.momentum.coefficient[0], by_momentum)
            acc += torch.round(term).long()
        result = direction_exponent(exponent)
        random = None if t.draw is None else moments.moment_bits(t.draw, t.codes)
        out.copy_(moments.encode(acc.double(), result - exponent, random))
        largest = self.largest_of(out)
        return (result, largest) if largest else (formats.EXPONENT_MIN, 0)

    def adam(self, terms: AdamTerms, out: Tensor) -> tuple[int, int, int]:
        joint = self.joint(terms.codes, terms.delayed)
        return adam(terms, times_power(joint.double(), terms.e_a), out)

    def optimize(
        self, roster: Roster, options: tuple[StepOptions, ...], gradients: StepGradients
    ) -> bool | None:
        """Torch has no such call."""
        return None

    def lazy_carry(
        self, codes: Tensor, delayed: Tensor, update: Update, commit: bool
    ) -> tuple[int, int]:
        updated, rest = self._carried(codes, delayed, moments.moved(*update))
        tops = self.largest_of(updated), self.largest_of(self.joint(updated, rest))
        if commit:
            codes.copy_(updated)
            delayed.copy_(rest)
        return tops

    def _carried(self, codes: Tensor, delayed: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """W - r and t - r * 2**15 of `lazy_carry`, int64."""
        total = delayed.long() + u
        carry = self.scale(total, -formats.DELAYED_BITS)
        return codes.long() - carry, total - carry * 32768

    def lazy_resplit(self, codes: Tensor, delayed: Tensor, update: Update, by: int) -> None:
        value = self.joint(codes, delayed) - moments.moved(*update)
        new_codes, new_delayed = self.split(self.scale(value, -by))
        codes.copy_(new_codes)
        delayed.copy_(new_delayed)

    def lazy_rows(
        self, codes: Tensor, delayed: Tensor, exponent: Tensor, update: Update, limit: int
    ) -> Tensor:
        state = (self.joint(codes, delayed), codes, delayed, exponent)
        new_codes, new_delayed, exponent = update_rows(*state, update, limit)
        codes.copy_(new_codes)
        delayed.copy_(new_delayed)
        return exponent

    # --- hashes -----------------------------------------------------------------------------

    def block_sums(self, data: Tensor, keys: Tensor) -> Tensor:
        rows = F.pad(data, (0, -data.numel() % HASH_BLOCK)).view(torch.int32).view(-1, 2, 512)
        words = (rows + keys.view(2, 512)).long() & 0xFFFFFFFF
        return (words[:, 0] * words[:, 1]).sum(1)

    # --- recurrent layers -------------------------------------------------------------------

    def recurrence(self, layer: CellLayer) -> CellStates | None:
        """Torch goes step by step."""
        return None

    def recurrence_gradient(
        self,
        layer: CellLayer,
        states: CellStates,
        grad: Part | None,
        at_last: Part | None,
        bits: int,
        wanted: Sequence[bool],
    ) -> CellGradients | None:
        return None

    def _sum(self, acc: Tensor) -> Sum:
        return acc, self.largest_of(acc)


def _quantize_rows(x: Tensor, bits: int) -> Part:
    """Real numbers as codes whose rows have their own smallest exponents."""
    values, size = x.double(), rows.row_size(x.shape)
    axes = [axis for axis in range(x.dim()) if size[axis] == 1]
    tops = values.abs().amax(axes) if values.numel() else values
    own = [smallest_exponent(top, bits) for top in tops.flatten().tolist()]
    exponent = torch.tensor(own, device=x.device).view(size)
    return torch.round(times_power(values, -exponent)).to(CODE_TYPE[bits]), exponent


def _columns(x: Tensor, s: ConvShape) -> Tensor:
    """[n, groups, ci/groups * kh * kw, oh * ow] in float64."""
    columns = F.unfold(x.double(), (s.kh, s.kw), s.dilation, s.padding, s.stride)
    return columns.view(s.n, s.groups, s.products, s.oh * s.ow)


def _weight_rows(w: Tensor, s: ConvShape) -> Tensor:
    return w.double().reshape(s.groups, s.co // s.groups, s.products)


def _border(window: Window, shape: torch.Size) -> tuple[int, int, int, int]:
    """A window's padding of images of `shape` as `F.pad` takes it: the last axis first."""
    (top, left), (bottom, right) = window.padding, window.ends(*shape[2:])
    return left, right, top, bottom


def _windows(padded: Tensor, window: Window) -> Tensor:
    """[n, c, oh, ow, kh, kw] of a padded image, a view."""
    (kh, kw), stride, _, _ = window
    return padded.unfold(2, kh, stride[0]).unfold(3, kw, stride[1])


def _span_sums(v: Tensor, rows: Spans, columns: Spans) -> Tensor:
    """The sum over each window of rows [first, last) and columns, int64 [n, c, oh, ow]."""
    for axis, spans in ((2, rows), (3, columns)):
        first, last = torch.tensor(spans, device=v.device).t()
        # Up to every position, and none. They may leave 64 bits; their differences do not.
        total = F.pad(v.cumsum(axis), (0, 0, 1, 0) if axis == 2 else (1, 0))
        v = total.index_select(axis, last) - total.index_select(axis, first)
    return v


def _outer(factors: tuple[Factors, Factors], like: Tensor) -> Tensor:
    """The products of factors of rows and of columns, on the device of `like`."""
    down, across = (torch.tensor(v, device=like.device) for v in factors)
    return down.view(-1, 1) * across
