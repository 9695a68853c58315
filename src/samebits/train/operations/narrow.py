"""Inputs of operations: values of 32 or 16 bits, or of no width yet, as bfp8 (training.md 5), and
parameters of a user's module as activations (14.5)."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from samebits import kernels
from samebits.errors import UnsupportedError
from samebits.train.callers import converted_call
from samebits.train.operation import OperationCall, TrainingOperation
from samebits.train.operations.logarithms import as_values
from samebits.train.tensor import BFPParameter, BFPTensor
from samebits.train.value import BFPValue, Weight, moved_part


def _narrow(x: BFPValue) -> BFPValue:
    """Sums, bfp16 or bfp32 -> bfp8."""
    return x.narrowed()


def _narrow_gradient(call: OperationCall, grad: BFPValue) -> BFPValue:
    return grad  # its parts apart: those of all uses are one sum


NARROW = TrainingOperation("Narrow", _narrow, _narrow_gradient, apart=True)


def _short(x: BFPValue) -> BFPValue:
    """Sums or bfp32 -> bfp16."""
    return x.narrowed(16)


SHORT = TrainingOperation("Short", _short, _narrow_gradient, apart=True)


def _entry(parameter: Weight) -> BFPValue:
    """A parameter as an activation: its codes W, with exponents by rows where it has them."""
    codes, exponent = parameter.parts[0]
    bits = parameter.widths.values
    if isinstance(exponent, int):
        return BFPValue(codes, exponent, bits)
    return BFPValue(*moved_part((codes, exponent), lambda v: v), bits)


def _entry_gradient(call: OperationCall, grad: BFPValue) -> BFPValue:
    """With one exponent, as that of every parameter."""
    g, exponent = grad.resolved()
    if isinstance(exponent, int):
        return grad
    return BFPValue(*kernels.of(g).shorten_blocks(g, exponent, 0, None))


ENTRY = TrainingOperation("Entry", _entry, _entry_gradient)


def as_bfp(x: Tensor, where: str) -> BFPTensor:
    """x, which has to be a BFP tensor; `where` names the layer that takes it.

    A parameter enters by its codes, a float tensor that forward() makes by itself as the input of
    the model. Raises UnsupportedError, which says what to do, for another float tensor, and for one
    that was masked by -inf, which only a softmax takes.
    """
    if not isinstance(x, BFPTensor):
        x = _made(x, where)
    if x.allowed is not None:
        raise UnsupportedError(
            f"{where}: expected finite values, found a tensor masked by -inf, which only softmax "
            "takes; apply softmax first"
        )
    return ENTRY(x) if isinstance(x, BFPParameter) else x


def _made(x: Tensor, where: str) -> BFPTensor:
    """A float tensor that a model's forward() makes where it is given none. UnsupportedError for
    others: a model's input has to be quantized."""
    call = converted_call()
    given = [] if call is None else tree_leaves(call.arguments)
    if call is None or any(map(_is_real, given)) or not _is_real(x) or x.requires_grad:
        raise UnsupportedError(
            f"{where}: expected a BFPTensor, found {type(x).__name__} of {x.dtype}; "
            "quantize the input with BFPTensor.from_real(x)"
        )
    own: Any = [t.by_rows for t in given if isinstance(t, BFPTensor)] or [call.model.input_by_rows]
    bits: Any = call.model.input_bits
    return BFPTensor.from_real(x, f"{where}: constant", any(own), bits)


def _is_real(x: Any) -> bool:
    """Whether x is a tensor of floats."""
    return isinstance(x, Tensor) and not isinstance(x, BFPTensor) and x.is_floating_point()


def as_bfp8(x: Tensor, where: str) -> BFPTensor:
    """x as bfp8, which every layer takes; `where` names the layer. Raises as `as_bfp`."""
    x = _computed(x, where)
    return x if x.bits <= 8 else NARROW(x)


def as_short(x: Tensor, where: str) -> BFPTensor:
    """x as bfp16, which batch norm takes, or as the bfp8 that it is. Raises as `as_bfp`."""
    x = _computed(x, where)
    return x if x.bits <= 16 else SHORT(x)


def as_decided(x: Tensor, where: str) -> BFPTensor:
    """x as bfp8, or as the bfp32 that it is (training.md 14.2). Raises as `as_bfp`."""
    x = _computed(x, where)
    return x if x.is_wide else as_bfp8(x, where)


def as_sums(x: Tensor, where: str) -> BFPTensor:
    """x as the exact sums that it is made of, or as bfp8. Raises as `as_bfp8`."""
    x = _computed(x, where)
    return as_bfp8(x, where) if x.sums is None else x


def _computed(x: Tensor, where: str) -> BFPTensor:
    """x, to compute with; of log-probabilities the values. Raises as `as_bfp`."""
    return as_values(as_bfp(x, where))
