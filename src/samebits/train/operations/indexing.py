"""Indexing and permutation of BFP tensors (training.md 5 and 7): the same codes, other places."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from samebits.errors import UnsupportedError
from samebits.train.tensor import FUNCTIONS, BFPTensor, TensorOperation, gradient

Index = int | slice | Any  # Any: Ellipsis


class Indexed(TensorOperation):
    """x[index]; the gradient of every other place is zero."""

    @staticmethod
    def forward(ctx: Any, x: BFPTensor, index: tuple[Index, ...]) -> BFPTensor:
        codes, exponent = x.resolved()
        ctx.shape, ctx.index = codes.shape, index
        return BFPTensor(codes[index], exponent)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        g, e_g = gradient(grad)
        codes = torch.zeros(ctx.shape, dtype=g.dtype, device=g.device)
        codes[ctx.index] = g
        return BFPTensor(codes, e_g), None


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
        codes, exponent = x.resolved()
        ctx.order = order
        return BFPTensor(codes.permute(order), exponent)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        g, e_g = gradient(grad)
        inverse = sorted(range(len(ctx.order)), key=lambda axis: ctx.order[axis] % g.dim())
        return BFPTensor(g.permute(inverse), e_g), None


def permute(x: BFPTensor, *order: Any) -> BFPTensor:
    """The axes of x in another order."""
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
