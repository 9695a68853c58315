"""Recurrent layers in C, all steps at a time (training.md 5 and 7): tensors with one exponent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from samebits.kernels.memory import GRADIENT, I8, I16, I32, I64, pointer
from samebits.kernels.native_vectors import NativeVectors
from samebits.kernels.protocol import (
    BITS,
    GATES,
    Q_GATE,
    CellGradients,
    CellLayer,
    CellStates,
    Part,
)

ENTRIES = 2 * (2 * Q_GATE + 1)  # of the two tables
SPARE = 16  # numbers of a room, for the alignment of what lies in it
_threads = torch.get_num_threads


class NativeRecurrence(NativeVectors):
    """The part of `Native` that is recurrent layers."""

    def recurrence(self, layer: CellLayer) -> CellStates | None:
        """One call."""
        of_layer, kept = self._layer(layer)
        steps, n, units, gates = _sizes(layer)
        x, count = layer.products[0], steps * n * units
        h, states = (x.new_empty((steps, n, units), dtype=k) for k in (I8, _state_type(gates)))
        exponents, own, last = x.new_empty(steps, dtype=I64), self._out(), self._out()
        numbers = (3 * gates + 6) * n * units // 4 + 2 * gates * units + steps + SPARE
        room = x.new_empty(numbers, dtype=I64)
        self._run(
            self._c.samebits_recurrence,
            *(*of_layer, pointer(room, numbers, I64)),
            *(pointer(h, count, I8), own, pointer(states, count, I8, I16)),
            *(pointer(exponents, steps, I64), last, _threads()),
        )
        del kept  # till C has read it
        return CellStates((h, own[0]), states, exponents, last[0])

    def recurrence_gradient(
        self,
        layer: CellLayer,
        states: CellStates,
        grad: Part | None,
        at_last: Part | None,
        bits: int,
        wanted: Sequence[bool],
    ) -> CellGradients | None:
        """One call, which opens the gates of every step again."""
        of_layer, kept = self._layer(layer)
        steps, n, units, gates = _sizes(layer)
        x, size = layer.products[0], n * units
        numbers = (8 * gates + 15) * size // 4 + 2 * gates * units + 3 * steps + SPARE
        whole, room = steps * size, x.new_empty(numbers, dtype=I64)
        h = None if states.h is None else states.h[0]
        past, e_past = x.new_empty((steps, n, units), dtype=I8), self._out()
        first = [(x.new_empty((n, units)) if want else None, self._out()) for want in wanted]
        d_h = torch.empty_like(x) if layer.kind == "gru" else None
        d_x, e_h, e_x = torch.empty_like(x), self._out(), self._out()
        arriving = [_dense(grad), _dense(at_last)]
        self._run(
            self._c.samebits_recurrence_gradient,
            *(*of_layer, pointer(room, numbers, I64), pointer(h, whole, I8)),
            *(pointer(states.states, whole, _state_type(gates)),),
            *(pointer(states.exponents, steps, I64), *self._arriving(arriving[0], whole)),
            *(*self._arriving(arriving[1], size), bits, pointer(past, whole, I8), e_past),
            *(place for v, e in first for place in (pointer(v, size, I32), e)),
            *(pointer(d_h, gates * whole, I32), e_h),
            *(pointer(d_x, gates * whole, I32), e_x, _threads()),
        )
        del kept  # till C has read it
        at_x = d_x, e_x[0]
        of_h, of_state = (None if v is None else (v, e[0]) for v, e in first)
        at_h = at_x if d_h is None else (d_h, e_h[0])
        return CellGradients(at_x, at_h, (past, e_past[0]), (of_h, of_state))

    def _arriving(self, part: Part | None, count: int) -> tuple[Any, ...]:
        """Where C finds a gradient, of how many bits, and its exponent."""
        if part is None:
            return None, 16, self._at(0)
        codes, exponent = part
        return pointer(codes, count, *GRADIENT), BITS[codes.dtype], self._at(exponent)

    def _layer(self, layer: CellLayer) -> tuple[tuple[Any, ...], Any]:
        """The kind of a layer and it as C reads it (`Layer` of step.h); tensors that lie there."""
        steps, n, units, gates = _sizes(layer)
        parts = layer.products, layer.weight, layer.h, layer.state
        counts = steps * n * gates * units, gates * units * units, n * units, n * units
        kinds = I32, I8, I8, _state_type(gates)
        dense = [*map(_dense, parts)]
        x, w, h, state = (
            [self._address(None)] * 2
            if part is None
            else [self._address(pointer(part[0], count, kind)), self._at(part[1])]
            for part, count, kind in zip(dense, counts, kinds, strict=True)
        )
        biases: list[Any] = []
        for bias in layer.biases:
            codes, delayed, exponent = (None, None, 0) if bias is None else bias
            places = pointer(codes, gates * units, I8), pointer(delayed, gates * units, I16)
            biases += [*map(self._address, places), self._at(exponent)]
        lookup = self._address(pointer(layer.lookup, ENTRIES, I16))
        numbers = (steps, n, units, int(layer.reverse), lookup)
        words = self._words([*x, *w, *biases, *h, *state, *numbers])
        return (list(GATES).index(layer.kind), words), dense


def _state_type(gates: int) -> torch.dtype:
    """The type of the states of cells with so many gates."""
    return I16 if gates > 1 else I8


def _sizes(layer: CellLayer) -> tuple[int, int, int, int]:
    """T, N, H, and the number of gates."""
    steps, n, width = layer.products[0].shape
    gates = GATES[layer.kind]
    return steps, n, width // gates, gates


def _dense(part: Part | None) -> Part | None:
    return None if part is None else (part[0].contiguous(), part[1])
