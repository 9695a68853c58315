"""Steps on a device that nobody waits for: a loss is read when somebody asks for it.

Between the first launch of a step and the last nothing is read: exponents, largest magnitudes and
the optimizer's numbers lie on the device (`kernels.triton`). From the step on in which an exponent
leaves its range no parameter and no moment changes any more, until `LateLoss.read` says so; running
statistics move on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from samebits import kernels
from samebits.train.graph import TrainingGraph
from samebits.train.optim import IntegerOptimizer
from samebits.train.tensor import BFPTensor
from samebits.train.whole import Computed, Taken, apply_updates, computed, mean_loss


@dataclass(frozen=True)
class LateLoss:
    """The loss of a step, which its numbers give."""

    shards: Sequence[Computed]
    target: Tensor

    def read(self) -> float:
        """The mean loss. Waits for the device.

        Raises RangeError where an exponent has left its range in this step or one before.
        """
        kernels.check(self.target.device)
        return mean_loss(self.shards, self.target)


@dataclass(frozen=True)
class LateStep:
    """A step of classes: the passes of a graph, running state, and the optimizer's step.

    taken: how the model takes its input
    """

    graph: TrainingGraph
    optimizer: IntegerOptimizer
    taken: Taken

    def __call__(self, images: Tensor, target: Tensor) -> LateLoss:
        """Make a step by one shard of samples and class indices, both on the device."""
        weights = [p.value for p in self.graph.parameters]
        done = computed(self.graph, (images, target), weights, self.taken, 1.0)
        apply_updates(done.updates)
        for p, gradient in zip(self.graph.parameters, done.gradients, strict=True):
            p.grad = None if gradient is None else BFPTensor.of(gradient)
        self.optimizer.step()
        return LateLoss([done], target)
