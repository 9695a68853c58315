"""A step on a GPU as one CUDA graph: what the host launched once is launched again as one.

A captured step is a fixed list of launches. Samples, labels, the step's number, the learning rate
and what of the optimizer's coefficients changes with it lie in memory that is written before each
replay, exponents and largest magnitudes in memory that the step itself writes. All other options
are arguments of launches: where one has changed, or the optimizer's state lies elsewhere, a step is
launched as ever and the next one is captured anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from samebits import kernels, progress
from samebits.errors import UnsupportedError


class LaunchedStep(Protocol):
    """A step that may be captured (`late.LateStep`)."""

    @property
    def optimizer(self) -> Any:
        """The optimizer whose step is the last part of it."""

    def __call__(self, images: Tensor, target: Tensor, step: int = 0) -> Any:
        """Make a step; its loss, which is not read yet."""


def cuda_graph(act: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
    """Capture what is launched, which does not run: how it is run, and what it gives each time.

    Raises UnsupportedError where there is no CUDA device.
    """
    if not torch.cuda.is_available():
        raise UnsupportedError(
            "a step as one CUDA graph: expected a CUDA device, found none; "
            "samebits.train.late.LateStep makes the same steps without one"
        )
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = act()
    return graph.replay, found


class ReplayedStep:
    """A step whose second call captures it, and whose later ones replay that.

    The first makes what is made once: compiled kernels, tables, the optimizer's state. Steps whose
    learning rate is 0, and batches of another shape, go to the step itself, and so does one after
    options were changed; all do where a capture fails, as that of a step that reads a number, and a
    note says so.
    """

    def __init__(
        self,
        step: LaunchedStep,
        capture: Callable[[Callable[[], Any]], tuple[Callable[[], None], Any]] = cuda_graph,
    ) -> None:
        self._step, self._capture = step, capture
        self._kind: Sequence[Any] = ()
        self._fixed: Any = None
        self._replay: Callable[[], None] | None = None

    def __call__(self, images: Tensor, target: Tensor, step: int = 0) -> Any:
        """As the step itself; a loss is true until the next call."""
        rates = [group["lr"] for group in self._step.optimizer.param_groups]
        kind = (images.shape, images.dtype, target.shape, images.device)
        if not all(rates):
            return self._step(images, target, step)
        if not self._kind:
            self._kind = kind
            self._images, self._target = images.clone(), target.clone()
            self._number = torch.zeros((), dtype=torch.int64, device=images.device)
            return self._step(images, target, step)
        if kind != self._kind:
            return self._step(images, target, step)
        self._images.copy_(images, non_blocking=True)
        self._target.copy_(target, non_blocking=True)
        self._number.fill_(step)
        try:
            changed, fixed = self._step.optimizer.announce()
            if self._replay is not None and fixed != self._fixed:
                self._replay = None
                return self._step(images, target, step)
            if self._replay is None:
                self._fixed = fixed
                number = kernels.number(self._number, copied=False)
                self._replay, self._loss = self._capture(
                    lambda: self._step(self._images, self._target, number)
                )
        except (RuntimeError, UnsupportedError) as error:
            self._kind = ("never",)
            progress.note(f"steps are launched one by one: {error}")
            return self._step(images, target, step)
        self._replay()
        torch.autograd.graph.increment_version(changed)
        return self._loss
