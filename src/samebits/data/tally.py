"""`Tally`: how good outputs are for the labels of a data set, whatever its task.

Sums are of integers, or correctly rounded (`math.fsum`): neither the order of the samples nor the
size of a batch reaches a figure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from samebits.data.dataset import Dataset
from samebits.errors import InputError
from samebits.spec.tables import TARGET_BITS

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Metrics:
    """Figures of a test.

    correct: samples, places of texts or pixels that are right, of `total`; None for a regression
    figures: of the other tasks: exact_match, mean_f1; pixel_accuracy, mean_iou; rmse, mae, r2
    """

    correct: int | None
    total: int
    figures: Mapping[str, float]

    @property
    def accuracy(self) -> float | None:
        """The share of what is right, in [0, 1]; None for a regression."""
        return None if self.correct is None else self.correct / self.total


class Tally:
    """Counts outputs of a network against labels, batch by batch."""

    def __init__(self, data: Dataset) -> None:
        self._data, self._task, self._outputs = data, data.task, data.classes
        self._correct = self._total = 0
        self._hits = np.zeros((3, self._outputs), np.int64)  # true and false positives, misses
        self._confusion: Array | None = None  # of labels and guesses, int64 [classes, classes]
        self._found: list[Array] = []  # of a regression
        self._wanted: list[Array] = []

    def add(self, outputs: Array, labels: Array) -> None:
        """Count real outputs [n, ...] against stored labels [n, ...].

        Raises InputError where there are not as many outputs as classes, labels or targets.
        """
        if self._task == "segmentation":
            self._add_pixels(outputs, labels)
            return
        outputs = outputs.reshape(len(labels), -1)
        if outputs.shape[1] != self._outputs:
            raise InputError(
                f"{self._data.source}: expected {self._outputs} outputs for each {self._data.noun} "
                f"({self._task}), found {outputs.shape[1]}; give a network that was made for this "
                "data"
            )
        self._total += len(labels)
        if self._task == "regression":
            self._found.append(outputs.astype(np.float64))
            self._wanted.append(labels.astype(np.float64) * 2.0**-TARGET_BITS)
            return
        guesses, on = outputs > 0, labels.astype(bool)
        self._correct += int((guesses == on).all(axis=1).sum())
        counted = (guesses & on, guesses & ~on, ~guesses & on)
        self._hits += np.stack([part.sum(axis=0) for part in counted])

    def _add_pixels(self, outputs: Array, labels: Array) -> None:
        """Count outputs [n, classes, H, W], of at least the classes that the masks show."""
        count = outputs.shape[1] if outputs.ndim > 1 else 0
        fits = outputs.shape == (len(labels), count, *labels.shape[1:])
        if not fits or count < self._outputs:
            raise InputError(
                f"{self._data.source}: expected outputs [N, {self._outputs}, "
                f"{', '.join(map(str, labels.shape[1:]))}], one for every class and pixel, found "
                f"{list(outputs.shape)}; give a network that keeps the size of its images"
            )
        guesses = outputs.argmax(axis=1).astype(np.int64)
        pairs = np.bincount((labels.astype(np.int64) * count + guesses).ravel(), minlength=count**2)
        confusion = pairs.reshape(count, count)
        self._confusion = confusion if self._confusion is None else self._confusion + confusion
        self._correct += int((guesses == labels).sum())
        self._total += labels.size

    def metrics(self) -> Metrics:
        """The figures of all that was counted, at least one sample."""
        if self._task == "regression":
            return Metrics(None, self._total, self._errors())
        share = self._correct / self._total
        if self._task == "segmentation":
            assert self._confusion is not None
            right, every = self._confusion.diagonal(), self._confusion
            union = every.sum(axis=0) + every.sum(axis=1) - right
            present = union > 0
            overlaps = (right[present] / union[present]).tolist()
            figures = {"pixel_accuracy": share, "mean_iou": math.fsum(overlaps) / len(overlaps)}
            return Metrics(self._correct, self._total, figures)
        hits, false, missed = self._hits
        scores = [
            float(2 * h / (2 * h + f + m)) if h + f + m else 1.0
            for h, f, m in zip(hits.tolist(), false.tolist(), missed.tolist(), strict=True)
        ]
        figures = {"exact_match": share, "mean_f1": math.fsum(scores) / len(scores)}
        return Metrics(self._correct, self._total, figures)

    def _errors(self) -> dict[str, float]:
        """RMSE and MAE in the units of the targets, and R2; the means over several targets."""
        assert self._data.preparation is not None
        rmse, mae, r2 = [], [], []
        found, wanted = np.concatenate(self._found), np.concatenate(self._wanted)
        for column, scale in enumerate(self._data.preparation.targets):
            y = wanted[:, column]
            errors = found[:, column] - y
            squares = math.fsum((errors * errors).tolist())
            middle = math.fsum(y.tolist()) / len(y)
            spread = math.fsum(((y - middle) ** 2).tolist())
            rmse.append(scale.spread * math.sqrt(squares / len(y)))
            mae.append(scale.spread * math.fsum(np.abs(errors).tolist()) / len(y))
            r2.append(1 - squares / spread if spread else float(squares == 0))
        return {
            name: math.fsum(values) / len(values)
            for name, values in (("rmse", rmse), ("mae", mae), ("r2", r2))
        }
