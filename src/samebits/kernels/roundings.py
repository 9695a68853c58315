"""Scaling and rounding in torch (training.md 1 and 12.1): the base of all realisations."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from samebits.kernels import rows
from samebits.kernels.geometry import requantize_shift, shorten_shift, smallest_exponent
from samebits.kernels.protocol import CODE_TYPE, Part, Sum, WholePart
from samebits.kernels.rows import Exponent
from samebits.numerics.realise import times_power
from samebits.spec import formats


class Roundings:
    """The part of `Eager` that finds exponents, scales and rounds.

    reads: whether operations may read numbers of tensors
    """

    reads = True

    def largest_of(self, v: Tensor) -> int:
        """max|v| of integers of 8 to 64 bits; 0 for an empty tensor."""
        if v.numel() == 0:
            return 0
        low, high = torch.aminmax(v)
        return max(-int(low), int(high))

    def are_below(self, index: Tensor, count: int) -> bool:
        """Whether all integers, int64, are in [0, count)."""
        if index.numel() == 0:
            return True
        low, high = torch.aminmax(index)
        return int(low) >= 0 and int(high) < count

    def quantize(self, x: Tensor, bits: int, by_rows: bool = False) -> Part:
        """Real numbers as codes with the smallest exponent in [-128, 127], one rounding (1.1, 5).

        by_rows: each row of an activation has its own (12.2).

        Raises RangeError for numbers that are not finite, or ask for a larger exponent.
        """
        if by_rows:
            return _quantize_rows(x, bits)
        low, high = torch.aminmax(x) if x.numel() else (0.0, 0.0)  # NaN comes through
        exponent = smallest_exponent(max(-float(low), float(high)), bits)
        # binary32 holds the scaled values exactly (or below 2**-126, which rounds to 0) where it
        # holds the factor and the codes.
        narrow = x.dtype == torch.float32 and bits <= 16 and -126 <= exponent <= 126
        codes = torch.round(times_power(x if narrow else x.double(), -exponent))
        return codes.to(CODE_TYPE[bits]), exponent

    def scale(self, v: Tensor, exponent: Exponent) -> Tensor:
        """rne(v * 2**exponent) as int64. |v| <= 2**62; the caller knows that a left shift fits."""
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
        """rne(v * 2**exponent) as codes of 8, 16 or 32 bits; the caller knows that they fit."""
        return self.scale(v, exponent).to(CODE_TYPE[bits])

    def saturated(self, v: Tensor, exponent: Exponent, limit: int) -> Tensor:
        """rne(v * 2**exponent) as int64, at most `limit` in magnitude; limit < 2**15."""
        # To the left: beyond the limit already, or small enough to be shifted.
        if isinstance(exponent, Tensor):
            v = torch.where(exponent > 0, v.clamp(-limit, limit).long(), v.long())
            exponent = exponent.clamp(max=15)
        elif exponent > 0:
            v, exponent = v.clamp(-limit, limit), min(exponent, 15)
        return self.scale(v, exponent).clamp(-limit, limit)

    def divide(self, v: Tensor, divisor: Tensor | int) -> Tensor:
        """rne(v / divisor) as int64; divisor > 0, and twice the divisor fits int64."""
        v = v.long()
        quotient = torch.div(v, divisor, rounding_mode="floor")
        rest = v - quotient * divisor
        twice = 2 * rest
        return quotient + ((twice > divisor) | ((twice == divisor) & ((quotient & 1) == 1)))

    def requantize(
        self, acc: Tensor, largest: int, exponent: Exponent, bits: int, divisor: int = 1
    ) -> Part:
        """acc * 2**exponent / divisor as bfp8 or bfp16, one rounding (1.1).

        The smallest exponent in [-128, 127] with which `largest` = max|acc| does not saturate; all
        zeros have -128. Raises RangeError where it would be above 127.

        By rows with the exponents of an activation's rows.
        """
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
        """acc * 2**exponent as bfp32 (1.2), shifted right only as far as it must be.

        Exact where `largest` = max|acc| <= Q32, else one rounding. All zeros have exponent -128.
        """
        if isinstance(exponent, Tensor):
            return self.shorten_blocks(acc, exponent, 0, rows.row_size(acc.shape))
        if largest == 0:
            return torch.zeros_like(acc, dtype=torch.int32), formats.EXPONENT_MIN
        shift = shorten_shift(largest)
        if shift == 0:
            return acc.to(torch.int32), exponent
        return self.scale_to(acc, -shift, 32), exponent + shift

    def resolve(self, parts: list[Part]) -> Part:
        """The sum of gradient parts, aligned to the largest exponent among those not zero (1.3).

        One part is returned as it is; the sum of several is bfp32. Each part is rounded to the
        common exponent, the sum is exact and then shortened: the order of the parts is free.
        """
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
        """Codes of one shape, each with an exponent, one after the other as codes of `bits`.

        Their exponent is the largest of those that are not all zero, less `room`: those that are
        more than `room` below it are rounded. All zeros have the exponent -128. Vectors with
        exponents of their own keep them, less `room`, unless they are all zero.
        """
        if any(isinstance(e, Tensor) for _, e in parts):
            codes, exponent = map(torch.stack, zip(*(rows.in_rows(*p) for p in parts), strict=True))
            is_live = (codes != 0).any(-1, keepdim=True)
            by_rows = torch.where(is_live, exponent - room, formats.EXPONENT_MIN)
            return (codes.long() << room).to(CODE_TYPE[bits]), by_rows
        live = [int(e) for codes, e in parts if bool(codes.any())]
        own = max(live) - room if live else formats.EXPONENT_MIN
        scaled = (self.scale_to(codes, min(int(e) - own, room), bits) for codes, e in parts)
        return torch.stack(list(scaled)), own

    # --- exponents of vectors (12.1 and 14) -------------------------------------------------
    #
    # Integers of several axes, of vectors along the last, as codes whose exponents have the shape
    # `size`; None: one for all. Exponents of the integers broadcast; `beside` is added to them.

    def requantize_blocks(
        self,
        v: Tensor,
        exponent: Exponent,
        beside: int,
        size: Sequence[int] | None,
        bits: int,
        limited: bool = True,
    ) -> Part:
        """As codes of `bits` with the smallest exponents in [-128, 127]; not limited: in none.

        Raises RangeError where one would be above 127.
        """
        own, wanted = _of_blocks(v, exponent, beside, size)
        codes, chosen = rows.requantize(v, own, wanted, bits, limited=limited)
        return codes.to(CODE_TYPE[bits]), int(chosen) if size is None else chosen

    def shorten_blocks(
        self, v: Tensor, exponent: Exponent, beside: int, size: Sequence[int] | None
    ) -> Part:
        """As bfp32 with the smallest exponents that are no less than those of the integers."""
        codes, chosen = rows.shorten(v, *_of_blocks(v, exponent, beside, size))
        return codes.to(torch.int32), int(chosen) if size is None else chosen

    def aligned(self, v: Tensor, exponent: Tensor, size: Sequence[int], keep: bool) -> Part:
        """`align` (12.1): codes of the same type, and exponents of the shape `size`.

        exponent: broadcasts against v. keep: exponents stay as they are where no row has several
        """
        axes = [axis for axis in range(v.dim()) if size[axis] == 1]
        if keep:
            own = exponent.expand(v.shape)
            low, high = (
                torch.aminmax(own) if not axes else (own.amin(axes, True), own.amax(axes, True))
            )
            if torch.equal(low, high):
                return v, high.view(tuple(size))
        return rows.aligned(v, exponent, size)

    def at_one(self, v: Tensor, exponent: Tensor, bits: int) -> WholePart:
        """Addends of `gather` (12.1), int64: v of 16 to 64 bits, whose rows have exponents, at one.

        bits: of the sums that they will be added to.
        """
        return rows.at_one(v.long(), exponent, bits)

    # --- masks and weights ------------------------------------------------------------------

    def where(self, mask: Tensor, v: Tensor) -> Tensor:
        """Codes v where a bool mask of their shape is true, 0 elsewhere."""
        return torch.where(mask, v, 0)

    def joint(self, codes: Tensor, delayed: Tensor) -> Tensor:
        """J = W * 2**15 - A, the exact value of a weight state, int64; |J| < 2**23."""
        return codes.long() * 32768 - delayed

    def split(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """(W, A) of joint values, int64: W = rne(J / 2**15), A = W * 2**15 - J, |A| <= 2**14."""
        codes = self.scale(value, -formats.DELAYED_BITS)
        return codes, (codes << formats.DELAYED_BITS) - value

    def _sum(self, acc: Tensor) -> Sum:
        return acc, self.largest_of(acc)


def largest(k: Roundings, v: Tensor, exponent: Exponent) -> int:
    """max|v| where one exponent is to be found by it; else it is not read."""
    return k.largest_of(v) if isinstance(exponent, int) else 0


def _quantize_rows(x: Tensor, bits: int) -> Part:
    """Real numbers as codes whose rows have their own smallest exponents."""
    values, size = x.double(), rows.row_size(x.shape)
    axes = [axis for axis in range(x.dim()) if size[axis] == 1]
    tops = values.abs().amax(axes) if values.numel() else values
    own = [smallest_exponent(top, bits) for top in tops.flatten().tolist()]
    exponent = torch.tensor(own, device=x.device).view(size)
    return torch.round(times_power(values, -exponent)).to(CODE_TYPE[bits]), exponent


def _of_blocks(
    v: Tensor, exponent: Exponent, beside: int, size: Sequence[int] | None
) -> tuple[Tensor, Sequence[int]]:
    """Exponents that broadcast against v, and the shape of those that are wanted."""
    own = exponent + beside
    if isinstance(own, int):
        own = torch.full([1] * v.dim(), own, device=v.device)
    return own, [1] * v.dim() if size is None else size
