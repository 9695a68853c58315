"""The integer square root of sums as codes. docs/spec/graph.md section 3."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from samebits.ir.integer.define import (
    CODES,
    TO_CODES,
    Arrays,
    Values,
    expect,
    expect_bounds,
    expect_integers,
    expect_zeros,
    magnitude,
    register_integer,
    saturate,
    wide,
)
from samebits.ir.ops import REQUIRED, Array, Attributes, Type
from samebits.ir.traits import Trait

LARGEST_RADICAND = 1 << 63  # of 4 * x * p
LARGEST_FACTOR = LARGEST_RADICAND >> 2  # of p
LARGEST_DIVISOR = 1 << 26  # of q: an odd number below 2**18, squared, times q is below 2**62


def nearest_root(square: Fraction) -> int:
    """rne(sqrt(square)), exactly; 0 for a negative number."""
    n, d = max(square.numerator, 0), square.denominator
    twice = math.isqrt(4 * n // d)
    up = (twice + 1) >> 1
    tie = twice % 2 == 1 and twice * twice * d == 4 * n
    return up - (tie and up % 2 == 1)


def root_bits(a: Attributes) -> int:
    """The bits of the greatest root that the codes tell apart, high - zero; at most 17."""
    return max(int(a["high"]) - int(a["zero"]), 0).bit_length()


def _infer(values: Values, a: Attributes) -> list[Type]:
    (x,) = values
    expect_integers(x)
    expect(1 <= a["p"] < LARGEST_FACTOR, "p from 1 to 2**61 - 1", a["p"])
    expect(1 <= a["q"] <= LARGEST_DIVISOR, f"q from 1 to {LARGEST_DIVISOR}", a["q"])
    expect(a["dtype"] in CODES, "dtype of 8 or 16 bits", a["dtype"])
    expect_zeros(a, "zero")
    expect_bounds(a)
    return [(a["dtype"], x.shape)]


def nearest_roots(whole: Any, a: Attributes, where: Callable[..., Any]) -> Any:
    """The greatest k that is reached by `whole`, 4 * x * p, of arrays or tensors with their own
    `where`, bit by bit from the top: q * (2 * k - 1)**2 <= whole for an even k, < for an odd one.
    What is tried at the last bit is odd, all before it even."""
    found = whole - whole
    for bit in reversed(range(root_bits(a))):
        tried = found + (1 << bit)
        edge = (2 * tried - 1) ** 2 * a["q"]
        found = where(edge <= whole if bit else edge < whole, tried, found)
    return found


def _root(arrays: Arrays, a: Attributes) -> list[Array]:
    (x,) = arrays
    whole = wide(x, 4 * magnitude(x) * a["p"]) * (4 * a["p"])
    return [saturate(nearest_roots(np.maximum(whole, 0), a, np.where), a)]


_RATIO = {"p": REQUIRED, "q": REQUIRED, **TO_CODES}
register_integer("root", (1, 1), _RATIO, _infer, _root, Trait.POINTWISE)
