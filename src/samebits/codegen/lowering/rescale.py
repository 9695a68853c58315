"""Requantization as constant parameters of a kernel: the narrowest form that is proved exact.

docs/spec/graph.md section 6; the forms are those of csrc/inference/samebits_kernels.h.

Why a multiplier is proved and not only tried: requantize(acc) = clamp(rne(acc * ratio) + zero) is a
monotone step function of acc, and so is the same with m / 2**shift for the ratio. Two monotone
step functions are equal on an interval if they are at its lower end and if each step from one code
to the next lies at the same acc. The least acc that reaches a code is a division in exact integers
(`threshold`), so the proof takes one comparison a code, 255 for int8, whatever the interval.

Example: ratio 1/3 to int8. Code 33 begins at acc = 98 (98 / 3 = 32.67), and with m / 2**shift =
85 / 256 at 98 too, as do all steps in [-100, 100]: equal there. In [-1000, 1000] code 127 begins at
380, but with 85 / 256 at 381: refuted. 349525 / 2**20 passes, and its products fit in 32 bits.

Example: ratio 3/10. acc = 5 is a tie, 1.5, and rounds up to 2; acc = 15 is 4.5, and rounds down to
4. An approximate ratio is too large or too small for both, so no multiplier is exact. TIES takes
one that is right on either side of every tie, and finds ties by the exact ratio: twice the error
p * acc - q * y of a code y is q or -q there and nowhere else; an odd y then moves by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, TypeGuard

import numpy as np

from samebits.codegen.lowering.calls import Data, Struct
from samebits.codegen.lowering.doubled import are_doubled, halves, quotient
from samebits.codegen.lowering.high import word_multipliers
from samebits.errors import UnsupportedError
from samebits.ir.integer.bounds import Interval
from samebits.ir.integer.define import limits
from samebits.ir.integer.realise import staircase
from samebits.numerics.multiplier import (
    PRODUCT_BITS,
    Multiplier,
    find_multiplier,
    requantized,
    same_thresholds,
    threshold,
)
from samebits.spec.formats import floor_log2
from samebits.spec.rounding import Away, Rounding

TYPES = {"int8": 0, "uint8": 1, "int16": 2, "uint16": 3, "int32": 4, "int64": 5}
WIDTHS = {name: np.dtype(name).itemsize for name in TYPES}
STORE, SHIFT, NARROW, PRODUCT, TIES, THRESHOLDS32, WORDS, DOUBLED = range(8)
WIDE, LONG, DIVIDE, THRESHOLDS64, HALVES = range(8, 13)
# multipliers: or thresholds, or ratios; count: thresholds of a channel
FIELDS = ("multipliers", "shifts", "channels", "count", "zero", "low", "high")
LONG_BITS, LONG_SHIFT = 62, 126  # of a multiplier in 128-bit products
INT32, INT64 = limits("int32"), limits("int64")
SHORT_TABLE, LARGEST_TABLE = 512, 1 << 24  # thresholds of all channels


def fits(low: int, high: int, dtype: tuple[int, int] = INT32) -> bool:
    """[low, high] lies in the type."""
    return dtype[0] <= low and high <= dtype[1]


def fits32(interval: Interval) -> bool:
    """Every channel fits in 32 bits."""
    return fits(interval.hull.low[0], interval.hull.high[0])


def store(dtype: str) -> Struct:
    """The parameters with which accumulators are stored as they are."""
    return _struct(STORE, dtype, None, None, 1, 0, 0, 0, 0)


def rescaling(interval: Interval, attributes: Any, where: str) -> Struct:
    """The parameters of `requantize` over an interval of its input, one pair or one per channel.

    A single ratio is proved over the hull, so that one multiplier serves all channels. Raises
    UnsupportedError where the zero point or a table of thresholds would be out of reach.
    """
    ratios: Sequence[Rounding] = attributes["ratios"]
    zero, low, high = (int(attributes[key]) for key in ("zero", "low", "high"))
    ends = interval.hull.over(1) if len(ratios) == 1 else interval.over(len(ratios))
    if abs(zero) >= 1 << 30:
        raise UnsupportedError(f"{where}: expected a zero point below 2**30, found {zero}")
    if are_doubled(ratios, ends):
        multipliers = Data(np.array([by.m for by in ratios], np.int32))
        shifts = Data(np.array([by.right for by in ratios], np.uint8))
        own = (multipliers, shifts, len(ratios), 0, zero, low, high)
        return _struct(DOUBLED, attributes["dtype"], *own)
    if (by_halves := halves(ratios, ends)) is not None:
        pairs = Data(np.array([one[:2] for one in by_halves], np.int32).reshape(-1))
        shifts = Data(np.array([one[2] for one in by_halves], np.uint8))
        own = (pairs, shifts, len(ratios), 0, zero, low, high)
        return _struct(HALVES, attributes["dtype"], *own)
    ratios = [
        quotient(by, *reach) if isinstance(by, Away) else by
        for by, reach in zip(ratios, ends, strict=True)
    ]
    if not _exact(ratios):
        return _stepwise(ratios, ends, attributes, where)
    known: dict[tuple[Fraction, int, int], tuple[int, int] | None] = {}
    factors: list[tuple[int, int]] = []
    for ratio, (a, b) in zip(ratios, ends, strict=True):
        if (ratio, a, b) not in known:
            known[ratio, a, b] = _multiplier(ratio, zero, low, high, a, b)
        found = known[ratio, a, b]
        if found is None:
            return _tied(ratios, ends, attributes) or _stepwise(ratios, ends, attributes, where)
        factors.append(found)
    form = _form(factors, ends, zero)
    if form is None:
        return _stepwise(ratios, ends, attributes, where)
    words = in_words(interval, attributes) if form == LONG else None
    if words is not None:
        return words
    width = np.int64 if form in (WIDE, LONG) else np.int32
    numbers = None if form == SHIFT else Data(np.array([m for m, _ in factors], width))
    right = Data(np.array([s for _, s in factors], np.uint8))
    return _struct(form, attributes["dtype"], numbers, right, len(ratios), 0, zero, low, high)


def in_words(interval: Interval, attributes: Any) -> Struct | None:
    """Sums of 32 bits by multipliers of two words, and one shift (lowering/high.py); None where one
    channel has no such multiplier, or a sum more bits."""
    ratios: Sequence[Rounding] = attributes["ratios"]
    zero, low, high = (int(attributes[key]) for key in ("zero", "low", "high"))
    ends = interval.hull.over(1) if len(ratios) == 1 else interval.over(len(ratios))
    found = word_multipliers(ratios, ends, zero, low, high) if fits32(interval) else None
    if found is None:
        return None
    shift, multipliers = found
    lower = [(m + (1 << 31)) % (1 << 32) - (1 << 31) for m in multipliers]
    words = [(least, (m - least) >> 32) for m, least in zip(multipliers, lower, strict=True)]
    data = Data(np.array(words, np.int32).reshape(-1)), Data(np.array([shift], np.uint8))
    return _struct(WORDS, attributes["dtype"], *data, len(ratios), 0, zero, low, high)


def _exact(ratios: Sequence[Rounding]) -> TypeGuard[Sequence[Fraction]]:
    """Whether quotients are rounded once, as multipliers can be proved to do."""
    return all(isinstance(ratio, Fraction) for ratio in ratios)


def _struct(form: int, dtype: str, *values: Data | int | None) -> Struct:
    """C's samebits_rescale: `values` are its other fields, in the order of FIELDS."""
    fields = dict(zip(FIELDS, values, strict=True))
    return Struct("rescale", {**fields, "form": form, "type": TYPES[dtype]})


def _normal(found: Multiplier) -> tuple[int, int]:
    """The same m / 2**shift with shift >= 1, which the kernels ask for, and m odd if possible."""
    m, shift = found.m, found.shift
    if m == 0:
        return 0, 1
    if shift == 0:
        return 2 * m, 1
    while m % 2 == 0 and shift > 1:
        m, shift = m // 2, shift - 1
    return m, shift


def _multiplier(
    ratio: Fraction, zero: int, low: int, high: int, least: int, most: int
) -> tuple[int, int] | None:
    """(m, shift) proved over [least, most], None where ties rule all out.

    What `find_multiplier` finds with products of 64 bits; else one whose products take up to 128
    bits, proved in the same way. A channel with one code for all inputs gets a multiplier too, so
    that all channels share a form.
    """
    found = find_multiplier(ratio, zero, low, high, least, most)
    if found is not None:
        return _normal(found)
    first, last = (requantized(end, ratio, zero, low, high) for end in (least, most))
    steps = range(first - zero + 1, last - zero + 1)
    magnitude = floor_log2(ratio) + 1
    reach = max(abs(least), abs(most)).bit_length()
    for width in (PRODUCT_BITS - reach, LONG_BITS):
        shift = min(max(width - magnitude, 1), LONG_SHIFT)
        floor = (ratio.numerator << shift) // ratio.denominator
        for m in (floor, floor + 1):
            other = Fraction(m, 1 << shift)
            if 0 < m < 1 << LONG_BITS and (
                all(
                    requantized(end, other, zero, low, high) == code
                    for end, code in ((least, first), (most, last))
                )
                and same_thresholds(steps, ratio, other)
            ):
                return m, shift
    return None


def _form(
    factors: Sequence[tuple[int, int]], ends: Sequence[tuple[int, int]], zero: int
) -> int | None:
    """The cheapest arithmetic in which no step of any channel overflows; None if none does."""
    form = SHIFT
    for (m, shift), (low, high) in zip(factors, ends, strict=True):
        product = max(abs(low), abs(high)) * m
        largest = product + (1 << (shift - 1))
        narrow = largest < 1 << 31 and (largest >> shift) + abs(zero) < 1 << 31 and shift <= 30
        if fits(low, high) and narrow:
            needed = SHIFT if m == 1 else NARROW
        elif fits(low, high) and m < 1 << 31 and product < 1 << 62 and shift <= 62:
            needed = PRODUCT
        elif m < 1 << 63 and largest < 1 << 63:
            needed = WIDE
        elif m < 1 << LONG_BITS and (largest >> shift) + abs(zero) < 1 << 62:
            needed = LONG
        else:
            return None
        form = max(form, needed)
    return form


def _tied(
    ratios: Sequence[Fraction], ends: Sequence[tuple[int, int]], attributes: Any
) -> Struct | None:
    """Multipliers that are right but for ties, which the exact ratio then settles; None where one
    channel has none.

    Ties are nearly all that rules out a multiplier: its error has one sign, that of rounding half
    to even has not.
    """
    zero, low, high = (int(attributes[key]) for key in ("zero", "low", "high"))
    numbers, shifts = [], []
    known: dict[tuple[Fraction, int, int], tuple[int, int] | None] = {}
    for ratio, (a, b) in zip(ratios, ends, strict=True):
        if (ratio, a, b) not in known:
            known[ratio, a, b] = _but_for_ties(ratio, zero, low, high, a, b)
        found = known[ratio, a, b]
        if found is None:
            return None
        numbers += [found[0], *ratio.as_integer_ratio()]
        shifts.append(found[1])
    data = Data(np.array(numbers, np.int64)), Data(np.array(shifts, np.uint8))
    return _struct(TIES, attributes["dtype"], *data, len(ratios), 0, zero, low, high)


def _but_for_ties(
    ratio: Fraction, zero: int, low: int, high: int, least: int, most: int
) -> tuple[int, int] | None:
    """(m, shift): acc * m / 2**shift rounds as acc * ratio does over [least, most], to either side
    of ties; None if there is none of 31 bits, or where 64 bits do not hold what settles a tie."""
    p, q = ratio.as_integer_ratio()
    reach = max(abs(least), abs(most))
    shift = min(30 - floor_log2(ratio), 62)
    settled = 2 * max(p * reach, q * (reach * p // q + 2)) < 1 << 62
    if not (fits(least, most) and settled and shift >= 1):
        return None
    first, last = (requantized(end, ratio, zero, low, high) for end in (least, most))
    # What is least for each code, and whether that is a tie, which may also fall to the code below.
    steps = [divmod((2 * code - 1) * q, 2 * p) for code in range(first - zero + 1, last - zero + 1)]
    for m in ((p << shift) // q, (p << shift) // q + 1):
        if m >= 1 << 31 or reach * m >= 1 << 62:
            continue
        approximate = Fraction(m, 1 << shift)
        ends = all(
            abs(requantized(end, approximate, zero, low, high) - code) <= (2 * p * end % q == 0)
            for end, code in ((least, first), (most, last))
        )
        if ends and all(
            threshold(code, m, 1 << shift) - quotient in ((1,) if rest else (0, 1))
            for code, (quotient, rest) in enumerate(steps, first - zero + 1)
        ):
            return m, shift
    return None


def _stepwise(
    ratios: Sequence[Rounding], ends: Sequence[tuple[int, int]], attributes: Any, where: str
) -> Struct:
    """Where no multiplier is exact: a short table of thresholds, else an exact division.

    The table holds, for every code above `low`, the least accumulator that reaches it; the kernel
    searches it by halves. Codes that the interval cannot reach get thresholds at its ends.
    UnsupportedError (`where` names the node) where a division would not fit in 62 bits and the
    table would be longer than LARGEST_TABLE.
    """
    zero, low, high = (int(attributes[key]) for key in ("zero", "low", "high"))
    dtype, channels = attributes["dtype"], len(ratios)
    entries = channels * (high - low)
    pairs = [r.as_integer_ratio() for r in ratios] if _exact(ratios) else []
    if (
        pairs
        and entries > SHORT_TABLE
        and all(
            max(abs(least), abs(most)) * p < 1 << 62 and q < 1 << 62
            for (p, q), (least, most) in zip(pairs, ends, strict=True)
        )
    ):
        numbers = Data(np.array(pairs, np.int64).reshape(-1))
        return _struct(DIVIDE, dtype, numbers, None, channels, 0, zero, low, high)
    if entries > LARGEST_TABLE:
        raise UnsupportedError(
            f"{where}: no multiplier is exact and {channels} x {high - low} thresholds are too "
            "many; use 8-bit outputs or one scale per tensor"
        )
    rows = [
        staircase(ratio, reach, zero, low, high) for ratio, reach in zip(ratios, ends, strict=True)
    ]
    used = max(map(len, rows))
    narrow = all(fits(least, most + 1) for least, most in ends)
    values = np.empty((channels, used), np.int32 if narrow else np.int64)
    for row, found, (_, most) in zip(values, rows, ends, strict=True):
        row[: len(found)], row[len(found) :] = found, most + 1
    table = Data(values.reshape(-1)) if used else Data(np.zeros(1, values.dtype))
    form = THRESHOLDS32 if narrow else THRESHOLDS64
    return _struct(form, dtype, table, None, channels, used, 0, low, high)
