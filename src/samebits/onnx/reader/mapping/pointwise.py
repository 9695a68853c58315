"""Point-wise operators, comparisons and casts."""

from __future__ import annotations

import numpy as np

from samebits.errors import InputError, UnsupportedError
from samebits.ir import Trait, ops_with
from samebits.ir.ops import op_named
from samebits.ir.real.define import INTEGERS, code_range
from samebits.ir.real.minifloat import ROUND_MODES
from samebits.ir.real.quantize import saturation
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


@onnx_op("BitCast")
def _bit_cast(node: OnnxNode) -> Result:
    """The bits of numbers as numbers of another type of the same width."""
    to = node.element_type("to")
    return node.out("BitCast", node.input(0), source=node.dtype(), to=to)


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
        low, high = (
            _number(node.float_(name, 0.0, finite=False)) if name in node.attributes else None
            for name in ("min", "max")
        )
        return node.out("Clip", node.input(0), min=low, max=high)
    given = [i for i in (1, 2) if node.has(i)]
    if all(node.is_constant(i) for i in given):
        bounds = {("min", "max")[i - 1]: _bound(node, i) for i in given}
        saturated = _saturated(node, bounds.get("min"), bounds.get("max"))
        return saturated or node.out("Clip", node.input(0), **bounds)
    x = node.input(0)
    for index, op in ((1, "Max"), (2, "Min")):
        if node.has(index):
            last = index == given[-1]
            names = [x, node.input(index)]
            x = node.out(op, *names)[0] if last else node.emit(op, *names)
    return x


def _saturated(node: OnnxNode, low: float | None, high: float | None) -> Result | None:
    """A clip of the codes that a QuantizeLinear makes, as one whose codes saturate there.

    A Cast to a wider integer may stand between them, since runtimes clip no 16-bit integers. None
    for any other clip.
    """
    made, wide = node.builder.producer(node.input(0)), False
    if made is not None and made.op == "Cast":
        wide = _widens(node.dtype_of(made.inputs[0]), node.dtype())
        made = node.builder.producer(made.inputs[0]) if wide else None
    if made is None or made.op != "QuantizeLinear":
        return None
    kind = node.dtype_of(made.output)
    ends = [end if low is None else max(end, low) for end in saturation(kind, made.attributes)]
    ends = [end if high is None else min(end, high) for end in ends]
    least, most = code_range(kind)
    if not all(least <= end <= most for end in ends):
        return None
    attributes = {**made.attributes, "low": int(ends[0]), "high": int(ends[1])}
    if not wide:
        return node.out("QuantizeLinear", *made.inputs, **attributes)
    codes = node.emit("QuantizeLinear", *made.inputs, **attributes)
    return node.out("Cast", codes, to=node.dtype())


def _widens(kind: str, to: str) -> bool:
    """Whether a cast to an integer type keeps every integer of another."""
    return all(np.dtype(t).kind in "iu" for t in (kind, to)) and np.can_cast(kind, to)


def _bound(node: OnnxNode, index: int) -> float | int:
    return _number(node.scalar(index, "bound of Clip").item())


def _number(bound: float | int) -> float | int:
    if bound != bound:
        raise InputError("expected bounds of Clip that are numbers, found NaN")
    return bound


@onnx_op("Cast", "CastLike")
def _cast(node: OnnxNode) -> Result:
    """Conversion between numbers and booleans."""
    target = node.element_type("to") if node.op == "Cast" else node.dtype(1)
    kind = node.dtype()
    if target == kind:
        return node.input(0)
    before = node.builder.producer(node.input(0))
    if before is not None and before.op == "Cast":
        codes = before.inputs[0]
        if node.dtype_of(codes) == target and target in INTEGERS and _widens(target, kind):
            made = node.builder.producer(codes)
            if made is None or made.op != "QuantizeLinear":
                return codes
            return node.out(made.op, *made.inputs, **made.attributes)  # under a name of its own
    return node.out(
        "Cast",
        node.input(0),
        to=target,
        saturate=int(node.flag("saturate", True)),
        round_mode=node.string("round_mode", "up", ROUND_MODES),
    )


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
