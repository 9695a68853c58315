"""Every integer operator against the plain loops of spec/graph.py."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compare import assert_same
from random_trees import random_trees
from samebits.errors import InputError, RangeError
from samebits.ir import GraphBuilder, Value
from samebits.ir.interpreter import run
from samebits.ir.ops import known_ops, op_named
from samebits.spec.graph import GREATEST, LEAST, REFERENCE

CODES = ("int8", "uint8", "int16", "uint16")
PAIRS = list(itertools.product(CODES, CODES))
# The type that the specification gives an operator's result: of x, of t, or as named.
ACCUMULATING = {
    *("conv", "conv_transpose", "linear", "matmul", "affine", "add", "multiply"),
    *("sum_pool", "reduce_sum", "tree_ensemble", "resample"),
}
TYPED = {"divide", "root", "requantize", "softmax", "log_softmax", "normalize"}
INDICES = {"argmax", "top_k_index"}


def result_type(op, arrays, attributes):
    if op in ACCUMULATING:
        return attributes.get("dtype", "int32")
    if op in TYPED:
        return attributes["dtype"]
    if op in INDICES:
        return "int64"
    return arrays[1 if op == "table" else 0].dtype.name


def check(op, arrays, **attributes):
    """The operator's meaning, type rule and the graph it makes, against the reference."""
    builder = GraphBuilder("one")
    names = [builder.input(f"x{i}", a.dtype.name, a.shape) for i, a in enumerate(arrays)]
    output = builder.add(op, names, attributes, op)
    graph = builder.build([output])
    (found,) = run(graph, arrays)
    expected = REFERENCE[op](arrays, graph.nodes[0].attributes)
    assert found.dtype.name == graph.values[output].dtype == result_type(op, arrays, attributes)
    assert found.shape == graph.values[output].shape == expected.shape
    assert_same(found, expected, list(np.ndindex(expected.shape)))
    return found


def codes(dtype, shape, seed=0):
    """Random codes of a type, its ends more often than others."""
    rng = np.random.default_rng([seed, *shape])
    low, high = LEAST[dtype], GREATEST[dtype]
    array = rng.integers(low, high, shape, np.int64, endpoint=True)
    ends = rng.integers(0, 8, shape)
    return np.where(ends == 0, low, np.where(ends == 1, high, array)).astype(dtype)


def small(shape, seed=0, size=100, dtype="int32"):
    return np.random.default_rng([seed, 9]).integers(-size, size, shape).astype(dtype)


def infer(op, values, **attributes):
    """The type rule alone, on (dtype, shape) pairs."""
    record = op_named(op)
    typed = [v and Value(f"x{i}", v[0], v[1]) for i, v in enumerate(values)]
    return record.infer(typed, record.complete(attributes, op))


def test_the_reference_has_every_operator():
    assert set(REFERENCE) == {op.name for op in known_ops() if op.integer}


# --- products -------------------------------------------------------------------------------


@pytest.mark.parametrize("pads", [(0, 0, 0, 0), (1, 0, 2, 1), (0, 2, 0, 1)])
@pytest.mark.parametrize("strides", [(1, 1), (2, 1), (1, 3)])
@pytest.mark.parametrize("dilations", [(1, 1), (1, 2), (2, 1)])
@pytest.mark.parametrize(("kernel", "groups"), [((3, 2), 1), ((1, 1), 2), ((2, 3), 4)])
def test_conv(pads, strides, dilations, kernel, groups):
    x = codes("int8", (2, 5, 6, 4))
    w = codes("int8", (8, *kernel, 4 // groups))
    check(
        "conv",
        [x, w, small(8)],
        pads=pads,
        strides=strides,
        dilations=dilations,
        groups=groups,
        pad_code=-5,
    )


@pytest.mark.parametrize(("x_type", "w_type"), PAIRS)
def test_conv_types(x_type, w_type):
    x, w = codes(x_type, (1, 3, 3, 2)), codes(w_type, (2, 2, 2, 2))
    for pad_code in (LEAST[x_type], GREATEST[x_type]):
        check(
            "conv",
            [x, w, codes("int32", (2,))],
            pads=(1, 1, 0, 1),
            pad_code=pad_code,
            dtype="int64",
        )


def test_conv_defaults_are_no_pads_one_group_int32():
    x, w = codes("uint8", (1, 3, 4, 2)), codes("int8", (3, 2, 2, 2))
    assert check("conv", [x, w, small(3)]).dtype == np.int32
    (kind,) = infer("conv", [("uint8", (1, 3, 4, 2)), ("int8", (3, 2, 2, 2)), ("int32", (3,))])
    assert kind == ("int32", (1, 2, 3, 3))


def test_conv_bias_may_be_64_bits():
    x, w = codes("uint8", (1, 2, 2, 1)), codes("int8", (1, 1, 1, 1))
    check("conv", [x, w, np.array([2**40 + 1])], dtype="int64")


@pytest.mark.parametrize("pads", [(0, 0, 0, 0), (1, 0, 1, 2)])
@pytest.mark.parametrize("strides", [(1, 1), (2, 3)])
@pytest.mark.parametrize("dilations", [(1, 1), (2, 1)])
@pytest.mark.parametrize(("kernel", "groups"), [((3, 2), 1), ((1, 3), 2)])
@pytest.mark.parametrize("size", [(5, 4), (9, 13)])
def test_conv_transpose(pads, strides, dilations, kernel, groups, size):
    """The size is the attribute's: rows that no tap reaches hold the bias."""
    x = codes("uint8", (2, 3, 3, 4))
    w = codes("int8", (6, *kernel, 4 // groups))
    check(
        "conv_transpose",
        [x, w, small(6)],
        pads=pads,
        strides=strides,
        dilations=dilations,
        groups=groups,
        zero=131,
        size=size,
    )


@pytest.mark.parametrize(("x_type", "w_type"), PAIRS)
def test_conv_transpose_types(x_type, w_type):
    x, w = codes(x_type, (1, 2, 2, 2)), codes(w_type, (2, 2, 2, 2))
    check(
        "conv_transpose",
        [x, w, codes("int32", (2,))],
        zero=-7,
        size=(4, 4),
        strides=(2, 2),
        dtype="int64",
    )


@pytest.mark.parametrize(("x_type", "w_type"), PAIRS)
def test_linear(x_type, w_type):
    for shape in ((5,), (3, 5), (2, 1, 5)):
        w = codes(w_type, (4, 5))
        check("linear", [codes(x_type, shape), w, codes("int32", (4,))], dtype="int64")
    narrow = [small((1, 3), dtype="int8"), small((2, 3), dtype="int8"), small(2)]
    assert check("linear", narrow).dtype == np.int32


@pytest.mark.parametrize(("a_type", "b_type"), PAIRS)
def test_matmul(a_type, b_type):
    for left, right in (((2, 3), (3, 4)), ((2, 1, 2, 3), (5, 3, 1)), ((3, 3), (2, 3, 3))):
        for zeros in ((0, 0), (3, -100)):
            check(
                "matmul",
                [codes(a_type, left), codes(b_type, right)],
                a_zero=zeros[0],
                b_zero=zeros[1],
                dtype="int64",
            )


@pytest.mark.parametrize("dtype", CODES)
def test_affine(dtype):
    m = np.array([3, -70000, 0, 65535], np.int32)
    for shape in ((4,), (2, 3, 4)):
        check("affine", [codes(dtype, shape), m, codes("int32", (4,))], dtype="int64")
    check("affine", [codes("int8", (5, 2)), small(2), small(2)])


def test_add():
    a, b, c = codes("int8", (2, 3, 4)), codes("uint16", (3, 1)), codes("int32", (4,))
    check("add", [a, b, c], factors=(5, -(2**29), 1), offset=-77, dtype="int64")
    check("add", [a], factors=(-3,), offset=2)
    check("add", [a, a], factors=(1, -1))
    check("add", [codes("int64", (3,)) >> 2, codes("int8", ())], factors=(1, 0), dtype="int64")


@pytest.mark.parametrize(("a_type", "b_type"), PAIRS)
def test_multiply(a_type, b_type):
    a, b = codes(a_type, (2, 3, 4)), codes(b_type, (3, 1))
    for zeros in ((0, 0), (-128, 9)):
        check("multiply", [a, b], a_zero=zeros[0], b_zero=zeros[1], dtype="int64")


@pytest.mark.parametrize("ratio", [Fraction(1), Fraction(255), Fraction(3, 7), Fraction(2**40, 3)])
def test_divide(ratio):
    ends = {"zero": 3, "low": -100, "high": 120, "dtype": "int8"}
    for x_type, y_type in (("int8", "uint8"), ("uint16", "int16"), ("int32", "int32")):
        x, y = codes(x_type, (3, 40)), np.clip(codes(y_type, (3, 1)), -2, 300)
        check("divide", [x, y], ratio=ratio, **ends)
    halves = np.arange(-9, 10, dtype=np.int32)
    found = check("divide", [halves, np.array([2], np.int8)], ratio=Fraction(1), **ends)
    assert found.tolist() == [3 + round(v / 2) for v in range(-9, 10)]  # ties to even


def test_multiply_of_sums():
    a, b = codes("int32", (2, 3, 4)), codes("int16", (1, 1, 1))
    check("multiply", [a, b], b_zero=5, dtype="int64")


# --- codes to codes -------------------------------------------------------------------------

RATIOS = (
    *(Fraction(1, 2), Fraction(1), Fraction(3, 2), Fraction(5, 6), Fraction(1, 2**30)),
    *(Fraction(12345677, 2**31), Fraction(10**15, 7**17), Fraction(2**60 + 1, 3**40)),
    *(Fraction(2**70), Fraction(2**24 - 1, 2**90)),
)


@pytest.mark.parametrize("ratio", RATIOS, ids=str)
@pytest.mark.parametrize("dtype", CODES)
def test_requantize_every_8_bit_accumulator(ratio, dtype):
    attributes = {"low": LEAST[dtype], "high": GREATEST[dtype], "dtype": dtype}
    for source in ("int8", "uint8"):
        acc = np.arange(LEAST[source], GREATEST[source] + 1).astype(source)
        for zero in (0, 3, GREATEST[dtype]):
            check("requantize", [acc], ratios=(ratio,), zero=zero, **attributes)


@pytest.mark.parametrize("ratio", RATIOS, ids=str)
@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_requantize_the_least_code_alone(ratio, dtype):
    """Its magnitude is the one that the type itself does not hold."""
    attributes = {"low": -32768, "high": 32767, "dtype": "int16"}
    for acc in (LEAST[dtype], LEAST[dtype] + 1, GREATEST[dtype]):
        check("requantize", [np.array([acc], dtype)], ratios=(ratio,), **attributes)


def test_requantize_ties_go_to_even():
    acc = np.arange(-40, 41, dtype=np.int32)
    attributes = {"low": -128, "high": 127, "dtype": "int8"}
    for denominator in (2, 4, 6, 10):
        for numerator in (1, 3, 5):
            check("requantize", [acc], ratios=(Fraction(numerator, denominator),), **attributes)
    halves = check(
        "requantize",
        [np.array([-5, -3, -1, 1, 3, 5], np.int32)],
        **{"ratios": (Fraction(1, 2),), **attributes},
    )
    assert halves.tolist() == [-2, -2, 0, 0, 2, 2]
    # The zero point is added after rounding: -0.5 goes to 0, not to 1 - 0.5 -> 0.
    odd = check("requantize", [np.array([-1, 1])], ratios=(Fraction(1, 2),), zero=1, **attributes)
    assert odd.tolist() == [1, 1]


def test_requantize_per_channel_and_low_high():
    acc = codes("int32", (3, 2, 4))
    ratios = (Fraction(1, 2**24), Fraction(1, 3 * 2**20), Fraction(7, 2**26), Fraction(2**40))
    for dtype, low, high in (("int8", 0, 127), ("uint8", 5, 5), ("int16", -32768, -1)):
        check("requantize", [acc], ratios=ratios, zero=9, low=low, high=high, dtype=dtype)
        check("requantize", [acc], ratios=ratios[:1], zero=9, low=low, high=high, dtype=dtype)


def test_requantize_a_scalar():
    attributes = {"low": -128, "high": 127, "dtype": "int8", "ratios": (Fraction(1, 2),)}
    assert check("requantize", [np.array(5, np.int32)], **attributes) == 2


@given(
    st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=8),
    st.fractions(min_value=Fraction(1, 2**70), max_value=2**40),
    st.integers(-200, 200),
)
def test_requantize_of_64_bits(acc, ratio, zero):
    attributes = {"low": -32768, "high": 32767, "dtype": "int16"}
    check("requantize", [np.array(acc)], ratios=(ratio,), zero=zero, **attributes)


@given(st.integers(-(2**15), 2**15), st.integers(1, 2**24), st.integers(1, 2**24))
def test_requantize_at_ties(step, numerator, denominator):
    """Accumulators around (step + 1/2) / ratio, where rounding decides."""
    ratio = Fraction(numerator, denominator)
    near = int((step + Fraction(1, 2)) / ratio)
    attributes = {"low": -32768, "high": 32767, "dtype": "int16"}
    check("requantize", [near + np.arange(-2, 3)], ratios=(ratio,), **attributes)


@pytest.mark.parametrize("source", CODES)
@pytest.mark.parametrize("target", CODES)
def test_table_every_code(source, target):
    entries = GREATEST[source] - LEAST[source] + 1
    t = codes(target, (entries,))
    step = 1 if entries == 256 else 251
    x = np.arange(LEAST[source], GREATEST[source] + 1, step).astype(source)
    check("table", [x, t])
    rows = codes(target, (3, entries))
    check("table", [codes(source, (2, 2, 3)), rows])
    check("table", [codes(source, ()), t])


@pytest.mark.parametrize("dtype", [*CODES, "int32", "int64"])
def test_clip(dtype):
    x = codes(dtype, (40,))
    for low, high in ((-3, 5), (0, 0), (LEAST[dtype], GREATEST[dtype])):
        check("clip", [x], low=max(low, LEAST[dtype]), high=high)


def test_clip_bounds_may_lie_outside_the_type():
    x = np.arange(256).astype(np.uint8)
    check("clip", [x], low=-5, high=2**40)
    check("clip", [x], low=100, high=2**62)


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("ratio", [Fraction(256), Fraction(2**30, 11184811), Fraction(2**45, 3)])
def test_softmax(dtype, ratio):
    entries = GREATEST[dtype] - LEAST[dtype] + 1
    t = np.rint(2.0**24 * np.exp(-np.arange(entries) / 16)).astype(np.int32)
    for kind, zero in (("int8", -128), ("uint16", 0)):
        attributes = {"zero": zero, "low": LEAST[kind], "high": GREATEST[kind], "dtype": kind}
        for shape in ((7,), (3, 2, 4), (5, 1)):
            check("softmax", [codes(dtype, shape), t], ratio=ratio, **attributes)


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("centered", [True, False])
def test_normalize(dtype, centered):
    """Rows, samples, groups and channels; vectors of one element, of equal ones, of the ends."""
    shapes = (((5,), 0, 1), ((3, 1), 1, 1), ((2, 3, 6), 2, 1), ((2, 3, 6), 1, 2), ((2, 2, 3), 1, 3))
    for kind, zero in (("int8", 3), ("uint16", 30000)):
        ends = {"zero": zero, "low": LEAST[kind], "high": GREATEST[kind], "dtype": kind}
        for (shape, batch, groups), epsilon in itertools.product(shapes, (0, 1, 12345, 2**60)):
            how = {"batch": batch, "groups": groups, "centered": centered, "epsilon": epsilon}
            m, b = small(shape[-1:], 3, 2**24), small(shape[-1:], 4, 2**40, "int64")
            for x in (codes(dtype, shape), np.full(shape, 7, dtype), codes(dtype, shape, 1) // 64):
                for shift, x_zero in ((30, 0), (39, 7), (60, LEAST[dtype])):
                    check("normalize", [x, m, b], **how, **ends, shift=shift, x_zero=x_zero)


def test_normalize_at_its_bounds():
    """The longest vectors that the type rule takes, of the ends of their type: sums of 2**62."""
    for dtype, n in (("int8", 1 << 12), ("uint16", 1 << 14)):
        low, high = LEAST[dtype], GREATEST[dtype]
        x = np.where(np.arange(n) % 2, low, high).astype(dtype)
        one = np.full(n, low, dtype)
        one[-1] = high
        for values, epsilon in itertools.product((x, one), (0, 2**61 - 1)):
            m, b = np.full(n, 1 << 24, np.int32), np.full(n, 2**61 - 1, np.int64)
            how = {"batch": 0, "epsilon": epsilon, "low": -32768, "high": 32767, "dtype": "int16"}
            check("normalize", [values, m, b], **how, shift=60)
            check("normalize", [values, m, 0 * b], **how, shift=34, centered=False)


def test_normalize_of_real_numbers():
    """Against binary64: within one in 2**20 of a layer norm."""
    x = codes("int16", (6, 300)) // 16
    m, b = np.full(300, 1 << 20, np.int32), np.zeros(300, np.int64)
    ends = {"low": -32768, "high": 32767, "dtype": "int16"}
    found = check("normalize", [x, m, b], batch=1, shift=32, **ends)
    centred = x - x.mean(-1, keepdims=True)
    normal = centred / np.sqrt((centred**2).mean(-1, keepdims=True))
    assert np.abs(found - normal * 2**12).max() <= 0.5 + 2**-8


@pytest.mark.parametrize("dtype", CODES)
def test_masked_softmax(dtype):
    """Masks of every shape that broadcasts; rows of which nothing, one place or all counts."""
    entries = GREATEST[dtype] - LEAST[dtype] + 1
    t = np.rint(2.0**24 * np.exp(-np.arange(entries) / 16)).astype(np.int32)
    for shape in ((3, 2, 4), (2, 4, 4)):
        x = codes(dtype, shape)
        for kept in ((shape), shape[1:], shape[2:], (1, 1, 1), (1, shape[1], 1), (shape[0], 1, 4)):
            mask = np.random.default_rng(5).integers(0, 2, kept).astype(np.uint8)
            for m in (mask, 0 * mask, 0 * mask + 1, -mask.astype(np.int64)):
                ends = {"zero": -100, "low": -128, "high": 127, "dtype": "int8"}
                check("softmax", [x, t, m], ratio=Fraction(256), **ends)


@pytest.mark.parametrize(
    ("p", "q"), [(1, 1), (4, 1), (1, 4), (1, 9), (16, 225), (3, 7), (25, 4), (1 << 20, 5**2 << 14)]
)
def test_root_of_every_small_sum(p, q):
    """Ties with p = 1, q = 4 * k**2 / (2 * k + 1)**2 and the like among them."""
    x = np.arange(-50, 3000, dtype=np.int32)
    for zero, dtype in ((0, "uint16"), (-128, "int8"), (77, "int16"), (65535, "uint16")):
        ends = {"zero": zero, "low": LEAST[dtype], "high": GREATEST[dtype], "dtype": dtype}
        check("root", [x], p=p, q=q, **ends)


def test_root_of_ties_goes_to_even():
    """sqrt(x / 4) with x = (2 * k + 1)**2 is k + 1/2."""
    x = np.array([0, 1, 9, 25, 49, 81, 10, 24], np.int32)
    ends = {"zero": 0, "low": 0, "high": 255, "dtype": "uint8"}
    assert check("root", [x], p=1, q=4, **ends).tolist() == [0, 0, 2, 2, 4, 4, 2, 2]


@pytest.mark.parametrize("p", [1, 3, 1 << 15, (1 << 30) - 1, (1 << 61) - 1])
@pytest.mark.parametrize("q", [1, 3, 255**2, (1 << 26) - 1, 1 << 26])
def test_root_up_to_its_bounds(p, q):
    """Sums around those at which a code begins, and the greatest that are allowed."""
    most = ((1 << 61) - 1) // p
    around = [k * k * q // (4 * p) + d for k in (1, 3, 255, 65535, 131069) for d in range(-2, 3)]
    x = np.array([-(1 << 61), 0, most, most - 1, *(v for v in around if v <= most)], np.int64)
    for zero, dtype in ((0, "uint16"), (-32768, "int16"), (-20000, "uint16")):
        ends = {"zero": zero, "low": LEAST[dtype], "high": GREATEST[dtype], "dtype": dtype}
        check("root", [x], p=p, q=q, **ends)


@pytest.mark.parametrize("dtype", CODES)
def test_log_softmax(dtype):
    entries = GREATEST[dtype] - LEAST[dtype] + 1
    t = np.rint(2.0**24 * np.exp(-np.arange(entries) / 16)).astype(np.int32)
    for shape in ((7,), (3, 2, 4), (5, 1)):
        for m, b, shift in ((1 << 40, 1 << 28, 40), (1 << 44, 1 << 30, 60), (0, 3, 1), (7, 0, 5)):
            for kind, zero in (("int8", 127), ("uint16", 65535)):
                ends = {"zero": zero, "low": LEAST[kind], "high": GREATEST[kind], "dtype": kind}
                check("log_softmax", [codes(dtype, shape), t], m=m, b=b, shift=shift, **ends)


def test_log_softmax_of_any_sum():
    """Levels from below one power to far above it: sums of 0, and of many of 2**31 - 1."""
    ends = {"zero": 0, "low": -32768, "high": 32767, "dtype": "int16"}
    for power in (0, 1, 2, 2**24 - 1, 2**24, 2**24 + 1, 2**30, 2**31 - 1):
        t = np.full(256, power, np.int32)
        for columns in (1, 2, 3, 300):
            x = codes("int8", (2, columns))
            check("log_softmax", [x, t], m=0, b=1 << 20, shift=34, **ends)


def test_log_softmax_is_the_logarithm():
    """Within a half of a code and 2**-21 of the real one, for scales of 2**-6 and 2**-10."""
    x = codes("int8", (40, 9))
    t = np.rint(2.0**24 * np.exp(-np.arange(256) / 64)).astype(np.int32)
    shift = 32
    m, b = round(2.0 ** (shift - 6 + 10)), round(math.log(2) * 2.0 ** (shift - 24 + 10))
    ends = {"zero": 0, "low": -32768, "high": 32767, "dtype": "int16"}
    found = check("log_softmax", [x, t], m=m, b=b, shift=shift, **ends)
    real = x.astype(np.float64) / 64
    expected = real - np.log(np.exp(real).sum(-1, keepdims=True))
    assert np.abs(found - expected * 1024).max() <= 0.5 + 2**-8


def test_softmax_ties():
    """P = 1, 1, 2 of 4 in all, times 2 and 6: halves."""
    t = np.zeros(256, np.int32)
    t[:2] = 2, 1
    x = np.array([[0, 0, 1], [5, 4, 4], [9, 9, 9]], np.int8)
    for ratio in (Fraction(2), Fraction(6), Fraction(3, 2)):
        check("softmax", [x, t], ratio=ratio, low=-128, high=127, dtype="int8")


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("largest", [True, False])
def test_top_k(dtype, largest):
    for shape, axis in itertools.product(((7,), (3, 5, 2)), range(3)):
        if axis >= len(shape):
            continue
        for x in (codes(dtype, shape), np.clip(codes(dtype, shape), 3, 5)):  # many equal ones
            for k in {1, 2, shape[axis]}:
                for op in ("top_k", "top_k_index"):
                    check(op, [x], axis=axis, k=min(k, shape[axis]), largest=largest)


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("size", [3, 70_000])
def test_resample(dtype, size):
    rng = np.random.default_rng(2)
    x = codes(dtype, (2, 4, 5, 3))
    for taps in ((1, 1), (2, 2), (1, 4)):
        tables = []
        for n, count, axis in zip((6, 3), taps, (4, 5), strict=True):
            tables.append(rng.integers(0, axis, (n, count), np.int32))
            tables.append(rng.integers(-size, size, (n, count)).astype(np.int32))
        check("resample", [x, *tables], zero=9, dtype="int64")


def test_resample_refuses_places_outside():
    x, at, w = codes("int8", (1, 2, 2, 1)), np.array([[2]], np.int32), np.ones((1, 1), np.int32)
    with pytest.raises(InputError, match=r"expected places from 0 to 1, found \(2, 2\)"):
        check("resample", [x, at, w, 0 * at, w])


# --- pools, reductions, comparisons ---------------------------------------------------------

WINDOWS = [
    {"kernel": (3, 2)},
    {"kernel": (2, 2), "strides": (2, 3)},
    {"kernel": (3, 2), "strides": (2, 1), "pads": (1, 0, 2, 1), "dilations": (1, 2)},
    {"kernel": (3, 3), "pads": (2, 2, 1, 0)},
    {"kernel": (5, 6)},
    {"kernel": (2, 2), "strides": (2, 2), "pads": (0, 0, 1, 0)},  # as ceil mode lowers
]


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("dtype", CODES)
def test_pools(window, dtype):
    x = codes(dtype, (2, 5, 6, 3))
    check("max_pool", [x], **window)
    for balance in (False, True):
        for zero in (0, GREATEST[dtype]):
            check("sum_pool", [x], **window, zero=zero, balance=balance)
            check("sum_pool", [x], **window, zero=zero, balance=balance, dtype="int64")


def test_max_pool_of_the_least_codes_in_padding():
    """The pads never win, whatever the codes."""
    for dtype in CODES:
        x = np.full((1, 2, 2, 1), LEAST[dtype], dtype)
        check("max_pool", [x], kernel=(2, 2), pads=(1, 1, 1, 1))


AXES = [(), (0,), (1,), (2,), (0, 2), (1, 2), (0, 1, 2), (2, 0)]


@pytest.mark.parametrize("axes", AXES, ids=str)
@pytest.mark.parametrize("keepdims", [True, False])
def test_reductions(axes, keepdims):
    for dtype in CODES:
        x = codes(dtype, (2, 3, 4))
        for zero in (0, -3):
            check("reduce_sum", [x], axes=axes, keepdims=keepdims, zero=zero, dtype="int64")
            check("reduce_sum", [x], axes=axes, keepdims=keepdims, zero=zero)
    for dtype in (*CODES, "int32", "int64"):
        for op in ("reduce_max", "reduce_min"):
            check(op, [codes(dtype, (2, 3, 4))], axes=axes, keepdims=keepdims)


@pytest.mark.parametrize("dtype", [*CODES, "int32", "int64"])
def test_maximum_minimum(dtype):
    for left, right in (((2, 3), (2, 3)), ((2, 3, 1), (4,)), ((), (3,)), ((), ())):
        for op in ("maximum", "minimum"):
            check(op, [codes(dtype, left), codes(dtype, right, 1)])


@pytest.mark.parametrize("dtype", [*CODES, "int32", "int64"])
def test_argmax_is_the_first(dtype):
    for triple in itertools.product((LEAST[dtype], 0, GREATEST[dtype]), repeat=3):
        check("argmax", [np.array(triple, dtype)], axis=0, keepdims=False)
    x = codes(dtype, (2, 3, 4))
    for axis in range(3):
        for keepdims in (True, False):
            check("argmax", [x], axis=axis, keepdims=keepdims)


# --- data movement --------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*CODES, "int32", "int64"])
def test_movement(dtype):
    x = codes(dtype, (2, 3, 4))
    for shape in ((24,), (6, 1, 4), (4, 3, 2), (1, 24, 1)):
        check("reshape", [x], shape=shape)
    check("reshape", [codes(dtype, (1,))], shape=())
    for perm in itertools.permutations(range(3)):
        check("transpose", [x], perm=perm)
    check("expand", [codes(dtype, (3, 1))], shape=(2, 3, 4))
    check("expand", [codes(dtype, ())], shape=(2, 2))
    check("expand", [x], shape=(2, 3, 4))
    check("pad", [x], before=(0, 1, 2), after=(3, 0, 1), code=GREATEST[dtype])
    check("pad", [x], before=(0, 0, 0), after=(0, 0, 0))
    for axis in range(3):
        other = list(x.shape)
        other[axis] = 1
        check("concat", [x, codes(dtype, tuple(other), 1), x], axis=axis)
        check("gather", [x, np.array([1, 0, 1, 1])], axis=axis)
    check("concat", [x], axis=2)
    check("gather", [x, np.array([1, 0])])


def test_slice_every_range_of_five():
    x = codes("int8", (5, 2))
    for start, stop, step in itertools.product(range(5), range(1, 6), range(1, 7)):
        if start < stop:
            check("slice", [x], starts=(start, 0), stops=(stop, 2), steps=(step, 1))


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_gather_holds_indices_inside(dtype):
    x = codes("int8", (3, 2))
    ends = np.iinfo(dtype)
    indices = np.array([-1, -3, -4, 3, 7, ends.min, ends.max, 0], dtype)
    for axis in (0, 1):
        check("gather", [x, indices], axis=axis)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_scatter_counts_places_modulo_the_axis(dtype):
    x, ends = codes("int8", (2, 5, 3)), np.iinfo(dtype)
    for start, size in itertools.product([*range(-6, 7), ends.min, ends.max], (1, 2, 5)):
        starts = np.array([start, 1], dtype)
        check("scatter", [x, codes("int8", (2, size, 3), 1), starts], axis=1)
    check("scatter", [x, codes("int8", (2, 5, 1), 1), np.array([2, 0], dtype)], axis=2)


# --- overflow -------------------------------------------------------------------------------

TWO = np.array([-128, 127], np.int8)
OVER = 2**31 // 127 + 1  # times 127 leaves int32
ENDS = np.array([0, 65535], np.uint16)
ZEROS = {"a_zero": -32768, "b_zero": -32768}
LONG = np.full(21846, 65535, np.uint16)  # 98,303 each, less the zero point: beyond int32


@pytest.mark.parametrize(
    ("op", "arrays", "attributes"),
    [
        (
            "conv",
            [TWO.reshape(1, 1, 2, 1), np.ones((1, 1, 1, 1), np.int8), [2**31 - 2]],
            {},
        ),
        (
            "conv_transpose",
            [TWO.reshape(1, 1, 2, 1), np.ones((1, 1, 1, 1), np.int8), [-(2**31) + 1]],
            {"size": (1, 2)},
        ),
        ("linear", [TWO, np.full((1, 2), 127, np.int8), [2**31 - 1 + 128]], {}),
        ("matmul", [ENDS[:, None], ENDS[None]], ZEROS),
        ("affine", [TWO, [1, OVER], [0, 0]], {}),
        ("add", [TWO], {"factors": (OVER,)}),
        ("add", [TWO], {"factors": (1,), "offset": 2**31 - 1}),
        ("multiply", [ENDS, ENDS], ZEROS),
        ("sum_pool", [LONG.reshape(1, -1, 1, 1)], {"kernel": (21846, 1), "zero": -32768}),
        ("reduce_sum", [LONG], {"axes": (0,), "zero": -32768}),
    ],
    ids=lambda p: p if isinstance(p, str) else "",
)
def test_an_accumulator_that_leaves_int32_is_an_error(op, arrays, attributes):
    arrays = [np.array(a) for a in arrays]
    with pytest.raises(RangeError, match=r"node '.*expected integers of int32, found -?\d+ to"):
        check(op, arrays, **attributes)
    check(op, arrays, dtype="int64", **attributes)  # and the same in 64 bits is none


def test_the_largest_accumulators_fit():
    for end in (2**31 - 1, -(2**31)):
        found = check("add", [np.array([0], np.int8)], factors=(1,), offset=end)
        assert found.tolist() == [end]


@pytest.mark.parametrize(
    ("op", "arrays", "attributes"),
    [
        ("add", [TWO], {"factors": (2**60,)}),
        ("add", [np.array([2**62]), np.array([2**62])], {"factors": (1, 1)}),
        ("linear", [TWO, np.full((1, 2), 127, np.int8), np.array([-(2**63)])], {}),
        (
            "conv",
            [TWO.reshape(1, 1, 2, 1), np.ones((1, 1, 1, 1), np.int8), np.array([2**63 - 1])],
            {},
        ),
        (
            "conv_transpose",
            [TWO.reshape(1, 1, 2, 1), np.ones((1, 1, 1, 1), np.int8), np.array([2**63 - 1])],
            {"size": (1, 2)},
        ),
        ("affine", [TWO, np.array([0, 2**60]), np.array([0, 0])], {}),
    ],
    ids=lambda p: p if isinstance(p, str) else "",
)
def test_an_accumulator_that_leaves_int64_is_an_error(op, arrays, attributes):
    with pytest.raises(RangeError):
        check(op, arrays, dtype="int64", **attributes)


# --- what the type rules refuse -------------------------------------------------------------

X = ("int8", (1, 4, 4, 2))
W = ("int8", (4, 3, 3, 2))
B = ("int32", (4,))
V = ("int8", (2, 3))
NORM = (("int32", (3,)), ("int64", (3,)))
LONG = ("int16", (1 << 14, 3))
LIMITS = {"low": -128, "high": 127, "dtype": "int8"}
ONE = {"ratios": (Fraction(1),)}


PLACES = ("int32", (2, 3))
REFUSED = [
    ("conv", [("int8", (1, 4, 4)), W, B], {}),
    ("conv", [("int32", (1, 4, 4, 2)), W, B], {}),
    ("conv", [("float32", (1, 4, 4, 2)), W, B], {}),
    ("conv", [X, ("int8", (4, 3, 2)), B], {}),
    ("conv", [X, ("int32", (4, 3, 3, 2)), B], {}),
    ("conv", [X, ("int8", (4, 3, 3, 3)), B], {}),
    ("conv", [X, W, ("int32", (3,))], {}),
    ("conv", [X, W, ("int8", (4,))], {}),
    ("conv", [X, ("int8", (4, 5, 3, 2)), B], {}),  # no window fits
    ("conv", [X, W, B], {"groups": 2}),
    ("conv", [X, W, B], {"groups": 0}),
    ("conv", [X, ("int8", (3, 3, 3, 1)), ("int32", (3,))], {"groups": 2}),
    ("conv", [X, W, B], {"strides": (0, 1)}),
    ("conv", [X, W, B], {"strides": (1,)}),
    ("conv", [X, W, B], {"dilations": (1, 0)}),
    ("conv", [X, W, B], {"dilations": (1, 1, 1)}),
    ("conv", [X, W, B], {"pads": (-1, 0, 0, 0)}),
    ("conv", [X, W, B], {"pads": (1, 1)}),
    ("conv", [X, W, B], {"pad_code": 128}),
    ("conv", [X, W, B], {"dtype": "int16"}),
    ("conv", [X, W], {}),
    ("conv", [X, W, None], {}),
    ("conv", [X, W, B, B], {}),
    ("conv_transpose", [X, W, B], {"size": (4,)}),
    ("conv_transpose", [X, W, B], {"size": (0, 4)}),
    ("conv_transpose", [X, W, B], {"size": (4, 4), "strides": (1, 0)}),
    ("conv_transpose", [X, W, B], {"size": (4, 4), "strides": (1, 1, 1)}),
    ("conv_transpose", [X, W, B], {"size": (4, 4), "pads": (1, 1)}),
    ("conv_transpose", [X, W, B], {"size": (4, 4), "groups": 2}),
    ("conv_transpose", [X, W, B], {"size": (4, 4), "dtype": "uint8"}),
    ("conv_transpose", [X, W, B], {"size": (4, 4), "zero": 65536}),
    ("conv_transpose", [("int32", X[1]), W, B], {"size": (4, 4)}),
    ("conv_transpose", [X, ("int8", (4, 3)), B], {"size": (4, 4)}),
    ("conv_transpose", [X, W, ("int32", (2,))], {"size": (4, 4)}),
    ("linear", [V, ("int8", (4, 2)), B], {}),
    ("linear", [("int8", ()), ("int8", (4, 2)), B], {}),
    ("linear", [V, ("int8", (4, 3, 1)), B], {}),
    ("linear", [V, ("int8", (4, 3)), ("int32", (3,))], {}),
    ("linear", [V, ("int8", (4, 3)), ("int16", (4,))], {}),
    ("linear", [("int64", (2, 3)), ("int8", (4, 3)), B], {}),
    ("linear", [V, ("int8", (4, 3)), B], {"dtype": "int8"}),
    ("matmul", [V, V], {}),
    ("matmul", [("int8", (3,)), ("int8", (3, 2))], {}),
    ("matmul", [("int32", (2, 3)), ("int8", (3, 2))], {}),
    ("matmul", [("int8", (2, 2, 3)), ("int8", (3, 3, 2))], {}),
    ("matmul", [V, ("int8", (3, 2))], {"a_zero": 65536}),
    ("matmul", [V, ("int8", (3, 2))], {"b_zero": -32769}),
    ("affine", [V, ("int32", (2,)), ("int32", (3,))], {}),
    ("affine", [V, ("int32", (3,)), ("int32", (2,))], {}),
    ("affine", [V, ("int8", (3,)), ("int32", (3,))], {}),
    ("affine", [("float32", (2, 3)), ("int32", (3,)), ("int32", (3,))], {}),
    ("affine", [("int8", ()), ("int32", ()), ("int32", ())], {}),
    ("add", [V, ("int8", (2, 4))], {"factors": (1, 1)}),
    ("add", [V, V], {"factors": (1,)}),
    ("add", [V, ("float32", (2, 3))], {"factors": (1, 1)}),
    ("add", [V], {"factors": (1,), "dtype": "int8"}),
    ("add", [], {"factors": ()}),
    ("multiply", [V, ("int8", (2, 4))], {}),
    ("multiply", [V, ("float32", (2, 3))], {}),
    ("divide", [V, ("int8", (2, 4))], {"ratio": Fraction(1), **LIMITS}),
    ("divide", [V, V], {"ratio": Fraction(0), **LIMITS}),
    ("divide", [V, V], {"ratio": Fraction(1), **LIMITS, "dtype": "int32"}),
    ("multiply", [V, V], {"a_zero": 65536}),
    ("multiply", [V, V], {"b_zero": -32769}),
    ("requantize", [("int32", (2, 3))], {"ratios": (Fraction(1),) * 2, **LIMITS}),
    ("requantize", [("int32", (2, 3))], {"ratios": (), **LIMITS}),
    ("requantize", [("int32", (2, 3))], {"ratios": (Fraction(0),), **LIMITS}),
    ("requantize", [("int32", (2, 3))], {"ratios": (Fraction(-1),), **LIMITS}),
    ("requantize", [("int32", (2, 3))], {"ratios": (0.5,), **LIMITS}),
    ("requantize", [("float32", (2, 3))], {**ONE, **LIMITS}),
    ("requantize", [("int32", (2, 3))], {**ONE, "low": 3, "high": 2, "dtype": "int8"}),
    ("requantize", [("int32", (2, 3))], {**ONE, "low": -129, "high": 2, "dtype": "int8"}),
    ("requantize", [("int32", (2, 3))], {**ONE, "low": 0, "high": 256, "dtype": "uint8"}),
    ("requantize", [("int32", (2, 3))], {**ONE, "low": 0, "high": 9, "dtype": "int32"}),
    ("table", [V, ("int8", (255,))], {}),
    ("table", [V, ("int8", (2, 256))], {}),
    ("table", [V, ("int32", (256,))], {}),
    ("table", [("int32", (2, 3)), ("int8", (256,))], {}),
    ("table", [("int16", (2, 3)), ("int8", (256,))], {}),
    ("clip", [V], {"low": 2, "high": 1}),
    ("clip", [("float32", (2, 3))], {"low": 0, "high": 1}),
    ("max_pool", [("int8", (4, 4, 2))], {"kernel": (2, 2)}),
    ("max_pool", [("int32", (1, 4, 4, 2))], {"kernel": (2, 2)}),
    ("max_pool", [X], {"kernel": (5, 1)}),
    ("max_pool", [X], {"kernel": (0, 1)}),
    ("max_pool", [X], {"kernel": (2,)}),
    ("max_pool", [X], {"kernel": (2, 2), "strides": (2,)}),
    ("max_pool", [X], {"kernel": (2, 2), "pads": (0, 0)}),
    ("max_pool", [X], {"kernel": (1, 1), "pads": (1, 0, 0, 0)}),  # a window in the pads alone
    ("sum_pool", [X], {"kernel": (2, 2), "pads": (2, 0, 0, 0)}),
    ("sum_pool", [X], {"kernel": (2, 2), "dtype": "int16"}),
    ("sum_pool", [X], {"kernel": (2, 2), "zero": 65536}),
    ("reduce_sum", [V], {"axes": (2,)}),
    ("reduce_sum", [V], {"axes": (-1,)}),
    ("reduce_sum", [V], {"axes": (1, 1)}),
    ("reduce_sum", [V], {"axes": (1,), "zero": -32769}),
    ("reduce_sum", [("int32", (2, 3))], {"axes": (1,)}),
    ("reduce_max", [("int8", (2, 0))], {"axes": (1,)}),
    ("reduce_min", [V], {"axes": (3,)}),
    ("maximum", [V, ("uint8", (2, 3))], {}),
    ("minimum", [V, ("int8", (4,))], {}),
    ("maximum", [V], {}),
    ("normalize", [V, ("int32", (3,)), ("int32", (3,))], {"batch": 2, "shift": 9, **LIMITS}),
    ("normalize", [V, ("int32", (2,)), ("int32", (3,))], {"batch": 1, "shift": 9, **LIMITS}),
    ("normalize", [V, ("int32", (3,)), ("int8", (3,))], {"batch": 1, "shift": 9, **LIMITS}),
    ("normalize", [V, *NORM], {"batch": 1, "shift": 0, **LIMITS}),
    ("normalize", [V, *NORM], {"batch": 1, "shift": 61, **LIMITS}),
    ("normalize", [V, *NORM], {"batch": 1, "shift": 9, "groups": 2, **LIMITS}),
    ("normalize", [V, *NORM], {"batch": 1, "shift": 9, "epsilon": -1, **LIMITS}),
    ("normalize", [V, *NORM], {"batch": 1, "shift": 9, "epsilon": 1 << 61, **LIMITS}),
    ("normalize", [V, *NORM], {"batch": 1, "shift": 9, "x_zero": 1 << 16, **LIMITS}),
    ("normalize", [("int32", (2, 3)), *NORM], {"batch": 1, "shift": 9, **LIMITS}),
    ("normalize", [("int8", ()), *NORM], {"batch": 0, "shift": 9, **LIMITS}),
    ("normalize", [LONG, *NORM], {"batch": 0, "shift": 9, **LIMITS}),
    ("softmax", [V, ("int32", (255,))], {"ratio": Fraction(1), **LIMITS}),
    ("softmax", [V, ("int64", (256,))], {"ratio": Fraction(1), **LIMITS}),
    ("softmax", [V, ("int32", (256,)), ("float32", (3,))], {"ratio": Fraction(1), **LIMITS}),
    ("softmax", [V, ("int32", (256,)), ("uint8", (2, 2, 3))], {"ratio": Fraction(1), **LIMITS}),
    ("softmax", [("int32", (2, 3)), ("int32", (256,))], {"ratio": Fraction(1), **LIMITS}),
    ("softmax", [("int8", ()), ("int32", (256,))], {"ratio": Fraction(1), **LIMITS}),
    ("softmax", [V, ("int32", (256,))], {"ratio": Fraction(0), **LIMITS}),
    ("softmax", [V, ("int32", (256,))], {"ratio": 1.0, **LIMITS}),
    ("softmax", [V, ("int32", (256,))], {"ratio": Fraction(1), **LIMITS, "low": -200}),
    ("root", [("float32", (2, 3))], {"p": 1, "q": 1, **LIMITS}),
    ("root", [V], {"p": 0, "q": 1, **LIMITS}),
    ("root", [V], {"p": 1 << 61, "q": 1, **LIMITS}),
    ("root", [V], {"p": 1, "q": 0, **LIMITS}),
    ("root", [V], {"p": 1, "q": (1 << 26) + 1, **LIMITS}),
    ("root", [V], {"p": 1, "q": 1, **LIMITS, "low": -200}),
    ("root", [V], {"p": 1, "q": 1, **LIMITS, "zero": 1 << 16}),
    ("root", [V], {"p": 1, "q": 1, **LIMITS, "dtype": "int32"}),
    ("log_softmax", [V, ("int32", (255,))], {"m": 1, "b": 1, "shift": 1, **LIMITS}),
    ("log_softmax", [V, ("int32", (256,))], {"m": (1 << 44) + 1, "b": 1, "shift": 1, **LIMITS}),
    ("log_softmax", [V, ("int32", (256,))], {"m": 1, "b": -1, "shift": 1, **LIMITS}),
    ("log_softmax", [V, ("int32", (256,))], {"m": 1, "b": 1, "shift": 61, **LIMITS}),
    ("top_k", [V], {"axis": 2, "k": 1}),
    ("top_k", [V], {"axis": 1, "k": 4}),
    ("top_k", [("int32", (2, 3))], {"axis": 1, "k": 1}),
    ("top_k_index", [V], {"axis": 0, "k": 0}),
    ("resample", [X, V, V, V, V], {}),
    ("resample", [X, PLACES, ("int32", (2, 4)), PLACES, PLACES], {}),
    ("resample", [V, *[PLACES] * 4], {}),
    ("argmax", [V], {"axis": 2}),
    ("argmax", [("float32", (2, 3))], {"axis": 1}),
    ("argmax", [("int8", (2, 0))], {"axis": 1}),
    ("reshape", [V], {"shape": (2, 2)}),
    ("reshape", [V], {"shape": (-1,)}),
    ("reshape", [V], {"shape": (-2, -3)}),
    ("transpose", [V], {"perm": (0, 0)}),
    ("transpose", [V], {"perm": (0,)}),
    ("expand", [V], {"shape": (2, 4)}),
    ("expand", [V], {"shape": (3,)}),
    ("slice", [V], {"starts": (0, 0), "stops": (2, 4), "steps": (1, 1)}),
    ("slice", [V], {"starts": (-1, 0), "stops": (2, 3), "steps": (1, 1)}),
    ("slice", [V], {"starts": (0, 0), "stops": (2, 3), "steps": (1, 0)}),
    ("slice", [V], {"starts": (0, 2), "stops": (2, 1), "steps": (1, 1)}),
    ("slice", [V], {"starts": (0,), "stops": (2,), "steps": (1,)}),
    ("concat", [V, ("int8", (3, 3))], {"axis": 1}),
    ("concat", [V, ("uint8", (2, 3))], {"axis": 1}),
    ("concat", [V, ("int8", (2, 3, 1))], {"axis": 1}),
    ("concat", [V, V], {"axis": 2}),
    ("concat", [], {"axis": 0}),
    ("pad", [V], {"before": (-1, 0), "after": (0, 0)}),
    ("pad", [V], {"before": (0, 0), "after": (0, 0), "code": 200}),
    ("pad", [V], {"before": (0,), "after": (0, 0)}),
    ("gather", [V, ("int16", (1,))], {}),
    ("gather", [("int8", (0, 3)), ("int64", (1,))], {}),
    ("gather", [V, ("int64", (1, 1))], {}),
    ("gather", [V, ("int64", (1,))], {"axis": 2}),
    ("scatter", [V, V, ("int64", (1,))], {"axis": 0}),
    ("scatter", [V, V, ("int16", (2,))], {"axis": 1}),
    ("scatter", [V, V, ("int64", (1,))], {"axis": 1}),
    ("scatter", [V, ("int16", (2, 3)), ("int64", (2,))], {"axis": 1}),
    ("scatter", [V, ("int8", (2, 4)), ("int64", (2,))], {"axis": 1}),
    ("scatter", [V, ("int8", (1, 3)), ("int64", (2,))], {"axis": 1}),
]


@pytest.mark.parametrize(
    ("op", "values", "attributes"),
    REFUSED,
    ids=[f"{op}-{i}" for i, (op, _, _) in enumerate(REFUSED)],
)
def test_the_type_rules_say_what_was_expected_and_found(op, values, attributes):
    with pytest.raises(ValueError, match=r"^expected .+, found "):
        infer(op, values, **attributes)


def test_attributes_are_known_and_complete():
    builder = GraphBuilder("g")
    x = builder.input("x", "int8", (2, 3))
    with pytest.raises(ValueError, match=r"^here: clip has no attribute 'least'$"):
        builder.add("clip", [x], {"low": 0, "high": 1, "least": 0}, "here")
    with pytest.raises(ValueError, match=r"^here: clip needs the attribute 'high'$"):
        builder.add("clip", [x], {"low": 0}, "here")
    assert not builder.nodes


# --- trees ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize(("targets", "width"), [(1, 1), (3, 1), (3, 2), (5, 5)])
def test_tree_ensemble(dtype, targets, width):
    rng = np.random.default_rng([targets, width])
    ends = LEAST[dtype], GREATEST[dtype]
    for seed in range(5):
        tables = random_trees(rng, 4, targets, ends, 7, 12, width)
        check("tree_ensemble", [codes(dtype, (6, 4), seed), *tables], targets=targets)


def test_tree_ensemble_at_thresholds():
    """A code equal to the threshold goes on to `yes`; of one tree that is a leaf, to nothing."""
    x = np.array([[-128], [3], [4], [127]], np.int8)
    tables = [[0, 1], [0], [3], [2], [1], [0, 0], [[7], [5]]]
    arrays = [np.array(table, np.int32) for table in tables]
    found = check("tree_ensemble", [x, *arrays], targets=1)
    assert found.reshape(-1).tolist() == [12, 12, 14, 14]


@pytest.mark.parametrize(
    ("position", "value", "message"),
    [
        (1, 5, r"roots in \[0, 5\), found 5"),
        (1, -1, r"roots in \[0, 5\), found -1"),
        (2, 4, r"features in \[0, 4\), found 4"),
        (4, 1, r"later ones, found 1 to 1"),
        (5, 9, r"no in \[0, 5\), found 9"),
        (6, 2, r"targets in \[0, 2\), found 2"),
    ],
)
def test_trees_that_are_none(position, value, message):
    tables = [[0, 2], [0, 3], [3, 9], [1, 2], [2, 3], [0, 1, 1], [[7, 8]] * 3]
    arrays = [codes("int8", (2, 4)), *(np.array(table, np.int32) for table in tables)]
    arrays[position][-1] = value
    with pytest.raises(InputError, match=message):
        check("tree_ensemble", arrays, targets=3)


def test_a_way_that_is_too_long():
    count = 300
    after = np.arange(1, count + 1)
    tables = [[0], [0] * count, [3] * count, after, after, [0], [[1]]]
    arrays = [codes("int8", (2, 4)), *(np.array(table, np.int32) for table in tables)]
    with pytest.raises(InputError, match="at most 256 branches on a way"):
        check("tree_ensemble", arrays, targets=1)


def test_trees_with_wrong_types():
    table = ("int32", (3,))
    names = [("int8", (2, 4)), table, table, table, table, table, table, ("int32", (3, 2))]
    for position, found, message in (
        (0, ("int32", (2, 4)), "codes for x"),
        (0, ("int8", (2, 4, 1)), r"rows of features"),
        (2, ("int64", (3,)), "int32 numbers of features"),
        (3, ("int32", (2,)), "as many features"),
        (7, ("int32", (2, 2)), r"int32 \[3, W\]"),
        (7, ("int32", (3, 9)), "at least 9 targets"),
    ):
        changed = [found if i == position else name for i, name in enumerate(names)]
        with pytest.raises(ValueError, match=message):
            infer("tree_ensemble", changed, targets=2)
