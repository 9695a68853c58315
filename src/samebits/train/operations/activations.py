"""Activations (training.md 5 and 7), on codes or by table.

Every function takes and returns BFP tensors and is differentiable.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from samebits import kernels
from samebits.errors import UnsupportedError
from samebits.kernels.tables import Entries, Tables
from samebits.tables.activation import ACTIVATIONS, activation_table
from samebits.train.operation import OperationCall, TrainingOperation
from samebits.train.operations.narrow import as_bfp8, as_sums
from samebits.train.shifts import narrowed
from samebits.train.tensor import BFPTensor, offer, offer_by_name
from samebits.train.value import BFPValue, Move

_Saved = tuple[Tensor, torch.Size, tuple[Move, ...]]
"""The mask of a clamp, the shape that it is of, and what moves it to that of the output."""


def _clamp(x: BFPValue, clip: int) -> tuple[BFPValue, _Saved]:
    """min(max(x, 0), clip), without a clip value for 0: of sums, as bfp8 by one rounding, and of
    codes, as they are. The clip value is rounded to their grid."""
    if x.sums is not None:
        return x.clamped(clip)
    codes, exponent = x.codes, x.exponent
    low, mask = kernels.of(codes).clamp(codes, exponent, clip)
    return BFPValue(low, exponent, x.bits, shifts=x.shifts), (mask, low.shape, ())


def _clamp_gradient(call: OperationCall, grad: BFPValue) -> BFPValue:
    """The gradient where the mask has bits, the exponent as it is."""
    (g, e_g), (mask, shape, moves) = grad.resolved(), call.saved
    k = kernels.of(g)
    if not moves:
        return BFPValue(k.behind_mask(g, mask), e_g)
    passing = k.unpacked(mask, shape)
    for move in moves:
        passing = move(passing)
    return BFPValue(k.where(passing, g), e_g)


RELU = TrainingOperation("Relu", _clamp, _clamp_gradient, saves=True)


def relu(x: BFPTensor, inplace: bool = False) -> BFPTensor:
    """max(x, 0): of exact sums rounded once, of bfp8 at the same exponent."""
    return _in_place(x, RELU(as_sums(x, "relu"), 0), inplace)


def relu6(x: BFPTensor, inplace: bool = False) -> BFPTensor:
    """min(max(x, 0), 6 rounded to the input's grid), as `relu`."""
    return _in_place(x, RELU(as_sums(x, "relu6"), 6), inplace)


def _table(x: BFPValue, name: str, parameter: float | None) -> BFPValue:
    """A correctly rounded table over the 255 codes, requantized to bfp8; so is the derivative."""
    codes, exponent = x.codes, x.exponent
    (tables, _), k = _tables(name, parameter), kernels.of(codes)
    if x.shifts is None or ACTIVATIONS[name].bounded:
        return BFPValue(*k.table(codes, exponent, tables, x.bits), x.bits)
    assert isinstance(exponent, Tensor)
    return narrowed(*tables.looked_up(codes, exponent), x.bits, x.shifts)


def _table_gradient(call: OperationCall, grad: BFPValue) -> BFPValue:
    x, name, parameter = call.arguments
    (g, e_g), (_, slopes) = grad.resolved(), _tables(name, parameter)
    return BFPValue(*kernels.of(g).table_gradient(g, e_g, x.codes, x.exponent, slopes))


TABLE = TrainingOperation("TableActivation", _table, _table_gradient, reads=("x",))


def _values(name: str, parameter: float | None, exponent: int) -> Entries:
    """The 255 codes of an activation at an exponent, bfp32."""
    table = activation_table(name, exponent, parameter)
    return table.codes, table.exponent


def _slopes(name: str, parameter: float | None, exponent: int) -> Entries:
    """The 255 codes of its derivative, bfp16."""
    table = activation_table(name, exponent, parameter)
    return table.derivative_codes, table.derivative_exponent


@functools.lru_cache(maxsize=256)
def _tables(name: str, parameter: float | None) -> tuple[Tables, Tables]:
    """The tables of an activation and of its derivative."""
    own = (functools.partial(side, name, parameter) for side in (_values, _slopes))
    values, slopes = map(Tables, own)
    return values, slopes


def activation(x: BFPTensor, name: str, parameter: float | None = None) -> BFPTensor:
    """One of `samebits.tables.ACTIVATIONS`, with its parameter where it has one, by table.

    Where its values are bounded, no channel is larger than others: shifts end there.
    """
    return TABLE(as_bfp8(x, name), name, parameter)


def gelu(x: BFPTensor, approximate: str = "none") -> BFPTensor:
    """gelu in its erf form, or with approximate="tanh". Raises UnsupportedError for another."""
    names = {"none": "gelu", "tanh": "gelu_tanh"}
    if approximate not in names:
        raise UnsupportedError(f"gelu: expected approximate none or tanh, found {approximate!r}")
    return activation(x, names[approximate])


def softplus(x: BFPTensor, beta: float = 1.0, threshold: float = 20.0) -> BFPTensor:
    """log(1 + exp(x)), which above a threshold of 20 is x in 8 bits.

    Raises UnsupportedError for another beta, or a lower threshold.
    """
    if beta != 1 or threshold < 20:
        raise UnsupportedError(
            f"softplus: expected beta=1 and a threshold of at least 20, found {beta} and "
            f"{threshold}"
        )
    return activation(x, "softplus")


def _in_place(x: BFPTensor, y: BFPTensor, inplace: bool) -> BFPTensor:
    """y, which takes the place of x where it is to."""
    return x.replaced_by(y) if inplace else y


def _of_name(name: str) -> Callable[..., BFPTensor]:
    """A function of torch without options but `inplace`."""
    return lambda x, inplace=False: _in_place(x, activation(x, name), inplace)


def _changing(function: Callable[..., BFPTensor]) -> Callable[..., BFPTensor]:
    """A function whose result takes the place of its input."""
    return lambda x, *options: x.replaced_by(function(x, *options))


def _leaky_relu(x: BFPTensor, negative_slope: float = 0.01, inplace: bool = False) -> BFPTensor:
    return _in_place(x, activation(x, "leaky_relu", negative_slope), inplace)


def _elu(x: BFPTensor, alpha: float = 1.0, inplace: bool = False) -> BFPTensor:
    return _in_place(x, activation(x, "elu", alpha), inplace)


offer_by_name(gelu, softplus)
offer(relu6, "functional.relu6")
_WITH_CHANGING: dict[str, Callable[..., BFPTensor]] = {
    **{name: _of_name(name) for name in ("tanh", "sigmoid")},
    "relu": relu,
    "leaky_relu": _leaky_relu,
    "elu": _elu,
}
for _name, _function in _WITH_CHANGING.items():
    offer(_function, _name)
    offer(_changing(_function), f"{_name}_")
for _name in ("silu", "mish", "hardswish", "hardsigmoid"):
    offer(_of_name(_name), f"functional.{_name}")
