"""The table of a comparison: means, paired differences, standard errors, what diverged."""

import csv
import io
import json
import math

import pytest

from samebits.reports.comparison import ComparedRun, Comparison, PairedDifference


def comparison(accuracies, losses=None, seeds=(0, 1, 2), diverged=(), emulated=()):
    """Of accuracies by numerics, one for each seed; losses follow from them."""
    runs = tuple(
        ComparedRun(name, seed, diverged="training diverged in step 3")
        if (name, seed) in diverged
        else ComparedRun(name, seed, value, (1 - value) / 10, "0" * 64)
        for name, values in accuracies.items()
        for seed, value in zip(seeds, values, strict=True)
    )
    return Comparison("cnn", "digits", {"epochs": 2}, tuple(accuracies), emulated, seeds, runs)


THREE = {"float32": (0.9, 0.92, 0.94), "bfp": (0.91, 0.92, 0.92), "mxint8": (0.9, 0.92, 0.94)}


def test_two_standard_errors_of_paired_differences():
    found = PairedDifference.of([1.0, 0.0, -2.0])
    deviation = math.sqrt(((4 / 3) ** 2 + (1 / 3) ** 2 + (5 / 3) ** 2) / 2)
    assert found.mean == pytest.approx(-1 / 3, rel=1e-12)
    assert found.two_errors == pytest.approx(2 * deviation / math.sqrt(3), rel=1e-12)
    assert found.text(2) == "-0.33 +- 1.76"
    assert PairedDifference.of([0.25]) == PairedDifference(0.25, None)
    assert PairedDifference.of([0.25]).text(2) == "+0.25"
    assert PairedDifference.of([1e-9, -1e-8]).text(2) == "+0.00 +- 0.00"


def test_the_table():
    made = comparison(THREE, emulated=("mxint8",))
    assert str(made).splitlines() == [
        "cnn on digits",
        "seeds 0, 1, 2; the same initial values and data order in every numerics",
        "",
        "numerics  accuracy    loss  points to float32  loss to float32",
        "float32    92.00 %  0.0080",
        "bfp        91.67 %  0.0083  -0.33 +- 1.76      +0.0003 +- 0.0018",
        "mxint8     92.00 %  0.0080  +0.00 +- 0.00      +0.0000 +- 0.0000",
        "loss: mean training loss of the last epoch",
        "+-: two standard errors of the mean of the paired differences",
        "mxint8: emulated in float32 (operands of products rounded to the format, sums, stored "
        "weights and optimizer in float32); their bits depend on the machine, as those of float32 "
        "do",
    ]


def test_one_seed_has_no_standard_error():
    made = comparison({name: values[:1] for name, values in THREE.items()}, seeds=(7,))
    text = str(made)
    assert "one seed: no standard error; give several, such as --seeds 0..4" in text
    assert "+-" not in text
    assert "+1.00" in text
    assert text.splitlines()[1].startswith("seed 7; ")
    assert made.to_dict()["table"][1]["points"]["two_errors"] is None


def test_a_run_that_diverged_is_told_and_has_no_figure():
    made = comparison(THREE, diverged={("bfp", 1)})
    _, _, _, _, _, bfp, *rest = str(made).splitlines()
    assert bfp.rstrip() == "bfp       1 of 3 diverged"
    assert "bfp seed 1: training diverged in step 3" in rest
    row = made.rows()[1]
    assert (row.accuracy, row.loss, row.points, row.diverged) == (None, None, None, 1)
    broken = comparison(THREE, diverged={("float32", 0)})
    assert [row.points for row in broken.rows()] == [None, None, None]
    assert broken.rows()[1].accuracy is not None
    assert broken.picture() is None


def test_files(tmp_path):
    made = comparison(THREE)
    written = made.save(tmp_path)
    assert [path.name for path in written] == [
        *("comparison.json", "comparison.csv", "comparison.md", "comparison.tex"),
        *("comparison.html", "comparison.svg"),
    ]
    record = json.loads((tmp_path / "comparison.json").read_text())
    assert record == made.to_dict()
    assert record["format"] == "samebits-comparison-1"
    assert record["runs"][3] == {
        "numerics": "bfp",
        "seed": 0,
        "accuracy": 0.91,
        "loss": pytest.approx(0.009),
        "sha256": "0" * 64,
        "diverged": None,
    }
    rows = list(csv.DictReader(io.StringIO((tmp_path / "comparison.csv").read_text())))
    assert [row["numerics"] for row in rows] == ["float32", "bfp", "mxint8"]
    assert rows[0]["points"] == ""
    assert float(rows[1]["points"]) == made.rows()[1].points.mean
    assert float(rows[1]["points_two_errors"]) == made.rows()[1].points.two_errors
    assert (tmp_path / "comparison.svg").read_bytes() == made.picture()
    assert '<svg viewBox="' in (tmp_path / "comparison.html").read_text()


def test_a_picture_of_another_comparison_does_not_stay(tmp_path):
    comparison(THREE).save(tmp_path)
    written = comparison(THREE, diverged={("float32", 0)}).save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(p.name for p in written)


def test_pictures_have_the_same_bytes_every_time():
    made = comparison(THREE)
    assert made.picture() == made.picture()
    assert made.picture().startswith(b"<?xml")
