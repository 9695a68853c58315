"""Loops of generated C: the same calls on the same numbers as the list of all rounds."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import pytest

from recurrent_nets import GATES, Net
from samebits.codegen import emit
from samebits.codegen.call_text import Constants
from samebits.codegen.header import About
from samebits.codegen.loops import with_loops
from samebits.codegen.lowering.calls import CallList
from samebits.codegen.lowering.lower import lower_to_calls
from samebits.codegen.memory import last_reads, layout, views
from samebits.codegen.packaging.package import write_package
from samebits.codegen.run.execute import build, execute
from samebits.codegen.run.interface import Interface
from samebits.codegen.run.targets import host
from samebits.ir import Graph
from samebits.ir.lowering.lower import lower_graph
from samebits.ir.many import run_many
from samebits.ir.rewrite import simplify
from samebits.quantization.lstm import RecurrentSettings, quantize_steps, whole_calls
from samebits.verification.inputs import random_codes

STEPS, FEATURES, HIDDEN = 20, 3, 4


@functools.cache
def network(op: str) -> Graph:
    """A bidirectional layer over 20 steps, as integers."""
    net = Net(1, STEPS, FEATURES)
    rows = GATES[op] * HIDDEN
    weights = [net.constant(net.numbers(2, rows, n)) for n in (FEATURES, HIDDEN)]
    bias = net.constant(net.numbers(2, 2 * rows))
    attributes = {"hidden_size": HIDDEN, "direction": "bidirectional"}
    y = net.builder.add(op, [net.x, *weights, bias], attributes, "both")
    steps, sequences = whole_calls(net.graph(y), net.samples(4))
    return lower_graph(simplify(quantize_steps(steps, sequences, RecurrentSettings()).graph))


def text(calls: CallList) -> str:
    return emit.source(calls, layout(calls), None, "m", About("", ""), Constants("m"), 0)


def test_a_loop_for_each_direction() -> None:
    graph = network("RNN")
    flat = lower_to_calls(graph)
    calls = with_loops(flat)
    assert [loop.count for loop in calls.loops] == [STEPS - 1] * 2
    assert {e.value for e in calls.entries} == {e.value for e in flat.entries}
    written = text(calls)
    assert written.count("for (uint32_t t = 0; t < 19u; t++)") == 2
    assert len(written) < len(text(flat)) / 4
    assert layout(calls).bytes <= layout(flat).bytes


@pytest.mark.parametrize("op", [pytest.param("LSTM", marks=pytest.mark.slow), "RNN"])
def test_no_value_is_overwritten_while_it_lives(op: str) -> None:
    """Every value, round by round, against all others that lie where it does."""
    calls = with_loops(lower_to_calls(network(op)))
    memory, roots = layout(calls), views(calls)
    last, values = last_reads(calls, roots), calls.graph.values
    written: dict[int, str] = {}  # byte of the arena -> the value that lies there
    for index, entry in enumerate(calls.entries):
        place = memory.places[entry.value]
        if place.kind != "arena" or roots[entry.value] != entry.value or not entry.calls:
            continue
        for byte in range(place.at, place.at + values[entry.value].size):
            held = written.get(byte)
            if held is not None:
                taken = held in [roots[name] for name in entry.in_place]
                assert last[held] < index or (last[held] == index and taken), (held, entry.value)
            written[byte] = entry.value


@pytest.mark.slow
@pytest.mark.parametrize("op", GATES)
def test_the_same_bits(op: str, tmp_path: Path) -> None:
    graph = network(op)
    write_package(graph, tmp_path / "package")
    assert "for (uint32_t t" in (tmp_path / "package" / "model.c").read_text(encoding="utf-8")
    program = build(tmp_path / "package", host(), tmp_path / "build", Interface.of(graph))
    (codes,) = random_codes(graph, 5)
    (found,) = execute(program, [codes])
    (expected,) = run_many(graph, [[codes[i * STEPS : (i + 1) * STEPS]] for i in range(5)])
    assert found.tobytes() == expected.tobytes()


def test_lines_of_rounds() -> None:
    rounds = [[f"    f(&m_p3, x + {8 - 2 * t}, y2 + 5);"] for t in range(4)]
    assert emit.merged(rounds) == ["    f(&m_p3, x + 8 - 2u * t, y2 + 5);"]
    assert emit.merged([["g(1)"], ["g(2)"], ["g(4)"]]) is None
    assert emit.merged([["g(1)"], ["h(2)"], ["g(3)"]]) is None
    assert emit.merged([["(const uint8_t *)input0 + 0, 7u)"]] * 3) == ["input0, 7u)"]


def test_step_graphs_and_short_lists_stay() -> None:
    calls = lower_to_calls(network("RNN"))
    short = replace(calls, entries=calls.entries[:5])
    assert with_loops(short) is short
