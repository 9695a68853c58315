"""Generated C beside PyTorch: every byte of the state and the loss, after every step."""

from __future__ import annotations

import numpy as np
import pytest
from torch import nn

from on_device import (
    Device,
    batches,
    code_of,
    config,
    engine,
    network,
    state_bytes,
    train_beside,
)
from samebits.data.digits import load_digits

SANITIZED = ("-fsanitize=undefined", "-fno-sanitize-recover=all")


def train(name, folder, steps, *flags, batch=8, short=False, **options):
    """Both beside each other; short: every other batch has half of the samples."""
    chosen = config(**options)
    run = engine(network(name), chosen)
    return run, train_beside(run, chosen, folder, steps, *flags, batch=batch, short=short)


@pytest.mark.parametrize(
    "name",
    [
        *("chain", "dropout", "norms", "shared", "doubled", "standing", "resnet", "groups"),
        *("mobile", "padding"),
    ],
)
def test_every_step_is_that_of_pytorch(tmp_path, name):
    run, device = train(name, tmp_path, 5, "-O1", weight_decay=0.001)
    images = load_digits()
    images = images.values(images.images("test")[:3])
    found = np.stack([device.run(image) for image in images])
    assert np.array_equal(found, run.logits(images).numpy())


@pytest.mark.parametrize(
    "options",
    [
        {"nesterov": True, "weight_decay": 0.001},
        {"momentum": 0.0, "lr": 0.5},
        {"optimizer": "adam", "lr": 0.01, "weight_decay": 0.001, "clip_norm": 0.5},
        {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.01, "clip_value": 0.001},
        {"clip_norm": 0.05, "clip_value": 0.01},
    ],
)
def test_every_optimizer_is_that_of_pytorch(tmp_path, options):
    train("chain", tmp_path, 5, "-O1", **options)


@pytest.mark.parametrize("name", ["chain", "shared", "mobile"])
def test_more_memory_changes_no_bit(tmp_path, name):
    """The least, some more, and enough for all sums: each plan within its limit."""
    least, kept = 0, []
    for more in (0, 3000, 10**6):
        options = config()
        run = engine(network(name), options)
        limit = least + more
        device = train_beside(run, options, tmp_path / f"{more}", 3, "-O0", arena=limit)
        tape, places = device.code.tape, device.places
        kept.append(sum(room in places.rooms for room in tape.rooms if room.saves is not None))
        least = least or places.arena
        assert least <= places.arena <= max(least, limit)
    assert kept == sorted(kept)
    assert kept[0] < kept[2] == sum(room.saves is not None for room in tape.rooms)


def test_a_schedule_is_data(tmp_path):
    """Its rates, one after the other, then the last; then one of the caller's."""
    options, rates = config(), [0.1, 0.1, 0.05, 0.0]
    run = engine(network("dropout"), options)
    device = Device(code_of(run, options, rates=rates), tmp_path, "-O0")
    for step, batch in enumerate(batches(7, 8)):
        rate = [*rates, 0.0, 0.2, 0.2][step]
        run.step(batch, rate, step)
        assert device.step(*batch, 0.2 if step == 5 else None) == 0
        assert device.state() == state_bytes(run, step + 1, device)


@pytest.mark.slow  # half a minute
@pytest.mark.parametrize(
    ("name", "flags", "options"),
    [
        ("cnn", ["-O2"], {}),
        ("cnn", ["-O0"], {"weight_decay": 0.001, "seed": 5, "short": True}),
        ("cnn", ["-O3"], {"lr": 0.5, "batch": 32}),
        ("mlp", ["-Os"], {}),
        ("mlp", ["-O2"], {"lr": 0.5, "weight_decay": 0.01, "short": True}),
        ("dropout", ["-O2"], {"lr": 0.3, "batch": 5}),
        ("chain", ["-O2"], {"lr": 0.3, "momentum": 0.5}),
        ("chain", ["-O3", "-march=native", "-std=gnu99", "-ffp-contract=fast"], {}),
        ("chain", ["-O1", *SANITIZED], {}),
        ("resnet8", ["-O2"], {"weight_decay": 0.001}),
        ("shared", ["-O1", *SANITIZED], {"lr": 0.3, "short": True}),
        ("groups", ["-O2", *SANITIZED], {"lr": 0.3, "short": True}),
        ("groups", ["-O0"], {"momentum": 0.0, "lr": 1.0}),
        ("mobile", ["-O1", *SANITIZED], {"lr": 0.2, "weight_decay": 0.001}),
        ("mobile", ["-O3"], {"optimizer": "adamw", "lr": 0.01, "batch": 5}),
        ("resnet", ["-O3", *SANITIZED], {"optimizer": "adam", "lr": 0.01, "clip_norm": 1.0}),
        ("cnn", ["-O2"], {"nesterov": True, "weight_decay": 0.001}),
        ("chain", ["-O3", *SANITIZED], {"momentum": 0.0, "lr": 1.0, "weight_decay": 0.1}),
        ("dropout", ["-O0", *SANITIZED], {"nesterov": True, "lr": 30000.0, "short": True}),
        ("dropout", ["-O0", *SANITIZED], {"momentum": 0.0, "lr": 30000.0}),
        ("cnn", ["-O2"], {"optimizer": "adam", "lr": 0.003, "weight_decay": 0.001}),
        ("mlp", ["-O3"], {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.01, "short": True}),
        ("dropout", ["-O0", *SANITIZED], {"optimizer": "adamw", "lr": 30000.0}),
        ("chain", ["-Os", *SANITIZED], {"clip_norm": 0.3, "clip_value": 0.05}),
        ("cnn", ["-O2"], {"clip_norm": 0.1, "optimizer": "adam", "lr": 0.01}),
        ("dropout", ["-O1", *SANITIZED], {"clip_value": 1e-9}),
    ],
)
def test_a_hundred_steps(tmp_path, name, flags, options):
    train(name, tmp_path, 100, *flags, **options)


def test_rooms_that_save_nothing_may_be_left_out(tmp_path):
    """Of a layer with one input and one sample, whose table saves no product."""
    options = config(batch=1)
    run = engine(nn.Sequential(nn.Flatten(), nn.Linear(64, 1), nn.Linear(1, 10)), options)
    device = train_beside(run, options, tmp_path, 2, "-O0", batch=1)
    assert any(room.saves == 0 for room in device.code.tape.rooms)
