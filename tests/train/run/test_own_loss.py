"""Losses of a user's own in runs: `--loss`, and modules that stay in float32: `--keep-float`."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn
from torch.nn import functional

import samebits as sb
from given_options import called
from samebits.comparison import compare
from samebits.data import Dataset
from samebits.errors import CheckpointError, InputError
from samebits.train.run.record import RESULT

OWN = """
import torch
from torch.nn import functional


def entropy(outputs, labels):
    scores = torch.log_softmax(outputs, 1)
    return functional.nll_loss(scores, labels)


def picked(outputs, labels):
    return -torch.log_softmax(outputs, 1).gather(1, labels[:, None]).mean()


def floats(outputs, labels):
    values = outputs if type(outputs) is torch.Tensor else outputs.dequantize()
    return functional.multi_margin_loss(values, labels)


class Huber(torch.nn.Module):
    def forward(self, outputs, labels):
        return functional.huber_loss(outputs, functional.one_hot(labels, 3).float())
"""


def made_data():
    generator = torch.Generator().manual_seed(7)
    labels = torch.arange(126) % 3
    noise = torch.randint(0, 120, (126, 1, 6, 6), generator=generator)
    images = (noise + 60 * labels.reshape(-1, 1, 1, 1)).to(torch.uint8)
    names = ("0", "1", "2")
    return Dataset(images[:96], labels[:96], images[96:], labels[96:], names, "generated")


DATA = made_data()


def trained(out, arch="mlp", **options):
    run = called(sb.fit, data=DATA, arch=arch, out=out, **options, epochs=1, batch=32, threads=1)
    assert run is not None
    return run


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN, encoding="utf-8")
    return path


def test_a_loss_that_says_the_same_has_the_same_bits(own, tmp_path):
    usual = trained(tmp_path / "usual")
    run = trained(tmp_path / "own", loss=f"{own}:entropy")
    assert run.sha256 == usual.sha256
    assert run.config.loss == f"{own}:entropy"
    assert run.result.float_islands is None
    assert sb.evaluate(run.folder, DATA).accuracy == run.accuracy  # which needs no loss


@pytest.mark.parametrize("numerics", ["bfp", "float32"])
@pytest.mark.parametrize("name", ["picked", "floats", "Huber"])
def test_losses_train_in_either_numerics(name, numerics, own, tmp_path):
    run = trained(tmp_path / "run", numerics=numerics, loss=f"{own}:{name}", lr=0.05)
    words = f"loss ({own}:{name}): float32: bits depend on the machine here"
    island = [words] if (name, numerics) == ("floats", "bfp") else None
    assert run.result.float_islands == island
    assert json.loads((run.folder / RESULT).read_text())["float_islands"] == island
    assert (words in str(run.report())) == bool(island)
    assert (words in sb.report(run.folder).html) == bool(island)


def test_a_run_goes_on_with_the_text_that_it_began_with(own, tmp_path):
    options = {"loss": f"{own}:picked", "resume": True}
    sha256 = trained(tmp_path / "run", **options).sha256
    assert trained(tmp_path / "run", **options).sha256 == sha256
    own.write_text(OWN.replace(".mean()", ".sum()"), encoding="utf-8")
    with pytest.raises(CheckpointError, match="another run: loss_sha256: expected"):
        trained(tmp_path / "run", **options)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda y, t: y, r"expected a tensor of one number, found \(16, 3\); take its mean"),
        (lambda y, t: 0.5, "expected a tensor of one number, found float"),
        (lambda y: y.sum(), "it raises TypeError: .* expected a number of outputs and labels"),
        (3, r"loss: expected a callable of outputs and labels, or its name \(module:call"),
        ("nowhere.py:loss", "--loss nowhere.py:loss: cannot import 'nowhere.py'"),
    ],
)
def test_what_is_no_loss_is_refused(loss, message, tmp_path):
    with pytest.raises(InputError, match=message):
        sb.fit(DATA, "mlp", tmp_path / "run", sb.Training(epochs=1, batch=16, loss=loss))


def test_smoothing_is_that_of_the_usual_loss(own, tmp_path):
    with pytest.raises(InputError, match=r"label smoothing 0\.1: expected none beside a loss of"):
        trained(tmp_path / "run", loss=f"{own}:picked", label_smoothing=0.1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.bent, self.last = nn.Linear(36, 8), nn.Softsign(), nn.Linear(8, 3)

    def forward(self, x):
        return self.last(self.bent(self.first(x.flatten(1))))


def test_modules_without_parameters_stay_in_float32(tmp_path):
    run = trained(tmp_path / "run", Net(), keep_float=["bent"])
    words = "bent (Softsign): float32: bits depend on the machine here"
    assert run.result.float_islands == [words]
    assert run.result.arithmetic == "training"  # devices have none of it
    assert sb.evaluate(run.folder, DATA, arch=Net()).accuracy == run.accuracy
    with pytest.raises(InputError, match=r"--keep-float: .* found 'first.weight'; train this"):
        trained(tmp_path / "other", Net(), keep_float=["first", "bent"])


def test_compare_takes_both(tmp_path):
    def loss(outputs, labels):
        return functional.cross_entropy(outputs, labels)

    found = compare(
        *(DATA, Net(), tmp_path / "compared"),
        *(sb.Training(epochs=1, batch=32, loss=loss), sb.Numerics(keep_float=["bent"])),
        seeds=[0],
    )
    assert [run.diverged for run in found.runs] == [None, None]
    assert "loss" in json.loads((tmp_path / "compared/comparison.json").read_text())["options"]
