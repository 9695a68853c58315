"""Point-wise operators, comparisons and casts."""

from __future__ import annotations

import numpy as np

from samebits.errors import InputError, UnsupportedError
from samebits.ir import Trait, ops_with
from samebits.ir.ops import op_named
from samebits.ir.real.define import ANY, NUMBERS
from samebits.onnx.reader.node import RULES, OnnxNode, Result, onnx_op


def _same(node: OnnxNode) -> Result:
    """The real operator of the same name, whose attributes are numbers or text."""
    attributes = {
        name: node.string(name, "") if isinstance(default, str) else node.float_(name, 0.0)
        for name, default in op_named(node.op).attributes.items()
        if name in node.attributes
    }
    names = _aligned(node) if node.opset < 7 and len(node.inputs) == 2 else node.given()
    return node.out(node.op, *names, **attributes)


def _aligned(node: OnnxNode) -> list[str]:
    """Both inputs of a node before opset 7, b with axes so that it broadcasts as today.

    Then the axes of b were those of a from the attribute `axis` on, or the last ones.
    """
    node.ignore("broadcast")
    a, b = node.given()
    missing = node.rank(0) - node.rank(1)
    if node.op == "PRelu" and node.rank(1) == 1 and missing > 0:
        axis = 1
    elif "axis" in node.attributes:
        axis = node.axis(node.int_("axis"), node.rank(0))
    else:
        return [a, b]
    behind = missing - axis
    if behind < 1:
        return [a, b]
    axes = tuple(range(node.rank(1), node.rank(1) + behind))
    return [a, node.emit("Unsqueeze", b, axes=axes)]


@onnx_op("Identity")
def _identity(node: OnnxNode) -> Result:
    """The value itself."""
    return node.input(0)


@onnx_op("Mod")
def _mod(node: OnnxNode) -> Result:
    """Remainders, of floating point with fmod=1 only."""
    return node.out("Mod", *node.given(), fmod=node.int_("fmod", 0))


@onnx_op("IsInf")
def _is_inf(node: OnnxNode) -> Result:
    """Whether an element is infinite, with one of the wanted signs."""
    return node.out(
        "IsInf",
        *node.given(),
        detect_negative=node.int_("detect_negative", 1),
        detect_positive=node.int_("detect_positive", 1),
    )


@onnx_op("BitShift")
def _bit_shift(node: OnnxNode) -> Result:
    """Shifts of unsigned integers."""
    direction = node.string("direction", "", ("LEFT", "RIGHT"))
    return node.out("BitShift", *node.given(), direction=direction)


@onnx_op("Clip")
def _clip(node: OnnxNode) -> Result:
    """Numbers limited to bounds, which are attributes before opset 11 and inputs from there on.

    Computed bounds become Max and Min.
    """
    if node.opset < 11:
        low = node.float_("min", 0.0) if "min" in node.attributes else None
        high = node.float_("max", 0.0) if "max" in node.attributes else None
        return node.out("Clip", node.input(0), min=low, max=high)
    given = [i for i in (1, 2) if node.has(i)]
    if all(node.is_constant(i) for i in given):
        bounds = {("min", "max")[i - 1]: _bound(node, i) for i in given}
        return node.out("Clip", node.input(0), **bounds)
    x = node.input(0)
    for index, op in ((1, "Max"), (2, "Min")):
        if node.has(index):
            last = index == given[-1]
            names = [x, node.input(index)]
            x = node.out(op, *names)[0] if last else node.emit(op, *names)
    return x


def _bound(node: OnnxNode, index: int) -> float | int:
    bound = node.scalar(index, "bound of Clip").item()
    if bound != bound:
        raise InputError("expected bounds of Clip that are numbers, found NaN")
    return bound


@onnx_op("Cast", "CastLike")
def _cast(node: OnnxNode) -> Result:
    """Conversion between numbers and booleans."""
    target = node.element_type("to") if node.op == "Cast" else node.dtype(1)
    node.ignore("saturate", "round_mode")  # both concern 8-bit floating point only
    if target not in (*NUMBERS, "bool"):
        raise UnsupportedError(f"expected a cast to a number of 8 bits or more, found {target}")
    kind = node.dtype()
    if target == kind:
        return node.input(0)
    if kind not in ANY and node.is_constant(0):  # stored as bfloat16 or in 2 bits
        array = node.array(0, "input of Cast")
        return node.builder.stored(node.outputs[0], array.astype(target), own=True)
    return node.out("Cast", node.input(0), to=target)


@onnx_op("Dropout")
def _dropout(node: OnnxNode) -> Result:
    """In inference, the input itself and a mask that keeps everything."""
    node.ignore("seed", "ratio", "is_test")  # is_test: opset 6
    if node.has(2) and bool(node.scalar(2, "training_mode")):
        raise UnsupportedError("expected Dropout in inference, found training_mode")
    if len(node.wanted) < 2 or not node.wanted[1]:
        return node.input(0)
    kept = node.constant(np.array(True))
    return node.input(0), node.emit("Expand", kept, shape=node.shape())


# The others have one name in ONNX and in graphs.
_RULED = {name for domain, name in RULES if not domain}
onnx_op("Det", *ops_with(Trait.POINTWISE) - _RULED)(_same)
