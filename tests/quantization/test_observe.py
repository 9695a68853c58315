"""Calibration statistics: exact bins, whatever the order; bad samples are named."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samebits.errors import InputError, NonFiniteError
from samebits.quantization.observe import BINS, merged, observe, statistics

binary32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
near = st.integers(-3000, 3000).map(lambda k: k / 8)
arrays = st.lists(st.one_of(near, binary32), min_size=1, max_size=30)


def by_definition(values):
    """(width, bin index -> count): the smallest width whose bins reach over the range and 0."""
    low, high = min(0.0, *values), max(0.0, *values)
    if low == high:
        return None, {0: len(values)}
    width = math.frexp(max(-low, high))[1] - 14

    def index(value):
        return math.floor(Fraction(value) / Fraction(2) ** width)

    while index(high) - index(low) >= BINS:
        width += 1
    counts = {}
    for value in values:
        counts[index(value)] = counts.get(index(value), 0) + 1
    return width, counts


@given(arrays)
def test_bins_by_definition(values):
    values = [float(np.float32(v)) for v in values]
    found = statistics(np.array(values))
    width, counts = by_definition(values)
    assert width is None or found.width == width
    used = np.flatnonzero(found.counts)
    assert {int(i) + found.first: int(found.counts[i]) for i in used} == counts
    assert (found.low, found.high) == (min(values), max(values))
    assert (found.count, found.zeros) == (len(values), values.count(0.0))
    assert found.first <= 0 < found.first + BINS


@given(arrays, st.randoms(use_true_random=False))
def test_the_order_and_the_pieces_do_not_matter(values, random):
    whole = statistics(np.array(values))
    shuffled = list(values)
    random.shuffle(shuffled)
    cuts = sorted(random.randrange(len(values) + 1) for _ in range(3))
    pieces = [shuffled[a:b] for a, b in zip([0, *cuts], [*cuts, len(values)], strict=True) if b > a]
    parts = [statistics(np.array(piece)) for piece in pieces]
    assert merged(parts) == whole
    one_by_one = parts[0]
    for part in parts[1:]:
        one_by_one = merged([one_by_one, part])
    assert one_by_one == whole
    assert hash(one_by_one) == hash(whole)


@pytest.mark.parametrize(
    "values",
    [
        [0.0],
        [-0.0, 0.0],
        [5e-324],
        [-5e-324, 1.7e308],
        [-1.7e308, 5e-324],
        [-1e-300, 1e300],
        [2.0**-149, -(2.0**-149)],
        [2047.0, 2048.0, -1.0],
        [1.0],
        [-1.0],
    ],
)
def test_extreme_ranges(values):
    parts = [statistics(np.array([v])) for v in values]
    whole = statistics(np.array(values))
    assert merged(parts) == whole == merged(parts[::-1])
    assert whole.counts.sum() == len(values)


def test_a_statistic_differs_from_other_things():
    assert statistics(np.ones(1)) != 1


def test_observe_is_independent_of_the_order(residual_net):
    graph, samples = residual_net
    names = ["x", "r", "h", "y"]
    found = observe(graph, samples, names)
    again = observe(graph, samples[::-1], names)
    assert found == again
    assert found["x"].count == 10 * 72
    assert found["r"].low == 0.0


def test_samples_are_mappings_or_lists(residual_net):
    graph, samples = residual_net
    lists = [list(sample.values()) for sample in samples]
    assert observe(graph, lists, ["y"]) == observe(graph, iter(samples), ["y"])


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ({}, "calibration sample 0: expected the inputs x, found none"),
        (
            {"x": np.zeros((1, 2, 6, 6), np.float32), "y": 1},
            "calibration sample 0: expected the inputs x, found x, y",
        ),
        ([], "calibration sample 0: expected 1 arrays (x), found 0"),
        (
            [np.zeros((1, 2, 6, 5), np.float32)],
            "calibration sample 0: input 'x': expected shape [1, 2, 6, 6], found [1, 2, 6, 5]",
        ),
        (
            [np.zeros((1, 2, 6, 6))],
            "calibration sample 0: input 'x': expected float32, found float64; convert it first",
        ),
        (
            [np.full((1, 2, 6, 6), np.inf, np.float32)],
            "calibration sample 0: tensor 'x': expected finite values, found inf at index "
            "(0, 0, 0, 0); remove or replace such samples",
        ),
    ],
)
def test_samples_that_do_not_fit(residual_net, sample, message):
    graph, _ = residual_net
    with pytest.raises(InputError) as error:
        observe(graph, [sample], ["y"])
    assert str(error.value) == message


def test_samples_in_one_buffer(residual_net):
    """A reader may fill the same array again and again."""
    graph, samples = residual_net
    kept = []

    def filled():
        buffer = np.empty_like(samples[0]["x"])
        for sample in samples:
            buffer[:] = sample["x"]
            yield [buffer]

    assert observe(graph, filled(), ["x", "y"], kept.append) == observe(graph, samples, ["x", "y"])
    assert [each[0].tobytes() for each in kept] == [s["x"].tobytes() for s in samples]


def test_the_rest_is_left_out_when_asked_for(residual_net):
    graph, samples = residual_net
    asked, read = [], []

    def settled(seen):
        asked.append(seen["y"].count)
        return len(asked) == 2

    found = observe(graph, iter(samples), ["y"], read.append, 3, settled)
    assert asked == [3 * found["y"].count // 6, found["y"].count]
    assert len(read) == 6
    assert found == observe(graph, samples[:6], ["y"])


def test_no_samples(residual_net):
    with pytest.raises(InputError) as error:
        observe(residual_net[0], [], ["y"])
    assert str(error.value) == (
        "calibration: expected at least one sample, found none; give samples of the data that the "
        "network will see"
    )


def test_activations_that_are_not_finite(net):
    n = net()
    x = n.input("x", 2, 3)
    graph = n.build(n.add("Log", "y", x))
    ones, zero = np.ones((2, 3), np.float32), np.ones((2, 3), np.float32)
    zero[1, 2] = 0
    with pytest.raises(NonFiniteError) as error:
        observe(graph, [[ones], [zero]], ["y"])
    assert str(error.value) == (
        "calibration sample 1: tensor 'y': expected finite values, found -inf at index (1, 2); "
        "remove or replace such samples"
    )
