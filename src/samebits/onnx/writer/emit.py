"""Building and writing ONNX models: nodes one by one, constants stored once, atomic files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from samebits.errors import InputError, UnsupportedError
from samebits.files import write_atomically
from samebits.ir.graph import Array, Graph, Node
from samebits.ir.value import Value
from samebits.onnx.metadata import CLASSICAL, STATES

PRODUCER = "samebits"
DOMAINS = {CLASSICAL: 1}  # versions of the operators beside those of ONNX
PROTOBUF_LIMIT = 2**31 - 1  # bytes of one message


class Emitter:
    """Collects ONNX nodes and initializers for one graph. Names of its values stay as they are."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, onnx.TensorProto] = {}
        self._taken = set(graph.values)
        self._shared: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    def fresh(self, hint: str) -> str:
        """A name that no value has: `hint`, or `hint.2`, `hint.3`, ..."""
        name, count = hint, 1
        while name in self._taken:
            count += 1
            name = f"{hint}.{count}"
        self._taken.add(name)
        return name

    def constant(self, array: Any, dtype: str | None = None) -> str:
        """The name of an initializer; equal ones are stored once."""
        array = np.asarray(array, dtype)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._shared:
            self._shared[key] = self.fresh("constant")
            self.store(self._shared[key], array, array.dtype.name)
        return self._shared[key]

    def store(self, name: str, array: Array, dtype: str) -> None:
        """An initializer of this name and type."""
        self.initializers[name] = tensor_proto(name, array, dtype)

    def op(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Append a node with one output; its name."""
        return self.ops(op, inputs, attributes, [self.fresh(op)])[0]

    def ops(
        self,
        op: str,
        inputs: Sequence[str],
        attributes: Mapping[str, Any],
        outputs: Sequence[str],
        name: str = "",
    ) -> list[str]:
        """Append a node; the names of its outputs. Attributes that are None are left out."""
        listed = list(inputs)
        while listed and not listed[-1]:
            listed.pop()
        given = {key: value for key, value in attributes.items() if value is not None}
        node = helper.make_node(op, listed, list(outputs), name=name or outputs[0], **given)
        self.nodes.append(node)
        return list(outputs)

    def cast(self, name: str, dtype: str) -> str:
        """To an integer or float type, where every value is known to fit."""
        return self.op("Cast", name, to=element_type(dtype))

    def finish(self, name: str, target: str) -> None:
        """Make `target` the name of the value `name`."""
        last = self.nodes[-1] if self.nodes else None
        if last is not None and name not in self.graph.values and last.output[:] == [name]:
            last.output[0] = target
        else:
            self.ops("Identity", [name], {}, [target])

    def model(self, opset: int, ir_version: int, metadata: Mapping[str, str]) -> onnx.ModelProto:
        """The finished model. Of a step graph its metadata say how many of the last inputs and
        outputs are states; raises UnsupportedError for states that do not begin with zeros."""
        graph = self.graph
        if any(state.initial for state in graph.states):
            raise UnsupportedError(
                f"graph {graph.name!r}: expected states that begin with zeros, found other values; "
                "make them inputs of the model, tied to the outputs that follow them "
                "(--state INPUT=OUTPUT)"
            )
        states = {STATES: str(len(graph.states))} if graph.states else {}
        outputs, seen = [], {*graph.inputs, *graph.constants}
        for name in graph.outputs:
            target = name
            if name in seen:  # ONNX wants outputs of nodes, each once
                target = self.fresh(f"{name}.output")
                self.ops("Identity", [name], {}, [target])
            seen.add(target)
            outputs.append(value_info(graph.values[name], target))
        domains = {node.domain for node in self.nodes} - {""}
        proto = helper.make_graph(
            self.nodes,
            graph.name or "graph",
            [value_info(graph.values[name], name) for name in graph.inputs],
            outputs,
            list(self.initializers.values()),
        )
        model = helper.make_model(
            proto,
            opset_imports=[
                helper.make_opsetid("", opset),
                *(helper.make_opsetid(domain, DOMAINS[domain]) for domain in sorted(domains)),
            ],
            ir_version=ir_version,
            producer_name=PRODUCER,
        )
        helper.set_model_props(model, {**metadata, **states})
        return model


def element_type(dtype: str) -> int:
    """ONNX's number of a type."""
    number: int = onnx.TensorProto.DataType.Value(_TYPE_NAMES.get(dtype, dtype.upper()))
    return number


_TYPE_NAMES = {"float32": "FLOAT", "float64": "DOUBLE"}


def tensor_proto(name: str, array: Array, dtype: str) -> onnx.TensorProto:
    """A tensor as ONNX stores it; 4-bit codes lie in int8 or uint8 arrays."""
    if dtype in ("int4", "uint4"):
        values = [int(code) for code in array.reshape(-1)]
        return helper.make_tensor(name, element_type(dtype), array.shape, values)
    return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)


def value_info(value: Value, name: str) -> onnx.ValueInfoProto:
    """Type and shape of a graph input or output."""
    return helper.make_tensor_value_info(name, element_type(value.dtype), value.shape)


def unsupported(node: Node, expected: str, found: object, advice: str) -> UnsupportedError:
    """The error of a node that cannot be exported."""
    return UnsupportedError(
        f"node {node.name!r} ({node.op}): expected {expected}, found {found}; {advice}"
    )


def write_model(model: onnx.ModelProto, path: str | os.PathLike[str]) -> None:
    """Write a model so that a crash leaves the old file or the new one, never a part.

    Raises InputError for a model of 2 GiB or more, SamebitsError where the file cannot be written.
    """
    path = Path(path)
    write_atomically(path, model_bytes(model, path))


def model_bytes(model: onnx.ModelProto, path: Path) -> bytes:
    """The bytes of a model's file, which is to be `path`. Raises InputError for 2 GiB or more."""
    if model.ByteSize() > PROTOBUF_LIMIT:
        raise InputError(
            f"{path}: expected a model below 2 GiB, found {model.ByteSize()} bytes; "
            "one protobuf file holds no more: split the model"
        )
    return model.SerializeToString(deterministic=True)
