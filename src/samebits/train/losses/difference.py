"""Losses of differences from real targets: MSE, L1, Huber, smooth L1 (training.md 6.5)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from samebits import kernels
from samebits.errors import InputError, UnsupportedError
from samebits.kernels import rows, softmax
from samebits.spec.training.loss import fixed, real
from samebits.train.losses.reduction import (
    check_values,
    gradient_of,
    is_mean,
    real_target,
    reported,
)
from samebits.train.operation import OperationCall, TrainingOperation
from samebits.train.operations.logarithms import as_values
from samebits.train.quantize import quantize_real
from samebits.train.sums import requantized
from samebits.train.tensor import BFPTensor
from samebits.train.value import BFPValue


class Measured(NamedTuple):
    """A loss of differences: codes of its gradient, their exponent and factor, and the loss."""

    codes: Tensor
    exponent: int
    factor: float | None
    value: float


Measure = Callable[[Tensor, int], Measured]  # of int64 differences at an exponent


def _difference_loss(
    y: BFPValue, target: Tensor, bits: int, measure: Measure
) -> tuple[Tensor, tuple[Tensor, int, float | None]]:
    """A loss of the differences between a BFP tensor and a real target.

    bits: of the target's codes, 16 or 32.
    """
    codes, exponent, factor, value = measure(*_difference(y, target, bits))
    return reported(value), (codes, exponent, factor)


def _difference_gradient(call: OperationCall, grad: Tensor) -> BFPValue:
    codes, exponent, factor = call.saved
    return gradient_of(codes, exponent, float(grad), factor)


DIFFERENCE_LOSS = TrainingOperation(
    "DifferenceLoss", _difference_loss, _difference_gradient, saves=True
)


def _difference(y: BFPValue, target: Tensor, bits: int) -> tuple[Tensor, int]:
    """y - target as int64 at one exponent, below 2**62, which is read: the loss is made of it."""
    codes, e_y = y.resolved()
    t, e_t = quantize_real(target, bits, "target")
    assert isinstance(e_t, int)
    common = max(rows.highest(e_y) + 31, e_t + bits - 1) - 60
    k = kernels.of(codes)
    return k.scale(codes, e_y - common) + k.scale(-t.long(), e_t - common), int(common)


def _in_16_bits(v: Tensor, exponent: int) -> tuple[Tensor, int]:
    codes, own = requantized(v, exponent, 16)
    assert isinstance(own, int)  # as the exponent that it was given
    return codes, int(own)


def _compare(what: str, y: BFPTensor, target: Tensor, measure: Measure, bits: int = 32) -> Tensor:
    """A loss of differences. Raises UnsupportedError where it is not one of BFP and real values."""
    if not isinstance(y, BFPTensor) or y.numel() == 0:
        raise UnsupportedError(
            f"{what}: expected a non-empty BFP tensor, found {type(y).__name__} {tuple(y.shape)}"
        )
    y = as_values(y)
    check_values(what, y)
    return DIFFERENCE_LOSS(y, real_target(what, target, y.shape), bits, measure)


def _count(what: str, y: Tensor, reduction: str) -> float | None:
    """The number by which a mean divides; None for a sum."""
    return float(y.numel()) if is_mean(what, reduction) else None


def mse_loss(y: BFPTensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
    """Mean (or sum) of squared errors against a real target of the same shape; a float64 scalar.

    Raises UnsupportedError where the shapes differ, NonFiniteError for a target that is not finite.
    """
    n = _count("mse", y, reduction) or 1.0

    def measure(diff: Tensor, exponent: int) -> Measured:
        d, e_d = _in_16_bits(diff, exponent)
        squares = int((d.long() * d.long()).sum())
        return Measured(d, e_d, 2.0 / n, math.ldexp(float(squares) / n, 2 * e_d))

    return _compare("mse", y, target, measure, 16)


def l1_loss(y: BFPTensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
    """Mean (or sum) of absolute errors; a float64 scalar. Raises as `mse_loss`."""
    n = _count("l1", y, reduction)

    def measure(diff: Tensor, exponent: int) -> Measured:
        value = real(softmax.exact_sum(diff.abs()), exponent)
        return Measured(diff.sign(), 0, n and 1.0 / n, value / (n or 1.0))

    return _compare("l1", y, target, measure)


def huber_loss(
    y: BFPTensor, target: Tensor, *, reduction: str = "mean", delta: float = 1.0
) -> Tensor:
    """Mean (or sum) of half the squares of errors up to delta, linear beyond; a float64 scalar.

    Raises as `mse_loss`, and InputError for a delta outside [2**-126, 2**127].
    """
    n = _count("huber", y, reduction)
    _check_width("huber: expected delta", delta)

    def measure(diff: Tensor, exponent: int) -> Measured:
        h, e_h, value = _huber(diff, exponent, delta)
        return Measured(h, e_h, n and 1.0 / n, value / (n or 1.0))

    return _compare("huber", y, target, measure)


def smooth_l1_loss(
    y: BFPTensor, target: Tensor, *, reduction: str = "mean", beta: float = 1.0
) -> Tensor:
    """`huber_loss` of delta = beta divided by beta; with beta = 0 `l1_loss`.

    Raises as `mse_loss`, and InputError for another beta outside [2**-126, 2**127].
    """
    n = _count("smooth l1", y, reduction) or 1.0
    if beta == 0:
        return l1_loss(y, target, reduction=reduction)
    _check_width("smooth l1: expected beta 0 or", beta)

    def measure(diff: Tensor, exponent: int) -> Measured:
        h, e_h, value = _huber(diff, exponent, beta)
        return Measured(h, e_h, 1.0 / (beta * n), value / beta / n)

    return _compare("smooth l1", y, target, measure)


def _check_width(expected: str, width: float) -> None:
    if not 2.0**-126 <= width <= 2.0**127:
        raise InputError(f"{expected} in [2**-126, 2**127], found {width}")


def _huber(diff: Tensor, exponent: int, delta: float) -> tuple[Tensor, int, float]:
    """H, its exponent, and the sum of the losses."""
    bound = min(fixed(delta, -exponent), 1 << 62)
    clamped = diff.clamp(-bound, bound)
    h, e_h = _in_16_bits(clamped, exponent)
    excess = softmax.exact_sum(diff.abs() - clamped.abs())
    half = 0.5 * math.ldexp(float(int((h.long() * h.long()).sum())), 2 * e_h)
    return h, e_h, half + delta * real(excess, exponent)
