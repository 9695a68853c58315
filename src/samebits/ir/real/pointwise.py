"""Point-wise real operators: one variable, two with broadcasting, comparisons, Clip and Cast.

Formulas and defaults are those of ONNX; a default that ONNX states as a decimal is its binary32.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from samebits.errors import UnsupportedError
from samebits.ir.ops import Array, Attributes, Type, broadcast
from samebits.ir.real.define import (
    ANY,
    FLOATS,
    NUMBERS,
    Inputs,
    array_type,
    attributes_of,
    check_same_type,
    check_type,
    choice,
    code_range,
    define,
    float32,
    map_exact,
    number,
    rationals,
)

Function = Callable[[Array, Attributes], Array]
POWER_MAX = 1024  # exponents of Pow in exact mode


def _same(allowed: tuple[str, ...]) -> Callable[[Inputs, Attributes], list[Type]]:
    def infer(values: Inputs, attributes: Attributes) -> list[Type]:
        return [(check_type(values[0], allowed), values[0].shape)]

    return infer


def _unary(
    name: str,
    function: Function,
    rational: bool = False,
    allowed: tuple[str, ...] = FLOATS,
    **defaults: Any,
) -> None:
    def meaning(arrays: Inputs, attributes: Attributes) -> list[Array]:
        return [function(arrays[0], attributes)]

    define(name, 1, defaults, _same(allowed), meaning, rational)


# --- rational, one variable -----------------------------------------------------------------


def _relu(x: Array, _: Attributes) -> Array:
    return np.maximum(x, number(0, x))


def _leaky_relu(x: Array, attributes: Attributes) -> Array:
    return np.where(x < 0, x * number(attributes["alpha"], x), x)


def _thresholded_relu(x: Array, attributes: Attributes) -> Array:
    return np.where(x > number(attributes["alpha"], x), x, number(0, x))


def _unit_clip(x: Array) -> Array:
    return np.minimum(np.maximum(x, number(0, x)), number(1, x))


def _hard_sigmoid(x: Array, attributes: Attributes) -> Array:
    return _unit_clip(x * number(attributes["alpha"], x) + number(attributes["beta"], x))


def _hard_swish(x: Array, _: Attributes) -> Array:
    return x * _unit_clip(x / 6 + number(Fraction(1, 2), x))


def _shrink(x: Array, attributes: Attributes) -> Array:
    lambd, bias = number(attributes["lambd"], x), number(attributes["bias"], x)
    return np.where(x < -lambd, x + bias, np.where(x > lambd, x - bias, number(0, x)))


def _sign(x: Array, _: Attributes) -> Array:
    return np.sign(x)


def _rounded(exact: Callable[[Any], int], approximate: Callable[[Array], Array]) -> Function:
    def function(x: Array, _: Attributes) -> Array:
        return map_exact(exact, x) if x.dtype == object else approximate(x)

    return function


def _clip_bounds(x: Array, attributes: Attributes) -> tuple[Any, Any]:
    low, high = attributes["min"], attributes["max"]
    low = None if low in (None, -math.inf) else low
    high = None if high in (None, math.inf) else high
    if x.dtype.kind in "iu":  # the nearest integers inside, as far as the type goes
        least, most = code_range(x.dtype.name)
        low = least if low is None or low <= least else most if low >= most else math.ceil(low)
        high = most if high is None or high >= most else least if high <= least else high // 1
    infinite = [bound for bound in (low, high) if bound is not None and math.isinf(bound)]
    if x.dtype == object and infinite:
        raise UnsupportedError(f"expected finite bounds of Clip in exact mode, found {infinite}")
    return (
        None if low is None else number(low, x),
        None if high is None else number(high, x),
    )


def _clip(x: Array, attributes: Attributes) -> Array:
    low, high = _clip_bounds(x, attributes)
    x = x if low is None else np.maximum(x, low)
    return x if high is None else np.minimum(x, high)


def _infer_clip(values: Inputs, attributes: Attributes) -> list[Type]:
    for key in ("min", "max"):
        bound = attributes[key]
        if bound is not None and (isinstance(bound, bool) or not isinstance(bound, (int, float))):
            raise ValueError(f"expected {key} of Clip to be a number or None, found {bound!r}")
    return _same(NUMBERS)(values, attributes)


def _cast(x: Array, attributes: Attributes) -> Array:
    """Between float types the number stays; to integers it is truncated and saturated."""
    to, exact = attributes["to"], x.dtype == object
    if to == "bool":
        return np.asarray(x != 0)
    if to in FLOATS:
        return x if exact or x.dtype.kind == "f" else x.astype(np.float64)
    low, high = code_range(to)
    kind = array_type(to)
    if exact:
        return map_exact(lambda v: min(max(int(v), low), high), x).astype(kind)
    if x.dtype.kind != "f":
        return x.astype(kind)
    whole = np.trunc(np.nan_to_num(x, nan=0.0))
    # float64 has no 2**63 - 1: what is not below 2**63 is saturated apart.
    inside = (whole > low) & (whole < high)
    result = np.where(inside, whole, 0.0).astype(kind)
    result[whole <= low], result[whole >= high] = low, high
    return result


def _infer_cast(values: Inputs, attributes: Attributes) -> list[Type]:
    check_type(values[0], ANY)
    return [(choice(attributes, "to", (*NUMBERS, "bool")), values[0].shape)]


_unary("Identity", lambda x, _: x, True, ANY)
_unary("Relu", _relu, True, NUMBERS)
_unary("LeakyRelu", _leaky_relu, True, alpha=float32(0.01))
_unary("ThresholdedRelu", _thresholded_relu, True, alpha=1.0)
_unary("HardSigmoid", _hard_sigmoid, True, alpha=float32(0.2), beta=0.5)
_unary("HardSwish", _hard_swish, True)
_unary("Softsign", lambda x, _: x / (abs(x) + number(1, x)), True)
_unary("Shrink", _shrink, True, lambd=0.5, bias=0.0)
_unary("Abs", lambda x, _: np.abs(x), True, NUMBERS)
_unary("Neg", lambda x, _: -x, True, NUMBERS)
_unary("Sign", _sign, True, NUMBERS)
_unary("Reciprocal", lambda x, _: number(1, x) / x, True)
_unary("Floor", _rounded(math.floor, np.floor), True)
_unary("Ceil", _rounded(math.ceil, np.ceil), True)
_unary("Round", _rounded(round, np.rint), True)
define(
    "Clip",
    1,
    {"min": None, "max": None},
    _infer_clip,
    lambda arrays, attributes: [_clip(arrays[0], attributes)],
)
define(
    "Cast",
    1,
    attributes_of("to"),
    _infer_cast,
    lambda arrays, attributes: [np.asarray(_cast(arrays[0], attributes))],
)


# --- transcendental, one variable -----------------------------------------------------------


def _erf(x: Array) -> Array:
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x), dtype=np.float64)


def _sigmoid(x: Array) -> Array:
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, small) / (1.0 + small)


def _softplus(x: Array) -> Array:
    return np.logaddexp(0.0, x)


def _elu(x: Array, alpha: float) -> Array:
    return np.where(x < 0, alpha * np.expm1(np.minimum(x, 0.0)), x)


def _celu(x: Array, attributes: Attributes) -> Array:
    alpha = attributes["alpha"]
    return np.maximum(x, 0.0) + np.minimum(alpha * np.expm1(np.minimum(x / alpha, 0.0)), 0.0)


def _gelu(x: Array, attributes: Attributes) -> Array:
    if attributes["approximate"] == "tanh":
        return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1.0 + _erf(x / math.sqrt(2.0)))


def _infer_celu(values: Inputs, attributes: Attributes) -> list[Type]:
    if not attributes["alpha"]:
        raise ValueError("expected alpha of Celu other than 0, found 0")
    return _same(FLOATS)(values, attributes)


def _infer_gelu(values: Inputs, attributes: Attributes) -> list[Type]:
    choice(attributes, "approximate", ("none", "tanh"))
    return _same(FLOATS)(values, attributes)


_unary("Elu", lambda x, a: _elu(x, a["alpha"]), alpha=1.0)
_unary(
    "Selu",
    lambda x, a: a["gamma"] * _elu(x, a["alpha"]),
    alpha=1.67326319217681884765625,
    gamma=1.05070102214813232421875,
)
define("Celu", 1, {"alpha": 1.0}, _infer_celu, lambda a, k: [_celu(a[0], k)], rational=False)
define(
    "Gelu", 1, {"approximate": "none"}, _infer_gelu, lambda a, k: [_gelu(a[0], k)], rational=False
)
_unary("Sigmoid", lambda x, _: _sigmoid(x))
_unary("Swish", lambda x, a: x * _sigmoid(a["alpha"] * x), alpha=1.0)
_unary("Softplus", lambda x, _: _softplus(x))
_unary("Mish", lambda x, _: x * np.tanh(_softplus(x)))
_unary("Erf", lambda x, _: _erf(x))


def _library(name: str, function: Callable[[Array], Array]) -> None:
    _unary(name, lambda x, _: function(x))


for _name, _function in (
    ("Exp", np.exp),
    ("Log", np.log),
    ("Sqrt", np.sqrt),
    ("Tanh", np.tanh),
    ("Sin", np.sin),
    ("Cos", np.cos),
    ("Tan", np.tan),
    ("Asin", np.arcsin),
    ("Acos", np.arccos),
    ("Atan", np.arctan),
    ("Sinh", np.sinh),
    ("Cosh", np.cosh),
    ("Asinh", np.arcsinh),
    ("Acosh", np.arccosh),
    ("Atanh", np.arctanh),
):
    _library(_name, _function)


# --- two or more variables ------------------------------------------------------------------


def _infer_broadcast(values: Inputs, attributes: Attributes) -> list[Type]:
    kind = check_same_type(values, NUMBERS)
    return [(kind, broadcast(*(value.shape for value in values)))]


def _infer_prelu(values: Inputs, attributes: Attributes) -> list[Type]:
    (kind, shape), *_ = _infer_broadcast(values, attributes)
    if shape != values[0].shape:
        raise ValueError(
            f"expected a slope that broadcasts to {list(values[0].shape)}, "
            f"found {list(values[1].shape)}"
        )
    return [(kind, shape)]


def _infer_pow(values: Inputs, attributes: Attributes) -> list[Type]:
    kind = check_type(values[0], NUMBERS)
    check_type(values[1], NUMBERS)
    return [(kind, broadcast(values[0].shape, values[1].shape))]


def _divide(a: Array, b: Array) -> Array:
    """a / b; of integers, truncated toward 0."""
    if a.dtype.kind not in "iu":
        return a / b
    quotient = np.floor_divide(a, b)
    return quotient + ((quotient < 0) & (quotient * b != a)).astype(quotient.dtype)


def _modulo(a: Array, b: Array, attributes: Attributes) -> Array:
    """The remainder with the sign of a where `fmod`, else with that of b."""
    if a.dtype == object:
        whole = int if attributes["fmod"] else math.floor
        return map_exact(lambda p, q: p - q * whole(p / q), a, b)
    return np.fmod(a, b) if attributes["fmod"] else np.mod(a, b)


def _power(a: Array, b: Array) -> Array:
    if a.dtype == object or b.dtype == object:
        return map_exact(_exact_power, rationals(a), b)
    if a.dtype.kind == "f":
        return np.power(a, b.astype(np.float64))
    if b.dtype.kind in "iu" and not np.less(b, 0).any():
        return np.power(a, b).astype(a.dtype)
    return np.trunc(np.power(a.astype(np.float64), b)).astype(a.dtype)


def _exact_power(base: Fraction, exponent: Fraction | int) -> Fraction:
    exponent = Fraction(exponent)
    if exponent.denominator != 1 or abs(exponent) > POWER_MAX:
        raise UnsupportedError(
            f"expected whole exponents up to {POWER_MAX} of Pow in exact mode, found {exponent}; "
            "compute in float mode"
        )
    return base ** int(exponent)


def _binary(
    name: str,
    function: Callable[[Array, Array], Array],
    infer: Callable[[Inputs, Attributes], list[Type]] = _infer_broadcast,
) -> None:
    define(name, 2, {}, infer, lambda arrays, _: [function(arrays[0], arrays[1])])


_binary("Add", lambda a, b: a + b)
_binary("Sub", lambda a, b: a - b)
_binary("Mul", lambda a, b: a * b)
_binary("Div", _divide)
_binary("Pow", _power, _infer_pow)
_binary("PRelu", lambda x, slope: np.where(x < 0, x * slope, x), _infer_prelu)
define("Mod", 2, {"fmod": 0}, _infer_broadcast, lambda a, k: [_modulo(a[0], a[1], k)])


def _variadic(name: str, function: Callable[[Inputs], Array], allowed: tuple[str, ...]) -> None:
    def infer(values: Inputs, attributes: Attributes) -> list[Type]:
        kind = check_same_type(values, allowed)
        return [(kind, broadcast(*(value.shape for value in values)))]

    define(name, (1, None), {}, infer, lambda arrays, _: [function(arrays)])


def _sum(arrays: Inputs) -> Array:
    total: Array = functools.reduce(lambda a, b: a + b, arrays)
    return total


_variadic("Min", lambda arrays: functools.reduce(np.minimum, arrays), NUMBERS)
_variadic("Max", lambda arrays: functools.reduce(np.maximum, arrays), NUMBERS)
_variadic("Sum", _sum, FLOATS)
_variadic("Mean", lambda arrays: _sum(arrays) / len(arrays), FLOATS)


# --- comparisons and logic ------------------------------------------------------------------


def _compare(
    name: str, function: Callable[[Array, Array], Array], allowed: tuple[str, ...]
) -> None:
    def infer(values: Inputs, attributes: Attributes) -> list[Type]:
        check_same_type(values, allowed)
        return [("bool", broadcast(values[0].shape, values[1].shape))]

    define(name, 2, {}, infer, lambda arrays, _: [function(arrays[0], arrays[1]).astype(bool)])


_compare("Equal", lambda a, b: np.asarray(a == b), (*NUMBERS, "bool"))
_compare("Greater", lambda a, b: a > b, NUMBERS)
_compare("GreaterOrEqual", lambda a, b: a >= b, NUMBERS)
_compare("Less", lambda a, b: a < b, NUMBERS)
_compare("LessOrEqual", lambda a, b: a <= b, NUMBERS)
_compare("And", np.logical_and, ("bool",))
_compare("Or", np.logical_or, ("bool",))
_compare("Xor", np.logical_xor, ("bool",))
_unary("Not", lambda x, _: np.logical_not(x), True, ("bool",))


def _infer_where(values: Inputs, attributes: Attributes) -> list[Type]:
    check_type(values[0], ("bool",), "a condition")
    kind = check_same_type(values[1:], ANY)
    return [(kind, broadcast(*(value.shape for value in values)))]


def _where(condition: Array, x: Array, y: Array) -> Array:
    return np.where(condition, x, y)


define("Where", 3, {}, _infer_where, lambda arrays, _: [_where(*arrays)])
