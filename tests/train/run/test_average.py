"""Runs that leave an average of their weights (`--ema`), in both numerics."""

import copy
import re

import pytest
import torch
from torch import nn

from samebits.data import Dataset
from samebits.errors import CheckpointError
from samebits.train import EMA, convert
from samebits.train.run.average import FloatEMA, RunAverage
from samebits.train.run.checkpoint import (
    Checkpoint,
    list_checkpoints,
    parameter_sha256,
    read_checkpoint,
    write_checkpoint,
)
from samebits.train.run.config import TrainConfig
from samebits.train.run.evaluate import count_correct, final_classifier
from samebits.train.run.loop import Silent, train
from samebits.train.run.record import read_metrics
from samebits.train.run.restore import restore_engine

EMA_OPTION = {"ema": 0.7}


def make_data():
    """66 images [1, 6, 6] of noise whose mean tells one of three classes."""
    generator = torch.Generator().manual_seed(7)
    labels = torch.arange(66) % 3
    noise = torch.randint(0, 120, (66, 1, 6, 6), generator=generator)
    images = (noise + 60 * labels.reshape(-1, 1, 1, 1)).to(torch.uint8)
    return Dataset(images[:48], labels[:48], images[48:], labels[48:], ("a", "b", "c"), "made")


DATA = make_data()


class Stop(Exception):
    """Ends a run."""


class StopAfter(Silent):
    """Ends a run as a crash would, after a step."""

    def __init__(self, step):
        self.step = step

    def stepped(self, step, loss):
        if step == self.step:
            raise Stop


def run(out, numerics, reporter=None, resume=False, every=2, **changes):
    options = {"arch": "cnn", "epochs": 2, "batch": 16, "lr": 0.05, "data": "made"}
    config = TrainConfig(numerics=numerics, **{**options, **changes})
    return train(config, DATA, out, reporter=reporter, resume=resume, checkpoint_every=every)


@pytest.fixture(scope="module", params=["float32", "bfp", "row-shift"])
def numerics(request):
    """Options of a run."""
    if request.param == "row-shift":
        return {"numerics": "bfp", "exponents": "row-shift"}
    return {"numerics": request.param}


@pytest.fixture(scope="module")
def averaged(numerics, tmp_path_factory):
    """Result and folder of a whole run that keeps an average."""
    out = tmp_path_factory.mktemp("averaged")
    return run(out, **numerics, **EMA_OPTION), out


def test_training_is_that_of_a_run_without_an_average(tmp_path, numerics, averaged):
    plain, (result, out) = run(tmp_path / "plain", **numerics), averaged
    assert result.sha256 != plain.sha256
    assert result.train_loss == plain.train_loss
    last = read_checkpoint(list_checkpoints(out)[-1])
    assert parameter_sha256(last.average["training"]) == plain.sha256
    assert parameter_sha256(last.model) == result.sha256
    assert result.bytes_per_parameter - plain.bytes_per_parameter == pytest.approx(4, abs=0.1)


def test_the_average_is_that_of_the_weights_after_every_step(tmp_path):
    out = tmp_path / "averaged"
    run(out, "float32", every=1, **EMA_OPTION)
    before, last = [read_checkpoint(path) for path in list_checkpoints(out)]
    for name, value in last.average["training"].items():
        statistic = "running" in name or "batches" in name  # the model's own
        expected = value if statistic else torch.lerp(before.model[name], value, 1 - 0.7)
        assert torch.equal(last.model[name], expected), name


def test_averages_are_evaluated_deployed_and_restored(averaged):
    result, out = averaged
    path = list_checkpoints(out)[-1]
    last = read_checkpoint(path)
    engine = restore_engine(path, last, DATA)
    classifier, arithmetic = final_classifier(engine, last.exponents)
    assert (count_correct(classifier, DATA), arithmetic) == (result.correct, result.arithmetic)
    record = read_metrics(out)[-1]
    assert record["test_accuracy"] == count_correct(engine, DATA) / len(DATA.test_labels)


@pytest.mark.parametrize("step", [3, pytest.param(6, marks=pytest.mark.slow)])
def test_resumed_runs_end_with_the_same_average(tmp_path, numerics, averaged, step):
    with pytest.raises(Stop):
        run(tmp_path / "cut", reporter=StopAfter(step), **numerics, **EMA_OPTION)
    resumed = run(tmp_path / "cut", resume=True, **numerics, **EMA_OPTION)
    assert resumed.sha256 == averaged[0].sha256
    again = run(tmp_path / "cut", resume=True, **numerics, **EMA_OPTION)
    assert again == resumed


def forged(average, how):
    """A stored average that no run wrote."""
    made = copy.deepcopy(average)
    if how == "none":
        return None
    if how == "no weights":
        del made["weights"]
    elif how == "texts":
        made["training"] = {"a": "b"}
    elif how == "a tensor less":
        made["weights"].popitem()
    elif how == "other shapes":
        name = next(iter(made["weights"]))
        made["weights"][name] = made["weights"][name].new_zeros(5)
    elif how == "infinite":
        next(iter(made["weights"].values())).fill_(torch.inf)
    else:
        made["training"].popitem()
    return made


NOT_ONE = "damaged: expected the averaged weights of a run with --ema"


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("none", NOT_ONE),
        ("no weights", NOT_ONE),
        ("texts", NOT_ONE),
        ("a tensor less", "averages: expected those of this model's parameters, found"),
        ("other shapes", r"averages: .*: expected torch.float32 \(.*\), found torch.float32 \(5,"),
        ("infinite", "averages: .*: expected finite numbers"),
        ("fewer to train", "not the state of this model"),
    ],
)
def test_forged_averages_are_refused(tmp_path, how, text):
    with pytest.raises(Stop):
        run(tmp_path, "float32", reporter=StopAfter(4), **EMA_OPTION)
    (path,) = list_checkpoints(tmp_path)[-1:]
    good = read_checkpoint(path)
    fields = {name: getattr(good, name) for name in Checkpoint.__dataclass_fields__}
    fields["average"] = forged(good.average, how)
    write_checkpoint(tmp_path, Checkpoint(**fields))
    with pytest.raises(CheckpointError, match=f"^{re.escape(str(path))}: .*{text}"):
        run(tmp_path, "float32", resume=True, **EMA_OPTION)


def test_an_average_that_is_no_container_is_refused(tmp_path):
    path = write_checkpoint(tmp_path, Checkpoint(1, {}, {}, {}, {}, average=(1,)))
    with pytest.raises(CheckpointError, match="average: expected dict, found tuple"):
        read_checkpoint(path)


def test_the_models_own_weights_come_back_after_an_error():
    model = nn.Linear(3, 2)
    average = RunAverage(model, 0.5)
    own = torch.ones_like(model.weight)
    with torch.no_grad():
        model.weight.copy_(own)

    def failing():
        with average.applied():
            assert not torch.equal(model.weight, own)
            raise Stop

    with pytest.raises(Stop):
        failing()
    assert torch.equal(model.weight, own)


def test_the_kind_follows_the_model():
    assert isinstance(RunAverage(nn.Linear(3, 2), 0.5)._average, FloatEMA)
    assert isinstance(RunAverage(convert(nn.Linear(3, 2)), 0.5)._average, EMA)
    without = RunAverage(nn.Linear(3, 2), None)
    assert without.state() is None
