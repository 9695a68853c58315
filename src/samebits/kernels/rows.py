"""Integers of several exponents: the rules of training.md 12.1 in torch, on any device.

An exponent is one integer, or an int64 tensor with as many axes as the codes, that broadcasts
against them. `size` is the shape of a result's exponents: 1 along every axis that a row spans.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from samebits.errors import RangeError
from samebits.spec.formats import CODE_MAX, EXPONENT_MAX, EXPONENT_MIN

Exponent = int | Tensor
_NONE = -(1 << 40)  # the exponent of a row that is all zeros, in a maximum
_MOST = 62  # bits of an integer here: |v| <= 2**62
ABOVE = 1 << 40  # the same in a minimum
ROOM = 22  # bits by which a term of 8 bits may be shifted to the left before a sum (5)
WHOLE = 1 << 53  # up to which binary64 holds every integer
_POWERS = 900  # of two, whose products with 53 bits are normal numbers of binary64


def row_size(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of the exponents of an activation: one a sample of an image, one a vector.

    A number without axes is a row too.
    """
    if len(shape) == 4:
        return (shape[0], 1, 1, 1)
    return (*shape[:-1], 1) if shape else ()


def in_rows(codes: Tensor, exponent: Exponent) -> tuple[Tensor, Tensor]:
    """The same codes with an exponent for every row, also where all have one."""
    if isinstance(exponent, Tensor):
        return codes, exponent
    return codes, spread(exponent, row_size(codes.shape), codes)


def spread(exponent: Exponent, size: Sequence[int], like: Tensor) -> Tensor:
    """One exponent at all places of a shape, or several that broadcast against it, expanded.

    like: a tensor on the device
    """
    if isinstance(exponent, Tensor):
        return exponent.expand(tuple(size))
    return torch.zeros(tuple(size), dtype=torch.int64, device=like.device) + exponent


def placed(exponent: Exponent, place: Callable[[Tensor], Tensor]) -> Exponent:
    """Exponents with others' axes, or in other places; one integer is in none."""
    return exponent if isinstance(exponent, int) else place(exponent)


def of_vectors(exponent: Exponent, shape: Sequence[int]) -> Exponent:
    """Exponents of the rows of a shape as those of its vectors, [vectors, 1]; one stays one."""
    return placed(exponent, lambda e: e.expand(*shape[:-1], 1).reshape(-1, 1))


def highest(exponent: Exponent) -> int:
    """The largest of several, or the one."""
    return exponent if isinstance(exponent, int) else int(exponent.max())


def row_axes(rank: int) -> range:
    """The axes of an activation that count rows."""
    return range(1 if rank == 4 else rank - 1)


def channel_size(shape: Sequence[int]) -> tuple[int, ...]:
    """A shape that is 1 along all axes but the channels': axis 1 of images, else the last."""
    if len(shape) == 4:
        return (1, shape[1], 1, 1)
    return (*[1] * (len(shape) - 1), shape[-1])


def along_channels(v: Tensor, rank: int) -> Tensor:
    """v [channels], to meet an activation of a rank."""
    return v.view(1, -1, 1, 1) if rank == 4 else v.view(*[1] * (rank - 1), -1)


def scale(v: Tensor, exponent: Tensor) -> Tensor:
    """rne(v * 2**exponent) as int64, element by element; left shifts fit, or v is 0 there."""
    v = v.long() << exponent.clamp(0, _MOST)
    right = (-exponent).clamp(0, 63)  # |v| <= 2**62: at 63 and beyond everything rounds to 0
    some = (right > 0).long()
    half = (some << (right - 1).clamp(min=0)) - some  # one less than half of 2**right, or 0
    return (v + half + ((v >> right) & some)) >> right  # a tie goes up from an odd quotient alone


class Passes(Protocol):
    """The part of the kernels in use that scales and requantizes.

    reads: whether they may read a number, for which a device is waited for
    """

    reads: bool

    def scale(self, v: Tensor, exponent: Exponent) -> Tensor:
        """`scale`."""

    def requantize(
        self, acc: Tensor, largest: int, exponent: Exponent, bits: int, divisor: int = 1
    ) -> tuple[Tensor, Exponent]:
        """`requantize` by rows of an activation."""

    def aligned(
        self, v: Tensor, exponent: Tensor, size: Sequence[int], keep: bool
    ) -> tuple[Tensor, Exponent]:
        """`align`."""

    def at_one(self, v: Tensor, exponent: Tensor, bits: int) -> tuple[Tensor, int]:
        """`at_one`."""


def maximum(*exponents: Exponent) -> Exponent:
    """The largest, element by element unless all are integers."""
    numbers = [e for e in exponents if isinstance(e, int)]
    number = functools.reduce(_larger, numbers) if numbers else None
    tensors = [e for e in exponents if isinstance(e, Tensor)]
    if not tensors:
        assert number is not None
        return number
    top = functools.reduce(torch.maximum, tensors)
    return top if number is None else torch.where(top > number, top, number)


def _larger(a: int, b: int) -> int:
    """The larger of two numbers; one that lies on a device is not read."""
    for one, other in ((a, b), (b, a)):
        if (own := getattr(one, "larger", None)) is not None:
            found: int = own(other)
            return found
    return max(a, b)


def largest(acc: Tensor, *sizes: Sequence[int]) -> Tensor:
    """max|acc| over the axes along which all shapes of `sizes` are 1, int64."""
    axes = [axis for axis in range(acc.dim()) if all(size[axis] == 1 for size in sizes)]
    magnitude = acc.long().abs()
    return magnitude.amax(axes, keepdim=True) if axes else magnitude


def bit_length(v: Tensor) -> Tensor:
    """The bit length of integers in [0, 2**62], int64."""
    high, low = v >> 31, v & 0x7FFFFFFF
    length = torch.frexp(torch.where(high > 0, high, low).double())[1].long()
    return torch.where(high > 0, length + 31, length)


def shifts(top: Tensor, bits: int, divisor: int = 1) -> Tensor:
    """The smallest s with rne(top / (divisor * 2**s)) <= the largest code of `bits`; top >= 0.

    That code Q is odd, so a tie above it rounds up, to Q + 1: the condition is
    2 * top < (2 * Q + 1) * divisor * 2**s, and bit lengths leave two candidates.
    """
    limit = (2 * CODE_MAX[bits] + 1) * divisor
    s = bit_length(top) + 1 - limit.bit_length()
    # 2 * top may have 63 bits; half of both sides where that is exact enough: s > 0.
    small = (top << (1 - s).clamp(0, _MOST)) < limit
    large = (top >> (s - 1).clamp(min=0)) < limit
    return torch.where(torch.where(s > 0, large, small), s, s + 1)


def are_powers(exponent: Tensor) -> bool:
    """Whether products of 53 bits with 2**exponent are normal numbers of binary64."""
    low, high = (int(end) for end in torch.aminmax(exponent)) if exponent.numel() else (0, 0)
    return low >= -_POWERS and high <= _POWERS


def ends(v: Tensor, exponent: Tensor, size: Sequence[int]) -> tuple[Tensor, Tensor] | None:
    """The largest |v| * 2**exponent of every row, binary64, and its lowest exponent.

    Exponents count where v is not 0; where all is 0 the lowest is ABOVE. None where |v| leaves
    2**53, or an exponent -900 to 900: then binary64 does not hold what would be found.
    """
    if not v.numel() or not are_powers(exponent) or not _is_exact(v):
        return None
    axes = [axis for axis in range(v.dim()) if size[axis] == 1]
    power = ((exponent.long() + 1023) << 52).view(torch.float64)  # by the bits of binary64
    real, live = (v.double() * power).abs(), torch.where(v != 0, exponent, ABOVE)
    return real.amax(axes, keepdim=True), live.amin(axes, keepdim=True)


def _fit(
    acc: Tensor,
    exponent: Tensor,
    size: Sequence[int],
    bits: int,
    divisor: int,
) -> tuple[Tensor, Tensor]:
    """The exponent at which every row fits codes of `bits`, and the lowest of its elements.

    Of rows that are all zero: below -2**39, and any. What fits is decided by the largest real
    number of a row alone. Where exponents differ inside a row it is found among binary64 numbers,
    exactly: the integers have at most 53 bits, and products with these powers of two are far from
    both ends.
    """
    axes = [axis for axis in range(acc.dim()) if size[axis] == 1]
    inside = any(exponent.shape[axis] > 1 for axis in axes)
    if inside and (found := ends(acc, exponent, size)) is not None:
        most, lowest = found
        fraction, own = torch.frexp(most)
        top = (fraction * 2.0**53).long()
        return torch.where(top > 0, own - 53 + shifts(top, bits, divisor), _NONE), lowest
    return fitted(acc, exponent, size, bits, divisor)


def fitted(
    acc: Tensor, exponent: Tensor, size: Sequence[int], bits: int, divisor: int = 1
) -> tuple[Tensor, Tensor]:
    """`_fit` among integers, which reads none of them."""
    axes = [axis for axis in range(acc.dim()) if size[axis] == 1]
    inside = any(exponent.shape[axis] > 1 for axis in axes)
    top = largest(acc, exponent.shape, size)
    own = exponent.expand(torch.broadcast_shapes(top.shape, exponent.shape))
    fitting = torch.where(top > 0, own + shifts(top, bits, divisor), _NONE)
    if inside:
        exponent = torch.where(top > 0, own, ABOVE).amin(axes, keepdim=True)
    return fitting.amax(axes, keepdim=True), exponent


def _is_exact(acc: Tensor) -> bool:
    """Whether binary64 holds these integers."""
    if acc.dtype != torch.int64 or not acc.numel():
        return acc.dtype != torch.int64
    low, high = (int(end) for end in torch.aminmax(acc))
    return max(-low, high) <= WHOLE


def common(a: Tensor, ea: Exponent, b: Tensor, eb: Exponent) -> Tensor:
    """The exponent at which two operands are added, row by row; rows of zeros do not count (5)."""
    size = row_size(a.shape)
    low, high = [], []
    for codes, e in ((a, ea), (b, eb)):
        live = largest(codes, size) > 0
        low.append(torch.where(live, e, ABOVE))
        high.append(torch.where(live, e, _NONE))
    top = torch.maximum(*high)
    return torch.where(top == _NONE, 0, torch.maximum(torch.minimum(*low), top - ROOM))


def requantize(
    acc: Tensor,
    exponent: Tensor,
    size: Sequence[int],
    bits: int,
    divisor: int = 1,
    limited: bool = True,
) -> tuple[Tensor, Tensor]:
    """`requantize` by rows: codes (int64) and exponents of the shape `size`.

    limited: exponents in [-128, 127]; RangeError above.
    """
    e, _ = _fit(acc, exponent, size, bits, divisor)
    e = torch.where(e == _NONE, EXPONENT_MIN, e.clamp(min=EXPONENT_MIN) if limited else e)
    if limited and e.numel() and (found := int(e.max())) > EXPONENT_MAX:
        raise RangeError(
            f"expected an exponent of at most {EXPONENT_MAX}, found {found}: the values have "
            "outgrown their format (training diverged); lower the learning rate"
        )
    by = exponent - e
    if divisor == 1:
        return scale(acc, by), e
    return _divided(acc, by, divisor), e


def requantize_channels(
    acc: Tensor,
    exponent: Tensor,
    shifts: Tensor,
    bits: int,
    divisor: int = 1,
    *,
    k: Passes,
) -> tuple[Tensor, Tensor]:
    """`requantize` by rows of an activation whose channels have shifts (training.md 12.4).

    Codes (int64), and exponents of the channels of every row. Raises RangeError where one of them
    would be above 127.
    """
    up = along_channels(shifts, acc.dim())
    codes, own = k.requantize(acc, 0, exponent - up, bits, divisor)
    own = own + up
    assert isinstance(own, Tensor)
    if (found := int(own.max())) > EXPONENT_MAX:
        raise RangeError(
            f"expected an exponent of at most {EXPONENT_MAX}, found {found} with the shift of its "
            "channel: the values have outgrown their format (training diverged); lower the "
            "learning rate"
        )
    return codes, own


def _divided(acc: Tensor, exponent: Tensor, divisor: int) -> Tensor:
    """rne(acc * 2**exponent / divisor), int64."""
    up = exponent.clamp(0, _MOST)
    down = -exponent.clamp(max=0)
    room = _MOST - divisor.bit_length()
    by = torch.full_like(exponent, divisor) << down.clamp(max=room)
    v = acc.long() << up
    quotient = torch.div(v, by, rounding_mode="floor")
    twice = 2 * (v - quotient * by)
    rounded = quotient + ((twice > by) | ((twice == by) & ((quotient & 1) == 1)))
    return torch.where(down > room, 0, rounded)


def shorten(acc: Tensor, exponent: Tensor, size: Sequence[int]) -> tuple[Tensor, Tensor]:
    """`shorten` by rows: codes (int64, at most Q32) and exponents of the shape `size`."""
    fitting, lowest = _fit(acc, exponent, size, 32, 1)
    e = torch.where(fitting == _NONE, EXPONENT_MIN, torch.maximum(fitting, lowest))
    return scale(acc, exponent - e), e


def resolve(parts: Sequence[tuple[Tensor, Exponent]]) -> tuple[Tensor, Tensor]:
    """`resolve` row by row, of several parts: int64 codes, to be int32, and their exponents."""
    size = max((e.shape for _, e in parts if isinstance(e, Tensor)), key=lambda s: s.numel())
    tops = [torch.where(largest(codes, size) > 0, e, _NONE) for codes, e in parts]
    e = torch.stack(tops).amax(0)
    total = sum(
        scale(codes, (own - e).clamp(max=0)) for (codes, _), own in zip(parts, tops, strict=True)
    )
    assert isinstance(total, Tensor)
    return shorten(total, torch.where(e == _NONE, EXPONENT_MIN, e), size)


def aligned(codes: Tensor, exponent: Tensor, size: Sequence[int]) -> tuple[Tensor, Tensor]:
    """`align`: codes of the same type, and exponents of the shape `size`."""
    top = _top_exponent(codes, exponent, size)
    e = torch.where(top == _NONE, EXPONENT_MIN, top)
    return scale(codes, (exponent - e).clamp(max=0)).to(codes.dtype), e


def _top_exponent(codes: Tensor, exponent: Exponent, size: Sequence[int]) -> Tensor:
    """The largest exponent of an element of each row that is not 0; -2**40 where all are."""
    live = torch.where(codes != 0, exponent, _NONE)
    axes = [axis for axis in range(codes.dim()) if size[axis] == 1]
    return live.amax(axes, keepdim=True) if axes else live


def moved(
    codes: Tensor, exponent: Tensor, move: Callable[[Tensor], Tensor], *, k: Passes
) -> tuple[Tensor, Exponent]:
    """Codes in other places with their exponents, aligned where rows of several exponents meet."""
    after = move(codes)
    size = row_size(after.shape)
    one_each = k.reads and exponent.shape == row_size(codes.shape)
    if one_each and _keeps_rows(codes, exponent, size, move):  # else found among the exponents
        own = move(exponent.long().expand(codes.shape))
        return after, own[tuple(slice(0, n) for n in size)].contiguous()
    return k.aligned(after, move(exponent.long().expand(codes.shape)), size, keep=True)


def _keeps_rows(
    codes: Tensor,
    exponent: Tensor,
    size: Sequence[int],
    move: Callable[[Tensor], Tensor],
) -> bool:
    """Whether each row after a move has elements of one row alone, whatever the exponents are."""
    if not codes.numel():
        return False
    on_cpu = codes.device.type == "cpu"
    # It follows from shapes: no routine, which would be one of the CPU, repeats it.
    with _disable_current_modes() if on_cpu else contextlib.nullcontext():
        count = torch.arange(1, exponent.numel() + 1, dtype=torch.int32, device=codes.device)
        own = move(count.view(exponent.shape).expand(codes.shape))  # 0 where a move adds elements
        first = own[tuple(slice(0, n) for n in size)]
        return own.numel() > 0 and bool((first > 0).all()) and bool((own == first).all())


def moved_shifts(
    codes: Tensor,
    exponent: Tensor,
    shifts: Tensor,
    move: Callable[[Tensor], Tensor],
    *,
    k: Passes,
) -> tuple[Tensor, Exponent, Tensor | None]:
    """`moved` of codes whose channels have shifts on top of the exponents of their rows.

    Codes, exponents with shifts, and the shifts of the channels of the result. Where a channel
    there would have several, shifts end (None): the result is aligned.
    """
    up = along_channels(shifts, codes.dim())
    after = move(up.to(torch.int32).expand(codes.shape))
    axes = [axis for axis, size in enumerate(channel_size(after.shape)) if size == 1]
    low, high = after.amin(axes), after.amax(axes)
    if not torch.equal(low, high):
        return *moved(codes, exponent + up, move, k=k), None
    after, own = moved(codes, exponent, move, k=k)
    return after, own + along_channels(low.long(), after.dim()), low.long()


def at_one(acc: Tensor, exponent: Tensor, bits: int) -> tuple[Tensor, int]:
    """The addends of `gather`: int64 `acc` at one exponent, and it.

    exponent: broadcasts against acc. bits: of the sums that they will be added to.
    """
    top = int(torch.where(acc != 0, exponent, _NONE).max())
    if top == _NONE:
        return torch.zeros_like(acc, dtype=torch.int64), EXPONENT_MIN
    e = top + bits - 62
    return scale(acc, (exponent - e).clamp(max=62 - bits)), e


def gathered(k: Passes, acc: Tensor, exponent: Tensor, bits: int) -> tuple[Tensor, int]:
    """`gather`: the sum over the first axis, along which exponents differ, and its exponent."""
    addends, e = k.at_one(acc, exponent, bits)
    return addends.sum(0), e


def concatenated(
    parts: Sequence[tuple[Tensor, Exponent]], axis: int, *, k: Passes
) -> tuple[Tensor, Exponent]:
    """Codes side by side: one row after the other, or aligned where they share rows."""
    axis %= parts[0][0].dim()
    every = torch.cat([codes for codes, _ in parts], axis)
    own = [in_rows(*part)[1] for part in parts]
    if _is_row_axis(every, axis):
        return every, torch.cat(own, axis)
    sides = zip(parts, own, strict=True)
    exponents = torch.cat([e.expand(codes.shape) for (codes, _), e in sides], axis)
    return k.aligned(every, exponents, row_size(every.shape), keep=False)


def largest_exponent(codes: Tensor, exponent: Exponent) -> int | None:
    """The largest exponent of the rows that are not all zero, or of the tensor; None for zeros."""
    if isinstance(exponent, int):
        return int(exponent) if bool(codes.any()) else None
    live = exponent.masked_select(largest(codes, exponent.shape) > 0)
    return int(live.max()) if live.numel() else None


def _is_row_axis(codes: Tensor, axis: int) -> bool:
    """Whether an axis counts rows."""
    return axis in row_axes(codes.dim())


Term = tuple[Tensor, Exponent, int]  # integers below 2**bits, their exponent and bits
SUM_BITS = 60  # of the largest term of a sum at a common exponent


def common_exponent(*terms: tuple[Exponent, int]) -> Exponent:
    """The exponent at which `combined` adds terms of these exponents and bits (training.md 3)."""
    return maximum(*(exponent + bits for exponent, bits in terms)) - SUM_BITS


def combined(k: Passes, *terms: Term) -> tuple[Tensor, Exponent]:
    """The sum of (integers, exponent, bits) at one exponent, int64 (training.md 3).

    The integers of a term are below 2**bits. The exponent leaves the largest 60 bits, to which each
    term is rounded, so that the sum is exact and below 2**62.
    """
    own = common_exponent(*((exponent, bits) for _, exponent, bits in terms))
    first, *others = (k.scale(v, exponent - own) for v, exponent, _ in terms)
    return sum(others, first), own
