"""How many transfer tables a graph holds: P pairs share T <= P of them."""

from __future__ import annotations

import numpy as np
import pytest

from samebits.ir import GraphBuilder, Quantization
from samebits.ir.integer.transfer import TransferTables, transfer_tables


def table(name: str, builder: GraphBuilder, x: str, codes: np.ndarray) -> str:
    """A table of its own, not shared by the builder."""
    constant = builder.constant(name, codes, Quantization(1))
    return builder.add("table", [x, constant])


def test_no_tables():
    builder = GraphBuilder("g")
    x = builder.input("x", "int8", (3,))
    y = builder.add("clip", [x], {"low": 0, "high": 1})
    assert transfer_tables(builder.build([y])) == TransferTables(0, 0, 0, 0)


def test_equal_contents_are_one_table():
    builder = GraphBuilder("g")
    x = builder.input("x", "int8", (2, 3))
    codes = np.arange(-128, 128).astype(np.int8)
    y = table("a", builder, x, codes)
    y = table("b", builder, y, codes[::-1])
    y = table("c", builder, y, codes.copy())
    graph = builder.build([y])
    assert len(graph.constants) == 3
    assert transfer_tables(graph) == TransferTables(3, 2, 512, 768)


def test_one_constant_that_several_nodes_read():
    builder = GraphBuilder("g")
    x = builder.input("x", "int8", (2, 3))
    codes = np.arange(-128, 128).astype(np.int8)
    for _ in range(4):
        x = builder.add("table", [x, builder.constant("t", codes)])
    graph = builder.build([x])
    assert len(graph.constants) == 1
    assert transfer_tables(graph) == TransferTables(4, 1, 256, 1024)


def test_equal_bytes_of_another_type_or_shape_are_another_table():
    builder = GraphBuilder("g")
    x = builder.input("x", "int8", (3, 2))
    zeros = np.zeros(256, np.int8)
    outputs = [
        table("a", builder, x, zeros),
        table("b", builder, x, zeros.view(np.uint8)),
        table("c", builder, x, np.zeros((2, 256), np.int8)),
        table("d", builder, x, np.zeros(256, np.int16)),
    ]
    assert transfer_tables(builder.build(outputs)) == TransferTables(4, 4, 1536, 1536)


def test_other_constants_do_not_count():
    builder = GraphBuilder("g")
    x = builder.input("x", "int8", (3, 2))
    k = builder.constant("k", np.ones((1, 2), np.int8))
    y = table("t", builder, x, np.zeros(256, np.int8))
    z = builder.add("maximum", [y, k])
    assert transfer_tables(builder.build([z])) == TransferTables(1, 1, 256, 256)


@pytest.mark.parametrize("dtype", ["int16", "uint16"])
def test_tables_of_16_bits(dtype):
    builder = GraphBuilder("g")
    x = builder.input("x", dtype, (3,))
    y = table("t", builder, x, np.zeros(65536, np.int16))
    graph = builder.build([y])
    assert transfer_tables(graph) == TransferTables(1, 1, 131072, 131072)
    assert transfer_tables(graph, lambda table: len(table)) == TransferTables(1, 1, 65536, 131072)
