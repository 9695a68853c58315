"""Graphs cut at tensors."""

from __future__ import annotations

import numpy as np
import pytest

from samebits.errors import InputError
from samebits.excerpt import WHOLE, excerpt_of
from samebits.ir import Graph, GraphBuilder
from samebits.ir.cut import cut
from samebits.ir.interpreter import run
from samebits.ir.verify import verify

X = np.array([[1, -2, 3, -4]], np.float32)


def graph() -> Graph:
    build = GraphBuilder("g")
    x, z = build.input("x", "float32", (1, 4)), build.input("z", "float32", (1, 2))
    parts = build.add_all("Split", [x], {"axis": 1, "sizes": (2, 2)}, outputs=["a", "b"])
    summed = build.add("Add", [*parts], outputs=["s"])
    c = build.constant("c", np.ones(2, np.float32))
    return build.build([build.add("Mul", [build.add("Add", [summed, c]), z], outputs=["y"])])


def test_nothing_given_is_the_very_same_graph():
    whole = graph()
    assert cut(whole, WHOLE) is whole


def test_the_part_between_two_tensors():
    part = cut(graph(), excerpt_of(start_at="x", end_at="s"))
    verify(part)
    assert (part.inputs, part.outputs, part.constants) == (("x",), ("s",), {})
    np.testing.assert_array_equal(run(part, [X], False)[0], [[4, -6]])
    assert cut(graph(), excerpt_of(end_at="s")).inputs == ("x",)


def test_one_result_of_a_node_is_given_while_another_is_computed():
    part = cut(graph(), excerpt_of(start_at=["b", "x"], end_at=["s", "a"]))
    verify(part)
    found = run(part, [np.array([[10, 20]], np.float32), X], False)
    np.testing.assert_array_equal(found, [[[11, 18]], [[1, -2]]])


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"start_at": "s"}, "expected all inputs that the outputs need, found 'z' missing"),
        ({"start_at": ["z", "x"], "end_at": "s"}, "--start-at z: expected tensors that the"),
        ({"start_at": "c"}, "--start-at: expected a tensor of the network, found no 'c'"),
        ({"end_at": "sum"}, "--end-at: expected a tensor of the network, found no 'sum'"),
    ],
)
def test_cuts_that_are_refused(part, message):
    with pytest.raises(InputError, match=message):
        cut(graph(), excerpt_of(**part))
