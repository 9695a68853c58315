"""Arrays of samples and labels as a `Dataset`: of archives, and of a user's own functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from samebits import ledger
from samebits.data.dataset import Dataset, places_of, shape_text, test_places
from samebits.data.labels import encode, task_of
from samebits.data.preparation import Preparation, check_numbers, features_of
from samebits.errors import InputError
from samebits.recipes.reading import PLAIN, Reading

Array = np.ndarray[Any, Any]
MOST_FEATURES = 1 << 14
TAKES = ("task", "mean", "std")
ROWS = 32  # bytes of memory for a number in a row: in float64 twice, and its code


def from_arrays(
    samples: Sequence[Array],
    labels: Sequence[Array],
    source: str = "data",
    *,
    names: Sequence[tuple[str, str]] = (),
    options: Reading = PLAIN,
    prepared: Preparation | None = None,
) -> Dataset:
    """The data set of arrays: of training and test samples, or of all, every fifth for testing.

    samples:  uint8 or float32 [N, C, H, W], [N, H, W, C] (C = 1 or 3) or [N, H, W] are images;
              int16 [N, T, F] codes of sequences; numbers [N, F] rows of a table
    labels:   integers [N], numbers [N] or [N, K], zeros and ones [N, L], or integers [N, H, W]
    names:    of the arrays, for messages
    prepared: of a run; its numbers are used in place of those of these rows

    Raises InputError naming the array, what was expected and what was found.
    """
    options.apart_from(source, "arrays", TAKES)
    for x, y in zip(samples, labels, strict=True):
        ledger.keep((ROWS * x.size if x.ndim == 2 else 2 * x.nbytes) + 16 * y.size, source)
    keys = names or [("samples", "labels")] * len(samples)
    where = [(f"{source}: array {x}", f"{source}: array {y}") for x, y in keys]
    for x, y, (kept, name) in zip(samples, labels, where, strict=True):
        if x.ndim == 0:
            raise InputError(f"{kept}: expected samples [N, ...], found a single number")
        if y.shape[:1] != x.shape[:1]:
            raise InputError(
                f"{name}: expected shape [{len(x)}], one label per sample, found "
                f"{shape_text(y.shape)}"
            )
    if not len(samples[0]):
        raise InputError(f"{where[0][0]}: expected at least one sample for training, found none")
    task = task_of(labels[0], options.task, where[0][1])
    for y, (_, name) in zip(labels, where, strict=True):
        task_of(y, task, name)
    places = None
    if len(samples) == 1:
        test = test_places(len(labels[0]))
        places = places_of(test)
        (x,), (y,) = samples, labels
        samples, labels, where = (x[~test], x[test]), (y[~test], y[test]), list(where) * 2
    made = encode(
        labels, task, [name for _, name in where], () if prepared is None else prepared.targets
    )
    features = None
    if samples[0].ndim == 2:
        stored, features = _rows(samples, [name for name, _ in where], source, prepared)
    else:
        stored = [_stored(x, name) for x, (name, _) in zip(samples, where, strict=True)]
    preparation = None
    if features is not None or made.scales:
        preparation = Preparation(() if features is None else features.features, made.scales)
    return Dataset(
        stored[0],
        made.parts[0],
        stored[1],
        made.parts[1],
        made.names,
        source,
        task=task,
        preparation=preparation,
        options=options,
        places=places,
    )


def _stored(array: Array, where: str) -> torch.Tensor:
    """Images [N, C, H, W] or sequences [N, T, F] in their stored width."""
    if array.dtype == np.int16 and array.ndim == 3:
        return torch.from_numpy(np.array(array, order="C", copy=True))
    if array.dtype not in (np.uint8, np.float32):
        raise InputError(f"{where}: expected dtype uint8 or float32, found {array.dtype}")
    if array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4 and array.shape[1] not in (1, 3) and array.shape[3] in (1, 3):
        array = array.transpose(0, 3, 1, 2)
    if array.ndim != 4 or 0 in array.shape[1:]:
        raise InputError(
            f"{where}: expected shape [N, C, H, W], [N, H, W, C] or [N, H, W], or rows [N, F], "
            f"found {shape_text(array.shape)}"
        )
    return torch.from_numpy(np.array(array, order="C", copy=True))


def _rows(
    arrays: Sequence[Array], where: Sequence[str], source: str, prepared: Preparation | None
) -> tuple[list[torch.Tensor], Preparation]:
    """Codes [N, F] of rows of numbers, and what made them."""
    reals = []
    for array, name in zip(arrays, where, strict=True):
        exact = array.dtype.kind in "iu" and array.dtype.itemsize <= 4
        if not (exact or array.dtype in (np.float32, np.float64)):
            raise InputError(
                f"{name}: expected rows of float32, float64 or integers of at most 32 bits, found "
                f"{array.dtype}"
            )
        if not 1 <= array.shape[1] <= MOST_FEATURES:
            raise InputError(
                f"{name}: expected rows of 1 to {MOST_FEATURES} numbers, found {array.shape[1]}"
            )
        real = array.astype(np.float64)
        for index, column in enumerate(real.T):
            check_numbers(column, f"{name}: row ROW, column {index}")
        reals.append(real)
    if len({real.shape[1] for real in reals}) > 1 or not len(reals[0]):
        raise InputError(
            f"{source}: expected training and test rows of one length, found "
            f"{' and '.join(shape_text(real.shape) for real in reals)}"
        )
    columns = [{str(i): column for i, column in enumerate(real.T)} for real in reals]
    if prepared is None:
        everything = np.ones(len(reals[0]), bool)
        prepared = Preparation(features_of(columns[0], everything, source))
    return [prepared.codes(part, source) for part in columns], prepared
