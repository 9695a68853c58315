"""The optimizer's kernels and the lazy update against the definition, for equality."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from compare import assert_same
from samebits import kernels
from samebits.errors import RangeError
from samebits.kernels.protocol import Gradient, Term
from samebits.spec import formats
from samebits.spec.formats import Q16, Q32
from samebits.train.optim import lazy_update
from samebits.train.tensor import BFPParameter

# --- states -----------------------------------------------------------------------------------


def joints(count: int, top: int, seed: int) -> list[int]:
    """Joint values J up to about `top` * 2**15, many of them halfway between two W."""
    rng = random.Random(seed)
    values = [0, 1, -1, 1 << 14, -(1 << 14), 3 << 14, -(3 << 14), top << 15, -(top << 15)]
    while len(values) < count:
        value = rng.randint(-(top << 15), top << 15)
        values.append((value >> 15 << 15) + (1 << 14) if rng.random() < 0.3 else value)
    return values[:count]


def state(count: int, top: int, seed: int):
    """(W, A): split joint values, ties also the way an update leaves them (W odd)."""
    codes, delayed = formats.split(joints(count, top, seed))
    rng = random.Random(seed)
    for i, a in enumerate(delayed):
        if abs(a) == 1 << 14 and rng.random() < 0.5:
            other = codes[i] - (1 if a > 0 else -1)
            if abs(other) <= 127:
                codes[i], delayed[i] = other, -a
    return codes, delayed


def int8(values):
    return torch.tensor(values, dtype=torch.int8)


def int16(values):
    return torch.tensor(values, dtype=torch.int16)


def directions(count: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    values = [Q16, -Q16, 0, 1, -1]
    values += [rng.randint(-Q16, Q16) >> rng.randint(0, 14) for _ in range(count)]
    return values[:count]


SHIFTS = [15, 14, 3, 0, -1, -2, -3, -8, -15, -23, -24, -25, -30, -31, -40, -46, -62, -63, -64, -300]
COEFFICIENTS = [32768, 65535, 52429]
SIZES = [1, 5, 300]


def updated(codes, delayed, p, m, shift):
    """(J after the update, W - r, t - r * 2**15) by section 2.1, step 3."""
    total = [a + formats.scaled(m * d, shift) for a, d in zip(delayed, p, strict=True)]
    carry = [formats.scaled(t, -15) for t in total]
    w = [c - r for c, r in zip(codes, carry, strict=True)]
    a = [t - (r << 15) for t, r in zip(total, carry, strict=True)]
    return [(c << 15) - d for c, d in zip(w, a, strict=True)], w, a


# --- kernels ----------------------------------------------------------------------------------


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("count", SIZES)
def test_carry(k, shift, count):
    for seed, m in enumerate(COEFFICIENTS):
        codes, delayed = state(count, 63, seed)
        # A carry beyond 8 bits is measured, never written.
        for small, p in ((False, directions(count, seed)), (True, [seed, -2, 3, 1, 0] * 60)):
            p = p[:count]
            joint, w, a = updated(codes, delayed, p, m, shift)
            inputs = list(zip(codes, delayed, p, strict=True))
            largest = max(map(abs, w))
            held, left = int8(codes), int16(delayed)
            assert k.lazy_carry(held, left, int16(p), m, shift, False) == largest
            assert (held.tolist(), left.tolist()) == (codes, delayed)
            assert k.joint_max(held, left, int16(p), m, shift) == max(map(abs, joint))
            if largest <= 127:
                k.lazy_carry(held, left, int16(p), m, shift, True)
                assert_same(held, w, inputs)
                assert_same(left, a, inputs)
            else:
                assert not small or shift > -10


@pytest.mark.parametrize("by", [-7, -6, -1, 0, 1, 2, 9, 24, 40, 63, 64, 200])
@pytest.mark.parametrize("count", SIZES)
def test_resplit(k, by, count):
    for seed, (m, shift) in enumerate(itertools.product([0, *COEFFICIENTS], (0, -9, -30))):
        codes, delayed = state(count, 63 if by >= 0 else max(63 >> -by, 0), seed)
        p = [v >> (0 if by > 0 else 14) for v in directions(count, seed)]
        joint = updated(codes, delayed, p, m, shift)[0]
        if by < 0:
            joint = [formats.scaled(j, -by) for j in joint]
        else:
            joint = [formats.scaled(j, -by) for j in joint]
        w, a = formats.split(joint)
        if max(map(abs, w)) > 127:
            continue
        inputs = list(zip(codes, delayed, p, strict=True))
        held, left = int8(codes), int16(delayed)
        k.lazy_resplit(held, left, int16(p), m, shift, by)
        assert_same(held, w, inputs)
        assert_same(left, a, inputs)


@pytest.mark.parametrize("terms", ["plain", "decay", "momentum", "both"])
@pytest.mark.parametrize("e_g", [-150, -60, -20, 0, 60])
@pytest.mark.parametrize("count", SIZES)
def test_direction(k, terms, e_g, count):
    rng = random.Random(f"{terms} {e_g}")
    for seed, limit in enumerate((Q32, 1000, 0)):
        g = [rng.randint(-limit, limit) for _ in range(count)]
        codes, delayed = state(count, 127, seed)
        codes = [min(max(c, -127), 127) for c in codes]
        e_a, e_v = rng.randint(-40, 0), rng.randint(-60, 10)
        v = directions(count, seed + 9)
        decay = (
            (rng.randint(32768, 65535), rng.randint(-35, -15))
            if terms in ("decay", "both")
            else None
        )
        momentum = (rng.randint(32768, 65535), -16) if terms in ("momentum", "both") else None
        exact_terms = [(g, e_g, 31)]
        if decay:
            joint = [(c << 15) - a for c, a in zip(codes, delayed, strict=True)]
            exact_terms.append(([decay[0] * j for j in joint], e_a + decay[1], 39))
        if momentum:
            exact_terms.append(([momentum[0] * x for x in v], e_v + momentum[1], 31))
        expected, exponent = formats.requantize(*formats.combine(exact_terms), 16)
        held = int16(v)
        term = Term(held, e_v, momentum) if momentum else None
        out = torch.empty(count, dtype=torch.int16)
        gradient = Gradient(((torch.tensor(g, dtype=torch.int32), e_g),), (None,))
        own = (gradient, int8(codes), int16(delayed), e_a, decay, term)
        assert k.direction(*own, out) == exponent
        inputs = list(zip(g, codes, delayed, v, strict=True))
        assert_same(out, expected, inputs)
        if term:  # the direction may replace the momentum it is made from
            assert k.direction(*own, held) == exponent
            assert_same(held, expected, inputs)


def parts_of(count: int, seed: int, kinds):
    """Gradient parts, with the bounds that a weight gradient knows of itself."""
    rng = random.Random(seed)
    parts, bounds = [], []
    for limit, exponent, known in kinds:
        codes = [rng.randint(-limit, limit) for _ in range(count)]
        codes[0] = limit
        parts.append((torch.tensor(codes, dtype=torch.int32), exponent))
        bounds.append(limit if known else None)
    return parts, bounds


@pytest.mark.parametrize("kinds", [
    [(2**20, -30, True), (2**22, -31, True)],
    [(2**30 - 1, -30, True), (2**30 - 1, -30, True)],
    [(2**30 - 1, -30, True), (Q32, -30, True)],
    [(Q32, -30, True), (Q32, -33, True)],
    [(Q32, -30, True), (1, -300, True)],
    [(0, -128, True), (2**20, -150, True)],
    [(0, -20, True), (2**20, -40, True)],
    [(0, -128, True), (0, -128, True)],
    [(2**20, -30, False), (2**22, -31, True)],
    [(2**20, -30, True), (2**22, -31, True), (2**21, -32, True)],
])  # fmt: skip
@pytest.mark.parametrize("terms", ["plain", "both"])
def test_direction_of_several_parts(k, kinds, terms):
    """The sum may be taken where it is used; the bits are those of `resolve`."""
    count = 200
    parts, bounds = parts_of(count, 1, kinds)
    g, e_g = formats.resolve([(v.tolist(), e) for v, e in parts])
    codes, delayed = state(count, 90, 2)
    v = directions(count, 3)
    decay, momentum = ((50000, -40), (60000, -16)) if terms == "both" else (None, None)
    exact_terms = [(g, e_g, 31)]
    if terms == "both":
        joint = [(c << 15) - a for c, a in zip(codes, delayed, strict=True)]
        exact_terms.append(([50000 * j for j in joint], -20 - 40, 39))
        exact_terms.append(([60000 * x for x in v], -25 - 16, 31))
    expected, exponent = formats.requantize(*formats.combine(exact_terms), 16)
    out = torch.empty(count, dtype=torch.int16)
    term = Term(int16(v), -25, momentum) if momentum else None
    gradient = Gradient(tuple(parts), tuple(bounds))
    actual = k.direction(gradient, int8(codes), int16(delayed), -20, decay, term, out)
    assert actual == exponent
    assert_same(out, expected, list(zip(*(p.tolist() for p, _ in parts), strict=True)))


def test_parts_that_cancel_have_the_exponent_of_zero(k):
    """Then the other terms are not rounded to the grid that the parts had."""
    a = torch.tensor([2**29, -5, 7], dtype=torch.int32)
    gradient = Gradient(((a, 0), (-a, 0)), (2**29, 2**29))
    codes, delayed = [100, -3, 1], [5, 5, -1]
    joint = [(c << 15) - d for c, d in zip(codes, delayed, strict=True)]
    decay = (40000, -60)
    zero = ([0] * 3, -128, 31)
    terms = [zero, ([decay[0] * j for j in joint], -20 + decay[1], 39)]
    expected, exponent = formats.requantize(*formats.combine(terms), 16)
    out = torch.empty(3, dtype=torch.int16)
    actual = k.direction(gradient, int8(codes), int16(delayed), -20, decay, None, out)
    assert actual == exponent
    assert_same(out, expected, joint)


@pytest.mark.parametrize("count", [16383, 16384, 16391])
def test_sizes_around_the_threading_threshold(k, count, threads):
    codes, delayed = state(count, 60, 1)
    p, m, shift = [v >> 6 for v in directions(count, 1)], 50000, -9
    joint, w, a = updated(codes, delayed, p, m, shift)
    held, left = int8(codes), int16(delayed)
    assert k.joint_max(held, left, int16(p), m, shift) == max(map(abs, joint))
    k.lazy_carry(held, left, int16(p), m, shift, True)
    assert held.tolist() == w
    assert left.tolist() == a
    k.lazy_resplit(held, left, int16(p), m, shift, 2)
    expected = formats.split([formats.scaled(j, -2) for j in updated(w, a, p, m, shift)[0]])
    assert (held.tolist(), left.tolist()) == expected
    g = torch.arange(count, dtype=torch.int32) * 70001 - 2**29
    out = torch.empty(count, dtype=torch.int16)
    gradient = Gradient(((g, -30),), (None,))
    e = k.direction(gradient, held, left, -20, None, Term(int16(p), -18, (40000, -16)), out)
    terms = [(g.tolist(), -30, 31), ([40000 * v for v in p], -34, 31)]
    assert (out.tolist(), e) == formats.requantize(*formats.combine(terms), 16)


# --- the whole update -------------------------------------------------------------------------


@pytest.fixture
def forced(k, monkeypatch):
    """The optimizer runs on this realisation."""
    monkeypatch.setattr(kernels, "of", lambda tensor: k)
    return k


def compare_update(codes, delayed, exponent, p, e_p, lr):
    weight = (codes, delayed, exponent)
    update = [lr[0] * v for v in p]
    expected = formats.lazy_update(weight, update, e_p + lr[1])
    parameter = BFPParameter(int8(codes), exponent, int16(delayed))
    lazy_update(parameter, int16(p), e_p, lr, "w")
    inputs = list(zip(codes, delayed, p, strict=True))
    assert_same(parameter.codes, expected[0], inputs)
    assert_same(parameter.delayed, expected[1], inputs)
    assert parameter.exponent == expected[2], (weight[2], e_p, lr)
    return expected[2] - exponent


def test_updates_of_every_size(forced):
    """From updates too small to see to ones 2**100 times the weight; all moves of the exponent."""
    moves = set()
    for seed, (top, e_p) in enumerate(
        itertools.product((0, 1, 20, 63, 64, 100, 127), range(-75, 60))
    ):
        count = (1, 2, 40)[seed % 3]
        codes, delayed = state(count, top, seed)
        lr = COEFFICIENTS[seed % 3], -16
        moves.add(compare_update(codes, delayed, -8, directions(count, seed), e_p, lr))
    assert {-3, -2, -1, 0, 1, 2, 3} <= moves
    assert max(moves) > 15


def test_updates_that_cross_the_limits_by_one_step(forced):
    """Joint values next to 127.5, 63.5 and 0 after the update."""
    for target in (127, 128, 63, 64, 0):
        for offset in (-1, 0, 1):
            # J = 2**15 * start, U = J - wanted, exactly (m = 2**15, shift -15).
            wanted = (target << 15) - (1 << 14) + offset if target else offset
            for sign, start in itertools.product((1, -1), (100, 70)):
                u = sign * ((start << 15) - wanted)
                whole = u >> 15
                codes, delayed = [sign * start, 64 * sign], [(u - (whole << 15)) * -1 + 0, 0]
                if abs(delayed[0]) > 1 << 14:
                    whole, delayed[0] = whole + 1, delayed[0] + (1 << 15)
                compare_update(codes, delayed, -5, [whole, 0], -20, (32768, 0))


@pytest.mark.parametrize("exponent", [-128, -127, -126, -124, 125, 126, 127])
def test_updates_at_the_ends_of_the_exponent_range(forced, exponent):
    for seed, top in enumerate((1, 20, 63, 127)):
        codes, delayed = state(30, top, seed)
        for e_p in (exponent - 40, exponent - 16, exponent - 12):
            p = directions(30, seed)
            weight = codes, delayed, exponent
            try:
                formats.lazy_update(weight, [40000 * v for v in p], e_p - 16)
            except RangeError:
                parameter = BFPParameter(int8(codes), exponent, int16(delayed))
                with pytest.raises(RangeError, match=r"parameter 'w': the update overflows"):
                    lazy_update(parameter, int16(p), e_p, (40000, -16), "w")
            else:
                compare_update(codes, delayed, exponent, p, e_p, (40000, -16))


def test_no_update_changes_nothing(forced):
    codes, delayed = state(20, 20, 1)  # max|W| <= 63 stays: nothing is doubled
    assert compare_update(codes, delayed, 3, [0] * 20, 90, (40000, -16)) == 0


def test_an_update_that_leaves_zero(forced):
    """J = 0 everywhere: the exponent stays."""
    assert compare_update([64], [0], 3, [64], 3, (32768, -15)) == 0


def test_a_long_run_of_updates(forced):
    """State carried on through 300 updates whose size drifts."""
    rng = random.Random(5)
    weight = formats.initial_weight([rng.gauss(0, 1) for _ in range(20)])
    parameter = BFPParameter(int8(weight[0]), weight[2], int16(weight[1]))
    for step in range(300):
        p, e_p = directions(20, step)[::-1], -30 + step // 30 - (step % 40)
        weight = formats.lazy_update(weight, [33000 * v for v in p], e_p - 12)
        lazy_update(parameter, int16(p), e_p, (33000, -12), "w")
        assert (parameter.codes.tolist(), parameter.delayed.tolist(), parameter.exponent) == weight
