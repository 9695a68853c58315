"""Loops whose number of turns a file fixes, as converters write recurrent layers: unrolled.

WHILE calls two subgraphs: one says whether there is another turn, the other is its body. Counters
are computed here; everything else of a body is copied for each turn, with tensors of its own.
A few bytes of a file may ask for any number of copies, so what is made and what is computed is
counted, and charged to the ledger first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from samebits import ledger
from samebits.errors import InputError, UnsupportedError
from samebits.tflite.file import Array, File, LiteOperator, Subgraph, Tensor
from samebits.tflite.part import packed
from samebits.tflite.reader import ADVICE

LOOP, TURNS = "WHILE", "its turns"  # an operator; what messages call its copies
LOOPS_MOST, VARIABLES_MOST = 1 << 8, 1 << 8  # of a file; of a loop
TURNS_MOST = 1 << 10  # of a loop
STEPS_MOST = 1 << 15  # operators of all turns of a file, and calls of a condition or a body
COPY_BYTES = 2048  # that an operator or a tensor takes in memory
INPUT_BYTES, LETTER_BYTES = 8, 4  # that one of its inputs takes, and a letter of its name
LONGEST = 16  # numbers of a tensor that is computed here
FEWER = "convert the model for fewer time steps"
WHOLE = ("int32", "int64")
Function = Callable[[Array, Array], Array]
_ARITHMETIC: Mapping[str, Function] = {
    "ADD": np.add,
    "SUB": np.subtract,
    "MUL": np.multiply,
    "MINIMUM": np.minimum,
    "MAXIMUM": np.maximum,
}
_COMPARISONS: Mapping[str, Function] = {
    "LESS": np.less,
    "LESS_EQUAL": np.less_equal,
    "GREATER": np.greater,
    "GREATER_EQUAL": np.greater_equal,
    "EQUAL": np.equal,
    "NOT_EQUAL": np.not_equal,
}
_LOGIC: Mapping[str, Function] = {"LOGICAL_AND": np.logical_and, "LOGICAL_OR": np.logical_or}


def unrolled(file: File) -> File:
    """The file with the turns of its loops one after the other; itself where it has none.

    What a loop leaves in its outputs keeps their names. Raises InputError for a loop that
    contradicts itself, UnsupportedError for one whose number of turns depends on what is computed,
    and for more loops, turns or operators than the limits above.
    """
    graph = file.subgraphs[0]
    if all(operator.op != LOOP for operator in graph.operators):
        return file
    made = _Unrolled(file, list(graph.tensors))
    for operator in graph.operators:
        moved = replace(operator, inputs=made.standing(operator.inputs))
        if operator.op != LOOP:
            made.operators.append(moved)
            continue
        try:
            made.loop(moved)
        except (InputError, UnsupportedError) as error:
            raise type(error)(f"{operator}: {error}") from None
    outputs = made.standing(graph.outputs)
    own = Subgraph(tuple(made.tensors), tuple(made.operators), graph.inputs, outputs, graph.name)
    return replace(file, subgraphs=(packed(own)[0], *file.subgraphs[1:]))


@dataclass
class _Unrolled:
    """The network so far: tensors and operators, those of turns behind the file's own.

    stands: the tensor that an output of a loop is, where no operator of a turn writes it
    constants: the tensor that one of a subgraph is, by the numbers of both; of all turns
    """

    file: File
    tensors: list[Tensor]
    operators: list[LiteOperator] = field(default_factory=list)
    stands: dict[int, int] = field(default_factory=dict)
    constants: dict[tuple[int, int], int] = field(default_factory=dict)
    loops: int = 0
    steps: int = 0

    def standing(self, numbers: Sequence[int]) -> tuple[int, ...]:
        """The tensors that these are once loops are their turns."""
        return tuple(self.stands.get(number, number) for number in numbers)

    def loop(self, operator: LiteOperator) -> None:
        """Append the turns of a loop."""
        self.loops += 1
        if self.loops > LOOPS_MOST:
            raise UnsupportedError(f"expected at most {LOOPS_MOST} loops, found more; {FEWER}")
        condition, body = (
            _Part(self, operator, operator.options[f"{name}_subgraph_index"])
            for name in ("cond", "body")
        )
        self._check(operator, condition.graph, body.graph)
        variables = list(operator.inputs)
        tensors, operators = len(self.tensors), len(self.operators)
        for turn in range(TURNS_MOST + 1):
            (more,) = condition.turn(variables, turn, copies=False)
            known = self.tensors[more].array
            if known is None:
                raise _computed_turns()
            if not known.reshape(-1)[0]:
                self._end(operator.outputs, variables, tensors, operators)
                return
            variables = body.turn(variables, turn)
        raise UnsupportedError(f"expected at most {TURNS_MOST} turns, found more; {FEWER}")

    def _check(self, operator: LiteOperator, condition: Subgraph, body: Subgraph) -> None:
        """Raise InputError unless all tensors that hold a variable have one type."""
        variables, tensors = operator.inputs, self.tensors
        count = len(variables)
        if count > VARIABLES_MOST:
            raise UnsupportedError(
                f"expected at most {VARIABLES_MOST} variables, found {count}; keep constants out "
                "of them"
            )
        if min(variables, default=-1) < 0:
            raise InputError(f"expected inputs, none of them left out; {ADVICE}")
        for what, numbers, among in (
            ("inputs of its condition", condition.inputs, condition.tensors),
            ("inputs of its body", body.inputs, body.tensors),
            ("outputs of its body", body.outputs, body.tensors),
            ("outputs", operator.outputs, tensors),
        ):
            if len(numbers) != count:
                raise InputError(f"expected {count} {what}, found {len(numbers)}; {ADVICE}")
            if numbers is not body.outputs and len(set(numbers)) < count:
                raise InputError(f"expected {what} that differ, found one twice; {ADVICE}")
            for place, (given, number) in enumerate(zip(variables, numbers, strict=True)):
                wanted, found = tensors[given], among[number]
                if _kind(wanted) != _kind(found):
                    raise InputError(
                        f"expected {found}, number {place} of the {what}, as the variable's "
                        f"{wanted}, {_described(wanted)}, found {_described(found)}; {ADVICE}"
                    )
        if any(tensors[number].array is not None for number in operator.outputs):
            raise InputError(f"expected outputs that are computed, found a constant; {ADVICE}")
        kinds = [condition.tensors[number] for number in condition.outputs]
        if [(tensor.dtype, prod(tensor.shape)) for tensor in kinds] != [("bool", 1)]:
            raise InputError(f"expected one bool as outputs of its condition; {ADVICE}")

    def _end(
        self, outputs: Sequence[int], variables: Sequence[int], tensors: int, operators: int
    ) -> None:
        """Let a loop's outputs be its variables at its end: the operators that write them write
        the outputs. tensors, operators: how many there were before the loop."""
        written = dict[int, int]()
        for number, last in zip(outputs, variables, strict=True):
            array = self.tensors[last].array
            if array is not None:
                self.tensors[number] = replace(self.tensors[number], array=array)
            elif last < tensors or last in written:
                self.stands[number] = written.get(last, last)
            else:
                written[last] = number
        for position in range(operators, len(self.operators)):
            operator = self.operators[position]
            if not written.keys().isdisjoint((*operator.inputs, *operator.outputs)):
                inputs = tuple(written.get(number, number) for number in operator.inputs)
                made = tuple(written.get(number, number) for number in operator.outputs)
                self.operators[position] = replace(operator, inputs=inputs, outputs=made)

    def step(self) -> None:
        """Count an operator of a turn, or the call of a subgraph."""
        self.steps += 1
        if self.steps > STEPS_MOST:
            raise UnsupportedError(
                f"expected at most {STEPS_MOST} operators in all turns, found more; {FEWER}"
            )

    def append(self, tensor: Tensor) -> int:
        """The number of a new tensor."""
        ledger.keep(COPY_BYTES + LETTER_BYTES * len(tensor.name), TURNS)
        self.tensors.append(tensor)
        return len(self.tensors) - 1


class _Part:
    """The condition or the body of a loop, to be copied into a network."""

    def __init__(self, made: _Unrolled, loop: LiteOperator, index: int) -> None:
        if not 0 < index < len(made.file.subgraphs):
            raise InputError(f"expected another subgraph, found number {index}; {ADVICE}")
        self.made, self.loop, self.index = made, loop, index
        self.graph = made.file.subgraphs[index]

    def turn(self, given: Sequence[int], turn: int, copies: bool = True) -> list[int]:
        """The tensors of the outputs for variables. copies: operators that are not known are copied
        into the network; else UnsupportedError."""
        graph, made = self.graph, self.made
        places = dict(zip(graph.inputs, given, strict=True))
        made.step()
        for inner in graph.operators:
            made.step()
            if inner.op == LOOP:
                raise UnsupportedError("expected no loop inside, found one; convert it unrolled")
            inputs = tuple(self._place(number, places) for number in inner.inputs)
            known = self._computed(inner, inputs)
            if known is None and not copies:
                raise _computed_turns()
            for number in inner.outputs:
                tensor = graph.tensors[number]
                if number in places or tensor.array is not None:
                    raise InputError(f"expected {tensor} to be written once; {ADVICE}")
                name = f"{tensor.name}/{turn}"
                places[number] = made.append(replace(tensor, name=name, array=known))
            if known is None:
                ledger.keep(COPY_BYTES + INPUT_BYTES * len(inputs), TURNS)
                outputs = tuple(places[number] for number in inner.outputs)
                place = f"{self.loop}, turn {turn}, {inner.place}"
                made.operators.append(replace(inner, inputs=inputs, outputs=outputs, place=place))
        return [self._place(number, places) for number in graph.outputs]

    def _place(self, number: int, places: Mapping[int, int]) -> int:
        """The tensor of the network that one of the subgraph is; a constant is there once."""
        if number < 0:
            return number
        if number in places:
            return places[number]
        key = self.index, number
        if key not in self.made.constants:
            tensor = self.graph.tensors[number]
            if tensor.array is None:
                raise InputError(
                    f"expected {tensor} to be computed, found nothing that writes it; {ADVICE}"
                )
            self.made.constants[key] = self.made.append(tensor)
        return self.made.constants[key]

    def _computed(self, inner: LiteOperator, inputs: Sequence[int]) -> Array | None:
        """The result of whole numbers that are known; None for anything else."""
        if len(inputs) != 2 or len(inner.outputs) != 1 or min(inputs) < 0:
            return None
        first, second = (self.made.tensors[number] for number in inputs)
        to = self.graph.tensors[inner.outputs[0]]
        function, kind = _function(inner.op, first.dtype)
        plain = not any(tensor.quantization for tensor in (first, second, to))
        plain = plain and not inner.options.get("activation", 0)
        if function is None or (second.dtype, to.dtype) != (first.dtype, kind) or not plain:
            return None
        if first.array is None or second.array is None:
            return None
        sizes = first.array.size, second.array.size
        if max(sizes) > LONGEST:
            return None
        if first.shape != second.shape and 1 not in sizes:
            raise InputError(
                f"expected {first} and {second} of one shape, found {list(first.shape)} and "
                f"{list(second.shape)}; {ADVICE}"
            )
        with np.errstate(over="ignore"):  # numbers wrap, as in runtimes
            found = np.asarray(function(first.array, second.array))
        if found.shape != to.shape:
            raise InputError(
                f"expected {to} of shape {list(found.shape)}, found {list(to.shape)}; {ADVICE}"
            )
        return found


def _function(op: str, kind: str) -> tuple[Function | None, str]:
    """Look up an operator on known numbers of a type, and the type of its result."""
    if kind in WHOLE and op in _ARITHMETIC:
        return _ARITHMETIC[op], kind
    table = _LOGIC if kind == "bool" else _COMPARISONS if kind in WHOLE else {}
    return table.get(op), "bool"


def _kind(tensor: Tensor) -> tuple[object, ...]:
    return tensor.dtype, tensor.shape, tensor.quantization


def _described(tensor: Tensor) -> str:
    """The type, shape and scale of a tensor."""
    found, scale = tensor.quantization, "without a scale"
    if found is not None:
        one = len(found.scales) == 1
        scale = f"of scale {found.scales[0]}" if one else f"of {len(found.scales)} scales"
        scale += f" and zero point {found.zero_points[0]}" if one else ""
    return f"{tensor.dtype} {list(tensor.shape)} {scale}"


def _computed_turns() -> UnsupportedError:
    return UnsupportedError(
        "expected a number of turns that the file fixes, found one that is computed; convert the "
        "model for a fixed number of time steps"
    )
