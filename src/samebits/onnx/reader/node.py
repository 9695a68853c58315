"""One ONNX node as the mapping rules see it, and the table that they fill."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import AttributeProto, NodeProto

from samebits.errors import InputError, UnsupportedError
from samebits.ir.foreign import ForeignNode, Result, enter_rule
from samebits.ir.ops import Array, Attribute
from samebits.onnx.metadata import CLASSICAL
from samebits.onnx.reader.builder import FoldingBuilder
from samebits.onnx.reader.tensors import dtype_of, tensor_to_array

Rule = Callable[["OnnxNode"], Result]

RULES: dict[tuple[str, str], Rule] = {}  # (domain, operator) -> rule
MICROSOFT = "com.microsoft"


def onnx_op(*names: str, domain: str = "") -> Callable[[Rule], Rule]:
    """Register how the ONNX operators of these names become real ones.

    A rule returns the graph values of the node's outputs; the last ones may be left out. It raises
    InputError for a node that breaks the rules of ONNX, UnsupportedError for one without a real
    counterpart; the importer adds to the message which node it is.
    """
    return enter_rule(RULES, [(domain, name) for name in names])


@dataclass
class OnnxNode(ForeignNode):
    """An ONNX node to translate.

    proto: the node itself. opset: version of the node's domain. inputs: graph values, "" where left
    out. outputs: what to call the results in the graph, "" where left out. wanted: for each output,
    whether something reads it. attributes: those of the node, references to function attributes
    resolved. read: names of the attributes that the rule has read; the importer refuses a node with
    others, which would have no effect.
    """

    builder: FoldingBuilder
    proto: NodeProto
    opset: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    wanted: tuple[bool, ...]
    attributes: Mapping[str, AttributeProto]
    read: set[str] = field(default_factory=set)

    # --- inputs ---------------------------------------------------------------------------------

    def has(self, index: int) -> bool:
        """Whether the input is given."""
        return index < len(self.inputs) and self.inputs[index] != ""

    def optional(self, index: int) -> str:
        """Graph value of an input, "" where it is left out."""
        return self.inputs[index] if self.has(index) else ""

    def input(self, index: int) -> str:
        """Graph value of an input; InputError where it is left out."""
        if not self.has(index):
            raise InputError(f"expected input {index}, found none")
        return self.inputs[index]

    def given(self) -> list[str]:
        """Graph values of all inputs; InputError where one is left out."""
        return [self.input(index) for index in range(len(self.inputs))]

    def shape(self, index: int = 0) -> tuple[int, ...]:
        """Shape of an input."""
        return self.shape_of(self.input(index))

    def rank(self, index: int = 0) -> int:
        """Number of axes of an input."""
        return len(self.shape(index))

    def dtype(self, index: int = 0) -> str:
        """Element type of an input, by numpy's name."""
        return self.dtype_of(self.input(index))

    def is_constant(self, index: int) -> bool:
        """Whether the input is given and known while importing."""
        return self.has(index) and self.builder.known(self.inputs[index]) is not None

    def array(self, index: int, what: str) -> Array:
        """The array of an input that must be known while importing.

        what: its role, for the message of UnsupportedError where it is computed.
        """
        array = self.builder.known(self.input(index))
        if array is None:
            raise UnsupportedError(
                f"expected a constant as {what} (input {index}), found a value that is computed "
                "from the model's inputs; export with fixed shapes, or make a constant of such an "
                "input: --set NAME=VALUE"
            )
        return array

    def integers(self, index: int, what: str, limit: int = 2**20) -> tuple[int, ...]:
        """The numbers of a constant vector of at most `limit` integers, or of a scalar."""
        array = self.array(index, what)
        if array.dtype.kind not in "iu" or array.ndim > 1 or array.size > limit:
            raise InputError(
                f"expected integers in a vector as {what}, found {array.dtype.name}"
                f"{list(array.shape)}"
            )
        return tuple(int(v) for v in array.reshape(-1))

    def scalar(self, index: int, what: str) -> Any:
        """A constant of one element, as an array of rank 0."""
        array = self.array(index, what)
        if array.size != 1:
            raise InputError(f"expected one number as {what}, found shape {list(array.shape)}")
        return array.reshape(())

    # --- attributes -----------------------------------------------------------------------------

    def int_(self, name: str, default: int | None = None) -> int:
        """An integer attribute; without a default it is required."""
        found = self._attribute(name, AttributeProto.INT, default is None)
        return int(found.i) if found else int(default or 0)

    def flag(self, name: str, default: bool) -> bool:
        """An attribute that is 0 or 1."""
        value = self.int_(name, int(default))
        if value not in (0, 1):
            raise InputError(f"expected 0 or 1 as {name}, found {value}")
        return bool(value)

    def float_(self, name: str, default: float, finite: bool = True) -> float:
        """A floating-point attribute, finite unless said otherwise."""
        found = self._attribute(name, AttributeProto.FLOAT, False)
        if found and finite and not math.isfinite(found.f):
            raise InputError(f"expected a finite {name}, found {found.f}")
        # A default of the standard is a binary32 number too.
        return float(found.f) if found else float(np.float32(default))

    def string(self, name: str, default: str, allowed: Sequence[str] = ()) -> str:
        """A string attribute, one of `allowed` if given."""
        found = self._attribute(name, AttributeProto.STRING, False)
        text = found.s.decode("utf-8", "backslashreplace") if found else default
        if allowed and text not in allowed:
            raise UnsupportedError(f"expected {name} {' or '.join(allowed)}, found {text!r}")
        return text

    def ints(self, name: str, default: Sequence[int] | None = ()) -> tuple[int, ...] | None:
        """A list of integers, the default where it is not given."""
        found = self._attribute(name, AttributeProto.INTS, False)
        if found:
            return tuple(int(v) for v in found.ints)
        return tuple(default) if default is not None else None

    def floats(self, name: str, finite: bool = True) -> tuple[float, ...] | None:
        """A list of numbers, finite unless said otherwise, None where it is not given."""
        found = self._attribute(name, AttributeProto.FLOATS, False)
        if found and finite and not all(map(math.isfinite, found.floats)):
            raise InputError(f"expected finite {name}, found {list(found.floats)[:8]}")
        return tuple(found.floats) if found else None

    def strings(self, name: str) -> tuple[str, ...]:
        """A list of strings, () where it is not given."""
        found = self._attribute(name, AttributeProto.STRINGS, False)
        return tuple(s.decode("utf-8", "backslashreplace") for s in found.strings) if found else ()

    def tensor(self, name: str) -> Array | None:
        """A tensor attribute, None where it is not given."""
        found = self._attribute(name, AttributeProto.TENSOR, False)
        where, folder = f"attribute {name}", self.builder.folder
        return tensor_to_array(found.t, where, folder) if found else None

    def graph(self, name: str) -> Any:
        """A subgraph attribute."""
        found = self._attribute(name, AttributeProto.GRAPH, True)
        assert found is not None
        return found.g

    def element_type(self, name: str, default: int | None = None) -> str:
        """An attribute that is an element type, by numpy's name."""
        return dtype_of(self.int_(name, default), name).name

    def ignore(self, *names: str) -> None:
        """Accept attributes that have no effect on what is computed here."""
        self.read.update(names)

    def _attribute(self, name: str, kind: int, required: bool) -> AttributeProto | None:
        """The attribute, noted as read; InputError where its type is not `kind`."""
        self.read.add(name)
        found = self.attributes.get(name)
        if found is None:
            if required:
                raise InputError(f"expected an attribute {name}, found none")
            return None
        if found.type not in (kind, AttributeProto.UNDEFINED):
            raise InputError(
                f"expected the attribute {name} to be {_kind(kind)}, found {_kind(found.type)}"
            )
        return found

    # --- axes -----------------------------------------------------------------------------------

    def axis(self, value: int, rank: int) -> int:
        """A non-negative axis; InputError outside [-rank, rank)."""
        if not -rank <= value < rank:
            raise InputError(f"expected an axis from {-rank} to {rank - 1}, found {value}")
        return value % rank

    def axes(self, values: Sequence[int], rank: int) -> tuple[int, ...]:
        """Non-negative axes, in the given order; InputError for one that is repeated."""
        axes = tuple(self.axis(value, rank) for value in values)
        if len(set(axes)) != len(axes):
            raise InputError(f"expected axes that differ, found {list(values)}")
        return axes

    # --- results --------------------------------------------------------------------------------

    def out(self, op: str, *inputs: str, **attributes: Attribute) -> tuple[str, ...]:
        """Append the operator that gives the node's outputs, under their names."""
        return self.builder.add_all(op, inputs, attributes, self.hint, self.outputs)


def _kind(kind: int) -> str:
    try:
        return AttributeProto.AttributeType.Name(kind)
    except ValueError:
        return f"of type number {kind}"


__all__ = ["CLASSICAL", "MICROSOFT", "RULES", "Array", "OnnxNode", "Result", "Rule", "onnx_op"]
