"""LSTM layers: backpropagation through time with exact sums (docs/spec/training.md 5 and 7).

The pre-activations of all steps are computed again from x and h in one product each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from samebits import kernels
from samebits.kernels import Kernels
from samebits.kernels.protocol import (
    ARGUMENT_EXPONENT,
    GATE_EXPONENT,
    HIDDEN_EXPONENT,
    CellStep,
    Part,
)
from samebits.kernels.rows import Exponent, maximum
from samebits.kernels.rows import largest as largest_rows
from samebits.spec import formats
from samebits.train.operation import OperationCall, TrainingOperation
from samebits.train.operations.products import by_output, check_kind
from samebits.train.operations.recurrent import (
    Gradients,
    at_one_exponent,
    back_product,
    check_sequence,
    check_state,
    first_state,
    order_of,
    own_exponent,
    row_product,
    tables,
)
from samebits.train.tensor import BFPParameter, BFPTensor
from samebits.train.value import SUM_BITS, BFPValue, Weight, bfp32, combined, requantized


def _forward(
    x: BFPValue,
    weight_ih: Weight,
    weight_hh: Weight,
    bias_ih: Weight | None,
    bias_hh: Weight | None,
    reverse: bool,
    h: BFPValue | None = None,
    c: BFPValue | None = None,
) -> tuple[tuple[BFPValue, BFPValue], tuple[Any, ...]]:
    """One layer in one direction, [T, N, I] -> [T, N, H], and c after the last step, [N, H].

    `reverse` takes the last step first. h, c [N, H]: before it. Saves x and h in one byte an
    element and c in two; the gates are computed again.
    """
    check_kind(x, weight_ih)
    run = unrolled(x, weight_ih, weight_hh, bias_ih, bias_hh, reverse, h, c)
    (h_0, e_h), (c_0, e_first) = run.first
    end = order_of(len(run.c), reverse)[-1]
    saved = (run.c, run.e_c, h_0, e_h, c_0, e_first, run.grid, run.first_grid)
    return (run.output, BFPValue(run.c[end], run.e_c[end])), saved


def _gradient(
    call: OperationCall, grad: BFPValue | None, at_last: BFPValue | None
) -> tuple[Any, ...]:
    """Gates of all steps again, the recurrence through time, then one product a gradient."""
    of_x, weight_ih, weight_hh, *biases, reverse = call.arguments[:6]
    (x, e_x), h = of_x.resolved(), call.output[0].codes
    (w_ih, e_ih), (w_hh, e_hh) = weight_ih.parts[0], weight_hh.parts[0]
    c, e_c, h_0, e_h, c_0, e_first, whole, own = call.saved
    bits = weight_ih.widths.gradients
    steps, n, size = h.shape
    k, lookup, order = kernels.of(h), tables(str(h.device)), order_of(steps, reverse)
    past = _past(h, reverse)
    acc_x = row_product(k, x.reshape(steps * n, -1), w_ih)
    acc_h = row_product(k, past.view(steps * n, size), w_hh)
    grid, first, state = whole.flat(), order[0], _states(*biases)
    gates = k.lstm_gates(acc_x, acc_h, grid.bias(k, state), grid.shifts, lookup)
    gates = gates.view(steps, n, -1)
    hidden: Part = past, HIDDEN_EXPONENT
    if h_0 is not None:
        acc = acc_x.view(steps, n, -1)[first], row_product(k, h_0, w_hh)
        gates[first] = k.lstm_gates(*acc, own.bias(k, state), own.shifts, lookup)
        hidden = _with_first(past, h_0, e_h, first)
    through_time = _ThroughTime(k, lookup, gates, c, e_c, (c_0, e_first), (w_hh, e_hh), bits)
    d = through_time.run(grad, at_last, order)
    parts = Gradients(d, d, (x, e_x), hidden, ((w_ih, e_ih), (w_hh, e_hh)), bits)
    needs = [*call.wanted, False, False]
    before = through_time.before_first(first, needs[6:8])
    given = len(call.arguments) - 6
    return *parts.wanted(needs[:5]), None, *before[:given]


LSTM = TrainingOperation("Lstm", _forward, _gradient, reads=(0, "w", 3, 4, "y"), saves=True)


def _states(*biases: Weight | None) -> list[Tensor]:
    """Codes and delayed updates of the biases that there are."""
    return [v for b in biases if b is not None for v in (b.codes, b.delayed)]


def _with_first(past: Tensor, h: Tensor, e_h: Exponent, first: int) -> Part:
    """The hidden states before all steps, of which the first had an exponent of its own."""
    own: list[Exponent] = [HIDDEN_EXPONENT] * len(past)
    if isinstance(e_h, Tensor):
        own = [torch.full_like(e_h, HIDDEN_EXPONENT)] * len(past)
    parts = [(h, e_h) if t == first else (past[t], e) for t, e in enumerate(own)]
    return at_one_exponent(parts, 8)


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
        e = maximum(e_x + 30, e_h + 30, *(e_b + 23 for e_b in e_biases)) - SUM_BITS
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

    h int8 and c int16, [T, N, H]; e_c: the exponent of c in each step; grid: of all steps;
    first_grid: of the first, where h is given before it; first: h and c before the first step, no
    tensors where they are zero.
    """

    h: Tensor
    c: Tensor
    e_c: list[Exponent]
    grid: _Grid
    first_grid: _Grid | None
    first: tuple[tuple[Tensor | None, Exponent], tuple[Tensor | None, Exponent]]

    @property
    def output(self) -> BFPValue:
        """h."""
        if isinstance(self.e_c[0], int):
            return BFPValue(self.h, HIDDEN_EXPONENT)
        own = torch.full((*self.h.shape[:2], 1), HIDDEN_EXPONENT, device=self.h.device)
        return BFPValue(self.h, own)


def unrolled(
    x: BFPValue,
    weight_ih: Weight,
    weight_hh: Weight,
    bias_ih: Weight | None,
    bias_hh: Weight | None,
    reverse: bool,
    h_0: BFPValue | None = None,
    c_0: BFPValue | None = None,
) -> Unrolled:
    """The forward pass of one layer in one direction, [T, N, I] -> [T, N, H] (training.md 5)."""
    (codes, e_x), (w_ih, e_ih), (w_hh, e_hh) = (
        x.resolved(),
        weight_ih.parts[0],
        weight_hh.parts[0],
    )
    biases = [b for b in (bias_ih, bias_hh) if b is not None]
    e_biases = [b.whole()[1] - formats.DELAYED_BITS for b in biases]
    state = _states(*biases)
    steps, n, size = codes.shape[0], codes.shape[1], w_hh.shape[1]
    e_first, e_second = e_x + by_output(e_ih, 3), HIDDEN_EXPONENT + by_output(e_hh, 3)
    e_zero: Exponent = formats.EXPONENT_MIN  # of c before the first step
    if not (isinstance(e_first, int) and isinstance(e_second, int)):
        whole = (steps, n, 4 * size)
        e_first, e_second = (
            torch.as_tensor(e, device=codes.device).expand(whole) for e in (e_first, e_second)
        )
        e_zero = torch.full((n, 1), formats.EXPONENT_MIN, device=codes.device)
    grid, order = _Grid.of(e_first, e_second, e_biases), order_of(steps, reverse)
    k, lookup = kernels.of(codes), tables(str(codes.device))
    one = grid.bias(k, state) if isinstance(e_zero, int) else None
    acc_x = row_product(k, codes.reshape(steps * n, -1), w_ih).view(steps, n, -1)
    h = torch.empty(steps, n, size, dtype=torch.int8, device=codes.device)
    c = torch.empty(steps, n, size, dtype=torch.int16, device=codes.device)
    e_c = [e_zero] * steps
    first_grid, hidden, e_h = None, None, HIDDEN_EXPONENT + 0 * e_zero
    before, e_last = None, e_zero
    if c_0 is not None:
        before, e_last = first_state(c_0, h[0], not isinstance(e_zero, int), 16)
    if h_0 is not None:
        hidden, e_h = _first_hidden(h_0)
        e_x_first = e_first if isinstance(e_first, int) else e_first[order[0]]
        first_grid = _Grid.of(e_x_first, e_h + by_output(e_hh, 2), e_biases)
    first = (hidden, e_h), (before, e_last)
    for t in order:
        own, bias = grid.at(t), one
        if t == order[0] and first_grid is not None:
            own, bias = first_grid, first_grid.bias(k, state)
        elif one is None:
            bias = own.bias(k, state)
        acc_h = None if hidden is None else row_product(k, hidden, w_hh)
        gates = k.lstm_gates(acc_x[t], acc_h, bias, own.shifts, lookup)
        e_kept, e_new = e_last + GATE_EXPONENT, 2 * GATE_EXPONENT
        e = maximum(e_kept, e_new) + 30 - SUM_BITS
        acc, largest = k.lstm_state_sum(gates, before, (e_kept - e, e_new - e))
        c[t], e_c[t] = k.requantize(acc, largest, e, 16)
        h[t] = k.lstm_hidden(CellStep(gates, c[t], e_c[t] - ARGUMENT_EXPONENT, lookup))
        hidden, before, e_last = h[t], c[t], e_c[t]
    return Unrolled(h, c, e_c, grid, first_grid, first)


def _first_hidden(h: BFPValue) -> Part:
    """h before the first step; zeros have the exponent of all other steps."""
    codes, e = h.resolved()
    if isinstance(e, int):
        return codes, e if bool(codes.any()) else HIDDEN_EXPONENT
    return codes, torch.where(largest_rows(codes, e.shape) > 0, e, HIDDEN_EXPONENT)


@dataclass
class _ThroughTime:
    """The backward recurrence: the gradients of all pre-activations from that of the output.

    first: c before the first step; bits: of D where it meets the weight. What the step after has
    for this one: to_h, of h, a product and its exponent; dc, of c; at_last, of c from outside.
    """

    k: Kernels
    lookup: Tensor
    gates: Tensor
    c: Tensor
    e_c: list[Exponent]
    first: tuple[Tensor | None, Exponent]
    weight_hh: Part
    bits: int
    to_h: Part | None = None
    dc: Part | None = None
    at_last: Part | None = None

    @property
    def by_rows(self) -> bool:
        """Whether samples have exponents of their own."""
        return not isinstance(self.e_c[0], int)

    def run(self, grad: BFPValue | None, at_last: BFPValue | None, order: list[int]) -> Part:
        """D int32 [T, N, 4H] and its exponent, of the gradients of the output and of the last c.

        order: the steps as the forward pass took them; this goes through them from the last to the
        first (training.md 7, steps 1 to 3), and then aligns the gradients of all steps.
        """
        if at_last is not None:
            g, e_g = at_last.resolved()
            self.at_last = g, own_exponent(g, e_g, self.by_rows)
        arrives: list[Part | None] = [None] * len(order)
        if grad is not None:
            g, e_g = grad.resolved()
            g, own = g.contiguous(), own_exponent(g, e_g, self.by_rows)
            arrives = [(g[t], own if isinstance(own, int) else own[t]) for t in range(len(g))]
        found: dict[int, Part] = {}
        later: int | None = None
        for place in reversed(range(len(order))):
            t = order[place]
            dh = self._hidden(arrives[t], t)
            self.dc = self._state(dh, t, later)
            found[t] = self._gates(dh, self.dc, t, order[place - 1] if place else None)
            self.to_h = back_product(found[t], self.weight_hh, self.c[t], self.bits)
            later = t
        return at_one_exponent([found[t] for t in range(len(order))], 32)

    def before_first(self, first: int, wanted: list[bool]) -> list[BFPValue | None]:
        """The gradients of h and c before the first step, where they are wanted."""
        assert self.to_h is not None
        assert self.dc is not None
        dh = bfp32(*self.to_h) if wanted[0] else None
        if not wanted[1]:
            return [dh, None]
        f = self.gates[first].chunk(4, 1)[1]
        return [dh, bfp32(self.dc[0].long() * f, self.dc[1] + GATE_EXPONENT)]

    def _hidden(self, arrives: Part | None, t: int) -> Part:
        """dh of a step, from outside and from the next."""
        if arrives is None:
            if self.to_h is None:
                return torch.zeros_like(self.c[t]), formats.EXPONENT_MIN + 0 * self.e_c[t]
            return requantized(*combined((*self.to_h, 38)), 16)
        (g, e_g), (back, e_back) = arrives, self.to_h or (None, arrives[1] - 7)
        e = maximum(e_g + 31, e_back + 38) - SUM_BITS
        acc, largest = self.k.lstm_hidden_grad_sum(g, back, (e_g - e, e_back - e))
        return self.k.requantize(acc, largest, e, 16)

    def _state(self, dh: Part, t: int, later: int | None) -> Part:
        """dc of step t from dh and from dc of the step after it, or from outside."""
        e_through = dh[1] + 3 * GATE_EXPONENT
        tops = [e_through + 60]
        if later is not None:
            assert self.dc is not None
            tops.append(self.dc[1] + GATE_EXPONENT + 30)
        elif self.at_last is not None:
            tops.append(self.at_last[1] + 31)
        e = maximum(*tops) - SUM_BITS
        after = None if later is None or self.dc is None else (self.dc[0], self.gates[later])
        e_kept = e if after is None or self.dc is None else self.dc[1] + GATE_EXPONENT
        shifts = (e_through - e, e_kept - e)
        acc, largest = self.k.lstm_state_grad_sum(dh[0], self._cell(t), after, shifts)
        if later is None and self.at_last is not None:
            acc = acc + self.k.scale(self.at_last[0], self.at_last[1] - e)
            largest = self.k.largest_of(acc)
        return self.k.requantize(acc, largest, e, 16)

    def _gates(self, dh: Part, dc: Part, t: int, before: int | None) -> Part:
        """D of step t; `before`: the step whose cell state it started from."""
        c_before, e_before = self.first if before is None else (self.c[before], self.e_c[before])
        e_i = e_g = dc[1] + 3 * GATE_EXPONENT
        e_f, e_o = dc[1] + e_before + 2 * GATE_EXPONENT, dh[1] + 3 * GATE_EXPONENT
        e = maximum(e_i, e_f, e_o)
        shifts = (e_i - e, e_f - e, e_g - e, e_o - e)
        acc = self.k.lstm_gate_grads(dh[0], dc[0], self._cell(t), c_before, shifts)
        return self.k.shorten(*acc, e)

    def _cell(self, t: int) -> CellStep:
        return CellStep(self.gates[t], self.c[t], self.e_c[t] - ARGUMENT_EXPONENT, self.lookup)


def _past(h: Tensor, reverse: bool) -> Tensor:
    """The hidden state before every step; zero before the first."""
    zero = torch.zeros_like(h[:1])
    return torch.cat([h[1:], zero] if reverse else [zero, h[:-1]])


def lstm(
    x: BFPTensor,
    weight_ih: BFPParameter,
    weight_hh: BFPParameter,
    bias_ih: BFPParameter | None = None,
    bias_hh: BFPParameter | None = None,
    reverse: bool = False,
    state: tuple[BFPTensor, BFPTensor] | None = None,
) -> Any:
    """Hidden states [T, N, H] of a sequence [T, N, I], and c after it, [N, H] of 16 bits.

    Parameters as in torch.nn.LSTM: weights [4H, I] and [4H, H], biases [4H], gates i, f, g, o.
    `reverse` takes the last step first; state: h of 8 bits and c, [N, H], before it. In deployed
    arithmetic c stays inside: the hidden states alone. Raises UnsupportedError for an empty
    sequence, other shapes, or more than 2**14 units.
    """
    check_sequence("LSTM", x, weight_ih, weight_hh.shape[1])
    for part in state or ():
        check_state("LSTM", part, x)
    return LSTM(x, weight_ih, weight_hh, bias_ih, bias_hh, reverse, *(state or ()))
