"""Step graphs: states are carried from step to step, and every pass keeps them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from compare import assert_same
from samebits.errors import InputError, UnsupportedError
from samebits.ir import Graph, GraphBuilder, State
from samebits.ir.interpreter import run, run_steps
from samebits.ir.lowering.lower import lower_graph
from samebits.ir.printer import text
from samebits.ir.rewrite import remove_dead, simplify
from samebits.ir.verify import GraphError, verify


def accumulator(initial: float | None = None) -> Graph:
    """s' = s / 2 + x, y = s' - 1; an Identity in between, and a dead node."""
    builder = GraphBuilder("sums")
    x = builder.input("x", "float32", (2,))
    start = "" if initial is None else builder.constant("start", np.full(2, initial, np.float32))
    s = builder.state("s", "float32", (2,), start)
    half, one = (builder.constant(n, np.float32(v)) for n, v in (("half", 0.5), ("one", 1.0)))
    following = builder.add("Add", [builder.add("Mul", [s, half]), x], outputs=["next"])
    y = builder.add("Sub", [builder.add("Identity", [following]), one], outputs=["y"])
    builder.add("Neg", [y], outputs=["dead"])
    return builder.build([y, following])


def test_states_are_the_last_inputs_and_outputs() -> None:
    graph = accumulator(1.0)
    verify(graph)
    assert graph.states == (State("s", "next", "start"),)
    assert (graph.own_inputs, graph.own_outputs) == (("x",), ("y",))
    assert (graph.inputs, graph.outputs) == (("x", "s"), ("y", "next"))
    assert accumulator().states == (State("s", "next"),)
    builder = GraphBuilder("none")
    s = builder.state("s", "float32", (2,))
    with pytest.raises(ValueError, match="expected an output for each of 1 states, found 0"):
        builder.build([])
    assert builder.build([s]).states == (State("s", "s"),)


@pytest.mark.parametrize("initial", [None, 3.0])
@pytest.mark.parametrize("exact", [False, True])
def test_steps_by_hand(initial: float | None, exact: bool) -> None:
    x = np.arange(10, dtype=np.float32).reshape(5, 2) / 4
    y, s = run_steps(accumulator(initial), [x], exact)
    state = np.full(2, initial or 0.0)
    for t in range(5):
        state = state / 2 + x[t]
        assert (s[t] == state).all()
        assert (y[t] == state - 1).all()
    assert (y.dtype, s.dtype) == ((object, object) if exact else (np.float32, np.float32))


def test_one_step_takes_and_gives_the_state() -> None:
    x, s = np.float32([1, 2]), np.float32([4, 8])
    y, following = run(accumulator(1.0), [x, s])
    assert following.tolist() == [3, 6]
    assert y.tolist() == [2, 5]


def test_steps_from_given_states_on() -> None:
    x = np.ones((2, 2), np.float32)
    _, s = run_steps(accumulator(1.0), [x], initial=[np.float32([4, 8])])
    assert s.tolist() == [[3, 5], [2.5, 3.5]]
    with pytest.raises(InputError, match=r"input 's': expected shape \[2\], found \[3\]"):
        run_steps(accumulator(), [x], initial=[np.zeros(3, np.float32)])


def test_states_are_not_rounded_between_steps() -> None:
    third = np.full((3, 2), 1 / 3, np.float32)
    _, s = run_steps(accumulator(), [third])
    wide = np.float64(third[0, 0])
    assert s[2, 0] == np.float32(wide / 4 + wide / 2 + wide)


def test_sequences_must_fit() -> None:
    for sequences in ([], [np.zeros((2, 2), np.float32)] * 2):
        with pytest.raises(InputError, match="expected a sequence of one length for each of x"):
            run_steps(accumulator(), sequences)
    with pytest.raises(InputError, match=r"input 'x': expected shape \[2\]"):
        run_steps(accumulator(), [np.zeros((2, 3), np.float32)])
    y, s = run_steps(accumulator(), [np.zeros((0, 2), np.float32)])
    assert y.shape == s.shape == (0, 2)


# --- passes -----------------------------------------------------------------------------------


def test_rewrites_keep_states() -> None:
    x = np.arange(10, dtype=np.float32).reshape(5, 2) / 4
    for initial in (None, 2.0):
        graph = accumulator(initial)
        for apply in (remove_dead, simplify):
            made = apply(graph)
            verify(made)
            assert made.states == graph.states
            assert len(made.nodes) < len(graph.nodes)
            for a, b in zip(run_steps(made, [x]), run_steps(graph, [x]), strict=True):
                assert_same(a, b, x)


def test_a_rebuilt_graph_keeps_states() -> None:
    graph = accumulator(1.0)
    builder, names = GraphBuilder.like(graph)
    for node in graph.nodes:
        inputs = [names[name] for name in node.inputs]
        names[node.output] = builder.add(node.op, inputs, node.attributes, node.name, node.outputs)
    again = builder.build(names[name] for name in graph.outputs)
    verify(again)
    assert again.states == graph.states


def test_text() -> None:
    lines = text(accumulator(1.0)).splitlines()
    assert lines[-1] == "  state s = next of the step before, start at first"
    assert text(accumulator()).splitlines()[-1].endswith("of the step before, zeros at first")


@pytest.mark.parametrize(
    ("states", "message"),
    [
        ((State("x", "next"),), "is not its input and output"),
        ((State("s", "y"),), "is not its input and output"),
        ((State("s", "next", "half"),), "becomes half: float32"),
        ((State("s", "next", "none"),), "begins with no constant"),
        ((State("s", "next"),) * 3, "states are no inputs and outputs"),
    ],
)
def test_rules(states: tuple[State, ...], message: str) -> None:
    graph = dataclasses.replace(accumulator(1.0), states=states)
    with pytest.raises(GraphError, match=message):
        verify(graph)


def test_a_state_keeps_its_type() -> None:
    builder = GraphBuilder("g")
    builder.state("s", "float32", (2,))
    x = builder.constant("x", np.zeros((1, 2), np.float32))
    graph = builder.build([builder.add("Identity", [x])])
    with pytest.raises(GraphError, match=r"becomes Identity\.out: float32"):
        verify(graph)


# --- integer graphs ---------------------------------------------------------------------------


def quantized(initial: float | None, zero: int, output_scale: float = 2**-4) -> Graph:
    """s' = Q(s / 2 + x) with codes of 8 bits."""
    builder = GraphBuilder("codes")
    x = builder.input("x", "float32", (2,))
    start = "" if initial is None else builder.constant("start", np.full(2, initial, np.float32))
    s = builder.state("s", "float32", (2,), start)

    def pair(name: str, step: float) -> str:
        scale = builder.constant("scale", np.float32(step))
        point = builder.constant("point", np.int8(zero))
        codes = builder.add("QuantizeLinear", [name, scale, point])
        return builder.add("DequantizeLinear", [codes, scale, point])

    half = builder.constant("half", np.float32(0.5))
    total = builder.add("Add", [builder.add("Mul", [pair(s, 2**-4), half]), pair(x, 2**-5)])
    return builder.build([pair(total, output_scale)])


@pytest.mark.parametrize("initial", [None, 0.78125, 100.0])
@pytest.mark.parametrize("zero", [0, 5, -128])
def test_lowered_states_are_codes(initial: float | None, zero: int) -> None:
    graph = quantized(initial, zero)
    integer = lower_graph(graph)
    verify(integer)
    (state,) = integer.states
    assert (state.input, state.output) == (integer.inputs[-1], integer.outputs[-1])
    random = np.random.default_rng(0)
    x = random.integers(-40, 41, (20, 2))
    codes = np.clip(x + zero, -128, 127).astype(np.int8)
    reals = ((codes.astype(np.int64) - zero) / 32).astype(np.float32)
    (found,) = run_steps(integer, [codes])
    (expected,) = run_steps(graph, [reals], exact=True)
    assert_same(found.astype(np.int64), np.asarray(expected * 16 + zero).astype(np.int64), codes)


def test_states_of_two_scales_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"state 's': expected the codes of its next value"):
        lower_graph(quantized(None, 0, 2**-3))
