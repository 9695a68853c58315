"""Normalisation of vectors: the sums of rows, their factors in binary64, exact integers.

Vectors are rows of d codes of 8 bits, and a program has one, or BLOCK elements of all of them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from samebits.kernels.triton.integers import number, raise_slot, wide
from samebits.kernels.triton.norms import NOT_FINITE, fit, is_finite, ldexp, real, whole


@triton.jit
def factors(
    z, e, e_by, step, s1_out, out, top, flag, d, eps, CENTRED: tl.constexpr, BLOCK: tl.constexpr
):
    """The sum of a row, 0 unless CENTRED, and its factor, 1 / (d * deviation) at the exponent of
    its codes; `top` is raised by the bits of the factors. step: 1 where rows have exponents."""
    row = tl.program_id(0).to(tl.int64)
    s1, s2 = tl.zeros((BLOCK,), dtype=tl.int64), tl.zeros((BLOCK,), dtype=tl.int64)
    for first in range(0, d, BLOCK):
        c = first + tl.arange(0, BLOCK)
        v = tl.load(z + row * d + c, mask=c < d, other=0).to(tl.int64)
        s1 += v
        s2 += v * v
    s1, s2, d = tl.sum(s1, 0), tl.sum(s2, 0), wide(d)
    if not CENTRED:
        s1 = s1 * 0
    own = number(e + row * step, e_by)
    spread = (d * s2 - s1 * s1).to(tl.float64)
    inv = 1.0 / tl.sqrt(ldexp(spread / (d * d).to(tl.float64), 2 * own) + real(eps))
    factor = ldexp(inv / d.to(tl.float64), own)
    fine = is_finite(factor)
    factor = tl.where(fine, factor, 0.0)
    tl.store(s1_out + row, s1)
    tl.store(out + row, factor)
    tl.atomic_max(top, factor.to(tl.int64, bitcast=True))
    tl.atomic_max(flag, tl.where(fine, 0, NOT_FINITE).to(tl.int64))


@triton.jit
def products(
    z, s1, factor, top, acc, m_out, e_out, slot, n, d, BY_ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """(d * z - sum) * m, exact, where m * 2**e is the factor of the row with 24 bits; e is that of
    the row, or of the largest factor."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    ok, row = at < n, at // d
    x = tl.load(factor + row, mask=ok, other=0.0)
    e = fit(x if BY_ROWS else x * 0.0 + real(tl.load(top)), 24)
    m = whole(ldexp(x, -e))
    v = tl.load(z + at, mask=ok, other=0).to(tl.int64)
    sums = (wide(d) * v - tl.load(s1 + row, mask=ok, other=0)) * m
    tl.store(acc + at, sums, mask=ok)
    raise_slot(slot, tl.where(ok, sums, 0))
    is_first = ok & (at % d == 0)
    tl.store(m_out + row, m.to(tl.int32), mask=is_first)
    tl.store(e_out + (row if BY_ROWS else row * 0), e, mask=is_first)
