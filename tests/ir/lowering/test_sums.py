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
