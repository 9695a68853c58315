"""Data of a user's own: a callable that gives map-style datasets as torch has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from samebits import progress
from samebits.callables import named_callable
from samebits.data.arrays import from_arrays
from samebits.data.dataset import Dataset
from samebits.data.preparation import Preparation
from samebits.errors import InputError, SamebitsError
from samebits.recipes.reading import PLAIN, Reading

Array = np.ndarray[Any, Any]
EXPECTED = (
    "a map-style dataset of (sample, label) pairs, two of them for training and testing, or a "
    "samebits.data.Dataset"
)


def load_callable(
    name: str, options: Reading = PLAIN, prepared: Preparation | None = None
) -> Dataset:
    """The data that the callable of a name gives, called without arguments: EXPECTED.

    Of one dataset every fifth sample is for testing. Samples are tensors, arrays or images of
    Pillow, all of one shape; labels numbers or arrays, as `from_arrays` takes them. Every sample is
    asked for once, in order. Raises InputError for anything else.
    """
    make = named_callable(name, "--data")
    try:
        made = make()
        if isinstance(made, Dataset):
            options.apart_from(name, "a samebits.data.Dataset", ())
            return made
        pair = isinstance(made, tuple | list) and len(made) == 2 and all(map(_is_map_style, made))
        given = list(made) if pair else [made]  # type: ignore[call-overload]
        if not all(map(_is_map_style, given)):
            raise InputError(f"--data {name}: expected {EXPECTED}, found {type(made).__name__}")
        keys = ("training", "test") if pair else ("own",)
        parts = [
            _read(each, f"--data {name}: {key} dataset")
            for each, key in zip(given, keys, strict=True)
        ]
    except SamebitsError:
        raise
    except Exception as error:  # a user's code: whatever it raises is an input error
        raise InputError(
            f"--data {name}: calling it failed ({type(error).__name__}: {error})"
        ) from error
    names = [(f"{key} samples", f"{key} labels") for key in keys]
    samples, labels = zip(*parts, strict=True)
    return from_arrays(samples, labels, name, names=names, options=options, prepared=prepared)


def _is_map_style(found: object) -> bool:
    return (
        hasattr(found, "__getitem__")
        and hasattr(found, "__len__")
        and not isinstance(found, str | bytes | dict)
    )


def _read(dataset: Any, what: str) -> tuple[Array, Array]:
    """All samples and all labels of a dataset, each as one array."""
    samples: list[Array] = []
    labels: list[Array] = []
    for index in progress.track(range(len(dataset)), f"reading the {what.split(': ')[-1]}"):
        item = dataset[index]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise InputError(
                f"{what}: expected pairs (sample, label), found {type(item).__name__} at {index}"
            )
        samples.append(array_of(item[0]))
        labels.append(array_of(item[1]))
    return stacked(samples, f"{what}: samples"), stacked(labels, f"{what}: labels")


def array_of(found: Any) -> Array:
    """A tensor, an image, an array or a number as an array; an image of colours [C, H, W]."""
    if hasattr(found, "detach"):
        found = found.detach().cpu().numpy()
    if isinstance(found, Image.Image):
        pixels = np.asarray(found if found.mode in ("L", "RGB") else found.convert("RGB"))
        return pixels.transpose(2, 0, 1) if pixels.ndim == 3 else pixels
    return np.asarray(found)


def stacked(arrays: Sequence[Array], what: str) -> Array:
    """Arrays of one shape and type as one. Raises InputError for the first that differs."""
    if not arrays:
        raise InputError(f"{what}: expected at least one, found none")
    first = arrays[0]
    for index, array in enumerate(arrays):
        if array.shape != first.shape or array.dtype != first.dtype:
            raise InputError(
                f"{what}: expected {first.dtype} {list(first.shape)} as the first, found "
                f"{array.dtype} {list(array.shape)} at {index}; make them alike in the dataset"
            )
    return np.stack(arrays)
