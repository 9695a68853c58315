"""Activations, sums, products and what moves codes, in plain Python integers.

A restatement of docs/spec/training.md, sections 5, 7 and 12, like `layers`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

from samebits.spec import formats
from samebits.spec.formats import EXPONENT_MIN, Tensor
from samebits.spec.training import rows
from samebits.spec.training.layers import (
    Array,
    ExactSums,
    Parameter,
    as_wide_as,
    by_output,
    clamped,
    narrow,
    summed,
    unshifted,
    wide,
    width,
)
from samebits.spec.training.rows import Exponent, each, plus, rows_of

Move = Callable[[Array], Array]

# --- activations ----------------------------------------------------------------------------


CLIPS = {"relu": 0, "relu6": 6}


def clamp(x: Array | ExactSums, clip: int, move: Move | None = None) -> tuple[Array, Array]:
    """Clamped sums or codes, and the mask, both moved: ReLU and its kin. Section 5."""
    if isinstance(x, Array):
        codes, mask = clamped(x.codes, x.exponents, clip)
        return replace(x, codes=codes), Array(mask, x.shape, 0, 8)
    sums, passing = x.clamped(clip)
    y = sums.narrow()
    return (y, passing) if move is None else (move(y), move(passing))


def clamp_backward(g: Array, mask: Array) -> Array:
    """Section 7."""
    return replace(g, codes=[c * m for c, m in zip(g.codes, mask.codes, strict=True)])


Tables = Callable[[int], Tensor]
"""A table of 255 codes, for x = -127..127 at an exponent of x, and the exponent of the codes."""


def table_activation(x: Array, table: Tables, bounded: bool) -> Array:
    """Sections 5, 12.2 and 12.4. bounded: of a function whose values are: shifts end here."""
    acc, exponent = _looked_up(x, table)
    return narrow(acc, x.shape, exponent, x.bits, shifts=() if bounded else x.shifts)


def table_backward(g: Array, x: Array, derivative: Tables) -> Array:
    """Section 7. `derivative`: a table of bfp16 codes."""
    slopes, exponent = _looked_up(x, derivative)
    acc = [a * b for a, b in zip(g.codes, slopes, strict=True)]
    return wide(acc, g.shape, plus(g.exponent, exponent))


def _looked_up(x: Array, table: Tables) -> tuple[list[int], Exponent]:
    """The table's code for every element, and its exponent."""
    at = [table(e) for e in x.exponents]
    codes = [entries[c + 127] for c, (entries, _) in zip(x.codes, at, strict=True)]
    return codes, tuple(e for _, e in at) if x.by_rows else at[0][1]


# --- structure ------------------------------------------------------------------------------


def added(a: Array, b: Array) -> ExactSums:
    """Sections 5, 12.2 and 12.4. Its backward hands g to both."""
    count, by_rows = len(a.codes), a.by_rows or b.by_rows
    own = [t.exponents for t in (a, b)]
    acc, exponents = [0] * count, [0] * count
    for at in rows.members(rows_of(a.shape) if by_rows else [0] * count).values():
        live = [(t.codes, e) for t, e in zip((a, b), own, strict=True) if any_of(t.codes, at)]
        for i in at if live else ():
            found = [e[i] for _, e in live]
            exponents[i] = max(min(found), max(found) - 22)
            acc[i] = sum(formats.scaled(codes[i], e[i] - exponents[i]) for codes, e in live)
    own_exponent = tuple(exponents) if by_rows else exponents[0]
    return ExactSums(acc, a.shape, own_exponent, max(a.bits, b.bits), larger_shifts(a, b))


def larger_shifts(a: Array, b: Array) -> tuple[int, ...]:
    """The larger shift of every channel of two tensors. Section 12.4."""
    if not (a.shifts and b.shifts):
        return a.shifts or b.shifts
    return tuple(map(max, zip(a.shifts, b.shifts, strict=True)))


def any_of(codes: Sequence[int], at: Sequence[int]) -> bool:
    """Whether one of these elements is not 0."""
    return any(codes[i] for i in at)


def repeated(shape: tuple[int, ...], whole: tuple[int, ...]) -> list[int]:
    """For every element of `whole` that of an operand whose axes of size 1 go along.

    The operand may lack the first axes.
    """
    sizes = (1,) * (len(whole) - len(shape)) + shape
    found = []
    for place in product(*(range(size) for size in whole)):
        at = 0
        for index, size in zip(place, sizes, strict=True):
            at = at * size + (index if size > 1 else 0)
        found.append(at)
    return found


def multiply(a: Array, b: Array) -> Array:
    """Sections 5, 12.2 and 14.2."""
    bits = max(width(a), width(b))
    a, b = unshifted(a), unshifted(b)
    shape = tuple(map(max, zip(a.shape, b.shape, strict=True)))
    pairs = list(zip(repeated(a.shape, shape), repeated(b.shape, shape), strict=True))
    own = tuple(a.exponents[i] + b.exponents[j] for i, j in pairs)
    acc = [a.codes[i] * b.codes[j] for i, j in pairs]
    exponent = own if a.by_rows or b.by_rows else own[0]
    if max(a.bits, b.bits) > 8:
        return replace(wide(acc, shape, exponent), layer_bits=bits)
    return narrow(acc, shape, exponent, bits)


def multiply_backward(g: Array, a: Array, b: Array) -> Array:
    """The gradient of a. Sections 7 and 12.3."""
    b = unshifted(b)
    acc, own = [0] * len(a.codes), [EXPONENT_MIN] * len(a.codes)
    pairs = zip(repeated(a.shape, g.shape), repeated(b.shape, g.shape), strict=True)
    for (i, j), code, e in zip(pairs, g.codes, g.exponents, strict=True):
        acc[i] += code * b.codes[j]
        own[i] = e + b.exponents[j]
    return wide(acc, a.shape, tuple(own) if g.by_rows or b.by_rows else own[0])


def scale(x: Array, factor: float) -> Array:
    """Sections 5, 12.4 and 14.2: x times a number."""
    m, by = formats.signed_coefficient(factor)
    return as_wide_as(x, [c * m for c in x.codes], by)


def scale_backward(g: Array, factor: float) -> Array:
    """Section 7."""
    m, by = formats.signed_coefficient(factor)
    return wide([c * m for c in g.codes], g.shape, plus(g.exponent, by))


def concat(inputs: Sequence[Array]) -> Array:
    """Along the channel axis (1). Sections 5 and 12.2."""
    first = inputs[0].shape
    shape = (first[0], sum(x.shape[1] for x in inputs), *first[2:])
    codes: list[int] = []
    own: list[int] = []
    for n in range(first[0]):
        for x in inputs:
            size = math.prod(x.shape[1:])
            codes += x.codes[n * size : (n + 1) * size]
            own += each(x.exponent, len(x.codes))[n * size : (n + 1) * size]
    bits = max(x.bits for x in inputs)
    y = aligned(codes, own, shape, any(x.by_rows for x in inputs), bits)
    if not any(x.shifts for x in inputs):
        return y
    return replace(y, shifts=tuple(s for x in inputs for s in x.shifts or (0,) * x.shape[1]))


def aligned(
    codes: list[int], own: Sequence[int], shape: tuple[int, ...], by_rows: bool, bits: int = 8
) -> Array:
    """`align`: bfp8 codes of these exponents at one a row, or at one."""
    chosen = rows.align(codes, own, rows_of(shape) if by_rows else [0] * len(codes))
    return Array(chosen[0], shape, chosen[1] if by_rows else chosen[1][0], bits)


def concat_backward(g: Array, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    """The slices of g, one an input. Section 7."""
    pieces: list[list[int]] = [[] for _ in shapes]
    start = 0
    for _ in range(g.shape[0]):
        for piece, shape in zip(pieces, shapes, strict=True):
            size = math.prod(shape[1:])
            piece += range(start, start + size)
            start += size
    return [taken(g, p, s) for p, s in zip(pieces, shapes, strict=True)]


def taken(x: Array, places: Sequence[int], shape: tuple[int, ...]) -> Array:
    """Elements of x in another order or shape, which share a row only if they did before."""
    codes = [x.codes[i] for i in places]
    if isinstance(x.exponent, int):
        return replace(x, codes=codes, shape=shape)
    own = tuple(x.exponent[i] for i in places)
    y = Array(codes, shape, own, x.bits)
    return with_shifts(y, [x.by_element[i] for i in places]) if x.shifts else y


def with_shifts(x: Array, up: Sequence[int]) -> Array:
    """x and these shifts of its elements, as those of channels if they are. Section 12.4."""
    channels, own = rows.channels_of(x.shape), each(x.exponent, len(up))
    found = dict(zip(channels, up, strict=True))
    if any(found[c] != s for c, s in zip(channels, up, strict=True)):
        return at_rows(replace(x, exponent=tuple(e + s for e, s in zip(own, up, strict=True))))
    return replace(at_rows(x), shifts=tuple(found[c] for c in range(len(found))))


def at_rows(x: Array) -> Array:
    """`align` where a row has several exponents."""
    if isinstance(x.exponent, int):
        return x
    of_row = rows_of(x.shape)
    if all(len({x.exponent[i] for i in at}) == 1 for at in rows.members(of_row).values()):
        return x
    codes, exponents = rows.align(x.codes, x.exponent, of_row)
    return replace(x, codes=codes, exponent=exponents)


def reshaped(x: Array, shape: tuple[int, ...]) -> Array:
    """The same elements in another shape. Sections 5 and 12.2: `align` where rows meet."""
    y = Array(x.codes, shape, x.exponent, x.bits, layer_bits=x.layer_bits)
    return with_shifts(y, x.by_element) if x.shifts else at_rows(y)


def places(shape: tuple[int, ...], axis: int, index: int) -> list[int]:
    """The flat indices of x at one index of an axis, row-major."""
    inner, size = math.prod(shape[axis + 1 :]), shape[axis]
    return [
        (outer * size + index % size) * inner + i
        for outer in range(math.prod(shape[:axis]))
        for i in range(inner)
    ]


def select(x: Array, axis: int, index: int) -> Array:
    """Indexing of one axis by one integer. Section 5."""
    return taken(x, places(x.shape, axis, index), x.shape[:axis] + x.shape[axis + 1 :])


def select_backward(g: Array, shape: tuple[int, ...], axis: int, index: int) -> Array:
    """Section 7; `shape` is the input's."""
    codes, own = [0] * math.prod(shape), [EXPONENT_MIN] * math.prod(shape)
    given = zip(g.codes, each(g.exponent, len(g.codes)), strict=True)
    for i, (code, exponent) in zip(places(shape, axis, index), given, strict=True):
        codes[i], own[i] = code, exponent
    return replace(g, codes=codes, shape=shape, exponent=tuple(own) if g.by_rows else g.exponent)


def dropout_factors(probability: float, words: Sequence[int]) -> Tensor:
    """m where kept, 0 where dropped, and the exponent x. Section 5; one Philox word an element."""
    threshold = formats.round_real(math.ldexp(probability, 32))
    m, x = formats.coefficient(1.0 / (1.0 - probability))
    return [m if word >= threshold else 0 for word in words], x


def for_samples(shape: tuple[int, ...], factors: Tensor) -> Tensor:
    """Factors of stochastic depth, one a sample or one for all, as those of every element."""
    (own, exponent), count = factors, math.prod(shape)
    return [own[i * len(own) // count] for i in range(count)], exponent


def dropout(x: Array, factors: Tensor) -> Array:
    """Sections 5 and 14.2, training only."""
    return as_wide_as(x, [c * f for c, f in zip(x.codes, factors[0], strict=True)], factors[1])


def dropout_backward(g: Array, factors: Tensor) -> Array:
    """Section 7."""
    acc = [c * f for c, f in zip(g.codes, factors[0], strict=True)]
    return wide(acc, g.shape, plus(g.exponent, factors[1]))


def embedding(index: Array, weight: Parameter, by_rows: bool) -> Array:
    """Rows of W, with exponents of their own in evaluation. Sections 5 and 12.6.

    The codes of `index` are row numbers.
    """
    size = weight.shape[1]
    codes = [weight.codes[i * size + d] for i in index.codes for d in range(size)]
    vectors = [i for i in index.codes for _ in range(size)]
    own = by_output(weight, vectors)
    if by_rows and isinstance(own, int):
        own = (own,) * len(codes)
    return Array(codes, (*index.shape, size), own, weight.widths[0])


def embedding_weight_gradient(g: Array, index: Array, weight: Parameter) -> Array:
    """Rows of g summed at their index. Section 7."""
    size = weight.shape[1]
    places = [i * size + d for i in index.codes for d in range(size)]
    return replace(summed(g, places, len(weight.codes)), shape=weight.shape)
