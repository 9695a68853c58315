"""The operator registry: one record per operator, real or integer.

The rooms `real` and `integer` fill it; docs/spec/graph.md sections 2 and 3 list it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from samebits.errors import UnsupportedError
from samebits.ir.traits import Trait, closed
from samebits.ir.value import Value
from samebits.spec.fixed import Shares

Attribute = int | float | str | bool | Fraction | Shares | None | tuple[Any, ...]
Attributes = Mapping[str, Any]
Array = np.ndarray[Any, Any]
Type = tuple[str, tuple[int, ...]]  # (dtype, shape)


class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED: Any = _Required()


@dataclass(frozen=True)
class Op:
    """One operator.

    inputs:     least and greatest number of inputs (None: no limit)
    attributes: name -> default; REQUIRED has none
    infer:      (types of the inputs, None where left out; complete attributes) -> output types.
                Raises ValueError("expected ..., found ...") where shapes or types do not fit.
    meaning:    (arrays, None where left out; complete attributes) -> output arrays. Exact: real
                operators that are rational also take object arrays of Fraction.
    integer:    an operator of integer graphs
    traits:     what passes may conclude from it, all that is implied included
    """

    name: str
    inputs: tuple[int, int | None]
    attributes: Attributes
    infer: Callable[[Sequence[Value | None], Attributes], list[Type]]
    meaning: Callable[[Sequence[Array | None], Attributes], list[Array]]
    integer: bool = False
    traits: frozenset[Trait] = frozenset()

    def __post_init__(self) -> None:
        object.__setattr__(self, "traits", closed(self.traits))

    def complete(self, attributes: Attributes, where: str) -> dict[str, Any]:
        """The attributes with defaults; ValueError for an unknown or missing one."""
        unknown = sorted(set(attributes) - set(self.attributes))
        if unknown:
            raise ValueError(f"{where}: {self.name} has no attribute {unknown[0]!r}")
        filled = {**self.attributes, **attributes}
        missing = [key for key, value in filled.items() if value is REQUIRED]
        if missing:
            raise ValueError(f"{where}: {self.name} needs the attribute {missing[0]!r}")
        return filled


_OPS: dict[str, Op] = {}


def register(op: Op) -> Op:
    """Add an operator; names are unique."""
    if op.name in _OPS:
        raise ValueError(f"operator {op.name!r} is registered twice")
    _OPS[op.name] = op
    return op


def op_named(name: str) -> Op:
    """The record of an operator; UnsupportedError if there is none."""
    try:
        return _OPS[name]
    except KeyError:
        raise UnsupportedError(f"expected a known operator, found {name!r}") from None


def is_known(name: str) -> bool:
    """Whether the operator has a record."""
    return name in _OPS


def known_ops() -> list[Op]:
    """Every record, in order of registration."""
    return list(_OPS.values())


def has(name: str, *traits: Trait) -> bool:
    """Whether the operator has one of the traits; False where there is no such operator."""
    return name in _OPS and not _OPS[name].traits.isdisjoint(traits)


def ops_with(*traits: Trait, integer: bool = False) -> frozenset[str]:
    """The names of all real, or all integer, operators that have one of the traits."""
    return frozenset(
        op.name for op in _OPS.values() if op.integer == integer and has(op.name, *traits)
    )


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """numpy's broadcasting of shapes; ValueError if they do not fit."""
    try:
        return tuple(np.broadcast_shapes(*shapes))
    except ValueError:
        found = " and ".join(str(list(shape)) for shape in shapes)
        raise ValueError(f"expected shapes that broadcast, found {found}") from None


def window_count(size: int, kernel: int, stride: int, pads: int, dilation: int = 1) -> int:
    """Windows along one axis, `pads` the sum of both ends; ValueError if there is none."""
    count = (size + pads - dilation * (kernel - 1) - 1) // stride + 1
    if count < 1:
        raise ValueError(
            f"expected a window that fits into {size} + {pads}, "
            f"found {kernel} with dilation {dilation}"
        )
    return count


def check_written(
    past: tuple[int, ...], update: tuple[int, ...], starts: tuple[int, ...], axis: int
) -> None:
    """Refuse what cannot be written into a cache of this shape along an axis."""
    if axis < 1 or starts != past[:1]:
        raise ValueError(
            f"expected an axis behind that of samples and an index for each of {past[:1]}, found "
            f"axis {axis} and {list(starts)}"
        )
    cut = (*past[:axis], *past[axis + 1 :])
    rest = (*update[:axis], *update[axis + 1 :])
    if len(update) != len(past) or update[axis] > past[axis] or rest != cut:
        raise ValueError(
            f"expected an update like {list(past)} but for axis {axis}, found {list(update)}"
        )


def written(past: Array, update: Array, starts: Array, axis: int) -> Array:
    """A copy with `update` from a place along an axis on, of its own for each index of the first
    axis; places are modulo the size of the axis."""
    result, n = past.copy(), past.shape[axis]
    for row, start in enumerate(starts):
        at = (int(start) % n + np.arange(update.shape[axis])) % n
        result[row][(*[slice(None)] * (axis - 1), at)] = update[row]
    return result


def elements(shape: Sequence[int]) -> int:
    """Number of elements of a shape."""
    return math.prod(shape)
