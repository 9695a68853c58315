"""`Dataset`: samples in their stored width, made real only batch by batch."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import PIL
import torch
from torch import nn

from samebits.data.preparation import Preparation
from samebits.errors import InputError, NonFiniteError
from samebits.recipes.reading import PLAIN, Reading
from samebits.spec.tables import FEATURE_BITS, TARGET_BITS

Split = Literal["train", "test"]
FORMS = {  # axes of samples: their dtypes
    4: (torch.uint8, torch.float32),
    3: (torch.int16,),
    2: (torch.uint8, torch.int16),
}
LABELS = {  # of a task: axes and dtype
    "classification": (1, torch.int64),
    "regression": (2, torch.int32),
    "multilabel": (2, torch.uint8),
    "segmentation": (3, torch.uint8),
}

SCALED = (
    "in the scales of its own training rows and the order of its own columns, since a network's "
    "file holds none of a run"
)
MOST_NAMED = 1000  # classes whose names a run records
PEAK = 255  # of the codes of images in files


def value_table(peak: int, mean: Sequence[float] = (), std: Sequence[float] = ()) -> torch.Tensor:
    """float32 values [channels or 1, peak + 1] of the codes 0..peak: (code / peak - mean) / std,
    in binary32 and in this order; by default means and deviations are 0.5."""
    codes = np.arange(peak + 1, dtype=np.float32) / np.float32(peak)
    means, stds = (np.array(n or [0.5], np.float32)[:, None] for n in (mean, std))
    return torch.from_numpy((codes - means) / stds)


def pixel_values(images: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """float32 values [N, C, H, W] of codes of pixels, by a table of `value_table`."""
    if len(table) == 1:
        return table[0][images.long()]
    return torch.stack(
        [line[images[:, channel].long()] for channel, line in enumerate(table)], dim=1
    )


def check_channels(source: str, channels: int, options: Reading) -> None:
    """Raise InputError for means of another number of channels than images have."""
    found = len(options.mean)
    if found not in (0, 1, channels):
        advice = "; give --colour rgb" if (found, channels) == (3, 1) else ""
        raise InputError(
            f"{source}: --mean: expected a number, or one for each channel, found {found} for "
            f"images of {channels}{advice}"
        )


@dataclass(frozen=True)
class Dataset:
    """Training and test samples, called images whatever they are:

    images     [N, C, H, W]  uint8 codes 0..`peak`, or float32 taken as they are
    sequences  [N, T, F]     int16 codes of the values code * 2**-15
    rows       [N, F]        int16 codes of the values code * 2**-12, of a table
    texts      [N, T]        uint8 indices into `class_names`, one-hot as values; with labels
                             [N, T], of what follows each place, for language models: as they are

    Labels are those of a task:

    classification  int64 [N]        indices into `class_names`
    regression      int32 [N, K]     codes of the values code * 2**-20, in the scales of
                                     `preparation.targets`; `class_names` are the K targets'
    multilabel      uint8 [N, L]     1 where a sample has the label, else 0
    segmentation    uint8 [N, H, W]  indices into `class_names`, of every pixel of an image

    `batch` looks the values of images up in a table, so they do not depend on how a device
    divides; those of the others are exact. Raises InputError when a split is empty, shapes
    disagree, a label lies outside `class_names`, or the training labels hold fewer than two
    classes.

    preparation: of a table's columns, to be recorded
    options:     how the data was read, to be recorded
    only_test:   new data for a run that is trained: the training split is empty
    places:      int64 [N] of all samples, those for training first: where each stood in the source;
                 None where they stood in this order
    """

    train_images: torch.Tensor
    train_labels: torch.Tensor
    test_images: torch.Tensor
    test_labels: torch.Tensor
    class_names: tuple[str, ...]
    source: str = "data"
    peak: int = PEAK
    rate: int | None = None  # samples per second of recordings
    task: str = "classification"
    preparation: Preparation | None = None
    options: Reading = PLAIN
    only_test: bool = False
    places: torch.Tensor | None = field(default=None, repr=False, compare=False)
    _values: torch.Tensor = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check both splits, and that they agree; compute the table of values."""
        if not self.only_test:
            self._check("train")
        self._check("test")
        if self.train_images.shape[1:] != self.test_images.shape[1:]:
            raise InputError(
                f"{self.source}: training {self.noun}s are "
                f"{shape_text(self.train_images.shape[1:])} but test {self.noun}s are "
                f"{shape_text(self.test_images.shape[1:])}; expected one shape"
            )
        if self.train_images.dtype != self.test_images.dtype:
            raise InputError(
                f"{self.source}: training {self.noun}s are {self.train_images.dtype} but test "
                f"{self.noun}s are {self.test_images.dtype}; expected one dtype"
            )
        present = 2
        if self.task in ("classification", "segmentation") and not self.only_test:
            present = int(torch.unique(self.train_labels).numel())
        if present < 2:
            raise InputError(
                f"{self.source}: expected training {self.noun}s of at least 2 classes, found "
                f"{present}; add {self.noun}s of another class"
            )
        if self.pixels:
            check_channels(self.source, self.test_images.shape[1], self.options)
        elif self.options.mean:
            found = str(self.test_images.dtype).removeprefix("torch.")
            raise InputError(
                f"{self.source}: --mean: expected images of whole numbers 0 to {self.peak}, found "
                f"{self.noun}s of {found}, which are taken as they are; leave it out"
            )
        table = value_table(self.peak, self.options.mean, self.options.std)
        object.__setattr__(self, "_values", table)

    def _check(self, split: Split) -> None:
        """Raise InputError for a split whose samples or labels are not as the class says."""
        images, labels = self.images(split), self.labels(split)
        if len(images) == 0:
            raise InputError(
                f"{self.source}: expected at least one {split} {self.noun}, found none; add "
                f"{split} data"
            )
        if self.task != "classification":
            self._check_task(split, images, labels)
        axes = images.ndim in FORMS
        labelled = labels.shape == images.shape[: 2 if self.language else 1]
        plain = labelled and labels.dtype == torch.int64
        if not axes or not (plain or self.task != "classification"):
            raise InputError(
                f"{self.source}: expected {split} images [N, C, H, W], sequences [N, T, F], rows "
                "[N, F] or texts [N, T] and int64 labels [N], or of each place of texts, found "
                f"{shape_text(images.shape)} and {labels.dtype} {shape_text(labels.shape)}"
            )
        low, high = int(labels.min()), int(labels.max())
        indices = self.task in ("classification", "segmentation")
        if indices and (low < 0 or high >= len(self.class_names)):
            raise InputError(
                f"{self.source}: expected {split} labels in 0..{len(self.class_names) - 1}, "
                f"found {low}..{high}"
            )
        if images.dtype not in FORMS[images.ndim]:
            expected = " or ".join(
                str(dtype).removeprefix("torch.") for dtype in FORMS[images.ndim]
            )
            raise InputError(
                f"{self.source}: expected {split} samples {shape_text(images.shape)} of "
                f"{expected}, found {images.dtype}"
            )
        if images.dtype == torch.uint8:
            peak = self.peak if images.ndim == 4 else self.classes - 1
            if peak < PEAK and int(images.max()) > peak:
                raise InputError(f"{self.source}: expected {split} codes in 0..{peak}")
        elif images.dtype == torch.float32 and not bool(torch.isfinite(images).all()):
            raise NonFiniteError(
                f"{self.source}: {split} {self.noun}s hold NaN or infinity; expected finite values"
            )

    def _check_task(self, split: Split, images: torch.Tensor, labels: torch.Tensor) -> None:
        """Raise InputError for labels that are not those of a task other than classification."""
        if self.task not in LABELS:
            raise InputError(
                f"{self.source}: expected a task among {', '.join(LABELS)}, found {self.task!r}"
            )
        axes, dtype = LABELS[self.task]
        shape = (len(images), self.classes)
        if self.task == "segmentation":
            shape = (len(images), *images.shape[2:])
        if labels.ndim != axes or labels.dtype != dtype or labels.shape != shape:
            raise InputError(
                f"{self.source}: expected {split} labels {shape_text(shape)} of {dtype} for "
                f"{self.task}, found {shape_text(labels.shape)} of {labels.dtype}"
            )
        if self.task == "multilabel" and int(labels.max()) > 1:
            raise InputError(
                f"{self.source}: expected {split} labels of 0 and 1 for multilabel, found "
                f"{int(labels.max())}"
            )
        scales = () if self.preparation is None else self.preparation.targets
        if self.task == "regression" and len(scales) != self.classes:
            raise InputError(
                f"{self.source}: expected a scale for each of {self.classes} targets, found "
                f"{len(scales)}"
            )

    def images(self, split: Split) -> torch.Tensor:
        """Stored samples [N, ...] of a split."""
        return self.train_images if split == "train" else self.test_images

    def labels(self, split: Split) -> torch.Tensor:
        """Labels [N, ...] of a split, as they are stored."""
        return self.train_labels if split == "train" else self.test_labels

    def targets(self, split: Split, indices: torch.Tensor) -> torch.Tensor:
        """The targets of a loss: int64 indices of classes, float32 numbers of the other tasks."""
        labels = self.labels(split)[indices]
        if self.task == "regression":
            return (labels.double() * 2.0**-TARGET_BITS).float()
        return labels.float() if self.task == "multilabel" else labels.long()

    def batch(self, split: Split, indices: torch.Tensor) -> torch.Tensor:
        """float32 [len(indices), *input_shape]: the values of the codes. Of a language model
        int64."""
        return self.values(self.images(split)[indices])

    def values(self, images: torch.Tensor) -> torch.Tensor:
        """float32 values of stored images, recordings or texts; int64 tokens for a language
        model."""
        if images.dtype == torch.float32:
            return images
        if images.dtype == torch.int16:
            return images.float() * 2.0 ** -(FEATURE_BITS if images.ndim == 2 else 15)
        if self.language:
            return images.long()
        if images.ndim == 2:
            return nn.functional.one_hot(images.long(), self.classes).float()
        return pixel_values(images, self._values)

    @property
    def noun(self) -> str:
        """The word for one of its samples, for messages."""
        if self.rows:
            return "row"
        kinds = {4: "image", 3: "recording", 2: "text"}
        return kinds.get(self.train_images.ndim, "sample")

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(C, H, W) of images, (T, F) of sequences, (F,) of rows, (T, classes) of texts, (T,) of
        texts for language models."""
        stored = tuple(self.train_images.shape[1:])
        whole = len(stored) > 1 or self.language or self.rows
        return stored if whole else (*stored, self.classes)

    @property
    def pixels(self) -> bool:
        """Whether these are images of codes, whose values `options` may choose."""
        return self.test_images.ndim == 4 and self.test_images.dtype == torch.uint8

    def with_values_of(self, earlier: Reading) -> Dataset:
        """The same with the values of pixels that an earlier reading had, where none were given."""
        options = self.options.with_values_of(earlier)
        if not self.pixels or options == self.options:
            return self  # a copy would be checked again, sample by sample
        return replace(self, options=options)

    @property
    def rows(self) -> bool:
        """Whether these are rows of a table."""
        return self.train_images.ndim == 2 and self.train_images.dtype == torch.int16

    @property
    def language(self) -> bool:
        """Whether these are texts with a label for each place."""
        texts = self.task == "classification" and not self.rows
        return texts and self.train_images.ndim == self.train_labels.ndim == 2

    @property
    def named(self) -> bool:
        """Whether classes have names of their own, as those of folders have, by which other data
        must have them too."""
        indices = self.task in ("classification", "segmentation") and self.preparation is None
        numbered = self.class_names == tuple(map(str, range(self.classes)))
        return indices and not numbered and not self.language and self.classes <= MOST_NAMED

    @property
    def classes(self) -> int:
        """Number of classes, labels or targets: what a network gives numbers for."""
        return len(self.class_names)

    def record(self) -> dict[str, Any]:
        """The facts that a run keeps beside shape and classes, to read other data alike; none of
        recordings and texts of numbered classes that were read without options."""
        record: dict[str, Any] = {}
        if self.task != "classification" or self.rows:
            record |= {"task": self.task, "rows": self.rows}
        if self.preparation is not None:
            record["preparation"] = self.preparation.to_dict()
        if self.options != PLAIN:
            record["reading"] = self.options.to_dict()
        if self.named:
            record["class_names"] = list(self.class_names)
        if self.pixels:
            record["pixels"] = True
        if self.options.resize or self.options.colour:
            record["pillow"] = PIL.__version__  # whose arithmetic resizes and mixes colours
        return record

    def check_rate(self, rate: int | None) -> None:
        """Raise InputError unless these are recordings at `rate` samples per second, as a model was
        trained on, or, where `rate` is None, no recordings."""
        check_rate(self.source, self.rate, rate)

    def sha256(self) -> str:
        """Hash (hexadecimal) of every image, label and class name: tells two data sets apart when a
        run is resumed."""
        digest = hashlib.sha256(f"{self.class_names!r} {self.peak}".encode())
        if self.preparation is not None:
            digest.update(repr(self.preparation).encode())
        for tensor in (self.train_images, self.train_labels, self.test_images, self.test_labels):
            digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.contiguous().numpy().data)
        return digest.hexdigest()

    def whole(self) -> Dataset:
        """The same with all samples as test samples, in the order of the source."""
        if self.only_test:
            return self
        images = torch.cat([self.train_images, self.test_images])
        labels = torch.cat([self.train_labels, self.test_labels])
        if self.places is not None:
            order = torch.argsort(self.places)
            images, labels = images[order], labels[order]
        return replace(
            self,
            train_images=images[:0],
            train_labels=labels[:0],
            test_images=images,
            test_labels=labels,
            only_test=True,
            places=None,
        )

    def limited(self, per_class: int) -> Dataset:
        """The first `per_class` (>= 1) training images of every class, in stored order, and all
        test images."""
        if self.language or self.task != "classification":
            found = "windows of a text" if self.language else f"labels for {self.task}"
            advice = "shorten the text" if self.language else "leave --limit out"
            raise InputError(
                f"{self.source}: expected samples of one class each to limit them by class, found "
                f"{found}; {advice}"
            )
        keep = torch.zeros(len(self.train_labels), dtype=torch.bool)
        for label in range(self.classes):
            keep[torch.nonzero(self.train_labels == label)[:per_class, 0]] = True
        places = self.places
        if places is not None:
            places = torch.cat([places[: len(keep)][keep], places[len(keep) :]])
        return replace(
            self,
            train_images=self.train_images[keep],
            train_labels=self.train_labels[keep],
            places=places,
        )


def check_rate(source: str, found: int | None, expected: int | None) -> None:
    """Raise InputError for samples of another rate (of no recordings: None) than a model's."""
    if found != expected:
        wanted, other = (
            "samples that are no recordings" if rate is None else f"recordings at {rate!r} Hz"
            for rate in (expected, found)
        )
        raise InputError(
            f"{source}: expected {wanted} as in training, found {other}; give data of the kind the "
            "model was trained on"
        )


def test_places(count: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which of so many samples that come without a split are for testing: every fifth one."""
    return np.arange(count) % 5 == 4


def places_of(test: np.ndarray[Any, Any]) -> torch.Tensor:
    """`Dataset.places` of samples of which `test` [N] says which are for testing."""
    return torch.from_numpy(np.argsort(test, kind="stable"))


def unsplit(
    images: torch.Tensor,
    labels: torch.Tensor,
    class_names: tuple[str, ...],
    source: str,
    peak: int = PEAK,
) -> Dataset:
    """Samples that come without a split: every fifth one is for testing."""
    test = torch.from_numpy(test_places(len(labels)))
    return Dataset(
        images[~test],
        labels[~test],
        images[test],
        labels[test],
        class_names,
        source,
        peak,
        places=places_of(test.numpy()),
    )


def shape_text(shape: tuple[int, ...] | torch.Size) -> str:
    """A shape as text: [3, 32, 32]."""
    return "[" + ", ".join(str(size) for size in shape) + "]"
