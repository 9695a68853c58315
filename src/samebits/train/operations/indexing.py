"""Indexing and permutation of BFP tensors (training.md 5 and 7): the same codes, other places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from samebits.errors import UnsupportedError
from samebits.kernels import rows
from samebits.spec import formats
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


FUNCTIONS.update(
    {
        torch.Tensor.__getitem__: indexed,
        torch.permute: permute,
        torch.Tensor.permute: permute,
        torch.transpose: transpose,
        torch.Tensor.transpose: transpose,
    }
)
