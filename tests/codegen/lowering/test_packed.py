"""Packed kernels for every processor: the codes of the interpreter, here and on the boards."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hand_package import skip_unless_available
from samebits.codegen.lowering.cpu import CPUS, find_cpu
from samebits.codegen.lowering.lower import lower_to_calls
from samebits.codegen.memory import layout
from samebits.codegen.packaging.package import texts, write_package
from samebits.codegen.rolling import calls_for
from samebits.codegen.run.execute import build, execute
from samebits.codegen.run.targets import TARGETS
from samebits.errors import InputError
from samebits.ir.graph import Graph, GraphBuilder
from samebits.ir.integer.define import limits
from samebits.ir.interpreter import run
from two_roundings import doubled

Check = Callable[..., None]
PACKED = ("cortex-m3", "cortex-m4", "cortex-m55")
# image [N, H, W, C], kernel, outputs, attributes
CONVS: tuple[tuple[tuple[int, ...], tuple[int, int], int, dict[str, Any]], ...] = (
    ((1, 1, 1, 40), (1, 1), 9, {}),  # one pixel, runs that are no whole steps, odd channels
    ((1, 1, 1, 64), (1, 1), 12, {}),  # x as it is
    ((1, 1, 7, 16), (1, 1), 16, {}),
    ((1, 1, 7, 32), (1, 1), 6, {}),
    ((1, 5, 5, 3), (3, 3), 5, {"pads": (1, 1, 1, 1), "pad_code": 7}),
    ((2, 5, 4, 4), (3, 3), 4, {"pads": (1, 1, 1, 1), "pad_code": -128}),  # two images
    ((1, 6, 9, 8), (3, 3), 7, {"pads": (0, 1, 1, 0), "strides": (2, 2), "pad_code": 3}),
    ((1, 7, 6, 2), (4, 5), 3, {"pads": (1, 2, 2, 2), "strides": (3, 1)}),
    ((1, 9, 1, 10), (3, 1), 18, {}),  # no band
    ((1, 3, 8, 12), (1, 1), 4, {"strides": (2, 2)}),
    ((1, 4, 4, 1), (4, 4), 2, {}),
    ((1, 2, 3, 70), (2, 2), 3, {"pads": (1, 1, 1, 1), "pad_code": 100}),
    ((1, 8, 3, 5), (2, 2), 5, {"strides": (4, 1)}),  # rows that no window reads
)
DEPTHWISE = (
    ((1, 5, 5, 16), (3, 3), {"pads": (1, 1, 1, 1), "pad_code": -128}),
    ((1, 4, 5, 64), (3, 3), {"pads": (1, 1, 1, 1), "strides": (2, 2), "pad_code": -5}),
    ((2, 4, 7, 8), (3, 3), {"pads": (1, 1, 1, 1), "pad_code": 9}),  # two pixels in a vector
    ((1, 3, 7, 4), (3, 3), {"pads": (1, 1, 1, 1)}),
    ((1, 3, 6, 2), (2, 2), {}),
    ((1, 5, 6, 8), (3, 3), {"strides": (1, 2)}),
    ((1, 6, 3, 21), (3, 1), {"pads": (1, 0, 1, 0), "pad_code": -128}),
    ((1, 3, 3, 37), (2, 3), {"pads": (1, 1, 0, 1), "pad_code": 1}),
    ((1, 2, 4, 6), (1, 1), {}),
    ((1, 7, 2, 19), (5, 2), {"strides": (2, 1)}),
    ((1, 5, 1, 16), (1, 1), {"strides": (3, 1)}),
)
# dilation, groups, and several channels for each of a depthwise window
GATHERED: tuple[tuple[tuple[int, ...], tuple[int, int], int, dict[str, Any]], ...] = (
    ((1, 7, 8, 5), (3, 3), 6, {"dilations": (2, 2), "pads": (2, 2, 2, 2), "pad_code": 3}),
    ((1, 8, 7, 16), (3, 2), 16, {"dilations": (1, 3)}),
    ((2, 9, 4, 4), (3, 1), 3, {"dilations": (3, 1), "pads": (1, 0, 3, 0), "strides": (2, 1)}),
    ((1, 1, 20, 6), (1, 5), 8, {"dilations": (1, 4), "pads": (0, 8, 0, 8), "pad_code": -128}),
    ((1, 5, 6, 8), (3, 3), 12, {"groups": 4, "pads": (1, 1, 1, 1), "pad_code": 9}),
    ((1, 4, 6, 64), (1, 1), 64, {"groups": 8}),
    ((1, 1, 1, 12), (1, 1), 9, {"groups": 3}),  # an odd number of outputs of a group
    ((1, 5, 5, 6), (3, 3), 6, {"groups": 2, "pads": (1, 1, 1, 1)}),
    ((2, 6, 7, 6), (2, 2), 15, {"groups": 3, "strides": (2, 1), "dilations": (2, 1)}),
    ((1, 5, 5, 16), (3, 3), 32, {"groups": 16, "pads": (1, 1, 1, 1), "pad_code": -128}),
    ((1, 5, 4, 7), (3, 3), 21, {"groups": 7, "pads": (1, 1, 1, 1), "strides": (2, 2)}),
    ((1, 4, 6, 2), (2, 2), 8, {"groups": 2}),  # two pixels in a vector
    ((2, 3, 4, 20), (1, 3), 80, {"groups": 20, "pads": (0, 1, 0, 1), "pad_code": 7}),
    ((1, 8, 8, 20), (3, 3), 20, {"groups": 20, "dilations": (2, 2), "pads": (2, 2, 2, 2)}),
    ((1, 9, 6, 8), (3, 2), 8, {"groups": 8, "dilations": (3, 2), "strides": (1, 2)}),
)
# sums of more than 24 bits, of three pixels, of one, and of what remains
LONG: tuple[tuple[tuple[int, ...], tuple[int, int], int, dict[str, Any]], ...] = (
    ((1, 1, 1, 1600), (1, 1), 5, {}),
    ((1, 1, 5, 1203), (1, 1), 3, {}),
    ((1, 4, 5, 130), (3, 3), 4, {"pads": (1, 1, 1, 1), "pad_code": -128}),
    ((1, 3, 4, 2600), (1, 1), 6, {"groups": 2}),
)
# outputs smaller than x, which may take its memory
OVER_MORE: tuple[tuple[tuple[int, ...], tuple[int, int], int, dict[str, Any]], ...] = (
    ((1, 19, 1, 20), (5, 1), 20, {"groups": 20}),
    ((1, 9, 7, 16), (3, 3), 16, {"groups": 16}),
    ((2, 8, 6, 5), (3, 3), 5, {}),
    ((1, 9, 8, 8), (3, 3), 4, {"pads": (1, 1, 1, 1)}),
    ((1, 12, 6, 19), (3, 2), 19, {"groups": 19, "strides": (2, 1), "pads": (2, 0, 0, 0)}),
    ((1, 12, 6, 6), (3, 3), 6, {"groups": 6, "dilations": (2, 1)}),
)
# outputs of the shape of x
OVER_X: tuple[tuple[tuple[int, ...], tuple[int, int], int, dict[str, Any]], ...] = (
    ((1, 1, 31, 16), (1, 1), 16, {}),
    ((1, 5, 7, 10), (1, 1), 10, {}),
    ((2, 5, 4, 4), (3, 3), 4, {"pads": (1, 1, 1, 1), "pad_code": -128}),
    ((1, 6, 5, 7), (3, 3), 7, {"pads": (2, 0, 0, 2), "pad_code": 50}),
    ((1, 6, 5, 3), (3, 3), 3, {"pads": (0, 2, 2, 0)}),
    ((1, 9, 1, 5), (3, 1), 5, {"pads": (1, 0, 1, 0)}),
    ((1, 5, 5, 16), (3, 3), 16, {"pads": (1, 1, 1, 1), "groups": 16}),
    ((2, 4, 7, 8), (3, 3), 8, {"pads": (1, 1, 1, 1), "pad_code": 9, "groups": 8}),
    ((1, 4, 3, 19), (3, 3), 19, {"pads": (2, 2, 0, 0), "groups": 19}),
    ((1, 5, 4, 6), (5, 1), 6, {"pads": (4, 0, 0, 0), "pad_code": -7, "groups": 6}),
)


def quantized(
    g: GraphBuilder, rng: np.random.Generator, acc: str, channels: int, taps: int, wide: bool
) -> str:
    """A requantization by channel of sums of `taps` products, so that codes saturate now and then;
    wide: over all codes."""
    ratios = [
        Fraction(int(rng.integers(1 << 20, 1 << 21)), taps * 12 << 31) for _ in range(channels)
    ]
    low, high = (-128, 127) if wide else (-100, 90)
    a = {"ratios": tuple(r * 64 for r in ratios), "zero": -9, "low": low, "high": high}
    return g.add("requantize", [acc], {**a, "dtype": "int8"})


def conv(
    seed: int,
    image: Any,
    kernel: Any,
    outputs: int,
    attributes: Any,
    full: bool,
    inner: bool = False,
    bias: int = 9000,
    end: str = "",
) -> Graph:
    """A convolution of weights over the whole type but its least, and its requantization; inner: of
    a value of the arena, whose memory the outputs may take. bias: the largest. end: of codes of 16
    bits, the type of the outputs, or "int32" for sums as they are."""
    rng = np.random.default_rng(seed)
    g = GraphBuilder(f"conv{seed}")
    x = g.input("x", "int16" if end else "int8", image)
    if inner:
        x = g.add("clip", [x], {"low": -127, "high": 127})
    depth = image[3] // attributes.get("groups", 1)
    shape = (outputs, *kernel, depth)
    weights = rng.integers(-127, 128, shape).astype(np.int8)
    w = g.constant("w", weights)
    b = g.constant("b", rng.integers(-bias, bias, outputs).astype(np.int32))
    acc = g.add("conv", [x, w, b], attributes)
    if end:
        return g.build([ended(g, rng, acc, outputs, kernel[0] * kernel[1] * depth, end, inner)])
    y = quantized(g, rng, acc, outputs, kernel[0] * kernel[1] * depth, full)
    return g.build([g.add("clip", [y], {"low": -128, "high": 126}) if inner else y])


def ended(
    g: GraphBuilder,
    rng: np.random.Generator,
    acc: str,
    channels: int,
    taps: int,
    dtype: str,
    inner: bool,
) -> str:
    """Sums of `taps` products of 16-bit codes to codes of a type, by ratios of channels or one."""
    if dtype == "int32":
        return acc
    span = 1 << (16 if dtype == "int16" else 8)
    base = Fraction(span, taps * 60 << 16)
    ratios = [
        base * Fraction(int(rng.integers(1 << 23, 1 << 24)), 1 << 24)
        for _ in range(channels if taps % 2 else 1)
    ]
    low, high = -span // 2, span // 2 - 1 if channels % 3 else span // 3
    a = {"ratios": tuple(ratios), "zero": int(rng.integers(-99, 99)), "low": low, "high": high}
    y = g.add("requantize", [acc], {**a, "dtype": dtype})
    return g.add("clip", [y], {"low": low, "high": high - 1}) if inner else y


def graphs16() -> list[Graph]:
    """Shapes of 16-bit codes, with every end of their sums."""
    ends = itertools.cycle(("int16", "int16", "int8", "int16", "int32"))
    made = [conv(600 + i, *case, True, end=next(ends)) for i, case in enumerate(CONVS)]
    made += [
        conv(700 + i, image, kernel, image[3], {**a, "groups": image[3]}, True, end=next(ends))
        for i, (image, kernel, a) in enumerate(DEPTHWISE)
    ]
    made += [conv(800 + i, *case, True, end=next(ends)) for i, case in enumerate(GATHERED)]
    over = [case for case in OVER_X if case[0][3] != 5]
    made += [
        conv(900 + i, *case, True, inner=True, end="int16", bias=1 << 20)
        for i, case in enumerate(over)
    ]
    return made


def element_graphs() -> list[Graph]:
    """Tensors times gates of channels, rows or single codes, sums of windows, and products of
    matrices, with ratios of every form."""
    made = []
    for seed in range(24):
        rng = np.random.default_rng(2000 + seed)
        g = GraphBuilder(f"elements{seed}")
        a = {"zero": int(rng.integers(-20, 20)), "low": -128, "high": 127 - seed % 2 * 30}
        zeros = {f"{name}_zero": int(rng.integers(-128, 128)) for name in "ab"}
        channels = int(rng.choice([1, 3, 8, 16, 21]))
        shape = (1, int(rng.integers(2, 6)), int(rng.integers(2, 6)), channels)
        x = g.input("x", "int8", shape)
        if seed % 3 == 0:
            gates = (shape, (1, 1, 1, channels), (*shape[:3], 1), (1, 1, 1, 1))
            gate = g.input("gate", "int8", gates[seed // 3 % 4])
            inputs = [x, gate] if seed % 2 else [gate, x]
            acc, reach = g.add("multiply", inputs, zeros), 1 << 16
        elif seed % 3 == 1:
            window = {"kernel": (2, 2), "strides": (2, 1), "pads": (0, 1, 0, 0)}
            acc, reach = g.add("sum_pool", [x], {**window, "zero": zeros["a_zero"]}), 1 << 10
        else:
            y = g.input("y", "int8", (1, shape[1], channels, int(rng.integers(1, 40))))
            acc, reach = g.add("matmul", [x, y], zeros), channels << 16
        ratio = Fraction(int(rng.integers(1 << 23, 1 << 24)), reach << 16)
        ratio = Fraction(1, reach >> 7) if seed % 5 == 0 else ratio
        a["ratios"] = (ratio if seed % 2 else round(ratio * (1 << 30)) * Fraction(1, 1 << 30),)
        made.append(g.build([g.add("requantize", [acc], {**a, "dtype": "int8"})]))
    return made


def graphs() -> list[Graph]:
    """All shapes; clamps at the ends of the type and, of convolutions, within."""
    made = [
        conv(seed, *case, full)
        for seed, (case, full) in enumerate(itertools.product(CONVS, (True, False)))
    ]
    made += [
        conv(100 + seed, image, kernel, image[3], {**a, "groups": image[3]}, True)
        for seed, (image, kernel, a) in enumerate(DEPTHWISE)
    ]
    made += [conv(300 + seed, *case, True) for seed, case in enumerate(GATHERED)]
    made += [conv(400 + seed, *case, True) for seed, case in enumerate(LONG)]
    made.append(conv(500, *CONVS[4], True, bias=1 << 25))
    over = (*OVER_X, *OVER_MORE, GATHERED[7])
    return made + [conv(200 + seed, *case, True, inner=True) for seed, case in enumerate(over)]


def random_graphs(count: int, wide: bool = False) -> list[Graph]:
    """Convolutions of random shapes, half of them one channel at a time; wide: of 16-bit codes."""
    made = []
    for seed in range(count):
        rng = np.random.default_rng(1000 + seed)
        kernel = tuple(rng.integers(1, 5, 2).tolist())
        size = [int(rng.integers(k, k + 7)) for k in kernel]
        pads = tuple(int(rng.integers(0, kernel[i % 2])) for i in range(4))
        strides = tuple(rng.integers(1, 4, 2).tolist())
        channels = int(rng.choice([1, 2, 3, 4, 7, 8, 16, 17, 33]))
        a = {"pads": pads, "strides": strides, "pad_code": int(rng.integers(-128, 128))}
        outputs = int(rng.integers(1, 20))
        if seed % 2 and channels > 1:
            outputs, a["groups"] = channels * int(rng.integers(1, 3)), channels
        elif seed % 4 == 0:
            groups = int(rng.integers(2, 5))
            channels, outputs, a["groups"] = channels * groups, outputs * groups, groups
        if seed % 3 == 0:
            a["dilations"] = tuple(rng.integers(1, 4, 2).tolist())
            size = [(k - 1) * d + s for k, d, s in zip(kernel, a["dilations"], size, strict=True)]
        image = (int(rng.integers(1, 3)), *size, channels)
        end = ("int16", "int16", "int8", "int32")[seed % 4] if wide else ""
        made.append(conv(1000 + seed, image, kernel, outputs, a, True, seed % 3 == 0, end=end))
    return made


def functions(graph: Graph, cpu: str) -> list[str]:
    """The kernels of a graph, in order."""
    entries = lower_to_calls(graph, find_cpu(cpu)).entries
    return [call.function for entry in entries for call in entry.calls]


@pytest.mark.parametrize("cpu", PACKED)
def test_packed_kernels_take_these_layers(cpu: str) -> None:
    for graph in graphs():
        packed = any(function.endswith("_packed") for function in functions(graph, cpu))
        clamped = any(node.attributes.get("high") == 90 for node in graph.nodes)
        assert packed == (cpu == "cortex-m55" or not clamped), graph.nodes


@pytest.mark.parametrize("cpu", PACKED)
def test_outputs_take_the_place_of_x(cpu: str) -> None:
    for seed, case in enumerate(OVER_X):
        calls = lower_to_calls(conv(seed, *case, True, inner=True), find_cpu(cpu))
        first, second = (layout(calls).places[entry.value] for entry in calls.entries[:2])
        assert first == second
        assert first.kind == "arena"


@pytest.mark.parametrize("cpu", PACKED)
def test_smaller_outputs_take_the_place_of_x_where_that_saves_memory(cpu: str) -> None:
    for seed, case in enumerate(OVER_MORE):
        graph = conv(seed, *case, True, inner=True)
        calls = calls_for(graph, find_cpu(cpu))
        first, second = (layout(calls).places[entry.value] for entry in calls.entries[:2])
        assert first == second
        assert layout(calls).bytes < layout(lower_to_calls(graph, find_cpu(cpu))).bytes


@pytest.mark.parametrize("cpu", PACKED)
def test_every_shape(same_in_c: Check, cpu: str) -> None:
    same_in_c(graphs(), "-O1", samples=3, cpu=cpu)


@pytest.mark.parametrize("cpu", PACKED)
def test_packed_kernels_round_twice(same_in_c: Check, cpu: str) -> None:
    made = [doubled(graph) for graph in graphs()]
    for graph in made:
        clamped = any(node.attributes.get("high") == 90 for node in graph.nodes)
        packed = any(function.endswith("_packed") for function in functions(graph, cpu))
        assert packed == (cpu == "cortex-m55" or not clamped), graph.nodes
    same_in_c(made[::2], "-O1", samples=3, cpu=cpu)


@pytest.mark.parametrize("cpu", PACKED[1:])
def test_shapes_of_16_bit_codes(same_in_c: Check, cpu: str) -> None:
    same_in_c(graphs16()[::4], "-O1", samples=3, cpu=cpu)


@pytest.mark.parametrize("cpu", PACKED[1:])
def test_products_and_pools_of_tensors(same_in_c: Check, cpu: str) -> None:
    same_in_c(element_graphs(), "-O1", samples=3, cpu=cpu)


@pytest.mark.parametrize("cpu", PACKED[1:])
def test_packed_kernels_take_16_bit_codes(cpu: str) -> None:
    for graph in graphs16():
        value = graph.values[graph.inputs[0]]
        node = next(node for node in graph.nodes if node.op == "conv")
        outputs, groups = graph.values[node.output].shape[3], node.attributes["groups"]
        several = 1 < groups == value.shape[3] != outputs
        packed = any(function.endswith("16_packed") for function in functions(graph, cpu))
        assert packed != several, graph.nodes


@pytest.mark.slow
@pytest.mark.parametrize("cpu", PACKED)
def test_random_shapes(same_in_c: Check, cpu: str, tmp_path: Path) -> None:
    made = random_graphs(60)
    same_in_c(made, "-O1", samples=3, cpu=cpu)
    same_on_board(together(made), cpu, cpu, tmp_path / "board")
    wide = random_graphs(60, wide=True)
    same_in_c(wide, "-O1", samples=3, cpu=cpu)
    same_on_board(together(wide), cpu, cpu, tmp_path / "wide")


@pytest.mark.slow
@pytest.mark.parametrize("cpu", PACKED)
def test_no_read_beyond_memory(same_in_c: Check, cpu: str) -> None:
    flags = "-g -O1 -fsanitize=address,undefined -fno-sanitize-recover=all"
    same_in_c([*graphs(), *graphs16()], *flags.split(), samples=3, cpu=cpu)


# --- on the boards --------------------------------------------------------------------------------


def together(made: list[Graph]) -> Graph:
    """One graph that computes all of them."""
    g = GraphBuilder("together")
    outputs = []
    for number, graph in enumerate(made):
        names = {}
        for name in graph.inputs:
            value = graph.values[name]
            names[name] = g.input(f"{name}{number}", value.dtype, value.shape)
        for name, array in graph.constants.items():
            names[name] = g.constant(f"{name}{number}", array)
        for node in graph.nodes:
            inputs = [names[n] for n in node.inputs]
            names[node.output] = g.add(node.op, inputs, node.attributes, f"{node.name}-{number}")
        outputs += [names[n] for n in graph.outputs]
    return g.build(outputs)


def same_on_board(graph: Graph, cpu: str, target: str, work: Path, *flags: str) -> None:
    """Codes of the board, made for `cpu`, are the interpreter's; ends of the type first."""
    skip_unless_available(TARGETS[target])
    write_package(graph, work / "package", cpu=cpu)
    program = build(work / "package", TARGETS[target].with_flags(*flags), work / "build")
    rng = np.random.default_rng(3)
    for sample in range(4):
        inputs = []
        for value in map(graph.values.__getitem__, graph.inputs):
            least, most = limits(value.dtype)
            codes = rng.integers(least, most, value.shape, value.dtype, endpoint=True)
            inputs.append(np.full_like(codes, (least, most)[sample]) if sample < 2 else codes)
        for name, found, expected in zip(
            graph.outputs, execute(program, inputs), run(graph, inputs), strict=True
        ):
            np.testing.assert_array_equal(found, expected, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "cpu", "flags"),
    [
        ("cortex-m55", "cortex-m55", ()),
        ("cortex-m55", "cortex-m55", ("-O0",)),
        ("cortex-m55", "cortex-m55", ("-O3", "-fno-omit-frame-pointer")),
        ("cortex-m55", "cortex-m4", ()),  # the other's package, in plain C
        ("cortex-m4", "cortex-m4", ()),
        ("cortex-m4", "cortex-m4", ("-O0",)),
        ("cortex-m4", "cortex-m4", ("-Os",)),
        ("cortex-m4", "cortex-m55", ()),
        ("cortex-m7", "cortex-m7", ()),
        ("cortex-m33", "cortex-m33", ("-O3",)),
        ("cortex-m3", "cortex-m3", ()),
        ("cortex-m3", "cortex-m3", ("-O0",)),
        ("cortex-m4", "cortex-m3", ()),
        ("cortex-m55", "cortex-m3", ()),
        ("cortex-m3", "cortex-m55", ()),
        ("cortex-m3", "cortex-m4", ("-Os",)),
        ("s390x", "cortex-m3", ()),  # big-endian
        ("s390x", "cortex-m4", ()),
        ("s390x", "cortex-m55", ()),
    ],
)
def test_on_boards(target: str, cpu: str, flags: tuple[str, ...], tmp_path: Path) -> None:
    same_on_board(together(graphs()), cpu, target, tmp_path / "8", *flags)
    twice = together([doubled(graph) for graph in (*graphs(), *element_graphs())])
    same_on_board(twice, cpu, target, tmp_path / "twice", *flags)
    same_on_board(together(graphs16()), cpu, target, tmp_path / "16", *flags)
    same_on_board(together(element_graphs()), cpu, target, tmp_path / "elements", *flags)


# --- what is refused ------------------------------------------------------------------------------


def test_other_layers_keep_their_kernels() -> None:
    """Sums that are stored, and 16-bit lanes that do not suffice."""
    g = GraphBuilder("stored")
    x = g.input("x", "int8", (1, 3))
    w = g.constant("w", np.ones((2, 3), np.int8))
    b = g.constant("b", np.zeros(2, np.int32))
    assert functions(g.build([g.add("linear", [x, w, b])]), "cortex-m55") == ["linear_sums"]
    for weight, function in ((-127, "depthwise8_packed"), (-128, "depthwise8")):
        g = GraphBuilder("depthwise")
        x = g.input("x", "int8", (1, 3, 3, 16))
        w = g.constant("w", np.full((16, 2, 2, 1), weight, np.int8))
        b = g.constant("b", np.zeros(16, np.int32))
        acc = g.add("conv", [x, w, b], {"groups": 16})
        a = {"ratios": (Fraction(1, 509),), "zero": 0, "low": -128, "high": 127, "dtype": "int8"}
        graph = g.build([g.add("requantize", [acc], a)])
        assert functions(graph, "cortex-m55") == [function]


def test_halfwords_of_two_channels_hold_their_sums() -> None:
    """Least weights go elsewhere; sums of 2**23 in the first channel are long ones."""
    for first, second, bias, expected in (
        (-128, 1, (0, 0), None),
        (127, 127, (0, 0), 0),
        (1, 1, ((1 << 23) - 129, 0), 1),
        (1, 1, ((1 << 23) - 300, 0), 0),
        (1, 1, (0, 1 << 23), 0),
    ):
        g = GraphBuilder("linear")
        x = g.input("x", "int8", (1, 2))
        w = g.constant("w", np.array([[first] * 2, [second] * 2], np.int8))
        b = g.constant("b", np.array(bias, np.int32))
        a = {"ratios": (Fraction(1, (1 << 18) + 1),), "zero": 0, "low": -128, "high": 127}
        acc = g.add("linear", [x, w, b])
        graph = g.build([g.add("requantize", [acc], {**a, "dtype": "int8"})])
        (call,) = lower_to_calls(graph, find_cpu("cortex-m4")).entries[0].calls
        assert call.parameters.fields.get("long_sums") == expected, (first, bias)
        assert (call.function == "conv8") == (expected is None)


def test_unknown_processor() -> None:
    graph = conv(0, *CONVS[0], True)
    with pytest.raises(InputError, match=r"expected a processor of portable, .*, found 'z80'"):
        texts(graph, cpu="z80")


def test_the_portable_kernels_are_the_default() -> None:
    assert set(functions(conv(0, *CONVS[0], True), "portable")) == {"conv8"}
    assert CPUS["cortex-m0"].packing is None
