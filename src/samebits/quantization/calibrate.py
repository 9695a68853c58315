"""From statistics to scales: minmax, percentile, or the clipping of least squared error.

Everything that decides a scale is computed in integers and rationals, so the same statistics give
the same scale on every machine. The rules of scales are those of docs/spec/formats.md section 2.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from samebits.errors import InputError
from samebits.ir import Quantization
from samebits.numerics import Format, ScaleRule
from samebits.quantization.observe import Statistics
from samebits.quantization.settings import Settings
from samebits.spec import formats

Array = np.ndarray[Any, Any]

LARGEST_BINARY32 = (2 - Fraction(2) ** -23) * Fraction(2) ** 127
SMALLEST_EXPONENT = -126  # of scales that are powers of two: normal binary32 numbers
ROOMY = 16  # bits of which one can be spared
FRACTION_BITS = 16  # of the fixed-point error search
# Clipping ratios that mse tries: 1, 31/32 ... 17/32, each times 1, 1/2 ... 1/32.
RATIOS = [Fraction(part, 32 << halvings) for halvings in range(6) for part in range(32, 16, -1)]


@dataclass(frozen=True)
class Calibrated:
    """A format with its numbers: value = scale * (code - zero_point).

    low, high: the range that the calibration kept, 0 included
    """

    format: Format
    scale: Fraction
    zero_point: int
    low: Fraction
    high: Fraction

    @property
    def quantization(self) -> Quantization:
        """The scale and zero point alone, as values of a graph carry them."""
        return Quantization(self.scale, self.zero_point)


def calibrate(stats: Statistics, fmt: Format, settings: Settings, name: str) -> Calibrated:
    """The scale of an activation tensor by the method of the settings; with `headroom` codes of 16
    bits reach twice as far as calibration saw.

    Raises InputError if its range needs a scale above the largest binary32 number.
    """
    low, high = Fraction(stats.low), Fraction(stats.high)
    if settings.headroom and fmt.bits == ROOMY:
        return shortened(from_range(2 * low, 2 * high, fmt, name), settings.scale_bits)
    if settings.calibration == "percentile":
        low, high = percentile_range(stats, Fraction(settings.percentile))
    elif settings.calibration == "mse":
        return shortened(least_error(stats, fmt, name), settings.scale_bits)
    return shortened(from_range(low, high, fmt, name), settings.scale_bits)


def shortened(found: Calibrated, bits: int) -> Calibrated:
    """With the next scale of at most `bits` significant bits: sums of products stay short."""
    exponent = formats.floor_log2(found.scale) - bits + 1
    scale = -(-found.scale // formats.power(exponent)) * formats.power(exponent)
    return found if scale == found.scale else rescaled(found, scale)


def rescaled(found: Calibrated, scale: Fraction) -> Calibrated:
    """With another scale, and the zero point that keeps the lower end of the range."""
    if found.format.rule is not ScaleRule.ASYMMETRIC:
        return replace(found, scale=scale)
    zero_point = formats.round_real(found.format.code_min - found.low / scale)
    return replace(found, scale=scale, zero_point=zero_point)


def from_range(low: Fraction, high: Fraction, fmt: Format, name: str) -> Calibrated:
    """The scale of a range by the format's rule; the range is widened to hold 0.

    Power of two: the smallest scale that saturates neither end; 1 for a range of zero width.
    """
    low, high = min(low, Fraction(0)), max(high, Fraction(0))
    zero_point = 0
    if fmt.rule is ScaleRule.FIXED:
        exponent = max(
            formats.smallest_exponent(high, fmt.code_max, SMALLEST_EXPONENT, None),
            formats.smallest_exponent(-low, -fmt.code_min, SMALLEST_EXPONENT, None),
        )
        scale = formats.power(exponent) if low != high else Fraction(1)
    else:
        scale, zero_point = formats.affine_parameters((low, high), fmt)
    if scale > LARGEST_BINARY32:
        raise InputError(
            f"tensor {name!r}: expected values that a binary32 scale can hold, found the range "
            f"{float(low):g} to {float(high):g}; scale the data or the weights down"
        )
    return Calibrated(fmt, scale, zero_point, low, high)


def percentile_range(stats: Statistics, percentile: Fraction) -> tuple[Fraction, Fraction]:
    """The range without the outermost whole bins that hold at most (100 - percentile) / 2 per
    cent of the elements, on each side."""
    allowed = int(stats.count * (100 - percentile) / 200)
    counts = stats.counts.tolist()
    cut = 0
    high = Fraction(stats.high)
    for index in range(len(counts) - 1, -1, -1):
        cut += counts[index]
        if cut > allowed:
            high = min(high, stats.edge(index + 1))
            break
    cut = 0
    low = Fraction(stats.low)
    for index, count in enumerate(counts):
        cut += count
        if cut > allowed:
            low = max(low, stats.edge(index))
            break
    return low, high


@functools.lru_cache(maxsize=256)
def least_error(stats: Statistics, fmt: Format, name: str) -> Calibrated:
    """The clipping thresholds whose squared error over the histogram is least.

    Tried are the ratios of RATIOS of the whole range, then of its upper and its lower end alone;
    for powers of two, the scales down to 2**-bits of the one that saturates nothing. Among equals
    the widest range is taken. The last calls are remembered: trials of single tensors ask again.
    """
    low, high = min(Fraction(stats.low), Fraction(0)), max(Fraction(stats.high), Fraction(0))
    best = from_range(low, high, fmt, name)
    if low == high:
        return best
    least = squared_error(stats, best)

    def settle(candidates: Iterator[Calibrated]) -> None:
        nonlocal best, least
        for candidate in candidates:
            error = squared_error(stats, candidate)
            if error < least:
                best, least = candidate, error

    if fmt.rule is ScaleRule.FIXED:
        scales = (best.scale / 2**halvings for halvings in range(1, fmt.bits))
        settle(
            Calibrated(fmt, s, 0, max(low, s * fmt.code_min), min(high, s * fmt.code_max))
            for s in scales
            if s >= formats.power(SMALLEST_EXPONENT)
        )
        return best
    settle(from_range(low * r, high * r, fmt, name) for r in RATIOS[1:])
    if fmt.rule is ScaleRule.ASYMMETRIC and low and high:
        kept = best
        settle(from_range(kept.low, high * r, fmt, name) for r in RATIOS)
        kept = best
        settle(from_range(low * r, kept.high, fmt, name) for r in RATIOS)
    return best


def squared_error(stats: Statistics, found: Calibrated) -> Fraction:
    """The squared error of quantizing the histogram, in units of (2**(width-1) / 2**16)**2.

    Every element stands at the centre of its bin, zeros at 0 (they have no error). Steps narrower
    than a bin have the error of evenly spread values, step**2 / 12. Exact in integers: centres
    are below 2**12 units, so fixed-point errors stay below 2**31 and their squares below 2**62.
    """
    fmt = found.format
    one = formats.power(stats.width - 1 - FRACTION_BITS)
    step = found.scale / one
    counts = stats.counts.copy()
    counts[-stats.first] -= stats.zeros
    used = np.flatnonzero(counts)
    counts = counts[used]
    centres = (2 * (used + stats.first) + 1) << FRACTION_BITS
    low, high = fmt.code_min - found.zero_point, fmt.code_max - found.zero_point
    least, most = (
        max(-(1 << 30), min(1 << 30, formats.round_real(step * end))) for end in (low, high)
    )
    if found.scale >= formats.power(stats.width) and step < 1 << 30:
        whole = formats.round_real(step)
        codes = np.clip((2 * centres + whole) // (2 * whole), low, high)
        errors = centres - codes * whole
        return Fraction(_weighted_squares(errors, counts))
    inside = (centres >= least) & (centres <= most)
    errors = centres - np.clip(centres, least, most)
    spread = int(counts[inside].sum()) * step * step / 12
    return _weighted_squares(errors, counts) + spread


def _weighted_squares(errors: Array, counts: Array) -> int:
    """sum errors**2 * counts, exactly: Python integers, the sum may leave 64 bits."""
    return int((errors * errors).astype(object) @ counts.astype(object)) if len(errors) else 0
