"""Rules of point-wise operators: instructions of the multifunction units. docs/spec/npu.md 1."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from samebits.errors import UnsupportedError
from samebits.ir.graph import Node
from samebits.npu.compiler.build import Builder
from samebits.npu.compiler.layout import Array, UnitOperation, View
from samebits.npu.compiler.rules import Input, Rule, Shape, constant_of, view_of
from samebits.npu.machine.isa import INSTRUCTIONS
from samebits.spec.npu_binary16 import LARGEST


def _activation(op: str) -> Rule:
    def rule(b: Builder, node: Node, inputs: Sequence[Input], shape: Shape) -> View:
        x = view_of(inputs[0])
        view = b.operate(node.name, x, UnitOperation(op))
        return replace(view, nonnegative=INSTRUCTIONS[op].nonnegative([x.nonnegative]))

    return rule


def clipped(b: Builder, name: str, x: View, low: float, high: float) -> View:
    """min(max(x, low), high). There is no minimum: -max(-x, -high), with products by -1."""
    if high < math.inf:
        x = b.with_constant(f"{name}_minus", "vv_mul", x, np.asarray(-1.0))
        x = b.with_constant(f"{name}_high", "vv_max", x, np.asarray(-high))
        x = b.with_constant(f"{name}_minus", "vv_mul", x, np.asarray(-1.0))
    if low == 0:
        x = b.operate(name, x, UnitOperation("v_relu"))
    elif low > -math.inf:
        x = b.with_constant(f"{name}_low", "vv_max", x, np.asarray(low))
    return replace(x, nonnegative=low >= 0)


def _clip(b: Builder, node: Node, inputs: Sequence[Input], shape: Shape) -> View:
    low, high = node.attributes["min"], node.attributes["max"]
    low = -math.inf if low is None else float(low)
    high = math.inf if high is None else float(high)
    return clipped(b, node.name, view_of(inputs[0]), min(low, high), high)


def _affine(b: Builder, name: str, x: View, factor: Array, offset: Array) -> View:
    x = b.with_constant(f"{name}_factor", "vv_mul", x, factor)
    return b.with_constant(f"{name}_offset", "vv_add", x, offset)


def _negative(b: Builder, node: Node, inputs: Sequence[Input], shape: Shape) -> View:
    minus = np.asarray(-1.0)
    return b.with_constant(f"{node.name}_minus", "vv_mul", view_of(inputs[0]), minus)


def combined(b: Builder, name: str, op: str, x: View, other: View) -> View:
    """`op` of two tensors of the same shape, or of which one broadcasts along rows and columns."""
    for first, second, made in ((x, other, op), (other, x, INSTRUCTIONS[op].exchanged)):
        if (
            made is None
            or np.broadcast_shapes(x.places.shape, other.places.shape) != first.places.shape
        ):
            continue
        operand = b.operand(first, second)
        if operand is not None:
            return b.operate(name, first, UnitOperation(made, operand))
    raise UnsupportedError(
        "expected tensors laid out alike (or a vector of channels beside an image), found "
        f"{list(x.places.shape)} and {list(other.places.shape)} in other orders"
    )


def _binary(op: str) -> Rule:
    def rule(b: Builder, node: Node, inputs: Sequence[Input], shape: Shape) -> View:
        made: Input = inputs[0]
        for other in inputs[1:]:
            made = _two(b, node, op, made, other)
        return view_of(made)

    return rule


def _two(b: Builder, node: Node, op: str, x: Input, other: Input) -> View:
    if isinstance(x, View) and isinstance(other, View):
        view = combined(b, node.name, op, x, other)
        known = INSTRUCTIONS[op].nonnegative([x.nonnegative, other.nonnegative])
        return replace(view, nonnegative=known)
    if isinstance(other, View):
        exchanged = INSTRUCTIONS[op].exchanged
        assert exchanged is not None, "operators become instructions that can be exchanged"
        return _two(b, node, exchanged, other, x)
    view, constant = view_of(x), constant_of(other, "operand")
    if op == "vv_add":  # what a softmax leaves out
        constant = np.where(np.isneginf(constant), -LARGEST, constant)
    return b.with_constant(f"{node.name}_constant", op, view, _aligned(view, constant))


def _aligned(view: View, constant: Array) -> Array:
    """A constant that broadcasts to the tensor; the tensor must not broadcast to it."""
    shape = view.places.shape
    if np.broadcast_shapes(shape, constant.shape) != shape:
        raise UnsupportedError(
            f"expected a constant that broadcasts to {list(shape)}, found {list(constant.shape)}"
        )
    return constant


def _minimum(b: Builder, node: Node, inputs: Sequence[Input], shape: Shape) -> View:
    """-max(-x, -y)."""
    minus = np.asarray(-1.0)
    negated = [
        b.with_constant(f"{node.name}_minus", "vv_mul", x, minus) if isinstance(x, View) else -x
        for x in inputs
        if x is not None
    ]
    view = _binary("vv_max")(b, node, negated, shape)
    return b.with_constant(f"{node.name}_minus", "vv_mul", view, minus)


def _divide(b: Builder, node: Node, inputs: Sequence[Input], shape: Shape) -> View:
    """Times the reciprocal of the divisor, rounded to binary16."""
    x, divisor = inputs
    if isinstance(divisor, View):
        return _two(b, node, "vv_mul", x, reciprocal(b, node.name, divisor))
    view = view_of(x)
    if not isinstance(divisor, np.ndarray) or not divisor.all():
        raise UnsupportedError("expected a constant divisor other than 0")
    return b.with_constant(f"{node.name}_ratio", "vv_mul", view, _aligned(view, 1.0 / divisor))


def reciprocal(b: Builder, name: str, x: View) -> View:
    """1 / x. Padding becomes 1: an infinity there would spoil the blocks that it is part of."""
    return b.operate(name, b.padded(name, x, 1.0), UnitOperation("v_recip"))


def _inverse(b: Builder, node: Node, inputs: Sequence[Input], shape: Shape) -> View:
    return reciprocal(b, node.name, view_of(inputs[0]))


def _logarithm(b: Builder, node: Node, inputs: Sequence[Input], shape: Shape) -> View:
    x = b.padded(node.name, view_of(inputs[0]), 1.0)
    return b.operate(node.name, x, UnitOperation("v_log"))


def _root(b: Builder, node: Node, inputs: Sequence[Input], shape: Shape) -> View:
    """1 / (1 / sqrt x), which is right for 0 and for infinity too."""
    x = view_of(inputs[0])
    view = b.operate(node.name, x, UnitOperation("v_rsqrt"), UnitOperation("v_recip"))
    return replace(view, nonnegative=True)


def _elu(b: Builder, node: Node, inputs: Sequence[Input], shape: Shape) -> View:
    """max(x, 0) + alpha * (exp(min(x, 0)) - 1)."""
    x, name = view_of(inputs[0]), node.name
    above = b.operate(name, x, UnitOperation("v_relu"))
    below = b.operate(name, _negative(b, node, inputs, shape), UnitOperation("v_relu"))
    below = b.with_constant(f"{name}_minus", "vv_mul", below, np.asarray(-1.0))
    below = b.operate(name, below, UnitOperation("v_exp"))
    below = b.with_constant(f"{name}_one", "vv_add", below, np.asarray(-1.0))
    alpha = float(node.attributes["alpha"])
    if alpha != 1.0:
        below = b.with_constant(f"{name}_alpha", "vv_mul", below, np.asarray(alpha))
    return combined(b, name, "vv_add", above, below)


def _softplus(b: Builder, node: Node, inputs: Sequence[Input], shape: Shape) -> View:
    """max(x, 0) + log(1 + exp(-|x|))."""
    x, name = view_of(inputs[0]), node.name
    above = b.operate(name, x, UnitOperation("v_relu"))
    size = _absolute(b, node, inputs, shape)
    power = b.with_constant(f"{name}_minus", "vv_mul", size, np.asarray(-1.0))
    power = b.operate(name, power, UnitOperation("v_exp"))
    power = b.with_constant(f"{name}_one", "vv_add", b.padded(name, power, 1.0), np.asarray(1.0))
    view = combined(b, name, "vv_add", above, b.operate(name, power, UnitOperation("v_log")))
    return replace(view, nonnegative=True)


def _gelu(b: Builder, node: Node, inputs: Sequence[Input], shape: Shape) -> View:
    """x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))), which differs from the form with
    the error function by at most 5e-4."""
    x, name = view_of(inputs[0]), node.name
    scale = math.sqrt(2 / math.pi)
    factors = np.asarray(0.044715 * scale), np.asarray(scale)
    inner = _affine(b, name, combined(b, name, "vv_mul", x, x), *factors)
    inner = combined(b, name, "vv_mul", inner, x)
    gate = b.operate(name, inner, UnitOperation("v_tanh"))
    gate = _affine(b, f"{name}_half", gate, np.asarray(0.5), np.asarray(0.5))
    return combined(b, name, "vv_mul", gate, x)


def _leaky_relu(b: Builder, node: Node, inputs: Sequence[Input], shape: Shape) -> View:
    """max(x, alpha * x), which it is for 0 <= alpha <= 1."""
    x = view_of(inputs[0])
    slope = inputs[1] if node.op == "PRelu" else np.asarray(float(node.attributes["alpha"]))
    if not isinstance(slope, np.ndarray) or slope.min() < 0 or slope.max() > 1:
        raise UnsupportedError("expected constant slopes from 0 to 1")
    scaled = b.with_constant(f"{node.name}_alpha", "vv_mul", x, _aligned(x, slope))
    return combined(b, node.name, "vv_max", scaled, x)


def _absolute(b: Builder, node: Node, inputs: Sequence[Input], shape: Shape) -> View:
    """max(x, -x)."""
    view = combined(b, node.name, "vv_max", _negative(b, node, inputs, shape), view_of(inputs[0]))
    return replace(view, nonnegative=True)


def _hard_sigmoid(b: Builder, node: Node, inputs: Sequence[Input], shape: Shape) -> View:
    """min(max(alpha * x + beta, 0), 1); HardSwish is x times that."""
    x = view_of(inputs[0])
    swish = node.op == "HardSwish"
    alpha = 1 / 6 if swish else float(node.attributes["alpha"])
    beta = 0.5 if swish else float(node.attributes["beta"])
    gate = _affine(b, node.name, x, np.asarray(alpha), np.asarray(beta))
    gate = clipped(b, node.name, gate, 0.0, 1.0)
    return combined(b, node.name, "vv_mul", gate, x) if swish else gate


def _swish(b: Builder, node: Node, inputs: Sequence[Input], shape: Shape) -> View:
    """x * sigmoid(alpha * x)."""
    x = gate = view_of(inputs[0])
    alpha = float(node.attributes["alpha"])
    if alpha != 1.0:
        gate = b.with_constant(f"{node.name}_alpha", "vv_mul", x, np.asarray(alpha))
    gate = b.operate(node.name, gate, UnitOperation("v_sigm"))
    return combined(b, node.name, "vv_mul", gate, x)


def _batch_norm(b: Builder, node: Node, inputs: Sequence[Input], shape: Shape) -> View:
    """A product and a sum for each channel."""
    x, *parameters = inputs
    if not all(isinstance(p, np.ndarray) for p in parameters):
        raise UnsupportedError("expected constant parameters")
    per_channel = (1, -1, *[1] * (len(shape) - 2))
    scale, bias, mean, variance = (np.asarray(p).reshape(per_channel) for p in parameters)
    factor = scale / np.sqrt(variance + float(node.attributes["epsilon"]))
    return _affine(b, node.name, view_of(x), factor, bias - mean * factor)


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "Relu": _activation("v_relu"),
        "Sigmoid": _activation("v_sigm"),
        "Tanh": _activation("v_tanh"),
        "Clip": _clip,
        "Neg": _negative,
        "Abs": _absolute,
        "Add": _binary("vv_add"),
        "Sum": _binary("vv_add"),
        "Sub": _binary("vv_a_sub_b"),
        "Mul": _binary("vv_mul"),
        "Max": _binary("vv_max"),
        "Min": _minimum,
        "Div": _divide,
        "Exp": _activation("v_exp"),
        "Log": _logarithm,
        "Sqrt": _root,
        "Reciprocal": _inverse,
        "Elu": _elu,
        "Softplus": _softplus,
        "Gelu": _gelu,
        "LeakyRelu": _leaky_relu,
        "PRelu": _leaky_relu,
        "HardSigmoid": _hard_sigmoid,
        "HardSwish": _hard_sigmoid,
        "Swish": _swish,
        "BatchNormalization": _batch_norm,
    }
)
