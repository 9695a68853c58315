"""Values, nodes, graphs and their builder."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import numpy as np
import pytest

from samebits.errors import UnsupportedError
from samebits.ir import Graph, GraphBuilder, Node, Quantization, Value

K = np.array([1, 2, 3], np.int8)


def small() -> Graph:
    """x -> clip -> add with a constant; the clip is read twice."""
    builder = GraphBuilder("net")
    x = builder.input("x", "int8", (2, 3), Quantization(Fraction(1, 4), 5))
    y = builder.add("clip", [x], {"low": 0, "high": 9}, "clip", ["y"])
    k = builder.constant("k", K.copy())
    z = builder.add("add", [y, y, k], {"factors": (2, 1, 1)}, "add", ["z"])
    return builder.build([z])


# --- values and nodes -----------------------------------------------------------------------


def test_quantization():
    assert Quantization(Fraction(1, 3)) == Quantization(Fraction(1, 3), 0)
    for scale in (Fraction(0), Fraction(-1, 2)):
        with pytest.raises(ValueError, match=f"^expected a positive scale, found {scale}$"):
            Quantization(scale)


def test_value():
    value = Value("x", "int8", (2, 3))
    assert (value.size, str(value)) == (6, "x: int8[2, 3]")
    assert (Value("s", "int8", ()).size, Value("e", "int8", (0, 3)).size) == (1, 0)
    assert value == Value("x", "int8", (2, 3), None)


def test_nothing_can_be_changed():
    graph = small()
    node, value = graph.nodes[0], graph.values["x"]
    for thing, name in (
        (graph, "name"),
        (node, "op"),
        (value, "dtype"),
        (value.quantization, "scale"),
    ):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(thing, name, None)
    for mapping in (graph.constants, graph.values, node.attributes):
        with pytest.raises(TypeError, match="does not support item assignment"):
            mapping["x"] = None
    with pytest.raises(ValueError, match="read-only"):
        graph.constants["k"][0] = 7


def test_what_was_given_may_change_later():
    """A graph keeps copies of dictionaries, and of arrays that somebody else may write."""
    attributes = {"low": 0, "high": 9}
    node = Node("clip", "c", ("x",), ("y",), attributes)
    attributes["low"] = 5
    assert node.attributes == {"low": 0, "high": 9}
    builder = GraphBuilder("g")
    array = K.copy()
    x = builder.input("x", "int8", (3,))
    y = builder.add("maximum", [x, builder.constant("k", array)])
    graph = builder.build([y])
    builder.add("clip", [y], {"low": 0, "high": 1})
    builder.constants.clear()
    assert (len(graph.nodes), list(graph.constants)) == (1, ["k"])
    if array.flags.writeable:
        array[0] = 99
    assert graph.constants["k"].tolist() == [1, 2, 3]


def test_node_output_is_its_first():
    assert Node("Split", "s", ("x",), ("a", "b")).output == "a"
    assert dict(Node("Split", "s", ("x",), ("a", "b")).attributes) == {}


# --- graphs ---------------------------------------------------------------------------------


def test_producers_and_consumers():
    graph = small()
    clip, add = graph.nodes
    assert graph.producers() == {"y": clip, "z": add}
    assert graph.consumers() == {"x": [clip], "y": [add], "k": [add], "z": []}
    split = GraphBuilder("s")
    x = split.input("x", "float32", (4,))
    a, b = split.add_all("Split", [x], {"axis": 0, "sizes": (1, 3)})
    q = split.add("DequantizeLinear", [split.constant("c", K), split.constant("s", np.float32(1))])
    graph = split.build([a, b, q])
    assert set(graph.producers()) == {a, b, q}
    assert graph.producers()[a] is graph.producers()[b]
    assert "" not in graph.consumers()


def test_integer():
    assert small().integer
    builder = GraphBuilder("g")
    x = builder.input("x", "float32", (4,))
    assert not builder.build([builder.add("Relu", [x])]).integer
    assert GraphBuilder("empty").build([]).integer


def test_repr_is_short():
    assert repr(small()) == (
        "Graph('net', 2 nodes, 1 constants, inputs x: int8[2, 3], outputs z: int32[2, 3])"
    )


def test_graphs_are_compared_by_identity():
    graph = small()
    assert graph == graph
    assert graph != small()
    assert hash(graph) != hash(small()) or graph is not small()


# --- the builder ----------------------------------------------------------------------------


def test_names_are_unique():
    builder = GraphBuilder("g")
    assert [builder.input("x", "int8", (3,)) for _ in range(3)] == ["x", "x.2", "x.3"]
    assert builder.input("", "int8", (3,)) == "value"
    attributes = {"low": 0, "high": 9}
    assert builder.add("clip", ["x"], attributes, "x") == "x.4.out"
    assert builder.add("clip", ["x"], attributes, "x.2", ["x"]) == "x.5"
    assert builder.add("clip", ["x"], attributes) == "clip.out"
    assert builder.add("clip", ["x"], attributes) == "clip.2.out"
    assert builder.constant("clip", K) == "clip.3"
    nodes = [node.name for node in builder.nodes]
    assert nodes == ["x.4", "x.2.2", "clip", "clip.2"]
    names = [*nodes, *builder.values]
    assert len(set(names)) == len(names)


def test_wished_names_of_several_outputs():
    builder = GraphBuilder("g")
    x = builder.input("x", "float32", (4,))
    attributes = {"axis": 0, "sizes": (1, 1, 2)}
    assert builder.add_all("Split", [x], attributes, "s", ["a", "x"]) == ("a", "x.2", "s.out")
    assert builder.nodes[0].outputs == ("a", "x.2", "s.out")
    assert [builder.values[n].shape for n in ("a", "x.2", "s.out")] == [(1,), (1,), (2,)]


def test_equal_constants_are_shared():
    builder = GraphBuilder("g")
    first = builder.constant("k", K)
    assert builder.constant("other", K.copy()) == first == "k"
    assert builder.constant("k", np.array([1, 9, 2, 9, 3], np.int8)[::2]) == "k"
    different = [
        builder.constant("k", K.astype(np.uint8)),
        builder.constant("k", K.astype(np.int16)),
        builder.constant("k", K[None]),
        builder.constant("k", K[::-1]),
        builder.constant("k", np.array(1, np.int8)),
        builder.constant("k", np.array([1], np.int8)),
    ]
    assert different == ["k.2", "k.3", "k.4", "k.5", "k.6", "k.7"]
    assert builder.values["k.6"].shape == ()
    assert builder.constants["k.5"].tolist() == [3, 2, 1]


def test_constants_with_a_quantization_are_not_shared():
    builder = GraphBuilder("g")
    plain = builder.constant("k", K)
    quantization = Quantization(Fraction(1, 2))
    scaled = builder.constant("k", K, quantization)
    assert (plain, scaled, builder.constant("k", K)) == ("k", "k.2", "k")
    assert builder.constant("k", K, quantization) == "k.3"
    assert builder.values["k.2"].quantization == quantization
    assert builder.values["k"].quantization is None


def test_negative_zero_is_not_zero():
    builder = GraphBuilder("g")
    assert builder.constant("k", np.float32(0.0)) != builder.constant("k", np.float32(-0.0))


def test_constants_that_nothing_reads_are_dropped():
    builder = GraphBuilder("g")
    x = builder.input("x", "int8", (3,))
    unread = builder.input("unread", "int8", (3,))
    used, dropped = builder.constant("used", K), builder.constant("dropped", K[::-1])
    output = builder.constant("output", K + 1)
    y = builder.add("maximum", [x, used])
    graph = builder.build([y, output])
    assert set(graph.constants) == {used, output}
    assert dropped not in graph.values
    assert graph.inputs == (x, unread)  # what a caller gives stays
    assert set(graph.values) == {x, unread, used, output, y}


def test_defaults_are_filled_in_and_types_follow():
    graph = small()
    assert dict(graph.nodes[1].attributes) == {"factors": (2, 1, 1), "offset": 0, "dtype": "int32"}
    assert graph.values["z"] == Value("z", "int32", (2, 3))
    assert graph.values["x"].quantization == Quantization(Fraction(1, 4), 5)
    builder = GraphBuilder("g")
    x = builder.input("x", "int8", (2,))
    quantization = Quantization(Fraction(1, 2))
    y = builder.add("clip", [x], {"low": 0, "high": 1}, quantization=quantization)
    assert builder.values[y].quantization == quantization


def test_a_node_that_breaks_a_rule_leaves_nothing_behind():
    builder = GraphBuilder("g")
    x = builder.input("x", "int8", (3,))
    for op, attributes, error, message in (
        ("clip", {"low": 0}, ValueError, "here: clip needs the attribute 'high'"),
        ("clip", {"low": 0, "high": 1, "a": 1}, ValueError, "here: clip has no attribute 'a'"),
        ("clip", {"low": 1, "high": 0}, ValueError, "expected low <= high"),
        ("clap", {}, UnsupportedError, "expected a known operator, found 'clap'"),
    ):
        with pytest.raises(error, match=f"^{message}"):
            builder.add(op, [x], attributes, "here")
    with pytest.raises(KeyError):
        builder.add("clip", ["nothing"], {"low": 0, "high": 1}, "here")
    assert (builder.nodes, list(builder.values)) == ([], ["x"])
    assert builder.add("clip", [x], {"low": 0, "high": 1}, "here") == "here.out"
