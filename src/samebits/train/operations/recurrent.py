"""Recurrent layers (training.md 5, 7, 12 and 13): products over all steps, exponents of steps, and
states.

The input product of all steps is one product; so are, in the backward pass, that with the hidden
states, the input gradient and the weight gradients. Only the recurrent products and the cell go
step by step.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from samebits import kernels
from samebits.errors import UnsupportedError
from samebits.kernels import ConvShape, Kernels, conv_shape
from samebits.kernels.protocol import ARGUMENT_EXPONENT, GATE_EXPONENT, Q_GATE, Part
from samebits.kernels.rows import Exponent, placed, spread
from samebits.spec import formats
from samebits.tables.expression import Variable, apply
from samebits.tables.transfer import transfer_table
from samebits.train.operation import OperationCall, TrainingOperation
from samebits.train.operations.linear import as_image, as_input, as_kernel
from samebits.train.operations.products import (
    bias_gradient,
    for_input,
    for_weight,
    weight_gradient,
)
from samebits.train.tensor import FUNCTIONS, BFPTensor
from samebits.train.value import BFPValue

STATE_BITS = 15  # by which states of 16 bits are widened: layers may differ by as many binades
ONE, ONE_SQUARED = 1 << 15, 1 << 30  # of gate values


@functools.cache
def tables(device: str) -> Tensor:
    """int16 [2, 65535]: sigmoid and tanh of the arguments -32767..32767 (S and Th of section 5)."""
    source = (formats.power(ARGUMENT_EXPONENT), 0, -Q_GATE, Q_GATE)
    target = (formats.power(GATE_EXPONENT), 0, -Q_GATE, Q_GATE)
    codes = [
        transfer_table(apply(name, Variable()), source, target).codes
        for name in ("Sigmoid", "Tanh")
    ]
    return torch.tensor(codes, dtype=torch.int16, device=device)


def looked_up(table: Tensor, acc: Tensor, exponent: Exponent) -> Tensor:
    """The table's code for each acc * 2**exponent, rounded to an argument; int64."""
    k = kernels.of(acc)
    return table[k.saturated(acc, exponent - ARGUMENT_EXPONENT, Q_GATE) + Q_GATE].long()


# --- products and steps -----------------------------------------------------------------------


def product_shape(rows: Tensor, weight: Tensor) -> ConvShape:
    """A product of rows as a convolution of one image."""
    return conv_shape((1, weight.shape[1], 1, rows.shape[0]), (*weight.shape, 1, 1))


def row_product(k: Kernels, rows: Tensor, weight: Tensor) -> Tensor:
    """Exact sums [rows, outputs] of 8-bit rows [rows, inputs] and a weight [outputs, inputs]."""
    acc, _ = k.conv(as_image(rows), as_kernel(weight), product_shape(rows, weight))
    return as_input(acc, rows)


def back_product(d: Part, weight: Part, like: Tensor, bits: int) -> Part:
    """D [n, outputs] in so many bits times W: exact sums [n, inputs]; like: a tensor [n, inputs]"""
    w, e_w = weight
    g16, exponent = for_input(*d, e_w, bits)
    acc, _ = kernels.of(g16).conv_input_grad(as_image(g16), as_kernel(w), product_shape(like, w))
    return as_input(acc, like), exponent


def at_one_exponent(parts: Sequence[Part], bits: int) -> Part:
    """Parts, one a step, at the largest exponent of those that are not all zero.

    With exponents by rows they stay what they are, [T, N, 1].
    """
    own = [e for _, e in parts if isinstance(e, Tensor)]
    if own:
        return torch.stack([codes for codes, _ in parts]), torch.stack(own)
    return kernels.of(parts[0][0]).stacked(parts, bits, 0)


@dataclass(frozen=True)
class Gradients:
    """Where the gradients of a layer in one direction come from.

    d_x, d_h: those of its pre-activations, [T, N, outputs], at the products of x and of h, the same
    tensor where they are equal; x, past: what these products took
    """

    d_x: Part
    d_h: Part
    x: Part
    past: Part
    weights: tuple[Part, Part]
    bits: int

    def wanted(self, needs: Sequence[bool]) -> list[BFPValue | None]:
        """Those of x, weight_ih, weight_hh, bias_ih and bias_hh that are needed."""
        (w_ih, e_ih), (w_hh, _) = self.weights
        found: list[BFPValue | None] = [None] * 5
        if needs[0]:
            found[0] = self._input(w_ih, e_ih)
        if needs[1]:
            found[1] = _weight_gradient(*self.d_x, *self.x, w_ih)
        if needs[2]:
            found[2] = _weight_gradient(*self.d_h, *self.past, w_hh)
        if any(needs[3:5]):
            at_x = at_h = bias_gradient(*(self.d_x if needs[3] else self.d_h)).resolved()
            if all(needs[3:5]) and self.d_h is not self.d_x:
                at_h = bias_gradient(*self.d_h).resolved()
            parts = (at_x, at_h)
            found[3:5] = [
                BFPValue(*p) if n else None for p, n in zip(parts, needs[3:5], strict=True)
            ]
        return found

    def _input(self, w_ih: Tensor, e_ih: Exponent) -> BFPValue:
        d, e_d = self.d_x
        k, rows = kernels.of(d), self.x[0].reshape(d.shape[0] * d.shape[1], -1)
        g16, exponent = for_input(d, e_d, e_ih, self.bits)
        shape = product_shape(rows, w_ih)
        operands = (as_image(g16.view(rows.shape[0], -1)), as_kernel(w_ih), shape)
        image, own = k.input_gradient(*operands, exponent, self.bits)
        return BFPValue(as_input(image, rows).view(self.x[0].shape), own)


def _weight_gradient(
    d: Tensor, e_d: Exponent, x: Tensor, e_x: Exponent, weight: Tensor
) -> BFPValue:
    """The gradient of a weight from d [T, N, outputs] and x [T, N, inputs], over all steps."""
    t, exponent = for_weight(d, e_d, e_x)
    image, rows = as_image(t.flatten(0, 1)), x.flatten(0, 1)
    return weight_gradient(image, as_image(rows), product_shape(rows, weight), weight, exponent)


def own_exponent(g: Tensor, e_g: Exponent, by_rows: bool) -> Exponent:
    """The exponent of a gradient [..., H]; by rows [..., 1], where the gradient is."""
    if isinstance(e_g, int) and not by_rows:
        return e_g
    return spread(e_g, (*g.shape[:-1], 1), g)


def refuse_packed(*_: Any) -> Any:
    """UnsupportedError for sequences of several lengths in one tensor."""
    raise UnsupportedError(
        "expected a tensor of sequences of one length, found a PackedSequence; pad them "
        "(torch.nn.utils.rnn.pad_packed_sequence)"
    )


FUNCTIONS[torch._VF._pack_padded_sequence] = refuse_packed


# --- states -----------------------------------------------------------------------------------


def _stacked(*states: BFPValue) -> BFPValue:
    """States [N, H] of layers as one tensor [layers, N, H] of 32 bits, in which none is rounded.

    But where layers of one exponent each differ by more than 15 binades.
    """
    parts = [s.resolved() for s in states]
    return BFPValue(*kernels.of(parts[0][0]).stacked(parts, 32, STATE_BITS))


def _stacked_gradient(call: OperationCall, grad: BFPValue) -> tuple[BFPValue, ...]:
    g, e = grad.resolved()
    return tuple(BFPValue(g[i], placed(e, operator.itemgetter(i))) for i in range(len(g)))


STATES = TrainingOperation("States", _stacked, _stacked_gradient)


def states(*parts: BFPTensor) -> BFPTensor:
    """The last states of recurrent layers, [N, H] each, as one wide tensor [layers, N, H]."""
    return STATES(*parts)
