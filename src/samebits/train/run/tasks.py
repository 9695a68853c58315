"""The losses of tasks, in both numerics, and the outputs that their labels fit."""

from __future__ import annotations

import torch
from torch import nn

from samebits.data import Dataset
from samebits.data.augment import Augmentation
from samebits.errors import InputError, UnsupportedError
from samebits.train.architectures import ARCHITECTURES, LANGUAGE_MODELS
from samebits.train.losses.functional import BCEWithLogitsLoss, CrossEntropyLoss, MSELoss

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
