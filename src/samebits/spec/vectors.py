"""Vectors of integers over their root mean square, and as shares: docs/spec/graph.md 3 and 3.1.

In plain Python integers, for `graph` (operators) and `training` (deployed arithmetic).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction

from samebits.spec.formats import round_real

FRACTION_BITS = 24  # of the normalised elements


def normalized(d: Sequence[int], centered: bool, epsilon: int) -> list[int]:
    """N_j: the elements of a vector, less their mean if `centered`, over their root mean square."""
    total = sum(d) if centered else 0
    spread = max(len(d) * sum(v * v for v in d) - total * total + epsilon, 1)
    half = next(s for s in range(31) if spread * 4**s >= 2**60)
    inverse = 2**61 // math.isqrt(spread * 4**half)
    return [(len(d) * v - total) * inverse // 2 ** (37 - half) for v in d]


def factors(
    gamma: Sequence[Fraction], beta: Sequence[Fraction], scale: Fraction
) -> tuple[list[int], list[int], int]:
    """(m, b, shift) of codes of a scale: graph.md section 4. OverflowError where none fits."""
    for shift in range(60, 0, -1):
        m = [round_real(g / scale * Fraction(2) ** (shift - FRACTION_BITS)) for g in gamma]
        b = [round_real(v / scale * 2**shift) for v in beta]
        if max(map(abs, m)) <= 2**24 and max(map(abs, b)) < 2**60:
            return m, b, shift
    raise OverflowError("expected gamma and beta that fit the scale")


def logarithm(v: int) -> int:
    """floor of log2 v in 24 fraction bits, but for what a mantissa of 31 bits loses: v >= 1."""
    whole = v.bit_length() - 1
    mantissa = v << (30 - whole) if whole <= 30 else v >> (whole - 30)
    fraction = 0
    for _ in range(FRACTION_BITS):
        mantissa = mantissa * mantissa >> 30
        bit = mantissa >> 31
        mantissa >>= bit
        fraction = 2 * fraction + bit
    return whole * 2**FRACTION_BITS + fraction


def shares(
    codes: Mapping[int, int], powers: Sequence[int], ratio: Fraction | int, of: Collection[int]
) -> list[int]:
    """rne(P_j * ratio / S) of the places `of` a vector, 0 where there is no code. powers: the
    table of P by the distance from the largest code."""
    own = {j: powers[max(codes.values()) - code] for j, code in codes.items()}
    total = sum(own.values())
    return [round_real(Fraction(own[j] * ratio) / total) if j in own else 0 for j in of]
