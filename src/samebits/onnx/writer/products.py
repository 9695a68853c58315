"""Sums of products in integer ONNX, and the emitter that all of its operators share.

8-bit codes go through ConvInteger and MatMulInteger on uint8: the int8 products of some runtimes
saturate on processors without VNNI. All others are windows by Gather and MatMul on int32 or int64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from samebits.ir.graph import Array, Graph, Node
from samebits.ir.integer.bounds import Interval, bounds
from samebits.ir.integer.define import limits
from samebits.ir.integer.realise import positions, transposed_positions
from samebits.onnx.writer.emit import Emitter, unsupported

INT32_LIMIT = 2**31
WIDE = ("int16", "uint16")  # few runtimes compute on them: int32 stands in


class IntegerEmitter(Emitter):
    """An emitter that knows the intervals, with the arithmetic that several operators share."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.intervals: dict[str, Interval] = bounds(graph)

    def check(self, node: Node) -> None:
        """The result is proved to fit its type: a runtime would wrap."""
        dtype = self.graph.values[node.output].dtype
        low, high = limits(dtype)
        interval = self.intervals[node.output].hull
        if interval.low[0] < low or interval.high[0] > high:
            raise unsupported(
                node,
                f"a result that is proved to fit {dtype}",
                f"{interval.low[0]} to {interval.high[0]}",
                "give it the dtype int64",
            )

    def dtype(self, name: str) -> str:
        """The type of a value of the graph."""
        return self.graph.values[name].dtype

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a value of the graph."""
        return self.graph.values[name].shape

    def largest(self, name: str, zero: int = 0) -> int:
        """max |x - zero|."""
        interval = self.intervals[name]
        return max(abs(v - zero) for v in (*interval.low, *interval.high))

    def wide(self, name: str) -> str:
        """A value of the graph as int64."""
        return name if self.dtype(name) == "int64" else self.cast(name, "int64")

    def integer(self, op: str, x: str, number: int, dtype: str = "int64") -> str:
        """`op` with one number; x itself where that changes nothing."""
        if number == (1 if op in ("Mul", "Div") else 0):
            return x
        return self.op(op, x, self.constant(number, dtype))

    def reshape(self, x: str, shape: tuple[int, ...]) -> str:
        """A Reshape to constant sizes."""
        return self.op("Reshape", x, self.constant(shape, "int64"))

    def transpose(self, x: str, *perm: int) -> str:
        """A Transpose; perm as in ONNX."""
        return self.op("Transpose", x, perm=list(perm))

    def quotient(self, v: str, denominator: str) -> str:
        """rne(v / denominator), int64; the denominator is positive.

        ONNX truncates quotients; rounding half to even is odd, hence so is the step away from 0.
        (Sign would say which way, but onnxruntime 1.31 takes it of the low 32 bits.)
        """
        quotient = self.op("Div", v, denominator)
        remainder = self.op("Sub", v, self.op("Mul", quotient, denominator))
        size = self.op("Abs", remainder)
        parity = self.op("BitwiseAnd", quotient, self.constant(1, "int64"))
        twice = self.op("Add", self.op("Add", size, size), parity)
        step = self.cast(self.op("Greater", twice, denominator), "int64")
        below, above = (self.op(op, quotient, step) for op in ("Sub", "Add"))
        return self.op("Where", self.op("Less", v, self.constant(0, "int64")), below, above)

    def saturated(self, codes: str, largest: int, a: Any) -> str:
        """int64 codes, at most `largest` in magnitude, + zero, clipped to [low, high], as dtype."""
        zero, low, high = a["zero"], a["low"], a["high"]
        if largest + abs(zero) < INT32_LIMIT:
            small = self.integer("Add", self.cast(codes, "int32"), zero, "int32")
            return self.cast(self.clip(small, low, high, "int32"), a["dtype"])
        clipped = self.clip(self.integer("Add", codes, zero), low, high, "int64")
        return self.cast(clipped, a["dtype"])

    def clip(self, x: str, low: int, high: int, dtype: str) -> str:
        """min(max(x, low), high)."""
        ends = [self.constant(end, dtype) for end in (low, high)]
        if dtype != "int64":
            return self.op("Clip", x, *ends)
        return self.extreme("Min", self.extreme("Max", x, ends[0], dtype), ends[1], dtype)

    def extreme(self, op: str, a: str, b: str, dtype: str) -> str:
        """Max or Min; by comparison for int64, where onnxruntime 1.31 errs beyond 32 bits."""
        if dtype != "int64":
            return self.op(op, a, b)
        return self.op("Where", self.op("Greater" if op == "Max" else "Less", a, b), a, b)

    def through(self, dtypes: tuple[str, ...], node: Node, rule: Callable[..., str]) -> str:
        """`rule` of the first input, on int32 where its type is one of `dtypes`."""
        x, dtype = node.inputs[0], self.dtype(node.inputs[0])
        if dtype not in dtypes:
            return rule(x)
        return self.cast(rule(self.cast(x, "int32")), self.dtype(node.output))

    def narrowed(self, node: Node, x: str) -> str:
        """int64 as the node's accumulator type."""
        dtype = node.attributes["dtype"]
        return x if dtype == "int64" else self.cast(x, dtype)


Rule = Callable[[IntegerEmitter, Node], str]


# --- sums of products -------------------------------------------------------------------------


def _bytes(emitter: IntegerEmitter, name: str) -> tuple[str, int]:
    """8-bit codes as uint8, and what was added to them."""
    if emitter.dtype(name) == "uint8":
        return name, 0
    shifted = emitter.integer("Add", emitter.cast(name, "int32"), 128, "int32")
    return emitter.cast(shifted, "uint8"), 128


def _byte_weights(emitter: IntegerEmitter, node: Node, terms: int) -> tuple[Array, int] | None:
    """Constant weights as uint8 and what was added, where the sums of `terms` products of bytes
    fit int32 whatever a runtime subtracts when; else None."""
    x, w = node.inputs[:2]
    weights = emitter.graph.constants.get(w)
    if weights is None or emitter.dtype(x) in WIDE or terms * 255 * 255 >= INT32_LIMIT:
        return None
    low, high = int(weights.min(initial=0)), int(weights.max(initial=0))
    if high - low > 255:
        return None
    return (weights.astype(np.int64) - low).astype(np.uint8), -low


def _products(emitter: IntegerEmitter, a: str, b: str, largest: int, terms: int) -> tuple[str, str]:
    """a @ b of int32 tensors and its type: int32 where no partial sum can leave it, else int64."""
    if largest * terms < INT32_LIMIT:
        return emitter.op("MatMul", a, b), "int32"
    return emitter.op("MatMul", emitter.cast(a, "int64"), emitter.cast(b, "int64")), "int64"


def _biased(emitter: IntegerEmitter, node: Node, sums: str, dtype: str) -> str:
    """sums (of `dtype`) + bias, as the node's type."""
    bias, out = node.inputs[2], node.attributes["dtype"]
    if dtype == out == emitter.dtype(bias) == "int32":
        # The whole fits int32 by `check`, and so do both parts: no sum can wrap on the way.
        return emitter.op("Add", sums, bias)
    sums = sums if dtype == "int64" else emitter.cast(sums, "int64")
    total = emitter.op("Add", sums, emitter.wide(bias))
    return total if out == "int64" else emitter.cast(total, out)


def gathered(emitter: IntegerEmitter, node: Node, index: Array, zero: int, outside: int) -> str:
    """Windows of x - zero: int32 [N, P, T, C], `outside` where a tap reads outside the image."""
    x = node.inputs[0]
    n, h, w, c = emitter.shape(x)
    codes = emitter.integer("Sub", emitter.cast(x, "int32"), zero, "int32")
    rows = emitter.reshape(codes, (n, h * w, c))
    if (index == h * w).any():
        fill = emitter.constant(np.full((n, 1, c), outside), "int32")
        rows = emitter.op("Concat", rows, fill, axis=1)
    taken = emitter.op("Gather", rows, emitter.constant(index.reshape(-1), "int64"), axis=1)
    return emitter.reshape(taken, (n, *index.shape, c))


def _windows_times_weights(
    emitter: IntegerEmitter, node: Node, index: Array, zero: int, outside: int
) -> str:
    """A convolution as Gather, Reshape and MatMul, group by group.

    index: [P, T], the pixel that tap t of window p reads. zero: subtracted from every code.
    outside: the number that taps beyond the image read.
    """
    x, w, _ = node.inputs
    groups = node.attributes["groups"]
    (n, _, _, c), (p, t) = emitter.shape(x), index.shape
    out = emitter.shape(w)[0]
    terms = t * c // groups
    rows = gathered(emitter, node, index, zero, outside)
    rows = emitter.reshape(rows, (n, p, t, groups, c // groups))
    rows = emitter.reshape(emitter.transpose(rows, 0, 3, 1, 2, 4), (n, groups, p, terms))
    columns = emitter.reshape(emitter.cast(w, "int32"), (groups, out // groups, terms))
    largest = max(emitter.largest(x, zero), abs(outside)) * emitter.largest(w)
    columns = emitter.transpose(columns, 0, 2, 1)
    sums, dtype = _products(emitter, rows, columns, largest, terms)
    sums = emitter.reshape(emitter.transpose(sums, 0, 2, 1, 3), emitter.shape(node.output))
    return _biased(emitter, node, sums, dtype)


def conv(emitter: IntegerEmitter, node: Node) -> str:
    """ConvInteger on bytes with explicit pads, else windows times weights."""
    x, w, _ = node.inputs
    a = node.attributes
    _, kh, kw, per_group = emitter.shape(w)
    found = _byte_weights(emitter, node, kh * kw * per_group)
    if found is None:
        size = emitter.shape(x)[1:3]
        index = positions((size[0], size[1]), (kh, kw), a)
        return _windows_times_weights(emitter, node, index, 0, a["pad_code"])
    weights, w_shift = found
    codes, x_shift = _bytes(emitter, x)
    image = emitter.transpose(codes, 0, 3, 1, 2)
    if any(a["pads"]):
        top, left, bottom, right = a["pads"]
        ends = emitter.constant((0, 0, top, left, 0, 0, bottom, right), "int64")
        fill = emitter.constant(a["pad_code"] + x_shift, "uint8")
        image = emitter.op("Pad", image, ends, fill)
    sums = emitter.op(
        "ConvInteger",
        image,
        emitter.constant(weights.transpose(0, 3, 1, 2)),
        emitter.constant(x_shift, "uint8"),
        emitter.constant(w_shift, "uint8"),
        strides=list(a["strides"]),
        dilations=list(a["dilations"]),
        group=a["groups"],
        kernel_shape=[kh, kw],
    )
    return _biased(emitter, node, emitter.transpose(sums, 0, 2, 3, 1), "int32")


def conv_transpose(emitter: IntegerEmitter, node: Node) -> str:
    """Windows of the image with gaps times weights."""
    size, kernel = emitter.shape(node.inputs[0])[1:3], emitter.shape(node.inputs[1])[1:3]
    index = transposed_positions((size[0], size[1]), (kernel[0], kernel[1]), node.attributes)
    return _windows_times_weights(emitter, node, index, node.attributes["zero"], 0)


def linear(emitter: IntegerEmitter, node: Node) -> str:
    """MatMulInteger on bytes, else MatMul."""
    x, w, _ = node.inputs
    terms = emitter.shape(w)[1]
    found = _byte_weights(emitter, node, terms)
    if found is None:
        columns = emitter.transpose(emitter.cast(w, "int32"), 1, 0)
        largest = emitter.largest(x) * emitter.largest(w)
        sums, dtype = _products(emitter, emitter.cast(x, "int32"), columns, largest, terms)
        return _biased(emitter, node, sums, dtype)
    weights, w_shift = found
    codes, x_shift = _bytes(emitter, x)
    rows = emitter.reshape(codes, (math.prod(emitter.shape(x)[:-1]), terms))
    sums = emitter.op(
        "MatMulInteger",
        rows,
        emitter.constant(weights.T),
        emitter.constant(x_shift, "uint8"),
        emitter.constant(w_shift, "uint8"),
    )
    return _biased(emitter, node, emitter.reshape(sums, emitter.shape(node.output)), "int32")


def matmul(emitter: IntegerEmitter, node: Node) -> str:
    """MatMulInteger on bytes, else MatMul; both operands are data."""
    a = node.attributes
    terms = emitter.shape(node.inputs[0])[-1]
    zeros = (a["a_zero"], a["b_zero"])
    types = [emitter.dtype(name) for name in node.inputs]
    fit = all(limits(t)[0] <= z <= limits(t)[1] for t, z in zip(types, zeros, strict=True))
    if fit and not set(types) & set(WIDE) and terms * 255 * 255 < INT32_LIMIT:
        pairs = [_bytes(emitter, name) for name in node.inputs]
        points = [
            emitter.constant(zero + shift, "uint8")
            for zero, (_, shift) in zip(zeros, pairs, strict=True)
        ]
        sums, dtype = emitter.op("MatMulInteger", *(name for name, _ in pairs), *points), "int32"
    else:
        sides = [
            emitter.integer("Sub", emitter.cast(name, "int32"), zero, "int32")
            for name, zero in zip(node.inputs, zeros, strict=True)
        ]
        largest = math.prod(map(emitter.largest, node.inputs, zeros))
        sums, dtype = _products(emitter, sides[0], sides[1], largest, terms)
    return sums if dtype == a["dtype"] else emitter.cast(sums, a["dtype"])


def resample(emitter: IntegerEmitter, node: Node) -> str:
    """Weighted rows, then weighted columns of them, one tap after the other."""
    x = emitter.integer("Sub", emitter.wide(node.inputs[0]), node.attributes["zero"])
    for axis, names in ((1, node.inputs[1:3]), (2, node.inputs[3:])):
        tables = [emitter.graph.constants.get(name) for name in names]
        places, weights = (np.asarray(table) for table in tables)  # constant, as `bounds` says
        shape = [-1 if i == axis else 1 for i in range(4)]
        terms = []
        for at, w in zip(places.T, weights.T, strict=True):
            rows = emitter.op("Gather", x, emitter.constant(at, "int64"), axis=axis)
            terms.append(emitter.op("Mul", rows, emitter.constant(w.reshape(shape), "int64")))
        x = terms[0]
        for term in terms[1:]:
            x = emitter.op("Add", x, term)
    return emitter.narrowed(node, x)
