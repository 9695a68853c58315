"""Integer functions of the kernels: bit lengths, rounding, shifts, digits (training.md 1)."""

from __future__ import annotations

import triton
import triton.language as tl

NONE = tl.constexpr(-(1 << 40))  # the exponent of a tensor that is all zeros, in a maximum


@triton.jit
def bit_length(v):
    """Bit length of int64 v >= 0, by halving."""
    n = v * 0
    for i in tl.static_range(6):
        step = 32 >> i
        high = v >> step
        n = tl.where(high > 0, n + step, n)
        v = tl.where(high > 0, high, v)
    return n + v


@triton.jit
def wide(v):
    """A number as int64, also where it is an argument, which Triton takes as int32 if it fits."""
    return tl.cast(v, tl.int64)


@triton.jit
def rne(v, s):
    """rne(v / 2**s) of int64 |v| <= 2**62; s may be negative, and then the result fits."""
    right = tl.minimum(tl.maximum(s, 0), 63)
    left = tl.minimum(tl.maximum(-s, 0), 62)
    below = tl.maximum(right - 1, 0)
    quotient, half = v >> right, v >> below
    inexact = ((half << below) != v).to(tl.int64)
    return tl.where(right > 0, quotient + (half & (inexact | quotient) & 1), v << left)


@triton.jit
def divided(v, divisor):
    """rne(v / divisor) of int64, divisor > 0; twice the divisor fits."""
    size, divisor = tl.abs(v), wide(divisor)
    quotient = size // divisor
    twice = 2 * (size - quotient * divisor)
    up = (twice > divisor) | ((twice == divisor) & ((quotient & 1) == 1))
    quotient += up.to(tl.int64)
    return tl.where(v < 0, -quotient, quotient)


@triton.jit
def smallest_shift(top, q, divisor):
    """The smallest s with rne(top / (divisor * 2**s)) <= q; top > 0.

    q is odd, so that a tie above it goes up: the condition is 2 * top < limit * 2**s, and bit
    lengths leave two candidates (`rows.shifts`).
    """
    limit = (2 * wide(q) + 1) * wide(divisor)
    s = bit_length(top) + 1 - bit_length(limit)
    small = (top << tl.minimum(tl.maximum(1 - s, 0), 62)) < limit
    large = (top >> tl.maximum(s - 1, 0)) < limit
    return tl.where(tl.where(s > 0, large, small), s, s + 1)


@triton.jit
def number(cell, offset):
    """A number from its place."""
    return tl.load(cell) + offset


@triton.jit
def raise_slot(slot, v):
    """slot = max(slot, max|v|) of a block of one or two axes; no order of programs changes it."""
    size = tl.max(tl.abs(v.to(tl.int64)), 0)
    if len(v.shape) == 2:
        size = tl.max(size, 0)
    tl.atomic_max(slot, size)


@triton.jit
def digits(v):
    """The four balanced base-256 digits of int32 |v| <= Q32, packed as bytes.

    Adding 128 to every digit makes bytes of them, and flipping their top bits takes it off again.
    """
    return ((v.to(tl.uint32) + 0x80808080) ^ 0x80808080).to(tl.int32)
