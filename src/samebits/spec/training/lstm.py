"""The LSTM cell in plain Python integers: docs/spec/training.md, sections 5 and 7.

One layer in one direction; stacks of them are in `recurrent`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from samebits.spec import formats
from samebits.spec.formats import EXPONENT_MIN
from samebits.spec.training import rows
from samebits.spec.training.cell import (
    Direction,
    Gradients,
    Run,
    Tables,
    Term,
    columns,
    is_by_rows,
    looked_up,
    narrowed,
    over_steps,
    pre_activations,
    products,
    saturate,
    shortened,
    side_by_side,
    start,
    through_time,
)
from samebits.spec.training.layers import Array
from samebits.spec.training.rows import Exponent, Part, each, plus

HIDDEN_EXPONENT = -7


@dataclass(frozen=True)
class Step:
    """The values of one step; `state` is c, and u its tanh."""

    i: list[int]
    f: list[int]
    g: list[int]
    o: list[int]
    u: list[int]
    state: Part
    h: Part


def lstm(
    x: Array, p: Direction, tables: Tables, h: Array | None = None, c: Array | None = None
) -> tuple[Array, Run]:
    """The output [T, N, H], and what the backward pass needs. h, c: states [N, H] before it.

    Sections 5 and 12.2.
    """
    steps, samples, _ = x.shape
    size, by_rows = samples * p.hidden, is_by_rows(x, p)
    first = start(c, size, samples, by_rows, 16), _first_hidden(h, size, by_rows)
    run = over_steps(lambda *own: _step(p, tables, *own), x, p, first)
    codes = [code for step in run.steps for code in step.h[0]]
    exponent = _hidden_exponent(by_rows, len(codes))
    return Array(codes, (steps, samples, p.hidden), exponent, 8), run


def _hidden_exponent(by_rows: bool, count: int) -> Exponent:
    return each(HIDDEN_EXPONENT, count) if by_rows else HIDDEN_EXPONENT


def _first_hidden(h: Array | None, size: int, by_rows: bool) -> Part:
    """h before the first step; zeros have the exponent of all other steps."""
    if h is None:
        return [0] * size, _hidden_exponent(by_rows, size)
    if isinstance(h.exponent, int):
        return h.codes, h.exponent if any(h.codes) else HIDDEN_EXPONENT
    live = {row for row, code in zip(rows.rows_of(h.shape), h.codes, strict=True) if code}
    pairs = zip(rows.rows_of(h.shape), h.exponent, strict=True)
    return h.codes, tuple(e if row in live else HIDDEN_EXPONENT for row, e in pairs)


def _step(p: Direction, tables: Tables, x: Part, c: Part, h: Part) -> Step:
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
    kept, new = products(f, c[0]), products(i, g)
    acc, e = rows.combine([(kept, plus(c[1], -15), 30), (new, -30, 30)])
    by_rows = not isinstance(c[1], int)
    state = narrowed(acc, e, samples, by_rows)
    u = looked_up(tables.tanh, *state)
    out = [saturate(formats.scaled(a, -23), 127) for a in products(o, u)]
    return Step(i, f, g, o, u, state, (out, _hidden_exponent(by_rows, len(out))))


def lstm_backward(
    gradient: Array | None, x: Array, p: Direction, run: Run, at_last: Array | None = None
) -> Gradients:
    """`through_time` of this cell, from the gradient of c after the last step."""
    return through_time(partial(_gradients, p.hidden), gradient, x, p, run, at_last, True)


def _gradients(
    hidden: int, to_h: list[Term], to_c: list[Term], step: Step, before: Part, by_rows: bool
) -> tuple[Part, Part, list[Term]]:
    """D of a step, flat [N, 4H], for both products, and what c before it has."""
    samples = len(before[0]) // hidden
    arriving = rows.combine(to_h) if to_h else ([0] * len(before[0]), EXPONENT_MIN)
    dh = narrowed(*arriving, samples, by_rows)
    through = products(dh[0], step.o, [(1 << 30) - u * u for u in step.u])
    terms = [(through, plus(dh[1], -45), 60), *to_c]
    dc = narrowed(*rows.combine(terms), samples, by_rows)
    d = _gate_gradients(dh, dc, step, before, hidden, by_rows)
    return d, d, [(products(dc[0], step.f), plus(dc[1], -15), 30)]


def _gate_gradients(
    dh: Part, dc: Part, step: Step, before: Part, hidden: int, by_rows: bool
) -> Part:
    """D of a step, flat [N, 4H]; `before`: c of the step before."""
    gates = zip(step.i, step.f, step.g, step.o, step.u, before[0], dh[0], dc[0], strict=True)
    slopes = [
        (
            d_c * g * (i * ((1 << 15) - i)),
            d_c * c * (f * ((1 << 15) - f)),
            d_c * i * ((1 << 30) - g * g),
            d_h * u * (o * ((1 << 15) - o)),
        )
        for i, f, g, o, u, c, d_h, d_c in gates
    ]
    count = len(slopes)
    e_h, e_c, e_b = (each(part[1], count) for part in (dh, dc, before))
    own = [(c - 45, c + b - 30, c - 45, h - 45) for h, c, b in zip(e_h, e_c, e_b, strict=True)]
    codes = side_by_side(
        [
            [formats.scaled(v[gate], e[gate] - max(e)) for v, e in zip(slopes, own, strict=True)]
            for gate in range(4)
        ],
        hidden,
    )
    exponents = side_by_side([[max(e) for e in own]] * 4, hidden)
    return shortened(codes, tuple(exponents), count // hidden, by_rows)
