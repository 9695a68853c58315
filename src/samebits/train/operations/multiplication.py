"""Products of two tensors, element by element, and with a number (training.md 5, 7 and 12)."""

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
from samebits.spec import formats
from samebits.train.operation import OperationCall, TrainingOperation
from samebits.train.operations.broadcast import broadcast, check_constant, constant
from samebits.train.operations.narrow import as_decided
from samebits.train.shifts import narrowed, times
from samebits.train.tensor import BFPParameter, BFPTensor, offer
from samebits.train.value import BFPValue, bfp32


def _product(a: BFPValue, b: BFPValue) -> BFPValue:
    """a * b, exact products and one rounding; axes of size 1 go along with those of the other."""
    (u, e_a), (v, e_b) = a.resolved(), b.resolved()
    if a.is_wide or b.is_wide:
        return bfp32(u.long() * v, e_a + e_b, max(a.layer_bits, b.layer_bits))
    return narrowed(u.long() * v, e_a + e_b, max(a.bits, b.bits), None)


def _product_gradient(
    call: OperationCall, grad: BFPValue
) -> tuple[BFPValue | None, BFPValue | None]:
    a, b = call.arguments
    return (
        _summed(grad, b, a.shape) if call.wanted[0] else None,
        _summed(grad, a, b.shape) if call.wanted[1] else None,
    )


def _summed(grad: BFPValue, other: BFPValue, shape: torch.Size) -> BFPValue:
    """The sums of g * other over the axes that an operand of a shape was repeated along.

    |g| < 2**31 and |other| < 2**7, so that sums of 2**24 products stay below 2**62; an operand
    beside one of 32 bits is not repeated here, and every product is below 2**62.
    """
    (g, e_g), (codes, exponent) = grad.resolved(), other.resolved()
    axes = [axis for axis, size in enumerate(shape) if size < g.shape[axis]]
    acc = g.long() * codes
    return bfp32(acc.sum(axes, keepdim=True) if axes else acc, e_g + exponent)


MULTIPLY = TrainingOperation("Multiply", _product, _product_gradient, reads=("x",))


def multiply(a: Any, b: Any) -> BFPTensor:
    """a * b of two tensors, or of a tensor and a number, as bfp8; of 32 bits where one has (14.2).

    Sizes are equal or 1, as torch joins them. One of them may be a float tensor, a constant. Raises
    UnsupportedError for other shapes, and for a float tensor that wants a gradient.
    """
    if not isinstance(a, BFPTensor):
        a, b = b, a
    b = _number(b, "multiply")
    if isinstance(b, int | float) and not isinstance(b, bool):
        return scale(a, float(b))
    x = as_decided(a, "multiply")
    y = as_decided(constant(b, x, "multiply", x.is_wide), "multiply")
    wide = x.is_wide or y.is_wide
    return MULTIPLY(*(broadcast("multiply", x, y) if wide else _alike(x, y)))


def _number(value: Any, what: str) -> Any:
    """The number in a constant without axes; anything else as it is."""
    if not isinstance(value, Tensor) or isinstance(value, BFPTensor) or value.dim():
        return value
    check_constant(value, what)
    return value.item()


def _alike(x: BFPTensor, y: BFPTensor) -> Sequence[BFPTensor]:
    """Two operands whose sizes are equal or 1, expanded where that is not enough.

    An operand that is repeated a little, and whose rows meet rows, is not: its gradient is one sum.
    """
    if x.dim() == y.dim():
        pairs = list(zip(x.shape, y.shape, strict=True))
        fits = all(m == n or 1 in (m, n) for m, n in pairs)
        count = rows.row_axes(x.dim()) if x.by_rows or y.by_rows else ()
        repeated = max(
            math.prod(n for m, n in way if m != n and m == 1)
            for way in (pairs, [p[::-1] for p in pairs])
        )
        if fits and repeated <= MAX_SUMMED and all(pairs[i][0] == pairs[i][1] for i in count):
            return x, y
    return broadcast("multiply", x, y)


def _scaled(x: BFPValue, factor: float) -> BFPValue:
    """x times a number, whose coefficient has 16 bits."""
    m, by = formats.signed_coefficient(factor)
    return times(x, x.codes, m, x.exponent + by)


def _scaled_gradient(call: OperationCall, grad: BFPValue) -> BFPValue:
    g, e_g = grad.resolved()
    m, by = formats.signed_coefficient(call.arguments[1])
    return BFPValue(*kernels.of(g).times(g, m, e_g + by, 32))


SCALE = TrainingOperation("Scale", _scaled, _scaled_gradient)


def scale(x: BFPTensor, factor: float) -> BFPTensor:
    """x times a finite number, as bfp8; what has 32 bits keeps them (14.2).

    Raises UnsupportedError for NaN and infinities.
    """
    if not math.isfinite(factor):
        raise UnsupportedError(f"multiply: expected a finite number, found {factor}")
    return SCALE(as_decided(x, "multiply"), factor)


def divide(x: BFPTensor, divisor: Any) -> BFPTensor:
    """x times 1 / divisor: a number, or a float tensor without a gradient, and nowhere 0.

    Reciprocals are rounded once, in binary64. Raises UnsupportedError for other divisors.
    """
    divisor = _number(divisor, "divide")
    if isinstance(divisor, Tensor) and not isinstance(divisor, BFPTensor):
        check_constant(divisor, "divide")
        if isinstance(x, BFPTensor) and bool((divisor != 0).all()):
            return multiply(x, 1.0 / divisor.double())
    if not isinstance(divisor, int | float) or divisor == 0:
        found = type(divisor).__name__ if isinstance(divisor, Tensor) else divisor
        raise UnsupportedError(
            f"divide: expected a BFP tensor, and a number or a constant that is nowhere 0 as "
            f"divisor, found {found}"
        )
    return scale(x, 1.0 / float(divisor))


def power(x: BFPTensor, exponent: Any) -> BFPTensor:
    """x to the power of 1 to 4, one product after the other. Raises UnsupportedError for others."""
    if exponent not in (1, 2, 3, 4):
        raise UnsupportedError(f"pow: expected an exponent of 1 to 4, found {exponent!r}")
    y = x
    for _ in range(int(exponent) - 1):
        y = multiply(y, x)
    return y


def negative(x: BFPTensor) -> BFPTensor:
    """-x."""
    return scale(x, -1.0)


def as_changed(x: Tensor, what: str) -> BFPTensor:
    """x, to be changed in place. Raises UnsupportedError for a float tensor, and for a parameter,
    whose state a new tensor would not be."""
    if isinstance(x, BFPParameter):
        raise UnsupportedError(
            f"{what} in place: expected a tensor to be changed, found a parameter; let an "
            "optimizer of samebits.train change it"
        )
    if not isinstance(x, BFPTensor):
        raise UnsupportedError(
            f"{what} in place: expected a BFP tensor to be changed, found {x.dtype}, which cannot "
            "hold the result; write a = a + b or a = a * b"
        )
    return x


def multiply_in_place(a: Tensor, b: Any) -> BFPTensor:
    """a *= b: the product as a new tensor. The old `a` is used up, as with `add_in_place`."""
    return as_changed(a, "multiply").replaced_by(multiply(a, b))


def divide_in_place(a: Tensor, divisor: Any) -> BFPTensor:
    """a /= divisor, as `multiply_in_place`."""
    changed = as_changed(a, "divide")
    return changed.replaced_by(divide(changed, divisor))


offer(multiply, "mul", "multiply", "__mul__", "__rmul__")
offer(divide, "div", "divide", "true_divide", "__truediv__")
offer(negative, "neg", "torch.negative", "__neg__")
offer(power, "pow", "__pow__")
offer(lambda x: power(x, 2), "square")
offer(multiply_in_place, "mul_")
offer(divide_in_place, "div_", "__itruediv__", "__idiv__")
