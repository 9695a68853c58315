"""Activations, softmax, dropout, and Flatten."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from samebits.errors import InputError, UnsupportedError
from samebits.kernels.geometry import Pair
from samebits.train.callers import CONVERTED
from samebits.train.layers.base import Layer
from samebits.train.operations import activations, pointwise
from samebits.train.operations.narrow import as_bfp, as_decided, as_sums
from samebits.train.operations.softmax import log_softmax, softmax
from samebits.train.tensor import BFPTensor


class ReLU(Layer):
    """max(x, 0)."""

    taken = staticmethod(as_sums)

    def compute(self, x: BFPTensor) -> BFPTensor:
        return activations.relu(x)


class ReLU6(Layer):
    """min(max(x, 0), 6)."""

    taken = staticmethod(as_sums)

    def compute(self, x: BFPTensor) -> BFPTensor:
        return activations.relu6(x)


class Activation(Layer):
    """One of `samebits.tables.ACTIVATIONS`, with its parameter where it has one."""

    def __init__(self, function: str, parameter: float | None = None) -> None:
        super().__init__()
        self.function, self.parameter = function, parameter

    def compute(self, x: BFPTensor) -> BFPTensor:
        return activations.activation(x, self.function, self.parameter)

    def extra_repr(self) -> str:
        """The function, as torch prints it."""
        return self.function


class Flatten(Layer):
    """[n, ...] -> [n, everything else]."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, x: Tensor) -> BFPTensor:
        """As torch.flatten: what is moved only keeps its width, or goes on having none."""
        with self.named() as where:
            return pointwise.flatten(as_bfp(x, where), self.start_dim, self.end_dim)


class SoftmaxLayer(Layer):
    """Along an axis; the input keeps its 32 bits where it has them (training.md 14.3)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> BFPTensor:
        """As torch.nn.Softmax; what was masked by -inf gives 0."""
        with self.named():
            return softmax(x, self.dim)  # type: ignore[arg-type]


class LogSoftmaxLayer(SoftmaxLayer):
    """Along an axis, for a loss of classes (training.md 6.6)."""

    def forward(self, x: Tensor) -> BFPTensor:
        """As torch.nn.LogSoftmax."""
        with self.named():
            return log_softmax(x, self.dim)  # type: ignore[arg-type]


class Dropout(Layer):
    """Counter-based: the mask is a function of (seed, site, step, shard, call, element) alone.

    `set_step` names step and shard, in which calls are counted from 0; until it is called, every
    training pass counts as a step.
    """

    POSITION = ("seed", "step", "shard", "counting", "calls")
    """The attributes that say which mask comes next."""

    def __init__(self, p: float, site: int) -> None:
        super().__init__()
        self.p, self.site = p, site
        self.seed = self.step = self.shard = self.calls = 0
        self.counting = True

    def forward(self, x: Tensor) -> BFPTensor:
        """The input keeps its 32 bits where it has them."""
        with self.named() as where:
            return self.compute(as_decided(x, where))

    def compute(self, x: BFPTensor) -> BFPTensor:
        return pointwise.dropout(x, self.p, self.mask, self.draws(x)) if self.training else x

    def mask(self) -> tuple[Pair, pointwise.Place]:
        """Key and place of the mask of this call, which it counts."""
        call = self._call()
        return (self.seed, self.site), (self.step, self.shard, call)

    def _call(self) -> int:
        """The number of this call in its step and shard, which it counts.

        Gradient checkpointing of torch calls the layer again in a backward pass: the one call of a
        step has its mask again. Raises UnsupportedError where it is not known which call it was.
        """
        if torch._C._current_graph_task_id() >= 0:
            if self.counting or self.calls != 1:
                found = "no set_step" if self.counting else f"{self.calls} calls"
                raise UnsupportedError(
                    "a dropout that is computed again in a backward pass: expected set_step before "
                    f"the pass and one call in each step and shard, found {found}, whose mask is "
                    "not known; give every use a Dropout of its own, or leave out checkpoint()"
                )
            return 0
        if self.counting:
            self.step += 1
            return 0
        self.calls += 1
        return self.calls - 1

    def draws(self, x: BFPTensor) -> int | None:
        """Number of draws; None: one for each element."""
        return None


class StochasticDepth(Dropout):
    """Dropout of whole samples of [n, ...], or, in mode "batch", of all of a shard together."""

    def __init__(self, p: float, site: int, mode: str = "row") -> None:
        super().__init__(p, site)
        self.mode = mode

    def draws(self, x: BFPTensor) -> int | None:
        return x.shape[0] if self.mode == "row" else 1


def set_step(model: nn.Module, seed: int, step: int, shard: int) -> None:
    """Tell every dropout layer which step and shard comes next.

    Raises InputError for numbers of these outside [0, 2**32).
    """
    for what, number in (("step", step), ("shard", shard)):
        if not 0 <= number < 1 << 32:
            raise InputError(f"set_step: expected a {what} in [0, 2**32), found {number}")
    for layer in dropouts(model):
        layer.seed, layer.step, layer.shard = seed, step, shard
        layer.counting, layer.calls = False, 0


def dropouts(model: nn.Module) -> Iterator[Dropout]:
    """The dropouts of a model: its layers, and that of functions in a converted one."""
    for module in model.modules():
        if isinstance(module, Dropout):
            yield module
        yield from vars(module).get(CONVERTED, ())


class Rearranged(Layer):
    """Elements in other places, by a function that only moves them: no width is decided."""

    def __init__(self, function: Callable[[BFPTensor], BFPTensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> BFPTensor:
        """The elements of x, which keeps its width."""
        with self.named() as where:
            return self.function(as_bfp(x, where))
