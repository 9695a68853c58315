"""Expressions: nodes by content, ONNX's parameters as exact numbers, values exact or enclosed."""

from __future__ import annotations

from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samebits.errors import InputError, UnsupportedError
from samebits.tables import OPERATORS, Constant, Variable, apply, evaluate
from samebits.tables.expression import binary32, ordered
from samebits.tables.interval import Enclosure, to_fraction
from samebits.tables.transfer import Missing

X = Variable()
mp = mpmath.MPContext()
mp.dps = 200


# --- nodes ------------------------------------------------------------------------------------


def test_equal_content_is_equal():
    assert apply("Mul", X, apply("Tanh", X)) == apply("Mul", Variable(), apply("Tanh", X))
    assert hash(apply("Tanh", X)) == hash(apply("Tanh", Variable()))
    different = [
        X,
        Constant(Fraction(1)),
        Constant(Fraction(2)),
        apply("Tanh", X),
        apply("Erf", X),
        apply("LeakyRelu", X),
        apply("LeakyRelu", X, alpha=0.5),
        apply("Clip", X, min=0.0),
        apply("Clip", X, max=0.0),
        apply("Sub", X, 1),
        apply("Sub", 1, X),
        apply("Sum", X, X),
        apply("Sum", X, X, X),
        apply("Gelu", X),
        apply("Gelu", X, approximate="tanh"),
    ]
    assert len(set(different)) == len(different)
    assert X != "variable"


def test_nodes_are_frozen():
    with pytest.raises(AttributeError):
        apply("Tanh", X).op = "Erf"


def test_repr_of_a_large_graph_is_short():
    e = X
    for _ in range(1000):
        e = apply("Add", e, e)
    assert repr(e) == "Apply(Add, 2 arguments)"
    assert repr(apply("LeakyRelu", X, alpha=0.5)) == "Apply(LeakyRelu, 1 arguments, alpha=1/2)"


def test_the_order_holds_each_expression_once_and_arguments_first():
    square = apply("Mul", X, X)
    order = ordered(apply("Add", square, apply("Neg", apply("Mul", X, X))))
    assert [getattr(term, "op", None) for term in order] == [None, "Mul", "Neg", "Add"]
    assert order[0] == X
    assert order[1].arguments == (order[0], order[0])
    assert order[3].arguments == (order[1], order[2])


# --- parameters -------------------------------------------------------------------------------


def parameters(expression):
    return dict(expression.parameters)


def test_defaults_are_those_of_onnx():
    assert parameters(apply("LeakyRelu", X)) == {"alpha": Fraction(float(np.float32(0.01)))}
    assert parameters(apply("HardSigmoid", X)) == {
        "alpha": Fraction(float(np.float32(0.2))),
        "beta": Fraction(1, 2),
    }
    assert parameters(apply("Selu", X)) == {
        "alpha": Fraction("1.67326319217681884765625"),
        "gamma": Fraction("1.05070102214813232421875"),
    }
    assert parameters(apply("Clip", X)) == {"min": None, "max": None}
    assert parameters(apply("Shrink", X)) == {"bias": Fraction(0), "lambd": Fraction(1, 2)}


@pytest.mark.parametrize(
    "value", [0.1, np.float32(0.1), np.float64(0.1), Fraction(float(np.float32(0.1)))]
)
def test_numbers_are_binary32(value):
    assert parameters(apply("Elu", X, alpha=value))["alpha"] == binary32(0.1)
    assert apply("Add", X, value) == apply("Add", X, Constant(binary32(0.1)))


def test_exact_numbers_stay_exact():
    assert apply("Add", X, 2**40 + 1).arguments[1] == Constant(Fraction(2**40 + 1))
    assert apply("Add", X, np.int64(-7)).arguments[1] == Constant(Fraction(-7))
    assert apply("Add", X, Fraction(1, 3)).arguments[1] == Constant(Fraction(1, 3))


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (
            lambda: apply("Conv", X),
            UnsupportedError,
            "expected a point-wise operator that tables know, found 'Conv'; quantize around it or "
            "replace it",
        ),
        (lambda: apply("Tanh"), InputError, "Tanh: expected 1 arguments, found 0"),
        (lambda: apply("Sub", X), InputError, "Sub: expected 2 arguments, found 1"),
        (lambda: apply("Max"), InputError, "Max: expected 1 or more arguments, found 0"),
        (
            lambda: apply("Clip", X, low=1.0),
            InputError,
            "Clip: expected the parameters min, max, found ['low']",
        ),
        (
            lambda: apply("Requantize", X, scale=1),
            InputError,
            "Requantize: expected the parameters scale, zero_point, low, high, found ['scale']",
        ),
        (
            lambda: apply("Requantize", X, scale=0, zero_point=0, low=0, high=1),
            InputError,
            "Requantize: expected a scale > 0 and integers zero_point, low, high, found high = 1, "
            "low = 0, scale = 0, zero_point = 0",
        ),
        (
            lambda: apply("Gelu", X, approximate="sigmoid"),
            InputError,
            "Gelu: expected approximate to be 'none' or 'tanh', found 'sigmoid'",
        ),
        (
            lambda: apply("Gelu", X, approximate=1.0),
            InputError,
            "Gelu: expected text as approximate, found 1.0",
        ),
        (
            lambda: apply("Celu", X, alpha=0.0),
            InputError,
            "Celu: expected an alpha other than 0, found 0",
        ),
        (
            lambda: apply("Elu", X, alpha=float("nan")),
            InputError,
            "Elu: expected a finite binary32 number as alpha, found nan",
        ),
        (
            lambda: apply("Add", X, 1e39),
            InputError,
            "Add: expected a finite binary32 number as argument, found 1e+39",
        ),
        (
            lambda: apply("Elu", X, alpha="1"),
            InputError,
            "Elu: expected a number as alpha, found '1'",
        ),
        (
            lambda: apply("Elu", X, alpha=None),
            InputError,
            "Elu: expected a number as alpha, found None",
        ),
    ],
)
def test_errors(build, error, message):
    with pytest.raises(error) as found:
        build()
    assert str(found.value) == message


# --- values -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "x", "value"),
    [
        (apply("Exp", X), 0, 1),
        (apply("Log", X), 1, 0),
        (apply("Tanh", X), 0, 0),
        (apply("Sigmoid", X), 0, Fraction(1, 2)),
        (apply("Erf", X), 0, 0),
        (apply("Sin", X), 0, 0),
        (apply("Cos", X), 0, 1),
        (apply("Acos", X), 1, 0),
        (apply("Cosh", X), 0, 1),
        (apply("Swish", X), 0, 0),
        (apply("Gelu", X), 0, 0),
        (apply("Mish", X), 0, 0),
        (apply("Sqrt", X), Fraction(9, 16), Fraction(3, 4)),
        (apply("Pow", X, 1.5), Fraction(9, 16), Fraction(27, 64)),
        (apply("Pow", X, -0.25), Fraction(1, 16), 2),
        (apply("Pow", X, 3), Fraction(-2, 3), Fraction(-8, 27)),
        (apply("Pow", 2, X), -3, Fraction(1, 8)),
        (apply("Pow", X, Fraction(1, 3)), 0, 0),
        (apply("Softsign", X), Fraction(-1, 3), Fraction(-1, 4)),
        (apply("HardSwish", X), 1, Fraction(2, 3)),
        (apply("Round", X), Fraction(5, 2), 2),
        (apply("Floor", X), Fraction(-1, 2), -1),
        (apply("Ceil", X), Fraction(-1, 2), 0),
        (apply("Shrink", X, lambd=-1.0, bias=2.0), 0, 2),
        (
            apply("Requantize", X, scale=Fraction(1, 10), zero_point=3, low=0, high=255),
            Fraction(25, 100),
            Fraction(1, 5),
        ),
    ],
)
def test_exact_values(expression, x, value):
    assert evaluate(expression, Fraction(x), 96) == Fraction(value)


def test_no_value():
    assert evaluate(apply("Log", X), Fraction(-1), 96) is Missing.UNDEFINED
    assert evaluate(apply("Reciprocal", X), Fraction(0), 96) is Missing.UNDEFINED
    assert evaluate(apply("Pow", X, 0.5), Fraction(-1), 96) is Missing.UNDEFINED
    assert evaluate(apply("Pow", X, apply("Exp", X)), Fraction(-1), 96) is Missing.UNDEFINED
    same = apply("Sub", apply("Log", apply("Exp", X)), X)
    assert evaluate(apply("Sqrt", same), Fraction(1), 96) is Missing.UNDECIDED
    assert evaluate(apply("Sqrt", same), Fraction(1), 4096, final=True) == 0
    assert evaluate(apply("Reciprocal", same), Fraction(1), 96) is Missing.UNDECIDED
    assert evaluate(apply("Log", same), Fraction(1), 4096, final=True) is Missing.UNDEFINED


UNARY = sorted(name for name, op in OPERATORS.items() if op.arity[0] == 1 and name != "Requantize")


@given(
    st.sampled_from(UNARY),
    st.sampled_from(UNARY),
    st.fractions(-40, 40, max_denominator=4096),
)
def test_enclosures_shrink_around_the_value(first, second, x):
    """Each precision's enclosure holds the next one's, for all pairs of operators."""
    e = apply(second, apply(first, x if first == "Sum" else X))
    wide, fine = evaluate(e, x, 96), evaluate(e, x, 384)
    if isinstance(wide, Missing) or isinstance(fine, Missing):
        assert wide is Missing.UNDECIDED or wide is fine
        return
    assert fine in (wide, fine)
    if isinstance(wide, Fraction):
        assert wide == fine
        return
    low, high = (fine.low.value, fine.high.value) if isinstance(fine, Enclosure) else (None, None)
    if low is None:
        assert to_fraction(wide.low.value) <= fine <= to_fraction(wide.high.value)
        return
    assert mpmath.libmp.mpf_le(wide.low.value, low)
    assert mpmath.libmp.mpf_le(high, wide.high.value)
