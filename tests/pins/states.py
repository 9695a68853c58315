"""Networks whose states come in and go out: formats of both ends, and calls with the state fed
back.

Weights and samples have few bits and the calls are few, as in `quantization`, whose remark about
machines holds here too.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from pins.quantization import constants, sequence_by_interpreter, sequences_in_c
from pins.registry import Pins, route
from pins.samples import fractions
from samebits.ir import Graph, GraphBuilder
from samebits.ir.rewrite import simplify
from samebits.model import Model
from samebits.quantization import RecurrentSettings, quantize_states, tie_states

FEATURES, HIDDEN = 5, 6


def layer(op: str, gates: int) -> Graph:
    """x [2, 1, 5] and h (and c) of a layer, which are given and returned: two steps in a call whose
    mean is the output, so that they become two cells."""
    builder = GraphBuilder(op)
    x = builder.input("x", "float32", (2, 1, FEATURES))
    states = [builder.input(name, "float32", (1, 1, HIDDEN)) for name in "hc"[: 1 + (gates == 4)]]
    shapes = ((1, gates * HIDDEN, FEATURES), (1, gates * HIDDEN, HIDDEN), (1, 2 * gates * HIDDEN))
    weights = [
        builder.constant("w", fractions(140 + 4 * gates + i, shape, 7, -6))
        for i, shape in enumerate(shapes)
    ]
    y, *after = builder.add_all(op, [x, *weights, "", *states], {"hidden_size": HIDDEN})
    mean = builder.add("ReduceMean", [y], {"axes": (0,)})
    return simplify(builder.build([mean, *after]))


def running_mean() -> Graph:
    """x and m [1, 5] -> W (x - m') and m' = m * 7/8 + x / 8."""
    builder = GraphBuilder("mean")
    x, m = (builder.input(name, "float32", (1, FEATURES)) for name in ("x", "cache"))
    kept, new = (builder.constant(n, np.float32(v)) for n, v in (("kept", 0.875), ("new", 0.125)))
    parts = [builder.add("Mul", pair) for pair in ((m, kept), (x, new))]
    after = builder.add("Add", parts, outputs=["cache_out"])
    weight = builder.constant("w", fractions(160, (3, FEATURES), 7, -6))
    y = builder.add("Gemm", [builder.add("Sub", [x, after]), weight], {"transB": 1})
    return simplify(builder.build([y, after]))


@cache
def tied(name: str) -> Model:
    graph = {"LSTM": lambda: layer("LSTM", 4), "GRU": lambda: layer("GRU", 3), "mean": running_mean}
    made = tie_states(graph[name]())
    x = fractions(170, (2, 10, *made.values["x"].shape), 8, -6)
    return Model(name, quantize_states(made, {"x": x}, RecurrentSettings(), name)[0])


@route("quantized-states")
def quantized_states() -> Pins:
    found = {}
    for name in ("LSTM", "GRU", "mean"):
        model = tied(name)
        pins = constants(model.real)
        pins["sequence"] = sequence_by_interpreter(model)
        found |= {f"{name}: {key}": value for key, value in pins.items()}
    return found


@route("quantized-states-c", slow=True)
def quantized_states_in_c() -> Pins:
    return sequences_in_c({name: tied(name) for name in ("LSTM", "mean")})
