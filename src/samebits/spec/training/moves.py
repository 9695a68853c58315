"""Elements repeated, or moved in several axes, in plain Python integers.

A restatement of docs/spec/training.md, sections 14.4 to 14.6, like `layers`. Places are flat
indices; a place of -1 is a zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product

from samebits.spec import formats
from samebits.spec.formats import EXPONENT_MIN
from samebits.spec.training.layers import Array, Parameter, wide
from samebits.spec.training.pointwise import at_rows, repeated, with_shifts
from samebits.spec.training.rows import each


def placed(x: Array, places: Sequence[int], shape: tuple[int, ...]) -> Array:
    """Elements of x in other places: `align` where a row has several exponents. Section 12.2."""
    own = (*each(x.exponent, len(x.codes)), EXPONENT_MIN)
    codes = [*x.codes, 0]
    exponent = tuple(own[i] for i in places) if x.by_rows else x.exponent
    y = Array([codes[i] for i in places], shape, exponent, x.bits, layer_bits=x.layer_bits)
    return with_shifts(y, [x.by_element[i] for i in places]) if x.shifts else at_rows(y)


def split_heads(shape: tuple[int, ...], heads: int) -> tuple[list[int], tuple[int, ...]]:
    """The places in [n, t, heads * d] of the elements of [n * heads, t, d]; and that shape."""
    n, t, features = shape
    d = features // heads
    order = product(range(n), range(heads), range(t), range(d))
    return [(x * t + i) * features + h * d + j for x, h, i, j in order], (n * heads, t, d)


def inverse(places: Sequence[int]) -> list[int]:
    """The places of a move back."""
    return sorted(range(len(places)), key=places.__getitem__)


def expand(x: Array, shape: tuple[int, ...]) -> Array:
    """x repeated along axes of size 1, and along new ones before the first. Section 14.4."""
    return placed(x, repeated(x.shape, shape), shape)


def expand_backward(g: Array, shape: tuple[int, ...]) -> Array:
    """The sum over the places where an element was repeated; `shape` is the input's."""
    sizes = (1,) * (len(g.shape) - len(shape)) + shape
    ends = 1 if len(g.shape) == 4 else len(g.shape) - 1  # of the axes that count rows
    meet = any(size < whole for size, whole in zip(sizes[:ends], g.shape[:ends], strict=True))
    return summed_at(g, repeated(shape, g.shape), shape, meet)


def summed_at(g: Array, places: Sequence[int], shape: tuple[int, ...], meet: bool) -> Array:
    """The sum of g over the elements of every place. meet: whether rows may meet in one."""
    codes, own = g.codes, list(g.exponents)
    if g.by_rows and meet:
        live = [e for code, e in zip(codes, own, strict=True) if code]
        common = max(live) + 55 - 62 if live else EXPONENT_MIN
        codes = [formats.scaled(c, e - common) if c else 0 for c, e in zip(codes, own, strict=True)]
        own = [common] * len(codes)
    acc, exponents = [0] * math.prod(shape), [0] * math.prod(shape)
    for i, code, e in zip(places, codes, own, strict=True):
        acc[i] += code
        exponents[i] = e
    return wide(acc, shape, tuple(exponents) if g.by_rows else g.one_exponent)


def gathered(shape: tuple[int, ...], index: Sequence[int]) -> list[int]:
    """The places of elements of the first axis, one after the other."""
    size = math.prod(shape[1:])
    return [i * size + j for i in index for j in range(size)]


def rolled(shape: tuple[int, ...], by: Sequence[int], axes: Sequence[int]) -> list[int]:
    """The places of elements moved along axes, the last ones to the front."""
    shifts = [0] * len(shape)
    for shift, axis in zip(by, axes, strict=True):
        shifts[axis] = shift
    moved = product(*([(i - s) % n for i in range(n)] for n, s in zip(shape, shifts, strict=True)))
    return [at(shape, place) for place in moved]


def padded(
    shape: tuple[int, ...], before: Sequence[int], after: Sequence[int]
) -> tuple[list[int], tuple[int, ...]]:
    """The places with zeros around every axis, and the shape."""
    around = list(zip(shape, before, after, strict=True))
    places = product(*(range(-low, size + high) for size, low, high in around))
    inside = [at(shape, p) if _is_in(p, shape) else -1 for p in places]
    return inside, tuple(size + low + high for size, low, high in around)


def around(mode: str, size: int, low: int, high: int) -> list[int]:
    """Which of `size` elements the positions from -low to size + high take. Section 14.4."""
    found = []
    for i in range(-low, size + high):
        if mode == "reflect":
            i = -i if i < 0 else 2 * (size - 1) - i if i >= size else i
        elif mode == "circular":
            i %= size
        found.append(min(max(i, 0), size - 1))
    return found


def nearest(size: int, count: int, exact: bool = False) -> list[int]:
    """Which of `size` elements `count` positions take. Section 14.4."""
    if exact:
        return [(2 * o + 1) * size // (2 * count) for o in range(count)]
    return [o * size // count for o in range(count)]


def chosen(
    shape: tuple[int, ...], along: Mapping[int, Sequence[int]]
) -> tuple[list[int], tuple[int, ...]]:
    """The places of elements chosen along axes, and the shape."""
    lines = [along.get(axis, range(size)) for axis, size in enumerate(shape)]
    return [at(shape, place) for place in product(*lines)], tuple(len(line) for line in lines)


def chosen_backward(g: Array, shape: tuple[int, ...], along: Mapping[int, Sequence[int]]) -> Array:
    """The sum of g over the copies of every element; `shape` is the input's."""
    ends = 1 if len(g.shape) == 4 else len(g.shape) - 1  # of the axes that count rows
    return summed_at(g, chosen(shape, along)[0], shape, any(axis < ends for axis in along))


def _is_in(place: Sequence[int], shape: Sequence[int]) -> bool:
    return all(0 <= i < size for i, size in zip(place, shape, strict=True))


def at(shape: Sequence[int], place: Sequence[int]) -> int:
    """The flat index of a place."""
    found = 0
    for size, i in zip(shape, place, strict=True):
        found = found * size + i
    return found


def entered(parameter: Parameter) -> Array:
    """A parameter as an activation: its codes W. Section 14.5."""
    own = parameter.exponent
    if not isinstance(own, int):
        size = len(parameter.codes) // len(own)
        own = tuple(e for e in own for _ in range(size))
    return at_rows(Array(parameter.codes, parameter.shape, own, parameter.widths[0]))
