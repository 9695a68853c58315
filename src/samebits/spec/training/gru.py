"""The GRU cell in plain Python integers: docs/spec/training.md, sections 5, 7 and 12.

One layer in one direction; stacks of them are in `recurrent`.
"""

from __future__ import annotations

from dataclasses import dataclass

from samebits.spec import formats
from samebits.spec.training import rows
from samebits.spec.training.cell import (
    Direction,
    Gradients,
    Tables,
    Term,
    back,
    columns,
    columns_of,
    gathered,
    is_by_rows,
    looked_up,
    narrowed,
    pre_activations,
    sequence,
    shaped,
    shortened,
    side_by_side,
    start,
    step_of,
)
from samebits.spec.training.layers import Array
from samebits.spec.training.rows import Exponent, Part, each, plus


@dataclass(frozen=True)
class Step:
    """The values of one step, flat [N, H]; r, z and n have exponent -15."""

    r: list[int]
    z: list[int]
    n: list[int]
    m: Part
    s: Part
    h: Part


@dataclass(frozen=True)
class Run:
    """A forward pass: s and h before it, and the values of every step in the order of x."""

    s: Part
    h: Part
    steps: list[Step]
    last: Part  # s after it


def gru(x: Array, p: Direction, tables: Tables, state: Array | None = None) -> tuple[Array, Run]:
    """The output [T, N, H], and what the backward pass needs. state [N, H]: s before it.

    Sections 5 and 12.2.
    """
    steps, samples, _ = x.shape
    by_rows = is_by_rows(x, p)
    s = start(state, samples * p.hidden, samples, by_rows, 16)
    h = narrowed(*s, samples, by_rows, 8)
    first, done = (s, h), dict[int, Step]()
    for t in p.order(steps):
        last = done[t] = _step(step_of(x, t), s, h, p, tables)
        s, h = last.s, last.h
    values = [done[t] for t in range(steps)]
    return sequence([step.h for step in values], samples, 8), Run(*first, values, s)


def _step(x: Part, s: Part, h: Part, p: Direction, tables: Tables) -> Step:
    """Steps 1 to 4 of section 5."""
    size, samples = p.hidden, len(s[0]) // p.hidden
    by_rows = not isinstance(s[1], int)
    of_x = pre_activations(x, p.weight_ih, p.bias_ih)
    of_h = pre_activations(h, p.weight_hh, p.bias_hh)
    acc, e = rows.combine(columns_of([*of_x, *of_h], 3 * size, 0, 2 * size))
    gates = looked_up(tables.sigmoid, acc, e)
    r, z = (columns(gates, 2 * size, first, first + size) for first in (0, size))
    of_n = columns_of(of_h, 3 * size, 2 * size, 3 * size)
    m = narrowed(*rows.combine(of_n), samples, by_rows)
    let_in = [a * b for a, b in zip(r, m[0], strict=True)]
    of_n = [*columns_of(of_x, 3 * size, 2 * size, 3 * size), (let_in, plus(m[1], -15), 30)]
    n = looked_up(tables.tanh, *rows.combine(of_n))
    kept = [a * b for a, b in zip(z, s[0], strict=True)]
    new = [((1 << 15) - a) * b for a, b in zip(z, n, strict=True)]
    acc, e = rows.combine([(kept, plus(s[1], -15), 30), (new, -30, 30)])
    after = narrowed(acc, e, samples, by_rows)
    return Step(r, z, n, m, after, narrowed(*after, samples, by_rows, 8))


def gru_backward(
    gradient: Array | None, x: Array, p: Direction, run: Run, at_last: Array | None = None
) -> Gradients:
    """From the gradient of the output and that of s after the last step; None: none.

    Sections 7 and 12.3.
    """
    steps, samples, _ = x.shape
    by_rows = is_by_rows(x, p) or any(g.by_rows for g in (gradient, at_last) if g is not None)
    order = p.order(steps)
    terms: list[Term] = [] if at_last is None else [(at_last.codes, at_last.exponent, 31)]
    d_x: dict[int, Part] = {}
    d_h: dict[int, Part] = {}
    for place in reversed(range(steps)):
        t = order[place]
        before = run.steps[order[place - 1]].s if place else run.s
        if gradient is not None:
            terms = [(*step_of(gradient, t), 31), *terms]
        ds = narrowed(*rows.combine(terms), samples, by_rows)
        d_x[t], d_h[t] = _gate_gradients(ds, run.steps[t], before, p.hidden, by_rows)
        kept = [a * b for a, b in zip(ds[0], run.steps[t].z, strict=True)]
        terms = [back(d_h[t], p, samples, by_rows), (kept, plus(ds[1], -15), 30)]
    state = Array(*shaped(shortened(*rows.combine(terms), samples, by_rows), samples), 32)
    at_x, at_h = ([d[t] for t in range(steps)] for d in (d_x, d_h))
    return gathered(at_x, at_h, x, [step.h for step in run.steps], run.h, p, [state])


def _gate_gradients(
    ds: Part, step: Step, before: Part, hidden: int, by_rows: bool
) -> tuple[Part, Part]:
    """D of a step at the product of x, and at that of h, flat [N, 3H]; `before`: s before it."""
    count = len(ds[0])
    samples = count // hidden
    slope = [(1 << 30) - n * n for n in step.n]
    through = [a * ((1 << 15) - z) * b for a, z, b in zip(ds[0], step.z, slope, strict=True)]
    dn = narrowed(through, plus(ds[1], -45), samples, by_rows)
    let_in = [a * r for a, r in zip(dn[0], step.r, strict=True)]
    of_r = [r * ((1 << 15) - r) for r in step.r]
    dr = [a * m * b for a, m, b in zip(dn[0], step.m[0], of_r, strict=True)]
    of_z = [a * (z * ((1 << 15) - z)) for a, z in zip(ds[0], step.z, strict=True)]
    kept = [a * s for a, s in zip(of_z, before[0], strict=True)]
    lost = [-a * n for a, n in zip(of_z, step.n, strict=True)]
    gates: list[list[Term]] = [
        [(dr, plus(plus(dn[1], step.m[1]), -30), 58)],
        [(kept, plus(plus(ds[1], before[1]), -30), 58), (lost, plus(ds[1], -45), 58)],
    ]
    at_x: list[Term] = [(dn[0], dn[1], 15)]
    at_h: list[Term] = [(let_in, plus(dn[1], -15), 30)]
    first, second = (
        shortened(*_at_one_exponent([*gates, last], hidden), samples, by_rows)
        for last in (at_x, at_h)
    )
    return first, second


def _at_one_exponent(gates: list[list[Term]], hidden: int) -> tuple[list[int], Exponent]:
    """The sums of every gate's terms, flat [N, gates * H], at the exponent of `combine` of all."""
    terms = [term for gate in gates for term in gate]
    count = len(terms[0][0])
    own = [each(e, count) for _, e, _ in terms]
    bits = [b for _, _, b in terms]
    common = [max(e[i] + b for e, b in zip(own, bits, strict=True)) - 60 for i in range(count)]
    sums = [
        [
            sum(formats.scaled(codes[i], each(e, count)[i] - common[i]) for codes, e, _ in gate)
            for i in range(count)
        ]
        for gate in gates
    ]
    exponents = side_by_side([common] * len(gates), hidden)
    if all(isinstance(e, int) for _, e, _ in terms):
        return side_by_side(sums, hidden), common[0]
    return side_by_side(sums, hidden), tuple(exponents)
