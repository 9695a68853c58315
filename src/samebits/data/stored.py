"""Data sets that Hugging Face's `datasets` has saved to disk (`save_to_disk`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from samebits.data import folder
from samebits.data.arrays import TAKES as ARRAYS_TAKE
from samebits.data.arrays import from_arrays
from samebits.data.dataset import Dataset
from samebits.data.decode import decoding
from samebits.data.earlier import Earlier
from samebits.data.options import PLAIN, DataOptions
from samebits.data.own import array_of, stacked
from samebits.data.pictures import Reference, pixels_of
from samebits.data.preparation import Preparation
from samebits.data.table import dataset_of, features_of_frames
from samebits.errors import InputError

TAKES = ("target", "task", *folder.TAKES)
SPLITS = (("train", "test"), ("train", "validation"))


def is_stored(path: Path) -> bool:
    """Whether a folder is one that `save_to_disk` writes."""
    whole = (path / "dataset_info.json").is_file() and (path / "state.json").is_file()
    return whole or (path / "dataset_dict.json").is_file()


def load_stored(
    path: Path,
    options: DataOptions = PLAIN,
    prepared: Preparation | None = None,
    whole: bool = False,
) -> Dataset:
    """The images and labels, or the table, of a saved data set, split as it is: train and test (or
    validation); else as an archive and a table are. whole: of a table, as `load_table`.

    The label is the column `options.target`, by default the only one of class labels, else the last
    one. Raises InputError for other data.
    """
    with _opened(path) as (parts, images, marked):
        target = options.target or (marked[0] if len(marked) == 1 else list(parts[0].features)[-1],)
        chosen = replace(options, target=tuple(target), resample=False)
        if not images:
            return dataset_of(str(path), _frames(path, parts, chosen), chosen, prepared, whole)
        return _of_images(path, parts, (images[0], target[0]), chosen, prepared)


def load_features(path: Path, options: DataOptions, earlier: Earlier) -> torch.Tensor:
    """Codes of the features of all rows of a table, with or without labels, as
    `table.load_features`. Raises InputError for images, which are not prepared so."""
    with _opened(path) as (parts, images, _):
        if images:
            raise InputError(
                f"{path}: expected the columns of a table as in training, found images; give data "
                "of the kind the model was trained on"
            )
        return features_of_frames(str(path), _frames(path, parts, options), options, earlier)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[list[Any], list[str], list[str]]]:
    """The parts of a saved data set, and its columns of images and of class labels."""
    try:
        import datasets
    except ImportError as error:
        raise InputError(
            f"{path}: a data set saved by Hugging Face's datasets, which is not installed; run: "
            "pip install datasets"
        ) from error
    with decoding(path, "a data set saved by datasets", "save it again with save_to_disk"):
        held = datasets.load_from_disk(str(path))
        parts = _splits(path, held) if isinstance(held, datasets.DatasetDict) else [held]
        columns = parts[0].features.items()
        images = [key for key, kind in columns if isinstance(kind, datasets.Image)]
        marked = [key for key, kind in columns if isinstance(kind, datasets.ClassLabel)]
        yield parts, images, marked


def _frames(path: Path, parts: list[Any], options: DataOptions) -> list[tuple[str, Any]]:
    """The parts as frames of pandas, with their names."""
    options.apart_from(str(path), "a table", ("target", "task"))
    return [(f"{path} ({part.split})", part.to_pandas()) for part in parts]


def _splits(path: Path, held: Any) -> list[Any]:
    for names in SPLITS:
        if set(names) <= set(held):
            return [held[name] for name in names]
    if len(held) == 1:
        return list(held.values())
    raise InputError(
        f"{path}: expected the splits train and test (or validation), or one alone, found "
        f"{', '.join(held)}"
    )


def _of_images(
    path: Path,
    parts: list[Any],
    names: tuple[str, str],
    options: DataOptions,
    prepared: Preparation | None,
) -> Dataset:
    """The images of one column with the labels of another."""
    image, target = names
    if target not in parts[0].features or target == image:
        raise InputError(
            f"{path}: --target: expected a column of labels among "
            f"{', '.join(parts[0].features)}, found {target!r}"
        )
    reference: Reference | None = None
    samples, labels = [], []
    for part in parts:
        made = []
        for index, row in enumerate(part):
            where = f"{path}: image {index} of {part.split}"
            made.append(pixels_of(row[image], where, reference, options))
            reference = reference or ("the first image", made[0].shape)
        samples.append(stacked(made, f"{path}: images"))
        labels.append(stacked([array_of(value) for value in part[target]], f"{path}: {target}"))
    data = from_arrays(
        samples,
        labels,
        str(path),
        names=[names] * len(parts),
        options=options.among(ARRAYS_TAKE),
        prepared=prepared,
    )
    return replace(data, options=options)
