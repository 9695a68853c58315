"""Values of log-probabilities, to compute with them, and exponentials (training.md 6.6)."""

from __future__ import annotations

import math

from torch import Tensor

from samebits import kernels
from samebits.errors import RangeError
from samebits.kernels import rows, softmax
from samebits.spec.training.loss import POWER_MAX, SHARED, UNIT
from samebits.train.operation import OperationCall, TrainingOperation
from samebits.train.quantize import quantize_real
from samebits.train.scores import LogProbabilities
from samebits.train.tensor import BFPTensor
from samebits.train.value import BFPValue, Move, bfp32, gradient_in


def _values(x: BFPValue, along: int) -> BFPValue:
    """Log-probabilities as bfp32, with exponents by rows where the logits have them."""
    part = quantize_real(x.values(), 32, "log-probabilities", x.by_rows)
    return BFPValue(*part, layer_bits=x.layer_bits)


def _values_gradient(call: OperationCall, grad: BFPValue) -> BFPValue:
    """The gradient by the logits, g - softmax * sum g, as that of cross-entropy with amounts -g."""
    x, along = call.arguments
    g, e_g = grad.resolved()
    if isinstance(e_g, Tensor):
        g, e_g = kernels.of(g).shorten_blocks(g, e_g, 0, None)
    (g16, e_g), (z, e_z) = gradient_in(16, g, e_g), LogProbabilities.of(x, along).vectors()
    moved, classes = g16.movedim(along, -1), z.shape[1]
    up = SHARED - (classes - 1).bit_length()
    amounts = -(moved.reshape(-1, classes).long() << up)
    codes = kernels.of(z).weighed_entropy(z, e_z, amounts).codes
    return BFPValue(codes.view(moved.shape).movedim(-1, along), e_g - up)


LOG_VALUES = TrainingOperation("LogValues", _values, _values_gradient, reads=("x",))


def as_values(x: BFPTensor) -> BFPTensor:
    """Log-probabilities as numbers to compute with; any other tensor as it is."""
    return x if x.along is None else LOG_VALUES(x, x.along)


def as_movable(x: BFPTensor, move: Move) -> BFPTensor:
    """x, of log-probabilities the values where a move takes vectors of them apart."""
    value = x.value
    if isinstance(value, LogProbabilities) and value.axis_after(move) is None:
        return as_values(x)
    return x


def _exponentials(x: BFPValue) -> BFPValue:
    """exp(z) as bfp32: the powers of a row (6.1) times that of its largest element."""
    z, exponent = x.resolved()
    size = rows.row_size(z.shape) if isinstance(exponent, Tensor) else ()
    vectors = z.reshape(math.prod(size), -1).long()
    own = rows.placed(exponent, lambda e: e.reshape(-1, 1))
    top = vectors.amax(1, keepdim=True)
    powers = softmax.exponentials(top - vectors, own)
    whole, factor = softmax.power_of(top, own)
    if int(whole.min()) < -POWER_MAX:
        raise RangeError(
            f"exp: expected values up to 709, whose exponential binary64 holds, found "
            f"{float(x.values().max())} (training diverged); lower the learning rate"
        )
    acc = (powers * factor).view(z.shape)
    found = UNIT - whole
    return bfp32(acc, found.view(size) if size else int(found), x.layer_bits)


def _exponentials_gradient(call: OperationCall, grad: BFPValue) -> BFPValue:
    """The gradient times the result."""
    (g, e_g), (y, e_y) = grad.resolved(), call.output.resolved()
    return bfp32(g.long() * y, e_g + e_y)


EXPONENTIAL = TrainingOperation("Exponential", _exponentials, _exponentials_gradient, reads=("y",))
