"""A network trained on: accuracy comes back, the report says what changed, what does not fit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import samebits as sb
from samebits.data.digits import load_digits
from samebits.errors import InputError
from samebits.recipes import FineTuning


@pytest.fixture(scope="module")
def float_network():
    """A small CNN, trained on digits for a few steps."""
    data = load_digits()
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3), nn.ReLU6(),
        nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip
    images, labels = data.batch("train", torch.arange(256)), data.train_labels[:256]
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(40):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return model.eval()


def test_four_bits_come_back(float_network):
    data = load_digits()
    images = data.batch("train", torch.arange(64)).numpy()
    with torch.no_grad():
        logits = float_network(data.batch("test", torch.arange(len(data.test_labels))))
    float_accuracy = float((logits.argmax(1) == data.test_labels).double().mean())
    net = sb.quantize(float_network, images, sb.Formats(weights="symmetric-s4", per_tensor=True))
    tuned = net.finetune(data, sb.FineTuning(epochs=2, lr=0.01))
    before, after = (sb.evaluate(each, data).accuracy for each in (net, tuned))
    assert after > before
    assert after > float_accuracy - 0.01
    assert tuned.verify("random:8", ["torch"])
    changed = [c for c in tuned.quantization.changes if c.step == "fine-tuning"]
    assert [c.op for c in changed] == ["Conv", "Conv", "Gemm"]
    assert all(c.what.endswith(" codes") for c in changed)
    assert tuned.notes[-1].startswith("fine-tuned on digits: ")
    codes = [array for name, array in tuned.model.real.constants.items() if array.dtype == np.int8]
    assert max(abs(array).max() for array in codes if array.ndim > 1) == 7


def test_the_option(float_network):
    data = load_digits()
    images = data.batch("train", torch.arange(16)).numpy()
    net = sb.quantize(float_network, images, finetune=data)
    assert net.notes[-1].startswith("fine-tuned on digits: ")


def test_what_does_not_fit(float_network):
    data = load_digits()
    images = data.batch("train", torch.arange(16)).numpy()
    net = sb.quantize(float_network, images)
    with pytest.raises(InputError, match="expected a quantized network to fine-tune, found: float"):
        sb.load(float_network, example=torch.ones(1, 1, 8, 8)).finetune(data)
    fixed = sb.quantize(sb.load(float_network, example=torch.ones(2, 1, 8, 8)), images)
    with pytest.raises(InputError, match="batch: expected a multiple of the 2 samples"):
        fixed.finetune(data, sb.FineTuning(batch=33))
    with pytest.raises(InputError, match="expected at least 4096 training samples"):
        net.finetune(data, sb.FineTuning(batch=4096))
    wide = nn.Sequential(nn.Flatten(), nn.Linear(32, 10))
    wrong = sb.quantize(wide, np.ones((4, 2, 4, 4), np.float32))
    with pytest.raises(InputError, match=r"expected samples of shape \[2, 4, 4\]"):
        wrong.finetune(data)
    with pytest.raises(InputError, match="--epochs: expected data to fine-tune on with it"):
        sb.quantize(float_network, images, sb.FineTuning(epochs=2))


@pytest.mark.parametrize("wrong", [([1], [2]), np.ones((2, 2)), iter([])])
def test_arrays_are_no_data_without_a_split(float_network, wrong):
    images = load_digits().batch("train", torch.arange(16)).numpy()
    with pytest.raises(InputError, match=r"data: expected .* found .*; of arrays make Dataset\("):
        sb.quantize(float_network, images).finetune(wrong)
    with pytest.raises(InputError, match=r"of arrays make Dataset\("):
        sb.fit(wrong, "mlp", "runs/never")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"epochs": 0}, "--epochs: expected a whole number from 1, found 0"),
        ({"batch": 0}, "--batch: expected a whole number from 1, found 0"),
        ({"lr": 0.0}, r"--lr: expected a number in \(0, inf\)"),
        ({"lr": float("nan")}, r"--lr: expected a number in \(0, inf\)"),
    ],
)
def test_wrong_schedules(given, message):
    with pytest.raises(InputError, match=message):
        FineTuning(**given)
