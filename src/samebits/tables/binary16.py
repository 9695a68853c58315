"""Tables of the neural processor's activations: one entry for each of the 65,536 binary16 inputs.

docs/spec/npu.md section 1. Entries are correctly rounded: a binary64 interval (`Screen`) decides
most, enclosures of growing precision the rest (`precise`, Ziv's loop). This ends: sigmoid, tanh and
exp of a nonzero binary16 number, and the logarithm of one that is not 1, are transcendental
(Lindemann-Weierstrass), so never a tie.

1 / x and 1 / sqrt x are computed in binary64 (IEEE 754 rounds quotients and roots correctly) and
rounded again. That is one rounding: a number half-way between two of binary16 has 12 bits, so the
product of x, of 11 bits, and its square differs from 1 by at least 2**-36 of it, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable
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
ONE = 0x3C00
# (operator, how far from 0 it still changes: it is monotone, and beyond as near its limit as any
# code can tell (2**-92 at 64), bits at -infinity, -0, +0 and +infinity); NaN gives
# NaN, and so does a number below 0 where that is what -infinity gives
FUNCTIONS = {
    "sigmoid": ("Sigmoid", 64.0, (0x0000, 0x3800, 0x3800, ONE)),
    "tanh": ("Tanh", 64.0, (0xBC00, NEGATIVE_ZERO, 0x0000, ONE)),
    "exponential": ("Exp", 64.0, (0x0000, ONE, ONE, INFINITY)),
    "logarithm": ("Log", 65504.0, (NAN_BITS, NEGATIVE_INFINITY, NEGATIVE_INFINITY, INFINITY)),
}

Bits = npt.NDArray[np.uint16]
Numbers = npt.NDArray[np.float64]


def sigmoid_table() -> Bits:
    """uint16 [65536]: entry i holds the bits of sigmoid(x), x the binary16 number of bits i.

    Every NaN gives 0x7E00. Cached, read-only.
    """
    return _table("sigmoid")


def tanh_table() -> Bits:
    """uint16 [65536]: as `sigmoid_table`, of tanh."""
    return _table("tanh")


def exponential_table() -> Bits:
    """uint16 [65536]: as `sigmoid_table`, of exp."""
    return _table("exponential")


def logarithm_table() -> Bits:
    """uint16 [65536]: as `sigmoid_table`, of the natural logarithm; NaN below 0."""
    return _table("logarithm")


@cache
def reciprocal_table() -> Bits:
    """uint16 [65536]: as `sigmoid_table`, of 1 / x; of a zero the infinity of its sign."""
    return _quotients(lambda x: x)


@cache
def inverse_root_table() -> Bits:
    """uint16 [65536]: as `reciprocal_table`, of 1 / sqrt x; NaN below 0."""
    return _quotients(np.sqrt)


def _quotients(divisor: Callable[[Numbers], Numbers]) -> Bits:
    with np.errstate(all="ignore"):
        exact = np.arange(ENTRIES, dtype=np.uint16).view(np.float16).astype(np.float64)
        found = (1.0 / divisor(exact)).astype(np.float16)
    table = np.where(np.isnan(found), NAN_BITS, found.view(np.uint16)).astype(np.uint16)
    table.flags.writeable = False
    return table


@cache
def _table(name: str) -> Bits:
    _, _, special = FUNCTIONS[name]
    inputs = np.arange(ENTRIES, dtype=np.uint16).view(np.float16)
    table, decided = _screen(name, inputs)
    points = [NEGATIVE_INFINITY, NEGATIVE_ZERO, 0, INFINITY]
    table[points] = special
    nothing = np.isnan(inputs) | ((inputs < 0) & (special[0] == NAN_BITS))
    table[nothing] = NAN_BITS
    decided[points] = True
    decided[nothing] = True
    for at in np.flatnonzero(~decided).tolist():
        table[at] = _nearest(name, Fraction(float(inputs[at])))
    table.flags.writeable = False
    return table


def _screen(name: str, inputs: npt.NDArray[np.float16]) -> tuple[Bits, npt.NDArray[np.bool_]]:
    """Bits of f, and which of them are decided: where both ends of an interval round alike."""
    operator, limit, _ = FUNCTIONS[name]
    with np.errstate(all="ignore"):
        exact = np.clip(inputs.astype(np.float64), -limit, limit)
        found = OPERATORS[operator].meaning(Screen(), [Span(exact, exact)], {})
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
