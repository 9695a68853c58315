"""Element-wise and per-channel kernels: every realisation against the definition, for equality."""

from __future__ import annotations

import itertools
import math
import random
from fractions import Fraction

import pytest
import torch

from kernel_arrays import (
    DTYPES,
    LARGE,
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
from samebits.kernels import rows as by_rows
from samebits.kernels import softmax
from samebits.kernels.eager import Eager
from samebits.kernels.geometry import smallest_exponent, unlimited_exponent
from samebits.kernels.protocol import BITS
from samebits.kernels.tables import Tables
from samebits.spec import formats
from samebits.spec.formats import Q8, Q16, Q32
from samebits.spec.training import layers, pointwise
from samebits.spec.training.layers import Array
from samebits.spec.training.loss import cross_entropy as reference_cross_entropy

# Images with axes of size 1, odd sizes, and rows; none is larger than a definition can loop over.
SHAPES = [(2, 3, 4, 5), (1, 1, 1, 1), (3, 1, 5, 1), (1, 17, 1, 3), (2, 33, 3, 2), (5, 7), (1, 4)]
SIZES = [*((shape, 1) for shape in SHAPES), ((3, 60, 10, 10), 2)]  # with the number of threads


def array(v: torch.Tensor, exponent: int) -> Array:
    return Array(flat(v), tuple(v.shape), exponent, BITS[v.dtype])


# --- largest magnitude, scaling, requantization ----------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 5, 63, 1000, LARGE - 1, LARGE + 77])
@pytest.mark.parametrize(("bits", "limit"), [(8, 127), (16, 32767), (32, 2**31 - 1), (64, 2**62)])
def test_largest(k, bits, limit, count, threads):
    values = [v // 3 for v in spread(max(count, 8), limit, count)][:count]
    for where in {0, count // 2, count - 1} & set(range(count)):
        for extreme in (limit, -limit):
            changed = [*values[:where], extreme, *values[where + 1 :]]
            assert k.largest_of(tensor(changed, bits)) == limit, where
    assert k.largest_of(tensor(values, bits)) == max(map(abs, values), default=0)
    assert k.largest_of(torch.zeros(count, dtype=DTYPES[bits])) == 0


@pytest.mark.parametrize("shape", SHAPES)
def test_largest_in_any_memory_order(k, shape):
    v = codes(shape, Q16, 16, 3)
    for w in layouts(v):
        assert k.largest_of(w) == int(v.abs().max())


@pytest.mark.parametrize("exponent", [*range(-70, -56), -200, *range(-33, 23)])
def test_scale(k, exponent):
    """A shift with one rounding."""
    limit = 2**62 if exponent <= 0 else 2**40
    values = [*spread(398, limit, exponent), 2**40, -(2**40)]
    expected = [formats.scaled(v, exponent) for v in values]
    assert_same(k.scale(tensor(values, 64), exponent), expected, values)
    for bits in (8, 16, 32):
        v = codes((2, 5, 4, 10), formats.CODE_MAX[bits], bits, exponent)
        expected = [formats.scaled(c, exponent) for c in flat(v)]
        for u in layouts(v):
            found = k.scale(u, exponent)
            assert found.dtype == torch.int64
            assert_same(found, expected, flat(v))
    assert_same(k.scale(tensor([0, 0], 32), 200), [0, 0], [0, 0])


@pytest.mark.parametrize("divisor", [1, 2, 3, 7, 9, 100, 49 << 20])
def test_divide(divisor):
    values = spread(400, 2**61, divisor) + [divisor * i + divisor // 2 for i in range(-20, 20)]
    expected = [formats.round_ratio(v, divisor) for v in values]
    assert_same(Eager().divide(tensor(values, 64), divisor), expected, values)


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize(
    ("width", "limit"),
    [(8, Q8), (16, Q16), (32, 40), (32, 2**20), (32, Q32), (32, 0x7F010000), (64, 300), (64, 2**33),
     (64, 2**62)],
)  # fmt: skip
def test_requantize(k, bits, width, limit):
    values = spread(300, limit, limit)
    acc, largest = tensor(values, width), max(map(abs, values))
    # -128 and below: codes that underflow, by shifts beyond the operands' width.
    for exponent in (0, 5, -60, -115, -128, -140, -150, -152, -153, -159, -160, -161, -190, -191,
                     -192, -220, -500):  # fmt: skip
        expected = formats.requantize(values, exponent, bits)
        same_codes(k.requantize(acc, largest, exponent, bits), expected, values, exponent)
    with pytest.raises(RangeError, match="expected an exponent of at most 127"):
        k.requantize(acc, largest, 300, bits)


@pytest.mark.parametrize(
    "largest", [127, 128, 32639, 32640, 2**23, 255 << 23, (255 << 23) - 1, Q32]
)
@pytest.mark.parametrize("bits", [8, 16])
def test_requantize_chooses_the_exponent_at_the_boundary(k, largest, bits):
    values = [largest, -largest, largest // 2, 1, 0]
    for width in (32, 64):
        expected = formats.requantize(values, -40, bits)
        same_codes(k.requantize(tensor(values, width), largest, -40, bits), expected, values)


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_exponents_of_reals(bits):
    """From the smallest binary64 up, and on both sides of every limit at which codes round up."""
    edge = formats.CODE_MAX[bits] + 0.5
    values = [math.ldexp(m, e) for m in (1.0, 1.999, edge, math.nextafter(edge, 0), 3.3)
              for e in (-1074, -1060, -160, -129, -128, -127, -40, 0, 1, 60, 90)]  # fmt: skip
    for value in filter(None, values):
        wanted = formats.smallest_exponent(Fraction(value), formats.CODE_MAX[bits])
        assert smallest_exponent(value, bits) == wanted, value.hex()
        wanted = formats.smallest_exponent(Fraction(value), formats.CODE_MAX[bits], -2000, None)
        assert unlimited_exponent(value, bits) == wanted, value.hex()
    assert smallest_exponent(0.0, bits) == -128
    for value in (1e60, math.inf, math.nan):
        with pytest.raises(RangeError):
            smallest_exponent(value, bits)


@pytest.mark.parametrize(
    ("width", "limit"), [(32, Q32), (32, 17), (64, 2**31), (64, Q32), (64, Q32 + 1), (64, 2**62)]
)
def test_shorten(k, width, limit):
    for exponent in (-300, -40, 0, 200):
        values = spread(300, limit, limit)
        actual = k.shorten(tensor(values, width), max(map(abs, values)), exponent)
        assert actual[0].dtype == torch.int32
        same_codes(actual, formats.shorten(values, exponent), values)


@pytest.mark.parametrize("width", [32, 64])
def test_zeros_have_the_smallest_exponent(k, width):
    zeros = torch.zeros(3, 4, dtype=DTYPES[width])
    for result in (
        k.requantize(zeros, 0, 50, 8),
        k.shorten(zeros, 0, 50),
        k.resolve([(zeros.int(), 9)] * 2),
    ):
        same_codes(result, ([0] * 12, -128), [0] * 12)


@pytest.mark.parametrize(("shape", "threads"), SIZES, indirect=["threads"])
def test_requantize_keeps_places_in_any_memory_order(k, shape, threads):
    v = codes(shape, Q32, 32, 4)
    largest = int(v.long().abs().max())
    expected = formats.requantize(flat(v), -30, 16), formats.shorten(flat(v.long() * 77), -30)
    for w in layouts(v):
        same_codes(k.requantize(w, largest, -30, 16), expected[0], flat(v))
        same_codes(k.shorten(w.long() * 77, largest * 77, -30), expected[1], flat(v))


@pytest.mark.parametrize("shape", [(0,), (0, 3, 2, 2), (2, 0)])
def test_empty_tensors(k, shape):
    v = torch.zeros(shape, dtype=torch.int32)
    assert k.largest_of(v) == 0
    for zeros, exponent in (
        k.requantize(v, 0, 3, 8),
        k.shorten(v, 0, 3),
        k.resolve([(v, 1), (v, 2)]),
    ):
        assert (tuple(zeros.shape), exponent) == (shape, -128)
    x = v.to(torch.int8)
    low, mask = k.clamp(x, 0, 0)
    assert low.shape == v.shape
    assert k.behind_mask(v, mask).shape == v.shape
    zeros, exponent = k.add(x, 3, x, -4)
    assert (zeros.shape, zeros.dtype, exponent) == (v.shape, torch.int8, -128)


# --- sums of gradient parts ------------------------------------------------------------------


@pytest.mark.parametrize("widths", [(16, 16), (16, 32), (32, 16), (32, 32)])
@pytest.mark.parametrize("gap", [0, 1, -1, 7, -15, 31, -32, 40, -62, 63, -64, 90, -300])
def test_resolve_two_parts(k, widths, gap):
    parts = [
        (codes((200,), formats.CODE_MAX[bits], bits, i), -20 + i * gap)
        for i, bits in enumerate(widths)
    ]
    expected = formats.resolve([(flat(v), e) for v, e in parts])
    inputs = list(zip(*(flat(v) for v, _ in parts), strict=True))
    same_codes(k.resolve(parts), expected, inputs, gap)
    same_codes(k.resolve(parts[::-1]), expected, inputs, gap)


@pytest.mark.parametrize("exponents", list(itertools.permutations((-7, 0, 30))))
def test_resolve_with_an_all_zero_part(k, exponents):
    """A zero part's exponent does not count, even the largest (relu masks leave such parts)."""
    live = [codes((64,), Q32, 32, 1), codes((64,), Q16, 16, 2)]
    parts = list(zip([torch.zeros(64, dtype=torch.int32), *live], exponents, strict=True))
    for chosen in (parts, parts[:2], parts[1::-1], parts[:1] * 2):
        expected = formats.resolve([(flat(v), e) for v, e in chosen])
        inputs = list(zip(*(flat(v) for v, _ in chosen), strict=True))
        same_codes(k.resolve(chosen), expected, inputs, exponents)


def test_resolve_of_parts_that_cancel(k):
    v = codes((50,), Q32, 32, 1)
    same_codes(k.resolve([(v, 4), (-v, 4)]), ([0] * 50, -128), flat(v))


def test_resolve_any_number_of_parts(k):
    parts = [
        (codes((90,), formats.CODE_MAX[b], b, i), 3 * i - 9)
        for i, b in enumerate((32, 16, 32, 32, 16))
    ]
    for count in range(1, 6):
        expected = formats.resolve([(flat(v), e) for v, e in parts[:count]])
        same_codes(k.resolve(parts[:count]), expected, list(range(90)))


@pytest.mark.parametrize(("shape", "threads"), SIZES, indirect=["threads"])
def test_resolve_in_any_memory_order(k, shape, threads):
    a, b = codes(shape, Q32, 32, 1), codes(shape, Q16, 16, 2)
    expected = formats.resolve([(flat(a), -3), (flat(b), 2)])
    for u, v in paired_layouts(a, b):
        same_codes(k.resolve([(u, -3), (v, 2)]), expected, flat(a))


# --- bias and channel sums -------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "threads"), SIZES, indirect=["threads"])
@pytest.mark.parametrize("exponent", [0, -1, -9, -30, -40])
def test_add_bias(k, shape, exponent, threads):
    acc = codes(shape, 2**30 - 1, 32, 1)
    bias = spread(max(shape[1], 8), 2**30, 2)[: shape[1]]
    inner = math.prod(shape[2:])
    expected = [
        formats.scaled(a, exponent) + bias[i // inner % shape[1]] for i, a in enumerate(flat(acc))
    ]
    for v in layouts(acc):
        actual, largest = k.add_bias(v.clone(), exponent, tensor(bias, 64))
        assert_same(actual, expected, flat(acc))
        assert largest == max(map(abs, expected))


@pytest.mark.parametrize(("shape", "threads"), SIZES, indirect=["threads"])
@pytest.mark.parametrize("bits", [16, 32])
def test_channel_sums(k, shape, bits, threads):
    g, z = codes(shape, formats.CODE_MAX[bits], bits, 1), codes(shape, Q8, 8, 2)
    channel = layers.channel_of(shape)
    sums, products = [0] * shape[1], [0] * shape[1]
    for gi, zi, c in zip(flat(g), flat(z), channel, strict=True):
        sums[c] += gi
        products[c] += gi * zi
    for u, v in paired_layouts(g, z):
        assert_same(k.channel_sum(u, 0)[0], sums, range(shape[1]))
        assert_same(k.channel_grad_sums(u, v), sums + products, range(2 * shape[1]))


@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.parametrize("rows", [700, 9000, 40000])
@pytest.mark.parametrize("channels", [1, 3])
def test_channel_sums_that_need_many_bits(k, bits, rows, channels, threads):
    """All operands at their limits, over more rows than one block of 32-bit sums."""
    limit = formats.CODE_MAX[bits]
    g = torch.full((rows, channels), -limit, dtype=DTYPES[bits])
    z = torch.full((rows, channels), Q8, dtype=torch.int8)
    assert k.channel_sum(g, 0)[0].tolist() == [-limit * rows] * channels
    assert k.channel_grad_sums(g, z).tolist() == [
        [-limit * rows] * channels,
        [-limit * Q8 * rows] * channels,
    ]


def added(a, b):
    return pointwise.added(a, b).narrow()


# --- addition -----------------------------------------------------------------------


def test_stacked_by_rows(k):
    """Nothing is rounded; rows of zeros have the exponent -128."""
    parts = [(codes((3, 5), Q16, 16, i), codes((3, 1), 40, 64, i)) for i in range(2)]
    parts[1][0][1] = 0
    found = k.stacked([*parts, (parts[0][0], 7)], 32, 15)
    wanted = Eager().stacked([*parts, (parts[0][0], 7)], 32, 15)
    assert found[0].dtype == wanted[0].dtype
    assert all(map(torch.equal, found, wanted))
    assert int(found[1][1, 1]) == -128


@pytest.mark.parametrize("room", [0, 15])
@pytest.mark.parametrize("zeros", range(8))
def test_stacked(k, zeros, room, threads):
    """Zeros do not count, whatever their exponent; what is far below the largest is rounded."""
    for kinds, exponents in itertools.product(
        itertools.product((8, 16), repeat=3), ((0, 0, 0), (5, -3, 1), (-40, 0, 60), (90, 100, -99))
    ):
        parts = [
            (codes((3, 5), formats.CODE_MAX[bits], bits, bits + i) * (not zeros >> i & 1), e)
            for i, (bits, e) in enumerate(zip(kinds, exponents, strict=True))
        ]
        live = [e for v, e in parts if any(flat(v))]
        own = max(live) - room if live else -128
        expected = [formats.scaled(c, min(e - own, room)) for v, e in parts for c in flat(v)]
        for bits in (32, 16) if room == 0 else (32,):
            same_codes(k.stacked(parts, bits, room), (expected, own), kinds, exponents)


def tables(limit: int, seed: int) -> tuple[Tables, list[int]]:
    """Entries up to `limit`, of exponent 2 * e + 1 at the exponent e of the codes."""
    entries = flat(codes((255,), max(limit, 1), 32, seed) * min(limit, 1))
    return Tables(lambda exponent: (entries, 2 * exponent + 1)), entries


@pytest.mark.parametrize(("shape", "threads"), SIZES, indirect=["threads"])
@pytest.mark.parametrize("exponent", [-128, -70, -3, 40])
@pytest.mark.parametrize("limit", [0, 3, Q32])
def test_table(k, shape, exponent, limit, threads):
    """What every element has, rounded as a tensor of its own: the largest of them decides."""
    for bits, most in ((8, Q8), (8, 9), (5, Q8)):
        x, (functions, entries) = codes(shape, most, 8, 1), tables(limit, 2)
        exact = [entries[c + 127] for c in flat(x)]
        expected = formats.requantize(exact, 2 * exponent + 1, bits)
        for v in layouts(x):
            same_codes(k.table(v, exponent, functions, bits), expected, exact, bits)


@pytest.mark.parametrize(("shape", "threads"), SIZES, indirect=["threads"])
def test_tables_by_rows(k, shape, threads):
    """Every row is as a tensor of its own."""
    x, (functions, entries) = codes(shape, Q8, 8, 1), tables(Q32, 2)
    x[0] = 0
    size = by_rows.row_size(shape)
    exponent = codes(size, 40, 64, 3)
    of_rows, n = exponent.flatten().tolist(), x[0].numel() if len(shape) == 4 else shape[-1]
    slopes, own = tables(Q16, 3)
    g = codes(shape, Q16, 16, 4)
    y, e_y = k.table(x, exponent, functions, 8)
    down, e_down = k.table_gradient(g, exponent - 5, x, exponent, slopes)
    one, e_one = k.table_gradient(g, -5, x, exponent, slopes)
    parts = (x.reshape(-1, n), g.reshape(-1, n), y.reshape(-1, n), down.reshape(-1, n))
    for row, (u, v, found, back) in enumerate(zip(*parts, strict=True)):
        e = of_rows[row]
        exact = [entries[c + 127] for c in u.tolist()]
        expected = formats.requantize(exact, 2 * e + 1, 8)
        assert (tuple(found.tolist()), int(e_y.flatten()[row])) == (tuple(expected[0]), expected[1])
        exact = [a * own[c + 127] for a, c in zip(v.tolist(), u.tolist(), strict=True)]
        expected = formats.shorten(exact, 3 * e - 4)
        assert (tuple(back.tolist()), int(e_down.flatten()[row])) == (
            *(tuple(expected[0]), expected[1]),
        )
        shortened = formats.shorten(exact, 2 * e - 4)
        assert tuple(one.reshape(-1, n)[row].tolist()) == tuple(shortened[0])
        assert int(e_one.flatten()[row]) == shortened[1]


@pytest.mark.parametrize("kind", [8, 16, 32])
def test_products_with_a_number_by_rows(k, kind, threads):
    for shape in ((5, 7), (2, 3, 9), (2, 3, 2, 2)):
        v = codes(shape, formats.CODE_MAX[kind], kind, 1)
        v[0] = 0
        exponent = codes(by_rows.row_size(shape), 20, 64, 2)
        for m in (40000, -3, 1):
            found = k.times(v, m, exponent, 8 if kind == 8 else 32)
            wanted = Eager().times(v, m, exponent, 8 if kind == 8 else 32)
            assert found[0].dtype == wanted[0].dtype
            assert all(map(torch.equal, found, wanted))
    with pytest.raises(RangeError, match="found 1"):
        k.times(codes((2, 3), Q8, 8, 1), 1 << 16, torch.tensor([[0], [120]]), 8)


def test_a_table_above_the_range_of_exponents_is_refused(k):
    with pytest.raises(RangeError, match="found 137"):
        k.table(tensor([1, 2], 8), 56, Tables(lambda e: ([Q32] * 255, 2 * e + 1)), 8)


def test_tables_are_made_once():
    met = []
    functions = Tables(lambda e: met.append(e) or ([e] * 255, e))
    for exponent in (-128, 127, 5, 127, -128):
        entries, own = functions.at(exponent)
        assert (own, entries.tolist()) == (exponent, [0] + [exponent] * 255)
    assert met == [-128, 127, 5]


@pytest.mark.parametrize(("shape", "threads"), SIZES, indirect=["threads"])
@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.parametrize("limit", [0, 1, Q16])
def test_table_gradient(k, bits, shape, limit, threads):
    """Products with the entries, shortened to 32 bits: not at all, or with one rounding."""
    g, x = codes(shape, formats.CODE_MAX[bits], bits, 1), codes(shape, Q8, 8, 2)
    slopes, entries = tables(limit, 3)
    exact = [a * entries[c + 127] for a, c in zip(flat(g), flat(x), strict=True)]
    expected = formats.shorten(exact, -9 - 7)
    for u, v in itertools.product(layouts(g), layouts(x)):
        same_codes(k.table_gradient(u, -9, v, -4, slopes), expected, exact, (bits, limit))


@pytest.mark.parametrize("exponents", [
    (0, 0), (-3, 2), (5, -2), (-4, 18), (18, -4), (0, 23), (40, -100), (-128, 127), (-128, -120),
    (-128, -128), (126, 122),
])  # fmt: skip
def test_add(k, exponents):
    pairs = [
        (i, j) for i in range(-127, 128, 2) for j in (-127, -64, -3, -1, 0, 1, 2, 63, 100, 127)
    ]
    a, b = (tensor([p[i] for p in pairs], 8) for i in (0, 1))
    expected = added(array(a, exponents[0]), array(b, exponents[1]))
    actual = k.add(a, exponents[0], b, exponents[1])
    same_codes(actual, (expected.codes, expected.exponent), pairs, exponents)
    exact = pointwise.added(array(a, exponents[0]), array(b, exponents[1]))
    acc, top, own = k.add_sums(a, exponents[0], b, exponents[1])
    assert (acc.tolist(), top, own) == (exact.acc, max(map(abs, exact.acc)), exact.exponent)
    for clip in (0, 6):
        clamped, passing = exact.clamped(clip)
        part, mask = k.add_clamped(a, exponents[0], b, exponents[1], clip, 8)
        same_codes(part, (clamped.narrow().codes, clamped.narrow().exponent), pairs, exponents)
        assert k.unpacked(mask, a.shape).int().tolist() == passing.codes


@pytest.mark.parametrize("exponents", [(-30, 5), (5, -30), (127, -128), (-128, 127), (0, 22)])
def test_add_with_zeros(k, exponents):
    """An all-zero operand's exponent does not count, however large."""
    a = codes((300,), Q8, 8, 1)
    zero, (e_a, e_zero) = torch.zeros_like(a), exponents
    expected = added(array(a, e_a), array(zero, e_zero))
    wanted = (expected.codes, expected.exponent)
    same_codes(k.add(a, e_a, zero, e_zero), wanted, flat(a))
    same_codes(k.add(zero, e_zero, a, e_a), wanted, flat(a))
    for b, e in ((-a, e_a), (zero, e_zero)):
        same_codes(k.add(b, e, -b, e), ([0] * 300, -128), flat(a))


@pytest.mark.parametrize("bits", range(4, 9))
def test_add_to_fewer_bits(k, bits):
    a, b = codes((300,), Q8, 8, 1), codes((300,), Q8, 8, 2)
    for e_a, e_b in ((0, 0), (-3, 5), (22, 0), (-128, -127), (90, 121)):
        common = max(min(e_a, e_b), max(e_a, e_b) - 22)
        pairs = list(zip(flat(a), flat(b), strict=True))
        acc = [formats.scaled(p, e_a - common) + formats.scaled(q, e_b - common) for p, q in pairs]
        same_codes(k.add(a, e_a, b, e_b, bits), formats.requantize(acc, common, bits), pairs)


def test_a_sum_that_outgrows_its_exponent(k):
    a = torch.full((5,), 100, dtype=torch.int8)
    with pytest.raises(RangeError, match="expected an exponent of at most 127, found 128: the val"):
        k.add(a, 127, a, 127)


@pytest.mark.parametrize(("shape", "threads"), SIZES, indirect=["threads"])
def test_add_in_any_memory_order(k, shape, threads):
    a, b = codes(shape, Q8, 8, 1), codes(shape, Q8, 8, 2)
    expected = added(array(a, -3), array(b, 1))
    for u, v in paired_layouts(a, b):
        same_codes(k.add(u, -3, v, 1), (expected.codes, expected.exponent), flat(a))
    same = added(array(a, -3), array(a, -3))
    same_codes(k.add(a, -3, a, -3), (same.codes, same.exponent), flat(a))


@pytest.mark.parametrize(("shape", "threads"), SIZES, indirect=["threads"])
@pytest.mark.parametrize("exponent", [-45, -14, 0, 9, 40])
@pytest.mark.parametrize("limit", [Q8, 1, 0])
def test_with_bias(k, shape, exponent, limit, threads):
    acc = codes(shape, 2**30 - 1, 32, 3)
    codes_w = tensor(spread(max(shape[1], 8), limit, 4)[: shape[1]] if limit else [0] * shape[1], 8)
    delayed = tensor(spread(shape[1] + 8, 2**14, 5)[: shape[1]] if limit else [0] * shape[1], 16)
    joint = [w * 32768 - a for w, a in zip(flat(codes_w), flat(delayed), strict=True)]
    e_b, inner = -20, math.prod(shape[2:])
    common = exponent
    if any(joint):
        common = max(exponent, e_b + max(map(abs, joint)).bit_length() - 30)
    expected = [
        formats.scaled(a, exponent - common)
        + formats.scaled(joint[i // inner % shape[1]], e_b - common)
        for i, a in enumerate(flat(acc))
    ]
    largest = max(map(abs, flat(acc)))
    for v in layouts(acc):
        actual, top, e = k.with_bias(v.clone(), largest, exponent, (codes_w, delayed, e_b))
        assert e == common
        assert_same(actual, expected, flat(acc))
        assert top == max(map(abs, expected))


# --- loss ------------------------------------------------------------------------------------


@pytest.mark.parametrize("exponent", [-150, -31, -15, -14, -13, -3, 0, 8, 14, 36, 80])
@pytest.mark.parametrize(
    ("rows", "classes", "bits"), [(1, 1, 32), (5, 7, 32), (3, 40, 8), (9, 2, 32)]
)
def test_cross_entropy(k, rows, classes, bits, exponent):
    limit = formats.CODE_MAX[bits]
    z = codes((rows, classes), limit, bits, rows + exponent)
    targets = [(3 * r) % classes for r in range(rows)]
    loss, gradient = reference_cross_entropy(
        Array(flat(z), (rows, classes), exponent, bits), targets
    )
    actual, logs, distances = k.cross_entropy(z, exponent, torch.tensor(targets), rows)
    units = softmax.loss_units(logs, None, distances, exponent)
    assert math.ldexp(float(units), -24) * 0.6931471805599453 / rows == loss
    same_codes(
        k.shorten(actual, k.largest_of(actual), -24),
        (gradient.codes, gradient.exponent),
        flat(z),
    )


# --- several exponents ------------------------------------------------------------------------

GRIDS = [
    ((7, 5), (7, 1)),
    ((7, 5), (1, 5)),
    ((7, 5), (7, 5)),
    ((7, 5), (1, 1)),
    ((3, 4, 5), (3, 1, 5)),
    ((3, 4, 5, 6), (3, 1, 1, 1)),
    ((3, 4, 5, 6), (3, 4, 1, 1)),
    ((3, 4, 5, 6), (1, 4, 1, 1)),
    ((3, 4, 5, 6), (3, 1, 5, 1)),
    ((3, 4, 5, 6), (3, 4, 5, 6)),
    ((2, 2, 2, 2, 2), (2, 1, 2, 1, 2)),  # they take turns too often for C
    ((40, 10, 10, 10), (40, 10, 1, 1)),  # by several threads
]


@pytest.mark.parametrize(("shape", "exponents"), [*GRIDS, ((1, 4), (3, 4))])
@pytest.mark.parametrize("bits", [8, 32, 64])
def test_scaling_by_several_exponents(k, shape, exponents, bits):
    """Right shifts by up to 70 bits, none, left shifts that fit, and any for zeros."""
    limit = {8: 127, 32: 2**31 - 1, 64: 2**61}[bits]
    count = math.prod(exponents)
    rng = random.Random(count)
    up = 61 - limit.bit_length()
    own = torch.tensor([rng.randint(-70, max(up, 0)) for _ in range(count)]).view(exponents)
    v = codes(shape, limit, bits, seed=bits)
    whole = torch.broadcast_shapes(shape, exponents)
    pairs = zip(flat(v.expand(whole)), flat(own.expand(whole)), strict=True)
    expected = [formats.scaled(a, e) for a, e in pairs]
    for layout in layouts(v):
        found = k.scale(layout, own)
        assert found.dtype == torch.int64
        assert_same(found, expected, expected)
    zeros = k.scale(torch.zeros_like(v), torch.full_like(own, 2000))
    assert not zeros.any()
    assert zeros.shape == whole


@pytest.mark.parametrize(("shape", "kept"), GRIDS)
@pytest.mark.parametrize("bits", [8, 32, 64])
def test_largest_of_rows_and_channels(shape, kept, bits):
    v = codes(shape, {8: 127, 32: 2**31 - 1, 64: 2**61}[bits], bits, seed=bits)
    expected = {}
    for place, value in zip(itertools.product(*map(range, shape)), flat(v), strict=True):
        own = tuple(i if size > 1 else 0 for i, size in zip(place, kept, strict=True))
        expected[own] = max(expected.get(own, 0), abs(value))
    for layout in layouts(v):
        found = by_rows.largest(layout, kept, [1] * len(kept))
        assert found.shape == kept
        assert_same(found, list(expected.values()), list(expected))
