"""Normalisation of vectors: every realisation against sums of plain integers, for equality."""

from __future__ import annotations

import functools
import math

import pytest
import torch

from kernel_arrays import LARGE, assert_same, codes, flat, layouts, same_codes, spread, tensor
from samebits.errors import RangeError
from samebits.spec import formats
from samebits.spec.formats import Q8, Q16

SHAPES = [(5, 7), (1, 1), (3, 4, 33), (2, 600), (4, 2, 3, 5)]
SIZES = [*((shape, 1) for shape in SHAPES), ((LARGE // 64 + 3, 64), 2)]  # with threads
parametrize = pytest.mark.parametrize
sizes = parametrize(("shape", "threads"), SIZES, indirect=["threads"])


def rows_of(v: torch.Tensor) -> list[list[int]]:
    return v.reshape(-1, v.shape[-1]).tolist()


def column(values, bits: int, shape) -> torch.Tensor:
    return tensor(values, bits, (*shape[:-1], 1))


def per_row(shape, limit: int, seed: int) -> list[int]:
    count = math.prod(shape[:-1])
    return spread(max(count, 8), limit, seed)[:count]


@sizes
def test_stats(k, shape, threads):
    for z in (codes(shape, Q8, 8, 1), codes(shape, 2**20, 64, 2)):
        found = rows_of(z)
        expected = [f(r) for f in (sum, lambda r: sum(v * v for v in r), min, max) for r in found]
        for v in layouts(z):
            stats = k.vector_stats(v)
            assert stats.shape == (4, *shape[:-1], 1)
            assert_same(stats, expected, range(len(expected)))


def test_stats_of_the_longest_rows(k):
    for sign in (1, -1):
        z = torch.full((2, 1 << 17), sign * Q8, dtype=torch.int8)
        stats = k.vector_stats(z)[..., 0].t().tolist()
        assert stats == [[sign * Q8 << 17, Q8**2 << 17, sign * Q8, sign * Q8]] * 2


@sizes
@parametrize("centred", [True, False])
@parametrize("exponent", [-60, -140, 70])
def test_normalized(k, shape, exponent, centred, threads):
    """Also exponents of codes that reach the smallest one, -128."""
    z = codes(shape, Q8, 8, 3)
    multipliers = [abs(m) + 1 for m in per_row(shape, (1 << 24) - 2, 4)]
    d = shape[-1]
    acc = [
        (d * v - (sum(row) if centred else 0)) * m
        for row, m in zip(rows_of(z), multipliers, strict=True)
        for v in row
    ]
    wide, own = formats.shorten(acc, exponent)
    for v in layouts(z):
        stats = k.vector_stats(v)
        stats[0] *= centred
        m = column(multipliers, 64, shape)
        for bits, found in zip((16, 8), k.vector_normalized(v, stats, m, exponent), strict=True):
            same_codes(found, formats.requantize(wide, own, bits), acc, bits)


def test_normalized_of_equal_codes(k):
    z = torch.full((3, 4), 5, dtype=torch.int8)
    m = torch.full((3, 1), 1 << 23)
    for found in k.vector_normalized(z, k.vector_stats(z), m, -30):
        same_codes(found, ([0] * 12, -128), flat(z))


@functools.cache
def affine_case(shape, width: int, by: int):
    """x, m, and for every b the sums."""
    x = codes(shape, formats.CODE_MAX[width], width, 5)
    d = shape[-1]
    m, b = spread(max(d, 8), (1 << 23) - 1, 6)[:d], spread(max(d, 8), 1 << 59, 7)[:d]
    scaled = [
        [formats.scaled(v * factor, by) for v, factor in zip(row, m, strict=True)]
        for row in rows_of(x)
    ]
    sums = [
        (offset, [v + o for row in scaled for v, o in zip(row, offset or [0] * d, strict=True)])
        for offset in (None, b, [0] * d)
    ]
    return x, m, sums


@sizes
@parametrize("width", [16, 32])
@parametrize("bits", [6, 8, 16])
@parametrize("by", [0, 3, -1, -20, -70])
def test_column_affine(k, shape, width, bits, by, threads):
    x, m, sums = affine_case(shape, width, by)
    for offset, acc in sums:
        expected = formats.requantize(acc, -40, bits)
        for v in layouts(x):
            added = None if offset is None else tensor(offset, 64)
            found = k.column_affine(v, tensor(m, 64), added, by, -40, bits)
            same_codes(found, expected, acc, bits)


def test_column_affine_of_nothing_and_beyond_all_exponents(k):
    x, m = torch.zeros(3, 2, dtype=torch.int16), torch.ones(2, dtype=torch.int64)
    same_codes(k.column_affine(x, m, None, 0, 7, 8), ([0] * 6, -128), [0] * 6)
    with pytest.raises(RangeError, match="found 128"):
        k.column_affine(x + 127, m, None, 0, 128, 8)


@sizes
@parametrize("centred", [True, False])
@parametrize("by", [(0, 0), (20, 3), (-9, 1), (2, -40), (-80, -90)])
def test_grad(k, shape, by, centred, threads):
    h, x = codes(shape, Q16, 16, 8), codes(shape, Q8, 8, 9)
    d, acc = shape[-1], []
    for hs, xs in zip(rows_of(h), rows_of(x), strict=True):
        total = sum(hs) if centred else 0
        dot = sum(p * q for p, q in zip(hs, xs, strict=True))
        acc += [
            formats.scaled(d * p - total, by[0]) - formats.scaled(dot * q, by[1])
            for p, q in zip(hs, xs, strict=True)
        ]
    expected = formats.requantize(acc, -50, 16)
    for v, w in zip(layouts(h), reversed(list(layouts(x))), strict=True):
        same_codes(k.vector_grad(v, w, centred, by, -50), expected, acc)


def test_grad_of_the_longest_rows(k):
    """All sums at their largest: 2**20 elements of a group."""
    d = 1 << 20
    for sign in (1, -1):
        h = torch.full((1, d), sign * Q16, dtype=torch.int16)
        x = torch.full((1, d), Q8, dtype=torch.int8)
        acc = [d * sign * Q16 - sign * d * Q16 * Q8 * Q8]
        code, exponent = formats.requantize(acc, 0, 16)
        same_codes(k.vector_grad(h, x, False, (0, 0), 0), (code * d, exponent), acc * d)


@sizes
def test_times(k, shape, threads):
    multipliers = per_row(shape, (1 << 24) - 1, 11)
    for limit in (Q16, 1, 0):
        x = codes(shape, Q16, 16, 10).clamp(-limit, limit)
        acc = [v * m for row, m in zip(rows_of(x), multipliers, strict=True) for v in row]
        expected = formats.shorten(acc, -33)
        for v in layouts(x):
            found = k.vector_times(v, column(multipliers, 64, shape), -33)
            same_codes(found, expected, acc)
