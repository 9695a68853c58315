"""The LSTM cell in plain Python integers: docs/spec/training.md, sections 5 and 7.

One layer in one direction; stacks of them are in `recurrent`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from samebits.spec import formats
from samebits.spec.formats import EXPONENT_MIN
from samebits.spec.training import rows
from samebits.spec.training.cell import (
    Direction,
    Gradients,
    Tables,
    Term,
    back,
    columns,
    gathered,
    is_by_rows,
    looked_up,
    narrowed,
    pre_activations,
    saturate,
    shaped,
    shortened,
    side_by_side,
    start,
    step_of,
)
from samebits.spec.training.layers import Array
from samebits.spec.training.rows import Exponent, Part, each, plus

HIDDEN_EXPONENT = -7


@dataclass(frozen=True)
class Step:
    """The values of one step, flat [N, H]; the gates i, f, g, o and u have exponent -15."""

    i: list[int]
    f: list[int]
    g: list[int]
    o: list[int]
    c: Part
    u: list[int]
    h: list[int]


@dataclass(frozen=True)
class Run:
    """A forward pass: h and c before it, and the values of every step in the order of x."""

    h: Part
    c: Part
    steps: list[Step]
    last: Part  # c after it


def lstm(
    x: Array, p: Direction, tables: Tables, h: Array | None = None, c: Array | None = None
) -> tuple[Array, Run]:
    """The output [T, N, H], and what the backward pass needs. h, c: states [N, H] before it.

    Sections 5 and 12.2.
    """
    steps, samples, _ = x.shape
    size, by_rows = samples * p.hidden, is_by_rows(x, p)
    first = _first_hidden(h, size, by_rows), start(c, size, samples, by_rows, 16)
    hidden, cells = first
    done: dict[int, Step] = {}
    for t in p.order(steps):
        last = done[t] = _step(step_of(x, t), hidden, cells, p, tables)
        hidden, cells = (last.h, HIDDEN_EXPONENT), last.c
    values = [done[t] for t in range(steps)]
    codes = [code for step in values for code in step.h]
    exponent = each(HIDDEN_EXPONENT, len(codes)) if by_rows else HIDDEN_EXPONENT
    y = Array(codes, (steps, samples, p.hidden), exponent, 8)
    return y, Run(*first, values, cells)


def _first_hidden(h: Array | None, size: int, by_rows: bool) -> Part:
    """h before the first step; zeros have the exponent of all other steps."""
    if h is None:
        return [0] * size, each(HIDDEN_EXPONENT, size) if by_rows else HIDDEN_EXPONENT
    if isinstance(h.exponent, int):
        return h.codes, h.exponent if any(h.codes) else HIDDEN_EXPONENT
    live = {row for row, code in zip(rows.rows_of(h.shape), h.codes, strict=True) if code}
    pairs = zip(rows.rows_of(h.shape), h.exponent, strict=True)
    return h.codes, tuple(e if row in live else HIDDEN_EXPONENT for row, e in pairs)


def _step(x: Part, h: Part, c: Part, p: Direction, tables: Tables) -> Step:
    """Steps 1 to 4 of section 5: gates, cell state and hidden state from x, and h, c before it."""
    samples = len(h[0]) // p.hidden
    terms = [
        *pre_activations(x, p.weight_ih, p.bias_ih),
        *pre_activations(h, p.weight_hh, p.bias_hh),
    ]
    a, e = rows.combine(terms)
    lookup = (tables.sigmoid, tables.sigmoid, tables.tanh, tables.sigmoid)
    places = [(gate * p.hidden, (gate + 1) * p.hidden) for gate in range(4)]
    own = each(e, len(a))
    i, f, g, o = (
        looked_up(table, columns(a, 4 * p.hidden, *at), tuple(columns(own, 4 * p.hidden, *at)))
        for table, at in zip(lookup, places, strict=True)
    )
    kept = [a * b for a, b in zip(f, c[0], strict=True)]
    new = [a * b for a, b in zip(i, g, strict=True)]
    acc, e = rows.combine([(kept, plus(c[1], -15), 30), (new, -30, 30)])
    state = narrowed(acc, e, samples, not isinstance(c[1], int))
    u = looked_up(tables.tanh, *state)
    out = [saturate(formats.scaled(a * b, -23), 127) for a, b in zip(o, u, strict=True)]
    return Step(i, f, g, o, state, u, out)


def lstm_backward(
    gradient: Array | None, x: Array, p: Direction, run: Run, at_last: Array | None = None
) -> Gradients:
    """From the gradient of the output and that of c after the last step; None: none.

    Sections 7 and 12.3.
    """
    steps, samples, _ = x.shape
    by_rows = is_by_rows(x, p) or any(g.by_rows for g in (gradient, at_last) if g is not None)
    order = p.order(steps)
    to_h: list[Term] = []
    to_c: list[Term] = [] if at_last is None else [(at_last.codes, at_last.exponent, 31)]
    d: dict[int, Part] = {}
    for place in reversed(range(steps)):
        t = order[place]
        before = run.steps[order[place - 1]].c if place else run.c
        arrives: list[Term] = [] if gradient is None else [(*step_of(gradient, t), 31)]
        dh = narrowed(*_sum([*arrives, *to_h], len(before[0])), samples, by_rows)
        dc = _cell_gradient(dh, run.steps[t], to_c, samples, by_rows)
        d[t] = _gate_gradients(dh, dc, run.steps[t], before, p.hidden, by_rows)
        to_h = [back(d[t], p, samples, by_rows)]
        kept = [a * b for a, b in zip(dc[0], run.steps[t].f, strict=True)]
        to_c = [(kept, plus(dc[1], -15), 30)]
    states = [
        Array(*shaped(shortened(codes, e, samples, by_rows), samples), 32)
        for ((codes, e, _),) in (to_h, to_c)
    ]
    hidden = [(step.h, _hidden_exponent(by_rows, len(step.h))) for step in run.steps]
    parts = [d[t] for t in range(steps)]
    first = run.h[0], each(run.h[1], len(run.h[0])) if by_rows else run.h[1]
    return gathered(parts, parts, x, hidden, first, p, states)


def _hidden_exponent(by_rows: bool, count: int) -> Exponent:
    return each(HIDDEN_EXPONENT, count) if by_rows else HIDDEN_EXPONENT


def _sum(terms: Sequence[Term], size: int) -> tuple[Sequence[int], Exponent]:
    """`combine`, where there is nothing to add 0."""
    return rows.combine(terms) if terms else ([0] * size, EXPONENT_MIN)


def _cell_gradient(
    dh: Part, step: Step, later: Sequence[Term], samples: int, by_rows: bool
) -> Part:
    """dc of a step; `later`: what it has from the next, or from outside."""
    through = [a * o * ((1 << 30) - u * u) for a, o, u in zip(dh[0], step.o, step.u, strict=True)]
    return narrowed(*rows.combine([(through, plus(dh[1], -45), 60), *later]), samples, by_rows)


def _gate_gradients(
    dh: Part, dc: Part, step: Step, before: Part, hidden: int, by_rows: bool
) -> Part:
    """D of a step, flat [N, 4H]; `before`: c of the step before."""
    gates = zip(step.i, step.f, step.g, step.o, step.u, before[0], dh[0], dc[0], strict=True)
    products = [
        (
            d_c * g * (i * ((1 << 15) - i)),
            d_c * c * (f * ((1 << 15) - f)),
            d_c * i * ((1 << 30) - g * g),
            d_h * u * (o * ((1 << 15) - o)),
        )
        for i, f, g, o, u, c, d_h, d_c in gates
    ]
    count = len(products)
    e_h, e_c, e_b = (each(part[1], count) for part in (dh, dc, before))
    own = [(c - 45, c + b - 30, c - 45, h - 45) for h, c, b in zip(e_h, e_c, e_b, strict=True)]
    codes = side_by_side(
        [
            [formats.scaled(v[gate], e[gate] - max(e)) for v, e in zip(products, own, strict=True)]
            for gate in range(4)
        ],
        hidden,
    )
    exponents = side_by_side([[max(e) for e in own]] * 4, hidden)
    return shortened(codes, tuple(exponents), count // hidden, by_rows)
