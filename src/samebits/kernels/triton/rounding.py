"""Kernels that go over all elements: scaling, one rounding to codes, clamps, pools, multiply-adds.

Numbers come as places (a cell and an offset, `numbers.place`). Images have their channels last.
"""

from __future__ import annotations

import triton
import triton.language as tl

from samebits.kernels.triton.integers import (
    NONE,
    divided,
    number,
    raise_slot,
    rne,
    smallest_shift,
    wide,
)

HIGHEST = tl.constexpr((1 << 63) - 1)


@triton.jit
def largest(v, slot, n, BLOCK: tl.constexpr):
    """slot = max(slot, max|v|)."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    raise_slot(slot, tl.load(v + at, mask=at < n, other=0))


@triton.jit
def scaled(v, e, e_by, out, n, BLOCK: tl.constexpr):
    """out = rne(v * 2**e)."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(v + at, mask=at < n, other=0).to(tl.int64)
    tl.store(out + at, rne(x, -number(e, e_by)).to(out.dtype.element_ty), mask=at < n)


@triton.jit
def quotients(v, out, slot, n, divisor, BLOCK: tl.constexpr):
    """out = rne(v / divisor), int64, and its largest magnitude."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = divided(tl.load(v + at, mask=at < n, other=0).to(tl.int64), divisor)
    tl.store(out + at, x, mask=at < n)
    raise_slot(slot, tl.where(at < n, x, 0))


@triton.jit
def shift_of(top, e, q, divisor, SHORTEN: tl.constexpr):
    """The shift of `requantize` (1.1) or of `shorten` (1.2), and the exponent after it."""
    s = smallest_shift(tl.maximum(top, 1), q, divisor)
    s = tl.maximum(s, 0) if SHORTEN else tl.maximum(s, -128 - e)
    return s, tl.where(top == 0, -128, e + s)


@triton.jit
def rounded(
    v, top, top_by, e, e_by, out, own, flag, n, q, divisor,
    DIVIDED: tl.constexpr, SHORTEN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out = rne(v * 2**e / divisor) at the smallest exponent, which goes to `own`.

    q: the largest code. An exponent above 127 raises the flag, but in `shorten`.
    """
    exponent = number(e, e_by)
    s, new = shift_of(number(top, top_by), exponent, q, divisor, SHORTEN)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(v + at, mask=at < n, other=0).to(tl.int64)
    if DIVIDED:  # noqa: SIM108  # Triton compiles one of both
        x = divided(x << tl.maximum(-s, 0), wide(divisor) << tl.maximum(s, 0))
    else:
        x = rne(x, s)
    tl.store(out + at, x.to(out.dtype.element_ty), mask=at < n)
    if tl.program_id(0) == 0:
        tl.store(own, new)
        if not SHORTEN:
            tl.atomic_max(flag, tl.where(new > 127, new, 0))


@triton.jit
def added(a, a_top, ea, ea_by, b, b_top, eb, eb_by, out, own, slot, n, BLOCK: tl.constexpr):
    """The sums of two tensors of 8-bit codes at their common exponent (5), int32."""
    of_a, of_b = number(ea, ea_by), number(eb, eb_by)
    is_a, is_b = tl.load(a_top) > 0, tl.load(b_top) > 0
    low, high = tl.minimum(of_a, of_b), tl.maximum(of_a, of_b)
    both = tl.maximum(low, high - 22)
    e = tl.where(is_a & is_b, both, tl.where(is_a, of_a, tl.where(is_b, of_b, low)))
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(a + at, mask=at < n, other=0).to(tl.int64)
    y = tl.load(b + at, mask=at < n, other=0).to(tl.int64)
    sums = rne(x, e - of_a) + rne(y, e - of_b)
    tl.store(out + at, sums.to(tl.int32), mask=at < n)
    raise_slot(slot, tl.where(at < n, sums, 0))
    if tl.program_id(0) == 0:
        tl.store(own, e)


@triton.jit
def biased(v, e, e_by, bias, out, slot, n, C, BLOCK: tl.constexpr):
    """out = rne(v * 2**e) + bias[channel]."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = rne(tl.load(v + at, mask=at < n, other=0).to(tl.int64), -number(e, e_by))
    x += tl.load(bias + at % C, mask=at < n, other=0)
    tl.store(out + at, x.to(out.dtype.element_ty), mask=at < n)
    raise_slot(slot, tl.where(at < n, x, 0))


@triton.jit
def looked_up(
    x, g, e, e_by, step, per, entries, exponents, out, own, slot, n,
    TIMES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out = the entry of every code at its exponent, TIMES g or not, and the entries' exponents.

    step: 1 where every row of `per` codes has an exponent
    """
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    ok, row = at < n, at // per
    table = tl.load(e + row * step, mask=ok, other=0) + e_by + 128
    code = tl.load(x + at, mask=ok, other=0).to(tl.int64) + 128
    v = tl.load(entries + table * 256 + code, mask=ok, other=0).to(tl.int64)
    if TIMES:
        v *= tl.load(g + at, mask=ok, other=0)
    tl.store(out + at, v.to(out.dtype.element_ty), mask=ok)
    raise_slot(slot, tl.where(ok, v, 0))
    of_row = tl.load(exponents + table, mask=ok, other=0)
    tl.store(own + row * step, of_row, mask=ok)  # the same number wherever it is stored twice


# --- clamps and their masks: a bit an element, eight elements a row of a block -------------------


@triton.jit
def limit_of(clip, e):
    """A clip value at an exponent; HIGHEST where there is none, or no sum reaches it."""
    clip = wide(clip)
    fine = tl.where(e > 0, rne(clip, e), clip << tl.minimum(tl.maximum(-e, 0), 48))
    return tl.where((clip > 0) & (e > -48), fine, HIGHEST)


@triton.jit
def places(n, BLOCK: tl.constexpr):
    """Elements [BLOCK, 8] of a program, its bytes, and their number."""
    byte = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    return byte[:, None] * 8 + tl.arange(0, 8)[None, :], byte, (n + 7) // 8


@triton.jit
def packed(passing):
    """Bits of a byte from eight flags."""
    return tl.sum(passing.to(tl.int32) << tl.arange(0, 8)[None, :], 1).to(tl.uint8)


@triton.jit
def clamped(v, e, e_by, out, mask, slot, n, clip, BLOCK: tl.constexpr):
    """out = min(max(v, 0), limit), the mask of 0 < v < limit, and the largest of out."""
    at, byte, count = places(n, BLOCK)
    x = tl.load(v + at, mask=at < n, other=0).to(tl.int64)
    limit = limit_of(clip, number(e, e_by))
    low = tl.minimum(tl.maximum(x, 0), limit)
    tl.store(out + at, low.to(out.dtype.element_ty), mask=at < n)
    tl.store(mask + byte, packed((x > 0) & (x < limit)), mask=byte < count)
    raise_slot(slot, low)


@triton.jit
def behind(g, mask, out, n, BLOCK: tl.constexpr):
    """out = g where the mask has a bit, else 0."""
    at, byte, count = places(n, BLOCK)
    bits = tl.load(mask + byte, mask=byte < count, other=0).to(tl.int32)
    passing = (bits[:, None] >> tl.arange(0, 8)[None, :]) & 1
    v = tl.load(g + at, mask=(at < n) & (passing != 0), other=0)
    tl.store(out + at, v, mask=at < n)


@triton.jit
def affine(
    z, m, b, ends, e, e_by, out, own, mask, flag, n, C, clip, q,
    CLAMP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """z * m + b of channels, clamped or not, as codes of the smallest exponent: no sums in memory.

    ends: the largest magnitude of all sums, and the largest of them, at least 0
    """
    exponent = number(e, e_by)
    most = limit_of(clip, exponent)
    top = tl.minimum(tl.load(ends + 1), most) if CLAMP else tl.load(ends)
    s, new = shift_of(top, exponent, q, 1, False)
    at, byte, count = places(n, BLOCK)
    inside, channel = at < n, at % C
    x = tl.load(z + at, mask=inside, other=0).to(tl.int64)
    x = x * tl.load(m + channel, mask=inside, other=0) + tl.load(b + channel, mask=inside, other=0)
    if CLAMP:
        tl.store(mask + byte, packed((x > 0) & (x < most)), mask=byte < count)
        x = tl.minimum(tl.maximum(x, 0), most)
    tl.store(out + at, rne(x, s).to(out.dtype.element_ty), mask=inside)
    if tl.program_id(0) == 0:
        tl.store(own, new)
        tl.atomic_max(flag, tl.where(new > 127, new, 0))


@triton.jit
def multiply_adds(g, z, a, b, c, out, slot, n, C, BLOCK: tl.constexpr):
    """out = a * g + b * z + c of channels, int64; z may be 1 for none."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside, channel = at < n, at % C
    x = tl.load(g + at, mask=inside, other=0).to(tl.int64)
    y = tl.load(z + at, mask=inside, other=0).to(tl.int64)
    x = x * tl.load(a + channel, mask=inside, other=0)
    x += y * tl.load(b + channel, mask=inside, other=0)
    x += tl.load(c + channel, mask=inside, other=0)
    tl.store(out + at, x.to(out.dtype.element_ty), mask=inside)
    raise_slot(slot, tl.where(inside, x, 0))


@triton.jit
def channel_sums(g, z, out, ends, n, C, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """out[0] += g and out[1] += g * z of every channel, int64 [2, C], over ROWS rows a program.

    ends: int64 [2, C], max|least code| and the largest of g raised by them: of -g and of g; the
    caller takes their signs. Samples of n rows each (axis 2 of the grid) have sums of their own.
    """
    c, sample = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK), tl.program_id(2).to(tl.int64)
    g, z, out, ends = (
        g + sample * n * C,
        z + sample * n * C,
        out + sample * 2 * C,
        ends + sample * 2 * C,
    )
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = (row[:, None] < n) & (c[None, :] < C)
    at = row[:, None] * C + c[None, :]
    x = tl.load(g + at, mask=inside, other=0).to(tl.int64)
    y = tl.load(z + at, mask=inside, other=0).to(tl.int64)
    tl.atomic_add(out + c, tl.sum(x, 0), mask=c < C)
    tl.atomic_add(out + C + c, tl.sum(x * y, 0), mask=c < C)
    tl.atomic_max(ends + c, tl.max(tl.where(inside, -x, NONE), 0), mask=c < C)
    tl.atomic_max(ends + C + c, tl.max(tl.where(inside, x, NONE), 0), mask=c < C)


# --- pools ---------------------------------------------------------------------------------------


@triton.jit
def max_pool(
    x, out, where, n, H, W, OH, OW, C,
    KH: tl.constexpr, KW: tl.constexpr, SH, SW, PH, PW, BLOCK: tl.constexpr,
):  # fmt: skip
    """The largest code of every window, and the place of the first of its kind."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    c, place = at % C, at // C
    oy, ox, image = place // OW % OH, place % OW, place // (OH * OW)
    best = (c * 0 - 128).to(tl.int32)
    found = (c * 0).to(tl.int32)
    for ky in range(KH):
        for kx in range(KW):
            y, z = oy * SH - PH + ky, ox * SW - PW + kx
            inside = (at < n) & (y >= 0) & (y < H) & (z >= 0) & (z < W)
            v = tl.load(x + ((image * H + y) * W + z) * C + c, mask=inside, other=-128)
            v = v.to(tl.int32)
            found = tl.where(v > best, ky * KW + kx, found)
            best = tl.maximum(v, best)
    tl.store(out + at, best.to(tl.int8), mask=at < n)
    tl.store(where + at, found.to(tl.uint8), mask=at < n)


@triton.jit
def max_pool_grad(
    g, where, out, slot, n, H, W, OH, OW, C,
    KH: tl.constexpr, KW: tl.constexpr, SH, SW, PH, PW, BLOCK: tl.constexpr,
):  # fmt: skip
    """The sum of the gradients of all windows whose maximum an element is, int64."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    c, place = at % C, at // C
    y, z, image = place // W % H, place % W, place // (H * W)
    total = at * 0
    for ky in range(KH):
        for kx in range(KW):
            down, across = y + PH - ky, z + PW - kx
            oy, ox = down // SH, across // SW
            inside = (at < n) & (down >= 0) & (across >= 0) & (oy < OH) & (ox < OW)
            inside = inside & (down % SH == 0) & (across % SW == 0)
            window = ((image * OH + oy) * OW + ox) * C + c
            inside = inside & (tl.load(where + window, mask=inside, other=0) == ky * KW + kx)
            total += tl.load(g + window, mask=inside, other=0).to(tl.int64)
    tl.store(out + at, total, mask=at < n)
    raise_slot(slot, total)


@triton.jit
def span_sums(
    v, down, across, before, after, out, slot, n, H, W, OH, OW, C, TALL, WIDE, BLOCK: tl.constexpr
):
    """Sums over rows [down[0], down[1]) and columns [across[0], across[1]) of images, int64.

    down: int64 [2, OH], across: int64 [2, OW]; of at most TALL and WIDE positions. before, after:
    factors of elements [H, W] and of sums [OH, OW]
    """
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    c, place, ok = at % C, at // C, at < n
    oy, ox, image = place // OW % OH, place % OW, place // (OH * OW)
    top, bottom = tl.load(down + oy, mask=ok), tl.load(down + OH + oy, mask=ok)
    left, right = tl.load(across + ox, mask=ok), tl.load(across + OW + ox, mask=ok)
    total = at * 0
    for i in range(TALL):
        for j in range(WIDE):
            y, z = top + i, left + j
            inside = ok & (y < bottom) & (z < right)
            x = tl.load(v + ((image * H + y) * W + z) * C + c, mask=inside, other=0).to(tl.int64)
            total += x * tl.load(before + y * W + z, mask=inside, other=0)
    total *= tl.load(after + oy * OW + ox, mask=ok, other=0)
    total = tl.where(ok, total, 0)
    tl.store(out + at, total, mask=ok)
    raise_slot(slot, total)
