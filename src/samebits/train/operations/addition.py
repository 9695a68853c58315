"""Sums of tensors, and with constants (training.md 5, 7, 12 and 14.2)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from samebits import kernels
from samebits.kernels import rows
from samebits.kernels.protocol import Found
from samebits.train.operation import OperationCall, TrainingOperation
from samebits.train.operations.broadcast import broadcast, check_constant, constant
from samebits.train.operations.multiplication import as_changed, multiply
from samebits.train.operations.narrow import as_decided
from samebits.train.operations.softmax import mask
from samebits.train.shifts import largest_shifts
from samebits.train.sums import Rounded, Sums
from samebits.train.tensor import BFPTensor, offer
from samebits.train.value import BFPValue, bfp32, combined

EXCLUDING = -(2.0**15)
"""Constants below it, added to scores, are masks: no exponential has a bit so far down."""


def _sum(a: BFPValue, b: BFPValue) -> BFPValue:
    """a + b at a common exponent: exact sums of codes of 8 bits."""
    if a.is_wide or b.is_wide:
        terms = ((*t.resolved(), 31) for t in (a, b))
        return bfp32(*combined(*terms), max(a.layer_bits, b.layer_bits))
    (u, ea), (v, eb) = (a.codes, a.exponent), (b.codes, b.exponent)
    k, bits, by_rows = kernels.of(u), max(a.bits, b.bits), a.by_rows or b.by_rows
    shifts = largest_shifts(a.shifts, b.shifts)

    def compute() -> Found:
        if shifts is None:
            return k.add_sums(u, ea, v, eb)
        common = rows.common(u, ea, v, eb)
        return k.scale(u, ea - common) + k.scale(v, eb - common), 0, common

    def rounding(clip: int | None) -> Rounded:
        if clip is None:
            return k.add(u, ea, v, eb, bits), None
        return k.add_clamped(u, ea, v, eb, clip, bits)

    own = rounding if shifts is None else None
    sums = Sums(compute, bits, by_rows, u.device, shifts, own)
    return BFPValue.of_sums(sums, a.shape)


def _sum_gradient(call: OperationCall, grad: BFPValue) -> tuple[BFPValue, BFPValue]:
    """The same for both."""
    return grad, grad


ADD = TrainingOperation("Add", _sum, _sum_gradient)


def add(a: Any, b: Any, *, alpha: float = 1) -> BFPTensor:
    """a + b, as exact sums, or as bfp32 where one of them has 32 bits (14.2).

    Sizes are equal or 1, as torch joins them. One of them may be a number or a float tensor, a
    constant; where such a tensor is below -2**15, as masks are, the sum counts to no softmax.
    alpha: a number by which b is multiplied before. Raises UnsupportedError for other shapes, and
    for a float tensor that wants a gradient.
    """
    b = times(b, alpha)
    if not isinstance(a, BFPTensor):
        a, b = b, a
    if isinstance(b, Tensor) and not isinstance(b, BFPTensor):
        check_constant(b, "add")
        excluded = b < EXCLUDING
        if bool(excluded.any()):
            b = torch.where(excluded, 0.0, b)
            rest = add(a, b) if bool(b.any()) else a
            return mask(rest, ~excluded)
    x = as_decided(a, "add")
    y = as_decided(constant(b, x, "add", x.is_wide), "add")
    return ADD(*broadcast("add", x, y))


def times(value: Any, factor: float) -> Any:
    """A term of a sum times a number; a constant is multiplied in binary64."""
    if factor == 1:
        return value
    if isinstance(value, BFPTensor):
        return multiply(value, factor)
    return (value.double() if isinstance(value, Tensor) else value) * factor


def addcmul(x: Any, a: Any, b: Any, *, value: float = 1) -> BFPTensor:
    """x + value * a * b."""
    return add(x, multiply(a, b), alpha=value)


def subtract(a: Any, b: Any, *, alpha: float = 1) -> BFPTensor:
    """a - alpha * b, as the sum of a and b times -alpha."""
    return add(a, b, alpha=-alpha)


def subtract_from(a: Any, b: Any, *, alpha: float = 1) -> BFPTensor:
    """b - alpha * a."""
    return subtract(b, a, alpha=alpha)


def add_in_place(a: Tensor, b: Any, *, alpha: float = 1) -> BFPTensor:
    """a += b: the sum as a new tensor. The old `a` is used up, so that a lost sum is an error.

    Raises UnsupportedError for a float `a`, which would go on as if nothing had been added.
    """
    return as_changed(a, "add").replaced_by(add(a, b, alpha=alpha))


def subtract_in_place(a: Tensor, b: Any, *, alpha: float = 1) -> BFPTensor:
    """a -= b, as `add_in_place`."""
    return add_in_place(a, b, alpha=-alpha)


offer(add, "add", "__add__", "__radd__")
offer(subtract, "sub", "subtract", "__sub__")
offer(subtract_from, "rsub", "__rsub__")
offer(addcmul, "addcmul")
offer(add_in_place, "add_", "__iadd__")
offer(subtract_in_place, "sub_", "__isub__")
