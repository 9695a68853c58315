"""Expressions of point-wise ONNX operators in one variable.

What lowering finds between a DequantizeLinear and a QuantizeLinear (docs/spec/graph.md 4) is an
expression: a frozen DAG of `Variable`, `Constant` and `Apply`. Each operator's meaning is written
once, over an arithmetic (`Precise` or `Screen`), from the formula of its ONNX documentation, over
the real numbers: attributes are exact rationals, and the constants of formulas that ONNX writes in
decimals or as fractions (Gelu's 0.044715, HardSwish's 1/6) are those numbers exactly.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import Any, Protocol, SupportsFloat, SupportsIndex

from samebits.errors import InputError, UnsupportedError
from samebits.tables.interval import CodeRange

Parameter = Fraction | str | None
Parameters = Mapping[str, Any]
HALF, ZERO, ONE, TWO = Fraction(1, 2), Fraction(0), Fraction(1), Fraction(2)


class Arithmetic(Protocol):
    """The operations in which meanings are written, on the arithmetic's own numbers or `Fraction`s.

    `Precise` computes with one real number, exactly or enclosed at a precision; `Screen` with
    binary64 intervals over all entries of a table. A meaning that is written once serves both.
    """

    def add(self, x: Any, y: Any) -> Any:
        """x + y."""

    def multiply(self, x: Any, y: Any) -> Any:
        """x * y."""

    def divide(self, x: Any, y: Any) -> Any:
        """x / y. There is no value where y is 0."""

    def negate(self, x: Any) -> Any:
        """-x."""

    def absolute(self, x: Any) -> Any:
        """|x|."""

    def maximum(self, x: Any, y: Any) -> Any:
        """max(x, y)."""

    def minimum(self, x: Any, y: Any) -> Any:
        """min(x, y)."""

    def floor(self, x: Any) -> Any:
        """The largest integer <= x."""

    def round(self, x: Any) -> Any:
        """The nearest integer, ties to even."""

    def sign(self, x: Any) -> Any:
        """-1, 0 or 1."""

    def above(self, x: Any, threshold: Fraction) -> Any:
        """1 where x > threshold, else 0."""

    def power(self, x: Any, y: Any) -> Any:
        """x ** y. There is no value for 0 to a negative and a negative to a broken power."""

    def function(self, name: str, x: Any) -> Any:
        """An elementary function by its name. There is no value outside its domain."""

    def quantize(self, x: Any, target: CodeRange) -> Any:
        """The value of the code of x."""

    def subtract(self, x: Any, y: Any) -> Any:
        """x - y."""
        return self.add(x, self.negate(y))

    def _by_squaring(self, x: Any, n: int) -> Any:
        """x ** n, n >= 0: one product or two for each bit of n. An even power of an interval
        around 0 is that of its magnitude, so that it does not become negative."""
        square, result = self.absolute(x) if n % 2 == 0 else x, ONE
        while n:
            if n & 1:
                result = self.multiply(result, square)
            n >>= 1
            square = self.multiply(square, square) if n else square
        return result


# --- expressions ------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Expression:
    """A function of one variable: `Variable`, `Constant` or `Apply`.

    Equal content is equal: expressions compare and hash by SHA-256. (A hash over the tree would
    take time exponential in the depth of a DAG, and recursion.)
    """

    digest: bytes = field(init=False, repr=False)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expression) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def _seal(self, *content: bytes) -> None:
        joined = b"".join(len(part).to_bytes(8, "little") + part for part in content)
        object.__setattr__(self, "digest", hashlib.sha256(joined).digest())


@dataclass(frozen=True, eq=False)
class Variable(Expression):
    """The one variable."""

    def __post_init__(self) -> None:
        self._seal(b"variable")


@dataclass(frozen=True, eq=False)
class Constant(Expression):
    """An exact number."""

    value: Fraction

    def __post_init__(self) -> None:
        self._seal(b"constant", _bytes(self.value))


@dataclass(frozen=True, eq=False, repr=False)
class Apply(Expression):
    """An operator on arguments. Build it with `apply`, which checks and completes it.

    parameters: every parameter of the operator by name, in order of name
    """

    op: str
    arguments: tuple[Expression, ...]
    parameters: Mapping[str, Parameter]

    def __post_init__(self) -> None:
        content = [self.op.encode(), *(argument.digest for argument in self.arguments)]
        for name, value in self.parameters.items():
            content += [name.encode(), _bytes(value)]
        self._seal(b"apply", *content)

    def __repr__(self) -> str:
        parameters = (f"{name}={value}" for name, value in self.parameters.items())
        return f"Apply({', '.join([self.op, f'{len(self.arguments)} arguments', *parameters])})"


def _bytes(value: Parameter) -> bytes:
    if isinstance(value, Fraction):
        return f"{value.numerator:x}/{value.denominator:x}".encode()
    return b"none" if value is None else b"text " + value.encode()


def apply(
    op: str,
    *arguments: Expression | Fraction | int | float,
    **parameters: float | Fraction | str | None,
) -> Apply:
    """An operator of `OPERATORS` on expressions and numbers.

    Numbers and parameters given as `float` are binary32 numbers (ONNX's attributes and tensors):
    they are rounded to binary32 and read as exact rationals; `Fraction` and `int` are exact. What
    is left out has ONNX's default. Raises UnsupportedError for an operator without a record,
    InputError for wrong arguments.
    """
    record = OPERATORS.get(op)
    if record is None:
        raise UnsupportedError(
            f"expected a point-wise operator that tables know, found {op!r}; "
            "quantize around it or replace it"
        )
    least, most = record.arity
    if len(arguments) < least or (most is not None and len(arguments) > most):
        wanted = str(least) if most == least else f"{least} or more"
        raise InputError(f"{op}: expected {wanted} arguments, found {len(arguments)}")
    unknown = sorted(set(parameters) - set(record.parameters))
    missing = sorted(
        name
        for name, default in record.parameters.items()
        if default is REQUIRED and name not in parameters
    )
    if unknown or missing:
        wanted = ", ".join(record.parameters) or "none"
        raise InputError(f"{op}: expected the parameters {wanted}, found {sorted(parameters)}")
    complete = {**record.parameters, **parameters}
    values = {
        name: _parameter(op, name, complete[name], default)
        for name, default in sorted(record.parameters.items())
    }
    record.check(op, values)
    terms = tuple(
        term if isinstance(term, Expression) else Constant(_number(op, "argument", term))
        for term in arguments
    )
    return Apply(op, terms, values)


def binary32(value: float) -> Fraction:
    """The binary32 number nearest to a finite float, exactly. OverflowError beyond binary32."""
    return Fraction(struct.unpack("<f", struct.pack("<f", value))[0])


def _number(op: str, name: str, value: Any) -> Fraction:
    if isinstance(value, int | Fraction):
        return Fraction(value)
    if isinstance(value, SupportsIndex):  # numpy's integers
        return Fraction(value.__index__())
    if not isinstance(value, SupportsFloat):
        raise InputError(f"{op}: expected a number as {name}, found {value!r}")
    try:
        return binary32(float(value))
    except (OverflowError, ValueError):
        raise InputError(
            f"{op}: expected a finite binary32 number as {name}, found {value}"
        ) from None


def _parameter(op: str, name: str, value: Any, default: Any) -> Parameter:
    if value is None and default is None:
        return None
    if not isinstance(default, str):
        return _number(op, name, value)
    if not isinstance(value, str):
        raise InputError(f"{op}: expected text as {name}, found {value!r}")
    return value


# --- operators --------------------------------------------------------------------------------


class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED: Any = _Required()
Meaning = Callable[[Arithmetic, Sequence[Any], Parameters], Any]


def _accept(op: str, parameters: Parameters) -> None:
    """Any parameters will do."""


@dataclass(frozen=True)
class Operator:
    """arity: least and most arguments; parameters: name -> default; check: raises InputError."""

    arity: tuple[int, int | None]
    parameters: Parameters
    meaning: Meaning
    check: Callable[[str, Parameters], None] = _accept


def _elementary(name: str) -> Operator:
    return Operator((1, 1), {}, lambda a, x, p: a.function(name, x[0]))


def _unary(meaning: Callable[[Arithmetic, Any, Parameters], Any], **parameters: Any) -> Operator:
    defaults = {k: binary32(v) if isinstance(v, float) else v for k, v in parameters.items()}
    return Operator((1, 1), defaults, lambda a, x, p: meaning(a, x[0], p))


def _leaky(a: Arithmetic, x: Any, slope: Any) -> Any:
    return a.add(a.maximum(x, ZERO), a.multiply(slope, a.minimum(x, ZERO)))


def _expm1(a: Arithmetic, x: Any) -> Any:
    return a.subtract(a.function("exp", x), ONE)


def _elu(a: Arithmetic, x: Any, p: Parameters) -> Any:
    below = a.multiply(p["alpha"], _expm1(a, a.minimum(x, ZERO)))
    return a.add(a.maximum(x, ZERO), below)


def _celu(a: Arithmetic, x: Any, p: Parameters) -> Any:
    below = a.multiply(p["alpha"], _expm1(a, a.divide(x, p["alpha"])))
    return a.add(a.maximum(x, ZERO), a.minimum(below, ZERO))


def _check_celu(op: str, parameters: Parameters) -> None:
    if parameters["alpha"] == 0:
        raise InputError(f"{op}: expected an alpha other than 0, found 0")


def _clip(a: Arithmetic, x: Any, p: Parameters) -> Any:
    x = x if p["min"] is None else a.maximum(x, p["min"])
    return x if p["max"] is None else a.minimum(x, p["max"])


def _shrink(a: Arithmetic, x: Any, p: Parameters) -> Any:
    left = a.above(a.negate(x), p["lambd"])
    right = a.multiply(a.above(x, p["lambd"]), a.subtract(ONE, left))
    left = a.multiply(left, a.add(x, p["bias"]))
    return a.add(left, a.multiply(right, a.subtract(x, p["bias"])))


def pi(a: Arithmetic) -> Any:
    """The ratio of a circle's circumference to its diameter, as 2 * acos(0)."""
    return a.multiply(TWO, a.function("acos", ZERO))


def sigmoid(a: Arithmetic, x: Any) -> Any:
    """1 / (1 + exp(-x))."""
    return a.divide(ONE, a.add(ONE, a.function("exp", a.negate(x))))


def normal(a: Arithmetic, x: Any) -> Any:
    """The share of a standard normal distribution below x: erfc(-x / sqrt(2)) / 2."""
    tail = a.function("erfc", a.negate(a.divide(x, a.function("sqrt", TWO))))
    return a.multiply(HALF, tail)


def _hard_sigmoid(a: Arithmetic, x: Any, alpha: Fraction, beta: Fraction) -> Any:
    return a.maximum(ZERO, a.minimum(ONE, a.add(a.multiply(alpha, x), beta)))


def _hard_swish(a: Arithmetic, x: Any, p: Parameters) -> Any:
    return a.multiply(x, _hard_sigmoid(a, x, Fraction(1, 6), HALF))


def _softplus(a: Arithmetic, x: Any) -> Any:
    """log(1 + exp(x)), as max(x, 0) + log(1 + exp(-|x|)): above max(x, 0), however little."""
    decay = a.function("exp", a.negate(a.absolute(x)))
    return a.add(a.maximum(x, ZERO), a.function("log", a.add(ONE, decay)))


def _gelu(a: Arithmetic, x: Any, p: Parameters) -> Any:
    if p["approximate"] == "none":
        return a.multiply(x, normal(a, x))
    # x / 2 * (1 + tanh(u)) = x * sigmoid(2 * u), u = sqrt(2 / pi) * (x + 0.044715 * x**3)
    cubic = a.add(ONE, a.multiply(Fraction(44715, 10**6), a.power(x, TWO)))
    u = a.multiply(a.function("sqrt", a.divide(TWO, pi(a))), a.multiply(x, cubic))
    return a.multiply(x, sigmoid(a, a.multiply(TWO, u)))


def _check_gelu(op: str, parameters: Parameters) -> None:
    if parameters["approximate"] not in ("none", "tanh"):
        found = parameters["approximate"]
        raise InputError(f"{op}: expected approximate to be 'none' or 'tanh', found {found!r}")


def _variadic(step: Callable[[Arithmetic, Any, Any], Any]) -> Operator:
    def meaning(a: Arithmetic, x: Sequence[Any], p: Parameters) -> Any:
        result = x[0]
        for y in x[1:]:
            result = step(a, result, y)
        return result

    return Operator((1, None), {}, meaning)


def _binary(step: Callable[[Arithmetic, Any, Any], Any]) -> Operator:
    return Operator((2, 2), {}, lambda a, x, p: step(a, x[0], x[1]))


def code_range(parameters: Parameters) -> CodeRange:
    """The codes that a Requantize rounds to."""
    zero, low, high = (int(parameters[name]) for name in ("zero_point", "low", "high"))
    return CodeRange(parameters["scale"], zero, low, high)


def _check_requantize(op: str, parameters: Parameters) -> None:
    integers = [parameters[name] for name in ("zero_point", "low", "high")]
    if not parameters["scale"] > 0 or any(n.denominator != 1 for n in integers):
        raise InputError(
            f"{op}: expected a scale > 0 and integers zero_point, low, high, "
            f"found {', '.join(f'{k} = {v}' for k, v in parameters.items())}"
        )


OPERATORS: dict[str, Operator] = {
    "Identity": _unary(lambda a, x, p: x),
    "Relu": _unary(lambda a, x, p: a.maximum(x, ZERO)),
    "LeakyRelu": _unary(lambda a, x, p: _leaky(a, x, p["alpha"]), alpha=0.01),
    "PRelu": _binary(_leaky),
    "Elu": _unary(_elu, alpha=1.0),
    "Selu": _unary(
        lambda a, x, p: a.multiply(p["gamma"], _elu(a, x, p)),
        alpha=1.67326319217681884765625,
        gamma=1.05070102214813232421875,
    ),
    "Celu": Operator((1, 1), {"alpha": ONE}, lambda a, x, p: _celu(a, x[0], p), _check_celu),
    "ThresholdedRelu": _unary(lambda a, x, p: a.multiply(x, a.above(x, p["alpha"])), alpha=1.0),
    "Clip": _unary(_clip, min=None, max=None),
    "Shrink": _unary(_shrink, bias=0.0, lambd=0.5),
    "Tanh": _elementary("tanh"),
    "Sigmoid": _unary(lambda a, x, p: sigmoid(a, x)),
    "HardSigmoid": _unary(
        lambda a, x, p: _hard_sigmoid(a, x, p["alpha"], p["beta"]), alpha=0.2, beta=0.5
    ),
    "HardSwish": _unary(_hard_swish),
    "Swish": _unary(
        lambda a, x, p: a.multiply(x, sigmoid(a, a.multiply(p["alpha"], x))), alpha=1.0
    ),
    "Mish": _unary(lambda a, x, p: a.multiply(x, a.function("tanh", _softplus(a, x)))),
    "Gelu": Operator(
        (1, 1), {"approximate": "none"}, lambda a, x, p: _gelu(a, x[0], p), _check_gelu
    ),
    "Softplus": _unary(lambda a, x, p: _softplus(a, x)),
    "Softsign": _unary(lambda a, x, p: a.divide(x, a.add(ONE, a.absolute(x)))),
    "Reciprocal": _unary(lambda a, x, p: a.divide(ONE, x)),
    "Abs": _unary(lambda a, x, p: a.absolute(x)),
    "Neg": _unary(lambda a, x, p: a.negate(x)),
    "Sign": _unary(lambda a, x, p: a.sign(x)),
    "Floor": _unary(lambda a, x, p: a.floor(x)),
    "Ceil": _unary(lambda a, x, p: a.negate(a.floor(a.negate(x)))),
    "Round": _unary(lambda a, x, p: a.round(x)),
    "Tan": _unary(lambda a, x, p: a.divide(a.function("sin", x), a.function("cos", x))),
    **{name.capitalize(): _elementary(name) for name in ("erf", "exp", "log", "sqrt")},
    **{name.capitalize(): _elementary(name) for name in ("sin", "cos", "asin", "acos", "atan")},
    **{name.capitalize(): _elementary(name) for name in ("sinh", "cosh")},
    **{name.capitalize(): _elementary(name) for name in ("asinh", "acosh", "atanh")},
    "Add": _binary(lambda a, x, y: a.add(x, y)),
    "Sub": _binary(lambda a, x, y: a.subtract(x, y)),
    "Mul": _binary(lambda a, x, y: a.multiply(x, y)),
    "Div": _binary(lambda a, x, y: a.divide(x, y)),
    "Pow": _binary(lambda a, x, y: a.power(x, y)),
    "Min": _variadic(lambda a, x, y: a.minimum(x, y)),
    "Max": _variadic(lambda a, x, y: a.maximum(x, y)),
    "Sum": _variadic(lambda a, x, y: a.add(x, y)),
    # QuantizeLinear, then DequantizeLinear, in the middle of a chain: tables compose into one.
    "Requantize": Operator(
        (1, 1),
        dict.fromkeys(("scale", "zero_point", "low", "high"), REQUIRED),
        lambda a, x, p: a.quantize(x[0], code_range(p)),
        _check_requantize,
    ),
}


# --- evaluation -------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def ordered(expression: Expression) -> tuple[Expression, ...]:
    """The distinct expressions that one is made of, arguments first, itself last."""
    found: dict[Expression, None] = {}
    stack = [expression]
    while stack:
        term = stack[-1]
        waiting = [x for x in term.arguments if x not in found] if isinstance(term, Apply) else []
        stack += waiting
        if not waiting:
            found[stack.pop()] = None
    return tuple(found)


def fold(expression: Expression, x: Any, operate: Callable[[Apply, list[Any]], Any]) -> Any:
    """The value of an expression where the variable is `x`, computing each distinct part once.

    operate: the value of an operator, from those of its arguments
    """
    order = ordered(expression)
    last_use = {a: term for term in order if isinstance(term, Apply) for a in term.arguments}
    values: dict[Expression, Any] = {}
    for term in order:
        if isinstance(term, Apply):
            values[term] = operate(term, [values[argument] for argument in term.arguments])
            for argument in set(term.arguments):
                if last_use[argument] is term:  # long chains of whole tables hold few of them
                    del values[argument]
        else:
            values[term] = term.value if isinstance(term, Constant) else x
    return values[expression]
