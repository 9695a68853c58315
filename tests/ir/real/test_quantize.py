from __future__ import annotations

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compare import assert_same
from samebits.ir import GraphBuilder
from samebits.ir.interpreter import run
from samebits.ir.real.quantize import quantize_reals
from samebits.spec import formats as arithmetic

RANGES = {
    "int8": (-128, 127),
    "uint8": (0, 255),
    "int16": (-32768, 32767),
    "uint16": (0, 65535),
    "int4": (-8, 7),
    "uint4": (0, 15),
}


def apply(
    op: str, x: Any, scale: Any, zero: Any = None, exact: bool = False, **attributes: Any
) -> Any:
    build = GraphBuilder("g")
    names = [build.input("x", x.dtype.name, x.shape), build.constant("s", np.asarray(scale))]
    if zero is not None:
        names.append(build.constant("z", np.asarray(zero)))
    return run(build.build([build.add(op, names, attributes)]), [x], exact)[0]


def zero_of(dtype: str, number: int) -> Any:
    return np.array(number, getattr(ml_dtypes, dtype) if dtype.endswith("int4") else dtype)


def expected(x: float, scale: float, zero: int, dtype: str) -> int:
    low, high = RANGES[dtype]
    rounded = arithmetic.round_real(Fraction(x) / Fraction(scale)) + zero
    return min(max(rounded, low), high)


@pytest.mark.parametrize("dtype", RANGES)
@pytest.mark.parametrize("scale", [0.5, 0.1, 3.0, 1e-30, 2.0**-126])
def test_ties_edges_and_saturation(dtype: str, scale: float) -> None:
    scale = float(np.float32(scale))
    low, high = RANGES[dtype]
    zero = (low + high) // 3
    # Around every tie near both ends and around 0: the nearest binary32 numbers and neighbours.
    ties = [k + 0.5 for k in (*range(low - zero - 2, low - zero + 3), *range(-3, 3))]
    ties += [k + 0.5 for k in range(high - zero - 2, high - zero + 3)]
    middle = (np.array(ties) * scale).astype(np.float32)
    x = np.concatenate(
        [middle, np.nextafter(middle, np.float32(1e38)), np.nextafter(middle, np.float32(-1e38))]
    )
    codes = [expected(float(v), scale, zero, dtype) for v in x]
    for exact in (False, True):
        found = apply("QuantizeLinear", x, np.float32(scale), zero_of(dtype, zero), exact)
        assert found.dtype == dtype.replace("int4", "int8")
        assert_same(found, codes, x)


@given(
    st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=30),
    st.floats(2.0**-10, 2.0, width=32),
    st.integers(-128, 127),
)
def test_float_mode_gives_the_exact_codes(values: list[float], scale: float, zero: int) -> None:
    x = np.float32(values)
    for exact in (False, True):
        found = apply("QuantizeLinear", x, np.float32(scale), np.int8(zero), exact)
        assert_same(found, [expected(v, scale, zero, "int8") for v in x.tolist()], x)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("ends", [(-7, 7), (0, 15), (-128, 126), (5, 5), (None, 3), (-3, None)])
def test_codes_saturate_to_the_ends_that_are_given(ends: Any, exact: bool) -> None:
    x = (np.arange(-600, 600) / 4).astype(np.float32)
    low, high = ends
    found = apply("QuantizeLinear", x, np.float32(0.5), np.int8(3), exact, low=low, high=high)
    least, most = (-128 if low is None else low, 127 if high is None else high)
    whole = [expected(float(v), 0.5, 3, "int8") for v in x]
    assert_same(found, [min(max(code, least), most) for code in whole], x)


@pytest.mark.parametrize("ends", [(-129, 7), (0, 128), (8, 7), (True, 7), (0.5, 7)])
def test_ends_that_are_no_codes_are_refused(ends: Any) -> None:
    x = np.zeros(3, np.float32)
    with pytest.raises(ValueError, match=r"expected low <= high among the codes of int8, found"):
        apply("QuantizeLinear", x, np.float32(1), np.int8(0), low=ends[0], high=ends[1])


def test_binary32_arrays_divide_in_binary32_as_onnx_does() -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 100, 200000).astype(np.float32)
    scale = np.float32(0.3)
    codes = quantize_reals(x, np.asarray(scale), 0, "uint16")
    assert np.array_equal(codes, np.rint(x / scale).astype(np.uint16))


def test_not_numbers_and_infinities() -> None:
    x = np.float32([np.nan, np.inf, -np.inf])
    assert apply("QuantizeLinear", x, np.float32(1), np.int8(5)).tolist() == [5, 127, -128]


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("exact", [False, True])
def test_per_axis(axis: int, exact: bool) -> None:
    x = np.random.default_rng(0).integers(-99, 100, (2, 3, 4)).astype(np.float32) / 8
    n = x.shape[axis]
    scale, zero = np.float32([0.1, 0.2, 0.3, 0.4])[:n], np.int8([-3, 0, 5, 9])[:n]
    codes = apply("QuantizeLinear", x, scale, zero, exact, axis=axis)
    back = apply("DequantizeLinear", codes, scale, zero, True, axis=axis)
    for place in np.ndindex(*x.shape):
        i = place[axis]
        assert codes[place] == expected(float(x[place]), float(scale[i]), int(zero[i]), "int8")
        assert back[place] == Fraction(float(scale[i])) * (int(codes[place]) - int(zero[i]))


@pytest.mark.parametrize("exact", [False, True])
def test_blocks(exact: bool) -> None:
    x = np.random.default_rng(0).integers(-99, 100, (2, 5)).astype(np.float32) / 8
    scale = np.float32([[0.1, 0.2, 0.3], [1, 2, 3]])
    zero = np.uint8([[1, 2, 3], [4, 5, 6]])
    codes = apply("QuantizeLinear", x, scale, zero, exact, axis=1, block_size=2)
    back = apply("DequantizeLinear", codes, scale, zero, True, axis=1, block_size=2)
    for i, j in np.ndindex(2, 5):
        s, z = float(scale[i, j // 2]), int(zero[i, j // 2])
        assert codes[i, j] == expected(float(x[i, j]), s, z, "uint8")
        assert back[i, j] == Fraction(s) * (int(codes[i, j]) - z)


def test_defaults_and_shapes_of_one_element() -> None:
    x = np.float32([[-1, 2, 300]])
    found = apply("QuantizeLinear", x, np.float32(1))
    assert (found.dtype, found.tolist()) == (np.uint8, [[0, 2, 255]])
    found = apply("QuantizeLinear", x, np.float32([1]), np.int8(0))
    assert (found.dtype, found.tolist()) == (np.int8, [[-1, 2, 127]])
    assert apply("DequantizeLinear", found, np.float32(2)).tolist() == [[-2, 4, 254]]


@pytest.mark.parametrize("dtype", [*RANGES, "int32"])
def test_dequantize_every_edge_exactly(dtype: str) -> None:
    low, high = RANGES.get(dtype, (-(2**31), 2**31 - 1))
    codes = np.array([low, low + 1, 0, high])
    zero = 0 if dtype == "int32" else (low + high) // 3
    build = GraphBuilder("g")
    kind = getattr(ml_dtypes, dtype) if dtype.endswith("int4") else dtype
    x = build.constant("x", codes.astype(kind))
    names = [x, build.constant("s", np.float32(0.1)), build.constant("z", zero_of(dtype, zero))]
    graph = build.build([build.add("DequantizeLinear", names)])
    (found,) = run(graph, [], exact=True)
    assert_same(found, [Fraction(float(np.float32(0.1))) * (int(c) - zero) for c in codes], codes)


@pytest.mark.parametrize(
    ("values", "scale", "zero"),
    [
        ([0, 255], 1.0, 0),
        ([-255, 0], 1.0, 255),
        ([1, 2, 3], 3 / 255, 0),
        ([-1, -2], 2 / 255, 255),
        ([0, 0], 1.0, 0),
        ([-51, 204], 1.0, 51),
    ],
)
def test_dynamic(values: list[float], scale: float, zero: int) -> None:
    x = np.float32(values)
    build = GraphBuilder("g")
    outputs = build.add_all("DynamicQuantizeLinear", [build.input("x", "float32", x.shape)])
    y, y_scale, y_zero = run(build.build(outputs), [x])
    assert (y.dtype, y_scale.dtype, y_zero.dtype) == (np.uint8, np.float32, np.uint8)
    assert y_scale == np.float32(scale)
    assert y_zero == zero
    quotient = np.rint(x / np.float32(scale))
    assert y.tolist() == np.clip(quotient + zero, 0, 255).tolist()


X, S, Z = np.zeros((2, 3), np.float32), np.ones(3, np.float32), np.zeros(3, np.int8)


@pytest.mark.parametrize(
    ("op", "arrays", "attributes", "message"),
    [
        ("QuantizeLinear", [X, S, Z[:2]], {}, r"expected a zero point of the scale's shape \[3\]"),
        ("QuantizeLinear", [X, S[:2], Z[:2]], {}, r"expected a scale of shape \[3\], found \[2\]"),
        ("QuantizeLinear", [X, S], {"axis": 2}, r"expected axis in \[-2, 2\), found 2"),
        ("QuantizeLinear", [X, S], {"block_size": 2}, r"expected a scale of shape \[2, 2\]"),
        ("QuantizeLinear", [X, S], {"block_size": -1}, "expected block_size of at least 0"),
        ("QuantizeLinear", [X, S, S], {}, "expected a zero point of int8, .*, found float32"),
        ("QuantizeLinear", [X, Z], {}, "expected a scale of float16, .*, found int8"),
        ("DequantizeLinear", [X, S], {}, "expected input of int8, .*, found float32"),
        ("DequantizeLinear", [X.astype(np.uint8), S, Z], {}, "expected a zero point of uint8"),
    ],
)
def test_messages(op: str, arrays: list[Any], attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        apply(op, *arrays, **attributes)


@pytest.mark.parametrize("block", [3, 2**26, 2**62])
def test_blocks_beyond_the_axis_take_no_memory(block: int) -> None:
    codes, scale = np.int8([[1, 2, 3], [4, 5, 6]]), np.float32([[0.5], [2]])
    back = apply("DequantizeLinear", codes, scale, axis=1, block_size=block)
    assert np.array_equal(back, codes * scale)
    flat = apply("DequantizeLinear", codes[0], scale[0], axis=0, block_size=block)
    assert np.array_equal(flat, codes[0] * scale[0])
