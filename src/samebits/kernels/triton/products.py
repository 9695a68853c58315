"""Products on int8 matrix units: sums of a convolution and of its gradients (training.md 5 and 7).

Images are NHWC and weights OHWI in memory; a matrix product is a 1x1 convolution of one image whose
pixels are the rows. Gradients of 16 and 32 bits are two and four balanced digits of 8 bits, each a
product of its own. A digit product is at most 128 * 127, so that int32 holds CHUNK of them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from samebits.kernels.triton.integers import digits, raise_slot

CHUNK = 1 << 17  # 2**17 * 128 * 127 < 2**31
NARROW = 518  # products of a 16-bit gradient that int32 holds: 518 * 32639 * 127 < 2**31


@triton.jit
def forward(
    x, w, acc, largest, M, H, W, OH, OW, GROUPS,
    CI: tl.constexpr, CO: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """acc[m, o] = sum x * w, int32 below 2**30, of a group (axis 2 of the grid); M = n * OH * OW.

    CI, CO: channels of a group
    """
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    o = tl.program_id(1) * BN + tl.arange(0, BN)
    group = tl.program_id(2)
    image, oy, ox = m // (OH * OW), m // OW % OH, m % OW
    K: tl.constexpr = KH * KW * CI
    sums = tl.zeros((BM, BN), dtype=tl.int32)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        inside = (m[:, None] < M) & (k[None, :] < K)
        tap, c = k // CI, k % CI
        y = oy[:, None] * SH - PH + (tap // KW * DH)[None, :]
        z = ox[:, None] * SW - PW + (tap % KW * DW)[None, :]
        at = ((image[:, None].to(tl.int64) * H + y) * W + z) * (CI * GROUPS)
        at += group * CI + c[None, :]
        if KH * KW > 1 or PH + PW > 0:
            inside = inside & (y >= 0) & (y < H) & (z >= 0) & (z < W)
        a = tl.load(x + at, mask=inside, other=0)
        row = (group * CO + o[None, :]).to(tl.int64) * K
        b = tl.load(w + row + k[:, None], mask=(o[None, :] < CO) & (k[:, None] < K), other=0)
        sums += tl.dot(a, b, out_dtype=tl.int32)
    inside = (m[:, None] < M) & (o[None, :] < CO)
    at = m[:, None].to(tl.int64) * (CO * GROUPS) + group * CO + o[None, :]
    tl.store(acc + at, sums, mask=inside)
    raise_slot(largest, tl.where(inside, sums, 0))


@triton.jit
def input_grad(
    g, w, acc, largest, N, H, W, OH, OW, GROUPS,
    CI: tl.constexpr, CO: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, WIDE: tl.constexpr, CARRY: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """acc[pixel, c] = sum g16 * w: two int8 products a tile, of the balanced digits of g.

    Axis 2 of the grid is the group and the phase of a stride: its pixels, y + P = phase modulo S,
    meet the same taps, so that no product with a gap is computed.

    WIDE: sums are int64. CARRY: products after which digit sums go into int64; 0 for none
    """
    group, phase = tl.program_id(2) // (SH * SW), tl.program_id(2) % (SH * SW)
    py, px = phase // SW, phase % SW
    y0, x0 = (py + PH * (SH - 1)) % SH, (px + PW * (SW - 1)) % SW  # the first pixel of a phase
    rows, columns = (H - y0 + SH - 1) // SH, (W - x0 + SW - 1) // SW
    M = N * rows * columns
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    c = tl.program_id(1) * BN + tl.arange(0, BN)
    across, down = tl.maximum(columns, 1), tl.maximum(rows, 1)
    image, y, z = m // (across * down), m // across % down, m % across
    y, z = y0 + y * SH, x0 + z * SW
    low = tl.zeros((BM, BN), dtype=tl.int32)
    high = tl.zeros((BM, BN), dtype=tl.int32)
    if CARRY:
        total = tl.zeros((BM, BN), dtype=tl.int64)
    pending = 0
    for ky in range(KH):
        for kx in range(KW):
            if (ky * DH % SH == py) & (kx * DW % SW == px):
                oy, ox = (y + PH - ky * DH) // SH, (z + PW - kx * DW) // SW  # exact, or masked
                row = (m < M) & (y + PH >= ky * DH) & (oy < OH)
                row = row & (z + PW >= kx * DW) & (ox < OW)
                at = ((image.to(tl.int64) * OH + oy) * OW + ox) * (CO * GROUPS) + group * CO
                for o0 in range(0, CO, BK):
                    o = o0 + tl.arange(0, BK)
                    inside = row[:, None] & (o[None, :] < CO)
                    v = tl.load(g + at[:, None] + o[None, :], mask=inside, other=0)
                    v = digits(v.to(tl.int32))
                    tap = (group * CO + o[:, None]).to(tl.int64) * (KH * KW) + ky * KW + kx
                    inside = (o[:, None] < CO) & (c[None, :] < CI)
                    b = tl.load(w + tap * CI + c[None, :], mask=inside, other=0)
                    low += tl.dot(v.to(tl.int8), b, out_dtype=tl.int32)
                    high += tl.dot((v >> 8).to(tl.int8), b, out_dtype=tl.int32)
                    if CARRY:
                        pending += BK
                        if pending + BK > CARRY:
                            total += high.to(tl.int64) * 256 + low
                            low, high, pending = low * 0, high * 0, 0
    inside = (m[:, None] < M) & (c[None, :] < CI)
    at = ((image.to(tl.int64) * H + y) * W + z)[:, None] * (CI * GROUPS) + group * CI + c[None, :]
    if WIDE:
        sums = high.to(tl.int64) * 256 + low
        if CARRY:
            sums += total
    else:
        sums = high * 256 + low
    tl.store(acc + at, sums, mask=inside)
    raise_slot(largest, tl.where(inside, sums, 0))


@triton.jit
def weight_grad(
    g, g_largest, x, acc, M, H, W, OH, OW, GROUPS,
    CI: tl.constexpr, CO: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, DIGITS: tl.constexpr, PART: tl.constexpr,
    SPLITS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """acc[o, tap, c] += sum over PART <= CHUNK positions of g * x, one int8 product a digit.

    How many digits are multiplied is read from the largest code of g: a gradient that does not fill
    its type costs fewer products. Programs of several parts (axis 2 of the grid, with the groups)
    add to one element in int64, which is exact in any order; acc begins as zeros.
    """
    o = tl.program_id(0) * BM + tl.arange(0, BM)
    k = tl.program_id(1) * BN + tl.arange(0, BN)
    group, first = tl.program_id(2) // SPLITS, tl.program_id(2) % SPLITS * PART
    K: tl.constexpr = KH * KW * CI
    tap, c = k // CI, k % CI
    top = tl.load(g_largest)
    s0 = tl.zeros((BM, BN), dtype=tl.int32)
    s1 = tl.zeros((BM, BN), dtype=tl.int32)
    s2 = tl.zeros((BM, BN), dtype=tl.int32)
    s3 = tl.zeros((BM, BN), dtype=tl.int32)
    for p0 in range(first, tl.minimum(first + PART, M), BK):
        p = p0 + tl.arange(0, BK)
        image, oy, ox = p // (OH * OW), p // OW % OH, p % OW
        at = p[None, :].to(tl.int64) * (CO * GROUPS) + group * CO + o[:, None]
        v = tl.load(g + at, mask=(o[:, None] < CO) & (p[None, :] < M), other=0)
        v = digits(v.to(tl.int32))
        y = oy[:, None] * SH - PH + (tap // KW * DH)[None, :]
        z = ox[:, None] * SW - PW + (tap % KW * DW)[None, :]
        at = ((image[:, None].to(tl.int64) * H + y) * W + z) * (CI * GROUPS)
        inside = (p[:, None] < M) & (k[None, :] < K) & (y >= 0) & (y < H) & (z >= 0) & (z < W)
        b = tl.load(x + at + group * CI + c[None, :], mask=inside, other=0)
        s0 += tl.dot(v.to(tl.int8), b, out_dtype=tl.int32)
        if top > 0x7F:
            s1 += tl.dot((v >> 8).to(tl.int8), b, out_dtype=tl.int32)
        if DIGITS > 2:
            if top > 0x7F7F:
                s2 += tl.dot((v >> 16).to(tl.int8), b, out_dtype=tl.int32)
            if top > 0x7F7F7F:
                s3 += tl.dot((v >> 24).to(tl.int8), b, out_dtype=tl.int32)
    total = ((s3.to(tl.int64) * 256 + s2) * 256 + s1) * 256 + s0
    inside = (o[:, None] < CO) & (k[None, :] < K)
    at = (group * CO + o[:, None]).to(tl.int64) * K + k[None, :]
    tl.atomic_add(acc + at, total, mask=inside)
