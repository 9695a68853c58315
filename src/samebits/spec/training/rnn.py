"""The cell of a plain RNN, tanh or relu, in plain Python integers: training.md 5, 7 and 12.

One layer in one direction; stacks of them are in `recurrent`.
"""

from __future__ import annotations

from dataclasses import dataclass

from samebits.spec.training import rows
from samebits.spec.training.cell import (
    Direction,
    Gradients,
    Tables,
    Term,
    back,
    gathered,
    is_by_rows,
    looked_up,
    narrowed,
    pre_activations,
    sequence,
    shaped,
    shortened,
    start,
    step_of,
)
from samebits.spec.training.layers import Array
from samebits.spec.training.rows import Part, plus


@dataclass(frozen=True)
class Run:
    """A forward pass: h before it, and of every step, in the order of x, h and its derivative."""

    h: Part
    steps: list[Part]
    slopes: list[list[int]]
    e_slope: int
    last: Part  # h after it


def rnn(
    x: Array, p: Direction, tables: Tables, relu: bool, state: Array | None = None
) -> tuple[Array, Run]:
    """The output [T, N, H], and what the backward pass needs. state [N, H]: h before it.

    Sections 5 and 12.2.
    """
    steps, samples, _ = x.shape
    by_rows = is_by_rows(x, p)
    first = h = start(state, samples * p.hidden, samples, by_rows, 8)
    done, slopes = dict[int, Part](), dict[int, list[int]]()
    for t in p.order(steps):
        terms = [
            *pre_activations(step_of(x, t), p.weight_ih, p.bias_ih),
            *pre_activations(h, p.weight_hh, p.bias_hh),
        ]
        acc, e = rows.combine(terms)
        if relu:
            h = narrowed([max(a, 0) for a in acc], e, samples, by_rows, 8)
            slopes[t] = [int(a > 0) for a in acc]
        else:
            u = looked_up(tables.tanh, acc, e)
            h = narrowed(u, -15, samples, by_rows, 8)
            slopes[t] = [(1 << 30) - v * v for v in u]
        done[t] = h
    parts = [done[t] for t in range(steps)]
    run = Run(first, parts, [slopes[t] for t in range(steps)], 0 if relu else -30, h)
    return sequence(parts, samples, 8), run


def rnn_backward(
    gradient: Array | None, x: Array, p: Direction, run: Run, at_last: Array | None = None
) -> Gradients:
    """From the gradient of the output and that of h after the last step; None: none.

    Sections 7 and 12.3.
    """
    steps, samples, _ = x.shape
    by_rows = is_by_rows(x, p) or any(g.by_rows for g in (gradient, at_last) if g is not None)
    terms: list[Term] = [] if at_last is None else [(at_last.codes, at_last.exponent, 31)]
    d: dict[int, Part] = {}
    for t in reversed(p.order(steps)):
        if gradient is not None:
            terms = [(*step_of(gradient, t), 31), *terms]
        dh = narrowed(*rows.combine(terms), samples, by_rows)
        acc = [a * slope for a, slope in zip(dh[0], run.slopes[t], strict=True)]
        d[t] = shortened(acc, plus(dh[1], run.e_slope), samples, by_rows)
        terms = [back(d[t], p, samples, by_rows)]
    ((product, e, _),) = terms
    state = Array(*shaped(shortened(product, e, samples, by_rows), samples), 32)
    parts = [d[t] for t in range(steps)]
    return gathered(parts, parts, x, run.steps, run.h, p, [state])
