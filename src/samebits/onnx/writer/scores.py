"""Quotients, roots and rows of scores in integer ONNX: logarithms, the greatest or the least."""

from __future__ import annotations

import numpy as np

from samebits.ir.graph import Node
from samebits.ir.integer.normalize import FRACTION_BITS
from samebits.ir.integer.root import root_bits
from samebits.onnx.writer.emit import unsupported
from samebits.onnx.writer.products import IntegerEmitter
from samebits.spec.fixed import FIRST, ONE, SLOPE, SUM_BITS


def log_softmax(emitter: IntegerEmitter, node: Node) -> str:
    """docs/spec/graph.md 3.2: a bit of the logarithm is whether a square has reached 2."""
    x, t = node.inputs
    a, wide, last = node.attributes, emitter.wide(x), emitter.constant([-1], "int64")
    greatest = emitter.op("ReduceMax", wide, last, keepdims=1)
    below = emitter.op("Sub", greatest, wide)
    powers = emitter.op("Gather", emitter.wide(t), below, axis=0)
    total = emitter.op("ReduceSum", powers, last, keepdims=1)
    total = emitter.extreme("Max", total, emitter.constant(1, "int64"), "int64")
    raised = emitter.op("Unsqueeze", total, last)
    ends = emitter.constant(1 << np.arange(1, 62), "int64")
    reached = emitter.cast(emitter.op("GreaterOrEqual", raised, ends), "int64")
    whole = emitter.op("ReduceSum", reached, last, keepdims=0)

    def power(exponents: object) -> str:
        return emitter.op("Gather", emitter.constant(exponents, "int64"), whole, axis=0)

    places = np.arange(62)
    mantissa = emitter.op("Mul", total, power(1 << np.maximum(30 - places, 0)))
    mantissa = emitter.op("Div", mantissa, power(1 << np.maximum(places - 30, 0)))
    level = emitter.integer("Sub", whole, FRACTION_BITS)
    two = emitter.constant(2, "int64")
    for _ in range(FRACTION_BITS):
        square = emitter.op("Mul", mantissa, mantissa)
        mantissa = emitter.integer("Div", square, 1 << 30)
        bit = emitter.integer("Div", mantissa, 1 << 31)
        mantissa = emitter.op("Div", mantissa, emitter.integer("Add", bit, 1))
        level = emitter.op("Add", emitter.op("Mul", level, two), bit)
    steps = emitter.integer("Mul", below, a["m"])
    total = emitter.op("Neg", emitter.op("Add", steps, emitter.integer("Mul", level, a["b"])))
    codes = emitter.quotient(total, emitter.constant(1 << a["shift"], "int64"))
    return emitter.saturated(codes, (1 << 61) >> a["shift"], a)


def fixed_softmax(emitter: IntegerEmitter, node: Node) -> str:
    """`spec.fixed.Shares`, step by step; what may be negative is raised before it is shifted."""
    (x, t), a = node.inputs, node.attributes
    by, wide, last = a["ratio"], emitter.wide(x), emitter.constant([-1], "int64")

    def floor(v: str, right: int) -> str:
        """v / 2**right, rounded down; |v| < 2**62."""
        above = emitter.integer("Div", emitter.integer("Add", v, 1 << 62), 1 << right)
        return emitter.integer("Sub", above, 1 << (62 - right))

    def product(v: str, w: str) -> str:
        return floor(emitter.integer("Add", emitter.op("Mul", v, w), 1 << 30), 31)

    greatest = emitter.op("ReduceMax", wide, last, keepdims=1)
    powers = emitter.op("Gather", emitter.wide(t), emitter.op("Sub", greatest, wide), axis=0)
    parts = emitter.integer("Div", emitter.integer("Add", powers, 1 << 11), 1 << SUM_BITS)
    total = emitter.op("ReduceSum", parts, last, keepdims=1)
    ends = emitter.constant(1 << np.arange(20, 31), "int64")
    raised = emitter.op("Unsqueeze", total, last)
    reached = emitter.cast(emitter.op("GreaterOrEqual", raised, ends), "int64")
    length = emitter.op("ReduceSum", reached, last, keepdims=0)  # less 20
    lengths = np.arange(20, 32)

    def power(exponents: object) -> str:
        return emitter.op("Gather", emitter.constant(exponents, "int64"), length, axis=0)

    half = emitter.op("Mul", total, power(1 << (31 - lengths)))
    found = product(half, emitter.constant(SLOPE, "int64"))
    found = emitter.integer("Add", found, FIRST)
    for _ in range(3):
        rest = emitter.op("Sub", emitter.constant(1 << 29, "int64"), product(half, found))
        step = emitter.integer("Mul", product(found, rest), 4)
        found = emitter.op("Add", found, step)
    twice, one = emitter.integer("Mul", found, 2), emitter.constant(ONE, "int64")
    codes = product(emitter.extreme("Min", twice, one, "int64"), powers)
    right = SUM_BITS - 1 + lengths - by.bits
    codes = emitter.op("Add", codes, power(1 << (right - 1)))
    return emitter.saturated(emitter.op("Div", codes, power(1 << right)), 1 << by.bits, a)


def divide(emitter: IntegerEmitter, node: Node) -> str:
    """One rounded quotient an element. UnsupportedError where a product might leave 62 bits."""
    (x, y), a = node.inputs, node.attributes
    numerator, denominator = a["ratio"].as_integer_ratio()
    largest = emitter.largest(x) * numerator
    if largest >= 1 << 62 or emitter.largest(y) * denominator > 1 << 62:
        advice = "use scales nearer to one another"
        raise unsupported(node, "products that fit 64 bits", a["ratio"], advice)
    divisor = emitter.extreme("Max", emitter.wide(y), emitter.constant(1, "int64"), "int64")
    codes = emitter.quotient(
        emitter.integer("Mul", emitter.wide(x), numerator),
        emitter.integer("Mul", divisor, denominator),
    )
    return emitter.saturated(codes, largest, a)


def root(emitter: IntegerEmitter, node: Node) -> str:
    """The greatest k that is reached, bit by bit from the top (docs/spec/graph.md 3.3): what is
    tried at the last bit is odd, all before it even, so that comparisons settle ties."""
    a, zero = node.attributes, emitter.constant(0, "int64")
    x = emitter.extreme("Max", emitter.wide(node.inputs[0]), zero, "int64")
    whole, found = emitter.integer("Mul", x, 4 * a["p"]), emitter.op("Sub", x, x)
    for bit in reversed(range(root_bits(a))):
        tried = emitter.integer("Add", found, 1 << bit)
        odd = emitter.integer("Sub", emitter.op("Add", tried, tried), 1)
        edge = emitter.integer("Mul", emitter.op("Mul", odd, odd), a["q"])
        reached = emitter.op("LessOrEqual" if bit else "Less", edge, whole)
        found = emitter.op("Where", reached, tried, found)
    return emitter.saturated(found, 1 << root_bits(a), a)


def top_k(emitter: IntegerEmitter, node: Node) -> str:
    """TopK, which breaks ties by the lower index."""
    a, x = node.attributes, emitter.cast(node.inputs[0], "int32")
    count, order = emitter.constant([a["k"]], "int64"), int(a["largest"])
    outputs = [emitter.fresh(f"{node.output}.{part}") for part in ("codes", "places")]
    given = {"axis": a["axis"], "largest": order, "sorted": 1}
    codes, places = emitter.ops("TopK", [x, count], given, outputs)
    if node.op == "top_k_index":
        return emitter.op("Identity", places)
    return emitter.cast(codes, emitter.dtype(node.output))
