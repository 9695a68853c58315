"""Integer graphs for tests of realisations: every operator in its variants, and random networks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np

from random_trees import random_trees
from samebits.ir import Graph, GraphBuilder
from samebits.spec.rounding import Away, Doubled, HalfUp

CODES = ("int8", "uint8", "int16", "uint16")


def limits(dtype: str) -> tuple[int, int]:
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def random_codes(
    rng: np.random.Generator, dtype: str, shape: tuple[int, ...], extremes: bool = True
) -> Any:
    """Uniform codes, the least and the greatest more often."""
    low, high = limits(dtype)
    codes = rng.integers(low, high, shape, np.int64, endpoint=True)
    if extremes:
        kind = rng.integers(0, 8, shape)
        codes = np.where(kind == 0, low, np.where(kind == 1, high, codes))
    return codes.astype(dtype)


def inputs_of(graph: Graph, seed: int) -> list[Any]:
    """Random codes for every input of a graph."""
    rng = np.random.default_rng(seed)
    values = [graph.values[name] for name in graph.inputs]
    return [random_codes(rng, value.dtype, value.shape) for value in values]


class Case(GraphBuilder):
    """A builder with one random generator, for constants."""

    def __init__(self, name: str, seed: int = 0) -> None:
        super().__init__(name)
        self.rng = np.random.default_rng([seed, len(name), *name.encode()])

    def weights(self, dtype: str, shape: tuple[int, ...], low: int = 0, high: int = 0) -> str:
        if low < high:
            array = self.rng.integers(low, high, shape, np.int64, endpoint=True).astype(dtype)
        else:
            array = random_codes(self.rng, dtype, shape)
        return self.constant("w", array)

    def bias(self, count: int, size: int = 2000) -> str:
        return self.constant("b", self.rng.integers(-size, size, count).astype(np.int32))

    def image(self, dtype: str, shape: tuple[int, ...]) -> str:
        return self.input("x", dtype, shape)


def operator_graphs() -> Iterator[tuple[str, Graph]]:
    """(id, graph) of every operator, in every variant that a realisation may treat apart."""
    makes = (_products, _pointwise, _requantizations, _pools, _resamples, _trees, _movement)
    for make in makes:
        for case, out in make():
            yield case.name, case.build([out])


def _products() -> Iterator[tuple[Case, str]]:
    for x_type, w_type in (
        ("int8", "int8"), ("uint8", "int8"), ("int8", "uint8"), ("uint8", "uint8"),
        ("uint8", "int16"), ("int16", "int8"), ("uint16", "int16"),
    ):  # fmt: skip
        case = Case(f"conv-{x_type}-{w_type}")
        x = case.image(x_type, (2, 5, 6, 4))
        w = case.weights(w_type, (6, 3, 2, 4), *((-255, 0) if w_type == "int16" else ()))
        attributes = {
            "strides": (2, 1), "pads": (1, 0, 2, 1), "dilations": (1, 2),
            "pad_code": limits(x_type)[1] - 3, "dtype": "int64",
        }  # fmt: skip
        yield case, case.add("conv", [x, w, case.bias(6)], attributes)
    for groups, per_group, outs in ((4, 1, 4), (4, 1, 8), (2, 2, 6)):
        case = Case(f"conv-groups-{groups}-{per_group}-{outs}")
        x = case.image("int8", (1, 4, 4, 4))
        w = case.weights("int8", (outs, 3, 3, per_group))
        attributes = {"groups": groups, "pads": (1, 1, 1, 1), "pad_code": -7}
        yield case, case.add("conv", [x, w, case.bias(outs)], attributes)
    for groups, dtype in ((1, "int8"), (2, "uint8"), (2, "int16")):
        case = Case(f"conv_transpose-{groups}-{dtype}")
        x = case.image(dtype, (1, 3, 4, 4))
        w = case.weights("int8", (6, 3, 2, 4 // groups))
        attributes = {
            "strides": (2, 3), "pads": (1, 0, 1, 0), "dilations": (1, 2), "zero": 5,
            "size": (6, 12), "groups": groups, "dtype": "int64",
        }  # fmt: skip
        yield case, case.add("conv_transpose", [x, w, case.bias(6)], attributes)
    for x_type, w_type, shape in (
        ("int8", "int8", (3, 7)), ("uint8", "int16", (2, 3, 7)), ("int16", "int16", (3, 7)),
        ("uint8", "uint8", (7,)),
    ):  # fmt: skip
        case = Case(f"linear-{x_type}-{w_type}-{len(shape)}")
        x = case.image(x_type, shape)
        w = case.weights(w_type, (5, 7), *((-255, 255) if w_type == "int16" else ()))
        yield case, case.add("linear", [x, w, case.bias(5)], {"dtype": "int64"})
    for a_type, b_type in (("int8", "int8"), ("uint8", "int8"), ("int16", "uint8")):
        case = Case(f"matmul-{a_type}-{b_type}")
        a = case.image(a_type, (2, 1, 3, 4))
        b = case.input("y", b_type, (3, 4, 5))
        attributes = {"a_zero": 3, "b_zero": 100, "dtype": "int64"}
        yield case, case.add("matmul", [a, b], attributes)


def _pointwise() -> Iterator[tuple[Case, str]]:
    case = Case("affine")
    x = case.image("int16", (2, 3, 4))
    m = case.constant("m", np.array([3, -70000, 0, 65535], np.int32))
    yield case, case.add("affine", [x, m, case.bias(4)], {"dtype": "int64"})
    case = Case("add")
    a, b = case.image("int8", (2, 3, 4)), case.input("y", "uint8", (3, 1))
    c = case.input("z", "int32", (4,))
    attributes = {"factors": (5, -(2**33), 1), "offset": -77, "dtype": "int64"}
    yield case, case.add("add", [a, b, c], attributes)
    for dtype, ratio in (
        ("int8", Fraction(3, 7)),
        ("uint16", Fraction(255)),
        ("int32", Fraction(1)),
    ):
        case = Case(f"divide-{dtype}")
        x, y = case.image(dtype, (4, 3, 5)), case.input("y", "int16", (3, 1))
        y = case.add("clip", [y], {"low": -3, "high": 900})
        ends = {"zero": 5, "low": -120, "high": 127, "dtype": "int8"}
        yield case, case.add("divide", [x, y], {"ratio": ratio, **ends})
    for dtype, p, q, zero in (
        ("int8", 4096, 1, -3), ("int16", 3, 7, -128), ("uint16", 1 << 30, 225 << 12, 0),
        ("int32", 1 << 29, 1 << 26, -32768), ("int32", 1, 1, 100),
    ):  # fmt: skip
        for kind in ("int8", "uint16"):
            case = Case(f"root-{dtype}-{p}-{kind}")
            low, high = limits(kind)
            ends = {"zero": zero, "low": low + 1, "high": high, "dtype": kind}
            yield case, case.add("root", [case.image(dtype, (6, 50))], {"p": p, "q": q, **ends})
    case = Case("root-wide")
    a = case.add("multiply", [case.image("uint16", (300,))] * 2, {"a_zero": 9, "dtype": "int64"})
    ends = {"zero": -32768, "low": -32768, "high": 32767, "dtype": "int16"}
    yield case, case.add("root", [a], {"p": 1 << 28, "q": 255**2 << 8, **ends})
    case = Case("multiply-sums")
    a, b = case.image("int32", (2, 3, 4)), case.input("y", "int16", (1, 1, 1))
    yield case, case.add("multiply", [a, b], {"b_zero": 9, "dtype": "int64"})
    case = Case("multiply")
    a, b = case.image("int8", (2, 3, 4)), case.input("y", "uint16", (3, 1))
    yield case, case.add("multiply", [a, b], {"a_zero": -128, "b_zero": 9, "dtype": "int64"})
    for dtype in CODES:
        low, high = limits(dtype)
        case = Case(f"table-{dtype}")
        x = case.image(dtype, (2, 4, 3))
        t = case.weights("int8" if dtype == "int16" else dtype, (high - low + 1,))
        yield case, case.add("table", [x, t])
        case = Case(f"clip-{dtype}")
        x = case.image(dtype, (2, 4, 3))
        yield case, case.add("clip", [x], {"low": low + 7, "high": high - 100})
        for op in ("maximum", "minimum"):
            case = Case(f"{op}-{dtype}")
            a, b = case.image(dtype, (2, 4, 3)), case.input("y", dtype, (4, 1))
            yield case, case.add(op, [a, b])
    for op in ("maximum", "minimum", "clip"):
        case = Case(f"{op}-int64")  # far beyond 32 bits
        x, y = case.image("int16", (200,)), case.input("y", "int32", (200,))
        a, b = (case.add("add", [v], {"factors": (k,), "dtype": "int64"})
                for v, k in ((x, 2**33 + 1), (y, 2**18 - 1)))  # fmt: skip
        if op == "clip":
            yield case, case.add("clip", [b], {"low": -5, "high": 9})
        else:
            yield case, case.add(op, [a, b])
    case = Case("clip-unbounded")
    yield case, case.add("clip", [case.image("uint8", (9,))], {"low": -5, "high": 2**40})
    case = Case("table-channels")
    x = case.image("int8", (2, 4, 3))
    yield case, case.add("table", [x, case.weights("uint16", (3, 256))])
    for dtype, out, step in (("int16", "int16", 2**-12), ("uint16", "int8", 2**-13)):
        case = Case(f"table-smooth-{dtype}-{out}")  # a cubic in C
        x = case.image(dtype, (3, 50))
        low, high = limits(dtype)
        t = np.tanh(np.arange(low, high + 1) * step) * limits(out)[1]
        yield case, case.add("table", [x, case.constant("t", np.rint(t).astype(out))])
    for dtype, ratio in (
        ("int8", Fraction(256)), ("uint8", Fraction(2**30, 11184811)), ("uint16", Fraction(1, 3)),
        ("int8", Fraction(2**20, 3)),
    ):  # fmt: skip
        case = Case(f"softmax-{dtype}-{ratio.numerator}-{ratio.denominator}")
        low, high = limits(dtype)
        x = case.image(dtype, (4, 7))
        decay = np.exp(-np.arange(high - low + 1) / 16) * 2**24
        t = case.constant("t", np.rint(decay).astype(np.int32))
        attributes = {"ratio": ratio, "zero": -128, "low": -128, "high": 127, "dtype": "int8"}
        yield case, case.add("softmax", [x, t], attributes)
        for kept in ((4, 7), (7,), (4, 1)):
            case = Case(f"masked-softmax-{dtype}-{ratio.numerator}-{len(kept)}-{kept[-1]}")
            x, t = case.image(dtype, (3, 4, 7)), case.constant("t", np.rint(decay).astype(np.int32))
            mask = np.random.default_rng(3).integers(0, 2, kept).astype(np.uint8)
            inputs = [x, t, case.constant("mask", mask)]
            yield case, case.add("softmax", inputs, attributes)
    rng = np.random.default_rng(8)
    for dtype, (batch, groups) in itertools.product(CODES, ((2, 1), (1, 1), (1, 3), (1, 6))):
        case = Case(f"normalize-{dtype}-{batch}-{groups}")
        x = case.image(dtype, (4, 3, 6))
        attributes = {
            "batch": batch, "groups": groups, "centered": bool(batch), "x_zero": 5,
            "epsilon": 77, "shift": 41, "zero": -7, "low": -128, "high": 127, "dtype": "int8",
        }  # fmt: skip
        m = case.constant("m", rng.integers(-(2**24), 2**24, 6).astype(np.int32))
        b = case.constant("b", rng.integers(-(2**46), 2**46, 6))
        yield case, case.add("normalize", [x, m, b], attributes)
    for dtype, (m, b, shift) in itertools.product(
        CODES, ((3 << 38, 1 << 26, 40), (1 << 44, 1 << 30, 60), (5, 9, 1))
    ):
        case = Case(f"log_softmax-{dtype}-{shift}")
        low, high = limits(dtype)
        x = case.image(dtype, (4, 3, 7))
        decay = np.rint(np.exp(-np.arange(high - low + 1) / 16) * 2**24).astype(np.int32)
        ends = {"zero": 120, "low": -128, "high": 127, "dtype": "int8"}
        attributes = {"m": m, "b": b, "shift": shift, **ends}
        yield case, case.add("log_softmax", [x, case.constant("t", decay)], attributes)
    for dtype, axis, largest in itertools.product(CODES, (1, 2), (True, False)):
        for op in ("top_k", "top_k_index"):
            case = Case(f"{op}-{dtype}-{axis}-{largest}")
            low = limits(dtype)[0] + 2
            x = case.add("clip", [case.image(dtype, (3, 9, 2))], {"low": low, "high": low + 50})
            attributes = {"axis": axis, "k": 6 if axis == 1 else 2, "largest": largest}
            yield case, case.add(op, [x], attributes)
    for dtype in (*CODES, "int32"):
        case = Case(f"argmax-{dtype}")
        x = case.add("clip", [case.image(dtype, (3, 9, 2))], {"low": 3, "high": 5})
        yield case, case.add("argmax", [x], {"axis": 1, "keepdims": dtype != "int8"})


def _requantizations() -> Iterator[tuple[Case, str]]:
    ratios = (
        Fraction(1, 2), Fraction(1), Fraction(3, 2), Fraction(1, 2**30), Fraction(2**31),
        Fraction(12345677, 2**31), Fraction(2**31, 12345677), Fraction(1, 3),
        Fraction(10**15, 7**17), Fraction(2**60 + 1, 3**40),
    )  # fmt: skip
    for dtype, low, high, zero in (
        ("int8", -128, 127, 3), ("uint8", 0, 255, 128), ("int16", -32768, 32767, -1),
        ("uint16", 5, 60000, 7), ("int8", 4, 4, 0),
    ):  # fmt: skip
        attributes = {"zero": zero, "low": low, "high": high, "dtype": dtype}
        for source in ("int8", "int32"):
            case = Case(f"requantize-{source}-{dtype}-{low}")
            x = case.input("x", source, (6, len(ratios)))
            yield case, case.add("requantize", [x], {**attributes, "ratios": ratios})
    for index, ratio in enumerate(ratios):
        case = Case(f"requantize-one-{index}")
        a = case.input("x", "int8", (60,))
        acc = case.add("add", [a], {"factors": (2 * ratio.denominator // ratio.numerator + 1,),
                                    "dtype": "int64"})  # fmt: skip
        attributes = {"zero": 1, "low": -100, "high": 100, "dtype": "int8", "ratios": (ratio,)}
        yield case, case.add("requantize", [acc], attributes)
    kinds = (
        (Doubled(1 << 30, 3), Doubled(0x7FFFFFFF), Doubled(1, 30), Doubled(1518500250, 0, 9),
         Doubled(1 << 30, 0, 31), Doubled(12345, 0, 0)),
        (HalfUp(1, 0), HalfUp(32767, 15), HalfUp(20000, 24), HalfUp(5, 62), HalfUp(3, 1),
         HalfUp(16384, 14)),
        tuple(map(Away, (1, 2, 3, 36, 49, 2**31 - 1))),
    )  # fmt: skip
    for roundings in kinds:
        name = type(roundings[0]).__name__
        for source, dtype in (("int8", "int8"), ("int32", "int8"), ("int16", "int16")):
            case = Case(f"requantize-{name}-{source}-{dtype}")
            x = case.input("x", source, (12, len(roundings)))
            low, high = max(limits(dtype)[0], -300), min(limits(dtype)[1], 299)
            attributes = {"zero": -3, "low": low, "high": high - 1, "dtype": dtype}
            yield case, case.add("requantize", [x], {**attributes, "ratios": roundings})
        case = Case(f"linear-{name}")
        x = case.input("x", "int8", (3, 20))
        w, b = case.weights("int8", (5, 20)), case.bias(5)
        acc = case.add("linear", [x, w, b])
        one = {"Doubled": Doubled(1518500250, 0, 5), "HalfUp": HalfUp(21000, 20)}
        by = one.get(name, Away(90))
        attributes = {"zero": 7, "low": -128, "high": 127, "dtype": "int8", "ratios": (by,)}
        yield case, case.add("requantize", [acc], attributes)
    case = Case("requantize-wide")  # products beyond 64 bits: thresholds
    a = case.input("x", "int16", (6, 30))
    acc = case.add("add", [a], {"factors": (2**45 + 1,), "offset": 1, "dtype": "int64"})
    third = Fraction(1, 3 * 2**39)
    attributes = {"zero": 1, "low": -128, "high": 127, "dtype": "int8", "ratios": (third,)}
    yield case, case.add("requantize", [acc], attributes)
    case = Case("requantize-scalar")
    x = case.add("reduce_sum", [case.input("x", "int8", (5,))], {"axes": (0,), "keepdims": False})
    attributes = {"zero": 0, "low": -128, "high": 127, "dtype": "int8", "ratios": (Fraction(1, 5),)}
    yield case, case.add("requantize", [x], attributes)


def _pools() -> Iterator[tuple[Case, str]]:
    window = {"kernel": (3, 2), "strides": (2, 1), "pads": (1, 0, 2, 1), "dilations": (1, 2)}
    for dtype in CODES:
        case = Case(f"max_pool-{dtype}")
        yield case, case.add("max_pool", [case.image(dtype, (2, 5, 6, 3))], window)
        for balance in (False, True):
            case = Case(f"sum_pool-{dtype}-{balance}")
            x = case.image(dtype, (2, 5, 6, 3))
            yield case, case.add("sum_pool", [x], {**window, "zero": 9, "balance": balance})
        for axes, keepdims in (((1, 2), True), ((2,), False), ((), True)):
            case = Case(f"reduce_sum-{dtype}-{len(axes)}")
            x = case.image(dtype, (2, 3, 5))
            attributes = {"axes": axes, "keepdims": keepdims}
            yield case, case.add("reduce_sum", [x], {**attributes, "zero": -3, "dtype": "int64"})
            for op in ("reduce_max", "reduce_min"):
                case = Case(f"{op}-{dtype}-{len(axes)}")
                yield case, case.add(op, [case.image(dtype, (2, 3, 5))], attributes)


def _resamples() -> Iterator[tuple[Case, str]]:
    for dtype, size in itertools.product(CODES, (9, 40_000)):
        case = Case(f"resample-{dtype}-{size}")
        x = case.image(dtype, (2, 5, 6, 3))
        names = [x]
        for count, taps, reach in ((7, 2, 5), (4, 3, 6)):
            places = case.rng.integers(0, reach, (count, taps), np.int32)
            weights = case.rng.integers(-size, size, (count, taps), endpoint=True)
            names += [case.constant("i", places), case.constant("w", weights.astype(np.int32))]
        total = case.add("resample", names, {"zero": 7, "dtype": "int64"})
        if size > 9 or dtype == "int8":
            yield case, total
            continue
        rounded = {"ratios": (Fraction(1, 90),), "low": -100, "high": 100, "dtype": "int8"}
        yield case, case.add("requantize", [total], rounded)


def _trees() -> Iterator[tuple[Case, str]]:
    kinds = ((4, 0, 20, 1 << 20), (70, 1, 20, 100), (2, 0, 40_000, 9), (1, 0, 1, 1 << 29))
    for dtype, (targets, width, branches, size) in zip(CODES, kinds, strict=True):
        case = Case(f"tree_ensemble-{dtype}")
        x = case.image(dtype, (3, 7))
        tables = random_trees(case.rng, 7, targets, limits(dtype), 6, branches, width, size)
        names = [case.constant("t", table) for table in tables]
        attributes = {"targets": targets, "dtype": "int64" if size > 1 << 21 else "int32"}
        total = case.add("tree_ensemble", [x, *names], attributes)
        if dtype == "uint16":
            yield case, total
            continue
        rounded = {"ratios": (Fraction(3, 7 * size),), "low": -100, "high": 100, "dtype": "int8"}
        yield case, case.add("requantize", [total], rounded)
    for dtype in CODES:  # thresholds beyond the codes
        case = Case(f"tree_ensemble-{dtype}-beyond")
        x, (low, high) = case.image(dtype, (9, 7)), limits(dtype)
        tables = random_trees(case.rng, 7, 3, (low - 300, high + 300), 6, 20)
        ends = np.array([low - 300, low - 1, low, high, high + 1, high + 300], np.int32)
        tables[2][::2] = np.resize(ends, tables[2][::2].shape)
        names = [case.constant("t", table) for table in tables]
        yield case, case.add("tree_ensemble", [x, *names], {"targets": 3})


def _movement() -> Iterator[tuple[Case, str]]:
    cases: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
        "reshape": ((2, 3, 4), {"shape": (6, 1, 4)}),
        "transpose": ((2, 3, 4), {"perm": (2, 0, 1)}),
        "expand": ((3, 1), {"shape": (2, 3, 4)}),
        "slice": ((2, 9, 4), {"starts": (0, 1, 2), "stops": (2, 8, 4), "steps": (1, 3, 1)}),
        "pad": ((2, 3), {"before": (0, 2), "after": (1, 3), "code": 5}),
    }
    for dtype in CODES:
        for op, (shape, attributes) in cases.items():
            case = Case(f"{op}-{dtype}")
            yield case, case.add(op, [case.image(dtype, shape)], attributes)
        case = Case(f"concat-{dtype}")
        a, b = case.image(dtype, (2, 3)), case.input("y", dtype, (2, 1))
        yield case, case.add("concat", [a, b, a], {"axis": 1})
        case = Case(f"gather-{dtype}")
        indices = case.constant("i", np.array([2, 0, 0, 1, 2], np.int64))
        yield case, case.add("gather", [case.image(dtype, (2, 3, 2)), indices], {"axis": 1})
        case = Case(f"gather-computed-{dtype}")
        table = case.weights(dtype, (5, 2))
        rows = case.input("rows", "int64" if dtype == "int8" else "int32", (7,))
        yield case, case.add("gather", [table, rows], {"axis": 0})
        case = Case(f"scatter-{dtype}")
        past, update = case.image(dtype, (2, 3, 5)), case.input("y", dtype, (2, 3, 2))
        starts = case.input("starts", "int64" if dtype == "int8" else "int32", (2,))
        yield case, case.add("scatter", [past, update, starts], {"axis": 2})


def extreme_softmax() -> Graph:
    """An output scale so small that products leave 64 bits; not every realisation takes it."""
    case = Case("extreme")
    t = case.constant("t", np.rint(np.exp(-np.arange(256) / 16) * 2**24).astype(np.int32))
    attributes = {"ratio": Fraction(2**45, 3), "low": -128, "high": 127, "dtype": "int8"}
    x = case.image("int8", (4, 7))
    return case.build([case.add("softmax", [x, t], attributes, "softmax")])


# --- random networks --------------------------------------------------------------------------


def random_network(seed: int) -> Graph:
    """A small image network: convolutions, tables, pools, sums, a linear layer, softmax."""
    case = Case("network", seed)
    rng = case.rng
    dtype = str(rng.choice(["int8", "uint8", "int16"]))
    x = case.input("input", dtype, (1, int(rng.integers(4, 8)), int(rng.integers(4, 8)), 3))
    for _ in range(rng.integers(1, 5)):
        x = _LAYERS[rng.integers(len(_LAYERS))](case, x)
    value = case.values[x]
    if rng.integers(2):
        total = case.add("reduce_sum", [x], {"axes": (1, 2), "keepdims": False, "zero": 2})
        x = _requantized(case, total, value.size // value.shape[-1] * 100)
    else:
        x = case.add("reshape", [x], {"shape": (1, math.prod(value.shape))})
    x = _linear(case, x)
    value = case.values[x]
    outputs = [x]
    low, high = limits(value.dtype)
    t = np.rint(np.exp(-np.arange(high - low + 1) / 20) * 2**24).astype(np.int32)
    attributes = {"ratio": Fraction(256), "zero": -128, "low": -128, "high": 127, "dtype": "int8"}
    outputs.append(case.add("softmax", [x, case.constant("exp", t)], attributes))
    outputs.append(case.add("argmax", [x], {"axis": 1, "keepdims": False}))
    return case.build(outputs)


def _requantized(case: Case, acc: str, largest: int) -> str:
    """To random codes so that most of them do not saturate."""
    rng = case.rng
    dtype = str(rng.choice(["int8", "uint8", "int16"]))
    low, high = limits(dtype)
    channels = case.values[acc].shape[-1]
    count = channels if rng.integers(2) else 1
    ratios = tuple(
        Fraction(int(rng.integers(2**23, 2**24)), 2**23) * Fraction(high - low, 2 * largest + 1)
        for _ in range(count)
    )
    attributes = {"zero": int(rng.integers(low, high)), "low": low, "high": high, "dtype": dtype}
    return case.add("requantize", [acc], {**attributes, "ratios": ratios})


def _conv(case: Case, x: str) -> str:
    rng, value = case.rng, case.values[x]
    channels = value.shape[-1]
    depthwise = bool(rng.integers(2))
    outs = channels if depthwise else int(rng.integers(1, 6))
    kernel = int(rng.integers(1, 4))
    groups = channels if depthwise else 1
    w = case.weights("int8", (outs, kernel, kernel, channels // groups))
    low, high = limits(value.dtype)
    attributes = {
        "pads": (kernel // 2,) * 4, "strides": (1, int(rng.integers(1, 3))), "groups": groups,
        "pad_code": int(rng.integers(low, high)),
    }  # fmt: skip
    acc = case.add("conv", [x, w, case.bias(outs)], attributes)
    terms = kernel * kernel * (channels // groups)
    return _requantized(case, acc, max(1, terms) * 20 * max(-low, high))


def _linear(case: Case, x: str) -> str:
    value = case.values[x]
    w = case.weights("int8", (4, value.shape[-1]))
    acc = case.add("linear", [x, w, case.bias(4)])
    return _requantized(case, acc, value.shape[-1] * 20 * limits(value.dtype)[1])


def _table(case: Case, x: str) -> str:
    low, high = limits(case.values[x].dtype)
    per_channel = high < 256 and bool(case.rng.integers(2))
    shape = (case.values[x].shape[-1],) if per_channel else ()
    return case.add("table", [x, case.weights("uint8", (*shape, high - low + 1))])


def _max_pool(case: Case, x: str) -> str:
    attributes = {"kernel": (2, 2), "strides": (1, 1), "pads": (0, 1, 1, 0)}
    return case.add("max_pool", [x], attributes)


def _sum_pool(case: Case, x: str) -> str:
    attributes = {"kernel": (2, 2), "pads": (0, 1, 1, 0), "zero": 3, "balance": True}
    acc = case.add("sum_pool", [x], attributes)
    return _requantized(case, acc, 2 * limits(case.values[x].dtype)[1])


def _residual(case: Case, x: str) -> str:
    y = _table(case, x)
    acc = case.add("add", [x, y], {"factors": (3, 7), "offset": 11})
    return _requantized(case, acc, 5 * limits(case.values[x].dtype)[1])


_LAYERS: list[Callable[[Case, str], str]] = [
    _conv, _conv, _conv, _table, _max_pool, _sum_pool, _residual,
]  # fmt: skip
