"""Numbers, rounding, products and sums of the realisation in Triton."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from samebits.kernels import rows as by_rows
from samebits.kernels.eager import Eager
from samebits.kernels.geometry import ConvShape
from samebits.kernels.memory import nchw, nhwc, rows, unrows
from samebits.kernels.norm import per_channel
from samebits.kernels.protocol import CODE_TYPE, Found, Part, State, Sum, WholePart
from samebits.kernels.rows import Exponent
from samebits.kernels.triton import norms, products, rounding
from samebits.kernels.triton.launch import (
    BLOCK,
    cell,
    check_device,
    found,
    geometry,
    ordered,
    over,
    room,
    sizes,
    tiles,
)
from samebits.kernels.triton.numbers import (
    BAD_INDEX,
    NAN,
    NOT_FINITE,
    DeviceNumber,
    flag,
    place,
    tensor_of,
)
from samebits.spec import formats

BITS_OF = {torch.int8: 8, torch.int16: 16, torch.int32: 32}


class TritonParts(Eager):
    """The part of `Triton` that finds exponents, scales, rounds and multiplies."""

    reads = False

    # --- scaling and rounding ---------------------------------------------------------------

    def largest_of(self, v: Tensor) -> int:
        v, slot = ordered(v), cell(v)
        over(rounding.largest, v.numel(), v, slot, v.numel())
        return found(slot)

    def are_below(self, index: Tensor, count: int) -> bool:
        """True: an index that is outside raises the flag."""
        outside = ((index < 0) | (index >= count)).any()
        own = flag(index.device)
        torch.maximum(own, outside * BAD_INDEX, out=own)
        return True

    def quantize(self, x: Tensor, bits: int, by_rows: bool = False) -> Part:
        if not x.is_floating_point() or (by_rows and not x.numel()):
            return super().quantize(x, bits, by_rows)
        if by_rows:
            return _quantized_by_rows(x, bits)
        x = ordered(x)
        n, top, own = x.numel(), cell(x), room(x)
        over(norms.largest_real, n, x, top, n)
        norms.quantized_exponent[(1,)](top, own, flag(x.device), formats.CODE_MAX[bits])
        out = torch.empty_like(x, dtype=CODE_TYPE[bits])
        over(norms.quantized, n, x, own, out, n)
        return out, found(own)

    def scale(self, v: Tensor, exponent: Exponent) -> Tensor:
        if isinstance(exponent, Tensor):
            return super().scale(v, exponent)
        return self._scaled(v, exponent, torch.int64)

    def scale_to(self, v: Tensor, exponent: Exponent, bits: int) -> Tensor:
        if isinstance(exponent, Tensor):
            return super().scale_to(v, exponent, bits)
        return self._scaled(v, exponent, CODE_TYPE[bits])

    def _scaled(self, v: Tensor, exponent: int, kind: torch.dtype) -> Tensor:
        v = ordered(v)
        n, out = v.numel(), torch.empty_like(v, dtype=kind)
        over(rounding.scaled, n, v, *place(exponent, v.device), out, n)
        return out

    def requantize(
        self, acc: Tensor, largest: int, exponent: Exponent, bits: int, divisor: int = 1
    ) -> Part:
        if isinstance(exponent, Tensor):
            return self._by_rows(acc, exponent, by_rows.row_size(acc.shape), bits, divisor)
        return self._rounded(acc, largest, exponent, bits, divisor, shorten=False)

    def _by_rows(
        self,
        v: Tensor,
        exponent: Tensor,
        size: Sequence[int],
        bits: int,
        divisor: int = 1,
        limited: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """`rows.requantize` in torch, without a look at a number."""
        e, _ = by_rows.fitted(v, exponent, size, bits, divisor)
        e = torch.where(e == by_rows._NONE, formats.EXPONENT_MIN, _least(e) if limited else e)
        if limited:
            _limit(e)
        by = exponent - e
        codes = by_rows.scale(v, by) if divisor == 1 else by_rows._divided(v, by, divisor)
        return codes.to(CODE_TYPE[bits]), e

    def aligned(self, v: Tensor, exponent: Tensor, size: Sequence[int], keep: bool) -> Part:
        """Both ways are computed where exponents may stay as they are."""
        codes, e = by_rows.aligned(v, exponent, size)
        if not keep or not v.numel():
            return codes, e
        axes = [axis for axis in range(v.dim()) if size[axis] == 1]
        own = exponent.expand(v.shape)
        low, high = (own.amin(axes, True), own.amax(axes, True)) if axes else (own, own)
        same = (low == high).all()
        return torch.where(same, v, codes), torch.where(same, high.view(e.shape), e)

    def at_one(self, v: Tensor, exponent: Tensor, bits: int) -> WholePart:
        v = v.long()
        top = torch.where(v != 0, exponent, by_rows._NONE).amax()
        e = top + bits - 62
        by = (exponent - e).clamp(max=62 - bits)  # of zeros alone any
        own = torch.where(top == by_rows._NONE, formats.EXPONENT_MIN, e)
        return by_rows.scale(v, by), found(own)

    def shorten(self, acc: Tensor, largest: int, exponent: Exponent) -> Part:
        if isinstance(exponent, Tensor):
            return super().shorten(acc, largest, exponent)
        return self._rounded(acc, largest, exponent, 32, 1, shorten=True)

    def _rounded(
        self, acc: Tensor, largest: int, exponent: int, bits: int, divisor: int, shorten: bool
    ) -> Part:
        """The codes of sums, which one kernel rounds for every width."""
        acc, device = ordered(acc), acc.device
        n, own = acc.numel(), room(acc)
        out = torch.empty_like(acc, dtype=CODE_TYPE[bits])
        numbers = (*place(largest, device), *place(exponent, device))
        places = (out, own, flag(device), n, formats.CODE_MAX[bits], divisor)
        kinds = {"DIVIDED": divisor != 1, "SHORTEN": shorten, "BLOCK": BLOCK}
        over(rounding.rounded, max(n, 1), acc, *numbers, *places, **kinds)
        return out, found(own)

    def resolve(self, parts: list[Part]) -> Part:
        """Parts that are all zeros do not count: their exponent is far below any other's."""
        if len(parts) == 1 or any(isinstance(e, Tensor) for _, e in parts):
            return super().resolve(parts)
        owns = self._live(parts)
        common = owns.amax()
        addends = (
            self.scale(codes, DeviceNumber(own - common))
            for (codes, _), own in zip(parts, owns, strict=True)
        )
        total = sum(addends, start=next(addends))
        return self.shorten(total, self.largest_of(total), DeviceNumber(common))

    def _live(self, parts: Sequence[Part]) -> Tensor:
        """The exponents of parts that are not all zeros, and far below any other in their place."""
        tops = [tensor_of(self.largest_of(codes), codes.device) for codes, _ in parts]
        owns = [tensor_of(e, codes.device) for codes, e in parts]
        return torch.where(torch.stack(tops) > 0, torch.stack(owns), by_rows._NONE)

    def side_by_side(self, parts: Sequence[WholePart], axis: int) -> WholePart:
        owns = self._live(parts)
        common = owns.amax()
        common = torch.where(common == by_rows._NONE, formats.EXPONENT_MIN, common)
        codes = [
            self.scale_to(codes, DeviceNumber((own - common).clamp(max=0)), 8)
            for (codes, _), own in zip(parts, owns, strict=True)
        ]
        return torch.cat(codes, axis), found(common)

    def divide(self, v: Tensor, divisor: Tensor | int) -> Tensor:
        if isinstance(divisor, Tensor):
            return super().divide(v, divisor)
        return self._quotients(v, divisor)[0]

    def _quotients(self, v: Tensor, divisor: int) -> Sum:
        v = ordered(v)
        n, out, slot = v.numel(), torch.empty_like(v, dtype=torch.int64), cell(v)
        over(rounding.quotients, n, v, out, slot, n, divisor)
        return out, found(slot)

    # --- convolution and matrix product -----------------------------------------------------

    def conv(self, x: Tensor, w: Tensor, s: ConvShape) -> Sum:
        check_device(x)
        x, w, slot = nhwc(x), nhwc(w), cell(x)
        m, co = s.n * s.oh * s.ow, s.co // s.groups
        acc = x.new_empty((s.n, s.oh, s.ow, s.co), dtype=torch.int32)
        t = tiles(m, co, s.products)
        grid = (-(-m // t["BM"]), -(-co // t["BN"]), s.groups)
        products.forward[grid](x, w, acc, slot, m, *sizes(s), **geometry(s), **t)
        return nchw(acc), found(slot)

    def conv_input_grad(self, g16: Tensor, w: Tensor, s: ConvShape) -> Sum:
        """Phases of a stride are programs of their own; 32-bit sums where these hold all terms."""
        check_device(g16)
        g, w, slot = nhwc(g16), nhwc(w), cell(g16)
        ci, co = s.ci // s.groups, s.co // s.groups
        terms = co * s.kh * s.kw
        wide = terms > products.NARROW
        acc = g.new_empty((s.n, s.h, s.w, s.ci), dtype=torch.int64 if wide else torch.int32)
        (sh, sw), chunk = s.stride, products.CHUNK
        m = s.n * -(-s.h // sh) * -(-s.w // sw)
        t = tiles(m, ci, co, 64)
        grid = (-(-m // t["BM"]), -(-ci // t["BN"]), s.groups * sh * sw)
        padded = s.kh * s.kw * -(-co // t["BK"]) * t["BK"]  # terms, with those of whole tiles
        kinds = {"WIDE": wide, "CARRY": chunk if padded > chunk else 0}
        products.input_grad[grid](g, w, acc, slot, s.n, *sizes(s), **geometry(s), **kinds, **t)
        return nchw(acc), found(slot)

    def conv_weight_grad(self, g: Tensor, x: Tensor, s: ConvShape) -> Sum:
        """Positions are split among programs, which add to the sums in any order."""
        top = self.largest_of(g)
        assert isinstance(top, DeviceNumber)
        g, x, m, co = nhwc(g), nhwc(x), s.n * s.oh * s.ow, s.co // s.groups
        acc = g.new_zeros((s.co, s.kh, s.kw, s.ci // s.groups), dtype=torch.int64)
        t = tiles(co, s.products, m, 64)
        programs = -(-co // t["BM"]) * -(-s.products // t["BN"]) * s.groups
        part = min(products.CHUNK, max(-(-m * programs // PROGRAMS), 1024))
        part = -(-part // t["BK"]) * t["BK"]
        splits = -(-m // part)
        grid = (-(-co // t["BM"]), -(-s.products // t["BN"]), s.groups * splits)
        kinds = {"DIGITS": BITS_OF[g.dtype] // 8, "PART": part, "SPLITS": splits}
        operands = (g, top.cell, x, acc, m, *sizes(s))
        products.weight_grad[grid](*operands, **geometry(s), **kinds, **t)
        return nchw(acc), self.largest_of(acc)

    # --- biases and additions ---------------------------------------------------------------

    def add_bias(self, acc: Tensor, exponent: int, bias: Tensor) -> Sum:
        return self._biased(acc, exponent, bias, torch.int64)

    def _biased(self, acc: Tensor, exponent: int, bias: Tensor, kind: torch.dtype) -> Sum:
        check_device(acc)
        v, slot, bias = rows(acc), cell(acc), bias.contiguous()
        n, out = v.numel(), torch.empty_like(v, dtype=kind)
        places = (bias, out, slot, n, bias.numel())
        over(rounding.biased, n, v, *place(exponent, v.device), *places)
        return unrows(out), found(slot)

    def with_bias(self, acc: Tensor, largest: int, exponent: Exponent, bias: State) -> Found:
        """A bias of zeros leaves the exponent: it is found on the device."""
        own, of_bias = tensor_of(exponent, acc.device), tensor_of(bias[2], acc.device)
        value = self.joint(*bias[:2])
        top = self.largest_of(value)
        assert isinstance(top, DeviceNumber)
        least = of_bias + by_rows.bit_length(top.cell) - 30
        common = torch.where(top.cell > 0, torch.maximum(own, least), own)
        if isinstance(exponent, Tensor):
            terms = by_rows.scale(per_channel(value, acc), of_bias - common)
            return by_rows.scale(acc, own - common) + terms, 0, common
        terms = self.scale(value, DeviceNumber(of_bias - common))
        kind = torch.int32 if acc.dtype == torch.int32 else torch.int64
        return *self._biased(acc, DeviceNumber(own - common), terms, kind), DeviceNumber(common)

    def add_sums(self, a: Tensor, ea: Exponent, b: Tensor, eb: Exponent) -> Found:
        if isinstance(ea, Tensor) or isinstance(eb, Tensor):
            return super().add_sums(a, ea, b, eb)
        a = ordered(a)
        b = b if b.stride() == a.stride() else torch.empty_like(a).copy_(b)
        tops, own, slot, n = cell(a, 2), room(a), cell(a), a.numel()
        over(rounding.largest, n, a, tops[0], n)
        over(rounding.largest, n, b, tops[1], n)
        out = torch.empty_like(a, dtype=torch.int32)
        of_a = (a, tops[0], *place(ea, a.device))
        of_b = (b, tops[1], *place(eb, a.device))
        over(rounding.added, max(n, 1), *of_a, *of_b, out, own, slot, n)
        return out, found(slot), found(own)


def _least(e: Tensor) -> Tensor:
    """Exponents of at least -128."""
    return e.clamp(min=formats.EXPONENT_MIN)


def _limit(e: Tensor) -> None:
    """Raise the flag by exponents above 127."""
    if e.numel():
        up = flag(e.device)
        torch.maximum(up, torch.where(e > formats.EXPONENT_MAX, e, 0).amax(), out=up)


def _quantized_by_rows(x: Tensor, bits: int) -> Part:
    """Real numbers as codes whose rows have their own smallest exponents; nothing is read."""
    values, size = x.double(), by_rows.row_size(x.shape)
    axes = [axis for axis in range(x.dim()) if size[axis] == 1]
    top = values.abs().amax(axes, keepdim=True)
    fine, up = top.isfinite(), flag(x.device)
    bad = torch.where(fine, 0, NOT_FINITE + top.isnan() * NAN)
    torch.maximum(up, bad.amax(), out=up)
    fraction, own = torch.frexp(torch.where(fine, top, 0.0))
    e = own - 53 + by_rows.shifts((fraction * 2.0**53).long(), bits)
    e = torch.where(top == 0, formats.EXPONENT_MIN, _least(e))
    _limit(e)
    power = ((1023 - e) << 52).view(torch.float64)  # by the bits of binary64
    return torch.round(torch.where(fine, values, 0.0) * power).to(CODE_TYPE[bits]), e


PROGRAMS = 528
"""About four programs for each of an H100's processors: into so many a weight gradient is split."""
