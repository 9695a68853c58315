"""The scalars of batch norm in binary64, operation by operation as docs/spec/training.md has them.

One program holds all channels. Every operation is rounded once: kernels are compiled without fused
multiply-adds (`launch.EXACT`), and what binary64 does not do itself is done on its bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from samebits.kernels.triton import numbers
from samebits.kernels.triton.integers import bit_length, number, smallest_shift, wide

WHOLE = tl.constexpr(4503599627370496.0)  # 2**52, from which on every binary64 is whole
Q32 = tl.constexpr(0x7F7F7F7F)
UNFIT_SCALE, NOT_FINITE = tl.constexpr(numbers.UNFIT_SCALE), tl.constexpr(numbers.NOT_FINITE)
NAN = tl.constexpr(numbers.NAN)


@triton.jit
def real(bits):
    """The binary64 of 64 bits: as an argument, which Triton would take as binary32."""
    return tl.cast(wide(bits), tl.float64, bitcast=True)


@triton.jit
def power(e):
    """2**e, -1022 <= e <= 1023."""
    return real((e + 1023) << 52)


@triton.jit
def is_finite(x):
    """Whether a number is one."""
    return ((x.to(tl.int64, bitcast=True) >> 52) & 0x7FF) != 0x7FF


@triton.jit
def unfit(v, what):
    """The flag for numbers: 0 if all are finite, else `what`, and NAN beside it where one is no
    number."""
    nan = tl.max((v != v).to(tl.int64), 0)
    bad = tl.max((~is_finite(v)).to(tl.int64), 0)
    return bad * what + nan * NAN


@triton.jit
def parts_of(x):
    """(f, e) with x = f * 2**e and 1/2 <= |f| < 1, as frexp has them; x is finite; 0 has (0, 0)."""
    small = tl.abs(x) < power(tl.full((), -1022, tl.int64))
    y = tl.where(small, x * 18014398509481984.0, x)  # 2**54
    bits = y.to(tl.int64, bitcast=True)
    e = ((bits >> 52) & 0x7FF) - 1022 - tl.where(small, 54, 0)
    f = real((bits & ~(0x7FF << 52)) | (1022 << 52))
    return tl.where(x == 0.0, x, f), tl.where(x == 0.0, 0, e)


@triton.jit
def ldexp(x, e):
    """x * 2**e, rounded once: the first of two factors leaves a normal number, exactly."""
    f, own = parts_of(x)
    e = tl.minimum(tl.maximum(own + e, -2000), 2000)
    half = e >> 1
    y = f * power(half) * power(e - half)
    return tl.where((x == 0.0) | ~is_finite(x), x, y)


@triton.jit
def whole(x):
    """rne(x) as int64, |x| < 2**63; 0 for what is not finite."""
    size = tl.abs(x)
    near = tl.where(size < WHOLE, (size + WHOLE) - WHOLE, size)
    near = tl.where(is_finite(x) & (near < 9223372036854775808.0), near, 0.0).to(tl.int64)
    return tl.where(x < 0.0, -near, near)


@triton.jit
def fit(v, BITS: tl.constexpr):
    """The smallest e with |v| <= 2**(e + BITS); 0 for 0."""
    f, e = parts_of(tl.where(is_finite(v), v, 0.0))
    e = tl.where(f > 0.5, e - BITS, e - 1 - BITS)
    return tl.where(v == 0.0, 0, e)


@triton.jit
def product_parts(a, b):
    """The high and the low 64 bits of a * b, int64 in [0, 2**62], as int64 and uint64."""
    x, y = a.to(tl.uint64), b.to(tl.uint64)
    xl, xh, yl, yh = x & 0xFFFFFFFF, x >> 32, y & 0xFFFFFFFF, y >> 32
    cross = xh * yl + ((xl * yl) >> 32)  # below 2**64: halves of at most 2**32 - 1
    more = xl * yh + (cross & 0xFFFFFFFF)
    return (xh * yh + (cross >> 32) + (more >> 32)).to(tl.int64), x * y


@triton.jit
def spread_of(s1, s2, n):
    """n * S2 - S1 * S1, rounded once to binary64; |S1| < 2**39, S2 < 2**54 and n <= 2**24.

    Roundings of samples (12.2) may leave less than 0, which counts as 0.
    """
    high, low = product_parts(s2, n + s2 * 0)
    own_high, own_low = product_parts(tl.abs(s1), tl.abs(s1))
    rest = low - own_low
    high = high - own_high - (low < own_low).to(tl.int64)
    # The leading bits, the last of them set where something is cut off: 62 are more than 53 + 2.
    length = tl.where(high > 0, bit_length(tl.maximum(high, 0)) + 64, 0)
    by = tl.maximum(length - 62, 0)
    left = tl.minimum(tl.maximum(64 - by, 0), 63)
    cut = tl.where(by == 0, 0, rest << left)
    top = (rest >> by.to(tl.uint64)) | tl.where(by == 0, 0, high.to(tl.uint64) << left)
    # Without high bits the difference may still have 64.
    long = (top >> 62) > 0
    cut = cut | tl.where(long, top & 3, 0)
    top = tl.where(long, top >> 2, top)
    odd = top.to(tl.int64) | (cut != 0).to(tl.int64)
    return tl.where(high < 0, 0.0, ldexp(odd.to(tl.float64), by + tl.where(long, 2, 0)))


@triton.jit
def joint_of(codes, delayed, e, e_by, c, inside):
    """The joint values of a vector parameter, exactly."""
    w = tl.load(codes + c, mask=inside, other=0).to(tl.int64)
    j = w * 32768 - tl.load(delayed + c, mask=inside, other=0)
    return ldexp(j.to(tl.float64), number(e, e_by))


@triton.jit
def batch_norm(
    sums, e_sums, e_sums_by, ends, e_z, e_z_by, step, gamma, gamma_delayed, e_gamma, e_gamma_by,
    beta, beta_delayed, e_beta, e_beta_by, mean, variance, scalars, m_out, b_out, ends_out, own,
    flag, n, C, eps, most, RUNNING: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Scalars [3, C], and the multiply-adds [C] of a sample, their exponent, and `ends_out` as
    `rounding.affine` takes it.

    A program makes those of a sample, and the first of them writes the scalars. step: 1 where
    samples have exponents of their own, else all are one
    """
    c, n, sample = tl.arange(0, BLOCK), wide(n), tl.program_id(0).to(tl.int64)
    inside = c < C
    if RUNNING:
        centre = tl.load(mean + c, mask=inside, other=0.0).to(tl.float64)
        var = tl.load(variance + c, mask=inside, other=0.0).to(tl.float64)
    else:
        s1 = tl.load(sums + c, mask=inside, other=0)
        spread = spread_of(s1, tl.load(sums + C + c, mask=inside, other=0), n)
        e = number(e_sums, e_sums_by)
        centre = ldexp(s1.to(tl.float64) / n.to(tl.float64), e)
        var = ldexp(spread / (n * n).to(tl.float64), 2 * e)
    inv = 1.0 / tl.sqrt(var + real(eps))
    a = joint_of(gamma, gamma_delayed, e_gamma, e_gamma_by, c, inside) * inv
    a = tl.where(inside, a, 0.0)
    shift = joint_of(beta, beta_delayed, e_beta, e_beta_by, c, inside) - centre * a
    alpha = ldexp(a, number(e_z + sample * step, e_z_by))
    bound = tl.where(inside, wide(most).to(tl.float64) * tl.abs(alpha) + tl.abs(shift), 0.0)
    new = fit(tl.max(tl.where(is_finite(bound), bound, 0.0), 0), 30)
    m, b = whole(ldexp(alpha, -new)), whole(ldexp(shift, -new))
    for i in tl.static_range(3):
        tl.store(scalars + i * C + c, (centre, inv, a)[i], mask=inside & (sample == 0))
    m_out, b_out, ends = m_out + sample * C, b_out + sample * C, ends + sample * 2 * C
    tl.store(m_out + c, m.to(tl.int32), mask=inside)
    tl.store(b_out + c, b.to(tl.int32), mask=inside)
    low = -tl.load(ends + c, mask=inside, other=0) * m + b
    high = tl.load(ends + C + c, mask=inside, other=0) * m + b
    low, high = tl.where(inside, low, 0), tl.where(inside, high, 0)
    tl.store(ends_out + sample * 2, tl.max(tl.maximum(tl.abs(low), tl.abs(high)), 0))
    tl.store(ends_out + sample * 2 + 1, tl.maximum(tl.max(tl.maximum(low, high), 0), 0))
    tl.store(own + sample, new)
    tl.atomic_max(flag, unfit(bound, UNFIT_SCALE))


@triton.jit
def as_codes(v, out, own, c, inside):
    """Real numbers as bfp32 with the smallest exponent; all zeros have -128."""
    largest = tl.max(tl.abs(tl.where(inside & is_finite(v), v, 0.0)), 0)
    f, e = parts_of(largest)
    mantissa = whole(f * 9007199254740992.0)  # 2**53
    e = e - 53 + smallest_shift(tl.maximum(mantissa, 1), Q32, 1)
    tl.store(out + c, whole(ldexp(v, -e)).to(tl.int32), mask=inside)
    tl.store(own, tl.where(largest == 0.0, -128, e))


@triton.jit
def batch_norm_gradient(
    sums, e_s, e_s_by, e_t, e_t_by, scalars, e_g, e_g_by, g_step, e_z, e_z_by, z_step, a_out, b_out,
    c_out, own, dgamma, dbeta, of_both, flag, n, C, most,
    TRAINING: tl.constexpr, WANTED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """dgamma, dbeta, and the integers of a * g + b * z + c of a sample, with their exponents.

    A program makes those of a sample, as `batch_norm`. sums: of g and of g * z, int64 [2, C], with
    exponents e_s and e_t; most: the largest code of g; WANTED: whether these integers are
    """
    c, n, sample = tl.arange(0, BLOCK), wide(n), tl.program_id(0).to(tl.int64)
    inside = c < C
    of_g, of_z = number(e_g + sample * g_step, e_g_by), number(e_z + sample * z_step, e_z_by)
    centre = tl.load(scalars + c, mask=inside, other=0.0)
    inv = tl.load(scalars + C + c, mask=inside, other=0.0)
    a = tl.load(scalars + 2 * C + c, mask=inside, other=0.0)
    sg = tl.load(sums + c, mask=inside, other=0).to(tl.float64)
    sg = ldexp(sg, number(e_s, e_s_by))
    sgz = tl.load(sums + C + c, mask=inside, other=0).to(tl.float64)
    gg = (ldexp(sgz, number(e_t, e_t_by)) - centre * sg) * inv
    if sample == 0:
        as_codes(gg, dgamma, of_both, c, inside)
        as_codes(sg, dbeta, of_both + 1, c, inside)
    slope, offset = a * 0.0, a * 0.0
    if TRAINING:
        count = n.to(tl.float64)
        slope = -(a * ((gg / count) * inv))
        offset = -(a * (sg / count)) - centre * slope
    a, slope = ldexp(a, of_g), ldexp(slope, of_z)
    reach = tl.abs(a) * wide(most).to(tl.float64) + 127.0 * tl.abs(slope) + tl.abs(offset)
    reach = tl.where(inside, reach, 0.0)
    fine = is_finite(reach) & is_finite(gg) & is_finite(sg)
    e = fit(tl.max(tl.abs(tl.where(inside & is_finite(a), a, 0.0)), 0), 24)
    e = tl.maximum(e, fit(tl.max(tl.where(fine, reach, 0.0), 0), 61))
    for i in tl.static_range(3):
        to = (a_out, b_out, c_out)[i] + sample * C
        tl.store(to + c, whole(ldexp((a, slope, offset)[i], -e)), mask=inside)
    tl.store(own + sample, e)
    # The first that is not finite is told.
    bad = unfit(tl.where(inside, gg, 0.0), NOT_FINITE)
    other = unfit(tl.where(inside, sg, 0.0), NOT_FINITE)
    bad = tl.where(bad > 0, bad, other)
    if WANTED:
        bad = tl.where(bad > 0, bad, unfit(reach, NOT_FINITE))
    tl.atomic_max(flag, bad)


@triton.jit
def running(mean, variance, sums, e_z, e_z_by, n, C, by, flag, BLOCK: tl.constexpr):
    """(1 - by) * old + by * new of mean and variance, in place, unless the flag is up; sums of n
    codes."""
    if tl.load(flag) == 0:
        c, count = tl.arange(0, BLOCK), wide(n)
        inside = c < C
        e, weight = number(e_z, e_z_by), real(by)
        s1 = tl.load(sums + c, mask=inside, other=0)
        spread = spread_of(s1, tl.load(sums + C + c, mask=inside, other=0), count)
        new = ldexp(s1.to(tl.float64) / count.to(tl.float64), e)
        old = tl.load(mean + c, mask=inside, other=0.0).to(tl.float64)
        found = (1.0 - weight) * old + weight * new
        tl.store(mean + c, found.to(mean.dtype.element_ty), mask=inside)
        new = ldexp(spread / (count * (count - 1)).to(tl.float64), 2 * e)
        old = tl.load(variance + c, mask=inside, other=0.0).to(tl.float64)
        found = (1.0 - weight) * old + weight * new
        tl.store(variance + c, found.to(variance.dtype.element_ty), mask=inside)


@triton.jit
def quantized_exponent(top, own, flag, q):
    """The exponent of real numbers whose largest magnitude, as 64 bits, is `top` (1.1 and 5)."""
    x = real(tl.load(top))
    f, e = parts_of(tl.where(is_finite(x), x, 0.0))
    s = smallest_shift(tl.maximum(whole(f * 9007199254740992.0), 1), q, 1)
    e = tl.maximum(e - 53 + s, -128)
    tl.store(own, tl.where(x == 0.0, -128, e))
    bad = NOT_FINITE + (x != x).to(tl.int64) * NAN
    tl.atomic_max(flag, tl.where(is_finite(x), tl.where(e > 127, e, 0), bad).to(tl.int64))


@triton.jit
def largest_real(x, slot, n, BLOCK: tl.constexpr):
    """slot = max(slot, the bits of |x|) in binary64: they are ordered as magnitudes are."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n, other=0.0).to(tl.float64)
    tl.atomic_max(slot, tl.max(v.to(tl.int64, bitcast=True) & 0x7FFFFFFFFFFFFFFF, 0))


@triton.jit
def quantized(x, e, out, n, BLOCK: tl.constexpr):
    """out = rne(x * 2**-e)."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n, other=0.0).to(tl.float64)
    tl.store(out + at, whole(ldexp(v, -tl.load(e))).to(out.dtype.element_ty), mask=at < n)
