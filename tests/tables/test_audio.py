"""Constants of the audio features against mpmath's own functions at 60 digits."""

from __future__ import annotations

from fractions import Fraction

import mpmath
import pytest

from compare import assert_same
from samebits.tables import CodeRange, audio
from samebits.tables.precise import nearest_code

LENGTHS = (16, 24, 200, 256, 320, 512)


def nearest(values: list[mpmath.mpf]) -> list[int]:
    """The nearest integers; none of the values lies so near a tie that 60 digits cannot tell."""
    for value in values:
        assert abs(value - mpmath.floor(value) - mpmath.mpf(1) / 2) > mpmath.mpf(10) ** -40
    return [int(mpmath.nint(value)) for value in values]


@pytest.mark.parametrize("length", LENGTHS)
def test_window_and_cosine(length):
    with mpmath.workdps(60):
        turns = [2 * mpmath.pi * n / length for n in range(length)]
        window = nearest([2**15 * (1 - mpmath.cos(turn)) / 2 for turn in turns])
        cosine = nearest([2**14 * mpmath.cos(turn) for turn in turns[: length // 2 + 1]])
    assert_same(audio.hann_window(length), window, range(length))
    assert_same(audio.cosine_table(length), cosine, range(length // 2 + 1))


@pytest.mark.parametrize("length", LENGTHS)
def test_symmetries_that_the_short_tables_rely_on(length):
    window, cosine = audio.hann_window(length), audio.cosine_table(length)
    assert window[1:] == window[:0:-1]
    assert window[length // 2] == 1 << 15
    assert [-c for c in cosine] == list(cosine[::-1])
    assert sum(window) <= (length << 14) + length // 2  # the bound of audio.md stage 3


def test_log2():
    with mpmath.workdps(60):
        expected = nearest([2**15 * mpmath.log(1 + mpmath.mpf(i) / 64, 2) for i in range(65)])
    assert_same(audio.log2_table(), expected, range(65))


@pytest.mark.parametrize(("mels", "low", "high"), [(32, 60, 4000), (40, 0, 8000), (1, 3, 5)])
def test_mel_edges(mels, low, high):
    with mpmath.workdps(60):
        ends = [2595 * mpmath.log10(1 + mpmath.mpf(f) / 700) for f in (low, high)]
        steps = [ends[0] + (ends[1] - ends[0]) * j / (mels + 1) for j in range(mels + 2)]
        expected = nearest([256 * 700 * (mpmath.mpf(10) ** (m / 2595) - 1) for m in steps])
    assert_same(audio.mel_edges(mels, low, high), expected, range(mels + 2))


def test_edges_that_are_rational():
    # (8000 + 700) / (1475 + 700) = 4: every other edge of 3 bands is a power of 2 times 2175.
    assert audio.mel_edges(3, 1475, 8000)[::2] == (1475 * 256, (2 * 2175 - 700) * 256, 8000 * 256)


def test_an_undecided_tie_goes_to_even():
    third = Fraction(1, 3)

    def half(a):  # 2**(1/3) ** 3 / 4 = 1/2, which no enclosure proves
        root = a.power(Fraction(2), third)
        return a.divide(a.multiply(root, a.multiply(root, root)), Fraction(4))

    target = CodeRange(Fraction(1), 0, -audio.LARGEST, audio.LARGEST)
    assert nearest_code(half, target) == 0
    assert nearest_code(lambda a: a.add(half(a), Fraction(1)), target) == 2


def test_mel_weights_are_rounded_triangles():
    rate, fft, mels, low, high = 8000, 256, 32, 60, 4000
    edges = [Fraction(e, 256) for e in audio.mel_edges(mels, low, high)]
    bands = audio.mel_weights(rate, fft, mels, low, high)
    assert len(bands) == mels
    for m, (first, weights) in enumerate(bands):
        left, top, right = edges[m : m + 3]
        full = [0] * first + list(weights) + [0] * (fft // 2 + 1 - first - len(weights))
        for k, weight in enumerate(full):
            g = Fraction(k * rate, fft)
            v = max(Fraction(0), min((g - left) / (top - left), (right - g) / (right - top)))
            assert abs(weight - v * 2**15) <= Fraction(1, 2), (m, k)
        assert full[first] > 0
        assert full[first + len(weights) - 1] > 0


def test_a_band_between_two_bins_has_none():
    assert (0, ()) in audio.mel_weights(8000, 64, 60, 0, 4000)
