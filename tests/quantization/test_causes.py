"""Losses by cause: what is clipped, what is rounded, and what weights did, each measured."""

from __future__ import annotations

import numpy as np
import pytest

from samebits.ir import GraphBuilder
from samebits.ir.interpreter import run
from samebits.quantization.causes import BINS, causes

SCALE = 0.5
WEIGHT, ROUNDED = 0.9, 1.0
STEP = 0.999 / 32767


def graphs():
    """y = w * x with x and y in codes of half a unit from -4 to 3.5, w rounded to whole numbers;
    and its float network."""
    quantized, floats = GraphBuilder("q"), GraphBuilder("f")
    x = quantized.input("x", "float32", (1, 4))
    scale = quantized.constant("scale", np.float32(SCALE))
    zero = quantized.constant("zero", np.int8(0))
    ends = {"low": -8, "high": 7}

    def rounded(name):
        codes = quantized.add(
            "QuantizeLinear", (name, scale, zero), ends, outputs=(f"{name}.codes",)
        )
        return quantized.add("DequantizeLinear", (codes, scale, zero))

    codes = quantized.constant("w.codes", np.int8([[1] * 4]))
    one = quantized.constant("one", np.float32(1))
    w = quantized.add("DequantizeLinear", (codes, one))
    y = quantized.add("Mul", (rounded(x), w), outputs=("y",))
    out = rounded(y)
    given = floats.input("x", "float32", (1, 4))
    weight = floats.constant("w", np.float32([[WEIGHT] * 4]))
    end = floats.add("Mul", (given, weight), outputs=("y",))
    return quantized.build([out]), floats.build([end])


SAMPLE = np.float32([[0.6, -1.5, 5.0, 0.0]])


def test_clipping_and_rounding_are_told_apart():
    graph, _ = graphs()
    found = causes(graph, [[SAMPLE]])
    x = found["x.codes"]
    assert x.signal == pytest.approx(float(np.sum(SAMPLE.astype(np.float64) ** 2)), rel=1e-12)
    assert x.rounding == pytest.approx(0.1**2, rel=1e-6)  # 0.6 becomes 0.5
    assert x.clipping == pytest.approx(1.5**2, rel=1e-12)  # 5 becomes 3.5
    assert x.clip_rate == 0.25
    assert x.weights is None
    assert x.words == "activations clipped 100 %"
    assert (x.low, x.high, sum(x.counts), len(x.counts)) == (-1.5, 5.0, 4, BINS)


def test_within_the_codes_nothing_is_clipped():
    """Halfway between two codes of 16 bits, binary32 numbers err by more than half a step."""
    graph = GraphBuilder("q")
    x = graph.input("x", "float32", (1, 20000))
    scale = graph.constant("scale", np.float32(STEP))
    zero = graph.constant("zero", np.int16(0))
    codes = graph.add("QuantizeLinear", (x, scale, zero), {"low": -32768, "high": 32767})
    y = graph.add("DequantizeLinear", (codes, scale, zero))
    halves = np.float32((np.arange(20000) + 0.5) * STEP)
    (found,) = causes(graph.build([y]), [[halves[None]]]).values()
    assert found.clipping == found.clip_rate == 0
    assert found.rounding > 0


def test_weights_are_measured_against_the_float_network():
    graph, origin = graphs()
    y = causes(graph, [[SAMPLE]], origin)["y.codes"]
    inputs = np.array([0.5, -1.5, 3.5, 0.0])  # what the layer reads
    assert y.weights == pytest.approx(np.sum((inputs * (ROUNDED - WEIGHT)) ** 2), rel=1e-5)
    assert (y.rounding, y.clipping) == (0.0, 0.0)
    assert y.words == "weights rounded 100 %"
    true = SAMPLE.astype(np.float64) * np.float32(WEIGHT)
    (made,) = run(graph, [SAMPLE])
    noise = np.sum((true.astype(np.float32) - made) ** 2)
    assert y.compared
    assert y.sqnr_db == pytest.approx(10 * np.log10(np.sum(true**2) / noise), abs=1e-4)


def test_without_the_float_network_the_reference_keeps_activations():
    graph, _ = graphs()
    y = causes(graph, [[SAMPLE]])["y.codes"]
    noise = 0.1**2 + 1.5**2
    assert y.sqnr_db == pytest.approx(10 * np.log10(float(np.sum(SAMPLE**2)) / noise), abs=1e-4)
    assert y.weights is None


def test_what_loses_nothing_is_exact():
    graph, _ = graphs()
    exact = causes(graph, [[np.float32([[0.5, 1.0, -4.0, 3.5]])]])
    assert {loss.words for loss in exact.values()} == {"exact"}
    assert {loss.sqnr_db for loss in exact.values()} == {None}
    assert all(loss.compared for loss in exact.values())
