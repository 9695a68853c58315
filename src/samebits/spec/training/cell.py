"""Parts that the cells of recurrent layers share, in plain Python integers.

A restatement of docs/spec/training.md, sections 5, 7, 12 and 13. Sequences are [T, N, features],
states [N, H]; gates lie side by side along the features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from samebits.spec import formats
from samebits.spec.formats import EXPONENT_MIN
from samebits.spec.training import rows
from samebits.spec.training.layers import (
    Array,
    Parameter,
    affine_input_gradient,
    affine_weight_gradient,
    bias_gradient,
    by_output,
)
from samebits.spec.training.rows import Exponent, Part, each, plus

Q_GATE = 32767  # of gate values (exponent -15) and of the arguments of their tables (-12)
Term = tuple[Sequence[int], Exponent, int]
"""Codes, exponent and bits of an operand of `combine`."""


@dataclass(frozen=True)
class Tables:
    """Codes of sigmoid and tanh for the arguments -32767..32767 of exponent -12."""

    sigmoid: Sequence[int]
    tanh: Sequence[int]


@dataclass(frozen=True)
class Direction:
    """The parameters of one layer in one direction; `backwards` takes the last step first."""

    weight_ih: Parameter
    weight_hh: Parameter
    bias_ih: Parameter | None
    bias_hh: Parameter | None
    backwards: bool = False

    @property
    def hidden(self) -> int:
        """H."""
        return self.weight_hh.shape[1]

    def order(self, steps: int) -> list[int]:
        """The steps as this direction takes them."""
        return list(reversed(range(steps)) if self.backwards else range(steps))


@dataclass(frozen=True)
class Run:
    """A forward pass: the state and h before it, the values of every step in the order of x, among
    them its `state` and `h`, and the state after it."""

    first: tuple[Part, Part]
    steps: list[Any]
    last: Part


@dataclass(frozen=True)
class Gradients:
    """Gradients of a pass: of x, of the four parameters, and of the states before it."""

    x: Array
    own: list[Array]
    states: list[Array]


def saturate(value: int, limit: int) -> int:
    """`sat` of section 5."""
    return min(max(value, -limit), limit)


def looked_up(table: Sequence[int], acc: Sequence[int], exponent: Exponent) -> list[int]:
    """The table's code for each acc * 2**exponent, rounded to an argument and saturated."""
    return [
        table[saturate(formats.scaled(v, e + 12), Q_GATE) + Q_GATE]
        for v, e in zip(acc, each(exponent, len(acc)), strict=True)
    ]


def products(first: Sequence[int], *others: Sequence[int]) -> list[int]:
    """Those of the integers at each place."""
    return [math.prod(v) for v in zip(first, *others, strict=True)]


# --- products ---------------------------------------------------------------------------------


def matrix_product(rows: Sequence[int], size: int, matrix: Parameter) -> list[int]:
    """rows [N, size] times W transposed: the sums over `size`, flat [N, outputs]."""
    w, outputs = matrix.codes, matrix.shape[0]
    return [
        sum(rows[n + k] * w[j * size + k] for k in range(size))
        for n in range(0, len(rows), size)
        for j in range(outputs)
    ]


def transposed_product(rows: Sequence[int], matrix: Parameter) -> list[int]:
    """rows [N, outputs] times W: flat [N, inputs]."""
    (outputs, inputs), w = matrix.shape, matrix.codes
    return [
        sum(rows[n + j] * w[j * inputs + k] for j in range(outputs))
        for n in range(0, len(rows), outputs)
        for k in range(inputs)
    ]


def pre_activations(x: Part, weight: Parameter, bias: Parameter | None) -> list[Term]:
    """The terms of a product with x [N, inputs], and of its bias: [N, outputs]."""
    outputs, inputs = weight.shape
    samples = len(x[0]) // inputs
    own = by_output(weight, [j for _ in range(samples) for j in range(outputs)])
    exponent = plus(by_sample(x[1], samples, samples * outputs), own)
    terms: list[Term] = [(matrix_product(x[0], inputs, weight), exponent, 30)]
    if bias is not None:
        joint, e_bias = bias.joint
        terms.append((joint * samples, e_bias, 23))
    return terms


def columns(values: Sequence[int], width: int, first: int, last: int) -> list[int]:
    """Columns of flat [N, width]."""
    return [v for n in range(0, len(values), width) for v in values[n + first : n + last]]


def columns_of(terms: Sequence[Term], width: int, first: int, last: int) -> list[Term]:
    """The same columns of every term."""
    return [
        (
            columns(codes, width, first, last),
            exponent if isinstance(exponent, int) else tuple(columns(exponent, width, first, last)),
            bits,
        )
        for codes, exponent, bits in terms
    ]


def side_by_side(parts: Sequence[Sequence[int]], size: int) -> list[int]:
    """Gates [N, size] as flat [N, gates * size]."""
    return [v for n in range(0, len(parts[0]), size) for part in parts for v in part[n : n + size]]


# --- exponents --------------------------------------------------------------------------------


def is_by_rows(x: Array, p: Direction) -> bool:
    """Whether samples have exponents of their own: where those of x or of the weights have."""
    return x.by_rows or not all(isinstance(w.exponent, int) for w in (p.weight_ih, p.weight_hh))


def by_sample(exponent: Exponent, samples: int, count: int) -> Exponent:
    """Exponents of samples, for a tensor of `count` elements of as many samples."""
    if isinstance(exponent, int):
        return exponent
    own = exponent[:: len(exponent) // samples]
    return tuple(own[i * samples // count] for i in range(count))


def narrowed(
    acc: Sequence[int], exponent: Exponent, samples: int, by_rows: bool, bits: int = 16
) -> Part:
    """`requantize` to 16 bits or fewer, of the whole or of every sample."""
    if by_rows:
        own = [i * samples // len(acc) for i in range(len(acc))]
        return rows.requantize(acc, exponent, own, bits)
    return formats.requantize(acc, each(exponent, 1)[0], bits)


def shortened(acc: Sequence[int], exponent: Exponent, samples: int, by_rows: bool) -> Part:
    """`shorten` of the whole or of every sample."""
    if by_rows:
        return rows.shorten(acc, exponent, [i * samples // len(acc) for i in range(len(acc))])
    return formats.shorten(acc, each(exponent, 1)[0])


def start(state: Array | None, size: int, samples: int, by_rows: bool, bits: int) -> Part:
    """A state before the first step: zero, or the given one in so many bits."""
    if state is None:
        return [0] * size, each(EXPONENT_MIN, size) if by_rows else EXPONENT_MIN
    return narrowed(state.codes, state.exponent, samples, by_rows, bits)


def shaped(part: Part, samples: int) -> tuple[list[int], tuple[int, ...], Exponent]:
    """Codes, the shape [N, features] and the exponent of a part."""
    codes = list(part[0])
    return codes, (samples, len(codes) // samples), part[1]


def step_of(x: Array, t: int) -> Part:
    """Codes and exponents of one step of a sequence."""
    size = len(x.codes) // x.shape[0]
    at = slice(t * size, (t + 1) * size)
    return x.codes[at], x.exponent if isinstance(x.exponent, int) else x.exponent[at]


def all_steps(parts: Sequence[Part]) -> tuple[list[int], Exponent]:
    """The parts of all steps: by rows as they are, else at their largest exponent."""
    if not isinstance(parts[0][1], int):
        own = [e for codes, exponent in parts for e in each(exponent, len(codes))]
        return [code for codes, _ in parts for code in codes], tuple(own)
    pairs = [(codes, each(e, 1)[0]) for codes, e in parts]
    top = max((e for codes, e in pairs if any(codes)), default=EXPONENT_MIN)
    return [
        formats.scaled(code, e - top) if code else 0 for codes, e in pairs for code in codes
    ], top


def over_steps(
    step: Callable[[Part, Part, Part], Any], x: Array, p: Direction, first: tuple[Part, Part]
) -> Run:
    """All steps, each from x in it, and the state and h before it. first: before the first one."""
    (state, h), done = first, dict[int, Any]()
    for t in p.order(x.shape[0]):
        last = done[t] = step(step_of(x, t), state, h)
        state, h = last.state, last.h
    return Run(first, [done[t] for t in range(len(done))], state)


def sequence(parts: Sequence[Part], samples: int, bits: int) -> Array:
    """[T, N, features] of the parts of all steps."""
    codes, exponent = all_steps(parts)
    return Array(codes, (len(parts), samples, len(parts[0][0]) // samples), exponent, bits)


# --- the backward pass ------------------------------------------------------------------------


def before_product(d: Part, p: Direction, samples: int, by_rows: bool) -> Part:
    """D in 16 bits with the exponents of the outputs in it, as W will take it (H of 12.3)."""
    outputs, bits = p.weight_hh.shape[0], p.weight_ih.widths[1]
    own = by_output(p.weight_hh, [j for _ in range(samples) for j in range(outputs)])
    if by_rows:
        return narrowed(d[0], plus(d[1], own), samples, True, bits)
    codes, exponent = narrowed(d[0], d[1], samples, False, bits)
    return codes, plus(exponent, own)


def back(d: Part, p: Direction, samples: int, by_rows: bool) -> Term:
    """The term that D of a step adds to the gradient of the hidden state before it."""
    codes, exponent = before_product(d, p, samples, by_rows)
    product = transposed_product(codes, p.weight_hh)
    return product, by_sample(exponent, samples, len(product)), 38


def through_time(
    gradients: Callable[..., tuple[Part, Part, list[Term]]],
    gradient: Array | None,
    x: Array,
    p: Direction,
    run: Run,
    at_last: Array | None,
    is_apart: bool = False,
) -> Gradients:
    """From the gradient of the output and that of the state after the last step; None: none.

    Sections 7 and 12.3. gradients: from what arrives at h of a step and at its state, its values,
    the state before it, and whether samples have exponents of their own: D at the products of x and
    of h, and what the gradient of the state before has of it. is_apart: whether h is no form of the
    state
    """
    steps, samples, _ = x.shape
    by_rows = is_by_rows(x, p) or any(g.by_rows for g in (gradient, at_last) if g is not None)
    order = p.order(steps)
    to_h: list[Term] = []
    to_state: list[Term] = [] if at_last is None else [(at_last.codes, at_last.exponent, 31)]
    d: dict[int, tuple[Part, Part]] = {}
    for place in reversed(range(steps)):
        t = order[place]
        before = run.steps[order[place - 1]].state if place else run.first[0]
        if gradient is not None:
            to_h = [(*step_of(gradient, t), 31), *to_h]
        *both, to_state = gradients(to_h, to_state, run.steps[t], before, by_rows)
        d[t] = both[0], both[1]
        to_h = [back(both[1], p, samples, by_rows)]
    states = []
    for terms in (to_h, to_state) if is_apart else ([*to_h, *to_state],):
        codes, e = rows.combine(terms) if len(terms) > 1 else terms[0][:2]
        states.append(Array(*shaped(shortened(codes, e, samples, by_rows), samples), 32))
    past = {order[0]: run.first[1]} | {t: run.steps[b].h for b, t in pairwise(order)}
    at_x, at_h = (sequence([d[t][side] for t in range(steps)], samples, 32) for side in (0, 1))
    h = sequence([past[t] for t in range(steps)], samples, 8)
    own = [
        affine_weight_gradient(at_x, x, p.weight_ih),
        affine_weight_gradient(at_h, h, p.weight_hh),
        *map(bias_gradient, (at_x, at_h)),
    ]
    return Gradients(affine_input_gradient(at_x, x, p.weight_ih), own, states)
