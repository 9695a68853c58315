"""Products of two activations and softmax, in plain Python integers.

A restatement of docs/spec/training.md, section 14, like `layers`. Attention is made of them: its
scores are a product, whose softmax meets the values in another.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from samebits.spec import formats
from samebits.spec.training import rows
from samebits.spec.training.layers import Array, narrow, unshifted, wide, width
from samebits.spec.training.loss import Row
from samebits.spec.training.rows import Exponent, each, plus

SOFTMAX_EXPONENT = -30
POWER = 24  # bits of the largest P

Tap = tuple[int, int, int]


@dataclass(frozen=True)
class Operands:
    """Two operands of a product: a [..., n, k] and b [..., k, m] or, transposed, [..., m, k].

    a, b:   codes of at most 8 bits; wider ones have been rounded, every vector by itself
    kinds:  whether a, and whether b, came with exponents by rows
    folded: whether the rows of b, which have own exponents, are what is summed over
    bits:   of the codes, the larger width
    """

    a: Array
    b: Array
    transposed: bool
    kinds: tuple[bool, bool]
    folded: bool
    bits: int

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """(matrices, n, m, k)."""
        *batch, n, k = self.a.shape
        return math.prod(batch), n, self.b.shape[-2 if self.transposed else -1], k

    def taps(self) -> Iterator[Tap]:
        """(place in the result, in a, in b) of every product."""
        count, n, m, k = self.sizes
        for x, i, j, t in product(range(count), range(n), range(m), range(k)):
            at_b = (x * m + j) * k + t if self.transposed else (x * k + t) * m + j
            yield (x * n + i) * m + j, (x * n + i) * k + t, at_b


def vectors(shape: Sequence[int]) -> list[int]:
    """The vector along the last axis that every element is in."""
    return [i // shape[-1] for i in range(math.prod(shape))]


def columns(shape: Sequence[int]) -> list[int]:
    """The column of its matrix that every element is in."""
    size = shape[-2] * shape[-1]
    return [i // size * shape[-1] + i % shape[-1] for i in range(math.prod(shape))]


def operands(a: Array, b: Array, transposed: bool = False) -> Operands:
    """The operands of a product as it takes them. Section 14.1."""
    bits = max(width(a), width(b))
    a, b = unshifted(a), unshifted(b)
    folded = not transposed and b.bits <= 8 and b.by_rows and len(b.shape) != 4
    along = vectors(b.shape) if transposed else columns(b.shape)
    kinds = (a.by_rows, b.by_rows)
    rounded = (_operand(a, vectors(a.shape), bits), _operand(b, along, bits))
    return Operands(*rounded, transposed, kinds, folded, bits)


def _operand(x: Array, of: Sequence[int], bits: int) -> Array:
    if x.bits <= 8:
        return x
    codes, own = rows.requantize(x.codes, x.exponent, of, bits)
    return Array(codes, x.shape, own, bits)


def of_kind(
    acc: Sequence[int], shape: tuple[int, ...], exponent: Exponent, by_rows: bool, bits: int
) -> Array:
    """acc with exponents by rows, or with one: `shorten` to 32 bits, `requantize` to fewer."""
    if isinstance(exponent, int):
        exponent = each(exponent, len(acc)) if by_rows else exponent
    elif not by_rows:
        whole = [0] * len(acc)
        if bits == 32:
            codes, own = rows.shorten(acc, exponent, whole)
        else:
            codes, own = rows.requantize(acc, exponent, whole, bits)
        return Array(codes, shape, own[0], bits)
    return wide(acc, shape, exponent) if bits == 32 else narrow(acc, shape, exponent, bits)


def matmul(of: Operands) -> Array:
    """The product, bfp32. Section 14.1."""
    a, b, (count, n, m, _) = of.a, of.b, of.sizes
    one = not of.folded and isinstance(a.exponent, int) and isinstance(b.exponent, int)
    if of.folded:
        met = {at_a: b.exponents[at_b] for _, at_a, at_b in of.taps()}
        sums = tuple(e + met[i] for i, e in enumerate(a.exponents))
        codes, found = rows.requantize(a.codes, sums, vectors(a.shape), of.bits)
        a = Array(codes, a.shape, found, of.bits)
    acc, exponents = [0] * (count * n * m), [0] * (count * n * m)
    for at, i, j in of.taps():
        acc[at] += a.codes[i] * b.codes[j]
        exponents[at] = a.exponents[i] + (0 if of.folded else b.exponents[j])
    shape, own = (*of.a.shape[:-1], m), exponents[0] if one else tuple(exponents)
    return replace(of_kind(acc, shape, own, any(of.kinds), 32), layer_bits=of.bits)


def matmul_backward(g: Array, of: Operands) -> tuple[Array, Array]:
    """The gradients of a and of b, bfp16. Section 14.1."""
    return _gradient_of_a(g, of), _gradient_of_b(g, of)


def _gradient_of_a(g: Array, of: Operands) -> Array:
    """The sum over j of g * b: exponents of j go into g first, those of b's rows come behind."""
    a, b = of.a, of.b
    if isinstance(g.exponent, int) and isinstance(b.exponent, int):
        h = g if g.bits == 16 else narrow(g.codes, g.shape, g.exponent, 16)
        beside: Exponent = b.exponent
    else:
        met = {at: 0 if of.folded else b.exponents[j] for at, _, j in of.taps()}
        own = tuple(e + met[i] for i, e in enumerate(g.exponents))
        codes, chosen = rows.requantize(g.codes, own, vectors(g.shape), 16)
        h, beside = Array(codes, g.shape, chosen, 16), 0
    acc, exponents = [0] * len(a.codes), [0] * len(a.codes)
    for at, i, j in of.taps():
        acc[i] += h.codes[at] * b.codes[j]
        exponents[i] = h.exponents[at] + (b.exponents[j] if of.folded else each(beside, 1)[0])
    one = isinstance(h.exponent, int)
    return of_kind(acc, a.shape, exponents[0] if one else tuple(exponents), of.kinds[0], 16)


def _gradient_of_b(g: Array, of: Operands) -> Array:
    """The sum over i of g * a: exponents of i go into g first, matrix by matrix."""
    a, b, (_, n, m, _) = of.a, of.b, of.sizes
    t = g
    if isinstance(g.exponent, int) and isinstance(a.exponent, int):
        exponent: Exponent = g.exponent + a.exponent
    else:
        met = {at: a.exponents[i] for at, i, _ in of.taps()}
        own = tuple(e + met[i] for i, e in enumerate(g.exponents))
        matrix = [i // (n * m) for i in range(len(g.codes))]
        codes, exponent = rows.requantize(g.codes, own, matrix, 32, limited=False)
        t = Array(codes, g.shape, exponent, 32)
    acc, exponents = [0] * len(b.codes), [0] * len(b.codes)
    for at, i, j in of.taps():
        acc[j] += t.codes[at] * a.codes[i]
        exponents[j] = each(exponent, len(t.codes))[at]
    one = isinstance(exponent, int)
    return of_kind(acc, b.shape, exponents[0] if one else tuple(exponents), of.kinds[1], 16)


# --- what scores go through -------------------------------------------------------------------


def add_wide(a: Array, b: Array) -> Array:
    """The sum of two tensors of which one has 32 bits. Section 14.2."""
    by_rows = a.by_rows or b.by_rows
    terms = [(t.codes, t.exponents if by_rows else t.exponent, 31) for t in map(unshifted, (a, b))]
    codes, exponent = rows.combine(terms)
    return replace(wide(codes, a.shape, exponent), layer_bits=max(width(a), width(b)))


def where_wide(chosen: Sequence[bool], a: Array, b: Array) -> Array:
    """a where it is chosen, else b, of two tensors of which one has 32 bits. Section 14.2."""
    first = [c if at else 0 for c, at in zip(unshifted(a).codes, chosen, strict=True)]
    second = [0 if at else c for c, at in zip(unshifted(b).codes, chosen, strict=True)]
    return add_wide(replace(unshifted(a), codes=first), replace(unshifted(b), codes=second))


@dataclass(frozen=True)
class SoftmaxSaved:
    """For the backward pass: the result in 8 bits, every vector with an exponent."""

    y: Array
    by_rows: bool


def softmax(x: Array, allowed: Sequence[bool] | None = None) -> tuple[Array, SoftmaxSaved]:
    """Over the last axis, of the places that are allowed. Section 14.3."""
    x = unshifted(x)
    size = x.shape[-1]
    y = [0] * len(x.codes)
    for start in range(0, len(y), size):
        places = [i for i in range(start, start + size) if allowed is None or allowed[i]]
        if not places:
            continue
        row = Row([x.codes[i] for i in places], x.exponents[start])
        total = sum(row.powers)
        for i, power in zip(places, row.powers, strict=True):
            y[i] = formats.round_ratio(power << -SOFTMAX_EXPONENT, total)
    exponent: Exponent = SOFTMAX_EXPONENT
    if x.by_rows:
        exponent = each(SOFTMAX_EXPONENT, len(y))
    codes, own = rows.requantize(y, SOFTMAX_EXPONENT, vectors(x.shape), 8)
    saved = SoftmaxSaved(Array(codes, x.shape, own, 8), x.by_rows)
    return Array(y, x.shape, exponent, 32, layer_bits=width(x)), saved


def softmax_backward(g: Array, saved: SoftmaxSaved) -> Array:
    """Section 14.3."""
    y, size = saved.y, g.shape[-1]
    g16 = g if g.bits == 16 else narrow(g.codes, g.shape, g.exponent, 16)
    t = []
    for start in range(0, len(y.codes), size):
        vector = range(start, start + size)
        total = sum(y.codes[i] for i in vector)
        met = sum(g16.codes[i] * y.codes[i] for i in vector)
        t += [total * g16.codes[i] - met for i in vector]
    codes, own = rows.requantize(t, g16.exponent, vectors(g.shape), 16)
    acc = [p * q for p, q in zip(codes, y.codes, strict=True)]
    exponent = plus(own, plus(y.exponent, y.exponent))
    return of_kind(acc, g.shape, exponent, saved.by_rows, 32)
