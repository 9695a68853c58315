"""One ATen call as the mapping rules see it, and the table that they fill."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import fx

from samebits.errors import UnsupportedError
from samebits.ir.foreign import ForeignNode, Result, enter_rule
from samebits.ir.graph import GraphBuilder

Rule = Callable[["AtenCall"], Result]

RULES: dict[str, Rule] = {}
DTYPES = {
    torch.float16: "float16",
    torch.float32: "float32",
    torch.float64: "float64",
    torch.int8: "int8",
    torch.uint8: "uint8",
    torch.int16: "int16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.bool: "bool",
}
LARGEST_MADE = 1 << 24  # elements of a constant that no file stores


def aten(*names: str) -> Callable[[Rule], Rule]:
    """Register how the ATen operators of these names (all overloads) become real ones.

    A rule returns the graph value of the result, or the values of a tuple of results, "" for those
    that nothing can read.
    """
    return enter_rule(RULES, names)


def operator_name(target: object) -> str:
    """`conv2d` of aten.conv2d.default, which a call names; other targets in full."""
    text = str(target)
    parts = text.split(".")
    return parts[1] if parts[0] == "aten" and len(parts) == 3 else text


def module_path(node: fx.Node) -> str:
    """Path of the submodule that a call comes from, "" for the module itself."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return str(stack[-1][0]) if stack else ""


def binary32(value: float) -> float:
    """A number of a Python module, rounded to binary32 as the attributes of ONNX are."""
    return float(np.float32(value))


def dtype_name(dtype: torch.dtype, where: str) -> str:
    """numpy's name of an element type; UnsupportedError for one that graphs do not have."""
    if dtype not in DTYPES:
        raise UnsupportedError(
            f"{where}: expected tensors of {', '.join(DTYPES.values())}, found {dtype}; "
            "convert the module with .float()"
        )
    return DTYPES[dtype]


class AtenCall(ForeignNode):
    """A call of an ATen operator to translate.

    arguments: by the names of the operator's schema, defaults filled in; numbers, lists, nodes.
    meta: torch's own result, a tensor without data or a tuple of them.
    """

    def __init__(
        self, node: fx.Node, builder: GraphBuilder, results: Mapping[fx.Node, Result]
    ) -> None:
        path, op = module_path(node), operator_name(node.target)
        where = f"{op if '.' in op else f'aten.{op}'} in {path or 'the module itself'}"
        super().__init__(builder, op, f"{path}.{node.name}" if path else node.name, where)
        self._results = results
        self.meta: Any = node.meta["val"]
        self.arguments: dict[str, Any] = {}
        schema = node.target._schema  # type: ignore[union-attr]
        for index, argument in enumerate(schema.arguments):
            given = node.args[index] if index < len(node.args) else argument.default_value
            self.arguments[argument.name] = node.kwargs.get(argument.name, given)

    # --- arguments ------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:
        """An argument as the exported program has it: a number, a list, a node, None."""
        return self.arguments[name]

    def get(self, name: str, default: Any = None) -> Any:
        """An argument that not every overload of the operator has."""
        return self.arguments.get(name, default)

    def tensor(self, name: str) -> str:
        """The graph value of a tensor argument, "" where it is None."""
        return self._value(self.arguments[name]) if self.arguments[name] is not None else ""

    def tensors(self, name: str) -> list[str]:
        """The graph values of a list of tensors, "" for those that are None."""
        return [self._value(item) if item is not None else "" for item in self.arguments[name]]

    def _value(self, node: Any) -> str:
        if not isinstance(node, fx.Node):
            raise self.unsupported("a tensor", node)
        result = self._results[node]
        if not isinstance(result, str):
            raise self.unsupported("one tensor", "several")
        return result

    def operand(self, name: str, dtype: str) -> str:
        """The graph value, of an element type, of an argument that is a tensor or a number."""
        value = self.arguments[name]
        if isinstance(value, fx.Node):
            return self.cast(self._value(value), dtype)
        if not isinstance(value, int | float):
            raise self.unsupported("a tensor or a number", value)
        return self.number(value, dtype)

    def integers(self, name: str, count: int) -> tuple[int, ...]:
        """An argument of whole numbers, one for each of `count` axes; a single number stands for
        all."""
        value = self.arguments[name]
        listed = tuple(value) if isinstance(value, list | tuple) else (value,)
        if not all(isinstance(v, int) for v in listed):
            raise self.unsupported(f"whole numbers as {name}", value)
        return tuple(listed) * count if len(listed) == 1 else tuple(listed)

    def axis(self, name: str, rank: int) -> int:
        """An axis argument, counted from 0."""
        return int(self.arguments[name]) % max(rank, 1)

    def axes(self, name: str, rank: int) -> tuple[int, ...]:
        """An argument of axes, counted from 0 and sorted; None and an empty list mean all."""
        value = self.arguments.get(name)
        listed = value if isinstance(value, list | tuple) else () if value is None else (value,)
        return tuple(sorted(int(v) % rank for v in listed)) or tuple(range(rank))

    # --- types ----------------------------------------------------------------------------------

    @property
    def out_dtype(self) -> str:
        """Element type of the (first) result, by numpy's name."""
        first = self.meta[0] if isinstance(self.meta, list | tuple) else self.meta
        return dtype_name(first.dtype, self.where)

    @property
    def out_shape(self) -> tuple[int, ...]:
        """Shape of the (only) result."""
        return tuple(int(size) for size in self.meta.shape)

    # --- results --------------------------------------------------------------------------------

    def reshape(self, name: str, shape: Sequence[int]) -> str:
        """The graph value in another shape; the value itself where it has that shape."""
        shape = tuple(shape)
        return name if self.shape_of(name) == shape else self.emit("Reshape", name, shape=shape)

    def charge(self, count: int) -> None:
        """Refuse to make more than 2**24 elements, or nodes: a small file can ask for many."""
        if count > LARGEST_MADE:
            raise self.unsupported(f"at most {LARGEST_MADE} elements that a call makes", count)

    def unsupported(self, expected: str, found: object) -> UnsupportedError:
        """The error of a rule that cannot translate this call."""
        return UnsupportedError(
            f"{self.where}: expected {expected}, found {found}; replace it in the module"
        )
