"""No two values that are live together share a byte, and the peak is as low as it can be."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samebits.arena import ArenaBuffer, live_bound, plan
from samebits.codegen.lowering.lower import lower_to_calls
from samebits.codegen.memory import layout
from samebits.ir.graph import GraphBuilder

LIFETIMES = st.lists(
    st.tuples(st.integers(1, 60), st.integers(0, 20), st.integers(0, 9)).map(
        lambda t: ArenaBuffer(8 * t[0], t[1], t[1] + t[2])
    ),
    max_size=30,
)


def check(buffers: list[ArenaBuffer], enough: int = 0, moves: int = 0) -> int:
    found = plan(buffers, enough, moves)
    for (i, a), (j, b) in itertools.combinations(enumerate(buffers), 2):
        if a.first <= b.last and b.first <= a.last:
            first, second = found.offsets[i], found.offsets[j]
            assert first + a.size <= second or second + b.size <= first
    assert all(offset % 8 == 0 for offset in found.offsets)
    ends = (o + b.size for o, b in zip(found.offsets, buffers, strict=True))
    assert found.peak == max(ends, default=0) >= found.bound == live_bound(buffers)
    assert plan(buffers, enough, moves) == found
    return found.peak


@settings(max_examples=60)
@given(LIFETIMES)
def test_live_values_never_overlap(buffers: list[ArenaBuffer]) -> None:
    check(buffers)


def test_many_values() -> None:
    rng = np.random.default_rng(0)
    buffers = [
        ArenaBuffer(8 * int(rng.integers(1, 500)), i, i + int(rng.integers(1, 12)))
        for i in range(400)
    ]
    assert check(buffers) <= 1.3 * live_bound(buffers)


def test_search_reaches_the_bound_where_greedy_does_not() -> None:
    rng = np.random.default_rng(1)
    reached = 0
    for _ in range(40):
        starts = rng.integers(0, 8, 10)
        buffers = [
            ArenaBuffer(8 * int(rng.integers(1, 12)), int(s), int(s + rng.integers(0, 5)))
            for s in starts
        ]
        reached += check(buffers) == live_bound(buffers)
    assert reached >= 39  # the bound itself cannot be reached by every set


def test_other_orders_of_many_values_need_less() -> None:
    """And none is tried where the plan is good enough."""
    rng = np.random.default_rng(2)
    lower = 0
    for _ in range(10):
        buffers = [
            ArenaBuffer(8 * int(rng.integers(1, 90)), i, i + int(rng.integers(1, 15)))
            for i in range(50)
        ]
        greedy, climbed = check(buffers), check(buffers, 0, 300)
        assert climbed <= greedy == check(buffers, greedy, 300)
        assert check(buffers, greedy - 8, 300) in (greedy, *range(climbed, greedy, 8))
        lower += climbed < greedy
    assert lower >= 8


def test_chain_keeps_two_values() -> None:
    assert check([ArenaBuffer(64, i, i + 1) for i in range(20)]) == 128


def test_residual_network_keeps_three_images() -> None:
    """Of ResNet-8: the skipped image, input and output of the second convolution, and its band."""
    g = GraphBuilder("residual")
    x = g.input("x", "int8", (1, 32, 32, 3))
    y = _conv(g, x)
    z = _conv(g, _conv(g, y))
    acc = g.add("add", [y, z], {"factors": (1, 1)})
    out = g.add("requantize", [acc], _HALF)
    small = g.add("max_pool", [out], {"kernel": (32, 32)})
    calls = lower_to_calls(g.build([small]))
    band = max(call.scratch or 0 for entry in calls.entries for call in entry.calls)
    found = layout(calls).plan
    assert found.peak == found.bound == 3 * 32 * 32 * 16 + band


def _conv(g: GraphBuilder, x: str) -> str:
    rng = np.random.default_rng(0)
    w = g.constant("w", rng.integers(-9, 9, (16, 3, 3, g.values[x].shape[-1]), "int8"))
    b = g.constant("b", np.zeros(16, np.int32))
    return g.add("requantize", [g.add("conv", [x, w, b], {"pads": (1, 1, 1, 1)})], _HALF)


_HALF = {"ratios": (Fraction(1, 2),), "low": -128, "high": 127, "dtype": "int8"}


@pytest.mark.parametrize("reader", ["reshape", "broadcast"])
def test_in_place_only_when_nothing_else_reads(reader: str) -> None:
    """clip writes over its input only where that input is dead, views included."""
    g = GraphBuilder("alias")
    x = g.input("x", "int8", (4, 4))
    a = g.add("clip", [x], {"low": -5, "high": 5})
    if reader == "reshape":
        view = g.add("reshape", [a], {"shape": (16,)})
        b = g.add("clip", [a], {"low": -3, "high": 3})
        last = g.add("clip", [view], {"low": -4, "high": 4})
        graph = g.build([g.add("maximum", [b, g.add("reshape", [last], {"shape": (4, 4)})])])
        places = layout(lower_to_calls(graph)).places
        assert places[a] != places[b]
    else:
        turned = g.add("reshape", [a], {"shape": (4, 1, 4)})
        total = g.add("maximum", [a, turned])
        b = g.add("clip", [total], {"low": -3, "high": 3})
        places = layout(lower_to_calls(g.build([g.add("clip", [b], {"low": 0, "high": 1})]))).places
        assert places[total] != places[a]
        assert places[b] == places[total]
