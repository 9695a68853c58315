"""Means and sums over any axes, as an average pool over them has them (training.md 14.4)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from samebits.errors import UnsupportedError
from samebits.kernels.geometry import Window
from samebits.train.operations.indexing import permute
from samebits.train.operations.narrow import as_bfp8
from samebits.train.operations.pointwise import embedding, reshape
from samebits.train.operations.pooling import adaptive_avg_pool2d, avg_pool2d, max_pool2d
from samebits.train.tensor import BFPParameter, BFPTensor, offer
from samebits.train.value import BFPValue


def mean(
    x: BFPTensor, dim: int | Sequence[int] | None = None, keepdim: bool = False, dtype: Any = None
) -> BFPTensor:
    """The mean over axes, all of them unless they are given, as bfp8: exact sums, one rounding.

    Raises UnsupportedError for axes that are not there, for a tensor without axes, and for a dtype.
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
    axes = [dim] if isinstance(dim, int) else list(dim or range(rank))
    wrong = not axes or any(not -rank <= axis < rank for axis in axes) or dtype is not None
    reduced = sorted({axis % rank for axis in axes if rank})
    kept = [axis for axis in range(rank) if axis not in reduced]
    if wrong:
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
        image = reshape(image, (math.prod(sizes[:1]), math.prod(sizes[1:]), parts, 1))
    kernel = (image.shape[2], image.shape[3])
    if divisor is None:
        y = adaptive_avg_pool2d(image, 1)
    else:
        y = avg_pool2d(image, Window(kernel, kernel, (0, 0)), divisor=divisor)
    if keepdim:
        sizes = [1 if axis in reduced else size for axis, size in enumerate(x.shape)]
    return reshape(y, tuple(sizes))


def _backward(x: BFPTensor, gradient: Tensor | None = None, **options: Any) -> None:
    """torch.Tensor.backward: of one number, a loss, by the gradient 1 (training.md 6.7).

    Raises UnsupportedError for a tensor of several numbers without a gradient.
    """
    if gradient is None:
        if x.numel() != 1:
            raise UnsupportedError(
                f"backward: expected a loss, one number, found a BFP tensor of shape "
                f"{tuple(x.shape)}; take its mean or sum, or a loss of torch.nn.functional"
            )
        one = torch.ones(x.shape, dtype=torch.int32, device=x.device)
        gradient = BFPTensor.of(BFPValue(one, 0, bound=1))
    with torch._C.DisableTorchFunctionSubclass():
        torch.Tensor.backward(x, gradient, **options)  # type: ignore[no-untyped-call]


BAGS = ("sum", "mean", "max")


def embedding_bag(
    index: Tensor,
    weight: BFPParameter,
    mode: str = "mean",
    offsets: Tensor | None = None,
    by_rows: bool = False,
) -> BFPTensor:
    """The sum, mean or maximum of rows of W over bags of one length: [bags, d], as bfp8.

    index: [bags, length], or all bags in a row [n], which begin at `offsets`. by_rows: as
    `embedding` has it. Raises
    UnsupportedError for other modes and shapes, and bags of several lengths.
    """
    if offsets is not None and index.dim() == 1 and len(offsets):
        ends = torch.cat([offsets, offsets.new_tensor([len(index)])])
        lengths = set((ends[1:] - ends[:-1]).tolist())
        if int(offsets[0]) == 0 and len(lengths) == 1:
            index, offsets = index.view(len(offsets), -1), None
    if mode not in BAGS or offsets is not None or index.dim() != 2 or 0 in index.shape:
        raise UnsupportedError(
            f"embedding bag: expected mode {', '.join(BAGS)} and bags of one length, at least 1, "
            f"found {mode}, indices {tuple(index.shape)} and "
            f"{'no' if offsets is None else 'other'} offsets"
        )
    rows = embedding(index, weight, by_rows=by_rows)
    if mode != "max":
        return (total if mode == "sum" else mean)(rows, 1)
    bags, length, size = rows.shape
    image = reshape(permute(rows, (0, 2, 1)), (bags, size, length, 1))
    kernel = (length, 1)
    return reshape(max_pool2d(image, Window(kernel, kernel, (0, 0))), (bags, size))


def _embedding_bag(
    input: Tensor,
    weight: BFPParameter,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> BFPTensor:
    """torch.nn.functional.embedding_bag. Raises UnsupportedError for options with other values."""
    given = (max_norm, per_sample_weights, padding_idx)
    if any(v is not None for v in given) or scale_grad_by_freq or include_last_offset:
        raise UnsupportedError(
            "embedding bag: expected no max_norm, scale_grad_by_freq, per_sample_weights, "
            "include_last_offset or padding_idx"
        )
    if not isinstance(weight, BFPParameter):
        raise UnsupportedError(
            f"embedding bag: expected a parameter of a module, found {type(weight).__name__}"
        )
    return embedding_bag(input, weight, mode, offsets)


offer(_embedding_bag, "functional.embedding_bag")
offer(_backward, "Tensor.backward")
offer(mean, "mean")
offer(total, "sum")
