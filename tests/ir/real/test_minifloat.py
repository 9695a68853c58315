"""Narrow floating-point types: every number, every middle and its neighbours, the ends."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from compare import assert_same
from samebits.errors import InputError, UnsupportedError
from samebits.ir import GraphBuilder
from samebits.ir.interpreter import run
from samebits.ir.real.minifloat import POWERS, STORAGE, TYPES, rounded, stored, widened

BYTES = [name for name in STORAGE if name not in (POWERS, "float4_e2m1fn")]


def numbers(dtype: str) -> np.ndarray:
    """All finite magnitudes of a type, ascending, from its bit patterns."""
    bits = np.arange(2**16 if dtype == "bfloat16" else 16 if "4_" in dtype else 256)
    codes = bits.astype(np.uint16 if dtype == "bfloat16" else np.uint8).view(dtype)
    wide = np.abs(widened(codes))
    return np.unique(wide[np.isfinite(wide)])


@pytest.mark.parametrize("dtype", [name for name in TYPES if name != POWERS])
def test_every_number_stays_and_every_middle_goes_to_the_even_one(dtype: str) -> None:
    held = numbers(dtype)
    assert held[-1] == TYPES[dtype].greatest
    for sign in (1, -1):
        assert_same(rounded(sign * held, dtype), sign * held, held)
    low, high = held[:-1], held[1:]
    middle = (low + high) / 2  # exact in binary64
    assert np.array_equal(rounded(np.nextafter(middle, 0), dtype), low)
    assert np.array_equal(rounded(np.nextafter(middle, np.inf), dtype), high)
    # A number is even if the last bit of its significand in the step of its neighbours is 0.
    even = np.fmod(low / (high - low), 2) == 0
    assert_same(rounded(middle, dtype), np.where(even, low, high), middle)


@pytest.mark.parametrize("dtype", BYTES)
def test_beyond_the_ends(dtype: str) -> None:
    kind = TYPES[dtype]
    x = np.array([1e30, -1e30, np.inf, -np.inf, kind.greatest * (1 + 2.0**-10)])
    greatest = kind.greatest * np.array([1, -1, 1, -1, 1])
    assert np.array_equal(rounded(x, dtype), greatest)
    lost = np.copysign(np.inf, x) if kind.infinite else np.full(5, np.nan)
    lost[-1] = kind.greatest
    assert np.array_equal(rounded(x, dtype, saturate=False), lost, equal_nan=True)
    assert np.isnan(rounded(np.array([np.nan]), dtype)).all()


def test_the_types_without_nan_and_without_zero() -> None:
    x = np.array([np.nan, np.inf, -7.0, 0.25, 0.75, -0.2])
    assert rounded(x, "float4_e2m1fn", saturate=False).tolist() == [0, 6, -6, 0, 1, 0]
    x = np.array([0.0, -3.0, 0.25, 1.5, 1.4, 2.0**-140, 1e39])
    for mode, expected in {
        "up": [2.0**-127, 4, 0.25, 2, 2, 2.0**-127, 2.0**127],
        "down": [2.0**-127, 2, 0.25, 1, 1, 2.0**-127, 2.0**127],
        "nearest": [2.0**-127, 4, 0.25, 2, 1, 2.0**-127, 2.0**127],
    }.items():
        assert np.abs(rounded(x, POWERS, mode=mode)).tolist() == expected
    assert np.isnan(rounded(np.array([1e39, np.inf]), POWERS, saturate=False)).all()


def test_one_rounding_to_bfloat16() -> None:
    # Through binary32 the first would be a tie, and go down.
    x = np.array([1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-8, 1e39, -1e39])
    assert stored(x, "bfloat16").astype(np.float64).tolist() == [1 + 2.0**-7, 1, np.inf, -np.inf]
    assert stored(x, "bfloat16").dtype == ml_dtypes.bfloat16
    assert stored(np.array([1e5]), "float16").tolist() == [np.inf]


def test_they_go_through_a_graph() -> None:
    build = GraphBuilder("g")
    x = build.input("x", "float8_e4m3fn", (3,))
    moved = build.add("Reshape", [x], {"shape": (3, 1)})
    wide = build.add("Cast", [moved], {"to": "float32"})
    narrow = build.add("Cast", [wide], {"to": "float8_e5m2"})
    graph = build.build([wide, narrow])
    codes = np.array([0.3125, -448.0, 1.75]).astype("float8_e4m3fn")
    first, second = run(graph, [codes])
    assert first.ravel().tolist() == [0.3125, -448.0, 1.75]
    assert second.dtype == ml_dtypes.float8_e5m2
    assert second.astype(np.float64).ravel().tolist() == [0.3125, -448.0, 1.75]
    assert run(graph, [np.array([0.5, 1, 2])])[0].ravel().tolist() == [0.5, 1, 2]
    with pytest.raises(InputError, match="expected numbers that float8_e4m3fn holds, found"):
        run(graph, [np.array([0.3, 1, 2])])
    with pytest.raises(UnsupportedError, match="found a cast to float8_e5m2"):
        run(graph, [codes], exact=True)
    with pytest.raises(ValueError, match=r"expected input of float16, .*, found float8_e4m3fn"):
        build.add("Relu", [x])


def test_types_that_numpy_stores_alike_are_different_constants() -> None:
    build = GraphBuilder("g")
    names = {build.constant("c", np.ones(2).astype(kind)) for kind in ("float8_e4m3fn", POWERS)}
    assert len(names) == 2
