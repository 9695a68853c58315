"""Pools in plain Python integers: maxima and means of windows of an image.

A restatement of docs/spec/training.md, sections 5, 7 and 12, like `layers`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product

from samebits.spec import formats
from samebits.spec.training import rows
from samebits.spec.training.layers import Array, Pair, by_row, narrow, wide
from samebits.spec.training.rows import each, rows_of

Span = tuple[int, int]
"""The positions of a window along an axis: the first, and the one after the last."""

Means = tuple[tuple[int, ...], list[list[int]], list[int]]
"""The shape of an average pool's output, and for every output the input indices whose sum it is and
what that is divided by."""

# --- windows --------------------------------------------------------------------------------


def spans(size: int, kernel: int, stride: int, padding: int, ceil: bool = False) -> list[Span]:
    """The windows along an axis of `size` positions; some reach into the padding."""
    room = size + 2 * padding - kernel
    count = (-(-room // stride) if ceil else room // stride) + 1
    firsts = [i * stride - padding for i in range(count)]
    return [(first, first + kernel) for first in firsts if not ceil or first < size]


def adaptive_spans(size: int, count: int) -> list[Span]:
    """The windows of AdaptiveAvgPool2d along an axis: `count` of them cover it."""
    return [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]


def members_of(
    shape: tuple[int, ...], down: Sequence[Span], across: Sequence[Span]
) -> Iterator[list[int]]:
    """For every window of every image [height, width] its input indices, row-major."""
    n, c, height, width = shape
    for plane, vertical, horizontal in product(range(n * c), down, across):
        yield [
            (plane * height + h) * width + v
            for h, v in product(range(*vertical), range(*horizontal))
            if 0 <= h < height and 0 <= v < width
        ]


def windows(
    shape: tuple[int, ...], kernel: Pair, stride: Pair, padding: Pair, ceil: bool = False
) -> tuple[tuple[int, ...], list[list[int]]]:
    """The output shape, and for every output the input indices inside the image, row-major."""
    down, across = (spans(shape[2 + a], kernel[a], stride[a], padding[a], ceil) for a in (0, 1))
    members = list(members_of(shape, down, across))
    return (*shape[:2], len(down), len(across)), members


def within(span: Span, low: int, high: int) -> int:
    """Positions of a window that lie in [low, high)."""
    return min(span[1], high) - max(span[0], low)


def averaged_windows(
    shape: tuple[int, ...],
    kernel: Pair,
    stride: Pair,
    padding: Pair,
    ceil: bool = False,
    include_pad: bool = True,
    divisor: int | None = None,
) -> Means:
    """`windows`, and the number by which the sum of each is divided. Section 5."""
    along = []
    for a in (0, 1):
        size, pad = shape[2 + a], padding[a] if include_pad else 0
        own = spans(size, kernel[a], stride[a], padding[a], ceil)
        along.append([within(span, -pad, size + pad) for span in own])
    each_image = [divisor or d * e for d, e in product(*along)]
    by = each_image * (shape[0] * shape[1])
    return *windows(shape, kernel, stride, padding, ceil), by


def adaptive_windows(shape: tuple[int, ...], size: Pair) -> Means:
    """The windows of AdaptiveAvgPool2d, divided by the number of their positions."""
    members = list(members_of(shape, *map(adaptive_spans, shape[2:], size)))
    return (*shape[:2], *size), members, [len(m) for m in members]


# --- maxima ---------------------------------------------------------------------------------


def max_pool(
    x: Array, kernel: Pair, stride: Pair, padding: Pair, ceil: bool = False
) -> tuple[Array, list[int]]:
    """The output, and the input index of the first maximum of every window. Section 5."""
    shape, members = windows(x.shape, kernel, stride, padding, ceil)
    position = [max(m, key=lambda i: x.codes[i]) for m in members]  # max: the first of equals
    codes = [x.codes[i] for i in position]
    return Array(codes, shape, by_row(x, len(codes)), x.bits, x.shifts), position


def max_pool_backward(g: Array, shape: tuple[int, ...], position: Sequence[int]) -> Array:
    """g added at the saved positions. Section 7."""
    acc = [0] * math.prod(shape)
    for code, i in zip(g.codes, position, strict=True):
        acc[i] += code
    return wide(acc, shape, by_row(g, len(acc)))


# --- means ----------------------------------------------------------------------------------


def averages(
    x: Array, shape: tuple[int, ...], members: Sequence[Sequence[int]], by: Sequence[int]
) -> Array:
    """The sum of every window, divided by its number in `by`, with one rounding. Section 5."""
    common = math.lcm(*by)
    sums = [sum(x.codes[i] for i in m) for m in members]
    acc = [s * (common // d) for s, d in zip(sums, by, strict=True)]
    own = by_row(x, len(acc))
    if x.shifts:
        own = tuple(x.exponents[m[0]] for m in members)
    return narrow(acc, shape, own, x.bits, common, x.shifts)


def averages_backward(
    g: Array, shape: tuple[int, ...], members: Sequence[Sequence[int]], by: Sequence[int]
) -> Array:
    """Section 7; `shape` is the input's."""
    acc, common = [0] * math.prod(shape), math.lcm(*by)
    for code, window, d in zip(g.codes, members, by, strict=True):
        for i in window:
            acc[i] += code * (common // d)
    return _divided(g, acc, shape, common, 30 + common.bit_length() - max(by).bit_length())


def _divided(g: Array, acc: list[int], shape: tuple[int, ...], common: int, bits: int) -> Array:
    """acc / common with the exponents of g, of acc with at least `bits` bits. Section 7."""
    exponent = by_row(g, len(acc))
    own = list(each(exponent, len(acc)))
    for at in rows.members(rows_of(shape) if g.by_rows else [0] * len(acc)).values():
        t = max(0, bits - max(abs(acc[i]) for i in at).bit_length())
        for i in at:
            acc[i] = formats.round_ratio(acc[i] << t, common)
            own[i] -= t
    return wide(acc, shape, tuple(own) if g.by_rows else own[0])


# --- between pixels -------------------------------------------------------------------------

Line = tuple[list[dict[int, int]], int]
"""For every position along an axis the weights of those it lies between, and their sum."""


def line(size: int, count: int, corners: bool) -> Line:
    """`count` positions between `size` ones. Section 14.4."""
    found, whole = [], max(count - 1, 1) if corners else 2 * count
    for o in range(count):
        position = o * (size - 1) if corners else max((2 * o + 1) * size - count, 0)
        first, weight = divmod(position, whole)
        if first == size - 1:
            weight = 0
        found.append({first: whole - weight, **({first + 1: weight} if weight else {})})
    common = math.gcd(whole, *(w for weights in found for w in weights.values()))
    return [{i: w // common for i, w in weights.items()} for weights in found], whole // common


def interpolated(x: Array, size: Pair, corners: bool) -> Array:
    """Pixels between those of images. Section 14.4."""
    acc, shape, whole, source = weighted_sums(x, size, corners)
    own = tuple(x.exponents[i] for i in source) if x.by_rows else x.exponent
    return narrow(acc, shape, own, x.bits, whole, x.shifts)


def weighted_sums(
    x: Array, size: Pair, corners: bool
) -> tuple[list[int], tuple[int, ...], int, list[int]]:
    """Sums of neighbours by their weights, their shape, what divides them, and of each the place of
    one of its pixels."""
    shape, taps, whole = _between(x.shape, size, corners)
    acc, source = [0] * math.prod(shape), [0] * math.prod(shape)
    for o, i, weight in taps:
        acc[o] += x.codes[i] * weight
        source[o] = i
    return acc, shape, whole, source


def interpolated_backward(g: Array, shape: tuple[int, ...], corners: bool) -> Array:
    """The weighted sums of g, divided as the pixels were; `shape` is the input's."""
    _, taps, whole = _between(shape, (g.shape[2], g.shape[3]), corners)
    acc = [0] * math.prod(shape)
    for o, i, weight in taps:
        acc[i] += g.codes[o] * weight
    return _divided(g, acc, shape, whole, 30 + whole.bit_length())


def _between(
    shape: tuple[int, ...], size: Pair, corners: bool
) -> tuple[tuple[int, ...], list[tuple[int, int, int]], int]:
    """The output's shape, (output, input, weight) of every product, and what divides the sums."""
    n, c, height, width = shape
    (down, tall), (across, broad) = (line(shape[2 + a], size[a], corners) for a in (0, 1))
    taps = [
        (
            (plane * size[0] + y) * size[1] + x,
            (plane * height + h) * width + v,
            down[y][h] * across[x][v],
        )
        for plane, y, x in product(range(n * c), range(size[0]), range(size[1]))
        for h, v in product(down[y], across[x])
    ]
    return (n, c, *size), taps, tall * broad
