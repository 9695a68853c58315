"""The activation tables of the neural processor against mpmath with 60 digits, every entry."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

from compare import assert_same
from samebits.spec.npu_binary16 import binary16_value
from samebits.tables import binary16
from samebits.tables.binary16 import FUNCTIONS, sigmoid_table, tanh_table

INPUTS = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
TABLES = {"sigmoid": sigmoid_table, "tanh": tanh_table}


def nearest(value: mpmath.mpf) -> float:
    """By mpmath's own rounding at the precision that is left at this magnitude."""
    if value == 0:
        return 0.0
    exponent = max(mpmath.frexp(value)[1] - 11, -24)
    return float(mpmath.ldexp(mpmath.nint(mpmath.ldexp(value, -exponent)), exponent))


def expected(name: str, x: float) -> float:
    if x != x:
        return x
    with mpmath.workdps(60):
        f = mpmath.tanh if name == "tanh" else lambda y: 1 / (1 + mpmath.exp(-y))
        return nearest(f(mpmath.mpf(x)))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_entry_against_mpmath(name):
    finite = INPUTS[np.isfinite(INPUTS)].astype(np.float64).tolist()
    found = TABLES[name]().view(np.float16)[np.isfinite(INPUTS)].astype(np.float64).tolist()
    # beyond 20 both functions are at their limits: no need for the slow evaluation of huge exps
    limits = {"tanh": (-1.0, 1.0), "sigmoid": (0.0, 1.0)}[name]
    wanted = [expected(name, x) if abs(x) < 20 else limits[x > 0] for x in finite]
    assert_same(found, wanted, finite)


@pytest.mark.parametrize(
    ("name", "bits", "wanted"),
    [
        ("sigmoid", 0x7C00, 0x3C00),
        ("sigmoid", 0xFC00, 0x0000),
        ("sigmoid", 0x0000, 0x3800),
        ("sigmoid", 0x8000, 0x3800),
        ("sigmoid", 0xCC60, 0x0000),  # -17.5: below half of the smallest number
        ("sigmoid", 0xCC50, 0x0001),  # -17.25: above it
        ("tanh", 0x7C00, 0x3C00),
        ("tanh", 0xFC00, 0xBC00),
        ("tanh", 0x0000, 0x0000),
        ("tanh", 0x8000, 0x8000),
        ("tanh", 0x8001, 0x8001),
        ("tanh", 0x03FF, 0x03FF),
    ],
)
def test_special_inputs(name, bits, wanted):
    assert TABLES[name]()[bits] == wanted


@pytest.mark.parametrize("name", FUNCTIONS)
def test_nan_gives_the_one_nan(name):
    assert set(TABLES[name]()[np.isnan(INPUTS)].tolist()) == {0x7E00}


def test_no_negative_zero_of_sigmoid():
    assert not (sigmoid_table() & 0x8000).any()


def test_tanh_is_odd():
    table = tanh_table()[~np.isnan(INPUTS)]
    half = len(table) // 2
    assert (table[half:] == table[:half] | 0x8000).all()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_slow_path_agrees(name):
    """What the screen decides, growing precision decides alike."""
    rng = np.random.default_rng(5)
    table = TABLES[name]()
    for bits in rng.integers(1, 0x7C00, 300).tolist():
        for at in (bits, bits | 0x8000):
            x = binary16.Fraction(binary16_value(at))
            found = binary16._nearest(name, x)
            assert found & 0x7FFF == table[at] & 0x7FFF, hex(at)


def test_cached_and_read_only():
    table = tanh_table()
    assert table is tanh_table()
    assert table.dtype == np.uint16
    assert table.shape == (65536,)
    with pytest.raises(ValueError, match="read-only"):
        table[0] = 1
