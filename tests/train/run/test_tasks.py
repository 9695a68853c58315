"""Runs of every task in both numerics: figures, records, evaluation, deployment, refusals."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn

import samebits as sb
from given_options import called
from samebits.data import from_arrays
from samebits.errors import CheckpointError, InputError, UnsupportedError
from samebits.recipes.reading import Reading
from samebits.train.run.tasks import LOSSES, criterion_of, fitting

RNG = np.random.default_rng(2)
X = RNG.normal(size=(80, 4))
NUMBERS = 50 + 9 * X[:, 0] - 4 * X[:, 1]
LABELS = np.stack([X[:, 0] > 0, X[:, 1] > X[:, 2]], axis=1).astype(np.int64)
OPTIONS = {"batch": 16, "epochs": 8, "lr": 0.02, "threads": 1}


class Pixels(nn.Module):
    """A class for every pixel."""

    def __init__(self, outputs=2):
        super().__init__()
        self.layer = nn.Conv2d(1, outputs, 1)

    def forward(self, x):
        return self.layer(x)


def masked(size=(4, 4)):
    masks = RNG.integers(0, 2, (40, *size)).astype(np.uint8)
    return from_arrays([60 + 120 * masks], [masks])


def saved(folder, y):
    path = folder / "data.npz"
    np.savez(path, x=X, y=y)
    return path


@pytest.mark.parametrize("numerics", ["bfp", "float32"])
@pytest.mark.parametrize(
    ("y", "names", "least"),
    [(NUMBERS, ("rmse", "mae", "r2"), 0.7), (LABELS, ("exact_match", "mean_f1"), 0.7)],
)
def test_runs_of_rows(tmp_path, numerics, y, names, least):
    path = saved(tmp_path, y)
    run = called(sb.fit, data=path, arch="mlp", out=tmp_path / "run", **OPTIONS, numerics=numerics)
    assert tuple(run.metrics) == names
    assert run.metrics[names[-1]] > least  # it learned
    stored = json.loads((tmp_path / "run" / "result.json").read_text())
    assert stored["metrics"] == run.metrics
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert {f"test_{name}" for name in names} <= json.loads(lines[-1]).keys()
    found = sb.evaluate(tmp_path / "run", path)
    assert (found.metrics, found.correct) == (run.metrics, run.result.correct)
    assert found.arithmetic == ("deployed" if numerics == "bfp" else "float32")
    assert "RMSE" in str(run) if y is NUMBERS else "exact match" in str(found)


@pytest.mark.parametrize("y", [NUMBERS, LABELS])
def test_a_deployed_network_has_the_figures_of_its_run(tmp_path, y):
    path = saved(tmp_path, y)
    run = called(sb.fit, data=path, arch="mlp", out=tmp_path / "run", **OPTIONS)
    net = sb.load(tmp_path / "run")
    integers = sb.evaluate(net, path)
    assert integers.arithmetic == "integer"
    assert integers.metrics == run.metrics
    assert net.verify(from_arrays([X], [y]), ("torch", "training")).same_bits
    net.save(tmp_path / "net.onnx")
    assert sb.evaluate(tmp_path / "net.onnx", path).metrics == run.metrics
    assert ("targets" if y is NUMBERS else "labels") in str(sb.inspect(tmp_path / "run"))


def test_a_float_network_is_read_back(tmp_path):
    path = saved(tmp_path, NUMBERS)
    run = called(sb.fit, data=path, arch="mlp", out=tmp_path / "run", **OPTIONS, numerics="float32")
    found = sb.evaluate(sb.load(tmp_path / "run"), path)
    assert found.metrics["r2"] == pytest.approx(run.metrics["r2"], abs=1e-5)
    quantized = sb.quantize(tmp_path / "run", from_arrays([X], [NUMBERS]))
    assert sb.evaluate(quantized, path).metrics["r2"] == pytest.approx(run.metrics["r2"], abs=0.05)


def test_rows_of_an_evaluation_get_the_scales_of_training(tmp_path):
    path = saved(tmp_path, NUMBERS)
    run = called(sb.fit, data=path, arch="mlp", out=tmp_path / "run", **OPTIONS)
    np.savez(tmp_path / "data.npz", x=X[::-1] + 3, y=NUMBERS[::-1])
    assert sb.evaluate(tmp_path / "run", path).metrics["r2"] < run.metrics["r2"] - 0.5


def test_a_resumed_run_is_the_same(tmp_path):
    path = saved(tmp_path, NUMBERS)
    whole = called(sb.fit, data=path, arch="mlp", out=tmp_path / "a", **OPTIONS)
    called(sb.fit, data=path, arch="mlp", out=tmp_path / "b", **OPTIONS)
    for checkpoint in sorted((tmp_path / "b").glob("checkpoint-*"))[-1:]:
        checkpoint.unlink()
    again = called(sb.fit, data=path, arch="mlp", out=tmp_path / "b", **OPTIONS, resume=True)
    assert (again.sha256, again.metrics) == (whole.sha256, whole.metrics)


@pytest.mark.parametrize("numerics", ["bfp", "float32"])
def test_pixels(tmp_path, numerics):
    data = masked()
    run = called(
        sb.fit,
        data=data,
        arch=Pixels(),
        out=tmp_path / "run",
        **OPTIONS | {"batch": 8},
        numerics=numerics,
    )
    assert run.metrics["mean_iou"] > 0.9
    assert run.accuracy == run.metrics["pixel_accuracy"]
    assert sb.evaluate(tmp_path / "run", data, arch=Pixels()).metrics == run.metrics


@pytest.mark.parametrize(
    ("y", "optimizer", "rate"),
    [(NUMBERS, "sgd", 0.02), (LABELS, "sgd", 0.1), (NUMBERS, "adam", 0.001)],
)
def test_the_usual_rate_is_that_of_the_task(tmp_path, y, optimizer, rate):
    """And what is given stays: the runs above."""
    options = {"batch": 16, "epochs": 1, "threads": 1, "optimizer": optimizer}
    run = called(
        sb.fit,
        data=saved(tmp_path, y),
        arch="mlp",
        out=tmp_path / "run",
        **options,
        numerics="float32",
    )
    assert run.config.lr == rate


def test_a_regression_has_no_accuracy(tmp_path):
    run = called(
        sb.fit,
        data=saved(tmp_path, NUMBERS),
        arch="mlp",
        out=tmp_path / "run",
        **OPTIONS | {"epochs": 1},
    )
    with pytest.raises(InputError, match="found regression; ask for its metrics"):
        _ = run.accuracy
    assert run.to_dict()["accuracy"] is None


@pytest.mark.parametrize("task", ["multilabel", "regression"])
def test_losses_are_those_of_the_task(task):
    outputs, labels = torch.tensor([[0.5, -1.0]]), torch.tensor([[1.0, 0.0]])
    made = criterion_of(task, "float32", 0.0)
    wanted = nn.MSELoss() if task == "regression" else nn.BCEWithLogitsLoss()
    assert made(outputs, labels) == wanted(outputs, labels)
    with pytest.raises(InputError, match=f"expected classes to smooth, found {task}; leave it out"):
        criterion_of(task, "bfp", 0.1)
    assert set(LOSSES[task]) == {"bfp", "float32"}


def test_outputs_that_do_not_fit_are_named():
    with pytest.raises(
        UnsupportedError, match=r"outputs \[3, 2\] for these labels, found \[3, 4\]"
    ):
        fitting(torch.zeros(3, 4), torch.zeros(3, 2))
    with pytest.raises(UnsupportedError, match=r"outputs \[3, classes, 5, 6\] for these labels"):
        fitting(torch.zeros(3, 4), torch.zeros(3, 5, 6, dtype=torch.int64))


def test_what_does_not_apply_is_named(tmp_path):
    data, out = masked(), tmp_path / "run"
    for arch in ("mlp", "cnn"):
        with pytest.raises(InputError, match=f"a class for every pixel, found {arch}, which has"):
            sb.fit(data, arch, out)
    with pytest.raises(InputError, match="expected --augment none for segmentation"):
        sb.fit(data, Pixels(), out, sb.Training(augment="flip", batch=8))
    rows = from_arrays([X], [NUMBERS])
    with pytest.raises(InputError, match=r"architecture gpt: expected a text \(.txt\), found rows"):
        sb.fit(rows, "gpt", out, sb.Training(batch=16))
    with pytest.raises(InputError, match="expected images for --augment, found samples of shape"):
        sb.fit(rows, "mlp", out, sb.Training(batch=16, augment="flip"))
    with pytest.raises(
        InputError, match="--target does not apply to a Dataset, which takes no such"
    ):
        sb.fit(sb.read(rows, target="y"), "mlp", out, sb.Training(batch=16))


def test_other_data_than_that_of_the_run_is_named(tmp_path):
    path = saved(tmp_path, NUMBERS)
    called(sb.fit, data=path, arch="mlp", out=tmp_path / "run", **OPTIONS | {"epochs": 1})
    labels = from_arrays([X], [LABELS], "labels")
    with pytest.raises(InputError, match="labels for regression as in training, found multilabel"):
        sb.evaluate(tmp_path / "run", labels)
    other = from_arrays([2 * X], [NUMBERS], "other")
    with pytest.raises(InputError, match="in the scales of training, found others; give the file"):
        sb.evaluate(tmp_path / "run", other)
    trained = from_arrays([X], [NUMBERS])
    same = from_arrays([2 * X], [NUMBERS], prepared=trained.preparation)
    assert sb.evaluate(tmp_path / "run", same).total == 16
    two = from_arrays([X], [np.stack([NUMBERS, NUMBERS], 1)], "two")
    with pytest.raises(InputError, match="expected 1 targets as in training, found 2"):
        sb.evaluate(tmp_path / "run", two)


@pytest.mark.parametrize(
    "change", [{"task": "sorting"}, {"preparation": {}}, {"reading": {"resize": "a"}}]
)
def test_records_that_samebits_does_not_write_are_refused(tmp_path, change):
    from samebits.train.run.checkpoint import newest_checkpoint
    from samebits.train.run.restore import earlier_reading, restore_engine

    path = saved(tmp_path, NUMBERS)
    called(sb.fit, data=path, arch="mlp", out=tmp_path / "run", **OPTIONS | {"epochs": 1})
    checkpoint = newest_checkpoint(tmp_path / "run", print)
    checkpoint.config.update(change)
    refuses = restore_engine if "task" in change else earlier_reading
    given = (from_arrays([X], [NUMBERS]),) if "task" in change else ()
    with pytest.raises(CheckpointError, match="its configuration"):
        refuses(tmp_path, checkpoint, *given)


def test_recorded_options_read_tables_again(tmp_path):
    pandas = pytest.importorskip("pandas", reason="tables are read by pandas")
    frame = pandas.DataFrame({"y": NUMBERS, **{f"x{i}": X[:, i] for i in range(4)}})
    frame.to_csv(tmp_path / "t.csv", index=False)
    run = called(
        sb.fit,
        data=sb.read(tmp_path / "t.csv", target="y"),
        arch="mlp",
        out=tmp_path / "run",
        **OPTIONS,
    )
    frame[["x3", "x1", "y", "x0", "x2"]].to_csv(tmp_path / "moved.csv", index=False)
    assert sb.evaluate(tmp_path / "run", tmp_path / "t.csv").metrics == run.metrics
    moved = sb.evaluate(tmp_path / "run", tmp_path / "moved.csv")
    assert moved.metrics["r2"] > 0.5
    assert Reading.from_dict(
        json.loads((tmp_path / "run" / "config.json").read_text())["reading"]
    ) == Reading("y", "regression")
    with pytest.raises(InputError, match="--target: expected one of its columns"):
        sb.evaluate(tmp_path / "run", sb.read(tmp_path / "t.csv", target="z"))
