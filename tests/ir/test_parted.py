"""States of several parts: what is parted, and that nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest

from samebits.ir import GraphBuilder
from samebits.ir.interpreter import run_steps
from samebits.ir.parted import apart, parted_arrays
from samebits.ir.steps import with_states

SHAPE = (2, 1, 3)


def packed(read: str, axis: int = 0, initial: bool = False):
    """A step that takes h and c out of one state and puts new ones into it."""
    g = GraphBuilder("packed")
    x = g.input("x", "float32", (1, 1, 3))
    state = g.input("s", "float32", SHAPE)
    if read == "Slice":
        cut = {"axes": (axis,), "steps": (1,)}
        h = g.add("Slice", [state], {**cut, "starts": (0,), "ends": (1,)})
        c = g.add("Slice", [state], {**cut, "starts": (-1,), "ends": (9,)})
    else:
        places = [g.constant(f"i{i}", np.array([i], np.int64)) for i in range(2)]
        h, c = (g.add("Gather", [state, place], {"axis": axis}) for place in places)
    new = g.add("Add", [h, x])
    cell = g.add("Mul", [c, new])
    both = g.add("Concat", [new, cell], {"axis": 0}, outputs=["next"])
    y = g.add("Neg", [cell])
    return with_states(g.build([y, both]), {"s": "next"})


@pytest.mark.parametrize("read", ["Slice", "Gather"])
def test_each_part_becomes_a_state(read):
    graph = packed(read)
    found, parts = apart(graph)
    assert [(p.name, p.whole, p.axis, p.start, p.stop) for p in parts] == [
        ("s.0", "s", 0, 0, 1),
        ("s.1", "s", 0, 1, 2),
    ]
    assert found.inputs == ("x", "s.0", "s.1")
    assert [found.values[state.input].shape for state in found.states] == [(1, 1, 3)] * 2
    assert not any(node.op == "Concat" for node in found.nodes)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6, 1, 1, 3)).astype(np.float32)
    start = rng.normal(size=SHAPE).astype(np.float32)
    whole = run_steps(graph, [x], initial=[start])
    pieces = parted_arrays({"s": start[None]}, parts)
    each = run_steps(found, [x], initial=[pieces[p.name][0] for p in parts])
    np.testing.assert_array_equal(whole[0], each[0])
    np.testing.assert_array_equal(whole[1], np.concatenate(each[1:], axis=1))


def test_what_reads_all_of_it_keeps_it_whole():
    g = GraphBuilder("whole")
    x, state = g.input("x", "float32", (1, 1, 3)), g.input("s", "float32", SHAPE)
    first = g.add("Gather", [state, g.constant("i", np.array([0], np.int64))], {"axis": 0})
    both = g.add("Concat", [g.add("Add", [first, x]), x], {"axis": 0}, outputs=["next"])
    graph = with_states(g.build([g.add("Neg", [state]), both]), {"s": "next"})
    assert apart(graph) == (graph, ())


def test_another_axis_keeps_it_whole():
    g = GraphBuilder("across")
    x, state = g.input("x", "float32", (1, 1, 3)), g.input("s", "float32", SHAPE)
    cut = {"axes": (2,), "steps": (1,), "starts": (0,), "ends": (1,)}
    y = g.add("Slice", [state], cut)
    both = g.add("Concat", [x, x], {"axis": 0}, outputs=["next"])
    graph = with_states(g.build([y, both]), {"s": "next"})
    assert apart(graph) == (graph, ())
