"""One training step in each numerics: `bfp` (integers, shards) and `float32` (plain PyTorch)."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_ as clip_torch_norm
from torch.nn.utils import clip_grad_value_ as clip_torch_value

from samebits import kernels, progress
from samebits.errors import InputError, RangeError
from samebits.kernels.routine import NotRecordableError
from samebits.train.clip import clip_grad_value_, limit_grad_norm_
from samebits.train.convert import convert, model_input
from samebits.train.deferred import deferred_updates
from samebits.train.islands import float_islands
from samebits.train.late import LateUsualStep
from samebits.train.layers import set_step
from samebits.train.optim import SGD, Adam
from samebits.train.parts import train_only
from samebits.train.recording import GraphedModel
from samebits.train.run.device import CPU
from samebits.train.run.distributed import ALONE, Workers
from samebits.train.run.exchange import Exchange
from samebits.train.run.tasks import OwnLoss, criterion_of, fitting
from samebits.train.run.trace import Recorder
from samebits.train.tensor import WIDTHS, BFPParameter, BFPTensor
from samebits.train.whole import UsualStep, smoothing_of, usual_step
from samebits.train.widths import Widths

# float32 images [N, C, H, W], and int64 labels [N] or another task's (`Dataset.targets`); CPU
MOST_STEPS = 8  # shapes of batches whose steps are recorded
Batch = tuple[torch.Tensor, torch.Tensor]
Forward = Callable[..., torch.Tensor]


class Engine:
    """A model with its optimizer, in one of the two numerics.

    forward: what training steps call in the model's place (in float32: in that of the model and
    the loss) with the same results, by a plan; None for the model itself.
    """

    optimizer: Any  # of torch's interface

    def __init__(self, model: nn.Module, criterion: nn.Module, device: torch.device) -> None:
        self.model = model.to(device)
        self.recorder: Recorder | None = None
        self.forward: Forward | None = None
        self._criterion, self._device = criterion, device
        self._standing: tuple[nn.Module, ...] = ()  # in evaluation mode while others train

    def step(self, batch: Batch, lr: float, step: int) -> float:
        """One update; the mean loss of the batch before it. `batch`: this worker's share of it."""
        raise TypeError(f"{type(self).__name__} defines no step")

    def real_input(self, images: torch.Tensor) -> torch.Tensor:
        """Real images as the model takes them, on its device."""
        return images.to(self._device)

    def given(self, batch: Batch) -> Batch:
        """The model's input for a batch as one shard, and its labels, on the model's device."""
        return self.real_input(batch[0]), batch[1].to(self._device)

    def criterion(self, output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The loss of the model's output."""
        own = isinstance(self._criterion, OwnLoss)
        if labels.dim() == 2 and not labels.is_floating_point() and not own:
            # Of every place of a text; criteria have classes second.
            return self._criterion(output.transpose(1, 2), labels)
        return self._criterion(output if own else fitting(output, labels), labels)

    def prepare(self, batch: Batch) -> tuple[torch.Tensor, Forward]:
        """The model's input for a batch as one shard, and the loss of its output."""
        x, labels = self.given(batch)
        return x, lambda output: self.criterion(output, labels)

    def islands(self) -> list[str]:
        """A line for all that was computed in floats in a network of integers."""
        return []

    def loss(self, batch: Batch) -> torch.Tensor:
        """Forward pass only, of a batch as one shard, with the graph for its backward pass."""
        x, criterion = self.prepare(batch)
        return criterion(self.model(x))

    def logits(self, images: torch.Tensor) -> torch.Tensor:
        """float logits [N, classes] in evaluation mode, on the CPU."""
        self.model.eval()
        with torch.no_grad():
            output = self._outputs(self.real_input(images))
            return (output.dequantize() if isinstance(output, BFPTensor) else output).cpu()

    def _outputs(self, x: torch.Tensor) -> torch.Tensor:
        """The model's outputs for its input, in its present mode."""
        output: torch.Tensor = self.model(x)
        return output

    def train_only(self, patterns: Sequence[str]) -> None:
        """Let steps train only what patterns name (`parts.train_only`). Raises InputError."""
        self._standing = train_only(self.model, patterns)

    def set_training(self) -> None:
        """Training mode, but for batch norms of parts that are not trained."""
        self.model.train()
        for module in self._standing:
            module.eval()

    def _start(self, lr: float) -> None:
        """Training mode, and the learning rate of a step."""
        self.set_training()
        for group in self.optimizer.param_groups:
            group["lr"] = lr


class Float32Engine(Engine):
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
        smoothing: float = 0.0,
        task: str = "classification",
        loss: OwnLoss | None = None,
    ) -> None:
        super().__init__(model, loss or criterion_of(task, "float32", smoothing), device)
        self._workers, self._settings = workers, settings
        self._replica = workers.replicate(_Steps(self))
        self.optimizer = settings.build(
            {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW},
            list(model.parameters()),
        )

    def step(self, batch: Batch, lr: float, step: int) -> float:
        """One update by the mean of the workers' gradients.

        Raises RangeError where the mean loss is not finite, in all workers at once.
        """
        self._start(lr)
        with _heard(self.recorder), self._workers.answered():  # the replicas agree on buckets
            loss = self._replica(*self.given(batch))
        value = float(self._workers.gather(loss.detach()).mean())
        if not math.isfinite(value):
            raise RangeError(f"the loss is {value}")
        with self._workers.answered():
            loss.backward()
        if self.recorder is not None:
            self.recorder.shard_ends(loss)
        self._settings.clip(self.model, clip_torch_value, clip_torch_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        for statistics in self.model.buffers():
            statistics.copy_(self._workers.gather(statistics)[0])
        return value


class _Steps(nn.Module):
    """The loss of a batch as an engine's steps call it: by the model, or by a plan's step."""

    def __init__(self, engine: Float32Engine) -> None:
        super().__init__()
        self.model = engine.model
        self._engine = engine

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        planned = self._engine.forward
        if planned is not None:
            return planned(x, labels)
        return self._engine.criterion(self.model(x), labels)


class BfpEngine(Engine):
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
        smoothing: float = 0.0,
        exponents: str = "tensor",
        widths: Widths = WIDTHS,
        task: str = "classification",
        loss: OwnLoss | None = None,
        keep_float: Sequence[str] = (),
    ) -> None:
        """Raises InputError for modules in float32 that have parameters, which nothing trains."""
        criterion = loss or criterion_of(task, "bfp", smoothing)
        super().__init__(convert(model, exponents, widths, keep_float), criterion, device)
        real = [n for n, p in self.model.named_parameters() if not isinstance(p, BFPParameter)]
        if real:
            raise InputError(
                f"--keep-float: expected modules without parameters, which the optimizer of a run "
                f"cannot change in float32, found {real[0]!r}; train this network in a loop of "
                "your own, with an optimizer of torch for them"
            )
        self.optimizer = settings.build(
            {"sgd": SGD, "adam": Adam, "adamw": functools.partial(Adam, decoupled=True)},
            list(self.model.parameters()),
            seed=settings.seed,
            rounding=settings.rounding,
        )
        self.optimizer.name_parameters(self.model)
        self._shards, self._own = shards, shards // workers.size
        self._first = workers.rank * self._own
        self._seed, self._settings = seed, settings
        self._graphed = GraphedModel(self.model)
        self._recorded: dict[torch.Size, UsualStep | LateUsualStep | None] = {}
        self._told, self._exchange = False, None
        self._refused = ""  # why a step could not be recorded
        if workers.size > 1 or gradient_bits < 32:
            self._exchange = Exchange(self.model, workers, self._own, gradient_bits)

    def step(self, batch: Batch, lr: float, step: int) -> float:
        """One update by the gradients of all shards, this worker's and (exchanged) the others'.

        Running state waits for the last shard, and for those of the other workers.
        """
        if self.recorder is None and self.forward is None:  # nobody hears or changes what it does
            usual = self._recorded.get(batch[0].shape)
            if usual is not None and (found := usual(batch, lr, step)) is not None:
                return found
        self._start(lr)
        if self._exchange is not None:
            self._exchange.start()
        with deferred_updates() as updates:
            losses = self._backward(batch, step)
        if self._exchange is not None:
            losses = self._exchange.finish(losses, updates)
        else:
            for update in updates:
                update.apply()
        self._clip()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self._record(batch)
        kernels.check(self._device)
        total = 0.0
        for loss in losses:  # in this order: `sum` compensates in some versions of Python
            total += loss
        return total / self._shards

    @property
    def rate(self) -> float:
        """The learning rate of the last step, or that which the optimizer began with."""
        found: float = self.optimizer.param_groups[0]["lr"]
        return found

    def recorded(self, batch: Batch) -> UsualStep | LateUsualStep | None:
        """The recorded step for batches like this one, if there is one yet."""
        return self._recorded.get(batch[0].shape)

    @property
    def unrecorded(self) -> str:
        """Why steps are not recorded, as far as it is known."""
        if self._exchange is not None:
            return "gradients are exchanged between workers, or have 16 bits"
        if smoothing_of(self._criterion) is None:
            return "the loss is not the mean cross-entropy of classes"
        return self._refused or self._graphed.reason

    def islands(self) -> list[str]:
        own = self._criterion.island() if isinstance(self._criterion, OwnLoss) else []
        return float_islands(self.model) + own

    def _record(self, batch: Batch) -> None:
        """Record a step on batches like this one, where it is a usual one and was not tried."""
        if self.recorder is not None or self.forward is not None:
            return
        smoothing = smoothing_of(self._criterion)
        if self._exchange is not None or smoothing is None:
            self._tell_waiting()
            return
        if batch[0].shape in self._recorded or len(self._recorded) >= MOST_STEPS:
            return
        graph = self._graphed.known(self.real_input(self._parts(batch)[0][0]))
        if graph is not None:
            clip = self._clip if self._settings.clips else None
            own = self.model, self.optimizer
            made: UsualStep | LateUsualStep | None
            if kernels.realisation(self._device.type) == "triton":
                made = LateUsualStep(
                    *(*own, graph.graph, self._shards, clip, self._device, smoothing)
                )
            else:
                try:
                    made = usual_step(*own, graph, batch, self._shards, clip, smoothing)
                except NotRecordableError as error:
                    made, self._refused = None, str(error)
            self._recorded[batch[0].shape] = made

    def _tell_waiting(self) -> None:
        """Say once that steps on a device are slow, where they could wait for nothing."""
        if self._told or not kernels.keeps_numbers(self._device):
            return
        self._told = True
        progress.note(f"every step waits for the device many times, as {self.unrecorded}")

    def _clip(self) -> None:
        self._settings.clip(self.model, clip_grad_value_, limit_grad_norm_)

    def _outputs(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self._by_graph()(x)
        return output

    def _by_graph(self) -> Forward:
        """The model, walked as a graph where it can be; a recorder hears modules alone."""
        return self._graphed if self.recorder is None else self.model

    def real_input(self, images: torch.Tensor) -> torch.Tensor:
        x = super().real_input(images)
        return model_input(self.model, x) if x.is_floating_point() else x

    def _backward(self, batch: Batch, step: int) -> list[float]:
        """Gradients of this worker's shards; their losses."""
        losses = []
        forward = self.forward or self._by_graph()
        for shard, part in enumerate(self._parts(batch), self._first):
            set_step(self.model, seed=self._seed, step=step, shard=shard)
            x, criterion = self.prepare(part)
            with _heard(self.recorder):
                loss = criterion(forward(x))
            losses.append(float(loss.detach()))
            (loss / self._shards if self._shards > 1 else loss).backward()
            if self.recorder is not None:
                self.recorder.shard_ends(loss)
        return losses

    def _parts(self, batch: Batch) -> list[Batch]:
        images, labels = batch
        size = len(labels) // self._own
        return list(zip(images.split(size), labels.split(size), strict=True))


def _heard(recorder: Recorder | None) -> contextlib.AbstractContextManager[None]:
    """A forward pass to which the recorder, if there is one, listens."""
    return contextlib.nullcontext() if recorder is None else recorder.forward_pass()


@dataclass(frozen=True)
class OptimizerSettings:
    """Which optimizer and its constants; builds PyTorch's or ours from the same arguments."""

    name: str
    lr: float
    momentum: float
    nesterov: bool
    weight_decay: float
    seed: int
    rounding: str
    clip_norm: float | None = None
    clip_value: float | None = None

    @property
    def clips(self) -> bool:
        """Whether gradients are clipped."""
        return self.clip_norm is not None or self.clip_value is not None

    def clip(
        self, model: nn.Module, by_value: Callable[..., Any], by_norm: Callable[..., Any]
    ) -> None:
        """Clip the gradients of a step by PyTorch's functions or ours, by value first."""
        parameters = list(model.parameters())
        if self.clip_value is not None:
            by_value(parameters, self.clip_value)
        if self.clip_norm is not None:
            by_norm(parameters, self.clip_norm)

    def build(
        self,
        makers: Mapping[str, Callable[..., Any]],
        parameters: list[nn.Parameter],
        **more: Any,
    ) -> Any:
        """An optimizer by the one of its name, `more` being options of all."""
        options = {"lr": self.lr, "weight_decay": self.weight_decay, **more}
        if self.name == "sgd":
            options |= {"momentum": self.momentum, "nesterov": self.nesterov}
        return makers[self.name](parameters, **options)
