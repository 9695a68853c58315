"""Stacks of recurrent layers in plain Python integers: docs/spec/training.md, sections 5 and 7.

Layers, directions, dropout between layers, and states, as `torch.nn.LSTM`, `GRU` and `RNN` name
them; the cells are in `lstm`, `gru` and `rnn`. Sequences are [T, N, features].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from samebits.spec import formats
from samebits.spec.training import rows
from samebits.spec.training.cell import Direction, Gradients
from samebits.spec.training.gru import gru, gru_backward
from samebits.spec.training.layers import Array, Parameter, narrowed, resolve, unshifted
from samebits.spec.training.lstm import lstm, lstm_backward
from samebits.spec.training.pointwise import (
    aligned,
    dropout,
    dropout_backward,
    dropout_factors,
    select,
    select_backward,
    taken,
)
from samebits.spec.training.rnn import rnn, rnn_backward
from samebits.spec.training.rows import Part, each

STATES = {"lstm": ("h_n", "c_n"), "gru": ("h_n",), "rnn": ("h_n",)}
"""Kinds of stacks, and the states that they give beside the output."""
STATE_BITS = 15
"""By which states of 16 bits are widened, so that layers may differ by as many binades."""

Lookup = Callable[[str], Parameter | None]
Words = Callable[[str], Sequence[int] | None]


@dataclass(frozen=True)
class Layer:
    """One layer as its backward pass needs it: its input and, per direction, its run."""

    x: Array
    names: list[list[str]]
    directions: list[Direction]
    runs: list[Any]
    dropped: Any  # factors of the dropout before it; None: none


@dataclass(frozen=True)
class Stack:
    """A forward pass: its layers, the shapes of its states, and those that it was given."""

    kind: str
    attributes: Mapping[str, Any]
    layers: list[Layer] = field(default_factory=list)
    given: list[Array] = field(default_factory=list)

    @property
    def batch_first(self) -> bool:
        """Whether sequences are [N, T, features] outside."""
        return bool(self.attributes.get("batch_first", False))


def stack(
    kind: str,
    inputs: Sequence[Array],
    attributes: Mapping[str, Any],
    find: Lookup,
    words: Words = lambda name: None,
) -> tuple[Array, list[Array], Stack]:
    """The output, the states after the last step, and what the backward pass needs.

    inputs: x, and the states before the first step if they are given. find: a parameter by torch's
    name for it. words: Philox words of the dropout before layer k, "dropout_l<k>"; None: none.
    """
    x, *states = map(unshifted, inputs)
    own = Stack(kind, attributes, given=states)
    x = narrowed(x)
    x = swap(x) if own.batch_first else x
    if kind == "lstm" and states:
        states = [narrowed(states[0]), states[1]]
    last: list[Part] = []
    hidden: list[Array] = []
    for index, both in enumerate(_layers(attributes, find)):
        drawn = words(f"dropout_l{index}") if index else None
        dropped = None if drawn is None else dropout_factors(attributes["dropout"], drawn)
        x = x if dropped is None else dropout(x, dropped)
        outputs, runs = [], []
        for _, p in both:
            before = [select(state, 0, len(hidden)) for state in states]
            y, run = _forward(kind, x, p, attributes, before)
            outputs.append(y)
            runs.append(run)
            last.append(run.last)
            hidden.append(select(y, 0, 0 if p.backwards else -1))
        own.layers.append(Layer(x, [n for n, _ in both], [d for _, d in both], runs, dropped))
        x = _features(outputs)
    after = [stacked(last, hidden[0].shape, 32, STATE_BITS)]
    if kind == "lstm":
        after = [stacked([(y.codes, y.exponent) for y in hidden], hidden[0].shape, 8, 0), *after]
    return (swap(x) if own.batch_first else x), after, own


def _forward(
    kind: str, x: Array, p: Direction, attributes: Mapping[str, Any], before: Sequence[Array]
) -> tuple[Array, Any]:
    """The output of one layer in one direction, and its run."""
    tables = attributes["tables"]
    match kind:
        case "lstm":
            return lstm(x, p, tables, *before)
        case "gru":
            return gru(x, p, tables, *before)
        case _:
            return rnn(x, p, tables, attributes.get("relu", False), *before)


BACKWARD: Mapping[str, Callable[..., Gradients]] = {
    "lstm": lstm_backward,
    "gru": gru_backward,
    "rnn": rnn_backward,
}


def _layers(
    attributes: Mapping[str, Any], find: Lookup
) -> Iterator[list[tuple[list[str], Direction]]]:
    """Per layer and direction the names and parameters, as torch has them."""
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


# --- states and shapes ------------------------------------------------------------------------


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


def stacked(parts: Sequence[Part], shape: tuple[int, ...], bits: int, up: int) -> Array:
    """[layers, N, H] of the parts of layers: Concat, with `up` bits more. Section 5.

    Row by row, where rows have exponents of their own: nothing is rounded then.
    """
    whole = (len(parts), *shape)
    codes = [code for part, _ in parts for code in part]
    own = [e for part, exponent in parts for e in each(exponent, len(part))]
    by_rows = not isinstance(parts[0][1], int)
    row_of = rows.rows_of(whole) if by_rows else [0] * len(codes)
    chosen = rows.align(codes, own, row_of)[1]
    live = {row for row, code in zip(row_of, codes, strict=True) if code}
    exponents = [e - up if row in live else e for row, e in zip(row_of, chosen, strict=True)]
    wide = [
        formats.scaled(code, e - to) if code else 0
        for code, e, to in zip(codes, own, exponents, strict=True)
    ]
    return Array(wide, whole, tuple(exponents) if by_rows else exponents[0], bits)


# --- backward ---------------------------------------------------------------------------------


def stack_backward(
    gradient: Sequence[Array], at_last: Sequence[Array | None], saved: Stack
) -> tuple[list[Array], list[list[Array]], dict[str, Array]]:
    """Parts of the gradient of x and of each given state, and the gradients of the parameters.

    gradient: parts of that of the output; at_last: those of the states after the last step, or
    None. Section 7.
    """
    count = len(saved.layers[0].directions)
    parts = list(gradient)
    if parts and saved.batch_first:
        parts = [swap(resolve(parts))]
    own: dict[str, Array] = {}
    states: list[list[Array]] = [[] for _ in saved.given]
    for index in reversed(range(len(saved.layers))):
        layer, above, parts = saved.layers[index], parts, []
        for place, p in enumerate(layer.directions):
            at = index * count + place
            mine = list(above)
            if above and count > 1:
                mine = [_columns(resolve(above), place, count)]
            *hidden, memory = [None if g is None else select(g, 0, at) for g in at_last]
            if hidden and (g := hidden[0]) is not None:
                shape = (*layer.x.shape[:2], p.hidden)
                mine.append(select_backward(g, shape, 0, 0 if p.backwards else -1))
            arrives = resolve(mine) if mine else None
            found = BACKWARD[saved.kind](arrives, layer.x, p, layer.runs[place], memory)
            parts.append(found.x)
            given = (p.weight_ih, p.weight_hh, p.bias_ih, p.bias_hh)
            for name, part, parameter in zip(layer.names[place], found.own, given, strict=True):
                if parameter is not None:
                    own[name] = part
            for kept, state, g in zip(states, saved.given, found.states, strict=False):
                kept.append(select_backward(g, state.shape, 0, at))
        if layer.dropped is not None:
            parts = [dropout_backward(resolve(parts), layer.dropped)]
    return ([swap(resolve(parts))] if saved.batch_first else parts), states, own


def _columns(g: Array, place: int, count: int) -> Array:
    """The features of one direction."""
    size = g.shape[2] // count
    vectors = range(place * size, len(g.codes), g.shape[2])
    return taken(g, [i for n in vectors for i in range(n, n + size)], (*g.shape[:2], size))
