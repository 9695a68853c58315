"""`fit(tensorboard=...)`: scalars of steps and epochs, and not a bit of the run changed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

import samebits as sb
from given_options import called
from samebits.cli import main
from samebits.data import Dataset
from samebits.errors import InputError
from samebits.train.run.loop import Silent
from samebits.train.run.record import read_metrics
from samebits.train.run.schedule import Schedule
from samebits.train.run.tensorboard import TensorBoard

OPTIONS = {"epochs": 2, "batch": 16, "seed": 4, "warmup": 1}


def small(count: int = 32) -> Dataset:
    generator = torch.Generator().manual_seed(3)
    images = torch.randint(0, 256, (count + 8, 1, 4, 4), generator=generator).to(torch.uint8)
    labels = torch.arange(count + 8) % 2
    parts = (images[:count], labels[:count], images[count:], labels[count:])
    return Dataset(*parts, ("a", "b"), "generated")


class Writer:
    """What torch.utils.tensorboard.SummaryWriter is to a run, in memory."""

    made: list[Writer]

    def __init__(self, folder: str, purge_step: int) -> None:
        self.folder, self.purge_step = folder, purge_step
        self.scalars: list[tuple[str, float, int]] = []
        self.closed = False
        Writer.made.append(self)

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        assert not self.closed
        self.scalars.append((tag, value, step))

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def writers(monkeypatch):
    """The writers that are made, instead of files."""
    module = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    Writer.made = []
    return Writer.made


class Heard(Silent):
    def __init__(self) -> None:
        self.steps: list[int] = []
        self.epochs: list[int] = []
        self.first: int | None = None
        self.lines: list[str] = []

    def say(self, text):
        self.lines.append(text)

    def started(self, first_step, steps):
        self.first = first_step

    def stepped(self, step, loss):
        self.steps.append(step)

    def epoch_done(self, record):
        self.epochs.append(record["epoch"])


def test_scalars_of_steps_and_epochs(writers, tmp_path):
    heard = Heard()
    run = called(
        sb.fit,
        data=small(),
        arch="mlp",
        out=tmp_path / "run",
        **OPTIONS,
        tensorboard=tmp_path / "tb",
        reporter=heard,
    )
    (writer,) = writers
    assert (writer.folder, writer.purge_step, writer.closed) == (str(tmp_path / "tb"), 1, True)
    by_tag: dict[str, list[tuple[int, float]]] = {}
    for tag, value, step in writer.scalars:
        by_tag.setdefault(tag, []).append((step, value))
    assert by_tag.keys() == {"loss/step", "learning rate", "loss/epoch", "accuracy/test"}
    assert [step for step, _ in by_tag["loss/step"]] == [1, 2, 3, 4]
    schedule = run.config.schedule_for(small())
    assert by_tag["learning rate"] == [(step + 1, schedule.at(step)) for step in range(4)]
    metrics = read_metrics(tmp_path / "run")
    assert by_tag["loss/epoch"] == [(line["step"], line["train_loss"]) for line in metrics]
    assert by_tag["accuracy/test"] == [(line["step"], line["test_accuracy"]) for line in metrics]
    losses = [value for _, value in by_tag["loss/step"]]
    assert by_tag["loss/epoch"][0][1] == (losses[0] + losses[1]) / 2
    assert (heard.first, heard.steps, heard.epochs) == (0, [1, 2, 3, 4], [1, 2])


@pytest.mark.parametrize("numerics", ["bfp", "float32"])
def test_no_bit_depends_on_it(writers, tmp_path, numerics):
    options = {**OPTIONS, "numerics": numerics}
    plain = called(sb.fit, data=small(), arch="mlp", out=tmp_path / "plain", **options)
    drawn = called(
        sb.fit,
        data=small(),
        arch="mlp",
        out=tmp_path / "drawn",
        **options,
        tensorboard=tmp_path / "tb",
    )
    assert drawn.sha256 == plain.sha256
    assert (
        read_metrics(tmp_path / "drawn")[0]["train_loss"]
        == (read_metrics(tmp_path / "plain")[0]["train_loss"])
    )
    config = (tmp_path / "plain" / "config.json").read_text()
    assert (tmp_path / "drawn" / "config.json").read_text() == config


def test_figures_of_another_task():
    """Each has a tag of its own."""
    Writer.made = []
    board = TensorBoard(Writer, Path("tb"), lambda: Schedule("constant", 0.1, 4), Silent())
    board.started(0, 4)
    record = {"epoch": 1, "step": 4, "train_loss": 2.0, "test_mae": 0.5, "test_r2": 0.75, "lr": 0.1}
    board.epoch_done(record)
    assert Writer.made[0].scalars == [
        ("loss/epoch", 2.0, 4),
        ("mae/test", 0.5, 4),
        ("r2/test", 0.75, 4),
    ]


def test_a_resumed_run_hides_the_steps_it_takes_again(writers, tmp_path):
    class Stop(Silent):
        def stepped(self, step, loss):
            if step == 3:
                raise KeyboardInterrupt

    more = {**OPTIONS, "tensorboard": tmp_path / "tb"}
    with pytest.raises(KeyboardInterrupt):
        called(sb.fit, data=small(), arch="mlp", out=tmp_path / "run", **more, reporter=Stop())
    assert writers[0].closed
    heard = Heard()
    called(
        sb.fit, data=small(), arch="mlp", out=tmp_path / "run", **more, resume=True, reporter=heard
    )
    assert writers[1].purge_step == 3
    assert heard.lines[-1].endswith("resuming after step 2")


def test_without_the_package(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    message = (
        f"--tensorboard {tmp_path / 'tb'}: expected the package tensorboard, found none; pip "
        "install tensorboard, or leave --tensorboard out"
    )
    with pytest.raises(InputError) as caught:
        called(
            sb.fit,
            data=small(),
            arch="mlp",
            out=tmp_path / "run",
            **OPTIONS,
            tensorboard=tmp_path / "tb",
        )
    assert str(caught.value) == message
    assert not (tmp_path / "run").exists()
    with pytest.raises(SystemExit) as ended:
        main(
            [
                *("train", "--data", "digits", "--arch", "mlp", "--out", str(tmp_path / "run")),
                *("--tensorboard", str(tmp_path / "tb"), "--quiet"),
            ]
        )
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines()[0] == f"error: {message}"


def test_the_option_reaches_the_run(writers, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(
            [
                *("train", "--data", "digits", "--arch", "mlp", "--epochs", "1", "--limit", "10"),
                *("--out", str(tmp_path / "run"), "--tensorboard", str(tmp_path / "tb"), "--json"),
            ]
        )
    assert not ended.value.code
    assert "tensorboard" not in json.loads(capsys.readouterr().out)["config"]
    assert writers[0].scalars


@pytest.mark.slow
def test_what_tensorboard_reads(tmp_path):
    """With the package itself, which imports TensorFlow where it is installed."""
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    called(
        sb.fit,
        data=small(),
        arch="mlp",
        out=tmp_path / "run",
        **OPTIONS,
        tensorboard=tmp_path / "tb",
    )
    read = events.EventAccumulator(str(tmp_path / "tb")).Reload()
    assert set(read.Tags()["scalars"]) == {
        "loss/step",
        "learning rate",
        "loss/epoch",
        "accuracy/test",
    }
    assert [event.step for event in read.Scalars("loss/step")] == [1, 2, 3, 4]
