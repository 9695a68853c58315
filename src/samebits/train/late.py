"""Steps on a device that nobody waits for: a loss is read when somebody asks for it.

Between the first launch of a step and the last nothing is read: exponents, largest magnitudes and
the optimizer's numbers lie on the device (`kernels.triton`). From the step on in which an exponent
leaves its range, or an index is none, nothing of a model or an optimizer changes any more, until
`LateLoss.read` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from samebits import kernels, progress
from samebits.kernels.routine import NotRecordableError
from samebits.train.captured import ReplayedStep
from samebits.train.graph import TrainingGraph
from samebits.train.optim import IntegerOptimizer
from samebits.train.recording import Guard
from samebits.train.tensor import BFPTensor
from samebits.train.whole import (
    Batch,
    Computed,
    Taken,
    apply_updates,
    computed,
    joined,
    masked,
    mean_loss,
)


@dataclass(frozen=True)
class LateLoss:
    """The loss of a step, which its numbers give.

    shards: what was computed of each
    """

    shards: Sequence[Computed]

    def read(self) -> float:
        """The mean loss. Waits for the device.

        Raises RangeError where an exponent has left its range in this step or one before, and
        InputError for an index out of range.
        """
        kernels.check(self.shards[0].entropy.codes.device)
        return mean_loss(self.shards)


@dataclass(frozen=True)
class LateStep:
    """A step of classes: the passes of a graph, the optimizer's step, and running state.

    taken: how the batch is taken
    shards: into which a batch is cut
    clip:  changes gradients before the optimizer takes them
    """

    graph: TrainingGraph
    optimizer: IntegerOptimizer
    taken: Taken
    shards: int = 1
    clip: Callable[[], None] | None = None

    def __call__(self, images: Tensor, target: Tensor, step: int = 0) -> LateLoss:
        """Make a step by samples and class indices, both on the device.

        step: its number, for the masks of dropouts; it may lie in a cell. Raises
        NotRecordableError, and has changed nothing, for another output than a vector of classes.
        """
        weights = [p.value for p in self.graph.parameters]
        size = len(target) // self.shards
        done, factor = list[Computed](), 1.0 / self.shards
        parts = list(zip(images.split(size), target.split(size), strict=True))
        with kernels.slots(images.device):
            for shard, part in enumerate(parts):
                own = masked(self.graph, step, shard)
                done.append(computed(own, part, weights, self.taken, factor))
            gradients = map(joined, zip(*(each.gradients for each in done), strict=True))
            for p, gradient in zip(self.graph.parameters, gradients, strict=True):
                p.grad = None if gradient is None else BFPTensor.of(gradient)
            if self.clip is not None:
                self.clip()
            self.optimizer.step()
            self.optimizer.zero_grad()
            for found in done:
                apply_updates(found.updates)
        return LateLoss(done)


class LateUsualStep:
    """An engine's step of classes on a device, whose loss is read when all is done.

    smoothing: of labels
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: IntegerOptimizer,
        graph: TrainingGraph,
        shards: int,
        clip: Callable[[], None] | None,
        device: torch.device,
        smoothing: float = 0.0,
    ) -> None:
        step = LateStep(graph, optimizer, Taken.by(model, smoothing), shards, clip)
        self._step: Callable[..., LateLoss] = step
        if device.type == "cuda":
            self._step = ReplayedStep(step)
        self._model, self._guard, self._optimizer = model, Guard(model), optimizer
        self._device, self._taken = device, True

    def __call__(self, batch: Batch, lr: float, step: int) -> float | None:
        """As that of `whole.UsualStep`."""
        images, target = batch
        if not self._guard.holds():
            self._model.train()
        if not self._taken or not self._guard.holds() or not _is_plain(target):
            return None
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        try:
            loss = self._step(images.to(self._device), target.to(self._device), step)
        except NotRecordableError as error:
            self._taken = False
            progress.note(f"every step waits for the device many times, as {error}")
            return None
        return loss.read()


def _is_plain(target: Tensor) -> bool:
    """Whether a batch's labels are class indices that all count, as far as the host knows them."""
    if target.is_floating_point():
        return False
    return target.is_cuda or not target.numel() or int(target.min()) >= 0
