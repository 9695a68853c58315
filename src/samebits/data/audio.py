"""Log-mel features of 16-bit PCM, in integers, vectorised with numpy. docs/spec/audio.md.

The transform runs in binary64: its numerators are integers below 2**48 and its divisors powers of
two, so every operation but the one rounding (`rint`, ties to even) is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from samebits.errors import InputError
from samebits.spec.formats import CODE_MAX as CODE_LIMITS
from samebits.tables import audio as tables

RATES = (8000, 16000)
CODE_MAX = CODE_LIMITS[16]
SILENCE = -CODE_MAX  # the code of a frame of zeros
POWER_MAX = (1 << 42) + (1 << 35)
FLOOR, CENTRE, LOG_BITS = 1 << 24, 40, 11
CHUNK = 512  # frames at a time: their transform stays in the cache

Codes = npt.NDArray[np.int16]
Integers = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]


@dataclass(frozen=True)
class LogMel:
    """The settings of the features, docs/spec/audio.md section 1. Lengths in samples, edges in Hz.

    rate: samples per second; frame, hop: length and distance of the frames; fft: points of the
    transform; mels: number of bands between `low` and `high`. Raises InputError for settings
    outside what is allowed there.
    """

    rate: int = 8000
    frame: int = 256
    hop: int = 128
    fft: int = 256
    mels: int = 32
    low: int = 60
    high: int = 4000

    def __post_init__(self) -> None:
        """Check the limits of section 1, and that every band has a bin and fits 63 bits."""
        _expect("rate", self.rate in RATES, "8000 or 16000 samples per second", self.rate)
        power = self.fft > 0 and self.fft & (self.fft - 1) == 0
        _expect("fft", power and 16 <= self.fft <= 2048, "a power of two in 16..2048", self.fft)
        even = self.frame % 2 == 0 and 2 <= self.frame <= self.fft
        _expect("frame", even, f"an even number of samples in 2..{self.fft} (fft)", self.frame)
        _expect("hop", 1 <= self.hop <= self.frame, f"1..{self.frame} samples (frame)", self.hop)
        _expect("mels", 1 <= self.mels <= 128, "1..128 bands", self.mels)
        _expect("low", 0 <= self.low < self.high, f"0..{self.high - 1} Hz (below high)", self.low)
        _expect("high", self.high <= self.rate // 2, f"at most {self.rate // 2} Hz", self.high)
        if not all(weights for _, weights in self.weights):
            raise InputError(
                f"log-mel features: expected a bin of the spectrum in every band, found none in "
                f"some of {self.mels} bands of a transform of {self.fft} points; take fewer mels "
                "or a longer fft"
            )
        if max(sum(weights) for _, weights in self.weights) * POWER_MAX >= 1 << 63:
            raise InputError(
                f"log-mel features: expected bands whose sums fit 63 bits, found {self.mels} that "
                f"are too wide for a transform of {self.fft} points; take more mels or a shorter "
                "fft"
            )

    @staticmethod
    def at(rate: int) -> LogMel:
        """The default at a sample rate: frames of 32 ms every 16 ms, 32 bands from 60 Hz up."""
        _expect("rate", rate in RATES, "8000 or 16000 samples per second", rate)
        frame = rate * 32 // 1000
        return LogMel(rate, frame, frame // 2, frame, 32, 60, rate // 2)

    @cached_property
    def window(self) -> tuple[int, ...]:
        """The window h [frame], section 3."""
        return tables.hann_window(self.frame)

    @cached_property
    def cosine(self) -> tuple[int, ...]:
        """The cosines c [fft / 2 + 1]; the sine s[i] is c[|fft / 4 - i|]."""
        return tables.cosine_table(self.fft)

    @cached_property
    def weights(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """The first bin of each band, and its weights from there on."""
        return tables.mel_weights(self.rate, self.fft, self.mels, self.low, self.high)

    @property
    def logarithms(self) -> tuple[int, ...]:
        """log2(1 + i / 64) for i in 0..64, in q1.15."""
        return tables.log2_table()

    def frames(self, samples: int) -> int:
        """Number of whole frames in so many samples."""
        return max(0, 1 + (samples - self.frame) // self.hop)


def _expect(name: str, good: bool, expected: str, found: int) -> None:
    if not good:
        raise InputError(f"log-mel features: {name}: expected {expected}, found {found}")


def mono(channels: Codes) -> Codes:
    """One channel int16 [n] from int16 [n, channels]: rne of the mean of each instant."""
    count = channels.shape[1]
    total = channels.sum(axis=1, dtype=np.int64)
    quotient, rest = np.divmod(total, count)
    up = (2 * rest > count) | ((2 * rest == count) & (quotient & 1 == 1))
    return (quotient + up).astype(np.int16)


def log_mel(samples: Codes, settings: LogMel) -> Codes:
    """Features of int16 samples [n] as q0.15 codes int16 [T, mels]; T is 0 where n < frame.

    Raises InputError for samples of another type or shape.
    """
    if samples.dtype != np.int16 or samples.ndim != 1:
        raise InputError(
            f"log-mel features: expected int16 samples [n], found {samples.dtype} "
            f"{list(samples.shape)}"
        )
    count = settings.frames(len(samples))
    codes = np.empty((count, settings.mels), np.int16)
    if count:
        frames = np.lib.stride_tricks.sliding_window_view(samples, settings.frame)[:: settings.hop]
        for start in range(0, count, CHUNK):
            part = slice(start, start + CHUNK)
            codes[part] = _logarithm(_energies(_powers(frames[part], settings), settings))
    return codes


def short_codes(codes: Codes) -> npt.NDArray[np.int8]:
    """8-bit codes (q0.7, -127..127) of q0.15 codes."""
    return _round_shift(codes.astype(np.int64), 8).astype(np.int8)


# --- stages (audio.md 4) ------------------------------------------------------------------------


def _powers(frames: Codes, settings: LogMel) -> Integers:
    """The power spectra P [fft / 2 + 1, T] of frames [T, frame]: stages 1 to 4.

    Frames lie along the last axis, so that no stage of the transform has short rows. A real
    transform of fft points is a complex one of half as many, z[j] = v[2 j] + i v[2 j + 1], whose
    bins k and fft / 2 - k are then taken apart into the spectra of the even and odd samples.
    """
    half = settings.fft // 2
    v = np.zeros((settings.fft, len(frames)))
    np.multiply(frames.T, np.array(settings.window, np.float64)[:, None], out=v[: settings.frame])
    order = _bit_reversed(half)
    re, im = _transform(v[0::2][order], v[1::2][order], settings)
    cosine, sine = _turns(settings)
    ends = np.arange(half + 1) % half
    a_re, a_im, b_re, b_im = re[ends], im[ends], re[ends[::-1]], -im[ends[::-1]]
    d_re, d_im = a_re - b_re, a_im - b_im
    c, s, one = cosine[:, None], sine[:, None], 2.0**14
    x_re = np.rint((one * (a_re + b_re) + (c * d_im - s * d_re)) * 2.0**-16).astype(np.int64)
    x_im = np.rint((one * (a_im + b_im) - (c * d_re + s * d_im)) * 2.0**-16).astype(np.int64)
    return _round_shift(x_re * x_re + x_im * x_im, 16)


def _transform(re: Reals, im: Reals, settings: LogMel) -> tuple[Reals, Reals]:
    """The butterflies of length 2, 4, .. over [fft / 2, T] in bit-reversed order, each rounded once
    and halved: decimation in time (J. Cooley, J. Tukey, Mathematics of Computation 19, 1965)."""
    cosine, sine = _turns(settings)
    half, one, shift = settings.fft // 2, 2.0**14, 2.0**-15
    length = 2
    while length <= half:
        shape = (half // length, 2, length // 2, -1)
        re, im = re.reshape(shape), im.reshape(shape)
        step = settings.fft // length
        c, s = (t[:half:step][:, None] for t in (cosine, sine))
        p = re[:, 1] * c + im[:, 1] * s
        q = im[:, 1] * c - re[:, 1] * s
        a_re, a_im = one * re[:, 0], one * im[:, 0]
        re = np.stack((a_re + p, a_re - p), axis=1)
        im = np.stack((a_im + q, a_im - q), axis=1)
        for part in (re, im):
            np.rint(np.multiply(part, shift, out=part), out=part)
        length *= 2
    return re.reshape(half, -1), im.reshape(half, -1)


def _turns(settings: LogMel) -> tuple[Reals, Reals]:
    """The cosines and sines [fft / 2 + 1] in units of 2**-14."""
    cosine = np.array(settings.cosine, np.float64)
    return cosine, cosine[np.abs(settings.fft // 4 - np.arange(len(cosine)))]


def _bit_reversed(count: int) -> npt.NDArray[np.intp]:
    order = np.zeros(1, np.intp)
    while len(order) < count:
        order = np.concatenate([2 * order, 2 * order + 1])
    return order


def _energies(power: Integers, settings: LogMel) -> Integers:
    """The band energies E [T, mels], at least FLOOR: stage 5."""
    energies = np.empty((power.shape[1], settings.mels), np.int64)
    for band, (first, weights) in enumerate(settings.weights):
        factors = np.array(weights, np.int64)[:, None]
        energies[:, band] = (power[first : first + len(weights)] * factors).sum(axis=0)
    return np.maximum(energies, FLOOR)


def _logarithm(energy: Integers) -> Codes:
    """The codes of energies in 2**24 .. 2**63 - 1: stages 6 and 7, log2 by a table of 64 intervals
    and a line in each."""
    table = np.array(tables.log2_table(), np.int64)
    # frexp of the upper bits, which binary64 holds exactly, and never of the whole.
    e = np.frexp((energy >> 20).astype(np.float64))[1].astype(np.int64) + 19
    r = (energy >> (e - 22)) & ((1 << 22) - 1)
    i, d = r >> 16, r & 0xFFFF
    fraction = _round_shift((table[i] << 16) + (table[i + 1] - table[i]) * d, 20)
    code = (e << LOG_BITS) + fraction - (CENTRE << LOG_BITS)
    return np.clip(code, -CODE_MAX, CODE_MAX).astype(np.int16)


def _round_shift(v: npt.NDArray[Any], bits: int) -> Integers:
    """rne(v / 2**bits)."""
    return (v + ((1 << (bits - 1)) - 1) + ((v >> bits) & 1)) >> bits
