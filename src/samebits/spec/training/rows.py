"""Exponents by rows in plain Python integers: docs/spec/training.md, section 12.1.

An exponent is one integer for a tensor, or a tuple with one for every element. Rows are given as
the number of each element's row. Real numbers are exact rationals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from samebits.spec import formats
from samebits.spec.formats import CODE_MAX, EXPONENT_MIN, Tensor, power

SHIFTS = (0, 4, 8, 12)
DECAY = 31 / 32

Exponent = int | tuple[int, ...]
Part = tuple[Sequence[int], Exponent]


def each(exponent: Exponent, count: int) -> tuple[int, ...]:
    """The exponent of every element."""
    return (exponent,) * count if isinstance(exponent, int) else exponent


def plus(a: Exponent, b: Exponent) -> Exponent:
    """The sum of two exponents, element by element unless both are one integer."""
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    count = max(len(e) for e in (a, b) if not isinstance(e, int))
    return tuple(p + q for p, q in zip(each(a, count), each(b, count), strict=True))


def channels_of(shape: Sequence[int]) -> list[int]:
    """The channel of every element of an activation: axis 1 of [N, C, H, W], else the last."""
    inner = math.prod(shape[2:]) if len(shape) == 4 else 1
    size = shape[1] if len(shape) == 4 else shape[-1]
    return [i // inner % size for i in range(math.prod(shape))]


def rows_of(shape: Sequence[int]) -> list[int]:
    """The row of every element of an activation: a sample of [N, C, H, W], or a vector."""
    size = math.prod(shape[1:]) if len(shape) == 4 else math.prod(shape[-1:])
    return [i // size for i in range(math.prod(shape))]


def members(rows: Sequence[int]) -> dict[int, list[int]]:
    """The elements of every row."""
    found: dict[int, list[int]] = {}
    for i, row in enumerate(rows):
        found.setdefault(row, []).append(i)
    return found


def _coded(
    acc: Sequence[int], exponent: Exponent, rows: Sequence[int], chosen: dict[int, int], d: int = 1
) -> tuple[list[int], tuple[int, ...]]:
    """rne(acc * 2**exponent / d) at the exponent chosen for each row, and it for each element."""
    own = each(exponent, len(acc))
    codes = [
        formats.scaled(a, e - chosen[row], d) for a, e, row in zip(acc, own, rows, strict=True)
    ]
    return codes, tuple(chosen[row] for row in rows)


def _largest(acc: Sequence[int], own: Sequence[int], at: Sequence[int], d: int = 1) -> Fraction:
    """The largest magnitude of acc * 2**own / d at the places `at`."""
    lowest = min(own[i] for i in at)
    return Fraction(max(abs(acc[i]) << own[i] - lowest for i in at), d) * power(lowest)


def requantize(
    acc: Sequence[int],
    exponent: Exponent,
    rows: Sequence[int],
    bits: int,
    divisor: int = 1,
    limited: bool = True,
) -> tuple[list[int], tuple[int, ...]]:
    """`requantize` row by row. limited: exponents in [-128, 127], RangeError above."""
    own, chosen = each(exponent, len(acc)), {}
    for row, at in members(rows).items():
        top = _largest(acc, own, at, divisor)
        if limited or top == 0:
            chosen[row] = formats.smallest_exponent(top, CODE_MAX[bits])
        else:
            low = formats.floor_log2(top) - bits
            chosen[row] = formats.smallest_exponent(top, CODE_MAX[bits], low, None)
    return _coded(acc, exponent, rows, chosen, divisor)


def shorten(
    acc: Sequence[int], exponent: Exponent, rows: Sequence[int]
) -> tuple[list[int], tuple[int, ...]]:
    """`shorten` row by row."""
    own, chosen = each(exponent, len(acc)), {}
    for row, at in members(rows).items():
        live = [i for i in at if acc[i]]
        chosen[row] = EXPONENT_MIN
        if live:
            top, lowest = _largest(acc, own, live), min(own[i] for i in live)
            chosen[row] = formats.smallest_exponent(top, CODE_MAX[32], lowest, None)
    return _coded(acc, exponent, rows, chosen)


def shifts_of(largest: Sequence[float]) -> list[int]:
    """The shift of every channel, from the largest magnitudes that it has had. Section 12.4."""
    live = sorted(r for r in largest if r)
    if not live:
        return [0] * len(largest)
    median = live[(len(live) - 1) // 2]
    return [next((s for s in SHIFTS if r <= 2 * median * 2**s), SHIFTS[-1]) for r in largest]


def decayed(largest: Sequence[float], seen: Sequence[float]) -> list[float]:
    """The largest magnitudes of channels after a shard. Section 12.4."""
    return [max(m, DECAY * r) for m, r in zip(seen, largest, strict=True)]


def seen(acc: Sequence[int], exponent: Exponent, shape: Sequence[int]) -> list[float]:
    """The largest magnitude of every channel of acc * 2**exponent, binary64. Section 12.4."""
    found = [0.0] * (shape[1] if len(shape) == 4 else shape[-1])
    for a, e, c in zip(acc, each(exponent, len(acc)), channels_of(shape), strict=True):
        found[c] = max(found[c], math.ldexp(float(abs(a)), e))
    return found


def shorten_whole(acc: Sequence[int], exponent: Exponent) -> Tensor:
    """`shorten` of a tensor that is one row: a parameter's gradient."""
    codes, exponents = shorten(acc, exponent, [0] * len(acc))
    return codes, exponents[0]


def resolve(parts: Sequence[Part], rows: Sequence[int]) -> tuple[list[int], tuple[int, ...]]:
    """`resolve` row by row, of several parts."""
    count = len(rows)
    own = [each(e, count) for _, e in parts]
    total, common = [0] * count, [EXPONENT_MIN] * count
    for at in members(rows).values():
        live = [p for p, (codes, _) in enumerate(parts) if any(codes[i] for i in at)]
        if not live:
            continue
        top = max(own[p][at[0]] for p in live)
        for i in at:
            total[i] = sum(formats.scaled(parts[p][0][i], own[p][i] - top) for p in live)
            common[i] = top
    return shorten(total, tuple(common), rows)


def align(
    codes: Sequence[int], exponent: Sequence[int], rows: Sequence[int]
) -> tuple[list[int], tuple[int, ...]]:
    """`align`: codes at one exponent a row."""
    chosen = {}
    for row, at in members(rows).items():
        chosen[row] = max((exponent[i] for i in at if codes[i]), default=EXPONENT_MIN)
    aligned = [
        formats.scaled(code, e - chosen[row]) if code else 0
        for code, e, row in zip(codes, exponent, rows, strict=True)
    ]
    return aligned, tuple(chosen[row] for row in rows)


def combine(terms: Sequence[tuple[Sequence[int], Exponent, int]]) -> tuple[list[int], Exponent]:
    """`combine` of section 3, element by element unless every exponent is one integer."""
    count = len(terms[0][0])
    if all(isinstance(e, int) for _, e, _ in terms):
        return formats.combine([(codes, each(e, 1)[0], bits) for codes, e, bits in terms])
    own = [each(e, count) for _, e, _ in terms]
    common = [
        max(e[i] + bits for e, (_, _, bits) in zip(own, terms, strict=True)) - 60
        for i in range(count)
    ]
    total = [
        sum(
            formats.scaled(codes[i], e[i] - common[i])
            for e, (codes, _, _) in zip(own, terms, strict=True)
        )
        for i in range(count)
    ]
    return total, tuple(common)


def gather(acc: Sequence[Sequence[int]], exponent: Sequence[Sequence[int]], bits: int) -> Tensor:
    """`gather` of rows acc[n][c] with exponents alike: the sums over n, and their exponent."""
    pairs = [
        pair
        for codes, own in zip(acc, exponent, strict=True)
        for pair in zip(codes, own, strict=True)
    ]
    live = [e for code, e in pairs if code]
    if not live:
        return [0] * len(acc[0]), EXPONENT_MIN
    common = max(live) + bits - 62
    return [
        sum(
            formats.scaled(codes[c], own[c] - common) if codes[c] else 0
            for codes, own in zip(acc, exponent, strict=True)
        )
        for c in range(len(acc[0]))
    ], common
