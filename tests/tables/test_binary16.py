"""The activation tables of the neural processor against mpmath with 60 digits, every entry."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from compare import assert_same
from samebits.spec.npu_binary16 import (
    binary16_bits,
    binary16_inverse_root,
    binary16_reciprocal,
    binary16_value,
)
from samebits.tables import binary16
from samebits.tables.binary16 import (
    FUNCTIONS,
    exponential_table,
    inverse_root_table,
    logarithm_table,
    reciprocal_table,
    sigmoid_table,
    tanh_table,
)

INPUTS = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
TABLES = {
    "sigmoid": sigmoid_table,
    "tanh": tanh_table,
    "exponential": exponential_table,
    "logarithm": logarithm_table,
}
FORMULAS = {
    "sigmoid": lambda y: 1 / (1 + mpmath.exp(-y)),
    "tanh": mpmath.tanh,
    "exponential": mpmath.exp,
    "logarithm": lambda y: mpmath.log(y) if y > 0 else mpmath.mpf("-inf" if y == 0 else "nan"),
}
# Beyond 20 these are at their limits: no need for the slow evaluation of huge exps.
LIMITS = {"tanh": (-1.0, 1.0), "sigmoid": (0.0, 1.0), "exponential": (0.0, float("inf"))}


def nearest(value: mpmath.mpf) -> float:
    """By mpmath's own rounding at the precision that is left at this magnitude."""
    if value == 0 or not mpmath.isfinite(value):
        return float(value)
    exponent = max(mpmath.frexp(value)[1] - 11, -24)
    return float(mpmath.ldexp(mpmath.nint(mpmath.ldexp(value, -exponent)), exponent))


def expected(name: str, x: float) -> float:
    if x != x:
        return x
    with mpmath.workdps(60):
        found = nearest(FORMULAS[name](mpmath.mpf(x)))
    return math.copysign(math.inf, found) if abs(found) >= 65520 else found


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_entry_against_mpmath(name):
    finite = INPUTS[np.isfinite(INPUTS)].astype(np.float64).tolist()
    found = TABLES[name]().view(np.float16)[np.isfinite(INPUTS)].astype(np.float64).tolist()
    limits = LIMITS.get(name)
    wanted = [expected(name, x) if not limits or abs(x) < 20 else limits[x > 0] for x in finite]
    assert_same(*([binary16_bits(x + 0.0) for x in numbers] for numbers in (found, wanted)), finite)


@pytest.mark.parametrize(
    ("table", "definition"),
    [
        (reciprocal_table, binary16_reciprocal),
        (inverse_root_table, binary16_inverse_root),
    ],
)
def test_quotients_are_the_definition(table, definition):
    """Every entry; these functions are computed without growing precision."""
    wanted = [binary16_bits(definition(x)) for x in INPUTS.astype(np.float64).tolist()]
    assert_same(table().tolist(), wanted, INPUTS)


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
        ("exponential", 0x7C00, 0x7C00),
        ("exponential", 0xFC00, 0x0000),
        ("exponential", 0x8000, 0x3C00),
        ("exponential", 0x498B, 0x7BF7),  # 11.0859375
        ("exponential", 0x498D, 0x7C00),  # above ln 65520
        ("logarithm", 0x0000, 0xFC00),
        ("logarithm", 0x8000, 0xFC00),
        ("logarithm", 0x3C00, 0x0000),
        ("logarithm", 0xBC00, 0x7E00),
        ("logarithm", 0x7C00, 0x7C00),
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
    signs = (0,) if name == "logarithm" else (0, 0x8000)
    for bits in rng.integers(1, 0x7C00, 300).tolist():
        for at in (bits | sign for sign in signs):
            if name == "exponential" and abs(binary16_value(at)) > 64:
                continue
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
