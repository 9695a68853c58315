"""Interpolation: rational weights, the same image in float and in exact mode.

What each mode computes is tested against the ONNX standard's own cases
(tests/onnx/reader/test_node_suite.py) and against torch (tests/pytorch/test_importer.py).
"""

from __future__ import annotations

import itertools
import tracemalloc
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from samebits.ir import GraphBuilder
from samebits.ir.interpreter import run
from samebits.ir.ops import op_named
from samebits.ir.real import resize
from samebits.ir.real.resize import weights_of
from samebits.ir.real.shape import COORDINATES

X = np.random.default_rng(4).integers(-40, 41, (1, 2, 5, 4)).astype(np.float32) / 8


def apply(x: Any, exact: bool = False, **attributes: Any) -> Any:
    build = GraphBuilder("g")
    name = build.input("x", x.dtype.name, x.shape)
    return run(build.build([build.add("Interpolate", [name], attributes)]), [x], exact)[0]


def weights(size: int, out: int, **attributes: Any) -> list[dict[int, Fraction]]:
    record = op_named("Interpolate").complete({"sizes": (out,), **attributes}, "test")
    return [dict(row) for row in weights_of((size,), record)[0]]


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_both_modes_agree(coordinates: str, mode: str) -> None:
    for sizes, antialias in itertools.product(((1, 2, 8, 9), (1, 2, 3, 2), (1, 3, 1, 4)), (0, 1)):
        given = {"sizes": sizes, "mode": mode, "coordinate_transformation_mode": coordinates}
        real = apply(X, antialias=antialias, **given)
        exact = apply(X, exact=True, antialias=antialias, **given)
        assert real.shape == exact.shape == sizes
        assert all(type(v) is Fraction for v in exact.flat)
        np.testing.assert_allclose(real, exact.astype(np.float64), rtol=2e-7, atol=1e-6)


def test_weights_are_those_of_the_formulas() -> None:
    quarter = Fraction(1, 4)
    assert weights(2, 4) == [
        {0: 1},
        {0: 3 * quarter, 1: quarter},
        {0: quarter, 1: 3 * quarter},
        {1: 1},
    ]
    corners = weights(3, 5, coordinate_transformation_mode="align_corners")
    assert corners == [
        {0: 1},
        {0: Fraction(1, 2), 1: Fraction(1, 2)},
        {1: 1},
        {1: Fraction(1, 2), 2: Fraction(1, 2)},
        {2: 1},
    ]
    assert weights(4, 1, coordinate_transformation_mode="pytorch_half_pixel") == [{0: 1}]
    assert weights(4, 2, antialias=1)[0] == {
        0: Fraction(3, 8),
        1: Fraction(3, 8),
        2: Fraction(1, 4) - Fraction(1, 8),
    } | {0: Fraction(3, 8) + Fraction(1, 8)}
    # The positions of a stated scale, which the sizes do not say: 0, 1 / 0.6.
    uneven = {"scales": (Fraction(3, 5),), "coordinate_transformation_mode": "asymmetric"}
    assert weights(4, 2, **uneven) == [{0: 1}, {1: Fraction(1, 3), 2: Fraction(2, 3)}]


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize(("exclude", "antialias"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_weights_of_an_output_add_up_to_one(mode: str, exclude: int, antialias: int) -> None:
    for size, out in itertools.product(range(1, 8), range(1, 12)):
        if size == out:
            continue
        given = {"mode": mode, "exclude_outside": exclude, "antialias": antialias}
        for row in weights(size, out, **given):
            assert sum(row.values()) == 1
            assert all(0 <= place < size for place in row)


def test_outputs_outside_the_region_read_nothing() -> None:
    crop = {"coordinate_transformation_mode": "tf_crop_and_resize", "roi": (-0.5, 1.0)}
    rows = weights(3, 4, **crop)
    assert rows == [{}, {0: 1}, {1: 1}, {2: 1}]


@pytest.mark.parametrize("rank", [2, 3])
def test_memory_is_that_of_the_samples_that_are_read(
    rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resize, "COLUMNS_MAX", 1 << 16)
    ones = (1,) * (rank - 1)
    x = np.arange(1000, dtype=np.float32).reshape(*ones, 1000)
    tracemalloc.start()
    found = apply(x, sizes=(*ones, 2000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.reshape(-1)[:4].tolist() == [0, 0.25, 0.75, 1.25]
    assert peak < 1 << 22  # a weight for each pair of an input and an output: 16 MB


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"sizes": (1, 2, 8)}, "expected 4 numbers in sizes"),
        ({"sizes": (1, 2, 8, 0)}, "expected sizes of at least 1"),
        ({"sizes": (1, 2, 8, 8), "mode": "area"}, "expected mode of nearest, linear, cubic"),
        ({"sizes": (1, 2, 8, 8), "roi": (0.0,) * 8}, "expected 8 ends of a region with tf_crop"),
        (
            {"sizes": (1, 2, 8, 8), "coordinate_transformation_mode": "tf_crop_and_resize"},
            "expected 8 ends of a region with tf_crop_and_resize, found None",
        ),
        (
            {"sizes": (1, 2, 1, 4), "scales": (1, 1, 1e-5, 1), "antialias": 1},
            "expected sizes that scales give, of axis 2 about 5 [*] 1e-05, found 1",
        ),
    ],
)
def test_messages(attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        apply(X, **attributes)
