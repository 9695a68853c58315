"""A node as lowering sees it: types, constants, bounds, and the requantization that ends it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from samebits.codegen.lowering.calls import Array, KernelCall, Struct, ValueCalls
from samebits.codegen.lowering.cpu import PORTABLE, Cpu
from samebits.codegen.lowering.rescale import fits32
from samebits.errors import UnsupportedError
from samebits.ir.graph import Graph, Node
from samebits.ir.integer.bounds import Interval
from samebits.ir.interpreter import evaluate
from samebits.ir.value import Value


@dataclass(frozen=True)
class Context:
    """A graph, its bounds, the values that were computed at compile time, and the processor.

    draft: it is asked only whether there are kernels
    """

    graph: Graph
    bounds: Mapping[str, Interval]
    folded: dict[str, Array]
    cpu: Cpu = PORTABLE
    draft: bool = False

    def value(self, name: str) -> Value:
        """Type and shape of a value."""
        return self.graph.values[name]

    def constant(self, name: str) -> Array | None:
        """The array of a constant or folded value, None for a computed one."""
        found = self.graph.constants.get(name)
        return self.folded.get(name) if found is None else found

    def fold(self, node: Node) -> None:
        """Compute a node whose inputs are all constant."""
        arrays = [self.constant(name) for name in node.inputs]
        for name, array in zip(
            node.outputs, evaluate(node, arrays, self.graph.values), strict=True
        ):
            self.folded[name] = array.astype(self.value(name).dtype)


@dataclass(frozen=True)
class Site:
    """A node with the requantization that ends it.

    output: the value that is stored, the node's own or that of the `requantize` behind it, in which
    case the accumulator never is. rescale: the parameters of that requantization. requantize: its
    node, where there is one.
    """

    context: Context
    node: Node
    output: str
    rescale: Struct
    requantize: Node | None = None

    @property
    def a(self) -> Mapping[str, Any]:
        """The node's attributes."""
        return self.node.attributes

    @property
    def narrow(self) -> bool:
        """The accumulator is proved to fit in 32 bits."""
        return fits32(self.context.bounds[self.node.output])

    @property
    def where(self) -> str:
        """The node, as messages name it."""
        return f"node {self.node.name!r} ({self.node.op})"

    def input(self, index: int) -> Value:
        """Type and shape of an input."""
        return self.context.value(self.node.inputs[index])

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the output."""
        return self.context.value(self.node.output).shape

    def required(self, index: int) -> Array:
        """The array of an input that has to be constant; UnsupportedError if it is computed."""
        found = self.context.constant(self.node.inputs[index])
        if found is None:
            raise UnsupportedError(
                f"{self.where}: expected constant data for input {index}, found a computed "
                "tensor; the C target has no kernel for that"
            )
        return found

    def bounded(self, key: str) -> int:
        """An attribute that a kernel subtracts in 32 bits: UnsupportedError from 2**30 on."""
        found = int(self.a[key])
        if abs(found) >= 1 << 30:
            raise UnsupportedError(f"{self.where}: expected |{key}| < 2**30, found {found}")
        return found

    def entry(self, *calls: KernelCall, in_place: Sequence[str] = ()) -> ValueCalls:
        """The entry of the call list: these calls write the output."""
        return ValueCalls(self.output, calls, tuple(in_place))

    def call(
        self, function: str, type_: str, fields: Mapping[str, Any], *inputs: str
    ) -> KernelCall:
        """A call of samebits_run_<function> with a samebits_<type_>, on the first input unless
        others are given."""
        return KernelCall(function, Struct(type_, fields), inputs or self.node.inputs[:1])

    def view(self) -> ValueCalls:
        """The entry of an output that is the first input's memory, read with another shape."""
        return ValueCalls(self.output, view_of=self.node.inputs[0])
