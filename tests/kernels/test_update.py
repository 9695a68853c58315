"""The optimizer's kernels and the lazy update against the definition, for equality."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import random
from ctypes import c_int64

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import drawn
import interpreted
from compare import assert_same
from samebits import kernels
from samebits.errors import RangeError
from samebits.kernels.adam import AdamTerms
from samebits.kernels.eager import Eager
from samebits.kernels.library import STRUCTS
from samebits.kernels.moments import Draw, Update
from samebits.kernels.optimize import Entry, Roster, StepGradients, StepOptions
from samebits.kernels.protocol import Gradient, SGDTerms, Term
from samebits.spec import formats
from samebits.spec.formats import Q32
from samebits.spec.training import moments, optimizer
from samebits.spec.training.layers import Parameter
from samebits.spec.training.optimizer import moment_term, one_exponent
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


@drawn.once
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


@drawn.once
def directions(count: int, seed: int, low: int = 1) -> list[int]:
    """e6m9 codes: the ends of every field, zeros, and random ones of fields from `low`."""
    rng = random.Random(seed)
    values = [32767, -32767, 0, low * 512, -low * 512]
    while len(values) < count:
        code = rng.randint(max(low, rng.choice((1, 40, 55, 60))), 63) * 512 + rng.randint(0, 511)
        values.append(rng.choice((code, -code, 0)) if rng.random() < 0.2 else code)
    return values[:count]


DRAWS = [None, Draw(3, 1, 5)]
SHIFTS = [-43, -44, -48, -60, -70, -72, -73, -74, -80, -90, -100, -107, -120, -300]
COEFFICIENTS = [32768, 65535, 52429]
SIZES = [1, 5, 300]


@drawn.once
def words_of(draw, count: int, kind: str = "update", shape: tuple[int, ...] | None = None):
    """The random bits of a draw by the definition, or None."""
    if draw is None:
        return None
    bits = moments.Draw(*draw)
    return [getattr(bits, kind)(i) for i in optimizer.positions(shape or (count,))]


def subtracted(p, m, shift, words):
    """u of every element by section 2.1, step 3."""
    u = []
    for i, code in enumerate(p):
        q, field = moments.significand(code) if code else (0, 0)
        v = moments.rounded(m * q, -(shift + field), None if words is None else words[i])
        u.append(-v if code < 0 else v)
    return u


def updated(codes, delayed, u):
    """(J after the update, W - r, t - r * 2**15) by section 2.1, step 3."""
    total = [a + v for a, v in zip(delayed, u, strict=True)]
    carry = [formats.scaled(t, -15) for t in total]
    w = [c - r for c, r in zip(codes, carry, strict=True)]
    a = [t - (r << 15) for t, r in zip(total, carry, strict=True)]
    return [(c << 15) - d for c, d in zip(w, a, strict=True)], w, a


# --- kernels ----------------------------------------------------------------------------------


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("count", SIZES)
def test_carry(k, shift, count, draw):
    words = words_of(draw, count)
    for seed, m in enumerate(COEFFICIENTS):
        codes, delayed = state(count, 63, seed)
        # A carry beyond 8 bits is measured, never written.
        for small in (False, True):
            p = directions(count, seed)
            if small:
                p = [c % 8192 * (1 if abs(c) % 8192 >= 512 else 0) for c in p]
            u = subtracted(p, m, shift, words)
            joint, w, a = updated(codes, delayed, u)
            inputs = list(zip(codes, delayed, p, strict=True))
            largest = max(map(abs, w))
            held, left = int8(codes), int16(delayed)
            update = Update(int16(p), m, shift, draw)
            tops = largest, max(map(abs, joint))
            assert k.lazy_carry(held, left, update, False) == tops
            assert (held.tolist(), left.tolist()) == (codes, delayed)
            assert max(map(abs, u)) <= 2 ** max(update.bits, 0)
            if largest <= 127:
                assert k.lazy_carry(held, left, update, True) == tops
                assert_same(held, w, inputs)
                assert_same(left, a, inputs)
            else:
                assert not small or shift > -60


def test_random_bits_do_not_lift_what_16_bits_cut_off(k):
    """The largest product, of which 16 bits behind the point show nothing from a shift of 42 on."""
    count = 1 << 18
    for right, moves in ((41, True), (42, False), (60, False)):
        codes, delayed = torch.zeros(count, dtype=torch.int8), torch.zeros(count, dtype=torch.int16)
        p = torch.full((count,), (73 - right) * 512 + 511, dtype=torch.int16)
        k.lazy_carry(codes, delayed, Update(p, 65535, -73, Draw(0, 0, 0)), True)
        assert bool(delayed.any()) == moves


@pytest.mark.parametrize("by", [-7, -6, -1, 0, 1, 2, 9, 24, 40, 63, 64, 200])
@pytest.mark.parametrize("count", SIZES)
def test_resplit(k, by, count):
    cases = itertools.product([0, *COEFFICIENTS], (-63, -72, -93), DRAWS)
    for seed, (m, shift, draw) in enumerate(cases):
        codes, delayed = state(count, 63 if by >= 0 else max(63 >> -by, 0), seed)
        p = directions(count, seed)
        u = subtracted(p, m, shift, words_of(draw, count))
        joint = [formats.scaled(j, -by) for j in updated(codes, delayed, u)[0]]
        w, a = formats.split(joint)
        if max(map(abs, w)) > 127:
            continue
        inputs = list(zip(codes, delayed, p, strict=True))
        held, left = int8(codes), int16(delayed)
        k.lazy_resplit(held, left, Update(int16(p), m, shift, draw), by)
        assert_same(held, w, inputs)
        assert_same(left, a, inputs)


def direction_of(terms, draw, count, shape=None):
    """Codes and exponent of a direction by sections 3 and 4."""
    return optimizer.encode_sum(optimizer.combine(terms), words_of(draw, count, "moment", shape))


def term_of(v, exponent: int, coefficient) -> Term:
    """A momentum as the kernels take it."""
    codes = v if isinstance(v, torch.Tensor) else int16(v)
    return Term(codes, exponent, coefficient, int(codes.long().abs().max()))


@pytest.mark.parametrize("terms", ["plain", "decay", "momentum", "both"])
@pytest.mark.parametrize("e_g", [-150, -60, -20, 0, 60])
@pytest.mark.parametrize("count", SIZES)
def test_direction(k, terms, e_g, count):
    rng = random.Random(f"{terms} {e_g}")
    for seed, limit in enumerate((Q32, 1000, 0)):
        draw = DRAWS[seed % 2]
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
        exact_terms = [one_exponent(g, e_g, 31)]
        if decay:
            joint = [(c << 15) - a for c, a in zip(codes, delayed, strict=True)]
            exact_terms.append(one_exponent([decay[0] * j for j in joint], e_a + decay[1], 39))
        if momentum:
            exact_terms.append(moment_term((v, e_v), math.ldexp(*momentum)))
        expected, exponent = direction_of(exact_terms, draw, count)
        held = int16(v)
        term = term_of(held, e_v, momentum) if momentum else None
        out = torch.empty(count, dtype=torch.int16)
        gradient = Gradient(((torch.tensor(g, dtype=torch.int32), e_g),), (None,))
        own = SGDTerms(gradient, int8(codes), int16(delayed), e_a, decay, term, draw)
        assert k.direction(own, out) == (exponent, max(map(abs, expected)))
        inputs = list(zip(g, codes, delayed, v, strict=True))
        assert_same(out, expected, inputs)
        if term:  # the direction may replace the momentum it is made from
            assert k.direction(own, held)[0] == exponent
            assert_same(held, expected, inputs)


@functools.cache
def sgd_case(terms, parts, count):
    """(the terms, whose W and A are lists, and the bits after them: p, e_p, J, W and A)."""
    rng, draw = random.Random(f"{terms} {parts}"), Draw(4, 2, 9)
    codes, delayed = state(count, 90, 3)
    kinds = [(2**20, -40, True), (2**21, -41, True)][:parts]
    tensors, bounds = parts_of(count, 1, kinds)
    g, e_g = formats.resolve([(v.tolist(), e) for v, e in tensors])
    decay = (50000, -31) if terms in ("decay", "both") else None
    momentum = (59000, -16) if terms in ("momentum", "both") else None
    exact_terms, term = [one_exponent(g, e_g, 31)], None
    if decay:
        joint = [(c << 15) - a for c, a in zip(codes, delayed, strict=True)]
        exact_terms.append(one_exponent([decay[0] * j for j in joint], -20 + decay[1], 39))
    if momentum:
        v = directions(count, rng.randint(0, 99))
        exact_terms.append(moment_term((v, -29), math.ldexp(*momentum)))
        term = v, -29, momentum
    p, e_p = direction_of(exact_terms, draw if momentum else None, count)
    shift = e_p - 63 + SGD_LR[1] + 20
    after = updated(codes, delayed, subtracted(p, SGD_LR[0], shift, words_of(draw, count)))
    gradient = Gradient(tuple(tensors), tuple(bounds))
    return (gradient, codes, delayed, decay, term, draw), g, (p, e_p), after


SGD_LR = (52429, -19)


@pytest.mark.parametrize("count", [9, 15, 300, 3000, 16391])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("terms", ["plain", "decay", "momentum", "both"])
def test_sgd_in_one_pass(k, terms, parts, count, threads):
    """Momentum and update in one call, where W surely stays in its range: the bits of both."""
    given, g, (p, e_p), (joint, w, a) = sgd_case(terms, parts, count)
    gradient, codes, delayed, decay, term, draw = given
    held, left, v = int8(codes), int16(delayed), term and int16(term[0])
    limit = max(map(abs, codes)) * 4 // 3 + 2  # far from where an exponent moves, below and above
    largest = (c_int64 * 2)(max(abs((c << 15) - a) for c, a in zip(codes, delayed, strict=True)))
    numbers = STRUCTS["Numbers"](begun=term is not None, steps=draw.step)
    if term:
        numbers.momentum_exponent, numbers.momentum_largest = term[1], max(map(abs, term[0]))
    with kernels.use("triton") if interpreted.is_one(k) else contextlib.nullcontext():
        numbers = kernels.kept_on(held.device, numbers)
    state = (held, left, torch.tensor(-5), largest, () if v is None else (v,), numbers)
    options = StepOptions(
        *(False, False, True, draw.seed, *SGD_LR, -3),
        *(*(decay or (0, 0)), 0, *(term[2] if term else (0, 0)), 0),
    )
    roster = Roster((Entry(*state, limit, draw.parameter, 0),))
    done = k.optimize(roster, (options,), StepGradients((gradient,)))
    if type(k) is Eager:
        assert done is None
        return
    assert done
    inputs = list(zip(g, codes, delayed, strict=True))
    assert_same(held, w, inputs)
    assert_same(left, a, inputs)
    if interpreted.is_one(k):  # that of the old codes, whose version is another
        assert largest[1] != held._version
    else:
        assert list(largest) == [max(map(abs, joint)), held._version]
    assert numbers.steps == draw.step + 1
    if v is not None:
        assert_same(v, p, inputs)
        most = max(map(abs, p))
        assert (numbers.momentum_exponent, numbers.momentum_largest) == (e_p, most)


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("e_g", [-30, -500])
@pytest.mark.parametrize("decoupled", [False, True])
def test_adam(k, draw, e_g, decoupled):
    """Moments and direction against the definition, from zero and from moments of any size."""
    rule = optimizer.Adam(0.0, 0.8, 0.99, 1e-8, 0.125, decoupled, draw and draw.seed)
    for count, seed in itertools.product((1, 7, 300), (0, 1)):
        rng = random.Random(seed)
        codes, delayed = state(count, 100, seed)
        g = [rng.randint(-Q32, Q32) >> rng.randint(0, 31) for _ in range(count)]
        first, root = ([0] * count, -128), ([0] * count, -128)
        if seed:
            first = directions(count, 5), -20
            root = [abs(c) for c in directions(count, 6)], -19
        steps = 5 if draw else 0
        held = optimizer.AdamState(first, root, steps, 0.8**steps, 0.99**steps)
        parameter = Parameter((codes, delayed, -8), (count,))
        # The definition's direction, from its update with a learning rate of 0.
        _, new = rule.update("w", 1, parameter, (g, e_g), held)
        c1, c2 = 1.0 - new.power1, math.sqrt(1.0 - new.power2)
        p = [
            moments.value(a, new.first[1]) / c1 / (moments.value(b, new.root[1]) / c2 + 1e-8)
            + (0.125 * j if decoupled else 0.0)
            for a, b, j in zip(new.first[0], new.root[0], parameter.values, strict=True)
        ]
        m, s = int16(first[0]), int16(root[0])
        terms = AdamTerms(
            g=torch.tensor(g, dtype=torch.int32), e_g=e_g, codes=int8(codes),
            delayed=int16(delayed), e_a=-23, first=m, e_first=first[1], root=s, e_root=root[1],
            beta1=0.8, beta2=0.99, coupled=0.0 if decoupled else 0.125,
            decoupled=0.125 if decoupled else 0.0, c1=c1, c2=c2, eps=1e-8, draw=draw,
        )  # fmt: skip
        out = torch.empty(count, dtype=torch.int16)
        exponents = k.adam(terms, out)
        expected, e_p = moments.encode_reals(p, None)
        assert exponents == (new.first[1], new.root[1], e_p)
        assert_same(m, new.first[0], g)
        assert_same(s, new.root[0], g)
        assert_same(out, expected, p)


class NoCopyOntoItself(TorchDispatchMode):
    """Refuses, as CUDA does, to copy a tensor onto its own memory."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.copy_.default:
            assert args[0].data_ptr() != args[1].data_ptr()
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("order", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("shape", [(4, 6, 1, 1), (4, 1, 2, 3), (2, 3, 2, 2)])
def test_adam_of_images(k, shape, order):
    """Every shape has the bits of its elements in a row, in memory of any order."""
    count = math.prod(shape)
    codes, delayed = state(count, 100, 3)
    given = {
        "g": torch.tensor([i * 70001 - 2**20 for i in range(count)], dtype=torch.int32),
        "codes": int8(codes), "delayed": int16(delayed), "first": int16(directions(count, 5)),
        "root": int16([abs(c) for c in directions(count, 6)]),
    }  # fmt: skip
    numbers = {
        "e_g": -30, "e_a": -23, "e_first": -20, "e_root": -19, "beta1": 0.8, "beta2": 0.99,
        "coupled": 0.125, "decoupled": 0.0, "c1": 0.2, "c2": 0.1, "eps": 1e-8, "draw": None,
    }  # fmt: skip
    found = []
    for placed in (lambda v: v.clone(), lambda v: v.view(shape).clone(memory_format=order)):
        tensors = {name: placed(v) for name, v in given.items()}
        out = torch.empty_like(tensors["first"])
        with NoCopyOntoItself():
            exponents = k.adam(AdamTerms(**tensors, **numbers), out)
        results = (out, tensors["first"], tensors["root"])
        found.append((exponents, *(v.flatten().tolist() for v in results)))
    assert found[0] == found[1]


def test_random_bits_of_images(k):
    """Weights of a convolution draw in the order of channels-last memory, whatever they lie in."""
    shape, draw = (3, 5, 2, 2), Draw(9, 4, 2)
    count = math.prod(shape)
    codes, delayed = state(count, 63, 1)
    p = directions(count, 2)
    u = subtracted(p, 50000, -72, words_of(draw, count, shape=shape))
    _, w, a = updated(codes, delayed, u)
    g = [i * 70001 - 2**20 for i in range(count)]
    expected = direction_of([one_exponent(g, -30, 31)], draw, count, shape)
    for order in (torch.channels_last, torch.contiguous_format):
        held, left, direction = (
            t.view(shape).contiguous(memory_format=order)
            for t in (int8(codes), int16(delayed), int16(p))
        )
        gradient = Gradient(((torch.tensor(g, dtype=torch.int32).view(shape), -30),), (None,))
        out = torch.empty_like(held, dtype=torch.int16)
        e, _ = k.direction(SGDTerms(gradient, held, left, -20, None, None, draw), out)
        assert (out.flatten().tolist(), e) == expected
        k.lazy_carry(held, left, Update(direction, 50000, -72, draw), True)
        assert_same(held, w, p)
        assert_same(left, a, p)


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
    exact_terms = [one_exponent(g, e_g, 31)]
    if terms == "both":
        joint = [(c << 15) - a for c, a in zip(codes, delayed, strict=True)]
        exact_terms.append(one_exponent([50000 * j for j in joint], -20 - 40, 39))
        exact_terms.append(moment_term((v, -25), 60000 / 65536))
    expected, exponent = direction_of(exact_terms, None, count)
    out = torch.empty(count, dtype=torch.int16)
    term = term_of(v, -25, momentum) if momentum else None
    gradient = Gradient(tuple(parts), tuple(bounds))
    own = SGDTerms(gradient, int8(codes), int16(delayed), -20, decay, term, None)
    assert k.direction(own, out) == (exponent, max(map(abs, expected)))
    assert_same(out, expected, list(zip(*(p.tolist() for p, _ in parts), strict=True)))


def test_parts_that_cancel_have_the_exponent_of_zero(k):
    """Then the other terms are not rounded to the grid that the parts had."""
    a = torch.tensor([2**29, -5, 7], dtype=torch.int32)
    gradient = Gradient(((a, 0), (-a, 0)), (2**29, 2**29))
    codes, delayed = [100, -3, 1], [5, 5, -1]
    joint = [(c << 15) - d for c, d in zip(codes, delayed, strict=True)]
    decay = (40000, -60)
    terms = [one_exponent([0] * 3, -128, 31)]
    terms.append(one_exponent([decay[0] * j for j in joint], -20 + decay[1], 39))
    expected, exponent = direction_of(terms, None, 3)
    out = torch.empty(3, dtype=torch.int16)
    own = SGDTerms(gradient, int8(codes), int16(delayed), -20, decay, None, None)
    assert k.direction(own, out) == (exponent, max(map(abs, expected)))
    assert_same(out, expected, joint)


@pytest.mark.parametrize("gap", [0, -3])
@pytest.mark.parametrize("counts", [0, 1, 299])
def test_parts_that_cancel_at_first(k, counts, gap):
    """Elements behind those that are looked at count too; the momentum is rounded to their grid."""
    first = torch.zeros(300, dtype=torch.int32)
    first[:counts] = 2**20 + torch.arange(counts, dtype=torch.int32)
    second = -(first << -gap)
    first[counts:] += torch.arange(300 - counts, dtype=torch.int32)
    parts = ((first, 0), (second, gap))
    g, e_g = formats.resolve([(v.tolist(), e) for v, e in parts])
    codes, delayed = state(300, 90, 2)
    v = directions(300, 3)
    term = term_of(v, -60, (60000, -16))
    terms = [one_exponent(g, e_g, 31), moment_term((v, -60), 60000 / 65536)]
    expected, exponent = direction_of(terms, None, 300)
    out = torch.empty(300, dtype=torch.int16)
    gradient = Gradient(parts, (2**21, 2**24))
    own = SGDTerms(gradient, int8(codes), int16(delayed), -20, None, term, None)
    assert k.direction(own, out) == (exponent, max(map(abs, expected)))
    assert_same(out, expected, list(zip(first.tolist(), second.tolist(), strict=True)))


@pytest.mark.parametrize("count", [16383, 16384, 16391])
def test_sizes_around_the_threading_threshold(k, count, threads):
    draw = Draw(2**32 - 1, 7, 2**32 - 1)
    words = words_of(draw, count)
    codes, delayed = state(count, 60, 1)
    p, m, shift = directions(count, 1), 50000, -74
    joint, w, a = updated(codes, delayed, subtracted(p, m, shift, words))
    held, left, update = int8(codes), int16(delayed), Update(int16(p), m, shift, draw)
    assert k.lazy_carry(held, left, update, True)[1] == max(map(abs, joint))
    assert held.tolist() == w
    assert left.tolist() == a
    k.lazy_resplit(held, left, update, 2)
    joint = updated(w, a, subtracted(p, m, shift, words))[0]
    expected = formats.split([formats.scaled(j, -2) for j in joint])
    assert (held.tolist(), left.tolist()) == expected
    g = torch.arange(count, dtype=torch.int32) * 70001 - 2**29
    out = torch.empty(count, dtype=torch.int16)
    gradient = Gradient(((g, -30),), (None,))
    term = term_of(p, -18, (40000, -16))
    e, _ = k.direction(SGDTerms(gradient, held, left, -20, None, term, draw), out)
    terms = [one_exponent(g.tolist(), -30, 31), moment_term((p, -18), 40000 / 65536)]
    assert (out.tolist(), e) == direction_of(terms, draw, count)


# --- rows with exponents of their own ---------------------------------------------------------

SHAPES = [(1, 1), (5, 3), (3, 40), (9, 1), (2, 3, 2, 2)]


@drawn.once
def rows_of(shape, seed: int):
    """(W, A, e_W) with rows of very different sizes, one of them all zeros."""
    rng, size = random.Random(seed), math.prod(shape[1:])
    codes, delayed, exponents = [], [], []
    for row in range(shape[0]):
        w, a = state(size, rng.choice((1, 20, 63, 64, 100, 127)), rng.randint(0, 99))
        if row % 4 == 3:
            w, a = [0] * size, [0] * size
        codes, delayed = codes + w, delayed + a
        exponents.append(rng.choice((-128, -127, -60, -20, -8, -7, 3, 90)))
    return codes, delayed, tuple(exponents)


@drawn.once
def row_directions(shape, seed: int) -> list[int]:
    """Codes of which some rows are all zeros, and some small."""
    rng, size = random.Random(seed), math.prod(shape[1:])
    found = []
    for row in range(shape[0]):
        codes = directions(size, rng.randint(0, 99))
        limit = (63, 63, 5, 0)[(row + seed) % 4]
        found += [c if abs(c) < (limit + 1) * 512 and limit else 0 for c in codes]
    return found


def in_memory(values, shape, dtype):
    """A tensor in the memory order of a parameter."""
    order = torch.channels_last if len(shape) == 4 else torch.contiguous_format
    return torch.tensor(values, dtype=dtype).view(shape).contiguous(memory_format=order)


def column(exponents, shape):
    return torch.tensor(exponents).view(-1, *(1 for _ in shape[1:]))


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("shape", SHAPES)
def test_update_of_rows(k, shape, draw):
    """From updates too small to see to ones far above the weights, at both ends of the range."""
    count, moves = math.prod(shape), set()
    words = words_of(draw, count, shape=shape)
    for seed, e_p in enumerate((-128, -100, -60, -30, -21, -15, -9, -2, 5, 30, 80)):
        codes, delayed, exponents = rows_of(shape, seed)
        p, lr = row_directions(shape, seed), (COEFFICIENTS[seed % 3], -16)
        try:
            w, a, expected = optimizer.lazy_update((codes, delayed, exponents), (p, e_p), lr, words)
        except RangeError:
            continue
        held, left = (
            in_memory(v, shape, t) for v, t in ((codes, torch.int8), (delayed, torch.int16))
        )
        update = Update(in_memory(p, shape, torch.int16), lr[0], e_p - 63 + lr[1], draw)
        found = k.lazy_rows(held, left, column(exponents, shape), update, 127)
        inputs = list(zip(codes, delayed, p, strict=True))
        assert found.flatten().tolist() == list(expected)
        assert_same(held, w, inputs)
        assert_same(left, a, inputs)
        moves |= {new - old for new, old in zip(expected, exponents, strict=True)}
    assert count < 10 or (min(moves) < 0 < max(moves) and 0 in moves)


def test_one_row_is_the_tensor(k):
    """One exponent is the case of one row."""
    for seed, e_p in enumerate((-60, -20, -9, 0)):
        codes, delayed = state(40, 100, seed)
        p, lr, draw = directions(40, seed), (40000, -16), DRAWS[seed % 2]
        whole = BFPParameter(int8(codes), -8, int16(delayed))
        update = Update(int16(p).view(1, 40), lr[0], e_p - 63 + lr[1], draw)
        held, left = int8(codes).view(1, 40), int16(delayed).view(1, 40)
        found = k.lazy_rows(held, left, torch.tensor([[-8]]), update, 127)
        lazy_update(whole, int16(p), e_p, lr, draw)
        assert int(found) == whole.exponent
        assert torch.equal(held.flatten(), whole.codes)
        assert torch.equal(left.flatten(), whole.delayed)


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("shape", [(5, 3), (3, 40), (2, 3, 2, 2)])
def test_direction_of_rows(k, shape, draw):
    """The decay of a weight with exponents by rows."""
    count = math.prod(shape)
    for seed, e_g in enumerate((-150, -60, -30, 0)):
        codes, delayed, exponents = rows_of(shape, seed)
        g = [random.Random(seed + i).randint(-Q32, Q32) for i in range(count)]
        v, decay = row_directions(shape, seed), (50000, -30)
        parameter = Parameter((codes, delayed, exponents), shape)
        terms = [one_exponent(g, e_g, 31)]
        terms.append(optimizer.decay_term(optimizer.joint_of(parameter), math.ldexp(*decay)))
        terms.append(moment_term((v, -19), 59000 / 65536))
        expected = direction_of(terms, draw, count, shape)
        own = SGDTerms(
            Gradient(((in_memory(g, shape, torch.int32), e_g),), (None,)),
            in_memory(codes, shape, torch.int8),
            in_memory(delayed, shape, torch.int16),
            column(exponents, shape) - 15,
            decay,
            term_of(in_memory(v, shape, torch.int16), -19, (59000, -16)),
            draw,
        )
        out = torch.empty_like(own.codes, dtype=torch.int16)
        e, _ = k.direction(own, out)
        assert (out.flatten().tolist(), e) == expected


@pytest.mark.parametrize("decay", [0.0, 0.125])
@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("shape", [(5, 3), (3, 40), (2, 3, 2, 2)])
def test_adam_of_rows(k, shape, decoupled, decay):
    count = math.prod(shape)
    for seed, draw in enumerate(DRAWS):
        rule = optimizer.Adam(0.0, 0.8, 0.99, 1e-8, decay, decoupled, draw and draw.seed)
        codes, delayed, exponents = rows_of(shape, seed)
        exponents = tuple(max(min(e, 3), -30) for e in exponents)
        g = [random.Random(seed + i).randint(-Q32, Q32) >> i % 31 for i in range(count)]
        parameter, zero = Parameter((codes, delayed, exponents), shape), ([0] * count, -128)
        steps = 5 if draw else 0
        old = optimizer.AdamState(zero, zero, steps, 0.8**steps, 0.99**steps)
        _, new = rule.update("w", 1, parameter, (g, -30), old)
        c1, c2 = 1.0 - new.power1, math.sqrt(1.0 - new.power2)
        weights = [math.ldexp(float(j), e) for j, e in optimizer.joint_of(parameter)]
        p = [
            moments.value(a, new.first[1]) / c1 / (moments.value(b, new.root[1]) / c2 + 1e-8)
            + (decay * j if decoupled else 0.0)
            for a, b, j in zip(new.first[0], new.root[0], weights, strict=True)
        ]
        held, left = (
            in_memory(v, shape, t) for v, t in ((codes, torch.int8), (delayed, torch.int16))
        )
        m, s = torch.zeros_like(left), torch.zeros_like(left)
        terms = AdamTerms(
            g=in_memory(g, shape, torch.int32), e_g=-30, codes=held, delayed=left,
            e_a=column(exponents, shape) - 15, first=m, e_first=-128, root=s, e_root=-128,
            beta1=0.8, beta2=0.99, coupled=0.0 if decoupled else decay,
            decoupled=decay if decoupled else 0.0, c1=c1, c2=c2, eps=1e-8, draw=draw,
        )  # fmt: skip
        out = torch.empty_like(left)
        exponents_found = k.adam(terms, out)
        expected, e_p = moments.encode_reals(p, None)
        assert exponents_found == (new.first[1], new.root[1], e_p)
        assert_same(m, new.first[0], g)
        assert_same(s, new.root[0], g)
        assert_same(out, expected, p)


# --- the whole update -------------------------------------------------------------------------


@pytest.fixture
def forced(k, monkeypatch):
    """The optimizer runs on this realisation."""
    monkeypatch.setattr(kernels, "of", lambda tensor: k)
    return k


def compare_update(codes, delayed, exponent, p, e_p, lr, draw=None):
    weight = (codes, delayed, exponent)
    expected = optimizer.lazy_update(weight, (p, e_p), lr, words_of(draw, len(p)))
    parameter = BFPParameter(int8(codes), exponent, int16(delayed))
    lazy_update(parameter, int16(p), e_p, lr, draw)
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
        p = directions(count, seed)
        moves.add(compare_update(codes, delayed, -8, p, e_p, lr, DRAWS[seed % 2]))
    assert {-2, -1, 0, 1, 2} <= moves
    assert min(moves) < -15
    assert max(moves) > 15


def test_updates_that_cross_the_limits_by_one_step(forced):
    """Joint values next to 127.5, 63.5 and 0 after the update."""
    for target in (127, 128, 63, 64, 0):
        for offset in (-1, 0, 1):
            # J = 2**15 * start - delayed, and an update of whole codes.
            wanted = (target << 15) - (1 << 14) + offset if target else offset
            for sign, start in itertools.product((1, -1), (100, 70)):
                u = sign * ((start << 15) - wanted)
                whole = u >> 15
                codes, delayed = [sign * start, 64 * sign], [(u - (whole << 15)) * -1 + 0, 0]
                if abs(delayed[0]) > 1 << 14:
                    whole, delayed[0] = whole + 1, delayed[0] + (1 << 15)
                p, e_p = moments.encode([(whole, -5), (0, 0)], None)
                compare_update(codes, delayed, -5, p, e_p, (32768, -15))


@pytest.mark.parametrize("exponent", [-128, -127, -126, -124, 125, 126, 127])
def test_updates_at_the_ends_of_the_exponent_range(forced, exponent):
    for seed, top in enumerate((1, 20, 63, 127)):
        codes, delayed = state(30, top, seed)
        for e_p in (exponent - 30, exponent - 6, exponent - 2):
            p, lr = directions(30, seed), (40000, -16)
            try:
                optimizer.lazy_update((codes, delayed, exponent), (p, e_p), lr, None)
            except RangeError:
                parameter = BFPParameter(int8(codes), exponent, int16(delayed))
                with pytest.raises(RangeError, match=r"^the update overflows"):
                    lazy_update(parameter, int16(p), e_p, lr, None)
            else:
                compare_update(codes, delayed, exponent, p, e_p, lr)


def test_no_update_changes_nothing(forced):
    codes, delayed = state(20, 20, 1)  # max|W| <= 63 stays: nothing is doubled
    assert compare_update(codes, delayed, 3, [0] * 20, 90, (40000, -16)) == 0


def test_an_update_that_leaves_zero(forced):
    """J = 0 everywhere: the exponent stays."""
    p, e_p = moments.encode([(64, 3)], None)
    assert compare_update([64], [0], 3, p, e_p, (32768, -15)) == 0


def test_a_long_run_of_updates(forced):
    """State carried on through 300 updates whose size drifts."""
    rng = random.Random(5)
    weight = formats.initial_weight([rng.gauss(0, 1) for _ in range(20)])
    parameter = BFPParameter(int8(weight[0]), weight[2], int16(weight[1]))
    for step in range(300):
        p, e_p = directions(20, step)[::-1], -20 + step // 30 - (step % 40)
        draw = Draw(1, 0, step)
        weight = optimizer.lazy_update(weight, (p, e_p), (33000, -16), words_of(draw, 20))
        lazy_update(parameter, int16(p), e_p, (33000, -16), draw)
        assert (parameter.codes.tolist(), parameter.delayed.tolist(), parameter.exponent) == weight
