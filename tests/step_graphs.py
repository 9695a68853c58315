"""Small step graphs with states of several types, and sequences to run them on."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from integer_graphs import random_codes
from samebits.ir import Graph, GraphBuilder, Quantization
from samebits.ir.verify import verify
from stream_program import Run


def sums(
    dtypes: tuple[str, ...], size: int = 3, initial: tuple[int, ...] = (), outputs: int = 1
) -> Graph:
    """States s_k' = codes(s_k / 2 + x) of the given types; outputs: x + all states, and x."""
    g = GraphBuilder("sums")
    x = g.input("x", "int8", (1, size))
    states = []
    for index, dtype in enumerate(dtypes):
        start = ""
        if index < len(initial):
            codes = (initial[index] + np.arange(size)).astype(dtype)[None]
            start = g.constant(f"start{index}", codes)
        g.initial.append(start)
        zero = Quantization(Fraction(1, 8), 5 - index)
        states.append(g.input(f"s{index}", dtype, (1, size), zero))
    following = []
    for name, dtype in zip(states, dtypes, strict=True):
        quantization = g.values[name].quantization
        if dtype == "int32":  # no codes that requantize gives: what it holds is x
            wide = {"factors": (70_000,), "offset": 1, "dtype": dtype}
            following.append(g.add("add", [x], wide, quantization=quantization))
            continue
        total = g.add("add", [name, x], {"factors": (1, 2)})
        info = np.iinfo(dtype)
        codes = {"low": int(info.min), "high": int(info.max), "dtype": dtype}
        ratio = {"ratios": (Fraction(1, 2),), **codes}
        following.append(g.add("requantize", [total], ratio, quantization=quantization))
    y = g.add("add", [x, *following], {"factors": (1,) * (1 + len(dtypes)), "dtype": "int64"})
    graph = g.build([*[y, x][:outputs], *following])
    verify(graph)
    return graph


GRAPHS = {
    "one": sums(("int8",)),
    "widths": sums(("int8", "int32", "int16", "uint8"), initial=(3, -100_000)),
    "trailing": sums(("int8", "int32"), size=5),
    "two outputs": sums(("int16", "int16"), size=9, initial=(0, 7), outputs=2),
    "no output": sums(("uint16",), outputs=0),
}


def runs_of(graph: Graph, seed: int, steps: int = 20) -> list[Run]:
    """From a reset, and from states drawn at random."""
    rng = np.random.default_rng(seed)
    values = [graph.values[name] for name in graph.own_inputs]
    inputs = [random_codes(rng, v.dtype, (steps, *v.shape)) for v in values]
    states = [
        random_codes(rng, graph.values[s.input].dtype, graph.values[s.input].shape)
        for s in graph.states
    ]
    return [Run(inputs), Run(inputs, states)]
