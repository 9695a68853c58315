"""Point-wise operators, comparisons and casts."""

from __future__ import annotations

import numpy as np

from samebits.errors import InputError, UnsupportedError
from samebits.ir import Trait, ops_with
from samebits.ir.ops import op_named
from samebits.ir.real.define import ANY, NUMBERS
from samebits.onnx.reader.step import RULES, Result, Step, onnx_op


def same(step: Step) -> Result:
    """The real operator of the same name; its attributes are numbers or text."""
    attributes = {
        name: step.string(name, "") if isinstance(default, str) else step.float_(name, 0.0)
        for name, default in op_named(step.node.op_type).attributes.items()
        if step.given_attribute(name)
    }
    names = _aligned(step) if step.opset < 7 and len(step.inputs) == 2 else step.given()
    return step.out(step.node.op_type, names, **attributes)


def _aligned(step: Step) -> list[str]:
    """Before opset 7 the axes of b are those of a from `axis` on, or the last ones."""
    step.ignore("broadcast")
    a, b = step.given()
    missing = step.rank(0) - step.rank(1)
    if step.node.op_type == "PRelu" and step.rank(1) == 1 and missing > 0:
        axis = 1
    elif step.given_attribute("axis"):
        axis = step.axis(step.int_("axis"), step.rank(0))
    else:
        return [a, b]
    behind = missing - axis
    if behind < 1:
        return [a, b]
    axes = tuple(range(step.rank(1), step.rank(1) + behind))
    return [a, step.emit("Unsqueeze", [b], axes=axes)]


@onnx_op("Identity")
def identity(step: Step) -> Result:
    """The value itself."""
    return step.input(0)


@onnx_op("Mod")
def mod(step: Step) -> Result:
    """Remainders, of floating point with fmod=1 only."""
    return step.out("Mod", step.given(), fmod=step.int_("fmod", 0))


@onnx_op("IsInf")
def is_inf(step: Step) -> Result:
    """Infinities of the wanted signs."""
    return step.out(
        "IsInf",
        step.given(),
        detect_negative=step.int_("detect_negative", 1),
        detect_positive=step.int_("detect_positive", 1),
    )


@onnx_op("BitShift")
def bit_shift(step: Step) -> Result:
    """Shifts of unsigned integers."""
    direction = step.string("direction", "", ("LEFT", "RIGHT"))
    return step.out("BitShift", step.given(), direction=direction)


@onnx_op("Clip")
def clip(step: Step) -> Result:
    """Bounds are attributes before opset 11, then inputs; computed bounds become Max and Min."""
    if step.opset < 11:
        low = step.float_("min", 0.0) if step.given_attribute("min") else None
        high = step.float_("max", 0.0) if step.given_attribute("max") else None
        return step.out("Clip", [step.input(0)], min=low, max=high)
    given = [i for i in (1, 2) if step.has(i)]
    if all(step.is_constant(i) for i in given):
        bounds = {("min", "max")[i - 1]: _bound(step, i) for i in given}
        return step.out("Clip", [step.input(0)], **bounds)
    x = step.input(0)
    for index, op in ((1, "Max"), (2, "Min")):
        if step.has(index):
            last = index == given[-1]
            names = [x, step.input(index)]
            x = step.out(op, names)[0] if last else step.emit(op, names)
    return x


def _bound(step: Step, index: int) -> float | int:
    bound = step.scalar(index, "bound of Clip").item()
    if bound != bound:
        raise InputError("expected bounds of Clip that are numbers, found NaN")
    return bound


@onnx_op("Cast", "CastLike")
def cast(step: Step) -> Result:
    """Conversion to another type; between numbers of known types."""
    target = step.element_type("to") if step.node.op_type == "Cast" else step.value(1).dtype
    step.ignore("saturate", "round_mode")  # both concern 8-bit floating point only
    if target not in (*NUMBERS, "bool"):
        raise UnsupportedError(f"expected a cast to a number of 8 bits or more, found {target}")
    kind = step.value(0).dtype
    if target == kind:
        return step.input(0)
    if kind not in ANY and step.is_constant(0):  # stored as bfloat16 or in 2 bits
        array = step.constant(0, "input of Cast")
        return step.emission.stored(step.outputs[0], array.astype(target), own=True)
    return step.out("Cast", [step.input(0)], to=target)


@onnx_op("Dropout")
def dropout(step: Step) -> Result:
    """Nothing in inference; the mask keeps everything."""
    step.ignore("seed", "ratio", "is_test")  # is_test: opset 6
    if step.has(2) and bool(step.scalar(2, "training_mode")):
        raise UnsupportedError("expected Dropout in inference, found training_mode")
    if len(step.wanted) < 2 or not step.wanted[1]:
        return step.input(0)
    kept = step.array(np.array(True))
    return step.input(0), step.emit("Expand", [kept], shape=step.shape())


# The others have one name in ONNX and in graphs.
_RULED = {name for domain, name in RULES if not domain}
onnx_op("Det", *ops_with(Trait.POINTWISE) - _RULED)(same)
