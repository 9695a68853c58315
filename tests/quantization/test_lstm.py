"""Recurrent networks gate by gate: formats, ranges, reports, and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from compare import assert_same
from recurrent_nets import GATES, Net
from samebits.errors import InputError, NonFiniteError, RangeError, SamebitsError, UnsupportedError
from samebits.ir import Graph, GraphBuilder
from samebits.ir.interpreter import initial_state, run, run_steps
from samebits.ir.lowering.lower import lower_graph
from samebits.ir.rewrite import simplify
from samebits.ir.steps import step_graph
from samebits.pytorch import import_module
from samebits.pytorch.executor import TorchExecutor
from samebits.quantization.lstm import (
    GROWTH,
    RecurrentReport,
    RecurrentSettings,
    quantize_recurrent,
)
from samebits.quantization.roles import ROLES
from samebits.verification.inputs import dequantize, quantize_samples

Array = np.ndarray[Any, Any]
STEPS, FEATURES, HIDDEN = 8, 3, 5


def network(
    op: str = "LSTM", given: str = "B", seed: int = 0, **attributes: Any
) -> tuple[Graph, list[list[Array]]]:
    """One layer and three sequences."""
    net = Net(seed, STEPS, FEATURES)
    y = net.layer(op, net.x, HIDDEN, given, **attributes)[0]
    return net.graph(net.sequence(y)), net.samples(3)


def scales(graph: Graph) -> dict[str, tuple[float, int, str]]:
    """Real value -> (scale, zero point, type) of the QuantizeLinear that reads it."""
    found = {}
    for node in graph.nodes:
        if node.op == "QuantizeLinear":
            scale, zero = (graph.constants[name] for name in node.inputs[1:])
            found[node.inputs[0].removesuffix(".real")] = (
                float(scale), int(zero), zero.dtype.name,
            )  # fmt: skip
    return found


def matrices(graph: Graph) -> dict[str, tuple[Array, Array, Array]]:
    """Product -> (codes, scales, zero points) of its weights."""
    producers = graph.producers()
    found = {}
    for node in graph.nodes:
        if node.op == "Gemm":
            codes, scale, zero = producers[node.inputs[1]].inputs
            found[node.name] = tuple(graph.constants[n] for n in (codes, scale, zero))
    return found


def single(values: tuple[float, int, str]) -> bool:
    """Scales have at most 8 significant bits."""
    return float(np.frexp(values[0])[0] * 256).is_integer()


# --- formats ----------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [8, 16])
def test_formats_of_an_lstm(bits: int) -> None:
    graph, samples = network()
    made, report = quantize_recurrent(graph, samples, RecurrentSettings(bits=bits))
    found = scales(made)
    data = ("int8",) if bits == 8 else ("int16",)
    assert found["x"][2:] == found["lstm0.h"][2:] == data
    assert report.wider == {}
    assert (
        found["lstm0.h"] == found["lstm0.hidden.out" if bits == 8 else "lstm0.hidden.out.clipped"]
    )
    assert all(map(single, found.values()))
    for gate in "ifco":
        total = [v for n, v in found.items() if v[0] == 2.0**-12]
        assert len(total) == 4, gate
    assert set(total) == {(2.0**-12, 0, "int16")}
    assert [v for v in found.values() if v[0] == 2.0**-15] == [(2.0**-15, 0, "int16")] * 5
    cell = found["lstm0.c"]
    assert cell == found["lstm0.cell.out"]
    assert cell[1:] == (0, "int16")
    assert np.frexp(cell[0])[0] == 0.5
    weights = matrices(made)
    assert sorted(weights) == [f"lstm0.{gate}_{side}" for gate in "cfio" for side in "hx"]
    for codes, scale, zero in weights.values():
        assert codes.dtype == np.int8
        assert scale.shape == (HIDDEN,)
        assert not zero.any()
        assert np.abs(codes.astype(int)).max() in (126, 127)  # the scale is rounded up
    assert (report.settings.bits, report.samples, report.sequences) == (bits, 3, 3)
    lower_graph(simplify(made))


class SineOfStates(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = torch.nn.LSTM(FEATURES, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(self.lstm(x)[0])


def test_a_function_behind_a_layer_of_pytorch() -> None:
    """Any operator that is point-wise may follow: it was refused where a list did not name it."""
    torch.manual_seed(0)
    graph = simplify(import_module(SineOfStates().eval(), (torch.zeros(STEPS, 1, FEATURES),)))
    random = np.random.default_rng(0)
    samples = [[random.standard_normal((STEPS, 1, FEATURES)).astype(np.float32)] for _ in range(3)]
    step = step_graph(graph)
    found = run_steps(step, [samples[0][0][:, np.newaxis]])[0]
    expected = run(graph, samples[0])[0]
    assert_same(found.reshape(expected.shape), expected, expected)
    made, _ = quantize_recurrent(graph, samples)
    integer = lower_graph(simplify(made))
    assert "table" in {node.op for node in integer.nodes}


def test_each_row_has_its_own_scale() -> None:
    graph, samples = network()
    weights = matrices(quantize_recurrent(graph, samples)[0])
    w, r = (graph.constants[name][0] for name in graph.nodes[0].inputs[1:3])
    for gate, rows in zip("iofc", range(0, 4 * HIDDEN, HIDDEN), strict=True):
        for side, whole in (("x", w), ("h", r)):
            part = whole[rows : rows + HIDDEN]
            codes, scale, _ = weights[f"lstm0.{gate}_{side}"]
            exact = np.abs(part).max(1) / 127
            assert (exact <= scale).all()
            assert (scale <= exact * (1 + 2.0**-7)).all()
            expected = np.rint(part.astype(np.float64) / scale[:, None]).astype(np.int8)
            assert_same(codes, expected, part)


@pytest.mark.parametrize(("symmetry", "asymmetric"), [(0.0, False), (0.5, True), (1.0, True)])
def test_symmetry_by_the_ends_of_a_matrix(symmetry: float, asymmetric: bool) -> None:
    """One matrix leans to one side by 0.4, another is balanced exactly, the others at random."""
    net = Net(1, STEPS, FEATURES)
    w, r = net.numbers(1, 4 * HIDDEN, FEATURES), net.numbers(1, 4 * HIDDEN, HIDDEN)
    w[0, :HIDDEN] = np.abs(w[0, :HIDDEN])
    w[0, 0] = (-0.5, 1.25, 0.25)  # gate i
    r[0, :HIDDEN] = np.clip(r[0, :HIDDEN], -0.75, 0.75)
    r[0, 0, :2] = (-0.75, 0.75)
    graph = net.graph(net.sequence(net.layer("LSTM", net.x, HIDDEN, weights=(w, r))[0]))
    settings = RecurrentSettings(symmetry=symmetry)
    made, _ = quantize_recurrent(graph, net.samples(2), settings)
    found = matrices(made)
    codes, scale, zero = found["lstm0.i_x"]
    assert bool(zero.any()) == asymmetric
    if asymmetric:
        leaning = w[0, 1:HIDDEN]  # wholly on one side
        ends = np.minimum(leaning.min(1), 0), np.maximum(leaning.max(1), 0)
        assert (zero[1:] == np.rint(-128 - ends[0] / scale[1:])).all()  # the rounded minimum
        steps = (ends[1] - ends[0]) / 255
        assert (steps <= scale[1:]).all()
        assert (scale[1:] <= steps * (1 + 2.0**-7)).all()
        expected = np.rint(leaning.astype(np.float64) / scale[1:, None]) + zero[1:, None]
        clipped = np.clip(expected, -128, 127).astype(np.int64)
        assert_same(codes[1:].astype(np.int64), clipped, leaning)
    assert not found["lstm0.i_h"][2][0]  # its ends are equal: symmetric at any threshold
    integer = lower_graph(simplify(made))
    kinds = {name: array.dtype.name for name, array in integer.constants.items()}
    assert kinds["lstm0.i_x.weight"] == ("int16" if asymmetric else "int8")
    assert kinds["lstm0.i_h.weight"] == "int8"


@pytest.mark.parametrize("gates", ["symmetric", "asymmetric"])
def test_gates_over_their_calibrated_range(gates: str) -> None:
    graph, samples = network()
    made, report = quantize_recurrent(graph, samples, RecurrentSettings(gates=gates))
    found = scales(made)
    ranges = {g.gate: g.output for g in report.gates}
    names = {n.op: [] for n in made.nodes}
    for node in made.nodes:
        names[node.op].append(node.output)
    for gate, name in zip("ifo", names["Sigmoid"], strict=True):
        scale, zero, kind = next(v for n, v in found.items() if n in (name, f"{name}.clipped"))
        low, high = ranges[gate]
        width = high / 32767 if gates == "symmetric" else high / 65535
        assert kind == "int16"
        assert width <= scale <= width * (1 + 2.0**-7)
        assert zero == (0 if gates == "symmetric" else -32768)
        assert 0 < low < high < 1
    lower_graph(simplify(made))


@pytest.mark.parametrize(
    ("function", "alpha", "beta"), [("ScaledTanh", 2.5, 0.5), ("Affine", 0.25, -3.0)]
)
def test_functions_beyond_one_have_a_coarser_format(
    function: str, alpha: float, beta: float
) -> None:
    """On either side of zero: x / 4 - 3 has large negative values alone."""
    graph, samples = network(
        activations=("Sigmoid", function, "Relu"),
        activation_alpha=(None, alpha, None), activation_beta=(None, beta, None),
    )  # fmt: skip
    made, report = quantize_recurrent(graph, samples)
    low, high = {g.gate: g.output for g in report.gates}["c"]
    largest = max(-low, high)
    assert largest > 1
    assert (high < 0) == (function == "Affine")
    steps = {name: (scale, kind) for name, (scale, _, kind) in scales(made).items()}
    ((step, kind),) = (v for n, v in steps.items() if re.fullmatch(r"lstm0\.c_gate.*\.out", n))
    assert kind == "int16"
    assert 32767 * step >= largest > 32767 * step / 2
    assert steps["lstm0.i_gate.out"] == (2.0**-15, "int16")
    lower_graph(simplify(made))


@pytest.mark.parametrize("bits", [8, 16])
def test_peepholes_are_terms_of_the_sum(bits: int) -> None:
    """Exact until the sum is rounded, also with codes of 0."""
    net = Net(0, STEPS, FEATURES)
    y = net.layer("LSTM", net.x, HIDDEN, "BP")[0]
    node = net.builder.nodes[0]
    peepholes = net.builder.constants[node.inputs[7]].copy()
    peepholes *= 3  # c . P leaves [-1, 1]
    peepholes[0, ::4] = 0
    net.builder.constants[node.inputs[7]] = peepholes
    graph = net.graph(net.sequence(y))
    made, report = quantize_recurrent(graph, net.samples(3), RecurrentSettings(bits=bits))
    read = {name for node in made.nodes if node.op == "QuantizeLinear" for name in node.inputs[:1]}
    muls = [n.output for n in made.nodes if n.op == "Mul" and n.name.endswith("_c")]
    assert len(muls) == 3
    assert not read & set(muls)
    integer = lower_graph(simplify(made))
    assert sum(n.op == "affine" for n in integer.nodes) == 11
    assert all(a.ndim < 2 for a in integer.constants.values() if a.shape[-1:] == (1 << 16,))
    assert report.sqnr_db is not None
    assert report.sqnr_db > (30 if bits == 8 else 40)


def test_float_bias() -> None:
    graph, samples = network()
    made, _ = quantize_recurrent(graph, samples, RecurrentSettings(float_bias=True))
    gemm = next(n for n in made.nodes if n.op == "Gemm" and n.name.endswith("_x"))
    assert made.constants[gemm.inputs[2]].dtype == np.float32
    made, _ = quantize_recurrent(graph, samples)
    gemm = next(n for n in made.nodes if n.op == "Gemm" and n.name.endswith("_x"))
    bias = made.producers()[gemm.inputs[2]]
    assert made.constants[bias.inputs[0]].dtype == np.int32
    lower_graph(simplify(made))


@pytest.mark.parametrize("op", GATES)
def test_other_layers_have_the_same_roles(op: str) -> None:
    """Every sum of a gate is Q3.12, also where a GRU resets before or after the product."""
    for after in (0, 1) if op == "GRU" else (None,):
        attributes = {} if after is None else {"linear_before_reset": after}
        graph, samples = network(op, "Bh", **attributes)
        made, report = quantize_recurrent(graph, samples)
        sums = [v for v in scales(made).values() if v[0] == 2.0**-12]
        assert len(sums) == GATES[op] == len(report.gates)
        assert sorted(g.gate for g in report.gates) == sorted(
            {"LSTM": "ifco", "GRU": "zrh", "RNN": "i"}[op]
        )
        lower_graph(simplify(made))


def test_dead_rows_have_scales_that_sums_can_hold() -> None:
    """Weights decayed to nothing: their scale is that of a step of the sum, not their own."""
    net = Net(3, STEPS, FEATURES)
    w, r = net.numbers(1, 4 * HIDDEN, FEATURES), net.numbers(1, 4 * HIDDEN, HIDDEN)
    w[0, ::2] *= np.float32(1e-30)
    r[0, 1::3] *= np.float32(1e-20)
    y = net.layer("LSTM", net.x, HIDDEN, "B", weights=(w, r))[0]
    graph = net.graph(net.sequence(y))
    for bits, finest in ((8, 2.0**-24), (16, 2.0**-32)):
        made, report = quantize_recurrent(graph, net.samples(2), RecurrentSettings(bits=bits))
        lower_graph(simplify(made))
        assert report.sqnr_db is not None
        assert report.sqnr_db > 30
        data = scales(made)
        for name, (_, scale, _) in matrices(made).items():
            step = data["x" if name.endswith("_x") else "lstm0.h"][0]
            assert (scale * step >= finest * (1 - 2.0**-20)).all()
            if bits == 16 and name.endswith("_h"):  # no bias asks for more: the next power of two
                assert (scale * step < 2 * finest).any()


# --- the report -------------------------------------------------------------------------------


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def float_lstm(graph: Graph, samples: list[list[Array]]) -> Iterator[dict[str, Array]]:
    """Every step: the products and gates of an LSTM in binary64; states are binary32 between."""
    node = graph.nodes[0]
    w, r, b = (graph.constants[name][0].astype(np.float64) for name in node.inputs[1:4])
    bias = (b[: 4 * HIDDEN].astype(np.float32) + b[4 * HIDDEN :].astype(np.float32)).astype(float)
    for (x,) in samples:
        h = c = np.zeros((1, HIDDEN))
        for row in x:
            found = {}
            for index, gate in enumerate("iofc"):
                part = slice(index * HIDDEN, (index + 1) * HIDDEN)
                found[f"{gate}_x"] = row.astype(np.float64) @ w[part].T + bias[part]
                found[f"{gate}_h"] = h @ r[part].T
                total = found[f"{gate}_x"] + found[f"{gate}_h"]
                found[gate] = np.tanh(total) if gate == "c" else sigmoid(total)
            c = found["f"] * c + found["i"] * found["c"]
            h = (found["o"] * np.tanh(c)).astype(np.float32).astype(np.float64)
            c = c.astype(np.float32).astype(np.float64)
            yield found | {"cell": c}


def test_ranges_are_those_of_a_float_lstm() -> None:
    graph, samples = network()
    _, report = quantize_recurrent(graph, samples)
    steps = list(float_lstm(graph, samples))
    assert [(g.layer, g.gate) for g in report.gates] == [("lstm0", gate) for gate in "ifco"]
    for gate in report.gates:
        for name, found in (
            (f"{gate.gate}_x", gate.input_product),
            (f"{gate.gate}_h", gate.recurrent_product),
            (gate.gate, gate.output),
        ):
            values = np.concatenate([step[name].reshape(-1) for step in steps])
            expected = float(np.float32(values.min())), float(np.float32(values.max()))
            # The last bit of binary32 may depend on the order of BLAS and on the libm of numpy.
            np.testing.assert_allclose(found, expected, rtol=2.0**-22, atol=2.0**-24, err_msg=name)
    halves = np.abs([step["cell"] for step in steps]).reshape(3, 2, -1).max((0, 2))
    np.testing.assert_allclose(report.cells["lstm0.c"], halves, rtol=2.0**-22)


def test_share_of_saturated_sums() -> None:
    """A bias of 9 on two of five units of gate f, of -9 on one: 3 of 5 sums leave Q3.12."""
    net = Net(2, STEPS, FEATURES, span=0.01)
    y = net.layer("LSTM", net.x, HIDDEN, "B")[0]
    name = net.builder.nodes[0].inputs[3]
    bias = np.zeros((1, 8 * HIDDEN), np.float32)
    bias[0, 2 * HIDDEN : 2 * HIDDEN + 3] = (9, -9, 9)
    bias[0, 0] = 7.5
    net.builder.constants[name] = bias
    graph = net.graph(net.sequence(y))
    _, report = quantize_recurrent(graph, net.samples(2))
    assert {g.gate: g.saturated for g in report.gates} == {"i": 0, "f": 0.6, "c": 0, "o": 0}


def test_causes_and_sizes() -> None:
    graph, samples = network()
    _, report = quantize_recurrent(graph, samples)
    assert tuple(report.causes) == ROLES
    whole = report.sqnr_db
    assert whole is not None
    parts = [v for v in report.causes.values() if v is not None]
    assert len(parts) == len(ROLES)
    assert all(part > whole - 0.5 for part in parts)
    together = -10 * np.log10(sum(10 ** (-part / 10) for part in parts))
    assert abs(together - whole) < 3  # errors of different kinds hardly depend on each other
    floats = 4 * HIDDEN * (FEATURES + HIDDEN + 1)
    rows = 2 * 4 * HIDDEN  # of both matrices of every gate, with a scale and a zero point each
    assert report.bytes_before == 4 * floats
    assert report.bytes_after == floats + 5 * rows + (3 + 4) * 4 * HIDDEN  # biases of 32 bits
    json.dumps(report.to_dict())


def test_signal_to_noise_is_that_of_the_outputs() -> None:
    graph, samples = network()
    made, report = quantize_recurrent(graph, samples, RecurrentSettings(report_samples=2))
    signal = noise = 0.0
    for (x,) in samples[:2]:
        (expected,) = run(graph, [x])
        found = run_steps(made, [x[:, np.newaxis]])[0].reshape(expected.shape)
        signal += float(np.square(expected, dtype=np.float64).sum())
        noise += float(np.square(expected.astype(np.float64) - found).sum())
    assert report.samples == 2
    assert report.sqnr_db == pytest.approx(10 * np.log10(signal / noise))


def test_a_cell_that_integrates_is_warned_of() -> None:
    """Forget gate 1 (bias 20), input gate 1, and a candidate that never changes its sign."""
    net = Net(4, 40, FEATURES, span=0.05)
    y = net.layer("LSTM", net.x, HIDDEN, "B")[0]
    name = net.builder.nodes[0].inputs[3]
    bias = np.zeros((1, 8 * HIDDEN), np.float32)
    for gate, value in (("i", 20), ("f", 20), ("c", 1)):
        at = "iofc".index(gate) * HIDDEN
        bias[0, at : at + HIDDEN] = value
    net.builder.constants[name] = bias
    graph = net.graph(net.sequence(y))
    _, report = quantize_recurrent(graph, net.samples(2))
    first, second = report.cells["lstm0.c"]
    assert second > GROWTH * first > 10
    (warning,) = report.warnings
    assert "cell state 'lstm0.c' grows over time" in warning
    assert f"{first:.3g} in the first half" in warning
    still = bias.copy()
    still[0, 2 * HIDDEN : 3 * HIDDEN] = 0  # of f: 0.5
    net.builder.constants[name] = still
    assert not quantize_recurrent(net.graph(net.sequence(y)), net.samples(2))[1].warnings


# --- awkward calibration ----------------------------------------------------------------------


@pytest.mark.parametrize("value", [0.0, 0.5, 1e-30, -1e4])
def test_data_that_barely_varies(value: float) -> None:
    graph, _ = network()
    data = np.full((STEPS, 1, FEATURES), value, np.float32)
    data[-1, 0, -1] = np.nextafter(np.float32(value), np.float32(1))
    made, report = quantize_recurrent(graph, [[data]])
    integer = lower_graph(simplify(made))
    codes = np.zeros((2, *integer.values[integer.inputs[0]].shape), np.int8)
    for array in run_steps(integer, [codes]):
        assert len(array) == 2
    assert isinstance(report, RecurrentReport)


def test_data_beyond_every_sum() -> None:
    graph, _ = network()
    made, _ = quantize_recurrent(
        graph, [[np.linspace(0, 1e30, STEPS * FEATURES, dtype=np.float32).reshape(STEPS, 1, -1)]]
    )
    with pytest.raises(
        RangeError, match=r"node 'lstm0\.i_sum' \(Add\): .* the scales have too fine a common unit"
    ):
        lower_graph(simplify(made))


def refused() -> Iterator[tuple[str, Any, type[SamebitsError], str]]:
    graph, samples = network()
    yield (
        "empty",
        lambda: quantize_recurrent(graph, []),
        InputError,
        (r"graph 'net': expected sequences to calibrate on, found none; give at least one"),
    )
    bad = samples[0][0].copy()
    bad[3, 0, 1] = np.nan
    yield (
        "nan",
        lambda: quantize_recurrent(graph, [samples[0], [bad]]),
        NonFiniteError,
        (
            r"calibration sample 1: tensor 'x': expected finite values, found nan at "
            r"index \(3, 0, 1\)"
        ),
    )
    yield (
        "shape",
        lambda: quantize_recurrent(graph, [[samples[0][0][:3]]]),
        InputError,
        (r"calibration sample 0: input 'x': expected shape \[8, 1, 3\], found \[3, 1, 3\]"),
    )
    yield (
        "type",
        lambda: quantize_recurrent(graph, [[samples[0][0].astype(np.int8)]]),
        InputError,
        (r"calibration sample 0: input 'x': expected float32, found int8"),
    )
    yield (
        "names",
        lambda: quantize_recurrent(graph, [{"y": bad}]),
        InputError,
        (r"calibration sample 0: expected the inputs x, found y"),
    )
    backward, _ = network(direction="reverse")
    yield (
        "reverse",
        lambda: quantize_recurrent(backward, samples),
        UnsupportedError,
        (r"node 'lstm0' \(LSTM\): expected the direction forward, found reverse"),
    )
    net = Net(0, STEPS, FEATURES)
    w, r = net.numbers(2, 20, FEATURES), net.numbers(2, 20, HIDDEN)
    inputs = [net.x, net.constant(w), net.constant(r)]
    attributes = {"hidden_size": HIDDEN, "direction": "bidirectional"}
    both = net.graph(net.builder.add("LSTM", inputs, attributes, "second"))
    yield (
        "both",
        lambda: quantize_recurrent(both, samples),
        UnsupportedError,
        (r"node 'second' \(LSTM\): expected the direction forward, found bidirectional"),
    )
    yield (
        "activation",
        lambda: network(activations=("Tanh", "Cube", "Tanh")),
        ValueError,
        (r"expected activations of .*, found 'Cube'"),
    )
    net = Net(0, STEPS, FEATURES)
    w, r = net.numbers(1, 20, FEATURES), net.numbers(1, 20, HIDDEN)
    w[0, 7, 1] = np.inf
    broken = net.graph(net.layer("LSTM", net.x, HIDDEN, weights=(w, r))[0])
    yield (
        "weights",
        lambda: quantize_recurrent(broken, samples),
        NonFiniteError,
        r"layer 'lstm0', gate 'o': expected finite weights of x, found inf; repair the model",
    )
    net = Net(0, STEPS, FEATURES)
    whole = net.graph(net.layer("GRU", net.x, HIDDEN, given="B")[0])
    (name,) = (n for n, a in whole.constants.items() if a.shape == (1, 6 * HIDDEN))
    b = whole.constants[name].copy()
    b[0, 4 * HIDDEN] = np.nan
    biased = replace(whole, constants={**whole.constants, name: b})
    yield (
        "biases",
        lambda: quantize_recurrent(biased, samples),
        NonFiniteError,
        r"layer 'gru0', gate 'r': expected finite biases, found nan; repair the model",
    )
    for value in (0.0, 0.5):
        still = [np.full((STEPS, 1, FEATURES), value, np.float32)] * 3
        yield (
            f"constant {value}",
            lambda still=still: quantize_recurrent(graph, [[array] for array in still]),
            InputError,
            rf"layer 'lstm0', gate 'i': expected calibration sequences that vary, found {value:g} "
            r"in every element of input 'x'; give sequences as the model will see them",
        )
    builder = GraphBuilder("plain")
    x = builder.input("x", "float32", (2, 3))
    plain = builder.build([builder.add("Relu", [x])])
    yield (
        "plain",
        lambda: quantize_recurrent(plain, [[np.zeros((2, 3), np.float32)]]),
        (UnsupportedError),
        "graph 'plain': expected recurrent layers or causal attention on whole sequences, "
        "found none",
    )


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [case[1:] for case in refused()],
    ids=[case[0] for case in refused()],
)
def test_what_is_refused(make: Any, kind: type[SamebitsError], message: str) -> None:
    with pytest.raises(kind, match=message):
        make()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bits": 4}, "--bits: expected 8 or 16, found 4"),
        (
            {"gates": "q0.7"},
            r"--gates: expected one of q0\.15, symmetric, asymmetric, found 'q0\.7'",
        ),
        ({"symmetry": 1.5}, r"--symmetry: expected from 0 to 1, found 1\.5"),
        ({"calibration": "best"}, "--calibrate: expected one of"),
        ({"percentile": 40.0}, r"--percentile: expected above 50 and up to 100, found 40\.0"),
        ({"report_samples": 0}, "report samples: expected 1 or more, found 0"),
    ],
)
def test_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        RecurrentSettings(**settings)


def test_activations_of_onnx_that_are_none() -> None:
    """A file with a function that no record has: refused where it is imported, by node name."""
    from onnx import TensorProto, helper, numpy_helper

    from samebits.onnx.reader.load import from_model

    net = Net(0, STEPS, FEATURES)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [STEPS, 1, FEATURES])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    weights = [
        numpy_helper.from_array(net.numbers(1, 20, size), name)
        for name, size in (("w", FEATURES), ("r", HIDDEN))
    ]
    node = helper.make_node(
        "LSTM", ["x", "w", "r"], ["y"], "speech", hidden_size=HIDDEN,
        activations=["Sigmoid", "Cube", "Tanh"],
    )  # fmt: skip
    model = helper.make_model(helper.make_graph([node], "g", [x], [y], weights))
    with pytest.raises(UnsupportedError, match=r"speech.*Cube"):
        from_model(model)


# --- long sequences ---------------------------------------------------------------------------


def stress(bits: int) -> Iterator[float]:
    """SQNR in dB of the outputs after 100, 1,000 and 10,000 steps against a binary64 LSTM: 64
    features, 256 cells, uniform weights in [-1/16, 1/16], normal inputs, calibrated on 16 sequences
    of 100 steps."""
    features, hidden, lengths = 64, 256, (100, 1000, 10_000)
    net = Net(0, 100, features, span=1 / 16)
    y = net.layer("LSTM", net.x, hidden)[0]
    graph = net.graph(net.sequence(y))
    w, r, b = (graph.constants[name][0].astype(np.float64) for name in graph.nodes[0].inputs[1:4])
    bias = b[: 4 * hidden] + b[4 * hidden :]
    made, _ = quantize_recurrent(
        graph, net.samples(16), RecurrentSettings(bits=bits, report_samples=1)
    )
    integer = lower_graph(simplify(made))
    executor = TorchExecutor(integer)
    x_value, y_value = (integer.values[n] for n in (integer.inputs[0], integer.outputs[0]))
    x = net.rng.standard_normal((lengths[-1], 1, features)).astype(np.float32)
    codes = quantize_samples(x, x_value)
    states = [initial_state(integer, state) for state in integer.states]
    h = c = np.zeros(hidden)
    signal = noise = 0.0
    for step in range(lengths[-1]):
        given, *states = executor.run([codes[step : step + 1], *states])
        i, o, f, g = np.split(w @ x[step, 0].astype(np.float64) + r @ h + bias, 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        signal += float(h @ h)
        noise += float(np.square(dequantize(given, y_value).reshape(-1) - h).sum())
        if step + 1 in lengths:
            yield float(10 * np.log10(signal / noise))


@pytest.mark.slow
@pytest.mark.parametrize(("bits", "least"), [(8, 37.0), (16, 44.0)])
def test_random_weights_over_ten_thousand_steps(
    bits: int, least: float, record_property: Callable[[str, object], None]
) -> None:
    short, *longer = stress(bits)
    record_property(f"bits.{bits}", json.dumps([short, *longer]))
    assert short >= least
    assert all(later >= short - 1 for later in longer)
