"""Resampling in integers against docs/spec/audio.md, section 7."""

from __future__ import annotations

import numpy as np
import pytest

from recordings import write_wav
from samebits.data.recordings import read_wav
from samebits.data.resample import ratio, resampled
from samebits.errors import InputError
from samebits.spec.audio import resample
from samebits.tables.audio import resampling_filter

RATES = (8000, 11025, 12000, 22050, 32000, 44100, 48000, 96000)


def noise(count: int) -> np.ndarray:
    return np.random.default_rng(count).integers(-(2**15), 2**15, count).astype(np.int16)


@pytest.mark.parametrize("rate", [8000, 12000, 32000, 48000])
@pytest.mark.parametrize("count", [1, 2, 50, 333])
def test_samples_are_those_of_the_specification(rate, count):
    up, down = ratio(rate)
    wanted = resample(noise(count).tolist(), resampling_filter(up, down), up, down)
    assert resampled(noise(count), rate).tolist() == wanted


@pytest.mark.parametrize("rate", [16960, 18900, 25600])
def test_the_outermost_sample_that_the_filter_reaches_counts(rate):
    up, down = ratio(rate)
    wanted = resample(noise(150).tolist(), resampling_filter(up, down), up, down)
    assert resampled(noise(150), rate).tolist() == wanted


@pytest.mark.slow
@pytest.mark.parametrize("rate", [11025, 22050, 44100])
def test_samples_of_long_filters(rate):
    up, down = ratio(rate)
    wanted = resample(noise(700).tolist(), resampling_filter(up, down), up, down)
    assert resampled(noise(700), rate).tolist() == wanted


def test_16_khz_stays_and_lengths_follow_the_ratio():
    assert resampled(noise(9), 16000).tolist() == noise(9).tolist()
    assert len(resampled(noise(48001), 48000)) == 16001


def test_a_tone_keeps_its_height_and_what_is_above_goes():
    at = np.arange(48000) / 48000
    low, high = (
        np.rint(20000 * np.sin(2 * np.pi * hertz * at)).astype(np.int16) for hertz in (1000, 12000)
    )
    kept = resampled(low, 48000)[200:-200]
    assert abs(int(np.abs(kept.astype(int)).max()) - 20000) < 40
    assert np.abs(resampled(high, 48000)[200:-200].astype(int)).max() <= 2


def test_filters_end_in_zero_and_sum_to_one_in_every_phase():
    half = resampling_filter(2, 1)
    assert half[-1] == 0
    for phase in (0, 1):
        taps = [half[abs(n)] for n in range(-32, 33) if n % 2 == phase]
        assert abs(sum(taps) / 2**24 - 1) < 1e-4


@pytest.mark.parametrize("rate", [3999, 15999, 192001])
def test_rates_out_of_reach_are_named(tmp_path, rate):
    assert ratio(rate) is None
    path = tmp_path / "x.wav"
    write_wav(path, noise(400), rate)
    with pytest.raises(InputError, match=f"expected 4000 to 192000 samples per second .* {rate}"):
        read_wav(path, resample=True)


def test_recordings_of_any_rate(tmp_path):
    path = tmp_path / "x.wav"
    write_wav(path, noise(4800), 48000)
    with pytest.raises(InputError, match=r"found 48000; .* give --resample to bring all"):
        read_wav(path)
    samples, rate = read_wav(path, resample=True)
    assert (len(samples), rate) == (1600, 16000)
    assert samples.tolist() == resampled(noise(4800), 48000).tolist()
