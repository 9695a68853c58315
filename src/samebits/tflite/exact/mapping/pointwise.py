"""Element-wise operators."""

from __future__ import annotations

from samebits.errors import InputError, UnsupportedError
from samebits.ir.foreign import Result
from samebits.ir.real.define import FLOATS
from samebits.tflite.exact.node import LiteNode, lite_op

ALIKE = {
    "ABS": "Abs",
    "CEIL": "Ceil",
    "COS": "Cos",
    "ELU": "Elu",
    "EXP": "Exp",
    "FLOOR": "Floor",
    "HARD_SWISH": "HardSwish",
    "LOG": "Log",
    "LOGISTIC": "Sigmoid",
    "NEG": "Neg",
    "ROUND": "Round",
    "SIGN": "Sign",
    "SIN": "Sin",
    "SQRT": "Sqrt",
    "TANH": "Tanh",
}
"""Functions of one variable that real graphs have by another name."""

ACTIVATED = {"ADD": "Add", "DIV": "Div", "MUL": "Mul", "SUB": "Sub"}
PLAIN = {"MAXIMUM": "Max", "MINIMUM": "Min", "POW": "Pow"}


def _single(node: LiteNode) -> str:
    if len(node.operator.inputs) != 1:
        raise InputError(f"expected 1 input, found {len(node.operator.inputs)}")
    return node.input(0)


@lite_op(*ALIKE)
def _alike(node: LiteNode) -> Result:
    return node.pointwise(ALIKE[node.op], _single(node))


@lite_op("RELU", "RELU6", "RELU_N1_TO_1")
def _bounded(node: LiteNode) -> Result:
    return node.bounded(_single(node), node.op)


@lite_op("LEAKY_RELU")
def _leaky_relu(node: LiteNode) -> Result:
    return node.pointwise("LeakyRelu", _single(node), alpha=float(node.option("alpha")))


@lite_op("GELU")
def _gelu(node: LiteNode) -> Result:
    approximate = "tanh" if node.option("approximate") else "none"
    return node.pointwise("Gelu", _single(node), approximate=approximate)


@lite_op("SQUARE")
def _square(node: LiteNode) -> Result:
    x = _single(node)
    return node.pointwise("Mul", x, x)


@lite_op("RSQRT")
def _reciprocal_root(node: LiteNode) -> Result:
    return node.pointwise("Reciprocal", node.pointwise("Sqrt", _single(node)))


def _two(node: LiteNode) -> list[str]:
    values = node.inputs()
    if len(values) != 2:
        raise InputError(f"expected 2 inputs, found {len(values)}")
    return values


@lite_op("PRELU")
def _prelu(node: LiteNode) -> Result:
    return node.pointwise("PRelu", *_two(node))


@lite_op(*ACTIVATED)
def _activated(node: LiteNode) -> Result:
    """A sum, difference, product or quotient, and a fused activation."""
    return node.activated(node.pointwise(ACTIVATED[node.op], *_two(node)))


@lite_op(*PLAIN)
def _plain(node: LiteNode) -> Result:
    return node.pointwise(PLAIN[node.op], *_two(node))


@lite_op("SQUARED_DIFFERENCE")
def _squared_difference(node: LiteNode) -> Result:
    difference = node.pointwise("Sub", *_two(node))
    return node.pointwise("Mul", difference, difference)


@lite_op("ADD_N")
def _sum(node: LiteNode) -> Result:
    return node.pointwise("Sum", *node.inputs())


@lite_op("QUANTIZE", "DEQUANTIZE")
def _quantize(node: LiteNode) -> Result:
    """The numbers as they are: the tensor that holds them says whether they are rounded."""
    x, wanted = _single(node), node.result()
    if node.dtype_of(x) in FLOATS:
        if wanted.dtype == node.dtype_of(x) or wanted.quantization is not None:
            return node.pointwise("Identity", x)
        if wanted.dtype in FLOATS:
            return node.pointwise("Cast", x, to=wanted.dtype)
    raise UnsupportedError(f"expected numbers with scales, found {node.tensor(0)} and {wanted}")


@lite_op("CAST")
def _cast(node: LiteNode) -> Result:
    return node.pointwise("Cast", _single(node), to=node.result().dtype)


@lite_op("SOFTMAX")
def _softmax(node: LiteNode) -> Result:
    """Along the last axis, of the scores times beta."""
    x, beta = _single(node), float(node.option("beta"))
    if beta != 1.0:
        x = node.emit("Mul", x, node.number(beta, node.dtype_of(x)))
    return node.emit("Softmax", x, axis=-1)


@lite_op("LOG_SOFTMAX")
def _log_softmax(node: LiteNode) -> Result:
    return node.emit("LogSoftmax", _single(node), axis=-1)
