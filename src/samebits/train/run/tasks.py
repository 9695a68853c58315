"""The losses of tasks, in both numerics, and the outputs that their labels fit."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from samebits.data import Dataset
from samebits.data.augment import Augmentation
from samebits.errors import InputError, SamebitsError, UnsupportedError
from samebits.train.architectures import ARCHITECTURES, LANGUAGE_MODELS
from samebits.train.islands import TO_REAL, WORDS
from samebits.train.losses.functional import BCEWithLogitsLoss, CrossEntropyLoss, MSELoss
from samebits.train.operation import TrainingOperation, listening

LOSSES: dict[str, dict[str, type[nn.Module]]] = {
    "classification": {"bfp": CrossEntropyLoss, "float32": nn.CrossEntropyLoss},
    "regression": {"bfp": MSELoss, "float32": nn.MSELoss},
    "multilabel": {"bfp": BCEWithLogitsLoss, "float32": nn.BCEWithLogitsLoss},
    "segmentation": {"bfp": CrossEntropyLoss, "float32": nn.CrossEntropyLoss},
}
SMOOTHED = ("classification", "segmentation")


def criterion_of(task: str, numerics: str, smoothing: float) -> nn.Module:
    """The loss of a task. Raises InputError for a label smoothing that does not apply."""
    loss = LOSSES[task][numerics]
    if task in SMOOTHED:
        return loss(label_smoothing=smoothing)
    if smoothing:
        raise InputError(
            f"--label-smoothing {smoothing}: expected classes to smooth, found {task}; leave it out"
        )
    return loss()


class OwnLoss(nn.Module):
    """A loss of a user's own: of a network's outputs and the labels of a batch.

    name: what a run calls it
    """

    def __init__(self, loss: Callable[..., Any], name: str) -> None:
        super().__init__()
        self.name, self.floats = name, False
        self.sha256 = _text_sha256(loss)
        self.compute = loss() if isinstance(loss, type) else loss

    def forward(self, outputs: Any, labels: torch.Tensor) -> torch.Tensor:
        """The loss. Raises InputError for what is no number, or where the user's code fails."""
        try:
            with listening(self._hear):
                found = self.compute(outputs, labels)
        except (SamebitsError, Warning):
            raise
        except Exception as error:  # a user's code: whatever it raises is an input error
            raise InputError(
                f"--loss {self.name}: it raises {type(error).__name__}: {error}; expected a "
                "number of outputs and labels"
            ) from error
        if not isinstance(found, torch.Tensor) or found.numel() != 1:
            what = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
            raise InputError(
                f"--loss {self.name}: expected a tensor of one number, found {what}; take its mean "
                "or sum"
            )
        return found

    def _hear(self, operation: TrainingOperation, arguments: tuple[Any, ...]) -> Any:
        """Compute an operation, and note whether values went on in floats."""
        self.floats |= operation is TO_REAL and bool(arguments[0].dim())
        return operation.compute(*arguments)

    def island(self) -> list[str]:
        """A line where the loss was computed in floats; none where integers held it."""
        return [f"loss ({self.name}): {WORDS}"] if self.floats else []


def _text_sha256(loss: Any) -> str | None:
    """The hash of a loss's own text, by which other code of its name is known; None without one."""
    try:
        return hashlib.sha256(inspect.getsource(loss).encode()).hexdigest()
    except (OSError, TypeError):  # of an object, or of no file
        return None


def fitting(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The outputs of a network, where labels are such that they fit. Raises UnsupportedError.

    Numbers need an output each, pixels one for every class: [n, classes, H, W].
    """
    found = list(outputs.shape)
    if labels.is_floating_point():
        expected = ", ".join(map(str, labels.shape))
        fits = found == list(labels.shape)
    elif labels.dim() == 3:
        expected = ", ".join(map(str, (len(labels), "classes", *labels.shape[1:])))
        fits = len(found) == 4 and [found[0], *found[2:]] == list(labels.shape)
    else:
        return outputs
    if not fits:
        raise UnsupportedError(
            f"expected a network with outputs [{expected}] for these labels, "
            f"found {found}; give --arch module:callable of one that has them"
        )
    return outputs


def check_architecture(arch: str, data: Dataset, augmentation: Augmentation) -> None:
    """Raise InputError where an architecture of samebits has no head for the task of the data, or
    an augmentation would leave its labels behind."""
    if data.task == "segmentation" and arch in ARCHITECTURES:
        raise InputError(
            f"{data.source}: expected an architecture with a class for every pixel, found {arch}, "
            "which has one for every image; give --arch module:callable of your own"
        )
    if arch in LANGUAGE_MODELS and not data.language:
        raise InputError(
            f"architecture {arch}: expected a text (.txt), found {data.noun}s "
            f"{list(data.input_shape)}"
        )
    if data.task == "segmentation" and augmentation != Augmentation():
        raise InputError(
            f"{data.source}: expected --augment none for segmentation, found one that changes "
            "images and not their masks; leave it out"
        )
