"""Elements chosen along axes, some several times (training.md 14.4)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from samebits import kernels
from samebits.errors import UnsupportedError
from samebits.kernels import rows
from samebits.kernels.geometry import MAX_SUMMED
from samebits.train.operation import OperationCall, TrainingOperation
from samebits.train.operations.broadcast import GATHERED
from samebits.train.operations.narrow import as_bfp
from samebits.train.tensor import BFPTensor
from samebits.train.value import BFPValue, bfp32

Selection = tuple[int, Tensor]  # an axis, and which elements along it, int64


def _copied(x: BFPValue, selections: tuple[Selection, ...]) -> BFPValue:
    """Elements chosen along axes, some several times."""
    return x.moved(lambda codes: _selected(codes, selections))


def _copied_gradient(call: OperationCall, grad: BFPValue) -> BFPValue:
    """The sum over the copies, at one exponent where rows meet in it (12.1, gather)."""
    x, selections = call.arguments
    g, exponent = grad.resolved()
    acc, own = g.long(), exponent
    meet = any(axis in rows.row_axes(g.dim()) for axis, _ in selections)
    if isinstance(exponent, Tensor) and meet:
        acc, common = kernels.of(g).at_one(g, exponent, GATHERED)
        own = rows.spread(common, rows.row_size(x.shape), g)
    for axis, index in selections:
        acc = added(acc, axis, index, x.shape[axis])
    return bfp32(acc, own)


COPIES = TrainingOperation("Copies", _copied, _copied_gradient)


def _selected(codes: Tensor, selections: Sequence[Selection]) -> Tensor:
    for axis, index in selections:
        codes = codes.index_select(axis, index.to(codes.device))
    return codes


def added(v: Tensor, axis: int, index: Tensor, size: int) -> Tensor:
    """The inverse of a selection along an axis of a size: sums over the copies of an element."""
    shape = [size if at == axis else n for at, n in enumerate(v.shape)]
    return torch.zeros(shape, dtype=v.dtype, device=v.device).index_add_(axis, index, v)


def copies(what: str, x: BFPTensor, selections: Mapping[int, Tensor]) -> BFPTensor:
    """`COPIES` whose sums of gradients are exact. Raises UnsupportedError for others."""
    most = math.prod(int(torch.bincount(index, minlength=1).max()) for index in selections.values())
    if most > MAX_SUMMED:
        raise UnsupportedError(
            f"{what}: expected every element at most {MAX_SUMMED} times, found {most}"
        )
    at = tuple((axis, index.to(x.device)) for axis, index in selections.items())
    return COPIES(as_bfp(x, what), at)
