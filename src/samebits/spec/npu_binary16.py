"""Binary16 arithmetic (IEEE 754): plain Python, slow and obvious. docs/spec/npu.md section 1.

Numbers are Python floats that are binary16 numbers. Results of the functions are too. NaN is one
number: its sign and payload carry no meaning.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from fractions import Fraction

from samebits.spec.formats import floor_log2, power, round_real

LARGEST = 65504.0
SUBNORMAL = -24  # the smallest positive number is 2**-24
SIGNIFICAND = 11  # bits of a normal number
NAN_BITS = 0x7E00


def to_binary16(q: Fraction, negative_zero: bool = False) -> float:
    """The binary16 number nearest to an exact rational, ties to even, gradual underflow.

    |q| >= 65520 gives an infinity, a negative q that rounds to zero -0. negative_zero: q is -0.
    """
    if q == 0:
        return -0.0 if negative_zero else 0.0
    exponent = max(floor_log2(abs(q)) - (SIGNIFICAND - 1), SUBNORMAL)
    magnitude = round_real(abs(q) / power(exponent)) * power(exponent)
    value = float(magnitude) if magnitude <= LARGEST else math.inf
    return -value if q < 0 else value


def binary16_bits(value: float) -> int:
    """The 16 bits of a binary16 number; of NaN 0x7E00."""
    if math.isnan(value):
        return NAN_BITS
    return int.from_bytes(struct.pack("<e", value), "little")


def binary16_value(bits: int) -> float:
    """The binary16 number that 16 bits stand for."""
    value: float = struct.unpack("<e", bits.to_bytes(2, "little"))[0]
    return value


def binary16_add(a: float, b: float) -> float:
    """rne(a + b)."""
    if not (math.isfinite(a) and math.isfinite(b)):
        return a + b
    q = Fraction(a) + Fraction(b)
    return to_binary16(q) if q else a + b  # the sign of a zero is that of IEEE 754


def binary16_sub(a: float, b: float) -> float:
    """rne(a - b)."""
    return binary16_add(a, -b)


def binary16_mul(a: float, b: float) -> float:
    """rne(a * b)."""
    if not (math.isfinite(a) and math.isfinite(b)):
        return a * b
    q = Fraction(a) * Fraction(b)
    return to_binary16(q) if q else a * b


def binary16_max(a: float, b: float) -> float:
    """a if a > b, else b: b for two zeros, and wherever there is a NaN."""
    return a if a > b else b


def binary16_relu(a: float) -> float:
    """a if a > 0, else +0: +0 for NaN too."""
    return a if a > 0 else 0.0


def binary16_reciprocal(a: float) -> float:
    """rne(1 / a); of a zero the infinity of its sign."""
    if a == 0 or not math.isfinite(a):
        return math.copysign(math.inf, a) if a == 0 else 1.0 / a
    return to_binary16(1 / Fraction(a))


def binary16_inverse_root(a: float) -> float:
    """rne(1 / sqrt a), by an integer square root; NaN below 0, of a zero the infinity of its sign.

    The result lies from 2**-8 to 2**12. In units of 2**-30 its integer square root has 22 bits or
    more, so twice that, with a last bit that says whether anything is left, rounds as it does.
    """
    if a == 0 or not 0 < a < math.inf:
        return math.copysign(math.inf, a) if a == 0 else 0.0 if a > 0 else math.nan
    square = power(60) / Fraction(a)
    root = math.isqrt(int(square))
    return to_binary16(Fraction(2 * root + (square != root * root)) * power(-31))


def binary16_total(lanes: Sequence[float]) -> float:
    """rne of the exact sum; a zero is +0. Infinities and NaN as IEEE 754 adds them."""
    if all(math.isfinite(lane) for lane in lanes):
        return to_binary16(sum(map(Fraction, lanes), Fraction(0)))
    return sum(lane for lane in lanes if not math.isfinite(lane))


def binary16_largest(lanes: Sequence[float]) -> float:
    """The largest lane; a zero is +0. NaN if a lane is NaN."""
    return math.nan if any(map(math.isnan, lanes)) else max(lanes) + 0.0
