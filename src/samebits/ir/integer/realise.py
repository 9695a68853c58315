"""Windows as index maps, and requantization as 64-bit integer arithmetic, for the vectorised
realisations of integer graphs. docs/spec/graph.md sections 3 and 6."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from samebits.ir.integer.bounds import Interval
from samebits.ir.integer.windows import taps
from samebits.ir.ops import Array, Attributes
from samebits.numerics.multiplier import find_multiplier, requantized, threshold
from samebits.spec.rounding import Away, Doubled, HalfUp, Rounding

INT64_MAX = 2**63 - 1
SUMS = 1 << 62  # what every number of a Quotient or Floors stays below


# --- windows --------------------------------------------------------------------------------


def positions(size: tuple[int, int], kernel: tuple[int, int], attributes: Attributes) -> Array:
    """[OH * OW, KH * KW]: the row-major position in an image of `size` that each tap of each
    window reads; H * W stands for a tap outside. `attributes`: strides, pads, dilations."""
    height, width = size
    grid = np.arange(height * width, dtype=np.int64).reshape(1, height, width, 1)
    windows = taps(grid, kernel, attributes, height * width)
    return windows.reshape(-1, math.prod(kernel))


def transposed_positions(
    size: tuple[int, int], kernel: tuple[int, int], attributes: Attributes
) -> Array:
    """`positions` for conv_transpose: [OH * OW, KH * KW], H * W where a tap reads nothing."""
    height, width = size
    rows, columns = (
        _sources(
            size[axis],
            kernel[axis],
            attributes["size"][axis],
            attributes["strides"][axis],
            attributes["dilations"][axis],
            attributes["pads"][axis],
        )
        for axis in (0, 1)
    )
    row, column = rows[:, None, :, None], columns[None, :, None, :]
    inside = (row >= 0) & (column >= 0)
    return np.where(inside, row * width + column, height * width).reshape(-1, math.prod(kernel))


def _sources(size: int, kernel: int, out: int, stride: int, dilation: int, pad: int) -> Array:
    """[out, kernel]: i with i * stride + p * dilation - pad = o, or -1."""
    scaled = np.arange(out)[:, None] + pad - np.arange(kernel)[None, :] * dilation
    source = scaled // stride
    return np.where((scaled % stride == 0) & (source >= 0) & (source < size), source, -1)


# --- requantization ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Quotient:
    """rne(acc * numerators / denominators) in 64 bits: |acc| * numerator is below 2**62, and no
    denominator above it, so that twice a remainder plus one fits too. int64 [1], or [C] along
    the last axis."""

    numerators: Array
    denominators: Array


@dataclass(frozen=True)
class Floors:
    """floor((acc * factors + up + [acc < 0] * down) / divisors) in 64 bits.

    offset: multiples of the divisors; with one added no sum is negative, and a quotient that is
            truncated is its floor. Still below 2**63
    ends:   the least and the greatest acc; one outside of them counts as the end next to it, whose
            code saturates like its own. None where there is none outside
    All int64 [1], or [C] along the last axis.
    """

    factors: Array
    up: Array
    down: Array
    divisors: Array
    offset: Array
    ends: tuple[Array, Array] | None = None


@dataclass(frozen=True)
class Staircase:
    """code = low + the number of values <= acc; int64 [1, T] or [C, T], rows ascending."""

    values: Array


def requantization(acc: Interval, attributes: Attributes) -> Quotient | Floors | Staircase:
    """`requantize` over the interval of its input in 64-bit integers; exactly the operator."""
    ratios: tuple[Rounding, ...] = attributes["ratios"]
    channels = max(len(ratios), len(acc.low))
    each = ratios if len(ratios) == channels else ratios * channels
    cases = list(zip(each, acc.over(channels), strict=True))
    if len(set(cases)) == 1:
        cases = cases[:1]
    pairs = [_pair(ratio, ends, attributes) for ratio, ends in cases]
    fitting = [pair for pair in pairs if pair is not None]
    if len(fitting) == len(pairs):
        numerators, denominators = zip(*fitting, strict=True)
        return Quotient(np.array(numerators, np.int64), np.array(denominators, np.int64))
    floors = _floors(cases, attributes)
    if floors is not None:
        return floors
    rows = [staircase(ratio, ends, *_limits(attributes)) for ratio, ends in cases]
    values = np.full((len(rows), max(map(len, rows))), INT64_MAX, np.int64)
    for row, found in zip(values, rows, strict=True):
        row[: len(found)] = found
    return Staircase(values)


def _limits(attributes: Attributes) -> tuple[int, int, int]:
    return attributes["zero"], attributes["low"], attributes["high"]


def _pair(ratio: Rounding, ends: tuple[int, int], attributes: Attributes) -> tuple[int, int] | None:
    """(numerator, denominator) that stay inside 64 bits, or None."""
    if not isinstance(ratio, Fraction):
        return None
    largest = max(abs(end) for end in ends)
    if 2 * largest * ratio <= 1:
        return 0, 1  # at most one half, which rounds to 0
    if _fits(largest, *ratio.as_integer_ratio()):
        return ratio.as_integer_ratio()
    found = find_multiplier(ratio, *_limits(attributes), *ends)
    if found is not None and _fits(largest, found.m, 1 << found.shift):
        return found.m, 1 << found.shift
    return None


def _fits(largest: int, numerator: int, denominator: int) -> bool:
    return largest * numerator < SUMS and denominator <= SUMS


def as_floor(by: Doubled | HalfUp | Away) -> tuple[int, int, int, int]:
    """(m, up, down, divisor): code(acc) = floor((acc * m + up + [acc < 0] * down) / divisor).

    Of `Doubled` with p = acc * m the definition is x = floor((p + 2**30) / 2**31), then, where
    right > 0, floor((x + 2**(right - 1) - [x < 0]) / 2**right). A floor of a floor is one floor:

        code = floor((p + 2**(right + 30) + 2**30) / 2**(right + 31))    where x >= 0,
        code = floor((p + 2**(right + 30) - 2**30) / 2**(right + 31))    where x < 0.

    The sign may be that of the sum: where it is negative and x is 0, p >= -2**30, and the second
    line gives 0 too. `Away` of a negative sum is -floor((n // 2 - acc) / n), a quotient rounded up,
    and so the floor of (acc - n // 2 + n - 1) / n.
    """
    if isinstance(by, Away):
        return 1, by.n // 2, by.n - 1 - 2 * (by.n // 2), by.n
    shift = by.shift if isinstance(by, HalfUp) else 31 + by.right - by.left
    twice = isinstance(by, Doubled) and by.right > 0
    return by.m, (1 << shift >> 1) + (twice << 30), -twice << 31, 1 << shift


def _floors(
    cases: Sequence[tuple[Rounding, tuple[int, int]]], attributes: Attributes
) -> Floors | None:
    """Sums as they are, or kept between the ends; None for ratios, and where neither fits."""
    zero, low, high = _limits(attributes)
    roundings = [by for by, _ in cases if not isinstance(by, Fraction)]
    if len(roundings) < len(cases):
        return None
    reaches = [ends for _, ends in cases]
    kept = [
        tuple(min(max(end, by.least(low - zero) - 1), by.least(high - zero)) for end in ends)
        for by, ends in zip(roundings, reaches, strict=True)
    ]
    for ends, bounded in ((reaches, False), (kept, True)):
        rows = [_floor(by, *each) for by, each in zip(roundings, ends, strict=True)]
        if None not in rows:
            least, most = np.array(ends, np.int64).T
            found = Floors(*np.array(rows, np.int64).T)
            return replace(found, ends=(least, most)) if bounded else found
    return None


def _floor(by: Doubled | HalfUp | Away, least: int, most: int) -> tuple[int, ...] | None:
    """One row of `Floors`, or None where 64 bits do not hold a sum."""
    m, up, down, divisor = as_floor(by)
    offset = -(min(least, 0) * m // divisor) * divisor  # up + down is not negative
    if max(-least, most) * m >= SUMS or max(most, 0) * m + up + offset >= 1 << 63:
        return None
    return m, up, down, divisor, offset


def staircase(ratio: Rounding, ends: tuple[int, int], zero: int, low: int, high: int) -> Array:
    """The least acc (int64) that reaches each code above `low`, up to the greatest reached."""
    first, last = (requantized(end, ratio, zero, low, high) for end in ends)
    below = np.full(first - low, ends[0], np.int64)
    return np.concatenate([below, thresholds(range(first - zero + 1, last - zero + 1), ratio)])


def thresholds(codes: range, ratio: Rounding) -> Array:
    """`spec.rounding.least_of` up to 65,536 consecutive codes, int64.

    The i-th code asks for start + i * step divided by `divisor`, numbers of a hundred bits. With
    i = 256 * h + l its quotient and remainder are those of start + 256 * h * step plus those of
    l * step, and one more where the two remainders make up a divisor: 512 divisions in all.
    """
    if not isinstance(ratio, Fraction):
        return np.array([ratio.least(code) for code in codes], np.int64)
    p, q = ratio.as_integer_ratio()
    start, step, divisor = (2 * codes.start - 1) * q, 2 * q, 2 * p
    if divisor >= 1 << 62:  # two remainders would not fit in 64 bits
        return np.array([threshold(code, p, q) for code in codes], np.int64)
    columns = min(len(codes), 256)
    rows = -(-len(codes) // 256)
    high = np.array([divmod(start + 256 * h * step, divisor) for h in range(rows)], np.int64)
    low = np.array([divmod(at * step, divisor) for at in range(columns)], np.int64)
    quotient, remainder = (
        (high.reshape(-1, 2)[:, None, part] + low.reshape(-1, 2)[None, :, part]).reshape(-1)[
            : len(codes)
        ]
        for part in (0, 1)
    )
    whole = remainder >= divisor
    odd = np.arange(codes.start, codes.stop) % 2 == 1
    return quotient + whole + ((remainder - whole * divisor != 0) | odd)
