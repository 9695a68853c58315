"""One recurrence for all cells: a layer in one direction, both passes over time (training.md 5, 7,
12 and 13).

A cell tells what one step computes; all else is here. Pre-activations are computed again from x, h
and the states in the backward pass. Kernels may have passes over all steps
(`kernels.protocol.CellLayer`); what follows here goes step by step, on any device and for exponents
by rows.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from samebits import kernels
from samebits.errors import UnsupportedError
from samebits.kernels.protocol import (
    CODE_TYPE,
    GATES,
    HIDDEN_EXPONENT,
    CellGradients,
    CellLayer,
    CellStates,
    Part,
)
from samebits.kernels.roundings import largest
from samebits.kernels.rows import Exponent, in_rows, placed, spread
from samebits.kernels.rows import largest as largest_rows
from samebits.spec import formats
from samebits.train.operation import OperationCall, TrainingOperation
from samebits.train.operations.products import by_output, check_kind
from samebits.train.operations.recurrent import (
    Gradients,
    at_one_exponent,
    back_product,
    own_exponent,
    row_product,
    tables,
)
from samebits.train.sums import requantized
from samebits.train.tensor import BFPParameter, BFPTensor
from samebits.train.value import BFPValue, Term, Weight, bfp32, combined, common_exponent

MAX_HIDDEN = 1 << 14  # 4H products of 16 by 8 bits stay below 2**38


Two = tuple[Part, Part]
Arriving = tuple[list[Term], list[Term]]
Handed = tuple[Part, Part, list[Term]]


@dataclass(frozen=True)
class Values:
    """The terms of a step's pre-activations [N, gates * H], from x and from h; `tables`."""

    of_x: list[Term]
    of_h: list[Term]
    lookup: Tensor

    def columns(self, first: int, last: int) -> Values:
        """The same columns of all terms."""

        def cut(term: Term) -> Term:
            v, e, bits = term
            own = placed(e, lambda each: each.expand(v.shape)[..., first:last])
            return v[..., first:last], own, bits

        return Values([cut(t) for t in self.of_x], [cut(t) for t in self.of_h], self.lookup)

    def sum(self) -> Part:
        """The sum of all."""
        return combined(*self.of_x, *self.of_h)


class SteppedCell(Protocol):
    """A cell: it tells what one step computes."""

    @property
    def kind(self) -> str:
        """The name by which kernels know it."""

    @property
    def bits(self) -> int:
        """Width of its state, 8 or 16."""

    @property
    def is_apart(self) -> bool:
        """Whether h is another state, of the exponent -7; else it is the state in 8 bits."""

    def after(self, values: Values, before: Part) -> Two:
        """The state and h after a step; before: the state before it."""

    def gradients(self, values: Values, states: Two, arriving: Arriving) -> Handed:
        """D at the products of x and of h, and what the gradient of the state before has of it.

        states: before and after the step; arriving: what arrives at h and at the latter
        """


def narrow(state: Part) -> Part:
    """h of a state."""
    return state if state[0].dtype == torch.int8 else requantized(*state, 8)


def side_by_side(gates: Sequence[Sequence[Term]]) -> Part:
    """The sums of every gate's terms side by side, as 32 bits of one exponent, or one a sample."""
    k = kernels.of(gates[0][0][0])
    e = common_exponent(*((exponent, bits) for gate in gates for _, exponent, bits in gate))
    scaled = ([k.scale(v, own - e) for v, own, _ in gate] for gate in gates)
    acc = torch.cat([sum(others, first) for first, *others in scaled], 1)
    return k.shorten(acc, largest(k, acc, e), e)


def of_cells(name: str, *reads: Any) -> TrainingOperation:
    """The operation of layers with cells of one kind; their cell is its first argument."""
    return TrainingOperation(name, run_cell, _gradient, (1, "w", 4, 5, *reads), saves=True)


def layer(
    operation: TrainingOperation,
    cell: SteppedCell,
    x: BFPTensor,
    weight_ih: BFPParameter,
    weight_hh: BFPParameter,
    bias_ih: BFPParameter | None = None,
    bias_hh: BFPParameter | None = None,
    reverse: bool = False,
    state: Sequence[BFPTensor] = (),
) -> Any:
    """Hidden states [T, N, H] of a sequence [T, N, I], and the state after it, [N, H], of an LSTM
    c; in deployed arithmetic the hidden states alone.

    Parameters as in torch.nn.LSTM, GRU and RNN. `reverse` takes the last step first; state: before
    it, of an LSTM h and c. Raises UnsupportedError for an empty sequence, other shapes, more than
    2**14 units, or a state with exponents by rows where x has one.
    """
    what, features, hidden = operation.name.upper(), weight_ih.shape[1], weight_hh.shape[1]
    if x.dim() != 3 or x.shape[2] != features or x.numel() == 0:
        raise UnsupportedError(
            f"{what}: expected a sequence of at least one step of [samples, {features}], found "
            f"shape {tuple(x.shape)}"
        )
    if hidden > MAX_HIDDEN:
        raise UnsupportedError(f"{what}: expected at most {MAX_HIDDEN} units, found {hidden}")
    for part in state:
        if part.by_rows and not x.by_rows:
            raise UnsupportedError(
                f"{what}: expected initial states with one exponent, as the input has, found "
                "exponents by rows: quantize them with samebits.train.model_input(model, state)"
            )
    return operation(cell, x, weight_ih, weight_hh, bias_ih, bias_hh, reverse, *state)


Output = tuple[BFPValue, BFPValue]


def run_cell(cell: SteppedCell, *arguments: Any) -> tuple[Output, tuple[Any, ...]]:
    """One layer in one direction, [T, N, I] -> [T, N, H], and the state after its last step [N, H].

    arguments: of `layer_of`. Saves states and their exponents, of a cell whose h is apart this too,
    and x in one byte an element; all else is computed again.
    """
    given = layer_of(cell, *arguments)
    found = kernels.of(given.lookup).recurrence(given)
    h, states, exponents, last = found or walked(cell, given)
    assert h is not None
    at_end = BFPValue(states[order_of(given)[-1]], last)
    none: tuple[None, None] = (None, None)
    saved = (states, exponents, *(given.h or none), *(given.state or none))
    return (BFPValue(*h), at_end), saved


def layer_of(
    cell: SteppedCell,
    x: BFPValue,
    weight_ih: Weight,
    weight_hh: Weight,
    bias_ih: Weight | None,
    bias_hh: Weight | None,
    reverse: bool,
    *given: BFPValue,
) -> CellLayer:
    """The operands of both passes. By rows, products have exponents [T, N, 1 or gates * H].

    `reverse` takes the last step first. given: the state [N, H] before it, if any, and before that
    h if it is apart
    """
    check_kind(x, weight_ih)
    (codes, e_x), (w_ih, e_ih) = x.resolved(), weight_ih.parts[0]
    steps, n, _ = codes.shape
    acc = row_product(kernels.of(codes), codes.reshape(steps * n, -1), w_ih).view(steps, n, -1)
    exponent, weight = e_x + by_output(e_ih, 3), weight_hh.parts[0]
    if isinstance(exponent, Tensor) or isinstance(weight[1], Tensor):
        exponent = exponent + spread(0, (steps, n, 1), codes)
    biases = (None if b is None else b.state() for b in (bias_ih, bias_hh))
    parts = [part.resolved() for part in given]
    if isinstance(exponent, Tensor):
        parts = [in_rows(*part) for part in parts]
    h = parts[0] if parts and cell.is_apart else None
    state = requantized(*parts[-1], cell.bits) if parts else None
    lookup = tables(str(codes.device))
    return CellLayer(cell.kind, (acc, exponent), weight, (*biases,), h, state, reverse, lookup)  # type: ignore[arg-type]


def order_of(layer: CellLayer) -> list[int]:
    """The steps as the layer takes them."""
    steps = range(len(layer.products[0]))
    return list(reversed(steps) if layer.reverse else steps)


def states_of(states: Tensor, exponents: Tensor) -> list[Part]:
    """The states of all steps."""
    own = exponents.tolist() if exponents.dim() == 1 else exponents
    return list(zip(states, own, strict=True))


def _gradient(
    call: OperationCall, grad: BFPValue | None, at_last: BFPValue | None
) -> tuple[Any, ...]:
    """The recurrence through time, then one product a gradient."""
    cell, x, *weights, reverse = call.arguments[:7]
    states, exponents, *first = call.saved
    given = [BFPValue(c, e) for c, e in (first[:2], first[2:]) if c is not None]
    layer = layer_of(cell, x, *weights, reverse, *given)
    bits = weights[0].widths.gradients
    arriving = [None if g is None else _arriving(g, layer.by_rows) for g in (grad, at_last)]
    wanted = [*([] if cell.is_apart else [False]), *call.wanted[7:], False, False][:2]
    h = (call.output[0].codes, HIDDEN_EXPONENT) if cell.is_apart else None
    known = CellStates(h, states, exponents, 0)
    rest: Any = (*arriving, bits, wanted)
    found = None
    if layer.by_rows or all(isinstance(e, int) for _, e in filter(None, arriving)):
        found = kernels.of(states).recurrence_gradient(layer, known, *rest)
    found = found or _through_time(cell, layer, known, *rest)
    operands = (found.d_x, found.d_h, x.resolved(), found.past)
    parts = Gradients(*operands, (weights[0].parts[0], layer.weight), bits)
    own = [None if part is None else BFPValue(*part) for part in found.first]
    own = own if cell.is_apart else own[1:]
    return None, *parts.wanted(call.wanted[1:6]), None, *own[: len(call.arguments) - 7]


def _arriving(grad: BFPValue, by_rows: bool) -> Part:
    """A gradient as it meets the states."""
    g, e_g = grad.resolved()
    return g.contiguous(), own_exponent(g, e_g, by_rows)


# --- step by step -----------------------------------------------------------------------------


class _Steps:
    """The pre-activations of a layer's steps, and its states before the first."""

    def __init__(self, cell: SteppedCell, layer: CellLayer) -> None:
        self.cell, self.layer = cell, layer
        self.kernels = kernels.of(layer.weight[0])
        self.biases: list[list[Term]] = [
            [] if b is None else [(self.kernels.joint(b[0], b[1]), b[2], 23)] for b in layer.biases
        ]

    def product(self, h: Tensor) -> Tensor:
        """The sums of h [rows, H]."""
        return row_product(self.kernels, h, self.layer.weight[0])

    def values(self, t: int, of_h: Tensor, e_h: Exponent) -> Values:
        """The terms of a step, of the sums of h before it."""
        (acc, e_x), (_, e_w) = self.layer.products, self.layer.weight
        of_x = acc[t], _at(e_x, t), 30
        own = of_h, e_h + by_output(e_w, 2), 30
        return Values([of_x, *self.biases[0]], [own, *self.biases[1]], self.layer.lookup)

    def first(self) -> Two:
        """The state and h before the first step; an h of zeros that is apart has the exponent of
        all other steps."""
        layer, (acc, e) = self.layer, self.layer.products
        n, size = acc.shape[1], acc.shape[2] // GATES[layer.kind]
        zero = torch.zeros(n, size, dtype=CODE_TYPE[self.cell.bits], device=acc.device)
        none: Exponent = formats.EXPONENT_MIN
        if isinstance(e, Tensor):
            none = torch.full((n, 1), formats.EXPONENT_MIN, device=acc.device)
        state = layer.state or (zero, none)
        if not self.cell.is_apart:
            return state, narrow(state)
        codes, own = layer.h or (zero.to(torch.int8), none)
        if isinstance(own, int):
            return state, (codes, own if bool(codes.any()) else HIDDEN_EXPONENT)
        live = largest_rows(codes, own.shape) > 0
        return state, (codes, torch.where(live, own, HIDDEN_EXPONENT))


def _at(exponent: Exponent, step: int) -> Exponent:
    return placed(exponent, operator.itemgetter(step))


def walked(cell: SteppedCell, layer: CellLayer) -> CellStates:
    """The states of all steps, one after the other."""
    steps = _Steps(cell, layer)
    state, h = steps.first()
    done: dict[int, Two] = {}
    for t in order_of(layer):
        values = steps.values(t, steps.product(h[0]), h[1])
        state, h = done[t] = cell.after(values, state)
    states, hidden = ([done[t][place] for t in range(len(done))] for place in (0, 1))
    own = [e for _, e in states]
    rows = [e for e in own if isinstance(e, Tensor)]
    if rows:
        exponents = torch.stack(rows)
    else:
        exponents = torch.tensor([int(e) for e in own], dtype=torch.int64, device="cpu")
    codes, e = at_one_exponent(hidden, 8)
    if cell.is_apart and isinstance(e, int):
        e = HIDDEN_EXPONENT
    return CellStates((codes, e), torch.stack([c for c, _ in states]), exponents, state[1])


def _through_time(
    cell: SteppedCell,
    layer: CellLayer,
    known: CellStates,
    grad: Part | None,
    at_last: Part | None,
    bits: int,
    wanted: Sequence[bool],
) -> CellGradients:
    """The same of gradients, from the last step to the first."""
    steps, order = _Steps(cell, layer), order_of(layer)
    states = states_of(known.states, known.exponents)
    first, h = steps.first()
    before, past = {order[0]: first}, {order[0]: h}
    for b, t in itertools.pairwise(order):
        before[t] = states[b]
        past[t] = (
            narrow(states[b])
            if known.h is None
            else (known.h[0][b], HIDDEN_EXPONENT + 0 * states[b][1])
        )
    hidden = [past[t] for t in range(len(order))]
    products = steps.product(torch.stack([v for v, _ in hidden]).flatten(0, 1))
    products = products.view(layer.products[0].shape)
    to_h: list[Term] = []
    to_state: list[Term] = [] if at_last is None else [(*at_last, 31)]
    d_x, d_h = dict[int, Part](), dict[int, Part]()
    for t in reversed(order):
        if grad is not None:
            to_h.append((grad[0][t], _at(grad[1], t), 31))
        values = steps.values(t, products[t], past[t][1])
        own = (before[t], states[t]), (to_h, to_state)
        d_x[t], d_h[t], to_state = cell.gradients(values, *own)
        to_h = [(*back_product(d_h[t], layer.weight, first[0], bits), 38)]
    at_x = at_h = at_one_exponent([d_x[t] for t in range(len(order))], 32)
    if any(d_x[t] is not d_h[t] for t in order):
        at_h = at_one_exponent([d_h[t] for t in range(len(order))], 32)
    ends = (to_h, to_state) if cell.is_apart else ([], [*to_h, *to_state])
    of_h, of_state = (_first(e) if want else None for e, want in zip(ends, wanted, strict=True))
    return CellGradients(at_x, at_h, at_one_exponent(hidden, 8), (of_h, of_state))


def _first(terms: list[Term]) -> Part:
    """The gradient of a state before the first step."""
    return bfp32(*(combined(*terms) if len(terms) > 1 else terms[0][:2])).resolved()
