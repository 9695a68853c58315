"""Scales of features, thresholds and weights of decision trees."""

from __future__ import annotations

import numpy as np
import pytest

from onnx_trees import model, random_lists
from samebits.ir import Trait, has
from samebits.ir.interpreter import run
from samebits.ir.lowering.lower import lower_graph
from samebits.ir.real.trees import THRESHOLDS, WEIGHTS
from samebits.onnx import to_qdq
from samebits.onnx.reader.load import from_model
from samebits.onnx.writer.binary32 import binary32_exact
from samebits.quantization import Settings, quantize_graph
from samebits.quantization.placement import place
from samebits.quantization.trees import rounded_weights


def forest(seed=0, features=3, targets=2, post="NONE", op="TreeEnsembleRegressor"):
    rng = np.random.default_rng(seed)
    lists = random_lists(rng, features, targets, trees=6, modes=("BRANCH_LEQ", "BRANCH_LT"))
    lists["nodes_values"] = [v if np.isfinite(v) else 1.0 for v in lists["nodes_values"]]
    lists["target_weights"] = [w / 7 for w in lists["target_weights"]]
    attributes = {"n_targets": targets, "post_transform": post}
    return from_model(model(op, 1, features, {**lists, **attributes}))


def samples(features=3, count=40, scale=(1.0, 100.0, 1e-3)):
    rng = np.random.default_rng(9)
    x = rng.integers(-8, 9, (count, 1, features)) / 4 * np.array(scale[:features])
    return [(row.astype(np.float32),) for row in x]


def test_features_have_scales_of_their_own():
    graph = forest()
    quantized, report = quantize_graph(graph, samples())
    integer = lower_graph(quantized)
    value = integer.values[integer.inputs[0]]
    assert value.dtype == "int16"
    # The smallest power of two that reaches 2, 200 and the thresholds up to 2.
    assert [float(s) for s in value.quantization.scales] == [2.0**-13, 2.0**-7, 2.0**-13]
    assert report.tensors[0].format == "power-of-two-s16 by feature"
    assert report.tensors[0].clip_rate == 0
    assert {node.op for node in integer.nodes} == {"tree_ensemble"}
    assert binary32_exact(quantized) == []


def test_what_was_rounded():
    """Quarters keep their places; weights are within half a unit; sums are below 2**24 units."""
    graph = forest(1)
    quantized, _ = quantize_graph(graph, samples())
    (old,), (new,) = ([n for n in g.nodes if has(n.op, Trait.TALLIES)] for g in (graph, quantized))
    wanted, found = (
        [g.constants[n.inputs[i]] for i in (THRESHOLDS, WEIGHTS)]
        for g, n in ((graph, old), (quantized, new))
    )
    assert np.array_equal(found[0], wanted[0])
    _, codes = rounded_weights(graph, old)
    unit = float(codes.scales[0])
    assert np.abs(found[1].astype(float) - wanted[1]).max() <= unit / 2
    assert np.array_equal(found[1], codes.reals())
    total = run(quantized, samples()[0])[0]
    assert np.abs(total).max() <= 2**24 * unit
    # As the numbers of the file are: near enough to lie on the same side of every threshold.
    for (x,) in samples(scale=(1, 1, 1)):
        np.testing.assert_allclose(run(quantized, [x])[0], run(graph, [x])[0], atol=6 * unit)


def test_numbers_beyond_calibration_stay_on_their_side():
    graph = forest(2)
    few = [(np.zeros((1, 3), np.float32),)]
    quantized, _ = quantize_graph(graph, few, Settings(calibration="mse"))
    for value in (-1e6, -2.25, 2.25, 1e6):
        x = np.full((1, 3), value, np.float32)
        np.testing.assert_allclose(run(quantized, [x])[0], run(graph, [x])[0], atol=1e-5)


@pytest.mark.parametrize(("post", "last"), [("SOFTMAX", "softmax"), ("LOGISTIC", "table")])
def test_scores_that_something_reads_have_codes(post, last):
    quantized, _ = quantize_graph(forest(3, post=post), samples())
    assert [node.op for node in lower_graph(quantized).nodes] == [
        "tree_ensemble", "requantize", last,
    ]  # fmt: skip


def test_an_input_that_more_read_has_one_scale():
    graph = forest(4)
    assert place(graph).features == {"x"}
    from samebits.ir import GraphBuilder

    builder, names = GraphBuilder.like(graph)
    for node in graph.nodes:
        inputs = [names[name] for name in node.inputs]
        names[node.output] = builder.add(node.op, inputs, node.attributes, node.name)
    weights = builder.constant("w", np.ones((3, 2), np.float32))
    product = builder.add("MatMul", [names["x"], weights])
    more = builder.build([names[graph.outputs[0]], product])
    assert not place(more).features
    integer = lower_graph(quantize_graph(more, samples(scale=(1, 1, 1)))[0])
    value = integer.values["x"]
    assert (value.dtype, len(value.quantization.scales)) == ("int16", 1)


def test_files_hold_what_was_quantized():
    quantized, _ = quantize_graph(forest(5), samples())
    again = from_model(to_qdq(quantized, "float"))
    for (x,) in samples():
        codes = [g.values[g.inputs[0]].quantization for g in map(lower_graph, (quantized, again))]
        assert codes[0] == codes[1]
        assert np.array_equal(run(quantized, [x])[0], run(again, [x])[0])
