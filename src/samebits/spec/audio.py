"""docs/spec/audio.md in plain Python integers, one function per stage: the definition.

Slow and obvious; `data.audio` and the generated C are tested against it for equality.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from samebits.spec.formats import Q16, round_ratio

Complex = tuple[int, int]  # re, im
RESAMPLED = 16000  # samples per second, of recordings of other rates
RESAMPLING_BITS = 24  # of the filter's integers


class Features(Protocol):
    """The settings of section 1 and the constants of section 3 that follow from them."""

    @property
    def frame(self) -> int:
        """Samples in a frame."""

    @property
    def hop(self) -> int:
        """Samples from the start of a frame to that of the next."""

    @property
    def fft(self) -> int:
        """Points of the transform, at least `frame`."""

    @property
    def window(self) -> Sequence[int]:
        """h [frame], in units of 2**-15."""

    @property
    def cosine(self) -> Sequence[int]:
        """c [fft / 2 + 1], in units of 2**-14."""

    @property
    def weights(self) -> Sequence[tuple[int, Sequence[int]]]:
        """The first bin of each band, and its weights from there on, in units of 2**-15."""

    @property
    def logarithms(self) -> Sequence[int]:
        """log2(1 + i / 64) for i in 0..64, in units of 2**-15."""


def mono(channels: Sequence[Sequence[int]]) -> list[int]:
    """One sample for each instant, from the samples of every channel. Section 2."""
    return [round_ratio(sum(sample), len(sample)) for sample in zip(*channels, strict=True)]


def log_mel(samples: Sequence[int], settings: Features) -> list[list[int]]:
    """The features of samples as q0.15 codes [T][mels], T whole frames."""
    starts = range(0, len(samples) - settings.frame + 1, settings.hop)
    return [frame_codes(samples[t : t + settings.frame], settings) for t in starts]


def frame_codes(frame: Sequence[int], settings: Features) -> list[int]:
    """The codes [mels] of one frame: all stages of section 4."""
    spectrum = transform(windowed(frame, settings), settings)
    energies = band_energies(powers(spectrum), settings)
    return [logarithm(energy, settings.logarithms) for energy in energies]


def windowed(frame: Sequence[int], settings: Features) -> list[int]:
    """Stage 1: the frame times the window, with zeros up to [fft]."""
    products = [x * h for x, h in zip(frame, settings.window, strict=True)]
    return products + [0] * (settings.fft - settings.frame)


def transform(v: Sequence[int], settings: Features) -> list[Complex]:
    """Stages 2 and 3: the spectrum [fft / 2 + 1] of real v, divided by fft."""
    n, half = settings.fft, settings.fft // 2
    bits = half.bit_length() - 1
    order = [int(f"{j:0{bits}b}"[::-1], 2) for j in range(half)]
    z = [(v[2 * j], v[2 * j + 1]) for j in order]
    length = 2
    while length <= half:
        for start in range(0, half, length):
            for j in range(length // 2):
                low, high = start + j, start + j + length // 2
                z[low], z[high] = _butterfly(z[low], z[high], _turn(j * n // length, settings))
        length *= 2
    return [_split(z[k % half], z[(half - k) % half], _turn(k, settings)) for k in range(half + 1)]


def _turn(i: int, settings: Features) -> tuple[int, int]:
    """c[i] and s[i], the cosine and sine of 2 pi i / fft, for 0 <= i <= fft / 2."""
    return settings.cosine[i], settings.cosine[abs(settings.fft // 4 - i)]


def _butterfly(a: Complex, b: Complex, turn: tuple[int, int]) -> tuple[Complex, Complex]:
    """(a + b w) / 2 and (a - b w) / 2 with w = c - i s, one rounding each. Stage 2."""
    c, s = turn
    p, q = b[0] * c + b[1] * s, b[1] * c - b[0] * s
    real, imaginary = a[0] << 14, a[1] << 14
    return (
        (round_ratio(real + p, 1 << 15), round_ratio(imaginary + q, 1 << 15)),
        (round_ratio(real - p, 1 << 15), round_ratio(imaginary - q, 1 << 15)),
    )


def _split(a: Complex, conjugate_of_b: Complex, turn: tuple[int, int]) -> Complex:
    """One bin of the real transform from two of the complex one, quartered. Stage 3."""
    c, s = turn
    b = (conjugate_of_b[0], -conjugate_of_b[1])
    d = (a[0] - b[0], a[1] - b[1])
    real = ((a[0] + b[0]) << 14) + c * d[1] - s * d[0]
    imaginary = ((a[1] + b[1]) << 14) - c * d[0] - s * d[1]
    return round_ratio(real, 1 << 16), round_ratio(imaginary, 1 << 16)


def powers(spectrum: Sequence[Complex]) -> list[int]:
    """Stage 4: the power of every bin [fft / 2 + 1]."""
    return [round_ratio(re * re + im * im, 1 << 16) for re, im in spectrum]


def band_energies(power: Sequence[int], settings: Features) -> list[int]:
    """Stage 5: the energy of every band [mels], at least 2**24."""
    return [
        max(1 << 24, sum(w * p for w, p in zip(weights, power[first:], strict=False)))
        for first, weights in settings.weights
    ]


def logarithm(energy: int, table: Sequence[int]) -> int:
    """Stages 6 and 7: the code of an energy of at least 2**24."""
    e = energy.bit_length() - 1
    r = ((energy - (1 << e)) << 22) >> e
    i, d = r >> 16, r & 0xFFFF
    fraction = round_ratio((table[i] << 16) + (table[i + 1] - table[i]) * d, 1 << 20)
    return min(Q16, max(-Q16, (e << 11) + fraction - (40 << 11)))


def short_code(code: int) -> int:
    """The 8-bit code of a feature. Section 5."""
    return round_ratio(code, 1 << 8)


def steps_for(lengths: Sequence[int]) -> int:
    """T of training recordings of these lengths (frames). Section 6."""
    return sorted(lengths)[-(-98 * len(lengths) // 100) - 1]


def fitted(frames: Sequence[list[int]], steps: int, mels: int) -> list[list[int]]:
    """`steps` frames of mels codes: silence before a short recording, the middle of a long one."""
    start = max(0, (len(frames) - steps) // 2)
    padding = [[-Q16] * mels for _ in range(steps - len(frames))]
    return padding + list(frames[start : start + steps])


def resample(samples: Sequence[int], half: Sequence[int], up: int, down: int) -> list[int]:
    """16-bit samples at the rate times up / down. Section 7.

    half: the filter's integers [m + 1], at the distances 0..m in steps of 1 / up of a sample
    """
    made = []
    for k in range(-(-len(samples) * up // down)):
        total = sum(
            sample * half[abs(i * up - k * down)]
            for i, sample in enumerate(samples)
            if abs(i * up - k * down) < len(half)
        )
        made.append(min(2**15 - 1, max(-(2**15), round_ratio(total, 1 << RESAMPLING_BITS))))
    return made
