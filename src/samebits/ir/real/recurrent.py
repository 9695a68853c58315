"""Recurrent layers on whole sequences: LSTM, GRU, RNN. docs/spec/graph.md section 2.1.

The operators of ONNX with sequences [T, B, ...] (its layout 0), and an LSTM with a projection of
its output as one more input. What a step computes stands in `cell`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from samebits.ir.ops import Array, Attributes, Type, op_named
from samebits.ir.real import define as real
from samebits.ir.real.cell import LAYERS, Cell, Parameters, Sizes, activations, weights
from samebits.ir.real.define import Inputs, define, number
from samebits.ir.traits import Trait

DIRECTIONS = ("forward", "reverse", "bidirectional")
# Inputs: X, W, R, B?, sequence_lens?, initial_h?, and of an LSTM initial_c?, P?, projection?
X, W, R, B, LENGTHS, INITIAL, CELL, PEEPHOLE, PROJECTION = range(9)


def recurrent_sizes(op: str, inputs: Inputs, attributes: Attributes) -> Sizes:
    """The sizes of a recurrent operator, from the shapes of its inputs; ValueError without any."""
    layer, hidden = LAYERS[op], attributes["hidden_size"]
    directions = 2 if attributes["direction"] == "bidirectional" else 1
    x, w, r = (tuple(value.shape) for value in inputs[:3])
    if not real.is_integer(hidden) or hidden < 1:
        raise ValueError(f"expected a hidden_size of at least 1, found {hidden!r}")
    for what, shape in (("X", x), ("W", w), ("R", r)):
        if len(shape) != 3:
            raise ValueError(f"expected {what} of 3 axes, found {list(shape)}")
    projected = len(inputs) > PROJECTION and inputs[PROJECTION] is not None
    outputs = r[2] if projected else hidden
    rows = len(layer.gates) * hidden
    for what, shape, wanted in (
        ("W", w, (directions, rows, x[2])),
        ("R", r, (directions, rows, outputs)),
    ):
        if shape != wanted:
            raise ValueError(f"expected {what} of {list(wanted)}, found {list(shape)}")
    return Sizes(directions, hidden, x[2], outputs)


def parameters(op: str, inputs: Sequence[Any]) -> Parameters[Any]:
    """The inputs that are neither sequences nor states."""
    given = [*inputs, *[None] * (PROJECTION + 1 - len(inputs))]
    return Parameters(given[W], given[R], given[B], given[PEEPHOLE], given[PROJECTION])


def _infer(op: str, values: Inputs, attributes: Attributes) -> list[Type]:
    """Y [T, D, B, P], then the last h [D, B, P] and, of an LSTM, c [D, B, H]. ValueError that names
    the input or attribute that does not fit."""
    real.choice(attributes, "direction", DIRECTIONS)
    lengths = values[LENGTHS]
    numbers = [value for index, value in enumerate(values) if index != LENGTHS]
    kind = real.check_same_type(numbers, real.FLOATS)
    sizes = recurrent_sizes(op, values, attributes)
    layer, batch = LAYERS[op], values[X].shape[1]
    directions, hidden = sizes.directions, sizes.hidden
    wanted: dict[int, tuple[str, tuple[int, ...]]] = {
        B: ("B", (directions, 2 * len(layer.gates) * hidden)),
        LENGTHS: ("sequence_lens", (batch,)),
        INITIAL: ("initial_h", (directions, batch, sizes.outputs)),
        CELL: ("initial_c", (directions, batch, hidden)),
        PEEPHOLE: ("P", (directions, 3 * hidden)),
        PROJECTION: ("projection", (directions, sizes.outputs, hidden)),
    }
    for index, (what, shape) in wanted.items():
        if index < len(values) and values[index] is not None and values[index].shape != shape:
            raise ValueError(f"expected {what} of {list(shape)}, found {list(values[index].shape)}")
    if lengths is not None:
        real.check_type(lengths, ("int32",), "sequence_lens")
    clip = attributes["clip"]
    if clip is not None and (isinstance(clip, bool) or not isinstance(clip, (int, float))):
        raise ValueError(f"expected clip to be a number or None, found {clip!r}")
    if clip is not None and clip <= 0:
        raise ValueError(f"expected a positive clip, found {clip}")
    activations(layer, attributes, directions)
    states = [(directions, batch, sizes.outputs), (directions, batch, hidden)][: layer.states]
    sequence = (values[X].shape[0], directions, batch, sizes.outputs)
    return [(kind, shape) for shape in (sequence, *states)]


class Arrays:
    """Operators on arrays (see cell.Operators). like: an array of the kind that numbers take."""

    def __init__(self, like: Array) -> None:
        self.like = like

    def __call__(
        self, op: str, *inputs: Array, name: str = "", **attributes: Any
    ) -> Sequence[Array]:
        record = op_named(op)
        return record.meaning(inputs, record.complete(attributes, name))

    def number(self, value: float) -> Array:
        """The number as an array of rank 0, of the kind that `like` is."""
        found: Any = number(value, self.like)
        return np.array(found, self.like.dtype)


def _meaning(op: str, arrays: Inputs, attributes: Attributes) -> list[Array]:
    """All steps of every direction; rows of a batch that have ended keep their states."""
    layer, x = LAYERS[op], arrays[X]
    sizes = recurrent_sizes(op, arrays, attributes)
    lengths = _lengths(arrays[LENGTHS], *x.shape[:2])
    operators = Arrays(x)
    features = (sizes.outputs, sizes.hidden)[: layer.states]
    zero = number(0, x)
    y = np.full((x.shape[0], sizes.directions, x.shape[1], sizes.outputs), zero, x.dtype)
    finals = [np.full((sizes.directions, x.shape[1], size), zero, x.dtype) for size in features]
    functions = activations(layer, attributes, sizes.directions)
    for d in range(sizes.directions):
        found = weights(operators, layer, parameters(op, arrays), sizes, d, attributes)
        cell = Cell(layer, operators, found, attributes, functions[d])
        backward = attributes["direction"] == "reverse" or d == 1
        order = _order(lengths, x.shape[0], backward)
        states = tuple(
            final[d] if initial is None else initial[d]
            for final, initial in zip(finals, arrays[INITIAL:], strict=False)
        )
        rows = np.arange(x.shape[1])
        for step, at in enumerate(order):
            alive = (step < lengths)[:, np.newaxis]
            made = cell.step(x[at, rows], states)
            states = tuple(np.where(alive, new, old) for new, old in zip(made, states, strict=True))
            y[at, d, rows] = np.where(alive, states[0], zero)
        for final, state in zip(finals, states, strict=True):
            final[d] = state
    return [y, *finals]


def _lengths(given: Array | None, steps: int, batch: int) -> Array:
    """The steps of each row of the batch, int64 [B]."""
    if given is None:
        return np.full(batch, steps, np.int64)
    if ((given < 0) | (given > steps)).any():
        raise ValueError(f"expected sequence_lens from 0 to {steps}, found {given.tolist()[:8]}")
    return given.astype(np.int64)


def _order(lengths: Array, steps: int, backward: bool) -> Array:
    """The element of each row that is computed at each step, [T, B]: backward layers reverse each
    row within its own length."""
    forward = np.broadcast_to(np.arange(steps)[:, np.newaxis], (steps, len(lengths)))
    return np.where(forward < lengths, lengths - 1 - forward, forward) if backward else forward


def _define(op: str, inputs: int, **defaults: Any) -> None:
    """Register a recurrent operator. defaults: attributes that the others do not have."""
    define(
        op,
        (3, inputs),
        real.attributes_of(
            "hidden_size",
            direction="forward",
            activations=(),
            activation_alpha=(),
            activation_beta=(),
            clip=None,
            **defaults,
        ),
        lambda values, attributes: _infer(op, values, attributes),
        lambda arrays, attributes: _meaning(op, arrays, attributes),
        Trait.HEAVY,
    )


_define("LSTM", 9, input_forget=0)
_define("GRU", 6, linear_before_reset=0)
_define("RNN", 6)
