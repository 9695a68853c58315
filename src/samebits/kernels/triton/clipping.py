"""Gradient clipping (training.md 4): by value, and by the norm of all gradients.

The sum of all squares is exact, whatever the exponents: digits of base 2**31, LIMBS of them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from samebits.kernels.triton.integers import bit_length, number
from samebits.kernels.triton.norms import (
    NOT_FINITE,
    is_finite,
    ldexp,
    parts_of,
    real,
    whole,
)

LIMBS = tl.constexpr(96)
UNIT = tl.constexpr(90 * 31)  # bits below those of the largest exponent: of gaps up to 1,395
DIGIT = tl.constexpr((1 << 31) - 1)


@triton.jit
def limited(g, e, e_by, top, limit, out, own, n, BLOCK: tl.constexpr):
    """out = g within +-limit, a real number; all zeros that were none have the exponent -128."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    exponent = number(e, e_by)
    f, x = parts_of(real(limit))
    shift = x - 53 - exponent
    m = whole(f * 9007199254740992.0)  # 2**53: the limit is m * 2**(x - 53)
    most = tl.where(
        shift < 0,
        m >> tl.minimum(tl.maximum(-shift, 0), 63),
        m << tl.minimum(tl.maximum(shift, 0), 9),
    )
    v = tl.load(g + at, mask=at < n, other=0).to(tl.int64)
    v = tl.minimum(tl.maximum(v, -most), most)
    tl.store(out + at, v.to(out.dtype.element_ty), mask=at < n)
    if tl.program_id(0) == 0:
        tl.store(own, tl.where((most == 0) & (tl.load(top) > 0), -128, exponent))


@triton.jit
def squares(g, sums, n, BLOCK: tl.constexpr):
    """sums += the low 31 bits of g * g, and those above."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(g + at, mask=at < n, other=0).to(tl.int64)
    tl.atomic_add(sums, tl.sum((v * v) & DIGIT, 0))
    tl.atomic_add(sums + 1, tl.sum((v * v) >> 31, 0))


@triton.jit
def factor(sums, exponents, limbs, out, flag, limit, count):
    """(m, x) of limit / norm where the norm is above the limit, else (1, 0).

    limbs: LIMBS zeros
    """
    e = tl.full((), -(1 << 40), tl.int64)
    for t in range(count):
        some = (tl.load(sums + 2 * t) | tl.load(sums + 2 * t + 1)) != 0
        e = tl.maximum(e, tl.where(some, tl.load(exponents + t), e))
    for t in range(count):
        low, high = tl.load(sums + 2 * t), tl.load(sums + 2 * t + 1)
        at = tl.maximum(2 * (tl.load(exponents + t) - e) + UNIT, 0)
        place, by = at // 31, at % 31
        for i in tl.static_range(3):
            digit = (low & DIGIT, (low >> 31) + (high & DIGIT), high >> 31)[i] << by
            to = limbs + tl.minimum(place, LIMBS - 5) + i
            tl.store(to, tl.load(to) + (digit & DIGIT))
            tl.store(to + 1, tl.load(to + 1) + (digit >> 31))
    carry = e * 0
    top = e * 0
    for i in range(LIMBS):
        v = tl.load(limbs + i) + carry
        carry = v >> 31
        tl.store(limbs + i, v & DIGIT)
        top = tl.where((v & DIGIT) > 0, i, top)
    rest = e * 0
    for i in range(LIMBS):
        rest |= tl.where(i < top - 2, tl.load(limbs + i), 0)
    # 62 leading bits, the last of them set where something is cut off: 53 and 2 are enough.
    first, second = tl.load(limbs + top), tl.load(limbs + tl.maximum(top - 1, 0))
    third, length = tl.load(limbs + tl.maximum(top - 2, 0)), bit_length(first)
    rest |= third & ((e * 0 + 1 << length) - 1)
    lead = (first << (62 - length)) | (second << (31 - length)) | (third >> length)
    lead |= (rest != 0).to(tl.int64)
    norm = tl.sqrt(ldexp(lead.to(tl.float64), 31 * top + length - 62 - UNIT))
    norm = tl.where(first == 0, 0.0, ldexp(norm, e))
    f, x = parts_of(real(limit) / tl.where(norm == 0.0, 1.0, norm))
    m = whole(f * 65536.0)
    over = m == 65536
    m, x = tl.where(over, 32768, m), tl.where(m == 0, 0, x - 16 + over.to(tl.int64))
    clips = norm > real(limit)
    tl.store(out, tl.where(clips, m, 1))
    tl.store(out + 1, tl.where(clips, x, 0))
    tl.atomic_max(flag, tl.where(is_finite(norm), 0, NOT_FINITE).to(tl.int64))
