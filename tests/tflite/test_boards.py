"""The meaning `tflite` on boards, and here: operators of every type, recurrent layers and streaming
states, every step from the states that the interpreter has."""

from __future__ import annotations

import numpy as np
import pytest

from backends.test_backends import side_by_side
from lite_models import OPERATORS, make
from samebits.ir import Graph
from samebits.ir.interpreter import initial_state, run_steps
from samebits.model import Model
from samebits.tflite import parse
from samebits.tflite.same.importer import import_same
from samebits.tflite.same.versions import NEWEST, RUNTIMES
from samebits.verification.registry import backend_named
from tflite.test_operators import inputs
from tflite_files import streaming_net

BOARDS = ("cortex-m0-large", "cortex-m3", "cortex-m4", "cortex-m55")
HERE = ("torch", "c", "onnxruntime-integer")
KINDS = ("int8", "int4", "int16")
ROOM = 120_000  # bytes of constants of the models of one program
QUICK = (  # where quick tests look: sums of 64 bits, straight lines, states, a division
    *(("FULLY_CONNECTED", "int16"), ("SOFTMAX", "int16"), ("UNIDIRECTIONAL_SEQUENCE_LSTM", "int8")),
    *(("SVDF", "int16"), ("TANH", "int16"), ("DIV", "int8"), ("ADD", "int16")),
)


def graphs_of(op: str, kind: str, seeds: int) -> list[Graph]:
    """The integer graphs of random models of an operator."""
    found = []
    for seed in range(seeds):
        made = make(op, kind, np.random.default_rng(seed))
        if made is not None:
            net, outputs = made
            file = parse(net.bytes(*outputs), "f")
            found.append(import_same(file, f"{op} {kind} {seed}", RUNTIMES[NEWEST]))
    return found


def rows(array):
    """[T, B, ...] as samples along axis 0."""
    return array.reshape(-1, *array.shape[2:])


def given_and_wanted(graph: Graph, seed: int = 1):
    """What every step takes, states as the interpreter has them, and what it gives."""
    own = inputs(graph, seed)
    wanted = run_steps(graph, own)
    begun = len(graph.own_outputs)
    before = [
        np.concatenate([initial_state(graph, state)[None], after[:-1]])
        for state, after in zip(graph.states, wanted[begun:], strict=True)
    ]
    return [*own, *before], wanted


def compare(board: str, graphs: list[Graph]) -> int:
    """Codes compared, of all graphs in as few programs as hold them."""
    backend, compared = backend_named(board), 0
    if reason := backend.unavailable():
        pytest.skip(reason)
    while graphs:
        room, part = ROOM, list[Graph]()
        while graphs and (not part or _bytes(graphs[0]) <= room):
            room -= _bytes(graphs[0])
            part.append(graphs.pop(0))
        given, wanted = zip(*(given_and_wanted(graph) for graph in part), strict=True)
        taken = [rows(array) for arrays in given for array in arrays]
        found = iter(backend.run(Model("f", side_by_side(part)), taken))
        for graph, arrays in zip(part, wanted, strict=True):
            for name, array in zip(graph.outputs, arrays, strict=True):
                ours = next(found).reshape(array.shape)
                np.testing.assert_array_equal(ours, array, err_msg=f"{graph.name} {name}")
                compared += array.size
    return compared


def _bytes(graph: Graph) -> int:
    """Of constants; tables of 16 bits take little in C."""
    return sum(a.nbytes for a in graph.constants.values() if a.size < 1 << 16)


@pytest.mark.parametrize("board", ["cortex-m0-large", "cortex-m55", "onnxruntime-integer"])
def test_operators_on_boards(board):
    graphs = [graph for op, kind in QUICK for graph in graphs_of(op, kind, 1)]
    graphs += [import_same(net.file(y), "f", RUNTIMES[NEWEST]) for net, y in [streaming_net(1)]]
    assert compare(board, graphs) > 1000


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("board", [*HERE, *BOARDS])
def test_every_operator_on_boards(board, kind):
    graphs = [graph for op in OPERATORS for graph in graphs_of(op, kind, 2)]
    print(f"{board} {kind}: 0 of {compare(board, graphs):,} codes differ")
