"""Indexing, permutation, and what follows from them and from reshaping (training.md 5 and 7): the
same codes in other places."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from samebits.errors import UnsupportedError
from samebits.kernels import rows
from samebits.spec import formats
from samebits.train.operations.narrow import as_bfp
from samebits.train.operations.pointwise import concat, reshape
from samebits.train.tensor import FUNCTIONS, BFPTensor, TensorOperation, gradient, moved_part

Index = int | slice | Any  # Any: Ellipsis


class Indexed(TensorOperation):
    """x[index]; the gradient of every other place is zero."""

    @staticmethod
    def forward(ctx: Any, x: BFPTensor, index: tuple[Index, ...]) -> BFPTensor:
        ctx.shape, ctx.index = x.shape, index
        return x.moved(lambda codes: codes[index])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        g, e_g = gradient(grad)
        codes = torch.zeros(ctx.shape, dtype=g.dtype, device=g.device)
        codes[ctx.index] = g
        if isinstance(e_g, int):
            return BFPTensor(codes, e_g), None
        own = torch.full_like(codes, formats.EXPONENT_MIN, dtype=torch.int64)
        own[ctx.index] = e_g.expand(g.shape)
        return BFPTensor(*rows.moved(codes, own, lambda v: v)), None


def indexed(x: BFPTensor, index: Index | tuple[Index, ...]) -> BFPTensor:
    """x[index] for integers, slices and `...`: the same codes at the same exponent."""
    parts = index if isinstance(index, tuple) else (index,)
    if not all(isinstance(p, int | slice) or p is Ellipsis for p in parts):
        raise UnsupportedError(
            f"indexing: expected integers, slices or ..., found {index!r}; BFP tensors have no "
            "indexing by tensors"
        )
    return Indexed.apply(x, parts)


class Permute(TensorOperation):
    """x with its axes in another order; the gradient's axes go back."""

    @staticmethod
    def forward(ctx: Any, x: BFPTensor, order: tuple[int, ...]) -> BFPTensor:
        ctx.order = order
        return x.moved(lambda codes: codes.permute(order))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        g, e_g = gradient(grad)
        inverse = sorted(range(len(ctx.order)), key=lambda axis: ctx.order[axis] % g.dim())
        return BFPTensor(*moved_part((g, e_g), lambda v: v.permute(inverse))), None


def permute(x: BFPTensor, *order: Any, dims: Sequence[int] = ()) -> BFPTensor:
    """The axes of x in another order, given as torch takes it."""
    order = order or (dims,)
    axes = order[0] if len(order) == 1 and not isinstance(order[0], int) else order
    return Permute.apply(x, tuple(axes))


def transpose(x: BFPTensor, a: int, b: int) -> BFPTensor:
    """x with two axes exchanged."""
    order = list(range(x.dim()))
    order[a], order[b] = order[b], order[a]
    return Permute.apply(x, tuple(order))


def _axis(what: str, axis: int, rank: int) -> int:
    """An axis counted from the first. Raises UnsupportedError outside [-rank, rank)."""
    if not -rank <= axis < rank:
        raise UnsupportedError(f"{what}: expected an axis of {rank}, found {axis}")
    return axis % rank


def split(x: BFPTensor, size: int | Sequence[int], dim: int = 0) -> tuple[BFPTensor, ...]:
    """x in parts along an axis: of one size, the last may be smaller, or of the sizes given.

    Raises UnsupportedError for sizes below 1 (given one by one: 0), or that do not add up.
    """
    axis = _axis("split", dim, x.dim())
    length = x.shape[axis]
    if min([size] if isinstance(size, int) else [1, *(s + 1 for s in size)]) < 1:
        raise UnsupportedError(f"split: expected sizes of at least 1, found {size}")
    sizes = [size] * (length // size) if isinstance(size, int) else list(size)
    if (rest := length - sum(sizes)) > 0 and isinstance(size, int):
        sizes.append(rest)
    if sum(sizes) != length:
        raise UnsupportedError(f"split: expected sizes that add up to {length}, found {sizes}")
    ends = list(itertools.accumulate(sizes, initial=0))
    axes = (slice(None),) * axis
    return tuple(indexed(x, (*axes, slice(*pair))) for pair in itertools.pairwise(ends))


def chunk(x: BFPTensor, chunks: int, dim: int = 0) -> tuple[BFPTensor, ...]:
    """x in at most `chunks` parts of one size along an axis; the last may be smaller."""
    if chunks < 1:
        raise UnsupportedError(f"chunk: expected at least 1 part, found {chunks}")
    return split(x, -(-x.shape[_axis("chunk", dim, x.dim())] // chunks), dim)


def unbind(x: BFPTensor, dim: int = 0) -> tuple[BFPTensor, ...]:
    """x at every place of an axis, without it."""
    axes = (slice(None),) * _axis("unbind", dim, x.dim())
    return tuple(indexed(x, (*axes, i)) for i in range(x.shape[dim]))


def unsqueeze(x: BFPTensor, dim: int) -> BFPTensor:
    """x with an axis of size 1 more."""
    at = _axis("unsqueeze", dim, x.dim() + 1)
    return reshape(x, (*x.shape[:at], 1, *x.shape[at:]))


def squeeze(x: BFPTensor, dim: int | Sequence[int] | None = None) -> BFPTensor:
    """x without its axes of size 1, or without those of `dim` that have it."""
    given = range(x.dim()) if dim is None else [dim] if isinstance(dim, int) else dim
    axes = [_axis("squeeze", axis, x.dim()) for axis in given]
    gone = {axis for axis in axes if x.shape[axis] == 1}
    return reshape(x, tuple(s for axis, s in enumerate(x.shape) if axis not in gone))


def unflatten(x: BFPTensor, dim: int, sizes: Sequence[int]) -> BFPTensor:
    """x with one axis as several."""
    at = _axis("unflatten", dim, x.dim())
    return reshape(x, (*x.shape[:at], *sizes, *x.shape[at + 1 :]))


def stack(tensors: Sequence[BFPTensor], dim: int = 0) -> BFPTensor:
    """Tensors of one shape along a new axis, as `concat` joins them."""
    at = _axis("stack", dim, tensors[0].dim() + 1)
    return concat([unsqueeze(as_bfp(x, "stack"), at) for x in tensors], at)


FUNCTIONS.update(
    {
        torch.split: split,
        torch.Tensor.split: split,
        torch.chunk: chunk,
        torch.Tensor.chunk: chunk,
        torch.unbind: unbind,
        torch.Tensor.unbind: unbind,
        torch.unsqueeze: unsqueeze,
        torch.Tensor.unsqueeze: unsqueeze,
        torch.squeeze: squeeze,
        torch.Tensor.squeeze: squeeze,
        torch.unflatten: unflatten,
        torch.Tensor.unflatten: unflatten,
        torch.stack: stack,
        torch.Tensor.contiguous: lambda x: x,
        torch.Tensor.__getitem__: indexed,
        torch.permute: permute,
        torch.Tensor.permute: permute,
        torch.transpose: transpose,
        torch.Tensor.transpose: transpose,
    }
)
