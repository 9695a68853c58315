"""One ATen call as the mapping rules see it, and the table that they fill."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import fx

from samebits.errors import UnsupportedError
from samebits.ir.graph import Array, GraphBuilder
from samebits.ir.ops import Attribute

Result = str | Sequence[str]
Rule = Callable[["Call"], Result]

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


def aten(*names: str) -> Callable[[Rule], Rule]:
    """Register how the ATen operators of these names (all overloads) become real ones.

    A rule returns the graph value of the result, or the values of a tuple of results.
    """

    def enter(rule: Rule) -> Rule:
        for name in names:
            if name in RULES:
                raise ValueError(f"aten.{name} has two rules")
            RULES[name] = rule
        return rule

    return enter


def operator_name(node: fx.Node) -> str:
    """`conv2d` of a call to aten.conv2d.default; other targets in full."""
    text = str(node.target)
    parts = text.split(".")
    return parts[1] if parts[0] == "aten" and len(parts) == 3 else text


def module_path(node: fx.Node) -> str:
    """The submodule that a call comes from, "" for the module itself."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return str(stack[-1][0]) if stack else ""


def binary32(value: float) -> float:
    """A number of a Python module as ONNX's attributes hold it."""
    return float(np.float32(value))


def dtype_name(dtype: torch.dtype, where: str) -> str:
    """numpy's name; UnsupportedError for a type that graphs do not have."""
    if dtype not in DTYPES:
        raise UnsupportedError(
            f"{where}: expected tensors of {', '.join(DTYPES.values())}, found {dtype}; "
            "convert the module with .float()"
        )
    return DTYPES[dtype]


class Call:
    """A node to import; its arguments by the names of the operator's schema, defaults filled in."""

    def __init__(
        self, node: fx.Node, builder: GraphBuilder, results: Mapping[fx.Node, Result]
    ) -> None:
        self.node, self.builder, self._results = node, builder, results
        path = module_path(node)
        self.hint = f"{path}.{node.name}" if path else node.name
        self.where = f"aten.{operator_name(node)} in {path or 'the module itself'}"
        self.arguments = self._bound()

    def _bound(self) -> dict[str, Any]:
        schema = self.node.target._schema  # type: ignore[union-attr]
        bound = {}
        for index, argument in enumerate(schema.arguments):
            if index < len(self.node.args):
                bound[argument.name] = self.node.args[index]
            elif argument.name in self.node.kwargs:
                bound[argument.name] = self.node.kwargs[argument.name]
            else:
                bound[argument.name] = argument.default_value
        return bound

    # --- arguments ------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:
        """An argument as the program has it: a number, a list, a node, None."""
        return self.arguments[name]

    def get(self, name: str, default: Any = None) -> Any:
        """An argument that not every overload has."""
        return self.arguments.get(name, default)

    def tensor(self, name: str) -> str:
        """The graph value of a tensor argument, "" where it is None."""
        return self._value(self.arguments[name]) if self.arguments[name] is not None else ""

    def tensors(self, name: str) -> list[str]:
        """The graph values of a list of tensors."""
        return [self._value(item) for item in self.arguments[name]]

    def _value(self, node: Any) -> str:
        if not isinstance(node, fx.Node):
            raise self.unsupported("a tensor", node)
        result = self._results[node]
        if not isinstance(result, str):
            raise self.unsupported("one tensor", "several")
        return result

    def operand(self, name: str, dtype: str) -> str:
        """A tensor or number as a graph value of a type."""
        value = self.arguments[name]
        if isinstance(value, fx.Node):
            return self.cast(self._value(value), dtype)
        if not isinstance(value, int | float):
            raise self.unsupported("a tensor or a number", value)
        return self.number(value, dtype)

    def integers(self, name: str, count: int) -> tuple[int, ...]:
        """A list of integers; one number stands for all `count`."""
        value = self.arguments[name]
        listed = tuple(value) if isinstance(value, list | tuple) else (value,)
        if not all(isinstance(v, int) for v in listed):
            raise self.unsupported(f"whole numbers as {name}", value)
        return tuple(listed) * count if len(listed) == 1 else tuple(listed)

    def axis(self, name: str, rank: int) -> int:
        """An axis counted from 0."""
        return int(self.arguments[name]) % max(rank, 1)

    def axes(self, name: str, rank: int) -> tuple[int, ...]:
        """Axes counted from 0; None and an empty list mean all."""
        value = self.arguments.get(name)
        listed = value if isinstance(value, list | tuple) else () if value is None else (value,)
        return tuple(sorted(int(v) % rank for v in listed)) or tuple(range(rank))

    # --- types ----------------------------------------------------------------------------------

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a graph value."""
        return self.builder.values[name].shape

    def dtype(self, name: str) -> str:
        """Type of a graph value."""
        return self.builder.values[name].dtype

    @property
    def meta(self) -> Any:
        """torch's own result: a tensor without data, or a tuple of them."""
        return self.node.meta["val"]

    @property
    def out_dtype(self) -> str:
        """Type of the (first) result."""
        first = self.meta[0] if isinstance(self.meta, list | tuple) else self.meta
        return dtype_name(first.dtype, self.where)

    @property
    def out_shape(self) -> tuple[int, ...]:
        """Shape of the result."""
        return tuple(int(size) for size in self.meta.shape)

    # --- results --------------------------------------------------------------------------------

    def constant(self, array: Array) -> str:
        """A constant."""
        return self.builder.constant(f"{self.hint}.constant", array)

    def number(self, value: float, dtype: str) -> str:
        """One number as a constant."""
        return self.constant(np.array(value, dtype))

    def cast(self, name: str, dtype: str) -> str:
        """The value as a type."""
        return name if self.dtype(name) == dtype else self.emit("Cast", name, to=dtype)

    def emit(self, op: str, *inputs: str, **attributes: Attribute) -> str:
        """Append a real operator; the name of its first output."""
        return self.emit_all(op, *inputs, **attributes)[0]

    def emit_all(self, op: str, *inputs: str, **attributes: Attribute) -> tuple[str, ...]:
        """Append a real operator; the names of its outputs."""
        return self.builder.add_all(op, inputs, attributes, self.hint)

    def reshape(self, name: str, shape: Sequence[int]) -> str:
        """The value in another shape."""
        shape = tuple(shape)
        return name if self.shape(name) == shape else self.emit("Reshape", name, shape=shape)

    def unsupported(self, expected: str, found: object) -> UnsupportedError:
        """The error of this call."""
        return UnsupportedError(
            f"{self.where}: expected {expected}, found {found}; replace it in the module"
        )
