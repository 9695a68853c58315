"""The part of a file between tensors: other inputs and outputs, and what they need."""

from __future__ import annotations

from dataclasses import replace

from samebits.errors import InputError
from samebits.excerpt import Excerpt, check_needed, unknown_tensor
from samebits.tflite.file import File, Subgraph


def needed(graph: Subgraph) -> list[int]:
    """The operators that an output depends on, by their positions."""
    wanted, given, found = set(graph.outputs), set(graph.inputs), list[int]()
    for position in reversed(range(len(graph.operators))):
        operator = graph.operators[position]
        if not (wanted - given).isdisjoint(operator.outputs):
            found.append(position)
            wanted.update(operator.inputs)
    return found[::-1]


def part_of(file: File, part: Excerpt) -> File:
    """The file of the network between the tensors at which it is to start and to end: its operators
    and tensors alone. A whole one as it is.

    Raises InputError for a tensor that is none or is constant, for a start that no output needs and
    for an input beside the starts that one needs.
    """
    if not part.is_cut:
        return file
    graph = file.subgraphs[0]
    numbers = {t.name: number for number, t in enumerate(graph.tensors) if t.array is None}
    ends = {"--start-at": part.start_at, "--end-at": part.end_at}
    for option, name in ((option, name) for option, names in ends.items() for name in names):
        if name not in numbers:
            raise InputError(unknown_tensor(option, name, numbers))
    starts, outputs = (tuple(numbers[name] for name in names) for names in ends.values())
    cut = replace(graph, inputs=(*starts, *graph.inputs), outputs=outputs or graph.outputs)
    operators = [cut.operators[position] for position in needed(cut)]
    read = {*cut.outputs, *(number for operator in operators for number in operator.inputs)}
    if starts:
        names = {graph.tensors[number].name for number in read if number >= 0}
        check_needed(part, [graph.tensors[number].name for number in graph.inputs], names)
    inputs = tuple(number for number in dict.fromkeys(cut.inputs) if number in read)
    kept = sorted({*inputs, *read, *(n for op in operators for n in op.outputs)} - {-1})
    places = {number: place for place, number in enumerate(kept)} | {-1: -1}

    def placed(each: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(places[number] for number in each)

    moved = [replace(o, inputs=placed(o.inputs), outputs=placed(o.outputs)) for o in operators]
    tensors = tuple(graph.tensors[number] for number in kept)
    own = Subgraph(tensors, tuple(moved), placed(inputs), placed(cut.outputs), graph.name)
    return replace(file, subgraphs=(own,))
