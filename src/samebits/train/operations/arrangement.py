"""Arrangements of elements that follow from permute, indexing, copies and concatenation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from samebits.errors import UnsupportedError
from samebits.train.operations.broadcast import integers
from samebits.train.operations.copies import copies
from samebits.train.operations.indexing import indexed, permute, selected, split
from samebits.train.operations.pointwise import concat, reshape
from samebits.train.tensor import BFPTensor, offer, offer_by_name


def _axes(what: str, x: BFPTensor, axes: int | Sequence[int]) -> list[int]:
    """Axes counted from the first. Raises UnsupportedError where one is not there, or twice."""
    given = [axes] if isinstance(axes, int) else list(axes)
    counted = [axis % x.dim() for axis in given if -x.dim() <= axis < x.dim()]
    if len(set(counted)) != len(given):
        raise UnsupportedError(
            f"{what}: expected some of the axes of shape {tuple(x.shape)}, each once, found {axes}"
        )
    return counted


# --- elements along axes --------------------------------------------------------------------


def index_select(x: BFPTensor, dim: int, index: Tensor) -> BFPTensor:
    """Elements along an axis by a vector of integers, as indexing has them."""
    (axis,) = _axes("index_select", x, dim)
    return selected(x, axis, index.reshape(-1))


def flip(x: BFPTensor, *dims: Any) -> BFPTensor:
    """The elements along axes in the opposite order."""
    axes = _axes("flip", x, integers(dims))
    index = {a: torch.arange(x.shape[a] - 1, -1, -1, device="cpu") for a in axes}
    return copies("flip", x, index) if axes else x


def repeat(x: BFPTensor, *sizes: Any) -> BFPTensor:
    """The whole of x side by side along axes, and along new ones before the first.

    Raises UnsupportedError for fewer sizes than axes, and sizes below 1.
    """
    times = integers(sizes)
    if len(times) < x.dim() or min(times, default=1) < 1:
        raise UnsupportedError(
            f"repeat: expected sizes of at least 1 for all axes of shape {tuple(x.shape)}, found "
            f"{times}"
        )
    y = x
    if len(times) > x.dim():
        y = reshape(x, (*[1] * (len(times) - x.dim()), *x.shape))
    many = {
        axis: torch.arange(y.shape[axis], device="cpu").repeat(n)
        for axis, n in enumerate(times)
        if n > 1
    }
    return copies("repeat", y, many) if many else y


def tile(x: BFPTensor, *dims: Any) -> BFPTensor:
    """As `repeat`, with sizes of the last axes."""
    sizes = integers(dims)
    return repeat(x, (*[1] * (x.dim() - len(sizes)), *sizes))


def repeat_interleave(x: BFPTensor, repeats: int, dim: int | None = None) -> BFPTensor:
    """Every element along an axis several times, one after the other; of all in a row without one.

    Raises UnsupportedError for repeats that are no integer of at least 1.
    """
    if not isinstance(repeats, int) or repeats < 1:
        raise UnsupportedError(
            f"repeat_interleave: expected an integer of at least 1, found {repeats!r}"
        )
    y = reshape(x, (-1,)) if dim is None else x
    (axis,) = _axes("repeat_interleave", y, 0 if dim is None else dim)
    index = torch.arange(y.shape[axis], device="cpu").repeat_interleave(repeats)
    return copies("repeat_interleave", y, {axis: index})


# --- axes -----------------------------------------------------------------------------------


def movedim(
    x: BFPTensor, source: int | Sequence[int], destination: int | Sequence[int]
) -> BFPTensor:
    """x with axes at other places, the others in their order. Raises UnsupportedError."""
    sources, places = (_axes("movedim", x, axes) for axes in (source, destination))
    if len(sources) != len(places):
        raise UnsupportedError(
            f"movedim: expected a place for every axis, found {source} and {destination}"
        )
    order = [axis for axis in range(x.dim()) if axis not in sources]
    for place, axis in sorted(zip(places, sources, strict=True)):
        order.insert(place, axis)
    return permute(x, order)


def ravel(x: BFPTensor) -> BFPTensor:
    """The elements in a row."""
    return reshape(x, (-1,))


def reshape_as(x: BFPTensor, other: Tensor) -> BFPTensor:
    """x in the shape of another tensor."""
    return reshape(x, other.shape)


# --- parts ----------------------------------------------------------------------------------


def narrow(x: BFPTensor, dim: int, start: int | Tensor, length: int) -> BFPTensor:
    """`length` places of an axis from `start` on. Raises UnsupportedError beyond the axis."""
    (axis,) = _axes("narrow", x, dim)
    size = x.shape[axis]
    first = int(start) + (size if start < 0 else 0)
    if not (first >= 0 and 0 <= length <= size - first):
        raise UnsupportedError(
            f"narrow: expected places of an axis of {size}, found {length} from {int(start)} on"
        )
    return indexed(x, (*[slice(None)] * axis, slice(first, first + length)))


def select(x: BFPTensor, dim: int, index: int) -> BFPTensor:
    """x at one place of an axis, without it."""
    (axis,) = _axes("select", x, dim)
    return indexed(x, (*[slice(None)] * axis, index))


def tensor_split(
    x: BFPTensor, indices_or_sections: int | Sequence[int] | Tensor, dim: int = 0
) -> tuple[BFPTensor, ...]:
    """x in parts along an axis: as many as are asked for, the first the larger, or from indices on.

    Raises UnsupportedError for fewer parts than 1.
    """
    (axis,) = _axes("tensor_split", x, dim)
    given, size = indices_or_sections, x.shape[axis]
    cuts = given.tolist() if isinstance(given, Tensor) else given
    if isinstance(cuts, int):
        if cuts < 1:
            raise UnsupportedError(f"tensor_split: expected at least 1 part, found {cuts}")
        return split(x, [size // cuts + (at < size % cuts) for at in range(cuts)], axis)
    ends = zip((None, *cuts), (*cuts, None), strict=True)
    return tuple(indexed(x, (*[slice(None)] * axis, slice(*pair))) for pair in ends)


# --- side by side ---------------------------------------------------------------------------


def hstack(tensors: Sequence[Any]) -> BFPTensor:
    """Tensors side by side along the second axis, vectors along their only one."""
    rows = [x.reshape(1) if x.dim() == 0 else x for x in tensors]
    return concat(rows, 0 if rows[0].dim() == 1 else 1)


def vstack(tensors: Sequence[Any]) -> BFPTensor:
    """Tensors one below the other along the first axis, vectors as rows."""
    return concat([x.reshape(1, -1) if x.dim() < 2 else x for x in tensors], 0)


def dstack(tensors: Sequence[Any]) -> BFPTensor:
    """Tensors one behind the other along the third axis, matrices and vectors of depth 1."""
    rows = [x.reshape(1, -1) if x.dim() < 2 else x for x in tensors]
    return concat([x[:, :, None] if x.dim() == 2 else x for x in rows], 2)


offer(vstack, "vstack", "row_stack")
offer_by_name(hstack, dstack, repeat, tile, repeat_interleave, flip)
offer_by_name(index_select, ravel, narrow, select, tensor_split)
offer(movedim, "movedim", "moveaxis")
offer(reshape_as, "reshape_as", "view_as")
offer(split, "split_with_sizes")
