"""Networks that C trains, beside the same in PyTorch: what tests of `samebits.ondevice` share."""

from __future__ import annotations

import ctypes
import math
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from c_files import write_files
from samebits import csrc
from samebits.data.digits import load_digits
from samebits.ondevice.package import TrainingCode, training_code
from samebits.ondevice.state import TrainingState, to_bytes
from samebits.train.architectures import InvertedResidual, _resnet, build, initialise
from samebits.train.run.config import TrainConfig
from samebits.train.run.engine import BfpEngine
from samebits.train.run.loop import data_order, make_engine
from samebits.train.run.schedule import Schedule

SHAPE, CLASSES = (1, 8, 8), 10
WARNINGS = ("-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-pedantic", "-Werror")


class Shared(nn.Module):
    """Values with several uses: exact sums, maxima, a sum of one value twice, gradients of 16 and
    of 32 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.pool, self.relu, self.relu6 = nn.MaxPool2d(2), nn.ReLU(), nn.ReLU6()
        self.second, self.third = nn.Conv2d(6, 6, 2, stride=2), nn.Conv2d(6, 6, 1)
        self.mean, self.out = nn.AdaptiveAvgPool2d(1), nn.Linear(6, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.first(x)
        b = self.norm(a) + a
        p = self.pool(b)
        c = self.relu(p) + p
        d = c + self.second(b)
        e = self.relu6(d + d)
        y: torch.Tensor = self.out(self.mean(self.relu(self.third(e) + e)).flatten(1))
        return y


class Doubled(nn.Module):
    """The sum of two gradients of 32 bits that does not fit 32: a value is added to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.pool = nn.Conv2d(1, 4, 3, padding=1), nn.MaxPool2d(2)
        self.norm, self.mean, self.out = (
            nn.BatchNorm2d(4),
            nn.AdaptiveAvgPool2d(1),
            nn.Linear(4, 10),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.first(x)
        y: torch.Tensor = self.out(self.mean(self.norm(self.pool(a + a))).flatten(1))
        return y


class Standing(nn.Module):
    """Batch norms of an input and of maxima, in evaluation mode, whose gamma and beta train."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.conv, self.pool = nn.BatchNorm2d(1), nn.Conv2d(1, 4, 3), nn.MaxPool2d(2)
        self.norm, self.mean, self.out = (
            nn.BatchNorm2d(4),
            nn.AdaptiveAvgPool2d(1),
            nn.Linear(4, 10),
        )

    def train(self, mode: bool = True) -> Standing:
        super().train(mode)
        self.before.eval()
        self.norm.eval()
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        maxima = self.pool(self.conv(self.before(x)))
        y: torch.Tensor = self.out(self.mean(self.norm(maxima)).flatten(1))
        return y


class Cut(nn.Module):
    """A layer that no gradient reaches: behind it there is `detach`, or nobody uses it."""

    def __init__(self, used: bool = True) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(64, 6), nn.Linear(6, 6), nn.Linear(6, 10)
        self.used = used

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.first(x.flatten(1))
        b = self.second(a.detach() if self.used else a)
        y: torch.Tensor = self.out(b if self.used else a)
        return y


class Recurrent(nn.Module):
    """Layers of cells over the rows of images, and a head for the states of the last step, or of
    all steps."""

    def __init__(self, cells: nn.Module, every: bool = False) -> None:
        super().__init__()
        self.cells, self.every = cells, every
        self.out = nn.Linear(cells.hidden_size * (8 if every else 1), 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states, _ = self.cells(x.reshape(-1, 8, 8))
        y: torch.Tensor = self.out(states.flatten(1) if self.every else states[:, -1])
        return y


class Cells(nn.Module):
    """Layers of all kinds of cells, one after the other, and a linear layer of every step."""

    def __init__(self) -> None:
        super().__init__()
        self.front, self.lstm = nn.Linear(8, 8), nn.LSTM(8, 7, 2, batch_first=True)
        self.gru, self.rnn = nn.GRU(7, 6), nn.RNN(6, 5, bias=False)
        self.relu, self.out = nn.RNN(5, 9, nonlinearity="relu"), nn.Linear(9, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(self.front(x.flatten(1, 2)))
        states, _ = self.gru(states.transpose(0, 1))
        states, _ = self.relu(self.rnn(states)[0])
        y: torch.Tensor = self.out(states[-1])
        return y


class Vectors(nn.Module):
    """Norms of vectors, with gamma and beta and without, and a residual sum of every step."""

    def __init__(self) -> None:
        super().__init__()
        self.front, self.norm = nn.Linear(8, 12), nn.LayerNorm(12)
        self.mid, self.relu, self.back = nn.Linear(12, 18), nn.ReLU(), nn.Linear(18, 12)
        self.rms, self.plain = nn.RMSNorm(12, 1e-5), nn.LayerNorm(96, elementwise_affine=False)
        self.last, self.out, self.end = nn.LayerNorm(10), nn.Linear(96, 10), nn.Linear(10, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.front(x.flatten(1, 2))
        y = y + self.back(self.relu(self.mid(self.norm(y))))
        z: torch.Tensor = self.end(self.last(self.out(self.plain(self.rms(y).flatten(1)))))
        return z


class Attending(nn.Module):
    """A transformer block over the rows of images, and a head for their mean, or for the first."""

    def __init__(self, norm_first: bool, mean: bool) -> None:
        super().__init__()
        self.front, self.norm, self.mean = nn.Linear(8, 12), nn.LayerNorm(12), mean
        options = {"dropout": 0.0, "batch_first": True, "norm_first": norm_first}
        self.block, self.out = nn.TransformerEncoderLayer(12, 2, 18, **options), nn.Linear(12, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states = self.norm(self.block(self.front(x.flatten(1, 2))))
        y: torch.Tensor = self.out(states.mean(1) if self.mean else states[:, 0])
        return y


OWN: dict[str, Callable[[], nn.Module]] = {
    "block": lambda: Attending(True, False),
    "post": lambda: Attending(False, True),
    "shared": Shared,
    "doubled": Doubled,
    "standing": Standing,
    "cells": Cells,
    "vectors": Vectors,
}
RECURRENT: dict[str, Callable[[], nn.Module]] = {
    "lstm": lambda: nn.LSTM(8, 12, batch_first=True),
    "lstms": lambda: nn.LSTM(8, 9, 2, batch_first=True),
    "gru": lambda: nn.GRU(8, 12, batch_first=True),
    "grus": lambda: nn.GRU(8, 9, 2, batch_first=True, bias=False),
    "rnn": lambda: nn.RNN(8, 12, batch_first=True),
    "rectified": lambda: nn.RNN(8, 12, batch_first=True, nonlinearity="relu"),
}


def network(name: str) -> nn.Module:
    """The digits mlp and cnn, and chains of all that C has instructions for."""
    if name in OWN:
        return OWN[name]()
    if name in RECURRENT:
        return Recurrent(RECURRENT[name](), every=name == "lstms")
    if name == "groups":  # two of channels, with several outputs each, and strides
        return nn.Sequential(
            *(nn.Conv2d(1, 6, 3, stride=(2, 1), bias=False), nn.ReLU6(), nn.BatchNorm2d(6)),
            *(nn.Conv2d(6, 4, 2, groups=2, stride=(1, 2)), nn.ReLU(), nn.MaxPool2d((2, 1))),
            *(nn.Conv2d(4, 12, (1, 3), padding=(0, 1), groups=4), nn.ReLU6()),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 10), nn.ReLU6()),
            nn.Linear(10, 10),
        )
    if name == "mobile":  # blocks of mobilenet_v2: with and without a residual sum and a stride
        blocks = (InvertedResidual(6, 4, 1, 1), InvertedResidual(4, 4, 1, 3))
        return nn.Sequential(
            *(nn.Conv2d(1, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU6()),
            *(*blocks, InvertedResidual(4, 6, 2, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
            *(nn.Dropout(0.2), nn.Linear(6, 10)),
        )
    if name == "resnet":  # all kinds of shortcuts, small
        return _resnet("resnet", SHAPE, CLASSES, (4, 6), 2)
    if name == "padding":  # wider than the kernel: windows that meet no pixel
        return nn.Sequential(
            *(nn.Conv2d(1, 66, 1), nn.ReLU(), nn.Conv2d(66, 5, 1, padding=2), nn.ReLU()),
            *(nn.Conv2d(5, 3, 2, padding=(3, 2), stride=2), nn.ReLU()),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 10)),
        )
    if name == "dropout":
        return nn.Sequential(
            *(nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Dropout(0.25)),
            *(nn.Linear(24, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 10)),
        )
    if name == "chain":  # norms with gradients of 16 bits, strides, a pool without a ReLU
        return nn.Sequential(
            *(nn.Conv2d(1, 6, 3, padding=1), nn.MaxPool2d((2, 1)), nn.Conv2d(6, 5, (3, 2))),
            *(nn.BatchNorm2d(5), nn.ReLU(), nn.Conv2d(5, 7, 2, stride=(1, 2))),
            *(nn.BatchNorm2d(7), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
            nn.Linear(7, 10),
        )
    if name == "norms":  # of inputs, of a pool's codes, of moved sums, of vectors
        return nn.Sequential(
            *(nn.BatchNorm2d(1), nn.Conv2d(1, 6, 3), nn.MaxPool2d(2), nn.BatchNorm2d(6)),
            *(nn.Conv2d(6, 1, 2), nn.Flatten(), nn.BatchNorm1d(4), nn.Linear(4, 12)),
            *(nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 10)),
        )
    return build(name, SHAPE, CLASSES)


def config(**options: object) -> TrainConfig:
    return TrainConfig(data="digits", arch="mlp", **{"shards": 1, "batch": 8, **options})  # type: ignore


def engine(model: nn.Module, options: TrainConfig) -> BfpEngine:
    initialise(model, options.seed)
    made = make_engine(options, model)
    assert isinstance(made, BfpEngine)
    return made


def state_of(run: BfpEngine, step: int) -> TrainingState:
    return TrainingState(run.model.state_dict(), run.optimizer.state_dict()["state"], step)


def code_of(
    run: BfpEngine,
    options: TrainConfig,
    step: int = 0,
    batch: int = 8,
    rates: Sequence[float] = (),
    arena: int = 0,
    shape: tuple[int, ...] = SHAPE,
) -> TrainingCode:
    state = state_of(run, step)
    return training_code(run, options, shape, state, batch=batch, rates=rates, arena=arena)


def batches(steps: int, batch: int, seed: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Digits in the order of a run."""
    data, found, epoch = load_digits(), [], 0
    while len(found) < steps:
        order = data_order(len(data.images("train")), seed, epoch)
        for part in order.split(batch):
            if len(part) == batch and len(found) < steps:
                found.append((data.values(data.images("train")[part]), data.targets("train", part)))
        epoch += 1
    return found


class Device:
    """The C of a network as a library of this machine."""

    def __init__(self, code: TrainingCode, folder: Path, *flags: str) -> None:
        write_files(folder, code.files)
        library = folder / "network.so"
        sources = [str(p) for p in (*folder.glob("*.c"), *folder.glob("samebits/*.c"))]
        command = [
            *csrc.compiler(),
            "-std=c99",
            *WARNINGS,
            "-ffp-contract=off",
            *(flags or ["-O2"]),
        ]
        command += ["-shared", "-fPIC", f"-I{folder}", f"-I{folder / 'samebits'}", *sources]
        subprocess.run([*command, "-o", str(library)], check=True)
        self.c, self.code, self.places = ctypes.CDLL(str(library)), code, code.places
        self.memory = np.full(self.places.arena // 8 + 1, 0x5A5A5A5A5A5A5A5A, np.uint64)
        self.net = ctypes.create_string_buffer(256)
        assert self.call("init", self.memory.ctypes, ctypes.c_size_t(self.places.arena)) == 0

    def call(self, name: str, *arguments: object) -> int:
        given = [a.data_as(ctypes.c_void_p) if hasattr(a, "data_as") else a for a in arguments]
        return getattr(self.c, f"{self.code.prefix}_{name}")(self.net, *given)

    def step(self, images: torch.Tensor, labels: torch.Tensor, lr: float | None = None) -> int:
        if lr is not None:
            assert self.call("set_rate", ctypes.c_double(lr)) == 0
        last = images.movedim(1, -1) if images.dim() == 4 else images
        x = np.ascontiguousarray(last.numpy().astype(np.float32))
        y = labels.numpy().astype(np.uint8)
        return self.call("train_step", x.ctypes, y.ctypes, ctypes.c_int32(len(y)))

    @property
    def loss(self) -> float:
        """The loss, behind the pointer, the rate and the number of steps."""
        return float(np.frombuffer(self.net.raw, np.float64, 1, 24)[0])

    def state(self) -> bytes:
        out = np.zeros(self.places.saved, np.uint8)
        assert self.call("state_save", out.ctypes, ctypes.c_size_t(out.size)) == 0
        return out.tobytes()

    def load(self, data: bytes) -> int:
        held = np.frombuffer(data, np.uint8).copy()
        return self.call("state_load", held.ctypes, ctypes.c_size_t(held.size))

    def run(self, image: torch.Tensor) -> np.ndarray:
        last = image.movedim(0, -1) if image.dim() == 3 else image
        x = np.ascontiguousarray(last.numpy().astype(np.float32))
        logits, exponent = np.zeros(CLASSES, np.int32), np.zeros(1, np.int32)
        assert self.call("run", x.ctypes, logits.ctypes, exponent.ctypes) == 0
        return np.ldexp(logits.astype(np.float64), int(exponent[0]))


def state_bytes(run: BfpEngine, step: int, device: Device) -> bytes:
    return to_bytes(state_of(run, step), device.places)


def train_beside(
    run: BfpEngine,
    options: TrainConfig,
    folder: Path,
    steps: int,
    *flags: str,
    batch: int = 8,
    short: bool = False,
    arena: int = 0,
) -> Device:
    """Train in C and in PyTorch beside each other: state and loss are equal after every step.

    short: every other batch has half of the samples
    """
    device = Device(code_of(run, options, batch=batch, arena=arena), folder, *flags)
    assert device.state() == state_bytes(run, 0, device)
    rate = Schedule("linear", options.lr, steps)
    for step, (images, labels) in enumerate(batches(steps, batch, options.seed)):
        if short and step % 2:
            images, labels = images[: batch // 2], labels[: batch // 2]
        loss = run.step((images, labels), rate.at(step), step)
        assert device.step(images, labels, rate.at(step)) == 0
        assert device.state() == state_bytes(run, step + 1, device), f"step {step}"
        assert device.loss == (loss if loss < 2**27 else math.inf)
    return device
