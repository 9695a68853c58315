"""LSTM layers: backpropagation through time with exact sums (docs/spec/training.md 5 and 7).

The pre-activations of all steps are computed again from x and h in the backward pass. Kernels may
have a pass over all steps (`kernels.protocol.LSTMLayer`); what follows here goes step by step, on
any device and for exponents by rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from samebits import kernels
from samebits.kernels.protocol import (
    GATE_EXPONENT,
    HIDDEN_EXPONENT,
    LSTMLayer,
    LSTMStates,
    Part,
)
from samebits.kernels.rows import Exponent, maximum
from samebits.kernels.rows import largest as largest_rows
from samebits.spec import formats
from samebits.train.operation import OperationCall, TrainingOperation
from samebits.train.operations.products import by_output, check_kind
from samebits.train.operations.recurrent import (
    ONE,
    ONE_SQUARED,
    Gradients,
    at_one_exponent,
    back_product,
    check_sequence,
    check_state,
    first_state,
    looked_up,
    order_of,
    own_exponent,
    row_product,
    tables,
)
from samebits.train.tensor import BFPParameter, BFPTensor
from samebits.train.value import (
    BFPValue,
    Term,
    Weight,
    bfp32,
    combined,
    requantized,
)


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
    element and c in two, and its exponents; the gates are computed again.
    """
    check_kind(x, weight_ih)
    run = unrolled(x, weight_ih, weight_hh, bias_ih, bias_hh, reverse, h, c)
    none: tuple[None, None] = (None, None)
    saved = (run.c, run.e_c, *(run.layer.h or none), *(run.layer.c or none))
    return (run.output, run.last), saved


def _gradient(
    call: OperationCall, grad: BFPValue | None, at_last: BFPValue | None
) -> tuple[Any, ...]:
    """The recurrence through time, then one product a gradient."""
    x, weight_ih, weight_hh, bias_ih, bias_hh, reverse = call.arguments[:6]
    h, (c, e_c, *first) = call.output[0].codes, call.saved
    of_h, of_c = (None if codes is None else (codes, e) for codes, e in (first[:2], first[2:]))
    layer = _layer(x, weight_ih, weight_hh, (bias_ih, bias_hh), reverse, of_h, of_c)
    bits, by_rows = weight_ih.widths.gradients, isinstance(layer.products[1], Tensor)
    arriving = [None if g is None else _arriving(g, by_rows) for g in (grad, at_last)]
    wanted = (*call.wanted, False, False)
    states = LSTMStates(h, c, e_c, 0)
    found = None
    if all(isinstance(e, int) for _, e in (layer.products, *filter(None, arriving))):
        rest = (arriving[0], arriving[1], bits, wanted[6:8])
        found = kernels.of(h).lstm_gradient(layer, states, *rest)  # type: ignore[arg-type]
    if found is None:
        found = _through_time(layer, states, arriving, bits, wanted[6:8])
    (d, past, before), of_x = found, x.resolved()
    parts = Gradients(d, d, of_x, past, (weight_ih.parts[0], layer.weight), bits)
    given = [None if part is None else BFPValue(*part) for part in before]
    return *parts.wanted(wanted[:5]), None, *given[: len(call.arguments) - 6]


LSTM = TrainingOperation("Lstm", _forward, _gradient, reads=(0, "w", 3, 4, "y"), saves=True)


def _arriving(grad: BFPValue, by_rows: bool) -> Part:
    """A gradient as it meets the states."""
    g, e_g = grad.resolved()
    return g.contiguous(), own_exponent(g, e_g, by_rows)


def _layer(
    x: BFPValue,
    weight_ih: Weight,
    weight_hh: Weight,
    biases: Sequence[Weight | None],
    reverse: bool,
    h: Part | None,
    c: Part | None,
) -> LSTMLayer:
    """The operands of both passes. By rows, products have exponents [T, N, 4H].

    h, c: before the first step, of 8 and of 16 bits
    """
    (codes, e_x), (w_ih, e_ih) = x.resolved(), weight_ih.parts[0]
    steps, n, _ = codes.shape
    acc = row_product(kernels.of(codes), codes.reshape(steps * n, -1), w_ih).view(steps, n, -1)
    exponent, weight = e_x + by_output(e_ih, 3), weight_hh.parts[0]
    if isinstance(exponent, Tensor) or isinstance(weight[1], Tensor):
        exponent = torch.as_tensor(exponent, device=codes.device).expand(acc.shape)
    of_biases = tuple(b.state() for b in biases if b is not None)
    lookup = tables(str(codes.device))
    return LSTMLayer((acc, exponent), weight, of_biases, h, c, reverse, lookup)


# --- step by step -----------------------------------------------------------------------------


class _Step(NamedTuple):
    """The gates of a step, and u, the tanh of c: int64 [N, H] of exponent -15."""

    i: Tensor
    f: Tensor
    g: Tensor
    o: Tensor
    u: Tensor


@dataclass(frozen=True)
class Unrolled:
    """A forward pass over T steps: h int8 and c int16, [T, N, H], and the exponents of c.

    e_c: int64 [T], by rows [T, N, 1]; last: c after the last step
    """

    layer: LSTMLayer
    h: Tensor
    c: Tensor
    e_c: Tensor
    last: BFPValue

    @property
    def output(self) -> BFPValue:
        """h."""
        if isinstance(self.layer.products[1], int):
            return BFPValue(self.h, HIDDEN_EXPONENT)
        own = torch.full((*self.h.shape[:2], 1), HIDDEN_EXPONENT, device=self.h.device)
        return BFPValue(self.h, own)

    @property
    def cells(self) -> list[Part]:
        """c of all steps."""
        return list(zip(self.c, _exponents(self.e_c), strict=True))


def _exponents(e_c: Tensor) -> list[Exponent]:
    """The exponents of c in the steps, one by one."""
    return e_c.tolist() if e_c.dim() == 1 else list(e_c)


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
    h = None if h_0 is None else h_0.resolved()
    c = None if c_0 is None else requantized(*c_0.resolved(), 16)
    layer = _layer(x, weight_ih, weight_hh, (bias_ih, bias_hh), reverse, h, c)
    if isinstance(layer.products[1], int):
        found = kernels.of(layer.lookup).lstm(layer)
        if found is not None:
            end = order_of(len(found.h), reverse)[-1]
            return Unrolled(layer, *found[:3], BFPValue(found.c[end], found.last))
    return _stepped(layer)


def _stepped(layer: LSTMLayer) -> Unrolled:
    """The same step by step."""
    acc, _ = layer.products
    steps, n, size = len(acc), acc.shape[1], acc.shape[2] // 4
    h = torch.empty(steps, n, size, dtype=torch.int8, device=acc.device)
    c = torch.empty(steps, n, size, dtype=torch.int16, device=acc.device)
    hidden, cells = _first_hidden(layer), _first_cells(layer)
    e_c: dict[int, Exponent] = {}
    for t in order_of(steps, layer.reverse):
        i, f, g, o = _gates(layer, t, hidden)
        kept: Term = (f * cells[0], cells[1] + GATE_EXPONENT, 30)
        c[t], e_c[t] = requantized(*combined(kept, (i * g, 2 * GATE_EXPONENT, 30)), 16)
        cells = c[t], e_c[t]
        product = o * looked_up(layer.lookup[1], *cells)
        exponent = 2 * GATE_EXPONENT - HIDDEN_EXPONENT
        h[t] = kernels.of(acc).saturated(product, exponent, formats.Q8)
        hidden = h[t], HIDDEN_EXPONENT
    own = [e_c[t] for t in range(steps)]
    rows = [e for e in own if isinstance(e, Tensor)]
    exponents = torch.stack(rows) if rows else torch.tensor(own, dtype=torch.int64, device="cpu")
    return Unrolled(layer, h, c, exponents, BFPValue(*cells))


def _gates(layer: LSTMLayer, t: int, hidden: Part) -> list[Tensor]:
    """i, f, g and o of step t from h before it, int64 [N, H]."""
    (acc, e_x), (w, e_w), (h, e_h) = layer.products, layer.weight, hidden
    k = kernels.of(acc)
    acc_h = row_product(k, h, w)
    terms: list[Term] = [
        (acc[t], e_x if isinstance(e_x, int) else e_x[t], 30),
        (acc_h, e_h + by_output(e_w, 2), 30),
        *((k.joint(codes, delayed), e, 23) for codes, delayed, e in layer.biases),
    ]
    total, e = combined(*terms)
    sigmoid, tanh = layer.lookup
    each = zip(
        (sigmoid, sigmoid, tanh, sigmoid), total.chunk(4, 1), _by_gate(e, total), strict=True
    )
    return [looked_up(table, v, own) for table, v, own in each]


def _by_gate(v: Exponent, like: Tensor) -> Sequence[Exponent]:
    """The exponents of each of the four gates of [N, 4H]."""
    return [v] * 4 if isinstance(v, int) else v.expand(like.shape).chunk(4, 1)


def _first_hidden(layer: LSTMLayer) -> Part:
    """h before the first step; zeros have the exponent of all other steps."""
    if layer.h is None:
        acc = layer.products[0]
        zero = torch.zeros(acc.shape[1], acc.shape[2] // 4, dtype=torch.int8, device=acc.device)
        return zero, HIDDEN_EXPONENT
    codes, e = layer.h
    if isinstance(e, int):
        return codes, e if bool(codes.any()) else HIDDEN_EXPONENT
    return codes, torch.where(largest_rows(codes, e.shape) > 0, e, HIDDEN_EXPONENT)


def _first_cells(layer: LSTMLayer) -> Part:
    """c before the first step."""
    if layer.c is not None:
        return layer.c
    return first_state(None, _first_hidden(layer)[0], isinstance(layer.products[1], Tensor), 16)


def _through_time(
    layer: LSTMLayer,
    states: LSTMStates,
    arriving: Sequence[Part | None],
    bits: int,
    wanted: Sequence[bool],
) -> Any:
    """`LSTMGradients` step by step, from the last to the first (training.md 7, steps 1 to 3).

    arriving: the gradients of h and of the last c; bits: of D where it meets the weight
    """
    order = order_of(len(states.h), layer.reverse)
    h, c = states.h, list(zip(states.c, _exponents(states.exponents), strict=True))
    hidden: dict[int, Part] = {order[0]: _first_hidden(layer)}
    cells: dict[int, Part] = {order[0]: _first_cells(layer)}
    for before, t in itertools.pairwise(order):
        hidden[t], cells[t] = (h[before], HIDDEN_EXPONENT), c[before]
    grad, at_last = arriving
    to_h: list[Term] = []
    to_c: list[Term] = [] if at_last is None else [(*at_last, 31)]
    d: dict[int, Part] = {}
    for t in reversed(order):
        i, f, g, o = _gates(layer, t, hidden[t])
        step = _Step(i, f, g, o, looked_up(layer.lookup[1], *c[t]))
        if grad is not None:
            arrives, e = grad
            to_h.append((arrives[t], e if isinstance(e, int) else e[t], 31))
        zero = (torch.zeros_like(c[t][0]), formats.EXPONENT_MIN + 0 * c[t][1])
        dh = requantized(*combined(*to_h), 16) if to_h else zero
        through = dh[0] * step.o * (ONE_SQUARED - step.u * step.u)
        dc = requantized(*combined((through, dh[1] + 3 * GATE_EXPONENT, 60), *to_c), 16)
        d[t] = _gate_gradients(step, dh, dc, cells[t])
        to_h = [(*back_product(d[t], layer.weight, c[t][0], bits), 38)]
        to_c = [(dc[0] * step.f, dc[1] + GATE_EXPONENT, 30)]
    first = [
        bfp32(*term[:2]).resolved() if want else None
        for want, (term,) in zip(wanted, (to_h, to_c), strict=True)
    ]
    return at_one_exponent([d[t] for t in range(len(h))], 32), _past(layer, hidden), first


def _gate_gradients(step: _Step, dh: Part, dc: Part, before: Part) -> Part:
    """D of a step, int32 [N, 4H]; before: c of the step before.

    Derivatives are those of the gates themselves: s * (1 - s) of a sigmoid, 1 - t * t of tanh.
    """
    i, f, g, o, u = step
    (g_h, e_h), (g_c, e_c) = dh, dc
    e_i, e_f, e_o = (
        e_c + 3 * GATE_EXPONENT,
        e_c + before[1] + 2 * GATE_EXPONENT,
        e_h + 3 * GATE_EXPONENT,
    )
    e = maximum(e_i, e_f, e_o)
    k = kernels.of(g_c)
    products = (
        (g_c * g * (i * (ONE - i)), e_i),
        (g_c * before[0].long() * (f * (ONE - f)), e_f),
        (g_c * i * (ONE_SQUARED - g * g), e_i),
        (g_h * u * (o * (ONE - o)), e_o),
    )
    acc = torch.cat([k.scale(v, own - e) for v, own in products], 1)
    return k.shorten(acc, k.largest_of(acc) if isinstance(e, int) else 0, e)


def _past(layer: LSTMLayer, hidden: dict[int, Part]) -> Part:
    """The hidden states before all steps, of which the first may have an exponent of its own."""
    parts = [hidden[t] for t in range(len(hidden))]
    if layer.h is None:
        return torch.stack([codes for codes, _ in parts]), HIDDEN_EXPONENT
    e_h = layer.h[1]
    if isinstance(e_h, Tensor):
        parts = [(v, torch.full_like(e_h, e) if isinstance(e, int) else e) for v, e in parts]
    return at_one_exponent(parts, 8)


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
