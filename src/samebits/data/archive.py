"""NPZ archives: x_train, y_train, x_test, y_test; or x, y with every fifth sample for testing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from samebits.data.dataset import Dataset, shape_text, unsplit
from samebits.errors import InputError
from samebits.files import read_archive

SPLIT_KEYS = ("x_train", "y_train", "x_test", "y_test")
WHOLE_KEYS = ("x", "y")


def load_npz(path: Path) -> Dataset:
    """The data set in an archive: images uint8 or float32 as [N, C, H, W], [N, H, W, C] (C = 1 or
    3) or [N, H, W], and integer labels [N].

    Read without pickle. Raises InputError naming the key, what was expected and what was found.
    """
    archive = read_archive(path, lambda names: _keys(path, names))
    keys, arrays = list(archive), list(archive.values())
    images = [_images(path, key, array) for key, array in zip(keys[::2], arrays[::2], strict=True)]
    labels = [
        _labels(path, key, array, len(image))
        for key, array, image in zip(keys[1::2], arrays[1::2], images, strict=True)
    ]
    largest = max((int(label.max()) for label in labels if len(label)), default=0)
    names = tuple(map(str, range(largest + 1)))
    if len(images) == 1:
        return unsplit(images[0], labels[0], names, str(path))
    return Dataset(images[0], labels[0], images[1], labels[1], names, str(path))


def _keys(path: Path, found: Sequence[str]) -> tuple[str, ...]:
    for keys in (SPLIT_KEYS, WHOLE_KEYS):
        if set(keys) <= set(found):
            return keys
    raise InputError(
        f"{path}: expected the arrays {', '.join(SPLIT_KEYS)} (or {', '.join(WHOLE_KEYS)}), "
        f"found {', '.join(sorted(found)) or 'none'}"
    )


def _images(path: Path, key: str, array: npt.NDArray[np.generic]) -> torch.Tensor:
    if array.dtype not in (np.uint8, np.float32):
        raise InputError(
            f"{path}: array {key}: expected dtype uint8 or float32, found {array.dtype}"
        )
    if array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4 and array.shape[1] not in (1, 3) and array.shape[3] in (1, 3):
        array = array.transpose(0, 3, 1, 2)
    if array.ndim != 4 or 0 in array.shape[1:]:
        raise InputError(
            f"{path}: array {key}: expected shape [N, C, H, W], [N, H, W, C] or [N, H, W], "
            f"found {shape_text(array.shape)}"
        )
    return torch.from_numpy(np.array(array, order="C", copy=True))


def _labels(path: Path, key: str, array: npt.NDArray[np.generic], count: int) -> torch.Tensor:
    """Labels int64 [count] of integers [count] or [count, 1] in 0..16383; InputError for others."""
    if array.dtype.kind not in "iu":
        raise InputError(f"{path}: array {key}: expected integer labels, found {array.dtype}")
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.shape != (count,):
        raise InputError(
            f"{path}: array {key}: expected shape [{count}], one label per image, found "
            f"{shape_text(array.shape)}"
        )
    if count and (int(array.min()) < 0 or int(array.max()) > 16383):
        raise InputError(
            f"{path}: array {key}: expected labels in 0..16383, found "
            f"{int(array.min())}..{int(array.max())}"
        )
    return torch.from_numpy(array.astype(np.int64))
