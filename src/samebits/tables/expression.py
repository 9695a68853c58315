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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import Any, Protocol, SupportsFloat, SupportsIndex

from samebits.errors import InputError, UnsupportedError

Parameter = Fraction | str | None
Parameters = Mapping[str, Any]
HALF, ZERO, ONE, TWO = Fraction(1, 2), Fraction(0), Fraction(1), Fraction(2)


class Arithmetic(Protocol):
    """What an operator's meaning is written in; operands are the arithmetic's own or Fractions."""

    def add(self, x: Any, y: Any) -> Any: ...
    def subtract(self, x: Any, y: Any) -> Any: ...
    def multiply(self, x: Any, y: Any) -> Any: ...
    def divide(self, x: Any, y: Any) -> Any: ...
    def negate(self, x: Any) -> Any: ...
    def absolute(self, x: Any) -> Any: ...
    def maximum(self, x: Any, y: Any) -> Any: ...
    def minimum(self, x: Any, y: Any) -> Any: ...
    def floor(self, x: Any) -> Any: ...
    def round(self, x: Any) -> Any: ...
    def sign(self, x: Any) -> Any: ...
    def above(self, x: Any, threshold: Fraction) -> Any: ...
    def power(self, x: Any, y: Any) -> Any: ...
    def function(self, name: str, x: Any) -> Any: ...
    def quantize(self, x: Any, scale: Fraction, zero: int, low: int, high: int) -> Any: ...


# --- nodes ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Node:
    """Base of the nodes. Equal content is equal: nodes compare and hash by SHA-256.

    (A hash over the tree would take time exponential in the depth of a DAG, and recursion.)
    """

    digest: bytes = field(init=False, repr=False)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Node) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def _seal(self, *content: bytes) -> None:
        joined = b"".join(len(part).to_bytes(8, "little") + part for part in content)
        object.__setattr__(self, "digest", hashlib.sha256(joined).digest())


@dataclass(frozen=True, eq=False)
class Variable(Node):
    """The one variable."""

    def __post_init__(self) -> None:
        self._seal(b"variable")


@dataclass(frozen=True, eq=False)
class Constant(Node):
    """An exact number."""

    value: Fraction

    def __post_init__(self) -> None:
        self._seal(b"constant", _bytes(self.value))


@dataclass(frozen=True, eq=False, repr=False)
class Apply(Node):
    """An operator on arguments. Build it with `apply`, which checks and completes it."""

    op: str
    arguments: tuple[Expression, ...]
    parameters: tuple[tuple[str, Parameter], ...]  # complete, in order of name

    def __post_init__(self) -> None:
        content = [self.op.encode(), *(argument.digest for argument in self.arguments)]
        for name, value in self.parameters:
            content += [name.encode(), _bytes(value)]
        self._seal(b"apply", *content)

    def __repr__(self) -> str:
        shown = [f"{len(self.arguments)} arguments", *(f"{k}={v}" for k, v in self.parameters)]
        return f"Apply({self.op}, {', '.join(shown)})"


Expression = Variable | Constant | Apply


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
    values = tuple(
        (name, _parameter(op, name, complete[name], default))
        for name, default in sorted(record.parameters.items())
    )
    record.check(op, dict(values))
    nodes = tuple(
        argument if isinstance(argument, Node) else Constant(_number(op, "argument", argument))
        for argument in arguments
    )
    return Apply(op, nodes, values)


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


def _sigmoid(a: Arithmetic, x: Any) -> Any:
    return a.divide(ONE, a.add(ONE, a.function("exp", a.negate(x))))


def _hard_sigmoid(a: Arithmetic, x: Any, alpha: Fraction, beta: Fraction) -> Any:
    return a.maximum(ZERO, a.minimum(ONE, a.add(a.multiply(alpha, x), beta)))


def _hard_swish(a: Arithmetic, x: Any, p: Parameters) -> Any:
    return a.multiply(x, _hard_sigmoid(a, x, Fraction(1, 6), HALF))


def _softplus(a: Arithmetic, x: Any) -> Any:
    """log(1 + exp(x)), as max(x, 0) + log(1 + exp(-|x|)): above max(x, 0), however little."""
    decay = a.function("exp", a.negate(a.absolute(x)))
    return a.add(a.maximum(x, ZERO), a.function("log", a.add(ONE, decay)))


def _gelu(a: Arithmetic, x: Any, p: Parameters) -> Any:
    if p["approximate"] == "none":  # x * Phi(x), Phi(x) = erfc(-x / sqrt(2)) / 2
        tail = a.function("erfc", a.negate(a.divide(x, a.function("sqrt", TWO))))
        return a.multiply(a.multiply(x, HALF), tail)
    # x / 2 * (1 + tanh(u)) = x * sigmoid(2 * u), u = sqrt(2 / pi) * (x + 0.044715 * x**3)
    pi = a.multiply(TWO, a.function("acos", ZERO))
    cubic = a.add(ONE, a.multiply(Fraction(44715, 10**6), a.power(x, TWO)))
    u = a.multiply(a.function("sqrt", a.divide(TWO, pi)), a.multiply(x, cubic))
    return a.multiply(x, _sigmoid(a, a.multiply(TWO, u)))


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


def _requantize(a: Arithmetic, x: Any, p: Parameters) -> Any:
    zero, low, high = (int(p[name]) for name in ("zero_point", "low", "high"))
    return a.quantize(x, p["scale"], zero, low, high)


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
    "Sigmoid": _unary(lambda a, x, p: _sigmoid(a, x)),
    "HardSigmoid": _unary(
        lambda a, x, p: _hard_sigmoid(a, x, p["alpha"], p["beta"]), alpha=0.2, beta=0.5
    ),
    "HardSwish": _unary(_hard_swish),
    "Swish": _unary(
        lambda a, x, p: a.multiply(x, _sigmoid(a, a.multiply(p["alpha"], x))), alpha=1.0
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
        lambda a, x, p: _requantize(a, x[0], p),
        _check_requantize,
    ),
}


# --- evaluation order -------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """One node: a constant, the variable (neither a value nor an op), or an operator.

    arguments: indexes of earlier steps
    """

    value: Fraction | None = None
    op: str | None = None
    arguments: tuple[int, ...] = ()
    parameters: Parameters = field(default_factory=dict)


@lru_cache(maxsize=256)
def steps(expression: Expression) -> tuple[Step, ...]:
    """The distinct nodes, arguments first, the expression itself last."""
    index: dict[Expression, int] = {}
    out: list[Step] = []
    stack: list[Expression] = [expression]
    while stack:
        node = stack[-1]
        if node in index:
            stack.pop()
            continue
        arguments = node.arguments if isinstance(node, Apply) else ()
        waiting = [argument for argument in arguments if argument not in index]
        if waiting:
            stack += waiting
            continue
        stack.pop()
        index[node] = len(out)
        out.append(_step(node, [index[argument] for argument in arguments]))
    return tuple(out)


def _step(node: Expression, arguments: Iterable[int]) -> Step:
    if isinstance(node, Constant):
        return Step(value=node.value)
    if isinstance(node, Variable):
        return Step()
    return Step(op=node.op, arguments=tuple(arguments), parameters=dict(node.parameters))
