"""Tables of the neural processor's activations: one entry for each of the 65,536 binary16 inputs.

docs/spec/npu.md section 1. Entries are correctly rounded: a binary64 interval (`Screen`) decides
most, enclosures of growing precision the rest (Ziv's strategy). This ends: sigmoid and tanh of a
nonzero binary16 number are transcendental, so never a tie.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache

import numpy as np
import numpy.typing as npt

from samebits.spec.npu_binary16 import NAN_BITS, binary16_bits, to_binary16
from samebits.tables import interval
from samebits.tables.expression import OPERATORS, Expression, Variable, apply, steps
from samebits.tables.interval import PRECISIONS, Enclosure
from samebits.tables.screen import Screen, Span
from samebits.tables.transfer import evaluate

ENTRIES = 1 << 16
NEGATIVE_ZERO, INFINITY, NEGATIVE_INFINITY = 0x8000, 0x7C00, 0xFC00
SATURATED = 64.0
# (operator, bits at -infinity, -0, +0 and +infinity); NaN gives NaN
FUNCTIONS = {
    "sigmoid": ("Sigmoid", (0x0000, 0x3800, 0x3800, 0x3C00)),
    "tanh": ("Tanh", (0xBC00, NEGATIVE_ZERO, 0x0000, 0x3C00)),
}

Bits = npt.NDArray[np.uint16]


def sigmoid_table() -> Bits:
    """uint16 [65536]: entry i holds the bits of sigmoid(x), x the binary16 number of bits i.

    Every NaN gives 0x7E00. Cached, read-only.
    """
    return _table("sigmoid")


def tanh_table() -> Bits:
    """uint16 [65536]: as `sigmoid_table`, of tanh."""
    return _table("tanh")


@cache
def _table(name: str) -> Bits:
    operator, special = FUNCTIONS[name]
    f = apply(operator, Variable())
    inputs = np.arange(ENTRIES, dtype=np.uint16).view(np.float16)
    table, decided = _screen(f, inputs)
    points = (NEGATIVE_INFINITY, NEGATIVE_ZERO, 0, INFINITY)
    table[list(points)] = special
    table[np.isnan(inputs)] = NAN_BITS
    decided[list(points)] = True
    decided[np.isnan(inputs)] = True
    for at in np.flatnonzero(~decided).tolist():
        table[at] = _ziv(f, Fraction(float(inputs[at])))
    table.flags.writeable = False
    return table


def _screen(f: Expression, inputs: npt.NDArray[np.float16]) -> tuple[Bits, npt.NDArray[np.bool_]]:
    """Bits of f, and which of them are decided: where both ends of an interval round alike."""
    arithmetic = Screen()
    values: list[Span | Fraction | None] = []
    with np.errstate(all="ignore"):
        # f is monotone, and from 64 on as near its limit (2**-92) as any code can tell.
        exact = np.clip(inputs.astype(np.float64), -SATURATED, SATURATED)
        for step in steps(f):
            if step.op is None:
                values.append(Span(exact, exact) if step.value is None else step.value)
                continue
            operands = [values[index] for index in step.arguments]
            values.append(OPERATORS[step.op].meaning(arithmetic, operands, step.parameters))
        found = values[-1]
        assert isinstance(found, Span)
        low, high = (end.astype(np.float16).view(np.uint16) for end in found)
    return low, (low == high) & ~np.isnan(found.low)


def _ziv(f: Expression, x: Fraction) -> int:
    for precision in PRECISIONS:
        value = evaluate(f, x, precision)
        assert isinstance(value, Enclosure), (x, "no value")
        ends = {to_binary16(interval.to_fraction(end.value)) for end in value}
        if len(ends) == 1:
            return binary16_bits(ends.pop())
    raise AssertionError(x, "closer to a tie than 2**-4000")
