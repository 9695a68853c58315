"""Deployed layers of LSTM, GRU and RNN cells (docs/spec/training.md section 11): gates and states
of frozen exponents, one rounding each, as in quantized graphs."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from samebits import kernels
from samebits.errors import UnsupportedError
from samebits.kernels import rows
from samebits.kernels.protocol import (
    ARGUMENT_EXPONENT,
    CODE_TYPE,
    GATE_EXPONENT,
    HIDDEN_EXPONENT,
    Part,
)
from samebits.spec import formats
from samebits.tables.expression import Variable, apply
from samebits.tables.transfer import transfer_table
from samebits.train.deployed.rounding import saturated
from samebits.train.deployed.weights import (
    FrozenWeights,
    exponents_of,
    frozen_rows,
    real_values,
)
from samebits.train.operations.gru import GruCell, gates_of
from samebits.train.operations.lstm import LstmCell
from samebits.train.operations.recurrence import Values, layer_of, run_cell, states_of, walked
from samebits.train.operations.recurrent import row_product
from samebits.train.operations.rnn import RnnCell
from samebits.train.value import BFPValue, Weight

_LOW, _HIGH = -(1 << 15), (1 << 15) - 1
_EXACT_BITS = 53  # of binary64
_ONE = 1 << -GATE_EXPONENT


@dataclass
class CellMemory:
    """States of the recurrent layers of one run, layer after layer in the order of execution.

    before: those it starts from (none: zeros); after: those it ends with. Of an LSTM they are h
    (int8) and c (int16), of a GRU s (int16), of an RNN h (int8), all [N, H].
    """

    before: Sequence[Tensor] = ()
    after: list[Tensor] = field(default_factory=list)

    def start(self, like: Tensor, size: int, bits: Sequence[int]) -> list[Tensor]:
        """The states of the next layer, of so many bits each."""
        if self.before:
            return list(self.before[len(self.after) :][: len(bits)])
        shape = like.shape[1], size
        return [torch.zeros(shape, dtype=CODE_TYPE[b], device=like.device) for b in bits]


Parameters = Sequence[Weight | None]
"""weight_ih, weight_hh, bias_ih and bias_hh of a layer in one direction; biases may be None."""


@dataclass(frozen=True)
class RecurrentWeights:
    """The constants of a layer's sums: of x, which take the biases, and of h."""

    of_x: FrozenWeights
    of_h: FrozenWeights


def weights_of(
    kind: type[DeployedCell],
    site: int,
    x: BFPValue,
    parameters: Parameters,
) -> RecurrentWeights:
    """The constants of a layer. Raises UnsupportedError where its sums do not fit 32 bits."""
    weight_ih, weight_hh, bias_ih, bias_hh = parameters
    assert weight_ih is not None
    assert weight_hh is not None
    count, size = weight_hh.shape
    alone = count - kind.apart * size  # rows from here on add a bias to the product of h
    at_x, at_h = real_values(count, bias_ih), real_values(count, bias_hh)
    at_x = [a + b if i < alone else a for i, (a, b) in enumerate(zip(at_x, at_h, strict=True))]
    at_h = [b * (i >= alone) for i, b in enumerate(at_h)]
    sides = []
    for side, e, weight, biases in (
        ("x", x.whole()[1], weight_ih, at_x),
        ("h", kind(site).hidden_exponent, weight_hh, at_h),
    ):
        own = weight.parts[0][0], [e + e_w for e_w in exponents_of(weight)]
        sides.append(frozen_rows(*own, biases, f"gates whose products of {side} and biases"))
    return RecurrentWeights(*sides)


@dataclass(frozen=True)
class StepSums:
    """The exact sums of x and of h in a step, int64 [N, gates * H], and exponents by column."""

    of_x: Tensor
    of_h: Tensor
    e_x: Tensor
    e_h: Tensor

    def gates(self, count: int) -> list[StepSums]:
        """Those of every gate."""
        parts = (t.chunk(count, -1) for t in (self.of_x, self.of_h, self.e_x, self.e_h))
        return [StepSums(*own) for own in zip(*parts, strict=True)]

    def total(self) -> tuple[Tensor, Tensor]:
        """The exact sum of both, and its exponents."""
        return _added((self.of_x, self.of_h), (self.e_x, self.e_h))

    def looked_up(self, function: str) -> Tensor:
        """The function of the sum of both, which is rounded to an argument; int64."""
        total, exponent = self.total()
        argument = saturated(total, exponent - ARGUMENT_EXPONENT, 16).long()
        return _looked_up(function, argument, ARGUMENT_EXPONENT)


@dataclass(frozen=True)
class DeployedCell:
    """Base of the cells.

    site:  the frozen exponent
    bits:  of its states
    apart: how many gates, counted from the last, keep the bias of h beside the product of h
    """

    site: int
    bits: ClassVar[tuple[int, ...]] = (8,)
    apart: ClassVar[int] = 0

    @property
    def hidden_exponent(self) -> int:
        """The exponent of h."""
        return HIDDEN_EXPONENT

    def hidden(self, states: Sequence[Tensor]) -> Tensor:
        """h, int8 [N, H], of the states."""
        return states[0]

    def after(self, sums: StepSums, states: Sequence[Tensor]) -> list[Tensor]:
        """The states after a step; every cell defines it."""
        raise TypeError(f"{type(self).__name__} defines no after()")


class LstmSteps(DeployedCell):
    """States h and c; the site is that of c."""

    bits = (8, 16)

    def after(self, sums: StepSums, states: Sequence[Tensor]) -> list[Tensor]:
        _, c = states
        of_i, of_f, of_g, of_o = sums.gates(4)
        i, f, o = (gate.looked_up("Sigmoid") for gate in (of_i, of_f, of_o))
        g = of_g.looked_up("Tanh")
        exponents = (torch.tensor([e], device=c.device) for e in (self.site, GATE_EXPONENT))
        total, e = _added((f * c, i * g), [GATE_EXPONENT + own for own in exponents])
        c = saturated(total, e - self.site, 16)
        out = o * _looked_up("Tanh", c.long(), self.site)
        return [saturated(out, 2 * GATE_EXPONENT - HIDDEN_EXPONENT), c]


class GruSteps(DeployedCell):
    """One state s, of which h is a narrower form; the site is that of the product that r lets in.

    Both are bounded by 1, since s starts at zero and every step gives a mean of it and of a tanh.
    """

    bits = (16,)
    apart = 1

    def hidden(self, states: Sequence[Tensor]) -> Tensor:
        return saturated(states[0], GATE_EXPONENT - HIDDEN_EXPONENT)

    def after(self, sums: StepSums, states: Sequence[Tensor]) -> list[Tensor]:
        (s,) = states
        of_r, of_z, of_n = sums.gates(3)
        r, z = (gate.looked_up("Sigmoid") for gate in (of_r, of_z))
        m = saturated(of_n.of_h, of_n.e_h - self.site, 16)
        let_in = torch.full_like(of_n.e_h, GATE_EXPONENT + self.site)
        n = StepSums(of_n.of_x, r * m, of_n.e_x, let_in).looked_up("Tanh")
        return [saturated(z * s + (_ONE - z) * n, GATE_EXPONENT, 16)]


class TanhSteps(DeployedCell):
    """One state, h; the site is its own."""

    @property
    def hidden_exponent(self) -> int:
        return self.site

    def after(self, sums: StepSums, states: Sequence[Tensor]) -> list[Tensor]:
        return [saturated(sums.looked_up("Tanh"), GATE_EXPONENT - self.site)]


class ReluSteps(TanhSteps):
    """The same with relu."""

    def after(self, sums: StepSums, states: Sequence[Tensor]) -> list[Tensor]:
        total, e = sums.total()
        return [saturated(total.clamp(min=0), e - self.site)]


def layer(
    kind: type[DeployedCell],
    site: int,
    x: BFPValue,
    parameters: Parameters,
    reverse: bool,
    memory: CellMemory | None = None,
) -> Part:
    """One layer in one direction, [T, N, I] -> [T, N, H].

    Every sum is exact, and rounded once to 16 bits (the hidden state to 8): int32 sums of products
    at two exponents, at most 20 apart, have at most 53 bits together. Raises UnsupportedError
    where they are further apart.
    """
    cell, codes = kind(site), x.whole()[0]
    own = weights_of(kind, site, x, parameters)
    steps, n, size = codes.shape[0], codes.shape[1], own.of_h.codes.shape[1]
    offsets_x, offsets_h, e_x, e_h = (
        torch.tensor(values, device=codes.device)
        for values in (own.of_x.offsets, own.of_h.offsets, own.of_x.exponents, own.of_h.exponents)
    )
    products = (_product(codes.reshape(steps * n, -1), own.of_x.codes) + offsets_x).view(
        steps, n, -1
    )
    memory = memory or CellMemory()
    states = memory.start(codes, size, kind.bits)
    h, found = cell.hidden(states), dict[int, Tensor]()
    for t in reversed(range(steps)) if reverse else range(steps):
        of_h = _product(h, own.of_h.codes) + offsets_h
        states = cell.after(StepSums(products[t], of_h, e_x, e_h), states)
        h = found[t] = cell.hidden(states)
    memory.after += states
    return torch.stack([found[t] for t in range(steps)]), cell.hidden_exponent


# --- as operations of training ------------------------------------------------------------------


TrainedCell = LstmCell | GruCell | RnnCell


def stepped(
    site: int,
    cell: TrainedCell,
    x: BFPValue,
    *arguments: Any,
    memory: CellMemory | None = None,
) -> Part:
    """`layer` of the arguments of the training operation; deployment has refused given states."""
    return layer(kind_of(cell), site, x, arguments[:4], arguments[4], memory)


def kind_of(cell: TrainedCell) -> type[DeployedCell]:
    """The deployed form of a cell."""
    if isinstance(cell, RnnCell):
        return ReluSteps if cell.relu else TanhSteps
    return GruSteps if isinstance(cell, GruCell) else LstmSteps


def chosen(cell: TrainedCell, *arguments: Any) -> tuple[BFPValue, int | None]:
    """The output of a layer in the training arithmetic, and the exponent to freeze.

    That is the largest of an LSTM's cell states in the steps, of the products that a GRU lets in,
    or of an RNN's h, of those that are not all zero; None if all are.
    """
    if isinstance(cell, GruCell):
        watched = _Watched()
        found = walked(watched, layer_of(watched, *arguments))
        assert found.h is not None
        return BFPValue(*found.h), _largest(watched.found)
    (output, _), (states, exponents, *_) = run_cell(cell, *arguments)
    parts = states_of(states, exponents) if isinstance(cell, LstmCell) else [output.resolved()]
    return output, _largest(parts)


@dataclass(frozen=True)
class _Watched(GruCell):
    """A GRU that keeps the products of all steps that r lets in."""

    found: list[Part] = field(default_factory=list)

    def after(self, values: Values, before: Part) -> tuple[Part, Part]:
        self.found.append(gates_of(values).m)
        return super().after(values, before)


def _largest(parts: Sequence[Part]) -> int | None:
    """The largest exponent of parts that are not all zero."""
    live = [rows.largest_exponent(codes, e) for codes, e in parts]
    return max((e for e in live if e is not None), default=None)


# --- sums and tables ----------------------------------------------------------------------------


def _product(rows: Tensor, weight: Tensor) -> Tensor:
    """Exact sums int64 [rows, outputs]."""
    return row_product(kernels.of(rows), rows, weight).long()


def _added(parts: Sequence[Tensor], exponents: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The exact sum of two int64 tensors of 31 bits, and its exponents.

    exponents: of the columns of both, int64. Raises UnsupportedError where the sum of a column
    could have more than 53 bits, those of a binary64.
    """
    first, second = exponents
    apart = (first - second).abs()
    if int(apart.max()) > _EXACT_BITS - 33:
        worst = int(apart.argmax())
        raise UnsupportedError(
            f"recurrent layer: expected scales at most 2**{_EXACT_BITS - 33} apart in a sum, found "
            f"exponents {(int(first[worst]), int(second[worst]))}: its values are too large or too "
            "small to be deployed"
        )
    least = torch.minimum(first, second)
    return (parts[0].long() << (first - least)) + (parts[1].long() << (second - least)), least


def _looked_up(name: str, codes: Tensor, exponent: int) -> Tensor:
    """sat16(rne(f(code * 2**exponent) * 2**15)) as int64."""
    return gate_table(name, exponent, str(codes.device))[codes - _LOW].long()


@functools.lru_cache(maxsize=64)
def gate_table(name: str, exponent: int, device: str) -> Tensor:
    """The 65,536 codes of a function of codes of an exponent, int16."""
    source, target = ((formats.power(e), 0, _LOW, _HIGH) for e in (exponent, GATE_EXPONENT))
    codes = transfer_table(apply(name, Variable()), source, target).codes
    return torch.tensor(codes, dtype=torch.int16, device=device)
