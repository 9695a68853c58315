"""ONNX model -> real graph: names, order, functions, constants. What each operator becomes stands
in the mapping modules."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto

from samebits.errors import InputError, UnsupportedError
from samebits.ir import Graph
from samebits.ir.real.define import ANY
from samebits.onnx.reader import mapping
from samebits.onnx.reader.emission import Emission
from samebits.onnx.reader.expand import EXPANDED, standard_function
from samebits.onnx.reader.step import MICROSOFT, RULES, Step
from samebits.onnx.reader.structure import (
    MAX_DEPTH,
    check_distinct,
    domain_of,
    names_of,
    opsets_of,
    ordered,
    symbol_of,
    where_of,
)
from samebits.onnx.reader.tensors import DTYPES, check_shape, dtype_of, tensor_to_array
from samebits.onnx.writer.emit import STATES

Array = np.ndarray[Any, Any]

MIN_OPSET = 6
MAX_NODES = 2**16
BRANCH_COST = 64  # nodes: the names in sight are copied
MAX_SHOWN = 50  # lines of one message
MAX_LINE = 1000  # characters

_TYPES = {dtype.name for dtype in DTYPES.values()}


def import_model(model: ModelProto, batch: int, source: str, folder: Path | None) -> Graph:
    """The real graph of a model. folder: where its external data lies, None for none."""
    if batch < 1:
        raise InputError(f"{source}: expected a batch of at least 1, found {batch}")
    try:
        return Importer(model, batch, folder).run()
    except InputError as error:
        raise _prefixed(error, source) from None
    except UnsupportedError as error:
        raise UnsupportedError(_with(source, str(error))) from None
    except RecursionError:
        raise InputError(f"{source}: expected a model, found endless nesting") from None


def _prefixed(error: InputError, source: str) -> InputError:
    return type(error)(_with(source, str(error)))


def _with(source: str, message: str) -> str:
    message = "\n".join(
        line if len(line) <= MAX_LINE else line[:MAX_LINE] + " ..." for line in message.split("\n")
    )
    return message if message.startswith(f"{source}: ") else f"{source}: {message}"


@dataclass
class _Scope:
    """Names that the nodes of one graph or function body see.

    values: ONNX name -> graph value; None: what an unsupported operator would give.
    prefix: of names in the graph, so that two calls of one function stay apart.
    names: ONNX name -> name in the graph, of results that have one outside.
    """

    values: dict[str, str | None]
    tensors: dict[str, TensorProto]
    opsets: dict[str, int]
    attributes: Mapping[str, AttributeProto]
    prefix: str
    depth: int
    names: Mapping[str, str] = field(default_factory=dict)

    def name_of(self, name: str) -> str:
        """What to call the value of an ONNX name in the graph."""
        return self.names.get(name, self.prefix + name)


class Importer:
    """The state of one import."""

    def __init__(self, model: ModelProto, batch: int, folder: Path | None) -> None:
        self.model = model
        self.batch = batch
        self.emission = Emission(model.graph.name or "model", folder)
        self.builder = self.emission.builder
        self.problems: list[str] = []
        self.functions: dict[tuple[str, str, str], FunctionProto] = {}
        self.nodes_seen = 0

    # --- the model ------------------------------------------------------------------------------

    def run(self) -> Graph:
        model, graph = self.model, self.model.graph
        if not model.HasField("graph"):
            raise InputError(
                "expected an ONNX model with a graph, found none; check that the file is ONNX"
            )
        if not graph.output:
            raise InputError("expected a graph with outputs, found none; export the model again")
        scope = _Scope({}, {}, opsets_of(model.opset_import, "the model"), {}, "", 0)
        for function in model.functions:
            self._define(function)
        self._declare(graph, scope)
        wanted = [output.name for output in graph.output]
        check_distinct(wanted, "the graph's outputs")
        self._nodes(graph.node, scope, wanted, "the graph")
        self._raise_problems()
        outputs = [self._output(name, scope) for name in wanted]
        self._prune(outputs)
        self.builder.initial = [""] * self._state_count(outputs)
        return self.builder.build(outputs)

    def _state_count(self, outputs: Sequence[str]) -> int:
        """How many of the last inputs and outputs are states (`emit`)."""
        found = [entry.value for entry in self.model.metadata_props if entry.key == STATES]
        if not found or found[0] == "0":
            return 0
        values, inputs = self.builder.values, self.builder.inputs
        most = min(len(inputs), len(outputs))
        count = int(found[0]) if re.fullmatch("[0-9]{1,6}", found[0]) else most + 1
        if count > most:
            raise InputError(
                f"expected a number of states of at most {most} in the metadata, found "
                f"{found[0][:20]!a}; export the model again"
            )
        for before, after in zip(inputs[-count:], outputs[-count:], strict=True):
            x, y = values[before], values[after]
            if (x.dtype, x.shape) != (y.dtype, y.shape):
                raise InputError(f"expected states that keep their type, found {x} and {y}")
        return count

    def _define(self, function: FunctionProto) -> None:
        key = (domain_of(function.domain), function.name, function.overload)
        if key in self.functions:
            raise InputError(f"expected functions with different names, found two {key[1]!r}")
        self.functions[key] = function

    def _declare(self, graph: GraphProto, scope: _Scope) -> None:
        """Enter the graph's inputs and initialisers."""
        if graph.sparse_initializer:
            name = graph.sparse_initializer[0].values.name
            raise UnsupportedError(f"expected dense tensors, found the sparse tensor {name!r}")
        self._tensors(graph, scope)
        names = [value.name for value in graph.input]
        check_distinct(names, "the graph's inputs")
        self.emission.reserved = names_of(graph)
        symbols = {
            symbol_of(value)
            for value in graph.input
            if value.name not in scope.tensors and symbol_of(value)
        }
        for value in graph.input:
            # Before IR version 4 every initialiser was listed as an input too.
            if value.name not in scope.tensors:
                try:
                    scope.values[value.name] = self._input(value, symbols)
                except UnsupportedError as error:
                    self.problems.append(str(error))
                    scope.values[value.name] = None

    def _tensors(self, graph: GraphProto, scope: _Scope) -> None:
        names = [tensor.name for tensor in graph.initializer]
        check_distinct(names, "the initialisers")
        for tensor in graph.initializer:
            if not tensor.name:
                raise InputError("expected initialisers with names, found one without")
            scope.tensors[tensor.name] = tensor
            scope.values.pop(tensor.name, None)

    def _input(self, value: onnx.ValueInfoProto, symbols: set[str]) -> str:
        where = f"input {value.name!r}"
        if not value.name:
            raise InputError("expected inputs with names, found one without")
        kind = value.type.WhichOneof("value")
        if kind != "tensor_type":
            raise UnsupportedError(f"{where}: expected a tensor, found {kind or 'no type'}")
        tensor = value.type.tensor_type
        dtype = dtype_of(tensor.elem_type, where)
        if dtype.name not in ANY:
            raise UnsupportedError(f"{where}: expected one of {', '.join(ANY)}, found {dtype.name}")
        if not tensor.HasField("shape"):
            raise InputError(f"{where}: expected a shape, found none; export with fixed shapes")
        shape = []
        for axis, dim in enumerate(tensor.shape.dim):
            if dim.HasField("dim_value"):
                shape.append(dim.dim_value)
            elif axis == 0 or (dim.dim_param and dim.dim_param in symbols):
                shape.append(self.batch)
            else:
                found = repr(dim.dim_param) if dim.dim_param else "none"
                raise InputError(
                    f"{where}: expected a size for dimension {axis}, found {found}; only the "
                    "leading dimension may be open: export with fixed shapes"
                )
        return self.builder.input(value.name, dtype.name, check_shape(shape, where))

    def _output(self, name: str, scope: _Scope) -> str:
        value = self._read(name, scope, "the graph's outputs")
        if value is None:
            raise InputError(f"expected the output {name!r} to be computed, found no value for it")
        if value != name and name not in self.builder.values:
            return self.builder.add("Identity", [value], {}, self.emission.fresh(name), [name])
        return value

    def _prune(self, outputs: Sequence[str]) -> None:
        """Drop nodes that no output needs (folding leaves some)."""
        builder, needed, kept = self.builder, set(outputs), []
        for node in reversed(builder.nodes):
            if needed.intersection(node.outputs):
                needed.update(node.inputs)
                kept.append(node)
            else:
                for output in node.outputs:
                    del builder.values[output]
        builder.nodes = kept[::-1]

    # --- nodes ----------------------------------------------------------------------------------

    def _nodes(
        self, nodes: Sequence[NodeProto], scope: _Scope, wanted: Sequence[str], where: str
    ) -> None:
        if scope.depth > MAX_DEPTH:
            raise InputError(f"{where}: expected at most {MAX_DEPTH} levels of nesting, found more")
        self._count(len(nodes))
        needed, read = ordered(nodes, {*scope.values, *scope.tensors}, wanted, where)
        for node in needed:
            self._node(node, scope, read)

    def _count(self, nodes: int) -> None:
        self.nodes_seen += nodes
        if self.nodes_seen > MAX_NODES:
            raise InputError(
                f"expected at most {MAX_NODES} nodes after functions are expanded, found more"
            )

    def _node(self, node: NodeProto, scope: _Scope, read: set[str]) -> None:
        where = where_of(node)
        inputs = [self._read(name, scope, where) if name else "" for name in node.input]
        attributes = _resolve(node, scope, where)
        try:
            results = self._results(node, scope, inputs, attributes, read, where)
        except UnsupportedError as error:
            self.problems.append(f"{where}: {error}")
            results = [None] * len(node.output)
        except InputError as error:
            text = str(error)
            raise type(error)(text if text.startswith("node ") else f"{where}: {text}") from None
        except ValueError as error:  # the type and shape rule of the operator
            found = str(error).rpartition("found ")[2].split(", ")
            if not set(found) <= _TYPES:
                raise InputError(f"{where}: {error}; check the model") from None
            self.problems.append(f"{where}: {error}")
            results = [None] * len(node.output)
        for name, result in zip(node.output, results, strict=False):
            if name:
                scope.values[name] = result
        for index, name in enumerate(node.output[len(results) :], len(results)):
            if name in read:
                self.problems.append(f"{where}: output {index} is not supported")
            scope.values[name] = None

    def _results(
        self,
        node: NodeProto,
        scope: _Scope,
        inputs: Sequence[str | None],
        attributes: Mapping[str, AttributeProto],
        read: set[str],
        where: str,
    ) -> Sequence[str | None]:
        domain = domain_of(node.domain)
        function = self.functions.get((domain, node.op_type, node.overload))
        rule = RULES.get((domain, node.op_type))
        known = [name for name in inputs if name is not None]
        composed = domain == "" and (node.op_type in EXPANDED or node.op_type == "If")
        if function is None and rule is None and not composed:
            raise UnsupportedError("there is no such operator here")
        if len(known) < len(inputs):
            return [None] * len(node.output)
        if function is not None:
            return self._call(function, node, scope, known, attributes, where)
        opset = _opset(scope, domain)
        step = Step(
            self.emission,
            node,
            where,
            opset,
            tuple(known),
            tuple(scope.name_of(name) if name else "" for name in node.output),
            tuple(name in read for name in node.output),
            attributes,
        )
        if node.op_type == "If" and domain == "":
            return self._branch(step, scope)
        if rule is None:
            return self._expand(step, scope, known, attributes)
        result = rule(step)
        results = [result] if isinstance(result, str) else list(result)
        unread = sorted(set(attributes) - step.read)
        if unread:
            raise UnsupportedError(f"the attribute {unread[0]!r} is not known")
        return results

    def _branch(self, step: Step, scope: _Scope) -> Sequence[str | None]:
        """An If whose condition is constant: the branch that is taken."""
        self._count(BRANCH_COST)
        branch = step.graph(
            "then_branch" if bool(step.scalar(0, "condition").item()) else "else_branch"
        )
        inner = _Scope(
            dict(scope.values),
            dict(scope.tensors),
            scope.opsets,
            scope.attributes,
            f"{scope.prefix}{step.hint}/",
            scope.depth + 1,
        )
        if branch.input:
            raise InputError("expected branches without inputs, found some")
        if len(branch.output) != len(step.node.output):
            raise InputError(
                f"expected {len(step.node.output)} outputs of the branch, "
                f"found {len(branch.output)}"
            )
        self._tensors(branch, inner)
        wanted = [output.name for output in branch.output]
        inner.names = dict(zip(wanted, step.outputs, strict=True))
        self._nodes(branch.node, inner, wanted, step.where)
        return [self._read(name, inner, step.where) for name in wanted]

    def _call(
        self,
        function: FunctionProto,
        node: NodeProto,
        scope: _Scope,
        inputs: Sequence[str],
        attributes: Mapping[str, AttributeProto],
        where: str,
    ) -> Sequence[str | None]:
        """The body of a function, for these inputs."""
        if len(inputs) > len(function.input) or len(node.output) > len(function.output):
            raise InputError(
                f"expected at most {len(function.input)} inputs and {len(function.output)} "
                f"outputs of {function.name!r}, found {len(inputs)} and {len(node.output)}"
            )
        check_distinct(function.input, f"the inputs of {function.name!r}")
        if not all(function.output):
            raise InputError(f"expected outputs with names of {function.name!r}, found one without")
        given = {attribute.name: attribute for attribute in function.attribute_proto}
        given.update(attributes)
        padded = [*inputs, *[""] * (len(function.input) - len(inputs))]
        inner = _Scope(
            dict(zip(function.input, padded, strict=True)),
            {},
            opsets_of(function.opset_import, f"function {function.name!r}") or scope.opsets,
            given,
            f"{scope.prefix}{node.name or (node.output[0] if node.output else '')}/",
            scope.depth + 1,
        )
        called = list(zip(function.output, node.output, strict=False))
        wanted = [inside if outside else "" for inside, outside in called]
        inner.names = {inside: scope.name_of(outside) for inside, outside in called if outside}
        self._nodes(function.node, inner, [name for name in wanted if name], where)
        return [self._read(name, inner, where) if name else None for name in wanted]

    def _expand(
        self,
        step: Step,
        scope: _Scope,
        inputs: Sequence[str],
        attributes: Mapping[str, AttributeProto],
    ) -> Sequence[str | None]:
        """An operator that the standard defines by others."""
        types = [self.builder.values.get(name) for name in inputs]
        function, defaults = standard_function(step, types)
        given = {**defaults, **attributes}
        return self._call(function, step.node, scope, inputs, given, step.where)

    def _read(self, name: str, scope: _Scope, where: str) -> str | None:
        """The graph value of an ONNX name; initialisers become constants when first read."""
        if name not in scope.values:
            tensor = scope.tensors.get(name)
            if tensor is None:
                raise InputError(
                    f"{where}: expected a value that is written, found {name!r}; check the model"
                )
            try:
                array = tensor_to_array(tensor, f"initialiser {name!r}", self.emission.folder)
                self.emission.allow(array.size)
                scope.values[name] = self.emission.stored(scope.prefix + name, array, own=True)
            except UnsupportedError as error:
                self.problems.append(str(error))
                scope.values[name] = None
        return scope.values[name]

    def _raise_problems(self) -> None:
        if not self.problems:
            return
        problems = list(dict.fromkeys(self.problems))
        lines = [f"  {problem}" for problem in problems[:MAX_SHOWN]]
        if len(problems) > MAX_SHOWN:
            lines.append(f"  and {len(problems) - MAX_SHOWN} more")
        raise UnsupportedError(
            f"expected supported operators, found {len(problems)} that "
            f"{'is' if len(problems) == 1 else 'are'} not; replace them and export again:\n"
            + "\n".join(lines)
        )


# --- parts ----------------------------------------------------------------------------------


def _opset(scope: _Scope, domain: str) -> int:
    version = scope.opsets.get(domain)
    newest = onnx.defs.onnx_opset_version()
    if domain == MICROSOFT:
        return version or 1
    if version is None:
        raise InputError(
            f"expected a version of the operators of {domain or 'ai.onnx'!r}, found none in "
            "opset_import; export the model again"
        )
    if domain == "" and not MIN_OPSET <= version <= newest:
        raise UnsupportedError(
            f"expected an opset from {MIN_OPSET} to {newest}, found {version}; convert the model "
            "with onnx.version_converter"
        )
    return version


def _resolve(node: NodeProto, scope: _Scope, where: str) -> dict[str, AttributeProto]:
    """The node's attributes by name; those that refer to the function's take their values."""
    found: dict[str, AttributeProto] = {}
    for attribute in node.attribute:
        if attribute.name in found:
            raise InputError(f"{where}: expected one attribute {attribute.name!r}, found two")
        if attribute.ref_attr_name:
            source = scope.attributes.get(attribute.ref_attr_name)
            if source is not None:
                found[attribute.name] = source
        else:
            found[attribute.name] = attribute
    return found


__all__ = ["Importer", "import_model", "mapping"]
