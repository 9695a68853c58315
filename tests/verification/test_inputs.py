"""Samples: real numbers to codes exactly, untrusted archives, pieces of a batch."""

from __future__ import annotations

import io
import re
import zipfile
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compare import assert_same
from samebits.errors import InputError, NonFiniteError
from samebits.files import read_archive
from samebits.ir import Graph, GraphBuilder, Quantization, Value
from samebits.spec.formats import round_real
from samebits.verification.inputs import (
    check_seed,
    chunks,
    codes_of,
    dequantize,
    drawn,
    joined,
    quantize_samples,
    random_codes,
)

ENDS = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767), "uint16": (0, 65535)}


def read_inputs(text, graph, seed=0):
    if text.startswith("random:"):
        return drawn(text, graph, seed)
    return codes_of(read_archive(Path(text)), graph, text)


def value(dtype: str, scale: float | Fraction, zero: int = 0) -> Value:
    return Value("x", dtype, (1,), Quantization(Fraction(scale), zero))


def exact(x: float, v: Value) -> int:
    """saturate(rne(x / scale) + zero_point) in rationals."""
    code = round_real(Fraction(x) / v.quantization.scale) + v.quantization.zero_point
    low, high = ENDS[v.dtype]
    return min(max(code, low), high)


def check(numbers: np.ndarray, v: Value) -> None:
    found = quantize_samples(numbers, v)
    assert found.dtype == v.dtype
    expected = [exact(float(x), v) for x in numbers]
    assert_same(found, expected, [(float(x), str(v.quantization)) for x in numbers])


def test_numbers_beyond_the_codes_are_noted(caplog):
    caplog.set_level("INFO", "samebits")
    graph = Graph("g", ("x",), (), (), {}, {"x": value("int8", 0.25)})
    inside = np.full(100, 31.0, np.float32)
    codes_of({"x": np.append(inside, 900)}, graph, "s")
    codes_of({"x": np.full(100, 32.0, np.float32)}, graph, "s")  # a code beyond
    assert not caplog.text
    codes_of({"x": np.append(inside, [900, -900, 33])}, graph, "s")
    assert "s: 3% of the numbers for the input 'x' lie beyond -32 to 31.75, all that" in caplog.text


# --- quantize -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ENDS)
@pytest.mark.parametrize("scale", [1.0, 0.25, 0.1, 3.0, 2.0**-20, 1e-30, 1.5e38, 2.0**-149])
def test_quantize_around_every_kind_of_tie(dtype, scale):
    """Halves of the scale, and the binary32 numbers on both sides."""
    scale = np.float32(scale)
    low, high = ENDS[dtype]
    codes = np.unique(np.array([low - 2, low, low + 1, -2, -1, 0, 1, 2, 101, high - 1, high + 1]))
    with np.errstate(over="ignore", under="ignore"):
        ties = ((codes + 0.5) * float(scale)).astype(np.float32)
        near = np.concatenate(
            [ties, np.nextafter(ties, np.float32(-np.inf)), np.nextafter(ties, np.float32(np.inf))]
        )
    near = near[np.isfinite(near)]
    for zero in (0, -7, 200):
        check(near, value(dtype, float(scale), zero))


@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=9),
    st.floats(2.0**-126, 2.0**127, width=32),
    st.sampled_from(sorted(ENDS)),
    st.integers(-128, 65535),
)
def test_quantize_any_binary32(numbers, scale, dtype, zero):
    check(np.array(numbers, np.float32), value(dtype, scale, zero))


@given(
    st.integers(-70000, 70000),
    st.floats(2.0**-40, 2.0**40, width=32),
    st.sampled_from(sorted(ENDS)),
    st.integers(-3, 3),
)
def test_quantize_next_to_ties(code, scale, dtype, steps):
    x = np.float32((code + 0.5) * scale)
    for _ in range(abs(steps)):
        x = np.nextafter(x, np.float32(np.copysign(np.inf, steps)))
    check(np.array([x]), value(dtype, scale))


@given(st.integers(1, 2**24 - 1), st.integers(-140, 100), st.data())
def test_quantize_quotients_closest_to_ties(mantissa, exponent, data):
    """Numbers a with |2a - (2k + 1)s| = 1: as near to a tie as 24-bit integers come."""
    odd = 2 * data.draw(st.integers(0, 32767)) + 1
    a = odd * mantissa // 2 + data.draw(st.integers(-1, 2))
    shift = max(0, a.bit_length() - 24)
    a = a >> shift << shift
    try:
        with np.errstate(over="ignore"):
            x, scale = np.float32(a * 2.0**exponent), np.float32(mantissa * 2.0**exponent)
    except OverflowError:
        return
    if not (np.isfinite(x) and np.isfinite(scale) and scale > 0):
        return
    check(np.array([x, -x]), value("uint16", float(scale)))
    check(np.array([x, -x]), value("int16", float(scale)))


def test_quantize_of_other_float_types():
    v = value("int8", 0.5, 3)
    for dtype in (np.float16, np.float32, np.float64, ">f4"):
        found = quantize_samples(np.array([[0.25, 0.75, -0.25, 1e4]], dtype), v)
        assert found.tolist() == [[3, 5, 3, 127]]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_quantize_refuses_what_is_not_finite(bad):
    array = np.array([[0.0, 1.0], [bad, bad]], np.float32)
    message = f"input 'x': expected finite values, found {bad} at index (1, 0); "
    with pytest.raises(NonFiniteError, match=f"^{re.escape(message)}"):
        quantize_samples(array, value("int8", 1.0))


def test_quantize_of_binary64_beyond_binary32():
    """It is out of range of the model's input type, and saying so is no warning."""
    with pytest.raises(NonFiniteError, match="expected finite values, found"):
        quantize_samples(np.array([1e300]), value("int8", 1.0))


@pytest.mark.parametrize("dtype", ENDS)
def test_dequantize_is_the_value_rounded_once(dtype):
    low, high = ENDS[dtype]
    codes = np.unique(np.linspace(low, high, 300).astype(dtype))
    for scale in (0.1, 0.25, 3.0, 1e-30):
        v = value(dtype, float(np.float32(scale)), 17)
        found = dequantize(codes, v)
        assert found.dtype == np.float32
        for code, real in zip(codes.tolist(), found.tolist(), strict=True):
            assert real == np.float32(float(v.quantization.scale * (code - 17)))  # 41 bits: exact
        assert np.array_equal(quantize_samples(found, v), codes)
    plain = Value("x", dtype, (1,))
    assert dequantize(codes, plain) is codes


def test_dequantize_of_accumulators_is_rounded_once_too():
    """Products of 55 bits just above a tie of binary32, which binary64 would round to the tie."""
    cases = []
    for mantissa in range(2**24 - 4001, 2**24, 2):
        code = (2**30 + 1) * pow(mantissa, -1, 2**31) % 2**31
        if (code * mantissa).bit_length() == 55 and code * mantissa >> 31 & 1 == 0:
            cases.append((code, mantissa))
    assert len(cases) > 100
    for code, mantissa in cases:
        v = Value("x", "int32", (1,), Quantization(Fraction(mantissa, 2**40)))
        (found,) = dequantize(np.array([code], np.int32), v).tolist()
        expected = Fraction(round_real(Fraction(code * mantissa, 2**31)) << 31, 2**40)
        assert Fraction(found) == expected


# --- random codes ---------------------------------------------------------------------------


def two_inputs(batch: int = 1) -> Graph:
    """x: int8[batch, 3] with a scale; y: uint16[batch, 2] without."""
    builder = GraphBuilder("g")
    x = builder.input("x", "int8", (batch, 3), Quantization(Fraction(1, 2), 1))
    y = builder.input("y", "uint16", (batch, 2))
    return builder.build([builder.add("clip", [n], {"low": 0, "high": 99}, "clip") for n in (x, y)])


def one_input(dtype: str = "int8", shape: tuple[int, ...] = (1, 3)) -> Graph:
    builder = GraphBuilder("g")
    x = builder.input("x", dtype, shape, Quantization(Fraction(1, 2), 1))
    return builder.build([builder.add("clip", [x], {"low": 0, "high": 9})])


def test_random_codes_fill_the_range_and_repeat():
    first, second = random_codes(two_inputs(), 2000)
    assert (first.shape, first.dtype, second.shape, second.dtype) == (
        (2000, 3), np.int8, (2000, 2), np.uint16,
    )  # fmt: skip
    assert set(first.ravel().tolist()) == set(range(-128, 128))
    assert second.min() < 100
    assert second.max() > 65400
    again = random_codes(two_inputs(), 2000)
    assert all(np.array_equal(a, b) for a, b in zip((first, second), again, strict=True))
    fewer = random_codes(two_inputs(), 7)
    assert np.array_equal(fewer[0], first[:7])
    other = random_codes(two_inputs(), 2000, seed=1)
    assert not np.array_equal(other[0], first)


def test_random_samples_of_a_batched_graph():
    assert [a.shape for a in random_codes(two_inputs(4), 3)] == [(12, 3), (12, 2)]


def test_random_n():
    assert [len(a) for a in read_inputs("random:5", two_inputs())] == [5, 5]
    a, b = (read_inputs("random:5", one_input(), seed)[0] for seed in (0, 7))
    assert not np.array_equal(a, b)


BAD_COUNTS = [
    *("random:", "random:0", "random:-1", "random:x", "random:1.0", "random: 3", "random:1_0"),
    *("random:\u0661", "random:1000001", "random:" + "9" * 30, "random:" + "9" * 5000),
]


@pytest.mark.parametrize("text", BAD_COUNTS, ids=lambda t: t[:20].encode("ascii", "replace"))
def test_random_n_that_is_none(text):
    with pytest.raises(InputError, match=r"^--data: expected random:N with 1 <= N <= 1000000, "):
        read_inputs(text, one_input())


# --- archives -------------------------------------------------------------------------------


def test_codes_pass_and_reals_are_quantized(tmp_path):
    path = tmp_path / "x.npz"
    codes = np.array([[1, -2, 3], [4, 5, 127]], np.int8)
    other = np.array([[0, 65535], [1, 2]], np.uint16)
    np.savez(path, y=other, x=codes, unused=np.zeros(3))
    first, second = read_inputs(str(path), two_inputs())
    assert np.array_equal(first, codes)
    assert np.array_equal(second, other)
    np.savez_compressed(path, x=np.array([[0.25, 0.75, -99.0]], np.float64), y=other[:1])
    assert read_inputs(str(path), two_inputs())[0].tolist() == [[1, 3, -128]]


def test_codes_of_the_other_byte_order_are_codes_of_this_one():
    """A backend gets native arrays, whoever wrote the archive."""
    graph = one_input("int16")
    (found,) = codes_of({"x": np.array([[1, -2, 300]], ">i2")}, graph, "a.npz")
    assert found.tolist() == [[1, -2, 300]]
    assert found.dtype.isnative


def test_the_name_of_a_single_array_does_not_matter():
    codes = np.array([[1, 2, 3]], np.int8)
    assert codes_of({"arr_0": codes}, one_input(), "a.npz")[0].tolist() == [[1, 2, 3]]


def test_one_sample_may_leave_out_the_batch():
    assert codes_of({"x": np.array([1, 2, 3], np.int8)}, one_input(), "a.npz")[0].shape == (1, 3)


def test_missing_names():
    message = "a.npz: expected an array for each input ('x', 'y'), found 'x', 'z'"
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        codes_of({"x": np.zeros((1, 3)), "z": np.zeros(1)}, two_inputs(), "a.npz")
    with pytest.raises(InputError, match=r"found none$"):
        codes_of({}, one_input(), "a.npz")
    with pytest.raises(InputError, match="for each input"):
        codes_of({"a": np.zeros(1), "b": np.zeros(1)}, one_input(), "a.npz")


@pytest.mark.parametrize("shape", [(), (3,), (0, 3), (2, 4), (2, 3, 1), (1, 1, 3)])
def test_wrong_shapes(shape):
    graph = two_inputs(2)
    arrays = {"x": np.zeros(shape, np.int8), "y": np.zeros((2, 2), np.uint16)}
    message = f"a.npz: input 'x': expected shape [N, 3] with N a multiple of 2, found {list(shape)}"
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        codes_of(arrays, graph, "a.npz")


def test_samples_that_fill_no_batch_or_differ_in_number():
    arrays = {"x": np.zeros((3, 3), np.int8), "y": np.zeros((4, 2), np.uint16)}
    with pytest.raises(InputError, match=r"input 'x': .* multiple of 2, found \[3, 3\]"):
        codes_of(arrays, two_inputs(2), "a.npz")
    arrays["x"] = np.zeros((2, 3), np.int8)
    message = "^a.npz: expected as many samples for every input"
    with pytest.raises(InputError, match=message):
        codes_of(arrays, two_inputs(2), "a.npz")


WRONG = {
    "int16": np.int16,
    "uint8": np.uint8,
    "int64": np.int64,
    "bool": np.bool_,
    "complex64": np.complex64,
    "<U1": "U1",
    "|S1": "S1",
    "datetime64[s]": "M8[s]",
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_types(name):
    array = np.zeros((1, 3), WRONG[name])
    message = f"a.npz: input 'x': expected real numbers or int8 codes, found {array.dtype}"
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        codes_of({"x": array}, one_input(), "a.npz")


def test_reals_for_an_input_without_a_scale():
    arrays = {"x": np.zeros((1, 3), np.int8), "y": np.zeros((1, 2), np.float32)}
    with pytest.raises(InputError, match=r"input 'y': expected .* uint16 codes, found float32"):
        codes_of(arrays, two_inputs(), "a.npz")


def test_a_scalar_input():
    """A graph may take a scalar; its samples lie along axis 0 of the archive's array."""
    (drawn,) = random_codes(one_input("int8", ()), 3)
    pieces = chunks(one_input("int8", ()), [drawn])
    assert all(np.shape(piece[0]) == () for piece in pieces)


def test_members_of_other_names_and_kinds(tmp_path):
    path = tmp_path / "x.npz"
    buffer = io.BytesIO()
    np.save(buffer, np.zeros((1, 3), np.int8))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("../../x.npy", buffer.getvalue())
        archive.writestr("readme.txt", b"no array")
    with pytest.raises(InputError, match=r"not a readable \.npz archive"):
        read_inputs(str(path), one_input())
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x", b"no array")
    with pytest.raises(InputError, match=r"not a readable \.npz archive"):
        read_inputs(str(path), one_input())


# --- pieces ---------------------------------------------------------------------------------


def test_chunks_and_joined():
    graph = two_inputs(2)
    x, y = np.arange(18).reshape(6, 3), np.arange(12).reshape(6, 2)
    pieces = chunks(graph, [x, y])
    assert [[a.tolist() for a in piece] for piece in pieces] == [
        [x[i : i + 2].tolist(), y[i : i + 2].tolist()] for i in (0, 2, 4)
    ]
    back = joined(pieces)
    assert np.array_equal(back[0], x)
    assert np.array_equal(back[1], y)
    assert joined([[np.array(3)], [np.array(4)]])[0].tolist() == [3, 4]


def test_each_value_on_the_way_to_an_index_is_looked_at_once():
    builder = GraphBuilder("many")
    table = builder.constant("table", np.zeros((7, 2), np.int8))
    x = builder.input("x", "int64", (4,))
    for _ in range(60):  # two ways each
        halves = [
            builder.add("slice", [x], {"starts": (at,), "stops": (at + 2,), "steps": (1,)})
            for at in (0, 2)
        ]
        x = builder.add("concat", halves, {"axis": 0})
    (drawn,) = random_codes(builder.build([builder.add("gather", [table, x], {"axis": 0})]), 50)
    assert set(drawn.reshape(-1).tolist()) == set(range(7))


@pytest.mark.parametrize(
    ("samples", "found"), [(None, "none"), ("x.npz", "x.npz"), ([3], "others"), ("", "others")]
)
def test_a_seed_draws_random_samples_only(samples, found):
    check_seed(None, samples)
    check_seed(3, "random:5")
    with pytest.raises(InputError, match=rf"--seed 3: expected samples random:N, .*found {found};"):
        check_seed(3, samples)


@pytest.mark.parametrize("seed", ["a", -1, 1 << 32, 1.0, True])
def test_a_seed_is_a_whole_number(seed):
    check_seed(np.int64(3), "random:5")
    with pytest.raises(InputError, match=r"--seed: expected a whole number from 0 to 4294967295, "):
        check_seed(seed, "random:5")
