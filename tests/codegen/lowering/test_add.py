"""Sums of two int8 tensors: every pair of codes, and the ties that no offset serves."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from hand_package import skip_unless_available
from samebits.codegen.lowering.cpu import find_cpu
from samebits.codegen.lowering.lower import lower_to_calls
from samebits.codegen.packaging.package import write_package
from samebits.codegen.run.execute import build, execute
from samebits.codegen.run.targets import TARGETS
from samebits.ir.graph import Graph, GraphBuilder
from samebits.ir.interpreter import run

Check = Callable[..., None]
F = Fraction
CODES = np.arange(-128, 128).astype(np.int8)
PAIRS = [np.repeat(CODES, 256), np.tile(CODES, 256)]


def add(
    factors: tuple[int, ...],
    ratio: Fraction,
    offset: int = 0,
    zero: int = 0,
    ends: tuple[int, int] = (-128, 127),
    size: int = 65536,
) -> Graph:
    """The sum of tensors of `size` codes, requantized."""
    g = GraphBuilder("add")
    names = [g.input(f"x{i}", "int8", (size,)) for i in range(len(factors))]
    acc = g.add("add", names, {"factors": factors, "offset": offset})
    a = {"ratios": (ratio,), "zero": zero, "low": ends[0], "high": ends[1], "dtype": "int8"}
    return g.build([g.add("requantize", [acc], a)])


GRAPHS = (
    add((2855715, 1424483), F(1, 1 << 21), 193756683, -128),
    add((-78, 12346), F(1, 1 << 12), 5, 17, (-100, 3)),
    add((1, 2), F(1, 2), 0, 3, (-128, -128)),  # one code
    add((4, 4), F(1, 8), 3),  # halves, none of them exact
)


def function(graph: Graph, cpu: str = "cortex-m4") -> str:
    """The kernel of a graph."""
    (entry,) = lower_to_calls(graph, find_cpu(cpu)).entries
    return entry.calls[0].function


def test_every_pair_of_codes(same_in_c: Check) -> None:
    assert [function(graph) for graph in GRAPHS] == ["add8"] * 4
    same_in_c(GRAPHS, inputs=[[PAIRS]] * len(GRAPHS), cpu="cortex-m3")


def test_ties_up_or_down() -> None:
    """Exact halves at odd codes alone go up, at even codes alone down; at both, elsewhere."""
    assert function(add((2, 4), F(1, 4), 0)) == "broadcast"
    assert function(add((8, 8), F(1, 8), 4)) == "broadcast"
    graph = add((16, 16), F(1, 8), 4)  # 2 * (a + b) + 1/2: to the even code below
    assert function(graph) == "add8"
    up = add((16, 16), F(1, 8), 12)  # ... + 3/2: to the even code above
    assert function(up) == "add8"
    for made in (graph, up):
        (call,) = lower_to_calls(made, find_cpu("cortex-m3")).entries[0].calls
        f = call.parameters.fields
        a, b = (codes.astype(np.int64) for codes in PAIRS)
        sums = a * f["factor_a"] + b * f["factor_b"] + f["offset"]
        found = np.clip(sums >> f["shift"], f["low"], f["high"])
        np.testing.assert_array_equal(found, run(made, PAIRS)[0])


@pytest.mark.parametrize(
    "graph",
    [
        add((3, 5), F(1, 3)),
        add((1, 2, 3), F(1, 4)),
        add((1 << 25, 5), F(1, 1 << 24)),  # beyond 32 bits
        add((1, 1), F(1)),
        add((1, 1), F(1, 1 << 20), 0, 1 << 12),
    ],
)
def test_others_keep_their_kernel(graph: Graph) -> None:
    assert function(graph) == "broadcast"
    assert function(GRAPHS[0], "portable") == "broadcast"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cortex-m3", "cortex-m4", "cortex-m55"])
def test_on_boards(name: str, tmp_path: Path) -> None:
    skip_unless_available(TARGETS[name])
    for number, graph in enumerate(GRAPHS[:2]):
        folder = tmp_path / str(number)
        write_package(graph, folder, cpu=name)
        program = build(folder, TARGETS[name], tmp_path / f"build{number}")
        np.testing.assert_array_equal(execute(program, PAIRS)[0], run(graph, PAIRS)[0])
