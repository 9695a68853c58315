"""Softmax and cross-entropy of rows, a program each: exponentials by table (training.md 6)."""

from __future__ import annotations

import triton
import triton.language as tl

from samebits.kernels.softmax import CAP, LOG2_E
from samebits.kernels.triton.integers import bit_length, divided, number, wide

_LOG2_E, _CAP = tl.constexpr(LOG2_E), tl.constexpr(CAP)


@triton.jit
def exponentials(d, e, tables):
    """P = 2**24 * exp(-d * 2**e), int64, of d in [0, 2**32) (`softmax.exponentials`)."""
    shift = e - 14
    left, right = tl.minimum(tl.maximum(shift, 0), 22), tl.minimum(tl.maximum(-shift, 0), 63)
    u, cap = (d * _LOG2_E) >> right, wide(_CAP)
    u = tl.where(u > (cap >> left), cap, u << left)
    p = tl.load(tables + ((u & 65535) >> 8)) * tl.load(tables + 256 + (u & 255)) >> 30
    above = u >> 16
    return tl.where(above > 24, 0, p >> (6 + tl.minimum(above, 24)))


@triton.jit
def logarithm(total):
    """log2(S) - 24 in units of 2**-24 (`softmax.logs`)."""
    length = bit_length(total) - 1
    v = tl.where(
        length >= 30, total >> tl.maximum(length - 30, 0), total << tl.maximum(30 - length, 0)
    )
    bits = total * 0
    for _ in tl.static_range(24):
        v = (v * v) >> 30
        high = v >> 31
        bits = 2 * bits + high
        v = v >> high
    return ((length - 24) << 24) + bits


@triton.jit
def entropy(
    z, e, e_by, step, given, tables, codes, logs, distances, C, divisor,
    WEIGHED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient's codes, logarithm and distance of a row (6.2 and 6.3).

    step: 1 where rows have exponents of their own. given: a class a row, -1 for none, or, WEIGHED,
    an amount of each class
    """
    row, c = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside, at = c < C, row * C + c
    v = tl.load(z + at, mask=inside, other=-(1 << 31)).to(tl.int64)
    d = tl.where(inside, tl.max(v, 0) - v, 0)
    p = tl.where(inside, exponentials(d, number(e + row * step, e_by), tables), 0)
    total = tl.sum(p, 0)
    if WEIGHED:
        amount = tl.load(given + at, mask=inside, other=0)
        q = divided(p * tl.sum(amount, 0), total) - amount
        far, log = tl.sum(amount * d, 0), logarithm(total)
    else:
        target = tl.load(given + row)
        hit = c == target
        q = divided((p - tl.where(hit, total, 0)) << 24, total * wide(divisor))
        q = tl.where(target >= 0, q, 0)
        far = tl.sum(tl.where(hit, d, 0), 0)
        log = tl.where(target >= 0, logarithm(total), 0)
    tl.store(codes + at, q.to(tl.int32), mask=inside)
    tl.store(logs + row, log)
    tl.store(distances + row, far)


@triton.jit
def softmax(z, e, e_by, step, allowed, tables, y, C, MASKED: tl.constexpr, BLOCK: tl.constexpr):
    """rne(P * 2**30 / S) of a row; 0 where `allowed` is false."""
    row, c = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside, at = c < C, row * C + c
    kept = inside
    if MASKED:
        kept = inside & (tl.load(allowed + at, mask=inside, other=0) != 0)
    v = tl.load(z + at, mask=inside, other=0).to(tl.int64)
    top = tl.max(tl.where(kept, v, -(1 << 31)), 0)
    d = tl.where(kept, top - v, 0)
    p = tl.where(kept, exponentials(d, number(e + row * step, e_by), tables), 0)
    tl.store(y + at, divided(p << 30, tl.maximum(tl.sum(p, 0), 1)).to(tl.int32), mask=inside)
