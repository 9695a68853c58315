"""The deployed operations: 8-bit codes of a frozen exponent (docs/spec/training.md section 11).

Each takes the frozen exponent of its site and the arguments of the training operation it stands
for, and gives codes and their exponent. Operations that round nothing (ReLU, max pool, reshape,
permute, indexing) have no form of their own here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from samebits import kernels
from samebits.errors import UnsupportedError
from samebits.kernels import ConvShape, rows
from samebits.kernels.averages import Averages
from samebits.kernels.protocol import Part
from samebits.spec import formats
from samebits.tables.activation import ACTIVATIONS
from samebits.tables.expression import Variable, apply
from samebits.tables.transfer import transfer_table
from samebits.train.deployed import attention as wide
from samebits.train.deployed import recurrent
from samebits.train.deployed.attention import NARROW16
from samebits.train.deployed.rounding import saturated
from samebits.train.deployed.weights import (
    FrozenNorm,
    FrozenWeights,
    frozen_product,
)
from samebits.train.islands import FROM_REAL, TO_REAL
from samebits.train.losses.difference import DIFFERENCE_LOSS
from samebits.train.losses.entropy import BINARY_ENTROPY, CROSS_ENTROPY, WEIGHED_ENTROPY
from samebits.train.operation import TrainingOperation
from samebits.train.operations import activations, addition, normalization, pointwise, pooling
from samebits.train.operations.attention import JOIN_HEADS, SPLIT_HEADS
from samebits.train.operations.broadcast import EXPAND
from samebits.train.operations.copies import COPIES
from samebits.train.operations.gru import GRU
from samebits.train.operations.indexing import GATHER, INDEXED, PERMUTE, ROLL
from samebits.train.operations.layer_norm import LAYER_NORM
from samebits.train.operations.linear import PRODUCTS, as_image, as_input, as_kernel
from samebits.train.operations.logarithms import EXPONENTIAL, LOG_VALUES
from samebits.train.operations.lstm import LSTM
from samebits.train.operations.matmul import MAT_MUL
from samebits.train.operations.multiplication import MULTIPLY, SCALE
from samebits.train.operations.narrow import ENTRY, NARROW
from samebits.train.operations.pointwise import DROPOUT
from samebits.train.operations.recurrent import STATES
from samebits.train.operations.resampling import INTERPOLATE, PAD, Line, weighted_sums
from samebits.train.operations.rnn import RNN
from samebits.train.operations.selection import CHOSEN
from samebits.train.operations.softmax import LOG_SOFTMAX, MASKED, SOFTMAX
from samebits.train.operations.transposed import TRANSPOSED_PRODUCTS
from samebits.train.value import BFPValue, Weight

MAX_WINDOW = 1 << 23  # positions averaged


def of_products(swapped: bool) -> Callable[..., Part | BFPValue]:
    """Linear and Conv2d or, swapped, ConvTranspose2d: exact sums with the bias on their grid."""

    def products(
        site: int | None,
        x: BFPValue,
        weight: Weight,
        bias: Weight | None,
        shape: ConvShape,
        peaks: object,
        norm: FrozenNorm | None = None,
    ) -> Part | BFPValue:
        """Round the sums once, to the site; int32 where that is None.

        The peaks of channels do not count: a site has one exponent. norm: a batch norm that alone
        takes the sums, and is computed with them. Raises UnsupportedError where
        128 * sum |w| + |bias| of a channel would not fit 32 bits.
        """
        codes, groups = x.whole()[0], shape.groups if swapped else None
        own, k = frozen_product(site, x, weight, bias, norm, groups), kernels.of(codes)
        if swapped:
            acc, _ = k.conv_input_grad(codes.to(torch.int16), as_kernel(own.codes), shape)
        else:
            acc, _ = k.conv(as_image(codes), as_kernel(own.codes), shape)
        return _of_sums(acc, own, site, codes)

    return products


def _of_sums(acc: Tensor, own: FrozenWeights, site: int | None, codes: Tensor) -> Part | BFPValue:
    """Sums with their offsets at the site, or as int32 at the finest exponent, as rows or an image
    where `codes` are."""
    offsets, grids = (
        torch.tensor(values, device=acc.device).view(1, -1, 1, 1)
        for values in (own.offsets, own.exponents)
    )
    acc = acc.long() + offsets
    if site is None:
        whole = (acc << (grids - own.finest)).to(torch.int32)
        return BFPValue.opened(as_input(whole, codes), own.finest)
    if own.factors is not None:
        m, by = (v.view(grids.shape) for v in torch.tensor(own.factors, device=acc.device).T)
        # Of a product that is not 0 the factor alone has 24 bits: it saturates from here on.
        shifts = (grids + by - site).clamp(max=-15)
        return as_input(rows.scale(acc * m, shifts).clamp(-128, 127).to(torch.int8), codes), site
    return as_input(saturated(acc, grids - site), codes), site


def batch_norm(
    site: int,
    x: BFPValue,
    gamma: Weight,
    beta: Weight,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
    peaks: object,
) -> Part:
    """One multiply-add a channel, by the running statistics, and one rounding; peaks: unused."""
    z, e_z = x.whole()
    m, b, exponent = normalization.frozen_affine(gamma, beta, running_mean, running_var, eps, e_z)
    channels = (1, -1, *([1] * (z.dim() - 2)))
    acc = z * m.to(z.device).view(channels) + b.to(z.device).view(channels)
    return saturated(acc, exponent - site), site


def table(site: int, x: BFPValue, name: str, parameter: float | None) -> Part:
    """A correctly rounded table over the 256 codes."""
    codes, exponent = x.whole()
    entries = activation_codes(name, parameter, exponent, site)
    table = torch.tensor(entries, dtype=torch.int8, device=codes.device)
    return table[codes.long() + 128], site


def average_pool(site: int, x: BFPValue, means: Averages) -> Part:
    """Window means, one rounding."""
    codes, exponent = x.whole()
    most = max(means.largest, means.positions)
    if most > MAX_WINDOW:
        raise UnsupportedError(
            f"average pool: expected windows of at most {MAX_WINDOW} positions, and a divisor of "
            f"at most as many, found {most}"
        )
    acc, _ = kernels.of(codes).window_sums(codes, means.undivided())
    by = torch.tensor(means.heights, device=acc.device).view(-1, 1)
    by = by * torch.tensor(means.widths, device=acc.device)
    return _mean(acc, exponent - site, by), site


def _mean(acc: Tensor, exponent: int, by: Tensor | int) -> Tensor:
    """sat8(rne(acc * 2**exponent / by)).

    |acc| <= 2**31 and by <= 2**24: beyond these shifts every quotient but 0 saturates, or every
    quotient is 0; within them int64 holds both terms, and twice the divisor.
    """
    shift = min(max(exponent, -33), 31)
    mean = kernels.of(acc).divide(acc << max(shift, 0), by << max(-shift, 0))
    return mean.clamp(-128, 127).to(torch.int8)


def interpolated(site: int, x: BFPValue, down: Line, across: Line) -> Part:
    """Weighted means of neighbours in an image, one rounding."""
    codes, exponent = x.whole()
    acc = weighted_sums(codes, down, across)
    return _mean(acc, exponent - site, down.whole * across.whole), site


def add(site: int, a: BFPValue, b: BFPValue) -> Part:
    """a + b, rounded once."""
    (u, e_u), (v, e_v) = a.whole(), b.whole()
    if e_u < e_v:
        u, e_u, v, e_v = v, e_v, u, e_u
    shift = min(e_u - e_v, 40)
    low = v.long()
    if e_u - e_v > 40:
        # What lies below 2**-33 of a nonzero u decides by its sign alone on which side of a
        # rounding threshold the sum is; its magnitude counts where u is 0.
        low = low.sign()
    codes = saturated((u.long() << shift) + low, e_u - shift - site)
    return torch.where(u == 0, saturated(v, e_v - site), codes), site


def multiply(site: int, a: BFPValue, b: BFPValue) -> Part:
    """a * b, rounded once."""
    (u, e_u), (v, e_v) = a.whole(), b.whole()
    return saturated(u.long() * v, e_u + e_v - site), site


def scale(site: int, x: BFPValue, factor: float) -> Part:
    """x times the coefficient of a number: products of 24 bits, which binary32 holds."""
    codes, exponent = x.whole()
    m, by = formats.signed_coefficient(factor)
    return saturated(codes.long() * m, exponent + by - site), site


def concat(site: int, dim: int, *tensors: BFPValue) -> Part:
    """Side by side, each rounded once to the site's exponent."""
    parts = [t.whole() for t in tensors]
    return torch.cat([saturated(codes, e - site) for codes, e in parts], dim), site


def narrow(site: int, x: BFPValue) -> Part:
    """A 32-bit value as 8 bits, one rounding."""
    codes, exponent = x.whole()
    return saturated(codes, exponent - site), site


def activation_codes(name: str, parameter: float | None, e_x: int, site: int) -> tuple[int, ...]:
    """sat8(rne(f(j * 2**e_x) / 2**site)) for j = -128 to 127, f exact.

    The numbers in f are rounded to binary32, as ONNX stores them.
    """
    function = ACTIVATIONS[name]
    given = function.parameters(None if parameter is None else Fraction(parameter))
    numbers = {k: float(v) if isinstance(v, Fraction) else v for k, v in given.items()}
    source, target = ((formats.power(exponent), 0, -128, 127) for exponent in (e_x, site))
    return transfer_table(apply(function.operator, Variable(), **numbers), source, target).codes


@dataclass(frozen=True)
class Rule:
    """The deployed form of a training operation.

    frozen: (exponent of its site or None, *arguments) -> codes and exponent; None where the
            operation rounds nothing and keeps its input's exponent: then it is the training's own
    rounds: whether it is a site, which is to be found out (None) of sums: they are one unless
            they are what the model returns
    chosen: arguments -> the output in training and the exponent to freeze, where that is not the
            output's
    wide:   the form, without a site, where an operand has more than 8 bits; None: the same
    entry:  what rounds exact operands first, each at a site of its own
    states: whether it goes from step to step with states, and takes the run's `memory` of them
    """

    frozen: Callable[..., Part | BFPValue] | None
    rounds: bool | None = True
    chosen: Callable[..., tuple[BFPValue, int | None]] | None = None
    wide: Callable[..., BFPValue] | None = None
    entry: TrainingOperation | None = None
    states: bool = False


_THE_SAME = Rule(None, False)
_STEPPED = Rule(recurrent.stepped, chosen=recurrent.chosen, states=True)
RULES: dict[TrainingOperation, Rule] = {
    PRODUCTS: Rule(of_products(False), None),
    TRANSPOSED_PRODUCTS: Rule(of_products(True), None),
    normalization.BATCH_NORM: Rule(batch_norm),
    LAYER_NORM: Rule(wide.layer_norm),
    activations.RELU: _THE_SAME,
    activations.TABLE: Rule(table),
    pooling.MAX_POOL: _THE_SAME,
    pooling.AVERAGE_POOL: Rule(average_pool),
    INTERPOLATE: Rule(interpolated),
    addition.ADD: Rule(add, wide=wide.added),
    pointwise.CONCAT: Rule(concat),
    MULTIPLY: Rule(multiply, wide=wide.multiplied, entry=NARROW16),
    SCALE: Rule(scale, wide=wide.scaled),
    NARROW: Rule(narrow),
    NARROW16: Rule(wide.narrow16),
    MAT_MUL: Rule(wide.product, False, entry=NARROW),
    SOFTMAX: Rule(wide.softmax, False, entry=NARROW16),
    CHOSEN: Rule(None, False, entry=NARROW16),
    ENTRY: Rule(wide.entry, False),
    pointwise.EMBEDDING: Rule(wide.embedding, False),
    **dict.fromkeys((pointwise.RESHAPE, PERMUTE, INDEXED, GATHER, ROLL, PAD), _THE_SAME),
    **dict.fromkeys((SPLIT_HEADS, JOIN_HEADS, EXPAND, COPIES, LOG_SOFTMAX, MASKED), _THE_SAME),
    LSTM: _STEPPED,
    GRU: _STEPPED,
    RNN: _STEPPED,
}


def rule_of(operation: TrainingOperation, arguments: Sequence[Any] = ()) -> Rule | None:
    """The deployed form of an operation, that of wide operands where there is one; None if it has
    no form."""
    rule = RULES.get(operation)
    is_wide = any(isinstance(x, BFPValue) and x.is_wide for x in arguments)
    if rule is None or rule.wide is None or not is_wide:
        return rule
    return Rule(rule.wide, False, entry=rule.entry)


_FLOAT = "it computes in float32, and devices in integers: leave it out of keep_float"
_LOSS = "a loss is no part of a network: leave it out of forward()"
WITHOUT_FORM: dict[TrainingOperation, str] = {
    DROPOUT: "nothing is dropped in evaluation: call eval() of what drops",
    STATES: "states stay in their layers: read the layers' outputs",
    **dict.fromkeys((TO_REAL, FROM_REAL), _FLOAT),
    LOG_VALUES: "devices have the logits of log_softmax: take its values apart outside the network",
    EXPONENTIAL: "devices have exp in a softmax alone: compute it outside the network",
    **dict.fromkeys((CROSS_ENTROPY, WEIGHED_ENTROPY, BINARY_ENTROPY, DIFFERENCE_LOSS), _LOSS),
}
"""Every other operation of training, and what to do about it in a network to be deployed."""
OF_CELL = "a cell hands its states to its caller: use the layer, whose states stay in it"


def without_rule(places: Mapping[str, str]) -> UnsupportedError:
    """The error that lists every operation without a deployed form, and what to do about it."""
    lines = "".join(f"\n  {name}: {what}" for name, what in places.items())
    return UnsupportedError(f"{len(places)} operation(s) cannot be deployed:{lines}")
