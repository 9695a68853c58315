"""Sums of fully connected layers, and what recurrent steps do with them, for small processors."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from samebits.codegen.lowering.cpu import PORTABLE, find_cpu
from samebits.codegen.lowering.lower import lower_to_calls
from samebits.ir.graph import Graph, GraphBuilder

SMALL = find_cpu("cortex-m4")
ENDS = {"int8": (-128, 127), "int16": (-(1 << 15), (1 << 15) - 1)}


def linear(rows: int, depth: int, outputs: int, dtype: str = "int8", top: int = 127) -> Graph:
    rng = np.random.default_rng(depth)
    g = GraphBuilder("linear")
    x = g.input("x", dtype, (rows, depth))
    w = g.constant(
        "w", rng.integers(-top - 1, top, (outputs, depth), endpoint=True).astype("int16")
    )
    b = g.constant("b", rng.integers(-(1 << 20), 1 << 20, outputs, "int32"))
    return g.build([g.add("linear", [x, w, b])])


SHAPES = [(1, 64, 64), (1, 1, 1), (3, 15, 5), (2, 16, 4), (1, 17, 3), (5, 33, 2), (1, 40, 9)]


@pytest.mark.parametrize("cpu", ["portable", "cortex-m0", "cortex-m4", "cortex-m55"])
def test_sums_are_the_interpreters(cpu: str, same_in_c: Callable[..., None]) -> None:
    """Rows of whole vectors and of less, one and several; the same C by every compiler's path."""
    graphs = [linear(*shape) for shape in SHAPES]
    same_in_c(graphs, "-O0", "-fsanitize=address,undefined", cpu=cpu)


def test_which_layers_take_the_kernel() -> None:
    def kernel(graph: Graph, cpu: object = SMALL) -> list[str]:
        entries = lower_to_calls(graph, cpu).entries  # type: ignore[arg-type]
        return [call.function for entry in entries for call in entry.calls]

    assert kernel(linear(1, 8, 8)) == ["linear_sums"]
    assert kernel(linear(1, 8, 8), PORTABLE) == ["conv8"]
    assert kernel(linear(1, 8, 8, top=200)) == ["conv16"]
    assert kernel(linear(1, 8, 8, dtype="int16")) == ["linear16_packed"]
    assert kernel(linear(1, 8, 8, dtype="uint8")) == ["conv8"]


def pair(op: str, types: tuple[str, str], size: int, factors: tuple[int, int], shift: int) -> Graph:
    """Two tensors of types[0] to codes of types[1]; shift 0: the sums themselves."""
    g = GraphBuilder("pair")
    x, y = g.input("x", types[0], (size,)), g.input("y", types[0], (size,))
    if types[0] == "int32":  # sums of 32 bits are proved from codes
        x, y = (g.add("clip", [v], {"low": -(1 << 24), "high": 1 << 24}) for v in (x, y))
    if op == "add":
        dtype = "int64" if max(factors) > 1 << 10 else "int32"
        acc = g.add("add", [x, y], {"factors": factors, "offset": 5, "dtype": dtype})
    else:
        acc = g.add("multiply", [x, y], {"a_zero": factors[0], "b_zero": factors[1]})
    if not shift:
        return g.build([acc])
    low, high = ENDS[types[1]]
    a = {"ratios": (Fraction(1, 1 << shift),), "zero": -3, "low": low, "high": high}
    return g.build([g.add("requantize", [acc], {**a, "dtype": types[1]})])


PAIRS = [
    pair("add", ("int32", "int16"), 9, (1, 1), 3),
    pair("add", ("int32", "int16"), 64, (2, -1), 9),
    pair("add", ("int32", "int16"), 7, (64, 32), 19),
    pair("add", ("int32", "int16"), 5, (1 << 16, 1), 30),
    pair("multiply", ("int16", "int8"), 11, (0, 0), 23),
    pair("multiply", ("int16", "int16"), 6, (0, 0), 15),
    pair("multiply", ("int16", "int32"), 10, (0, 0), 0),
    pair("multiply", ("int8", "int8"), 10, (4, -7), 6),
]


@pytest.mark.parametrize("flags", [("-O1",), ("-O0", "-fsanitize=address,undefined")])
def test_pairs_are_the_interpreters(flags: tuple[str, ...], same_in_c: Callable[..., None]) -> None:
    """Sums and products of two tensors, ties to even and ends of the types among the codes."""
    rng = np.random.default_rng(0)
    inputs = []
    for graph in PAIRS:
        shape = graph.values[graph.inputs[0]].shape
        info = np.iinfo(graph.values[graph.inputs[0]].dtype)
        info_low, info_high = max(info.min, -(1 << 24)), min(info.max, 1 << 24)
        cases = []
        for _ in range(40):
            near = rng.integers(-40, 40, (2, *shape))
            wide = rng.integers(info_low, info_high, (2, *shape), endpoint=True)
            ends = rng.choice([info_low, info_high, 0, -1], (2, *shape))
            drawn = [near, wide, ends, near * 4 + 4][rng.integers(4)]
            cases.append([a.astype(info.dtype) for a in np.clip(drawn, info_low, info_high)])
        inputs.append(cases)
    same_in_c(PAIRS, *flags, inputs=inputs)
