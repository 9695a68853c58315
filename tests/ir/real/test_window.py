"""Convolutions and pools against loops over the definitions, in Fractions."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compare import assert_same
from samebits.errors import InputError
from samebits.ir import GraphBuilder
from samebits.ir.interpreter import run
from samebits.ir.real import window as real_window


def apply(op: str, *arrays: Any, exact: bool = True, **attributes: Any) -> Any:
    build = GraphBuilder("g")
    names = [
        "" if array is None else build.input(f"x{i}", array.dtype.name, array.shape)
        for i, array in enumerate(arrays)
    ]
    graph = build.build([build.add(op, names, attributes)])
    return run(graph, [array for array in arrays if array is not None], exact)[0]


def eighths(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).integers(-40, 41, shape).astype(np.float32) / 8


def fractions(array: Any) -> Any:
    return np.vectorize(lambda v: Fraction(v), otypes=[object])(array)


def positions(out: tuple[int, ...], kernel: tuple[int, ...], a: dict[str, Any]) -> Any:
    """(output position, tap, input position) of every term, along all spatial axes."""
    rank = len(kernel)
    for place in np.ndindex(*out):
        for tap in np.ndindex(*kernel):
            yield (
                place,
                tap,
                tuple(
                    place[i] * a["strides"][i] + tap[i] * a["dilations"][i] - a["pads"][i]
                    for i in range(rank)
                ),
            )


def inside(place: tuple[int, ...], size: tuple[int, ...]) -> bool:
    return all(0 <= p < n for p, n in zip(place, size, strict=True))


def slow_conv(x: Any, w: Any, b: Any, out: tuple[int, ...], a: dict[str, Any]) -> Any:
    x, w, b = fractions(x), fractions(w), fractions(b)
    per_group, outputs = w.shape[1], w.shape[0] // a["group"]
    y = np.empty((x.shape[0], w.shape[0], *out), dtype=object)
    y[...] = b.reshape(-1, *[1] * len(out))
    for place, tap, source in positions(out, w.shape[2:], a):
        if inside(source, x.shape[2:]):
            for n, o, c in np.ndindex(x.shape[0], w.shape[0], per_group):
                channel = o // outputs * per_group + c
                y[(n, o, *place)] += w[(o, c, *tap)] * x[(n, channel, *source)]
    return y


@st.composite
def windows(draw: st.DrawFn, rank: int, pool: bool = False) -> dict[str, Any]:
    def each(low: int, high: int, count: int = rank) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(count))

    kernel, dilations = each(1, 3), each(1, 2)
    # A pool's pads are smaller than its kernel.
    pads = each(0, min(kernel) - 1 if pool else 2, 2 * rank)
    more = each(0, 4)
    size = tuple(dilations[i] * (kernel[i] - 1) + 1 + more[i] for i in range(rank))
    return {
        "kernel": kernel,
        "size": size,
        "group": draw(st.sampled_from([1, 2])),
        "window": {"strides": each(1, 3), "pads": pads, "dilations": dilations},
    }


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_conv(rank: int) -> None:
    @settings(max_examples={1: 40, 2: 15, 3: 3}[rank])
    @given(windows(rank))
    def check(case: dict[str, Any]) -> None:
        group = case["group"]
        x = eighths(0, 1, 2 * group, *case["size"])
        w = eighths(1, 2 * group, 2, *case["kernel"])
        w[0] /= 3  # a channel of another scale
        b = eighths(2, 2 * group)
        a = {**case["window"], "group": group}
        y = apply("Conv", x, w, b, **a)
        expected = slow_conv(x, w, b, y.shape[2:], a)
        assert all(type(v) is Fraction for v in y.reshape(-1))
        assert_same(y, expected, range(y.size))
        close = apply("Conv", x, w, b, exact=False, **a)
        np.testing.assert_allclose(close, expected.astype(np.float64), rtol=1e-6, atol=1e-6)

    check()


@settings(max_examples=60)
@given(windows(1), st.integers(0, 1))
def test_conv_transpose_is_the_transpose_of_conv(case: dict[str, Any], extra: int) -> None:
    # <conv_transpose(x, w), z> == <x, conv(z, w)> for all z: checked on every unit z.
    group, window = case["group"], case["window"]
    extra = min(extra, max(window["strides"][0], window["dilations"][0]) - 1)
    x = eighths(0, 1, 2 * group, 3)
    w = eighths(1, 2 * group, 2, *case["kernel"])
    a = {**window, "group": group}
    reached = 2 * window["strides"][0] + window["dilations"][0] * (case["kernel"][0] - 1) + 1
    if reached + extra - sum(window["pads"]) < 1:
        return
    y = apply("ConvTranspose", x, w, output_padding=(extra,), **a)
    assert y.shape == (1, 2 * group, reached + extra - sum(window["pads"]))
    expected = np.zeros(y.shape, dtype=object)
    fx, fw = fractions(x), fractions(w)
    for i, tap, c, o in itertools.product(range(3), range(w.shape[2]), range(2 * group), range(2)):
        place = i * window["strides"][0] + tap * window["dilations"][0] - window["pads"][0]
        if 0 <= place < y.shape[2]:
            expected[0, c // 2 * 2 + o, place] += fx[0, c, i] * fw[c, o, tap]
    assert_same(y, expected, range(y.size))
    close = apply("ConvTranspose", x, w, output_padding=(extra,), exact=False, **a)
    assert_same(close, expected.astype(np.float32), range(y.size))


def test_conv_transpose_of_images_with_bias() -> None:
    x, w, b = eighths(0, 2, 3, 4, 5), eighths(1, 3, 2, 3, 2), eighths(2, 2)
    window = {"strides": (2, 1), "pads": (1, 0, 0, 1), "dilations": (1, 2), "group": 1}
    y = apply("ConvTranspose", x, w, b, output_padding=(1, 0), **window)
    expected = np.zeros(y.shape, dtype=object) + fractions(b).reshape(-1, 1, 1)
    fx, fw = fractions(x), fractions(w)
    for n, c, i, j, o, p, q in np.ndindex(2, 3, 4, 5, 2, 3, 2):
        place = (2 * i + p - 1, j + 2 * q)
        if inside(place, y.shape[2:]):
            expected[(n, o, *place)] += fx[n, c, i, j] * fw[c, o, p, q]
    assert_same(y, expected, range(y.size))


@pytest.mark.parametrize("limit", [1, 30, 200, 10**6])
def test_blocks_of_unfolded_windows_do_not_matter(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, w = eighths(0, 3, 4, 6, 5), eighths(1, 4, 2, 3, 3)
    a = {"strides": (1, 2), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 2}
    expected = apply("Conv", x, w, exact=False, **a)
    monkeypatch.setattr(real_window, "UNFOLDED_MAX", limit)
    assert_same(apply("Conv", x, w, exact=False, **a), expected, range(expected.size))


@pytest.mark.parametrize("per_channel", [False, True])
def test_conv_integer(per_channel: bool) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (1, 2, 4, 4)).astype(np.uint8)
    w = rng.integers(-128, 128, (3, 2, 2, 2)).astype(np.int8)
    x_zero = np.array(200, np.uint8)
    w_zero = np.array([-128, 0, 127] if per_channel else [5], np.int8)
    a = {"strides": (1, 1), "pads": (1, 0, 0, 1), "dilations": (1, 1), "group": 1}
    y = apply("ConvInteger", x, w, x_zero, w_zero, exact=False, **a)
    shifted = w.astype(np.int64) - w_zero.astype(np.int64).reshape(-1, 1, 1, 1)
    expected = slow_conv(x.astype(np.int64) - 200, shifted, np.zeros(3), y.shape[2:], a)
    assert y.dtype == np.int32
    assert_same(y, expected, range(y.size))
    assert_same(
        apply("ConvInteger", x, w, exact=False, **a),
        slow_conv(x, w, np.zeros(3), y.shape[2:], a),
        range(y.size),
    )


def pool_out(case: dict[str, Any]) -> tuple[int, ...]:
    """Windows along each axis, counted one after another."""
    out, window, rank = [], case["window"], len(case["size"])
    for i, (n, k) in enumerate(zip(case["size"], case["kernel"], strict=True)):
        last = n + window["pads"][i + rank] - window["dilations"][i] * (k - 1)
        out.append(len(range(-window["pads"][i], last, window["strides"][i])))
    return tuple(out)


@settings(max_examples=40)
@given(windows(2, pool=True), st.integers(0, 1))
def test_pools_in_floor_mode(case: dict[str, Any], include: int) -> None:
    x = eighths(3, 1, 2, *case["size"])
    window = {**case["window"], "kernel_shape": case["kernel"]}
    largest = apply("MaxPool", x, **window)
    mean = apply("AveragePool", x, count_include_pad=include, **window)
    out = pool_out(case)
    assert largest.shape[2:] == mean.shape[2:] == out
    assert_same(*both(x, largest, mean, case, include), range(2 * mean.size))
    assert_same(
        apply("MaxPool", x, exact=False, **window), largest.astype(np.float32), range(mean.size)
    )
    close = apply("AveragePool", x, exact=False, count_include_pad=include, **window)
    np.testing.assert_allclose(close, mean.astype(np.float64), rtol=1e-6, atol=1e-7)


def both(x: Any, largest: Any, mean: Any, case: dict[str, Any], include: int) -> tuple[Any, Any]:
    """(found, expected), maxima then means, by loops over the windows."""
    window, size, rank = case["window"], case["size"], len(case["size"])
    terms: dict[Any, list[Fraction]] = {}
    counts: dict[Any, int] = {}
    fx = fractions(x)
    for place, _, source in positions(mean.shape[2:], case["kernel"], window):
        padded = all(
            -window["pads"][i] <= source[i] < size[i] + window["pads"][i + rank]
            for i in range(rank)
        )
        for channel in range(x.shape[1]):
            key = (0, channel, *place)
            terms.setdefault(key, [])
            counts[key] = counts.get(key, 0) + (include and padded)
            if inside(source, size):
                terms[key].append(fx[(0, channel, *source)])
                counts[key] += not include
    keys = list(np.ndindex(*mean.shape))
    expected = [max(terms[key]) for key in keys]
    expected += [Fraction(sum(terms[key]), counts[key]) for key in keys]
    return [*largest.reshape(-1), *mean.reshape(-1)], expected


@pytest.mark.parametrize("include", [0, 1])
@pytest.mark.parametrize(
    ("size", "kernel", "stride", "pads", "out"),
    [
        (5, 2, 2, (0, 0), 3),  # the last window covers one position
        (4, 2, 2, (0, 0), 2),
        (7, 3, 3, (0, 0), 3),
        (6, 3, 3, (1, 1), 3),  # reaches one position beyond the end pad
        (4, 2, 2, (1, 0), 3),  # exact fit
        (4, 3, 2, (1, 1), 3),
        (3, 1, 2, (0, 0), 2),
        (2, 3, 3, (1, 1), 1),  # one more would start in the end pad
        (6, 2, 4, (0, 1), 2),
    ],
)
def test_pools_in_ceil_mode(
    size: int, kernel: int, stride: int, pads: tuple[int, int], out: int, include: int
) -> None:
    x = eighths(4, 1, 2, size)
    window = {"strides": (stride,), "pads": pads, "dilations": (1,)}
    case = {"size": (size,), "kernel": (kernel,), "window": window}
    largest = apply("MaxPool", x, kernel_shape=(kernel,), ceil_mode=1, **window)
    mean = apply(
        "AveragePool", x, kernel_shape=(kernel,), ceil_mode=1, count_include_pad=include, **window
    )
    assert largest.shape[2:] == mean.shape[2:] == (out,)
    assert_same(*both(x, largest, mean, case, include), range(2 * mean.size))


def test_max_pool_of_codes_and_global_pools() -> None:
    codes = np.array([[[[-128, -127], [-126, -125]]]], np.int8)
    window = {"kernel_shape": (2, 2), "strides": (1, 1), "dilations": (1, 1)}
    y = apply("MaxPool", codes, exact=False, pads=(1, 1, 1, 1), **window)
    assert y.dtype == np.int8
    assert y[0, 0].tolist() == [[-128, -127, -127], [-126, -125, -125], [-126, -125, -125]]
    x = eighths(5, 2, 3, 3, 5)
    mean = apply("GlobalAveragePool", x)
    assert mean.shape == (2, 3, 1, 1)
    assert_same(mean, [Fraction(sum(row), 15) for row in fractions(x).reshape(6, 15)], range(6))
    assert_same(apply("GlobalMaxPool", x), x.max(axis=(2, 3)), range(6))


WINDOW = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1)}
X, W = np.zeros((1, 4, 5, 5), np.float32), np.zeros((2, 4, 3, 3), np.float32)


W4 = W.transpose(1, 0, 2, 3)
WIDE, EXTRA = {**WINDOW, "pads": (9, 9, 9, 9)}, {"output_padding": (0, 0)}


@pytest.mark.parametrize(
    ("op", "arrays", "attributes", "message"),
    [
        ("Conv", [X, W[:, :3]], WINDOW, r"expected weights \[multiple of 1, 4 / 1, ...\], found"),
        ("Conv", [X, W], {**WINDOW, "group": 0}, "expected group of at least 1, found 0"),
        ("Conv", [X, W, X[0, 0, 0]], WINDOW, r"expected a bias of \[2\], found \[5\]"),
        ("Conv", [X, W], {**WINDOW, "strides": (1,)}, "expected 2 numbers in strides, found"),
        ("Conv", [X, W], {**WINDOW, "strides": (0, 1)}, "expected strides of at least 1, found"),
        ("Conv", [X, W], {**WINDOW, "pads": (0, 0, -1, 0)}, "expected pads of at least 0, found"),
        ("Conv", [X, W], {**WINDOW, "dilations": (3, 1)}, "expected a window that fits"),
        ("Conv", [X, W], {**WINDOW, "pads": (10**9,) * 4}, "expected at most 268435456 elements"),
        ("Conv", [X[0, 0], W], WINDOW, r"expected x of \[N, C, spatial...\], found \[5, 5\]"),
        ("ConvTranspose", [X, W], {**WINDOW, **EXTRA}, r"expected weights \[4, ...\]"),
        ("ConvTranspose", [X, W4], {**WINDOW, "output_padding": (1, 0)}, "expected output_padding"),
        ("ConvTranspose", [X, W4], {**WIDE, **EXTRA}, "expected pads that leave an output"),
        ("MaxPool", [X], {**WIDE, "kernel_shape": (2, 2)}, "expected pads smaller than the kernel"),
        ("AveragePool", [X], {**WINDOW, "kernel_shape": (10**9, 1)}, "expected a window that fits"),
        ("GlobalMaxPool", [X[:, :, :0]], {}, "expected an image that is not empty, found"),
    ],
)
def test_messages(op: str, arrays: list[Any], attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        apply(op, *arrays, **attributes)


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_a_window_that_falls_through_the_image(op: str) -> None:
    # Dilation 3 steps over the only row: taps at -2 and 1.
    x = np.zeros((1, 1, 1), np.float32)
    window = {"kernel_shape": (2,), "strides": (1,), "pads": (2, 1), "dilations": (3,)}
    with pytest.raises(InputError, match="expected every window to reach into the image"):
        apply(op, x, **window)
