"""The part of a file between tensors: other inputs and outputs, and what they need."""

from __future__ import annotations

from dataclasses import replace

from samebits.errors import InputError
from samebits.excerpt import Excerpt, check_needed, unknown_tensor
from samebits.tflite.file import File, LiteOperator, Subgraph
from samebits.tflite.states import HANDLE, KEEPING, ONCE, READ, explicit, names_of, needed


def between_codes(graph: Subgraph) -> Subgraph:
    """The network from the codes of its float inputs to those of its float outputs: QUANTIZE and
    DEQUANTIZE at its ends are left out."""
    kinds = [tensor.dtype for tensor in graph.tensors]
    single = [op for op in graph.operators if len(op.inputs) == len(op.outputs) == 1]
    pairs = [(op.op, op.inputs[0], op.outputs[0]) for op in single if op.inputs[0] >= 0]
    first = {x: y for op, x, y in pairs if op == "QUANTIZE" and kinds[x] == "float32"}
    last = {y: x for op, x, y in pairs if op == "DEQUANTIZE"}
    return replace(
        graph,
        inputs=tuple(first.get(number, number) for number in graph.inputs),
        outputs=tuple(last.get(number, number) for number in graph.outputs),
    )


def part_of(file: File, part: Excerpt) -> File:
    """The file of the network between the tensors at which it is to start and to end: its operators
    and tensors alone. A whole one as it is.

    Raises InputError for a tensor that is none or is constant, for a start that no output needs and
    for an input beside the starts that one needs; and as `states.explicit`.
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
    operators = _kept(replace(file, subgraphs=(cut, *file.subgraphs[1:])))
    read = {*cut.outputs, *(number for operator in operators for number in operator.inputs)}
    if starts:
        names = {graph.tensors[number].name for number in read if number >= 0}
        check_needed(part, [graph.tensors[number].name for number in graph.inputs], names)
    inputs = tuple(number for number in dict.fromkeys(cut.inputs) if number in read)
    own = packed(replace(cut, operators=tuple(operators), inputs=inputs))[0]
    others = file.subgraphs[1:] if any(operator.op == ONCE for operator in operators) else ()
    return replace(file, subgraphs=(own, *others))


def _kept(file: File) -> list[LiteOperator]:
    """The operators of the first subgraph that its outputs need, variables included."""
    graph, (plain, states) = file.subgraphs[0], explicit(file)
    rest = iter(range(len(plain.operators)))
    wanted = set(needed(plain, states)[0])
    known = names_of(graph)
    taken = [op for op in graph.operators if op.op in KEEPING or next(rest) in wanted]
    read = {n for op in taken if op.op not in KEEPING for n in op.inputs} | set(graph.outputs)
    names = {known.get(op.inputs[0]) for op in taken if op.op == READ and op.outputs[0] in read}

    def keeps(operator: LiteOperator) -> bool:
        if operator.op == ONCE:
            return bool(names)
        ends = operator.outputs if operator.op == HANDLE else operator.inputs
        return operator.op not in KEEPING or known.get(ends[0]) in names

    return [operator for operator in taken if keeps(operator)]


def packed(graph: Subgraph) -> tuple[Subgraph, dict[int, int]]:
    """The subgraph with the tensors that its operators and ends name, and their new numbers."""
    named = {n for op in graph.operators for n in (*op.inputs, *op.outputs)}
    kept = sorted({*graph.inputs, *graph.outputs, *named} - {-1})
    places = {number: place for place, number in enumerate(kept)} | {-1: -1}

    def placed(each: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(places[number] for number in each)

    moved = [
        replace(o, inputs=placed(o.inputs), outputs=placed(o.outputs)) for o in graph.operators
    ]
    tensors = tuple(graph.tensors[number] for number in kept)
    ends = placed(graph.inputs), placed(graph.outputs)
    return Subgraph(tensors, tuple(moved), *ends, graph.name), places
