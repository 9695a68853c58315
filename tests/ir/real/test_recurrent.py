"""Recurrent layers against their equations, written out cell by cell; what ONNX covers is tested by
its own cases (tests/onnx/test_node_suite.py) and by onnxruntime (tests/onnx/test_recurrent.py)."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from samebits.errors import InputError, UnsupportedError
from samebits.ir import GraphBuilder
from samebits.ir.interpreter import run

GATES = {"LSTM": "iofc", "GRU": "zrh", "RNN": "i"}
SLOTS = ("X", "W", "R", "B", "lengths", "h", "c", "P", "projection")


def numbers(random: Any, *shape: int) -> Any:
    """Quarters, so that sums and products of a few are exact in binary64."""
    return (random.integers(-6, 7, shape) / 4).astype(np.float32)


def layer(op: str, directions: int = 1, projected: int | None = None, seed: int = 0) -> Any:
    """All tensors of a layer of 3 cells on 2 features, 4 steps of a batch of 2."""
    random = np.random.default_rng(seed)
    steps, batch, features, hidden = 4, 2, 2, 3
    outputs = projected or hidden
    rows = len(GATES[op]) * hidden
    tensors = {
        "X": numbers(random, steps, batch, features),
        "W": numbers(random, directions, rows, features),
        "R": numbers(random, directions, rows, outputs),
        "B": numbers(random, directions, 2 * rows),
        "lengths": np.array([4, 2], np.int32),
        "h": numbers(random, directions, batch, outputs),
    }
    if op == "LSTM":
        tensors["c"] = numbers(random, directions, batch, hidden)
        tensors["P"] = numbers(random, directions, 3 * hidden)
    if projected:
        tensors["projection"] = numbers(random, directions, outputs, hidden)
    return tensors


def apply(op: str, tensors: dict[str, Any], exact: bool = False, **attributes: Any) -> list[Any]:
    builder = GraphBuilder("g")
    names = [
        builder.input(slot, str(tensors[slot].dtype), tensors[slot].shape)
        if slot in tensors
        else ""
        for slot in SLOTS
    ]
    while not names[-1]:
        names.pop()
    graph = builder.build(builder.add_all(op, names, {"hidden_size": 3, **attributes}))
    return run(graph, [tensors[name] for name in names if name], exact)


# --- the equations ----------------------------------------------------------------------------

FUNCTIONS: dict[str, Any] = {
    "Sigmoid": lambda x, a, b: 1 / (1 + math.exp(-x)),
    "Tanh": lambda x, a, b: math.tanh(x),
    "Relu": lambda x, a, b: max(x, 0),
    "HardSigmoid": lambda x, a, b: min(max(a * x + b, 0), 1),
    "Affine": lambda x, a, b: a * x + b,
    "LeakyRelu": lambda x, a, b: x if x >= 0 else a * x,
    "ThresholdedRelu": lambda x, a, b: x if x > a else 0,
    "ScaledTanh": lambda x, a, b: a * math.tanh(b * x),
    "Elu": lambda x, a, b: x if x >= 0 else a * (math.exp(x) - 1),
    "Softsign": lambda x, a, b: x / (1 + abs(x)),
    "Softplus": lambda x, a, b: math.log(1 + math.exp(x)),
}
Function = tuple[str, Any, Any]
DEFAULT: dict[str, list[Function]] = {
    "LSTM": [("Sigmoid", 0, 0), ("Tanh", 0, 0), ("Tanh", 0, 0)],
    "GRU": [("Sigmoid", 0, 0), ("Tanh", 0, 0)],
    "RNN": [("Tanh", 0, 0)],
}


def equations(
    op: str,
    tensors: dict[str, Any],
    functions: list[Function] | None = None,
    clip: Any = None,
    coupled: bool = False,
    before_reset: bool = False,
    direction: str = "forward",
) -> list[Any]:
    """Y and the final states by plain loops over numbers, which may be Fractions."""
    x = tensors["X"].tolist()
    steps, batch = len(x), len(x[0])
    directions = len(tensors["W"])
    y = np.zeros((steps, directions, batch, tensors["R"].shape[2]), object)
    finals = []
    for d in range(directions):
        backward = direction == "reverse" or d == 1
        one = {key: tensors[key][d].tolist() for key in tensors if key not in ("X", "lengths")}
        rows = []
        for row in range(batch):
            length = int(tensors["lengths"][row]) if "lengths" in tensors else steps
            states = [one[key][row] for key in ("h", "c") if key in one]
            if "h" not in one:
                states = [[0] * y.shape[3], [0] * 3][: 2 if op == "LSTM" else 1]
            order = range(length)[::-1] if backward else range(length)
            for t in order:
                states = step(
                    op, one, x[t][row], states, functions or DEFAULT[op], clip, coupled,
                    before_reset,
                )  # fmt: skip
                y[t, d, row] = states[0]
            rows.append(states)
        finals.append(rows)
    count = len(finals[0][0])
    return [y, *(np.array([[r[i] for r in rows] for rows in finals], object) for i in range(count))]


def step(
    op: str,
    one: dict[str, Any],
    x: Any,
    states: Any,
    functions: list[Function],
    clip: Any,
    coupled: bool,
    before_reset: bool,
) -> list[Any]:
    h, c = states[0], states[1] if len(states) > 1 else None
    gates, cells = GATES[op], range(3)

    def f(index: int, value: Any) -> Any:
        name, alpha, beta = functions[index]
        clipped = value if clip is None or index == 2 else min(max(value, -clip), clip)
        return FUNCTIONS[name](clipped, alpha, beta)

    def dot(row: Any, vector: Any) -> Any:
        return sum(a * b for a, b in zip(row, vector, strict=True))

    def bias(gate: str, k: int) -> tuple[Any, Any]:
        at = gates.index(gate) * 3 + k
        return (one["B"][at], one["B"][len(gates) * 3 + at]) if "B" in one else (0, 0)

    def total(gate: str, k: int, h: Any) -> Any:
        at = gates.index(gate) * 3 + k
        return dot(one["W"][at], x) + dot(one["R"][at], h) + sum(bias(gate, k))

    def peep(gate: str, k: int, c: Any) -> Any:
        return one["P"]["iof".index(gate) * 3 + k] * c[k] if "P" in one else 0

    if op == "RNN":
        return [[f(0, total("i", k, h)) for k in cells]]
    if op == "GRU":
        z = [f(0, total("z", k, h)) for k in cells]
        r = [f(0, total("r", k, h)) for k in cells]
        if before_reset:
            at = [gates.index("h") * 3 + k for k in cells]
            n = [
                f(1, dot(one["W"][at[k]], x) + bias("h", k)[0]
                  + r[k] * (dot(one["R"][at[k]], h) + bias("h", k)[1]))
                for k in cells
            ]  # fmt: skip
        else:
            reset = [r[k] * h[k] for k in cells]
            n = [f(1, total("h", k, reset)) for k in cells]
        return [[(1 - z[k]) * n[k] + z[k] * h[k] for k in cells]]
    i = [f(0, total("i", k, h) + peep("i", k, c)) for k in cells]
    forget = [f(0, total("f", k, h) + peep("f", k, c)) for k in cells]
    if coupled:
        forget = [1 - v for v in i]
    g = [f(1, total("c", k, h)) for k in cells]
    c = [forget[k] * c[k] + i[k] * g[k] for k in cells]
    o = [f(0, total("o", k, h) + peep("o", k, c)) for k in cells]
    h = [o[k] * f(2, c[k]) for k in cells]
    return [[dot(row, h) for row in one["projection"]] if "projection" in one else h, c]


def close(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b.astype(np.float64), rtol=1e-6, atol=1e-7)


OPTIONAL = {"LSTM": ["B", "lengths", "h", "c", "P"], "GRU": ["B", "lengths", "h"]}


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", GATES)
def test_every_input_may_be_left_out(op: str, direction: str) -> None:
    tensors = layer(op, 2 if direction == "bidirectional" else 1)
    optional = OPTIONAL.get(op, OPTIONAL["GRU"])
    for left_out in [[], optional, *([name] for name in optional if name not in ("h", "c"))]:
        given = {key: array for key, array in tensors.items() if key not in left_out}
        close(apply(op, given, direction=direction), equations(op, given, direction=direction))


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_forms_of_an_lstm(direction: str) -> None:
    tensors = layer("LSTM", 2 if direction == "bidirectional" else 1, projected=2)
    wide = {key: array for key, array in tensors.items() if key != "projection"}
    wide["R"], wide["h"] = tensors["R"][..., [0, 1, 1]], tensors["h"][..., [0, 1, 1]]
    for given in (tensors, wide):
        for attributes, known in (
            ({}, {}),
            ({"input_forget": 1}, {"coupled": True}),
            ({"clip": 0.5}, {"clip": 0.5}),
            ({"clip": 0.25, "input_forget": 1}, {"clip": 0.25, "coupled": True}),
        ):
            expected = equations("LSTM", given, direction=direction, **known)  # type: ignore[arg-type]
            close(apply("LSTM", given, direction=direction, **attributes), expected)


def test_linear_before_reset() -> None:
    tensors = layer("GRU", 2)
    known: dict[str, Any] = {"direction": "bidirectional"}
    expected = equations("GRU", tensors, before_reset=True, **known)
    close(apply("GRU", tensors, linear_before_reset=1, **known), expected)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_activations(name: str) -> None:
    tensors = layer("LSTM", 2)
    alpha: Any = 0.75 if name not in ("Sigmoid", "Tanh", "Relu", "Softsign", "Softplus") else None
    beta: Any = 0.5 if name in ("HardSigmoid", "Affine", "ScaledTanh") else None
    functions = [("Sigmoid", None, None), (name, alpha, beta), (name, alpha, beta)]
    names = tuple(each[0] for each in functions)
    attributes = {
        "activations": names * 2,
        "activation_alpha": (None, alpha, alpha) * 2,
        "activation_beta": (None, beta, beta) * 2,
        "direction": "bidirectional",
    }
    expected = equations("LSTM", tensors, functions, direction="bidirectional")
    close(apply("LSTM", tensors, **attributes), expected)


def test_each_direction_has_activations_of_its_own() -> None:
    tensors = layer("RNN", 2)
    found = apply("RNN", tensors, direction="bidirectional", activations=("Relu", "Tanh"))
    for d, name in enumerate(("Relu", "Tanh")):
        expected = equations("RNN", tensors, [(name, 0, 0)], direction="bidirectional")
        close([found[0][:, d]], [expected[0][:, d]])


def test_default_numbers_of_activations() -> None:
    tensors = layer("RNN")
    for name, alpha, beta in (
        ("LeakyRelu", 0.01, 0), ("HardSigmoid", 0.2, 0.5), ("Elu", 1, 0), ("Affine", 1, 0),
        ("ThresholdedRelu", 1, 0), ("ScaledTanh", 1, 1),
    ):  # fmt: skip
        expected = equations("RNN", tensors, [(name, alpha, beta)])
        close(apply("RNN", tensors, activations=(name,)), expected)


@pytest.mark.parametrize("op", GATES)
def test_rational_activations_are_exact(op: str) -> None:
    tensors = layer(op, 2, 2 if op == "LSTM" else None)
    functions = [("HardSigmoid", Fraction(1, 4), Fraction(1, 2)), ("Relu", 0, 0), ("Relu", 0, 0)]
    functions = functions[: len(DEFAULT[op])]
    names = tuple(each[0] for each in functions) * 2
    alpha = tuple(0.25 if name == "HardSigmoid" else None for name in names)
    attributes = {"activations": names, "activation_alpha": alpha, "direction": "bidirectional"}
    found = apply(op, tensors, exact=True, clip=2.0, **attributes)
    as_fractions = {
        key: array if key == "lengths" else np.vectorize(Fraction, otypes=[object])(array)
        for key, array in tensors.items()
    }
    expected = equations(op, as_fractions, functions, Fraction(2), direction="bidirectional")
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == object
        assert (a == b).all()


def test_others_have_no_exact_mode() -> None:
    with pytest.raises(UnsupportedError, match="expected rational operators in exact mode"):
        apply("LSTM", layer("LSTM"), exact=True)


def test_no_steps() -> None:
    tensors = layer("LSTM")
    tensors["X"] = tensors["X"][:0]
    tensors["lengths"] = np.zeros(2, np.int32)
    y, h, c = apply("LSTM", tensors)
    assert y.shape == (0, 1, 2, 3)
    assert (h == tensors["h"]).all()
    assert (c == tensors["c"]).all()


def test_lengths_beyond_the_sequence_are_errors() -> None:
    tensors = layer("GRU")
    for wrong in (-1, 5):
        tensors["lengths"][0] = wrong
        with pytest.raises(InputError, match=rf"sequence_lens from 0 to 4, found \[{wrong}, 2\]"):
            apply("GRU", tensors)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"hidden_size": 0}, "expected a hidden_size of at least 1, found 0"),
        ({"hidden_size": 4}, r"expected W of \[1, 16, 2\], found \[1, 12, 2\]"),
        ({"direction": "both"}, "expected direction of forward, reverse"),
        ({"direction": "bidirectional"}, r"expected W of \[2, 12, 2\]"),
        ({"clip": -1.0}, "expected a positive clip"),
        ({"clip": "1"}, "expected clip to be a number"),
        ({"activations": ("Tanh",)}, "expected 3 activations, found 1"),
        ({"activations": ("Tanh", "Sin", "Tanh")}, "expected activations of Relu, .*, found 'Sin'"),
        ({"activation_alpha": (1.0,)}, "expected 3 numbers in activation_alpha, found 1"),
        ({"activation_alpha": (1.0, None, None)}, "expected no activation_alpha of Sigmoid"),
    ],
)
def test_attributes_that_do_not_fit(attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        apply("LSTM", layer("LSTM"), **attributes)


@pytest.mark.parametrize(
    ("slot", "shape", "message"),
    [
        ("X", (4, 2), "expected X of 3 axes"),
        ("R", (1, 12, 2), r"expected R of \[1, 12, 3\]"),
        ("B", (1, 12), r"expected B of \[1, 24\], found \[1, 12\]"),
        ("lengths", (3,), r"expected sequence_lens of \[2\]"),
        ("h", (1, 2, 2), r"expected initial_h of \[1, 2, 3\]"),
        ("c", (1, 1, 3), r"expected initial_c of \[1, 2, 3\]"),
        ("P", (1, 12), r"expected P of \[1, 9\]"),
        ("projection", (1, 2, 3), r"expected projection of \[1, 3, 3\]"),
    ],
)
def test_shapes_that_do_not_fit(slot: str, shape: tuple[int, ...], message: str) -> None:
    tensors = layer("LSTM")
    kind = np.int32 if slot == "lengths" else np.float32
    with pytest.raises(ValueError, match=message):
        apply("LSTM", {**tensors, slot: np.zeros(shape, kind)})
