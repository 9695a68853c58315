"""The average of a run's weights, in either numerics: `samebits train --ema`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from samebits.errors import CheckpointError
from samebits.train.average import EMA, misfit
from samebits.train.layers import Holder, load_state


class FloatEMA:
    """PyTorch's exponential average of float weights, with the methods of `EMA`."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._parameters = dict(model.named_parameters())
        self._averages = {name: p.detach().clone() for name, p in self._parameters.items()}
        self._blend = get_ema_multi_avg_fn(decay)

    def update(self) -> None:
        """Take the model's weights, as they are now, into the average."""
        self._blend(list(self._averages.values()), list(self._parameters.values()), 0)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """The model with averaged weights inside a with block, and with its own after it."""
        own = {name: p.detach().clone() for name, p in self._parameters.items()}
        try:
            self._give(self._averages)
            yield
        finally:
            self._give(own)

    @torch.no_grad()
    def _give(self, weights: dict[str, Tensor]) -> None:
        for name, value in weights.items():
            self._parameters[name].copy_(value)

    def state_dict(self) -> dict[str, Tensor]:
        """Per parameter p: p.average."""
        return {f"{name}.average": average for name, average in self._averages.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take the averages that `state_dict` gave.

        Raises CheckpointError, and changes nothing, for other names, types or shapes, and for
        numbers that are not finite.
        """
        own = self.state_dict()
        wrong = misfit(state, own)
        for name in () if wrong else own:
            if not torch.isfinite(state[name]).all():
                wrong = f"{name}: expected finite numbers"
        if wrong:
            raise CheckpointError(f"averages: {wrong}")
        for name, average in own.items():
            average.copy_(state[name])


class RunAverage:
    """The average that a run keeps of its model's weights; without a decay it keeps none.

    Everything that looks at the model meanwhile (an accuracy, a checkpoint's readers) sees the
    averaged weights; training goes on with its own, which checkpoints hold besides.
    """

    def __init__(self, model: nn.Module, decay: float | None) -> None:
        self._model = model
        self._average: EMA | FloatEMA | None = None
        if decay is not None:
            bfp = any(isinstance(module, Holder) for module in model.modules())
            self._average = (EMA if bfp else FloatEMA)(model, decay)

    def update(self) -> None:
        """Take the weights after a step into the average."""
        if self._average is not None:
            self._average.update()

    def applied(self) -> contextlib.AbstractContextManager[None]:
        """The model with averaged weights inside a with block, and with its own after it."""
        return contextlib.nullcontext() if self._average is None else self._average.applied()

    def state(self) -> dict[str, Any] | None:
        """The weights to train on with, and the averages; None where there is no average."""
        if self._average is None:
            return None
        training = {name: value.clone() for name, value in self._model.state_dict().items()}
        return {"training": training, "weights": self._average.state_dict()}

    def restore(self, model: dict[str, Tensor], state: dict[str, Any] | None, source: Path) -> None:
        """Give the model the weights to train on with, and the average its own.

        model, state: of the checkpoint `source`, which is not trusted. Raises CheckpointError.
        """
        if self._average is None:
            load_state(self._model, model, source)
            return
        training, weights = (_tensors((state or {}).get(key)) for key in ("training", "weights"))
        if training is None or weights is None:
            raise CheckpointError(
                f"{source}: damaged: expected the averaged weights of a run with --ema beside "
                "those it trains, found none; delete it to resume from the one before it"
            )
        try:
            self._average.load_state_dict(weights)
        except CheckpointError as error:
            raise CheckpointError(f"{source}: {error}") from None
        load_state(self._model, training, source)


def _tensors(value: object) -> dict[str, Tensor] | None:
    """A dict of tensors out of a checkpoint; None where it is something else."""
    if isinstance(value, dict) and all(isinstance(tensor, Tensor) for tensor in value.values()):
        return value
    return None
