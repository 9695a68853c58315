"""Instructions layer by layer."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from hand_package import INTERFACE, build_body, skip_unless_available
from samebits.codegen.lowering.lower import lower_to_calls
from samebits.codegen.run.execute import build, execute, layer_instructions
from samebits.codegen.run.profile import layer_costs, products
from samebits.codegen.run.targets import TARGETS
from samebits.errors import InputError, UnsupportedError
from samebits.ir.graph import Graph, GraphBuilder

QUICK = ("cortex-m55",)
BOARDS = [
    name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
    for name, target in TARGETS.items()
    if target.board
]
CODES = {"ratios": (Fraction(1, 64),), "low": -128, "high": 127, "dtype": "int8"}


def net() -> Graph:
    """Two convolutions, of which the second has four times the products, and a view."""
    rng = np.random.default_rng(0)
    g = GraphBuilder("net")
    x = g.input("x", "int8", (1, 8, 8, 4))
    for outputs in (4, 16):
        w = g.constant("w", rng.integers(-9, 9, (outputs, 3, 3, 4), "int8"))
        b = g.constant("b", np.zeros(outputs, np.int32))
        x = g.add(
            "requantize",
            [
                g.add("conv", [x, w, b], {"pads": (1, 1, 1, 1)}),
            ],
            CODES,
        )
    return g.build([g.add("reshape", [x], {"shape": (1, 1024)})])


def test_products_of_kernels() -> None:
    first, second, view = lower_to_calls(net()).entries
    assert [products(call) for call in first.calls] == [8 * 8 * 4 * 36]
    assert [products(call) for call in second.calls] == [8 * 8 * 16 * 36]
    assert view.calls == () or all(products(call) == 0 for call in view.calls)
    g = GraphBuilder("matmul")
    a, b = g.input("a", "int8", (2, 3, 5, 7)), g.input("b", "int8", (2, 1, 7, 4))
    (entry,) = lower_to_calls(g.build([g.add("matmul", [a, b])])).entries
    assert [products(call) for call in entry.calls] == [2 * 3 * 5 * 7 * 4]


@pytest.mark.parametrize("name", BOARDS)
def test_the_layers_add_up(name: str) -> None:
    """To the run as a whole, but for what passes the arguments of the hook."""
    skip_unless_available(TARGETS[name])
    x = np.random.default_rng(1).integers(-128, 127, (1, 8, 8, 4)).astype(np.int8)
    layers, total = layer_costs(net(), TARGETS[name], [x])
    counts = [layer.instructions for layer in layers]
    assert abs(sum(counts) - total) < 100 * len(layers) < total / 10
    assert 2 * counts[0] < counts[1] < 6 * counts[0]
    assert [layer.products for layer in layers][:2] == [9216, 36864]
    assert layer_costs(net(), TARGETS[name], [x]) == (layers, total)


def test_programs_without_a_profile() -> None:
    with pytest.raises(InputError, match="expected a board whose emulator counts instructions"):
        layer_costs(net(), TARGETS["c"], [])


def test_a_profiled_program_does_nothing_else(tmp_path) -> None:
    program = build_body("*output0 = *input0;", TARGETS["cortex-m3"], tmp_path)
    with pytest.raises(UnsupportedError, match="expected a board's program built with profile"):
        layer_instructions(program, [np.zeros((1, 1), np.int8)])
    profiled = build(
        tmp_path / "package", TARGETS["cortex-m3"], tmp_path / "p", INTERFACE, profile=True
    )
    assert execute(profiled, [np.full((1, 1), 7, np.int8)])[0].tolist() == [[7]]
