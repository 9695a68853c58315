"""Short factors of a sum give the outputs of the exact ones, for every pair of codes."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from samebits.ir import GraphBuilder, interpreter
from samebits.ir.integer.define import limits
from samebits.ir.lowering.sums import shorten_sums
from samebits.ir.verify import verify


def exact_sum(seed, dtypes):
    rng = np.random.default_rng(seed)
    b = GraphBuilder("sum")
    x, y = (b.input(n, t, (65536,)) for n, t in zip("xy", dtypes, strict=True))
    k = tuple(int(v) for v in rng.integers(1 << 20, 1 << 24, 2) << rng.integers(0, 6, 2))
    k = (k[0], -k[1]) if seed % 3 == 0 else k
    scale = Fraction(int(rng.integers(1 << 23, 1 << 24)), 1 << 52)
    attributes = {"factors": k, "offset": int(rng.integers(-(1 << 30), 1 << 30)), "dtype": "int64"}
    acc = b.add("add", [x, y], attributes)
    out = {"ratios": (scale,), "zero": 3, "low": -128, "high": 127, "dtype": "int8"}
    return b.build([b.add("requantize", [acc], out)])


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("dtypes", [("int8", "int8"), ("uint8", "int8")])
def test_every_pair_of_codes(seed, dtypes):
    graph = exact_sum(seed, dtypes)
    short = shorten_sums(graph)
    verify(short)
    ranges = [np.arange(low, high + 1) for low, high in map(limits, dtypes)]
    pairs = [g.reshape(-1).astype(t) for g, t in zip(np.meshgrid(*ranges), dtypes, strict=True)]
    (expected,), (found,) = (interpreter.run(g, pairs) for g in (graph, short))
    assert np.count_nonzero(expected != found) == 0
    ratio = short.nodes[1].attributes["ratios"][0]
    assert ratio.numerator == 1
    assert ratio.denominator.bit_count() == 1


def test_other_sums_stay():
    b = GraphBuilder("other")
    x, y = b.input("x", "int16", (4,)), b.input("y", "int8", (4,))
    acc = b.add("add", [x, y], {"factors": (3, 5)})
    graph = b.build([acc])
    assert shorten_sums(graph) is graph


def sum_of_bytes(factors, ratio, dtype="int16"):
    """x and y [65536] of int8 codes: requantize(add)."""
    b = GraphBuilder("sum")
    x, y = b.input("x", "int8", (65536,)), b.input("y", "int8", (65536,))
    acc = b.add("add", [x, y], {"factors": factors, "offset": 0, "dtype": "int64"})
    low, high = limits(dtype)
    out = {"ratios": (ratio,), "zero": 0, "low": low, "high": high, "dtype": dtype}
    return b.build([b.add("requantize", [acc], out)])


@pytest.mark.parametrize("ratio", [Fraction(1, 1 << 40), Fraction(9, 1 << 27)])
def test_the_unit_of_sums_of_less_than_a_step_is_two_to_the_minus_30(ratio):
    """However small they are: a finer one would not change a code."""
    short = shorten_sums(sum_of_bytes((1, -1), ratio))
    assert short.nodes[1].attributes["ratios"] == (Fraction(1, 1 << 30),)


def test_sums_of_many_steps_have_wide_factors():
    """Where 2**-9 of a step, the finest unit within 32 bits, is too coarse, 2**-40 is taken for
    sums of less than 2**21 steps. Others stay exact."""
    unit = Fraction(1, 3**20)
    for steps, wide in ((9000, True), (16300, True), (16400, False)):  # times 128: the largest sum
        factors = tuple(int(Fraction(part) / unit) for part in (f"{steps}.123", "60.377"))
        graph = sum_of_bytes(factors, unit)
        short = shorten_sums(graph)
        if not wide:
            assert short is graph
            continue
        assert short.nodes[1].attributes["ratios"] == (Fraction(1, 1 << 40),)
        x, y = np.meshgrid(np.arange(-128, 128), np.arange(-128, 128))
        pairs = [x.reshape(-1).astype(np.int8), y.reshape(-1).astype(np.int8)]
        (expected,), (found,) = (interpreter.run(g, pairs) for g in (graph, short))
        assert np.count_nonzero(expected != found) == 0
