"""e6m9, the codes of moments and directions, and random rounding (training.md 1.4 and 1.5)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from samebits.errors import RangeError
from samebits.spec.formats import EXPONENT_MAX, EXPONENT_MIN, Tensor, scaled
from samebits.spec.philox import philox4x32

FRACTION = 9  # bits of a significand behind its leading one
LEADING = 1 << FRACTION
CODE_MAX = (1 << 15) - 1
TOP_FIELD = 63
THIRD = 2**32 - 3  # the third word of the counters
UPDATE_FACTOR, ROOT_FACTOR = 0x9E37, 0x85EB  # odd: products modulo 2**16 are as uniform


@dataclass(frozen=True)
class Draw:
    """The random bits of one parameter in one step: those of M or V, of U, and of S by element."""

    seed: int
    parameter: int
    step: int

    def moment(self, i: int) -> int:
        """w_V of element i: a half of a word, the low one first."""
        word = philox4x32((i // 8, self.step, THIRD, 0), (self.seed, self.parameter))[i // 2 % 4]
        return word >> 16 if i % 2 else word & 0xFFFF

    def update(self, i: int) -> int:
        """w_U of element i."""
        return UPDATE_FACTOR * self.moment(i) & 0xFFFF

    def root(self, i: int) -> int:
        """w_S of element i."""
        return ROOT_FACTOR * self.moment(i) & 0xFFFF


def rounded(a: int, shift: int, word: int | None) -> int:
    """a / 2**shift, a >= 0: with 16 random bits, or to nearest, ties to even."""
    if shift <= 0:
        return a << -shift
    if word is None:
        return scaled(a, -shift)
    guarded = a << (16 - shift) if shift <= 16 else a >> (shift - 16)
    return (guarded + word) >> 16


def significand(code: int) -> tuple[int, int]:
    """(q, F) of a code that is not zero: its magnitude is q * 2**(F - 63), 512 <= q < 1024."""
    return LEADING + (abs(code) & (LEADING - 1)), abs(code) >> FRACTION


def value(code: int, exponent: int) -> float:
    """The real number of a code, exactly."""
    if code == 0:
        return 0.0
    q, field = significand(code)
    return math.copysign(math.ldexp(float(q), exponent - TOP_FIELD + field), code)


def encode(
    values: Sequence[tuple[int, int]],
    words: Sequence[int] | None,
    what: str = "moment",
    exponent: int | None = None,
) -> Tensor:
    """Codes and exponent of numbers a * 2**e given as (a, e), |a| < 2**62.

    words:    16 random bits for every element; None: to nearest
    exponent: at which every number has F <= 62; None: that of the largest one

    Raises RangeError.
    """
    tops = [abs(a).bit_length() + e for a, e in values if a]
    if not tops:
        return [0] * len(values), EXPONENT_MIN
    exponent = max(max(tops) - FRACTION if exponent is None else exponent, EXPONENT_MIN)
    if exponent > EXPONENT_MAX:
        raise RangeError(f"{what}: exponent {exponent}, at most {EXPONENT_MAX}")
    codes = []
    for i, (a, e) in enumerate(values):
        shift = abs(a).bit_length() - FRACTION - 1
        field = shift + e - exponent + TOP_FIELD
        code = 0
        if a and field >= 1:
            word = None if words is None else words[i]
            code = LEADING * (field - 1) + rounded(abs(a), shift, word)
        codes.append(-code if a < 0 else code)
    return (codes, exponent) if any(codes) else (codes, EXPONENT_MIN)


def encode_reals(
    values: Sequence[float], words: Sequence[int] | None, what: str = "moment"
) -> Tensor:
    """`encode` of binary64 numbers."""
    parts = [math.frexp(v) for v in values]
    return encode([(int(math.ldexp(f, 53)), e - 53) for f, e in parts], words, what)
