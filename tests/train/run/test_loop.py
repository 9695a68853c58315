import dataclasses
import json
import os
import re
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from torch import nn

from samebits.data import Dataset
from samebits.errors import CheckpointError, InputError, RangeError, UnsupportedError
from samebits.train.deployed.deploy import Exponents, FrozenSite, calibrate
from samebits.train.run import record
from samebits.train.run.checkpoint import (
    Checkpoint,
    list_checkpoints,
    parameter_sha256,
    read_checkpoint,
    write_checkpoint,
)
from samebits.train.run.config import TrainConfig
from samebits.train.run.evaluate import count_correct, final_classifier
from samebits.train.run.loop import Silent, data_order, train
from samebits.train.run.record import append_metrics, read_metrics, repair_metrics
from samebits.train.run.restore import open_trained, restore_engine, trained_shape


def make_data(count=96, classes=3, size=6):
    """Noise whose mean tells the class: learnable in a few steps."""
    generator = torch.Generator().manual_seed(7)
    labels = torch.arange(count + 30) % classes
    noise = torch.randint(0, 120, (count + 30, 1, size, size), generator=generator)
    images = (noise + 60 * labels.reshape(-1, 1, 1, 1)).to(torch.uint8)
    names = tuple(str(label) for label in range(classes))
    return Dataset(
        images[:count], labels[:count], images[count:], labels[count:], names, "generated"
    )


DATA = make_data()


def make_config(numerics="float32", **changes):
    options = {"arch": "cnn", "epochs": 2, "batch": 16, "lr": 0.05, "data": "generated"}
    return TrainConfig(numerics=numerics, **{**options, **changes})


class Stop(Exception):
    pass


class StopAfter(Silent):
    """Ends the run as a crash would, after a step."""

    def __init__(self, step):
        self.step = step
        self.said = []

    def say(self, text):
        self.said.append(text)

    def stepped(self, step, loss):
        if step == self.step:
            raise Stop


@pytest.fixture(params=["float32", "bfp"])
def numerics(request):
    return request.param


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Result and folder of a whole run, per numerics and optimizer."""
    done = {}

    def run(numerics, **changes):
        key = (numerics, *sorted(changes.items()))
        if key not in done:
            out = tmp_path_factory.mktemp("whole")
            done[key] = train(make_config(numerics, **changes), DATA, out), out
        return done[key]

    return run


def without_time(records):
    return [{k: v for k, v in record.items() if k != "seconds"} for record in records]


def test_data_order_is_a_permutation_of_seed_and_epoch():
    orders = [data_order(1000, seed, epoch) for seed, epoch in ((0, 0), (0, 1), (1, 0), (0, 0))]
    for order in orders:
        assert torch.equal(order.sort().values, torch.arange(1000))
    assert not torch.equal(orders[0], orders[1])
    assert not torch.equal(orders[0], orders[2])
    assert torch.equal(orders[0], orders[3])


def test_run_folder_and_result(numerics, uninterrupted):
    result, out = uninterrupted(numerics)
    assert result.accuracy > 0.6
    assert sorted(path.name for path in out.iterdir()) == [
        "checkpoint-00000006.safetensors",
        "checkpoint-00000012.safetensors",
        "config.json",
        "metrics.jsonl",
        "result.json",
    ]
    others = [path for path in out.iterdir() if path.name != "result.json"]
    files = {path.name: sha256(path.read_bytes()).hexdigest() for path in others}
    stored = {"format": "samebits-run-1", **result.to_dict(), "files": files}
    assert json.loads((out / "result.json").read_text()) == stored
    assert json.loads((out / "config.json").read_text())["numerics"] == numerics
    metrics = read_metrics(out)
    assert [(r["epoch"], r["step"]) for r in metrics] == [(1, 6), (2, 12)]
    assert not any(r["one_output"] for r in metrics)
    if numerics == "float32":
        assert metrics[-1]["test_accuracy"] == result.accuracy
    assert result.arithmetic == {"float32": "float32", "bfp": "deployed"}[numerics]
    assert metrics[-1]["train_loss"] == result.train_loss
    newest = read_checkpoint(list_checkpoints(out)[-1])
    assert parameter_sha256(newest.model) == result.sha256


def test_checkpoint_evaluates_to_the_reported_accuracy(numerics, uninterrupted):
    result, out = uninterrupted(numerics)
    path = list_checkpoints(out)[-1]
    checkpoint = read_checkpoint(path)
    engine = restore_engine(path, checkpoint, DATA)
    classifier, arithmetic = final_classifier(engine, checkpoint.exponents)
    assert (count_correct(classifier, DATA), arithmetic) == (result.correct, result.arithmetic)


def test_only_the_last_checkpoint_has_frozen_exponents(numerics, uninterrupted):
    _, out = uninterrupted(numerics)
    first, last = [read_checkpoint(path).exponents for path in list_checkpoints(out)]
    assert first is None
    assert (last is not None) == (numerics == "bfp")
    if last is not None:
        samples = [DATA.batch("train", at) for at in torch.arange(96).split(1)]
        assert last == calibrate(open_trained(out).model, samples)


def test_open_trained(uninterrupted):
    result, out = uninterrupted("bfp")
    path = list_checkpoints(out)[-1]
    for given in (out, path):
        opened = open_trained(given, "cnn")
        assert (opened.path, opened.input_shape, opened.classes) == (path, (1, 6, 6), 3)
        assert parameter_sha256(opened.model.state_dict()) == result.sha256
    with pytest.raises(
        UnsupportedError, match="exponents that a finished run leaves, found none; fi"
    ):
        open_trained(list_checkpoints(out)[0])
    assert open_trained(uninterrupted("float32")[1]).exponents is None
    with pytest.raises(CheckpointError, match="expected the architecture 'mlp', found 'cnn'"):
        open_trained(out, "mlp")
    with pytest.raises(InputError, match="no such file or folder"):
        open_trained(out / "nothing")


class Far(nn.Module):
    """Values that no frozen exponent reaches."""

    def forward(self, x):
        return x * 2.0**-80


def test_models_that_cannot_be_deployed_are_evaluated_in_training_arithmetic(tmp_path):
    class Logarithms(nn.Module):
        """Times log-probabilities: what has no deployed form (training.md 11)."""

        def forward(self, x):
            return torch.log_softmax(x, -1) * x

    model = nn.Sequential(Logarithms(), nn.Flatten(), nn.Linear(36, 3))
    reporter = StopAfter(None)
    result = train(
        make_config("bfp", epochs=1, arch="Sequential"),
        DATA,
        tmp_path,
        model=model,
        reporter=reporter,
    )
    assert result.arithmetic == "training"
    assert read_metrics(tmp_path)[-1]["test_accuracy"] == result.accuracy
    assert read_checkpoint(list_checkpoints(tmp_path)[-1]).exponents is None
    assert "0 (logvalues)" in reporter.said[0]
    with pytest.raises(UnsupportedError) as caught:
        open_trained(tmp_path, model)
    assert str(caught.value).endswith(
        ".safetensors: 1 operation(s) cannot be deployed:\n  0 (logvalues): devices have the "
        "logits of log_softmax: take its values apart outside the network"
    )


def test_a_finished_run_whose_values_do_not_fit_the_deployed_arithmetic(tmp_path):
    model = nn.Sequential(nn.Flatten(), Far(), nn.Linear(36, 3))
    reporter = StopAfter(None)
    train(
        make_config("bfp", epochs=1, arch="Sequential"),
        DATA,
        tmp_path,
        model=model,
        reporter=reporter,
    )
    assert any("expected a frozen exponent in [-60, 60]" in line for line in reporter.said)
    with pytest.raises(UnsupportedError, match="this run is finished: its values did not fit"):
        open_trained(tmp_path, model)


def test_one_output_for_all_test_samples_is_said_once(numerics, tmp_path):
    """Of a network whose last weights are zero, and stay so, since no step is taken."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))
    zero = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    reporter = StopAfter(None)
    train(make_config(numerics, lr=0.0), DATA, tmp_path, model=model, init=zero, reporter=reporter)
    assert [line["one_output"] for line in read_metrics(tmp_path)] == [True, True]
    (said,) = reporter.said
    assert said.startswith("warning: after epoch 1 the first test samples all have the same output")


def restored(config, data=DATA, arch=None):
    """restore_engine of a finished run's checkpoint whose configuration was changed."""
    checkpoint = Checkpoint(12, {}, {}, config, {})
    return restore_engine(Path("c.safetensors"), checkpoint, data, arch)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"batch": "64"},
            "c.safetensors: its configuration is not one that samebits writes: --batch: e",
        ),
        ({"arch": 5}, "expected arch, a text, found 5"),
        ({"numerics": []}, "--numerics: expected one of bfp, float32, found []"),
        ({"lr": None}, "--lr: expected a number in [0, inf), found None"),
        ({"batch": -1}, "--batch: expected a whole number from 1, found -1"),
        (
            {"input_shape": [1, 6, "6"]},
            "expected an input shape [C, H, W], [T, F] or [T] and a number of classes",
        ),
        ({"rate": 8000.0}, "expected a number of samples per second or none in its configuration"),
        ({"input_shape": 3}, "expected an input shape [C, H, W], [T, F] or [T] and a number of"),
        (
            {"input_shape": [36]},
            "c.safetensors: its configuration is not one that samebits writes: architecture "
            "cnn: expected images [C, H, W]",
        ),
        ({"input_shape": [1, 1, 6, 6]}, "expected an input shape [C, H, W], [T, F] or [T] and a"),
        ({"classes": 0}, "expected an input shape [C, H, W], [T, F] or [T] and a number of"),
        ({"arch": "own:net"}, "which is not run unasked; if you trust it, give --arch own:net"),
    ],
    ids=str,
)
def test_configuration_of_a_checkpoint_is_not_trusted(uninterrupted, changes, text):
    _, out = uninterrupted("float32")
    config = json.loads((out / "config.json").read_text())
    with pytest.raises(CheckpointError) as caught:
        restored({**config, **changes})
    assert text in str(caught.value)


@pytest.mark.parametrize("shape", [(1, 6, 6), (20, 8)], ids=["image", "sequence"])
def test_input_shape_of_a_checkpoint(uninterrupted, shape):
    _, out = uninterrupted("float32")
    config = {**json.loads((out / "config.json").read_text()), "input_shape": list(shape)}
    assert trained_shape(Path("c.safetensors"), Checkpoint(12, {}, {}, config, {})) == shape


@pytest.mark.parametrize(
    ("stored", "found"),
    [
        ({}, "none"),
        ({"1.weight": torch.ones(3, 36, dtype=torch.float64)}, r"float64 \[3, 36\]"),
        ({"1.weight": torch.ones(4, 36)}, r"float32 \[4, 36\]"),
    ],
)
def test_tensors_of_a_checkpoint_must_be_those_of_the_module_given(uninterrupted, stored, found):
    """Their type too: torch would convert it."""
    _, out = uninterrupted("float32")
    config = {**json.loads((out / "config.json").read_text()), "arch": "Sequential"}
    module = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))
    checkpoint = Checkpoint(12, {"1.bias": torch.ones(3), **stored}, {}, config, {})
    message = rf"tensor '1\.weight': expected float32 \[3, 36\], found {found}; give the archite"
    with pytest.raises(CheckpointError, match=message):
        restore_engine(Path("c.safetensors"), checkpoint, DATA, module)


def test_checkpoint_without_an_option_is_refused(uninterrupted):
    _, out = uninterrupted("float32")
    config = json.loads((out / "config.json").read_text())
    for key in ("momentum", "input_shape", "classes"):
        with pytest.raises(CheckpointError, match=f"expected the option '{key}'"):
            restored({name: value for name, value in config.items() if name != key})


def test_sizes_of_a_checkpoint_take_no_memory(numerics, uninterrupted):
    _, out = uninterrupted(numerics)
    path = list_checkpoints(out)[-1]
    checkpoint = read_checkpoint(path)
    huge = dataclasses.replace(checkpoint, config={**checkpoint.config, "classes": 10**12})
    with pytest.raises(
        CheckpointError, match=r"expected \w+ \[1000000000000, 64\], found \w+ \[3,"
    ):
        restore_engine(path, huge, DATA)


def test_data_that_the_model_cannot_take(uninterrupted):
    _, out = uninterrupted("float32")
    path = list_checkpoints(out)[-1]
    checkpoint = read_checkpoint(path)
    with pytest.raises(
        InputError, match=r"expected images \[1, 6, 6\] as in training, found \[1, 8"
    ):
        restore_engine(path, checkpoint, make_data(size=8))
    with pytest.raises(InputError, match="expected at most the 3 classes the model"):
        restore_engine(path, checkpoint, make_data(classes=4))
    fewer = make_data(classes=2)
    assert count_correct(restore_engine(path, checkpoint, fewer), fewer) > 0


def test_seed_decides_the_result(numerics, uninterrupted, tmp_path):
    result, _ = uninterrupted(numerics)
    again = train(make_config(numerics), DATA, tmp_path / "again")
    other = train(make_config(numerics, seed=1), DATA, tmp_path / "other")
    assert again.sha256 == result.sha256
    assert other.sha256 != result.sha256


@pytest.mark.parametrize("step", [1, 6, 7, 11, 12])
def test_resumed_run_equals_the_uninterrupted_one(numerics, uninterrupted, tmp_path, step):
    result, whole = uninterrupted(numerics)
    with pytest.raises(Stop):
        train(make_config(numerics), DATA, tmp_path, checkpoint_every=2, reporter=StopAfter(step))
    resumed = train(make_config(numerics), DATA, tmp_path, checkpoint_every=2, resume=True)
    assert resumed.sha256 == result.sha256
    assert resumed.train_loss == result.train_loss
    assert (resumed.correct, resumed.arithmetic) == (result.correct, result.arithmetic)
    assert without_time(read_metrics(tmp_path)) == without_time(read_metrics(whole))
    last = [read_checkpoint(list_checkpoints(folder)[-1]) for folder in (whole, tmp_path)]
    assert str(last[0].optimizer) == str(last[1].optimizer)
    assert last[0].exponents == last[1].exponents


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": "adam", "lr": 0.002, "weight_decay": 0.01},
        {"nesterov": True, "weight_decay": 1e-3, "schedule": "linear", "warmup": 3},
        {"momentum": 0.0, "schedule": "step"},
        {"optimizer": "adamw", "lr": 0.002, "weight_decay": 0.1},
    ],
    ids=["adam", "nesterov", "plain", "adamw"],
)
def test_optimizers_resume_exactly(numerics, uninterrupted, tmp_path, changes):
    result, _ = uninterrupted(numerics, **changes)
    config = make_config(numerics, **changes)
    with pytest.raises(Stop):
        train(config, DATA, tmp_path, checkpoint_every=1, reporter=StopAfter(9))
    assert train(config, DATA, tmp_path, resume=True).sha256 == result.sha256


def test_resuming_a_finished_run_repeats_its_result(numerics, tmp_path):
    first = train(make_config(numerics, epochs=1), DATA, tmp_path)
    assert train(make_config(numerics, epochs=1), DATA, tmp_path, resume=True) == first
    (tmp_path / "result.json").unlink()
    second = train(make_config(numerics, epochs=1), DATA, tmp_path, resume=True)
    assert second.step_seconds_median is None
    assert (second.sha256, second.correct) == (first.sha256, first.correct)
    assert (tmp_path / "result.json").exists()


def test_float32_matches_plain_pytorch(uninterrupted):
    """The comparison of the two numerics is against PyTorch itself, not against a variant."""
    from samebits.train.architectures import build, initialise

    result, _ = uninterrupted("float32")
    config = make_config()
    model = build("cnn", DATA.input_shape, DATA.classes)
    initialise(model, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(12):
        chosen = data_order(96, 0, step // 6)[step % 6 * 16 : (step % 6 + 1) * 16]
        optimizer.param_groups[0]["lr"] = config.schedule_for(DATA).at(step)
        logits = model(DATA.batch("train", chosen))
        nn.functional.cross_entropy(logits, DATA.train_labels[chosen]).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert parameter_sha256(model.state_dict()) == result.sha256


def test_float32_memory_is_what_is_known(uninterrupted):
    with_momentum, _ = uninterrupted("float32")
    without, _ = uninterrupted("float32", momentum=0.0, schedule="step")
    adam, _ = uninterrupted("float32", optimizer="adam", lr=0.002, weight_decay=0.01)
    assert with_momentum.bytes_per_parameter == 8
    assert without.bytes_per_parameter == 4
    assert 12 <= adam.bytes_per_parameter < 12.01  # a step count per tensor
    assert 4 <= with_momentum.saved_bytes_per_element < 5  # pooling keeps int64 positions


def test_bfp_memory(uninterrupted):
    with_momentum, _ = uninterrupted("bfp")
    without, _ = uninterrupted("bfp", momentum=0.0, schedule="step")
    assert 5 <= with_momentum.bytes_per_parameter < 5.02  # an exponent per tensor
    assert 3 <= without.bytes_per_parameter < 3.02
    assert 1 <= with_momentum.saved_bytes_per_element < 1.2


def test_threads_do_not_change_a_bfp_run(uninterrupted, tmp_path):
    result, _ = uninterrupted("bfp")
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if threads > 1 else 2)
    try:
        assert train(make_config("bfp"), DATA, tmp_path).sha256 == result.sha256
    finally:
        torch.set_num_threads(threads)


def test_own_model(numerics, tmp_path):
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))
    result = train(make_config(numerics, epochs=1), DATA, tmp_path, model=model)
    assert result.parameters == 36 * 3 + 3


def test_learning_rate_that_overflows(numerics, tmp_path):
    config = make_config(numerics, lr=1e36, warmup=8, epochs=2, schedule="constant")
    with pytest.raises(RangeError) as caught:
        train(config, DATA, tmp_path, checkpoint_every=1)
    text = str(caught.value)
    assert text.startswith("training diverged in step ")
    assert "lower the learning rate (--lr)" in text
    assert text.count("lower the learning rate") == 1
    assert text.count("diverged") == 1
    assert "Earlier checkpoints are intact" in text
    for path in list_checkpoints(tmp_path):
        read_checkpoint(path)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"batch": 100}, "give --shards N with N dividing 100"),
        ({"batch": 4, "shards": 8}, "found a batch of 4 for 8 shards; raise --batch or lower"),
        ({"batch": 10, "shards": 4}, "expected shards that divide the batch, found a batch of 10"),
        ({"numerics": "bf16"}, "--numerics: expected one of bfp, float32, found 'bf16'"),
        ({"optimizer": "lion"}, "--optimizer: expected one of sgd, adam, adamw, found 'lion'"),
        ({"epochs": 0}, "--epochs: expected a whole number from 1, found 0"),
        ({"seed": 2**32}, "--seed: expected a whole number from 0 to 4294967295"),
        ({"lr": float("inf")}, "--lr: expected a number in [0, inf), found inf"),
        ({"momentum": 1.0}, "--momentum: expected a number in [0, 1), found 1.0"),
        ({"batch": "64"}, "--batch: expected a whole number from 1, found '64'"),
        ({"seed": True}, "--seed: expected a whole number from 0 to 4294967295, found True"),
        ({"arch": 5}, "expected arch, a text, found 5"),
        ({"shards": 2.0}, "--shards: expected a whole number from 1, found 2.0"),
        ({"numerics": "bfp", "gradient_bits": 8}, "expected gradient bits 32, or 16 for"),
        ({"gradient_bits": 16}, "or 16 for numerics bfp, found 16 for float32"),
        ({"clip_norm": 0.0}, "--clip-norm: expected a number in (0, inf), found 0.0"),
        ({"clip_value": float("inf")}, "--clip-value: expected a number in (0, inf), found inf"),
        ({"clip_value": "1"}, "--clip-value: expected a number in (0, inf), found '1'"),
        ({"label_smoothing": 1.5}, "--label-smoothing: expected a number in [0, 1], found 1.5"),
        ({"label_smoothing": float("nan")}, "--label-smoothing: expected a number in [0, 1]"),
        ({"augment": "shear"}, "--augment shear: expected none, or a list of flip"),
        ({"nesterov": True, "momentum": 0.0}, "nesterov needs sgd with a momentum > 0"),
    ],
)
def test_bad_options_are_refused(changes, text):
    with pytest.raises(InputError) as caught:
        make_config(**changes)
    assert text in str(caught.value)


@pytest.mark.parametrize(("batch", "shards"), [(1, 1), (31, 1), (33, 1), (64, 2), (256, 8)])
def test_default_shards_are_of_32_samples(batch, shards):
    assert make_config(batch=batch).shard_count() == shards


def test_fewer_images_than_a_batch(tmp_path):
    with pytest.raises(InputError) as caught:
        train(make_config(batch=128), DATA, tmp_path)
    assert str(caught.value) == (
        "generated: expected at least one batch of 128 training images, found 96; lower --batch "
        "or add data"
    )
    assert list(tmp_path.iterdir()) == []


def test_folder_with_a_run_is_refused_or_overwritten(tmp_path):
    config = make_config(epochs=1)
    first = train(config, DATA, tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="already holds a training run"):
        train(config, DATA, tmp_path)
    assert train(config, DATA, tmp_path, overwrite=True).sha256 == first.sha256
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_resume_without_a_checkpoint_starts_over(tmp_path):
    reporter = StopAfter(None)
    train(make_config(epochs=1), DATA, tmp_path / "new", resume=True, reporter=reporter)
    assert reporter.said == [f"{tmp_path / 'new'}: no checkpoint yet, starting from the first step"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"arch": "mlp"}, "belongs to another architecture: tensor '1.weight': expected float32"),
        ({"lr": 0.06}, "belongs to another run: lr: expected 0.06, found 0.05"),
        ({"numerics": "bfp"}, "belongs to another architecture: tensor '0.0.weight"),
    ],
)
def test_resume_with_other_options_is_refused(tmp_path, changes, text):
    train(make_config(epochs=1), DATA, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(CheckpointError) as caught:
        train(make_config(**{"epochs": 1, **changes}), DATA, tmp_path, resume=True)
    assert text in str(caught.value)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_resume_with_other_data_is_refused(tmp_path):
    train(make_config(epochs=1), DATA, tmp_path)
    with pytest.raises(CheckpointError, match="data_sha256: expected"):
        train(make_config(epochs=1), make_data(98), tmp_path, resume=True)


def test_run_can_be_resumed_after_its_data_moved(tmp_path):
    first = train(make_config(epochs=1), DATA, tmp_path)
    moved = make_config(epochs=1, data="elsewhere")
    assert train(moved, DATA, tmp_path, resume=True) == first
    assert json.loads((tmp_path / "config.json").read_text())["data"] == "elsewhere"


def test_truncated_checkpoint_falls_back(uninterrupted, tmp_path):
    result, _ = uninterrupted("float32")
    with pytest.raises(Stop):
        train(make_config(), DATA, tmp_path, checkpoint_every=2, reporter=StopAfter(9))
    newest = list_checkpoints(tmp_path)[-1]
    newest.write_bytes(newest.read_bytes()[:1000])
    reporter = StopAfter(None)
    resumed = train(make_config(), DATA, tmp_path, resume=True, reporter=reporter)
    assert resumed.sha256 == result.sha256
    assert reporter.said[0].startswith(f"warning: {newest}: truncated")
    assert reporter.said[1].endswith("resuming after step 6")


def test_metrics_are_repaired(tmp_path):
    for epoch in (1, 2, 3):
        append_metrics(tmp_path, {"epoch": epoch, "step": 10 * epoch})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 4, "st')
    assert [record["epoch"] for record in repair_metrics(tmp_path, 20)] == [1, 2]
    assert (tmp_path / "metrics.jsonl").read_text().count("\n") == 2


def hidden(folder):
    return sorted(path.name for path in folder.glob(".*"))


def test_own_temporary_files_are_removed_from_a_run(tmp_path):
    train(make_config(epochs=1), DATA, tmp_path)
    for name in ("checkpoint-00000001.safetensors", "config.json", "metrics.jsonl", "result.json"):
        (tmp_path / f".{name}.123.tmp").write_bytes(b"half")
    (tmp_path / ".mine.tmp").write_text("mine")
    (tmp_path / ".config.json.draft.tmp").write_text("mine")
    train(make_config(epochs=1), DATA, tmp_path, resume=True)
    assert hidden(tmp_path) == [".config.json.draft.tmp", ".mine.tmp"]


def test_temporary_files_of_a_folder_without_a_run_stay(tmp_path):
    (tmp_path / ".config.json.123.tmp").write_text("mine")
    train(make_config(epochs=1), DATA, tmp_path)
    assert hidden(tmp_path) == [".config.json.123.tmp"]


def test_run_killed_before_its_first_file_is_cleaned_up(tmp_path):
    (tmp_path / ".samebits.lock").touch()
    (tmp_path / ".config.json.123.tmp").write_text("half")
    train(make_config(epochs=1), DATA, tmp_path)
    assert hidden(tmp_path) == []


@pytest.mark.parametrize("options", [{}, {"resume": True}, {"overwrite": True}], ids=str)
@pytest.mark.parametrize("name", ["config.json", "result.json"])
def test_folder_of_something_else_is_left_alone(tmp_path, name, options):
    (tmp_path / name).write_text('{"arch": "theirs"}')
    with pytest.raises(InputError, match=f"holds a {name} that no training run wrote"):
        train(make_config(epochs=1), DATA, tmp_path, **options)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("options", [{}, {"resume": True}, {"overwrite": True}], ids=str)
def test_a_run_of_another_format_is_left_alone(tmp_path, options):
    train(make_config(epochs=1), DATA, tmp_path)
    path = tmp_path / "config.json"
    for change, found in (({"format": "samebits-run-2"}, "'samebits-run-2'"), ({}, "None")):
        stored = {key: v for key, v in json.loads(path.read_text()).items() if key != "format"}
        path.write_text(json.dumps({**stored, **change}))
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        message = (
            f"{path}: expected format 'samebits-run-1' of samebits, found {found}; use the release "
            "of samebits that wrote it, or give another --out"
        )
        with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
            train(make_config(epochs=1), DATA, tmp_path, **options)
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_only_the_same_run_is_overwritten(tmp_path):
    train(make_config(epochs=1), DATA, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(InputError, match=r"holds another training run \(seed: expected 1, found 0"):
        train(make_config(epochs=1, seed=1), DATA, tmp_path, overwrite=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_second_process_in_a_folder_is_refused(tmp_path):
    class Second(Silent):
        def stepped(self, step, loss):
            with pytest.raises(InputError, match="another run is writing there"):
                train(make_config(epochs=1), DATA, tmp_path, resume=True)

    train(make_config(epochs=1), DATA, tmp_path, reporter=Second())
    assert hidden(tmp_path) == []
    train(make_config(epochs=1), DATA, tmp_path, resume=True)


def folder_of_a_run(out):
    return record.run_folder(out, {}, resume=False, overwrite=False)


def test_the_lock_is_a_file_that_everyone_may_write_whom_the_umask_allows(tmp_path):
    before = os.umask(0)
    try:
        with folder_of_a_run(tmp_path):
            assert (tmp_path / ".samebits.lock").stat().st_mode & 0o777 == 0o666
    finally:
        os.umask(before)


def test_a_lock_whose_file_was_removed_meanwhile_is_taken_again(tmp_path, monkeypatch):
    """Another run ends between the two calls that open the file and lock it: nothing stays open."""
    path, flock, taken = tmp_path / ".samebits.lock", record.fcntl.flock, []

    def late(file, operation):
        if len(taken) < 2:
            path.unlink()
        taken.append(file.fileno())
        flock(file, operation)

    monkeypatch.setattr(record.fcntl, "flock", late)
    with folder_of_a_run(tmp_path):
        assert os.path.samestat(path.stat(), os.fstat(taken[2]))
    assert len(taken) == 3
    for descriptor in taken:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
    assert hidden(tmp_path) == []


def test_folder_can_be_used_where_locks_do_not_exist(tmp_path, monkeypatch):
    """Nothing tells there that a run was killed: files that may be somebody else's stay."""
    monkeypatch.setattr(record, "fcntl", None)
    (tmp_path / ".config.json.123.tmp").write_text("mine")
    train(make_config(epochs=1), DATA, tmp_path)
    assert hidden(tmp_path) == [".config.json.123.tmp"]


@pytest.mark.parametrize("world", ["1", ""])
def test_one_process_may_train(tmp_path, monkeypatch, world):
    monkeypatch.setenv("WORLD_SIZE", world)
    train(make_config(epochs=1), DATA, tmp_path)


def test_workers_without_torchrun_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(InputError, match="found WORLD_SIZE=2 but no RANK in the environment"):
        train(make_config(epochs=1), DATA, tmp_path / "run")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "workers", "text"),
    [
        ({"numerics": "bfp", "batch": 12, "shards": 4}, 3, "divides the 4 shards of a batch"),
        ({"numerics": "float32", "batch": 12, "shards": 4}, 5, "divides the 12 samples"),
    ],
)
def test_workers_that_do_not_divide_the_work_are_refused(changes, workers, text):
    config = make_config(**changes)
    config.check_workers(2)
    with pytest.raises(InputError, match=text):
        config.check_workers(workers)


@pytest.mark.filterwarnings("ignore::samebits.errors.FidelityWarning")  # one step teaches nothing
@pytest.mark.parametrize("arch", ["mlp", "resnet8", "resnet20", "mobilenetv2"])
def test_every_architecture_takes_a_bfp_step(arch, tmp_path):
    data = make_data(count=16, size=8)
    result = train(make_config("bfp", arch=arch, epochs=1, batch=16), data, tmp_path)
    assert result.steps == 1
    assert result.bytes_per_parameter < 5.3
    # One a code, and 24 of each channel of a batch norm, which mobilenetv2 has many of.
    assert result.saved_bytes_per_element < 1.11


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"model": ("codes", -128)}, r"expected integers in \[-127, 127\], found -128"),
        ({"model": ("delayed", 16385)}, r"expected integers in \[-16384, 16384\]"),
        ({"model": ("exponent", 4000)}, r"expected integers in \[-128, 127\], found 4000"),
        ({"progress": {"loss_sum": "much", "train_loss": None}}, "expected numbers for loss_sum"),
        ({"progress": {}}, "expected numbers for loss_sum"),
    ],
)
def test_forged_state_is_refused(tmp_path, changes, text):
    """Well-formed files with a right checksum, but values that no run could have written."""
    train(make_config("bfp", epochs=1), DATA, tmp_path)
    path = list_checkpoints(tmp_path)[-1]
    checkpoint = read_checkpoint(path)
    for field, value in changes.items():
        if field == "model":
            name = next(key for key in checkpoint.model if key.endswith(value[0]))
            checkpoint.model[name].fill_(value[1])
        else:
            checkpoint = dataclasses.replace(checkpoint, progress=value)
    write_checkpoint(tmp_path, checkpoint)
    with pytest.raises(CheckpointError, match=text):
        train(make_config("bfp", epochs=1), DATA, tmp_path, resume=True)


def test_forged_exponents_are_refused(uninterrupted):
    _, out = uninterrupted("bfp")
    path = list_checkpoints(out)[-1]
    checkpoint = dataclasses.replace(
        read_checkpoint(path), exponents=Exponents((FrozenSite("input", 1),))
    )
    classifier, _ = final_classifier(restore_engine(path, checkpoint, DATA), checkpoint.exponents)
    with pytest.raises(CheckpointError, match="the frozen exponents belong to another model"):
        count_correct(classifier, DATA)
