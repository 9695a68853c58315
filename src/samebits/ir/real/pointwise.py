"""Point-wise real operators: one variable, two with broadcasting, comparisons, Clip and Cast.

Formulas and defaults are those of ONNX; a default that ONNX states as a decimal is its binary32.
To add one: its record here, its expression in `samebits.tables.expression` (for a FUNCTION). ONNX
files that call it by the same name, transfer tables, steps of sequences and quantization follow.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from samebits.errors import UnsupportedError
from samebits.ir.ops import REQUIRED, Array, Attributes, Type, broadcast
from samebits.ir.real import define as real
from samebits.ir.real import functions
from samebits.ir.real.define import Inputs, broadcasting, define, float32, map_exact, number
from samebits.ir.real.minifloat import ROUND_MODES, STORAGE, rounded
from samebits.ir.traits import Trait

Function = Callable[[Array, Attributes], Array]
Rule = Callable[[Inputs, Attributes], list[Type]]
POWER_MAX = 1024  # exponents of Pow in exact mode


def _point(
    name: str,
    function: Callable[..., Any],
    *traits: Trait,
    inputs: int = 1,
    allowed: tuple[str, ...] = real.FLOATS,
    infer: Rule | None = None,
    rational: bool = True,
    unbounded: tuple[str, ...] = (),
    **defaults: Any,
) -> None:
    """A point-wise operator; a FUNCTION where no traits are stated.

    function: of the operands and the attributes. allowed: the types of the operands, where all and
    the result have one; else `infer` says. The others as in `define`.
    """
    define(
        *(name, inputs, defaults, infer or broadcasting(allowed)),
        lambda arrays, attributes: [function(*arrays, attributes)],
        *(traits or (Trait.FUNCTION,)),
        rational=rational,
        unbounded=unbounded,
    )


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
        least, most = real.code_range(x.dtype.name)
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
    return broadcasting(real.NUMBERS)(values, attributes)


def _cast(x: Array, attributes: Attributes) -> Array:
    """Between float types that operators compute with the number stays; to those of storage it is
    rounded. To integers it is truncated and saturated; to those of 2 and 4 bits it is truncated,
    and its lowest bits stay."""
    to, exact = attributes["to"], x.dtype == object
    if to == "bool":
        return np.asarray(x != 0)
    if to in STORAGE:
        if exact:
            raise UnsupportedError(f"expected other types in exact mode, found a cast to {to}")
        saturate, mode = bool(attributes["saturate"]), attributes["round_mode"]
        return rounded(x.astype(np.float64), to, saturate, mode)
    if to in real.FLOATS:
        return x if exact or x.dtype.kind == "f" else x.astype(np.float64)
    if to in real.NARROW:
        whole = _cast(x, {**attributes, "to": "int64"})
        low, high = real.code_range(to)
        return ((whole - low) % (high - low + 1) + low).astype(real.array_type(to))
    low, high = real.code_range(to)
    kind = real.array_type(to)
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
    real.check_type(values[0], real.ANY)
    real.choice(attributes, "round_mode", ROUND_MODES)
    return [(real.choice(attributes, "to", real.ANY), values[0].shape)]


_EXACT = (Trait.FUNCTION, Trait.UNROUNDED)
_IDENTITY = (Trait.FUNCTION, Trait.MOVEMENT, Trait.NEUTRAL, Trait.HOMOGENEOUS)
_SCALED = (Trait.FUNCTION, Trait.HOMOGENEOUS)
_ENDS = ("min", "max")
_point("Identity", lambda x, _: x, *_IDENTITY, allowed=real.ANY)
_point("Relu", _relu, *_EXACT, Trait.HOMOGENEOUS, allowed=real.NUMBERS)
_point("LeakyRelu", _leaky_relu, *_SCALED, alpha=float32(0.01))
_point("ThresholdedRelu", _thresholded_relu, alpha=1.0)
_point("HardSigmoid", _hard_sigmoid, alpha=float32(0.2), beta=0.5)
_point("HardSwish", _hard_swish)
_point("Softsign", lambda x, _: x / (abs(x) + number(1, x)))
_point("Shrink", _shrink, lambd=0.5, bias=0.0)
_point("Abs", lambda x, _: np.abs(x), *_EXACT, allowed=real.NUMBERS)
_point("Neg", lambda x, _: -x, *_EXACT, allowed=real.NUMBERS)
_point("Sign", _sign, allowed=real.NUMBERS)
_point("Reciprocal", lambda x, _: number(1, x) / x)
_point("Floor", _rounded(math.floor, np.floor))
_point("Ceil", _rounded(math.ceil, np.ceil))
_point("Round", _rounded(round, np.rint))
_point("Clip", _clip, *_EXACT, infer=_infer_clip, unbounded=_ENDS, min=None, max=None)
_CAST: dict[str, Any] = {"to": REQUIRED, "saturate": 1, "round_mode": "up"}
_point("Cast", _cast, Trait.FUNCTION, Trait.NEUTRAL, infer=_infer_cast, **_CAST)


# --- transcendental, one variable -----------------------------------------------------------


def _elu(x: Array, alpha: float) -> Array:
    return np.where(x < 0, alpha * functions.expm1(np.minimum(x, 0.0)), x)


def _celu(x: Array, attributes: Attributes) -> Array:
    alpha = attributes["alpha"]
    below = alpha * functions.expm1(np.minimum(x / alpha, 0.0))
    return np.maximum(x, 0.0) + np.minimum(below, 0.0)


def _gelu(x: Array, attributes: Attributes) -> Array:
    if attributes["approximate"] == "tanh":
        cubic = x + 0.044715 * (x * x * x)
        return 0.5 * x * (1.0 + functions.tanh(math.sqrt(2.0 / math.pi) * cubic))
    return 0.5 * x * (1.0 + functions.erf(x / math.sqrt(2.0)))


def _infer_celu(values: Inputs, attributes: Attributes) -> list[Type]:
    if not attributes["alpha"]:
        raise ValueError("expected alpha of Celu other than 0, found 0")
    return broadcasting(real.FLOATS)(values, attributes)


def _infer_gelu(values: Inputs, attributes: Attributes) -> list[Type]:
    real.choice(attributes, "approximate", ("none", "tanh"))
    return broadcasting(real.FLOATS)(values, attributes)


_real = functools.partial(_point, rational=False)
_real("Elu", lambda x, a: _elu(x, a["alpha"]), alpha=1.0)
_real(
    "Selu",
    lambda x, a: a["gamma"] * _elu(x, a["alpha"]),
    alpha=1.67326319217681884765625,
    gamma=1.05070102214813232421875,
)
_real("Celu", _celu, infer=_infer_celu, alpha=1.0)
_real("Gelu", _gelu, infer=_infer_gelu, approximate="none")
_real("Swish", lambda x, a: x * functions.sigmoid(a["alpha"] * x), alpha=1.0)
_real("Mish", lambda x, _: x * functions.tanh(functions.softplus(x)))


def _plain(function: Callable[[Array], Array]) -> None:
    """A function alone: asin is Asin, and so on."""
    _real(function.__name__.capitalize(), lambda x, _: function(x))


for _function in (
    *(functions.exp, functions.log, np.sqrt, functions.tanh, functions.sigmoid, functions.softplus),
    *(functions.erf, functions.sin, functions.cos, functions.tan, functions.asin, functions.acos),
    *(functions.atan, functions.sinh, functions.cosh, functions.asinh, functions.acosh),
    functions.atanh,
):
    _plain(_function)


# --- two or more variables ------------------------------------------------------------------


def _infer_prelu(values: Inputs, attributes: Attributes) -> list[Type]:
    (kind, shape), *_ = broadcasting(real.NUMBERS)(values, attributes)
    if shape != values[0].shape:
        raise ValueError(
            f"expected a slope that broadcasts to {list(values[0].shape)}, "
            f"found {list(values[1].shape)}"
        )
    return [(kind, shape)]


def _infer_pow(values: Inputs, attributes: Attributes) -> list[Type]:
    kind = real.check_type(values[0], real.NUMBERS)
    real.check_type(values[1], real.NUMBERS)
    return [(kind, broadcast(values[0].shape, values[1].shape))]


def _divide(a: Array, b: Array, _: Attributes) -> Array:
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


def _power(a: Array, b: Array, _: Attributes) -> Array:
    if a.dtype == object or b.dtype == object:
        return map_exact(_exact_power, real.rationals(a), b)
    if a.dtype.kind == "f":
        return functions.power(a, b.astype(np.float64))
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


_binary = functools.partial(_point, inputs=2, allowed=real.NUMBERS)
_SUM = (Trait.FUNCTION, Trait.ACCUMULATES)
_binary("Add", lambda a, b, _: a + b, *_SUM)
_binary("Sub", lambda a, b, _: a - b, *_SUM)
_binary("Mul", lambda a, b, _: a * b, *_SUM)
_binary("Div", _divide)
_binary("Pow", _power, infer=_infer_pow)
_binary("PRelu", lambda x, slope, _: np.where(x < 0, x * slope, x), *_SCALED, infer=_infer_prelu)
_binary("Mod", _modulo, Trait.POINTWISE, fmod=0)


def _variadic(
    name: str, function: Callable[[Inputs], Array], allowed: tuple[str, ...], trait: Trait
) -> None:
    """A function of one operand or more; of one, it is that operand."""
    traits = (Trait.FUNCTION, Trait.NEUTRAL, trait)
    define(name, (1, None), {}, broadcasting(allowed), lambda a, _: [function(a)], *traits)


def _sum(arrays: Inputs) -> Array:
    total: Array = functools.reduce(lambda a, b: a + b, arrays)
    return total


_variadic("Min", lambda a: functools.reduce(np.minimum, a), real.NUMBERS, Trait.UNROUNDED)
_variadic("Max", lambda a: functools.reduce(np.maximum, a), real.NUMBERS, Trait.UNROUNDED)
_variadic("Sum", _sum, real.FLOATS, Trait.ACCUMULATES)
_variadic("Mean", lambda arrays: _sum(arrays) / len(arrays), real.FLOATS, Trait.ACCUMULATES)


# --- comparisons and logic ------------------------------------------------------------------

_DECIDES = (Trait.POINTWISE, Trait.DECISION)


def _compare(
    name: str,
    function: Callable[..., Array],
    allowed: tuple[str, ...] = real.NUMBERS,
    inputs: int = 2,
) -> None:
    """Booleans from operands of one type."""
    infer = broadcasting(allowed, "bool")
    _point(
        *(name, lambda *a: function(*a[:-1]).astype(bool), *_DECIDES), infer=infer, inputs=inputs
    )


_compare("Equal", lambda a, b: np.asarray(a == b), (*real.NUMBERS, "bool"))
_compare("Greater", lambda a, b: a > b)
_compare("GreaterOrEqual", lambda a, b: a >= b)
_compare("Less", lambda a, b: a < b)
_compare("LessOrEqual", lambda a, b: a <= b)
_compare("And", np.logical_and, ("bool",))
_compare("Or", np.logical_or, ("bool",))
_compare("Xor", np.logical_xor, ("bool",))
_compare("Not", np.logical_not, ("bool",), inputs=1)


def _infer_where(values: Inputs, attributes: Attributes) -> list[Type]:
    real.check_type(values[0], ("bool",), "a condition")
    kind = real.check_same_type(values[1:], real.ANY)
    return [(kind, broadcast(*(value.shape for value in values)))]


_WHERE = (Trait.POINTWISE, Trait.UNROUNDED)
_point("Where", lambda c, x, y, _: np.where(c, x, y), *_WHERE, inputs=3, infer=_infer_where)
