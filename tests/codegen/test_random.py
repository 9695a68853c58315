"""Random networks of many operators: every stored value in C is the interpreter's."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from samebits.ir.graph import Graph, GraphBuilder
from samebits.ir.integer.bounds import bounds
from samebits.ir.integer.define import limits

Check = Callable[..., None]
GRAPHS = 30


class Network:
    """Grows a graph on images of 8-bit codes, one operator after the other."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.g = GraphBuilder(f"random {seed}")
        self.images = [
            self.g.input("x", "int8", self.shape(1)),
            self.g.input("y", "uint8", self.shape(int(self.rng.integers(1, 20)))),
        ]

    def shape(self, channels: int) -> tuple[int, int, int, int]:
        return (1, int(self.rng.integers(4, 9)), int(self.rng.integers(4, 12)), channels)

    def pick(self, *options: Any) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def image(self) -> str:
        return self.images[int(self.rng.integers(max(0, len(self.images) - 4), len(self.images)))]

    def scaled(self, acc: str, dtype: str) -> str:
        found = bounds(self.g.build([acc]))[acc].hull
        spread = max(abs(found.low[0]), abs(found.high[0]), 1)
        channels = self.g.values[acc].shape[-1]
        base = Fraction(400, spread)
        ratios = tuple(
            self.pick(
                base * Fraction(int(self.rng.integers(1 << 23, 1 << 24)), 1 << 24),
                Fraction(1, 1 << max(0, (spread // 200).bit_length())),
            )
            for _ in range(self.pick(1, channels))
        )
        low, high = limits(dtype)
        a = {"ratios": ratios, "zero": int(self.rng.integers(low, high)), "dtype": dtype}
        return self.g.add("requantize", [acc], {**a, "low": low, "high": high})

    def grow(self) -> None:
        x = self.image()
        value = self.g.values[x]
        _, height, width, c = value.shape
        dtype = self.pick("int8", "uint8")
        kind = self.pick("conv", "conv", "depthwise", "add", "table", "pool", "move", "affine")
        code = int(self.rng.integers(*limits(value.dtype)))
        if kind in ("conv", "depthwise"):
            k = self.pick(1, 2, 3)
            groups = c if kind == "depthwise" else 1
            o = c if kind == "depthwise" else int(self.rng.integers(1, 40))
            w = self.rng.integers(-128, 128, (o, k, k, c // groups)).astype(np.int8)
            b = self.rng.integers(-5000, 5000, o, "int32")
            a = {"strides": self.pick((1, 1), (2, 1), (2, 2)), "groups": groups, "pad_code": code}
            a["pads"] = tuple(int(v) for v in self.rng.integers(0, k, 4))
            if min(height, width) < k:
                a["pads"] = (k, k, k, k)
            weights = [self.g.constant("w", w), self.g.constant("b", b)]
            y = self.scaled(self.g.add("conv", [x, *weights], a), dtype)
        elif kind == "add":
            others = [i for i in self.images if self.g.values[i].shape == value.shape]
            other = self.pick(*others)
            factors = tuple(int(v) for v in self.rng.integers(-2000, 2000, 2))
            acc = self.g.add("add", [x, other], {"factors": factors, "offset": code})
            y = self.scaled(acc, dtype)
        elif kind == "table":
            table = self.rng.integers(*limits(dtype), self.pick((256,), (c, 256)), dtype)
            y = self.g.add("table", [x, self.g.constant("t", table)])
        elif kind == "pool":
            a = {"kernel": (2, 2), "strides": self.pick((1, 1), (2, 2)), "pads": (1, 1, 0, 1)}
            if self.pick(True, False):
                y = self.g.add("max_pool", [x], a)
            else:
                y = self.scaled(self.g.add("sum_pool", [x], {**a, "zero": code}), dtype)
        elif kind == "affine":
            m = self.g.constant("m", self.rng.integers(-99, 99, c, "int32"))
            b = self.g.constant("b", self.rng.integers(-999, 999, c, "int32"))
            y = self.scaled(self.g.add("affine", [x, m, b]), dtype)
        else:
            y = self.pick(
                lambda: self.g.add("clip", [x], {"low": 0, "high": 99}),
                lambda: self.g.add("transpose", [x], {"perm": (0, 2, 1, 3)}),
                lambda: self.g.add("concat", [x, x], {"axis": 3}),
                lambda: self.g.add("pad", [x], {
                    "before": (0, 1, 0, 0), "after": (0, 0, 2, 1), "code": 7}),
                lambda: self.g.add("reshape", [x], {"shape": (1, width, height, c)}),
            )()  # fmt: skip
        self.images.append(y)

    def graph(self) -> Graph:
        for _ in range(int(self.rng.integers(3, 12))):
            self.grow()
        outputs = [self.images[-1], self.image()]
        flat = self.g.add("reshape", [self.images[-1]], {
            "shape": (1, self.g.values[self.images[-1]].size)})  # fmt: skip
        k = self.g.values[flat].size
        w = self.g.constant("w", self.rng.integers(-128, 128, (10, k)).astype(np.int8))
        b = self.g.constant("b", np.zeros(10, np.int32))
        logits = self.scaled(self.g.add("linear", [flat, w, b]), "int8")
        powers = np.round(2**24 * np.exp(-0.03 * np.arange(256))).astype(np.int32)
        a = {"ratio": Fraction(256), "zero": -128, "low": -128, "high": 127, "dtype": "int8"}
        outputs.append(self.g.add("softmax", [logits, self.g.constant("t", powers)], a))
        outputs.append(self.g.add("argmax", [logits], {"axis": 1}))
        return self.g.build(outputs)


def networks(first: int, count: int) -> list[Graph]:
    return [Network(seed).graph() for seed in range(first, first + count)]


def test_random_networks(same_in_c: Check) -> None:
    same_in_c(networks(0, GRAPHS), samples=3)


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize(
    "flags",
    [
        *("-O0", "-Os", "-O2", "-O3", "-O2 -mavx2", "-O3 -march=native", "-O2 -U__SSE2__"),
        "sanitizers",
    ],
)
def test_every_path_and_level(same_in_c: Check, compiler: str, flags: str) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"needs {compiler}")
    if os.uname().machine != "x86_64" and ("avx" in flags or "SSE" in flags):
        pytest.skip("needs an x86-64 machine")
    if flags == "sanitizers":
        flags = "-O1 -fsanitize=address,undefined -fno-sanitize-recover=all"
    same_in_c(networks(100, 3 * GRAPHS), *flags.split(), samples=3, compiler=compiler)
