"""e6m9 codes and random rounding against their definition in rationals."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compare import assert_same
from samebits.errors import RangeError
from samebits.spec.formats import power
from samebits.spec.philox import philox4x32
from samebits.spec.training import moments
from samebits.spec.training.moments import Draw, encode, encode_reals, rounded, significand, value

numbers = st.tuples(st.integers(-(2**62) + 1, 2**62 - 1), st.integers(-150, 40))


def exact(code: int, exponent: int) -> Fraction:
    """The number of a code, from the words of section 1.4."""
    if code == 0:
        return Fraction(0)
    field, fraction = divmod(abs(code), 512)
    return (1 if code > 0 else -1) * (512 + fraction) * power(exponent - 63 + field)


def test_every_code_stands_for_its_number_and_comes_back():
    codes = [c for c in range(-32767, 32768) if c == 0 or abs(c) >= 512]
    reals = [value(c, 3) for c in codes]
    assert_same(map(Fraction, reals), [exact(c, 3) for c in codes], codes)
    assert all(a < b for a, b in itertools.pairwise(reals))
    top = [math.ldexp(1.0, 3 + 9)]  # the largest number of a tensor has F = 62
    for words in (None, [65535] * (len(codes) + 1), [0] * (len(codes) + 1)):
        kept = [i for i, c in enumerate(codes) if abs(c) >> 9 <= 62]
        back, exponent = encode_reals([reals[i] for i in kept] + top, words)
        assert exponent == 4  # one binade is free for rounding up
        moved = [c - 512 if c > 0 else c + 512 for c in (codes[i] for i in kept)]
        moved = [0 if abs(codes[i]) < 1024 else c for i, c in zip(kept, moved, strict=True)]
        assert_same(back[:-1], moved, kept)


@pytest.mark.parametrize("shift", [1, 2, 9, 15, 16, 17, 26, 40])
@pytest.mark.parametrize("a", [0, 1, 2, 511, 777, 2**26 - 1, 2**25 + 12345])
def test_random_rounding_is_up_with_the_probability_of_what_is_cut_off(a, shift):
    results = [rounded(a, shift, word) for word in range(65536)]
    low = a >> shift
    assert set(results) <= {low, low + 1}
    assert results == sorted(results)
    assert results.count(low + 1) == math.floor((Fraction(a, 2**shift) - low) * 65536)


def test_rounding_to_nearest_and_without_a_shift():
    assert [rounded(a, 1, None) for a in range(8)] == [0, 0, 1, 2, 2, 2, 3, 4]
    assert rounded(2**61, 70, None) == 0
    for word in (None, 0, 65535):
        assert rounded(5, 0, word) == 5
        assert rounded(5, -3, word) == 40


@given(st.lists(numbers, min_size=1, max_size=6), st.data())
def test_encode(values, data):
    words = data.draw(
        st.none() | st.lists(st.integers(0, 65535), min_size=6, max_size=6), label="words"
    )
    codes, exponent = encode(values, words)
    true = [a * power(e) for a, e in values]
    largest = max(map(abs, true))
    if largest == 0:
        assert (codes, exponent) == ([0] * len(values), -128)
        return
    assert -128 <= exponent <= 127
    assert exponent == -128 or 512 * power(exponent - 1) <= largest < 1024 * power(exponent - 1)
    for code, t in zip(codes, true, strict=True):
        found = exact(code, exponent)
        assert code == 0 or abs(code) >= 512
        assert (found > 0) == (t > 0) or found == 0
        if abs(t) < 512 * power(exponent - 62):
            assert code == 0
        else:
            unit = max(abs(t) / 512, power(exponent - 62))
            assert abs(found - t) <= (unit / 2 if words is None else unit)


def test_of_reals_and_of_integers_are_one():
    integers = [(777777, -5), (-3, 7), (0, 0), (2**52 + 1, -60)]
    reals = [math.ldexp(float(a), e) for a, e in integers]
    for words in (None, [0, 1, 2, 3], [65535] * 4, [40000] * 4):
        assert encode(integers, words) == encode_reals(reals, words)


def test_ends_of_the_exponent():
    assert encode([(1023, 126)], None) == ([62 * 512 + 511], 127)
    with pytest.raises(RangeError, match="first moment: exponent 128, at most 127"):
        encode([(1024, 126)], None, "first moment")
    assert encode([(1, -300)], None) == ([0], -128)
    assert encode([(1, -128 - 53)], [65535]) == ([512], -128)  # F = 1, the lowest number
    assert encode([(1023, -128 - 63)], [65535]) == ([0], -128)  # below it: never rounded up


def test_a_draw_is_halves_of_words_of_one_counter():
    draw = Draw(5, 9, 1000)
    for i in (0, 1, 3, 7, 8, 4_000_001):
        word = philox4x32((i // 8, 1000, 2**32 - 3, 0), (5, 9))[i % 8 // 2]
        assert draw.moment(i) == (word >> 16 if i % 2 else word % 65536)
        assert draw.update(i) == draw.moment(i) * 0x9E37 % 65536
        assert draw.root(i) == draw.moment(i) * 0x85EB % 65536
    for factor in (moments.UPDATE_FACTOR, moments.ROOT_FACTOR):
        assert len({factor * w % 65536 for w in range(65536)}) == 65536


def test_significands():
    assert significand(512) == (512, 1)
    assert significand(-32767) == (1023, 63)
