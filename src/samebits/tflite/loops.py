"""Loops whose number of turns a file fixes, as converters write recurrent layers: unrolled.

WHILE calls two subgraphs: one says whether there is another turn, the other is its body. Counters
are computed here; everything else of a body is copied for each turn, with tensors of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from samebits import ledger
from samebits.errors import InputError, UnsupportedError
from samebits.tflite.file import Array, File, LiteOperator, Subgraph, Tensor

LOOP = "WHILE"
TURNS_MOST, COPIES_MOST = 1 << 10, 1 << 14  # of a loop; operators of all copies together
COPY_BYTES = 2048  # that an operator and its tensors take in memory
LONGEST = 16  # numbers of a tensor that is computed here
_FUNCTIONS: Mapping[str, Callable[[Array, Array], Array]] = {
    "ADD": np.add,
    "SUB": np.subtract,
    "MUL": np.multiply,
    "MINIMUM": np.minimum,
    "MAXIMUM": np.maximum,
    "LESS": np.less,
    "LESS_EQUAL": np.less_equal,
    "GREATER": np.greater,
    "GREATER_EQUAL": np.greater_equal,
    "EQUAL": np.equal,
    "NOT_EQUAL": np.not_equal,
    "LOGICAL_AND": np.logical_and,
    "LOGICAL_OR": np.logical_or,
}
_COUNTED = ("int32", "int64", "bool")


def unrolled(file: File) -> File:
    """The file with the turns of its loops one after the other; itself where it has none.

    Raises InputError for a loop that contradicts itself, UnsupportedError for one whose number of
    turns depends on what is computed, or is beyond TURNS_MOST.
    """
    graph = file.subgraphs[0]
    if all(operator.op != LOOP for operator in graph.operators):
        return file
    made, stands = _Unrolled(file, list(graph.tensors)), dict[int, int]()
    for position, operator in enumerate(graph.operators):
        moved = tuple(stands.get(number, number) for number in operator.inputs)
        if operator.op != LOOP:
            made.operators.append(replace(operator, inputs=moved))
            continue
        try:
            found = made.loop(replace(operator, inputs=moved))
        except (InputError, UnsupportedError) as error:
            raise type(error)(f"operator {position} ({LOOP}): {error}") from None
        stands.update(zip(operator.outputs, found, strict=True))
    outputs = tuple(stands.get(number, number) for number in graph.outputs)
    own = Subgraph(tuple(made.tensors), tuple(made.operators), graph.inputs, outputs, graph.name)
    return replace(file, subgraphs=(own, *file.subgraphs[1:]))


@dataclass
class _Unrolled:
    """The network so far: tensors and operators, those of turns behind the file's own."""

    file: File
    tensors: list[Tensor]
    operators: list[LiteOperator] = field(default_factory=list)
    copies: int = 0

    def loop(self, operator: LiteOperator) -> list[int]:
        """The tensors that hold a loop's variables at its end."""
        condition, body = (self._called(operator, name) for name in ("cond", "body"))
        variables = list(operator.inputs)
        if min(variables, default=-1) < 0 or len(operator.outputs) != len(variables):
            raise InputError("expected as many outputs as inputs, found others")
        for turn in range(TURNS_MOST + 1):
            (more,) = self._copied(condition, variables, "", 1)
            known = self.tensors[more].array
            if known is None or known.size != 1:
                raise UnsupportedError(
                    "expected a number of turns that the file fixes, found one that is computed"
                )
            if not known.reshape(-1)[0]:
                return variables
            variables = self._copied(body, variables, f"/{turn}", len(variables))
        raise UnsupportedError(f"expected at most {TURNS_MOST} turns, found more")

    def _called(self, operator: LiteOperator, name: str) -> Subgraph:
        index = operator.options[f"{name}_subgraph_index"]
        if not 0 < index < len(self.file.subgraphs):
            raise InputError(f"expected another subgraph, found number {index}")
        graph = self.file.subgraphs[index]
        if any(inner.op == LOOP for inner in graph.operators):
            raise UnsupportedError("expected no loop inside, found one")
        return graph

    def _copied(self, graph: Subgraph, given: list[int], turn: str, results: int) -> list[int]:
        """Copy the operators of a subgraph; the tensors of its outputs. turn: what the names of its
        tensors end in; "" where it must be computed here."""
        if len(graph.inputs) != len(given) or len(graph.outputs) != results:
            raise InputError(f"expected subgraphs of {len(given)} variables, found others")
        places = dict(zip(graph.inputs, given, strict=True))
        for inner in graph.operators:
            inputs = tuple(self._place(graph, n, places, turn) for n in inner.inputs)
            known = self._computed(graph, inner, inputs)
            if known is not None:
                tensor = replace(graph.tensors[inner.outputs[0]], array=known)
                places[inner.outputs[0]] = self._append(tensor, turn)
                continue
            if not turn:
                return [self._append(Tensor("", "bool", ()), turn)]
            self.copies += 1
            if self.copies > COPIES_MOST:
                raise UnsupportedError(f"expected at most {COPIES_MOST} operators, found more")
            ledger.keep(COPY_BYTES, LOOP)
            for number in inner.outputs:
                places[number] = self._append(graph.tensors[number], turn)
            outputs = tuple(places[number] for number in inner.outputs)
            self.operators.append(replace(inner, inputs=inputs, outputs=outputs))
        return [self._place(graph, number, places, turn) for number in graph.outputs]

    def _place(self, graph: Subgraph, number: int, places: dict[int, int], turn: str) -> int:
        """The tensor of the network that one of a subgraph is; a constant is there once."""
        if number < 0:
            return number
        if number not in places:
            tensor = graph.tensors[number]
            if tensor.array is None:
                raise InputError(f"expected {tensor} to be computed, found nothing that writes it")
            places[number] = self._append(tensor, turn)
        return places[number]

    def _append(self, tensor: Tensor, turn: str) -> int:
        self.tensors.append(replace(tensor, name=f"{tensor.name}{turn}"))
        return len(self.tensors) - 1

    def _computed(
        self, graph: Subgraph, inner: LiteOperator, inputs: tuple[int, ...]
    ) -> Array | None:
        """The result of whole numbers that are known; None for anything else."""
        function = _FUNCTIONS.get(inner.op)
        if function is None or len(inputs) != 2 or len(inner.outputs) != 1 or min(inputs) < 0:
            return None
        to = graph.tensors[inner.outputs[0]]
        pair = [self.tensors[number].array for number in inputs]
        kinds = [self.tensors[number].dtype for number in inputs]
        if to.dtype not in _COUNTED or any(kind not in _COUNTED for kind in kinds):
            return None
        first, second = pair
        if first is None or second is None or max(first.size, second.size) > LONGEST:
            return None
        if first.shape != second.shape and 1 not in (first.size, second.size):
            raise InputError(f"expected two tensors of one shape, found others for {to}")
        found = np.asarray(function(first, second)).astype(to.dtype)
        if found.shape != to.shape:
            raise InputError(f"expected {to} of shape {list(found.shape)}")
        return found
