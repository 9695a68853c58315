"""The nodes of a graph, a function body or a branch, translated one after the other.

What a node becomes stands in the mapping modules. This module finds the rule, reads names, inlines
functions, operators that the standard defines by others, and branches whose condition is constant,
and collects what has no counterpart, so that one message can list all of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto, TensorProto

from samebits import progress
from samebits.errors import InputError, UnsupportedError
from samebits.onnx.reader.builder import FoldingBuilder
from samebits.onnx.reader.expand import EXPANDED, standard_function
from samebits.onnx.reader.loops import LOOPS
from samebits.onnx.reader.mapping import RULES
from samebits.onnx.reader.mapping.classical import note_labels, reads_labels
from samebits.onnx.reader.node import MICROSOFT, OnnxNode
from samebits.onnx.reader.structure import (
    MAX_DEPTH,
    check_distinct,
    domain_of,
    opsets_of,
    ordered,
    where_of,
)
from samebits.onnx.reader.tensors import DTYPES, tensor_to_array

MIN_OPSET = 6
MAX_NODES = 2**16
STANDARD = "ai.onnx"  # of whose domains every one has versions that differ
BRANCH_COST = 64  # nodes: the names in sight are copied

_TYPES = {dtype.name for dtype in DTYPES.values()}


@dataclass
class Scope:
    """Names that the nodes of one graph, function body or branch see.

    values: ONNX name -> graph value, None for what an unsupported operator would give. tensors:
    initialisers that nothing has read yet. opsets: domain -> version. attributes: those of the
    function's call. prefix: of names in the graph, so that two calls of one function stay apart.
    depth: number of functions and branches around it. names: ONNX name -> name in the graph, of
    results that have one outside.
    """

    values: dict[str, str | None]
    tensors: dict[str, TensorProto]
    opsets: dict[str, int]
    attributes: Mapping[str, AttributeProto] = field(default_factory=dict)
    prefix: str = ""
    depth: int = 0
    names: Mapping[str, str] = field(default_factory=dict)

    def name_of(self, name: str) -> str:
        """The name in the graph for the value of an ONNX name, "" for a value without a name."""
        return self.names.get(name, self.prefix + name) if name else ""

    def enter_tensors(self, graph: GraphProto) -> None:
        """Enter the initialisers of a graph; they hide values of the same names."""
        check_distinct([tensor.name for tensor in graph.initializer], "the initialisers")
        for tensor in graph.initializer:
            if not tensor.name:
                raise InputError("expected initialisers with names, found one without")
            self.tensors[tensor.name] = tensor
            self.values.pop(tensor.name, None)

    def opset(self, domain: str) -> int:
        """Version of the operators of a domain; an error for one that is missing or too old."""
        version = self.opsets.get(domain)
        newest = onnx.defs.onnx_opset_version()
        if domain == MICROSOFT:
            return version or 1
        if version is None and domain and not domain.startswith(STANDARD):
            progress.note(f"opset_import leaves out the operators of {domain!r}: version 1 is read")
            version = self.opsets[domain] = 1
        if version is None:
            raise InputError(
                f"expected a version of the operators of {domain or 'ai.onnx'!r}, found none in "
                "opset_import; export the model again"
            )
        if domain == "" and not MIN_OPSET <= version <= newest:
            raise UnsupportedError(
                f"expected an opset from {MIN_OPSET} to {newest}, found {version}; convert the "
                "model with onnx.version_converter"
            )
        return version

    def attributes_of(self, node: NodeProto, where: str) -> dict[str, AttributeProto]:
        """The node's attributes by name; those that refer to the function's take their values."""
        found: dict[str, AttributeProto] = {}
        for attribute in node.attribute:
            if attribute.name in found:
                raise InputError(f"{where}: expected one attribute {attribute.name!r}, found two")
            if not attribute.ref_attr_name:
                found[attribute.name] = attribute
            elif attribute.ref_attr_name in self.attributes:
                found[attribute.name] = self.attributes[attribute.ref_attr_name]
        return found


class NodeImporter:
    """Translates nodes into the builder's graph.

    functions: those of the model, by domain, name and overload. problems: a line for each part of
    the model without a counterpart; what depends on it is passed over.
    """

    def __init__(self, builder: FoldingBuilder) -> None:
        self.builder = builder
        self.functions: dict[tuple[str, str, str], FunctionProto] = {}
        self.problems: list[str] = []
        self._seen = 0  # nodes
        # Initialisers that were read, by identity: bodies of loops read theirs in every step.
        self._stored: dict[int, tuple[TensorProto, str | None]] = {}

    def define(self, function: FunctionProto) -> None:
        """Enter a function of the model; InputError where another has its name."""
        key = (domain_of(function.domain), function.name, function.overload)
        if key in self.functions:
            raise InputError(f"expected functions with different names, found two {key[1]!r}")
        self.functions[key] = function

    def translate(
        self, nodes: Sequence[NodeProto], scope: Scope, wanted: Sequence[str], where: str
    ) -> None:
        """Translate those nodes that `wanted` names need, and enter their results in the scope.

        where: the graph or the node in messages. Raises InputError where the model breaks the rules
        of ONNX or the limits.
        """
        if scope.depth > MAX_DEPTH:
            raise InputError(f"{where}: expected at most {MAX_DEPTH} levels of nesting, found more")
        self._count(len(nodes))
        needed, read = ordered(nodes, {*scope.values, *scope.tensors}, wanted, where)
        for node in needed:
            self._node(node, scope, read)

    def read(self, name: str, scope: Scope, where: str) -> str | None:
        """The graph value of an ONNX name, None where it has no counterpart.

        Initialisers become constants when they are first read. where: the reader, for the message
        of InputError where nothing of that name is in sight.
        """
        if name not in scope.values:
            tensor = scope.tensors.get(name)
            if tensor is None:
                raise InputError(
                    f"{where}: expected a value that is written, found {name!r}; check the model"
                )
            if id(tensor) not in self._stored:
                self._stored[id(tensor)] = tensor, self._constant(name, tensor, scope)
            scope.values[name] = self._stored[id(tensor)][1]
        return scope.values[name]

    def _constant(self, name: str, tensor: TensorProto, scope: Scope) -> str | None:
        """An initialiser as a constant of the graph, None where it has no counterpart."""
        try:
            array = tensor_to_array(tensor, f"initialiser {name!r}", self.builder.folder)
            self.builder.allow(array.size)
            return self.builder.stored(scope.prefix + name, array, own=True)
        except UnsupportedError as error:
            self.problems.append(str(error))
            return None

    def _label(self, name: str, scope: Scope, where: str) -> str | None:
        """As `read`; texts are read as their places, and a note says which they are."""
        tensor = None if name in scope.values else scope.tensors.get(name)
        if tensor is None or tensor.data_type != TensorProto.STRING:
            return self.read(name, scope, where)
        texts = [text.decode("utf-8", "backslashreplace") for text in tensor.string_data]
        note_labels(where, texts)
        return self.builder.stored(f"{scope.prefix}{name}.places", np.arange(len(texts)))

    def _count(self, nodes: int) -> None:
        self._seen += nodes
        if self._seen > MAX_NODES:
            raise InputError(
                f"expected at most {MAX_NODES} nodes after functions are expanded, found more"
            )

    def _node(self, node: NodeProto, scope: Scope, read: set[str]) -> None:
        """Translate one node and enter its results in the scope.

        read: the names that something reads. Errors get the node's place; those about what has no
        counterpart become problems, and the results unknown.
        """
        where = where_of(node)
        reading = self._label if reads_labels(node) else self.read
        inputs = [reading(name, scope, where) if name else "" for name in node.input]
        attributes = scope.attributes_of(node, where)
        results: Sequence[str | None] = [None] * len(node.output)
        try:
            results = self._results(node, scope, inputs, attributes, read, where)
        except UnsupportedError as error:
            self.problems.append(f"{where}: {error}")
        except InputError as error:
            text = str(error)
            raise type(error)(text if text.startswith("node ") else f"{where}: {text}") from None
        except ValueError as error:  # the type and shape rule of the operator
            found = str(error).rpartition("found ")[2].split(", ")
            if not set(found) <= _TYPES:
                raise InputError(f"{where}: {error}; check the model") from None
            self.problems.append(f"{where}: {error}")
        for name, result in zip(node.output, results, strict=False):
            if name:
                scope.values[name] = result
        for index, name in enumerate(node.output[len(results) :], len(results)):
            if name in read:
                self.problems.append(f"{where}: output {index} is not supported")
            scope.values[name] = None

    def _results(
        self,
        proto: NodeProto,
        scope: Scope,
        inputs: Sequence[str | None],
        attributes: Mapping[str, AttributeProto],
        read: set[str],
        where: str,
    ) -> Sequence[str | None]:
        """Graph values of a node's outputs, by the model's function of its name, a rule, or the
        standard's function; None for all where an input is unknown."""
        domain, op = domain_of(proto.domain), proto.op_type
        function = self.functions.get((domain, op, proto.overload))
        rule = RULES.get((domain, op))
        composed = (domain, op) in EXPANDED or (domain == "" and (op == "If" or op in LOOPS))
        if function is None and rule is None and not composed:
            raise UnsupportedError("there is no such operator here")
        known = tuple(name for name in inputs if name is not None)
        if len(known) < len(inputs):
            return [None] * len(proto.output)
        if function is not None:
            return self._call(function, proto, scope, known, attributes, where)
        outputs = tuple(map(scope.name_of, proto.output))
        node = OnnxNode(
            self.builder,
            op,
            proto.name or next(filter(None, outputs), op),
            where,
            proto,
            scope.opset(domain),
            known,
            outputs,
            tuple(name in read for name in proto.output),
            attributes,
        )
        if op == "If" and domain == "":
            return self._branch(node, scope)
        if op in LOOPS and domain == "":
            graph = node.graph("body")
            return LOOPS[op](node, lambda given, step: self._step(node, scope, graph, given, step))
        if rule is None:
            function, defaults = standard_function(node, domain)
            return self._call(function, proto, scope, known, {**defaults, **attributes}, where)
        result = rule(node)
        unread = sorted(set(attributes) - node.read)
        if unread:
            raise UnsupportedError(f"the attribute {unread[0]!r} is not known")
        return [result] if isinstance(result, str) else result

    def _branch(self, node: OnnxNode, scope: Scope) -> Sequence[str | None]:
        """Results of an If whose condition is constant: those of the branch that is taken."""
        branch = node.graph(
            "then_branch" if bool(node.scalar(0, "condition").item()) else "else_branch"
        )
        if branch.input:
            raise InputError("expected branches without inputs, found some")
        if len(branch.output) != len(node.outputs):
            raise InputError(
                f"expected {len(node.outputs)} outputs of the branch, found {len(branch.output)}"
            )
        return self._inside(node, scope, branch, (), names=node.outputs)

    def _step(
        self, node: OnnxNode, scope: Scope, graph: GraphProto, given: Sequence[str], step: int
    ) -> list[str] | None:
        """Results of a step of a loop; None where one has no counterpart."""
        self._count(2 * len(given) + len(graph.output))  # inputs are cut, results are stacked
        results = self._inside(node, scope, graph, given, f"{step}/")
        if "" in results:
            raise InputError(
                "expected a body that gives each of its outputs, found none for "
                f"{graph.output[results.index('')].name!r}"
            )
        found = [name for name in results if name is not None]
        return found if len(found) == len(results) else None

    def _inside(
        self,
        node: OnnxNode,
        scope: Scope,
        graph: GraphProto,
        given: Sequence[str],
        part: str = "",
        names: Sequence[str] = (),
    ) -> list[str | None]:
        """Results of a subgraph of a node for its inputs, in a scope inside the node's.

        part: sets this copy of it apart in names. names: of the results in the graph, if given.
        """
        self._count(BRANCH_COST)
        wanted = [output.name for output in graph.output]
        inner = replace(
            scope,
            values=dict(scope.values),
            tensors=dict(scope.tensors),
            prefix=f"{scope.prefix}{node.hint}/{part}",
            depth=scope.depth + 1,
            names=dict(zip(wanted, names, strict=True)) if names else {},
        )
        inner.enter_tensors(graph)
        for value, name in zip(graph.input, given, strict=True):
            inner.values[value.name] = name
        self.translate(graph.node, inner, wanted, node.where)
        return [self.read(name, inner, node.where) for name in wanted]

    def _call(
        self,
        function: FunctionProto,
        node: NodeProto,
        scope: Scope,
        inputs: Sequence[str],
        attributes: Mapping[str, AttributeProto],
        where: str,
    ) -> Sequence[str | None]:
        """Results of a function's body for these inputs, in a scope of its own."""
        if len(inputs) > len(function.input) or len(node.output) > len(function.output):
            raise InputError(
                f"expected at most {len(function.input)} inputs and {len(function.output)} "
                f"outputs of {function.name!r}, found {len(inputs)} and {len(node.output)}"
            )
        check_distinct(function.input, f"the inputs of {function.name!r}")
        if not all(function.output):
            raise InputError(f"expected outputs with names of {function.name!r}, found one without")
        given = {attribute.name: attribute for attribute in function.attribute_proto}
        padded = [*inputs, *[""] * (len(function.input) - len(inputs))]
        called = list(zip(function.output, node.output, strict=False))
        names = {inside: scope.name_of(outside) for inside, outside in called if outside}
        inner = Scope(
            dict(zip(function.input, padded, strict=True)),
            {},
            opsets_of(function.opset_import, f"function {function.name!r}") or scope.opsets,
            {**given, **attributes},
            f"{scope.prefix}{node.name or (node.output[0] if node.output else '')}/",
            scope.depth + 1,
            names,
        )
        self.translate(function.node, inner, tuple(names), where)
        return [self.read(inside, inner, where) if outside else None for inside, outside in called]
