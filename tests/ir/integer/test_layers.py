"""Which values of an integer graph are layers, and their hash (docs/spec/graph.md section 7)."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from integer_graphs import operator_graphs, random_network
from samebits.ir import GraphBuilder
from samebits.ir.integer.layers import fnv1a, layers

# Of the published FNV-1a test suite (Landon Curt Noll, test_fnv.c), 64 bits.
VECTORS = {
    b"": 0xCBF29CE484222325,
    b"a": 0xAF63DC4C8601EC8C,
    b"b": 0xAF63DF4C8601F1A5,
    b"c": 0xAF63DE4C8601EFF2,
    b"foo": 0xDCB27518FED9D577,
    b"foob": 0xDD120E790C2512AF,
    b"fooba": 0xCAC165AFA2FEF40A,
    b"foobar": 0x85944171F73967E8,
}
# Section 7: the operators that accumulate.
ACCUMULATING = (
    *("conv", "conv_transpose", "linear", "matmul", "affine"),
    *("add", "multiply", "sum_pool", "reduce_sum"),
)
TO_INT8 = {"ratios": (Fraction(1, 64),), "low": -128, "high": 127, "dtype": "int8"}


def plain_hash(codes, dtype):
    """FNV-1a from its definition, byte by byte."""
    width = np.dtype(dtype).itemsize
    value = 0xCBF29CE484222325
    for code in codes:
        for byte in range(width):
            value ^= (code >> (8 * byte)) & 0xFF
            value = value * 0x100000001B3 % 2**64
    return value


def test_hash_of_published_vectors():
    for text, expected in VECTORS.items():
        assert fnv1a(np.frombuffer(text, np.uint8)) == expected
        assert fnv1a(np.frombuffer(text, np.int8)) == expected


def test_hash_is_little_endian_and_row_major():
    assert fnv1a(np.array([0x6F66], np.uint16)) == plain_hash(b"fo", "uint8")
    big = np.array([1, -2, 300], ">i2")
    assert fnv1a(big) == fnv1a(big.astype("<i2")) == plain_hash([1, -2, 300], "int16")
    rows = np.arange(6, dtype=np.int8).reshape(2, 3)
    assert fnv1a(rows) == plain_hash(range(6), "int8")
    assert fnv1a(rows.T) == plain_hash([0, 3, 1, 4, 2, 5], "int8")  # a view of other strides
    assert fnv1a(rows[:, ::2]) == plain_hash([0, 2, 3, 5], "int8")
    assert fnv1a(np.array(7, np.int32)) == plain_hash([7], "int32")


@given(
    st.sampled_from(["int8", "uint8", "int16", "uint16", "int32", "int64"]).flatmap(
        lambda d: st.tuples(
            st.just(d),
            st.lists(st.integers(int(np.iinfo(d).min), int(np.iinfo(d).max)), max_size=9),
        )
    )
)
def test_hash_of_every_type(case):
    dtype, codes = case
    assert fnv1a(np.array(codes, dtype)) == plain_hash(codes, dtype)


CASES = [
    pytest.param(graph, id=name)
    for name, graph in operator_graphs()
    if graph.nodes[-1].op != "requantize"
]


@pytest.mark.parametrize("graph", CASES)
def test_an_operator_before_a_requantize(graph):
    """An accumulator that one requantize alone reads is no layer; everything else is."""
    builder = GraphBuilder("g")
    builder.inputs += graph.inputs
    builder.nodes += graph.nodes
    builder.constants |= graph.constants
    builder.values |= graph.values
    (output,) = graph.outputs
    before = tuple(node.output for node in graph.nodes[:-1])
    last = graph.nodes[-1]
    y = builder.add("requantize", [output], TO_INT8)
    found = layers(builder.build([y]))
    hidden = last.op in ACCUMULATING
    assert found == (*before, y) if hidden else (*before, output, y)
    # With a second reader, or as an output of the graph, it is stored.
    assert layers(builder.build([y, output])) == (*before, output, y)
    z = builder.add("requantize", [output], TO_INT8)
    assert layers(builder.build([y, z])) == (*before, output, y, z)


def accumulated():
    builder = GraphBuilder("g")
    x = builder.input("x", "int8", (2, 3))
    return builder, builder.add("add", [x], {"factors": (3,)}, "sum")


def test_an_accumulator_that_something_else_reads_is_a_layer():
    builder, acc = accumulated()
    y = builder.add("clip", [acc], {"low": 0, "high": 5})
    assert layers(builder.build([y])) == (acc, y)
    builder, acc = accumulated()
    y = builder.add("requantize", [acc], TO_INT8)
    z = builder.add("reshape", [acc], {"shape": (6,)})
    assert layers(builder.build([y, z])) == (acc, y, z)
    builder, acc = accumulated()
    assert layers(builder.build([acc])) == (acc,)


def test_an_accumulator_that_nothing_reads_is_a_layer():
    builder, acc = accumulated()
    y = builder.add("clip", ["x"], {"low": 0, "high": 5})
    assert layers(builder.build([y])) == (acc, y)


def test_inputs_and_constants_are_no_layers():
    for seed in range(4):
        graph = random_network(seed)
        found = layers(graph)
        assert len(set(found)) == len(found)
        assert not set(found) & {*graph.inputs, *graph.constants}
        order = [name for node in graph.nodes for name in node.outputs]
        assert list(found) == [name for name in order if name in set(found)]
        assert set(graph.outputs) <= set(found)
