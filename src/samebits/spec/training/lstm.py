"""The LSTM layer in plain Python integers: docs/spec/training.md, sections 5 and 7.

One layer in one direction (`lstm`, `lstm_backward`), and a stack of them (`stack`,
`stack_backward`) as `torch.nn.LSTM` names its parameters. Sequences are [T, N, features].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from samebits.spec import formats
from samebits.spec.formats import EXPONENT_MIN, Tensor
from samebits.spec.training.layers import Array, Parameter, narrow, resolve, wide

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
    c: Tensor
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


def outer_sum(rows: Sequence[int], outputs: int, others: Sequence[int], inputs: int) -> list[int]:
    """sum over n of rows[n, j] * others[n, k], flat [outputs, inputs]."""
    count = len(rows) // outputs
    return [
        sum(rows[n * outputs + j] * others[n * inputs + k] for n in range(count))
        for j in range(outputs)
        for k in range(inputs)
    ]


# --- one layer in one direction -------------------------------------------------------------


def lstm(x: Array, p: Direction, tables: Tables) -> tuple[Array, list[Step]]:
    """The output [T, N, H] and the values of every step, in the order of the steps of x. Sec. 5."""
    steps, samples, features = x.shape
    size = samples * p.hidden
    h, c = [0] * size, ([0] * size, EXPONENT_MIN)
    done: dict[int, Step] = {}
    for t in reversed(range(steps)) if p.backwards else range(steps):
        row = x.codes[t * samples * features : (t + 1) * samples * features]
        last = done[t] = _step((row, x.exponent), h, c, p, tables)
        h, c = last.h, last.c
    values = [done[t] for t in range(steps)]
    codes = [code for step in values for code in step.h]
    return Array(codes, (steps, samples, p.hidden), HIDDEN_EXPONENT, 8), values


def _step(x: Tensor, h: list[int], c: Tensor, p: Direction, tables: Tables) -> Step:
    """Steps 1 to 4 of section 5: gates, cell state and hidden state from x, and h, c before it."""
    outputs = 4 * p.hidden
    samples = len(h) // p.hidden
    terms = [
        (matrix_product(x[0], p.weight_ih.shape[1], p.weight_ih), x[1] + p.weight_ih.exponent, 30),
        (matrix_product(h, p.hidden, p.weight_hh), HIDDEN_EXPONENT + p.weight_hh.exponent, 30),
    ]
    for bias in (p.bias_ih, p.bias_hh):
        if bias is not None:
            joint, exponent = bias.joint
            terms.append((joint * samples, exponent, 23))
    a, e = formats.combine(terms)
    z = [saturate(formats.scaled(v, e + 12), Q_GATE) for v in a]
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
    state = formats.requantize(*formats.combine([(kept, c[1] - 15, 30), (new, -30, 30)]), 16)
    u = [tables.tanh[saturate(formats.scaled(v, state[1] + 12), Q_GATE) + Q_GATE] for v in state[0]]
    out = [saturate(formats.scaled(a * b, -23), 127) for a, b in zip(o, u, strict=True)]
    return Step(i, f, g, o, state, u, out)


def lstm_backward(
    gradient: Array, x: Array, p: Direction, done: Sequence[Step]
) -> tuple[Array, list[Array]]:
    """The input gradient, and those of weight_ih, weight_hh and of either bias. Section 7."""
    steps, samples, features = x.shape
    size, outputs = samples * p.hidden, 4 * p.hidden
    order = list(reversed(range(steps)) if p.backwards else range(steps))
    later: tuple[Tensor, Tensor, list[int]] | None = None  # D16, dc and f of step t + 1
    d: dict[int, Tensor] = {}
    for place in reversed(range(steps)):
        t = order[place]
        before = done[order[place - 1]].c if place else ([0] * size, EXPONENT_MIN)
        terms = [(gradient.codes[t * size : (t + 1) * size], gradient.exponent, 31)]
        if later is not None:
            back = transposed_product(later[0][0], p.weight_hh)
            terms.append((back, later[0][1] + p.weight_hh.exponent, 38))
        dh = formats.requantize(*formats.combine(terms), 16)
        dc = _cell_gradient(dh, done[t], None if later is None else later[1:])
        d[t] = _gate_gradients(dh, dc, done[t], before, p.hidden)
        later = formats.requantize(*d[t], 16), dc, done[t].f
    e_d = max((e for codes, e in d.values() if any(codes)), default=EXPONENT_MIN)
    codes = [
        formats.scaled(code, d[t][1] - e_d) if code else 0 for t in range(steps) for code in d[t][0]
    ]
    d16, e_16 = formats.requantize(codes, e_d, 16)
    down = narrow(transposed_product(d16, p.weight_ih), x.shape, e_16 + p.weight_ih.exponent, 16)
    width = samples * outputs
    following = [c for t in order[1:] for c in codes[t * width : (t + 1) * width]]
    hidden = [code for t in order[:-1] for code in done[t].h]
    own = [
        wide(outer_sum(codes, outputs, x.codes, features), (outputs, features), e_d + x.exponent),
        wide(
            outer_sum(following, outputs, hidden, p.hidden),
            (outputs, p.hidden),
            e_d + HIDDEN_EXPONENT,
        ),
        wide([sum(codes[j::outputs]) for j in range(outputs)], (outputs,), e_d),
    ]
    return down, own


def _cell_gradient(dh: Tensor, step: Step, later: tuple[Tensor, list[int]] | None) -> Tensor:
    """dc of a step; `later`: dc and f of the next."""
    through = [a * o * ((1 << 30) - u * u) for a, o, u in zip(dh[0], step.o, step.u, strict=True)]
    terms = [(through, dh[1] - 45, 60)]
    if later is not None:
        (codes, exponent), f = later
        terms.append(([a * b for a, b in zip(codes, f, strict=True)], exponent - 15, 30))
    return formats.requantize(*formats.combine(terms), 16)


def _gate_gradients(dh: Tensor, dc: Tensor, step: Step, before: Tensor, hidden: int) -> Tensor:
    """D of a step, flat [N, 4H]; `before`: c of the step before."""
    gates = zip(step.i, step.f, step.g, step.o, step.u, before[0], dh[0], dc[0], strict=True)
    rows = [
        (
            d_c * g * (i * ((1 << 15) - i)),
            d_c * c * (f * ((1 << 15) - f)),
            d_c * i * ((1 << 30) - g * g),
            d_h * u * (o * ((1 << 15) - o)),
        )
        for i, f, g, o, u, c, d_h, d_c in gates
    ]
    exponents = (dc[1] - 45, dc[1] + before[1] - 30, dc[1] - 45, dh[1] - 45)
    e = max(exponents)
    codes = [
        formats.scaled(rows[n + k][gate], exponents[gate] - e)
        for n in range(0, len(rows), hidden)
        for gate in range(4)
        for k in range(hidden)
    ]
    return formats.shorten(codes, e)


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
    codes = [
        x.codes[(i * b + j) * size + k] for j in range(b) for i in range(a) for k in range(size)
    ]
    return replace(x, codes=codes, shape=(b, a, size))


def _features(parts: Sequence[Array]) -> Array:
    """Concat along the features, of one part or of two. Section 5."""
    if len(parts) == 1:
        return parts[0]
    common = max((p.exponent for p in parts if any(p.codes)), default=EXPONENT_MIN)
    size = parts[0].shape[2]
    rows = range(0, len(parts[0].codes), size)
    codes = [code for n in rows for p in parts for code in p.codes[n : n + size]]
    return replace(parts[0], codes=codes, shape=(*parts[0].shape[:2], 2 * size), exponent=common)


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
            rows = range(index * size, len(g.codes), g.shape[2])
            codes = [code for n in rows for code in g.codes[n : n + size]]
            mine = replace(g, codes=codes, shape=(*g.shape[:2], size))
            down, (d_ih, d_hh, d_bias) = lstm_backward(mine, layer.x, p, layer.done[index])
            names = layer.names[index]
            own[names[0]], own[names[1]] = d_ih, d_hh
            if p.bias_ih is not None:
                own[names[2]] = own[names[3]] = d_bias
            parts.append(down)
    return ([swap(resolve(parts))] if attributes.get("batch_first", False) else parts), own
