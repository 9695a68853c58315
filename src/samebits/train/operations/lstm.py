"""LSTM layers: backpropagation through time with exact sums (docs/spec/training.md 5 and 7).

The input product of all steps is one product; so are, in the backward pass, the pre-activations
(computed again from x and h), the input gradient and the weight gradients. Only the recurrent
products and the cell go step by step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from samebits import kernels
from samebits.errors import UnsupportedError
from samebits.kernels import ConvShape, Kernels, conv_shape
from samebits.kernels.protocol import (
    ARGUMENT_EXPONENT,
    GATE_EXPONENT,
    HIDDEN_EXPONENT,
    Q_GATE,
    Part,
)
from samebits.kernels.rows import Exponent, maximum
from samebits.spec import formats
from samebits.tables.expression import Variable, apply
from samebits.tables.transfer import transfer_table
from samebits.train.operations.linear import as_image, as_input, as_kernel
from samebits.train.operations.products import (
    bias_gradient,
    by_output,
    check_kind,
    for_input,
    for_weight,
    weight_gradient,
)
from samebits.train.tensor import (
    BFPParameter,
    BFPTensor,
    TensorOperation,
    as_gradient,
    gradient,
)

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


class Lstm(TensorOperation):
    """One layer in one direction, [T, N, I] -> [T, N, H].

    Saves x and h in one byte an element and c in two; the gates are computed again.
    """

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
        """Run all steps; `reverse` takes the last one first."""
        check_kind(x, weight_ih)
        run = unrolled(x, weight_ih, weight_hh, bias_ih, bias_hh, reverse)
        (codes, e_x), (w_ih, e_ih), (w_hh, e_hh) = (
            x.resolved(),
            weight_ih.parts[0],
            weight_hh.parts[0],
        )
        ctx.save_for_backward(codes, run.h, run.c, w_ih, w_hh, *run.state)
        ctx.exponents, ctx.grid, ctx.reverse = (e_x, e_ih, e_hh, run.e_c), run.grid, reverse
        ctx.bits = weight_ih.widths.gradients
        if isinstance(run.e_c[0], int):
            return BFPTensor(run.h, HIDDEN_EXPONENT)
        own = torch.full((*run.h.shape[:2], 1), HIDDEN_EXPONENT, device=run.h.device)
        return BFPTensor(run.h, own)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        """Gates of all steps again, the recurrence through time, then one product a gradient."""
        g, e_g = gradient(grad)
        x, h, c, w_ih, w_hh, *state = ctx.saved_tensors
        e_x, e_ih, e_hh, e_c = ctx.exponents
        steps, n, size = h.shape
        k, lookup = kernels.of(g), tables(str(g.device))
        rows = x.reshape(steps * n, -1)
        past = _past(h, ctx.reverse).view(steps * n, size)
        acc_x, acc_h = row_product(k, rows, w_ih), row_product(k, past, w_hh)
        grid = ctx.grid.flat()
        gates = k.lstm_gates(acc_x, acc_h, grid.bias(k, state), grid.shifts, lookup)
        through_time = _ThroughTime(
            k, lookup, gates.view(steps, n, -1), c, e_c, (w_hh, e_hh), ctx.bits
        )
        d, e_d = through_time.run(g.contiguous(), e_g, _order(steps, ctx.reverse))
        dx = dw_ih = dw_hh = db_ih = db_hh = None
        if ctx.needs_input_grad[0]:
            g16, exponent = for_input(d, e_d, e_ih, ctx.bits)
            acc, largest = k.conv_input_grad(
                as_image(g16.view(steps * n, -1)), as_kernel(w_ih), _shape(rows, w_ih)
            )
            down = as_input(acc, rows).reshape(x.shape)
            dx = BFPTensor(*as_gradient(k.requantize(down, largest, exponent, ctx.bits)))
        if ctx.needs_input_grad[1]:
            dw_ih = _weight_gradient(d, e_d, x, e_x, w_ih)
        if ctx.needs_input_grad[2]:
            e_h = HIDDEN_EXPONENT
            dw_hh = _weight_gradient(d, e_d, past.view(h.shape), e_h, w_hh)
        if any(ctx.needs_input_grad[3:5]):
            part = bias_gradient(d, e_d).resolved()
            db_ih, db_hh = (
                BFPTensor(*part) if wanted else None for wanted in ctx.needs_input_grad[3:5]
            )
        return dx, dw_ih, dw_hh, db_ih, db_hh, None


def _weight_gradient(
    d: Tensor, e_d: Exponent, x: Tensor, e_x: Exponent, weight: Tensor
) -> BFPTensor:
    """The gradient of a weight from d [T, N, 4H] and x [T, N, inputs], over all steps."""
    t, exponent = for_weight(d, e_d, e_x)
    image, rows = as_image(t.flatten(0, 1)), x.flatten(0, 1)
    return weight_gradient(image, as_image(rows), _shape(rows, weight), weight, exponent)


@dataclass(frozen=True)
class _Grid:
    """The exponents at which the pre-activations are summed: `combine` of section 3.

    Integers, or tensors [T, N, 4H] where rows have exponents of their own.
    """

    shifts: tuple[Exponent, Exponent, Exponent]  # of the products to it, of the sum to the tables'
    bias_shifts: tuple[Exponent, ...]

    @staticmethod
    def of(e_x: Exponent, e_h: Exponent, e_biases: list[int]) -> _Grid:
        """The grid for the exponents of the products with x and with h, and of the biases."""
        e = maximum(e_x + 30, e_h + 30, *(e_b + 23 for e_b in e_biases)) - _SUM_BITS
        shifts = (e_x - e, e_h - e, e - ARGUMENT_EXPONENT)
        return _Grid(shifts, tuple(e_b - e for e_b in e_biases))

    def at(self, step: int) -> _Grid:
        """The grid of one step."""
        return self._each(lambda e: e[step])

    def flat(self) -> _Grid:
        """The grid of all steps one after the other, [T * N, 4H]."""
        return self._each(lambda e: e.flatten(0, 1))

    def _each(self, change: Callable[[Tensor], Tensor]) -> _Grid:
        def changed(e: Exponent) -> Exponent:
            return e if isinstance(e, int) else change(e)

        a, b, c = map(changed, self.shifts)
        return _Grid((a, b, c), tuple(map(changed, self.bias_shifts)))

    def bias(self, k: Kernels, state: list[Tensor]) -> Tensor | None:
        """The sum of the biases [4H] on the grid, from the codes and delayed updates of each."""
        if not self.bias_shifts:
            return None
        pairs = zip(state[::2], state[1::2], self.bias_shifts, strict=True)
        return torch.stack([k.scale(k.joint(w, a), shift) for w, a, shift in pairs]).sum(0)


@dataclass(frozen=True)
class Unrolled:
    """A forward pass over T steps: states, and what its backward pass needs again.

    h int8 and c int16, [T, N, H]; e_c: the exponent of c in each step; state: codes and delayed
    updates of the biases.
    """

    h: Tensor
    c: Tensor
    e_c: list[Exponent]
    grid: _Grid
    state: list[Tensor]


def unrolled(
    x: BFPTensor,
    weight_ih: BFPParameter,
    weight_hh: BFPParameter,
    bias_ih: BFPParameter | None,
    bias_hh: BFPParameter | None,
    reverse: bool,
) -> Unrolled:
    """The forward pass of one layer in one direction, [T, N, I] -> [T, N, H] (training.md 5)."""
    (codes, e_x), (w_ih, e_ih), (w_hh, e_hh) = (
        x.resolved(),
        weight_ih.parts[0],
        weight_hh.parts[0],
    )
    biases = [b for b in (bias_ih, bias_hh) if b is not None]
    e_biases = [b.whole()[1] - formats.DELAYED_BITS for b in biases]
    state = [v for b in biases for v in (b.codes, b.delayed)]
    steps, n, size = codes.shape[0], codes.shape[1], w_hh.shape[1]
    e_first, e_second = e_x + by_output(e_ih, 3), HIDDEN_EXPONENT + by_output(e_hh, 3)
    e_zero: Exponent = formats.EXPONENT_MIN  # of c before the first step
    if not (isinstance(e_first, int) and isinstance(e_second, int)):
        whole = (steps, n, 4 * size)
        e_first, e_second = (torch.as_tensor(e).expand(whole) for e in (e_first, e_second))
        e_zero = torch.full((n, 1), formats.EXPONENT_MIN, device=codes.device)
    grid = _Grid.of(e_first, e_second, e_biases)
    k, lookup = kernels.of(codes), tables(str(codes.device))
    one = grid.bias(k, state) if isinstance(e_zero, int) else None
    acc_x = row_product(k, codes.reshape(steps * n, -1), w_ih).view(steps, n, -1)
    h = torch.empty(steps, n, size, dtype=torch.int8, device=codes.device)
    c = torch.empty(steps, n, size, dtype=torch.int16, device=codes.device)
    e_c = [e_zero] * steps
    last: int | None = None
    for t in _order(steps, reverse):
        acc_h = None if last is None else row_product(k, h[last], w_hh)
        own = grid.at(t)
        bias = one if isinstance(e_zero, int) else own.bias(k, state)
        gates = k.lstm_gates(acc_x[t], acc_h, bias, own.shifts, lookup)
        e_last = e_zero if last is None else e_c[last]
        e_kept, e_new = e_last + GATE_EXPONENT, 2 * GATE_EXPONENT
        e = maximum(e_kept, e_new) + 30 - _SUM_BITS
        before = None if last is None else c[last]
        acc, largest = k.lstm_state_sum(gates, before, (e_kept - e, e_new - e))
        c[t], e_c[t] = k.requantize(acc, largest, e, 16)
        h[t] = k.lstm_hidden(gates, c[t], e_c[t] - ARGUMENT_EXPONENT, lookup)
        last = t
    return Unrolled(h, c, e_c, grid, state)


@dataclass(frozen=True)
class _ThroughTime:
    """The backward recurrence: the gradients of all pre-activations from that of the output."""

    k: Kernels
    lookup: Tensor
    gates: Tensor
    c: Tensor
    e_c: list[Exponent]
    weight_hh: Part
    bits: int  # of D where it meets the weight

    def run(self, g: Tensor, e_g: Exponent, order: list[int]) -> Part:
        """D int32 [T, N, 4H] and its exponent, of the output's gradient g [T, N, H].

        order: the steps as the forward pass took them; this goes through them from the last to the
        first (training.md 7, steps 1 to 3), and then aligns the gradients of all steps.
        """
        found: dict[int, Part] = {}
        later: int | None = None
        dc: Part | None = None
        for place in reversed(range(len(order))):
            t = order[place]
            e_t = e_g if isinstance(e_g, int) else e_g.expand(*g.shape[:2], 1)[t]
            dh = self._hidden(g[t], e_t, None if later is None else found[later])
            dc = self._state(dh, t, later, dc)
            found[t] = self._gates(dh, dc, t, order[place - 1] if place else None)
            later = t
        return self._aligned([found[t] for t in range(len(order))])

    def _aligned(self, parts: list[Part]) -> Part:
        """Parts, one a step, at the largest exponent of those that are not all zero.

        With exponents by rows they stay what they are, [T, N, 1].
        """
        own = [e for _, e in parts if isinstance(e, Tensor)]
        if own:
            return torch.stack([codes for codes, _ in parts]), torch.stack(own)
        parts = [(codes, int(e)) for codes, e in parts]
        live = [e for codes, e in parts if e != formats.EXPONENT_MIN or bool(codes.any())]
        exponent = max(live, default=formats.EXPONENT_MIN)
        shifts = [min(e - exponent, 0) for _, e in parts]
        rows = [
            self.k.scale_to(codes, by, 32) if by else codes
            for (codes, _), by in zip(parts, shifts, strict=True)
        ]
        return torch.stack(rows), exponent

    def _hidden(self, g: Tensor, e_g: Exponent, after: Part | None) -> Part:
        """dh of a step; `after`: D of the next."""
        if not isinstance(self.e_c[0], int) and isinstance(e_g, int):
            e_g = torch.full_like(self.e_c[0], e_g)
        if after is None:
            e = e_g + 31 - _SUM_BITS
            return self.k.requantize(*self.k.lstm_hidden_grad_sum(g, None, (e_g - e, 0)), e, 16)
        w, e_w = self.weight_hh
        g16, e_back = for_input(*after, e_w, self.bits)
        product, _ = self.k.conv_input_grad(as_image(g16), as_kernel(w), _shape(g, w))
        e = maximum(e_g + 31, e_back + 38) - _SUM_BITS
        shifts = (e_g - e, e_back - e)
        acc = self.k.lstm_hidden_grad_sum(g, as_input(product, g), shifts)
        return self.k.requantize(*acc, e, 16)

    def _state(self, dh: Part, t: int, later: int | None, dc: Part | None) -> Part:
        """dc of step t from dh and from dc of the step after it."""
        e_through = dh[1] + 3 * GATE_EXPONENT
        e_kept = e_through + 30 if dc is None else dc[1] + GATE_EXPONENT
        e = maximum(e_through + 60, e_kept + 30) - _SUM_BITS
        acc = self.k.lstm_state_grad_sum(
            *(dh[0], self.gates[t], self.c[t], self.e_c[t] - ARGUMENT_EXPONENT, self.lookup),
            None if dc is None else (dc[0], self.gates[later]),
            (e_through - e, e_kept - e),
        )
        return self.k.requantize(*acc, e, 16)

    def _gates(self, dh: Part, dc: Part, t: int, before: int | None) -> Part:
        """D of step t; `before`: the step whose cell state it started from."""
        e_before: Exponent = formats.EXPONENT_MIN if before is None else self.e_c[before]
        e_i = e_g = dc[1] + 3 * GATE_EXPONENT
        e_f, e_o = dc[1] + e_before + 2 * GATE_EXPONENT, dh[1] + 3 * GATE_EXPONENT
        e = maximum(e_i, e_f, e_o)
        acc = self.k.lstm_gate_grads(
            *(dh[0], dc[0], self.gates[t], self.c[t], self.e_c[t] - ARGUMENT_EXPONENT),
            *(self.lookup, None if before is None else self.c[before]),
            (e_i - e, e_f - e, e_g - e, e_o - e),
        )
        return self.k.shorten(*acc, e)


def _order(steps: int, reverse: bool) -> list[int]:
    return list(reversed(range(steps)) if reverse else range(steps))


def _past(h: Tensor, reverse: bool) -> Tensor:
    """The hidden state before every step; zero before the first."""
    zero = torch.zeros_like(h[:1])
    return torch.cat([h[1:], zero] if reverse else [zero, h[:-1]])


def _shape(rows: Tensor, weight: Tensor) -> ConvShape:
    return conv_shape((1, weight.shape[1], 1, rows.shape[0]), (*weight.shape, 1, 1))


def row_product(k: Kernels, rows: Tensor, weight: Tensor) -> Tensor:
    """Exact sums [rows, outputs] of 8-bit rows [rows, inputs] and a weight [outputs, inputs]."""
    acc, _ = k.conv(as_image(rows), as_kernel(weight), _shape(rows, weight))
    return as_input(acc, rows)


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
    Raises UnsupportedError for an empty sequence, other shapes, or more than 2**14 units.
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
