"""Tables of the point-wise activations for training: one per (function, input exponent).

docs/spec/training.md 5, "Table activations". Entry j + 127 stands for the input j * 2**exponent,
j = -127 to 127. Every entry is correctly rounded, as in all tables: binary64 intervals (`screen`)
decide most, enclosures of growing precision (`precise`, Ziv's loop) the rest. That ends because a
nonzero dyadic input gives a transcendental value, which is never a tie; zero and leaky_relu are
exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, reduce
from typing import Any

import numpy as np

from samebits.errors import UnsupportedError
from samebits.spec import formats
from samebits.tables.expression import ONE, OPERATORS, TWO, Arithmetic, normal, pi, sigmoid
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
    slope: Fraction | None
    codes: tuple[int, ...]
    exponent: int
    derivative_codes: tuple[int, ...]
    derivative_exponent: int

    def __repr__(self) -> str:
        slope = "" if self.slope is None else f", slope {float(self.slope)!r}"
        return (
            f"ActivationTable({self.name}{slope}, input exponent {self.input_exponent}, "
            f"exponent {self.exponent}, derivative exponent {self.derivative_exponent})"
        )


def activation_table(
    name: str, exponent: int, slope: float | Fraction | None = None
) -> ActivationTable:
    """The table of tanh, sigmoid, gelu (erf form), silu or leaky_relu (with its `slope`).

    `exponent` is that of the bfp8 input, -128 to 127. The derivative of leaky_relu at 0 is
    `slope`, as in torch. Tables are cached. Raises UnsupportedError for another name, ValueError
    for an exponent or slope that makes no sense, RangeError when a slope outgrows bfp16.
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
    if (name == "leaky_relu") != (slope is not None):
        wanted = "a slope" if name == "leaky_relu" else "no slope"
        raise ValueError(f"activation {name!r}: expected {wanted}, found {slope}")
    if slope is None:
        return _table(name, exponent, None)
    if not math.isfinite(slope):
        raise ValueError(f"activation {name!r}: expected a finite slope, found {slope}")
    formats.smallest_exponent(abs(Fraction(slope)), formats.Q16)  # raises RangeError
    return _table(name, exponent, Fraction(slope))


@lru_cache(maxsize=2048)
def _table(name: str, exponent: int, slope: Fraction | None) -> ActivationTable:
    f, derivative = _FUNCTIONS[name] if slope is None else _leaky_relu(slope)
    codes = _rounded(f, exponent, formats.Q32), _rounded(derivative, exponent, formats.Q16)
    return ActivationTable(name, exponent, slope, *codes[0], *codes[1])


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


def _tanh_slope(a: Arithmetic, x: Any) -> Any:
    """1 - tanh(x)**2."""
    t = a.function("tanh", x)
    return a.subtract(ONE, a.multiply(t, t))


def _silu_slope(a: Arithmetic, x: Any) -> Any:
    """s * (1 + x * (1 - s)) with s = sigmoid(x), 1 - s = sigmoid(-x)."""
    s, opposite = sigmoid(a, x), sigmoid(a, a.negate(x))
    return a.multiply(s, a.add(ONE, a.multiply(x, opposite)))


def _gelu_slope(a: Arithmetic, x: Any) -> Any:
    """Phi(x) + x * phi(x), Phi and phi of the standard normal distribution."""
    decay = a.function("exp", a.negate(a.divide(a.multiply(x, x), TWO)))
    density = a.divide(decay, a.function("sqrt", a.multiply(TWO, pi(a))))
    return a.add(normal(a, x), a.multiply(x, density))


def _leaky_relu(slope: Fraction) -> tuple[Function, Function]:
    """max(x, 0) + slope * min(x, 0), and 1 above 0, `slope` from there down."""
    return (
        lambda a, x: OPERATORS["LeakyRelu"].meaning(a, [x], {"alpha": slope}),
        lambda a, x: a.add(slope, a.multiply(1 - slope, a.above(x, Fraction(0)))),
    )


_FUNCTIONS: dict[str, tuple[Function, Function]] = {
    "tanh": (lambda a, x: a.function("tanh", x), _tanh_slope),
    "sigmoid": (sigmoid, lambda a, x: a.multiply(sigmoid(a, x), sigmoid(a, a.negate(x)))),
    "gelu": (lambda a, x: a.multiply(x, normal(a, x)), _gelu_slope),
    "silu": (lambda a, x: a.multiply(x, sigmoid(a, x)), _silu_slope),
}
ACTIVATIONS = (*_FUNCTIONS, "leaky_relu")
