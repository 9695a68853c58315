"""Moments and direction of Adam in binary64, operation by operation (training.md 1.4 and 4).

Every magnitude's largest is raised as its 64 bits, which are ordered as magnitudes are. The new
moments are written beside the old ones, which `updates.kept` replaces while the flag is down.
"""

from __future__ import annotations

import triton
import triton.language as tl

from samebits.kernels.triton.integers import number
from samebits.kernels.triton.norms import NOT_FINITE, is_finite, ldexp, parts_of, power, real
from samebits.kernels.triton.updates import E_P, TOP_P, exponents, random_bits, significand

# Places of the numbers of a step, behind those of the update; and of numbers that live on.
TOP_M, TOP_S, TOP_R, E_M, E_S = (tl.constexpr(i) for i in range(8, 13))
_BEGUN, _E_FIRST, _E_ROOT, _POWER1, _POWER2 = (tl.constexpr(i) for i in range(3, 8))


@triton.jit
def bits_of(x):
    """The 64 bits of |x|."""
    return x.to(tl.int64, bitcast=True) & 0x7FFFFFFFFFFFFFFF


@triton.jit
def exponent_for(top):
    """The exponent of e6m9 codes whose largest magnitude has these bits; and what the flag gets."""
    x = real(top)
    _, own = parts_of(tl.where(is_finite(x), x, 0.0))
    e = tl.where(x == 0.0, -128, tl.maximum(own - 9, -128))
    return e, tl.where(is_finite(x), tl.where(e > 127, e, 0), NOT_FINITE).to(tl.int64)


@triton.jit
def encoded(v, e, word, RANDOM: tl.constexpr):
    """Codes at an exponent, with 16 random bits or to nearest (`kernels.moments.encode`)."""
    bits, bias = bits_of(v), e + 969
    kept = bits >> 43
    added = (word << 27) if RANDOM else (1 << 42) - 1 + (kept & 1)
    code = ((bits + added) >> 43) - bias * 512
    code = tl.where((bits >> 52) > bias, code, 0)
    return tl.where(v < 0.0, -code, code)


@triton.jit
def value_of(code, e):
    """The number of a code, exactly."""
    q, field = significand(code)
    size = q.to(tl.float64) * power(e - 63 + field)
    return tl.where(code < 0, -size, size)


@triton.jit
def weight_of(w, delayed, e_w, per, i, ok, ROWS: tl.constexpr):
    """The joint value of a weight, exactly."""
    joint = tl.load(w + i, mask=ok, other=0).to(tl.int64) * 32768
    joint -= tl.load(delayed + i, mask=ok, other=0)
    return ldexp(joint.to(tl.float64), exponents(e_w, i, ok, per, ROWS) - 15)


@triton.jit
def exact_moments(
    g, e_g, e_g_by, w, delayed, e_w, per, first, root, cells, i, ok,
    beta1, rest1, beta2, rest2, coupled, ROWS: tl.constexpr,
):  # fmt: skip
    """The first moment, and the root of the second, before they are rounded."""
    grad = ldexp(tl.load(g + i, mask=ok, other=0).to(tl.float64), number(e_g, e_g_by))
    if coupled != 0:
        grad = grad + real(coupled) * weight_of(w, delayed, e_w, per, i, ok, ROWS)
    m = value_of(tl.load(first + i, mask=ok, other=0).to(tl.int64), tl.load(cells + _E_FIRST))
    m = real(beta1) * m + real(rest1) * grad
    s = value_of(tl.load(root + i, mask=ok, other=0).to(tl.int64), tl.load(cells + _E_ROOT))
    return m, tl.sqrt(real(beta2) * (s * s) + real(rest2) * (grad * grad))


@triton.jit
def tops(
    g, e_g, e_g_by, w, delayed, e_w, per, first, root, cells, numbers, n,
    beta1, rest1, beta2, rest2, coupled, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The largest magnitudes of the new moments, which are not written."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    m, s = exact_moments(
        g, e_g, e_g_by, w, delayed, e_w, per, first, root, cells, i, i < n,
        beta1, rest1, beta2, rest2, coupled, ROWS,
    )  # fmt: skip
    tl.atomic_max(numbers + TOP_M, tl.max(tl.where(i < n, bits_of(m), 0), 0))
    tl.atomic_max(numbers + TOP_S, tl.max(tl.where(i < n, bits_of(s), 0), 0))


@triton.jit
def moments(
    g, e_g, e_g_by, w, delayed, e_w, per, first, root, cells, numbers, n,
    beta1, rest1, beta2, rest2, coupled, new_first, new_root, flag, seed, parameter, steps,
    ROWS: tl.constexpr, RANDOM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """M and S."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    m, s = exact_moments(
        g, e_g, e_g_by, w, delayed, e_w, per, first, root, cells, i, i < n,
        beta1, rest1, beta2, rest2, coupled, ROWS,
    )  # fmt: skip
    e_m, up_m = exponent_for(tl.load(numbers + TOP_M))
    e_s, up_s = exponent_for(tl.load(numbers + TOP_S))
    word = i * 0
    if RANDOM:
        word = random_bits(i, seed, parameter, tl.load(steps))
    of_m = encoded(m, e_m, word, RANDOM)
    of_s = encoded(s, e_s, (word * 0x85EB) & 0xFFFF, RANDOM)
    tl.store(new_first + i, of_m.to(tl.int16), mask=i < n)
    tl.store(new_root + i, of_s.to(tl.int16), mask=i < n)
    if tl.program_id(0) == 0:
        tl.store(numbers + E_M, e_m)
        tl.store(numbers + E_S, e_s)
        tl.atomic_max(flag, tl.maximum(up_m, up_s))


@triton.jit
def powers(cells, beta1, beta2):
    """beta1**t and beta2**t of this step, by one more multiplication."""
    begun = tl.load(cells + _BEGUN) != 0
    one = real(beta1) * 0.0 + 1.0
    power1 = tl.where(begun, real(tl.load(cells + _POWER1)), one)
    power2 = tl.where(begun, real(tl.load(cells + _POWER2)), one)
    return power1 * real(beta1), power2 * real(beta2)


@triton.jit
def exact_direction(
    w, delayed, e_w, per, first, root, cells, numbers, i, ok, beta1, beta2, decoupled, eps,
    ROWS: tl.constexpr,
):  # fmt: skip
    """The direction before it is rounded, from the moments as they are stored."""
    power1, power2 = powers(cells, beta1, beta2)
    m = value_of(tl.load(first + i, mask=ok, other=0).to(tl.int64), tl.load(numbers + E_M))
    s = value_of(tl.load(root + i, mask=ok, other=0).to(tl.int64), tl.load(numbers + E_S))
    p = m / (1.0 - power1) / (s / tl.sqrt(1.0 - power2) + real(eps))
    if decoupled != 0:
        p = p + real(decoupled) * weight_of(w, delayed, e_w, per, i, ok, ROWS)
    return p


@triton.jit
def reach(
    w, delayed, e_w, per, first, root, cells, numbers, n, beta1, beta2, decoupled, eps,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The largest magnitude of the direction, which is not written."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    p = exact_direction(
        w, delayed, e_w, per, first, root, cells, numbers, i, i < n, beta1, beta2, decoupled, eps,
        ROWS,
    )  # fmt: skip
    tl.atomic_max(numbers + TOP_R, tl.max(tl.where(i < n, bits_of(p), 0), 0))


@triton.jit
def direction(
    w, delayed, e_w, per, first, root, cells, numbers, n, beta1, beta2, decoupled, eps, out, flag,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """P, its exponent and its largest code."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    p = exact_direction(
        w, delayed, e_w, per, first, root, cells, numbers, i, i < n, beta1, beta2, decoupled, eps,
        ROWS,
    )  # fmt: skip
    e, up = exponent_for(tl.load(numbers + TOP_R))
    code = encoded(p, e, i, False)
    tl.store(out + i, code.to(tl.int16), mask=i < n)
    tl.atomic_max(numbers + TOP_P, tl.max(tl.where(i < n, tl.abs(code), 0), 0))
    if tl.program_id(0) == 0:
        tl.store(numbers + E_P, e)
        tl.atomic_max(flag, up)


@triton.jit
def kept(numbers, cells, flag, beta1, beta2):
    """The numbers of the moments that live on, unless the flag is up."""
    if tl.load(flag) == 0:
        power1, power2 = powers(cells, beta1, beta2)
        tl.store(cells + _E_FIRST, tl.load(numbers + E_M))
        tl.store(cells + _E_ROOT, tl.load(numbers + E_S))
        tl.store(cells + _POWER1, bits_of(power1))
        tl.store(cells + _POWER2, bits_of(power2))
        tl.store(cells + _BEGUN, tl.full((), 1, tl.int64))
