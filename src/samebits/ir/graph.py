"""Graphs as data: nodes, states, and the builder that makes them. docs/spec/graph.md section 1."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from samebits.ir.ops import Attribute, has, op_named
from samebits.ir.traits import Trait
from samebits.ir.value import Quantization, Value

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Node:
    """One operation; `inputs` and `outputs` are value names, "" an optional input left out."""

    op: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "attributes", MappingProxyType(dict(self.attributes)))

    @property
    def output(self) -> str:
        """The name of the first output."""
        return self.outputs[0]


def moved_inputs(node: Node) -> tuple[str, ...]:
    """The inputs of a movement whose elements it moves: all but indices."""
    return node.inputs[:-1] if has(node.op, Trait.INDEXED) else node.inputs


@dataclass(frozen=True)
class State:
    """A value carried from step to step of a step graph: `input` holds what `output` was before.

    Before the first step it holds the constant `initial`, or zeros (the code of 0 where the value
    has a Quantization).
    """

    input: str
    output: str
    initial: str = ""


@dataclass(frozen=True, eq=False)
class Graph:
    """A program without control flow. `nodes` are in topological order; `constants` are read-only.

    inputs, outputs: value names. values: the type of every value, constants included.
    states: of a step graph, which computes one time step. They are its last inputs and its last
    outputs, in order, so that what knows nothing of steps takes and gives them like others.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    constants: Mapping[str, Array]
    values: Mapping[str, Value]
    states: tuple[State, ...] = ()

    def __post_init__(self) -> None:
        for array in self.constants.values():
            array.setflags(write=False)
        object.__setattr__(self, "constants", MappingProxyType(dict(self.constants)))
        object.__setattr__(self, "values", MappingProxyType(dict(self.values)))

    def producers(self) -> dict[str, Node]:
        """The node that writes each value (inputs and constants have none)."""
        return {output: node for node in self.nodes for output in node.outputs}

    def consumers(self) -> dict[str, list[Node]]:
        """The nodes that read each value, in order; graph outputs are not consumers."""
        readers: dict[str, list[Node]] = {name: [] for name in self.values}
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                if name:
                    readers[name].append(node)
        return readers

    @property
    def own_inputs(self) -> tuple[str, ...]:
        """The inputs that are not states."""
        return self.inputs[: len(self.inputs) - len(self.states)]

    @property
    def own_outputs(self) -> tuple[str, ...]:
        """The outputs that are not states."""
        return self.outputs[: len(self.outputs) - len(self.states)]

    @property
    def integer(self) -> bool:
        """Every node is an integer operator."""
        return all(op_named(node.op).integer for node in self.nodes)

    def __repr__(self) -> str:
        return (
            f"Graph({self.name!r}, {len(self.nodes)} nodes, {len(self.constants)} constants, "
            f"inputs {', '.join(str(self.values[n]) for n in self.inputs)}, "
            f"outputs {', '.join(str(self.values[n]) for n in self.outputs)})"
        )


class GraphBuilder:
    """Builds a Graph node by node; the types of outputs follow from the operators' shape rules."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.inputs: list[str] = []
        self.initial: list[str] = []  # of states, which are the last inputs
        self.nodes: list[Node] = []
        self.constants: dict[str, Array] = {}
        self.values: dict[str, Value] = {}
        self._node_names: set[str] = set()
        self._shared: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._counts: dict[str, int] = {}

    @staticmethod
    def like(graph: Graph) -> tuple[GraphBuilder, dict[str, str]]:
        """A builder with the inputs and constants of a graph, and their names in it, for a pass
        that adds the nodes anew. Equal constants become one."""
        builder = GraphBuilder(graph.name)
        names: dict[str, str] = {}
        for name in graph.inputs:
            value = graph.values[name]
            names[name] = builder.input(name, value.dtype, value.shape, value.quantization)
        for name, array in graph.constants.items():
            names[name] = builder.constant(name, array, graph.values[name].quantization)
        builder.initial = [names[s.initial] if s.initial else "" for s in graph.states]
        return builder, names

    def unique(self, hint: str) -> str:
        """A value or node name that is not taken: `hint`, or `hint.2`, `hint.3`, ..."""
        hint = hint or "value"
        name, count = hint, self._counts.get(hint, 1)
        while name in self.values or name in self._node_names:
            count += 1
            name = f"{hint}.{count}"
        self._counts[hint] = count
        return name

    def input(
        self,
        name: str,
        dtype: str,
        shape: Sequence[int],
        quantization: Quantization | None = None,
    ) -> str:
        """A graph input."""
        name = self._declare(Value(self.unique(name), dtype, tuple(shape), quantization))
        self.inputs.append(name)
        return name

    def state(
        self,
        name: str,
        dtype: str,
        shape: Sequence[int],
        initial: str = "",
        quantization: Quantization | None = None,
    ) -> str:
        """A state of a step graph, after all inputs; initial: a constant, "" for zeros."""
        self.initial.append(initial)
        return self.input(name, dtype, shape, quantization)

    def constant(self, name: str, array: Array, quantization: Quantization | None = None) -> str:
        """A constant; equal arrays (type, shape, bytes) are stored once."""
        if array.flags.writeable or not array.flags.c_contiguous:
            array = np.array(array, order="C")  # the caller may change it later
        key = (array.dtype.name, array.shape, hashlib.sha256(array.tobytes()).digest())
        if quantization is None and key in self._shared:
            return self._shared[key]
        value = Value(self.unique(name), array.dtype.name, array.shape, quantization)
        self.constants[self._declare(value)] = array
        if quantization is None:
            self._shared[key] = value.name
        return value.name

    def add(
        self,
        op: str,
        inputs: Sequence[str],
        attributes: Mapping[str, Attribute] | None = None,
        name: str = "",
        outputs: Sequence[str] = (),
        quantization: Quantization | None = None,
    ) -> str:
        """Append a node; the name of its first output. See `add_all`."""
        return self.add_all(op, inputs, attributes, name, outputs, quantization)[0]

    def add_all(
        self,
        op: str,
        inputs: Sequence[str],
        attributes: Mapping[str, Attribute] | None = None,
        name: str = "",
        outputs: Sequence[str] = (),
        quantization: Quantization | None = None,
    ) -> tuple[str, ...]:
        """Append a node with its defaults filled in; the names of all outputs.

        `outputs` are wished names. Raises ValueError where the operator's rules are broken.
        """
        record = op_named(op)
        filled = record.complete(attributes or {}, name or op)
        types = record.infer([self.values[i] if i else None for i in inputs], filled)
        node_name = self.unique(name or op)
        self._node_names.add(node_name)
        names = []
        for index, (dtype, shape) in enumerate(types):
            hint = outputs[index] if index < len(outputs) else f"{node_name}.out"
            value = Value(self.unique(hint), dtype, shape, quantization)
            names.append(self._declare(value))
        self.nodes.append(Node(op, node_name, tuple(inputs), tuple(names), filled))
        return tuple(names)

    def build(self, outputs: Iterable[str]) -> Graph:
        """The finished graph; constants that nothing reads are dropped. The last outputs are what
        the states will be, one for each."""
        outputs = tuple(outputs)
        count = len(self.initial)
        if count > len(outputs):
            raise ValueError(f"expected an output for each of {count} states, found {len(outputs)}")
        ends = (self.inputs[len(self.inputs) - count :], outputs[len(outputs) - count :])
        states = tuple(map(State, *ends, self.initial))
        used = {name for node in self.nodes for name in node.inputs} | set(outputs)
        used.update(self.initial)
        constants = {name: array for name, array in self.constants.items() if name in used}
        values = {
            name: value
            for name, value in self.values.items()
            if name not in self.constants or name in used
        }
        nodes = tuple(self.nodes)
        return Graph(self.name, tuple(self.inputs), outputs, nodes, constants, values, states)

    def _declare(self, value: Value) -> str:
        self.values[value.name] = value
        return value.name
