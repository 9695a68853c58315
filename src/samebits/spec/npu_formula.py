"""Formulas: what a point-wise instruction computes, stated once. docs/spec/npu.md section 1.

A formula is built from `A`, the value in the chain, and `B`, the operand:

    A + B               rounded once to binary16; so are A - B and A * B
    choose(p, q, x, y)  x where p > q, else y: y for two zeros, and wherever there is a NaN
    number(c)           a binary16 constant other than -0
    look_up(table, x)   an entry for each of the 65,536 binary16 numbers

It has no arithmetic of its own. `Formula.realised` puts a function in the place of every operation,
so one formula is a number (`PLAIN`, the definition), a sentence of the documentation (`TEXT`), an
array in the simulator, a line of PyTorch or TensorFlow, or nodes of ONNX. For example the formula
`choose(A, B, A, B)` of `vv_max`, realised by PLAIN for 1.0 and 2.0, is 2.0; by TEXT for "a" and "b"
it is "a if a > b, else b".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from samebits.spec.npu_binary16 import (
    binary16_add,
    binary16_bits,
    binary16_mul,
    binary16_sub,
    binary16_value,
)


@dataclass(frozen=True)
class Formula:
    """An operation and its parts: formulas, or what the operation takes beside them."""

    op: str
    parts: tuple[Any, ...]

    def __add__(self, other: Formula) -> Formula:
        return Formula("add", (self, other))

    def __sub__(self, other: Formula) -> Formula:
        return Formula("subtract", (self, other))

    def __mul__(self, other: Formula) -> Formula:
        return Formula("multiply", (self, other))

    def realised(self, operations: Mapping[str, Callable[..., Any]], *arguments: Any) -> Any:
        """The formula of these arguments, with functions in the place of its operations."""
        if self.op == "argument":
            return arguments[self.parts[0]]
        return operations[self.op](
            *(
                part.realised(operations, *arguments) if isinstance(part, Formula) else part
                for part in self.parts
            )
        )

    def tables(self) -> tuple[Tabulated, ...]:
        """The tables that it looks numbers up in."""
        found = (part.tables() for part in self.parts if isinstance(part, Formula))
        own = tuple(part for part in self.parts if isinstance(part, Tabulated))
        return sum(found, own)

    def __str__(self) -> str:
        """As the documentation writes it."""
        return str(self.realised(TEXT, "a", "b"))


class Tabulated(NamedTuple):
    """A function given by its table.

    text:      the function as it is written, with {} in the place of x
    entries(): integers [65536], the bits of the value at the number of these bits
    """

    name: str
    text: str
    entries: Callable[[], Any]


@dataclass(frozen=True)
class Reduction:
    """One number made of all lanes that a chain carries in an iteration; every lane receives it.

    name: of the function that each realisation has for it     text: as the documentation writes it
    definition: on Python floats that are binary16 numbers
    """

    name: str
    text: str
    definition: Callable[[Sequence[float]], float]

    def __str__(self) -> str:
        return self.text


A, B = Formula("argument", (0,)), Formula("argument", (1,))


def choose(p: Formula, q: Formula, x: Formula, y: Formula) -> Formula:
    """x where p > q, else y."""
    return Formula("choose", (p, q, x, y))


def number(value: float) -> Formula:
    """A constant. It must be a binary16 number other than -0."""
    return Formula("number", (value,))


def look_up(table: Tabulated, x: Formula) -> Formula:
    """The table's value at x."""
    return Formula("look_up", (table, x))


PLAIN: Mapping[str, Callable[..., float]] = MappingProxyType(
    {
        "add": binary16_add,
        "subtract": binary16_sub,
        "multiply": binary16_mul,
        "choose": lambda p, q, x, y: x if p > q else y,
        "number": float,
        "look_up": lambda table, x: binary16_value(int(table.entries()[binary16_bits(x)])),
    }
)
"""The definition: on Python floats that are binary16 numbers."""

TEXT: Mapping[str, Callable[..., str]] = MappingProxyType(
    {
        "add": "rne({} + {})".format,
        "subtract": "rne({} - {})".format,
        "multiply": "rne({} * {})".format,
        "choose": lambda p, q, x, y: f"{x} if {p} > {q.removeprefix('+')}, else {y}",
        "number": "{:+g}".format,
        "look_up": lambda table, x: table.text.format(x),
    }
)
