"""A node of another framework's graph, as the rule that translates it sees it.

ONNX files and exported torch modules become real graphs in the same way. A table holds one rule for
each foreign operator. The importer visits the foreign nodes in the order of data, wraps each in a
subclass of `ForeignNode`, and calls the rule of its operator. The rule reads inputs and attributes
through the wrapper, emits real operators, and returns the graph values of the node's results.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from samebits.ir.graph import GraphBuilder
from samebits.ir.ops import Attribute

Result = str | Sequence[str]
"""What a rule returns: the graph value of the only result, or one value for each result."""

_Key = TypeVar("_Key", bound=Hashable)
_Rule = TypeVar("_Rule")


def enter_rule(
    table: MutableMapping[_Key, _Rule], keys: Iterable[_Key]
) -> Callable[[_Rule], _Rule]:
    """The decorator that enters a rule into a table, under each of these keys.

    Raises ValueError for a key that has a rule already: two modules would compete for it.
    """

    def enter(rule: _Rule) -> _Rule:
        for key in keys:
            if key in table:
                raise ValueError(f"{key} has two rules")
            table[key] = rule
        return rule

    return enter


@dataclass
class ForeignNode:
    """A foreign node to translate, and the builder of the real graph.

    builder: takes the real operators. op: name of the foreign operator. hint: the name from which
    the names of emitted nodes and values are made. where: the node, as error messages call it.
    """

    builder: GraphBuilder
    op: str
    hint: str
    where: str

    def shape_of(self, value: str) -> tuple[int, ...]:
        """Shape of a graph value."""
        return self.builder.values[value].shape

    def rank_of(self, value: str) -> int:
        """Number of axes of a graph value."""
        return len(self.shape_of(value))

    def dtype_of(self, value: str) -> str:
        """Element type of a graph value, by numpy's name."""
        return self.builder.values[value].dtype

    def constant(self, array: ArrayLike) -> str:
        """Store an array as a constant of the graph; its name."""
        return self.builder.constant(f"{self.hint}.constant", np.asarray(array))

    def number(self, value: float, dtype: DTypeLike) -> str:
        """Store one number as a constant of rank 0; its name."""
        return self.constant(np.array(value, dtype))

    def cast(self, value: str, dtype: str) -> str:
        """The value converted to an element type; the value itself where it has that type."""
        return value if self.dtype_of(value) == dtype else self.emit("Cast", value, to=dtype)

    def emit(self, op: str, *inputs: str, **attributes: Attribute) -> str:
        """Append a real operator; the name of its first output."""
        return self.emit_all(op, *inputs, **attributes)[0]

    def emit_all(self, op: str, *inputs: str, **attributes: Attribute) -> tuple[str, ...]:
        """Append a real operator; the names of all its outputs."""
        return self.builder.add_all(op, inputs, attributes, self.hint)
