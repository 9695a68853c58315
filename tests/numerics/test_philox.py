"""Philox4x32-10 against the known answers of Random123 (kat_vectors) and against itself."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from compare import assert_same
from samebits.numerics.philox import words
from samebits.spec.philox import philox4x32

ONES = 0xFFFFFFFF
KNOWN = [
    ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ((ONES,) * 4, (ONES,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]
word = st.integers(0, ONES)


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_known_answers(counter, key, answer):
    assert " ".join(f"{w:08x}" for w in philox4x32(counter, key)) == answer


@given(st.tuples(word, word), word, word, word, st.integers(0, 70))
def test_words_equal_the_scalar_definition(key, step, shard, call, count):
    expected = [philox4x32((i // 4, step, shard, call), key)[i % 4] for i in range(count)]
    found = words(count, key, step, shard, call=call)
    assert found.dtype == torch.int64
    assert found.shape == (count,)
    assert_same(found, expected, range(count))


def test_extreme_key_and_counter_words():
    for value in (0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFF, 0x10000, ONES):
        expected = [philox4x32((i // 4, value, value, 0), (value, value))[i % 4] for i in range(9)]
        assert_same(words(9, (value, value), value, value), expected, range(9))


def test_a_prefix_does_not_depend_on_the_count():
    assert_same(words(1000, (1, 2), 3, 4)[:37], words(37, (1, 2), 3, 4), range(37))


def test_keys_use_the_low_32_bits():
    assert_same(words(8, (1 << 32, -1)), words(8, (0, ONES)), range(8))


def test_high_block_counters():
    """The vectorised 32 x 32 -> 64 bit product at words with the top bit set."""
    from samebits.numerics import philox

    values = [0, 1, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFF0000, ONES]
    for multiplier in philox.MULTIPLIERS:
        high, low = philox._multiply(multiplier, torch.tensor(values))
        assert_same(high, [multiplier * v >> 32 for v in values], values)
        assert_same(low, [multiplier * v & ONES for v in values], values)


def test_at_most_2_to_the_34_words(monkeypatch):
    """They would be 128 GiB: it is enough that it begins, with a counter for every four."""

    class BegunError(Exception):
        """Raised with the number of counters."""

    def begin(counters, **_):
        raise BegunError(counters)

    monkeypatch.setattr(torch, "arange", begin)
    with pytest.raises(BegunError, match=f"^{1 << 32}$"):
        words(1 << 34, (0, 0))
    with pytest.raises(ValueError, match=r"expected 0 to 2\*\*34 random words, found 17179869185"):
        words((1 << 34) + 1, (0, 0))


def test_bad_arguments():
    with pytest.raises(ValueError, match=r"expected a step in \[0, 2\*\*32\), found -1"):
        words(4, (0, 0), step=-1)
    with pytest.raises(ValueError, match=r"expected a shard in \[0, 2\*\*32\), found 4294967296"):
        words(4, (0, 0), shard=1 << 32)
    with pytest.raises(ValueError, match=r"expected a call in \[0, 2\*\*32\), found -1"):
        words(4, (0, 0), call=-1)
    with pytest.raises(ValueError, match=r"expected 0 to 2\*\*34 random words, found -4"):
        words(-4, (0, 0))
