"""Formulas of point-wise instructions: how they are written, and what they are on plain numbers."""

from __future__ import annotations

import math

import pytest

from samebits.spec.npu_binary16 import binary16_max, binary16_relu, binary16_value
from samebits.spec.npu_formula import PLAIN, A, B, Tabulated, choose, look_up, number

# Of every number the bits of itself with the other sign.
NEGATED = Tabulated("negated", "-{}", lambda: [bits ^ 0x8000 for bits in range(1 << 16)])
NUMBERS = [binary16_value(bits) for bits in range(0, 1 << 16, 257)]
NUMBERS += [0.0, -0.0, math.inf, -math.inf, math.nan, 65504.0, 2.0**-24]


def same(found: float, expected: float) -> bool:
    return found.hex() == expected.hex()


@pytest.mark.parametrize(
    ("formula", "text"),
    [
        (A + B, "rne(a + b)"),
        (B - A * A, "rne(b - rne(a * a))"),
        (choose(A, B, A, B), "a if a > b, else b"),
        (choose(A, number(0), A, number(0)), "a if a > 0, else +0"),
        (choose(A, number(-6), A, number(-6)), "a if a > -6, else -6"),
        (look_up(NEGATED, A + B), "-rne(a + b)"),
    ],
)
def test_text(formula, text):
    assert str(formula) == text


def test_plain_numbers():
    larger, relu = choose(A, B, A, B), choose(A, number(0), A, number(0))
    for x in NUMBERS:
        assert same(relu.realised(PLAIN, x), binary16_relu(x))
        assert math.isnan(x) or same(look_up(NEGATED, A).realised(PLAIN, x), -x)
        for y in NUMBERS:
            assert same(larger.realised(PLAIN, x, y), binary16_max(x, y))


def test_every_operation_rounds():
    x = 1 + 2.0**-10
    assert (A * B + A).realised(PLAIN, x, x) == 2 + 2.0**-9 + 2.0**-9  # 1 + 2**-9 + 2**-20, rounded


def test_tables():
    assert (A + B).tables() == ()
    assert (look_up(NEGATED, A) * choose(A, B, look_up(NEGATED, B), B)).tables() == (NEGATED,) * 2
