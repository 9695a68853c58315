"""The curves of a run, from files that are not trusted."""

from __future__ import annotations

import json

import pytest

from samebits.reports.html import Figure, Fold, Paragraph
from samebits.reports.page.run import run_report, run_sections

RECORD = {"epoch": 1, "step": 10, "train_loss": 1.5, "test_accuracy": 0.5, "lr": 0.1, "seconds": 1}


@pytest.fixture
def folder(tmp_path):
    def write(records, **config):
        (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
        (tmp_path / "config.json").write_text(json.dumps({"arch": "cnn", **config}))
        return tmp_path

    return write


def two(**more):
    return [{**RECORD, **more}, {**RECORD, "epoch": 2, "step": 20, "train_loss": 0.5, **more}]


def test_curves_epochs_and_options(folder):
    training, weights = run_sections(folder(two(), numerics="bfp"))
    assert training.blocks[0].text == (
        "After epoch 2: mean training loss 0.5000, test accuracy 50.00 %."
    )
    assert isinstance(training.blocks[1], Figure)
    epochs, options = training.blocks[2:]
    assert [row[0] for row in epochs.blocks[0].rows] == ["1", "2"]
    assert ("arch", "cnn") in options.blocks[0].rows
    assert weights.blocks == [Paragraph("This run recorded no exponents and codes of its weights.")]


def test_figures_of_another_task(folder):
    figures = {"test_rmse": 60.0, "test_mae": 50.0, "test_r2": 0.25}
    records = [{key: v for key, v in r.items() if key != "test_accuracy"} for r in two(**figures)]
    training, _ = run_sections(folder([RECORD, *records], numerics="bfp"))
    assert training.blocks[0].text == (
        "After epoch 2: mean training loss 0.5000, test RMSE 60, MAE 50, R2 0.25."
    )
    table = training.blocks[2].blocks[0]
    assert table.columns[3:6] == ("RMSE", "MAE", "R2")
    assert [row[:6] for row in table.rows] == [
        ("1", "10", "1.5000", "60", "50", "0.25"),
        ("2", "20", "0.5000", "60", "50", "0.25"),
    ]


@pytest.mark.parametrize(
    ("found", "since"), [([False, True], 2), ([True, True], 1), ([True, False], None)]
)
def test_one_output_for_all_samples_is_told(folder, found, since):
    records = [{**r, "one_output": one} for r, one in zip(two(), found, strict=True)]
    block = run_sections(folder(records, numerics="bfp"))[0].blocks[1]
    assert isinstance(block, Figure) == (since is None)
    if since:
        assert block.text.startswith(f"Since epoch {since} the first test samples all have the")


@pytest.mark.parametrize("wrong", [10**400, float("inf"), "1", None])
def test_lines_that_no_curve_can_show_are_left_out(folder, wrong):
    """The file is not trusted."""
    records = two()
    records[1]["train_loss"] = wrong
    figure = run_sections(folder(records, numerics="bfp"))[0].blocks[0]
    assert figure.text.startswith("After epoch 1:")


def test_float32_has_no_codes(folder):
    _, weights = run_sections(folder(two(weights={}), numerics="float32"))
    assert "float32 has no codes" in weights.blocks[0].text


def test_weights_over_the_epochs(folder):
    records = two(weights={"0.weight": [-8.0, 0.25, 0.01], "<b>": [-7.0, 0, 0], "bad": ["x"]})
    records[1]["weights"] = {**records[1]["weights"], "0.weight": [-6.0, 0.5, 0.0]}
    _, weights = run_sections(folder(records, numerics="bfp"))
    text, figure, fold = weights.blocks
    assert "not recorded" in text.text
    assert isinstance(figure, Figure)
    assert isinstance(fold, Fold)
    assert fold.blocks[0].rows == [
        ("0.weight", "-8", "-6", "50.00 %", "0.00 %"),
        ("<b>", "-7", "-7", "0.00 %", "0.00 %"),
    ]


@pytest.mark.parametrize(
    "wrong", [{"epoch": "1"}, {"train_loss": None}, {"lr": []}, {"test_accuracy": "1"}]
)
def test_lines_that_are_no_metrics_are_left_out(folder, wrong):
    sections = run_sections(folder([{**RECORD, **wrong}]))
    assert sections[0].blocks == [Paragraph("This run has no line of metrics yet.")]


def test_a_run_that_is_no_network_has_its_curves(folder):
    report = run_report(folder(two(), numerics="bfp"), "it has no\x1b deployed form")
    assert "as a network: it has no\\x1b deployed form" in str(report)
    assert "After epoch 2" in report.html


def test_no_folder_no_sections():
    assert run_sections(None) == []
