"""One training step in each numerics: `bfp` (integers, shards) and `float32` (plain PyTorch)."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn

from samebits.errors import RangeError
from samebits.train.convert import convert
from samebits.train.layers import set_step
from samebits.train.loss import CrossEntropyLoss
from samebits.train.operations.normalization import deferred_updates
from samebits.train.optim import SGD, Adam
from samebits.train.run.device import CPU
from samebits.train.run.distributed import ALONE, Workers
from samebits.train.run.exchange import Exchange
from samebits.train.run.trace import Recorder
from samebits.train.tensor import BFPTensor

Batch = tuple[torch.Tensor, torch.Tensor]  # float32 images [N, C, H, W], int64 labels [N]; CPU
Forward = Callable[[torch.Tensor], torch.Tensor]


class Engine(Protocol):
    """A model with its optimizer.

    forward: what training steps call in the model's place, with the same results (a plan's
    executor); None for the model itself.
    """

    model: nn.Module
    optimizer: Any
    recorder: Recorder | None
    forward: Forward | None

    def step(self, batch: Batch, lr: float, step: int) -> float:
        """One update; the mean loss of the batch before it. `batch`: this worker's share of it."""
        ...

    def prepare(self, batch: Batch) -> tuple[torch.Tensor, Forward]:
        """The model's input for a batch as one shard, and the loss of its output."""
        ...

    def loss(self, batch: Batch) -> torch.Tensor:
        """Forward pass only, of a batch as one shard, with the graph for its backward pass."""
        ...

    def logits(self, images: torch.Tensor) -> torch.Tensor:
        """float logits [N, classes] in evaluation mode, on the CPU."""
        ...


class Float32Engine:
    """Ordinary PyTorch: the loss is taken over the whole batch.

    On several workers it is PyTorch's DistributedDataParallel: the mean of the workers' gradients,
    batch-norm over each worker's share, running statistics of the first worker.
    """

    def __init__(
        self,
        model: nn.Module,
        settings: OptimizerSettings,
        workers: Workers = ALONE,
        device: torch.device = CPU,
    ) -> None:
        self.model, self._workers, self._device = model.to(device), workers, device
        self.recorder: Recorder | None = None
        self.forward: Forward | None = None
        self._replica = workers.replicate(_Steps(self))
        self.optimizer = settings.build(torch.optim.SGD, torch.optim.Adam, list(model.parameters()))
        self._criterion = nn.CrossEntropyLoss()

    def step(self, batch: Batch, lr: float, step: int) -> float:
        self.model.train()
        _set_lr(self.optimizer, lr)
        x, criterion = self.prepare(batch)
        with _heard(self.recorder), self._workers.answered():  # the replicas agree on buckets
            loss = criterion(self._replica(x))
        value = float(self._workers.gather(loss.detach()).mean())
        if not math.isfinite(value):
            raise RangeError(f"the loss is {value}")
        with self._workers.answered():
            loss.backward()
        if self.recorder is not None:
            self.recorder.shard_ends(loss)
        self.optimizer.step()
        self.optimizer.zero_grad()
        for statistics in self.model.buffers():
            statistics.copy_(self._workers.gather(statistics)[0])
        return value

    def prepare(self, batch: Batch) -> tuple[torch.Tensor, Forward]:
        images, labels = (tensor.to(self._device) for tensor in batch)
        return images, lambda logits: self._criterion(logits, labels)

    def loss(self, batch: Batch) -> torch.Tensor:
        x, criterion = self.prepare(batch)
        return criterion(self.model(x))

    def logits(self, images: torch.Tensor) -> torch.Tensor:
        self.model.eval()
        with torch.no_grad():
            result: torch.Tensor = self.model(images.to(self._device))
        return result.cpu()


class _Steps(nn.Module):
    """What the steps of an engine call, with the parameters of its model."""

    def __init__(self, engine: Float32Engine) -> None:
        super().__init__()
        self.model = engine.model
        self._engine = engine

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self._engine.forward or self.model)(x)


class BfpEngine:
    """BFP training with lazy update; a batch is cut into equal shards (training.md section 8)."""

    def __init__(
        self,
        model: nn.Module,
        settings: OptimizerSettings,
        shards: int,
        seed: int,
        workers: Workers = ALONE,
        gradient_bits: int = 32,
        device: torch.device = CPU,
    ) -> None:
        self.model, self._device = convert(model).to(device), device
        self.recorder: Recorder | None = None
        self.forward: Forward | None = None
        self.optimizer = settings.build(SGD, Adam, list(self.model.parameters()))
        self.optimizer.name_parameters(self.model)
        self._criterion = CrossEntropyLoss()
        self._shards, self._own = shards, shards // workers.size
        self._first = workers.rank * self._own
        self._seed = seed
        self._exchange = None
        if workers.size > 1 or gradient_bits < 32:
            self._exchange = Exchange(self.model, workers, self._own, gradient_bits)

    def step(self, batch: Batch, lr: float, step: int) -> float:
        self.model.train()
        _set_lr(self.optimizer, lr)
        if self._exchange is None:
            losses = self._backward(batch, step)
        else:
            self._exchange.start()
            with deferred_updates() as updates:
                losses = self._backward(batch, step)
            losses = self._exchange.finish(losses, updates)
        self.optimizer.step()
        self.optimizer.zero_grad()
        total = 0.0
        for loss in losses:  # in this order: `sum` compensates in some versions of Python
            total += loss
        return total / self._shards

    def _backward(self, batch: Batch, step: int) -> list[float]:
        """Gradients of this worker's shards; their losses."""
        losses = []
        for shard, part in enumerate(self._parts(batch), self._first):
            set_step(self.model, seed=self._seed, step=step, shard=shard)
            x, criterion = self.prepare(part)
            with _heard(self.recorder):
                loss = criterion((self.forward or self.model)(x))
            losses.append(float(loss.detach()))
            (loss / self._shards if self._shards > 1 else loss).backward()
            if self.recorder is not None:
                self.recorder.shard_ends(loss)
        return losses

    def logits(self, images: torch.Tensor) -> torch.Tensor:
        self.model.eval()
        with torch.no_grad():
            output = self.model(BFPTensor.from_real(images.to(self._device), name="input"))
            result: torch.Tensor = output.dequantize()
        return result.cpu()

    def prepare(self, batch: Batch) -> tuple[torch.Tensor, Forward]:
        images, labels = (tensor.to(self._device) for tensor in batch)
        x = BFPTensor.from_real(images, name="input")
        return x, lambda logits: self._criterion(logits, labels)

    def loss(self, batch: Batch) -> torch.Tensor:
        x, criterion = self.prepare(batch)
        return criterion(self.model(x))

    def _parts(self, batch: Batch) -> list[Batch]:
        images, labels = batch
        size = len(labels) // self._own
        return list(zip(images.split(size), labels.split(size), strict=True))


def _heard(recorder: Recorder | None) -> contextlib.AbstractContextManager[None]:
    """A forward pass to which the recorder, if there is one, listens."""
    return contextlib.nullcontext() if recorder is None else recorder.forward_pass()


class OptimizerSettings:
    """Which optimizer and its constants; builds PyTorch's or ours from the same arguments."""

    def __init__(
        self, name: str, lr: float, momentum: float, nesterov: bool, weight_decay: float
    ) -> None:
        self.name = name
        self.lr = lr
        self.momentum = momentum
        self.nesterov = nesterov
        self.weight_decay = weight_decay

    def build(self, sgd: Any, adam: Any, parameters: list[nn.Parameter]) -> Any:
        if self.name == "adam":
            return adam(parameters, lr=self.lr, weight_decay=self.weight_decay)
        return sgd(
            parameters,
            lr=self.lr,
            momentum=self.momentum,
            nesterov=self.nesterov,
            weight_decay=self.weight_decay,
        )


def _set_lr(optimizer: Any, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr
