"""Losses in plain Python integers (docs/spec/training.md, section 6).

The gradient is exact as specified; the number returned beside it is reported, never differentiated.
Every function returns (loss, gradient of scale * loss).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import chain, product
from typing import Any

from samebits.errors import RangeError
from samebits.spec import formats
from samebits.spec.formats import Tensor
from samebits.spec.training.layers import Array, narrow, quantize, quantize_input, wide, wide_whole
from samebits.spec.training.rows import align, each, members, plus, rows_of

LOG2_E = 1549082005  # rne(log2(e) * 2**30)
LN_2 = 0.6931471805599453
CAP = 2**21
POINT = 24  # bits behind the point of real arguments
GRID = 28  # of what multiplies -log of a probability
MANY = 1 << 12  # rows: a mean over so many does not divide on the grid of 6.2
IGNORED = -100  # the index of rows that do not count, unless another is given
INFINITE = 1 << 11  # left shifts by more are beyond binary64
SHARED = 14  # bits of amounts that the classes of a row share
POWER_MAX = 1 << 10  # of 2, in binary64
UNIT = -54  # the exponent of products of two powers


def power_table(halvings: int) -> list[int]:
    """rne(2**(-i / 2**halvings) * 2**30) for i in 0..255."""
    bits = 256
    root = 1 << (bits - 1)
    for _ in range(halvings):
        root = math.isqrt(root << bits)
    table, value = [], 1 << bits
    for _ in range(256):
        # Every step above rounds down by less than one unit: the true value is in [value, +1024].
        low, high = (formats.scaled(v, 30 - bits) for v in (value, value + 1024))
        if low != high:
            raise AssertionError("too near a rounding boundary")
        table.append(low)
        value = value * root >> bits
    return table


T1, T2 = power_table(8), power_table(16)


def log2_fixed(value: int) -> int:
    """log2(value) in units of 2**-24, by 24 squarings."""
    whole = value.bit_length() - 1
    v = value << (30 - whole) if whole <= 30 else value >> (whole - 30)
    fraction = 0
    for _ in range(24):
        v = v * v >> 30
        fraction <<= 1
        if v >= 2**31:
            fraction |= 1
            v >>= 1
    return (whole << 24) + fraction


# --- factors, losses and real arguments -------------------------------------------------------


def times(acc: Sequence[int], exponent: int, factor: float | None) -> Tensor:
    """acc * 2**exponent times the coefficient of a factor; None is left out."""
    if factor is None:
        return list(acc), exponent
    m, x = formats.coefficient(factor)
    return [a * m for a in acc], exponent + x


def incoming(acc: Sequence[int], exponent: int, scale: float) -> Tensor:
    """acc times the scalar that the loss is multiplied by; 1 is left out."""
    return times(acc, exponent, None if scale == 1.0 else scale)


def real(total: int, exponent: int) -> float:
    """total * 2**exponent as binary64, infinity beyond its range; total >= 0."""
    try:
        return math.ldexp(float(total), exponent)
    except OverflowError:
        return math.inf


def fixed(value: float | Fraction, bits: int = POINT) -> int:
    """A real number as fixed point."""
    return formats.round_real(Fraction(value) * formats.power(bits))


def power_above(values: Sequence[float]) -> int:
    """The smallest x with every value <= 2**x; some value is > 0."""
    return formats.fits(max(values), 0)


# --- rows of logits ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """The codes of one row of logits, and their exponent."""

    codes: list[int]
    exponent: int

    @cached_property
    def distances(self) -> list[int]:
        """d_j, from the largest code."""
        largest = max(self.codes)
        return [largest - code for code in self.codes]

    @cached_property
    def powers(self) -> list[int]:
        """P_j = 2**24 * exp(-d_j * 2**exponent)."""
        out = []
        for d in self.distances:
            shift = self.exponent - 14
            u = min(d * LOG2_E << shift if shift >= 0 else d * LOG2_E >> -shift, CAP)
            whole, fraction = u >> 16, u & 65535
            p = (T1[fraction >> 8] * T2[fraction & 255]) >> 30
            out.append(0 if whole > 24 else p >> (6 + whole))
        return out

    def loss(self, weight: int, distance: int) -> int:
        """R of a weight A and a sum of distances D, in units of 2**-24."""
        shift = self.exponent - 14
        product = distance * LOG2_E
        u = product << min(shift, INFINITE) if shift >= 0 else product >> -shift
        return weight * (log2_fixed(sum(self.powers)) - (24 << 24)) + (u << 8)


def class_rows(shape: Sequence[int]) -> list[list[int]]:
    """The elements of every row of logits [N, C, d1, ...]: C apart from each other."""
    classes, inner = shape[1], math.prod(shape[2:])
    return [
        [(n * classes + c) * inner + i for c in range(classes)]
        for n, i in product(range(shape[0]), range(inner))
    ]


def by_element(values: Iterable[Any], shape: Sequence[int]) -> list[Any]:
    """Values in the order of the rows of logits, in that of the elements."""
    places = chain.from_iterable(class_rows(shape))
    return [value for _, value in sorted(zip(places, values, strict=True))]


def logits_rows(z: Array) -> list[Row]:
    """The rows of logits, aligned where the exponents of one differ."""
    codes, own, rows = z.codes, each(z.exponent, len(z.codes)), class_rows(z.shape)
    if any(len({own[i] for i in row}) > 1 for row in rows):
        samples = [i // math.prod(z.shape[1:]) for i in range(len(codes))]
        codes, own = align(codes, own, samples)
    return [Row([codes[i] for i in row], own[row[0]]) for row in rows]


# --- cross-entropy ----------------------------------------------------------------------------


def log_probabilities(z: Array) -> list[float]:
    """The log-probabilities of logits [N, C, ...], row after row: minus each class's loss (6.6)."""
    return [-(LN_2 * real(r.loss(1, d), -24)) for r in logits_rows(z) for d in r.distances]


def log_values(z: Array) -> Array:
    """Log-probabilities of logits [N, C, ...] as bfp32 (6.6)."""
    values = by_element(log_probabilities(z), z.shape)
    return replace(quantize_input(values, z.shape, z.by_rows, 32), layer_bits=z.layer_bits)


def log_values_backward(z: Array, g: Array) -> Array:
    """The gradient by the logits of log-probabilities that were computed with (6.6)."""
    if g.by_rows:
        g = wide_whole(g.codes, g.shape, g.exponent)
    g16 = g if g.bits == 16 else narrow(g.codes, g.shape, g.exponent, 16)
    up = SHARED - (z.shape[1] - 1).bit_length()
    amounts = [[-g16.codes[i] << up for i in row] for row in class_rows(z.shape)]
    gradient = chain.from_iterable(weighed_entropy(logits_rows(z), amounts)[0])
    return Array(by_element(gradient, z.shape), z.shape, plus(g16.exponent, -up), 32)


def exponential(z: Array) -> Array:
    """exp of every element, row by row or of the whole tensor, as bfp32 (6.6)."""
    own, acc, exponents = each(z.exponent, len(z.codes)), [0] * len(z.codes), [0] * len(z.codes)
    for at in members(rows_of(z.shape) if z.by_rows else [0] * len(own)).values():
        row = Row([z.codes[i] for i in at], own[at[0]])
        n, p = power_of(max(row.codes), row.exponent)
        for i, power in zip(at, row.powers, strict=True):
            acc[i], exponents[i] = power * p, UNIT - n
    found = wide(acc, z.shape, tuple(exponents) if z.by_rows else exponents[0])
    return replace(found, layer_bits=z.layer_bits)


def power_of(code: int, exponent: int) -> tuple[int, int]:
    """n and p of exp(code * 2**exponent), about p * 2**(-30 - n). RangeError beyond binary64."""
    v, shift = -code * LOG2_E, min(exponent - 14, INFINITE)
    v = min(v << shift if shift >= 0 else v >> -shift, POWER_MAX << 16)
    if v >> 16 < -POWER_MAX:
        raise RangeError(f"exp of {code} * 2**{exponent} is beyond binary64")
    return v >> 16, (T1[v >> 8 & 255] * T2[v & 255]) >> 30


def exponential_backward(g: Array, y: Array) -> Array:
    """The gradient times the result (6.6)."""
    acc = [p * q for p, q in zip(g.codes, y.codes, strict=True)]
    return wide(acc, g.shape, plus(g.exponent, y.exponent))


def cross_entropy(
    z: Array,
    targets: Sequence[int],
    scale: float = 1.0,
    *,
    ignored: int = IGNORED,
    mean: bool = True,
) -> tuple[float, Array]:
    """Cross-entropy of logits [N, C] and class indices (6.2; of very many rows 6.3)."""
    counted = sum(target != ignored for target in targets)
    divisor = counted if mean else 1
    if divisor >= MANY:
        return general_cross_entropy(z, targets, scale, ignored=ignored)
    rows = logits_rows(z)
    gradient, total = [], 0
    for row, target in zip(rows, targets, strict=True):
        if target == ignored:
            gradient += [0] * len(row.codes)
            continue
        s = sum(row.powers)
        for j, power in enumerate(row.powers):
            numerator = power - (s if j == target else 0)
            gradient.append(formats.round_ratio(numerator << 24, s * divisor))
        total += row.loss(1, row.distances[target])
    loss = LN_2 * real(total, -24)
    acc, e = incoming(gradient, -24, scale)
    return loss / float(counted) if mean else loss, wide(acc, z.shape, e)


def weighed_entropy(
    rows: Sequence[Row], amounts: Sequence[Sequence[int]]
) -> tuple[list[list[int]], int]:
    """q of every row, and the sum of the R, for the amounts a (6.3)."""
    gradient, total = [], 0
    for row, a in zip(rows, amounts, strict=True):
        whole, s = sum(a), sum(row.powers)
        gradient.append(
            [
                formats.round_ratio(power * whole, s) - own
                for power, own in zip(row.powers, a, strict=True)
            ]
        )
        distance = sum(own * d for own, d in zip(a, row.distances, strict=True))
        total += row.loss(whole, distance)
    return gradient, total


def general_cross_entropy(
    z: Array,
    targets: Sequence[int] | Sequence[Sequence[float]],
    scale: float = 1.0,
    *,
    weight: Sequence[float] | None = None,
    ignored: int = IGNORED,
    mean: bool = True,
    smoothing: float = 0.0,
) -> tuple[float, Array]:
    """Cross-entropy of logits [N, C, ...] (6.3).

    targets: an index, or a list of C probabilities, for each row; rows are in the order of the
    samples and, within one, of the positions.
    """
    rows, classes = logits_rows(z), z.shape[1]
    x = 0 if weight is None else power_above(weight)
    w = [1 << POINT] * classes if weight is None else [fixed(v, POINT - x) for v in weight]
    e = fixed(smoothing)
    amounts, divisor = [], 0.0
    for target in targets:
        if isinstance(target, int):
            counts = target != ignored
            t = [(1 << POINT) * (j == target) for j in range(classes)]
            divisor += math.ldexp(float(w[target]), x - POINT) if counts else 0.0
        else:
            counts, t = True, [fixed(v) for v in target]
            divisor += 1.0
        spread = formats.round_ratio(16 * e, classes)
        s = [formats.scaled(((1 << POINT) - e) * v, -20) + spread for v in t]
        a = [formats.scaled(u * v, -POINT) for u, v in zip(w, s, strict=True)]
        amounts.append(a if counts else [0] * classes)
    found, total = weighed_entropy(rows, amounts)
    gradient = by_element(chain.from_iterable(found), z.shape)
    return _weighed(gradient, z.shape, total, x, divisor if mean else None, scale)


def _weighed(
    gradient: Sequence[int],
    shape: tuple[int, ...],
    total: int,
    x: int,
    divisor: float | None,
    scale: float,
) -> tuple[float, Array]:
    loss = LN_2 * real(total, x - POINT - GRID)
    acc, e = times(gradient, x - GRID, None if divisor is None else 1.0 / divisor)
    acc, e = incoming(acc, e, scale)
    return loss if divisor is None else loss / divisor, wide(acc, shape, e)


def binary_cross_entropy(
    z: Array,
    targets: Sequence[float],
    scale: float = 1.0,
    *,
    pos_weight: Sequence[float] | None = None,
    mean: bool = True,
) -> tuple[float, Array]:
    """Binary cross-entropy of logits of any shape (6.4); `pos_weight`: one for every element."""
    own = each(z.exponent, len(z.codes))
    rows = [Row([0, code], e) for code, e in zip(z.codes, own, strict=True)]
    positive = [1.0] * len(rows) if pos_weight is None else pos_weight
    x = power_above([1.0, *positive])
    one = fixed(1.0, POINT - x)
    amounts = []
    for t, p in zip(targets, positive, strict=True):
        on = fixed(t)
        off = (1 << POINT) - on
        pairs = ((one, off), (fixed(p, POINT - x), on))
        amounts.append([formats.scaled(w * v, -20) for w, v in pairs])
    found, total = weighed_entropy(rows, amounts)
    gradient = [q[1] for q in found]
    return _weighed(gradient, z.shape, total, x, float(len(rows)) if mean else None, scale)


# --- differences ------------------------------------------------------------------------------


def difference(y: Array, targets: Sequence[float], bits: int = 32) -> Tensor:
    """diff and its exponent e (6.5): `combine` at one exponent, by rows too."""
    own = each(y.exponent, len(y.codes))
    t, e_t = quantize(targets, bits)
    e = max(max(own) + 31, e_t + bits - 1) - 60
    pairs = zip(y.codes, own, t, strict=True)
    return [formats.scaled(c, f - e) + formats.scaled(-v, e_t - e) for c, f, v in pairs], e


def mse(
    y: Array,
    targets: Sequence[float],
    scale: float = 1.0,
    *,
    mean: bool = True,
) -> tuple[float, Array]:
    """Mean squared error against real targets in the order of y's codes."""
    d, e_d = formats.requantize(*difference(y, targets, 16), 16)
    n = float(len(d))
    squares = float(sum(c * c for c in d))
    acc, e = incoming(*times(d, e_d, 2.0 / n if mean else 2.0), scale)
    return math.ldexp(squares / n if mean else squares, 2 * e_d), wide(acc, y.shape, e)


def l1(
    y: Array,
    targets: Sequence[float],
    scale: float = 1.0,
    *,
    mean: bool = True,
) -> tuple[float, Array]:
    """Mean absolute error."""
    diff, e = difference(y, targets)
    n = float(len(diff))
    signs = [(v > 0) - (v < 0) for v in diff]
    loss = real(sum(map(abs, diff)), e)
    acc, e_g = incoming(*times(signs, 0, 1.0 / n if mean else None), scale)
    return loss / n if mean else loss, wide(acc, y.shape, e_g)


def huber(
    y: Array,
    targets: Sequence[float],
    scale: float = 1.0,
    *,
    delta: float = 1.0,
    mean: bool = True,
) -> tuple[float, Array]:
    """Half the square of differences up to delta, linear beyond."""
    n = float(len(y.codes))
    loss, h, e_h = _huber(y, targets, delta)
    acc, e = incoming(*times(h, e_h, 1.0 / n if mean else None), scale)
    return loss / n if mean else loss, wide(acc, y.shape, e)


def smooth_l1(
    y: Array,
    targets: Sequence[float],
    scale: float = 1.0,
    *,
    beta: float = 1.0,
    mean: bool = True,
) -> tuple[float, Array]:
    """Huber's loss with delta = beta, divided by beta; with beta = 0 that of `l1`."""
    if beta == 0:
        return l1(y, targets, scale, mean=mean)
    n = float(len(y.codes))
    loss, h, e_h = _huber(y, targets, beta)
    acc, e = incoming(*times(h, e_h, 1.0 / (beta * n) if mean else 1.0 / beta), scale)
    loss = loss / beta
    return loss / n if mean else loss, wide(acc, y.shape, e)


def _huber(y: Array, targets: Sequence[float], delta: float) -> tuple[float, list[int], int]:
    """The sum of Huber's losses, H and its exponent."""
    diff, e = difference(y, targets)
    bound = min(fixed(delta, -e), 1 << 62)
    clamped = [min(max(v, -bound), bound) for v in diff]
    h, e_h = formats.requantize(clamped, e, 16)
    excess = sum(abs(v) - abs(k) for v, k in zip(diff, clamped, strict=True))
    half = 0.5 * math.ldexp(float(sum(c * c for c in h)), 2 * e_h)
    return half + delta * real(excess, e), h, e_h
