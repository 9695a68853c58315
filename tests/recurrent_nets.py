"""Seeded random recurrent networks: float graphs on whole sequences, samples, and how to quantize
them."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from samebits.ir import Graph, GraphBuilder
from samebits.ir.lowering.lower import lower_graph
from samebits.ir.rewrite import simplify
from samebits.quantization.lstm import (
    GATE_FORMATS,
    RecurrentReport,
    RecurrentSettings,
    quantize_recurrent,
)

Array = np.ndarray[Any, Any]
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
STATES = {"LSTM": 2, "GRU": 1, "RNN": 1}


@dataclass
class Net:
    """A network on x [steps, 1, features] in the making.

    Weights: uniform in [-span, span], each with the probability `zeros` 0 or, as seldom, tiny.
    """

    seed: int
    steps: int
    features: int
    span: float = 1.0
    zeros: float = 0.0
    builder: GraphBuilder = field(default_factory=lambda: GraphBuilder("net"))

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.x = self.builder.input("x", "float32", (self.steps, 1, self.features))

    def numbers(self, *shape: int) -> Array:
        found = self.rng.uniform(-self.span, self.span, shape)
        draw = self.rng.random(shape)
        found = np.where(draw < 2 * self.zeros, found / 4096, found)
        return np.where(draw < self.zeros, 0, found).astype(np.float32)

    def constant(self, array: Any) -> str:
        return self.builder.constant("w", np.asarray(array, np.float32))

    def layer(
        self,
        op: str,
        x: str,
        hidden: int,
        given: str = "B",
        projected: int = 0,
        weights: tuple[Array, Array] | None = None,
        **attributes: Any,
    ) -> tuple[str, ...]:
        """The outputs of a recurrent layer. given: letters of BhcP, for biases, initial states and
        peepholes. weights: W and R instead of random ones."""
        features = self.builder.values[x].shape[2]
        rows, outputs = GATES[op] * hidden, projected or hidden
        w, r = weights or (self.numbers(1, rows, features), self.numbers(1, rows, outputs))
        shapes = {"B": (2 * rows,), "": (), "h": (1, outputs), "c": (1, hidden), "P": (3 * hidden,)}
        inputs = [x, self.constant(w), self.constant(r)]
        for letter, shape in shapes.items():
            wanted = letter and letter in given
            inputs.append(self.constant(self.numbers(1, *shape)) if wanted else "")
        if projected:
            inputs.append(self.constant(self.numbers(1, projected, hidden)))
        while not inputs[-1]:
            inputs.pop()
        count = len(self.builder.nodes)
        return self.builder.add_all(
            op, inputs, {"hidden_size": hidden, **attributes}, f"{op.lower()}{count}"
        )

    def sequence(self, y: str) -> str:
        """[T, 1, B, P] as [T, B, P]."""
        steps, _, batch, outputs = self.builder.values[y].shape
        return self.builder.add("Reshape", [y], {"shape": (steps, batch, outputs)})

    def graph(self, *outputs: str) -> Graph:
        return self.builder.build(outputs)

    def samples(self, count: int, scale: float = 1.0) -> list[list[Array]]:
        shape = self.builder.values[self.x].shape
        return [
            [(scale * self.rng.standard_normal(shape)).astype(np.float32)] for _ in range(count)
        ]


def random_network(seed: int, steps: int = 4) -> tuple[Net, Graph, RecurrentSettings]:
    """1 or 2 layers of 1 to 40 features and cells, in any form that has an integer one."""
    rng = np.random.default_rng([seed, 1])

    def one_of(*values: Any) -> Any:
        return values[int(rng.integers(len(values)))]

    size = one_of(4, 12, 40)
    span, zeros = one_of(0.125, 0.5, 1.0, 3.0), one_of(0.0, 0.0, 0.3, 0.5)
    net = Net(seed, steps, int(rng.integers(1, size + 1)), span, zeros)
    x = net.x
    for _ in range(one_of(1, 1, 2)):
        op = one_of("LSTM", "LSTM", "LSTM", "GRU", "RNN")
        hidden = int(rng.integers(1, size + 1))
        given = one_of("", "B", "B") + one_of("", "h")
        attributes: dict[str, Any] = {}
        if rng.random() < 0.25:
            attributes["clip"] = one_of(0.5, 3.0)
        if op == "LSTM":
            given += one_of("", "c") + one_of("", "", "P")
            if rng.random() < 0.25:
                attributes["projected"] = int(rng.integers(1, hidden + 1))
            attributes["input_forget"] = one_of(0, 0, 1)
        if op == "GRU":
            attributes["linear_before_reset"] = one_of(0, 1)
        x = net.sequence(net.layer(op, x, hidden, given, **attributes)[0])
    settings = RecurrentSettings(
        bits=one_of(8, 8, 16),
        symmetry=one_of(0.0, 0.5, 1.0),
        gates=one_of(*GATE_FORMATS) if rng.random() < 0.2 else GATE_FORMATS[0],
        calibration=one_of("minmax", "mse", "percentile"),
        report_samples=1,
    )
    return net, net.graph(x), settings


@functools.cache
def quantized_network(seed: int) -> tuple[Graph, RecurrentReport]:
    """The integer step graph of `random_network`, calibrated on one sequence."""
    net, graph, settings = random_network(seed)
    made, report = quantize_recurrent(graph, net.samples(1), settings)
    return lower_graph(simplify(made)), report
