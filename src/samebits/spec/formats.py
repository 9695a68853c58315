"""The number formats and their arithmetic: plain Python integers and rationals, slow and obvious.

Everything else in samebits realises these functions and is tested against them for equality.
Section numbers refer to docs/spec/formats.md and docs/spec/training.md.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

from samebits.errors import NonFiniteError, RangeError

Q8 = 127
Q16 = 127 * 256 + 127  # 32639: two balanced base-256 digits
Q32 = 0x7F7F7F7F  # 2139062143: four balanced base-256 digits
CODE_MAX = {bits: (1 << (bits - 1)) - 1 for bits in range(4, 16)} | {16: Q16, 32: Q32}
"""The largest code of every width that training uses (training.md 1 and 13)."""
EXPONENT_MIN, EXPONENT_MAX = -128, 127
DELAYED_BITS = 15  # e_A = e_W - 15
ZERO_WEIGHT_EXPONENT = -7  # of a parameter that starts as all zeros

Tensor = tuple[list[int], int]  # (codes, exponent)


# --- formats as data ---------------------------------------------------------------------------


class Rounding(Enum):
    """Rounding of a real number to an integer. `HALF_EVEN` unless a format says otherwise."""

    HALF_EVEN = "half-even"
    HALF_UP = "half-up"  # ties toward plus infinity
    HALF_AWAY = "half-away"  # ties away from zero
    FLOOR = "floor"
    STOCHASTIC = "stochastic"  # up with probability = fraction; 32 random bits per element


class ScaleRule(Enum):
    """The rule by which the scale of a block follows from its values."""

    ASYMMETRIC = "asymmetric"  # scale = (rmax - rmin) / (2**n - 1), range widened to hold 0
    SYMMETRIC = "symmetric"  # scale = max|r| / code_max
    FIXED = "fixed"  # scale = 2**-fraction_bits (Qm.n)
    BFP = "bfp"  # smallest exponent that does not saturate the largest element
    MX = "mx"  # OCP MX: floor(log2 max|r|) - emax, saturating


@dataclass(frozen=True)
class Format:
    """A set of integer codes and the rule that gives them a scale.

    value = scale * (code - zero_point), or code * 2**exponent for `FIXED`, `BFP` and `MX`.

    `block` is the number of consecutive elements along the last axis that share one scale;
    None shares it over the whole tensor. The last block of a row may be shorter.
    """

    name: str
    bits: int
    code_min: int
    code_max: int
    rule: ScaleRule
    rounding: Rounding = Rounding.HALF_EVEN
    fraction_bits: int = 0  # FIXED only
    block: int | None = None
    exponent_min: int = -128
    exponent_max: int = 127

    def __post_init__(self) -> None:
        """Raise ValueError for codes that `bits` cannot hold and for an empty block or range."""
        if not 2 <= self.bits <= 32:
            raise ValueError(f"format {self.name!r}: expected 2 to 32 bits, found {self.bits}")
        if not self.code_min <= 0 < self.code_max:
            raise ValueError(
                f"format {self.name!r}: expected code_min <= 0 < code_max, "
                f"found [{self.code_min}, {self.code_max}]"
            )
        span = self.code_max - self.code_min
        low, high = -(1 << (self.bits - 1)), (1 << self.bits) - 1
        if span >= 1 << self.bits or self.code_min < low or self.code_max > high:
            raise ValueError(
                f"format {self.name!r}: codes [{self.code_min}, {self.code_max}] "
                f"do not fit in {self.bits} bits"
            )
        if self.block is not None and self.block < 1:
            raise ValueError(f"format {self.name!r}: expected block >= 1, found {self.block}")
        if self.exponent_min > self.exponent_max:
            raise ValueError(f"format {self.name!r}: exponent_min is above exponent_max")

    @property
    def power_of_two(self) -> bool:
        """True when the scale is 2**exponent and the zero point is 0."""
        return self.rule in (ScaleRule.FIXED, ScaleRule.BFP, ScaleRule.MX)


# --- rounding -------------------------------------------------------------------------------


def round_ratio(
    numerator: int,
    denominator: int,
    rounding: Rounding = Rounding.HALF_EVEN,
    random: int | None = None,
) -> int:
    """numerator / denominator (> 0) rounded to an integer, exactly.

    random: an integer in [0, 2**32), for `STOCHASTIC` only. Raises ValueError where it is missing.
    """
    quotient, remainder = divmod(numerator, denominator)
    if rounding is Rounding.FLOOR or remainder == 0:
        return quotient
    if rounding is Rounding.STOCHASTIC:
        if random is None:
            raise ValueError("stochastic rounding needs 32 random bits")
        return quotient + (random * denominator < remainder << 32)
    twice = 2 * remainder
    if twice != denominator:
        return quotient + (twice > denominator)
    if rounding is Rounding.HALF_UP:
        return quotient + 1
    if rounding is Rounding.HALF_AWAY:
        return quotient + (numerator > 0)
    return quotient + (quotient & 1)


def scaled(code: int, exponent: int, divisor: int = 1) -> int:
    """rne(code * 2**exponent / divisor): with one rounding, ties to even; a left shift is exact."""
    if exponent >= 0:
        code <<= exponent
        return code if divisor == 1 else round_ratio(code, divisor)
    return round_ratio(code, divisor << -exponent)


@functools.cache
def power(exponent: int) -> Fraction:
    """2**exponent, exactly."""
    return Fraction(2) ** exponent


def round_real(value: Fraction | float) -> int:
    """rne(value): the nearest integer, ties to even."""
    value = Fraction(value)
    return round_ratio(value.numerator, value.denominator)


# --- formats (formats.md) -------------------------------------------------------------------


def reals(values: Iterable[float | Fraction], name: str = "input") -> list[Fraction]:
    """The values as exact rationals; NaN or infinity is an error that names the first index."""
    out = []
    for index, value in enumerate(values):
        if isinstance(value, float) and not math.isfinite(value):
            raise NonFiniteError(
                f"tensor {name!r}: expected finite values, found {value} at flat index {index}; "
                "remove or replace non-finite values before quantizing"
            )
        out.append(Fraction(value))
    return out


def floor_log2(value: Fraction) -> int:
    """floor(log2(value)) of a positive rational, by bit lengths."""
    guess = value.numerator.bit_length() - value.denominator.bit_length()
    return guess if power(guess) <= value else guess - 1


def smallest_exponent(
    largest: Fraction, code_max: int, low: int = EXPONENT_MIN, high: int | None = EXPONENT_MAX
) -> int:
    """The smallest e >= low with rne(largest / 2**e) <= code_max. Zero gives `low`.

    Raises RangeError when it is above `high`.
    """
    if largest == 0:
        return low
    exponent = max(low, floor_log2(largest) - code_max.bit_length())
    while round_real(largest / power(exponent)) > code_max:
        exponent += 1
    if high is not None and exponent > high:
        raise RangeError(
            f"expected an exponent of at most {high}, found {exponent} "
            f"(largest magnitude about 2**{floor_log2(largest)}); the values have outgrown their "
            "format: lower the learning rate or scale the input"
        )
    return exponent


def block_exponent(values: Sequence[Fraction], fmt: Format) -> int:
    """The shared exponent of one block, by the format's rule (FIXED, BFP or MX)."""
    if fmt.rule is ScaleRule.FIXED:
        return -fmt.fraction_bits
    largest = max((abs(v) for v in values), default=Fraction(0))
    if fmt.rule is ScaleRule.BFP:
        return smallest_exponent(largest, fmt.code_max, fmt.exponent_min, fmt.exponent_max)
    if fmt.rule is ScaleRule.MX:
        # OCP MX v1.0: X = floor(log2 max) - emax, element = code * 2**-(bits-2), emax = 0 (MXINT).
        if largest == 0:
            return fmt.exponent_min
        exponent = floor_log2(largest) - (fmt.bits - 2)
        return min(max(exponent, fmt.exponent_min), fmt.exponent_max)
    raise ValueError(f"format {fmt.name!r} has a scale, not a shared exponent")


def round_binary32(value: Fraction) -> Fraction:
    """The binary32 number nearest to a non-negative rational (ties to even), as a rational."""
    if value == 0:
        return Fraction(0)
    exponent = max(floor_log2(value) - 23, -149)
    return round_real(value / power(exponent)) * power(exponent)


def affine_parameters(values: Sequence[Fraction], fmt: Format) -> tuple[Fraction, int]:
    """(scale, zero_point) of the ASYMMETRIC and SYMMETRIC rules; the scale is a binary32 number.

    A range of zero width (all zeros), or one below the smallest binary32, has scale 1.
    """
    low = min(min(values, default=Fraction(0)), Fraction(0))
    high = max(max(values, default=Fraction(0)), Fraction(0))
    if fmt.rule is ScaleRule.SYMMETRIC:
        scale = round_binary32(max(-low, high) / fmt.code_max)
        return (scale, 0) if scale else (Fraction(1), 0)
    if fmt.rule is not ScaleRule.ASYMMETRIC:
        raise ValueError(f"format {fmt.name!r} has a shared exponent, not a scale")
    scale = round_binary32((high - low) / (fmt.code_max - fmt.code_min))
    if not scale:
        scale = Fraction(1)
    zero_point = round_real(fmt.code_min - low / scale)
    return scale, min(max(zero_point, fmt.code_min), fmt.code_max)


def encode(
    value: Fraction, scale: Fraction, zero_point: int, fmt: Format, random: int | None = None
) -> int:
    """One real to one code: round(value / scale) + zero_point, saturate."""
    ratio = value / scale
    code = round_ratio(ratio.numerator, ratio.denominator, fmt.rounding, random) + zero_point
    return min(max(code, fmt.code_min), fmt.code_max)


def decode(code: int, scale: Fraction, zero_point: int) -> Fraction:
    """The real number a code stands for."""
    return scale * (code - zero_point)


# --- integer tensors (training.md 1) --------------------------------------------------------


def requantize(acc: Sequence[int], exponent: int, bits: int, divisor: int = 1) -> Tensor:
    """acc * 2**exponent / divisor as bfp8 or bfp16 with the smallest exponent. Section 1.1."""
    largest = Fraction(max((abs(a) for a in acc), default=0), divisor) * power(exponent)
    out = smallest_exponent(largest, CODE_MAX[bits])
    return [scaled(a, exponent - out, divisor) for a in acc], out


def shorten(acc: Sequence[int], exponent: int) -> Tensor:
    """acc * 2**exponent as bfp32, shifted right only as far as it must be. Section 1.2."""
    largest = max((abs(a) for a in acc), default=0)
    if largest == 0:
        return [0] * len(acc), EXPONENT_MIN
    shift = 0
    while scaled(largest, -shift) > Q32:
        shift += 1
    return [scaled(a, -shift) for a in acc], exponent + shift


def resolve(parts: Sequence[Tensor]) -> Tensor:
    """The sum of gradient parts, aligned to the largest exponent. Section 1.3."""
    if len(parts) == 1:
        return parts[0]
    live = [part for part in parts if any(part[0])]
    if not live:
        return shorten(parts[0][0], 0)
    exponent = max(e for _, e in live)
    columns = zip(*([scaled(c, e - exponent) for c in codes] for codes, e in live), strict=True)
    return shorten([sum(column) for column in columns], exponent)


def resolve_short(parts: Sequence[Tensor]) -> Tensor:
    """The sum of gradient parts in 16 bits: each rounded to bfp16, and their sum. Section 1.3."""
    short = [requantize(codes, exponent, 16) for codes, exponent in parts]
    live = [part for part in short if any(part[0])]
    if not live:
        return short[0]
    exponent = max(e for _, e in live)
    columns = zip(*([scaled(c, e - exponent) for c in codes] for codes, e in live), strict=True)
    return requantize([sum(column) for column in columns], exponent, 16)


def fits(value: float, bits: int) -> int:
    """The smallest e with value <= 2**(bits + e), for a binary64 value > 0. Section 1."""
    fraction, exponent = math.frexp(value)
    return exponent - bits if fraction > 0.5 else exponent - 1 - bits


# --- weights (training.md 2) ----------------------------------------------------------------

Weight = tuple[list[int], list[int], int]  # (W, A, e_W)


def split(joint: Sequence[int]) -> tuple[list[int], list[int]]:
    """J -> (W, A) with J = W * 2**15 - A."""
    codes = [scaled(j, -DELAYED_BITS) for j in joint]
    delayed = [(w << DELAYED_BITS) - j for w, j in zip(codes, joint, strict=True)]
    return codes, delayed


def join(weight: Weight) -> Tensor:
    """The joint value J of a weight and its exponent e_A."""
    codes, delayed, exponent = weight
    joint = [(w << DELAYED_BITS) - a for w, a in zip(codes, delayed, strict=True)]
    return joint, exponent - DELAYED_BITS


def initial_weight(
    values: Sequence[float | Fraction], name: str = "weight", bits: int = 8
) -> Weight:
    """The weight state of real initial values, W in `bits`. Sections 2 and 13."""
    exact = reals(values, name)
    if not any(exact):
        return [0] * len(exact), [0] * len(exact), ZERO_WEIGHT_EXPONENT
    largest = max(abs(v) for v in exact)
    exponent = max(EXPONENT_MIN, floor_log2(largest) - 8)
    while _code(round_real(largest / power(exponent - DELAYED_BITS))) > CODE_MAX[bits]:
        exponent += 1
    if exponent > EXPONENT_MAX:
        raise RangeError(f"tensor {name!r}: expected |value| < 2**134, found 2**{exponent + 7}")
    joint = [round_real(v / power(exponent - DELAYED_BITS)) for v in exact]
    return (*split(joint), exponent)


def _code(joint: int) -> int:
    return scaled(joint, -DELAYED_BITS)


# --- coefficients (training.md 3) -----------------------------------------------------------


def coefficient(value: float) -> tuple[int, int]:
    """(m, x) with value about m * 2**x, 2**15 <= m < 2**16. `value` is positive and finite."""
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"expected a positive finite coefficient, found {value}")
    fraction, exponent = math.frexp(value)
    mantissa = round_real(fraction * 65536.0)
    return (32768, exponent - 15) if mantissa == 65536 else (mantissa, exponent - 16)


def signed_coefficient(value: float) -> tuple[int, int]:
    """`coefficient` of a finite number's magnitude, with its sign; (0, 0) of 0."""
    m, x = coefficient(abs(value)) if value else (0, 0)
    return (-m if value < 0 else m), x


def combine(terms: Sequence[tuple[Sequence[int], int, int]]) -> Tensor:
    """The sum of (integers, exponent, bits) terms at one exponent, below 2**62."""
    exponent = max(e + bits for _, e, bits in terms) - 60
    columns = zip(*([scaled(c, e - exponent) for c in codes] for codes, e, _ in terms), strict=True)
    return [sum(column) for column in columns], exponent
