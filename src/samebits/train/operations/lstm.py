"""LSTM layers: backpropagation through time with exact sums (docs/spec/training.md 5 and 7).

The input product of all steps is one product; so are, in the backward pass, the pre-activations
(computed again from x and h), the input gradient and the weight gradients. Only the recurrent
products and the cell go step by step.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from samebits import kernels
from samebits.errors import UnsupportedError
from samebits.kernels import ConvShape, conv_shape
from samebits.kernels import lstm as cells
from samebits.kernels.eager import joint, scale
from samebits.kernels.lstm import ARGUMENT_EXPONENT, GATE_EXPONENT, HIDDEN_EXPONENT, Q_GATE
from samebits.spec import formats
from samebits.tables.expression import Variable, apply
from samebits.tables.transfer import transfer_table
from samebits.train.operations.linear import as_image, as_kernel
from samebits.train.tensor import BFPParameter, BFPTensor, Operation, Part, gradient

MAX_HIDDEN = 1 << 14  # 4H products of 16 by 8 bits stay below 2**38
_SUM_BITS = 60  # of `combine`


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


class Lstm(Operation):
    """One layer in one direction, [T, N, I] -> [T, N, H]; saves x and h in one byte an element and
    c in two."""

    @staticmethod
    def forward(
        ctx: Any,
        x: BFPTensor,
        weight_ih: BFPParameter,
        weight_hh: BFPParameter,
        bias_ih: BFPParameter | None,
        bias_hh: BFPParameter | None,
        reverse: bool,
    ) -> BFPTensor:
        h, c, e_c, grid, state = unrolled(x, weight_ih, weight_hh, bias_ih, bias_hh, reverse)
        (codes, e_x), (w_ih, e_ih), (w_hh, e_hh) = (
            x.resolved(),
            weight_ih.parts[0],
            weight_hh.parts[0],
        )
        ctx.save_for_backward(codes, h, c, w_ih, w_hh, *state)
        ctx.exponents, ctx.grid, ctx.reverse = (e_x, e_ih, e_hh, e_c), grid, reverse
        return BFPTensor(h, HIDDEN_EXPONENT)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        g, e_g = gradient(grad)
        x, h, c, w_ih, w_hh, *state = ctx.saved_tensors
        e_x, e_ih, e_hh, e_c = ctx.exponents
        steps, n, size = h.shape
        k, cell, lookup = _services(g)
        rows = x.reshape(steps * n, -1)
        past = _past(h, ctx.reverse)
        acc_h = row_product(k, past.view(steps * n, size), w_hh)
        gates = cell.gates(
            row_product(k, rows, w_ih), acc_h, ctx.grid.bias(state), ctx.grid.shifts, lookup
        ).view(steps, n, 4 * size)
        through_time = _ThroughTime(k, cell, lookup, gates, c, e_c, (w_hh, e_hh))
        order = _order(steps, ctx.reverse)
        d, e_d = through_time.run(g.contiguous(), e_g, order)
        dx = dw_ih = dw_hh = db_ih = db_hh = None
        image = as_image(d.view(steps * n, -1))
        if ctx.needs_input_grad[0]:
            d16, e_16 = k.requantize(image, k.largest_of(image), e_d, 16)
            acc, largest = k.conv_input_grad(d16, as_kernel(w_ih), _shape(rows, w_ih))
            acc, exponent = k.requantize(acc, largest, e_16 + e_ih, 16)
            dx = BFPTensor(acc.permute(0, 2, 3, 1)[0, 0].reshape(x.shape), exponent)
        if ctx.needs_input_grad[1]:
            dw_ih = _weight_grad(k, image, rows, w_ih, e_d + e_x)
        if ctx.needs_input_grad[2]:
            dw_hh = _weight_grad(k, image, past.view(steps * n, size), w_hh, e_d + HIDDEN_EXPONENT)
        if any(ctx.needs_input_grad[3:5]):
            total = k.channel_sum(image)
            db_ih, db_hh = (BFPTensor(*k.shorten(total, k.largest_of(total), e_d)) for _ in "ih")
        return dx, dw_ih, dw_hh, db_ih, db_hh, None


@dataclass(frozen=True)
class _Grid:
    """The exponents at which the pre-activations are summed: `combine` of section 3."""

    exponent: int
    shifts: tuple[int, int, int]  # of the two products to it, of the sum to the tables' argument
    bias_shifts: tuple[int, ...]

    @staticmethod
    def of(e_x: int, e_h: int, e_biases: list[int]) -> _Grid:
        e = max(e_x + 30, e_h + 30, *(e_b + 23 for e_b in e_biases)) - _SUM_BITS
        shifts = (e_x - e, e_h - e, e - ARGUMENT_EXPONENT)
        return _Grid(e, shifts, tuple(e_b - e for e_b in e_biases))

    def bias(self, state: list[Tensor]) -> Tensor | None:
        """The biases [4H] on the grid, from the codes and delayed updates of each."""
        if not self.bias_shifts:
            return None
        pairs = zip(state[::2], state[1::2], self.bias_shifts, strict=True)
        return torch.stack([scale(joint(w, a), shift) for w, a, shift in pairs]).sum(0)


def unrolled(
    x: BFPTensor,
    weight_ih: BFPParameter,
    weight_hh: BFPParameter,
    bias_ih: BFPParameter | None,
    bias_hh: BFPParameter | None,
    reverse: bool,
) -> tuple[Tensor, Tensor, list[int], _Grid, list[Tensor]]:
    """The forward pass: h [T, N, H], c [T, N, H] and its exponents, one a step; the grid of the
    pre-activations, and codes and delayed updates of the biases."""
    (codes, e_x), (w_ih, e_ih), (w_hh, e_hh) = (
        x.resolved(),
        weight_ih.parts[0],
        weight_hh.parts[0],
    )
    biases = [b for b in (bias_ih, bias_hh) if b is not None]
    e_biases = [b.exponent - formats.DELAYED_BITS for b in biases]
    state = [v for b in biases for v in (b.codes, b.delayed)]
    grid = _Grid.of(e_x + e_ih, e_hh + HIDDEN_EXPONENT, e_biases)
    steps, n, size = codes.shape[0], codes.shape[1], w_hh.shape[1]
    k, cell, lookup = _services(codes)
    bias = grid.bias(state)
    acc_x = row_product(k, codes.reshape(steps * n, -1), w_ih).view(steps, n, -1)
    h = torch.empty(steps, n, size, dtype=torch.int8, device=codes.device)
    c = torch.empty(steps, n, size, dtype=torch.int16, device=codes.device)
    e_c = [formats.EXPONENT_MIN] * steps
    last: int | None = None
    for t in _order(steps, reverse):
        acc_h = None if last is None else row_product(k, h[last], w_hh)
        gates = cell.gates(acc_x[t], acc_h, bias, grid.shifts, lookup)
        e_last = formats.EXPONENT_MIN if last is None else e_c[last]
        e_kept, e_new = e_last + GATE_EXPONENT, 2 * GATE_EXPONENT
        e = max(e_kept, e_new) + 30 - _SUM_BITS
        before = None if last is None else c[last]
        acc, largest = cell.state_sum(gates, before, (e_kept - e, e_new - e))
        c[t], e_c[t] = k.requantize(acc, largest, e, 16)
        h[t] = cell.hidden(gates, c[t], e_c[t] - ARGUMENT_EXPONENT, lookup)
        last = t
    return h, c, e_c, grid, state


@dataclass(frozen=True)
class _ThroughTime:
    """The backward recurrence: the gradients of all pre-activations from that of the output."""

    k: Any
    cell: Any
    lookup: Tensor
    gates: Tensor
    c: Tensor
    e_c: list[int]
    weight_hh: Part

    def run(self, g: Tensor, e_g: int, order: list[int]) -> Part:
        """D int32 [T, N, 4H] and its exponent."""
        found: dict[int, Part] = {}
        later: int | None = None
        dc: Part | None = None
        for place in reversed(range(len(order))):
            t = order[place]
            dh = self._hidden(g[t], e_g, None if later is None else found[later])
            dc = self._state(dh, t, later, dc)
            found[t] = self._gates(dh, dc, t, order[place - 1] if place else None)
            later = t
        return self._aligned([found[t] for t in range(len(order))])

    def _aligned(self, parts: list[Part]) -> Part:
        """Parts, one a step, at the largest exponent of those that are not all zero."""
        live = [e for codes, e in parts if e != formats.EXPONENT_MIN or bool(codes.any())]
        exponent = max(live, default=formats.EXPONENT_MIN)
        shifts = [min(e - exponent, 0) for _, e in parts]
        rows = [
            self.k.scale_to(codes, by, 32) if by else codes
            for (codes, _), by in zip(parts, shifts, strict=True)
        ]
        return torch.stack(rows), exponent

    def _hidden(self, g: Tensor, e_g: int, after: Part | None) -> Part:
        """dh of a step; `after`: D of the next."""
        if after is None:
            e = e_g + 31 - _SUM_BITS
            acc, largest = self.cell.hidden_grad_sum(g, None, (e_g - e, 0))
        else:
            (d, e_d), (w, e_w) = after, self.weight_hh
            image = as_image(d)
            d16, e_16 = self.k.requantize(image, self.k.largest_of(image), e_d, 16)
            back, _ = self.k.conv_input_grad(d16, as_kernel(w), _shape(g, w))
            back, e_back = back.permute(0, 2, 3, 1)[0, 0], e_16 + e_w
            e = max(e_g + 31, e_back + 38) - _SUM_BITS
            acc, largest = self.cell.hidden_grad_sum(g, back, (e_g - e, e_back - e))
        codes, exponent = self.k.requantize(acc, largest, e, 16)
        return codes, exponent

    def _state(self, dh: Part, t: int, later: int | None, dc: Part | None) -> Part:
        """dc of step t from dh and from dc of the step after it."""
        e_through = dh[1] + 3 * GATE_EXPONENT
        e_kept = e_through + 30 if dc is None else dc[1] + GATE_EXPONENT
        e = max(e_through + 60, e_kept + 30) - _SUM_BITS
        acc, largest = self.cell.state_grad_sum(
            *(dh[0], self.gates[t], self.c[t], self.e_c[t] - ARGUMENT_EXPONENT, self.lookup),
            None if dc is None else (dc[0], self.gates[later]),
            (e_through - e, e_kept - e),
        )
        codes, exponent = self.k.requantize(acc, largest, e, 16)
        return codes, exponent

    def _gates(self, dh: Part, dc: Part, t: int, before: int | None) -> Part:
        """D of step t; `before`: the step whose cell state it started from."""
        e_before = formats.EXPONENT_MIN if before is None else self.e_c[before]
        e_i = e_g = dc[1] + 3 * GATE_EXPONENT
        e_f, e_o = dc[1] + e_before + 2 * GATE_EXPONENT, dh[1] + 3 * GATE_EXPONENT
        e = max(e_i, e_f, e_o)
        acc, largest = self.cell.gate_grads(
            *(dh[0], dc[0], self.gates[t], self.c[t], self.e_c[t] - ARGUMENT_EXPONENT),
            *(self.lookup, None if before is None else self.c[before]),
            (e_i - e, e_f - e, e_g - e, e_o - e),
        )
        codes, exponent = self.k.shorten(acc, largest, e)
        return codes, exponent


def _services(like: Tensor) -> tuple[Any, Any, Tensor]:
    """Kernels, cell functions and tables for a device."""
    return kernels.of(like), cells.of(like), tables(str(like.device))


def _order(steps: int, reverse: bool) -> list[int]:
    return list(reversed(range(steps)) if reverse else range(steps))


def _past(h: Tensor, reverse: bool) -> Tensor:
    """The hidden state before every step; zero before the first."""
    zero = torch.zeros_like(h[:1])
    return torch.cat([h[1:], zero] if reverse else [zero, h[:-1]])


def _shape(rows: Tensor, weight: Tensor) -> ConvShape:
    return conv_shape((1, weight.shape[1], 1, rows.shape[0]), (*weight.shape, 1, 1))


def row_product(k: Any, rows: Tensor, weight: Tensor) -> Tensor:
    """Exact sums [rows, outputs]."""
    acc, _ = k.conv(as_image(rows), as_kernel(weight), _shape(rows, weight))
    sums: Tensor = acc.permute(0, 2, 3, 1)[0, 0]
    return sums


def _weight_grad(k: Any, image: Tensor, rows: Tensor, weight: Tensor, exponent: int) -> BFPTensor:
    acc, largest = k.conv_weight_grad(image, as_image(rows), _shape(rows, weight))
    codes, exponent = k.shorten(acc, largest, exponent)
    return BFPTensor(codes.view(weight.shape), exponent, min(largest, formats.Q32))


def lstm(
    x: BFPTensor,
    weight_ih: BFPParameter,
    weight_hh: BFPParameter,
    bias_ih: BFPParameter | None = None,
    bias_hh: BFPParameter | None = None,
    reverse: bool = False,
) -> BFPTensor:
    """Hidden states [T, N, H] of a sequence [T, N, I]; `reverse` takes its last step first.

    Parameters as in torch.nn.LSTM: weights [4H, I] and [4H, H], biases [4H], gates i, f, g, o.
    """
    size, features = weight_hh.shape[1], weight_ih.shape[1]
    if x.dim() != 3 or x.shape[2] != features or x.numel() == 0:
        raise UnsupportedError(
            f"LSTM: expected a sequence of at least one step of [samples, {features}], found shape "
            f"{tuple(x.shape)}"
        )
    if size > MAX_HIDDEN:
        raise UnsupportedError(f"LSTM: expected at most {MAX_HIDDEN} units, found {size}")
    return Lstm.apply(x, weight_ih, weight_hh, bias_ih, bias_hh, reverse)
