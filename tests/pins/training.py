"""Training in block floating point: parameters after some steps, and the losses of the steps."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from pins.registry import Pins, UnavailableError, digest, route
from pins.samples import fractions, image_data, integers, sequence_data
from samebits.data import Dataset
from samebits.data.augment import sample_words
from samebits.data.digits import load_digits
from samebits.errors import InputError
from samebits.recompute.plan.cost import find_device
from samebits.recompute.training import Planner
from samebits.train import SGD, BFPTensor, convert, mse_loss
from samebits.train.architectures import PatchTransformer, build, initialise
from samebits.train.run.checkpoint import parameter_sha256
from samebits.train.run.config import TrainConfig
from samebits.train.run.loop import Silent, data_order, train

IMAGES = (3, 8, 8)


class Losses(Silent):
    """A reporter that keeps the loss of every step."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def stepped(self, step: int, loss: float) -> None:
        self.values.append(loss)


def trained(data: Dataset, arch: str, model: nn.Module | None = None, **options: Any) -> Pins:
    """A run of 8 steps unless told otherwise, by `samebits.train.run.loop.train`."""
    plan = options.pop("plan", None)
    settings = {"epochs": 2, "batch": 16, "lr": 0.05, "seed": 5} | options
    config = TrainConfig(data="pins", arch=arch, **settings)
    planner = None
    if plan is not None:
        planner = Planner(config, find_device("accelerator-core"), "99%", backward=plan)
    heard = Losses()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        result = train(config, data, out, model=model, planner=planner, reporter=heard)
    if plan is not None and not (result.plan or {}).get("recomputed"):
        raise AssertionError("expected a plan that computes something again, found none")
    return {"parameters": result.sha256, "losses": digest(np.array(heard.values))}


def named(prefix: str, pins: Pins) -> Pins:
    return {f"{prefix}: {name}": found for name, found in pins.items()}


def digits() -> Dataset:
    """64 training and 32 test images of the bundled digits."""
    try:
        data = load_digits()
    except InputError as error:
        raise UnavailableError(str(error)) from error
    parts = (data.train_images[:64], data.train_labels[:64])
    tests = (data.test_images[:32], data.test_labels[:32])
    return Dataset(*parts, *tests, data.class_names, data.source, data.peak)


@route("training-digits")
def train_digits() -> Pins:
    data = digits()
    runs = {
        "mlp, sgd": trained(data, "mlp", momentum=0.0, schedule="constant"),
        "mlp, momentum": trained(data, "mlp", momentum=0.9, schedule="step"),
        "mlp, adam": trained(
            data, "mlp", optimizer="adam", lr=0.002, weight_decay=0.01, schedule="linear"
        ),
        "cnn": trained(data, "cnn", momentum=0.9, nesterov=True, weight_decay=1e-3, warmup=2),
    }
    found = {"data": data.sha256()}
    for name, pins in runs.items():
        found |= named(name, pins)
    return found


@route("training-shards")
def train_shards() -> Pins:
    """More shards are another sum; 16-bit gradients another rounding of it."""
    data = image_data(1, IMAGES, 64, 32)
    runs = {
        "1 shard": trained(data, "cnn", shards=1),
        "2 shards": trained(data, "cnn", shards=2),
        "2 shards, 16-bit gradients": trained(data, "cnn", shards=2, gradient_bits=16),
        "4 shards, adam": trained(data, "cnn", shards=4, optimizer="adam", lr=0.002),
    }
    return {name: found for run, pins in runs.items() for name, found in named(run, pins).items()}


@route("training-tables")
def train_tables() -> Pins:
    """tanh, GELU and sigmoid by table."""
    return trained(image_data(2, IMAGES, 64, 32), "smooth", momentum=0.9)


@route("training-lstm")
def train_lstm() -> Pins:
    data = sequence_data(3, (6, 5), 64, 32)
    found = named("1 shard", trained(data, "lstm", lr=0.2))
    return found | named("2 shards, adam", trained(data, "lstm", shards=2, optimizer="adam"))


class Speaker(nn.Module):
    """Recurrent layers of every kind, whose states and dropout layers count."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(5, 8, 2, batch_first=True, dropout=0.2)
        self.turned = nn.GRU(8, 4, bidirectional=True, batch_first=True)
        self.lstm = nn.LSTM(8, 8, 2, batch_first=True, dropout=0.1)
        self.relu = nn.RNN(8, 8, nonlinearity="relu", batch_first=True)
        self.tanh, self.cell = nn.RNN(8, 6, batch_first=True), nn.LSTMCell(6, 6)
        self.head = nn.Linear(12, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, state = self.gru(x)
        y, _ = self.turned(y)
        y, (_, c) = self.lstm(y, (state, state))
        y, last = self.relu(y, c[:1])
        y, end = self.tanh(y)
        h, c = self.cell(y[:, 0], (end[0], last[0, :, :6]))
        logits: torch.Tensor = self.head(torch.cat([h, c], 1))
        return logits


@route("training-recurrent")
def train_recurrent() -> Pins:
    """Kinds and states that the architecture lstm does not have."""
    data, options = sequence_data(12, (6, 5), 64, 32), {"shards": 2, "lr": 0.1}
    return {
        **named("tensor", trained(data, "speaker", Speaker(), **options)),
        **named("row", trained(data, "speaker", Speaker(), exponents="row", **options)),
    }


def resnet8_with_dropout() -> nn.Module:
    layers = list(build("resnet8", IMAGES, 4).children())
    return nn.Sequential(*layers[:-1], nn.Dropout(0.2), layers[-1])


def trained_resnet8(**options: Any) -> Pins:
    data = image_data(4, IMAGES, 32, 32)
    return trained(
        data,
        "resnet8 with dropout",
        resnet8_with_dropout(),
        shards=2,
        augment="flip,crop:2,zoom:75",
        weight_decay=5e-4,
        **options,
    )


@route("training-resnet8")
def train_resnet8() -> Pins:
    return trained_resnet8()


@route("training-resnet8-plan", slow=True)
def train_resnet8_with_plans() -> Pins:
    """What is computed again changes no bit: the same as without a plan (tests/test_pins.py)."""
    return {
        **named("sequential", trained_resnet8(plan="sequential")),
        **named("paired", trained_resnet8(plan="paired")),
    }


class Layers(nn.Module):
    """What the architectures do not have: grouped, depthwise, dilated and strided convolutions of
    channels that fill no vector, average pools, concatenation, SiLU, leaky ReLU, 1-d norms."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.depthwise = nn.Conv2d(6, 6, 3, padding=1, groups=6, bias=False)
        self.norm, self.clip = nn.BatchNorm2d(6), nn.ReLU6()
        self.groups = nn.Conv2d(6, 10, 3, stride=2, padding=1, groups=2)
        self.dilated = nn.Conv2d(6, 5, 3, dilation=2, padding=2)
        self.silu, self.leaky = nn.SiLU(), nn.LeakyReLU(0.125)
        self.average, self.largest = nn.AvgPool2d(2), nn.MaxPool2d(3, 2, 1)
        self.flat, self.dropout = nn.Flatten(), nn.Dropout(0.25)
        self.hidden, self.layer_norm = nn.Linear(60, 12), nn.LayerNorm(12)
        self.vector_norm, self.head = nn.BatchNorm1d(12), nn.Linear(12, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = self.clip(self.norm(self.depthwise(x)) + x)
        left, right = self.silu(self.groups(x)), self.average(self.leaky(self.dilated(x)))
        x = self.largest(torch.cat([left, right], 1))
        y = self.dropout(self.layer_norm(self.hidden(self.flat(x))))
        logits: torch.Tensor = self.head(self.vector_norm(y))
        return logits


@route("training-layers")
def train_layers() -> Pins:
    return trained(image_data(6, IMAGES, 64, 32), "layers", Layers(), shards=2)


def transformer() -> nn.Module:
    """Patches of 2x2, a token and places that are learned, two layers with two heads, dropout."""
    model = PatchTransformer(3, 16, 2, 4, 128, 2)
    for layer in model.layers:
        layer.dropout1.p = layer.self_attn.dropout = 0.1
    return model


@route("training-attention")
def train_attention() -> Pins:
    data = image_data(10, IMAGES, 64, 32)
    options = {"shards": 2, "optimizer": "adamw", "lr": 0.002, "weight_decay": 0.01}
    return {
        **named("tensor", trained(data, "vit", transformer(), **options)),
        **named("row", trained(data, "vit", transformer(), exponents="row", **options)),
    }


class Parts(nn.Module):
    """Group norms, pools of several window sizes, repeated and shuffled pixels, lines, means."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8)
        self.largest = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.inside = nn.AvgPool2d(3, 1, 1, count_include_pad=False)
        self.parts, self.wide = nn.AdaptiveAvgPool2d(3), nn.Upsample(scale_factor=2)
        self.shuffle = nn.PixelShuffle(2)
        self.line, self.line_norm = nn.Conv1d(2, 4, 3, padding=1), nn.InstanceNorm1d(4)
        self.scale, self.head = nn.Parameter(torch.ones(4, 1)), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.largest(torch.relu(self.norm(self.stem(x))))
        x = self.shuffle(self.wide(self.parts(self.inside(x))))
        y = self.line_norm(self.line(x.flatten(2))) * self.scale
        logits: torch.Tensor = self.head(torch.where(y.new_ones(1) > 0, y, 0.0).mean(2))
        return logits


@route("training-parts")
def train_parts() -> Pins:
    return trained(image_data(11, IMAGES, 64, 32), "parts", Parts(), shards=2)


class Decoder(nn.Module):
    """Padding modes, transposed convolutions, linear upsampling, log-probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, 2, padding=1, padding_mode="reflect")
        self.norm, self.up = nn.BatchNorm2d(6), nn.ConvTranspose2d(6, 4, 3, 2, 1, 1, groups=2)
        self.line = nn.ConvTranspose1d(4, 4, 3, 2, dilation=2)
        self.between = nn.Upsample(scale_factor=1.5, mode="bilinear")
        self.edge, self.head = nn.ReplicationPad2d((1, 0, 0, 2)), nn.Conv2d(4, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.up(torch.relu(self.norm(self.stem(x)))))
        x = self.edge(self.between(x))
        x = self.head(x).mean((2, 3)) + self.line(x.flatten(2)).mean(2)
        return torch.log_softmax(x, 1)


@route("training-decoder")
def train_decoder() -> Pins:
    data = image_data(12, IMAGES, 64, 32)
    return {
        **named("tensor", trained(data, "decoder", Decoder(), shards=2)),
        **named("row-shift", trained(data, "decoder", Decoder(), exponents="row-shift")),
    }


@route("training-mobilenetv2")
def train_mobilenetv2() -> Pins:
    return trained(image_data(7, IMAGES, 16, 8), "mobilenetv2", batch=8, epochs=1)


@route("training-regression")
def train_regression() -> Pins:
    """A loop of one's own: words, embedding, layer norm, mean squared error."""
    model = nn.Sequential(
        *(nn.Embedding(11, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.GELU()),
        *(nn.Flatten(), nn.Linear(48, 3)),
    )
    initialise(model, 9)
    twin = convert(model)
    optimizer = SGD(twin.parameters(), lr=0.05, momentum=0.9)
    words = torch.from_numpy(integers(8, (12, 6), 0, 10))
    target = torch.from_numpy(fractions(9, (12, 3), 8, -7))
    losses = []
    for _ in range(6):
        loss = mse_loss(twin(words), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    output = twin(words)
    assert isinstance(output, BFPTensor)
    codes, exponent = output.resolved()
    return {
        "parameters": parameter_sha256(twin.state_dict()),
        "losses": digest(np.array(losses)),
        "outputs": digest(codes.numpy(), exponent),
    }


@route("training-order")
def order() -> Pins:
    """The order of the data, the words of augmentation and the first weights of every layer."""
    model = resnet8_with_dropout()
    initialise(model, 5)
    return {
        "data": digest(data_order(1000, 5, 3).numpy()),
        "augmentation": digest(sample_words(5, 3, 100).numpy()),
        "weights": parameter_sha256(model.state_dict()),
    }
