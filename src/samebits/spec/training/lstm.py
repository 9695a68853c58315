"""The LSTM layer in plain Python integers: docs/spec/training.md, sections 5 and 7.

One layer in one direction (`lstm`, `lstm_backward`), and a stack of them (`stack`,
`stack_backward`) as `torch.nn.LSTM` names its parameters. Sequences are [T, N, features].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
    resolve,
)
from samebits.spec.training.pointwise import aligned, taken
from samebits.spec.training.rows import Exponent, Part, each, plus

HIDDEN_EXPONENT = -7
Q_GATE = 32767  # of gate values (exponent -15) and of the arguments of their tables (-12)


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


def saturate(value: int, limit: int) -> int:
    """`sat` of section 5."""
    return min(max(value, -limit), limit)


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


def product_exponent(x: Exponent, matrix: Parameter, samples: int) -> Exponent:
    """The exponent of `matrix_product`: the sample's and the output's. Section 12.2."""
    outputs = matrix.shape[0]
    own = by_output(matrix, [j for _ in range(samples) for j in range(outputs)])
    return plus(by_sample(x, samples, samples * outputs), own)


def by_sample(exponent: Exponent, samples: int, count: int) -> Exponent:
    """Exponents of samples, for a tensor of `count` elements of as many samples."""
    if isinstance(exponent, int):
        return exponent
    own = exponent[:: len(exponent) // samples]
    return tuple(own[i * samples // count] for i in range(count))


def narrow16(
    acc: Sequence[int], exponent: Exponent, samples: int, by_rows: bool, bits: int = 16
) -> Part:
    """`requantize` to 16 bits or fewer, of the whole or of every sample."""
    if by_rows:
        own = [i * samples // len(acc) for i in range(len(acc))]
        return rows.requantize(acc, exponent, own, bits)
    return formats.requantize(acc, each(exponent, 1)[0], bits)


# --- one layer in one direction -------------------------------------------------------------


def is_by_rows(x: Array, p: Direction) -> bool:
    """Whether samples have exponents of their own: where those of x or of the weights have."""
    return x.by_rows or not all(isinstance(w.exponent, int) for w in (p.weight_ih, p.weight_hh))


def lstm(x: Array, p: Direction, tables: Tables) -> tuple[Array, list[Step]]:
    """The output [T, N, H] and the values of every step, in the order of the steps of x.

    Sections 5 and 12.2.
    """
    steps, samples, _ = x.shape
    size, by_rows = samples * p.hidden, is_by_rows(x, p)
    h: list[int] = [0] * size
    c: Part = [0] * size, each(EXPONENT_MIN, size) if by_rows else EXPONENT_MIN
    done: dict[int, Step] = {}
    for t in reversed(range(steps)) if p.backwards else range(steps):
        last = done[t] = _step(step_of(x, t), h, c, p, tables)
        h, c = last.h, last.c
    values = [done[t] for t in range(steps)]
    codes = [code for step in values for code in step.h]
    exponent = each(HIDDEN_EXPONENT, len(codes)) if by_rows else HIDDEN_EXPONENT
    return Array(codes, (steps, samples, p.hidden), exponent, 8), values


def step_of(x: Array, t: int) -> Part:
    """Codes and exponents of one step of a sequence."""
    size = len(x.codes) // x.shape[0]
    at = slice(t * size, (t + 1) * size)
    return x.codes[at], x.exponent if isinstance(x.exponent, int) else x.exponent[at]


def _step(x: Part, h: list[int], c: Part, p: Direction, tables: Tables) -> Step:
    """Steps 1 to 4 of section 5: gates, cell state and hidden state from x, and h, c before it."""
    outputs = 4 * p.hidden
    samples = len(h) // p.hidden
    hidden = product_exponent(HIDDEN_EXPONENT, p.weight_hh, samples)
    terms = [
        (
            matrix_product(x[0], p.weight_ih.shape[1], p.weight_ih),
            product_exponent(x[1], p.weight_ih, samples),
            30,
        ),
        (matrix_product(h, p.hidden, p.weight_hh), hidden, 30),
    ]
    for bias in (p.bias_ih, p.bias_hh):
        if bias is not None:
            joint, exponent = bias.joint
            terms.append((joint * samples, exponent, 23))
    a, e = rows.combine(terms)
    z = [
        saturate(formats.scaled(v, own + 12), Q_GATE)
        for v, own in zip(a, each(e, len(a)), strict=True)
    ]
    lookup = (tables.sigmoid, tables.sigmoid, tables.tanh, tables.sigmoid)
    i, f, g, o = (
        [
            lookup[gate][z[n * outputs + gate * p.hidden + k] + Q_GATE]
            for n in range(samples)
            for k in range(p.hidden)
        ]
        for gate in range(4)
    )
    kept = [a * b for a, b in zip(f, c[0], strict=True)]
    new = [a * b for a, b in zip(i, g, strict=True)]
    by_rows = not isinstance(c[1], int)
    acc, e = rows.combine([(kept, plus(c[1], -15), 30), (new, -30, 30)])
    state = narrow16(acc, e, samples, by_rows)
    u = [
        tables.tanh[saturate(formats.scaled(v, own + 12), Q_GATE) + Q_GATE]
        for v, own in zip(state[0], each(state[1], len(state[0])), strict=True)
    ]
    out = [saturate(formats.scaled(a * b, -23), 127) for a, b in zip(o, u, strict=True)]
    return Step(i, f, g, o, state, u, out)


def lstm_backward(
    gradient: Array, x: Array, p: Direction, done: Sequence[Step]
) -> tuple[Array, list[Array]]:
    """The input gradient, and those of weight_ih, weight_hh and of either bias.

    Sections 7 and 12.3.
    """
    steps, samples, _ = x.shape
    size, outputs = samples * p.hidden, 4 * p.hidden
    by_rows = is_by_rows(x, p) or gradient.by_rows
    order = list(reversed(range(steps)) if p.backwards else range(steps))
    later: tuple[Part, Part, list[int]] | None = None  # D16, dc and f of step t + 1
    d: dict[int, Part] = {}
    for place in reversed(range(steps)):
        t = order[place]
        before: Part = done[order[place - 1]].c if place else ([0] * size, EXPONENT_MIN)
        terms = [(*step_of(gradient, t), 31)]
        if later is not None:
            back = transposed_product(later[0][0], p.weight_hh)
            terms.append((back, by_sample(later[0][1], samples, size), 38))
        dh = narrow16(*rows.combine(terms), samples, by_rows)
        dc = _cell_gradient(dh, done[t], None if later is None else later[1:], samples, by_rows)
        d[t] = _gate_gradients(dh, dc, done[t], before, p.hidden, by_rows)
        later = _before_product(d[t], p, samples, by_rows), dc, done[t].f
    codes, e_d = _all_steps([d[t] for t in range(steps)])
    g = Array(codes, (steps, samples, outputs), e_d, 32)
    nothing = [0] * size
    past = {t: done[before].h for before, t in pairwise(order)}
    hidden = [code for t in range(steps) for code in past.get(t, nothing)]
    h = Array(hidden, (steps, samples, p.hidden), HIDDEN_EXPONENT, 8)
    own = [
        affine_weight_gradient(g, x, p.weight_ih),
        affine_weight_gradient(g, h, p.weight_hh),
        bias_gradient(g),
    ]
    return affine_input_gradient(g, x, p.weight_ih), own


def _before_product(d: Part, p: Direction, samples: int, by_rows: bool) -> Part:
    """D in 16 bits with the exponents of the outputs in it, as W will take it (H of 12.3)."""
    outputs, bits = 4 * p.hidden, p.weight_ih.widths[1]
    own = by_output(p.weight_hh, [j for _ in range(samples) for j in range(outputs)])
    if by_rows:
        return narrow16(d[0], plus(d[1], own), samples, True, bits)
    codes, exponent = narrow16(d[0], d[1], samples, False, bits)
    return codes, plus(exponent, own)


def _all_steps(parts: Sequence[Part]) -> tuple[list[int], Exponent]:
    """D of all steps: by rows as they are, else at their largest exponent."""
    if not isinstance(parts[0][1], int):
        own = [e for codes, exponent in parts for e in each(exponent, len(codes))]
        return [code for codes, _ in parts for code in codes], tuple(own)
    pairs = [(codes, each(e, 1)[0]) for codes, e in parts]
    top = max((e for codes, e in pairs if any(codes)), default=EXPONENT_MIN)
    return [
        formats.scaled(code, e - top) if code else 0 for codes, e in pairs for code in codes
    ], top


def _cell_gradient(
    dh: Part, step: Step, later: tuple[Part, list[int]] | None, samples: int, by_rows: bool
) -> Part:
    """dc of a step; `later`: dc and f of the next."""
    through = [a * o * ((1 << 30) - u * u) for a, o, u in zip(dh[0], step.o, step.u, strict=True)]
    terms = [(through, plus(dh[1], -45), 60)]
    if later is not None:
        (codes, exponent), f = later
        kept = [a * b for a, b in zip(codes, f, strict=True)]
        terms.append((kept, plus(exponent, -15), 30))
    return narrow16(*rows.combine(terms), samples, by_rows)


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
    codes, exponents = [], []
    for n in range(0, count, hidden):
        own = (e_c[n] - 45, e_c[n] + e_b[n] - 30, e_c[n] - 45, e_h[n] - 45)
        codes += [
            formats.scaled(products[n + k][gate], own[gate] - max(own))
            for gate in range(4)
            for k in range(hidden)
        ]
        exponents += [max(own)] * (4 * hidden)
    if by_rows:
        return rows.shorten(codes, tuple(exponents), [i // (4 * hidden) for i in range(len(codes))])
    return formats.shorten(codes, exponents[0])


# --- a stack --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layer:
    """One layer as its backward pass needs it: its input and, per direction, its steps."""

    x: Array
    names: list[list[str]]
    directions: list[Direction]
    done: list[list[Step]]


Lookup = Callable[[str], Parameter | None]


def _layers(
    attributes: Mapping[str, Any], find: Lookup
) -> Iterator[list[tuple[list[str], Direction]]]:
    """Per layer and direction the names and parameters of a torch.nn.LSTM."""
    for index in range(attributes.get("num_layers", 1)):
        both = []
        for end in ("", "_reverse") if attributes.get("bidirectional", False) else ("",):
            parts = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            names = [f"{part}_l{index}{end}" for part in parts]
            ih, hh, bias_ih, bias_hh = map(find, names)
            if ih is None or hh is None:
                raise ValueError(f"expected the parameters {names[0]} and {names[1]}")
            both.append((names, Direction(ih, hh, bias_ih, bias_hh, bool(end))))
        yield both


def swap(x: Array) -> Array:
    """[N, T, features] <-> [T, N, features]."""
    a, b, size = x.shape
    places = [(i * b + j) * size + k for j in range(b) for i in range(a) for k in range(size)]
    return taken(x, places, (b, a, size))


def _features(parts: Sequence[Array]) -> Array:
    """Concat along the features, of one part or of two. Section 5."""
    if len(parts) == 1:
        return parts[0]
    size = parts[0].shape[2]
    vectors = range(0, len(parts[0].codes), size)
    codes = [code for n in vectors for p in parts for code in p.codes[n : n + size]]
    own = [each(p.exponent, len(p.codes))[n] for n in vectors for p in parts for _ in range(size)]
    return aligned(codes, own, (*parts[0].shape[:2], 2 * size), parts[0].by_rows)


def stack(
    x: Array, attributes: Mapping[str, Any], find: Lookup, tables: Tables
) -> tuple[Array, list[Layer]]:
    """The output, and what the backward pass needs. `find`: a parameter by torch's name for it."""
    x = swap(x) if attributes.get("batch_first", False) else x
    saved = []
    for both in _layers(attributes, find):
        results = [lstm(x, direction, tables) for _, direction in both]
        names, directions = [n for n, _ in both], [d for _, d in both]
        saved.append(Layer(x, names, directions, [steps for _, steps in results]))
        x = _features([y for y, _ in results])
    return (swap(x) if attributes.get("batch_first", False) else x), saved


def stack_backward(
    gradient: Array, attributes: Mapping[str, Any], saved: Sequence[Layer]
) -> tuple[list[Array], dict[str, Array]]:
    """Parts of the input gradient, and the gradients of the parameters by torch's names. Sec. 7."""
    parts = [swap(gradient) if attributes.get("batch_first", False) else gradient]
    own: dict[str, Array] = {}
    for layer in reversed(saved):
        g, parts = resolve(parts), []
        for index, p in enumerate(layer.directions):
            size = g.shape[2] // len(layer.directions)
            vectors = range(index * size, len(g.codes), g.shape[2])
            places = [i for n in vectors for i in range(n, n + size)]
            mine = taken(g, places, (*g.shape[:2], size))
            down, (d_ih, d_hh, d_bias) = lstm_backward(mine, layer.x, p, layer.done[index])
            names = layer.names[index]
            own[names[0]], own[names[1]] = d_ih, d_hh
            if p.bias_ih is not None:
                own[names[2]] = own[names[3]] = d_bias
            parts.append(down)
    return ([swap(resolve(parts))] if attributes.get("batch_first", False) else parts), own
