"""The quality of answers, sample by sample: beside one answer to all, by class, at worst."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from samebits.data import Dataset
from samebits.data.tally import Metrics
from samebits.spec.tables import TARGET_BITS

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Quality:
    """The answers of a network to the test samples of a data set.

    ranked: outputs [n, ...] by which classes are chosen: codes of an integer graph
    scores: the same as real numbers
    """

    data: Dataset
    metrics: Metrics
    ranked: Array
    scores: Array
    arithmetic: str

    def __len__(self) -> int:
        return len(self.ranked)

    @property
    def task(self) -> str:
        """The task of the data, of a language model `language`."""
        return "language" if self.data.language else self.data.task

    @property
    def labels(self) -> Array:
        """Stored labels of the test samples."""
        return np.asarray(self.data.test_labels.numpy())

    @cached_property
    def chosen(self) -> Array:
        """The classes that were answered [n, ...], the first of those with the largest number; of
        labels whether each holds [n, L]; of a regression the targets in their units [n, K]."""
        if self.task == "segmentation":
            return np.asarray(self.ranked.argmax(axis=1))
        if self.task == "multilabel":
            return self.scores.reshape(len(self), -1) > 0
        if self.task == "regression":
            return self._in_units(self.scores.reshape(len(self), -1))
        logits = self.ranked.reshape(*self.labels.shape, -1)
        return np.asarray(logits.argmax(axis=-1))

    @cached_property
    def wanted(self) -> Array:
        """The right answers, as `chosen` has them."""
        if self.task == "multilabel":
            return self.labels.astype(bool)
        if self.task == "regression":
            return self._in_units(self.labels * 2.0**-TARGET_BITS)
        return self.labels

    def _in_units(self, numbers: Array) -> Array:
        assert self.data.preparation is not None
        scales = self.data.preparation.targets
        centres, spreads = ([getattr(s, key) for s in scales] for key in ("centre", "spread"))
        return np.array(centres) + np.array(spreads) * numbers

    @cached_property
    def right(self) -> Array:
        """Right samples, places or pixels, as `metrics` counts them; none of a regression."""
        found = self.chosen == self.wanted
        return found.all(axis=1) if self.task == "multilabel" else found

    @property
    def baseline(self) -> float:
        """The figure of one answer to all samples: the share of the most frequent class, or set
        of labels; of a regression the RMSE of the mean of each target."""
        if self.task == "regression":
            errors = self.wanted - self.wanted.mean(axis=0)
            squares = [math.fsum((column * column).tolist()) for column in errors.T]
            return math.fsum(math.sqrt(s / len(self)) for s in squares) / len(squares)
        return float(self._counts[1].max() / self._counts[1].sum())

    @property
    def majority(self) -> str:
        """The name of the most frequent class, or the names of a set of labels."""
        found = self._counts[0][self._counts[1].argmax()]
        if self.task == "multilabel":
            return " ".join(self.named(found)) or "no label"
        return self.data.class_names[int(found)]

    @cached_property
    def _counts(self) -> tuple[Array, Array]:
        axis = 0 if self.task == "multilabel" else None
        kinds, counts = np.unique(self.wanted, axis=axis, return_counts=True)
        return kinds, counts

    def named(self, holds: Array) -> list[str]:
        """The names of the labels that hold."""
        names = zip(self.data.class_names, holds.tolist(), strict=True)
        return [name for name, held in names if held]

    def name(self, index: int) -> str:
        """The name of an output: its place where no class has it."""
        names = self.data.class_names
        return names[index] if index < len(names) else str(index)

    @cached_property
    def confusion(self) -> Array:
        """Count the answers [column] that each class [row] got: int64 [k, k], of classes that
        occur in either; of a task without classes [0, 0]. See `kinds`."""
        found = np.zeros((len(self.kinds), len(self.kinds)), np.int64)
        if len(self.kinds):
            np.add.at(found, self._placed, 1)
        return found

    def mistakes(self, most: int) -> list[tuple[int, int, int]]:
        """The most frequent wrong answers: places of the class and of the answer among `kinds`, and
        how often; without a matrix of all classes."""
        rows, columns = self._placed
        pairs = (rows * len(self.kinds) + columns)[rows != columns]
        which, counts = np.unique(pairs, return_counts=True)
        order = np.argsort(-counts, kind="stable")[:most]
        return [(*divmod(int(which[i]), len(self.kinds)), int(counts[i])) for i in order]

    @cached_property
    def _placed(self) -> tuple[Array, Array]:
        """Places among `kinds` of the class and of the answer of every sample."""
        rows, columns = (np.searchsorted(self.kinds, a.ravel()) for a in self._pairs)
        return rows, columns

    @cached_property
    def kinds(self) -> Array:
        """The classes of `confusion`."""
        if self.task not in ("classification", "segmentation"):
            return np.zeros(0, np.int64)
        return np.unique(np.concatenate([a.ravel() for a in self._pairs]))

    @property
    def _pairs(self) -> tuple[Array, Array]:
        return self.wanted, self.chosen

    @cached_property
    def losses(self) -> Array:
        """Errors of each sample, 0 where it is right: by how much its answer's number is above
        that of its label; the wrong labels or pixels; of a regression the largest error of a
        target, in its spread."""
        if self.task == "regression":
            assert self.data.preparation is not None
            spreads = np.array([scale.spread for scale in self.data.preparation.targets])
            return np.asarray((np.abs(self.chosen - self.wanted) / spreads).max(axis=1))
        if self.task == "classification":
            flat = self.scores.reshape(len(self), -1)
            rows = np.arange(len(self))
            margins = flat[rows, self.chosen] - flat[rows, self.wanted]
            return np.where(self.right, 0.0, np.maximum(margins, np.finfo(np.float64).tiny))
        wrong = (self.chosen != self.wanted).reshape(len(self), -1)
        return np.asarray(wrong.sum(axis=1) * 1.0)

    def worst(self, count: int) -> list[int]:
        """The places of the samples with the largest losses, the largest first; none of 0."""
        order = np.argsort(-self.losses, kind="stable")[:count]
        return [int(place) for place in order if self.losses[place] > 0]

    def place(self, sample: int) -> int:
        """The place at which a test sample stands in its source, from 1 on."""
        at = len(self.data.train_labels) + sample
        return 1 + (at if self.data.places is None else int(self.data.places[at]))
