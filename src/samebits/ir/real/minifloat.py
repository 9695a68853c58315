"""Floating-point types that numpy does not round to: bfloat16, and those of 4 and 8 bits.

bfloat16 is a type that operators compute with, as float16 is. The others are storage: a tensor of
such a type is moved, cast and dequantized, and every number in it is one that the type holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import ml_dtypes  # noqa: F401  (makes the types known to numpy by their names)
import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class FloatType:
    """One type: its numbers are multiples of 2**least with at most `bits` significant bits.

    greatest: the greatest magnitude. infinite, nan: whether it has infinities, and NaN.
    """

    bits: int
    least: int
    greatest: float
    infinite: bool = False
    nan: bool = True


POWERS = "float8_e8m0fnu"  # powers of two alone, without sign and zero
TYPES: Mapping[str, FloatType] = MappingProxyType(
    {
        "bfloat16": FloatType(8, -133, 255 * 2.0**120, infinite=True),
        "float8_e4m3fn": FloatType(4, -9, 448.0),
        "float8_e4m3fnuz": FloatType(4, -10, 240.0),
        "float8_e5m2": FloatType(3, -16, 57344.0, infinite=True),
        "float8_e5m2fnuz": FloatType(3, -17, 57344.0),
        POWERS: FloatType(1, -127, 2.0**127),
        "float4_e2m1fn": FloatType(2, -1, 6.0, nan=False),
    }
)
STORAGE = tuple(name for name in TYPES if name != "bfloat16")
ROUND_MODES = ("up", "down", "nearest")


def rounded(x: Array, dtype: str, saturate: bool = True, mode: str = "up") -> Array:
    """The numbers of a type next to those of float64, as float64, ties to even.

    saturate: what is beyond the greatest magnitude, infinities too, becomes it; else an infinity,
    or NaN where the type has none. A type without NaN saturates, and has 0 for it. mode: how powers
    of two are taken, of magnitudes: the one at or above, at or below, or nearest (ties up); there
    infinity is NaN.
    """
    kind = TYPES[dtype]
    with np.errstate(all="ignore"):
        if dtype == POWERS:
            fraction, exponent = np.frexp(np.abs(x))
            above = {"up": fraction > 0.5, "down": False, "nearest": fraction >= 0.75}[mode]
            power = np.where(x == 0, kind.least, np.maximum(exponent - 1 + above, kind.least))
            y = np.where(np.isfinite(x), np.ldexp(1.0, power), np.nan)
        else:
            # x / step is below 2**bits: the quotient and the product are exact.
            step = np.ldexp(1.0, np.maximum(np.frexp(x)[1] - kind.bits, kind.least))
            y = np.rint(x / step) * step
        beyond = kind.greatest if saturate or not kind.nan else np.inf if kind.infinite else np.nan
        y = np.where(np.abs(y) > kind.greatest, np.copysign(beyond, y), y)
    return y if kind.nan else np.nan_to_num(y, nan=0.0)


def widened(array: Array) -> Array:
    """Numbers of any floating-point type as float64, whose NaN may be of any kind."""
    with np.errstate(invalid="ignore"):
        return array.astype(np.float64, copy=False)


def stored(x: Array, dtype: str) -> Array:
    """Numbers of float64 as an array of any floating-point type, each rounded once."""
    with np.errstate(over="ignore"):  # beyond the type is its infinity
        return (rounded(x, dtype, saturate=False) if dtype in TYPES else x).astype(dtype)
