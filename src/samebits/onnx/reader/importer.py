"""An ONNX model as a real graph: its functions, inputs, outputs and states, and one message for all
that it cannot become. What its nodes become stands in `nodes`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

from samebits import progress
from samebits.errors import InputError, SamebitsError, UnsupportedError, listed
from samebits.excerpt import (
    CUTS,
    WHOLE,
    Excerpt,
    check_needed,
    refuse_states,
    unknown_tensor,
)
from samebits.ir import Graph
from samebits.ir.cut import cut
from samebits.ir.dynamic import fuse_dynamic
from samebits.ir.real.define import ANY
from samebits.onnx.metadata import STATES, read_number
from samebits.onnx.reader.builder import FoldingBuilder
from samebits.onnx.reader.mapping.classical import look_up_numbers
from samebits.onnx.reader.nodes import NodeImporter, Scope
from samebits.onnx.reader.scalars import scalar_of
from samebits.onnx.reader.structure import (
    check_distinct,
    names_of,
    opsets_of,
    ordered,
    symbol_of,
    without_writers,
)
from samebits.onnx.reader.tensors import check_shape, dtype_of, type_number

MAX_LINE = 1000  # characters
OPEN = -1  # the size by which PaddlePaddle and Kaldi say that a dimension is open


def import_model(
    model: ModelProto,
    batch: int,
    source: str,
    folder: Path | None,
    part: Excerpt = WHOLE,
) -> Graph:
    """The real graph of a model.

    batch: size of the leading dimension where the model leaves it open. source: what messages call
    the model. folder: where its external data lies, None for none. part: what is taken of the
    model; beyond the tensors at which it is cut nothing is read. Tensors that only the imported
    graph has, of a branch that was chosen, are cut at after a whole import. Raises InputError for
    a model that breaks the rules of ONNX and for a part that contradicts it, UnsupportedError with
    every part that has no counterpart.
    """
    if batch < 1:
        raise InputError(f"{source}: expected a batch of at least 1, found {batch}")
    try:
        return _imported(model, batch, folder, part)
    except (InputError, UnsupportedError) as error:
        raise type(error)(_with(source, str(error))) from None
    except RecursionError:
        raise InputError(f"{source}: expected a model, found endless nesting") from None


def _imported(model: ModelProto, batch: int, folder: Path | None, part: Excerpt) -> Graph:
    graph = model.graph
    known = dict.fromkeys(name for node in graph.node for name in node.output if name)
    known |= dict.fromkeys(value.name for value in graph.input)
    options = zip(CUTS, (part.start_at, part.end_at), strict=True)
    unknown = [(option, name) for option, names in options for name in names if name not in known]
    if not unknown:
        return _ModelImporter(model, batch, folder, part).run()
    try:
        whole = _ModelImporter(model, batch, folder, replace(part, start_at=(), end_at=())).run()
    except (InputError, UnsupportedError) as error:
        raise InputError(
            f"{unknown_tensor(*unknown[0], known)}, which this one is not: {error}"
        ) from None
    return cut(whole, part)


def _with(source: str, message: str) -> str:
    message = "\n".join(
        line if len(line) <= MAX_LINE else line[:MAX_LINE] + " ..." for line in message.split("\n")
    )
    return message if message.startswith(f"{source}: ") else f"{source}: {message}"


class _ModelImporter:
    """One import of a model."""

    def __init__(
        self,
        model: ModelProto,
        batch: int,
        folder: Path | None,
        part: Excerpt,
    ) -> None:
        self.model = model
        self.batch = batch
        self.part = part
        self.builder = FoldingBuilder(model.graph.name or "model", folder)
        self.nodes = NodeImporter(self.builder)

    def run(self) -> Graph:
        """Translate the whole model; see `import_model`."""
        model, graph = self.model, self.model.graph
        if not model.HasField("graph"):
            raise InputError(
                "expected an ONNX model with a graph, found none; check that the file is ONNX"
            )
        if not graph.output:
            raise InputError("expected a graph with outputs, found none; export the model again")
        self._check_states()
        scope = Scope({}, {}, opsets_of(model.opset_import, "the model"))
        for function in model.functions:
            self.nodes.define(function)
        wanted = list(self.part.end_at) or [output.name for output in graph.output]
        check_distinct(wanted, "the graph's outputs")
        nodes = without_writers(graph.node, set(self.part.start_at))
        self._declare(scope, nodes, wanted)
        self.nodes.translate(nodes, scope, wanted, "the graph")
        self._raise_problems()
        outputs = [self._output(name, scope) for name in wanted]
        look_up_numbers(self.builder)
        self._prune(outputs)
        self.builder.initial = [""] * self._state_count(outputs)
        return fuse_dynamic(self.builder.build(outputs))

    def _check_states(self) -> None:
        """InputError for a time step that is to be cut, or whose states are to be constants."""
        given = [value.name for value in self.model.graph.input]
        count = read_number(self.model, STATES, "states") or 0
        states = given[max(len(given) - count, 0) :]
        if count and (self.part.is_cut or not self.part.set.keys().isdisjoint(states)):
            refuse_states()

    def _state_count(self, outputs: Sequence[str]) -> int:
        """Number of the last inputs, and of the last outputs, that are states (see `metadata`)."""
        values, inputs = self.builder.values, self.builder.inputs
        most = min(len(inputs), len(outputs))
        count = read_number(self.model, STATES, f"states of at most {most}", most=most) or 0
        states = (inputs[len(inputs) - count :], outputs[len(outputs) - count :])
        for before, after in zip(*states, strict=True):
            x, y = values[before], values[after]
            if (x.dtype, x.shape) != (y.dtype, y.shape):
                raise InputError(f"expected states that keep their type, found {x} and {y}")
        return count

    def _declare(self, scope: Scope, nodes: Sequence[NodeProto], wanted: Sequence[str]) -> None:
        """Enter the graph's inputs and initialisers.

        nodes, wanted: the nodes that follow, and the names that they are to give."""
        graph, part = self.model.graph, self.part
        if graph.sparse_initializer:
            name = graph.sparse_initializer[0].values.name
            raise UnsupportedError(f"expected dense tensors, found the sparse tensor {name!r}")
        scope.enter_tensors(graph)
        check_distinct([value.name for value in graph.input], "the graph's inputs")
        self.builder.reserved = names_of(graph)
        # Before IR version 4 every initialiser was listed as an input too.
        named = {value.name: value for value in graph.input}
        for name in part.set:
            if name in named:  # else it is refused below
                scope.tensors.pop(name, None)
        given = [value for value in graph.input if value.name not in scope.tensors]
        self._check_names([value.name for value in given])
        symbols = {symbol_of(value) for value in given} - {""}
        for value in self._taken(given, scope, nodes, wanted):
            try:
                scope.values[value.name] = self._input(value, symbols)
            except UnsupportedError as error:
                self.nodes.problems.append(str(error))
                scope.values[value.name] = None

    def _check_names(self, given: Sequence[str]) -> None:
        """InputError for a shape or a constant of what is no input."""
        names = ", ".join(map(repr, given)) or "none"
        cuts = self.part.start_at
        for option, named, allowed in (
            ("--shape", self.part.shapes, {*given, *cuts}),
            ("--set", self.part.set, {*given}),
        ):
            unknown = sorted(named.keys() - allowed)
            if unknown:
                raise InputError(f"{option} {unknown[0]}: expected the name of an input ({names})")

    def _taken(
        self,
        given: Sequence[ValueInfoProto],
        scope: Scope,
        nodes: Sequence[NodeProto],
        wanted: Sequence[str],
    ) -> Sequence[ValueInfoProto]:
        """The inputs of the part that is taken: of the graph's, `given`, or where it is cut."""
        part = self.part
        if not part.is_cut:
            return given
        for name in part.start_at:
            if name in scope.tensors:
                raise InputError(
                    f"--start-at {name}: expected a tensor that is computed, found "
                    "a constant; leave it out"
                )
        _, read = ordered(
            nodes, {*scope.tensors, *part.start_at, *(v.name for v in given)}, wanted, "the graph"
        )
        if not part.start_at:
            unread = [value.name for value in given if value.name not in read]
            if unread:
                progress.note(
                    f"left out, as nothing before --end-at reads them: {', '.join(unread)}"
                )
            return [value for value in given if value.name in read]
        check_needed(part, [value.name for value in given], read)
        constants = [value for value in given if value.name in part.set]
        own = {value.name: value for value in given}
        starts = [own.get(name) or self._start(name) for name in part.start_at]
        return [*starts, *(value for value in constants if value.name not in part.start_at)]

    def _start(self, name: str) -> ValueInfoProto:
        """Type and shape of a tensor at which the network starts: those that an import of what is
        before it gives, else what the file says of it."""
        part, graph = self.part, self.model.graph
        listed = (*graph.value_info, *graph.output)
        stated = next((value for value in listed if value.name == name), None)
        value = ValueInfoProto(name=name) if stated is None else stated
        kind = value.type.tensor_type
        if name in part.shapes and kind.elem_type:
            return value
        inputs = {value.name for value in graph.input}
        before = Excerpt(
            {key: shape for key, shape in part.shapes.items() if key in inputs},
            part.set,
            end_at=(name,),
        )
        try:
            found = _ModelImporter(self.model, self.batch, self.nodes.builder.folder, before).run()
        except SamebitsError:
            if kind.HasField("shape") or name in part.shapes:
                return value
            raise InputError(
                f"--start-at {name}: expected a tensor whose shape the file or what is before it "
                f"says, found none; give --shape {name}=SIZES"
            ) from None
        whole = found.values[found.outputs[0]]
        made = ValueInfoProto(name=name)
        made.type.tensor_type.elem_type = type_number(whole.dtype)
        for size in whole.shape:
            made.type.tensor_type.shape.dim.add().dim_value = size
        return made

    def _input(self, value: ValueInfoProto, symbols: set[str]) -> str:
        """A graph input, or the constant that it is set to."""
        name, where = value.name, f"input {value.name!r}"
        if not name:
            raise InputError("expected inputs with names, found one without")
        kind = value.type.WhichOneof("value")
        start = name in self.part.start_at and kind is None
        if kind != "tensor_type" and not start:
            raise UnsupportedError(f"{where}: expected a tensor, found {kind or 'no type'}")
        number = value.type.tensor_type.elem_type
        if not number and name in self.part.start_at:
            number = TensorProto.FLOAT
            progress.note(f"{where}: the file does not say its type; float32 is taken")
        dtype = dtype_of(number, where)
        if dtype.name not in ANY:
            raise UnsupportedError(f"{where}: expected one of {', '.join(ANY)}, found {dtype.name}")
        shape = check_shape(self._shape(value, symbols), where)
        if name not in self.part.set:
            return self.builder.input(name, dtype.name, shape)
        scalar = scalar_of(self.part.set[name], dtype, name)
        self.builder.charge(math.prod(shape))
        return self.builder.stored(name, np.full(shape, scalar, dtype), own=True)

    def _shape(self, value: ValueInfoProto, symbols: set[str]) -> list[int]:
        """The sizes of an input. A leading dimension that is open, as all are whose size is -1, and
        others with the symbol of one, get the size of the batch; InputError for any other without
        a size."""
        where, tensor = f"input {value.name!r}", value.type.tensor_type
        wanted = self.part.shapes.get(value.name)
        if not tensor.HasField("shape"):
            if wanted is None:
                raise InputError(
                    f"{where}: expected a shape, found none; give --shape {value.name}=SIZES, or "
                    "export with fixed shapes"
                )
            return list(wanted)
        if wanted is not None and len(wanted) != len(tensor.shape.dim):
            raise InputError(
                f"--shape {value.name}: expected {len(tensor.shape.dim)} sizes, found {len(wanted)}"
            )
        shape = []
        for axis, dim in enumerate(tensor.shape.dim):
            fixed = dim.HasField("dim_value") and dim.dim_value != OPEN
            if wanted is not None:
                if fixed and dim.dim_value != wanted[axis]:
                    raise InputError(
                        f"--shape {value.name}: expected {dim.dim_value} for dimension {axis}, "
                        f"which the model fixes, found {wanted[axis]}"
                    )
                shape.append(wanted[axis])
            elif fixed:
                shape.append(dim.dim_value)
            elif axis == 0 or (dim.dim_param and dim.dim_param in symbols):
                shape.append(self.batch)
                if axis == 0 and value.name not in self.part.set:
                    progress.note(
                        f"{where}: its open leading dimension is fixed at {self.batch}; samples "
                        f"go through one after the other (--shape {value.name}=... sets another)"
                    )
            else:
                found = repr(dim.dim_param) if dim.dim_param else "none"
                raise InputError(
                    f"{where}: expected a size for dimension {axis}, found {found}; only the "
                    "leading dimension may be open: fix it with --shape "
                    f"{value.name}=... or export with fixed shapes"
                )
        return shape

    def _output(self, name: str, scope: Scope) -> str:
        """The graph value of an output, under the model's name of it where that is free."""
        value = self.nodes.read(name, scope, "the graph's outputs")
        if value is None:
            raise InputError(f"expected the output {name!r} to be computed, found no value for it")
        if value != name and name not in self.builder.values:
            return self.builder.renamed(value, name)
        return value

    def _prune(self, outputs: Sequence[str]) -> None:
        """Drop the nodes that no output needs; folding leaves some behind."""
        builder, needed, kept = self.builder, set(outputs), []
        for node in reversed(builder.nodes):
            if needed.intersection(node.outputs):
                needed.update(node.inputs)
                kept.append(node)
            else:
                for output in node.outputs:
                    del builder.values[output]
        builder.nodes = kept[::-1]

    def _raise_problems(self) -> None:
        """UnsupportedError that lists the problems, each once, where there are any."""
        problems = list(dict.fromkeys(self.nodes.problems))
        if not problems:
            return
        raise UnsupportedError(
            f"expected supported operators, found {len(problems)} that "
            f"{'is' if len(problems) == 1 else 'are'} not; replace them and export again:\n"
            + listed(problems)
        )
