"""Maxima of windows: the codes of the interpreter, here and with the vectors of the boards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hand_package import skip_unless_available
from integer_graphs import inputs_of
from samebits.codegen.packaging.package import write_package
from samebits.codegen.run.execute import build, execute
from samebits.codegen.run.targets import TARGETS
from samebits.ir.graph import Graph, GraphBuilder
from samebits.ir.interpreter import run

CHANNELS = (1, 3, 4, 16, 21, 37)  # vectors, words and what is left of them
WINDOWS = (
    {"kernel": (2, 2), "strides": (2, 2)},
    {"kernel": (3, 2), "strides": (2, 1), "pads": (1, 0, 1, 1)},
    {"kernel": (2, 3), "dilations": (3, 2), "pads": (1, 2, 2, 2)},
    {"kernel": (5, 7), "pads": (0, 0, 0, 0)},
)


def pools() -> Graph:
    """Every window of every type, each of another number of channels."""
    g = GraphBuilder("pools")
    outputs = []
    for index, dtype in enumerate(("int8", "uint8", "int16", "uint16")):
        for number, channels in enumerate(CHANNELS):
            x = g.input(f"x{index}{number}", dtype, (2, 5, 7, channels))
            window = WINDOWS[(index + number) % len(WINDOWS)]
            outputs.append(g.add("max_pool", [x], window))
    return g.build(outputs)


def test_here(same_in_c: Callable[..., None]) -> None:
    same_in_c([pools()], "-O0", "-fsanitize=address,undefined", samples=3)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cortex-m3", "cortex-m4", "cortex-m55"])
@pytest.mark.parametrize("flags", [(), ("-O0",)], ids=["", "O0"])
def test_on_boards(target: str, flags: tuple[str, ...], tmp_path: Path) -> None:
    skip_unless_available(TARGETS[target])
    graph = pools()
    write_package(graph, tmp_path / "package", cpu=target)
    program = build(tmp_path / "package", TARGETS[target].with_flags(*flags), tmp_path / "build")
    for seed in range(3):
        inputs = inputs_of(graph, seed)
        found, expected = execute(program, inputs), run(graph, inputs)
        for name, a, b in zip(graph.outputs, found, expected, strict=True):
            np.testing.assert_array_equal(a, b, err_msg=name)
