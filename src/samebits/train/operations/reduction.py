"""Means and sums over any axes, as an average pool over them has them (training.md 14.4)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from samebits.errors import UnsupportedError
from samebits.kernels.geometry import Window
from samebits.train.operations.indexing import permute
from samebits.train.operations.narrow import as_bfp8
from samebits.train.operations.pointwise import reshape
from samebits.train.operations.pooling import adaptive_avg_pool2d, avg_pool2d
from samebits.train.tensor import FUNCTIONS, BFPTensor


def mean(
    x: BFPTensor, dim: int | Sequence[int] | None = None, keepdim: bool = False, dtype: Any = None
) -> BFPTensor:
    """The mean over axes, as bfp8: exact sums, one rounding.

    Raises UnsupportedError for all axes, for axes that are not there, and for a dtype.
    """
    return _reduced("mean", x, dim, keepdim, dtype, None)


def total(
    x: BFPTensor, dim: int | Sequence[int] | None = None, keepdim: bool = False, dtype: Any = None
) -> BFPTensor:
    """The sum over axes, as bfp8. Raises as `mean`."""
    return _reduced("sum", x, dim, keepdim, dtype, 1)


def _reduced(
    what: str,
    x: BFPTensor,
    dim: int | Sequence[int] | None,
    keepdim: bool,
    dtype: Any,
    divisor: int | None,
) -> BFPTensor:
    """An average pool of the axes as one, of an image whose channels are the others.

    Images of [n, c, h, w] stay what they are where both sides are meant.
    """
    rank = x.dim()
    axes = [dim] if isinstance(dim, int) else list(dim or ())
    wrong = not axes or any(not -rank <= axis < rank for axis in axes) or dtype is not None
    reduced = sorted({axis % rank for axis in axes if rank})
    kept = [axis for axis in range(rank) if axis not in reduced]
    if wrong or not kept:
        raise UnsupportedError(
            f"{what}: expected some of the axes of shape {tuple(x.shape)} and no dtype, found "
            f"{dim} and {dtype}"
        )
    x = as_bfp8(x, what)
    sizes = [x.shape[axis] for axis in kept]
    image = x
    if reduced != [2, 3] or rank != 4:
        image = permute(x, (*kept, *reduced))
        parts = math.prod(x.shape[axis] for axis in reduced)
        image = reshape(image, (sizes[0], math.prod(sizes[1:]), parts, 1))
    kernel = (image.shape[2], image.shape[3])
    if divisor is None:
        y = adaptive_avg_pool2d(image, 1)
    else:
        y = avg_pool2d(image, Window(kernel, kernel, (0, 0)), divisor=divisor)
    if keepdim:
        sizes = [1 if axis in reduced else size for axis, size in enumerate(x.shape)]
    return reshape(y, tuple(sizes))


FUNCTIONS.update(
    {
        torch.mean: mean,
        torch.Tensor.mean: mean,
        torch.sum: total,
        torch.Tensor.sum: total,
    }
)
