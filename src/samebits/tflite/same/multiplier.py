"""Real ratios as the kernels' multipliers and shifts, and ends of activations as codes."""

from __future__ import annotations

import math

import numpy as np

from samebits.errors import UnsupportedError
from samebits.ir.integer.define import limits
from samebits.spec.rounding import Doubled, HalfUp
from samebits.tflite.file import Scaling
from samebits.tflite.schema import ACTIVATIONS

BITS = 31
SHORT = 15  # bits of the multiplier of a sum of 64 bits
BEYOND = 2.0**40
_BOUNDS = {"RELU": (0.0, None), "RELU_N1_TO_1": (-1.0, 1.0), "RELU6": (0.0, 6.0)}


def split(real: float) -> tuple[int, int]:
    """(m, shift): a positive ratio is m * 2**(shift - 31) nearly, 2**30 <= m < 2**31, halves up."""
    if not math.isfinite(real):
        raise UnsupportedError(f"expected a ratio that binary32 holds, found {real}")
    fraction, shift = math.frexp(real)
    m = math.floor(fraction * (1 << BITS) + 0.5)
    if m == 1 << BITS:
        m, shift = m // 2, shift + 1
    return m, shift


def doubled(m: int, shift: int) -> Doubled:
    """The rounding of a multiplier and a shift, left where it is positive."""
    if not (m > 0 and -BITS <= shift < BITS):
        raise UnsupportedError(
            f"expected a ratio from 2**-32 to 2**30, found {m} * 2**{shift - 31}"
        )
    return Doubled(m, max(shift, 0), max(-shift, 0))


def half_up(m: int, shift: int) -> HalfUp:
    """The rounding of sums of 64 bits: 16 bits of the multiplier."""
    if not -(62 - SHORT) <= shift <= SHORT:
        raise UnsupportedError(f"expected a ratio from 2**-48 to 2**15, found 2**{shift} nearly")
    return HalfUp(min((m + (1 << 15)) >> 16, (1 << SHORT) - 1), SHORT - shift)


def away(value: float) -> int:
    """The nearest integer, halves away from 0; what lies beyond all codes by far stays there."""
    return int(math.copysign(math.floor(min(abs(value), BEYOND) + 0.5), value))


def ends(activation: int, to: Scaling, dtype: str) -> tuple[int, int]:
    """The least and the greatest code of a fused activation: each end is divided in binary32."""
    least, most = limits(dtype)
    name = ACTIVATIONS.get(activation, f"number {activation}")
    if name == "NONE":
        return least, most
    if name not in _BOUNDS:
        raise UnsupportedError(f"expected an activation NONE or {', '.join(_BOUNDS)}, found {name}")
    low, high = (
        None
        if end is None
        else to.zero_points[0] + away(float(np.float32(end) / np.float32(to.scales[0])))
        for end in _BOUNDS[name]
    )
    return max(least, least if low is None else low), min(most, most if high is None else high)
