"""Products of two tensors, element by element, and with a number (training.md 5, 7 and 12)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from samebits.errors import UnsupportedError
from samebits.kernels import rows
from samebits.kernels.geometry import MAX_SUMMED
from samebits.kernels.rows import Exponent
from samebits.spec import formats
from samebits.train.operations.narrow import as_bfp8
from samebits.train.shifts import narrowed
from samebits.train.tensor import FUNCTIONS, BFPTensor, TensorOperation, bfp32, gradient


class Multiply(TensorOperation):
    """a * b, exact products and one rounding; axes of size 1 go along with those of the other."""

    @staticmethod
    def forward(ctx: Any, a: BFPTensor, b: BFPTensor) -> BFPTensor:
        (u, e_a), (v, e_b) = a.resolved(), b.resolved()
        ctx.save_for_backward(u, v)
        ctx.exponents = e_a, e_b
        return narrowed(u.long() * v, e_a + e_b, max(a.bits, b.bits), None)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        g, e_g = gradient(grad)
        (u, v), (e_a, e_b) = ctx.saved_tensors, ctx.exponents
        return (
            _gradient(g, e_g, v, e_b, u.shape) if ctx.needs_input_grad[0] else None,
            _gradient(g, e_g, u, e_a, v.shape) if ctx.needs_input_grad[1] else None,
        )


def _gradient(
    g: Tensor, e_g: Exponent, other: Tensor, exponent: Exponent, shape: torch.Size
) -> BFPTensor:
    """The sums of g * other over the axes that an operand of a shape was repeated along.

    |g| < 2**31 and |other| < 2**7, so that sums of 2**24 products stay below 2**62.
    """
    axes = [axis for axis, size in enumerate(shape) if size < g.shape[axis]]
    acc = g.long() * other
    return bfp32(acc.sum(axes, keepdim=True) if axes else acc, e_g + exponent)


def multiply(a: Any, b: Any) -> BFPTensor:
    """a * b of two tensors, or of a tensor and a number, as bfp8.

    Two tensors have as many axes; where sizes differ one is 1. Raises UnsupportedError for float
    tensors, for other shapes, and where rows have exponents of their own and an axis of size 1
    counts rows.
    """
    if not isinstance(a, BFPTensor):
        a, b = b, a
    if isinstance(b, int | float) and not isinstance(b, bool):
        return scale(a, float(b))
    if not isinstance(b, BFPTensor):
        raise UnsupportedError(
            f"multiply: expected two BFP tensors, or one and a number, found {type(b).__name__}"
        )
    pairs = list(zip(a.shape, b.shape, strict=False))
    if a.dim() != b.dim() or any(m != n and 1 not in (m, n) for m, n in pairs):
        raise UnsupportedError(
            f"multiply: expected shapes whose sizes are equal or 1, found {tuple(a.shape)} and "
            f"{tuple(b.shape)}"
        )
    x, y = as_bfp8(a, "multiply"), as_bfp8(b, "multiply")
    if any(isinstance(t.resolved()[1], Tensor) for t in (x, y)):
        _check_rows(a.shape, b.shape)
    repeated = max(
        math.prod(n for m, n in way if m != n and m == 1)
        for way in (pairs, [p[::-1] for p in pairs])
    )
    if repeated > MAX_SUMMED:
        raise UnsupportedError(
            f"multiply: expected an operand repeated at most {MAX_SUMMED} times, found {repeated}"
        )
    return Multiply.apply(x, y)


def _check_rows(a: Sequence[int], b: Sequence[int]) -> None:
    """A row of one operand meets a row of the other: no gradient is a sum over rows."""
    size = rows.row_size([max(pair) for pair in zip(a, b, strict=True)])
    if any(m != n and count > 1 for m, n, count in zip(a, b, size, strict=True)):
        raise UnsupportedError(
            f"multiply: expected as many rows with exponents of their own, found shapes {tuple(a)} "
            f"and {tuple(b)}; repeat along the axes inside a row, or train with one exponent"
        )


class Scale(TensorOperation):
    """x times a number, whose coefficient has 16 bits."""

    @staticmethod
    def forward(ctx: Any, x: BFPTensor, factor: float) -> BFPTensor:
        ctx.factor = factor
        codes, exponent, shifts = x.codes, x.exponent, x.shifts
        m, by = formats.signed_coefficient(factor)
        return narrowed(codes.long() * m, exponent + by, x.bits, shifts)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        g, e_g = gradient(grad)
        m, by = formats.signed_coefficient(ctx.factor)
        return bfp32(g.long() * m, e_g + by), None


def scale(x: BFPTensor, factor: float) -> BFPTensor:
    """x times a finite number, as bfp8. Raises UnsupportedError for NaN and infinities."""
    if not math.isfinite(factor):
        raise UnsupportedError(f"multiply: expected a finite number, found {factor}")
    return Scale.apply(as_bfp8(x, "multiply"), factor)


def multiply_in_place(a: BFPTensor, b: Any) -> BFPTensor:
    """a *= b: the product as a new tensor. The old `a` is used up, as with `add_in_place`."""
    return a.replaced_by(multiply(a, b))


FUNCTIONS[torch.Tensor.mul_] = multiply_in_place
FUNCTIONS.update(
    dict.fromkeys(
        (
            torch.mul,
            torch.multiply,
            torch.Tensor.mul,
            torch.Tensor.multiply,
            torch.Tensor.__mul__,
            torch.Tensor.__rmul__,
        ),
        multiply,
    )
)
