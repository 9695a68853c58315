"""A network as a runtime is given it: from codes to codes, its states as inputs and outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from samebits.tflite.file import File, Tensor
from samebits.tflite.part import between_codes, packed
from samebits.tflite.states import explicit, needed
from samebits.tflite.writer import to_bytes


@dataclass(frozen=True, eq=False)
class PeerNetwork:
    """The bytes of a file, and what its tensors are.

    outputs: the numbers of the outputs, and of what the states become, in the order of the graph of
             the meaning `tflite`. tensors: all of them, by number. between: the numbers of those
             that operators write and that are no outputs
    """

    data: bytes
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    tensors: Sequence[Tensor]
    between: tuple[int, ...]


def as_peer(file: File) -> PeerNetwork:
    """The network of a file for a runtime. A variable tensor is an input too, which the runtime
    changes in place. Errors as `states.explicit`."""
    graph, states = explicit(file)
    graph = between_codes(graph)
    positions, alive = needed(graph, states)
    operators = tuple(graph.operators[position] for position in positions)
    inputs = (*graph.inputs, *(state.before for state in alive))
    ends = (*graph.outputs, *(state.after for state in alive if state.after != state.before))
    own = replace(graph, operators=operators, inputs=inputs, outputs=tuple(dict.fromkeys(ends)))
    made, places = packed(own)
    outputs = (*graph.outputs, *(state.after for state in alive))
    written = [places[number] for operator in operators for number in operator.outputs]
    results = tuple(places[number] for number in outputs)
    return PeerNetwork(
        to_bytes(File((made,))),
        made.inputs,
        results,
        made.tensors,
        tuple(number for number in written if number not in results),
    )
