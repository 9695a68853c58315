"""Intervals of integer graphs against every input, or every corner, of small graphs."""

from __future__ import annotations

import itertools
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest

from integer_graphs import inputs_of, operator_graphs, random_network
from samebits.errors import RangeError
from samebits.ir import GraphBuilder
from samebits.ir.integer.bounds import Interval, bounds, interval
from samebits.ir.interpreter import run, trace


def limited(builder, low, high, shape, dtype="int8"):
    """An input whose codes a clip keeps in [low, high]."""
    x = builder.input("x", dtype, shape)
    return builder.add("clip", [x], {"low": low, "high": high})


def extremes(graph, shape, low, high, dtype="int8"):
    """Least and greatest result per channel over all arrays of `low` and `high`."""
    corners = itertools.product((low, high), repeat=int(np.prod(shape)))
    found = [run(graph, [np.array(c, dtype).reshape(shape)])[0] for c in corners]
    rows = np.stack(found).reshape(-1, found[0].shape[-1]).astype(object)
    return rows.min(0).tolist(), rows.max(0).tolist()


def exact(builder, output, shape, low, high, dtype="int8"):
    """The output's interval is the one that the corners of the input reach, channel by channel."""
    graph = builder.build([output])
    least, most = extremes(graph, shape, low, high, dtype)
    found = bounds(graph)[output].over(len(least))
    assert found == list(zip(least, most, strict=True))


def weights(shape, seed=0, size=128, dtype="int8"):
    return np.random.default_rng(seed).integers(-size, size, shape).astype(dtype)


# --- intervals ------------------------------------------------------------------------------


def test_interval():
    a = Interval((1, -5), (2, 7))
    assert a.hull == Interval((-5,), (7,))
    assert a.over(2) == [(1, 2), (-5, 7)]
    assert a.over(3) == [(-5, 7)] * 3
    assert Interval((1,), (2,)).over(2) == [(1, 2)] * 2
    assert a.including(0) == Interval((0, -5), (2, 7))
    assert a.including(9) == Interval((1, -5), (9, 9))
    assert interval([(1, 2), (1, 2)]) == Interval((1,), (2,))
    assert interval([(1, 2), (1, 3)]) == Interval((1, 1), (2, 3))
    for low, high in (((), ()), ((1,), (1, 2)), ((2,), (1,))):
        with pytest.raises(ValueError, match="expected"):
            Interval(low, high)


def test_ends_are_plain_integers():
    for _, graph in operator_graphs():
        for found in bounds(graph).values():
            assert {type(v) for v in (*found.low, *found.high)} == {int}


def test_a_root_has_those_of_the_ends():
    b = GraphBuilder("g")
    x = limited(b, -3, 100, (2,))
    a = {"p": 4, "q": 9, "zero": -100, "low": -128, "high": 127, "dtype": "int8"}
    exact(b, b.add("root", [x], a), (2,), -3, 100)
    wide = b.add("root", [b.add("multiply", [x, x], {})], {**a, "p": 1 << 47})
    assert bounds(b.build([wide]))[wide] == Interval((-100,), (127,))
    more = b.add("root", [b.add("multiply", [x, x], {})], {**a, "p": 1 << 48})
    with pytest.raises(RangeError, match=r"\(root\): expected 4 \* x \* p below 2\*\*63, found x"):
        bounds(b.build([more]))


# --- contain --------------------------------------------------------------------------------


def contained(graph, seeds):
    found = bounds(graph)
    assert set(found) == set(graph.values)
    for inputs in seeds:
        for name, array in trace(graph, inputs).items():
            if not array.size:
                continue
            last = array.shape[-1] if array.shape else 1
            rows = array.reshape(-1, last).astype(object)
            for channel, (low, high) in enumerate(found[name].over(last)):
                assert low <= rows[:, channel].min(), (name, channel)
                assert rows[:, channel].max() <= high, (name, channel)


def ends_of(graph):
    """All inputs at one end of their types."""
    for pick in ("min", "max"):
        yield [
            np.full(graph.values[n].shape, getattr(np.iinfo(graph.values[n].dtype), pick),
                    graph.values[n].dtype)
            for n in graph.inputs
        ]  # fmt: skip


@pytest.mark.parametrize(
    "graph", [pytest.param(graph, id=name) for name, graph in operator_graphs()]
)
def test_every_operator_stays_within_its_interval(graph):
    contained(graph, [*(inputs_of(graph, seed) for seed in range(4)), *ends_of(graph)])


@pytest.mark.parametrize("seed", range(12))
def test_networks_stay_within_their_intervals(seed):
    graph = random_network(seed)
    contained(graph, [*(inputs_of(graph, s) for s in range(3)), *ends_of(graph)])


# --- per channel ----------------------------------------------------------------------------


def channels():
    """x [2, 3] in three intervals: [-4, 3], [-40, 30], [-128, 127] times the channel's factor."""
    builder = GraphBuilder("g")
    x = limited(builder, -4, 3, (2, 3))
    m = builder.constant("m", np.array([1, -10, 25], np.int32))
    b = builder.constant("b", np.array([5, 0, -9], np.int32))
    acc = builder.add("affine", [x, m, b])
    attributes = {"ratios": (Fraction(1),), "low": -128, "high": 127, "dtype": "int8"}
    return builder, builder.add("requantize", [acc], attributes)


EACH = [(1, 8), (-30, 40), (-109, 66)]


def follow(op, names, expected, **attributes):
    builder, y = channels()
    output = builder.add(op, [y if isinstance(n, str) else builder.constant("k", n) for n in names],
                         attributes)  # fmt: skip
    graph = builder.build([output])
    found = bounds(graph)
    assert found[y].over(3) == EACH
    size = graph.values[output].shape[-1] if graph.values[output].shape else 1
    assert found[output].over(size) == expected
    contained(graph, [inputs_of(graph, s) for s in range(20)])


def test_channels_are_followed():
    hull = (-109, 66)
    follow("reshape", ["y"], EACH, shape=(2, 1, 3))
    follow("reshape", ["y"], [hull] * 2, shape=(3, 2))
    follow("transpose", ["y"], [hull] * 2, perm=(1, 0))
    follow("transpose", ["y"], EACH, perm=(0, 1))
    follow("expand", ["y"], EACH, shape=(4, 2, 3))
    follow("slice", ["y"], EACH[::2], starts=(0, 0), stops=(1, 3), steps=(1, 2))
    follow("slice", ["y"], EACH[1:], starts=(1, 1), stops=(2, 3), steps=(1, 1))
    follow("concat", ["y", "y"], [*EACH, *EACH], axis=1)
    follow("concat", ["y", np.full((1, 3), 9, np.int8)], [(1, 9), *EACH[1:]], axis=0)
    follow("concat", [np.full((2, 1), -7, np.int8), "y"], [(-7, -7), *EACH], axis=1)
    follow("gather", ["y", np.array([2, 0])], [EACH[2], EACH[0]], axis=1)
    follow("gather", ["y", np.array([1])], EACH, axis=0)
    starts = np.array([0, 1])
    follow("scatter", ["y", np.full((2, 1), 9, np.int8), starts], [hull] * 3, axis=1)
    follow("pad", ["y"], [(0, 8), *EACH[1:]], before=(1, 0), after=(0, 0))
    follow("pad", ["y"], [hull] * 4, before=(0, 1), after=(0, 0))
    follow("clip", ["y"], [(1, 5), (-30, 5), (-50, 5)], low=-50, high=5)
    follow("reduce_max", ["y"], EACH, axes=(0,), keepdims=False)
    follow("reduce_min", ["y"], [hull], axes=(1,))
    follow("maximum", ["y", np.array([0, 0, 0], np.int8)], [(1, 8), (0, 40), (0, 66)])
    follow("minimum", ["y", np.array([[2], [2]], np.int8)], [(1, 2), (-30, 2), (-109, 2)])
    follow("reduce_sum", ["y"], [(2 - 6, 16 - 6), (-66, 74), (-224, 126)], axes=(0,), zero=3)
    pairs = [(2 * low + 1, 2 * high + 1) for low, high in EACH]
    follow("add", ["y"], pairs, factors=(2,), offset=1)
    pairs = [(1 - 3 * high, 1 - 3 * low) for low, high in EACH]
    follow("add", ["y", np.ones(3, np.int8)], pairs, factors=(-3, 1))
    t = np.abs(np.arange(-128, 128)).clip(0, 127).astype(np.int8)
    follow("table", ["y", t], [(1, 8), (0, 40), (0, 109)])
    rows = np.stack([t, -t, np.full(256, 3, np.int8)])
    follow("table", ["y", rows], [(1, 8), (-40, 0), (3, 3)])


# --- attained -------------------------------------------------------------------------------


@pytest.mark.parametrize(("low", "high"), [(-128, 127), (0, 100), (-50, -3)])
@pytest.mark.parametrize("groups", [1, 2])
def test_conv_is_attained(low, high, groups):
    builder = GraphBuilder("g")
    x = limited(builder, low, high, (1, 2, 2, 2))
    w = builder.constant("w", weights((4, 2, 2, 2 // groups), groups))
    b = builder.constant("b", weights((4,), 3, 5000, "int32"))
    acc = builder.add("conv", [x, w, b], {"groups": groups})
    exact(builder, acc, (1, 2, 2, 2), low, high)


def test_conv_with_pads_is_attained_in_the_middle_or_at_the_edge():
    """With a pad code between the ends the middle reaches everything, with one beyond, it adds."""
    builder = GraphBuilder("g")
    x = limited(builder, -3, 5, (1, 1, 3, 1))
    w = builder.constant("w", np.array([[[[7], [-9], [4]]]], np.int8))
    b = builder.constant("b", np.array([11], np.int32))
    attributes = {"pads": (0, 1, 0, 1), "pad_code": 2}
    exact(builder, builder.add("conv", [x, w, b], attributes), (1, 1, 3, 1), -3, 5)
    attributes["pad_code"] = 100
    output = builder.add("conv", [x, w, b], attributes)
    graph = builder.build([output])
    (low,), (high,) = extremes(graph, (1, 1, 3, 1), -3, 5)
    found = bounds(graph)[output]
    assert found.low[0] <= low <= high <= found.high[0]


def test_conv_transpose_contains_what_the_corners_reach():
    builder = GraphBuilder("g")
    x = limited(builder, -3, 50, (1, 2, 2, 2))
    w = builder.constant("w", weights((3, 2, 2, 2)))
    b = builder.constant("b", weights((3,), 3, 5000, "int32"))
    for attributes in ({"size": (3, 3), "zero": 9}, {"size": (5, 5), "strides": (3, 3)}):
        output = builder.add("conv_transpose", [x, w, b], attributes)
        graph = builder.build([output])
        least, most = extremes(graph, (1, 2, 2, 2), -3, 50)
        for (low, high), a, z in zip(bounds(graph)[output].over(3), least, most, strict=True):
            assert low <= a <= z <= high


@pytest.mark.parametrize(("low", "high"), [(-128, 127), (0, 100), (-50, -3), (7, 7)])
def test_linear_is_attained(low, high):
    builder = GraphBuilder("g")
    x = limited(builder, low, high, (5,))
    w = builder.constant("w", weights((6, 5)))
    b = builder.constant("b", weights((6,), 3, 5000, "int32"))
    exact(builder, builder.add("linear", [x, w, b]), (5,), low, high)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
def test_linear_of_whole_types_is_attained(dtype):
    info = np.iinfo(dtype)
    builder = GraphBuilder("g")
    x = builder.input("x", dtype, (3,))
    w = builder.constant("w", np.array([[127, -128, 0], [1, 2, 3], [-1, -2, -3]], np.int8))
    b = builder.constant("b", np.array([2**31 - 1, 0, -(2**31)], np.int32))
    output = builder.add("linear", [x, w, b], {"dtype": "int64"})
    exact(builder, output, (3,), info.min, info.max, dtype)


def test_affine_is_attained():
    builder = GraphBuilder("g")
    x = limited(builder, -50, 3, (4,))
    m = builder.constant("m", np.array([3, -70000, 0, 65535], np.int32))
    b = builder.constant("b", np.array([1, -2, 30, -4], np.int32))
    exact(builder, builder.add("affine", [x, m, b]), (4,), -50, 3)


@pytest.mark.parametrize("count", [1, 3])
def test_requantize_is_attained(count):
    builder = GraphBuilder("g")
    x = limited(builder, -50, 77, (3,))
    ratios = (Fraction(1, 2), Fraction(7, 3), Fraction(100))[:count]
    attributes = {"ratios": ratios, "zero": -3, "low": -100, "high": 127, "dtype": "int8"}
    exact(builder, builder.add("requantize", [x], attributes), (3,), -50, 77)


def test_table_is_attained():
    for t in (weights((256,), dtype="int8"), weights((2, 256), dtype="int8")):
        builder = GraphBuilder("g")
        x = limited(builder, -50, 77, (2,))
        y = builder.add("table", [x, builder.constant("t", t)])
        graph = builder.build([y])
        codes = np.arange(-50, 78, dtype=np.int8)
        found = np.stack([run(graph, [np.array([c, c])])[0] for c in codes])
        ends = list(zip(found.min(0).tolist(), found.max(0).tolist(), strict=True))
        assert bounds(graph)[y].over(2) == ends


def test_sums_are_attained():
    """Without channels, the whole intervals of sums are reached too."""
    builder = GraphBuilder("g")
    x = limited(builder, -50, 77, (1, 3, 2, 1))
    for attributes in (
        {"kernel": (2, 2), "zero": 5},
        {"kernel": (2, 2), "pads": (1, 0, 0, 0), "zero": 5},
        {"kernel": (2, 2), "pads": (1, 0, 0, 0), "zero": 5, "balance": True},
    ):
        exact(builder, builder.add("sum_pool", [x], attributes), (1, 3, 2, 1), -50, 77)
    y = builder.add("reduce_sum", [x], {"axes": (1, 2), "keepdims": False, "zero": -4})
    exact(builder, y, (1, 3, 2, 1), -50, 77)


def test_weights_that_are_no_constants():
    """Products of intervals: wider, but right."""
    builder = GraphBuilder("g")
    x = builder.input("x", "int8", (2, 3))
    w = builder.input("w", "int8", (4, 3))
    b = builder.constant("b", np.array([5, -5, 0, 9], np.int32))
    output = builder.add("linear", [x, w, b])
    graph = builder.build([output])
    found = bounds(graph)[output].hull
    assert (found.low[0], found.high[0]) == (-3 * 128 * 127 - 5, 3 * 128 * 128 + 9)
    contained(graph, [*(inputs_of(graph, s) for s in range(4)), *ends_of(graph)])


def test_sums_beyond_2_to_62_name_the_node():
    builder = GraphBuilder("g")
    x = builder.input("x", "int16", (2,))
    fits = builder.add("add", [x], {"factors": (2**47 - 1,), "dtype": "int64"}, "fits")
    bounds(builder.build([fits]))
    y = builder.add("add", [x], {"factors": (2**47,), "dtype": "int64"}, "wide one")
    with pytest.raises(
        RangeError,
        match=r"^node 'wide one' \(add\): expected sums below 2\*\*62, found up to "
        rf"{2**62}; split the layer or use narrower codes$",
    ):
        bounds(builder.build([y]))


@pytest.mark.parametrize(
    "attributes",
    [
        {"factors": (2**60, 1)},
        {"factors": (2**90, 1)},
        {"factors": (1, 1), "offset": -(2**62)},
    ],
)
def test_what_would_leave_64_bits_is_refused(attributes):
    builder = GraphBuilder("g")
    x, y = builder.input("x", "int8", (2, 2)), builder.input("y", "int8", (2, 2))
    output = builder.add("add", [x, y], {**attributes, "dtype": "int64"}, "sum")
    with pytest.raises(RangeError, match=r"^node 'sum' .*expected sums below 2\*\*62"):
        bounds(builder.build([output]))


def test_outputs_of_equal_weights_are_looked_at_once():
    b = GraphBuilder("large")
    x, left = b.input("x", "int8", (1, 64, 64, 1)), np.arange(512) // 8
    right = np.arange(512) % 8
    places = np.stack([left, np.minimum(left + 1, 63)], 1).astype(np.int32)
    tables = places, np.stack([8 - right, -right], 1).astype(np.int32)
    constants = [b.constant("table", table) for table in (*tables, *tables)]
    graph = b.build([b.add("resample", [x, *constants], {"dtype": "int64"})])
    tracemalloc.start()
    found = bounds(graph)[graph.outputs[0]]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    lines = [(8 - r, r) for r in range(8)]  # the sums of positive and of negative weights
    signs = [(p * q + m * n, p * n + m * q) for p, m in lines for q, n in lines]
    least = min(-128 * plus - 127 * minus for plus, minus in signs)
    most = max(127 * plus + 128 * minus for plus, minus in signs)
    assert found == Interval((least,), (most,))
    assert peak < 1 << 22  # an object for each output and each of eight steps: over 50 MB
