"""What the real operators share: checks of `define`, exact arrays, exact sums of products."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from compare import assert_same
from samebits.errors import NonFiniteError
from samebits.ir import GraphBuilder
from samebits.ir.real.define import bilinear, common_unit, rationals

FRACTIONS = st.fractions(max_denominator=60) | st.sampled_from(
    [Fraction(0), Fraction(2) ** 120, Fraction(-1, 3 * 2**70), Fraction(2**53 + 1)]
)


def exact_arrays(shape: tuple[int, ...]) -> Any:
    return hnp.arrays(object, shape, elements=FRACTIONS)


@settings(max_examples=60)
@given(exact_arrays((3, 4)), st.sampled_from([None, 0, 1]))
def test_common_unit(array: Any, axis: int | None) -> None:
    whole, unit = common_unit(array, axis)
    assert all(type(v) is int for v in whole.reshape(-1))
    assert unit.shape == tuple(n if i == axis else 1 for i, n in enumerate(array.shape))
    assert_same(whole * unit, array, range(array.size))
    # As large as can be: the integers along the other axes have no common divisor.
    rows = [whole.reshape(-1)] if axis is None else list(np.moveaxis(whole, axis, 0))
    assert all(np.gcd.reduce(row.reshape(-1)) in (0, 1) for row in rows)


@settings(max_examples=60)
@given(exact_arrays((3, 4)), exact_arrays((4, 2)), st.booleans())
def test_exact_products_are_the_sums_of_products(a: Any, b: Any, by_column: bool) -> None:
    axis, shape = (1, (1, 2)) if by_column else (None, ())
    found = bilinear(np.matmul, a, b, axis, shape)
    expected = [
        sum((a[i, k] * b[k, j] for k in range(4)), Fraction(0)) for i in range(3) for j in range(2)
    ]
    assert_same(found, expected, range(6))


@pytest.mark.parametrize("top", [2**7, 2**24, 2**26, 2**27, 2**31 - 1])
def test_integer_products_are_exact_on_both_sides_of_2_to_the_53(top: int) -> None:
    rng = np.random.default_rng(top)
    a, b = rng.integers(-top, top + 1, (5, 3)), rng.integers(-top, top + 1, (3, 4))
    a[0], b[:, 0] = top, top
    expected = a.astype(object) @ b.astype(object)
    found = bilinear(np.matmul, a, b)
    assert found.dtype == np.int64
    limited = np.abs(expected.astype(np.float64)) < 2.0**62
    assert_same(found[limited], expected[limited], range(int(limited.sum())))


def test_rationals() -> None:
    assert rationals(np.array(0.1)).item() == Fraction(0.1)
    assert rationals(np.array([2, 3], np.int8)).tolist() == [2, 3]
    assert rationals(np.zeros((0, 2))).shape == (0, 2)
    with pytest.raises(
        NonFiniteError,
        match="tensor 't': expected finite values in exact mode, found nan at flat index 2",
    ):
        rationals(np.array([[1.0, 2.0], [np.nan, np.inf]]), "t")


def attempt(op: str, shapes: list[tuple[int, ...] | None], **attributes: Any) -> Any:
    build = GraphBuilder("g")
    names = ["" if shape is None else build.input("x", "float32", shape) for shape in shapes]
    build.add(op, names, attributes)


@pytest.mark.parametrize(
    ("op", "shapes", "attributes", "message"),
    [
        ("Add", [(2,)], {}, "expected 2 inputs of Add, found 1"),
        ("Gemm", [(2, 2)] * 4, {}, "expected 2 to 3 inputs of Gemm, found 4"),
        ("Sum", [], {}, "expected 1 to many inputs of Sum, found 0"),
        ("Add", [(2,), None], {}, "expected every required input of Add, found one left out"),
        ("Sum", [(2,), None], {}, "expected every required input of Sum, found one left out"),
        ("LeakyRelu", [(2,)], {"alpha": np.inf}, "expected a finite alpha of LeakyRelu, found inf"),
        ("Elu", [(2,)], {"alpha": "1"}, "expected alpha of Elu to be a number, found '1'"),
        ("Clip", [(2,)], {"min": np.nan}, "expected a finite min of Clip, found nan"),
        ("Tile", [(2,)], {"repeats": (10**12,)}, "expected at most 268435456 elements"),
        ("Pad", [(2,)], {"pads": (10**12, 0)}, "expected at most 268435456 elements"),
        ("Relu", [(2,)], {"alpha": 1.0}, "Relu: Relu has no attribute 'alpha'"),
    ],
)
def test_messages(op: str, shapes: Any, attributes: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        attempt(op, shapes, **attributes)
