from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compare import assert_same
from samebits.errors import UnsupportedError
from samebits.ir import GraphBuilder
from samebits.ir.interpreter import run
from samebits.ir.real.define import array_type, code_range, float32

# Quarters from -8 to 8, with every tie of rounding and the corners of every operator.
XS = np.arange(-32, 33, dtype=np.float32) / 4


def apply(op: str, *arrays: Any, exact: bool = False, **attributes: Any) -> Any:
    build = GraphBuilder("g")
    names = [build.input(f"x{i}", array.dtype.name, array.shape) for i, array in enumerate(arrays)]
    return run(build.build([build.add(op, names, attributes)]), arrays, exact)[0]


def clip(x: Fraction, low: Fraction | int, high: Fraction | int) -> Fraction:
    return Fraction(min(max(x, low), high))


FIFTH, HUNDREDTH = Fraction(float32(0.2)), Fraction(float32(0.01))
RATIONAL: list[tuple[str, dict[str, Any], Any]] = [
    ("Relu", {}, lambda x: max(x, 0)),
    ("LeakyRelu", {}, lambda x: x if x >= 0 else x * HUNDREDTH),
    ("LeakyRelu", {"alpha": -0.5}, lambda x: x if x >= 0 else x / -2),
    ("ThresholdedRelu", {}, lambda x: x if x > 1 else 0),
    ("HardSigmoid", {}, lambda x: clip(x * FIFTH + Fraction(1, 2), 0, 1)),
    ("HardSwish", {}, lambda x: x * clip(x / 6 + Fraction(1, 2), 0, 1)),
    ("Softsign", {}, lambda x: x / (1 + abs(x))),
    ("Shrink", {"lambd": 1.0, "bias": 0.25}, lambda x: shrink(x)),
    ("Abs", {}, abs),
    ("Neg", {}, lambda x: -x),
    ("Sign", {}, lambda x: (x > 0) - (x < 0)),
    ("Floor", {}, math.floor),
    ("Ceil", {}, math.ceil),
    ("Round", {}, round),
    ("Identity", {}, lambda x: x),
    ("Clip", {"min": -1.5, "max": 2.25}, lambda x: clip(x, Fraction(-3, 2), Fraction(9, 4))),
    ("Clip", {"min": 2.0, "max": 1.0}, lambda x: 1),
    ("Clip", {}, lambda x: x),
]


def shrink(x: Fraction) -> Fraction:
    if abs(x) <= 1:
        return Fraction(0)
    return x + Fraction(1, 4) if x < 0 else x - Fraction(1, 4)


@pytest.mark.parametrize(("op", "attributes", "expected"), RATIONAL)
def test_rational_operators_exactly(op: str, attributes: dict[str, Any], expected: Any) -> None:
    exact = apply(op, XS, exact=True, **attributes)
    assert all(type(value) is Fraction for value in exact)
    assert_same(exact, [expected(Fraction(float(x))) for x in XS], XS)
    assert_same(apply(op, XS, **attributes), exact.astype(np.float32), XS)


def test_reciprocal_and_division_by_zero() -> None:
    assert apply("Reciprocal", np.float32([4, -3]), exact=True).tolist() == [
        Fraction(1, 4),
        Fraction(-1, 3),
    ]
    found = apply("Div", np.float32([1, -1, 0]), np.float32([0, 0, 0]))
    assert np.array_equal(found, [np.inf, -np.inf, np.nan], equal_nan=True)


SELU = 1.6732631921768188
TRANSCENDENTAL: list[tuple[str, dict[str, Any], Any]] = [
    ("Elu", {"alpha": 0.5}, lambda x: x if x > 0 else 0.5 * math.expm1(x)),
    ("Selu", {}, lambda x: 1.0507010221481323 * (x if x > 0 else SELU * math.expm1(x))),
    ("Celu", {"alpha": 2.0}, lambda x: max(x, 0.0) + min(2.0 * math.expm1(x / 2.0), 0.0)),
    ("Sigmoid", {}, lambda x: 1 / (1 + math.exp(-x))),
    ("Swish", {"alpha": 0.5}, lambda x: x / (1 + math.exp(-x / 2))),
    ("Softplus", {}, lambda x: math.log1p(math.exp(x))),
    ("Mish", {}, lambda x: x * math.tanh(math.log1p(math.exp(x)))),
    ("Erf", {}, math.erf),
    ("Gelu", {}, lambda x: x / 2 * (1 + math.erf(x / math.sqrt(2)))),
    ("Tanh", {}, math.tanh),
    ("Exp", {}, math.exp),
    ("Sin", {}, math.sin),
    ("Asinh", {}, math.asinh),
]  # fmt: skip


@pytest.mark.parametrize(("op", "attributes", "expected"), TRANSCENDENTAL)
def test_transcendental_operators(op: str, attributes: dict[str, Any], expected: Any) -> None:
    found = apply(op, XS.astype(np.float64), **attributes)
    np.testing.assert_allclose(found, [expected(float(x)) for x in XS], rtol=1e-13, atol=1e-15)
    with pytest.raises(UnsupportedError, match="expected rational operators in exact mode"):
        apply(op, XS, exact=True, **attributes)


def test_large_arguments_do_not_overflow() -> None:
    x = np.array([-1e30, 1e30], np.float32)
    big = float(x[1])
    for op, expected in {
        "Sigmoid": [0, 1],
        "Softplus": [0, big],
        "Mish": [0, big],
        "Elu": [-1, big],
        "Swish": [0, big],
    }.items():
        assert apply(op, x).tolist() == expected, op


@given(
    st.sampled_from(["Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean", "PRelu", "Mod"]),
    st.lists(st.integers(-64, 64), min_size=2, max_size=2),
    st.lists(st.integers(1, 64), min_size=3, max_size=3),
)
def test_two_operands_exactly(op: str, rows: list[int], columns: list[int]) -> None:
    a, b = np.float32(rows)[:, None] / 8, np.float32(columns) / 8
    x = np.broadcast_to(a, (2, 3)).copy() if op == "PRelu" else a
    attributes = {"fmod": 1} if op == "Mod" else {}
    found = apply(op, x, b, exact=True, **attributes)
    functions: dict[str, Any] = {
        "Add": lambda p, q: p + q,
        "Sub": lambda p, q: p - q,
        "Mul": lambda p, q: p * q,
        "Div": lambda p, q: p / q,
        "Max": max,
        "Min": min,
        "Sum": lambda p, q: p + q,
        "Mean": lambda p, q: (p + q) / 2,
        "PRelu": lambda p, q: p if p >= 0 else p * q,
        "Mod": lambda p, q: p - q * math.trunc(p / q),
    }
    pairs = [(Fraction(r, 8), Fraction(c, 8)) for r in rows for c in columns]
    assert_same(found, [functions[op](*pair) for pair in pairs], pairs)
    np.testing.assert_allclose(
        apply(op, x, b, **attributes), found.astype(np.float64), rtol=1e-7, atol=0
    )


def test_integer_division_and_remainders() -> None:
    numbers = np.arange(-9, 10, dtype=np.int32)
    a, b = numbers[:, None], numbers[numbers != 0]
    pairs = [(int(p), int(q)) for p in numbers for q in b]
    assert_same(apply("Div", a, b), [math.trunc(Fraction(p, q)) for p, q in pairs], pairs)
    assert_same(apply("Mod", a, b), [p % q for p, q in pairs], pairs)
    assert_same(apply("Mod", a, b, fmod=1), [int(math.fmod(p, q)) for p, q in pairs], pairs)


def test_powers() -> None:
    x, whole = np.float32([0.5, -1.5, 3]), np.int64([3, 2, -2])
    assert apply("Pow", x, whole, exact=True).tolist() == [
        Fraction(1, 8),
        Fraction(9, 4),
        Fraction(1, 9),
    ]
    assert apply("Pow", np.int32([2, -3]), np.int32([5, 3])).tolist() == [32, -27]
    assert apply("Pow", np.int32([9, 2]), np.float32([0.5, -1])).tolist() == [3, 0]
    for exponent in (0.5, 2000):
        with pytest.raises(UnsupportedError, match="expected whole exponents up to 1024 of Pow"):
            apply("Pow", x, np.float32([exponent]), exact=True)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64", "uint64", "bool"])
def test_casts_truncate_and_saturate(dtype: str) -> None:
    x = np.array([-1e30, -200.5, -1.5, -0.5, 0, 0.5, 1.5, 254.9, 2.0**63, 1e30], np.float64)
    low, high = (0, 1) if dtype == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    expected = [
        int(v != 0) if dtype == "bool" else min(max(math.trunc(v), int(low)), int(high)) for v in x
    ]
    for exact in (False, True):
        found = apply("Cast", x, exact=exact, to=dtype)
        assert found.dtype == dtype
        assert_same(found, expected, x)
    if dtype != "bool":
        assert apply("Cast", np.array([np.nan, np.inf, -np.inf]), to=dtype).tolist() == [
            0,
            high,
            low,
        ]


def test_casts_between_real_types_do_not_round_in_between() -> None:
    build = GraphBuilder("g")
    x = build.input("x", "float64", (1,))
    narrow = build.add("Cast", [x], {"to": "float16"})
    graph = build.build([build.add("Cast", [narrow], {"to": "float64"}), narrow])
    wide, half = run(graph, [np.array([0.1])])
    assert wide.tolist() == [0.1]
    assert half.tolist() == [float(np.float16(0.1))]
    assert apply("Cast", np.int8([-3, 4]), exact=True, to="float32").tolist() == [-3, 4]


@pytest.mark.parametrize("dtype", ["int4", "uint4", "int2", "uint2"])
def test_casts_to_narrow_integers_keep_the_lowest_bits(dtype: str) -> None:
    low, high = code_range(dtype)
    x = np.array([*range(-20, 21), -1.75, 9.5])
    expected = [(math.trunc(v) - low) % (high - low + 1) + low for v in x]
    for exact in (False, True):
        found = apply("Cast", x, exact=exact, to=dtype)
        assert found.dtype == array_type(dtype)
        assert_same(found, expected, x)
    assert_same(apply("Cast", x.astype(np.int16), to=dtype)[:41], expected[:41], x[:41])


@pytest.mark.parametrize(("low", "high"), [(None, 5.5), (-2.5, None), (-1e9, 1e9), (300.0, None)])
def test_clip_of_integers(low: float | None, high: float | None) -> None:
    x = np.arange(-128, 128).astype(np.int8)
    least = -128 if low is None else min(max(low, -128), 127)
    most = 127 if high is None else high
    found = apply("Clip", x, min=low, max=high)
    assert_same(found, [math.floor(min(max(math.ceil(least), int(v)), most)) for v in x], x)


def test_clip_with_infinite_bounds() -> None:
    assert apply("Clip", XS, exact=True, min=-math.inf, max=math.inf)[0] == -8
    with pytest.raises(UnsupportedError, match="expected finite bounds of Clip in exact mode"):
        apply("Clip", XS, exact=True, min=math.inf)


def test_comparisons_logic_and_where() -> None:
    a, b = XS[:, None], XS[::8]
    for op, function in {
        "Equal": np.equal,
        "Greater": np.greater,
        "GreaterOrEqual": np.greater_equal,
        "Less": np.less,
        "LessOrEqual": np.less_equal,
    }.items():
        for exact in (False, True):
            found = apply(op, a, b, exact=exact)
            assert found.dtype == bool
            assert np.array_equal(found, function(a, b)), op
    p, q = np.array([False, False, True, True]), np.array([False, True, False, True])
    assert apply("And", p, q).tolist() == [False, False, False, True]
    assert apply("Or", p, q).tolist() == [False, True, True, True]
    assert apply("Xor", p, q).tolist() == [False, True, True, False]
    assert apply("Not", p).tolist() == [True, True, False, False]
    x = np.float32([1, 2, 3, 4])
    assert apply("Where", p, x, -x, exact=True).tolist() == [-1, -2, 3, 4]
    assert apply("Where", p, np.int8([1]), np.int8([2])).dtype == np.int8


@pytest.mark.parametrize(
    ("op", "arrays", "attributes", "message"),
    [
        ("Add", [XS, XS.astype(np.int8)], {}, "expected inputs of one type, found float32, int8"),
        ("Add", [XS, XS[:3]], {}, r"expected shapes that broadcast, found \[65\] and \[3\]"),
        ("Tanh", [np.int8([1])], {}, "expected input of float16, .*float64, found int8"),
        (
            "PRelu",
            [XS, XS[:, None]],
            {},
            r"expected a slope that broadcasts to \[65\]",
        ),
        ("Clip", [XS], {"min": "0"}, "expected min of Clip to be a number or None, found '0'"),
        ("Cast", [XS], {"to": "object"}, "expected to of float16, .*, found 'object'"),
        ("Gelu", [XS], {"approximate": "sin"}, "expected approximate of none, tanh, found 'sin'"),
        ("Celu", [XS], {"alpha": 0.0}, "expected alpha of Celu other than 0, found 0"),
        ("Where", [XS, XS, XS], {}, "expected a condition of bool, found float32"),
    ],
)
def test_messages(op: str, arrays: list[Any], attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        apply(op, *arrays, **attributes)
