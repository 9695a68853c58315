from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from compare import assert_same
from samebits.errors import InputError, UnsupportedError
from samebits.ir import GraphBuilder
from samebits.ir.interpreter import run


def apply(op: str, *arrays: Any, exact: bool = False, **attributes: Any) -> Any:
    build = GraphBuilder("g")
    names = [build.input(f"x{i}", array.dtype.name, array.shape) for i, array in enumerate(arrays)]
    return run(build.build([build.add(op, names, attributes)]), arrays, exact)[0]


def eighths(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).integers(-40, 41, shape).astype(np.float32) / 8


def groups(x: Any, axes: tuple[int, ...]) -> list[list[Fraction]]:
    kept = [i for i in range(x.ndim) if i not in axes]
    moved = x.transpose([*kept, *axes]).reshape(math.prod(x.shape[i] for i in kept), -1)
    return [[Fraction(float(v)) for v in row] for row in moved]


RATIONAL: dict[str, Any] = {
    "ReduceSum": sum,
    "ReduceMean": lambda row: sum(row) / len(row),
    "ReduceMax": max,
    "ReduceMin": min,
    "ReduceProd": math.prod,
    "ReduceL1": lambda row: sum(map(abs, row)),
    "ReduceSumSquare": lambda row: sum(v * v for v in row),
}
AXES: list[tuple[int, ...]] = [(0,), (1,), (2,), (0, 2), (2, 1), (-1,), (0, 1, 2), ()]


@pytest.mark.parametrize("op", RATIONAL)
@pytest.mark.parametrize("keepdims", [0, 1])
def test_rational_reductions_exactly(op: str, keepdims: int) -> None:
    x = eighths(0, 2, 3, 4)
    for axes in AXES:
        axes_from_0 = tuple(axis % 3 for axis in axes)
        shape = [
            1 if i in axes_from_0 else n
            for i, n in enumerate(x.shape)
            if keepdims or i not in axes_from_0
        ]
        found = apply(op, x, exact=True, axes=axes, keepdims=keepdims)
        assert list(found.shape) == shape
        expected = [RATIONAL[op](row) for row in groups(x, axes_from_0)]
        assert_same(found, expected, range(len(expected)))
        close = apply(op, x, axes=axes, keepdims=keepdims)
        np.testing.assert_allclose(close, found.astype(np.float64), rtol=1e-6)


def test_irrational_reductions() -> None:
    x = np.abs(eighths(1, 2, 5)) + 1
    rows = [[float(v) for v in row] for row in x]
    for op, function in {
        "ReduceL2": lambda row: math.sqrt(sum(v * v for v in row)),
        "ReduceLogSum": lambda row: math.log(sum(row)),
        "ReduceLogSumExp": lambda row: math.log(sum(map(math.exp, row))),
    }.items():
        found = apply(op, x, axes=(1,), keepdims=0)
        np.testing.assert_allclose(found, [function(row) for row in rows], rtol=1e-6)
        with pytest.raises(UnsupportedError, match=f"found {op}; compute in float mode"):
            apply(op, x, exact=True, axes=(1,))
    big = np.float32([1e4, 1e4])
    assert apply("ReduceLogSumExp", big, axes=(0,), keepdims=0) == np.float32(1e4 + math.log(2))
    assert apply("ReduceLogSumExp", -np.float32([np.inf]), axes=(0,)).item() == -np.inf


def test_reductions_of_integers_keep_the_type() -> None:
    x = np.array([[-7, 2], [-128, 127]], np.int8)
    expected = {"ReduceMax": [2, 127], "ReduceMin": [-7, -128], "ReduceMean": [-2, 0]}
    for op, codes in expected.items():
        found = apply(op, x, axes=(1,), keepdims=0)
        assert (found.dtype, found.tolist()) == (np.int8, codes)
    wide = x.astype(np.int64)
    assert apply("ReduceSum", wide, axes=(0, 1), keepdims=0).item() == -6
    assert apply("ReduceProd", wide, axes=(1,), keepdims=0).tolist() == [-14, -128 * 127]


def test_reductions_of_nothing() -> None:
    x = np.zeros((2, 0), np.float32)
    for op, expected in {
        "ReduceSum": 0,
        "ReduceProd": 1,
        "ReduceMax": -np.inf,
        "ReduceMin": np.inf,
    }.items():
        assert apply(op, x, axes=(1,), keepdims=0).tolist() == [expected] * 2
    assert apply("ReduceMax", x.astype(np.int8), axes=(1,), keepdims=0).tolist() == [-128] * 2
    with pytest.raises(InputError, match="expected elements to reduce in exact mode, found none"):
        apply("ReduceMax", x, exact=True, axes=(1,))
    with pytest.raises(ValueError, match=r"expected axes with elements to reduce, found \[2, 0\]"):
        apply("ReduceMean", x, axes=(1,))


@pytest.mark.parametrize("exact", [False, True])
def test_argmax_takes_the_first_or_last_of_equals(exact: bool) -> None:
    x = np.float32([[1, 3, 3, 0], [5, 5, 5, 5], [0, 0, 1, 0]])
    for op, last, expected in (
        ("ArgMax", 0, [1, 0, 2]),
        ("ArgMax", 1, [2, 3, 2]),
        ("ArgMin", 0, [3, 0, 0]),
        ("ArgMin", 1, [3, 3, 3]),
    ):
        found = apply(op, x, exact=exact, axis=-1, keepdims=0, select_last_index=last)
        assert (found.dtype, found.tolist()) == (np.int64, expected)
    assert apply("ArgMax", x, exact=exact, axis=0).tolist() == [[1, 1, 1, 1]]


def test_softmax_family() -> None:
    x = eighths(2, 3, 5)
    powers = np.exp(x.astype(np.float64))
    for axis in (0, 1, -1):
        expected = powers / powers.sum(axis=axis, keepdims=True)
        np.testing.assert_allclose(apply("Softmax", x, axis=axis), expected, rtol=1e-6)
        np.testing.assert_allclose(
            apply("LogSoftmax", x, axis=axis), np.log(expected), rtol=1e-5, atol=1e-6
        )
    assert apply("Softmax", np.float32([1e9, 0])).tolist() == [1, 0]
    ties = np.float32([[2, 7, 7], [0, 0, 0]])
    for exact in (False, True):
        found = apply("Hardmax", ties, exact=exact)
        assert found.tolist() == [[0, 1, 0], [1, 0, 0]]
    assert apply("Hardmax", ties, axis=0).tolist() == [[1, 1, 1], [0, 0, 0]]


def test_normalisations() -> None:
    x = eighths(3, 2, 3, 4, 5).astype(np.float64)
    scale, b = eighths(4, 3).astype(np.float64), eighths(5, 3).astype(np.float64)
    mean, var = eighths(6, 3).astype(np.float64), np.array([0.5, 1, 2])

    def channel(p: Any) -> Any:
        return p.reshape(-1, 1, 1)

    expected = (x - channel(mean)) / np.sqrt(channel(var) + 0.25) * channel(scale) + channel(b)
    found = apply("BatchNormalization", x, scale, b, mean, var, epsilon=0.25)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)

    def normalised(axes: tuple[int, ...]) -> Any:
        m = x.mean(axis=axes, keepdims=True)
        return (x - m) / np.sqrt(x.var(axis=axes, keepdims=True) + 0.25)

    found = apply("InstanceNormalization", x, scale, b, epsilon=0.25)
    expected = normalised((2, 3)) * channel(scale) + channel(b)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    for axis, axes in ((-1, (3,)), (1, (1, 2, 3)), (2, (2, 3))):
        shape = x.shape[axes[0] :]
        gain, shift = eighths(7, *shape).astype(float), eighths(8, *shape).astype(float)
        found = apply("LayerNormalization", x, gain, shift, axis=axis, epsilon=0.25)
        expected = normalised(axes) * gain + shift
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
        found = apply("LayerNormalization", x, gain, axis=axis, epsilon=0.25)
        np.testing.assert_allclose(found, normalised(axes) * gain, rtol=1e-12, atol=1e-12)


X, C = np.zeros((2, 3, 4), np.float32), np.zeros(3, np.float32)


@pytest.mark.parametrize(
    ("op", "arrays", "attributes", "message"),
    [
        ("ReduceSum", [X], {"axes": (3,)}, r"expected axis in \[-3, 3\), found 3"),
        ("ReduceSum", [X], {"axes": (0, -3)}, r"expected axes that differ, found \[0, -3\]"),
        ("ReduceSum", [X], {"axes": None}, "expected axes to be a tuple of integers, found None"),
        ("ReduceSum", [X], {}, "ReduceSum needs the attribute 'axes'"),
        ("ReduceMax", [X], {"axes": (True,)}, "expected axes to be a tuple of integers"),
        ("ArgMax", [X[:0]], {"axis": 0}, r"expected elements along axis 0, found \[0, 3, 4\]"),
        ("Softmax", [X], {"axis": "0"}, r"expected axis in \[-3, 3\), found '0'"),
        (
            "Softmax",
            [X.astype(np.int32)],
            {},
            "expected input of float16, bfloat16, float32, float64",
        ),
        ("BatchNormalization", [X, C, C, C, C[:2]], {}, r"expected var of \[3\], found \[2\]"),
        ("BatchNormalization", [X] + [C] * 4, {"epsilon": -1.0}, "expected epsilon of at least 0"),
        ("InstanceNormalization", [X[0], C[:1]], {}, r"expected scale of \[4\], found \[1\]"),
        ("InstanceNormalization", [X[:, :, 0], C], {}, r"expected x of \[N, C, spatial...\]"),
        ("LayerNormalization", [X, C], {}, "expected shapes that broadcast"),
        ("LayerNormalization", [X, np.zeros((5, 2, 3, 4), np.float32)], {}, "expected parameters"),
    ],
)
def test_messages(op: str, arrays: list[Any], attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        apply(op, *arrays, **attributes)
