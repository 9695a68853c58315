"""Inputs that a device scales feature by feature, or channel by channel, before they become codes.

What sensors of different units measure cannot share a scale: the range of one is below the step of
another. Where a factor and an offset for each index of one axis stand between an input and its
QuantizeLinear, the integer graph has no nodes for them: its codes stand for the input itself, each
index with a scale and an offset of its own (`Quantization`), and a device makes them in one step.
docs/spec/graph.md section 4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from samebits.errors import UnsupportedError
from samebits.ir.graph import Graph, Node
from samebits.ir.ops import Array
from samebits.ir.value import Quantization

Numbers = tuple[Fraction, ...]


@dataclass(frozen=True)
class InputEntry:
    """The value that the codes of an input are made of: gain * input + offset, element by element.

    nodes: the names of the nodes that compute it. axis: along which gains and offsets vary, counted
    from the last; all gains are positive
    """

    value: str
    nodes: tuple[str, ...] = ()
    axis: int = -1
    gains: Numbers = (Fraction(1),)
    offsets: Numbers = (Fraction(0),)

    def before(self, found: Quantization, shape: tuple[int, ...]) -> Quantization:
        """The meaning that codes of this value have for the input, which has this shape. Raises
        UnsupportedError where the codes have scales of their own."""
        if not self.nodes:
            return found
        if not found.plain:
            raise UnsupportedError(
                "expected one scale behind the factors of an input, found one for each feature"
            )
        count = max(len(self.gains), len(self.offsets))
        if count == 1 and not self.offsets[0]:
            return Quantization(found.scale / self.gains[0], found.zero_point)
        count = shape[self.axis]
        gains, offsets = (v if len(v) == count else v * count for v in (self.gains, self.offsets))
        unit = found.scale / max(gains)
        factors = tuple(max(gains) / gain for gain in gains)
        moved = tuple(-offset / gain for gain, offset in zip(gains, offsets, strict=True))
        return Quantization(unit, found.zero_point, factors, moved if any(moved) else (), self.axis)


def entry_of(graph: Graph, name: str) -> InputEntry:
    """Where an input is scaled: the last value behind it that is a factor and an offset for each
    index of one axis; the input itself where its first reader does anything else."""
    entries = entries_of(graph, name)
    return entries[-1] if entries else InputEntry(name)


def entries_of(graph: Graph, name: str) -> list[InputEntry]:
    """Every such value, from the first on."""
    consumers, rank = graph.consumers(), len(graph.values[name].shape)
    found, entry = [], InputEntry(name)
    while entry.value not in graph.outputs and len(consumers[entry.value]) == 1:
        (node,) = consumers[entry.value]
        moved = _scaled(graph, node, entry, rank)
        if moved is None:
            break
        entry = moved
        found.append(entry)
    return found


Affine = tuple[Fraction, Fraction]  # gain and offset

# What an operator with a constant n makes of gain * x + offset, x its first operand.
_RULES: Mapping[str, Callable[[Fraction, Fraction, Fraction], Affine]] = {
    "Add": lambda gain, offset, n: (gain, offset + n),
    "Sub": lambda gain, offset, n: (gain, offset - n),
    "Mul": lambda gain, offset, n: (gain * n, offset * n),
    "Div": lambda gain, offset, n: (gain / n, offset / n),
}
_TURNED = frozenset(("Add", "Mul"))  # the constant may come first


def _scaled(graph: Graph, node: Node, entry: InputEntry, rank: int) -> InputEntry | None:
    """The entry behind a node that adds, subtracts, multiplies or divides by constants; None for
    another node, and where a gain would be 0 or negative."""
    rule = _RULES.get(node.op)
    if rule is None or node.inputs.count(entry.value) != 1:
        return None
    place = 1 - node.inputs.index(entry.value)
    constant = graph.constants.get(node.inputs[place])
    whole = graph.values[entry.value].shape == graph.values[node.output].shape
    if constant is None or not whole or (place == 0 and node.op not in _TURNED):
        return None
    axes = [i - constant.ndim for i, size in enumerate(constant.shape) if size != 1]
    known = max(len(entry.gains), len(entry.offsets)) > 1
    if len(axes) > 1 or constant.ndim > rank or not np.isfinite(constant).all():
        return None
    if axes and known and axes[0] != entry.axis:
        return None
    numbers = tuple(Fraction(float(number)) for number in constant.reshape(-1))
    if node.op == "Div" and 0 in numbers:
        return None
    count = max(len(entry.gains), len(entry.offsets), len(numbers))
    parts = (v if len(v) == count else v * count for v in (entry.gains, entry.offsets, numbers))
    gains, offsets = zip(*(rule(*each) for each in zip(*parts, strict=True)), strict=True)
    if min(gains) <= 0:
        return None
    axis = axes[0] if axes else entry.axis
    return InputEntry(node.output, (*entry.nodes, node.name), axis, gains, offsets)


def column(numbers: Array, axis: int, rank: int) -> Array:
    """Numbers along an axis counted from the last, in a shape that broadcasts to `rank` axes."""
    return numbers.reshape(*[1] * (rank + axis), -1, *[1] * (-axis - 1))
