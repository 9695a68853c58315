"""Requantization by two roundings, as the kernels of TensorFlow Lite do it, in one step.

It is one floor (`as_floor`), so no multiplier is searched for and none proved; only sums, and what
is added to them, have to fit. In 64 bits this is one form for all of them (`halves`). With sums
below 2**30 their double fits, and the first rounding is the upper word of 2 * acc * m, rounded half
up: VQRDMULH and SQRDMULH give it, SMMLAR with something added.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TypeGuard

from samebits.ir.integer.realise import as_floor
from samebits.numerics.multiplier import requantized
from samebits.spec.rounding import Away, Doubled, HalfUp, Rounding

REACH = 1 << 30  # of sums
NOTHING = Doubled(1, 0, 2)  # rounds all of these sums to 0


def are_doubled(
    ratios: Sequence[Rounding], ends: Sequence[tuple[int, int]]
) -> TypeGuard[Sequence[Doubled]]:
    """Whether the kernels have the roundings: sums below 2**30, and no shift left."""
    return all(
        isinstance(by, Doubled) and not by.left and max(abs(least), abs(most)) < REACH
        for by, (least, most) in zip(ratios, ends, strict=True)
    )


def doubled_shifts(
    ratios: Sequence[Doubled],
    ends: Sequence[tuple[int, int]],
    zero: int,
    low: int,
    high: int,
    less: int,
) -> list[tuple[int, int]] | None:
    """(multiplier, shift) of every channel for the packed kernels, which saturate alone; None where
    one does not fit.

    less: what the shift lacks of the right shift that is to be done: x and what is added have so
    many bits less in the kernel; 0: the kernel shifts by vectors, left, so the shift is negative.
    """
    found = []
    for by, (least, most) in zip(ratios, ends, strict=True):
        chosen = by if _fits(by, least, most, zero, less) else NOTHING
        if chosen is not by:
            nothing = min(max(zero, low), high)
            if {requantized(end, by, zero, low, high) for end in (least, most)} != {nothing}:
                return None
        found.append((chosen.m, chosen.right - less if less else -chosen.right))
    return found


def _fits(by: Doubled, least: int, most: int, zero: int, less: int) -> bool:
    """Whether x, half and zero * 2**right fit in 32 bits."""
    x = (max(abs(least), abs(most)) * by.m >> 31) + 2
    return by.right >= max(less, 1) and x + (2 * abs(zero) + 1 << by.right - 1) < 1 << 31


def halves(
    ratios: Sequence[Rounding], ends: Sequence[tuple[int, int]]
) -> list[tuple[int, int, int]] | None:
    """(m, d, shift) of every channel: code = floor((acc * m + 2**(shift - 1) + d) / 2**shift), with
    -d where acc < 0. None where a rounding has no such form, or 64 bits do not hold the sum."""
    found = []
    for by, (least, most) in zip(ratios, ends, strict=True):
        if not isinstance(by, Doubled | HalfUp):
            return None
        m, _, down, divisor = as_floor(by)
        if divisor == 1:
            m, divisor = 2 * m, 2  # the half that is added is no part of a code
        apart = -down >> 1
        most = max(abs(least), abs(most))
        if m >= 1 << 31 or most * m + apart + (divisor >> 1) >= 1 << 63:
            return None
        found.append((m, apart, divisor.bit_length() - 1))
    return found


def quotient(by: Away, least: int, most: int) -> Fraction:
    """A ratio that rounds sums from `least` to `most` to the nearest as `by` does.

    It is larger than 1 / n by less than what moves one of these sums to another half: so no sum is
    a tie, and those that are one by 1 / n go away from 0.
    """
    bits = (2 * by.n * max(abs(least), abs(most), 1)).bit_length()
    return Fraction((1 << bits) // by.n + 1, 1 << bits)
