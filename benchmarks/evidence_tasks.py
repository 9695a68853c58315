"""Lines of bench_evidence.py that `samebits train` cannot run: tokens, and trained initial values.

Training is a loop of a user's own, as docs/guide/train.md writes it, the same for every numerics.
Both are evaluated in training arithmetic, in batches of 32.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import samebits.train as bfp
from samebits.comparison import NumericsEntry
from samebits.data.digits import load_digits
from samebits.errors import RangeError
from samebits.files import write_atomically
from samebits.reports.comparison import ComparedRun
from samebits.train.architectures import cnn, initialise
from samebits.train.emulated import Emulated
from samebits.train.run.loop import data_order
from samebits.train.run.schedule import Schedule

EVALUATED = 32  # samples of a batch
VOCABULARY, TOKENS, CLASSES = 2_000, 8, 10
Samples = tuple[Tensor, Tensor]  # inputs, labels


@dataclass(frozen=True)
class Task:
    """Data, a float network with its initial values by seed, and how long it is trained."""

    train: Samples
    test: Samples
    model: Callable[[int], nn.Module]
    epochs: int
    batch: int = 64


@dataclass(frozen=True)
class Optimization:
    """An optimizer: sgd, adam or adamw, and its constants."""

    name: str
    lr: float
    momentum: float = 0.9

    def build(self, model: nn.Module, numerics: str, seed: int, **options: Any) -> Any:
        """PyTorch's optimizer, or that of samebits for bfp with options of its own."""
        parameters = list(model.parameters())
        adam = self.name != "sgd"
        rest: dict[str, Any] = {"lr": self.lr} | ({} if adam else {"momentum": self.momentum})
        if self.name == "adamw":
            rest["weight_decay"] = 0.01
        if numerics != "bfp":
            kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
            return kinds[self.name](parameters, **rest)
        if self.name == "adamw":
            rest["decoupled"] = True
        kind = bfp.Adam if adam else bfp.SGD
        return kind(parameters, seed=seed, **rest, **options)


def trained(
    task: Task, how: Optimization, entry: NumericsEntry, seed: int, file: Path
) -> ComparedRun:
    """One run; its figures are kept in `file`, and read from it when they are there."""
    if file.exists():
        return ComparedRun(**json.loads(file.read_text()))
    try:
        run = _train(task, how, entry, seed)
    except RangeError as error:
        run = ComparedRun(entry.name, seed, diverged=str(error))
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, json.dumps(asdict(run)).encode())
    return run


def _train(task: Task, how: Optimization, entry: NumericsEntry, seed: int) -> ComparedRun:
    """Train in a numerics; the loss is the mean over the last epoch."""
    model, optimizer, criterion = _prepared(task.model(seed), how, entry, seed)
    inputs, labels = task.train
    per_epoch = len(labels) // task.batch
    rates = Schedule("cosine", how.lr, per_epoch * task.epochs, 0)
    for epoch in range(task.epochs):
        order = data_order(len(labels), seed, epoch)
        total = 0.0
        for index in range(per_epoch):
            step = epoch * per_epoch + index
            chosen = order[index * task.batch : (index + 1) * task.batch]
            for group in optimizer.param_groups:
                group["lr"] = rates.at(step)
            if entry.base == "bfp":
                bfp.set_step(model, seed=seed, step=step, shard=0)
            loss = criterion(model(_input(inputs[chosen], entry)), labels[chosen])
            value = float(loss.detach())
            if not math.isfinite(value):
                raise RangeError(f"training diverged in step {step + 1}: the loss is {value}")
            total += value
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return ComparedRun(entry.name, seed, _accuracy(model, task.test, entry), total / per_epoch)


def _prepared(
    model: nn.Module, how: Optimization, entry: NumericsEntry, seed: int
) -> tuple[nn.Module, Any, nn.Module]:
    """The network in a numerics, its optimizer and its loss."""
    if entry.base != "bfp":
        if entry.format is not None:
            model = Emulated(model, entry.format)
        return model, how.build(model, entry.base, seed), nn.CrossEntropyLoss()
    of_optimizer = {name: v for name, v in entry.options.items() if name == "rounding"}
    of_layers = {name: v for name, v in entry.options.items() if name != "rounding"}
    model = bfp.convert(model, **of_layers)
    return model, how.build(model, "bfp", seed, **of_optimizer), bfp.CrossEntropyLoss()


def _input(x: Tensor, entry: NumericsEntry) -> Tensor:
    """Tokens as they are; real values as codes for bfp."""
    if entry.base == "bfp" and x.is_floating_point():
        return bfp.BFPTensor.from_real(x, name="input")
    return x


def _accuracy(model: nn.Module, samples: Samples, entry: NumericsEntry) -> float:
    model.eval()
    correct = 0
    with torch.no_grad():
        for x, labels in zip(*(part.split(EVALUATED) for part in samples), strict=True):
            logits = model(_input(x, entry))
            real = logits.dequantize() if entry.base == "bfp" else logits
            correct += int((real.argmax(1) == labels).sum())
    model.train()
    return correct / len(samples[1])


# --- an embedding classifier with a long tail -----------------------------------------------


def embedding_task() -> Task:
    """Eight words of 2,000 with Zipf frequencies, exponent 1.2; ten classes.

    Every word belongs to a class. Half of a text's words are drawn from those of its label, the
    others from all: the rare ones decide often, and are seldom seen.
    """
    return Task(_texts(20_000, 1), _texts(4_000, 2), _embedding_net, epochs=5)


def _texts(count: int, seed: int) -> Samples:
    """Tokens [count, 8] and labels [count]."""
    frequency = 1.0 / np.arange(1, VOCABULARY + 1) ** 1.2
    class_of = np.random.default_rng(0).integers(0, CLASSES, VOCABULARY)
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, count)
    tokens = rng.choice(VOCABULARY, (count, TOKENS), p=frequency / frequency.sum())
    telling = rng.random((count, TOKENS)) < 0.5
    for label in range(CLASSES):
        mine = np.where(class_of == label, frequency, 0.0)
        chosen = telling & (labels == label)[:, None]
        tokens[chosen] = rng.choice(VOCABULARY, int(chosen.sum()), p=mine / mine.sum())
    return torch.from_numpy(tokens), torch.from_numpy(labels)


def _embedding_net(seed: int) -> nn.Module:
    net = nn.Sequential(
        nn.Embedding(VOCABULARY, 16),
        nn.Flatten(),
        nn.Linear(16 * TOKENS, 64),
        nn.ReLU(),
        nn.Linear(64, CLASSES),
    )
    initialise(net, seed)
    return net


# --- fine-tuning of a float-trained network -------------------------------------------------


def finetune_task() -> Task:
    """Digits turned by 90 degrees, from a cnn that float32 has trained on upright ones."""
    data = load_digits()
    turned = [data.values(data.images(split).rot90(1, (2, 3))) for split in ("train", "test")]
    return Task(
        (turned[0], data.train_labels), (turned[1], data.test_labels), _float_trained, epochs=10
    )


@functools.cache
def _upright(seed: int) -> dict[str, Tensor]:
    """The state of the float32 network after five epochs of upright digits."""
    data = load_digits()
    samples = [(data.values(data.images(s)), data.labels(s)) for s in ("train", "test")]
    net = cnn(data.input_shape, data.classes)
    initialise(net, seed)
    task = Task(samples[0], samples[1], lambda seed: net, epochs=5)
    _train(task, Optimization("sgd", 0.05), NumericsEntry("float32"), seed)
    return net.state_dict()


def _float_trained(seed: int) -> nn.Module:
    net = cnn((1, 8, 8), CLASSES)
    net.load_state_dict(_upright(seed))
    return net
