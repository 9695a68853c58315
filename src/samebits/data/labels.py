"""Labels of every task, from arrays: what they say, and how they are stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from samebits import progress
from samebits.data.columns import ColumnScale
from samebits.data.preparation import check_numbers
from samebits.errors import InputError
from samebits.spec.tables import TARGET_MAX

Array = np.ndarray[Any, Any]
MOST_CLASSES = 1 << 14
MOST_MASKED = 255  # classes of pixels: indices 0..254
MOST_OUTPUTS = 1 << 12  # labels or targets of one sample


@dataclass(frozen=True, eq=False)
class Labels:
    """Labels as a `Dataset` stores them, split by split. scales: of the targets of a regression."""

    task: str
    parts: tuple[torch.Tensor, ...]
    names: tuple[str, ...]
    scales: tuple[ColumnScale, ...] = ()


def task_of(array: Array, task: str | None, where: str) -> str:
    """The task that labels [N, ...] are for: `task`, or what their type and axes say.

    Raises InputError where they say nothing, or cannot be those of `task`.
    """
    kind = "real" if array.dtype.kind == "f" else "whole" if array.dtype.kind in "iub" else None
    columns = array.ndim == 2 and array.shape[1] != 1
    said = {
        ("real", 1): "regression",
        ("real", 2): "regression",
        ("whole", 1): "classification",
        ("whole", 2): "multilabel" if columns else "classification",
        ("whole", 3): "segmentation",
    }.get((kind or "", array.ndim))
    fits = {
        "classification": kind == "whole"
        and (array.ndim == 1 or (array.ndim == 2 and not columns)),
        "regression": kind is not None and array.ndim in (1, 2),
        "multilabel": kind is not None and array.ndim == 2,
        "segmentation": kind == "whole" and array.ndim == 3,
    }
    if said is None or (task is not None and not fits[task]):
        expected = {
            None: "integers [N] (classes), reals [N] or [N, K] (regression), zeros and ones "
            "[N, L] (multilabel) or integers [N, H, W] (segmentation)",
            "classification": "integer labels [N]",
            "regression": "numbers [N] or [N, K]",
            "multilabel": "zeros and ones [N, L]",
            "segmentation": "integers [N, H, W]",
        }[task]
        raise InputError(
            f"{where}: expected {expected}, found {array.dtype} {list(array.shape)}"
            + ("" if task is None else f", for {task}")
        )
    return task or said


def encode(
    arrays: Sequence[Array], task: str, where: Sequence[str], scales: Sequence[ColumnScale] = ()
) -> Labels:
    """Labels of the splits, training first, as codes.

    where:  names each array in messages
    scales: of targets, recorded earlier; by default those of the training labels
    """
    if task == "classification":
        parts = [_indices(a, w, MOST_CLASSES) for a, w in zip(arrays, where, strict=True)]
        return Labels(task, tuple(parts), _numbered(parts))
    if task == "segmentation":
        parts = [_indices(a, w, MOST_MASKED) for a, w in zip(arrays, where, strict=True)]
        return Labels(task, tuple(p.to(torch.uint8) for p in parts), _numbered(parts))
    arrays = [a[:, None] if a.ndim == 1 else a for a in arrays]
    outputs = arrays[0].shape[1]
    for array, name in zip(arrays, where, strict=True):
        if not 1 <= array.shape[1] <= MOST_OUTPUTS or array.shape[1] != outputs:
            raise InputError(
                f"{name}: expected 1 to {MOST_OUTPUTS} numbers for each sample, and as many in "
                f"every split, found {array.shape[1]}"
            )
    names = tuple(map(str, range(outputs)))
    if task == "multilabel":
        for array, name in zip(arrays, where, strict=True):
            wrong = array[(array != 0) & (array != 1)]
            if len(wrong):
                raise InputError(f"{name}: expected labels of 0 and 1, found {wrong[0]}")
        return Labels(task, tuple(torch.from_numpy(a.astype(np.uint8)) for a in arrays), names)
    reals = [a.astype(np.float64) for a in arrays]
    for real, name in zip(reals, where, strict=True):
        for column in real.T:
            check_numbers(column, f"{name}: row ROW")
    if scales and len(scales) != outputs:
        raise InputError(
            f"{where[0]}: expected {len(scales)} targets as in training, found {outputs}"
        )
    scales = tuple(scales) or tuple(ColumnScale.of(column) for column in reals[0].T)
    codes = [
        np.stack([s.targets(column) for s, column in zip(scales, real.T, strict=True)], axis=1)
        for real in reals
    ]
    beyond = sum(int((np.abs(part) == TARGET_MAX).sum()) for part in codes)
    if beyond:
        progress.note(
            f"{where[0]}: {beyond} of them lie 2048 standard deviations of training or more from "
            "its mean, and count as that far, in the figures too"
        )
    return Labels(task, tuple(map(torch.from_numpy, codes)), names, tuple(scales))


def _indices(array: Array, where: str, most: int) -> torch.Tensor:
    """Indices int64 of classes below `most`; [N, 1] becomes [N]."""
    if array.ndim == 2:
        array = array[:, 0]
    if array.size and (int(array.min()) < 0 or int(array.max()) >= most):
        raise InputError(
            f"{where}: expected labels in 0..{most - 1}, found "
            f"{int(array.min())}..{int(array.max())}"
        )
    return torch.from_numpy(array.astype(np.int64))


def _numbered(parts: Sequence[torch.Tensor]) -> tuple[str, ...]:
    largest = max((int(part.max()) for part in parts if part.numel()), default=0)
    return tuple(map(str, range(largest + 1)))
