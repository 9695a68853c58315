"""Transfer tables: every entry against mpmath at 200 digits, by the textbook formulas."""

from __future__ import annotations

import time
from fractions import Fraction
from functools import lru_cache

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compare import assert_same
from samebits.errors import InputError, UnsupportedError
from samebits.tables import CodeRange, Constant, Variable, apply, exp_table, transfer_table
from samebits.tables.expression import OPERATORS
from samebits.tables.screen import screen

mp = mpmath.MPContext()
mp.dps = 200
X = Variable()
HALF = mp.mpf(1) / 2


def binary32(value):
    return Fraction(float(np.float32(value)))


def exactly(value):
    """The 200-digit number of a binary32 attribute."""
    value = binary32(value)
    return mp.mpf(value.numerator) / value.denominator


def real(value):
    """Only real results count: mpmath goes on into the complex plane."""
    return None if isinstance(value, mp.mpc) else value


def celu(x, alpha):
    below = alpha * (mp.exp(x / alpha) - 1)
    return max(x, mp.zero) + min(below, mp.zero)


def shrink(x, lambd, bias):
    return x + bias if x < -lambd else x - bias if x > lambd else mp.zero


def gelu_tanh(x):
    return x / 2 * (1 + mp.tanh(mp.sqrt(2 / mp.pi) * (x + mp.mpf(44715) / 10**6 * x**3)))


def rounded(x):
    whole = mp.floor(x)
    odd = int(whole) & 1
    return whole + 1 if x - whole > HALF or (x - whole == HALF and odd) else whole


def clamp(x, low, high):
    return min(max(x, low), high)


def sigmoid(x):
    return 1 / (1 + mp.exp(-x))


SELU_ALPHA, SELU_GAMMA = mp.mpf("1.67326319217681884765625"), mp.mpf("1.05070102214813232421875")
THIRD = exactly(0.3)
# Name: (expression, formula). A formula gives None where it has no value and no limit.
CASES = {
    "Identity": (apply("Identity", X), lambda x: x),
    "Relu": (apply("Relu", X), lambda x: max(x, mp.zero)),
    "LeakyRelu": (apply("LeakyRelu", X), lambda x: x if x > 0 else exactly(0.01) * x),
    "LeakyRelu 0.3": (apply("LeakyRelu", X, alpha=0.3), lambda x: x if x > 0 else THIRD * x),
    "PRelu": (apply("PRelu", X, -0.3), lambda x: x if x > 0 else -THIRD * x),
    "Elu": (apply("Elu", X, alpha=0.3), lambda x: x if x > 0 else THIRD * (mp.exp(x) - 1)),
    "Selu": (
        apply("Selu", X),
        lambda x: SELU_GAMMA * (x if x > 0 else SELU_ALPHA * mp.exp(x) - SELU_ALPHA),
    ),
    "Celu": (apply("Celu", X, alpha=0.3), lambda x: celu(x, THIRD)),
    "Celu -": (apply("Celu", X, alpha=-0.3), lambda x: celu(x, -THIRD)),
    "ThresholdedRelu": (
        apply("ThresholdedRelu", X, alpha=0.25),
        lambda x: x if x > mp.mpf("0.25") else mp.zero,
    ),
    "Clip": (apply("Clip", X, min=-0.3, max=0.5), lambda x: clamp(x, -THIRD, HALF)),
    "Clip low": (apply("Clip", X, min=-0.3), lambda x: max(x, -THIRD)),
    "Shrink": (apply("Shrink", X, bias=0.3, lambd=0.25), lambda x: shrink(x, HALF / 2, THIRD)),
    "Tanh": (apply("Tanh", X), mp.tanh),
    "Sigmoid": (apply("Sigmoid", X), sigmoid),
    "HardSigmoid": (
        apply("HardSigmoid", X),
        lambda x: clamp(exactly(0.2) * x + HALF, mp.zero, mp.one),
    ),
    "HardSwish": (apply("HardSwish", X), lambda x: x * clamp(x / 6 + HALF, mp.zero, mp.one)),
    "Swish": (apply("Swish", X), lambda x: x * sigmoid(x)),
    "Swish 0.3": (apply("Swish", X, alpha=0.3), lambda x: x * sigmoid(THIRD * x)),
    "Mish": (apply("Mish", X), lambda x: x * mp.tanh(mp.log(1 + mp.exp(x)))),
    "Gelu": (apply("Gelu", X), lambda x: x * mp.ncdf(x)),
    "Gelu tanh": (apply("Gelu", X, approximate="tanh"), gelu_tanh),
    "Softplus": (apply("Softplus", X), lambda x: mp.log(1 + mp.exp(x))),
    "Softsign": (apply("Softsign", X), lambda x: x / (1 + abs(x))),
    "Erf": (apply("Erf", X), mp.erf),
    "Exp": (apply("Exp", X), mp.exp),
    "Log": (apply("Log", X), lambda x: mp.ninf if x == 0 else real(mp.log(x))),
    "Sqrt": (apply("Sqrt", X), lambda x: real(mp.sqrt(x))),
    "Reciprocal": (apply("Reciprocal", X), lambda x: None if x == 0 else 1 / x),
    "Abs": (apply("Abs", X), abs),
    "Neg": (apply("Neg", X), lambda x: -x),
    "Sign": (apply("Sign", X), mp.sign),
    "Floor": (apply("Floor", X), mp.floor),
    "Ceil": (apply("Ceil", X), mp.ceil),
    "Round": (apply("Round", X), rounded),
    "Sin": (apply("Sin", X), mp.sin),
    "Cos": (apply("Cos", X), mp.cos),
    "Tan": (apply("Tan", X), mp.tan),
    "Asin": (apply("Asin", X), lambda x: real(mp.asin(x))),
    "Acos": (apply("Acos", X), lambda x: real(mp.acos(x))),
    "Atan": (apply("Atan", X), mp.atan),
    "Sinh": (apply("Sinh", X), mp.sinh),
    "Cosh": (apply("Cosh", X), mp.cosh),
    "Asinh": (apply("Asinh", X), mp.asinh),
    "Acosh": (apply("Acosh", X), lambda x: real(mp.acosh(x))),
    "Atanh": (
        apply("Atanh", X),
        lambda x: mp.inf * x if abs(x) == 1 else real(mp.atanh(x)),
    ),
    "Add": (apply("Add", X, 0.3), lambda x: x + THIRD),
    "Sub": (apply("Sub", 0.3, X), lambda x: THIRD - x),
    "Mul": (apply("Mul", X, X), lambda x: x * x),
    "Div": (apply("Div", 0.3, X), lambda x: None if x == 0 else THIRD / x),
    "Pow 3": (apply("Pow", X, 3), lambda x: x**3),
    "Pow -2": (apply("Pow", X, -2.0), lambda x: mp.inf if x == 0 else 1 / (x * x)),
    "Pow 1.5": (apply("Pow", X, 1.5), lambda x: None if x < 0 else mp.sqrt(x) ** 3),
    "Pow 0.3": (apply("Pow", X, 0.3), lambda x: None if x < 0 else x**THIRD),
    "Pow base": (apply("Pow", 2.0, X), lambda x: mp.mpf(2) ** x),
    "Min": (apply("Min", X, 0.3, apply("Neg", X)), lambda x: min(x, THIRD, -x)),
    "Max": (apply("Max", X, -0.3), lambda x: max(x, -THIRD)),
    "Sum": (apply("Sum", X, 1, X), lambda x: 2 * x + 1),
}


SOURCES = {
    "s8": CodeRange(Fraction(1, 32), 0, -128, 127),
    "u8": CodeRange(binary32(0.0235294122248888), 117, 0, 255),
    "fine": CodeRange(binary32(1e-4), -3, -127, 127),
    "coarse": CodeRange(binary32(3.7), -20, -128, 127),
}
TARGETS = {
    "s8": CodeRange(Fraction(1, 64), 0, -128, 127),
    "u8": CodeRange(binary32(0.0117), 100, 0, 255),
    "s16": CodeRange(binary32(3e-4), -7, -32768, 32767),
    "coarse": CodeRange(Fraction(2), 5, -100, 100),
}


def code(value, target):
    """Round a value of 200 digits. A tie to 150 of them is one: it comes from an exact value."""
    scale, zero, low, high = target
    if value is None:
        number = 0
    elif mp.isinf(value):
        return high if value > 0 else low
    else:
        ratio = value * scale.denominator / scale.numerator
        number = int(mp.nint(ratio))
        if abs(abs(ratio - number) - HALF) < mp.mpf(10) ** -150:
            number = round(Fraction(int(mp.nint(2 * ratio)), 2))
    return min(max(number + zero, low), high)


def inputs(source):
    return range(source.low, source.high + 1)


@lru_cache
def values(name, source_name):
    source = SOURCES[source_name]
    scale, zero = source.scale, source.zero_point
    points = [mp.mpf(scale.numerator * (j - zero)) / scale.denominator for j in inputs(source)]
    return [CASES[name][1](x) for x in points]


def test_every_operator_has_a_case():
    named = {name.split()[0] for name in CASES}
    assert named | {"Requantize"} == set(OPERATORS)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", CASES)
def test_every_entry(name, source):
    found = values(name, source)
    for target in TARGETS.values():
        table = transfer_table(CASES[name][0], SOURCES[source], target)
        expected = [code(value, target) for value in found]
        assert_same(table.codes, expected, list(inputs(SOURCES[source])))


@pytest.mark.parametrize("name", CASES)
def test_every_entry_without_the_screen(name, monkeypatch):
    """What binary64 intervals decide, enclosures of growing precision decide alike."""
    import samebits.tables.transfer as transfer

    targets = (TARGETS["s16"],)
    tables = [transfer_table(CASES[name][0], SOURCES["u8"], t) for t in targets]

    def nothing(expression, numbers, scale, target):
        return np.zeros_like(numbers), np.zeros(numbers.shape, bool)

    monkeypatch.setattr(transfer, "screen", nothing)
    for table, target in zip(tables, targets, strict=True):
        alone = transfer._table(CASES[name][0], SOURCES["u8"], target)
        assert_same(alone.codes, table.codes, list(inputs(SOURCES["u8"])))
        assert alone.undefined == table.undefined


# --- 16 bits ----------------------------------------------------------------------------------

WIDE = CodeRange(binary32(3e-4), 1000, -32768, 32767)
WIDE_TARGET = CodeRange(binary32(3.1e-5), -200, -32768, 32767)


def check_wide(name, entries):
    table = transfer_table(CASES[name][0], WIDE, WIDE_TARGET).codes
    assert len(table) == 65536
    formula, scale = CASES[name][1], WIDE.scale
    expected = []
    for entry in entries:
        j = WIDE.low + entry - WIDE.zero_point
        expected.append(code(formula(mp.mpf(scale.numerator * j) / scale.denominator), WIDE_TARGET))
    assert_same([table[entry] for entry in entries], expected, list(entries))


@pytest.mark.parametrize("name", ["Tanh", "Gelu", "Sqrt", "Mish"])
def test_16_bits_sampled(name):
    begin = time.process_time()
    transfer_table(CASES[name][0], WIDE, WIDE_TARGET)
    assert time.process_time() - begin < 100  # about 0.02 s; Sqrt 1 s: half of it is undefined
    check_wide(name, range(0, 65536, 509))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Tanh", "Gelu", "Swish"])
def test_16_bits_whole(name):
    check_wide(name, range(65536))


def test_screen_decides_nearly_all():
    numbers = np.arange(-32768, 32768)
    for name in ("Tanh", "Gelu", "Mish", "Swish", "Elu", "Softplus"):
        _, decided = screen(CASES[name][0], numbers, WIDE.scale, WIDE_TARGET)
        assert np.count_nonzero(~decided) < 10


# --- ties -------------------------------------------------------------------------------------

S8 = CodeRange(Fraction(1), 0, -128, 127)


def test_ties_go_to_even():
    """Identity into twice the scale: every odd code is a tie."""
    double = CodeRange(Fraction(2), 0, -128, 127)
    table = transfer_table(apply("Identity", X), S8, double)
    assert_same(table.codes, [round(Fraction(j, 2)) for j in inputs(S8)], list(inputs(S8)))


def test_ties_are_rounded_before_the_zero_point():
    double = CodeRange(Fraction(2), 1, -128, 127)
    table = transfer_table(apply("Identity", X), S8, double)
    assert_same(table.codes, [round(Fraction(j, 2)) + 1 for j in inputs(S8)], list(inputs(S8)))


@pytest.mark.parametrize("name", ["Div", "Softsign", "HardSwish", "Sqrt", "Pow", "Reciprocal"])
def test_rational_ties(name):
    """Values that are halves exactly, from functions whose other values are not."""
    unit = CodeRange(Fraction(1), 0, -128, 127)
    cases = {
        "Div": (apply("Div", X, 4), lambda j: Fraction(j, 4)),
        "Softsign": (
            apply("Mul", apply("Softsign", X), 99),
            lambda j: Fraction(99 * j, 1 + abs(j)),
        ),
        "HardSwish": (
            apply("HardSwish", X),
            lambda j: j * min(max(Fraction(j + 3, 6), Fraction(0)), Fraction(1)),
        ),
        "Sqrt": (
            apply("Sqrt", apply("Div", apply("Mul", X, X), 4)),
            lambda j: Fraction(abs(j), 2),
        ),
        "Pow": (
            apply("Pow", apply("Abs", apply("Div", apply("Pow", X, 3), 8)), Fraction(1, 3)),
            lambda j: Fraction(abs(j), 2),
        ),
        "Reciprocal": (
            apply("Reciprocal", apply("Div", X, Fraction(45, 2))),
            lambda j: Fraction(45, 2 * j) if j else Fraction(0),
        ),
    }
    expression, formula = cases[name]
    table = transfer_table(expression, S8, unit)
    expected = [min(max(round(formula(j)), -128), 127) for j in inputs(S8)]
    assert_same(table.codes, expected, list(inputs(S8)))


def test_ties_that_no_precision_proves():
    """log(exp(x)) is x: at the last precision the enclosure around the tie is taken for it."""
    few = CodeRange(Fraction(1), 0, -8, 7)
    double = CodeRange(Fraction(2), 0, -8, 7)
    table = transfer_table(apply("Log", apply("Exp", X)), few, double)
    assert table == (tuple(round(Fraction(j, 2)) for j in range(-8, 8)), 0)
    for op, steps_up in (("Floor", [-8, -7, -6, -5]), ("Sign", [-1] * 4)):
        table = transfer_table(apply(op, apply("Log", apply("Exp", X))), few, S8)
        assert list(table.codes[:4]) == steps_up
        assert table.codes[8] == 0
    table = transfer_table(apply("Round", apply("Log", apply("Exp", apply("Div", X, 2)))), few, S8)
    assert table.codes == tuple(round(Fraction(j, 2)) for j in range(-8, 8))


def test_values_beside_a_tie_keep_their_side():
    """x * sigmoid(x) < x, though by less than 2**-20000: 3.5 - tiny is 3, and never 4."""
    source = CodeRange(Fraction(1 << 14), 0, -128, 127)
    target = CodeRange(Fraction(1 << 15), 0, -128, 127)
    below = [j // 2 if j > 0 else 0 for j in inputs(source)]  # (7 / 2 - tiny) -> 3
    for name in ("Swish", "Mish", "Gelu", "Gelu tanh"):
        assert_same(
            transfer_table(CASES[name][0], source, target).codes, below, list(inputs(source))
        )
    above = [(j + 1) // 2 if j > 0 else 0 for j in inputs(source)]
    table = transfer_table(apply("Softplus", X), source, target).codes
    assert_same(table, above, list(inputs(source)))
    half = CodeRange(Fraction(2), 0, -128, 127)
    assert set(transfer_table(apply("Tanh", X), source, half).codes) == {0}
    # tanh + 1/2 is just below 3/2
    table = transfer_table(apply("Add", apply("Tanh", X), 0.5), source, S8).codes
    assert table == (0,) * 129 + (1,) * 127


def test_values_beside_zero_keep_their_side():
    table = transfer_table(apply("Ceil", apply("Exp", X)), S8, S8)
    assert table.codes[:128] == (1,) * 128
    table = transfer_table(apply("Floor", apply("Tanh", apply("Mul", X, 1e30))), S8, S8)
    assert table.codes == (-1,) * 128 + (0,) * 128
    huge = CodeRange(Fraction(2) ** 200, 0, -128, 127)
    assert transfer_table(apply("Ceil", apply("Exp", X)), huge, S8).codes[:128] == (1,) * 128


# --- undefined points -------------------------------------------------------------------------

U8 = CodeRange(Fraction(1), 0, 0, 255)


@pytest.mark.parametrize(
    ("expression", "source", "count", "first"),
    [
        (apply("Log", X), U8, 1, {0: -128}),
        (apply("Log", X), S8, 129, {-1: 3, -128: 3, 0: -128}),
        (apply("Sqrt", X), S8, 128, {-1: 3, 0: 3}),
        (apply("Reciprocal", X), U8, 1, {0: 127}),
        (apply("Reciprocal", apply("Neg", X)), U8, 1, {0: -128}),
        (apply("Reciprocal", X), S8, 1, {0: 3}),
        (apply("Reciprocal", X), CodeRange(Fraction(1), 0, -128, 0), 1, {0: -128}),
        (apply("Reciprocal", apply("Abs", X)), S8, 1, {0: 127}),
        (apply("Pow", X, -2), S8, 1, {0: 127}),
        (apply("Pow", X, 0), S8, 0, {0: 4}),
        (apply("Exp", apply("Log", X)), U8, 1, {0: 3, 1: 4}),
        (apply("Exp", apply("Neg", apply("Reciprocal", X))), U8, 1, {0: 3}),
        (apply("Tanh", apply("Reciprocal", X)), U8, 1, {0: 4}),
        (apply("Sin", apply("Reciprocal", X)), U8, 1, {0: 3}),
        (apply("Atanh", apply("Div", X, 2)), S8, 253, {2: 127, -2: -128, 3: 3}),
        (apply("Acos", X), S8, 253, {1: 3, -1: 6, 2: 3}),
        (apply("Log", apply("Sub", X, 5)), U8, 6, {5: -128, 4: 3, 6: 3}),
        (apply("Div", X, X), S8, 1, {1: 4, 0: 3}),
        (apply("Min", apply("Log", X), -9), S8, 129, {-5: 3}),
        (apply("Mul", apply("Log", X), 0), U8, 1, {0: 3}),
    ],
)
def test_undefined_points(expression, source, count, first):
    table = transfer_table(expression, source, CodeRange(Fraction(1), 3, -128, 127))
    assert table.undefined == count
    assert {j: table.codes[j - source.low] for j in first} == first


def test_undefined_inside_a_requantize():
    """A code stands for the limit there, and the function goes on from it."""
    inner = apply("Requantize", apply("Log", X), scale=1, zero_point=0, low=-128, high=127)
    table = transfer_table(apply("Add", inner, 100), U8, S8)
    assert table.undefined == 1
    assert table.codes[:3] == (-28, 100, 101)


# --- composites -------------------------------------------------------------------------------


@pytest.mark.parametrize("source", SOURCES)
def test_composites_equal_their_operators(source):
    root = apply("Sqrt", 2)
    erf = apply("Add", apply("Erf", apply("Div", X, root)), 1)
    pairs = [
        (apply("Mul", X, apply("Sigmoid", X)), apply("Swish", X)),
        (apply("Mul", apply("Mul", X, 0.5), erf), apply("Gelu", X)),
        (apply("Mul", X, apply("Tanh", apply("Softplus", X))), apply("Mish", X)),
        (apply("Log", apply("Add", apply("Exp", X), 1)), apply("Softplus", X)),
        (apply("Div", apply("Sinh", X), apply("Cosh", X)), apply("Tanh", X)),
        (apply("Sub", apply("Relu", X), apply("Relu", apply("Neg", X))), X),
    ]
    for target in TARGETS.values():
        for one, other in pairs:
            found = transfer_table(one, SOURCES[source], target).codes
            expected = transfer_table(other, SOURCES[source], target).codes
            assert_same(found, expected, list(inputs(SOURCES[source])))


def test_requantize_composes_tables():
    """Two tables one after the other are the table of the chain."""
    middle, last = TARGETS["u8"], TARGETS["s8"]
    names = ("scale", "zero_point", "low", "high")
    for source in SOURCES.values():
        first = transfer_table(apply("Tanh", X), source, middle).codes
        second = transfer_table(apply("Gelu", X), middle, last).codes
        chain = apply("Requantize", apply("Tanh", X), **dict(zip(names, middle, strict=True)))
        table = transfer_table(apply("Gelu", chain), source, last).codes
        assert_same(table, [second[code] for code in first], list(inputs(source)))


def test_a_shared_node_is_computed_once():
    """2**200 paths through 200 nodes."""
    e = X
    for _ in range(200):
        e = apply("Div", apply("Add", e, e), 2)
    assert transfer_table(e, S8, S8).codes == tuple(range(-128, 128))


def test_long_chains():
    e = X
    for _ in range(3000):
        e = apply("Neg", e)
    assert transfer_table(e, S8, S8).codes == tuple(range(-128, 128))


# --- extremes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "exponent",
    [-200, -60, 200, *(pytest.param(e, marks=pytest.mark.slow) for e in (-149, 20, 127))],
)
def test_extreme_inputs_neither_hang_nor_fail(exponent):
    source = CodeRange(Fraction(2) ** exponent, 0, -128, 127)
    for name, (expression, _) in CASES.items():
        begin = time.process_time()
        for target in (TARGETS["s8"], CodeRange(source.scale * 3, 0, -128, 127)):
            assert len(transfer_table(expression, source, target).codes) == 256
        assert time.process_time() - begin < 100, name


def test_tiny_inputs_are_linear():
    source = CodeRange(Fraction(2) ** -200, 0, -128, 127)
    for name in ("Tanh", "Sin", "Tan", "Asin", "Atan", "Sinh", "Asinh", "Atanh", "Softsign"):
        table = transfer_table(CASES[name][0], source, source).codes
        assert table == tuple(range(-128, 128))


def test_huge_inputs_saturate():
    source = CodeRange(Fraction(2) ** 200, 0, -128, 127)
    target = CodeRange(Fraction(1, 100), 0, -128, 127)
    signs = [(j > 0) - (j < 0) for j in inputs(source)]
    assert_same(
        transfer_table(apply("Tanh", X), source, target).codes,
        [100 * s for s in signs],
        list(inputs(source)),
    )
    assert_same(
        transfer_table(apply("Gelu", X), source, source).codes,
        [max(j, 0) for j in inputs(source)],
        list(inputs(source)),
    )
    twice = apply("Exp", apply("Exp", X))
    assert_same(
        transfer_table(twice, source, target).codes,
        [100 if s < 0 else 127 for s in signs],
        list(inputs(source)),
    )


def test_squares_of_squares_stay_short():
    """x**(2**100): the exact rationals would not fit in memory."""
    e = X
    for _ in range(100):
        e = apply("Mul", e, e)
    source = CodeRange(Fraction(1, 128), 0, -128, 127)
    table = transfer_table(e, source, CodeRange(Fraction(1, 100), 0, -128, 127)).codes
    assert table == (100, *(0,) * 255)
    power = apply("Pow", X, 1 << 100)
    assert transfer_table(power, source, CodeRange(Fraction(1, 100), 0, -128, 127)).codes == table


def test_cancellation_beyond_the_last_precision():
    huge = apply("Exp", apply("Mul", X, 1000))
    lost = apply("Sub", apply("Add", apply("Mul", huge, huge), X), apply("Pow", huge, 2))
    with pytest.raises(UnsupportedError) as found:
        transfer_table(lost, S8, S8)
    assert str(found.value) == (
        "expected an entry that 4096 bits decide, found one that they do not at x = 2.0; the "
        "expression subtracts nearly equal huge values there"
    )


# --- properties -------------------------------------------------------------------------------

ranges = st.builds(
    lambda bits, exponent, zero, signed: CodeRange(
        bits * Fraction(2) ** exponent, zero, *((-128, 127) if signed else (0, 255))
    ),
    st.integers(1, (1 << 24) - 1),
    st.integers(-40, -10),
    st.integers(-128, 255),
    st.booleans(),
)


@given(ranges, ranges, st.sampled_from(["Tanh", "Swish", "Exp", "Sin", "Elu", "Softsign"]))
def test_any_ranges(source, target, name):
    table = transfer_table(CASES[name][0], source, target).codes
    for j in range(source.low, source.high + 1, 37):
        x = mp.mpf(source.scale.numerator * (j - source.zero_point)) / source.scale.denominator
        assert table[j - source.low] == code(CASES[name][1](x), target)


# --- exponentials of softmax ------------------------------------------------------------------


@pytest.mark.parametrize("scale", [binary32(0.1), binary32(1.7e-3), Fraction(1, 8), Fraction(3)])
def test_exp_table(scale):
    unit = Fraction(1, 1 << 24)
    points = [mp.mpf(scale.numerator * d) / scale.denominator for d in range(256)]
    expected = [code(mp.exp(-x), CodeRange(unit, 0, 0, 1 << 24)) for x in points]
    assert_same(exp_table(scale, 256), expected, points)
    assert exp_table(scale, 1) == (1 << 24,)
    assert exp_table(scale, 16, one=255)[0] == 255


def test_exp_table_of_16_bits():
    table = exp_table(Fraction(1, 1 << 10), 65536)
    assert len(table) == 65536
    assert list(table) == sorted(table, reverse=True)
    assert table[:2] == (1 << 24, 16760840)


# --- arguments --------------------------------------------------------------------------------


def test_tables_are_cached_by_content():
    one, other = apply("Tanh", X), apply("Tanh", Variable())
    assert transfer_table(one, S8, tuple(U8)) is transfer_table(other, tuple(S8), U8)


def test_constant_expressions():
    table = transfer_table(apply("Exp", Constant(Fraction(1))), S8, S8)
    assert table.codes == (3,) * 256
    assert transfer_table(Constant(Fraction(5, 2)), S8, S8).codes == (2,) * 256
    assert transfer_table(X, S8, S8).codes == tuple(range(-128, 128))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            (Fraction(0), 0, 0, 255),
            "expected a scale from 2**-800 to 2**800, low <= high and codes below 2**40, found "
            "scale 0, zero_point 0, low 0, high 255",
        ),
        (
            (Fraction(1), 0, 1, 0),
            "expected a scale from 2**-800 to 2**800, low <= high and codes below 2**40, found "
            "scale 1, zero_point 0, low 1, high 0",
        ),
        (
            (Fraction(1), 0, 0, 65536),
            "expected a table of at most 65536 entries, found 65537",
        ),
    ],
)
def test_errors(source, message):
    with pytest.raises(InputError) as found:
        transfer_table(X, source, S8)
    assert str(found.value) == message
