"""Recurrent layers and their cells: one operator on whole sequences for each layer of a stack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from samebits.ir.foreign import Result
from samebits.ir.ops import Array, Attribute
from samebits.pytorch.call import AtenCall, aten


class _Kind(NamedTuple):
    """The real operator of a kind of layer, and its attributes.

    order: for each gate in the order of ONNX, its place in the order of torch.
    """

    op: str
    order: tuple[int, ...]
    attributes: dict[str, Attribute]

    @property
    def states(self) -> int:
        return 2 if self.op == "LSTM" else 1


_KINDS = {
    "lstm": _Kind("LSTM", (0, 3, 1, 2), {}),  # i f g o -> i o f g
    "gru": _Kind("GRU", (1, 0, 2), {"linear_before_reset": 1}),  # r z n -> z r n
    "rnn_tanh": _Kind("RNN", (0,), {}),
    "rnn_relu": _Kind("RNN", (0,), {"activations": ("Relu",)}),
}


@aten(*_KINDS)
def _stack(call: AtenCall) -> Result:
    """All layers of a stack. A layer reads the sequence of the one below it, its directions side by
    side; the final states of the layers are joined along the axis of directions."""
    kind = _KINDS[call.op]
    if "batch_sizes" in call.arguments:
        raise call.unsupported("padded sequences", "packed ones")
    if call["train"] and call["dropout"]:
        raise call.unsupported("evaluation", "dropout in training")
    x = call.tensor("input")
    if call["batch_first"]:
        x = call.emit("Transpose", x, perm=(1, 0, 2))
    layers, directions = call["num_layers"], 2 if call["bidirectional"] else 1
    given = call.tensors("hx") if kind.op == "LSTM" else [call.tensor("hx")]
    states = [_by_layer(call, name, layers, directions) for name in given]
    params = call.tensors("params")
    each = len(params) // (layers * directions)
    finals: list[list[str]] = [[] for _ in given]
    for layer in range(layers):
        at = layer * directions * each
        sets = [params[at + d * each : at + (d + 1) * each] for d in range(directions)]
        initial = [found[layer] for found in states]
        y, *last = _layer(call, kind, x, sets, initial, bool(call["has_biases"]))
        x = _side_by_side(call, y)
        for found, name in zip(finals, last, strict=True):
            found.append(name)
    if call["batch_first"]:
        x = call.emit("Transpose", x, perm=(1, 0, 2))
    return (x, *(f[0] if layers == 1 else call.emit("Concat", *f, axis=0) for f in finals))


@aten(*(f"{name}_cell" for name in _KINDS))
def _cell(call: AtenCall) -> Result:
    """One step: a sequence of length 1."""
    kind = _KINDS[call.op.removesuffix("_cell")]
    x = call.emit("Unsqueeze", call.tensor("input"), axes=(0,))
    given = call.tensors("hx") if kind.op == "LSTM" else [call.tensor("hx")]
    initial = ["" if _zero(call, h) else call.emit("Unsqueeze", h, axes=(0,)) for h in given]
    names = ("w_ih", "w_hh", "b_ih", "b_hh")
    params = [call.tensor(name) for name in names if call[name] is not None]
    _, *last = _layer(call, kind, x, [params], initial, len(params) == len(names))
    found = [call.emit("Squeeze", name, axes=(0,)) for name in last]
    return found[0] if len(found) == 1 else found


def _layer(
    call: AtenCall,
    kind: _Kind,
    x: str,
    sets: Sequence[Sequence[str]],
    initial: Sequence[str],
    biased: bool,
) -> tuple[str, ...]:
    """One layer: the names of its sequence [T, D, B, P] and of its final states [D, B, ...].

    sets: for each of D = 1 or 2 directions w_ih, w_hh, b_ih and b_hh if biased, and w_hr if h is
    projected. initial: a state each, "" for zeros.
    """
    hidden = call.shape_of(sets[0][0])[0] // len(kind.order)
    rows = [
        [_rows(call, name, kind.order) for name in params[: 4 if biased else 2]] for params in sets
    ]
    w, r = (_directions(call, [arrays[i] for arrays in rows]) for i in (0, 1))
    b = _directions(call, [np.concatenate(arrays[2:]) for arrays in rows]) if biased else ""
    inputs = [x, w, r, b, "", *initial]
    projections = [params[-1] for params in sets if len(params) in (3, 5)]
    if projections:
        found = [_constant(call, name) for name in projections]
        inputs += ["", _directions(call, found)]
    while not inputs[-1]:
        inputs.pop()
    return call.emit_all(
        kind.op,
        *inputs,
        hidden_size=hidden,
        direction="bidirectional" if len(sets) == 2 else "forward",
        **kind.attributes,
    )


def _constant(call: AtenCall, name: str) -> Array:
    found = call.builder.constants.get(name)
    if found is None:
        raise call.unsupported("constant weights", f"{name} that is computed")
    return found


def _rows(call: AtenCall, name: str, order: Sequence[int]) -> Array:
    """A matrix or a vector with its gates in ONNX's order."""
    array = _constant(call, name)
    gates = array.reshape(len(order), -1, *array.shape[1:])
    return gates[list(order)].reshape(array.shape)


def _directions(call: AtenCall, arrays: Sequence[Array]) -> str:
    return call.constant(np.stack(arrays))


def _zero(call: AtenCall, name: str) -> bool:
    """Whether a state is the zeros that a layer begins with by itself."""
    array = call.builder.constants.get(name)
    return array is not None and not array.any()


def _by_layer(call: AtenCall, name: str, layers: int, directions: int) -> Sequence[str]:
    """The initial states [D, B, ...] of each layer, "" for zeros."""
    if _zero(call, name):
        return [""] * layers
    if layers == 1:
        return [name]
    return call.emit_all("Split", name, axis=0, sizes=(directions,) * layers)


def _side_by_side(call: AtenCall, y: str) -> str:
    """[T, D, B, P] as [T, B, D * P]."""
    steps, directions, batch, outputs = call.shape_of(y)
    if directions == 1:
        return call.emit("Squeeze", y, axes=(1,))
    moved = call.emit("Transpose", y, perm=(0, 2, 1, 3))
    return call.emit("Reshape", moved, shape=(steps, batch, directions * outputs))
