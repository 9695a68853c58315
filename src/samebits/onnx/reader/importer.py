"""An ONNX model as a real graph: its functions, inputs, outputs and states, and one message for all
that it cannot become. What its nodes become stands in `nodes`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from onnx import ModelProto, ValueInfoProto

from samebits import progress
from samebits.errors import InputError, UnsupportedError, listed
from samebits.ir import Graph
from samebits.ir.dynamic import fuse_dynamic
from samebits.ir.real.define import ANY
from samebits.onnx.metadata import STATES, read_number
from samebits.onnx.reader.builder import FoldingBuilder
from samebits.onnx.reader.mapping.classical import look_up_numbers
from samebits.onnx.reader.nodes import NodeImporter, Scope
from samebits.onnx.reader.structure import check_distinct, names_of, opsets_of, symbol_of
from samebits.onnx.reader.tensors import check_shape, dtype_of

MAX_LINE = 1000  # characters


def import_model(
    model: ModelProto,
    batch: int,
    source: str,
    folder: Path | None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> Graph:
    """The real graph of a model.

    batch: size of the leading dimension where the model leaves it open. source: what messages call
    the model. folder: where its external data lies, None for none. shapes: of inputs that leave
    dimensions open, by name. Raises InputError for a model that breaks the rules of ONNX and for
    shapes that contradict it, UnsupportedError with every part that has no counterpart.
    """
    if batch < 1:
        raise InputError(f"{source}: expected a batch of at least 1, found {batch}")
    try:
        return _ModelImporter(model, batch, folder, shapes or {}).run()
    except (InputError, UnsupportedError) as error:
        raise type(error)(_with(source, str(error))) from None
    except RecursionError:
        raise InputError(f"{source}: expected a model, found endless nesting") from None


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
        shapes: Mapping[str, Sequence[int]],
    ) -> None:
        self.model = model
        self.batch = batch
        self.shapes = shapes
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
        scope = Scope({}, {}, opsets_of(model.opset_import, "the model"))
        for function in model.functions:
            self.nodes.define(function)
        self._declare(scope)
        wanted = [output.name for output in graph.output]
        check_distinct(wanted, "the graph's outputs")
        self.nodes.translate(graph.node, scope, wanted, "the graph")
        self._raise_problems()
        outputs = [self._output(name, scope) for name in wanted]
        look_up_numbers(self.builder)
        self._prune(outputs)
        self.builder.initial = [""] * self._state_count(outputs)
        return fuse_dynamic(self.builder.build(outputs))

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

    def _declare(self, scope: Scope) -> None:
        """Enter the graph's inputs and initialisers."""
        graph = self.model.graph
        if graph.sparse_initializer:
            name = graph.sparse_initializer[0].values.name
            raise UnsupportedError(f"expected dense tensors, found the sparse tensor {name!r}")
        scope.enter_tensors(graph)
        check_distinct([value.name for value in graph.input], "the graph's inputs")
        self.builder.reserved = names_of(graph)
        # Before IR version 4 every initialiser was listed as an input too.
        given = [value for value in graph.input if value.name not in scope.tensors]
        symbols = {symbol_of(value) for value in given} - {""}
        unknown = sorted(self.shapes.keys() - {value.name for value in given})
        if unknown:
            names = ", ".join(repr(value.name) for value in given) or "none"
            raise InputError(f"--shape {unknown[0]}: expected the name of an input ({names})")
        for value in given:
            try:
                scope.values[value.name] = self._input(value, symbols)
            except UnsupportedError as error:
                self.nodes.problems.append(str(error))
                scope.values[value.name] = None

    def _input(self, value: ValueInfoProto, symbols: set[str]) -> str:
        """A graph input. A leading dimension that is open, and others with the symbol of one, get
        the size of the batch; InputError for any other without a size."""
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
        wanted = self.shapes.get(value.name)
        if wanted is not None and len(wanted) != len(tensor.shape.dim):
            raise InputError(
                f"--shape {value.name}: expected {len(tensor.shape.dim)} sizes, found {len(wanted)}"
            )
        shape = []
        for axis, dim in enumerate(tensor.shape.dim):
            if wanted is not None:
                if dim.HasField("dim_value") and dim.dim_value != wanted[axis]:
                    raise InputError(
                        f"--shape {value.name}: expected {dim.dim_value} for dimension {axis}, "
                        f"which the model fixes, found {wanted[axis]}"
                    )
                shape.append(wanted[axis])
            elif dim.HasField("dim_value"):
                shape.append(dim.dim_value)
            elif axis == 0 or (dim.dim_param and dim.dim_param in symbols):
                shape.append(self.batch)
                if axis == 0:
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
        return self.builder.input(value.name, dtype.name, check_shape(shape, where))

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
