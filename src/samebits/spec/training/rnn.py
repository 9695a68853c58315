"""The cell of a plain RNN, tanh or relu, in plain Python integers: training.md 5, 7 and 12.

One layer in one direction; stacks of them are in `recurrent`.
"""

from __future__ import annotations

from dataclasses import dataclass

from samebits.spec.training import rows
from samebits.spec.training.cell import (
    Direction,
    Gradients,
    Run,
    Tables,
    Term,
    is_by_rows,
    looked_up,
    narrowed,
    over_steps,
    pre_activations,
    products,
    sequence,
    shortened,
    start,
    through_time,
)
from samebits.spec.training.layers import Array
from samebits.spec.training.rows import Part, plus


@dataclass(frozen=True)
class Step:
    """The values of one step: h, and its derivative with that one's exponent."""

    h: Part
    slope: list[int]
    e_slope: int

    @property
    def state(self) -> Part:
        """h itself."""
        return self.h


def rnn(
    x: Array, p: Direction, tables: Tables, relu: bool, state: Array | None = None
) -> tuple[Array, Run]:
    """The output [T, N, H], and what the backward pass needs. state [N, H]: h before it.

    Sections 5 and 12.2.
    """
    samples, by_rows = x.shape[1], is_by_rows(x, p)
    first = start(state, samples * p.hidden, samples, by_rows, 8)

    def step(own: Part, _: Part, h: Part) -> Step:
        of_x = pre_activations(own, p.weight_ih, p.bias_ih)
        acc, e = rows.combine([*of_x, *pre_activations(h, p.weight_hh, p.bias_hh)])
        if relu:
            h = narrowed([max(a, 0) for a in acc], e, samples, by_rows, 8)
            return Step(h, [int(a > 0) for a in acc], 0)
        u = looked_up(tables.tanh, acc, e)
        slope = [(1 << 30) - v * v for v in u]
        return Step(narrowed(u, -15, samples, by_rows, 8), slope, -30)

    run = over_steps(step, x, p, (first, first))
    return sequence([done.h for done in run.steps], samples, 8), run


def rnn_backward(
    gradient: Array | None, x: Array, p: Direction, run: Run, at_last: Array | None = None
) -> Gradients:
    """`through_time` of these cells."""
    samples = x.shape[1]

    def gradients(
        to_h: list[Term], to_state: list[Term], step: Step, _: Part, by_rows: bool
    ) -> tuple[Part, Part, list[Term]]:
        g, e_g = narrowed(*rows.combine([*to_h, *to_state]), samples, by_rows)
        d = shortened(products(g, step.slope), plus(e_g, step.e_slope), samples, by_rows)
        return d, d, []

    return through_time(gradients, gradient, x, p, run, at_last)
