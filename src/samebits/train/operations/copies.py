"""Elements chosen along axes, some several times (training.md 14.4)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from samebits.errors import UnsupportedError
from samebits.kernels import rows
from samebits.kernels.geometry import MAX_SUMMED
from samebits.train.operations.broadcast import GATHERED
from samebits.train.operations.narrow import as_bfp
from samebits.train.tensor import BFPTensor, TensorOperation, bfp32, gradient

Selection = tuple[int, Tensor]  # an axis, and which elements along it, int64


class Copies(TensorOperation):
    """Elements chosen along axes, some several times; a gradient is the sum over the copies."""

    @staticmethod
    def forward(ctx: Any, x: BFPTensor, selections: tuple[Selection, ...]) -> BFPTensor:
        ctx.shape, ctx.selections = x.shape, selections
        return x.moved(lambda codes: _selected(codes, selections))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        """At one exponent where rows meet in a sum (12.1, gather)."""
        g, exponent = gradient(grad)
        acc, own = g.long(), exponent
        meet = any(axis in rows.row_axes(g.dim()) for axis, _ in ctx.selections)
        if isinstance(exponent, Tensor) and meet:
            acc, common = rows.at_one(acc, exponent, GATHERED)
            own = torch.full(rows.row_size(ctx.shape), common, device=g.device)
        for axis, index in ctx.selections:
            acc = added(acc, axis, index, ctx.shape[axis])
        return bfp32(acc, own), None


def _selected(codes: Tensor, selections: Sequence[Selection]) -> Tensor:
    for axis, index in selections:
        codes = codes.index_select(axis, index.to(codes.device))
    return codes


def added(v: Tensor, axis: int, index: Tensor, size: int) -> Tensor:
    """The inverse of a selection along an axis of a size: sums over the copies of an element."""
    shape = [size if at == axis else n for at, n in enumerate(v.shape)]
    return torch.zeros(shape, dtype=v.dtype, device=v.device).index_add_(axis, index, v)


def copies(what: str, x: BFPTensor, selections: Mapping[int, Tensor]) -> BFPTensor:
    """`Copies` whose sums of gradients are exact. Raises UnsupportedError for others."""
    most = math.prod(int(torch.bincount(index, minlength=1).max()) for index in selections.values())
    if most > MAX_SUMMED:
        raise UnsupportedError(
            f"{what}: expected every element at most {MAX_SUMMED} times, found {most}"
        )
    at = tuple((axis, index.to(x.device)) for axis, index in selections.items())
    return Copies.apply(as_bfp(x, what), at)
