"""Windows of average pools: divisors, the windows that hold a position, and what is too much."""

from __future__ import annotations

import itertools

import pytest

from samebits.errors import UnsupportedError
from samebits.kernels import Window
from samebits.kernels.averages import adaptive_averages, holders, window_averages
from samebits.spec.training import pooling

SIZES = list(itertools.product((1, 2, 5, 7), repeat=2))


def divisors(means):
    return [d * e for d in means.heights for e in means.widths]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("out", SIZES)
def test_adaptive_windows(size, out):
    means = adaptive_averages(*size, *out)
    assert divisors(means) == pooling.adaptive_windows((1, 1, *size), out)[2]
    assert (list(means.rows), list(means.columns)) == tuple(
        pooling.adaptive_spans(n, m) for n, m in zip(size, out, strict=True)
    )
    if means.window is not None:
        members = pooling.windows((1, 1, *size), *means.window)[1]
        assert members == pooling.adaptive_windows((1, 1, *size), out)[1]
    steps = {b[0] - a[0] for a, b in itertools.pairwise(means.rows)}
    if len(set(means.heights)) == 1 and steps <= {1, 2} and size[1] == out[1]:
        assert (means.window is not None) == (len(steps) < 2)


def test_windows_of_one_size_and_step_are_a_geometry():
    assert adaptive_averages(7, 6, 3, 2).window == Window((3, 3), (2, 3), (0, 0))
    assert adaptive_averages(7, 7, 1, 7).window == Window((7, 1), (7, 1), (0, 0))
    assert adaptive_averages(7, 7, 2, 7).window == Window((4, 1), (3, 1), (0, 0))
    assert adaptive_averages(7, 7, 4, 7).window is None  # 2, 3, 3, 2 rows
    assert adaptive_averages(1, 1, 2, 2).window is None  # no step
    assert adaptive_averages(5, 5, 3, 3).window is None


@pytest.mark.parametrize("size", [1, 4, 7])
@pytest.mark.parametrize("count", [1, 3, 7, 9])
def test_holders(size, count):
    spans = adaptive_averages(size, 1, count, 1).rows
    expected = [
        [i for i, (first, last) in enumerate(spans) if first <= at < last] for at in range(size)
    ]
    assert [list(range(*pair)) for pair in holders(spans, size)] == expected


def test_the_factors_of_means():
    means = adaptive_averages(5, 4, 2, 2)  # 3 rows each, overlapping; 2 columns each
    assert (means.common, means.largest, means.factors) == (6, 6, None)
    means = adaptive_averages(3, 7, 3, 4)
    assert (means.common, means.largest, means.positions) == (6, 3, 3)
    assert means.factors == ((1, 1, 1), (3, 2, 2, 3))
    means = window_averages(Window((3, 3), (2, 2), (0, 0), True), 4, 4)
    assert (means.heights, means.widths) == ((3, 2), (3, 2))
    assert means.factors == ((2, 3), (2, 3))
    assert means.counts_image
    means = window_averages(Window((3, 3), (1, 1), (1, 1)), 4, 4, True, 5)
    assert (means.common, means.factors, means.counts_image) == (5, None, False)
    plain = means.undivided()
    assert (plain.rows, plain.columns) == (means.rows, means.columns)
    assert (plain.common, plain.factors) == (1, None)


@pytest.mark.parametrize(("kernel", "held"), [(9, True), (11, True), (13, False), (31, False)])
def test_windows_of_too_many_sizes(kernel, held):
    """Their least common multiple grows with e**kernel. Padding that counts leaves one size."""
    window = Window((kernel, kernel), (1, 1), (kernel // 2, kernel // 2))
    window_averages(window, 40, 40)
    if held:
        window_averages(window, 40, 40, False)
        return
    with pytest.raises(UnsupportedError) as caught:
        window_averages(window, 40, 40, False)
    message = str(caught.value)
    assert message.startswith("average pool: expected windows whose numbers of positions have a")
    assert message.endswith("use padding that counts (count_include_pad=True), or smaller windows")
