"""Roundings and biases chosen layer by layer: what they change, and that it helps."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from samebits.ir.interpreter import run, trace
from samebits.ir.lowering.lower import lower_graph
from samebits.ir.signal import power, ratio, sqnr
from samebits.quantization import Settings, quantize_graph
from samebits.quantization.changes import LayerChange
from samebits.quantization.lockstep import Lockstep
from samebits.quantization.refine import affordable
from samebits.quantization.report import QuantizationReport, StepReport

BOTH = Settings(rounding="least-error", bias_correction=True)


def noise(graph, quantized, samples):
    return power(
        run(graph, [s["x"]])[0] - run(quantized, [s["x"]])[0] for s in samples
    )  # fmt: skip


def test_lockstep_computes_what_trace_computes(residual_net):
    graph, samples = residual_net
    arrays = [[s["x"]] for s in samples]
    steps = Lockstep(graph, arrays)
    wanted = {node.output for node in graph.nodes}
    found = dict(steps.values(wanted))
    assert set(found) == wanted
    for index, sample in enumerate(arrays):
        for name, array in trace(graph, sample).items():
            if name in wanted:
                assert (found[name][index].astype(np.float32) == array).all()
    assert all(not live for live in steps.live)


def test_a_residual_network(residual_net):
    graph, samples = residual_net
    plain, _ = quantize_graph(graph, samples)
    refined, report = quantize_graph(graph, samples, BOTH)
    assert noise(graph, refined, samples) < noise(graph, plain, samples)
    steps = [(c.step, c.layer) for c in report.changes]
    assert steps == [
        ("rounding", "c_node"), ("bias correction", "c_node"),
        ("rounding", "d_node"),  # has no bias
        ("rounding", "y_node"), ("bias correction", "y_node"),
    ]  # fmt: skip
    assert all(c.after > c.before for c in report.changes if c.step == "bias correction")
    lower_graph(refined)
    # All else is as it was: names, scales, shapes.
    assert [n.op for n in refined.nodes] == [n.op for n in plain.nodes]
    before = {c.name: c for c in quantize_graph(graph, samples)[1].constants}
    for constant in report.constants:
        assert constant.scale_max == before[constant.name].scale_max
    assert json.loads(json.dumps(report.to_dict()))["changes"][0]["layer"] == "c_node"


def test_codes_are_neighbours_of_the_exact_weights(residual_net):
    graph, samples = residual_net
    refined, _ = quantize_graph(graph, samples, Settings(rounding="least-error", per_channel=False))
    makers = refined.producers()
    for node in refined.nodes:
        if node.op not in ("Conv", "Gemm"):
            continue
        codes, scale, _ = (refined.constants[n] for n in makers[node.inputs[1]].inputs)
        exact = graph.constants[{"c": "c_w", "d": "d_w", "y": "y_w"}[node.name[0]]] / scale
        assert (np.abs(codes - exact) < 1.001).all()


def test_the_mean_error_of_each_channel_goes(net):
    """Uneven weights of one scale: the rounding of small channels shifts their means."""
    n = net()
    x = n.input("x", 1, 3, 5, 5)
    graph = n.build(n.conv("c", x, 4, 3, 3, 3))
    samples = [{"x": np.abs(n.normal(1, 3, 5, 5))} for _ in range(8)]
    settings = Settings(per_channel=False, output_bits=16, bias_correction=True)

    def means(settings):
        made, _ = quantize_graph(graph, samples, settings)
        errors = [run(graph, [s["x"]])[0] - run(made, [s["x"]])[0] for s in samples]
        return np.abs(np.mean(errors, (0, 1, 3, 4)))

    plain, corrected = means(Settings(per_channel=False, output_bits=16)), means(settings)
    assert corrected.max() < plain.max() / 4


def test_the_bias_of_a_matmul_is_in_another_node(net):
    n = net()
    x = n.input("x", 1, 6, 5)
    m = n.add("MatMul", "m", x, n.weight("w", 5, 4))
    graph = n.build(n.add("Add", "y", m, n.weight("b", 4)))
    samples = [{"x": np.abs(n.normal(1, 6, 5))} for _ in range(8)]
    _, report = quantize_graph(graph, samples, Settings(bias_correction=True, output_bits=16))
    (change,) = report.changes
    assert change.layer == "m_node"
    assert change.after >= change.before


def test_a_layer_without_a_rule_keeps_nearest_codes(net):
    n = net()
    x = n.input("x", 1, 3, 4, 4)
    graph = n.build(
        n.add("ConvTranspose", "y", x, n.weight("w", 3, 2, 2, 2), n.weight("b", 2), strides=(2, 2),
              pads=(0,) * 4, dilations=(1, 1), output_padding=(0, 0), group=1)
    )  # fmt: skip
    samples = [{"x": n.normal(1, 3, 4, 4)} for _ in range(4)]
    made, report = quantize_graph(graph, samples, BOTH)
    assert report.changes[0].what == "nearest: too many products, or no rule for it"
    assert report.changes[0].before == report.changes[0].after
    assert report.changes[1].step == "bias correction"
    lower_graph(made)


@pytest.mark.parametrize(
    "scheme", ["asymmetric-u8", "symmetric-s8", "power-of-two-s8", "asymmetric-s16"]
)
def test_every_scheme(residual_net, scheme):
    graph, samples = residual_net
    weights = "asymmetric-s8" if scheme == "asymmetric-u8" else "symmetric-s8"
    chosen = {"activations": scheme, "weights": weights}
    plain, _ = quantize_graph(graph, samples, Settings(**chosen))
    made, _ = quantize_graph(
        graph, samples, Settings(**chosen, rounding="least-error", bias_correction=True)
    )
    lower_graph(made)
    assert noise(graph, made, samples) < 1.5 * noise(graph, plain, samples)


def test_samples_that_memory_holds(residual_net):
    graph, _ = residual_net
    assert affordable(graph, 10) == 10
    assert affordable(graph, 1 << 60) == (1 << 25) // 144


def test_signal():
    x = [np.array([3.0, 4.0]), np.array([0.0])]
    assert power(x) == 25
    assert sqnr(100, 1) == 20
    assert sqnr(1, 0) is None
    assert sqnr(0, 1) == -np.inf
    assert ratio(x, [np.array([3.0, 4.0]), np.array([0.5])]) == 20


def products(n, *sizes):
    """A chain of MatMul and Add."""
    h = n.input("x", 1, 6, sizes[0])
    for i, (size, outputs) in enumerate(itertools.pairwise(sizes)):
        m = n.add("MatMul", f"m{i}", h, n.weight(f"w{i}", size, outputs))
        h = n.add("Add", f"h{i}", m, n.weight(f"b{i}", outputs))
    return n.build(h)


def test_an_error_that_the_bias_of_a_matmul_takes_is_corrected_once(net):
    n = net()
    graph = products(n, 5, 4, 3)
    samples = [{"x": np.abs(n.normal(1, 6, 5))} for _ in range(8)]

    def mean(correction):
        settings = Settings(bias_correction=correction, output_bits=16, per_channel=False)
        made, _ = quantize_graph(graph, samples, settings)
        errors = [run(graph, [s["x"]])[0] - run(made, [s["x"]])[0] for s in samples]
        return np.abs(np.mean(errors, (0, 1, 2))).max()

    assert mean(True) < mean(False) / 30


@pytest.mark.parametrize("shape", [(4, 1), (4, 4), (1,)])
def test_a_bias_that_is_no_row_stays(net, shape):
    """Roundings then make up for the means, which nothing else does."""
    n = net()
    x = n.input("x", 4, 5)
    graph = n.build(n.add("Gemm", "y", x, n.weight("w", 5, 4), n.weight("b", *shape)))
    samples = [{"x": np.abs(n.normal(4, 5))} for _ in range(8)]
    chosen = {"output_bits": 16, "per_channel": False, "rounding": "least-error"}
    alone, _ = quantize_graph(graph, samples, Settings(**chosen))
    both, report = quantize_graph(graph, samples, Settings(**chosen, bias_correction=True))
    assert [change.step for change in report.changes] == ["rounding"]
    assert noise(graph, both, samples) == noise(graph, alone, samples)


def test_a_layer_of_constants(net):
    """What is computed from constants alone is no sample's."""
    n = net()
    c = n.conv("c", n.constant("k", n.normal(1, 2, 4, 4)), 3, 2, 3, 3)
    d = n.conv("d", n.add("Relu", "r", c), 2, 3, 3, 3)
    graph = n.build(n.add("Add", "y", d, n.input("x", 1, 2, 4, 4)))
    samples = [{"x": n.normal(1, 2, 4, 4)} for _ in range(3)]
    made, report = quantize_graph(graph, samples, BOTH)
    assert "d_node" in {change.layer for change in report.changes}
    assert noise(graph, made, samples) <= noise(
        graph, quantize_graph(graph, samples)[0], samples
    )  # fmt: skip


def test_sums_that_int64_has_no_room_for(net):
    """Codes of 16 bits on both sides, positive numbers, many positions."""
    n = net()
    x = n.input("x", 1, 256, 256)
    graph = n.build(n.add("MatMul", "y", x, n.constant("w", 1 + np.abs(n.normal(256, 2)) / 8)))
    samples = [{"x": np.abs(n.normal(1, 256, 256)) + 6} for _ in range(8)]
    chosen = {"activations": "asymmetric-s16", "weights": "symmetric-s16", "report_samples": 1}
    plain, _ = quantize_graph(graph, samples, Settings(**chosen))
    made, report = quantize_graph(graph, samples, Settings(**chosen, rounding="least-error"))
    assert noise(graph, made, samples) < 1.01 * noise(graph, plain, samples)
    assert not report.changes[0].what.startswith(("0 of", "nearest"))


def test_infinite_ratios_are_left_out_of_json():
    x = [np.zeros(2)]
    assert ratio(x, [np.ones(2)]) == -np.inf
    change = LayerChange("rounding", "y", "Gemm", "1 of 2 codes", -np.inf, 3.0)
    step = StepReport("plain", -np.inf, True)
    report = QuantizationReport(Settings(), 1, 1, (), (), 0, 0, (change,), (step,), 1)
    data = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert (data["changes"][0]["before"], data["changes"][0]["after"]) == (None, 3.0)
    assert data["steps"][0]["sqnr_db"] is None
