"""Concatenation, dropout, embedding and reshaping (training.md 5 and 7). Every function takes and
returns BFP tensors and is differentiable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from samebits import kernels
from samebits.errors import UnsupportedError
from samebits.kernels import rows
from samebits.kernels.geometry import Pair, pair
from samebits.kernels.rows import Exponent
from samebits.spec import formats
from samebits.train.callers import CONVERTED, converted_call
from samebits.train.operation import OperationCall, TrainingOperation
from samebits.train.operations.broadcast import constants, integers
from samebits.train.operations.logarithms import as_movable
from samebits.train.operations.narrow import as_bfp, as_bfp8, as_decided
from samebits.train.shifts import times
from samebits.train.tensor import BFPParameter, BFPTensor, offer
from samebits.train.value import BFPValue, Weight, bfp32

# --- concatenation and shape ----------------------------------------------------------------


def _side_by_side(dim: int, *tensors: BFPValue) -> BFPValue:
    """Codes side by side at the largest exponent."""
    bits = max(t.bits for t in tensors)
    if any(t.shifts is not None for t in tensors):
        return _concatenated(tensors, dim, bits)
    parts = [t.resolved() for t in tensors]
    k = kernels.of(parts[0][0])
    if any(isinstance(e, Tensor) for _, e in parts):
        return BFPValue(*rows.concatenated(parts, dim, k=k), bits)
    codes, exponent = k.side_by_side([t.whole() for t in tensors], dim)
    return BFPValue(codes, exponent, bits)


def _side_by_side_gradient(call: OperationCall, grad: BFPValue) -> tuple[BFPValue | None, ...]:
    dim, *tensors = call.arguments
    g, e_g = grad.resolved()
    sizes = [t.shape[dim] for t in tensors]
    slices = torch.split(g, sizes, dim)
    if isinstance(e_g, Tensor) and e_g.shape[dim] != 1:
        own: Sequence[Exponent] = torch.split(e_g, sizes, dim)
    else:
        own = [e_g] * len(slices)
    return (None, *(BFPValue(s, e) for s, e in zip(slices, own, strict=True)))


CONCAT = TrainingOperation("Concat", _side_by_side, _side_by_side_gradient)


def _concatenated(tensors: Sequence[BFPValue], dim: int, bits: int) -> BFPValue:
    """Tensors side by side whose channels have shifts: along the channels all keep their own."""
    rank, dim, k = tensors[0].dim(), dim % tensors[0].dim(), kernels.of(tensors[0].codes)
    if dim != (1 if rank == 4 else rank - 1):  # the channels of all meet
        return BFPValue(*rows.concatenated([t.resolved() for t in tensors], dim, k=k), bits)
    codes, own = rows.concatenated([t.shifted()[:2] for t in tensors], dim, k=k)
    every = [
        torch.zeros(t.shape[dim], dtype=torch.int64, device=codes.device)
        if t.shifts is None
        else t.shifts
        for t in tensors
    ]
    shifts = torch.cat(every)
    return BFPValue(codes, own + rows.along_channels(shifts, rank), bits, shifts=shifts)


def concat(tensors: Sequence[Any], dim: int = 0) -> BFPTensor:
    """Concatenation at the largest exponent of the inputs that are not all zeros, as bfp8.

    Some of them may be float tensors, constants. As in torch, those of shape [0] are left out.
    """
    given = [t for t in tensors if not isinstance(t, Tensor) or t.shape != (0,)]
    return CONCAT(dim, *(as_bfp8(t, "concat") for t in constants(given, "concat")))


def _reshaped(x: BFPValue, shape: tuple[int, ...]) -> BFPValue:
    """The same codes in another shape."""
    return x.moved(lambda codes: codes.reshape(shape))


def _reshaped_gradient(call: OperationCall, grad: BFPValue) -> BFPValue:
    return _reshaped(grad, call.arguments[0].shape)


RESHAPE = TrainingOperation("Reshape", _reshaped, _reshaped_gradient)


def reshape(x: BFPTensor, *shape: Any) -> BFPTensor:
    """The same codes in another shape, row-major (PyTorch's order); sizes as torch takes them."""
    sizes = integers(shape)
    x = as_movable(as_bfp(x, "reshape"), lambda codes: codes.reshape(sizes))
    return RESHAPE(x, sizes)


def over_lines(x: BFPTensor, compute: Callable[[BFPTensor], BFPTensor]) -> BFPTensor:
    """[n, c, l] as images of height 1, computed, and back. Raises UnsupportedError for others."""
    if x.dim() != 3:
        raise UnsupportedError(f"expected [n, c, l], found shape {tuple(x.shape)}")
    n, c, length = x.shape
    y = compute(reshape(x, (n, c, 1, length)))
    return reshape(y, (n, y.shape[1], y.shape[3]))


def over(rank: int, x: BFPTensor, compute: Callable[[BFPTensor], BFPTensor]) -> BFPTensor:
    """`over_lines` for a rank of 3, else of images."""
    return over_lines(x, compute) if rank == 3 else compute(x)


def line(size: int | Sequence[int], beside: int = 1) -> Pair:
    """A size along lines as one of images of height 1, whose own is `beside`."""
    return (beside, size if isinstance(size, int) else size[0])


def sides(rank: int, size: Any, beside: int = 1) -> Pair:
    """`line` for a rank of 3, else a size of images."""
    return line(size, beside) if rank == 3 else pair(size)


def flatten(x: BFPTensor, start_dim: int = 0, end_dim: int = -1) -> BFPTensor:
    """Dimensions start_dim to end_dim as one."""
    end = end_dim % x.dim()
    start = start_dim % x.dim()
    return reshape(x, (*x.shape[:start], -1, *x.shape[end + 1 :]))


# --- dropout and embedding ------------------------------------------------------------------

Place = tuple[int, int, int]  # of a mask: step, shard, call
Drawn = tuple[Pair, Place]  # the key (seed, site) and place of a mask
Mask = Callable[[], Drawn]  # gives those of the mask that is next


def _dropout_codes(
    x: BFPValue, p: float, mask: Mask, count: int | None
) -> tuple[BFPValue, tuple[Drawn]]:
    """The mask is not stored: the counter-based generator gives it again in the gradient."""
    drawn = mask()
    return times(x, *_dropped(x.codes, x.exponent, p, drawn, count)), (drawn,)


def _dropout_gradient(call: OperationCall, grad: BFPValue) -> BFPValue:
    (_, p, _, count), (drawn,) = call.arguments, call.saved
    codes, m, exponent = _dropped(*grad.resolved(), p, drawn, count)
    return BFPValue(*kernels.of(codes).times(codes, m, exponent, 32))


DROPOUT = TrainingOperation("Dropout", _dropout_codes, _dropout_gradient, saves=True)
MASK = 2  # the place of the mask among its arguments


def _dropped(
    v: Tensor, exponent: Exponent, p: float, drawn: Drawn, count: int | None
) -> tuple[Tensor, int, Exponent]:
    """Codes of which some are 0, the factor of all, and the exponent beside it (training.md 5).

    count: of draws, as many as samples, each of which goes along with its draw, or 1 for all; None:
    one for each element
    """
    k, draws = kernels.of(v), v.numel() if count is None else count
    key, place = drawn
    least = formats.round_real(Fraction(p) * (1 << 32))
    kept = k.kept(draws, least, (*key, *place), v.device)
    shape = v.shape if count is None else (count, *[1] * (v.dim() - 1))
    m, x = formats.coefficient(1.0 / (1.0 - p))
    return k.where(kept.view(shape).expand(v.shape), v), m, exponent + x


def dropout(x: BFPTensor, p: float, mask: Mask, count: int | None = None) -> BFPTensor:
    """Zero each element with probability p and scale the others by 1 / (1 - p), as bfp8.

    mask: gives its key, (seed, site), and place: the step, the shard, and the calls before this one
    in both; it is asked when the mask is drawn. count: the number of samples, each of which is kept
    or dropped as a whole, or 1 for all samples together.
    p = 0 is the identity. What has 32 bits keeps them (14.2).
    """
    x = as_decided(x, "dropout")
    return x if p == 0 else DROPOUT(x, p, mask, count)


def _embedding_rows(
    index: Tensor, weight: Weight, padding: int | None, by_rows: bool
) -> tuple[BFPValue, tuple[Tensor]]:
    """Rows of W, each with an exponent where W has them or by_rows says so; the gradient of a row
    is the sum over its uses."""
    index = index.long()
    if not kernels.of(index).are_below(index, weight.shape[0]):
        raise UnsupportedError(
            f"embedding: expected indices in [0, {weight.shape[0] - 1}], "
            f"found {int(index.min())} to {int(index.max())}"
        )
    codes, exponent = weight.parts[0]
    part = codes[index], rows.placed(exponent, lambda e: e[index])
    if by_rows:
        part = rows.in_rows(*part)
    return BFPValue(*part, weight.widths.values), (index,)


def _embedding_gradient(call: OperationCall, grad: BFPValue) -> tuple[None, BFPValue]:
    _, weight, padding, _ = call.arguments
    (index,) = call.saved
    g, exponent = grad.resolved()
    addends: Tensor = g
    if isinstance(exponent, Tensor):
        addends, exponent = kernels.of(g).at_one(g, exponent, 55)
    acc = torch.zeros(weight.shape, dtype=torch.int64, device=g.device)
    acc.index_add_(0, index.flatten(), addends.long().reshape(-1, weight.shape[1]))
    if padding is not None:
        acc[padding].zero_()
    return None, bfp32(acc, exponent)


EMBEDDING = TrainingOperation("Embedding", _embedding_rows, _embedding_gradient, saves=True)


def embedding(
    index: Tensor, weight: BFPParameter, padding: int | None = None, by_rows: bool = False
) -> BFPTensor:
    """Rows of W [count, d] at integer indices [...] -> [..., d]; row `padding` has no gradient.

    by_rows: every row has an exponent of its own, also where W has one. Raises UnsupportedError for
    indices that are no integers or no rows.
    """
    if index.dtype not in (torch.int64, torch.int32):
        raise UnsupportedError(f"embedding: expected integer indices, found {index.dtype}")
    return EMBEDDING(index, weight, padding, by_rows)


offer(concat, "cat", "concat", "concatenate")
offer(flatten, "flatten")
offer(reshape, "reshape", "view")


def _embedding(
    index: Tensor,
    weight: BFPParameter,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> BFPTensor:
    """torch.nn.functional.embedding. Raises UnsupportedError for options that change values."""
    if max_norm is not None or scale_grad_by_freq:
        raise UnsupportedError("embedding: expected no max_norm or scale_grad_by_freq")
    if not isinstance(weight, BFPParameter):
        raise UnsupportedError(
            "embedding: expected a parameter of a module as weight, found "
            f"{type(weight).__name__}; take rows of another tensor by indexing"
        )
    return embedding(index, weight, padding_idx)


offer(_embedding, "functional.embedding")


def functional_dropout(
    x: BFPTensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> BFPTensor:
    """torch.nn.functional.dropout, by the masks of the converted model that calls it.

    Raises UnsupportedError outside of one, and for p = 1.
    """
    if not training or not p:
        return x
    call = converted_call()
    if call is None or not 0 < p < 1:
        raise UnsupportedError(
            f"dropout: expected p below 1, in the forward() of the model that convert gave, which "
            f"numbers the masks, found p={p}{'' if call else ' and no such model'}; call that "
            "model itself, or use torch.nn.Dropout in the module"
        )
    (layer,) = vars(call.model)[CONVERTED]
    y = dropout(x, p, layer.mask)
    return x.replaced_by(y) if inplace else y


offer(functional_dropout, "dropout")
