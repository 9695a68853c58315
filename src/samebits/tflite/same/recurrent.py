"""Operators with a state: filters over time, and a recurrent layer."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from samebits import ledger
from samebits.errors import InputError, UnsupportedError
from samebits.ir.integer.define import limits
from samebits.spec.rounding import Rounding
from samebits.tflite.file import Array, Scaling
from samebits.tflite.same.curves import entries_of, nearest_power
from samebits.tflite.same.multiplier import doubled, half_up, split
from samebits.tflite.same.node import SameNode, same_op, scale_of
from samebits.tflite.schema import ACTIVATIONS

HIDDEN, CELL = 18, 19  # inputs of a recurrent layer that change in place
INPUT, FORGET, NEW, OUTPUT = range(4)  # its gates, in the order of their weights
UNIT, GATE = 2.0**-15, float(np.float32(2.0**-12))  # scales of what gates give and take
STEPS_MOST = 1 << 10  # of a recurrent layer in one run
STEP_BYTES = 1 << 17  # that the operators of a step take in memory
_POINT = {"strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0)}


@same_op("SVDF")
def _svdf(node: SameNode) -> str:
    """Features of the input go into a line of the last ones, and weights of time sum each line."""
    (features, of), (times, at) = node.weights(1), node.weights(2, ("int8", "int16"))
    state, to = node.tensor(4), scale_of(node.result)
    filters, memory = times.shape if times.ndim == 2 else (0, 0)
    rank, batch = node.option("rank"), node.tensor(0).shape[0]
    if node.kind != "int8" or node.result.dtype != "int8" or not state.variable:
        raise UnsupportedError("expected codes of int8 and a variable state, found others")
    if rank < 1 or filters % rank or state.shape != (batch, filters * memory) or not memory:
        raise InputError(f"expected a state of {filters} lines of {memory}, found {state}")
    if ACTIVATIONS.get(node.option("activation")) not in ("RELU", "NONE"):
        raise UnsupportedError("expected the activation RELU, which the kernel does not compute")
    quotient, zero = node.runtime.quotient, node.scale(4).zero_points[0]
    if len(of) != 1 or len(at) != 1:
        raise UnsupportedError("expected weights of one scale, found several")
    product = node.runtime.product("SVDF", node.scale(0), Scaling(of))
    first = doubled(*split(quotient("SVDF", product, node.scale(4).scales[0])))
    product = node.runtime.product("SVDF", node.scale(4), Scaling(at))
    last = doubled(*split(quotient("SVDF", product, to.scales[0])))
    if zero:
        raise UnsupportedError(f"expected a state with zero point 0, found {zero}")
    total = _products(node, node.input(0), features, None, node.scale(0).zero_points[0])
    new = node.rounded(total, first, dtype=state.dtype)
    line = node.emit("reshape", [node.input(4)], shape=(batch, filters, memory))
    new = node.emit("reshape", [new], shape=(batch, filters, 1))
    if memory > 1:
        starts, stops = (0, 0, 1), (batch, filters, memory)
        later = node.emit("slice", [line], starts=starts, stops=stops, steps=(1, 1, 1))
        new = node.emit("concat", [later, new], axis=2)
    node.becomes(4, node.emit("reshape", [new], shape=(batch, filters * memory)))
    units, taps = filters // rank, rank * memory
    rows = node.emit("reshape", [new], shape=(batch, 1, 1, units * taps))
    by = np.ascontiguousarray(times.reshape(units, 1, 1, taps))
    weights = node.builder.constant(f"{node.hint}.times", by)
    each = [rows, weights, node.bias(3, by, 0)]
    sums = node.emit("conv", each, groups=units, pad_code=0, dtype="int64", **_POINT)
    sums = node.emit("reshape", [sums], shape=(batch, units))
    return node.requantized(sums, last, low=limits("int8")[0])


def _products(node: SameNode, x: str, rows: Array, bias: int | None, zero: int) -> str:
    """Sums of codes less their zero point times rows of weights."""
    weights = node.builder.constant(f"{node.hint}.weight", np.ascontiguousarray(rows, np.int8))
    return node.emit("linear", [x, weights, node.bias(bias, rows, zero)], dtype="int64")


@same_op("UNIDIRECTIONAL_SEQUENCE_LSTM")
def _lstm(node: SameNode) -> str:
    """Step after step; hidden and cell state stay from one run to the next."""
    major, shape = node.option("time_major"), node.tensor(0).shape
    hidden, cell, to = node.tensor(HIDDEN), node.tensor(CELL), node.result
    if len(shape) != 3 or any(node.has(i) for i in (9, 10, 11, 16, 17, 20, 21, 22, 23)):
        raise UnsupportedError("expected a layer without peepholes, projection and norms")
    if not (hidden.variable and cell.variable and cell.dtype == "int16"):
        raise UnsupportedError("expected variable states, that of the cell of int16")
    if (hidden.dtype, hidden.quantization) != (to.dtype, to.quantization) or node.kind != to.dtype:
        raise UnsupportedError("expected a result with the type and scale of the hidden state")
    if ACTIVATIONS.get(node.option("activation")) != "TANH":
        raise UnsupportedError("expected the activation TANH, found another")
    steps = shape[0 if major else 1]
    if not 1 <= steps <= STEPS_MOST:
        raise UnsupportedError(f"expected 1 to {STEPS_MOST} steps in one run, found {steps}")
    ledger.keep(STEP_BYTES * steps, node.hint)
    layer, outputs = _Layer(node), []
    for step in range(steps):
        starts, stops = [0, 0, 0], list(shape)
        axis = 0 if major else 1
        starts[axis], stops[axis] = step, step + 1
        ends = {"starts": tuple(starts), "stops": tuple(stops), "steps": (1, 1, 1)}
        x = node.emit("slice", [node.input(0)], **ends)
        layer.step(node.emit("reshape", [x], shape=(shape[1 - axis], shape[2])))
        one = (1, *hidden.shape) if major else (hidden.shape[0], 1, *hidden.shape[1:])
        outputs.append(node.emit("reshape", [layer.hidden], shape=one))
    node.becomes(HIDDEN, layer.hidden)
    node.becomes(CELL, layer.cell)
    return node.moved("concat", outputs, axis=0 if major else 1)


class _Layer:
    """The states of a layer under way. tables: of gates, and of the cell"""

    def __init__(self, node: SameNode) -> None:
        self.node, self.wide = node, node.kind == "int16"
        self.hidden, self.cell = node.input(HIDDEN), node.input(CELL)
        self.unit = node.scale(CELL).scales[0]
        power, place = nearest_power(self.unit)
        left = 15 + place - 3
        if not power or not -15 <= left <= 12:
            raise UnsupportedError(f"expected a power of 2 as the cell's scale, found {self.unit}")
        squashed = entries_of(0, left, True) if left >= 0 else entries_of(3, -left, True)
        self.sigmoid, self.tanh, self.squash = (
            node.table(name, entries)
            for name, entries in (
                ("sigmoid", entries_of(0, 0, False)),
                ("tanh", entries_of(0, 0, True)),
                ("squash", squashed),
            )
        )
        self.clip = 0
        if (most := float(node.option("cell_clip"))) > 0:
            self.clip = int(min(most / self.unit, 32767.0))
            if not self.clip:
                raise UnsupportedError(
                    f"expected a cell_clip of at least a cell's scale, {self.unit}, found {most}"
                )

    def step(self, x: str) -> None:
        """One step, from its input."""
        node = self.node
        forget, given = self._gate(FORGET, x, self.sigmoid), self._gate(INPUT, x, self.sigmoid)
        new = self._gate(NEW, x, self.tanh)
        kept = self._product(forget, self.cell, UNIT * self.unit / self.unit)
        self.cell = self._sum(kept, self._product(given, new, UNIT * UNIT / self.unit))
        if self.clip:
            ends = {"low": -self.clip, "high": self.clip}
            self.cell = node.emit("clip", [self.cell], **ends)
        out = self._gate(OUTPUT, x, self.sigmoid)
        of, dtype = scale_of(node.tensor(HIDDEN)), node.kind
        low, high = limits(dtype)
        total = node.emit(
            "multiply", [node.emit("table", [self.cell, self.squash]), out], dtype="int64"
        )
        ends = {"zero": of.zero_points[0], "low": low, "high": high}
        by = doubled(*split(UNIT * UNIT / of.scales[0]))
        self.hidden = node.rounded(total, by, dtype=dtype, **ends)

    def _gate(self, gate: int, x: str, table: str) -> str:
        node, parts = self.node, []
        for value, at, of, bias in ((x, 1, 0, 12 + gate), (self.hidden, 5, HIDDEN, None)):
            rows, scales = node.weights(at + gate)
            if len(scales) != 1:
                raise UnsupportedError("expected weights of one scale, found several")
            scaling = node.scale(of)
            total = _products(node, value, rows, bias, scaling.zero_points[0])
            ratio = node.runtime.ratio(node.operator.op, (scaling.scales[0], scales[0]), GATE)
            by: Rounding = (half_up if self.wide else doubled)(*split(ratio))
            parts.append(node.rounded(total, by))
        return node.emit("table", [self._sum(*parts), table])

    def _product(self, a: str, b: str, ratio: float) -> str:
        """The product of two codes, times a ratio."""
        total = self.node.emit("multiply", [a, b], dtype="int64")
        return self.node.rounded(total, doubled(*split(ratio)))

    def _sum(self, *parts: str) -> str:
        """The saturated sum of two codes."""
        total = self.node.emit("add", parts, factors=(1, 1), offset=0, dtype="int64")
        return self.node.rounded(total, Fraction(1))
