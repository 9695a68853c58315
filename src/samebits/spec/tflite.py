"""Interpolated functions of 16 bits, in plain integers; docs/spec/tflite.md.

A table holds a function at places, and between two of them the function is a straight line.
"""

from __future__ import annotations

import math
from functools import cache

ENTRIES = 256  # of the sigmoid; behind the last it is its limit
STEP = 24  # places in a unit
TOP = 65535


@cache
def sigmoid_table() -> tuple[int, ...]:
    """65536 / (1 + exp(-i / 24)), raised by half of what a chord lacks in its middle."""

    def f(x: float) -> float:
        return 65536 / (1 + math.exp(-x / STEP))

    found = [
        math.floor(f(i) + (f(i + 0.5) - (f(i) + f(i + 1)) / 2) / 2 + 0.5)
        for i in range(ENTRIES - 1)
    ]
    return (*found, TOP)


def sigmoid_steps(x: int, m: int, left: int, tanh: bool) -> int:
    """Sigmoid or tanh of a code of 16 bits, times 2**15: of x * m / 2**left, rounded, over 3 * 4096
    (of x * 2**left / 4096 where m is 0)."""
    table = sigmoid_table()
    if not m:
        m, left = 3 << left, 0
    v = (x * m + (1 << left >> 1)) >> left
    bits = 8 if tanh else 9
    at, rest = abs(v) >> bits, abs(v) & ((1 << bits) - 1)
    if at >= ENTRIES - 1:
        y = 0xFFFF << 8 if tanh else 0x7FFF << 10
    else:
        y = (table[at] << bits) + rest * (table[at + 1] - table[at])
    if tanh:
        return ((y - (1 << 23) + 128) if v >= 0 else (-y + (1 << 23) + 127)) >> 8
    return ((y + 512) if v >= 0 else ((1 << 25) - y + 511)) >> 10
