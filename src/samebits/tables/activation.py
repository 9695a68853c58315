"""Tables of the point-wise activations for training: one per (function, input exponent).

docs/spec/training.md 5, "Table activations". Entry j + 127 stands for the input j * 2**exponent,
j = -127 to 127. Every entry is correctly rounded, as in all tables: binary64 intervals (`screen`)
decide most, enclosures of growing precision (`precise`, Ziv's loop) the rest. That ends because a
nonzero dyadic input gives a transcendental value, which is never a tie, or a rational one, which is
computed exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache, reduce
from typing import Any

import numpy as np

from samebits.errors import UnsupportedError
from samebits.spec import formats
from samebits.tables.expression import (
    HALF,
    ONE,
    OPERATORS,
    TWO,
    ZERO,
    Arithmetic,
    normal,
    pi,
    sigmoid,
)
from samebits.tables.interval import CodeRange
from samebits.tables.precise import Precise, Real, ends, nearest_code, one_result, rounded
from samebits.tables.screen import Screen, Span

CODES = range(-formats.Q8, formats.Q8 + 1)
UNLIMITED = -1000  # below every exponent that a table can have

Function = Callable[[Arithmetic, Any], Any]


@dataclass(frozen=True, repr=False)
class ActivationTable:
    """f and its derivative at j * 2**input_exponent for j = -127..127 (entry j + 127).

    f = codes * 2**exponent (bfp32), f' = derivative_codes * 2**derivative_exponent (bfp16); each
    exponent is the smallest that holds the largest of the 255 magnitudes. That of f is not limited
    (it is an intermediate, never stored), that of f' lies in [-128, 127].
    """

    name: str
    input_exponent: int
    parameter: Fraction | None
    codes: tuple[int, ...]
    exponent: int
    derivative_codes: tuple[int, ...]
    derivative_exponent: int

    def __repr__(self) -> str:
        own = ""
        if self.parameter is not None:
            own = f", {ACTIVATIONS[self.name].parameter} {float(self.parameter)!r}"
        return (
            f"ActivationTable({self.name}{own}, input exponent {self.input_exponent}, "
            f"exponent {self.exponent}, derivative exponent {self.derivative_exponent})"
        )


def activation_table(
    name: str, exponent: int, parameter: float | Fraction | None = None
) -> ActivationTable:
    """The table of one of `ACTIVATIONS`, with its parameter where it has one.

    `exponent` is that of the bfp8 input, -128 to 127. Tables are cached. Raises UnsupportedError
    for another name, ValueError for an exponent or parameter that makes no sense, RangeError when
    a parameter outgrows bfp16.
    """
    if name not in ACTIVATIONS:
        raise UnsupportedError(
            f"expected an activation with a table ({', '.join(ACTIVATIONS)}), found {name!r}"
        )
    if not formats.EXPONENT_MIN <= exponent <= formats.EXPONENT_MAX:
        raise ValueError(
            f"activation {name!r}: expected an input exponent in "
            f"[{formats.EXPONENT_MIN}, {formats.EXPONENT_MAX}], found {exponent}"
        )
    wanted = ACTIVATIONS[name].parameter
    if (wanted is None) != (parameter is None):
        raise ValueError(
            f"activation {name!r}: expected {f'its {wanted}' if wanted else 'no parameter'}, found "
            f"{parameter}"
        )
    if parameter is None:
        return _table(name, exponent, None)
    if not math.isfinite(parameter):
        raise ValueError(f"activation {name!r}: expected a finite {wanted}, found {parameter}")
    formats.smallest_exponent(abs(Fraction(parameter)), formats.Q16)  # raises RangeError
    return _table(name, exponent, Fraction(parameter))


@lru_cache(maxsize=2048)
def _table(name: str, exponent: int, parameter: Fraction | None) -> ActivationTable:
    function, parameters = ACTIVATIONS[name], ACTIVATIONS[name].parameters(parameter)
    meaning = OPERATORS[function.operator].meaning
    codes = (
        _rounded(lambda a, x: meaning(a, [x], parameters), exponent, formats.Q32),
        _rounded(lambda a, x: function.derivative(a, x, parameter), exponent, formats.Q16),
    )
    return ActivationTable(name, exponent, parameter, *codes[0], *codes[1])


def _rounded(f: Function, exponent: int, code_max: int) -> tuple[tuple[int, ...], int]:
    """The codes of f at every input, and the smallest exponent that holds the largest of them.

    The exponent is a monotone function of the largest magnitude, so it is decided like a code: if
    the least and the greatest that this magnitude may be have the same exponent, it is that one.
    """
    unit = formats.power(exponent)
    points = [j * unit for j in CODES]
    arithmetic = Screen()

    def smallest(magnitude: Fraction) -> int:
        return formats.smallest_exponent(magnitude, code_max, UNLIMITED, None)

    def largest(a: Precise) -> Real:
        return reduce(a.maximum, [a.absolute(f(a, x)) for x in points])

    with np.errstate(all="ignore"):
        inputs = np.array(CODES) * 2.0**exponent
        found = f(arithmetic, Span(inputs, inputs))
        bounds = [end.max() for end in arithmetic.absolute(found)]
        shared = one_result(map(Fraction, bounds), smallest) if np.isfinite(bounds).all() else None
        if shared is None:
            shared = rounded(largest, lambda value, final: one_result(ends(value), smallest))
        assert shared is not None
        target = CodeRange(formats.power(shared), 0, -code_max, code_max)
        low, high = arithmetic.codes(found, target)
    codes = [
        int(least) if least == greatest else nearest_code(f, target, x)
        for x, least, greatest in zip(points, low.tolist(), high.tolist(), strict=True)
    ]
    return tuple(codes), shared


# --- functions and their derivatives ----------------------------------------------------------


@dataclass(frozen=True)
class ActivationFunction:
    """A point-wise function that training looks up.

    operator:   the operator of `OPERATORS` whose meaning it is, deployed too
    derivative: of x; at a kink as in PyTorch
    attributes: of the operator, besides the parameter
    parameter:  what PyTorch calls the number that the operator calls alpha; None: there is none
    bounded:    whether its values are, so that no channel is larger than others after it
    """

    operator: str
    derivative: Callable[[Arithmetic, Any, Fraction | None], Any]
    attributes: Mapping[str, Fraction | str] = field(default_factory=dict)
    parameter: str | None = None
    bounded: bool = False

    def parameters(self, given: Fraction | None) -> dict[str, Any]:
        """All parameters of the operator."""
        return {**self.attributes, **({} if given is None else {"alpha": given})}


def _tanh_slope(a: Arithmetic, x: Any, parameter: Any) -> Any:
    """1 - tanh(x)**2."""
    t = a.function("tanh", x)
    return a.subtract(ONE, a.multiply(t, t))


def _sigmoid_slope(a: Arithmetic, x: Any, parameter: Any) -> Any:
    """s * (1 - s), 1 - s = sigmoid(-x)."""
    return a.multiply(sigmoid(a, x), sigmoid(a, a.negate(x)))


def _silu_slope(a: Arithmetic, x: Any, parameter: Any) -> Any:
    """s * (1 + x * (1 - s)) with s = sigmoid(x), 1 - s = sigmoid(-x)."""
    s, opposite = sigmoid(a, x), sigmoid(a, a.negate(x))
    return a.multiply(s, a.add(ONE, a.multiply(x, opposite)))


def _gelu_slope(a: Arithmetic, x: Any, parameter: Any) -> Any:
    """Phi(x) + x * phi(x), Phi and phi of the standard normal distribution."""
    decay = a.function("exp", a.negate(a.divide(a.multiply(x, x), TWO)))
    density = a.divide(decay, a.function("sqrt", a.multiply(TWO, pi(a))))
    return a.add(normal(a, x), a.multiply(x, density))


def _gelu_tanh_slope(a: Arithmetic, x: Any, parameter: Any) -> Any:
    """s + x * s * (1 - s) * 2 * u', s = sigmoid(2 * u), u' = sqrt(2 / pi) * (1 + 3 * c * x**2)."""
    c, square = Fraction(44715, 10**6), a.multiply(x, x)
    double = a.multiply(TWO, a.function("sqrt", a.divide(TWO, pi(a))))
    u = a.multiply(double, a.multiply(x, a.add(ONE, a.multiply(c, square))))
    s, opposite = sigmoid(a, u), sigmoid(a, a.negate(u))
    slope = a.multiply(double, a.add(ONE, a.multiply(3 * c, square)))
    return a.multiply(s, a.add(ONE, a.multiply(a.multiply(x, opposite), slope)))


def _mish_slope(a: Arithmetic, x: Any, parameter: Any) -> Any:
    """t + x * s * (1 - t) * (1 + t), t = tanh(log(1 + exp(x))), s = sigmoid(x).

    In u = exp(-|x|): t = (1 + 2u) / (1 + 2u + 2u**2) above 0, (2u + u**2) / (2 + 2u + u**2) from
    there down, so that 1 - t is a quotient too, not a difference of almost equal numbers.
    """
    u, above = a.function("exp", a.negate(a.absolute(x))), a.above(x, ZERO)
    below, square, double = a.subtract(ONE, above), a.multiply(u, u), a.multiply(TWO, u)

    def chosen(high: Any, low: Any) -> Any:
        return a.add(a.multiply(above, high), a.multiply(below, low))

    top = chosen(a.add(ONE, double), a.add(double, square))
    rest = chosen(a.multiply(TWO, square), TWO)
    whole = a.add(top, rest)
    t = a.divide(top, whole)
    slope = a.multiply(sigmoid(a, x), a.multiply(a.divide(rest, whole), a.add(ONE, t)))
    return a.add(t, a.multiply(x, slope))


def _leaky_slope(a: Arithmetic, x: Any, slope: Any) -> Any:
    """1 above 0, the slope from there down."""
    return a.add(slope, a.multiply(1 - slope, a.above(x, ZERO)))


def _elu_slope(a: Arithmetic, x: Any, alpha: Any) -> Any:
    """1 above 0, alpha * exp(x) from there down."""
    above = a.above(x, ZERO)
    below = a.multiply(alpha, a.function("exp", a.minimum(x, ZERO)))
    return a.add(above, a.multiply(a.subtract(ONE, above), below))


def _inside(a: Arithmetic, x: Any) -> Any:
    """1 where -3 < x < 3, else 0."""
    return a.multiply(a.above(x, -THREE), a.above(a.negate(x), -THREE))


def _hard_sigmoid_slope(a: Arithmetic, x: Any, parameter: Any) -> Any:
    """1 / 6 where -3 < x < 3, else 0."""
    return a.multiply(Fraction(1, 6), _inside(a, x))


def _hard_swish_slope(a: Arithmetic, x: Any, parameter: Any) -> Any:
    """0 up to -3, x / 3 + 1 / 2, 1 from 3 on."""
    rising = a.multiply(_inside(a, x), a.add(a.multiply(Fraction(1, 3), x), HALF))
    return a.add(rising, a.subtract(ONE, a.above(a.negate(x), -THREE)))


THREE = Fraction(3)
ACTIVATIONS: dict[str, ActivationFunction] = {
    "tanh": ActivationFunction("Tanh", _tanh_slope, bounded=True),
    "sigmoid": ActivationFunction("Sigmoid", _sigmoid_slope, bounded=True),
    "gelu": ActivationFunction("Gelu", _gelu_slope, {"approximate": "none"}),
    "gelu_tanh": ActivationFunction("Gelu", _gelu_tanh_slope, {"approximate": "tanh"}),
    "silu": ActivationFunction("Swish", _silu_slope, {"alpha": ONE}),
    "mish": ActivationFunction("Mish", _mish_slope),
    "softplus": ActivationFunction("Softplus", lambda a, x, p: sigmoid(a, x)),
    "hardswish": ActivationFunction("HardSwish", _hard_swish_slope),
    "hardsigmoid": ActivationFunction(
        "HardSigmoid", _hard_sigmoid_slope, {"alpha": Fraction(1, 6), "beta": HALF}, bounded=True
    ),
    "elu": ActivationFunction("Elu", _elu_slope, parameter="alpha"),
    "leaky_relu": ActivationFunction("LeakyRelu", _leaky_slope, parameter="negative_slope"),
}
"""By the names of torch.nn.functional; gelu_tanh is gelu with approximate="tanh"."""
