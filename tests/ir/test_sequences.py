"""Step graphs over whole sequences have the bits of `run_steps`, whatever is computed at once."""

from __future__ import annotations

import numpy as np
import pytest

from recurrent_nets import quantized_network, random_network
from samebits.errors import InputError
from samebits.ir import many, sequences
from samebits.ir.interpreter import run_steps
from samebits.ir.reuse import Reuse
from samebits.ir.rewrite import simplify
from samebits.ir.sequences import StepSequence, run_sequences
from samebits.ir.steps import stepped

LENGTHS = (5, 9, 9, 1)


def drawn(value, count, rng):
    if value.dtype.startswith("float"):
        return rng.normal(size=(count, *value.shape)).astype(value.dtype)
    ends = np.iinfo(value.dtype)
    codes = rng.integers(ends.min, ends.max + 1, (count, *value.shape))
    return codes.astype(value.dtype)


def given(graph, seed):
    """Sequences of several lengths; the first begins with states of its own."""
    rng = np.random.default_rng(seed)
    found = []
    for index, length in enumerate(LENGTHS):
        states = None
        if not index:
            states = [drawn(graph.values[s.input], 1, rng)[0] for s in graph.states]
        inputs = [drawn(graph.values[name], length, rng) for name in graph.own_inputs]
        found.append(StepSequence(inputs, states))
    return found


def graphs(seed):
    return quantized_network(seed)[0], simplify(stepped(random_network(seed)[1]).graph)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("room", [1 << 22, 1])
def test_all_steps_at_once(seed, room, monkeypatch):
    """Also where memory holds one step at a time."""
    monkeypatch.setattr("samebits.ir.many.ELEMENTS", room)
    for graph in graphs(seed):
        runs = given(graph, seed)
        for sequence, found in zip(runs, run_sequences(graph, runs), strict=True):
            wanted = run_steps(graph, sequence.inputs, initial=sequence.states)
            for name, array in zip(graph.outputs, wanted, strict=True):
                assert found[name].dtype == array.dtype
                assert np.ascontiguousarray(found[name]).tobytes() == array.tobytes()


def test_parts_of_a_step_graph():
    """Nothing before the states reads them, and nothing behind them is needed for the next."""
    graph = graphs(1)[1]
    before, within, after = sequences._split(graph)
    states = {state.input for state in graph.states}
    assert len(before) + len(within) + len(after) == len(graph.nodes)
    assert not any(states.intersection(node.inputs) for node in before)
    made = {name for node in after for name in node.outputs}
    assert not made.intersection(state.output for state in graph.states)
    assert not any(made.intersection(node.inputs) for node in within)


@pytest.mark.parametrize("seed", range(3))
def test_what_depends_on_no_state_is_computed_once(seed, monkeypatch):
    graph = graphs(seed)[1]
    runs, before = given(graph, seed), sequences._split(graph)[0]
    states = {state.input for state in graph.states}
    reuse, computed = Reuse(graph), []
    plain = many.evaluate_many
    monkeypatch.setattr(
        many, "evaluate_many", lambda node, *rest: computed.append(node.name) or plain(node, *rest)
    )
    wanted = run_sequences(graph, runs)
    for time in range(2):
        computed.clear()
        for found, expected in zip(run_sequences(graph, runs, reuse=reuse), wanted, strict=True):
            assert {name: array.tobytes() for name, array in found.items()} == {
                name: array.tobytes() for name, array in expected.items()
            }
        assert bool({node.name for node in before} & set(computed)) == (not time)
    assert not states & set(reuse.of(graph, 0))


def test_inputs_that_do_not_fit():
    graph = graphs(0)[1]
    wrong = [np.zeros((3, 7, 7, 7), np.float32) for _ in graph.own_inputs]
    with pytest.raises(InputError, match="expected shape"):
        run_sequences(graph, [StepSequence(wrong)])
