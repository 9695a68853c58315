from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compare import assert_same
from samebits.errors import InputError
from samebits.ir import GraphBuilder
from samebits.ir.interpreter import run
from samebits.ir.real.shape import nearest_indices


def apply_all(op: str, *arrays: Any, exact: bool = False, **attributes: Any) -> list[Any]:
    build = GraphBuilder("g")
    names = [build.input(f"x{i}", array.dtype.name, array.shape) for i, array in enumerate(arrays)]
    return run(build.build(build.add_all(op, names, attributes)), arrays, exact)


def apply(op: str, *arrays: Any, exact: bool = False, **attributes: Any) -> Any:
    return apply_all(op, *arrays, exact=exact, **attributes)[0]


def numbers(*shape: int, dtype: str = "int16") -> Any:
    return np.arange(math.prod(shape)).reshape(shape).astype(dtype)


MOVES: list[tuple[str, dict[str, Any], tuple[int, ...], Any]] = [
    ("Reshape", {"shape": (4, 6)}, (2, 3, 4), lambda x: x.reshape(4, 6)),
    ("Reshape", {"shape": ()}, (1, 1), lambda x: x.reshape(())),
    ("Reshape", {"shape": (0, 7)}, (3, 0), lambda x: x.reshape(0, 7)),
    ("Flatten", {}, (2, 3, 4), lambda x: x.reshape(2, 12)),
    ("Flatten", {"axis": 0}, (2, 3, 4), lambda x: x.reshape(1, 24)),
    ("Flatten", {"axis": 3}, (2, 3, 4), lambda x: x.reshape(24, 1)),
    ("Flatten", {"axis": -1}, (2, 3, 4), lambda x: x.reshape(6, 4)),
    ("Flatten", {"axis": 0}, (), lambda x: x.reshape(1, 1)),
    ("Squeeze", {"axes": (0, -2)}, (1, 3, 1, 4), lambda x: x.reshape(3, 4)),
    ("Unsqueeze", {"axes": (-1, 0)}, (3, 4), lambda x: x.reshape(1, 3, 4, 1)),
    ("Unsqueeze", {"axes": (1, 2)}, (3, 4), lambda x: x.reshape(3, 1, 1, 4)),
    ("Transpose", {"perm": (2, 0, 1)}, (2, 3, 4), lambda x: x.transpose(2, 0, 1)),
    ("Expand", {"shape": (5, 3, 1)}, (3, 4), lambda x: np.stack([x] * 5)),
    ("Expand", {"shape": (1,)}, (3, 4), lambda x: x),
    ("Tile", {"repeats": (2, 3)}, (3, 4), lambda x: np.tile(x, (2, 3))),
    ("Tile", {"repeats": (0, 1)}, (3, 4), lambda x: x[:0]),
]


@pytest.mark.parametrize(("op", "attributes", "shape", "expected"), MOVES)
def test_moves(op: str, attributes: dict[str, Any], shape: tuple[int, ...], expected: Any) -> None:
    for dtype in ("float32", "int8", "bool"):
        x = numbers(*shape, dtype=dtype)
        found = apply(op, x, **attributes)
        assert found.dtype == dtype
        assert np.array_equal(found, expected(x))
    exact = apply(op, numbers(*shape, dtype="float32"), exact=True, **attributes)
    assert exact.dtype == object
    assert np.array_equal(exact, expected(numbers(*shape)))


@given(
    st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), min_size=2, max_size=2),
    st.lists(st.sampled_from([-3, -2, -1, 1, 2, 3]), min_size=2, max_size=2),
)
def test_slices(bounds: list[tuple[int, int]], steps: list[int]) -> None:
    x = numbers(4, 2, 5)
    starts, ends = zip(*bounds, strict=True)
    found = apply("Slice", x, starts=starts, ends=ends, steps=tuple(steps), axes=(2, -3))

    def taken(n: int, start: int, end: int, step: int) -> list[int]:
        # ONNX: negative counts from the end, then the bounds are clamped.
        start, end = (v + n if v < 0 else v for v in (start, end))
        if step > 0:
            return list(range(min(max(start, 0), n), min(max(end, 0), n), step))
        return list(range(min(max(start, 0), n - 1), min(max(end, -1), n - 1), step))

    columns, rows = (taken(n, *bounds[i], steps[i]) for i, n in enumerate((5, 4)))
    assert np.array_equal(found, x[rows][:, :, columns])


def test_slices_to_the_very_ends() -> None:
    x = numbers(4)
    whole = apply("Slice", x, starts=(0,), ends=(2**63 - 1,), steps=(1,), axes=(0,))
    assert whole.tolist() == [0, 1, 2, 3]
    turned = apply("Slice", x, starts=(-1,), ends=(-(2**63),), steps=(-1,), axes=(0,))
    assert turned.tolist() == [3, 2, 1, 0]


def test_concat_and_split_are_inverse() -> None:
    x = numbers(2, 7, 3)
    for exact, dtype in ((False, "uint8"), (True, "float32")):
        parts = apply_all("Split", x.astype(dtype), exact=exact, axis=-2, sizes=(1, 0, 4, 2))
        assert [part.shape for part in parts] == [(2, 1, 3), (2, 0, 3), (2, 4, 3), (2, 2, 3)]
        whole = apply("Concat", *(p.astype(dtype) for p in parts), exact=exact, axis=1)
        assert np.array_equal(whole, x)


def test_gather() -> None:
    x = numbers(4, 3)
    indices = np.array([[0, -1], [3, 1]])
    assert np.array_equal(apply("Gather", x, indices), x[indices])
    assert np.array_equal(apply("Gather", x, np.array(-2), axis=1), x[:, 1])
    exact = apply("Gather", x.astype(np.float32), indices, exact=True)
    assert np.array_equal(exact, x[indices])
    with pytest.raises(InputError, match=r"node 'Gather' .*expected indices in \[-4, 4\), found 4"):
        apply("Gather", x, np.array([0, 4]))


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
@pytest.mark.parametrize("pads", [(0, 1, 2, 0), (1, 2, 0, 2), (0, -1, -1, 2), (0, 0, 0, 0)])
def test_pads(mode: str, pads: tuple[int, ...]) -> None:
    x = numbers(3, 4)
    cut = x[max(-pads[0], 0) : 3 + min(pads[2], 0), max(-pads[1], 0) : 4 + min(pads[3], 0)]
    widths = [(max(pads[i], 0), max(pads[i + 2], 0)) for i in (0, 1)]
    extra: dict[str, Any] = {"constant_values": 3} if mode == "constant" else {}
    expected = np.pad(cut, widths, mode=mode, **extra)  # type: ignore[call-overload]
    for exact, dtype in ((False, "int16"), (False, "float32"), (True, "float32")):
        found = apply("Pad", x.astype(dtype), exact=exact, pads=pads, mode=mode, value=3.0)
        assert np.array_equal(found, expected)


def test_pad_values() -> None:
    x = np.float32([1])
    assert apply("Pad", x, pads=(1, 0), value=-math.inf).tolist() == [-math.inf, 1]
    assert apply("Pad", x, exact=True, pads=(1, 0), value=0.1).tolist() == [Fraction(0.1), 1]
    assert apply("Pad", np.array([False]), pads=(1, 0), value=1.0).tolist() == [True, False]
    with pytest.raises(InputError, match="expected a finite pad value, found -inf"):
        apply("Pad", x, exact=True, pads=(1, 0), value=-math.inf)


def test_depth_and_space() -> None:
    x = numbers(1, 8, 2, 3)
    dcr = apply("DepthToSpace", x, blocksize=2)
    crd = apply("DepthToSpace", x, blocksize=2, mode="CRD")
    for d, p, q, i, j in np.ndindex(2, 2, 2, 2, 3):
        assert dcr[0, d, 2 * i + p, 2 * j + q] == x[0, (2 * p + q) * 2 + d, i, j]
        assert crd[0, d, 2 * i + p, 2 * j + q] == x[0, d * 4 + 2 * p + q, i, j]
    assert np.array_equal(apply("SpaceToDepth", dcr, blocksize=2), x)


def test_nearest_positions_against_their_formulas() -> None:
    for size, out in itertools.product(range(1, 8), range(1, 15)):
        scale = Fraction(out, size)
        floor = [i * size // out for i in range(out)]
        assert_same(nearest_indices(size, out, scale, "asymmetric", "floor"), floor, floor)
        half = [(i + Fraction(1, 2)) / scale - Fraction(1, 2) for i in range(out)]
        for rounding, nearest in (
            ("round_prefer_floor", lambda v: math.ceil(v - Fraction(1, 2))),
            ("round_prefer_ceil", lambda v: math.floor(v + Fraction(1, 2))),
        ):
            expected = [min(max(nearest(v), 0), size - 1) for v in half]
            for coordinates in ("half_pixel", "half_pixel_symmetric"):
                found = nearest_indices(size, out, scale, coordinates, rounding)
                assert_same(found, expected, half)
        ends = nearest_indices(size, out, scale, "align_corners", "round_prefer_floor")
        assert ends[0] == 0
        assert ends[-1] == (size - 1 if out > 1 else 0)


def test_resize() -> None:
    x = numbers(1, 2, 2, 3)
    doubled = {"sizes": (1, 2, 4, 6), "coordinate_transformation_mode": "asymmetric"}
    expected = x.repeat(2, axis=2).repeat(2, axis=3)
    for extra in ({}, {"scales": (1.0, 1.0, 2.0, 2.0)}):
        found = apply("Resize", x, nearest_mode="floor", **doubled, **extra)
        assert np.array_equal(found, expected)
    exact = apply("Resize", x.astype(np.float32), exact=True, sizes=(1, 2, 4, 6))
    assert np.array_equal(exact, expected)
    assert np.array_equal(apply("Resize", x, sizes=(1, 2, 1, 1)), x[:, :, :1, 1:2])


X = numbers(2, 3, 4)


@pytest.mark.parametrize(
    ("op", "arrays", "attributes", "message"),
    [
        ("Reshape", [X], {"shape": (5, 5)}, r"expected a shape of 24 elements, found \[5, 5\]"),
        ("Reshape", [X], {"shape": (-1, 24)}, "expected shape of at least 0, found"),
        ("Flatten", [X], {"axis": 4}, r"expected axis in \[-3, 3\), found 4"),
        (
            "Squeeze",
            [X],
            {"axes": (0,)},
            r"expected axes of size 1, found axes \[0\] of \[2, 3, 4\]",
        ),
        ("Unsqueeze", [X], {"axes": (0, 0)}, "expected axes that differ"),
        ("Transpose", [X], {"perm": (0, 0, 1)}, "expected a permutation of 3 axes, found"),
        ("Expand", [X], {"shape": (5, 4)}, "expected shapes that broadcast"),
        ("Expand", [X], {"shape": (2**40, 1, 1, 1)}, "expected at most 268435456 elements"),
        ("Tile", [X], {"repeats": (1,)}, r"expected 3 numbers in repeats, found \[1\]"),
        ("Slice", [X], {"starts": (0,), "ends": (1,), "steps": (0,), "axes": (0,)}, "other than 0"),
        (
            "Slice",
            [X],
            {"starts": (0,), "ends": (1,), "steps": (1,), "axes": (5,)},
            "expected axis",
        ),
        ("Concat", [X, X[:1]], {"axis": 1}, "expected shapes that differ along axis 1 only"),
        ("Concat", [X, X[0]], {"axis": 0}, "expected shapes that differ along axis 0 only"),
        ("Concat", [X, X.astype(np.int8)], {"axis": 0}, "expected inputs of one type"),
        ("Split", [X], {"sizes": (1, 2)}, r"expected sizes with the sum 2, found \[1, 2\]"),
        ("Gather", [X, X.astype(np.int8)], {}, "expected indices of int32, int64, found int8"),
        ("Pad", [X], {"pads": (0,) * 5}, "expected 6 numbers in pads"),
        ("Pad", [X], {"pads": (2, 0, 0) * 2, "mode": "reflect"}, "expected pads that reflect can"),
        ("Pad", [X], {"pads": (-3, 0, 0, 0, 0, 0)}, "expected pads that constant can fill"),
        ("Pad", [X[:0]], {"pads": (1,) * 6, "mode": "edge"}, "expected pads that edge can fill"),
        (
            "Pad",
            [X],
            {"pads": (0,) * 6, "mode": "mean"},
            "expected mode of constant, reflect, edge",
        ),
        ("DepthToSpace", [X], {"blocksize": 2}, r"expected x of \[N, C, H, W\], found \[2, 3, 4\]"),
        ("DepthToSpace", [X[None]], {"blocksize": 2}, "expected a multiple of 4 channels, found 2"),
        (
            "SpaceToDepth",
            [X[None]],
            {"blocksize": 2},
            "expected height and width in multiples of 2",
        ),
        ("SpaceToDepth", [X[None]], {"blocksize": 0}, "expected blocksize of at least 1, found 0"),
        ("Resize", [X], {"sizes": (2, 3)}, "expected 3 numbers in sizes"),
        (
            "Resize",
            [X],
            {"sizes": (2, 3, 4), "scales": (1.0, 0.0, 1.0)},
            "expected 3 positive scales",
        ),
        ("Resize", [X], {"sizes": (2, 3, 4), "mode": "cubic"}, "expected mode of nearest"),
    ],
)
def test_messages(op: str, arrays: list[Any], attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        apply(op, *arrays, **attributes)
