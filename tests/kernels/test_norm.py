"""Batch normalisation: every realisation against the definition, for equality."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from kernel_arrays import (
    assert_same,
    codes,
    flat,
    layouts,
    paired_layouts,
    same_codes,
    spread,
    tensor,
)
from samebits.errors import RangeError
from samebits.spec import formats
from samebits.spec.formats import Q8
from samebits.spec.training import norm
from samebits.spec.training.layers import Array, Parameter

SHAPES = [(2, 3, 4, 5), (1, 1, 1, 2), (3, 1, 5, 1), (1, 17, 1, 3), (2, 33, 3, 2), (5, 7), (2, 4)]
WIDTHS = pytest.mark.parametrize("width", [8, 16])  # of z
SIZES = [*((shape, 1) for shape in SHAPES), ((3, 60, 10, 10), 2)]  # with the number of threads


class State:
    """A vector parameter, for kernels and for the definition."""

    def __init__(self, joint, exponent: int):
        w, a = formats.split(joint)
        self.part = tensor(w, 8), tensor(a, 16), exponent
        self.parameter = Parameter((w, a, exponent + formats.DELAYED_BITS), (len(joint),))


def state(channels: int, exponent: int, seed: int, limit: int = 127 << 15) -> State:
    return State(spread(max(channels, 8), limit, seed)[:channels], exponent)


def values(v: torch.Tensor, exponent: int, bits: int) -> Array:
    return Array(flat(v), tuple(v.shape), exponent, bits)


def found_by_definition(z, e_z, gamma, beta, running, eps, bits):
    """Sums, codes and exponent, scalars [3][channels], and what the backward pass needs."""
    wide = Parameter(gamma.parameter.weight, gamma.parameter.shape, (bits, 16))
    own = values(z, e_z, 8 if z.dtype is torch.int8 else 16)
    y, saved, _ = norm.batch_norm(own, wide, beta.parameter, eps, running)
    narrow = y.narrow()
    return y, (narrow.codes, narrow.exponent), [saved.centre, saved.inv, saved.a], saved


def sums_of(z: torch.Tensor) -> list[int]:
    own = [flat(z[:, c]) for c in range(z.shape[1])]
    kinds = sum, lambda v: sum(c * c for c in v)
    return [f(v) for f in kinds for v in own]


def check_forward(k, z, e_z, gamma, beta, running=None, eps=1e-5, bits=8):
    """In every memory order, also clamped; what the definition has for the backward pass."""
    exact, expected, scalars, saved = found_by_definition(z, e_z, gamma, beta, running, eps, bits)
    given = None if running is None else tuple(torch.tensor(v).double() for v in running)
    for v in layouts(z):
        by, found, sums, _ = k.batch_norm(v, e_z, gamma.part, beta.part, given, eps)
        part = k.affine(v, by, bits)
        assert (part[0].dtype, found.dtype, sums.dtype) == (
            *(torch.int8, torch.float64, torch.int64),
        )
        same_codes(part, expected, flat(z), e_z)
        assert found.tolist() == scalars
        assert_same(sums, sums_of(z), range(2 * z.shape[1]))
        assert_same(k.affine_sums(v, by), exact.acc, flat(z))
        assert by.largest == max(map(abs, exact.acc))
        for clip in (0, 6):
            clamped, passing = exact.clamped(clip)
            part, mask = k.affine_clamped(v, by, clip, bits)
            narrow = clamped.narrow()
            same_codes(part, (narrow.codes, narrow.exponent), flat(z), e_z)
            assert_same(k.unpacked(mask, z.shape).int(), passing.codes, flat(z))
    return saved


def check_backward(k, g, e_g, saved):
    """In every memory order, with and without the input's gradient."""
    wide = {torch.int16: 16, torch.int32: 32}[g.dtype]
    expected = norm.batch_norm_backward(values(g, e_g, wide), saved)
    z, e_z = tensor(saved.z.codes, 8, saved.z.shape), saved.z.exponent
    scalars = torch.tensor([saved.centre, saved.inv, saved.a], dtype=torch.float64)
    for u, v in paired_layouts(g, z):
        for wanted in (True, False):
            found = k.batch_norm_gradient(u, e_g, v, e_z, scalars, saved.training, wanted)
            assert (found[0] is None) != wanted
            for part, array in zip(found, expected, strict=True):
                if part is not None:
                    assert part[0].dtype == torch.int32
                    same_codes(part, (array.codes, array.exponent), array.codes, (e_g, e_z))


@pytest.mark.parametrize(("shape", "threads"), SIZES, indirect=["threads"])
@pytest.mark.parametrize("e_z", [-128, -7, 0, 30])
@WIDTHS
def test_statistics_of_the_shard(k, width, shape, e_z, threads):
    """Forward and backward, gradients of 16 and of 32 bits."""
    z, channels = codes(shape, formats.CODE_MAX[width], width, 1), shape[1]
    saved = check_forward(k, z, e_z, state(channels, -22, 2), state(channels, -21, 3))
    for bits, e_g in itertools.product((16, 32), (-40, 3)):
        check_backward(k, codes(shape, formats.CODE_MAX[bits], bits, 4), e_g, saved)


@pytest.mark.parametrize(("shape", "threads"), SIZES, indirect=["threads"])
@pytest.mark.parametrize("e_z", [-128, -3, 40])
@WIDTHS
def test_running_statistics(k, width, shape, e_z, threads):
    z, channels = codes(shape, formats.CODE_MAX[width], width, 5), shape[1]
    mean = [math.ldexp(v, -10) for v in spread(channels + 8, 9000, 6)[:channels]]
    variance = [math.ldexp(abs(v), -9) for v in spread(channels + 8, 5000, 7)[:channels]]
    running = (mean, variance)
    saved = check_forward(k, z, e_z, state(channels, -20, 8), state(channels, -25, 9), running)
    assert not saved.training
    for bits in (16, 32):
        check_backward(k, codes(shape, formats.CODE_MAX[bits], bits, 4), -20, saved)


@WIDTHS
@pytest.mark.parametrize("bits", range(4, 9))
def test_fewer_bits(k, bits, width):
    z = codes((4, 6), formats.CODE_MAX[width], width, 1)
    check_forward(k, z, -5, state(6, -22, 2), state(6, -22, 3), bits=bits)


EXTREME = (-300, -128, -60, 60, 105)


@pytest.mark.parametrize("e_gamma", EXTREME)
@pytest.mark.parametrize("e_beta", EXTREME)
@WIDTHS
def test_extreme_parameters(k, width, e_gamma, e_beta):
    """One is far below the other, the exponent at its lower end or above its upper one."""
    z = codes((5, 4), formats.CODE_MAX[width], width, 1)
    gamma, beta = state(4, e_gamma, 2), state(4, e_beta, 3)
    arguments = (z, -9, gamma, beta)
    try:
        saved = found_by_definition(*arguments, None, 1e-5, 8)[3]
    except RangeError:
        by = k.batch_norm(z, -9, gamma.part, beta.part, None, 1e-5)[0]
        with pytest.raises(RangeError, match="expected an exponent of at most 127, found 1"):
            k.affine(z, by, 8)
        return
    check_forward(k, *arguments)
    for bits, e_g in itertools.product((16, 32), (-600, -20, 200)):
        check_backward(k, codes((5, 4), formats.CODE_MAX[bits], bits, 4), e_g, saved)


@pytest.mark.parametrize("e_gamma", [-1100, -1080, -1060, -1040, -1022])
@WIDTHS
def test_subnormal_scalars(k, width, e_gamma):
    """Numbers below the smallest normal one are rounded once, too; the codes underflow."""
    z, zero = codes((6, 5), formats.CODE_MAX[width], width, 1), State([0] * 5, 0)
    for e_z, gamma, beta in (
        (-1, state(5, e_gamma, 2), zero),
        (7, state(5, e_gamma, 2), state(5, e_gamma - 4, 3)),
        (-2, zero, state(5, e_gamma, 3)),
    ):
        saved = check_forward(k, z, e_z, gamma, beta)
        for bits, e_g in itertools.product((16, 32), (-30, 900, -900)):
            check_backward(k, codes((6, 5), formats.CODE_MAX[bits], bits, 4), e_g, saved)


@pytest.mark.parametrize("e_g", [-1100, -1074, -1060, -1030, -1000])
def test_subnormal_gradients(k, e_g):
    z = codes((6, 5), Q8, 8, 1)
    saved = check_forward(k, z, -4, state(5, -20, 2), state(5, -20, 3))
    for bits in (16, 32):
        check_backward(k, codes((6, 5), formats.CODE_MAX[bits], bits, 4), e_g, saved)


@WIDTHS
def test_zeros(k, width):
    """Of the input, of gamma, of beta and of the gradient, in all combinations."""
    for of_z, of_gamma, of_beta in itertools.product((0, 1), repeat=3):
        z = codes((4, 3, 2, 2), formats.CODE_MAX[width], width, 1) * of_z
        gamma, beta = (
            state(3, -20, 2) if live else State([0] * 3, -20) for live in (of_gamma, of_beta)
        )
        saved = check_forward(k, z, -5, gamma, beta)
        for bits in (16, 32):
            g = codes((4, 3, 2, 2), formats.CODE_MAX[bits], bits, 3)
            check_backward(k, g, -5, saved)
            check_backward(k, g * 0, -5, saved)


@pytest.mark.parametrize("low", [-127, -1, 0, 1, 126])
def test_two_values_of_every_pair(k, low):
    """n = 2: channels of constants, and ties of the mean."""
    pairs = [(low, low + i) for i in (0, 1, 2, 63) if low + i <= 127] + [(low, low)] * 3
    z = tensor([[p[i] for p in pairs] for i in (0, 1)], 8)
    channels = len(pairs)
    ones, steps = State([1 << 20] * channels, -20), State([i << 14 for i in range(channels)], -21)
    saved = check_forward(k, z, -6, ones, steps)
    for bits in (16, 32):
        g = codes((2, channels), formats.CODE_MAX[bits], bits, 5)
        check_backward(k, g, -11, saved)


def test_ties_are_rounded_to_even(k):
    """gamma / deviation = 2 and small betas: sums that lie halfway between two codes."""
    z = tensor([[-1], [1], [-1], [1]], 8)
    for offset in range(-9, 10):
        beta = State([offset << 8], -9)
        check_forward(k, z, 0, State([1 << 10], -9), beta, ([0.0], [1.0]), eps=0.0)
        check_forward(k, z, 0, State([127 << 10], -10), beta, eps=0.0)


@WIDTHS
@pytest.mark.parametrize("rows", [700, 9000, 40000])
def test_sums_over_more_rows_than_one_block(k, rows, threads, width):
    """All codes at their limits."""
    most = formats.CODE_MAX[width]
    z = tensor([most], width).expand(rows, 3)
    one = state(3, -20, 1)
    for v, end in ((z, most), (-z, -most)):
        _, scalars, sums, _ = k.batch_norm(v, 0, one.part, one.part, None, 1e-5)
        assert sums.tolist() == [[c] * 3 for c in (end * rows, most**2 * rows)]
        assert scalars[0].tolist() == [end] * 3


NOT_FINITE = "batch norm: the scale of a channel is not finite: .* found "


@pytest.mark.parametrize(
    ("running", "eps", "found"),
    [
        (([0.0, 0.0], [1.0, math.nan]), 1e-5, "nan"),
        (([0.0, 0.0], [-1.0, 1.0]), 1e-5, "nan"),
        (([math.inf, 0.0], [1.0, 1.0]), 1e-5, "inf"),
        (([math.inf, 0.0], [1.0, -1.0]), 1e-5, "nan"),
        (([math.nan, 0.0], [1.0, 0.0]), 1e-5, "nan"),
        (([0.0, 0.0], [0.0, 1.0]), 0.0, "inf|nan"),
        (None, 0.0, "inf|nan"),  # a channel of constants
    ],
)
def test_what_is_not_finite_is_an_error(k, running, eps, found):
    z, one = tensor([[3, 1], [3, 5]], 8), State([5 << 15, 3 << 15], -20)
    given = None if running is None else tuple(torch.tensor(v).double() for v in running)
    with pytest.raises(RangeError, match=f"{NOT_FINITE}({found})$"):
        k.batch_norm(z, 0, one.part, one.part, given, eps)


@pytest.mark.parametrize(
    ("inverse", "e_g", "found"),
    [(1.0, 1020, "nan"), (math.inf, 0, "inf"), (math.nan, 0, "nan"), (1e300, 600, "inf")],
)
def test_a_gradient_that_is_not_finite_is_an_error(k, inverse, e_g, found):
    g, z = torch.full((4, 2), 99, dtype=torch.int32), tensor([[1, 2]] * 4, 8)
    scalars = torch.tensor([[0.0, 0.0], [1.0, inverse], [1.0, 1.0]], dtype=torch.float64)
    with pytest.raises(RangeError, match=f"expected a finite value, found {found}: lower the lea"):
        k.batch_norm_gradient(g, e_g, z, 0, scalars, True, True)


def test_an_input_gradient_that_is_not_finite_is_an_error(k):
    """Both parameters have gradients, but the slope of the input is beyond binary64."""
    g, z = torch.full((4, 2), 99, dtype=torch.int32), tensor([[1, 2]] * 4, 8)
    scalars = torch.tensor([[1.0] * 2, [1e200] * 2, [1e200] * 2], dtype=torch.float64)
    assert k.batch_norm_gradient(g, 0, z, 0, scalars, True, False)[0] is None
    assert k.batch_norm_gradient(g, 0, z, 0, scalars, False, True)[0] is not None
    with pytest.raises(RangeError, match="expected a finite value, found inf: lower the learning"):
        k.batch_norm_gradient(g, 0, z, 0, scalars, True, True)


def test_running_buffers_may_have_32_bits(k):
    z, one = codes((5, 2), Q8, 8, 1), State([5 << 15, 3 << 15], -20)
    running = (torch.tensor([0.5, 3.0]), torch.tensor([2.0, 0.25]))
    wide = tuple(v.double() for v in running)
    (by, *others, exponent), (same, *alike, as_well) = (
        k.batch_norm(z, -3, one.part, one.part, given, 0.25) for given in (running, wide)
    )
    assert (by.exponent, by.largest, exponent) == (same.exponent, same.largest, as_well)
    alike += same.m, same.b, same.ends
    assert all(map(torch.equal, [*others, by.m, by.b, by.ends], alike))


def by_rows(z: torch.Tensor, exponents) -> Array:
    inner = z.numel() // len(z)
    own = tuple(e for e in exponents for _ in range(inner))
    return Array(flat(z), tuple(z.shape), own, 8 if z.dtype is torch.int8 else 16)


@WIDTHS
@pytest.mark.parametrize("exponents", [(-5, -5, -5), (-20, 3, -11), (-128, 100, -128)])
@pytest.mark.parametrize("dead", [None, 0, 1])
def test_samples_with_exponents_of_their_own(k, width, exponents, dead):
    """Where there is a kernel for them; dead: a sample of zeros."""
    z, gamma, beta = codes((3, 5, 2, 2), formats.CODE_MAX[width], width, 1), *map(state, *TWO)
    if dead is not None:
        z[dead] = 0
    y, saved, _ = norm.batch_norm(by_rows(z, exponents), gamma.parameter, beta.parameter, 1e-5)
    found = k.batch_norm(
        z, torch.tensor(exponents).view(3, 1, 1, 1), gamma.part, beta.part, None, 1e-5
    )
    if found is None:
        return
    by, scalars, sums, _ = found
    assert scalars.tolist() == [saved.centre, saved.inv, saved.a]
    statistics = norm.batch_statistics(by_rows(z, exponents))
    assert sums.tolist() == [statistics.s1, statistics.s2]
    assert_same(k.affine_sums(z, by), y.acc, flat(z))
    narrow = y.narrow()
    assert_same(k.affine(z, by, 8)[0], narrow.codes, flat(z))


TWO = (5, 5), (-22, -21), (2, 3)  # channels, exponents and seeds of gamma and beta


def test_a_variance_below_zero_is_zero(k):
    """Of samples whose squares roundings take: S1 is 1, S2 is 0."""
    z = tensor([[0, 9], [5, 9]], 16)
    given = by_rows(z, (0, -3))
    statistics = norm.batch_statistics(given)
    assert statistics.n * statistics.s2[0] - statistics.s1[0] ** 2 < 0
    assert statistics.variance(0, 2) == 0.0
    found = k.batch_norm(z, torch.tensor([[0], [-3]]), *(s.part for s in ONES), None, 1e-5)
    if found is not None:
        wanted = norm.batch_norm(given, *(s.parameter for s in ONES), 1e-5)[1]
        assert found[1][1].tolist() == wanted.inv


ONES = State([1 << 20] * 2, -20), State([0, 0], -20)
