"""Tables of the neural processor's activations: one entry for each of the 65,536 binary16 inputs.

docs/spec/npu.md section 1. Entries are correctly rounded: a binary64 interval (`Screen`) decides
most, enclosures of growing precision the rest (`precise`, Ziv's loop). This ends: sigmoid and tanh
of a nonzero binary16 number are transcendental (Lindemann-Weierstrass), so never a tie.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache

import numpy as np
import numpy.typing as npt

from samebits.spec.npu_binary16 import NAN_BITS, binary16_bits, to_binary16
from samebits.tables.expression import OPERATORS
from samebits.tables.precise import ends, one_result, rounded
from samebits.tables.screen import Screen, Span

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
    special = FUNCTIONS[name][1]
    inputs = np.arange(ENTRIES, dtype=np.uint16).view(np.float16)
    table, decided = _screen(name, inputs)
    points = [NEGATIVE_INFINITY, NEGATIVE_ZERO, 0, INFINITY]
    table[points] = special
    table[np.isnan(inputs)] = NAN_BITS
    decided[points] = True
    decided[np.isnan(inputs)] = True
    for at in np.flatnonzero(~decided).tolist():
        table[at] = _nearest(name, Fraction(float(inputs[at])))
    table.flags.writeable = False
    return table


def _screen(name: str, inputs: npt.NDArray[np.float16]) -> tuple[Bits, npt.NDArray[np.bool_]]:
    """Bits of f, and which of them are decided: where both ends of an interval round alike."""
    with np.errstate(all="ignore"):
        # f is monotone, and from 64 on as near its limit (2**-92) as any code can tell.
        exact = np.clip(inputs.astype(np.float64), -SATURATED, SATURATED)
        found = OPERATORS[FUNCTIONS[name][0]].meaning(Screen(), [Span(exact, exact)], {})
        low, high = (end.astype(np.float16).view(np.uint16) for end in found)
    return low, (low == high) & ~np.isnan(found.low)


def _nearest(name: str, x: Fraction) -> int:
    """The bits of f(x), x != 0, by Ziv's loop."""
    f = OPERATORS[FUNCTIONS[name][0]].meaning
    found = rounded(
        lambda a: f(a, [x], {}), lambda value, final: one_result(ends(value), to_binary16)
    )
    assert found is not None
    return binary16_bits(found)
