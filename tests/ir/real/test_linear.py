from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from compare import assert_same
from samebits.ir import GraphBuilder
from samebits.ir.interpreter import run


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


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((2, 3), (3, 4)), ((3,), (3, 4)), ((2, 3), (3,)), ((3,), (3,)), ((5, 2, 3), (3, 4)),
        ((5, 2, 3), (5, 3, 4)), ((2, 3), (5, 3, 4)), ((4, 1, 2, 3), (5, 3, 2)), ((5, 2, 3), (3,)),
        ((0, 3), (3, 4)), ((2, 0), (0, 4)),
    ],
)  # fmt: skip
def test_matmul(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    x, y = eighths(0, *a), eighths(1, *b)
    expected = np.matmul(x.astype(np.float64), y.astype(np.float64))  # exact: multiples of 1/64
    for exact in (True, False):
        found = apply("MatMul", x, y, exact=exact)
        assert found.shape == expected.shape
        assert_same(found, expected, range(expected.size))


def test_matmul_with_columns_of_many_scales_is_exact() -> None:
    a = eighths(0, 3, 5)
    b = eighths(1, 5, 4) * np.float32([1e-30, 0.1, 3e7, 1e30])
    found = apply("MatMul", a, b)
    fa, fb = (np.vectorize(lambda v: Fraction(v), otypes=[object])(m) for m in (a, b))
    expected = [sum(fa[i] * fb[:, j]) for i in range(3) for j in range(4)]
    assert_same(found, expected, range(12))


@pytest.mark.parametrize("c", [None, (), (4,), (2, 1), (1, 4), (2, 4)])
@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
def test_gemm(c: tuple[int, ...] | None, trans_a: int, trans_b: int) -> None:
    a, b = eighths(0, 2, 3), eighths(1, 3, 4)
    bias = None if c is None else eighths(2, *c)
    expected = 0.5 * (a.astype(np.float64) @ b) + (0 if bias is None else -2.0 * bias)
    a, b = a.T if trans_a else a, b.T if trans_b else b
    for exact in (True, False):
        found = apply(
            "Gemm", a, b, bias, exact=exact, alpha=0.5, beta=-2.0, transA=trans_a, transB=trans_b
        )
        assert_same(found, expected, range(8))
    third = apply("Gemm", a, b, bias, alpha=0.1, transA=trans_a, transB=trans_b)
    assert third[0, 0] == Fraction(0.1) * 2 * Fraction(
        float(expected[0, 0]) + (0 if bias is None else 2.0 * float(np.ravel(bias)[0]))
    ) + (0 if bias is None else Fraction(float(np.ravel(bias)[0])))


@pytest.mark.parametrize("rows", [0, 1, 3])
@pytest.mark.parametrize("columns", [0, 1, 4])
def test_matmul_integer(rows: int, columns: int) -> None:
    rng = np.random.default_rng(0)
    a = rng.integers(0, 256, (2, 3, 5)).astype(np.uint8)
    b = rng.integers(-128, 128, (5, 4)).astype(np.int8)
    a_zero = rng.integers(0, 256, rows).astype(np.uint8) if rows else None
    b_zero = rng.integers(-128, 128, columns).astype(np.int8) if columns else None
    wide_a = a.astype(np.int64) - (0 if a_zero is None else a_zero.astype(np.int64)[:, None])
    wide_b = b.astype(np.int64) - (0 if b_zero is None else b_zero.astype(np.int64))
    found = apply("MatMulInteger", a, b, a_zero, b_zero, exact=False)
    assert found.dtype == np.int32
    assert_same(found, wide_a @ wide_b, range(found.size))


A = np.zeros((2, 3), np.float32)
CODES = np.zeros((3, 4), np.uint8)


@pytest.mark.parametrize(
    ("op", "arrays", "message"),
    [
        ("MatMul", [A, A], "expected 3 rows in the second operand, found 2"),
        (
            "MatMul",
            [A, A[0, 0]],
            r"expected operands of at least one axis, found \[2, 3\]",
        ),
        ("MatMul", [A, CODES], "expected inputs of one type, found float32, uint8"),
        ("Gemm", [A, A], "expected 3 to be summed over in b, found 2"),
        ("Gemm", [A[0], A], r"expected two matrices, found \[3\] and \[2, 3\]"),
        ("Gemm", [A, A.T, A], r"expected shapes that broadcast, found \[2, 3\] and \[2, 2\]"),
        (
            "Gemm",
            [A, A.T, A[None, :, :2]],
            r"expected c to broadcast to \[2, 2\], found",
        ),
        ("MatMulInteger", [CODES, CODES.T, CODES[0]], r"expected a zero point of one or of \[3\]"),
        (
            "MatMulInteger",
            [CODES, CODES.T, CODES.astype(np.int8)],
            "expected a_zero of uint8",
        ),
        ("MatMulInteger", [A, CODES], "expected input of int8, uint8, found float32"),
    ],
)
def test_messages(op: str, arrays: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        apply(op, *arrays)
