"""--effort high: tries in order, keeps by measurement, respects what was chosen."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from samebits.errors import InputError
from samebits.ir.lowering.lower import lower_graph
from samebits.ir.rewrite import replace_nodes
from samebits.quantization import Settings, effort, quantize_best, quantize_graph
from samebits.quantization.effort import LESS, STEPS, error
from samebits.quantization.post_training import convert_observed, observe_graph


@pytest.fixture(scope="module")
def uneven():
    """Two convolutions whose channels differ by factors of a hundred, one scale a weight."""
    from quantization.conftest import Net

    n = Net(7)
    x = n.input("x", 1, 3, 6, 6)
    r = n.add("Relu", "r", n.conv("c", x, 4, 3, 3, 3, bias=False))
    f = n.add("GlobalAveragePool", "g", n.add("Relu", "s", n.conv("d", r, 4, 4, 3, 3)))
    graph = n.build(n.gemm("y", n.add("Flatten", "f", f, axis=1), 3, 4))
    wide = np.array([0.01, 0.1, 1, 4], np.float32)
    constants = dict(graph.constants)
    constants["c_w"] = constants["c_w"] * wide[:, None, None, None]
    constants["d_w"] = constants["d_w"] / wide[:, None, None]
    graph = replace_nodes(graph, graph.nodes, constants, graph.values)
    return graph, [{"x": n.normal(1, 3, 6, 6)} for _ in range(16)]


def test_steps_are_kept_where_they_help(uneven):
    graph, samples = uneven
    found = quantize_best(graph, samples, Settings(per_channel=False, output_bits=16))
    made, report = found.graph, found.report
    assert [step.name for step in report.steps] == ["plain", *(name for name, _ in STEPS)]
    best = report.steps[0].sqnr_db
    for step in report.steps[1:]:
        assert step.kept == (step.sqnr_db > best - 10 * np.log10(LESS))
        best = step.sqnr_db if step.kept else best
    assert best > report.steps[0].sqnr_db + 5
    assert report.held_out == 4
    assert report.calibration_samples == 16
    assert "equalization" in {change.step for change in report.changes}
    assert json.loads(json.dumps(report.to_dict()))["steps"][0]["name"] == "plain"
    lower_graph(made)
    # The steps that were kept, on all samples.
    again, _ = quantize_graph(graph, samples, report.settings)
    assert all((again.constants[name] == array).all() for name, array in made.constants.items())


def test_one_pass_over_the_samples_serves_all_settings_that_equalize_alike(uneven, monkeypatch):
    graph, samples = uneven
    seen = []

    def counted(graph, samples, settings, refined):
        seen.append(settings.equalize)
        return observe_graph(graph, samples, settings, refined)

    monkeypatch.setattr(effort, "observe_graph", counted)
    quantize_best(graph, samples, Settings(per_channel=False, output_bits=16))
    assert seen == [None, "weights", "activations"]
    seen.clear()
    quantize_best(graph, samples, Settings(per_channel=False, stop_early=2))
    assert len(seen) == 1 + len(STEPS)  # where it stops depends on the scales


@pytest.mark.parametrize("equalize", [None, "weights"])
def test_settings_that_equalize_alike_share_what_was_observed(uneven, equalize):
    """Whatever was converted before, and however many samples are kept for others."""
    graph, samples = uneven
    plain = Settings(per_channel=False, equalize=equalize, report_samples=1)
    shared = observe_graph(graph, iter(samples), plain, 8)
    for change in (
        {"calibration": "mse"},
        {"bias_correction": True, "refine_samples": 8},
        {"mixed": 2},
        {"rounding": "least-error", "refine_samples": 4},
        {},
    ):
        settings = replace(plain, **change)
        made, changes = convert_observed(shared, settings)
        wanted, report = quantize_graph(graph, samples, settings)
        assert made.graph.constants.keys() == wanted.constants.keys()
        assert all(
            (made.graph.constants[name] == array).all() for name, array in wanted.constants.items()
        )
        assert changes == report.changes


def test_what_was_chosen_stays(uneven):
    graph, samples = uneven
    given = ("calibration", "equalize", "rounding", "bias_correction")
    report = quantize_best(graph, samples, Settings(per_channel=False), given).report
    assert [step.name for step in report.steps] == ["plain"]
    assert report.settings == Settings(per_channel=False)


def test_too_few_samples(uneven):
    graph, samples = uneven
    with pytest.raises(InputError, match="at least 4 calibration samples"):
        quantize_best(graph, samples[:3], Settings())


def test_errors_of_outputs_are_added_one_by_one():
    x = [[np.array([1.0, 0.0]), np.array([0.0, 0.0])], [np.array([100]), np.array([0])]]
    y = [[np.array([0.5, 0.0]), np.array([0.0, 0.0])], [np.array([90]), np.array([0])]]
    assert error(x, y) == 0.25 + 0.01
    assert error(x, x) == 0
