"""Mixed precision: the tensors that cost most are found, and get twice the bits."""

from __future__ import annotations

import numpy as np
import pytest

from samebits.ir.interpreter import run
from samebits.ir.lowering.lower import lower_graph
from samebits.ir.signal import power
from samebits.numerics import catalog
from samebits.pytorch.executor import TorchExecutor
from samebits.quantization import Settings, quantize_graph
from samebits.quantization.settings import with_bits
from samebits.verification.inputs import random_codes


def noise(graph, quantized, samples):
    return power(run(graph, [s["x"]])[0] - run(quantized, [s["x"]])[0] for s in samples)


def formats(report):
    tensors = {t.name: t.format for t in report.tensors}
    return tensors | {c.name: c.format for c in report.constants}


def test_the_input_of_a_wide_range_is_found(net):
    """One sample of a hundred makes the steps of the input, and of what is made of it, wide."""
    n = net()
    x = n.input("x", 1, 4)
    h = n.add("Relu", "h", n.gemm("g", x, 4, 4))
    graph = n.build(n.gemm("y", h, 3, 4))
    samples = [{"x": n.normal(1, 4)} for _ in range(10)]
    samples[0]["x"] = np.full((1, 4), 100, np.float32)
    settings = Settings(output_bits=16)
    plain, _ = quantize_graph(graph, samples, settings)
    made, report = quantize_graph(graph, samples, Settings(output_bits=16, mixed=2))
    assert {change.layer for change in report.changes} == {"x", "h"}
    assert report.changes[0].before < report.changes[1].before
    found = formats(report)
    assert (found["x"], found["h"], found["g_w"]) == (
        "asymmetric-s16", "asymmetric-s16", "symmetric-s8",
    )  # fmt: skip
    assert noise(graph, made, samples[1:]) < noise(graph, plain, samples[1:]) / 100


def test_all_that_have_a_wider_format(residual_net):
    """Groups stay together: what a pool moves has the scale of its source."""
    graph, samples = residual_net
    made, report = quantize_graph(graph, samples, Settings(mixed=100))
    assert set(formats(report).values()) == {"asymmetric-s16", "symmetric-s16", "bias-s32"}
    lower_graph(made)


@pytest.mark.parametrize("mixed", [1, 3, 5])
def test_any_number_computes_the_same_everywhere(residual_net, mixed):
    graph, samples = residual_net
    made, _ = quantize_graph(graph, samples, Settings(mixed=mixed, weights="symmetric-s4"))
    integer = lower_graph(made)
    codes = random_codes(integer, 3)
    expected = [run(integer, [c[i : i + 1] for c in codes])[0] for i in range(3)]
    assert (TorchExecutor(integer).run(codes)[0] == np.concatenate(expected)).all()


def test_four_bits(residual_net):
    """Codes of 4 bits lie in int8; clipped ranges leave less error than whole ones."""
    graph, samples = residual_net
    made, report = quantize_graph(graph, samples, Settings(weights="symmetric-s4"))
    weights = [c for c in report.constants if c.format == "symmetric-s4"]
    assert [c.name for c in weights] == ["c_w", "d_w", "y_w"]
    codes = [made.constants[n] for n in made.constants if n.endswith("_w.codes")]
    assert [array.dtype.name for array in codes] == ["int8"] * 3
    assert all(abs(array).max() <= 7 for array in codes)
    for constant in weights:
        x = graph.constants[constant.name].astype(np.float64).reshape(constant.shape[0], -1)
        scale = np.abs(x).max(1, keepdims=True) / 7
        whole = power([x]) / power([x - np.rint(x / scale) * scale])
        assert constant.sqnr_db >= 10 * np.log10(whole) - 1e-9
    lower_graph(made)
    settings = Settings(weights="symmetric-s4", rounding="least-error", bias_correction=True)
    better, _ = quantize_graph(graph, samples, settings)
    assert noise(graph, better, samples) < noise(graph, made, samples) / 2


def test_formats_without_a_wider_one(residual_net):
    graph, samples = residual_net
    settings = Settings("asymmetric-s16", "symmetric-s16", mixed=4)
    assert quantize_graph(graph, samples, settings)[1].changes == ()


def test_the_factor_of_a_gemm(net):
    n = net()
    graph = n.build(n.gemm("y", n.input("x", 1, 4), 3, 4, alpha=0.5))
    samples = [{"x": n.normal(1, 4)} for _ in range(4)]
    made, report = quantize_graph(graph, samples, Settings(mixed=3, output_bits=16))
    assert {change.layer for change in report.changes} == {"x", "y_w"}
    lower_graph(made)


def test_wider_formats_are_those_of_the_same_table():
    """Activations have an asymmetric format of 16 bits, weights have none."""
    fmt = catalog.asymmetric(8, signed=True)
    assert with_bits(fmt, 16).name == "asymmetric-s16"
    assert with_bits(fmt, 16, weights=True) is None


def test_weights_without_a_wider_format_stay(residual_net):
    graph, samples = residual_net
    made, report = quantize_graph(graph, samples, Settings(mixed=100, weights="asymmetric-s8"))
    kinds = {c.format for c in report.constants}
    assert kinds == {"asymmetric-s8", "bias-s32"}
    lower_graph(made)


def test_outputs_of_the_given_bits_are_left_out(residual_net):
    graph, samples = residual_net
    _, report = quantize_graph(graph, samples, Settings(mixed=100, output_bits=8))
    assert formats(report)["y"] == "asymmetric-s8"
    assert "y" not in {change.layer for change in report.changes}


def test_the_order_of_samples_does_not_matter(net):
    """Each error counts as a part of the whole signal, not of what was read before it."""
    n = net()
    graph = n.build(n.gemm("y", n.add("Relu", "h", n.gemm("g", n.input("x", 1, 4), 4, 4)), 3, 4))
    samples = [{"x": 10.0 ** (i - 2) * n.normal(1, 4)} for i in range(5)]
    samples = [{"x": s["x"].astype(np.float32)} for s in samples]

    def costs(given):
        report = quantize_graph(graph, given, Settings(mixed=4))[1]
        return {change.layer: pytest.approx(change.before) for change in report.changes}

    assert costs(samples) == costs(samples[::-1])


def test_weights_that_two_layers_read_count_once(net):
    n = net()
    w = n.weight("w", 4, 4)
    h = n.add("Relu", "h", n.add("MatMul", "m", n.input("x", 1, 4), w))
    graph = n.build(n.add("MatMul", "y", h, w))
    samples = [{"x": n.normal(1, 4)} for _ in range(4)]
    _, report = quantize_graph(graph, samples, Settings(mixed=2, weights="symmetric-s4"))
    assert len({change.layer for change in report.changes}) == 2
    assert [change.layer for change in report.changes].count("w") == 1
