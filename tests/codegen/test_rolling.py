"""Convolutions in place: the same codes as elsewhere, in less memory, and only where they can."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_nets import NETS, edge_net
from samebits.codegen.lowering.calls import CallList
from samebits.codegen.lowering.cpu import find_cpu
from samebits.codegen.lowering.lower import lower_to_calls
from samebits.codegen.memory import layout
from samebits.codegen.rolling import calls_for, compact, delay, rolled_call
from samebits.errors import InputError
from samebits.ir.graph import Graph, GraphBuilder

CODES = {"ratios": (Fraction(1, 64),), "low": -128, "high": 127, "dtype": "int8"}


@dataclass(frozen=True)
class Window:
    """One convolution of a chain."""

    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    outputs: int = 8
    depthwise: bool = False
    dilation: tuple[int, int] = (1, 1)


def chain(image: tuple[int, int, int], *windows: Window, dtype: str = "int8") -> Graph:
    """Convolutions one after the other behind a clip, which brings the input into the arena, and
    before another, so that what the last one writes is in the arena too."""
    rng = np.random.default_rng(len(windows))
    low, high = (0, 255) if dtype == "uint8" else (-128, 127)
    g = GraphBuilder("chain")
    x = g.add("clip", [g.input("x", dtype, (1, *image))], {"low": low, "high": high})
    for w in windows:
        channels = g.values[x].shape[-1]
        outputs = channels if w.depthwise else w.outputs
        depth = 1 if w.depthwise else channels
        weights = g.constant("w", rng.integers(-30, 30, (outputs, *w.kernel, depth), "int8"))
        b = g.constant("b", rng.integers(-500, 500, outputs, "int32"))
        a: dict[str, Any] = {
            "strides": w.stride, "pads": w.pads, "dilations": w.dilation,
            "groups": outputs if w.depthwise else 1, "pad_code": 3,
        }  # fmt: skip
        acc = g.add("conv", [x, weights, b], a)
        x = g.add("requantize", [acc], {**CODES, "low": low, "high": high, "dtype": dtype})
    return g.build([g.add("clip", [x], {"low": low, "high": high})])


SAME = Window((3, 3), pads=(1, 1, 1, 1))
DEPTHWISE = Window((3, 3), pads=(1, 1, 1, 1), depthwise=True)
POINT = Window((1, 1))
CHAINS = {
    "same": ((9, 7, 8), SAME, SAME),
    "depthwise": ((9, 7, 8), DEPTHWISE, DEPTHWISE),
    "points": ((5, 11, 8), POINT, Window((1, 1), outputs=3), Window((1, 1), outputs=2)),
    "one pixel": ((1, 1, 8), POINT, POINT),
    "chunk and one": ((1, 13, 8), POINT, POINT),
    "no pad": ((9, 9, 8), Window((3, 3)), Window((2, 2))),
    "strides": ((12, 12, 8), Window((3, 3), (2, 2), (0, 0, 1, 1)), DEPTHWISE),
    "strided depthwise": ((12, 11, 8), Window((5, 5), (2, 1), (2, 2, 2, 2), depthwise=True), POINT),
    "high": ((9, 4, 8), Window((7, 1), pads=(3, 0, 3, 0)), Window((1, 7), pads=(0, 3, 0, 3))),
    "dilated": ((9, 9, 8), Window((3, 3), pads=(2, 2, 2, 2), dilation=(2, 2)), SAME),
    "more outputs": ((6, 6, 4), Window((3, 3), pads=(1, 1, 1, 1), outputs=16), SAME),
    "pad below alone": ((6, 6, 8), Window((3, 3), pads=(0, 0, 2, 2)), SAME),
}


def rolled(calls: CallList) -> int:
    return sum(entry.rolling for entry in calls.entries)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("cpu", ["portable", "cortex-m0"])
def test_the_same_codes(dtype: str, cpu: str, same_in_c: Callable[..., None]) -> None:
    graphs = [chain(image, *windows, dtype=dtype) for image, *windows in CHAINS.values()]
    same_in_c(graphs, "-O0", "-fsanitize=address,undefined", cpu=cpu)


@pytest.mark.parametrize("name", CHAINS)
def test_the_peak_never_rises(name: str) -> None:
    image, *windows = CHAINS[name]
    calls = lower_to_calls(chain(image, *windows))
    assert layout(compact(calls)).bytes <= layout(calls).bytes


def test_a_chain_takes_one_image_and_two_rows() -> None:
    """Images of 40 x 40 x 8; rows of 320 bytes; the kernel's own band beside them."""
    calls = lower_to_calls(chain((40, 40, 8), DEPTHWISE, DEPTHWISE, POINT))
    found = layout(compact(calls))
    bands = [call.scratch or 0 for entry in calls.entries for call in entry.calls]
    assert layout(calls).bytes >= 2 * 40 * 40 * 8
    assert found.bytes <= 40 * 40 * 8 + 2 * 320 + max(bands[1:3]) + 8


def test_what_lowers_nothing_stays() -> None:
    """Behind a wide first layer, which has the peak, small layers are as fast as ever."""
    calls = lower_to_calls(
        chain((16, 16, 4), Window((3, 3), pads=(1, 1, 1, 1), outputs=32), Window((16, 16)), POINT)
    )
    assert rolled(compact(calls)) == 0


def test_an_input_that_is_read_again_is_kept(same_in_c: Callable[..., None]) -> None:
    """A residual block: the second convolution alone goes in place."""
    rng = np.random.default_rng(0)
    g = GraphBuilder("residual")
    x = y = g.add("clip", [g.input("x", "int8", (1, 8, 8, 8))], {"low": -128, "high": 127})
    for _ in range(2):
        w = g.constant("w", rng.integers(-9, 9, (8, 3, 3, 8), "int8"))
        b = g.constant("b", np.zeros(8, np.int32))
        acc = g.add("conv", [y, w, b], {"pads": (1, 1, 1, 1)})
        y = g.add("requantize", [acc], CODES)
    acc = g.add("add", [x, y], {"factors": (1, 1)})
    total = g.add("requantize", [acc], {**CODES, "ratios": (Fraction(1, 2),)})
    graph = g.build([g.add("clip", [total], {"low": -128, "high": 127})])
    calls = compact(lower_to_calls(graph))
    assert [entry.rolling for entry in calls.entries] == [False, False, True, False, False]
    same_in_c([graph], "-O0", "-fsanitize=address,undefined", cpu="cortex-m0")


@given(
    st.integers(1, 12), st.integers(1, 3), st.integers(0, 4), st.integers(1, 9), st.integers(1, 9)
)
@settings(max_examples=500, deadline=None)
def test_the_delay_is_the_least(rows: int, stride: int, pad: int, out: int, row: int) -> None:
    """Against a walk over the bytes: before a row is computed, none of what it needs is gone."""

    def holds(wait: int) -> bool:
        for u in range(rows):
            written = max(0, u - wait) * out
            if written > max(0, u * stride - pad) * row:
                return False
        return True

    found = delay(rows, stride, pad, out, row)
    waits = [wait for wait in range(rows) if holds(wait)]
    assert found == min(waits, default=None)


def test_calls_that_cannot_roll() -> None:
    """Batches, outputs of 16 bits and outputs that overtake their inputs."""
    g = GraphBuilder("batch")
    x = g.input("x", "int8", (2, 4, 4, 2))
    w, b = g.constant("w", np.ones((2, 3, 3, 2), np.int8)), g.constant("b", np.zeros(2, np.int32))
    acc = g.add("conv", [x, w, b], {"pads": (1, 1, 1, 1)})
    (entry,) = lower_to_calls(g.build([g.add("requantize", [acc], CODES)])).entries
    assert rolled_call(entry.calls[0]) is None
    g = GraphBuilder("wide")
    x = g.input("x", "int8", (1, 4, 4, 2))
    w, b = g.constant("w", np.ones((2, 3, 3, 2), np.int8)), g.constant("b", np.zeros(2, np.int32))
    (entry,) = lower_to_calls(g.build([g.add("conv", [x, w, b], {"pads": (1, 1, 1, 1)})])).entries
    assert rolled_call(entry.calls[0]) is None
    calls = lower_to_calls(chain((6, 6, 4), Window((1, 1), outputs=5)))
    assert [rolled_call(entry.calls[0]) for entry in calls.entries[1:2]] == [None]


MOST = {  # bytes of activations and scratch memory together
    "resnet8": 49_152, "ds-cnn": 16_000, "mobilenet": 73_727, "streaming": 6_656,
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n == "mobilenet" else n for n in MOST]
)
def test_memory_of_networks_for_microcontrollers(name: str) -> None:
    calls = lower_to_calls(edge_net(name)[1].integer)
    assert layout(compact(calls)).bytes <= MOST[name] < layout(calls).bytes or name == "mobilenet"


@pytest.mark.parametrize("cpu", ["cortex-m3", "cortex-m4", "cortex-m55"])
def test_windows_without_padding_go_in_place(cpu: str) -> None:
    """The streaming network of MLPerf Tiny, for which TFLite Micro takes 6,656 bytes."""
    calls = calls_for(edge_net("wake-word")[1].integer, find_cpu(cpu))
    assert layout(calls).bytes <= 6_656


@pytest.mark.parametrize("cpu", ["cortex-m3", "cortex-m4", "cortex-m55"])
def test_dead_channels_keep_no_layer_from_the_packed_kernels(cpu: str) -> None:
    graph = edge_net("trained")[1].integer
    calls = calls_for(graph, find_cpu(cpu))
    functions = [call.function for entry in calls.entries for call in entry.calls]
    layers = [node for node in graph.nodes if node.op in ("conv", "linear")]
    assert sum(function.endswith("_packed") for function in functions) == len(layers)
    assert [graph.values[node.output].shape[-1] for node in layers[-3:]] == [32, 128, 2]


def test_networks_for_microcontrollers_in_c(same_in_c: Callable[..., None]) -> None:
    graphs = [edge_net(name)[1].integer for name in NETS if name != "mobilenet"]
    same_in_c(graphs, cpu="cortex-m0", samples=3)


def test_a_processor_that_nobody_knows() -> None:
    from samebits.codegen.packaging.package import texts

    with pytest.raises(InputError, match="expected a processor of portable, cortex-m0, "):
        texts(chain((2, 2, 2), POINT), cpu="z80")
