"""Softmax and masks by -inf, which only softmax takes (training.md 14.2 and 14.3)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from samebits import kernels
from samebits.errors import UnsupportedError
from samebits.kernels import rows
from samebits.kernels.rows import Exponent
from samebits.spec.training.attention import SOFTMAX_EXPONENT
from samebits.train.operation import OperationCall, TrainingOperation
from samebits.train.operations.broadcast import expand, joint_shape
from samebits.train.operations.indexing import transpose
from samebits.train.operations.logarithms import EXPONENTIAL
from samebits.train.operations.narrow import as_bfp, as_decided
from samebits.train.scores import LogProbabilities
from samebits.train.tensor import BFPTensor, offer, offer_by_name
from samebits.train.value import BFPValue, bfp32, gradient_in

MAX_CLASSES = 1 << 14  # of one softmax: sums of its exponentials stay below 2**38


def _softmax(x: BFPValue) -> tuple[BFPValue, tuple[Any, ...]]:
    """Over the last axis, of the places that are allowed: exponentials by table, one division.

    bfp32 of exponent -30; what is saved has 8 bits, every vector with an exponent.
    """
    codes, exponent = x.resolved()
    vectors = codes.reshape(-1, codes.shape[-1])
    allowed = None if x.allowed is None else x.allowed.reshape(vectors.shape)
    own = rows.of_vectors(exponent, codes.shape)
    y, (saved, e_saved) = kernels.of(codes).softmax(vectors, own, allowed)
    by_rows = isinstance(exponent, Tensor)
    found: Exponent = SOFTMAX_EXPONENT
    if by_rows:
        found = rows.spread(SOFTMAX_EXPONENT, rows.row_size(codes.shape), y)
    result = BFPValue(y.view(codes.shape), found, layer_bits=x.layer_bits)
    return result, (saved, (e_saved, by_rows))


def _softmax_gradient(call: OperationCall, grad: BFPValue) -> BFPValue:
    """y * (N * g - sum g * y), N = sum y: exactly 0 where g is the same everywhere."""
    (g, e_g), (y, (e_y, by_rows)) = grad.resolved(), call.saved
    (g16, e_g), k = gradient_in(16, g, e_g), kernels.of(y)
    own = rows.of_vectors(e_g, g.shape)
    acc, exponent = k.softmax_grad(g16.reshape(y.shape), own, y, e_y)
    if isinstance(exponent, Tensor) and by_rows:
        return bfp32(acc.view(g.shape), exponent.view(*g.shape[:-1], 1))
    wide, one = k.shorten_blocks(acc, exponent, 0, None)
    return BFPValue(wide.view(g.shape), one)


SOFTMAX = TrainingOperation("Softmax", _softmax, _softmax_gradient, saves=True)


def softmax(
    x: BFPTensor,
    dim: int | None = None,
    _stacklevel: int = 3,
    dtype: torch.dtype | None = None,
) -> BFPTensor:
    """Softmax over an axis of at most 2**14 places, bfp32 until a layer takes it.

    What a product of activations gives enters with its 32 bits; places that were masked by -inf
    give 0. Raises UnsupportedError for no axis, longer ones, and a dtype.
    """
    dim = _checked("softmax", x, dim, dtype)
    allowed = x.allowed if isinstance(x, BFPTensor) else None
    if allowed is None:
        x = _undecided(x, "softmax")
    if dim == x.dim() - 1:
        return SOFTMAX(x)
    if allowed is not None:
        raise UnsupportedError("softmax: expected the last axis of masked values, found another")
    return transpose(SOFTMAX(transpose(x, dim, -1)), dim, -1)


def _checked(what: str, x: BFPTensor, dim: int | None, dtype: torch.dtype | None) -> int:
    """The axis of a softmax, counted from the first. Raises UnsupportedError."""
    rank = x.dim()
    if dim is None or not -rank <= dim < rank or dtype not in (None, torch.float32):
        raise UnsupportedError(
            f"{what}: expected an axis of shape {tuple(x.shape)} and no dtype, found {dim} and "
            f"{dtype}"
        )
    axis = dim % rank
    if x.shape[axis] > MAX_CLASSES:
        raise UnsupportedError(
            f"{what}: expected at most {MAX_CLASSES} places, found {x.shape[axis]}"
        )
    if isinstance(x, BFPTensor) and x.along not in (None, axis):
        raise UnsupportedError(
            f"{what}: expected the axis {x.along} of these log-probabilities, found {axis}; give "
            "it the logits"
        )
    return axis


def _log_softmax(x: BFPValue, along: int) -> BFPValue:
    """The same logits, of which differences along an axis count from here on (6.6)."""
    return LogProbabilities.of(x, along)


LOG_SOFTMAX = TrainingOperation("LogSoftmax", _log_softmax, lambda call, grad: grad)


def log_softmax(
    x: BFPTensor,
    dim: int | None = None,
    _stacklevel: int = 3,
    dtype: torch.dtype | None = None,
) -> BFPTensor:
    """Log-probabilities along an axis of at most 2**14 places, for a loss of classes (6.6).

    They hold the logits, of the width of their use, and hand the gradient by these on. Raises
    UnsupportedError as `softmax`, and for masked values.
    """
    axis = _checked("log_softmax", x, dim, dtype)
    return LOG_SOFTMAX(as_bfp(x, "log_softmax"), axis)


def exponential(x: BFPTensor) -> BFPTensor:
    """exp of every element, bfp32; of log-probabilities the softmax that they are of.

    Raises RangeError where binary64 does not hold one, UnsupportedError for masked values.
    """
    return EXPONENTIAL(as_bfp(x, "exp")) if x.along is None else softmax(x, x.along)


def _masked(x: BFPValue, allowed: Tensor) -> tuple[BFPValue, tuple[Tensor]]:
    """The same codes, of which some no longer count; their gradient is 0."""
    return x.masked(allowed), (allowed,)


def _masked_gradient(call: OperationCall, grad: BFPValue) -> BFPValue:
    (g, e_g), (allowed,) = grad.resolved(), call.saved
    return BFPValue(kernels.of(g).where(allowed, g), e_g)


MASKED = TrainingOperation("Masked", _masked, _masked_gradient, saves=True)


def mask(x: BFPTensor, allowed: Tensor) -> BFPTensor:
    """x of which only what is `allowed` counts in a softmax.

    allowed: bool. Sizes are equal or 1, as torch joins them; x is expanded where it has to be.
    Raises UnsupportedError for another type and for other shapes.
    """
    if allowed.dtype != torch.bool:
        raise UnsupportedError(f"mask: expected a bool tensor, found {allowed.dtype}")
    shape = joint_shape("mask", x, allowed)
    if x.allowed is None:
        plain = x.sums is None or x.along is not None
        x = (as_decided if plain else as_bfp)(x, "mask")
    if shape != x.shape:
        x = expand(x, shape)
    return MASKED(x, allowed.to(x.device).expand(shape))


def _undecided(x: BFPTensor, where: str) -> BFPTensor:
    """x as bfp8 or bfp32; the sums of a Linear or Conv2d have no width yet (14.3)."""
    x = as_bfp(x, where)
    return x if x.along is not None or x.is_open else as_decided(x, where)


offer_by_name(softmax, log_softmax)
offer(exponential, "exp")
