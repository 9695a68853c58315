"""Generated C beside PyTorch: every byte of the state and the loss, after every step."""

from __future__ import annotations

import numpy as np
import pytest

from on_device import Device, batches, code_of, config, engine, network, state_bytes
from samebits.data.digits import load_digits
from samebits.train.run.schedule import Schedule


def train(name, folder, steps, *flags, batch=8, short=False, **options):
    """Both beside each other; short: every other batch has half of the samples."""
    chosen = config(**options)
    run = engine(network(name), chosen)
    device = Device(code_of(run, chosen, batch=batch), folder, *flags)
    assert device.state() == state_bytes(run, 0, device)
    rate = Schedule("linear", chosen.lr, steps)
    for step, (images, labels) in enumerate(batches(steps, batch, chosen.seed)):
        if short and step % 2:
            images, labels = images[: batch // 2], labels[: batch // 2]
        loss = run.step((images, labels), rate.at(step), step)
        assert device.step(images, labels, rate.at(step)) == 0
        assert device.state() == state_bytes(run, step + 1, device), f"step {step}"
        assert device.loss == loss
    return run, device


@pytest.mark.parametrize("name", ["chain", "dropout"])
def test_every_step_is_that_of_pytorch(tmp_path, name):
    run, device = train(name, tmp_path, 5, "-O1", weight_decay=0.001)
    images = load_digits()
    images = images.values(images.images("test")[:3])
    found = np.stack([device.run(image) for image in images])
    assert np.array_equal(found, run.logits(images).numpy())


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
        ("chain", ["-O1", "-fsanitize=undefined", "-fno-sanitize-recover=all"], {}),
    ],
)
def test_a_hundred_steps(tmp_path, name, flags, options):
    train(name, tmp_path, 100, *flags, **options)
