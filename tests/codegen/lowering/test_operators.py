"""Every integer operator alone, in many shapes and types, in C and in the interpreter."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from samebits.codegen.lowering.lower import lower_to_calls
from samebits.ir.graph import Graph, GraphBuilder
from samebits.ir.integer.bounds import bounds
from samebits.ir.integer.define import limits
from samebits.tflite.same.curves import entries_of

Check = Callable[..., None]
CODES = ("int8", "uint8", "int16", "uint16")


def codes(rng: np.random.Generator, dtype: str, shape: Any, scale: int = 1) -> Any:
    low, high = limits(dtype)
    return rng.integers(low // scale, high // scale, shape, dtype, endpoint=True)


def fitted(make: Callable[[str], Graph]) -> Graph:
    """With the accumulator the bounds ask for, as lowering chooses it."""
    graph = make("int64")
    for node in graph.nodes:
        if node.attributes.get("dtype") == "int64":
            found = bounds(graph)[node.output].hull
            if limits("int32")[0] <= found.low[0] and found.high[0] <= limits("int32")[1]:
                return make("int32")
    return graph


def requantized(
    g: GraphBuilder,
    acc: str,
    rng: np.random.Generator,
    dtype: str = "int8",
    per_channel: bool = True,
) -> str:
    """`acc` scaled so that it fills the codes of `dtype`: random ratios, ties, one channel each."""
    value = g.values[acc]
    spread = max(abs(v) for v in _bounds(g, acc))
    low, high = limits(dtype)
    # 16-bit outputs take up to 65535 steps per channel to prove
    single = not (per_channel and value.shape) or (dtype.endswith("16") and value.shape[-1] > 3)
    count = 1 if single else value.shape[-1]
    base = Fraction(high - low, max(2 * spread, 1))
    kinds = [
        lambda: base * Fraction(int(rng.integers(1 << 23, 1 << 24)), 1 << 23),
        lambda: Fraction(1, 1 << max(0, (base.denominator // base.numerator).bit_length())),
        lambda: base * Fraction(int(rng.integers(1, 50)), 7),
    ]
    ratios = tuple(kinds[int(rng.integers(3))]() for _ in range(count))
    zero = int(rng.integers(low, high))
    attributes = {"ratios": ratios, "zero": zero, "low": low + 3, "high": high - 2, "dtype": dtype}
    return g.add("requantize", [acc], attributes)


def _bounds(g: GraphBuilder, name: str) -> tuple[int, int]:
    found = bounds(g.build([name]))[name].hull
    return found.low[0], found.high[0]


# --- graphs, a list per operator --------------------------------------------------------------


def conv_graphs(op: str) -> Iterator[Graph]:
    rng = np.random.default_rng(1)
    shapes = [
        # (height, width, channels), outputs, kernel, strides, pads, dilations, groups
        ((5, 6, 3), 5, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
        ((4, 9, 4), 34, (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1),
        ((6, 5, 6), 4, (2, 3), (2, 1), (0, 2, 1, 0), (1, 2), 2),
        ((7, 7, 5), 5, (3, 2), (1, 2), (1, 0, 2, 1), (2, 1), 5),
        ((9, 12, 2), 20, (3, 3), (2, 2), (0, 1, 1, 0), (1, 1), 1),
        ((3, 40, 70), 2, (1, 3), (1, 1), (0, 1, 0, 1), (1, 1), 1),
        ((4, 4, 70), 70, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 70),
        ((3, 3, 2), 6, (2, 2), (3, 2), (1, 1, 0, 0), (1, 2), 2),
    ]
    types = itertools.cycle(
        [
            ("int8", "int8"),
            ("uint8", "int8"),
            ("int8", "int16"),
            ("int16", "int8"),
            ("uint16", "int8"),
            ("int16", "int16"),
            ("uint8", "uint8"),
            ("uint16", "uint16"),
        ]
    )
    for fused, (image, o, kernel, strides, pads, dilations, groups) in itertools.product(
        (True, False), shapes
    ):
        for _ in range(3):
            x_type, w_type = next(types)
            batch = int(rng.integers(1, 3))
            low, high = limits(x_type)
            constant = rng.integers(8) > 0

            def make(
                dtype: str,
                image: Any = image,
                o: int = o,
                kernel: Any = kernel,
                x_type: str = x_type,
                w_type: str = w_type,
                batch: int = batch,
                strides: Any = strides,
                pads: Any = pads,
                dilations: Any = dilations,
                groups: int = groups,
                fused: bool = fused,
                seed: int = int(rng.integers(1 << 30)),
                constant: bool = bool(constant),
                zero: int = int(rng.integers(low, high + 1)),
            ) -> Graph:
                own = np.random.default_rng(seed)
                g = GraphBuilder("conv")
                x = g.input("x", x_type, (batch, *image))
                shape = (o, *kernel, image[2] // groups)
                if constant:
                    w = g.constant("w", codes(own, w_type, shape))
                else:
                    w = g.input("w", w_type, shape)
                b = g.constant("b", own.integers(-9999, 9999, o, "int32"))
                a: dict[str, Any] = {
                    "strides": strides,
                    "dilations": dilations,
                    "groups": groups,
                    "dtype": dtype,
                    "pads": pads,
                }
                if op == "conv":
                    a["pad_code"] = zero
                else:
                    size = [
                        (image[i] - 1) * strides[i] + dilations[i] * (kernel[i] - 1) + 1
                        - pads[i] - pads[i + 2] + int(own.integers(0, 2))
                        for i in (0, 1)
                    ]  # fmt: skip
                    a |= {"zero": zero, "size": tuple(max(1, s) for s in size)}
                y = g.add(op, [x, w, b], a)
                if fused:
                    y = requantized(g, y, own, ("int8", "uint8", "int16")[seed % 3], seed % 5 > 1)
                return g.build([y])

            yield fitted(make)


def product_graphs() -> Iterator[Graph]:
    rng = np.random.default_rng(2)
    for x_type, (lead, k, o) in itertools.product(
        CODES, [((), 7, 3), ((5,), 32, 40), ((2, 3), 17, 16), ((1,), 600, 10)]
    ):
        g = GraphBuilder("linear")
        x = g.input("x", x_type, (*lead, k))
        w = g.constant("w", codes(rng, "int8", (o, k)))
        b = g.constant("b", rng.integers(-9999, 9999, o, "int32"))
        wide = "int64" if x_type.endswith("16") else "int32"
        yield g.build([requantized(g, g.add("linear", [x, w, b], {"dtype": wide}), rng)])
    shapes = [((3, 5), (5, 4)), ((2, 1, 3, 4), (3, 4, 70)), ((2, 3, 2, 1, 6), (2, 1, 2, 6, 1))]
    for (a_type, b_type), (left, right) in itertools.product(
        [("int8", "int8"), ("uint8", "int8"), ("int16", "uint16"), ("int16", "int8")], shapes
    ):
        for fused in (True, False):
            g = GraphBuilder("matmul")
            a = g.input("a", a_type, left)
            b = g.input("b", b_type, right)
            zeros = {"a_zero": int(rng.integers(0, 99)), "b_zero": int(rng.integers(-99, 99))}
            y = g.add("matmul", [a, b], {**zeros, "dtype": "int64"})
            if fused:
                y = requantized(g, y, rng, "int8", False)
            yield g.build([y])


def elementwise_graphs() -> Iterator[Graph]:
    rng = np.random.default_rng(3)
    for x_type, fused, per_channel in itertools.product(CODES, (True, False), (True, False)):
        for channels in (1, 3, 70):
            g = GraphBuilder("affine")
            x = g.input("x", x_type, (2, 3, channels))
            m = g.constant("m", rng.integers(-300, 300, channels, "int32"))
            b = g.constant("b", rng.integers(-9999, 9999, channels, "int32"))
            y = g.add("affine", [x, m, b])
            y = requantized(g, y, rng, "uint8", per_channel) if fused else y
            yield g.build([y])
    for computed in ("m", "b", "mb"):
        g = GraphBuilder("affine")
        names = [g.input("x", "int8", (2, 3, 5))]
        for name, spread in (("m", 300), ("b", 9999)):
            if name in computed:
                names.append(g.input(name, "int32", (5,)))
            else:
                names.append(g.constant(name, np.arange(-2, 3, dtype=np.int32) * spread))
        y = g.add("affine", names, {"dtype": "int64"})
        yield g.build([requantized(g, y, rng, "int8", False), g.add("affine", names, {
            "dtype": "int64"})])  # fmt: skip
    g = GraphBuilder("add")  # a factor that 64 bits do not hold, of a term that is 0
    names = [g.input("a", "int8", (2, 3)), g.constant("zeros", np.zeros(3, np.int8))]
    yield g.build([g.add("add", names, {"factors": (3, (1 << 63) + 5), "offset": -7})])
    shapes = [
        ((2, 5, 6, 7), (2, 5, 6, 7)),
        ((3, 70), (70,)),
        ((4, 1, 5), (1, 6, 1)),
        ((), (3, 2)),
        ((2, 3, 4), (3, 1)),
    ]
    for (a_type, b_type), (left, right) in itertools.product(
        [("int8", "int8"), ("uint8", "int16"), ("uint16", "uint16"), ("int32", "int8")], shapes
    ):
        for big in (False, True):
            g = GraphBuilder("add")
            a, b = g.input("a", a_type, left), g.input("b", b_type, right)
            factors = tuple(int(v) for v in rng.integers(-99, 99, 2))
            if big:
                factors = (3 << 26, -(5 << 25))
            wide = "int64" if big or a_type == "int32" else "int32"
            y = g.add("add", [a, b], {"factors": factors, "offset": 1234, "dtype": wide})
            yield g.build([requantized(g, y, rng, "int8", big), y])
            yield g.build([requantized(g, g.add("add", [a, b], {
                "factors": factors, "offset": -99, "dtype": wide}), rng, "int16")])  # fmt: skip
    for op, (a_type, shape) in itertools.product(
        ("maximum", "minimum"), [("int8", (3, 1)), ("uint16", (3, 4)), ("int32", (4,))]
    ):
        g = GraphBuilder(op)
        a, b = g.input("a", a_type, shape), g.input("b", a_type, (2, 3, 4))
        yield g.build([g.add(op, [a, b])])
    for a_type, b_type in itertools.product(CODES, CODES):
        g = GraphBuilder("multiply")
        a, b = g.input("a", a_type, (3, 1, 5)), g.input("b", b_type, (4, 5))
        a_zero = int(rng.integers(*limits(a_type)))
        y = g.add("multiply", [a, b], {"a_zero": a_zero, "b_zero": -3, "dtype": "int64"})
        yield g.build(
            [requantized(g, y, rng, "int8"), g.add("multiply", [b, a], {"dtype": "int64"})]
        )


def line_graphs() -> Iterator[Graph]:
    """Tables of 16-bit codes that are straight lines."""
    rng = np.random.default_rng(40)
    for x_type, t_type in itertools.product(("int16", "uint16"), CODES):
        g = GraphBuilder("lines")
        x = g.input("x", x_type, (1 << 16,))
        low, high = limits(t_type)
        heights = rng.integers(low, high + 1, (1 << 6) + 1)
        at, rest = np.divmod(np.arange(1 << 16), 1 << 10)
        straight = heights[at] + (((heights[at + 1] - heights[at]) * rest + 512) >> 10)
        yield g.build([g.add("table", [x, g.constant("t", straight.astype(t_type))])])
    for steep, tanh in itertools.product((0, 20001), (False, True)):
        g = GraphBuilder("mirrored lines")
        x = g.input("x", "int16", (1 << 16,))
        yield g.build([g.add("table", [x, g.constant("t", entries_of(steep, 3, tanh))])])


def table_graphs() -> Iterator[Graph]:
    rng = np.random.default_rng(4)
    for x_type, t_type in itertools.product(CODES, CODES):
        entries = limits(x_type)[1] - limits(x_type)[0] + 1
        for rows in (0, 3):
            if rows and x_type.endswith("16") and t_type != "int8":
                continue
            g = GraphBuilder("table")
            x = g.input("x", x_type, (5, 3))
            t = g.constant("t", codes(rng, t_type, (rows, entries) if rows else (entries,)))
            yield g.build([g.add("table", [x, t])])
    for x_type, t_type in itertools.product(("int16", "uint16"), CODES):  # a cubic each
        g = GraphBuilder("smooth")
        low, high = limits(x_type)
        x = g.input("x", x_type, (1 << 16,))
        half = (limits(t_type)[1] - limits(t_type)[0]) / 2
        smooth = np.rint(np.sin(np.arange(low, high + 1) * 2**-14) * half + half - 0.5)
        t = g.constant("t", (smooth + limits(t_type)[0]).astype(t_type))
        yield g.build([g.add("table", [x, t])])
    g = GraphBuilder("wide")  # a cubic whose sums need more than 32 bits
    x = g.input("x", "int16", (1 << 16,))
    real = np.arange(-32768, 32768) * 2.0**-12
    gelu = np.clip(np.rint(30 * real / (1 + np.exp(-1.702 * real))), -128, 127)
    yield g.build([g.add("table", [x, g.constant("t", gelu.astype(np.int8))])])
    yield from line_graphs()
    for x_type in (*CODES, "int32"):
        g = GraphBuilder("clip")
        x = g.input("x", x_type, (9, 9))
        y = g.add("add", [x], {"factors": (1 << 20,), "dtype": "int64"})
        bounds_ = {"low": -(1 << 30), "high": 1 << 28}
        yield g.build([g.add("clip", [x], {"low": -20, "high": 77}), g.add("clip", [y], bounds_)])
        g = GraphBuilder("requantize")
        x = g.input("x", x_type, (9, 70))
        yield g.build([requantized(g, x, rng, "int8"), requantized(g, x, rng, "uint16", False)])


def window_graphs() -> Iterator[Graph]:
    rng = np.random.default_rng(5)
    windows = [
        ((2, 2), (2, 2), (0, 0, 0, 0), (1, 1)),
        ((3, 3), (1, 1), (1, 1, 1, 1), (1, 1)),
        ((3, 2), (2, 1), (1, 0, 2, 1), (1, 2)),
        ((5, 6), (1, 1), (0, 0, 0, 0), (1, 1)),
    ]
    for x_type, window in itertools.product(CODES, windows):
        for channels in (3, 70):
            a = dict(zip(("kernel", "strides", "pads", "dilations"), window, strict=True))
            g = GraphBuilder("pool")
            x = g.input("x", x_type, (2, 5, 6, channels))
            outputs = [g.add("max_pool", [x], a)]
            for balance in (False, True):
                more = {"zero": int(rng.integers(-3, 200)), "balance": balance, "dtype": "int64"}
                y = g.add("sum_pool", [x], {**a, **more})
                outputs.append(requantized(g, y, rng, "int8", balance))
            outputs.append(y)
            yield g.build(outputs)


def reduce_graphs() -> Iterator[Graph]:
    rng = np.random.default_rng(6)
    cases = [
        ((2, 5, 6, 7), (1, 2), True),
        ((2, 5, 6, 70), (1, 2), False),
        ((3, 4, 5), (2,), False),
        ((3, 4, 5), (0, 2), True),
        ((3, 4, 5), (0, 1, 2), False),
        ((3, 4), (), True),
    ]
    for x_type, (shape, axes, keepdims) in itertools.product(CODES, cases):
        a = {"axes": axes, "keepdims": keepdims}
        g = GraphBuilder("reduce")
        x = g.input("x", x_type, shape)
        y = g.add("reduce_sum", [x], {**a, "zero": 5})
        outputs = [g.add("reduce_max", [x], a), g.add("reduce_min", [x], a), y]
        outputs.append(requantized(g, g.add("reduce_sum", [x], {**a, "zero": -5}), rng, "int8"))
        for axis in range(len(shape)):
            outputs.append(g.add("argmax", [x], {"axis": axis, "keepdims": keepdims}))
        yield g.build(outputs)
    for x_type, ratio in itertools.product(
        ("int8", "uint8", "int16"), (Fraction(256), Fraction(8421505, 1 << 15), Fraction(1000, 7))
    ):
        g = GraphBuilder("softmax")
        x = g.input("x", x_type, (7, 5))
        entries = limits(x_type)[1] - limits(x_type)[0] + 1
        powers = np.round(2**24 * np.exp(-0.05 * np.arange(entries))).astype(np.int32)
        t = g.constant("t", powers)
        a = {"ratio": ratio, "zero": -128, "low": -128, "high": 127, "dtype": "int8"}
        mask = g.input("mask", "uint8" if x_type == "int8" else "int64", (7, 1))
        pattern = np.tri(7, 5, -1, dtype=np.uint8)  # the first row is empty
        outputs = [g.add("softmax", [x, t], a), g.add("softmax", [x, t, mask], a)]
        outputs += [g.add("softmax", [x, t, g.constant("pattern", pattern)], a)]
        outputs += [g.add("softmax", [x, t, g.constant("row", pattern[3])], a)]
        yield g.build(outputs)
    layouts = ((2, 1, (3, 4, 70)), (1, 1, (3, 4, 6)), (1, 3, (2, 5, 6)), (1, 6, (2, 90, 6)))
    for x_type, out, (batch, groups, shape) in itertools.product(
        CODES, ("int8", "uint16"), layouts
    ):
        g = GraphBuilder("normalize")
        x = g.input("x", x_type, shape)
        low, high = limits(out)
        attributes = {
            "batch": batch, "groups": groups, "x_zero": 3, "epsilon": int(rng.integers(0, 9**9)),
            "shift": 36, "zero": low + 100, "low": low + 2, "high": high - 1, "dtype": out,
        }  # fmt: skip
        factors = rng.integers(-(2**24), 2**24, shape[-1]).astype(np.int32)
        terms = g.constant("b", rng.integers(-(2**43), 2**43, shape[-1]))
        inputs = [x, g.constant("m", factors), terms]
        outputs = [
            g.add("normalize", inputs, {**attributes, "centered": centered})
            for centered in (True, False)
        ]
        yield g.build(outputs)


def movement_graphs() -> Iterator[Graph]:
    rng = np.random.default_rng(7)
    for dtype in (*CODES, "int32", "int64"):
        g = GraphBuilder("move")
        x = g.input("x", dtype if dtype != "int64" else "int32", (2, 3, 4, 5))
        y = g.input("y", dtype if dtype != "int64" else "int32", (2, 3, 4, 5))
        if dtype == "int64":
            wide = {"factors": (1 << 25,), "dtype": "int64"}
            x, y = g.add("add", [x], wide), g.add("add", [y], wide)
        outputs = [
            g.add("transpose", [x], {"perm": tuple(int(v) for v in rng.permutation(4))})
            for _ in range(6)
        ]
        outputs.append(g.add("slice", [x], {
            "starts": (0, 1, 0, 1), "stops": (2, 3, 4, 5), "steps": (1, 2, 3, 2)}))  # fmt: skip
        outputs += [g.add("concat", [x, y, x], {"axis": axis}) for axis in range(4)]
        moved = g.add("transpose", [y], {"perm": (0, 2, 3, 1)})
        flat = g.add("reshape", [moved], {"shape": (6, 20)})
        outputs += [flat, g.add("reshape", [x], {"shape": (120,)}), x]
        outputs.append(g.add("gather", [x, g.constant("i", np.array([2, 0, 0, 1]))], {"axis": 1}))
        outputs.append(g.add("gather", [x, g.constant("j", np.array([4, -9]))], {"axis": 3}))
        for kind in ("int32", "int64"):
            rows = g.input(f"rows_{kind}", kind, (3,))
            outputs.append(g.add("gather", [x, rows], {"axis": 2}))
            held = g.constant("held", rng.integers(-9, 9, (4, 3)).astype(np.int16))
            outputs.append(g.add("gather", [held, rows], {"axis": 0}))
            starts = g.input(f"starts_{kind}", kind, (2,))
            for axis, shape in ((1, (2, 2, 4, 5)), (3, (2, 3, 4, 2))):
                ends = {"starts": (0, 0, 0, 0), "stops": shape, "steps": (1, 1, 1, 1)}
                update = g.add("slice", [x], ends)
                outputs.append(g.add("scatter", [x, update, starts], {"axis": axis}))
        cut = g.add("slice", [x], {
            "starts": (1, 0, 0, 2), "stops": (2, 3, 4, 3), "steps": (1, 1, 1, 1)})  # fmt: skip
        outputs.append(g.add("expand", [cut], {"shape": (2, 3, 4, 6)}))
        if dtype in CODES:
            outputs.append(g.add("pad", [x], {
                "before": (0, 1, 0, 2), "after": (1, 0, 3, 0), "code": 77}))  # fmt: skip
        c = g.constant("c", rng.integers(0, 99, (2, 2), dtype))
        outputs.append(g.add("concat", [c, g.add("reshape", [c], {"shape": (2, 2)})], {"axis": 1}))
        outputs.append(c)
        yield g.build(outputs)


def gate_graphs() -> Iterator[Graph]:
    """What vector kernels have a way of their own for: sums and products of a cell with ties and
    without, cubics of few and many segments, with a mirror and without, linear layers of rows."""
    rng = np.random.default_rng(5)
    ratios = ((129, 1 << 21), (65, 1 << 13), (1, 1 << 12), (1, 77_777), (1, 2_129_920), (3, 8_192))
    for size, ratio in itertools.product((16, 37, 64), ratios):
        g = GraphBuilder("cell")
        a, b, c = (g.input(name, "int16", (1, size)) for name in "abc")
        small = g.input("d", "int8", (1, size))
        outputs = [g.add("multiply", [a, b])]
        sums = [g.add("multiply", [x, small]) for x in (b, c)]
        for op, terms, attributes, dtype in (
            ("add", sums, {"factors": (101, 65)}, "int16"),
            ("multiply", [a, c], {}, "int8"),
        ):
            low, high = limits(dtype)
            total = g.add(op, terms, attributes)
            scale = {"ratios": (Fraction(*ratio),), "zero": size - 30, "low": low, "high": high}
            outputs.append(g.add("requantize", [total], {**scale, "dtype": dtype}))
        yield g.build([*outputs, *sums])
    x = np.arange(-32768, 32768) * 2.0**-12
    tables = {
        "sigmoid": 32768 / (1 + np.exp(-x)),
        "tanh": 32768 * np.tanh(x),
        "short": 9999 * np.tanh(x / 16),
        "steep": 32768 * np.tanh(8 * x),
        "no mirror": 60 * np.exp(x / 2),
    }
    for values in tables.values():
        g = GraphBuilder("cubic")
        u = g.input("u", "int16", (1 << 16,))
        entries = np.clip(np.rint(values), -32768, 32767).astype(np.int16)
        yield g.build([g.add("table", [u, g.constant("t", entries)])])
    for dtype, rows, (depth, outs) in itertools.product(
        ("int8", "uint8", "int16"), (1, 11), ((64, 80), (40, 33), (37, 5))
    ):
        g = GraphBuilder("rows")
        u = g.input("u", dtype, (rows, depth))
        w = g.constant("w", codes(rng, "int8", (outs, depth)))
        bias = g.constant("b", rng.integers(-9999, 9999, outs, dtype=np.int32))
        yield g.build(
            [g.add("linear", [u, w, bias], {"dtype": "int64" if dtype[-1] == "6" else "int32"})]
        )
    g = GraphBuilder("padded")  # a window that is one pixel, outside of the image
    u = g.input("u", "int8", (1, 1, 1, 8))
    constants = [
        g.constant("w", codes(rng, "int8", (16, 1, 1, 8))),
        g.constant("b", np.zeros(16, np.int32)),
    ]
    pads = {"strides": (2, 2), "pads": (1, 1, 0, 0), "pad_code": 7}
    yield g.build([g.add("conv", [u, *constants], pads)])
    for dtype, groups in (("int8", 1), ("uint8", 30), ("int16", 2)):
        g = GraphBuilder("bands")  # rows of 120 pixels, several bands of scratch memory each
        u = g.input("u", dtype, (1, 3, 120, 30))
        constants = [
            g.constant("w", codes(rng, "int8", (30, 3, 2, 30 // groups))),
            g.constant("b", np.zeros(30, np.int32)),
        ]
        a = {"groups": groups, "pads": (0, 1, 0, 1), "pad_code": 3}
        y = g.add("conv", [u, *constants], {**a, "dtype": "int64" if groups == 2 else "int32"})
        yield g.build([requantized(g, y, rng, "int8", False)])


def score_graphs() -> Iterator[Graph]:
    rng = np.random.default_rng(8)
    for dtype, columns in itertools.product(CODES, (1, 10, 300)):
        low, high = limits(dtype)
        step = 2.0 ** -rng.integers(2, 7)
        powers = np.rint(2.0**24 * np.exp(-step * np.arange(high - low + 1))).astype(np.int32)
        for out in ("int8", "uint16"):
            g = GraphBuilder("log_softmax")
            x = g.input("x", dtype, (2, 3, columns))
            shift = int(rng.integers(1, 61))
            m, b = int(rng.integers(1 << min(shift, 44))), int(rng.integers(1 << min(shift, 30)))
            least, most = limits(out)
            a = {"m": m, "b": b, "shift": shift, "zero": most - 9, "low": least + 1, "high": most}
            y = g.add("log_softmax", [x, g.constant("t", powers)], {**a, "dtype": out})
            yield g.build([y])
    for dtype, (shape, axis) in itertools.product(
        CODES, (((9,), 0), ((2, 300, 3), 1), ((4, 1, 70), 2))
    ):
        g = GraphBuilder("top_k")
        x = g.input("x", dtype, shape)
        least = limits(dtype)[0]
        few = g.add("clip", [x], {"low": least + 9, "high": least + 60})
        outputs = []
        for source, k, largest in itertools.product((x, few), (1, 5), (True, False)):
            a = {"axis": axis, "k": min(k, shape[axis]), "largest": largest}
            outputs += [g.add(op, [source], a) for op in ("top_k", "top_k_index")]
        yield g.build(outputs)


def quotient_graphs() -> Iterator[Graph]:
    rng = np.random.default_rng(10)
    for a_type, b_type in itertools.product((*CODES, "int32"), ("int8", "uint16", "int32")):
        for ratio in (Fraction(1), Fraction(255), Fraction(5, 7)):
            g = GraphBuilder("divide")
            a, b = g.input("a", a_type, (3, 4, 70)), g.input("b", b_type, (4, 1))
            few = g.add("clip", [b], {"low": max(-3, limits(b_type)[0]), "high": 99})
            low, high = limits("int16")
            ends = {"zero": int(rng.integers(-99, 99)), "low": low, "high": high}
            given = {"ratio": ratio, **ends, "dtype": "int16"}
            y = g.add("divide", [a, few], given)
            yield g.build([y, g.add("multiply", [a, few], {"dtype": "int64"})])


def root_graphs() -> Iterator[Graph]:
    """All sums from below 0 on, ties among them, and sums up to the bound."""
    rng = np.random.default_rng(11)
    ratios = ((1, 4), (16, 225), (3, 7), (1 << 29, 25), (1 << 13, 1 << 26), (1 << 29, 1 << 26))
    for (p, q), out in itertools.product(ratios, ("int8", "uint16")):
        low, high = limits(out)
        ends = {"p": p, "q": q, "zero": int(rng.choice([low, 0, -77])), "low": low + 1}
        g = GraphBuilder("root")
        x = g.input("x", "int32", (3, 700))
        few = g.add("clip", [x], {"low": -9, "high": 1000})
        narrow = g.input("y", "int16", (3, 70))
        wide = {"a_zero": 5, "b_zero": 5, "dtype": "int64"}
        sources = x, few, narrow, g.add("multiply", [narrow, narrow], wide)
        yield g.build(
            [g.add("root", [each], {**ends, "high": high, "dtype": out}) for each in sources]
        )


def resample_graphs() -> Iterator[Graph]:
    rng = np.random.default_rng(9)
    for dtype, channels, (taps, size), fused in itertools.product(
        CODES, (1, 70), ((1, 1), (2, 31), (4, 3000)), (True, False)
    ):

        def make(
            accumulator: str,
            dtype: str = dtype,
            channels: int = channels,
            taps: int = taps,
            size: int = size,
            fused: bool = fused,
            seed: int = int(rng.integers(1 << 30)),
        ) -> Graph:
            own = np.random.default_rng(seed)
            g = GraphBuilder("resample")
            names = [g.input("x", dtype, (2, 5, 4, channels))]
            for n, out in ((5, 7), (4, 3)):
                names.append(g.constant("i", own.integers(0, n, (out, taps), np.int32)))
                names.append(g.constant("w", own.integers(-2, size, (out, taps)).astype(np.int32)))
            y = g.add("resample", names, {"zero": int(own.integers(99)), "dtype": accumulator})
            y = requantized(g, y, own, ("int8", "uint8", "int16")[seed % 3]) if fused else y
            return g.build([y])

        yield fitted(make)


FAMILIES = {
    "conv": lambda: conv_graphs("conv"),
    "conv_transpose": lambda: conv_graphs("conv_transpose"),
    "product": product_graphs,
    "elementwise": elementwise_graphs,
    "table": table_graphs,
    "window": window_graphs,
    "reduce": reduce_graphs,
    "movement": movement_graphs,
    "score": score_graphs,
    "resample": resample_graphs,
    "quotient": quotient_graphs,
    "root": root_graphs,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_operator(same_in_c: Check, family: str) -> None:
    """A third of the graphs, drawn; the slow test has all."""
    graphs = list(FAMILIES[family]())
    drawn = np.random.default_rng(1).permutation(len(graphs))
    same_in_c([graphs[i] for i in drawn[: (len(graphs) + 2) // 3]])


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_operator_in_every_setting(same_in_c: Check, family: str) -> None:
    same_in_c(list(FAMILIES[family]()))


def test_a_tensor_is_written_into_itself(same_in_c: Check) -> None:
    g = GraphBuilder("turned")
    x, starts = g.input("x", "int8", (2, 5)), g.input("starts", "int64", (2,))
    held = g.add("clip", [x], {"low": -100, "high": 100})
    turned = g.add("scatter", [held, held, starts], {"axis": 1})
    graph = g.build([g.add("clip", [turned], {"low": -90, "high": 90})])
    codes = np.arange(-5, 5, dtype=np.int8).reshape(2, 5)
    same_in_c([graph], inputs=[[[codes, np.array([2, -1])]]])


def test_straight_lines(same_in_c: Check) -> None:
    """Of every code."""
    graphs = list(line_graphs())
    ramps = [np.arange(1 << 16, dtype=np.uint16).view(graph.values["x"].dtype) for graph in graphs]
    for graph in graphs:
        (entry,) = lower_to_calls(graph).entries
        assert [call.function for call in entry.calls] == ["lines"]
    same_in_c(graphs, inputs=[[[ramp]] for ramp in ramps])


@pytest.mark.parametrize(
    "flags",
    [pytest.param(f, marks=pytest.mark.slow) for f in (("-O1",), ("-O3", "-march=native"))],
)
def test_the_ways_of_vector_kernels(same_in_c: Check, flags: tuple[str, ...]) -> None:
    graphs = list(gate_graphs())
    ramp = np.arange(-32768, 32768, dtype=np.int16)  # of the cubics: every code
    rng = np.random.default_rng(6)
    inputs = [
        [
            [
                ramp if graph.values[name].size == 1 << 16
                else codes(rng, graph.values[name].dtype, graph.values[name].shape, scale)
                for name in graph.inputs
            ]
            for scale in (1, 1, 50)
        ]
        for graph in graphs
    ]  # fmt: skip
    same_in_c(graphs, *flags, inputs=inputs)
