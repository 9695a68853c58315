"""Constants of the audio features, correctly rounded. docs/spec/audio.md section 3.

Precision grows until an enclosure rounds to one integer (Ziv's loop, `precise`); a tie that 4096
bits cannot rule out is taken for one.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import cache

from samebits.spec.formats import round_real
from samebits.tables.expression import ONE, TWO, ZERO, pi
from samebits.tables.interval import CodeRange
from samebits.tables.precise import Precise, Real, nearest_code

WINDOW_BITS = 15
COSINE_BITS = 14  # 1.0 is a 16-bit code
WEIGHT_BITS = 15
EDGE_BITS = 8  # of a frequency in Hz
LOG_BITS = 15
LOG_ENTRIES = 64
FILTER_BITS = 24
ZEROS = 16  # crossings of the filter on each side
PASSED = Fraction(15, 16)  # of the smaller of both bands, the filter's middle of its slope
CORNER = 700  # Hz: mel(f) = 2595 log10(1 + f / 700) (O'Shaughnessy, Speech Communication, 1987)
LARGEST = 1 << 40  # far above any constant here


@cache
def hann_window(length: int) -> tuple[int, ...]:
    """rne(2**15 * (1 - cos(2 pi n / length)) / 2) for n in 0..length-1 (the periodic window)."""

    def value(a: Precise, n: int) -> Real:
        return a.divide(a.subtract(ONE, _cosine(a, n, length)), TWO)

    return _rounded(value, length, WINDOW_BITS)


@cache
def cosine_table(length: int) -> tuple[int, ...]:
    """rne(2**14 * cos(2 pi i / length)) for i in 0..length/2."""
    return _rounded(lambda a, i: _cosine(a, i, length), length // 2 + 1, COSINE_BITS)


@cache
def log2_table() -> tuple[int, ...]:
    """rne(2**15 * log2(1 + i / 64)) for i in 0..64."""

    def value(a: Precise, i: int) -> Real:
        return a.divide(a.function("log", 1 + Fraction(i, LOG_ENTRIES)), a.function("log", TWO))

    return _rounded(value, LOG_ENTRIES + 1, LOG_BITS)


@cache
def resampling_filter(up: int, down: int) -> tuple[int, ...]:
    """rne(2**24 * h(n)) for n in 0..m, m = ZEROS * max(up, down), of a symmetric filter for the
    rate times up / down: a sinc under a Hann window, which keeps PASSED of the smaller band.

    h(n) = up c sinc(c n) (1 + cos(pi n / m)) / 2, with c = PASSED / max(up, down) and
    sinc(x) = sin(pi x) / (pi x).
    """
    longest = max(up, down)
    half = ZEROS * longest

    def value(a: Precise, n: int) -> Real:
        part = PASSED / longest
        turns = part * n
        height: Real = up * part
        if turns.denominator == 1 and turns:
            return ZERO
        if turns:
            angle = a.multiply(pi(a), turns)
            height = a.multiply(height, a.divide(a.function("sin", angle), angle))
        if n == half:
            return ZERO
        window = a.divide(a.add(ONE, _cosine(a, n, 2 * half)), TWO)
        return a.multiply(height, window)

    return _rounded(value, half + 1, FILTER_BITS)


@cache
def mel_edges(mels: int, low: int, high: int) -> tuple[int, ...]:
    """The mels + 2 frequencies, evenly spaced in mel from `low` to `high` Hz, in 1/256 Hz."""
    corner = Fraction(CORNER)
    start, ratio = 1 + low / corner, (high + corner) / (low + corner)

    def hertz(a: Precise, j: int) -> Real:
        grown = a.multiply(start, a.power(ratio, Fraction(j, mels + 1)))
        return a.multiply(a.subtract(grown, ONE), corner)

    return _rounded(hertz, mels + 2, EDGE_BITS)


@cache
def mel_weights(
    rate: int, fft: int, mels: int, low: int, high: int
) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """The first bin of the spectrum of each band, and its weights from there on, rne(2**15 w).

    w is a triangle over three successive edges (Davis and Mermelstein, IEEE TASSP 28(4), 1980)
    with the height 1; bin k lies at k * rate / fft Hz. A band without any weight has no bins.
    """
    edges = [Fraction(edge, 1 << EDGE_BITS) for edge in mel_edges(mels, low, high)]
    bins = [Fraction(k * rate, fft) for k in range(fft // 2 + 1)]
    bands = []
    for left, top, right in zip(edges, edges[1:], edges[2:], strict=False):
        weights = [0] * len(bins)
        for k, hertz in enumerate(bins):
            if left < hertz <= top:
                weights[k] = round_real((hertz - left) / (top - left) * (1 << WEIGHT_BITS))
            elif top < hertz < right:
                weights[k] = round_real((right - hertz) / (right - top) * (1 << WEIGHT_BITS))
        used = [k for k, weight in enumerate(weights) if weight]
        first, end = (used[0], used[-1] + 1) if used else (0, 0)
        bands.append((first, tuple(weights[first:end])))
    return tuple(bands)


def _cosine(a: Precise, n: int, length: int) -> Real:
    """cos(2 pi n / length); 0 exactly at a quarter and three quarters of a turn."""
    if 4 * n in (length, 3 * length):
        return ZERO
    return a.function("cos", a.multiply(pi(a), Fraction(2 * n, length)))


def _rounded(value: Callable[[Precise, int], Real], count: int, bits: int) -> tuple[int, ...]:
    """rne(2**bits * value(n)) for n in 0..count-1, correctly rounded."""
    target = CodeRange(Fraction(1, 1 << bits), 0, -LARGEST, LARGEST)
    return tuple(nearest_code(value, target, n) for n in range(count))
