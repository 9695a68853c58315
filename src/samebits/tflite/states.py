"""States that a network keeps from one run to the next, as inputs and outputs of its own.

A file has it in two forms: tensors that an operator changes in place, and variables that have a
name, which operators of the file read and assign. Both become a tensor that is given and one that
is left; docs/spec/tflite.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from samebits.errors import InputError, UnsupportedError
from samebits.tflite.file import Array, File, LiteOperator, Subgraph

HANDLE, READ, ASSIGN, ONCE = "VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE", "CALL_ONCE"
KEEPING = (HANDLE, READ, ASSIGN, ONCE)
Name = tuple[str, str]  # of a variable: container and name


@dataclass(frozen=True, eq=False)
class LiteState:
    """A state: the tensor that holds it before a run and the one that holds it after, by number.

    Of a tensor that an operator changes in place both are that one. initial: before the first run;
    None: the codes of 0, with which a variable tensor begins.
    """

    before: int
    after: int
    initial: Array | None = None


def names_of(graph: Subgraph) -> dict[int, Name]:
    """The variable that each handle stands for."""
    return {
        operator.outputs[0]: (operator.options["container"], operator.options["shared_name"])
        for operator in graph.operators
        if operator.op == HANDLE and operator.outputs
    }


def explicit(file: File) -> tuple[Subgraph, tuple[LiteState, ...]]:
    """The network without operators that read and assign variables, and its states.

    Raises InputError for a handle that is none and for values of other types; UnsupportedError for
    a variable that does not begin with constants or is never assigned.
    """
    graph = file.subgraphs[0]
    places = _Variables(file)
    operators = []
    for operator in graph.operators:
        if operator.op in KEEPING:
            try:
                places.step(operator)
            except (InputError, UnsupportedError) as error:
                raise type(error)(f"{operator}: {error}") from None
        else:
            moved = tuple(places.stands.get(number, number) for number in operator.inputs)
            operators.append(replace(operator, inputs=moved))
    states = [*places.states(), *_in_place(graph, operators)]
    outputs = tuple(places.stands.get(number, number) for number in graph.outputs)
    return replace(graph, operators=tuple(operators), outputs=outputs), tuple(states)


def needed(
    graph: Subgraph, states: Sequence[LiteState] = ()
) -> tuple[list[int], tuple[LiteState, ...]]:
    """The operators that an output depends on, by their positions, and the states that they read:
    what such a state becomes is needed too."""
    wanted, given = set(graph.outputs), {*graph.inputs, *(state.before for state in states)}
    while True:
        found = list[int]()
        for position in reversed(range(len(graph.operators))):
            operator = graph.operators[position]
            written = {*operator.outputs} - given
            if not wanted.isdisjoint(written):
                found.append(position)
                wanted.update(operator.inputs)
        alive = tuple(state for state in states if state.before in wanted)
        more = {state.after for state in alive} - wanted
        if not more:
            return found[::-1], alive
        wanted |= more


def _in_place(graph: Subgraph, operators: list[LiteOperator]) -> list[LiteState]:
    """Variable tensors in the order in which operators read them."""
    read = dict.fromkeys(number for operator in operators for number in operator.inputs)
    found = []
    for number in read:
        tensor = graph.tensors[number]
        if number >= 0 and tensor.variable and tensor.array is None:
            found.append(LiteState(number, number))
    return found


class _Variables:
    """Variables by name while operators are read in their order.

    stands: the tensor that a tensor read from a variable is. first: of a variable, the tensor that
    its first reader writes. held: the tensor that holds it now
    """

    def __init__(self, file: File) -> None:
        self.file, self.graph = file, file.subgraphs[0]
        self.names = names_of(self.graph)
        self.initial: dict[Name, Array] = {}
        self.stands: dict[int, int] = {}
        self.first: dict[Name, int] = {}
        self.held: dict[Name, int] = {}

    def step(self, operator: LiteOperator) -> None:
        """An operator that has to do with variables."""
        if operator.op == ONCE:
            if self.held:
                raise UnsupportedError("expected it before variables are read, found it behind")
            self.initial |= self.constants(operator.options["init_subgraph_index"])
        if operator.op not in (READ, ASSIGN):
            return
        count = (1, 1) if operator.op == READ else (2, 0)
        if (len(operator.inputs), len(operator.outputs)) != count:
            raise InputError(f"expected {count[0]} inputs and {count[1]} outputs, found others")
        name = self.names.get(operator.inputs[0])
        if name is None:
            raise InputError("expected the handle of a variable, found another tensor")
        if operator.op == ASSIGN:
            value = self.stands.get(operator.inputs[1], operator.inputs[1])
            self.held[name] = value
            return
        read = operator.outputs[0]
        if name not in self.held:
            self.first[name] = self.held[name] = read
        self.stands[read] = self.held[name]
        kinds = [self.graph.tensors[number] for number in (read, self.held[name])]
        if len({(tensor.dtype, tensor.shape) for tensor in kinds}) > 1:
            raise InputError(f"expected {kinds[0]} to be what was assigned, found {kinds[1]}")

    def constants(self, index: int) -> Mapping[Name, Array]:
        """The constants that a subgraph assigns."""
        if not 0 < index < len(self.file.subgraphs):
            raise InputError(f"expected another subgraph, found number {index}")
        graph = self.file.subgraphs[index]
        names, found = names_of(graph), dict[Name, Array]()
        for operator in graph.operators:
            if operator.op == HANDLE:
                continue
            handle, value = (*operator.inputs, -1, -1)[:2]
            array = graph.tensors[value].array if value >= 0 else None
            if operator.op != ASSIGN or handle not in names or array is None:
                raise UnsupportedError(
                    f"expected subgraph {index} to assign constants to variables, found "
                    f"{operator.op}"
                )
            found[names[handle]] = array
        return found

    def states(self) -> list[LiteState]:
        """The variables that are read before they are assigned."""
        found = []
        for name, before in self.first.items():
            tensor, after = self.graph.tensors[before], self.held[name]
            initial = self.initial.get(name)
            if initial is None:
                raise UnsupportedError(
                    f"variable {name[1]!r}: expected constants with which it begins, found none"
                )
            if after == before:
                raise UnsupportedError(f"variable {name[1]!r}: expected it to be assigned")
            for kind in (self.graph.tensors[after], initial):
                if (str(kind.dtype), tuple(kind.shape)) != (tensor.dtype, tensor.shape):
                    raise InputError(f"variable {name[1]!r}: expected {tensor.dtype} of one shape")
            found.append(LiteState(before, after, initial))
        return found
