"""The vector kernels for codes of 8 bits, with every width, edge and requantization they tell
apart, compiled for each instruction set that this machine has or emulates, against the
interpreter."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from samebits.codegen.run.targets import TARGETS
from samebits.ir.graph import Graph, GraphBuilder
from two_roundings import doubled

Check = Callable[..., None]
# Flags of the compiler, and what the processor needs for them.
SETS: dict[str, tuple[tuple[str, ...], frozenset[str]]] = {
    "sse2": (("-march=x86-64",), frozenset({"sse2"})),
    "avx2": (("-mavx2",), frozenset({"avx2"})),
    "vnni": (
        ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni"),
        frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"}),
    ),
    "native": (("-march=native",), frozenset()),
}
# Flags of the compiler for aarch64; the emulator's processor has all of them.
NEON = {
    "neon": ("-static",),
    "neon, dot products": ("-march=armv8.2-a+dotprod", "-static"),
}
# Ratios of a channel: odd multipliers with large shifts; ties that small sums reach, at every size
# of shift; a channel that gives one code; those that only the general way takes.
PLAIN = (Fraction(951744327, 1 << 39), Fraction(3887793, 1 << 31), Fraction(1001303231, 1 << 39))
TIES = (Fraction(1, 8), Fraction(3, 32), Fraction(5, 1 << 9), Fraction(1, 1 << 12), Fraction(7, 64))
LARGE = (Fraction(1, 4), Fraction(1, 2), Fraction(3, 8), Fraction(1), Fraction(5, 3))


def features() -> frozenset[str]:
    """What this processor says it has."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return frozenset()
    lines = info.read_text(encoding="utf-8").splitlines()
    return frozenset(next((line for line in lines if line.startswith("flags")), "").split())


def flags_of(name: str) -> tuple[str, ...]:
    flags, needed = SETS[name]
    if os.uname().machine != "x86_64":
        pytest.skip("needs an x86-64 machine")
    missing = needed - features()
    if missing:
        pytest.skip(f"needs a processor with {', '.join(sorted(missing))}")
    return flags


def requantized(g: GraphBuilder, acc: str, ratios: Sequence[Fraction], **other: Any) -> str:
    a = {"zero": -5, "low": -128, "high": 127, "dtype": "int8", **other}
    return g.add("requantize", [acc], {"ratios": tuple(ratios), **a})


def conv(
    image: tuple[int, int, int],
    outputs: int,
    kernel: tuple[int, int] = (1, 1),
    *,
    strides: tuple[int, int] = (1, 1),
    pads: tuple[int, int, int, int] = (0, 0, 0, 0),
    dilations: tuple[int, int] = (1, 1),
    groups: int = 1,
    batch: int = 1,
    dtype: str = "int8",
    ratios: Sequence[Fraction] = PLAIN,
    single: bool = False,
    small: int = 128,
    **rescale: Any,
) -> Graph:
    """A convolution, its weights below `small` in magnitude, its ratios taken in turn."""
    rng = np.random.default_rng(outputs * 1000 + image[2])
    g = GraphBuilder("conv")
    x = g.input("x", dtype, (batch, *image))
    shape = (outputs, *kernel, image[2] // groups)
    w = g.constant("w", rng.integers(-small, small, shape, "int8"))
    b = g.constant("b", rng.integers(-9999, 9999, outputs, "int32") // (1 if small > 9 else 999))
    a: dict[str, Any] = {"strides": strides, "dilations": dilations, "groups": groups}
    pad_code = 7 if dtype == "uint8" else -100
    a |= {"dtype": "int32", "pads": pads, "pad_code": pad_code}
    acc = g.add("conv", [x, w, b], a)
    count = 1 if single else outputs
    return g.build(
        [requantized(g, acc, [ratios[i % len(ratios)] for i in range(count)], **rescale)]
    )


def added(
    size: int, ratio: Fraction, dtypes: Sequence[str], factors: Sequence[int], **other: Any
) -> Graph:
    g = GraphBuilder("added")
    names = [g.input(f"x{i}", dtype, (1, size)) for i, dtype in enumerate(dtypes)]
    a = {"factors": tuple(factors), "offset": -77, "dtype": "int32"}
    return g.build([requantized(g, g.add("add", names, a), [ratio], **other)])


def points() -> Iterator[Graph]:
    """Windows of one pixel: every number of blocks and rests of pixels."""
    for outputs in (1, 8, 16, 17, 32, 40, 48, 64, 70, 130):
        for width, depth in ((1, 4), (9, 12), (13, 64)):
            yield conv((1, width, depth), outputs)
    yield conv((4, 5, 8), 20, strides=(2, 2), batch=2, dtype="uint8")
    yield conv((3, 5, 6), 20, strides=(2, 3), batch=2)
    yield conv((2, 5, 8), 16, pads=(0, 1, 1, 0))


def windows() -> Iterator[Graph]:
    """Larger windows, with bands of whole rows, of parts of rows, and of groups."""
    ones = (1, 1, 1, 1)
    for outputs in (3, 16, 24, 37, 80):
        yield conv((6, 7, 3), outputs, (3, 3), pads=ones)
        yield conv((9, 8, 5), outputs, (3, 3), pads=(0, 1, 1, 0), strides=(2, 2), dtype="uint8")
    yield conv((7, 9, 4), 18, (5, 5), pads=(2, 2, 2, 2), batch=2)
    yield conv((7, 9, 4), 18, (2, 3), pads=(1, 2, 2, 3), strides=(3, 2))
    yield conv((9, 9, 6), 12, (3, 3), pads=(2, 2, 2, 2), dilations=(2, 2))
    yield conv((5, 12, 7), 9, (1, 5), pads=(0, 2, 0, 2), dilations=(1, 1))
    yield conv((12, 3, 7), 9, (5, 1), strides=(4, 1))
    yield conv((4, 130, 40), 10, (3, 3), pads=ones)
    for outputs in (16, 40):  # of 16, half lie beside those of the other group
        yield conv((5, 9, 12), outputs, (3, 3), pads=ones, groups=2)
    yield conv((40, 1, 16), 16, (3, 1), dilations=(12, 1), pads=(12, 0, 12, 0))
    yield conv((1, 1, 5), 20, (3, 3), pads=ones)
    yield conv((3, 3, 1), 64, (10, 4), strides=(2, 2), pads=(5, 2, 5, 2))


def depthwise() -> Iterator[Graph]:
    ones = (1, 1, 1, 1)
    for channels in (3, 8, 16, 24, 32, 48, 64, 65, 130):
        for stride in (1, 2):
            yield conv(
                (7, 19, channels), channels, (3, 3), groups=channels, pads=ones,
                strides=(stride, stride), dtype=("int8", "uint8")[channels % 2],
            )  # fmt: skip
    for channels in (8, 64, 72):
        whole = {"groups": channels, "batch": 2}
        yield conv((6, 5, channels), channels, (5, 5), pads=(2, 2, 2, 2), **whole)
        yield conv((8, 1, channels), channels, (3, 1), pads=(1, 0, 1, 0), **whole)
        yield conv((2, 21, channels), channels, (1, 3), pads=(0, 1, 0, 1), **whole)
        yield conv((9, 11, channels), channels, (3, 3), dilations=(2, 3), pads=ones, **whole)
        yield conv((1, 1, channels), channels, (3, 3), pads=ones, **whole)
        yield conv((3, 4, channels), channels, (1, 1), **whole)
        yield conv((1, 1, channels), channels, (1, 1), groups=channels)
        yield conv((9, 20, channels), channels, (3, 3), strides=(1, 3), pads=(0, 0, 0, 2), **whole)
    yield conv((9, 10, 16), 16, (8, 8), groups=16, pads=(4, 4, 4, 4))
    yield conv((9, 12, 16), 16, (9, 9), groups=16, pads=(4, 4, 4, 4))


def drawn() -> Iterator[Graph]:
    """Windows of any shape: groups, columns of one pixel, dilations, ends without padding."""
    rng = np.random.default_rng(5)

    def number(most: int) -> int:
        return int(rng.integers(1, most, endpoint=True))

    for index in range(40):
        kind = index % 4  # groups, depthwise, a column, any
        column = kind == 2
        kernel = (number(4), 1 if column else number(4))
        strides, dilations = ((number(2), number(2)), (number(3), 1 if column else number(2)))
        above, left, below, right = (int(v) for v in rng.integers(0, 3, 4))
        pads = (above, 0, below, 0) if column else (above, left, below, right)
        reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
        image = (reach[0] + number(9) - 1, 1 if column else reach[1] + number(12) - 1)
        groups = (number(4), 8 * number(9), 1, 1)[kind]
        depth, outputs = (1, 1) if kind == 1 else (number(9), number(24))
        yield conv(
            (*image, groups * depth), groups * outputs, kernel, strides=strides, pads=pads,
            dilations=dilations, groups=groups, batch=number(2),
            dtype=("int8", "uint8")[index % 5 % 2], ratios=(*PLAIN, *TIES), single=index % 3 == 0,
        )  # fmt: skip


def requantizations() -> Iterator[Graph]:
    """Every form by channel and for all: shifts, products with ties and without, and others."""
    ratios = [PLAIN, TIES, LARGE, (*PLAIN, *TIES), (*TIES, *LARGE), (Fraction(1, 3),)]
    ratios += [(Fraction(1, 1 << s),) for s in (1, 2, 3, 9)] + [(Fraction(1, 100), Fraction(3, 10))]
    for some in ratios:
        for single in (False, True):
            other: dict[str, Any] = {"ratios": some, "single": single, "small": 3}
            yield conv((1, 40, 4), 20, **other)
            yield conv((5, 9, 16), 16, (3, 3), groups=16, pads=(1, 1, 1, 1), **other)
            yield conv((1, 1, 8), 70, **other, zero=12, low=-17, high=99)
            wide = {"zero": 130, "low": 1, "high": 250, "dtype": "uint8"}
            yield requantized_as(other, wide)
    short = {"low": -32768, "high": 32767, "dtype": "int16"}
    yield requantized_as({"ratios": (Fraction(1, 8),), "single": True}, short)
    yield requantized_as({"ratios": (), "single": True}, {})
    yield conv((1, 9, 8), 20, ratios=PLAIN, zero=40000)


def requantized_as(how: dict[str, Any], to: dict[str, Any]) -> Graph:
    """Two rows of pixels, to codes of other types; the sums themselves where there is no ratio."""
    g = GraphBuilder("types")
    rng = np.random.default_rng(3)
    x = g.input("x", "uint8", (1, 2, 9, 4))
    w = g.constant("w", rng.integers(-3, 3, (24, 1, 1, 4), "int8"))
    b = g.constant("b", np.zeros(24, np.int32))
    a: dict[str, Any] = {"strides": (1, 1), "dilations": (1, 1), "groups": 1, "pads": (0, 0, 0, 0)}
    acc = g.add("conv", [x, w, b], {**a, "dtype": "int32", "pad_code": 0})
    count = 1 if how["single"] else 24
    if not how["ratios"]:
        return g.build([acc])
    ratios = [how["ratios"][i % len(how["ratios"])] for i in range(count)]
    return g.build([requantized(g, acc, ratios, **to)])


def sums() -> Iterator[Graph]:
    for size in (1, 15, 64, 100, 640):
        for ratio in (
            Fraction(1, 1 << 12),
            Fraction(3, 1 << 14),
            Fraction(1, 3000),
            Fraction(1, 2),
        ):
            yield added(size, ratio, ("int8", "int8"), (3000, -1777))
    yield added(130, Fraction(1, 8), ("uint8", "int8"), (3, 1))
    yield added(130, Fraction(1, 1 << 10), ("int8", "int8", "uint8"), (500, 1, 70), zero=9, low=0)
    wide = {"dtype": "uint8", "low": 0, "high": 255, "zero": 128}
    yield added(130, Fraction(5, 1 << 9), ("int8", "int8"), (33, 1 << 20), **wide)
    yield added(130, Fraction(5, 1 << 9), ("uint8", "uint8"), (33, 12), **wide)


def rounded_twice() -> Iterator[Graph]:
    """By channel and for all, with ends that negative sums reach and that they do not."""
    ones = (1, 1, 1, 1)
    ends: tuple[dict[str, Any], ...] = (
        {},
        {"zero": -128},
        {"zero": 12, "low": 12, "high": 99},
        {"zero": 40000},
    )
    for index, more in enumerate(ends):
        for ratios in (PLAIN, (*TIES, *PLAIN), LARGE):
            other: dict[str, Any] = {"ratios": ratios, "single": index % 2 == 1, **more}
            for outputs in (8, 20, 40, 70):
                yield doubled(conv((1, 13, 12), outputs, **other))
            for channels in (8, 16, 70):
                yield doubled(conv((5, 9, channels), channels, (3, 3), groups=channels, pads=ones,
                                   small=9, **other))  # fmt: skip
            yield doubled(conv((6, 7, 3), 16, (3, 3), pads=ones, small=3, **other))
            for dtypes in (("int8", "int8"), ("int16", "uint16", "int8")):
                yield doubled(added(130, ratios[0], dtypes, (300, -177, 40)[: len(dtypes)], **more))
    yield doubled(added(100, PLAIN[0], ("int8", "int8"), (1 << 22, 7)))  # sums up to 2**29
    bytes_: dict[str, Any] = {"zero": 130, "low": 1, "high": 250, "dtype": "uint8"}
    yield doubled(added(130, PLAIN[1], ("int8", "int8"), (300, -177), **bytes_))
    for to in (bytes_, {"low": -32768, "high": 32767, "dtype": "int16"}):
        yield doubled(requantized_as({"ratios": TIES, "single": False}, to))


def copies() -> Iterator[Graph]:
    """Transposes, images from channels one after the other to channels side by side among them."""
    for dtype in ("int8", "int16", "int32", "int64"):
        for shape, order in (
            ((2, 3, 5, 7), (0, 2, 3, 1)),
            ((1, 3, 40, 2), (0, 2, 3, 1)),
            ((1, 2, 50, 3), (0, 2, 3, 1)),
            ((2, 20, 3, 3), (0, 2, 3, 1)),
            ((1, 4, 4, 3), (0, 3, 1, 2)),
            ((2, 3, 7, 20), (0, 3, 1, 2)),
            ((7, 5), (1, 0)),
        ):
            g = GraphBuilder("turned")
            x = g.input("x", dtype, shape)
            yield g.build([g.add("transpose", [x], {"perm": order})])


FAMILIES = {
    "points": points,
    "windows": windows,
    "depthwise": depthwise,
    "drawn": drawn,
    "requantizations": requantizations,
    "sums": sums,
    "rounded twice": rounded_twice,
    "copies": copies,
}
QUICK = {  # every family on the best of this machine, a few on every set
    "native": {*FAMILIES} - {"drawn"},
    "sse2": {"points"},
    "avx2": {"requantizations", "rounded twice"},
    "vnni": {"windows"},
    "neon": {"points", "depthwise", "sums", "rounded twice"},
    "neon, dot products": {"windows"},
}


def cases(sets: Iterable[str]) -> list[Any]:
    """The quick ones at -O1, which compiles in a third of the time; then all as they ship."""
    return [
        *(("-O1", name, family) for name in sets for family in FAMILIES if family in QUICK[name]),
        *(
            pytest.param("-O3" if name == "native" else "-O2", name, family, marks=pytest.mark.slow)
            for name in sets
            for family in FAMILIES
        ),
    ]


def samples(graph: Graph) -> list[list[Any]]:
    """All least, all greatest, random over the whole type, and small, which meet more ties."""
    rng = np.random.default_rng(8)
    cases = []
    for low, high in ((0, 0), (255, 255), (0, 255), (120, 136), (126, 130)):
        case = []
        for name in graph.inputs:
            value = graph.values[name]
            offset = 0 if value.dtype == "uint8" else -128
            drawn = rng.integers(low, high, value.shape, endpoint=True) + offset
            case.append(drawn.astype(value.dtype))
        cases.append(case)
    return cases


@pytest.mark.parametrize(("level", "instructions", "family"), cases(SETS))
def test_vectors_compute_the_same(
    same_in_c: Check, level: str, instructions: str, family: str
) -> None:
    flags = flags_of(instructions)
    graphs = list(FAMILIES[family]())
    same_in_c(graphs, level, *flags, inputs=[samples(graph) for graph in graphs])


@pytest.mark.parametrize(("level", "instructions", "family"), cases(NEON))
def test_vectors_of_aarch64_compute_the_same(
    same_in_c: Check, level: str, instructions: str, family: str
) -> None:
    target = TARGETS["aarch64"]
    reason = target.unavailable()
    if reason is not None:
        pytest.skip(reason)
    graphs = list(FAMILIES[family]())
    same_in_c(
        graphs,
        level,
        *NEON[instructions],
        compiler=target.compiler_command[0],
        runner=target.runner,
        inputs=[samples(graph) for graph in graphs],
    )
