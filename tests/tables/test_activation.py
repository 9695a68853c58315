"""Activation tables: every entry against mpmath at 200 digits, by the textbook formulas."""

from __future__ import annotations

import time
from fractions import Fraction

import mpmath
import pytest

from compare import assert_same
from samebits.errors import RangeError, UnsupportedError
from samebits.spec import formats
from samebits.tables import ACTIVATIONS, activation_table
from samebits.tables.activation import CODES

mp = mpmath.MPContext()
mp.dps = 200


def sigmoid(x):
    return 1 / (1 + mp.exp(-x))


def phi(x):
    return mp.ncdf(x)


PARAMETERS = {"elu": 1.375}
ALPHA = mp.mpf(1.375)


def softplus(x):
    return mp.log1p(mp.exp(x)) if x < 0 else x + mp.log1p(mp.exp(-x))


def mish_slope(x):
    t = mp.tanh(softplus(x))
    return t + x * sigmoid(x) * mp.sech(softplus(x)) ** 2


def gelu_argument(x):
    return mp.sqrt(2 / mp.pi) * (x + mp.mpf(44715) / 10**6 * x**3)


def gelu_argument_slope(x):
    return mp.sqrt(2 / mp.pi) * (1 + 3 * mp.mpf(44715) / 10**6 * x**2)


def hard(x):
    return min(max(x / 6 + mp.mpf(1) / 2, mp.mpf(0)), mp.mpf(1))


FORMULAS = {  # f, f'
    "tanh": (mp.tanh, lambda x: mp.sech(x) ** 2),
    "sigmoid": (sigmoid, lambda x: sigmoid(x) * (1 - sigmoid(x))),
    "silu": (lambda x: x * sigmoid(x), lambda x: sigmoid(x) * (1 + x * (1 - sigmoid(x)))),
    "gelu": (lambda x: x * phi(x), lambda x: phi(x) + x * mp.npdf(x)),
    "gelu_tanh": (
        lambda x: x / 2 * (1 + mp.tanh(gelu_argument(x))),
        lambda x: (
            (1 + mp.tanh(gelu_argument(x))) / 2
            + x / 2 * mp.sech(gelu_argument(x)) ** 2 * gelu_argument_slope(x)
        ),
    ),
    "mish": (lambda x: x * mp.tanh(softplus(x)), mish_slope),
    "softplus": (softplus, sigmoid),
    "hardswish": (
        lambda x: x * hard(x),
        lambda x: (x / 3 + mp.mpf(1) / 2) * (-3 < x < 3) + (x >= 3),
    ),
    "hardsigmoid": (hard, lambda x: mp.mpf(1) / 6 * (-3 < x < 3)),
    "elu": (
        lambda x: x if x > 0 else ALPHA * mp.expm1(x),
        lambda x: mp.mpf(1) if x > 0 else ALPHA * mp.exp(x),
    ),
}


def to_codes(values, code_max):
    """Round values of 200 digits; anything that near a tie would fail here."""
    shared = formats.smallest_exponent(to_fraction(max(map(abs, values))), code_max, -1000, None)
    codes = []
    for value in values:
        scaled = mp.ldexp(value, -shared)
        code = int(mp.nint(scaled))
        near = abs(abs(scaled - code) - mp.mpf(1) / 2)
        if near < mp.mpf(10) ** -100:  # a tie to 100 digits is one: j = 0 or an exact value
            code = formats.round_real(Fraction(int(mp.nint(2 * scaled)), 2))
        codes.append(code)
    return codes, shared


def to_fraction(value):
    sign, mantissa, exponent, _ = value._mpf_
    return (-1) ** sign * int(mantissa) * formats.power(exponent)


EXPONENTS = (-40, -31, -30, -15, -12, -9, -7, -6, -5, -4, -3, -2, 0, 4, 11)
QUICK = (-40, -30, -12, -5, 0, 11)


@pytest.mark.parametrize(
    "exponent", [e if e in QUICK else pytest.param(e, marks=pytest.mark.slow) for e in EXPONENTS]
)
@pytest.mark.parametrize("name", FORMULAS)
def test_every_entry(name, exponent):
    table = activation_table(name, exponent, PARAMETERS.get(name))
    inputs = [mp.ldexp(mp.mpf(j), exponent) for j in CODES]
    f, derivative = FORMULAS[name]
    codes, shared = to_codes([f(x) for x in inputs], formats.Q32)
    assert table.exponent == shared
    assert_same(table.codes, codes, list(CODES))
    codes, shared = to_codes([derivative(x) for x in inputs], formats.Q16)
    assert table.derivative_exponent == shared
    assert_same(table.derivative_codes, codes, list(CODES))


@pytest.mark.parametrize("slope", [0.01, 0.0, 0.25, -0.5, 1.0, 3.0, Fraction(1, 3), 1e-300])
@pytest.mark.parametrize("exponent", [-128, -7, -1, 0, 127])
def test_leaky_relu(slope, exponent):
    table = activation_table("leaky_relu", exponent, slope)
    slope = Fraction(slope)
    values = [j * formats.power(exponent) * (1 if j > 0 else slope) for j in CODES]
    shared = formats.smallest_exponent(max(map(abs, values)), formats.Q32, -1000, None)
    assert table.exponent == shared
    assert_same(table.codes, [round(v / formats.power(shared)) for v in values], list(CODES))
    derivatives = [Fraction(1) if j > 0 else slope for j in CODES]
    shared = formats.smallest_exponent(max(map(abs, derivatives)), formats.Q16)
    assert table.derivative_exponent == shared
    expected = [round(v / formats.power(shared)) for v in derivatives]
    assert_same(table.derivative_codes, expected, list(CODES))


@pytest.mark.parametrize("above", [0, Fraction(1, 10**30), -Fraction(1, 10**30)])
def test_a_largest_value_between_two_exponents(above):
    """127 * slope is code_max + 1/2, or so near that binary64 cannot tell which exponent holds."""
    slope = Fraction(2 * formats.Q32 + 1, 127 << 24) + above
    table = activation_table("leaky_relu", -7, slope)
    values = [Fraction(j, 1 << 7) * (1 if j > 0 else slope) for j in CODES]
    shared = formats.smallest_exponent(max(map(abs, values)), formats.Q32, -1000, None)
    assert table.exponent == shared == (-32 if above < 0 else -31) + 2
    assert_same(table.codes, [round(v / formats.power(shared)) for v in values], list(CODES))


# --- extreme inputs: what the functions tend to ---------------------------------------------


@pytest.mark.parametrize("exponent", [12, 13, 31, 64, 100, 127])
def test_large_inputs_saturate(exponent):
    """From |x| = 2**12 on nothing but the limits is left: exp(-4096) is about 10**-1779."""
    signs = [(j > 0) - (j < 0) for j in CODES]
    one, unit = 1 << 30, 1 << 14
    peak = [unit * (j == 0) for j in CODES]
    tanh = activation_table("tanh", exponent)
    assert (tanh.exponent, tanh.derivative_exponent) == (-30, -14)
    assert_same(tanh.codes, [one * s for s in signs], list(CODES))
    assert_same(tanh.derivative_codes, peak, list(CODES))
    logistic = activation_table("sigmoid", exponent)
    assert (logistic.exponent, logistic.derivative_exponent) == (-30, -16)
    assert_same(logistic.codes, [(one + one * s) // 2 for s in signs], list(CODES))
    assert_same(logistic.derivative_codes, peak, list(CODES))
    for name in ("silu", "gelu"):
        table = activation_table(name, exponent, PARAMETERS.get(name))
        assert (table.exponent, table.derivative_exponent) == (exponent - 24, -14)
        assert_same(table.codes, [max(j, 0) << 24 for j in CODES], list(CODES))
        steps = [(unit + unit * s) // 2 for s in signs]
        assert_same(table.derivative_codes, steps, list(CODES))


@pytest.mark.parametrize("exponent", [-128, -127, -100, -60])
def test_small_inputs_are_linear(exponent):
    linear = [j << 24 for j in CODES]
    for name, shared in (("tanh", exponent - 24), ("silu", exponent - 25), ("gelu", exponent - 25)):
        table = activation_table(name, exponent, PARAMETERS.get(name))
        assert table.exponent == shared
        assert_same(table.codes, linear, list(CODES))
        half = 1 << 14
        assert_same(table.derivative_codes, [half] * 255, list(CODES))
        assert table.derivative_exponent == (-14 if name == "tanh" else -15)
    logistic = activation_table("sigmoid", exponent)
    assert_same(logistic.codes, [1 << 30] * 255, list(CODES))
    assert logistic.exponent == -31
    assert_same(logistic.derivative_codes, [1 << 14] * 255, list(CODES))


def test_sigmoid_near_ties():
    """sigmoid(j * 2**-30) * 2**31 = 2**30 + j/2 - tiny: beside a tie for every odd j, and the sign
    of the tiny cubic term decides."""
    table = activation_table("sigmoid", -30)
    assert table.exponent == -31
    expected = [(1 << 30) + (j // 2 if j > 0 else -(-j // 2)) for j in CODES]
    assert_same(table.codes, expected, list(CODES))


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_every_exponent_is_quick_and_in_range(name, every):
    """every: which of the exponents, the first and every fifth or all."""
    parameter = 0.01 if ACTIVATIONS[name].parameter else None
    begin = time.process_time()
    exponents = range(-128, 128, every)
    for exponent in exponents:
        table = activation_table(name, exponent, parameter)
        assert max(map(abs, table.codes)) <= formats.Q32
        assert max(map(abs, table.derivative_codes)) <= formats.Q16
        assert 2 * max(map(abs, table.codes)) + 1 > formats.Q32
        assert len(table.codes) == len(table.derivative_codes) == 255
    # A table takes about 5 ms (gelu 20 ms); this guards against a hang, not a slow machine.
    assert time.process_time() - begin < len(exponents) * 2


def test_tables_are_cached():
    assert activation_table("tanh", -5) is activation_table("tanh", -5)
    assert activation_table("leaky_relu", 1, 0.5) is activation_table(
        "leaky_relu", 1, Fraction(1, 2)
    )


def test_repr():
    assert repr(activation_table("tanh", -5)) == (
        "ActivationTable(tanh, input exponent -5, exponent -30, derivative exponent -14)"
    )
    assert repr(activation_table("leaky_relu", -5, 0.01)) == (
        "ActivationTable(leaky_relu, negative_slope 0.01, input exponent -5, exponent -29, "
        "derivative exponent -14)"
    )


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            ("relu", 0),
            UnsupportedError,
            "expected an activation with a table (tanh, sigmoid, gelu, gelu_tanh, silu, mish, "
            "softplus, hardswish, hardsigmoid, elu, leaky_relu), found 'relu'",
        ),
        (
            ("tanh", 128),
            ValueError,
            "activation 'tanh': expected an input exponent in [-128, 127], found 128",
        ),
        (("tanh", 0, 0.1), ValueError, "activation 'tanh': expected no parameter, found 0.1"),
        (
            ("leaky_relu", 0),
            ValueError,
            "activation 'leaky_relu': expected its negative_slope, found None",
        ),
        (
            ("leaky_relu", 0, float("nan")),
            ValueError,
            "activation 'leaky_relu': expected a finite negative_slope, found nan",
        ),
        (
            ("leaky_relu", 0, 2.0**200),
            RangeError,
            "expected an exponent of at most 127, found 186 (largest magnitude about 2**200); the "
            "values have outgrown their format: lower the learning rate or scale the input",
        ),
    ],
)
def test_errors(arguments, error, message):
    with pytest.raises(error) as found:
        activation_table(*arguments)
    assert str(found.value) == message
