"""Types, checks and sums that cannot wrap, for all integer operators. docs/spec/graph.md section 3.

Channels are the last axis. Sums are taken in int64 where it holds them (always, for accumulators
that pass the bound analysis), else in Python integers; a result that leaves its declared type is an
error, never a wrap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from samebits.errors import RangeError
from samebits.ir.ops import REQUIRED, Array, Attributes, Op, Type, register
from samebits.ir.traits import Trait

CODES = ("int8", "uint8", "int16", "uint16")
ACCUMULATORS = ("int32", "int64")
INTEGERS = (*CODES, *ACCUMULATORS)
Values = Sequence[Any]  # Value or None
Arrays = Sequence[Any]  # Array or None
TO_CODES = {"zero": 0, "low": REQUIRED, "high": REQUIRED, "dtype": REQUIRED}


def limits(dtype: str) -> tuple[int, int]:
    """Least and greatest code of an integer type."""
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def narrowed(array: Array, dtype: str) -> Array:
    """The same integers as `dtype`; RangeError if one does not fit."""
    low, high = limits(dtype)
    if array.size and (array.min() < low or array.max() > high):
        raise RangeError(
            f"expected integers of {dtype}, found {int(array.min())} to {int(array.max())}"
        )
    return array.astype(dtype)


def magnitude(array: Array) -> int:
    """The largest absolute value; 0 of an empty array."""
    return max(abs(int(array.min())), abs(int(array.max()))) if array.size else 0


def wide(array: Array, largest: int) -> Array:
    """As int64 if results of up to `largest` fit there, else as Python integers."""
    return array.astype(np.int64 if largest < 1 << 63 else object)


def plus(total: Array, bias: Array) -> Array:
    """total + bias without a wrap."""
    largest = magnitude(total) + magnitude(bias)
    return np.asarray(wide(total, largest) + wide(bias, largest))


def expect(condition: bool, expected: str, found: object) -> None:
    """ValueError that says what was expected and found, unless the condition holds."""
    if not condition:
        raise ValueError(f"expected {expected}, found {found}")


def expect_codes(value: Any, what: str = "x") -> None:
    """Refuse what is not of at most 16 bits."""
    expect(value.dtype in CODES, f"8- or 16-bit codes for {what}", value.dtype)


def expect_integers(value: Any, what: str = "x") -> None:
    """Refuse other types."""
    expect(value.dtype in INTEGERS, f"integers for {what}", value.dtype)


def expect_zeros(attributes: Attributes, *names: str) -> None:
    """Zero points are codes of some type of at most 16 bits."""
    for name in names:
        zero = attributes[name]
        expect(-(1 << 15) <= zero < 1 << 16, f"{name} of at most 16 bits", zero)


def accumulator(attributes: Attributes) -> str:
    """The type of an operator's sums."""
    dtype = attributes["dtype"]
    expect(dtype in ACCUMULATORS, "dtype int32 or int64", dtype)
    return str(dtype)


def expect_bounds(a: Attributes) -> None:
    """Refuse saturation bounds outside the type of the codes, or in the wrong order."""
    least, greatest = limits(a["dtype"])
    expect(
        least <= a["low"] <= a["high"] <= greatest,
        f"low <= high in [{least}, {greatest}]",
        (a["low"], a["high"]),
    )


def saturate(codes: Array, a: Attributes) -> Array:
    """Sums of zero mean as codes: zero point added, saturated to low and high."""
    zero, low, high = a["zero"], a["low"], a["high"]
    largest = max(magnitude(codes), abs(low - zero), abs(high - zero))
    codes = wide(codes, largest)  # clipped first: no sum can wrap
    return (np.clip(codes, low - zero, high - zero) + zero).astype(a["dtype"])


def register_integer(
    name: str,
    inputs: tuple[int, int | None],
    attributes: Attributes,
    infer: Callable[[Values, Attributes], list[Type]],
    meaning: Callable[[Arrays, Attributes], list[Array]],
    *traits: Trait,
) -> None:
    """Put an operator's record into the registry. inputs: their number, at least and at most."""

    def checked(values: Values, a: Attributes) -> list[Type]:
        least, most = inputs
        present = [value for value in values if value is not None]
        expect(
            len(present) == len(values) >= least and (most is None or len(values) <= most),
            f"{least} inputs" if most == least else f"at least {least} inputs",
            len(present),
        )
        return infer(values, a)

    register(Op(name, inputs, attributes, checked, meaning, True, frozenset(traits)))
