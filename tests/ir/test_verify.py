"""Every rule of a graph, broken once."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

from integer_graphs import operator_graphs, random_network
from random_graphs import random_graph
from samebits.errors import UnsupportedError
from samebits.ir import Graph, GraphBuilder, Value
from samebits.ir.verify import GraphError, verify


def valid() -> Graph:
    """x -> clip -> add with a constant."""
    builder = GraphBuilder("net")
    x = builder.input("x", "int8", (2, 3))
    k = builder.constant("k", np.array([1, 2, 3], np.int8))
    y = builder.add("clip", [x], {"low": 0, "high": 9}, "clip", ["y"])
    z = builder.add("add", [y, k], {"factors": (2, 1)}, "add", ["z"])
    return builder.build([z])


def changed(graph: Graph, **fields) -> Graph:
    """The graph with other fields."""
    return dataclasses.replace(graph, **fields)


def node(graph: Graph, index: int, **fields) -> Graph:
    nodes = list(graph.nodes)
    nodes[index] = dataclasses.replace(nodes[index], **fields)
    return changed(graph, nodes=tuple(nodes))


def typed(graph: Graph, name: str, dtype: str, shape: tuple[int, ...]) -> Graph:
    return changed(graph, values={**graph.values, name: Value(name, dtype, shape)})


def untyped(graph: Graph, name: str) -> Graph:
    return changed(graph, values={n: v for n, v in graph.values.items() if n != name})


def writable(graph: Graph) -> Graph:
    array = np.array([1, 2, 3], np.int8)
    broken = changed(graph, constants={"k": array})
    array.setflags(write=True)
    return broken


def test_graphs_that_follow_the_rules():
    verify(valid())
    for _, graph in operator_graphs():
        verify(graph)
    for seed in range(6):
        verify(random_network(seed))
        verify(random_graph(seed, 5))


BROKEN = {
    "an input is also a constant": lambda g: changed(
        g, constants={**g.constants, "x": np.zeros((2, 3), np.int8)}
    ),
    "an input twice": lambda g: changed(g, inputs=("x", "x")),
    "an input without a type": lambda g: untyped(g, "x"),
    "a constant without a type": lambda g: untyped(g, "k"),
    "an output without a type": lambda g: untyped(g, "y"),
    "a constant of another shape": lambda g: typed(g, "k", "int8", (1, 3)),
    "a constant of another type": lambda g: typed(g, "k", "uint8", (3,)),
    "a constant that can be written": writable,
    "a node name taken": lambda g: node(g, 1, name="clip"),
    "an attribute missing": lambda g: node(g, 0, attributes={"low": 0}),
    "an attribute too many": lambda g: node(g, 0, attributes={"low": 0, "high": 9, "middle": 4}),
    "an attribute that breaks the rules": lambda g: node(g, 0, attributes={"low": 10, "high": 9}),
    "an unknown value": lambda g: node(g, 1, inputs=("nothing", "k")),
    "a value before it is written": lambda g: changed(g, nodes=g.nodes[::-1]),
    "a value written twice": lambda g: node(g, 1, outputs=("y",)),
    "an input written": lambda g: node(g, 1, outputs=("x",)),
    "a constant written": lambda g: node(g, 1, outputs=("k",)),
    "two outputs too many": lambda g: node(typed(g, "w", "int32", (2, 3)), 1, outputs=("z", "w")),
    "an output of another type": lambda g: typed(g, "z", "int64", (2, 3)),
    "an output of another shape": lambda g: typed(g, "z", "int32", (3, 2)),
    "an input of another type": lambda g: typed(g, "x", "uint8", (2, 3)),
    "an input left out": lambda g: node(g, 1, inputs=("y", "")),
    "an input too many": lambda g: node(g, 0, inputs=("x", "x")),
    "shapes that do not fit": lambda g: changed(
        typed(g, "k", "int8", (4,)), constants={"k": np.zeros(4, np.int8)}
    ),
    "a graph output that nothing writes": lambda g: changed(g, outputs=("z", "w")),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_every_rule_broken_once(rule):
    graph = valid()
    verify(graph)
    broken = BROKEN[rule](graph)
    with pytest.raises(GraphError, match=r"^graph 'net': .+"):
        verify(broken)


def test_messages_name_the_node_and_value():
    for rule, message in (
        ("a value before it is written", "node 'add' (add): reads 'y' before it is written"),
        ("a value written twice", "node 'add' (add): writes 'y', which is written already"),
        ("a node name taken", "node 'clip' (add): the name is taken"),
        ("an output of another type", "node 'add' (add): z: int64[2, 3] is wrong"),
        ("a graph output that nothing writes", "output 'w' is never written"),
        ("a constant that can be written", "constant 'k' can be written"),
        ("an input without a type", "value 'x' has no type"),
    ):
        with pytest.raises(GraphError, match=f"^graph 'net': {re.escape(message)}$"):
            verify(BROKEN[rule](valid()))


def test_unknown_operators():
    graph = valid()
    with pytest.raises(UnsupportedError, match="expected a known operator, found 'clap'"):
        verify(node(graph, 0, op="clap"))
