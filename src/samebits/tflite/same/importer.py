"""A TensorFlow Lite file as an integer graph with the bits of a runtime. docs/spec/tflite.md."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from samebits.errors import InputError, UnsupportedError, listed
from samebits.ir import Graph, GraphBuilder
from samebits.ir.integer.bounds import bounds
from samebits.ir.lowering.lower import narrow_accumulators
from samebits.ir.rewrite import remove_dead
from samebits.spec.rounding import Doubled, HalfUp, Rounding
from samebits.tflite.file import File
from samebits.tflite.part import between_codes
from samebits.tflite.same import curves, movements, recurrent, rules, sums, tables  # noqa: F401  they enter their rules
from samebits.tflite.same.node import RULES, SameNode, quantization_of
from samebits.tflite.same.versions import Runtime
from samebits.tflite.states import LiteState, explicit, needed

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


def _reach(by: Rounding) -> Fraction:
    """The room that a sum takes of that of its kernel, as parts of 32 bits."""
    if isinstance(by, Doubled):
        return Fraction(1 << by.left)
    return Fraction(1, 1 << 16) if isinstance(by, HalfUp) else Fraction(0)


class _Importer:
    def __init__(self, file: File, runtime: Runtime) -> None:
        graph, states = explicit(file)
        self.graph = between_codes(graph)
        self.runtime = runtime
        self.outputs = self.graph.outputs
        self.positions, self.states = needed(self.graph, states)
        self.builder = GraphBuilder(self.graph.name or "model")
        self.values: dict[int, str] = {}
        self.problems: list[str] = []

    def run(self) -> Graph:
        """Translate what the outputs depend on; see `import_same`."""
        graph = self.graph
        if not self.outputs or len(set(self.outputs)) != len(self.outputs):
            raise InputError("expected outputs that differ; convert the model again")
        if not graph.inputs:
            raise UnsupportedError(
                "expected a network with inputs, found one of constants alone, which computes "
                "nothing from samples"
            )
        for number in graph.inputs:
            tensor = graph.tensors[number]
            found = quantization_of(tensor)
            name = tensor.name or f"input{number}"
            self.values[number] = self.builder.input(name, tensor.dtype, tensor.shape, found)
        for state in self.states:
            self._state(state)
        failed: set[int] = set()
        for position in self.positions:
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

    def _state(self, state: LiteState) -> None:
        """A state of the graph, which begins as the file says."""
        tensor, builder = self.graph.tensors[state.before], self.builder
        name = tensor.name or f"state{state.before}"
        found, initial = quantization_of(tensor), ""
        if state.initial is not None and (state.initial != found.zero_point).any():
            initial = builder.constant(f"{name}.initial", state.initial)
        value = builder.state(name, tensor.dtype, tensor.shape, initial, found)
        self.values[state.before] = value

    def _operator(self, position: int) -> tuple[int, ...]:
        """Translate one operator; the tensors that it would write, where it is not taken."""
        graph = self.graph
        operator = graph.operators[position]
        where = str(operator)
        hint = f"{operator.op}_{position}"
        node = SameNode(self.builder, graph, operator, self.values, self.runtime, hint)
        try:
            if operator.op not in RULES:
                raise UnsupportedError(
                    f"expected one of {len(RULES)} operators, found {operator.op} of version "
                    f"{operator.version}"
                )
            with np.errstate(all="ignore"):  # of scales at the ends of binary32
                value = RULES[operator.op](node)
        except UnsupportedError as error:
            self.problems.append(f"{where}: {error}")
            return operator.outputs
        except (InputError, ValueError) as error:
            raise InputError(f"{where}: {error}; convert the model again") from None
        except (IndexError, TypeError):  # tensors with fewer axes than the operator has
            raise InputError(
                f"{where}: expected tensors of the operator's shapes, found others; convert the "
                "model again"
            ) from None
        values = (value,) if isinstance(value, str) else value
        if len(values) != len(operator.outputs):
            found = len(operator.outputs)
            raise InputError(f"{where}: expected {len(values)} outputs, found {found}")
        for made, number in zip(values, operator.outputs, strict=True):
            shape, tensor = self.builder.values[made].shape, graph.tensors[number]
            if shape != tensor.shape or number in self.values:
                raise InputError(
                    f"{where}: expected {tensor} of shape {list(shape)}, written once, found "
                    f"{list(tensor.shape)}; convert the model again"
                )
            self.values[number] = made
        return ()

    def _finished(self) -> Graph:
        """The graph with sums of 32 bits, as those of the kernels are."""
        outputs = [*self.outputs, *(state.after for state in self.states)]
        missing = [number for number in outputs if number not in self.values]
        if missing:
            raise InputError(
                f"expected the output {self.graph.tensors[missing[0]]} to be computed, found "
                "nothing that writes it; convert the model again"
            )
        wide = remove_dead(self.builder.build([self.values[number] for number in outputs]))
        found = bounds(wide)
        for node in wide.nodes:
            ratios = node.attributes.get("ratios", ())
            most = max((_reach(by) for by in ratios), default=0)
            ends = found[node.inputs[0]].hull if most else None
            if ends and max(-ends.low[0], ends.high[0]) * most >= SUMS:
                raise UnsupportedError(
                    f"node {node.name!r}: expected sums below 2**31 before they are rounded, found "
                    f"{ends.low[0]} to {ends.high[0]}, where the runtime's wrap"
                )
        return narrow_accumulators(wide, wide.outputs)
