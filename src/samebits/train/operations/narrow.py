"""Inputs of operations: values of 32 or 16 bits, or of no width yet, as bfp8 (training.md 5), and
parameters of a user's module as activations (14.5)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from samebits import kernels
from samebits.errors import UnsupportedError
from samebits.kernels import rows
from samebits.train.scores import LogProbabilities
from samebits.train.tensor import BFPParameter, BFPTensor, TensorOperation, bfp32, gradient


class Narrow(TensorOperation):
    """Sums, bfp16 or bfp32 -> bfp8; the gradient passes unchanged."""

    @staticmethod
    def forward(ctx: Any, x: BFPTensor) -> BFPTensor:
        return x.narrowed()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad.detach()  # its parts apart: those of all uses are one sum


class Entry(TensorOperation):
    """A parameter as an activation: its codes W, with exponents by rows where it has them.

    Its gradient, like that of every parameter, has one exponent.
    """

    @staticmethod
    def forward(ctx: Any, parameter: BFPParameter) -> BFPTensor:
        codes, exponent = parameter.parts[0]
        bits = parameter.widths.values
        if isinstance(exponent, int):
            return BFPTensor(codes, exponent, bits=bits)
        return BFPTensor(*rows.moved(codes, exponent, lambda v: v), bits=bits)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        g, exponent = gradient(grad)
        if isinstance(exponent, int):
            return BFPTensor(g, exponent)
        codes, whole = rows.shorten(g, exponent, [1] * g.dim(), kernels.of(g))
        return bfp32(codes, int(whole))


def as_bfp(x: Tensor, where: str) -> BFPTensor:
    """x, which has to be a BFP tensor; `where` names the layer that takes it.

    A parameter enters by its codes. Raises UnsupportedError, which says what to do, for a float
    tensor, and for one that was masked by -inf, which only a softmax takes.
    """
    if not isinstance(x, BFPTensor):
        raise UnsupportedError(
            f"{where}: expected a BFPTensor, found {type(x).__name__} of {x.dtype}; "
            "quantize the input with BFPTensor.from_real(x)"
        )
    if x.allowed is not None:
        raise UnsupportedError(
            f"{where}: expected finite values, found a tensor masked by -inf, which only softmax "
            "takes; apply softmax first"
        )
    return Entry.apply(x) if isinstance(x, BFPParameter) else x


def as_bfp8(x: Tensor, where: str) -> BFPTensor:
    """x as bfp8, which every layer takes; `where` names the layer. Raises as `as_bfp`."""
    x = _computed(x, where)
    return x if x.bits <= 8 else Narrow.apply(x)


def as_decided(x: Tensor, where: str) -> BFPTensor:
    """x as bfp8, or as the bfp32 that it is (training.md 14.2). Raises as `as_bfp`."""
    x = _computed(x, where)
    return x if x.is_wide else as_bfp8(x, where)


def _computed(x: Tensor, where: str) -> BFPTensor:
    """x, to compute with. Raises as `as_bfp`, and for log-probabilities."""
    x = as_bfp(x, where)
    if isinstance(x, LogProbabilities):
        raise UnsupportedError(
            f"{where}: found log-probabilities, which only nll_loss, cross_entropy, softmax and "
            "exp take; compute with the logits, before log_softmax"
        )
    return x
