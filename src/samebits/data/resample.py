"""Recordings of any rate at 16 kHz, in integers, vectorised with numpy. docs/spec/audio.md 7.

Sums run in binary64: products are integers below 2**43 and sums of a few hundred of them exact.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from samebits.spec.audio import RESAMPLED, RESAMPLING_BITS
from samebits.tables.audio import ZEROS, resampling_filter

LOWEST, HIGHEST = 4000, 192000  # samples per second
LARGEST_FACTOR = 1000  # of the reduced ratio: bounds the filter

Codes = npt.NDArray[np.int16]


def ratio(rate: int) -> tuple[int, int] | None:
    """The factors up and down that bring a rate to 16 kHz, reduced; None where they are too
    large."""
    if not LOWEST <= rate <= HIGHEST:
        return None
    common = math.gcd(rate, RESAMPLED)
    up, down = RESAMPLED // common, rate // common
    return (up, down) if max(up, down) <= LARGEST_FACTOR else None


def resampled(samples: Codes, rate: int) -> Codes:
    """int16 samples [n] of a rate that `ratio` takes as samples of 16 kHz, [ceil(n up / down)].

    Output k lies at the input place k down / up: samples around it, weighed by the filter, rounded
    once and saturated.
    """
    factors = ratio(rate)
    assert factors is not None
    up, down = factors
    if up == down:
        return samples
    half = np.array(resampling_filter(up, down), np.float64)
    reach = ZEROS * max(up, down)
    # Samples on each side that the filter touches: an output lies up to a sample after its first.
    before = reach // up + 1
    padded = np.zeros(len(samples) + 2 * before + 1)
    padded[before : before + len(samples)] = samples
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * before + 1)
    count = -(-len(samples) * up // down)
    made = np.empty(count, np.int16)
    offsets = np.arange(-before, before + 1) * up
    for start in range(min(up, count)):  # outputs start, start + up, .. share one phase
        first, phase = divmod(start * down, up)
        distance = np.abs(offsets - phase)
        taps = np.where(distance <= reach, half[np.minimum(distance, reach)], 0.0)
        found = np.arange(start, count, up)
        sums = windows[first : first + len(found) * down : down][: len(found)] @ taps
        rounded = np.rint(sums * 2.0**-RESAMPLING_BITS)
        made[found] = np.clip(rounded, -(2**15), 2**15 - 1).astype(np.int16)
    return made
