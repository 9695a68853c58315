"""Tensors that are repeated, and constants that meet BFP tensors (training.md 14.4)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from samebits import kernels
from samebits.errors import UnsupportedError
from samebits.kernels import rows
from samebits.kernels.geometry import MAX_SUMMED
from samebits.train.operation import OperationCall, TrainingOperation
from samebits.train.operations.narrow import as_bfp
from samebits.train.tensor import BFPTensor, offer_by_name
from samebits.train.value import BFPValue

GATHERED = 55
"""Bits of a sum of up to 2**24 gradients of 32 bits."""


def _expanded(x: BFPValue, shape: tuple[int, ...]) -> BFPValue:
    """x repeated."""
    return x.moved(lambda codes: codes.expand(shape))


def _expanded_gradient(call: OperationCall, grad: BFPValue) -> BFPValue:
    """The sum over an element's places, at one exponent where rows meet in it (12.1, gather)."""
    g, exponent = grad.resolved()
    shape = call.arguments[0].shape
    sizes, k = (1,) * (g.dim() - len(shape)) + tuple(shape), kernels.of(g)
    if isinstance(exponent, int):
        acc, largest = k.summed(g, sizes)
        return BFPValue(*k.shorten(acc.reshape(shape), largest, exponent))
    axes = [axis for axis, size in enumerate(sizes) if size < g.shape[axis]]
    acc, own = g, exponent
    if any(axis in rows.row_axes(g.dim()) for axis in axes):
        acc, one = k.at_one(g, exponent, GATHERED)
        own = rows.spread(one, (1,) * g.dim(), g)
    acc = k.summed(acc, sizes)[0].reshape(shape)
    # Of every element, as its rows may be others than those of g: there are new axes.
    return BFPValue(*k.shorten(acc, 0, own.expand(sizes).reshape(shape)))


EXPAND = TrainingOperation("Expand", _expanded, _expanded_gradient)


def integers(given: tuple[Any, ...]) -> tuple[int, ...]:
    """Integers as torch takes them: one by one, or as one sequence."""
    return tuple(given[0] if len(given) == 1 and not isinstance(given[0], int) else given)


def expand(x: BFPTensor, *shape: Any) -> BFPTensor:
    """x repeated along axes of size 1, and along new ones before the first; -1 keeps a size.

    Raises UnsupportedError for other shapes, and where an element would be repeated more than 2**24
    times, for which the sum of its gradients is exact.
    """
    given, x = integers(shape), as_bfp(x, "expand")
    own = (1,) * (len(given) - x.dim()) + tuple(x.shape)
    sizes = tuple(m if size == -1 else size for m, size in zip(own, given, strict=False))
    fits = len(sizes) == len(own) == len(given)
    if not fits or any(m not in (1, size) for m, size in zip(own, sizes, strict=True)):
        raise UnsupportedError(
            f"expand: expected sizes that those of {tuple(x.shape)} can be repeated to, found "
            f"{given}"
        )
    if sizes == tuple(x.shape):
        return x
    repeated = math.prod(size for m, size in zip(own, sizes, strict=True) if m != size)
    if repeated > MAX_SUMMED:
        raise UnsupportedError(
            f"expand: expected every element at most {MAX_SUMMED} times, found {repeated}"
        )
    return EXPAND(x, sizes)


def joint_shape(what: str, *tensors: Tensor) -> torch.Size:
    """The shape of all tensors together, as torch joins them. Raises UnsupportedError."""
    try:
        return torch.broadcast_shapes(*(t.shape for t in tensors))
    except RuntimeError:
        found = " and ".join(str(tuple(t.shape)) for t in tensors)
        raise UnsupportedError(
            f"{what}: expected shapes whose sizes are equal or 1, found {found}"
        ) from None


def broadcast(what: str, *tensors: BFPTensor) -> list[BFPTensor]:
    """Tensors at their joint shape. Raises UnsupportedError."""
    shape = joint_shape(what, *tensors)
    return [expand(t, shape) for t in tensors]


def constant(value: Any, beside: BFPTensor, what: str, wide: bool = False) -> BFPTensor:
    """A number or a float tensor without a gradient as an operand beside a BFP tensor.

    With exponents by rows, and of the width, that the other has; wide: of 32 bits. Raises
    UnsupportedError for a tensor that wants a gradient, NonFiniteError for NaN and infinities.
    """
    if isinstance(value, BFPTensor):
        return value
    if isinstance(value, Tensor):
        check_constant(value, what)
    else:
        size = [1] * beside.dim()
        value = torch.full(size, float(value), dtype=torch.float32, device="cpu")
    real = value.to(beside.device).double()
    bits = 32 if wide else beside.layer_bits
    return BFPTensor.from_real(real, f"constant of {what}", beside.by_rows, bits)


def constants(tensors: Sequence[Any], what: str) -> list[Any]:
    """BFP tensors and constants, all as operands beside the first of the BFP tensors."""
    entered = [as_bfp(t, what) if isinstance(t, BFPTensor) else t for t in tensors]
    beside = next((t for t in entered if isinstance(t, BFPTensor)), None)
    return entered if beside is None else [constant(t, beside, what) for t in entered]


def check_constant(value: Tensor, what: str) -> None:
    """Refuse a tensor that wants a gradient, which would be lost, and complex numbers."""
    if value.requires_grad:
        raise UnsupportedError(
            f"{what}: expected BFP tensors, or constants, found a float tensor that requires a "
            "gradient; make it a parameter of a module, which convert takes, or detach it"
        )
    if value.is_complex():
        raise UnsupportedError(f"{what}: expected real numbers, found {value.dtype}")


def expand_as(x: BFPTensor, other: Tensor) -> BFPTensor:
    """x repeated to the shape of another tensor."""
    return expand(x, other.shape)


def broadcast_to(x: BFPTensor, size: Sequence[int]) -> BFPTensor:
    """x repeated to a shape."""
    return expand(x, size)


offer_by_name(expand, expand_as, broadcast_to)
