"""A graph as text."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from samebits.ir import Graph, GraphBuilder, Quantization
from samebits.ir.printer import text


def every_kind_of_line() -> Graph:
    """Odd names, long attributes, scales that are powers of two or not, an input left out."""
    builder = GraphBuilder("a net\nwith a line break")
    x = builder.input("x/1:0", "uint8", (1, 2, 2, 3), Quantization(Fraction(1, 128), 128))
    extra = builder.input("caf\u00e9\x1b[31m", "int8", (), Quantization(Fraction(1, 3)))
    w = builder.constant("w", np.ones((4, 1, 1, 3), np.int8), Quantization(Fraction(2**5)))
    b = builder.constant("b", np.zeros(4, np.int32))
    acc = builder.add("conv", [x, w, b], {"pads": (0, 1, 0, 1), "pad_code": 128}, "conv")
    ratios = (Fraction(1, 3), Fraction(2), Fraction(1), Fraction(7, 10**12), Fraction(5, 2**40))
    acc = builder.add("transpose", [acc], {"perm": (3, 0, 1, 2)})
    acc = builder.add("reshape", [acc], {"shape": (8, 4)})
    attributes = {"low": -128, "high": 127, "dtype": "int8"}
    codes = builder.add(
        *("requantize", [acc], {"ratios": ratios[:1], **attributes}, "out put", ["y y"]),
        quantization=Quantization(Fraction(1, 10), -3),
    )
    wide = builder.add("expand", [extra], {"shape": (2, 5)})
    wide = builder.add("requantize", [wide], {"ratios": ratios, **attributes})
    return builder.build([codes, wide])


def real() -> Graph:
    """A real graph: floats, None, an optional input left out, two outputs."""
    builder = GraphBuilder("real")
    x = builder.input("x", "float32", (2, 4))
    scale = builder.constant("s", np.float32(0.5))
    q = builder.add("QuantizeLinear", [x, scale, ""], outputs=["q"])
    r = builder.add("DequantizeLinear", [q, scale, ""], outputs=["r"])
    r = builder.add("Clip", [r], {"min": -0.5, "max": None}, outputs=["clipped"])
    a, b = builder.add_all("Split", [r], {"axis": 1, "sizes": (1, 3)}, outputs=["a", "b"])
    return builder.build([a, b])


def test_golden(golden):
    golden("tests/golden/graph.txt", text(every_kind_of_line()) + "\n" + text(real()))


def test_one_line_each_and_nothing_to_disturb_a_terminal():
    graph = every_kind_of_line()
    lines = text(graph).splitlines()
    parts = (graph.inputs, graph.constants, graph.nodes, graph.outputs)
    assert len(lines) == 1 + sum(map(len, parts))
    assert text(graph).isprintable() is False  # the line breaks alone
    assert all(line.isprintable() for line in lines)
    assert text(graph) == text(every_kind_of_line())


def test_names_that_look_like_text_of_the_printer():
    """A name cannot pass for several: what is odd stands in quotes."""
    builder = GraphBuilder("g")
    x = builder.input("x, y", "int8", (1,))
    y = builder.input("", "int8", (1,))
    z = builder.add("add", [x, y], {"factors": (1, 1)}, outputs=["'q'"])
    assert text(builder.build([z])).splitlines() == [
        "graph g",
        "  input 'x, y': int8 1",
        "  input value: int8 1",
        """  "'q'": int32 1 = add('x, y', value, factors=(1, 1), offset=0, dtype=int32)""",
        """  output "'q'\"""",
    ]
