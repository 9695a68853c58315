"""Loops whose number of turns a file fixes, as converters write recurrent layers: unrolled.

WHILE calls two subgraphs: one says whether there is another turn, the other is its body. Counters
are computed here (`known`), lists that turns write row by row are resolved (`rows`); everything
else of a body is copied for each turn, with tensors of its own.
A few bytes of a file may ask for any number of copies, so what is made and what is computed is
counted, and charged to the ledger first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from samebits import ledger
from samebits.errors import InputError, UnsupportedError
from samebits.excerpt import MEANING
from samebits.tflite.file import Array, File, LiteOperator, Subgraph, Tensor
from samebits.tflite.known import computed
from samebits.tflite.part import packed
from samebits.tflite.reader import ADVICE
from samebits.tflite.rows import Parts, Rows, is_joined, joined, keeps_codes, shape_of, sliced

LOOP, TURNS = "WHILE", "its turns"  # an operator; what messages call its copies
LOOPS_MOST, VARIABLES_MOST = 1 << 8, 1 << 8  # of a file; of a loop
TURNS_MOST = 1 << 10  # of a loop
PARTS_MOST = 1 << 22  # of lists that operators go through, in all turns of a file
STEPS_MOST = 1 << 15  # operators of all turns of a file, and calls of a condition or a body
COPY_BYTES = 2048  # that an operator or a tensor takes in memory
INPUT_BYTES, LETTER_BYTES = 8, 4  # that one of its inputs takes, and a letter of its name
FEWER = "convert the model for fewer time steps"


def unrolled(file: File, fixed: bool = False) -> File:
    """The file with the turns of its loops one after the other; itself where it has none.

    What a loop leaves in its outputs keeps their names. fixed: no tensor may have another shape
    than the file says. Raises InputError for a loop that contradicts itself, UnsupportedError for
    one whose number of turns depends on what is computed, and for more loops, turns or operators
    than the limits above.
    """
    graph = file.subgraphs[0]
    if all(operator.op != LOOP for operator in graph.operators):
        return file
    made = _Unrolled(file, fixed, list(graph.tensors))
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
    lists: the rows of tensors that no operator writes; whole: the tensors that hold them, where an
    operator needed one
    """

    file: File
    fixed: bool
    tensors: list[Tensor]
    operators: list[LiteOperator] = field(default_factory=list)
    stands: dict[int, int] = field(default_factory=dict)
    constants: dict[tuple[int, int], int] = field(default_factory=dict)
    lists: dict[int, Parts] = field(default_factory=dict)
    whole: dict[int, int] = field(default_factory=dict)
    parts: int = 0
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
                variables = [self.written(number, str(operator)) for number in variables]
                self._end(operator.outputs, variables, tensors, operators)
                return
            variables = body.turn(variables, turn)
            for given, number in zip(operator.inputs, variables, strict=True):
                wanted, found = self.tensors[given], self.tensors[number]
                if wanted.shape != found.shape:
                    raise InputError(
                        f"expected {found} of shape {list(wanted.shape)} behind turn {turn}, found "
                        f"{list(found.shape)}; {ADVICE}"
                    )
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

    def listed(self, inner: LiteOperator, inputs: Sequence[int], to: Tensor) -> int | None:
        """A new list of the rows that an operator takes or joins; None for any other operator."""
        given = [self.tensors[number] for number in inputs if number >= 0]
        if len(given) < len(inputs) or not keeps_codes(given[:1], to):
            return None
        found: Parts | None
        if inner.op == "SLICE":
            self._count_parts(inputs[:1])
            found = sliced(given, self._rows(inputs[0]))
        elif is_joined(inner, given, to) and not self.lists.keys().isdisjoint(inputs):
            self._count_parts(inputs)
            found = joined(part for number in inputs for part in self._rows(number))
        else:
            return None
        if found is None:
            return None
        shape = shape_of(found, given[0], to)
        if self.fixed and shape != to.shape:
            raise UnsupportedError(
                "expected shapes that no turn changes, as TensorFlow Lite Micro does, found "
                f"{shape[0]} rows of {to}; leave {MEANING} out, or convert the model unrolled"
            )
        number = self.append(replace(to, shape=shape))
        self.lists[number] = found
        return number

    def _count_parts(self, numbers: Sequence[int]) -> None:
        """Count and charge the parts of lists before an operator goes through them."""
        count = sum(len(self._rows(number)) for number in numbers)
        self.parts += count
        if self.parts > PARTS_MOST:
            raise UnsupportedError(
                f"expected lists of at most {PARTS_MOST} parts in all turns, found more; {FEWER}"
            )
        ledger.keep(INPUT_BYTES * count, TURNS)

    def _rows(self, number: int) -> Parts:
        if number in self.lists:
            return self.lists[number]
        return (Rows(number, 0, self.tensors[number].shape[0]),)

    def written(self, number: int, place: str) -> int:
        """The tensor that holds a list, which operators write once; any other as it is."""
        if number not in self.lists:
            return number
        if number not in self.whole:
            tensor = self.tensors[number]
            parts = [self._part(part, tensor, place) for part in self.lists[number]]
            if not parts:
                raise UnsupportedError(f"{place}: expected rows of {tensor}, found none; {FEWER}")
            self.whole[number] = parts[0]
            if len(parts) > 1:
                options = {"axis": 0, "activation": 0}
                self._write("CONCATENATION", parts, number, options, place)
                self.whole[number] = number
        return self.whole[number]

    def _part(self, part: Rows, of: Tensor, place: str) -> int:
        """The tensor of some rows."""
        tensor, count = self.tensors[part.number], part.stop - part.start
        if count == tensor.shape[0]:
            return part.number
        shape, name = (count, *tensor.shape[1:]), f"{of.name}/{part.start}"
        if tensor.array is not None:
            array = tensor.array[part.start : part.stop]
            return self.append(replace(tensor, name=name, shape=shape, array=array))
        ends = [
            self.append(Tensor(f"{name}/{what}", "int32", (len(shape),), np.array(each, np.int32)))
            for what, each in (("begin", (part.start, *[0] * (len(shape) - 1))), ("size", shape))
        ]
        found = self.append(replace(tensor, name=name, shape=shape))
        self._write("SLICE", [part.number, *ends], found, {}, place)
        return found

    def _write(
        self, op: str, inputs: Sequence[int], to: int, options: Mapping[str, int], place: str
    ) -> None:
        self.step()
        ledger.keep(COPY_BYTES + INPUT_BYTES * len(inputs), TURNS)
        self.operators.append(LiteOperator(op, tuple(inputs), (to,), options, place=place))

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
            place = f"{self.loop}, turn {turn}, {inner.place}"
            for number in inner.outputs:
                tensor = graph.tensors[number]
                if number in places or tensor.array is not None:
                    raise InputError(f"expected {tensor} to be written once; {ADVICE}")
                to = replace(tensor, name=f"{tensor.name}/{turn}", array=known)
                rows = made.listed(inner, inputs, to) if self._moves(inner, places) else None
                places[number] = made.append(to) if rows is None else rows
            outputs = tuple(places[number] for number in inner.outputs)
            if known is None and made.lists.keys().isdisjoint(outputs):
                ledger.keep(COPY_BYTES + INPUT_BYTES * len(inputs), TURNS)
                inputs = tuple(made.written(number, place) for number in inputs)
                made.operators.append(replace(inner, inputs=inputs, outputs=outputs, place=place))
        return [self._place(number, places) for number in graph.outputs]

    def _computed(self, inner: LiteOperator, inputs: Sequence[int]) -> Array | None:
        """The result of whole numbers that are known; None for anything else."""
        if len(inner.outputs) != 1 or min(inputs, default=-1) < 0:
            return None
        given = [self.made.tensors[number] for number in inputs]
        return computed(inner, given, self.graph.tensors[inner.outputs[0]])

    def _moves(self, inner: LiteOperator, places: Mapping[int, int]) -> bool:
        """Whether an operator may take rows by ends that a turn computes, or join them."""
        if len(inner.outputs) != 1:
            return False
        by_turn = any(number in places for number in inner.inputs[1:])
        return inner.op == "CONCATENATION" or (inner.op == "SLICE" and by_turn)

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
