"""Indexing, permutation, and what follows from them and from reshaping (training.md 5 and 7): the
same codes in other places."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from samebits import kernels
from samebits.errors import UnsupportedError
from samebits.kernels import rows
from samebits.kernels.geometry import MAX_SUMMED
from samebits.spec import formats
from samebits.train.operation import OperationCall, TrainingOperation
from samebits.train.operations.broadcast import GATHERED, constants, integers
from samebits.train.operations.copies import copies
from samebits.train.operations.logarithms import as_movable
from samebits.train.operations.narrow import as_bfp
from samebits.train.operations.pointwise import concat, reshape
from samebits.train.tensor import FUNCTIONS, BFPTensor, offer, offer_by_name
from samebits.train.value import BFPValue, bfp32, moved_part

Index = int | slice | Any  # Any: None, Ellipsis, and tensors or lists of integers
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)  # uint8 is a mask to torch


def _places(x: BFPValue, index: tuple[Index, ...]) -> BFPValue:
    """x[index]; the gradient of every other place is zero."""
    return x.moved(lambda codes: codes[index])


def _places_gradient(call: OperationCall, grad: BFPValue) -> BFPValue:
    x, index = call.arguments
    g, e_g = grad.resolved()
    codes = torch.zeros(x.shape, dtype=g.dtype, device=g.device)
    codes[index] = g
    if isinstance(e_g, int):
        return BFPValue(codes, e_g)
    own = rows.spread(formats.EXPONENT_MIN, codes.shape, codes)
    own[index] = e_g.expand(g.shape)
    return BFPValue(*moved_part((codes, own), lambda v: v))


INDEXED = TrainingOperation("Indexed", _places, _places_gradient)


def _gathered(x: BFPValue, index: Tensor) -> tuple[BFPValue, tuple[Tensor]]:
    """Elements of the first axis by integers; the gradient of one is the sum over its uses."""
    return x.moved(lambda codes: codes[index]), (index,)


def _gathered_gradient(call: OperationCall, grad: BFPValue) -> BFPValue:
    shape: torch.Size = call.arguments[0].shape
    (index,) = call.saved
    g, exponent = grad.resolved()
    addends: Tensor = g
    if isinstance(exponent, Tensor):
        addends, one = kernels.of(g).at_one(g, exponent, GATHERED)
        exponent = rows.spread(one, rows.row_size(shape), g)
    acc = torch.zeros(shape, dtype=torch.int64, device=g.device)
    acc.index_add_(0, index.flatten(), addends.long().reshape(-1, *shape[1:]))
    return bfp32(acc, exponent)


GATHER = TrainingOperation("Gather", _gathered, _gathered_gradient, saves=True)


def indexed(x: BFPTensor, index: Index | tuple[Index, ...]) -> BFPTensor:
    """x[index] for integers, slices, None and `...`, and for one tensor or list of integers (14.4).

    The same codes at the same exponent. Raises UnsupportedError for other indices, and for integers
    outside their axis.
    """
    parts = index if isinstance(index, tuple) else (index,)
    parts = tuple(torch.tensor(p, device="cpu") if isinstance(p, list) and p else p for p in parts)
    by = [at for at, p in enumerate(parts) if isinstance(p, Tensor) and p.dtype in INTEGERS]
    simple = [p for at, p in enumerate(parts) if at not in by]
    known = all(isinstance(p, int | slice | None) or p is ... for p in simple)
    if len(by) > 1 or not known or any(isinstance(p, bool) for p in simple):
        raise UnsupportedError(
            f"indexing: expected integers, slices, None or ..., and one tensor or list of "
            f"integers, found {index!r}; BFP tensors have no indexing by several tensors or masks"
        )
    if not by:
        return _sliced(x, parts)
    before, (chosen, *after) = parts[: by[0]], parts[by[0] :]
    if not _is_whole((*before, *after)):
        x = _sliced(x, (*before, slice(None), *after))
    if ... in before:
        return selected(x, x.dim() - 1 - _axes_of(after), chosen)
    return selected(x, _axes_of(before), chosen)


def _axes_of(parts: Sequence[Index]) -> int:
    """The number of axes that indices give, without `...`."""
    return sum(not isinstance(p, int) for p in parts)


def _is_whole(parts: Sequence[Index]) -> bool:
    """Whether indices leave a tensor as it is."""
    return all(p is ... or p == slice(None) for p in parts)


def _sliced(x: BFPTensor, parts: tuple[Index, ...]) -> BFPTensor:
    """x at integers and slices, with an axis of size 1 for every None."""
    x = as_bfp(x, "indexing")
    places = tuple(p for p in parts if p is not None)
    x = as_movable(x, lambda codes: codes[places])
    if len(places) == len(parts):
        return INDEXED(x, places)
    shape = torch.empty(x.shape, device="meta")[parts].shape
    return reshape(x if _is_whole(places) else INDEXED(x, places), tuple(shape))


def selected(x: BFPTensor, axis: int, index: Tensor) -> BFPTensor:
    """Elements along an axis by integers of any shape, whose axes take the place of that one.

    Raises UnsupportedError for integers outside the axis.
    """
    x, length = as_bfp(x, "indexing"), x.shape[axis]
    if index.numel() and not (-length <= int(index.min()) and int(index.max()) < length):
        raise UnsupportedError(
            f"indexing: expected integers in [{-length}, {length - 1}], found "
            f"{int(index.min())} to {int(index.max())}"
        )
    if index.numel() > MAX_SUMMED:
        raise UnsupportedError(
            f"indexing: expected at most {MAX_SUMMED} integers, found {index.numel()}"
        )
    places = index.to(x.device).long() % length
    whole: tuple[Index, ...] = (*[slice(None)] * axis, places)
    x = as_movable(x, lambda codes: codes[whole])
    if axis == 0:
        return GATHER(x, places)
    y = copies("indexing", x, {axis: places.flatten()})
    if index.dim() == 1:
        return y
    return reshape(y, (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]))


def gather(x: BFPTensor, dim: int, index: Tensor, sparse_grad: bool = False) -> BFPTensor:
    """torch.gather: of every place of `index` the element of x at that place, along `dim` at the
    integer there. Elements of x in one row (12.1). Raises UnsupportedError for others.
    """
    x = as_bfp(x, "gather")
    axis = dim % x.dim()
    sizes = [n for at, n in enumerate(x.shape) if at != axis]
    asked = [n for at, n in enumerate(index.shape) if at != axis]
    fits = index.dim() == x.dim() and all(a <= n for a, n in zip(asked, sizes, strict=True))
    inside = index.numel() and int(index.min()) >= 0 and int(index.max()) < x.shape[axis]
    if index.dtype not in INTEGERS or not fits or not inside:
        raise UnsupportedError(
            f"gather: expected integers in [0, {x.shape[axis] - 1}] for places of "
            f"{tuple(x.shape)}, found {index.dtype} {tuple(index.shape)}"
        )
    places = torch.arange(x.numel(), device=index.device).view(x.shape)
    own = places[tuple(slice(n) if at != axis else slice(None) for at, n in enumerate(index.shape))]
    return selected(reshape(x, (-1,)), 0, own.gather(axis, index.long()))


def _permuted(x: BFPValue, order: tuple[int, ...]) -> BFPValue:
    """x with its axes in another order; the gradient's axes go back."""
    return x.moved(lambda codes: codes.permute(order))


def _permuted_gradient(call: OperationCall, grad: BFPValue) -> BFPValue:
    order = call.arguments[1]
    back = sorted(range(len(order)), key=lambda axis: order[axis] % len(order))
    return _permuted(grad, tuple(back))


PERMUTE = TrainingOperation("Permute", _permuted, _permuted_gradient)


def permute(x: BFPTensor, *order: Any, dims: Sequence[int] = ()) -> BFPTensor:
    """The axes of x in another order, given as torch takes it."""
    order = order or (dims,)
    return PERMUTE(as_bfp(x, "permute"), integers(order))


def transpose(x: BFPTensor, a: int, b: int) -> BFPTensor:
    """x with two axes exchanged."""
    order = list(range(x.dim()))
    order[a], order[b] = order[b], order[a]
    return PERMUTE(as_bfp(x, "transpose"), tuple(order))


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


def stack(tensors: Sequence[Any], dim: int = 0) -> BFPTensor:
    """Tensors and constants of one shape along a new axis, as `concat` joins them."""
    at = _axis("stack", dim, tensors[0].dim() + 1)
    return concat([unsqueeze(x, at) for x in constants(tensors, "stack")], at)


def _rolled(x: BFPValue, by: tuple[int, ...], axes: tuple[int, ...]) -> BFPValue:
    """x with its elements moved along axes, the last ones to the front."""
    return x.moved(lambda codes: torch.roll(codes, by, axes))


def _rolled_gradient(call: OperationCall, grad: BFPValue) -> BFPValue:
    _, by, axes = call.arguments
    return _rolled(grad, tuple(-shift for shift in by), axes)


ROLL = TrainingOperation("Roll", _rolled, _rolled_gradient)


def roll(
    x: BFPTensor, shifts: int | Sequence[int], dims: int | Sequence[int] | None = None
) -> BFPTensor:
    """x with its elements moved along axes, or in row-major order where there are none.

    Raises UnsupportedError for another number of axes than of shifts.
    """
    if dims is None:
        return reshape(roll(reshape(x, (-1,)), shifts, 0), tuple(x.shape))
    by = (shifts,) if isinstance(shifts, int) else tuple(shifts)
    axes = (dims,) if isinstance(dims, int) else tuple(dims or ())
    if len(by) != len(axes):
        raise UnsupportedError(f"roll: expected an axis for every shift, found {shifts} and {dims}")
    axes = tuple(_axis("roll", axis, x.dim()) for axis in axes)
    return ROLL(as_movable(as_bfp(x, "roll"), lambda codes: torch.roll(codes, by, axes)), by, axes)


def pixel_shuffle(x: BFPTensor, factor: int) -> BFPTensor:
    """[n, c * r * r, h, w] -> [n, c, h * r, w * r], as torch.nn.PixelShuffle."""
    n, channels, h, w = _image_sizes("pixel_shuffle", x, factor)
    if channels % (factor * factor):
        raise UnsupportedError(
            f"pixel_shuffle: expected a multiple of {factor * factor} channels, found {channels}"
        )
    y = reshape(x, (n, channels // factor**2, factor, factor, h, w))
    return reshape(permute(y, (0, 1, 4, 2, 5, 3)), (n, -1, h * factor, w * factor))


def pixel_unshuffle(x: BFPTensor, factor: int) -> BFPTensor:
    """The inverse of `pixel_shuffle`."""
    n, channels, h, w = _image_sizes("pixel_unshuffle", x, factor)
    if h % factor or w % factor:
        raise UnsupportedError(
            f"pixel_unshuffle: expected sides that are multiples of {factor}, found {(h, w)}"
        )
    y = reshape(x, (n, channels, h // factor, factor, w // factor, factor))
    return reshape(permute(y, (0, 1, 3, 5, 2, 4)), (n, -1, h // factor, w // factor))


def _image_sizes(what: str, x: BFPTensor, factor: int) -> tuple[int, ...]:
    if x.dim() != 4 or factor < 1:
        raise UnsupportedError(
            f"{what}: expected [n, c, h, w] and a factor of at least 1, found {tuple(x.shape)} and "
            f"{factor}"
        )
    return tuple(x.shape)


def _float_like(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function that makes a float tensor, on the device of the BFP tensor that it is asked of,
    and of its shape where it has no size."""

    def made(x: BFPTensor, *given: Any, **options: Any) -> Tensor:
        like = torch.empty((), dtype=torch.float32, device=x.device)
        return make(like.expand(x.shape), *given, **options)

    return made


offer_by_name(split, chunk, unbind, stack, unsqueeze, squeeze, unflatten)
offer_by_name(gather, permute, roll, pixel_shuffle, pixel_unshuffle)
offer(lambda x: x, "contiguous")
offer(indexed, "__getitem__")
offer(transpose, "transpose", "swapaxes", "swapdims")
offer(lambda x: transpose(x, 0, 1), "t")
for _make in ("new_zeros", "new_ones", "new_full"):
    offer(_float_like(getattr(Tensor, _make)), _make)
for _make in ("zeros_like", "ones_like", "full_like"):
    offer(_float_like(getattr(torch, _make)), _make)
FUNCTIONS[Tensor.T.__get__] = lambda x: permute(x, tuple(reversed(range(x.dim()))))  # type: ignore[attr-defined]
FUNCTIONS[Tensor.mT.__get__] = lambda x: transpose(x, -2, -1)  # type: ignore[attr-defined]
