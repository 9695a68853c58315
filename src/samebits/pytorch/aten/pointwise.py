"""Element by element: functions, arithmetic, comparisons, copies."""

from __future__ import annotations

import math

import torch

from samebits.ir.foreign import Result
from samebits.ir.ops import is_known
from samebits.pytorch.call import AtenCall, aten, binary32, dtype_name

# --- point-wise -------------------------------------------------------------------------------

_UNARY = {
    **{name: name.capitalize() for name in (
        *("relu", "selu", "tanh", "sigmoid", "softsign", "mish", "erf", "exp", "log", "sqrt"),
        *("reciprocal", "abs", "neg", "floor", "ceil", "sin", "cos", "tan", "asin", "acos"),
        *("atan", "sinh", "cosh", "asinh", "acosh", "atanh"),
    )},
    "sign": "Sign", "sgn": "Sign", "hardswish": "HardSwish", "silu": "Swish",
    "logical_not": "Not",
}  # fmt: skip


def _unary(call: AtenCall) -> Result:
    name = call.op
    x = call.tensor("self" if "self" in call.arguments else "input")
    return call.emit(_UNARY[name], call.cast(x, call.out_dtype))


aten(*_UNARY)(_unary)


@aten("round")
def _round(call: AtenCall) -> Result:
    if call.get("decimals"):
        raise call.unsupported("no decimals", call["decimals"])
    return call.emit("Round", call.tensor("self"))


@aten("relu6")
def _relu6(call: AtenCall) -> Result:
    return call.emit("Clip", call.tensor("self"), min=0.0, max=6.0)


@aten("hardtanh")
def _hardtanh(call: AtenCall) -> Result:
    return _clipped(call, call["min_val"], call["max_val"])


@aten("clamp", "clamp_min", "clamp_max", "clip")
def _clamp(call: AtenCall) -> Result:
    return _clipped(call, call.get("min"), call.get("max"))


def _clipped(call: AtenCall, low: object, high: object) -> str:
    x = call.cast(call.tensor("self"), call.out_dtype)
    bounds = []
    for bound in (low, high):
        if bound is not None and not isinstance(bound, int | float):
            raise call.unsupported("numbers as bounds", bound)
        bounds.append(None if bound is None else binary32(float(bound)))
    return call.emit("Clip", x, min=bounds[0], max=bounds[1])


@aten("leaky_relu")
def _leaky_relu(call: AtenCall) -> Result:
    alpha = binary32(call["negative_slope"])
    return call.emit("LeakyRelu", call.tensor("self"), alpha=alpha)


@aten("prelu", "_prelu_kernel")
def _prelu(call: AtenCall) -> Result:
    x, slope = call.tensor("self"), call.tensor("weight")
    rank, count = call.rank_of(x), math.prod(call.shape_of(slope))
    if rank >= 2 and call.rank_of(slope) <= 1:
        slope = call.reshape(slope, (count, *[1] * (rank - 2)))
    return call.emit("PRelu", x, slope)


@aten("elu")
def _elu(call: AtenCall) -> Result:
    if call["scale"] != 1 or call["input_scale"] != 1:
        raise call.unsupported("scale and input_scale of 1", (call["scale"], call["input_scale"]))
    return call.emit("Elu", call.tensor("self"), alpha=binary32(call["alpha"]))


@aten("celu")
def _celu(call: AtenCall) -> Result:
    return call.emit("Celu", call.tensor("self"), alpha=binary32(call["alpha"]))


@aten("gelu")
def _gelu(call: AtenCall) -> Result:
    return call.emit("Gelu", call.tensor("self"), approximate=call["approximate"])


@aten("hardsigmoid")
def _hard_sigmoid(call: AtenCall) -> Result:
    return call.emit("HardSigmoid", call.tensor("self"), alpha=binary32(1 / 6), beta=0.5)


@aten("softplus")
def _softplus(call: AtenCall) -> Result:
    """Above `threshold` torch returns x itself, nearer to softplus than binary32 tells."""
    x, beta = call.tensor("self"), float(call["beta"])
    if beta == 1.0:
        return call.emit("Softplus", x)
    factor = call.number(beta, call.dtype_of(x))
    return call.emit("Div", call.emit("Softplus", call.emit("Mul", x, factor)), factor)


@aten("log_sigmoid")
def _log_sigmoid(call: AtenCall) -> Result:
    return call.emit("Neg", call.emit("Softplus", call.emit("Neg", call.tensor("self"))))


@aten("softshrink", "hardshrink")
def _shrink(call: AtenCall) -> Result:
    lambd = binary32(call["lambd"])
    bias = lambd if "softshrink" in call.op else 0.0
    return call.emit("Shrink", call.tensor("self"), lambd=lambd, bias=bias)


@aten("threshold")
def _threshold(call: AtenCall) -> Result:
    if call["value"] != 0:
        raise call.unsupported("the value 0", call["value"])
    return call.emit("ThresholdedRelu", call.tensor("self"), alpha=binary32(call["threshold"]))


@aten("rsqrt")
def _rsqrt(call: AtenCall) -> Result:
    return call.emit("Reciprocal", call.emit("Sqrt", call.tensor("self")))


@aten("log1p")
def _log1p(call: AtenCall) -> Result:
    x = call.cast(call.tensor("self"), call.out_dtype)
    return call.emit("Log", call.emit("Add", x, call.number(1, call.out_dtype)))


@aten("expm1")
def _expm1(call: AtenCall) -> Result:
    x = call.cast(call.tensor("self"), call.out_dtype)
    return call.emit("Sub", call.emit("Exp", x), call.number(1, call.out_dtype))


@aten("square")
def _square(call: AtenCall) -> Result:
    x = call.tensor("self")
    return call.emit("Mul", x, x)


_BINARY = {
    "maximum": "Max", "minimum": "Min", "logical_and": "And", "logical_or": "Or",
    "logical_xor": "Xor", "mul": "Mul", "bitwise_and": "And", "bitwise_or": "Or",
    "bitwise_xor": "Xor",
}  # fmt: skip


@aten(*_BINARY)
def _binary(call: AtenCall) -> Result:
    op = _BINARY[call.op]
    if is_known(f"Bitwise{op}") and call.out_dtype != "bool":
        op = f"Bitwise{op}"
    return call.emit(op, *(call.operand(name, call.out_dtype) for name in ("self", "other")))


@aten("bitwise_not")
def _bitwise_not(call: AtenCall) -> Result:
    return call.emit("Not" if call.out_dtype == "bool" else "BitwiseNot", call.tensor("self"))


@aten("div", "true_divide")
def _div(call: AtenCall) -> Result:
    if call.get("rounding_mode") is not None:
        raise call.unsupported("a division that does not round", call["rounding_mode"])
    return call.emit("Div", *(call.operand(name, call.out_dtype) for name in ("self", "other")))


@aten("add", "sub", "rsub")
def _add(call: AtenCall) -> Result:
    """self + alpha * other, and so on."""
    dtype, name = call.out_dtype, call.op
    a, b = call.operand("self", dtype), call.operand("other", dtype)
    if call["alpha"] != 1:
        alpha = call.number(call["alpha"], dtype)
        if name == "rsub":
            a = call.emit("Mul", a, alpha)
        else:
            b = call.emit("Mul", b, alpha)
    if name == "rsub":
        a, b = b, a
    return call.emit("Add" if name == "add" else "Sub", a, b)


@aten("pow")
def _pow(call: AtenCall) -> Result:
    dtype, exponent = call.out_dtype, call["exponent"]
    x = call.operand("self", dtype)
    if exponent == 1:
        return x
    if exponent == 2:
        return call.emit("Mul", x, x)
    if exponent == 0.5:
        return call.emit("Sqrt", x)
    return call.emit("Pow", x, call.operand("exponent", dtype))


_COMPARISONS = {
    "eq": "Equal", "gt": "Greater", "ge": "GreaterOrEqual", "lt": "Less", "le": "LessOrEqual",
    "ne": "Equal",
}  # fmt: skip


@aten(*_COMPARISONS)
def _compare(call: AtenCall) -> Result:
    sides = [call["self"], call["other"]]
    metas = [side.meta["val"] if hasattr(side, "meta") else side for side in sides]
    dtype = dtype_name(torch.result_type(*metas), call.where)
    name = call.op
    found = call.emit(_COMPARISONS[name], *(call.operand(k, dtype) for k in ("self", "other")))
    return call.emit("Not", found) if name == "ne" else found


@aten("where")
def _where(call: AtenCall) -> Result:
    sides = [call.operand(name, call.out_dtype) for name in ("self", "other")]
    return call.emit("Where", call.tensor("condition"), *sides)


@aten("masked_fill")
def _masked_fill(call: AtenCall) -> Result:
    value = call.operand("value", call.out_dtype)
    return call.emit("Where", call.tensor("mask"), value, call.tensor("self"))


@aten("dropout", "alpha_dropout", "feature_dropout", "native_dropout")
def _dropout(call: AtenCall) -> Result:
    if call["train"]:
        raise call.unsupported("dropout of a module in eval mode", "one that is always active")
    x = call.tensor("input")
    return (x, x) if "native_dropout" in call.op else x


@aten("clone", "contiguous", "detach", "alias", "lift_fresh_copy", "_to_copy", "to", "type_as")
def _copy(call: AtenCall) -> Result:
    return call.cast(call.tensor("self"), call.out_dtype)
