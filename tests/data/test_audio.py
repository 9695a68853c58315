"""Features in numpy against the definition, and the definition against its meaning."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from compare import assert_same
from samebits.data import audio
from samebits.data.audio import LogMel, log_mel, mono, short_codes
from samebits.errors import InputError
from samebits.numerics import quantize_real
from samebits.numerics.catalog import FORMATS
from samebits.spec import audio as reference

SETTINGS = [
    LogMel(),
    LogMel.at(16000),
    LogMel(8000, 200, 80, 512, 20, 0, 3000),
    LogMel(16000, 400, 160, 512, 40, 20, 7600),
    LogMel(8000, 16, 1, 16, 2, 60, 4000),
    LogMel(8000, 2, 2, 64, 4, 100, 4000),
]
IDS = [f"{s.rate}-{s.frame}-{s.hop}-{s.fft}-{s.mels}" for s in SETTINGS]


def wave_of(length: int, period: float, amplitude: int = 32767) -> np.ndarray:
    n = np.arange(length)
    return np.rint(amplitude * np.sin(2 * np.pi * n / period)).astype(np.int16)


def signals(settings: LogMel) -> dict[str, np.ndarray]:
    """Edges of the range and of the stages, and noise of many levels; a few frames each."""
    length = settings.frame + 2 * settings.hop + settings.hop // 2
    n = np.arange(length)
    rng = np.random.default_rng(5)
    found = {
        "zeros": np.zeros(length),
        "least": np.full(length, -32768),
        "greatest": np.full(length, 32767),
        "nyquist": np.where(n % 2, 32767, -32768),
        "quarter": np.where(n % 4 < 2, 32767, -32768),
        "impulse": np.where(n == settings.frame // 2, -32768, 0),
        "chirp": wave_of(length, 40.0) * np.sign(np.sin(n * n / 900)),
    }
    for level in (1, 2, 5, 40, 1000, 32768):
        found[f"noise {level}"] = rng.integers(-level, level, length)
    for k in (1, 3, settings.fft // 4, settings.fft // 2 - 1):
        turn = 2 * np.pi * k * n / settings.fft
        found[f"square {k}"] = np.where(np.cos(turn) >= 0, 32767, -32768)
    return {name: x.astype(np.int16) for name, x in found.items()}


@pytest.mark.parametrize("settings", SETTINGS, ids=IDS)
def test_numpy_is_the_definition(settings):
    for name, x in signals(settings).items():
        expected = np.array(reference.log_mel(x.tolist(), settings))
        found = log_mel(x, settings)
        assert found.dtype == np.int16
        assert found.shape == (3, settings.mels)
        where = [(name, *index) for index in np.ndindex(found.shape)]
        assert_same(found, expected, where)


@given(st.integers(0, 2**32 - 1), st.integers(0, 15), st.integers(0, 5))
def test_numpy_is_the_definition_on_random_frames(seed, bits, which):
    settings = SETTINGS[which]
    rng = np.random.default_rng(seed)
    x = rng.integers(-(1 << bits), 1 << bits, settings.frame, np.int16, endpoint=bits < 15)
    assert log_mel(x, settings)[0].tolist() == reference.frame_codes(x.tolist(), settings)


@pytest.mark.parametrize("settings", SETTINGS, ids=IDS)
def test_bounds_of_the_stages(settings):
    largest = 0
    for x in signals(settings).values():
        frame = x[: settings.frame].tolist()
        spectrum = reference.transform(reference.windowed(frame, settings), settings)
        assert all(abs(part) < 1.01 * 2**29 for value in spectrum for part in value)
        powers = reference.powers(spectrum)
        largest = max(largest, *powers)
        energies = reference.band_energies(powers, settings)
        assert all(2**24 <= e < 2**63 for e in energies)
    assert largest <= audio.POWER_MAX
    if settings.frame == settings.fft:
        assert largest >= 2**42  # a constant -32768 comes that near


def test_logarithm_at_every_segment_and_end():
    energies = {1 << 24, (1 << 63) - 1}
    for e in range(24, 63):
        energies |= {(1 << e) + 1, (1 << e) - 1} - {(1 << 24) - 1}
        energies |= {(1 << e) + (i << (e - 6)) + near for i in range(64) for near in (-1, 0, 1)}
    rng = np.random.default_rng(0)
    energies |= {int(rng.integers(1 << e, 1 << (e + 1))) for e in range(24, 62) for _ in range(60)}
    ordered = sorted(e for e in energies if e >= 1 << 24)
    expected = [reference.logarithm(e, LogMel().logarithms) for e in ordered]
    assert_same(audio._logarithm(np.array(ordered, np.int64)), np.array(expected), ordered)
    assert expected == sorted(expected)
    assert (expected[0], expected[-1]) == (-32639, 32639)
    for energy, code in zip(ordered, expected, strict=True):
        if abs(code) < 32639:  # the bound of audio.md stage 6, far above the error of binary64 here
            assert abs(code / 2**11 + 40 - math.log2(energy)) < 0.63 / 2**11


def test_mean_of_channels_for_every_small_sum():
    pairs = np.array([(a, b) for a in range(-4, 5) for b in range(-4, 5)], np.int16)
    assert mono(pairs).tolist() == reference.mono(pairs.T.tolist())
    ends = np.array([(32767, 32767), (-32768, -32768), (-32768, 32767)], np.int16)
    assert mono(ends).tolist() == [32767, -32768, 0]
    triples = np.random.default_rng(1).integers(-32768, 32768, (300, 3)).astype(np.int16)
    assert mono(triples).tolist() == reference.mono(triples.T.tolist())
    assert mono(triples[:, :1]).tolist() == triples[:, 0].tolist()


def test_short_codes_of_every_code():
    codes = np.arange(-32639, 32640).astype(np.int16)
    expected = [reference.short_code(code) for code in codes.tolist()]
    assert_same(short_codes(codes), np.array(expected), codes)
    assert set(expected) == set(range(-127, 128))
    values = torch.from_numpy(codes).double() * 2.0**-15
    quantized = quantize_real(values, FORMATS["bfp8"])
    assert quantized.exponent.tolist() == -7
    assert quantized.codes.tolist() == expected


@pytest.mark.parametrize("samples", [0, 1, 255, 256, 383, 384, 1000])
def test_number_of_frames(samples):
    settings = LogMel()
    expected = 0 if samples < 256 else 1 + (samples - 256) // 128
    assert settings.frames(samples) == expected
    assert log_mel(np.zeros(samples, np.int16), settings).shape == (expected, 32)
    assert len(reference.log_mel([0] * samples, settings)) == expected


def test_frames_beyond_one_chunk_stand_alone():
    settings = LogMel()
    x = np.random.default_rng(2).integers(-9000, 9000, 128 * (audio.CHUNK + 40)).astype(np.int16)
    whole = log_mel(x, settings)
    for t in (0, audio.CHUNK - 1, audio.CHUNK, len(whole) - 1):
        alone = log_mel(x[128 * t : 128 * t + 256], settings)
        assert alone.tolist() == whole[t : t + 1].tolist()


@pytest.mark.parametrize("settings", SETTINGS[:4], ids=IDS[:4])
def test_meaning_against_a_floating_point_transform(settings):
    """log2 of the mel energies of numpy's FFT, where rounding is far below the signal."""
    rng = np.random.default_rng(3)
    x = (rng.normal(0, 3000, settings.frame) + wave_of(settings.frame, 17.3, 9000)).astype(np.int16)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(settings.frame) / settings.frame)
    spectrum = np.fft.rfft(x * window * 2.0**15, settings.fft) / settings.fft
    weights = np.zeros((settings.mels, settings.fft // 2 + 1))
    for row, (first, values) in zip(weights, settings.weights, strict=True):
        row[first : first + len(values)] = values
    energy = weights @ (np.abs(spectrum) ** 2 / 2**16)
    found = log_mel(x, settings)[0] / 2**11 + 40
    assert np.abs(found - np.log2(energy)).max() < 0.01  # octaves; a code is 0.0005


def test_a_sine_lies_in_its_band():
    settings = LogMel()
    for hertz in (200, 440, 1000, 3000):
        codes = log_mel(wave_of(256, 8000 / hertz), settings)[0]
        edges = [e / 256 for e in audio.tables.mel_edges(32, 60, 4000)]
        band = int(codes.argmax())
        assert edges[band] <= hertz <= edges[band + 2]
        assert codes[band] > 0.88 * 2**15


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"rate": 44100}, "rate: expected 8000 or 16000 samples per second, found 44100"),
        ({"fft": 300}, "fft: expected a power of two in 16..2048, found 300"),
        ({"fft": 0}, "fft: expected a power of two in 16..2048, found 0"),
        ({"frame": 255}, "frame: expected an even number of samples in 2..256 (fft), found 255"),
        ({"frame": 512}, "frame: expected an even number of samples in 2..256 (fft), found 512"),
        ({"hop": 0}, "hop: expected 1..256 samples (frame), found 0"),
        ({"hop": 257}, "hop: expected 1..256 samples (frame), found 257"),
        ({"mels": 129}, "mels: expected 1..128 bands, found 129"),
        ({"low": -1}, "low: expected 0..3999 Hz (below high), found -1"),
        ({"low": 4000}, "low: expected 0..3999 Hz (below high), found 4000"),
        ({"high": 4001}, "high: expected at most 4000 Hz, found 4001"),
        ({"mels": 120}, "expected a bin of the spectrum in every band, found none in some of 120"),
        ({"mels": 1, "fft": 2048}, "expected bands whose sums fit 63 bits, found 1 that are too"),
    ],
)
def test_parameters_that_are_refused(change, text):
    with pytest.raises(InputError) as caught:
        LogMel(**change)
    assert str(caught.value).startswith(f"log-mel features: {text}")


def test_samples_that_are_refused():
    with pytest.raises(InputError, match=r"expected int16 samples \[n\], found int32 \[300\]"):
        log_mel(np.zeros(300, np.int32), LogMel())
    with pytest.raises(InputError, match=r"found int16 \[2, 300\]"):
        log_mel(np.zeros((2, 300), np.int16), LogMel())
    with pytest.raises(InputError, match="found 11025"):
        LogMel.at(11025)
