"""`samebits compile --train`: a run in, a folder of C that trains on; and back to PyTorch."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import samebits as sb
from on_device import Device, batches
from samebits.codegen.run.targets import TARGETS
from samebits.errors import InputError
from samebits.ondevice.state import from_bytes


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A short run of the digits mlp, small."""
    out = tmp_path_factory.mktemp("run") / "r"
    sb.fit("digits", "mlp", out, sb.Training(epochs=1, batch=32, limit=8))
    return out


def test_a_run_becomes_c_and_comes_back(run, samebits, tmp_path):
    done = samebits("compile", run, "--out", tmp_path / "c", "--train", "--prefix", "net")
    assert done.code == 0, done.err
    assert "26,122 parameters to train, batches of up to 8, after step 2" in done.out
    found = {path.name for path in (tmp_path / "c").iterdir()}
    assert found == {"net.c", "net.h", "net_state.c", "report.json", "samebits"}
    compiled = sb.compile_training(run, tmp_path / "d", batch=4)
    device = Device(compiled.code, tmp_path / "built", "-O0")
    assert device.state() == compiled.state() == compiled.state(run)
    for batch in batches(2, 4):
        assert device.step(*batch) == 0
    path = compiled.checkpoint(device.state(), tmp_path / "back")
    assert path.name == "checkpoint-00000004.safetensors"
    assert compiled.state(path) == device.state()
    assert from_bytes(compiled.state(path), compiled.code.places).step == 4
    assert sb.evaluate(path, "digits").correct is not None
    images, labels = (torch.cat(each) for each in zip(*batches(3, 4), strict=True))
    same = compiled.verify(images[:10], labels[:10], 0.05)
    assert same
    assert same.to_dict()["steps"] == 3
    assert "3 steps, state and loss after each:" in str(same.report())
    assert "equal to training" in str(same.report())
    with pytest.raises(InputError, match=r"expected images \[n, 1, 8, 8\]"):
        compiled.verify(images[:, :, 1:], labels)
    with pytest.raises(InputError, match="refuses them with code 2"):
        compiled.verify(images, labels + 7)
    again = sb.compile_training(path, tmp_path / "d")
    assert np.array_equal(list(again.state()), list(device.state()))


def test_json_has_the_figures(run, samebits, tmp_path):
    options = ("--train-batch", "3", "--train-schedule", "linear:4", "--json")
    done = samebits("compile", run, "--out", tmp_path / "c", *options)
    told = json.loads(done.out)
    report = json.loads((tmp_path / "c" / "report.json").read_text())
    assert told["batch"] == report["batch"] == 3
    assert report["optimizer"]["scheduled_steps"] == 4
    assert told["bytes"] == report["bytes"]
    assert told["bytes"]["arena"] >= told["bytes"]["arena_bound"] > told["bytes"]["state"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--target", "npu"], "--target does not apply to --train, found npu"),
        (["--cpu", "cortex-m4"], "--cpu does not apply to --train, found cortex-m4"),
        (["--train-schedule", "cosine"], "expected NAME:STEPS with 1 to 1,048,576 steps"),
        (["--train-schedule", "sine:3"], "expected a schedule among"),
        (["--prefix", "2"], "prefix of the generated C: expected"),
        (["--train-only", "head"], "--train-only: expected names of modules or parameters, found"),
        (["--train-only", "1,"], "separated by commas, found '1,'"),
        (["--train-arena", "-1"], "--train-arena: expected a whole number from 0, found '-1'"),
    ],
)
def test_options_that_do_not_apply(run, samebits, tmp_path, options, said):
    done = samebits("compile", run, "--out", tmp_path / "c", "--train", *options)
    assert done.code == 2
    assert said in done.err
    assert not (tmp_path / "c").exists()


def test_a_network_that_c_cannot_train(samebits, tmp_path):
    sb.fit("digits", "smooth", tmp_path / "r", sb.Training(epochs=1, batch=32, limit=4))
    done = samebits("compile", tmp_path / "r", "--out", tmp_path / "c", "--train")
    assert done.code == 2
    assert "layer '1' (Activation): training in C has no instruction for" in done.err


def test_steps_are_compared_on_the_data_of_the_run(run, samebits):
    done = samebits("verify", run, "--train", "steps:3", "--json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert told["same"]
    assert told["backends"] == [{"backend": "c", "parting": None, "where": ""}]
    assert len(told["losses"]) == told["steps"] == 3


def test_a_part_trains_and_comes_back_beside_the_rest(run, samebits, tmp_path):
    head = ("--train-only", "5")
    done = samebits("verify", run, "--train", "steps:3", *head, "--backends", "c", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["same"]
    done = samebits("compile", run, "--out", tmp_path / "c", *head, "--json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert told["train_only"] == ["5"]
    assert told["bytes"]["state"] < told["bytes"]["frozen"]
    compiled = sb.compile_training(run, tmp_path / "d", train_only=["5.weight", "5.bias"])
    assert compiled.code.files["model.c"] == (tmp_path / "c" / "model.c").read_bytes()
    larger = samebits("compile", run, "--out", tmp_path / "l", *head, "--train-arena", "99999")
    assert larger.code == 0, larger.err
    grown = json.loads((tmp_path / "l" / "report.json").read_text())["bytes"]["arena"]
    assert told["bytes"]["arena"] < grown <= 99999
    device = Device(compiled.code, tmp_path / "built", "-O0")
    assert device.step(*batches(1, 8)[0]) == 0
    path = compiled.checkpoint(device.state(), tmp_path / "back")
    assert sb.evaluate(path, "digits").correct is not None
    assert compiled.state(path) == device.state()
    again = sb.compile_training(path, tmp_path / "d", train_only="5")
    assert again.state() == device.state()
    with pytest.raises(InputError, match=r"1\.weight: expected 3 steps, as the run has, found 2"):
        sb.compile_training(path, tmp_path / "d")
    sb.fit("digits", "mlp", tmp_path / "other", sb.Training(epochs=1, batch=32, limit=8, seed=3))
    with pytest.raises(InputError, match="whose parts that no step changes are those of the C"):
        compiled.state(tmp_path / "other")


@pytest.mark.slow  # half a minute: emulated boards
def test_boards_train_as_pytorch_does(run, samebits):
    names = ["c", "cortex-m0-large", "cortex-m3", "cortex-m4", "cortex-m55", "aarch64", "s390x"]
    names = [name for name in names if not TARGETS[name].unavailable()]
    given = ",".join(["training", *names])
    done = samebits("verify", run, "--train", "steps:2", "--backends", given, "--json")
    assert done.code == 0, done.err
    assert [each["backend"] for each in json.loads(done.out)["backends"]] == names


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--train", "steps:2", "--seed", "3"], "--seed does not apply to --train, found 3"),
        (["--train", "20"], "expected steps:N with at least 1 step"),
        (["--train-only", "1"], "expected steps:N with at least 1 step"),
        (["--train", "steps:2", "--backends", "npu"], "--backends: expected some of training, c,"),
        (["--train", "steps:2", "--backends", "cortex-m0"], "that needs"),
    ],
)
def test_comparisons_that_cannot_be_made(run, samebits, options, said):
    done = samebits("verify", run, *options)
    assert done.code == 2
    assert said in done.err
