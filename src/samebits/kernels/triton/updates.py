"""The lazy update and SGD with random rounding (training.md 1.4, 1.5, 2.1 and 4).

What one kernel finds for the next lies in the numbers of a parameter: `numbers` of the step, and
the cells that live on from step to step. Nothing that lives on is written before all parameters
have passed `settle`, and then only while the flag is down: a step changes all of them or none.
"""

from __future__ import annotations

import triton
import triton.language as tl

from samebits.kernels.triton.integers import bit_length, number, rne

# Places of the coefficients of a group of parameters: m and x of each (3).
LR, X_LR, DECAY, X_DECAY, MU, X_MU = (tl.constexpr(i) for i in range(6))
RATES = 6
# Places of the numbers of a step.
E_P, TOP_P, TOP_W, TOP_J, RAISED, SHIFT, MOVED, E_W = (tl.constexpr(i) for i in range(8))
NUMBERS = 13  # with those of Adam (`triton.adam`)
_NUMBERS = tl.constexpr(NUMBERS)
_E_V, _TOP_V, _BEGUN = tl.constexpr(0), tl.constexpr(1), tl.constexpr(3)  # of those that live on


@triton.jit
def words(i, seed, site, step, third, fourth):
    """Word i of Philox4x32-10 with key (seed, site), counters (i // 4, step, third, fourth), int64.

    Keys and counters are taken modulo 2**32.
    """
    a, b = (i // 4).to(tl.uint32), (i * 0 + step).to(tl.uint32)
    c, d = (i * 0 + third).to(tl.uint32), (i * 0 + fourth).to(tl.uint32)
    k0, k1 = (i * 0 + seed).to(tl.uint32), (i * 0 + site).to(tl.uint32)
    for _ in tl.static_range(10):
        p, q = a.to(tl.uint64) * 0xD2511F53, c.to(tl.uint64) * 0xCD9E8D57
        a, b = (q >> 32).to(tl.uint32) ^ b ^ k0, q.to(tl.uint32)
        c, d = (p >> 32).to(tl.uint32) ^ d ^ k1, p.to(tl.uint32)
        k0, k1 = k0 + 0x9E3779B9, k1 + 0xBB67AE85
    word = i % 4
    w = tl.where(word == 0, a, tl.where(word == 1, b, tl.where(word == 2, c, d)))
    return w.to(tl.int64)


@triton.jit
def random_bits(i, seed, parameter, step):
    """w_V of element i (1.5): a half of a word."""
    w = words(i // 2, seed, parameter, step, 0xFFFFFFFD, 0)
    return tl.where(i % 2 == 0, w & 0xFFFF, w >> 16)


@triton.jit
def kept_by_dropout(out, n, least, seed, site, step, step_by, shard, call, BLOCK: tl.constexpr):
    """Whether words are at least `least`."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    w = words(i, seed, site, number(step, step_by), shard, call)
    tl.store(out + i, (w >= least).to(tl.uint8), mask=i < n)


@triton.jit
def rates(cells, lr, x_lr, decay, x_decay, mu, x_mu):
    """The coefficients of a group in memory."""
    given = (lr, x_lr, decay, x_decay, mu, x_mu)
    for i in tl.static_range(6):
        tl.store(cells + i, tl.cast(given[i], tl.int64))


@triton.jit
def rounded(a, s, word, RANDOM: tl.constexpr):
    """a / 2**s, 0 <= a < 2**52, with 16 random bits or to nearest (1.4)."""
    if RANDOM:
        cut = tl.minimum(tl.maximum(s - 16, 0), 63)
        up = tl.minimum(tl.maximum(16 - s, 0), 16)
        guarded = tl.where(s > 16, a >> cut, a << up)
        left = a << tl.minimum(tl.maximum(-s, 0), 62)
        return tl.where(s <= 0, left, (guarded + word) >> 16)
    else:
        return rne(a, s)


@triton.jit
def significand(code):
    """q, 0 for the code 0, and F."""
    size = tl.abs(code)
    return tl.where(size == 0, 0, 512 + (size & 511)), size >> 9


@triton.jit
def exponents(e_w, i, ok, per, ROWS: tl.constexpr):
    """The exponents of elements of rows of `per`, or the one of all."""
    if ROWS:  # noqa: SIM108  # Triton compiles one of both
        e = tl.load(e_w + i // per, mask=ok, other=0).to(tl.int64)
    else:
        e = tl.load(e_w)
    return e


@triton.jit
def direction(
    g, e_g, e_g_by, w, delayed, e_w, e_top, per, v, cells, out, numbers, flag, n, rates, seed,
    parameter, steps,
    ROWS: tl.constexpr, MOMENTUM: tl.constexpr, RANDOM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """P = encode(G + decay * J + mu * V), its exponent and its largest code (4).

    e_top: the largest exponent of W; cells: exponent and largest code of V, which is 0 where there
    is none yet
    """
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    ok = i < n
    m_decay, x_decay = tl.load(rates + DECAY), tl.load(rates + X_DECAY)
    m_mu, x_mu = tl.load(rates + MU), tl.load(rates + X_MU)
    of_g, of_j = number(e_g, e_g_by), exponents(e_w, i, ok, per, ROWS) - 15 + x_decay
    largest = tl.load(cells + _TOP_V)
    of_v = tl.load(cells + _E_V) - 63 + x_mu
    e = of_g + 31
    e = tl.where(m_decay > 0, tl.maximum(e, tl.load(e_top) - 15 + x_decay + 39), e)
    if MOMENTUM:
        e = tl.where((m_mu > 0) & (largest > 0), tl.maximum(e, of_v + (largest >> 9) + 26), e)
    e -= 50
    sums = rne(tl.load(g + i, mask=ok, other=0).to(tl.int64), e - of_g)
    if m_decay > 0:
        joint = tl.load(w + i, mask=ok, other=0).to(tl.int64) * 32768
        joint -= tl.load(delayed + i, mask=ok, other=0)
        sums += rne(joint * m_decay, e - of_j)
    if MOMENTUM:
        old = tl.load(v + i, mask=ok, other=0).to(tl.int64)
        q, field = significand(old)
        term = rne(q * m_mu, e - of_v - field)
        sums += tl.where(old < 0, -term, term)
    result = tl.maximum(e + 43, -128)
    size = tl.abs(sums)
    length = bit_length(size)
    field = length - 10 + e - result + 63
    word = i * 0
    if RANDOM:
        word = random_bits(i, seed, parameter, tl.load(steps))
    code = 512 * (field - 1) + rounded(size, length - 10, word, RANDOM)
    code = tl.where((size == 0) | (field < 1) | ~ok, 0, code)
    tl.store(out + i, tl.where(sums < 0, -code, code).to(tl.int16), mask=ok)
    tl.atomic_max(numbers + TOP_P, tl.max(code, 0))
    if tl.program_id(0) == 0:
        tl.store(numbers + E_P, result)
        tl.atomic_max(flag, tl.where(result > 127, result, 0))


@triton.jit
def updated(p, w, delayed, i, ok, raised, shift, m, seed, parameter, step, RANDOM: tl.constexpr):
    """W and A after the exponent was raised (2.1, step 2), and the update (step 3), int64."""
    codes = tl.load(w + i, mask=ok, other=0).to(tl.int64)
    rest = tl.load(delayed + i, mask=ok, other=0).to(tl.int64)
    joint = rne(codes * 32768 - rest, raised)
    again = rne(joint, joint * 0 + 15)
    codes = tl.where(raised > 0, again, codes)
    rest = tl.where(raised > 0, again * 32768 - joint, rest)
    code = tl.load(p + i, mask=ok, other=0).to(tl.int64)
    q, field = significand(code)
    word = i * 0
    if RANDOM:
        word = (random_bits(i, seed, parameter, step) * 0x9E37) & 0xFFFF
    u = tl.where(q == 0, 0, rounded(q * m, -(shift + field), word, RANDOM))
    total = rest + tl.where(code < 0, -u, u)
    carry = rne(total, total * 0 + 15)
    return codes - carry, total - carry * 32768


# A weight is updated row by row, each with numbers of its own (`own`), where rows have exponents of
# their own; else it is one row, whose numbers are those of the direction too (`numbers`).


@triton.jit
def row_of(per, BLOCK: tl.constexpr):
    """The row of a program (axis 1 of the grid), its elements, and which of them there are."""
    row = tl.program_id(1).to(tl.int64)
    j = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    return row, row * per + j, j < per


@triton.jit
def row_tops(p, own, per, BLOCK: tl.constexpr):
    """The largest code of P in every row."""
    row, i, ok = row_of(per, BLOCK)
    size = tl.abs(tl.load(p + i, mask=ok, other=0).to(tl.int64))
    tl.atomic_max(own + row * _NUMBERS + TOP_P, tl.max(size, 0))


@triton.jit
def raised_by(numbers, own, e_w, rates):
    """By how much step 2 raises the exponent, and the shift of an update with F = 0 after it."""
    top, x = tl.load(own + TOP_P), tl.load(rates + X_LR)
    shift = tl.load(numbers + E_P) - 63 + x - (tl.load(e_w).to(tl.int64) - 15)
    by = tl.where(top > 0, tl.maximum(shift + (top >> 9) + 26 - 46, 0), 0)
    return by, shift - by


@triton.jit
def measure(
    p, w, delayed, e_w, numbers, own, per, rates, seed, parameter, steps,
    RANDOM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """max|W| and max|J| after the update, which is not written."""
    row, i, ok = row_of(per, BLOCK)
    own += row * _NUMBERS
    by, shift = raised_by(numbers, own, e_w + row, rates)
    step, m = tl.load(steps), tl.load(rates + LR)
    codes, rest = updated(p, w, delayed, i, ok, by, shift, m, seed, parameter, step, RANDOM)
    tl.atomic_max(own + TOP_W, tl.max(tl.where(ok, tl.abs(codes), 0), 0))
    joint = tl.where(ok, tl.abs(codes * 32768 - rest), 0)
    tl.atomic_max(own + TOP_J, tl.max(joint, 0))


@triton.jit
def code_of(joint, by):
    """rne(rne(J / 2**by) / 2**15)."""
    joint = rne(joint, by)
    return rne(joint, joint * 0 + 15)


@triton.jit
def settle(numbers, own, e_w, flag, rates, LIMIT: tl.constexpr):
    """The exponent of a row after steps 2, 4 and 5, and how it moves; it stays for a P of zeros."""
    own += tl.program_id(0) * _NUMBERS
    e_w += tl.program_id(0)
    by, shift = raised_by(numbers, own, e_w, rates)
    is_live = tl.load(own + TOP_P) > 0
    e = tl.load(e_w).to(tl.int64) + by
    top_w, top_j = tl.load(own + TOP_W), tl.load(own + TOP_J)
    length, half = bit_length(top_j), LIMIT // 2
    most = bit_length(tl.full((), LIMIT, tl.int64)) + 15
    up = tl.maximum(length - most, 1)
    up += (code_of(top_j, up) > LIMIT).to(tl.int64)
    down = tl.maximum(most - 1 - length, 1)
    down += (code_of(top_j, -down) <= half).to(tl.int64)
    down = tl.minimum(down, e + 128)
    moved = tl.where(top_w > LIMIT, up, tl.where((top_w <= half) & (top_j > 0), -down, 0))
    moved = tl.where(is_live, moved, 0)
    tl.store(own + RAISED, by)
    tl.store(own + SHIFT, shift)
    tl.store(own + MOVED, moved)
    tl.store(own + E_W, e + moved)
    tl.atomic_max(flag, tl.where(e + moved > 127, e + moved, 0))


@triton.jit
def move(
    p, w, delayed, e_w, own, flag, per, rates, seed, parameter, steps,
    RANDOM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The update written at the exponent that `settle` found, and it, unless the flag is up."""
    if tl.load(flag) == 0:
        row, i, ok = row_of(per, BLOCK)
        own += row * _NUMBERS
        by, shift = tl.load(own + RAISED), tl.load(own + SHIFT)
        moved, step, m = tl.load(own + MOVED), tl.load(steps), tl.load(rates + LR)
        codes, rest = updated(p, w, delayed, i, ok, by, shift, m, seed, parameter, step, RANDOM)
        joint = rne(codes * 32768 - rest, moved)
        split = rne(joint, joint * 0 + 15)
        codes = tl.where(moved == 0, codes, split)
        rest = tl.where(moved == 0, rest, split * 32768 - joint)
        tl.store(w + i, codes.to(tl.int8), mask=ok)
        tl.store(delayed + i, rest.to(tl.int16), mask=ok)
        if tl.program_id(0) == 0:
            tl.store(e_w + row, tl.load(own + E_W).to(e_w.dtype.element_ty))


@triton.jit
def kept(new, old, flag, n, BLOCK: tl.constexpr):
    """old = new, unless the flag is up."""
    if tl.load(flag) == 0:
        i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        tl.store(old + i, tl.load(new + i, mask=i < n, other=0), mask=i < n)


@triton.jit
def ended(momentum, cells, steps, flag, KEEPS: tl.constexpr):
    """The numbers that live on, after a step; momentum: the numbers of the new V."""
    if tl.load(flag) == 0:
        if KEEPS:
            top = tl.load(momentum + TOP_P)
            tl.store(cells + _E_V, tl.where(top == 0, -128, tl.load(momentum + E_P)))
            tl.store(cells + _TOP_V, top)
            tl.store(cells + _BEGUN, tl.full((), 1, tl.int64))
        tl.store(steps, tl.load(steps) + 1)
