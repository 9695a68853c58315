"""Piecewise cubics: the codes of the table, for every input."""

from fractions import Fraction

import numpy as np
import pytest

from compare import assert_same
from samebits.tables import CodeRange, Variable, apply, transfer_table
from samebits.tables.cubic import ENTRIES, SEGMENTS, Cubic, fit_cubic

U = np.arange(ENTRIES)


def by_hand(cubic: Cubic) -> list[int]:
    """The arithmetic of the module's docstring in plain integers."""
    out, narrow, short = [], True, True
    rows = [[int(c) for c in row] for row in cubic.coefficients]
    s0, s1, s2, s3 = cubic.shifts
    for code in range(-ENTRIES // 2, ENTRIES // 2):
        u = code + ENTRIES // 2 if cubic.mirror is None else min(abs(code), ENTRIES // 2 - 1)
        c0, c1, c2, c3 = rows[u >> cubic.bits]
        r = u & (2**cubic.bits - 1)
        sums = [((c3 * r) >> s3) + c2]
        sums.append(((sums[-1] * r) >> s2) + c1)
        sums.append(((sums[-1] * r) >> s1) + c0)
        v = sums[-1] + 2 ** (s0 - 1)
        assert all(abs(s) < 2**62 for s in sums)
        narrow = narrow and all(-(2**31) <= s < 2**31 for s in (*sums, v))
        short = short and all(abs(s * r) < 2**31 for s in (c3, sums[0]))
        v >>= s0
        if cubic.mirror is not None and code < 0:
            v = cubic.mirror - v
        out.append(min(max(v, cubic.low), cubic.high))
    assert (cubic.narrow > 0) is narrow
    assert cubic.narrow < 2 or short
    return out


def smooth(name):
    x = (U - 32768) * 2.0**-12
    functions = {
        "sigmoid": 32768 / (1 + np.exp(-x)),
        "tanh": 32768 * np.tanh(x),
        "tanh, steep": 32768 * np.tanh(8 * x),
        "gelu, 8 bits": 30 * x / (1 + np.exp(-1.702 * x)),
        "straight": U - 32768.0,
        "constant": 0.0 * U + 77,
        "saturated": 70000 * np.sin(x),
        "unsigned": 65535 / (1 + np.exp(-x)) + 32768 - 32768,
    }
    codes = np.rint(functions[name])
    low, high = (0, 65535) if name == "unsigned" else (-32768, 32767)
    if name.endswith("8 bits"):
        low, high = -128, 127
    return np.clip(codes, low, high).astype(np.int64)


@pytest.mark.parametrize(
    "name",
    [
        *("sigmoid", "tanh", "tanh, steep", "gelu, 8 bits"),
        *("straight", "constant", "saturated", "unsigned"),
    ],
)
def test_every_code(name):
    codes = smooth(name)
    cubic = fit_cubic(codes)
    assert cubic is not None
    assert len(cubic.coefficients) << cubic.bits == ENTRIES >> (cubic.mirror is not None)
    assert (cubic.mirror is None) is (name in ("gelu, 8 bits", "straight"))
    assert cubic.coefficients.dtype == np.int32
    assert all(0 <= shift <= 31 for shift in cubic.shifts)
    assert cubic.shifts[0] >= 1
    assert cubic.bytes == 16 * len(cubic.coefficients) <= ENTRIES // 2
    assert_same(cubic.expand(), codes, U)
    if name in ("tanh", "unsigned", "gelu, 8 bits"):
        assert_same(by_hand(cubic), codes, U)
        assert (cubic.narrow > 0) is (name != "gelu, 8 bits")


def test_a_transfer_table_of_a_gate():
    source = CodeRange(Fraction(1, 1 << 12), 0, -32768, 32767)
    target = CodeRange(Fraction(1, 1 << 15), 0, -32768, 32767)
    for name in ("Sigmoid", "Tanh"):
        codes = np.array(transfer_table(apply(name, Variable()), source, target).codes)
        cubic = fit_cubic(codes)
        assert cubic is not None
        assert cubic.bytes == 1024
        assert cubic.mirror == (32768 if name == "Sigmoid" else 0)
        assert cubic.narrow == (2 if name == "Sigmoid" else 1)
        assert_same(by_hand(cubic), codes, U)
        assert_same(cubic.expand(), codes, U)


def test_the_fewest_segments_are_taken_and_kept():
    codes = smooth("tanh")
    first = fit_cubic(codes.astype(np.int16))
    assert first is fit_cubic(codes)
    assert fit_cubic(smooth("straight")).coefficients.shape == (SEGMENTS[0], 4)
    assert len(first.coefficients) < len(fit_cubic(smooth("tanh, steep")).coefficients)


def test_what_is_not_smooth_has_none():
    assert fit_cubic(np.random.default_rng(0).integers(-32768, 32768, ENTRIES)) is None
    assert fit_cubic(np.where(U % 2, 100, -100)) is None
    steps = np.where(U < 12345, -30000, 30000)  # two constants: a step inside one segment
    found = fit_cubic(steps)
    assert found is None or (found.expand() == steps).all()


def test_a_mirror_at_the_least_code_and_where_one_half_is_saturated():
    """f(x) + f(-x) = 5 but for the least code, which has no partner, and beyond the codes."""
    codes = np.clip(5 + (U - 32768) * 3, -32768, 32767)
    codes[32769:] -= 5
    codes = np.where(U < 32768, 5 - codes[(65536 - U) % 65536], codes)
    codes = np.clip(codes, -32768, 32767)
    codes[0] = codes[1]
    codes[32768] = 0
    cubic = fit_cubic(codes)
    assert cubic is not None
    assert cubic.mirror == 5
    assert_same(by_hand(cubic), codes, U)
    codes[0] -= 1
    other = fit_cubic(codes)
    assert other is None or other.mirror is None


def test_other_sizes_are_refused():
    with pytest.raises(ValueError, match="expected 65536 codes"):
        fit_cubic(np.zeros(256, np.int8))
