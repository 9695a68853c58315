"""Base-and-slope tables: the arithmetic of `interpolate`, and an error that is the true one."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from compare import assert_same
from samebits.errors import InputError
from samebits.tables import CodeRange, Segments, Variable, apply, fit_segments, transfer_table

X = Variable()
SOURCE = CodeRange(Fraction(1, 4096), 0, -32768, 32767)
S16 = CodeRange(Fraction(1, 32768), 0, -32768, 32767)
S8 = CodeRange(Fraction(1, 128), 0, -128, 127)


def interpolate(segments, u):
    """docs/spec/graph.md section 3, entry u of the table, in plain integers."""
    i, r = u >> segments.bits, u & ((1 << segments.bits) - 1)
    step = (segments.slope[i] * r + (1 << (segments.shift - 1))) >> segments.shift
    return min(max(segments.base[i] + step, segments.low), segments.high)


def check(codes, max_error):
    segments = fit_segments(codes, max_error)
    assert len(segments.base) == len(segments.slope) == 1 << (16 - segments.bits)
    assert segments.shift >= 1
    limit = max(map(abs, segments.slope)) * ((1 << segments.bits) - 1)
    assert limit + (1 << (segments.shift - 1)) < 1 << 31
    found = [interpolate(segments, u) for u in range(65536)]
    assert_same(segments.expand(), found, list(range(65536)))
    error = max(abs(a - b) for a, b in zip(found, codes, strict=True))
    assert error == segments.max_error <= max_error
    return segments


# (function, target, max_error) -> bits
EXPECTED = {
    ("Tanh", S16, 1): 6,
    ("Tanh", S16, 8): 8,
    ("Tanh", S8, 1): 10,
    ("Sigmoid", S16, 1): 8,
    ("Gelu", S16, 2): 7,
    ("Relu", S16, 0): 16,
    ("Relu", S16, 2): 16,
    ("HardSigmoid", S16, 0): 15,
    ("Sign", S8, 0): 15,
    ("Neg", S8, 1): 16,
}


@pytest.mark.parametrize(("name", "target", "max_error"), EXPECTED)
def test_functions(name, target, max_error):
    table = transfer_table(apply(name, X), SOURCE, target)
    segments = check(table.codes, max_error)
    assert segments.bits == EXPECTED[name, target, max_error]


def test_larger_errors_allow_wider_segments():
    table = transfer_table(apply("Swish", X), SOURCE, S16).codes
    found = [check(table, error) for error in (0, 1, 4, 64)]
    assert [s.bits for s in found] == sorted(s.bits for s in found)
    assert found[1].bytes * 16 < 2 * 65536


def test_exact_lines():
    segments = check([(5 * u + 4 >> 3) - 7 for u in range(65536)], 0)
    assert segments.bits == 16
    segments = check([7] * 65536, 0)
    assert (segments.base, segments.slope, segments.bits) == ((7,), (0,), 16)
    assert segments.bytes == 4


def test_noise_is_stored_entry_by_entry():
    generator = random.Random(1)
    codes = [generator.randrange(-32768, 32768) for _ in range(65536)]
    segments = check(codes, 0)
    assert segments.bits <= 1
    if segments.bits == 0:
        assert segments.base == tuple(codes)


def test_extreme_codes():
    check([-(1 << 31) if u < 32768 else (1 << 31) - 1 for u in range(65536)], 0)
    check([65535 * (u & 1) for u in range(65536)], 0)


def test_bytes_count_the_narrowest_width():
    two = Segments(15, 1, (0, 65535), (-3, 32767), 0, 65535, 0)
    assert two.bytes == 2 * (2 + 2)
    four = Segments(15, 1, (-1, 65535), (-3, 32768), 0, 65535, 0)
    assert four.bytes == 2 * (4 + 4)


def test_fits_are_deterministic():
    table = transfer_table(apply("Erf", X), SOURCE, S16).codes
    assert fit_segments(table, 2) == fit_segments(list(table), 2)


@pytest.mark.parametrize(
    ("codes", "max_error", "message"),
    [
        ([0] * 256, 0, "expected 65536 codes and max_error >= 0, found 256 codes and 0"),
        ([0] * 65536, -1, "expected 65536 codes and max_error >= 0, found 65536 codes and -1"),
        ([1 << 40] * 65536, 0, "expected codes of at most 32 bits, found larger ones"),
    ],
)
def test_errors(codes, max_error, message):
    with pytest.raises(InputError) as found:
        fit_segments(codes, max_error)
    assert str(found.value) == message
