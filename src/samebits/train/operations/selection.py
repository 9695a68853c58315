"""Elements of one tensor or another, by a mask (training.md 14.2)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from samebits import kernels
from samebits.errors import UnsupportedError
from samebits.train.operation import OperationCall, TrainingOperation
from samebits.train.operations.addition import EXCLUDING, add
from samebits.train.operations.broadcast import constant, expand, joint_shape
from samebits.train.operations.multiplication import multiply
from samebits.train.operations.narrow import as_decided
from samebits.train.operations.softmax import mask
from samebits.train.tensor import BFPTensor, offer
from samebits.train.value import BFPValue


def _where_true(x: BFPValue, chosen: Tensor) -> tuple[BFPValue, tuple[Tensor]]:
    """The same codes where a mask is true, 0 elsewhere, at the same exponent."""
    codes, exponent = x.resolved()
    found = kernels.of(codes).where(chosen, codes)
    return BFPValue(found, exponent, x.bits, layer_bits=x.layer_bits), (chosen,)


def _where_true_gradient(call: OperationCall, grad: BFPValue) -> BFPValue:
    (chosen,) = call.saved
    g, e_g = grad.resolved()
    return BFPValue(kernels.of(g).where(chosen, g), e_g)


CHOSEN = TrainingOperation("Chosen", _where_true, _where_true_gradient, saves=True)


def where(condition: Tensor, a: Any, b: Any) -> BFPTensor:
    """a where a bool mask is true, b elsewhere: the sum of both with zeros (14.2).

    As bfp8, or as bfp32 where one of them has 32 bits.

    One of them may be a number or a float tensor, a constant; below -2**15 it excludes its places,
    as in `add`. Raises UnsupportedError for a condition that is no bool tensor.
    """
    if not isinstance(condition, Tensor) or condition.dtype != torch.bool:
        raise UnsupportedError(f"where: expected a bool tensor as condition, found {condition!r}")
    for chosen, given, other in ((condition, a, b), (~condition, b, a)):
        if not isinstance(other, BFPTensor) and _excludes(other):
            return mask(given, chosen)
    beside = as_decided(a if isinstance(a, BFPTensor) else b, "where")
    parts = (constant(t, beside, "where", beside.is_wide) for t in (a, b))
    first, second = (as_decided(t, "where") for t in parts)
    if first.is_wide or second.is_wide:
        return add(_chosen(first, condition), _chosen(second, ~condition))
    return add(multiply(first, condition.float()), multiply(second, (~condition).float()))


def _chosen(x: BFPTensor, chosen: Tensor) -> BFPTensor:
    """x with zeros where it is not chosen, at the joint shape."""
    shape = joint_shape("where", x, chosen)
    return CHOSEN(expand(x, shape), chosen.to(x.device).expand(shape))


def _excludes(value: Any) -> bool:
    """Whether a constant is a mask everywhere."""
    if isinstance(value, Tensor):
        return value.numel() > 0 and bool((value < EXCLUDING).all())
    return isinstance(value, int | float) and value < EXCLUDING


def masked_fill(x: BFPTensor, condition: Tensor, value: Any) -> BFPTensor:
    """x with a number where a bool mask is true; -inf there, or below -2**15, is for a softmax.

    Raises UnsupportedError as `where`, and for NaN and +inf.
    """
    number = value.item() if isinstance(value, Tensor) and value.dim() == 0 else value
    if not isinstance(number, int | float) or math.isnan(number) or number == math.inf:
        raise UnsupportedError(f"masked_fill: expected a number, found {value!r}")
    return where(~condition, x, float(number))


offer(where, "torch.where")
offer(lambda x, condition, other: where(condition, x, other), "Tensor.where")
offer(masked_fill, "masked_fill")
