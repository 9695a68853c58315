"""The GRU cell in plain Python integers: docs/spec/training.md, sections 5, 7 and 12.

One layer in one direction; stacks of them are in `recurrent`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from samebits.spec import formats
from samebits.spec.training import rows
from samebits.spec.training.cell import (
    Direction,
    Gradients,
    Run,
    Tables,
    Term,
    columns,
    columns_of,
    is_by_rows,
    looked_up,
    narrowed,
    over_steps,
    pre_activations,
    products,
    sequence,
    shortened,
    side_by_side,
    start,
    through_time,
)
from samebits.spec.training.layers import Array
from samebits.spec.training.rows import Exponent, Part, each, plus


@dataclass(frozen=True)
class Step:
    """The values of one step; `m` is the product that r lets in."""

    r: list[int]
    z: list[int]
    n: list[int]
    m: Part
    state: Part
    h: Part


def gru(x: Array, p: Direction, tables: Tables, state: Array | None = None) -> tuple[Array, Run]:
    """The output [T, N, H], and what the backward pass needs. state [N, H]: that before it.

    Sections 5 and 12.2.
    """
    samples, by_rows = x.shape[1], is_by_rows(x, p)
    s = start(state, samples * p.hidden, samples, by_rows, 16)
    first = s, narrowed(*s, samples, by_rows, 8)
    run = over_steps(lambda *own: _step(p, tables, *own), x, p, first)
    return sequence([step.h for step in run.steps], samples, 8), run


def _step(p: Direction, tables: Tables, x: Part, s: Part, h: Part) -> Step:
    """Steps 1 to 3 of section 5."""
    size, samples = p.hidden, len(s[0]) // p.hidden
    by_rows = not isinstance(s[1], int)
    of_x = pre_activations(x, p.weight_ih, p.bias_ih)
    of_h = pre_activations(h, p.weight_hh, p.bias_hh)
    acc, e = rows.combine(columns_of([*of_x, *of_h], 3 * size, 0, 2 * size))
    gates = looked_up(tables.sigmoid, acc, e)
    r, z = (columns(gates, 2 * size, first, first + size) for first in (0, size))
    of_n = columns_of(of_h, 3 * size, 2 * size, 3 * size)
    m = narrowed(*rows.combine(of_n), samples, by_rows)
    of_n = columns_of(of_x, 3 * size, 2 * size, 3 * size)
    n = looked_up(tables.tanh, *rows.combine([*of_n, (products(r, m[0]), plus(m[1], -15), 30)]))
    new = products([(1 << 15) - a for a in z], n)
    terms: list[Term] = [(products(z, s[0]), plus(s[1], -15), 30), (new, -30, 30)]
    after = narrowed(*rows.combine(terms), samples, by_rows)
    return Step(r, z, n, m, after, narrowed(*after, samples, by_rows, 8))


def gru_backward(
    gradient: Array | None, x: Array, p: Direction, run: Run, at_last: Array | None = None
) -> Gradients:
    """`through_time` of this cell."""
    return through_time(partial(_gradients, p.hidden), gradient, x, p, run, at_last)


def _gradients(
    hidden: int, to_h: list[Term], to_state: list[Term], step: Step, before: Part, by_rows: bool
) -> tuple[Part, Part, list[Term]]:
    """D of a step at the product of x, and at that of h, flat [N, 3H], and what s before it has."""
    samples = len(before[0]) // hidden
    g, e_g = narrowed(*rows.combine([*to_h, *to_state]), samples, by_rows)
    through = products(g, [(1 << 15) - z for z in step.z], [(1 << 30) - n * n for n in step.n])
    dn, e_n = narrowed(through, plus(e_g, -45), samples, by_rows)
    dr = products(dn, step.m[0], [r * ((1 << 15) - r) for r in step.r])
    dz = products(g, [z * ((1 << 15) - z) for z in step.z])
    lost = products(dz, [-n for n in step.n])
    gates: list[list[Term]] = [
        [(dr, plus(plus(e_n, step.m[1]), -30), 58)],
        [
            (products(dz, before[0]), plus(plus(e_g, before[1]), -30), 58),
            (lost, plus(e_g, -45), 58),
        ],
    ]
    at_x: list[Term] = [(dn, e_n, 15)]
    at_h: list[Term] = [(products(dn, step.r), plus(e_n, -15), 30)]
    first, second = (
        shortened(*_at_one_exponent([*gates, last], hidden), samples, by_rows)
        for last in (at_x, at_h)
    )
    return first, second, [(products(g, step.z), plus(e_g, -15), 30)]


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
