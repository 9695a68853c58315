"""The softmax of int16 codes: two functions that are straight lines between 513 places."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from samebits.errors import UnsupportedError
from samebits.spec.rounding import HalfUp
from samebits.tflite.file import Array, Scaling
from samebits.tflite.same.multiplier import away, doubled, split
from samebits.tflite.same.node import SameNode, scale_of

PLACES, FINE = 512, 7  # places of a function, and the bits between two of them
EXPONENT = 10.0 / 65535.0  # the unit of distances
SHARE = Scaling((2.0**-15,))
UNIT = 17  # bits of a sum that the reciprocal reads
MOST = 4096  # codes of a row


def softmax_of_words(node: SameNode, beta: float) -> str:
    """Exponentials of distances; the reciprocal of their sum by its leading bits; their product."""
    if node.result.dtype != "int16" or scale_of(node.result) != SHARE:
        raise UnsupportedError("expected a result of int16 with the scale 2**-15, found another")
    axis, columns = len(node.tensor(0).shape) - 1, node.tensor(0).shape[-1]
    if not 1 <= columns <= MOST:
        raise UnsupportedError(f"expected rows of 1 to {MOST} codes, found {columns}")
    x = node.input(0)
    most = node.emit("reduce_max", [x], axes=(axis,), keepdims=True)
    apart = node.emit("add", [x, most], factors=(1, -1), offset=0, dtype="int64")
    by = doubled(*split(node.scale(0).scales[0] * beta / EXPONENT))
    distance = node.rounded(apart, by, zero=32767)
    powers = node.emit("table", [distance, node.table("powers", exponentials())])
    ends: dict[str, Any] = {"axes": (axis,), "keepdims": True, "zero": 0}
    total = node.emit("reduce_sum", [powers], dtype="int64", **ends)
    largest = (columns * int(exponentials().max())).bit_length()
    share = _share(node, total, largest)
    parts = node.emit("multiply", [powers, share], dtype="int64")
    return node.requantized(parts, HalfUp(1, largest - 1), low=0)


def _share(node: SameNode, total: str, largest: int) -> str:
    """The reciprocal of a sum, times 2**(largest - its number of bits)."""
    inverse = node.table("inverse", reciprocals())
    terms, factors = list[str](), list[int]()
    for bits in range(int(exponentials()[-1]).bit_length(), largest + 1):
        up, down = max(UNIT - bits, 0), max(bits - UNIT, 0)
        offset = -((1 << 15) + (1 << 16)) << down
        lead = node.emit("add", [total], factors=(1 << up,), offset=offset, dtype="int64")
        place = node.rounded(lead, HalfUp(1, down))
        value = node.emit("table", [place, inverse])
        steps = [
            node.emit("clip", [_from(node, total, 1 << bits - 1 + more)], low=0, high=1)
            for more in (0, 1)
        ]
        here = node.emit("add", steps, factors=(1, -1), offset=0, dtype="int64")
        terms.append(node.emit("multiply", [value, here], dtype="int64"))
        factors.append(1 << largest - bits)
    return node.emit("add", terms, factors=tuple(factors), offset=0, dtype="int64")


def _from(node: SameNode, total: str, least: int) -> str:
    """A sum that is above 0 from `least` on."""
    return node.emit("add", [total], factors=(1,), offset=1 - least, dtype="int64")


@cache
def exponentials() -> Array:
    """exp of distances from 0 to 10, times 2**15, for every code of 16 bits."""
    unit = np.float32(EXPONENT)
    return _between(_places(unit, 32767, lambda v: np.float32(math.exp(float(v)))))


@cache
def reciprocals() -> Array:
    """1 / (1 + v) for v from 0 to 1, times 2**15, for every code of 16 bits."""
    unit = np.float32(1) / np.float32(65535)
    return _between(_places(unit, -32768, lambda v: np.float32(1) / (np.float32(1) + v)))


def _places(unit: np.float32, zero: int, f: Callable[[np.float32], np.float32]) -> Array:
    """A function at its places, in binary32, each lowered by half of what a chord is too high in
    its middle; the exponential of the C library is taken as correctly rounded."""
    f32 = np.float32
    least, most = unit * f32(-32768 - zero), unit * f32(32767 - zero)
    out = f32(2) / f32(65535)
    inverse = f32(65536) / (out * f32(32767) - out * f32(-32768))
    step = (most - least) / f32(PLACES)
    half, found = step / f32(2), []
    for i in range(PLACES):
        at = least + f32(i) * step
        sample = f32(away(float(f(at) * inverse)))
        following = f(least + f32(i + 1) * step) * inverse
        chord = f32(away(float((following + sample) / f32(2))))
        high = f32(away(float((chord - f32(away(float(f(at + half) * inverse)))) / f32(2))))
        found.append(min(max(int(sample - high), -32768), 32767))
    return np.array([*found, min(max(away(float(f(most) * inverse)), -32768), 32767)], np.int64)


def _between(table: Array) -> Array:
    """The straight lines between places, for every code."""
    v = np.arange(-32768, 32768)
    at, rest = PLACES // 2 + (v >> FINE), v & ((1 << FINE) - 1)
    found = table[at] + (((table[at + 1] - table[at]) * rest + (1 << FINE - 1)) >> FINE)
    return found.astype(np.int16)
