"""A TensorFlow Lite file as an integer graph with the bits of a runtime. docs/spec/tflite.md."""

from __future__ import annotations

from samebits.errors import InputError, UnsupportedError, listed
from samebits.ir import Graph, GraphBuilder
from samebits.ir.integer.bounds import bounds
from samebits.ir.lowering.lower import narrow_accumulators
from samebits.ir.rewrite import remove_dead
from samebits.spec.rounding import Doubled
from samebits.tflite.file import File
from samebits.tflite.part import needed
from samebits.tflite.same.node import SameNode, quantization_of
from samebits.tflite.same.rules import RULES
from samebits.tflite.same.versions import Runtime

SUMS = 1 << 31  # which the kernels' sums stay below


def import_same(file: File, source: str, runtime: Runtime) -> Graph:
    """The integer graph of the first subgraph, whose codes are those of a runtime in every tensor.

    source: what messages call the file.

    Raises InputError for a file that contradicts itself, UnsupportedError with every operator whose
    bits are not known here.
    """
    try:
        return _Importer(file, runtime).run()
    except (InputError, UnsupportedError) as error:
        raise type(error)(f"{source}: {error}") from None


class _Importer:
    def __init__(self, file: File, runtime: Runtime) -> None:
        self.graph = file.subgraphs[0]
        self.runtime = runtime
        self.outputs = self.graph.outputs
        self.builder = GraphBuilder(self.graph.name or "model")
        self.values: dict[int, str] = {}
        self.problems: list[str] = []

    def run(self) -> Graph:
        """Translate what the outputs depend on; see `import_same`."""
        graph = self.graph
        if not self.outputs or len(set(self.outputs)) != len(self.outputs):
            raise InputError("expected outputs that differ; convert the model again")
        for number in graph.inputs:
            tensor = graph.tensors[number]
            found = quantization_of(tensor)
            name = tensor.name or f"input{number}"
            self.values[number] = self.builder.input(name, tensor.dtype, tensor.shape, found)
        failed: set[int] = set()
        for position in needed(graph):
            if failed.isdisjoint(graph.operators[position].inputs):
                failed.update(self._operator(position))
            else:
                failed.update(graph.operators[position].outputs)
        if self.problems:
            raise UnsupportedError(
                f"expected operators whose bits are those of {self.runtime.name}, found "
                f"{len(self.problems)} that are not; end before them (--end-at), or give --meaning "
                f"exact:\n{listed(self.problems)}"
            )
        return self._finished()

    def _operator(self, position: int) -> tuple[int, ...]:
        """Translate one operator; the tensors that it would write, where it is not taken."""
        operator = self.graph.operators[position]
        where = f"operator {position} ({operator.op})"
        hint = f"{operator.op}_{position}"
        node = SameNode(self.builder, self.graph, operator, self.values, self.runtime, hint)
        try:
            if operator.op not in RULES:
                raise UnsupportedError(
                    f"expected one of {len(RULES)} operators, found {operator.op} of version "
                    f"{operator.version}"
                )
            value = RULES[operator.op](node)
        except UnsupportedError as error:
            self.problems.append(f"{where}: {error}")
            return operator.outputs
        except (InputError, ValueError) as error:
            raise InputError(f"{where}: {error}; convert the model again") from None
        found, tensor = self.builder.values[value].shape, node.result
        if found != tensor.shape or operator.outputs[0] in self.values:
            raise InputError(
                f"{where}: expected {tensor} of shape {list(found)}, written once, found "
                f"{list(tensor.shape)}; convert the model again"
            )
        self.values[operator.outputs[0]] = value
        return ()

    def _finished(self) -> Graph:
        """The graph with sums of 32 bits, as those of the kernels are."""
        missing = [number for number in self.outputs if number not in self.values]
        if missing:
            raise InputError(
                f"expected the output {self.graph.tensors[missing[0]]} to be computed, found "
                "nothing that writes it; convert the model again"
            )
        wide = remove_dead(self.builder.build([self.values[number] for number in self.outputs]))
        found = bounds(wide)
        for node in wide.nodes:
            shifts = [by.left for by in node.attributes.get("ratios", ()) if type(by) is Doubled]
            ends = found[node.inputs[0]].hull if shifts else None
            if ends and max(-ends.low[0], ends.high[0]) << max(shifts) >= SUMS:
                raise UnsupportedError(
                    f"node {node.name!r}: expected sums below 2**31 before they are rounded, found "
                    f"{ends.low[0]} to {ends.high[0]}, where the runtime's wrap"
                )
        return narrow_accumulators(wide, wide.outputs)
